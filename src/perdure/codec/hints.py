"""Which shape does a type hint stand for?

Hints are resolved and compiled once; text never names a class. A hint that cannot be recorded (a lock, a client, a callable) compiles
to a shape that refuses its values, with the path at which one turned up.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.codec import containers, models, records
from perdure.codec.plain import BOOL, FLOAT, INT, NONE, PLAIN, STR
from perdure.codec.scalars import RANGE, SCALARS, enum_shape
from perdure.codec.shape import Shape, full_name, hollow_shape, is_secret, refusing_shape
from perdure.codec.unions import union_shape

ALIAS: type = getattr(typing, "TypeAliasType", types.NoneType)
"""What `type X = ...` makes, from Python 3.12 on."""

_ATOMS: dict[Any, Shape] = {
    None: NONE, type(None): NONE, bool: BOOL, int: INT, float: FLOAT, str: STR, Any: PLAIN, object: PLAIN,
    typing.LiteralString: STR, range: RANGE, typing.Hashable: PLAIN, **SCALARS,
}  # fmt: skip

_WRAPPERS = (typing.Annotated, typing.Final, typing.ClassVar, typing.Required, typing.NotRequired)
_WRAPPERS += tuple(getattr(typing, name) for name in ("ReadOnly",) if hasattr(typing, name))

_ABSTRACT: dict[Any, tuple[Any, ...]] = {
    collections.abc.Sequence: (list, tuple), collections.abc.MutableSequence: (list,), collections.abc.Iterable: (list, tuple, set, frozenset),
    collections.abc.Collection: (list, tuple, set, frozenset), collections.abc.Reversible: (list, tuple),
    collections.abc.Mapping: (dict,), collections.abc.MutableMapping: (dict,),
    collections.abc.Set: (set, frozenset), collections.abc.MutableSet: (set,),
}  # fmt: skip
"""What may stand where an abstract collection is declared."""


class Unresolved:
    """A string hint whose names could not be found, and why."""

    def __init__(self, hint: str, reason: str) -> None:
        self.hint, self.reason = hint, reason


def shape_of(hint: Any) -> Shape:
    """The shape of a hint; the same object for the same hint."""
    key = _key(hint)
    done = _shapes.get(key)
    if done is None:
        done = _Compiler().shape(hint)
        _shapes[key] = done
    return done


_shapes: dict[Any, Shape] = {}


def _key(hint: Any) -> Any:
    """Equal keys, equal shapes. `int | str == str | int`, but the order of members matters here: the repr tells."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return hint
    try:
        hash(hint)
    except TypeError:
        return (id(hint), repr(hint))
    return (hint, repr(hint))


class _Compiler:
    """Compiles one hint and what it contains; `open` are the hints whose shapes are being built right now."""

    def __init__(self) -> None:
        self.open: dict[Any, Shape] = {}

    def shape(self, hint: Any) -> Shape:
        try:
            atom = _ATOMS.get(hint)
        except TypeError:
            atom = None
        if atom is not None:
            return atom
        key = _key(hint)
        done = _shapes.get(key) or self.open.get(key)
        if done is not None:
            return done
        stand_in = hollow_shape()
        self.open[key] = stand_in
        owner = typing.get_origin(hint) or hint
        if isinstance(owner, type):
            stand_in.words, stand_in.types, stand_in.kinds = words_of(hint), frozenset({owner}), records.OBJECT
        built = self.build(hint)
        stand_in.fill(built)
        del self.open[key]
        return built

    def build(self, hint: Any) -> Shape:
        origin = typing.get_origin(hint)
        if isinstance(hint, Unresolved):
            return refusing_shape(
                hint.hint,
                f"its hint {hint.hint!r} cannot be resolved ({hint.reason})",
                "Import the name at module level",
            )
        if isinstance(hint, ALIAS) and ALIAS is not types.NoneType:
            return self.shape(hint.__value__)
        if isinstance(hint, typing.TypeVar):
            return self.type_var(hint)
        if isinstance(hint, typing.NewType):
            return self.shape(hint.__supertype__)
        if isinstance(hint, typing.ForwardRef | str):
            name = hint if isinstance(hint, str) else hint.__forward_arg__
            return self.build(Unresolved(name, "a string that nothing resolves"))
        if isinstance(hint, dataclasses.InitVar):
            return self.shape(hint.type)
        if origin in _WRAPPERS or hint in (typing.Final, typing.ClassVar):
            return self.shape(typing.get_args(hint)[0]) if typing.get_args(hint) else PLAIN
        if origin is typing.Literal:
            return self.literal(typing.get_args(hint))
        if origin in (typing.Union, types.UnionType):
            return union_shape([self.shape(member) for member in _members(hint)])
        if isinstance(origin, ALIAS) and ALIAS is not types.NoneType:
            return self.shape(
                _bound(origin.__value__, dict(zip(origin.__type_params__, typing.get_args(hint), strict=False)))
            )
        return self.of_class(hint, origin or hint, typing.get_args(hint))

    def type_var(self, hint: typing.TypeVar) -> Shape:
        if hint.__constraints__:
            return union_shape([self.shape(each) for each in hint.__constraints__])
        return self.shape(hint.__bound__) if hint.__bound__ is not None else PLAIN

    def literal(self, values: tuple[Any, ...]) -> Shape:
        """Literal["a", 1]: the union of its values' types. Which values are allowed is the type checker's business."""
        return union_shape([self.shape(type(value)) for value in values])

    def of_class(self, hint: Any, cls: Any, args: tuple[Any, ...]) -> Shape:
        if cls in _ABSTRACT:
            return union_shape([self.shape(_applied(each, args)) for each in _ABSTRACT[cls]])
        if cls in _COLLECTIONS:
            return _COLLECTIONS[cls](self, args, words_of(hint))
        if cls in _ATOMS:
            return _ATOMS[cls]
        if not isinstance(cls, type):
            return refusing_shape(words_of(hint), f"a value declared as {words_of(hint)}", "Only data can be recorded")
        return self.of_user_class(hint, cls, args)

    def of_user_class(self, hint: Any, cls: Any, args: tuple[Any, ...]) -> Shape:
        words = words_of(hint)
        if issubclass(cls, enum.Enum):
            return enum_shape(cls)
        if models.is_model(cls):
            return models.model_shape(cls, self.shape, words)
        if typing.is_typeddict(cls):
            hints = resolved_hints(cls)
            bound = type_vars_of(cls, args)
            return records.typed_dict_shape(
                {name: self.shape(_bound(each, bound)) for name, each in hints.items()}, words
            )
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return records.named_tuple_shape(cls, self.field_shapes(cls, args), words)
        if issubclass(cls, msgspec.Struct):
            return records.struct_shape(cls, self.field_shapes(cls, args), words)
        if dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
            return self.of_dataclass(cls, args, words)
        if models.is_known_to_pydantic(cls) or is_secret(cls):
            return models.pydantic_form_shape(cls, words)
        return refusing_shape(words, f"a value of type {full_name(cls)}", _CLASS_HINT)

    def of_dataclass(self, cls: Any, args: tuple[Any, ...], words: str) -> Shape:
        base = records.refused_base(cls)
        if base is not None:
            return refusing_shape(
                words, f"a dataclass that is also a {base.__name__}", "Its content beside the fields would be lost"
            )
        make = records.dataclass_shape if dataclasses.is_dataclass(cls) else records.attrs_shape
        return make(cls, self.field_shapes(cls, args), words)

    def field_shapes(self, cls: Any, args: tuple[Any, ...]) -> Callable[[str], Shape]:
        hints = resolved_hints(cls)
        bound = type_vars_of(cls, args)
        defaults = _none_defaults(cls)

        def field_shape(name: str) -> Shape:
            shape = self.shape(_bound(hints.get(name, Any), bound))
            return union_shape([shape, NONE]) if name in defaults and "null" not in shape.kinds else shape

        return field_shape


_CLASS_HINT = "Make it a dataclass, or pass an id and let the step look the object up"


def _none_defaults(cls: Any) -> frozenset[str]:
    """Fields declared like `x: int = None`: the None is taken, whatever the annotation says."""
    if dataclasses.is_dataclass(cls):
        return frozenset(each.name for each in dataclasses.fields(cls) if each.default is None)
    if hasattr(cls, "_field_defaults"):
        return frozenset(name for name, default in cls._field_defaults.items() if default is None)
    return frozenset()


# ── collections ─────────────────────────────────────────────────────────────────────────────


def _one(compiler: _Compiler, args: tuple[Any, ...]) -> Shape:
    return compiler.shape(args[0]) if args else PLAIN


def _two(compiler: _Compiler, args: tuple[Any, ...]) -> tuple[Shape, Shape]:
    return (compiler.shape(args[0]), compiler.shape(args[1])) if args else (STR, PLAIN)


def _list(compiler: _Compiler, args: tuple[Any, ...], words: str) -> Shape:
    item = _one(compiler, args)
    return (
        containers.plain_container_shape(list, words)
        if item is PLAIN
        else containers.sequence_shape(list, list, item, words)
    )


def _tuple(compiler: _Compiler, args: tuple[Any, ...], words: str) -> Shape:
    if not args or args[-1] is Ellipsis:
        return containers.sequence_shape(tuple, tuple, _one(compiler, args), words)
    if any(typing.get_origin(each) is typing.Unpack or getattr(each, "__unpacked__", False) for each in args):
        return containers.sequence_shape(tuple, tuple, PLAIN, words)
    return containers.fixed_tuple_shape([] if args == ((),) else [compiler.shape(each) for each in args], words)


_COLLECTIONS: dict[Any, Callable[[_Compiler, tuple[Any, ...], str], Shape]] = {
    list: _list,
    tuple: _tuple,
    set: lambda compiler, args, words: containers.set_shape(set, _one(compiler, args), words),
    frozenset: lambda compiler, args, words: containers.set_shape(frozenset, _one(compiler, args), words),
    dict: lambda compiler, args, words: containers.dict_shape(*_two(compiler, args), words),
    collections.deque: lambda compiler, args, words: containers.deque_shape(_one(compiler, args), words),
    collections.OrderedDict: lambda compiler, args, words: containers.ordered_dict_shape(*_two(compiler, args), words),
    collections.defaultdict: lambda compiler, args, words: containers.defaultdict_shape(*_two(compiler, args), words),
    collections.Counter: lambda compiler, args, words: containers.counter_shape(
        compiler.shape(args[0]) if args else STR, words
    ),
}



def _applied(cls: Any, args: tuple[Any, ...]) -> Any:
    if not args:
        return cls
    return tuple[args[0], ...] if cls is tuple else cls[args if len(args) > 1 else args[0]]


# ── resolving ───────────────────────────────────────────────────────────────────────────────


def resolved_hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class or function, strings evaluated; what cannot be is an Unresolved."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception:  # evaluating annotations runs foreign code; what fails is found below, one by one
        return _hints_one_by_one(owner)


def _hints_one_by_one(owner: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for holder in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        module = sys.modules.get(getattr(holder, "__module__", ""), None)
        names = getattr(holder, "__globals__", None) or vars(module or types)
        inner = {**vars(holder), holder.__name__: holder} if isinstance(holder, type) else _closure_of(holder)
        for name, hint in inspect.get_annotations(holder).items():
            hints[name] = _evaluated(hint, names, inner)
    return hints


def _closure_of(function: Any) -> dict[str, Any]:
    """The names that a nested function takes from the function around it."""
    cells = zip(
        getattr(getattr(function, "__code__", None), "co_freevars", ()), function.__closure__ or (), strict=False
    )
    return {name: cell.cell_contents for name, cell in cells}


def _evaluated(hint: Any, names: Mapping[str, Any], local_names: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return typing.get_type_hints(holder, dict(names), local_names, include_extras=True)["it"]
    except Exception as no:
        return Unresolved(hint if isinstance(hint, str) else repr(hint), str(no))


def type_vars_of(cls: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    """What the type variables of a class and its generic bases stand for."""
    bound: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if origin is not None and origin is not typing.Generic:
            inherited = type_vars_of(origin, tuple(_bound(each, bound) for each in typing.get_args(base)))
            bound = {**inherited, **bound}
    return bound


def _bound(hint: Any, variables: dict[Any, Any]) -> Any:
    """The hint with its type variables replaced; unknown ones stay."""
    if not variables:
        return hint
    if isinstance(hint, typing.TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if (isinstance(hint, type) and not isinstance(hint, types.GenericAlias)) or not parameters:
        return hint
    return hint[tuple(variables.get(each, each) for each in parameters)]


def _members(hint: Any, seen: tuple[Any, ...] = ()) -> list[Any]:
    """The members of a union, aliases and wrappers opened, in the order written."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [each for member in typing.get_args(hint) for each in _members(member, seen)]
    if origin is typing.Annotated:
        return _members(typing.get_args(hint)[0], seen)
    if isinstance(hint, typing.NewType):
        return _members(hint.__supertype__, seen)
    if isinstance(hint, ALIAS) and ALIAS is not types.NoneType and hint not in seen:
        return _members(hint.__value__, (*seen, hint))
    if origin is typing.Literal:
        return list(dict.fromkeys(type(value) for value in typing.get_args(hint)))
    return [hint]


_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def words_of(hint: Any) -> str:
    """A hint as a person would write it, without the modules: `list[Claim] | None`."""
    if hint is Any:
        return "anything"
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return "None" if hint is types.NoneType else hint.__name__
    return _MODULES.sub("", repr(hint).replace("<locals>.", ""))

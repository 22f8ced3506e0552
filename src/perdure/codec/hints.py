"""Which shape does a type hint stand for?

Hints are compiled once; text never names a class. A hint that cannot be recorded (a lock, a client, a callable)
compiles to a shape that refuses its values, with the path at which one turned up.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.codec import containers, models, records, resolving
from perdure.codec.plain import BOOL, FLOAT, INT, NONE, PLAIN, STR
from perdure.codec.resolving import UNIONS, Unresolved, resolved_hints, words_of
from perdure.codec.scalars import RANGE, SCALARS, enum_shape, late_scalar
from perdure.codec.shape import Shape, full_name, hollow_shape, is_secret, refusing_shape, type_of
from perdure.codec.unions import union_shape

_ATOMS: dict[Any, Shape] = {
    None: NONE, type(None): NONE, bool: BOOL, int: INT, float: FLOAT, str: STR, range: RANGE,
    Any: PLAIN, object: PLAIN, typing.Hashable: PLAIN, typing.LiteralString: STR, **SCALARS,
}  # fmt: skip

_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Annotated", "Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
    if hasattr(typing, name)  # ReadOnly came with Python 3.13
)

_ABSTRACT: dict[Any, tuple[Any, ...]] = {
    collections.abc.Sequence: (list, tuple),
    collections.abc.MutableSequence: (list,),
    collections.abc.Reversible: (list, tuple),
    collections.abc.Iterable: (list, tuple, set, frozenset),
    collections.abc.Collection: (list, tuple, set, frozenset),
    collections.abc.Set: (set, frozenset),
    collections.abc.MutableSet: (set,),
    collections.abc.Mapping: (dict,),
    collections.abc.MutableMapping: (dict,),
}
"""What may stand where an abstract collection is declared."""


def shape_of(hint: Any) -> Shape:
    """The shape of a hint; the same object for the same hint."""
    done = _shapes.get(_key(hint))
    if done is None:
        compiler = _Compiler()
        done = compiler.shape(hint)
        _shapes.update(compiler.done)
        _shapes[_key(hint)] = done
    return done


_shapes: dict[Any, Shape] = {}


class _Identity:
    """A key for a hint that cannot be hashed."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.hint is other.hint

    def __hash__(self) -> int:
        return id(self.hint)


def _key(hint: Any) -> Any:
    """Equal keys, equal shapes. `int | str == str | int`, but here the order of members matters: the repr tells."""
    if resolving.is_class(hint):
        return hint
    try:
        hash(hint)
    except TypeError:
        return _Identity(hint)
    return (hint, repr(hint))


class _Compiler:
    """Compiles one hint and what it contains. `open` holds stand-ins for the hints that are being built right now."""

    def __init__(self) -> None:
        self.open: dict[Any, Shape] = {}
        self.done: dict[Any, Shape] = {}

    def shape(self, hint: Any) -> Shape:
        key = _key(hint)
        known = _shapes.get(key) or self.done.get(key) or self.open.get(key)
        if known is not None:
            return known
        stand_in = self.open[key] = hollow_shape()
        self.foresee(stand_in, hint)
        built = self.build(hint)
        stand_in.fill(built)
        del self.open[key]
        self.done[key] = built
        return built

    def foresee(self, stand_in: Shape, hint: Any) -> None:
        """What a union inside a recursive hint must know of it before it is built."""
        owner: Any = typing.get_origin(hint) or hint
        if isinstance(owner, type):
            stand_in.words, stand_in.types = words_of(hint), frozenset({owner})
            stand_in.kinds = containers.ARRAY if self.is_array(owner, typing.get_args(hint)) else containers.OBJECT

    def is_array(self, owner: Any, args: tuple[Any, ...]) -> bool:
        if owner is dict:
            return not containers.is_object_key(self.shape(args[0]) if args else STR)
        return owner in (list, tuple, set, frozenset, collections.OrderedDict, collections.Counter)

    def build(self, hint: Any) -> Shape:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(hint, Unresolved):
            return _unresolvable(hint.hint, hint.reason)
        if isinstance(hint, typing.ForwardRef | str):
            return _unresolvable(hint if isinstance(hint, str) else hint.__forward_arg__, "nothing says where to look")
        if resolving.is_no_type(hint):
            return refusing_shape(words_of(hint), f"a value declared as {words_of(hint)}, which is not a type", "")
        if origin in _WRAPPERS:
            return self.shape(args[0])
        if type_of(hint) is dataclasses.InitVar:
            return self.shape(hint.type)
        members = resolving.members_of(hint)
        if origin in UNIONS or members != [hint]:
            return union_shape([self.shape(member) for member in {_key(each): each for each in members}.values()])
        return self.of_class(hint, origin or hint, args)

    def of_class(self, hint: Any, cls: Any, args: tuple[Any, ...]) -> Shape:
        words = words_of(hint)
        if cls in _ATOMS:
            return _ATOMS[cls]
        if cls in _COLLECTIONS:
            return _COLLECTIONS[cls](self, args, words)
        if cls in _ABSTRACT:
            return union_shape([self.shape(_applied(each, args)) for each in _ABSTRACT[cls]])
        if cls in _WRAPPERS:
            return PLAIN
        if inspect.isclass(cls):
            return late_scalar(cls) or self.of_user_class(cls, args, words)
        return refusing_shape(words, f"a value declared as {words}", "Only data can be recorded")

    def of_user_class(self, cls: Any, args: tuple[Any, ...], words: str) -> Shape:
        if _is(cls, enum.Enum):
            return enum_shape(cls)
        if models.is_model(cls):
            return models.model_shape(cls, self.shape, words)
        if typing.is_typeddict(cls):
            hints, variables = resolved_hints(cls), resolving.variables_of(cls, args)
            shapes = {name: self.shape(resolving.bound(each, variables)) for name, each in hints.items()}
            return records.typed_dict_shape(shapes, words)
        if _is(cls, tuple) and hasattr(cls, "_fields"):
            return records.named_tuple_shape(cls, self.field_shapes(cls, args), words)
        if _is(cls, msgspec.Struct):
            return records.struct_shape(cls, self.field_shapes(cls, args), words)
        if dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__"):
            return self.of_dataclass(cls, args, words)
        if models.is_known_to_pydantic(cls) or is_secret(cls):
            return models.pydantic_form_shape(cls, words)
        return refusing_shape(words, f"a value of type {full_name(cls)}", _CLASS_ADVICE)

    def of_dataclass(self, cls: Any, args: tuple[Any, ...], words: str) -> Shape:
        base = records.refused_base(cls)
        if base is not None:
            what = f"a dataclass that is also a {base.__name__}"
            return refusing_shape(words, what, "Its content beside the fields would be lost")
        make = records.attrs_shape if hasattr(cls, "__attrs_attrs__") else records.dataclass_shape
        return make(cls, self.field_shapes(cls, args), words)

    def field_shapes(self, cls: Any, args: tuple[Any, ...]) -> Callable[[str], Shape]:
        """The shape of a field, by name."""
        hints, variables = resolved_hints(cls), resolving.variables_of(cls, args)
        defaults = records.none_defaults(cls)

        def field_shape(name: str) -> Shape:
            hint = resolving.with_self(hints.get(name, Any), cls)
            shape = self.shape(resolving.bound(hint, variables))
            return union_shape([shape, NONE]) if name in defaults and "null" not in shape.kinds else shape

        return field_shape


def _is(cls: Any, base: type) -> bool:
    """issubclass(), without the type checker's narrowing."""
    return issubclass(cls, base)


_CLASS_ADVICE = "Make it a dataclass, or pass an id and let the step look the object up"


def _unresolvable(hint: str, reason: str) -> Shape:
    what = f"its hint {hint!r} cannot be resolved ({reason})"
    return refusing_shape(hint, what, "Define or import the name at module level, for real")


# ── collections ─────────────────────────────────────────────────────────────────────────────


def _one(compiler: _Compiler, args: tuple[Any, ...]) -> Shape:
    return compiler.shape(args[0]) if args else PLAIN


def _two(compiler: _Compiler, args: tuple[Any, ...]) -> tuple[Shape, Shape]:
    return (compiler.shape(args[0]), compiler.shape(args[1])) if args else (STR, PLAIN)


def _list(compiler: _Compiler, args: tuple[Any, ...], words: str) -> Shape:
    item = _one(compiler, args)
    if item is PLAIN:
        return containers.plain_container_shape(list, words)
    return containers.sequence_shape(list, list, item, words)


def _tuple(compiler: _Compiler, args: tuple[Any, ...], words: str) -> Shape:
    if not args and words.endswith("[()]"):
        return containers.fixed_tuple_shape([], words)
    if not args or args[-1] is Ellipsis:
        return containers.sequence_shape(tuple, tuple, _one(compiler, args), words)
    if any(typing.get_origin(each) is typing.Unpack or getattr(each, "__unpacked__", False) for each in args):
        return containers.sequence_shape(tuple, tuple, PLAIN, words)
    return containers.fixed_tuple_shape([compiler.shape(each) for each in args], words)


def _counter(compiler: _Compiler, args: tuple[Any, ...], words: str) -> Shape:
    return containers.counter_shape(compiler.shape(args[0]) if args else STR, words)


_COLLECTIONS: dict[Any, Callable[[_Compiler, tuple[Any, ...], str], Shape]] = {
    list: _list,
    tuple: _tuple,
    set: lambda compiler, args, words: containers.set_shape(set, _one(compiler, args), words),
    frozenset: lambda compiler, args, words: containers.set_shape(frozenset, _one(compiler, args), words),
    dict: lambda compiler, args, words: containers.dict_shape(*_two(compiler, args), words),
    collections.deque: lambda compiler, args, words: containers.deque_shape(_one(compiler, args), words),
    collections.OrderedDict: lambda compiler, args, words: containers.ordered_dict_shape(*_two(compiler, args), words),
    collections.defaultdict: lambda compiler, args, words: containers.defaultdict_shape(*_two(compiler, args), words),
    collections.Counter: _counter,
}


def _applied(cls: Any, args: tuple[Any, ...]) -> Any:
    """The concrete collection with an abstract one's arguments."""
    if not args:
        return cls
    return cls[(*args, ...) if _is(cls, tuple) else args]

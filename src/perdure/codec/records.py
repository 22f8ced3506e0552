"""How are objects with named fields recorded: dataclasses, attrs classes, NamedTuples, TypedDicts, msgspec Structs?

As an object by field name. Reading restores the fields and runs no code of the class: a `__post_init__` has done its
work before the value was recorded, and what it put outside the fields would be lost, so such values are refused. A
field that is missing in the text (it was added since) gets its default; one that the class no longer has is ignored.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.codec.plain import PLAIN, checked_key, escaped, unescaped
from perdure.codec.shape import Shape, Unfit, key_step, not_this, not_wire, type_of

OBJECT = frozenset({"object"})
MISSING: Any = object()
"""No value, no default."""


class Field(msgspec.Struct, frozen=True):
    """One named part of a record."""

    name: str
    shape: Shape
    default: Any = MISSING
    default_factory: Any = MISSING
    may_be_unset: bool = False
    """Whether an instance can exist without it: nothing is recorded then, and nothing restored."""

    def when_missing(self) -> Any:
        """The value of a field that was added after the text was written; MISSING if it stays unset."""
        if self.default is not MISSING:
            return self.default
        if self.default_factory is not MISSING:
            return self.default_factory()
        if self.may_be_unset:
            return MISSING
        raise Unfit(f"nothing was recorded for field {self.name!r}", "It is newer than the record: give it a default")


def record_shape(
    cls: type,
    fields: list[Field],
    make: Callable[[dict[str, Any]], Any],
    words: str,
    has_dict: bool,
    stray: tuple[str, ...] = (),
) -> Shape:
    """A class whose instances are their fields. `make` builds one from a dict; `stray` are slots that are no fields."""
    names = frozenset(field.name for field in fields)
    writers = [(field.name, field.shape.own, field.shape.to_wire) for field in fields]
    readers = [(field.name, field.shape.own_wire, field.shape.from_wire) for field in fields]

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        wire: dict[str, Any] = {}
        name = ""
        depth += 1
        try:
            for name, own, item_to_wire in writers:
                item = getattr(value, name)
                wire[name] = item if type_of(item) is own else item_to_wire(item, depth)
        except Unfit as no:
            raise no.under(key_step(name)) from None
        except AttributeError:
            wire = _with_gaps_to_wire(value, fields, depth)
        if has_dict and len(value.__dict__) > len(names):
            _refuse_strangers(cls, value.__dict__, names)
        if stray:
            _refuse_strangers(cls, [name for name in stray if hasattr(value, name)], names)
        return wire

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict:
            raise not_wire(wire, words)
        state: dict[str, Any] = {}
        name = ""
        try:
            for name, own, item_from_wire in readers:
                item = wire[name]
                state[name] = item if type_of(item) is own else item_from_wire(item, tagged)
        except Unfit as no:
            raise no.under(key_step(name)) from None
        except KeyError:
            if tagged and is_mark(wire):
                return from_wire(only_member(wire, words), True)
            state = _with_gaps_from_wire(wire, fields, tagged)
        return make(state)

    return Shape(words, to_wire, from_wire, frozenset({cls}), OBJECT)


def _with_gaps_to_wire(value: Any, fields: list[Field], depth: int) -> dict[str, Any]:
    """The wire of a record some of whose fields were never set."""
    wire: dict[str, Any] = {}
    for field in fields:
        item = getattr(value, field.name, MISSING)
        if item is MISSING:
            if field.may_be_unset and field.default is MISSING and field.default_factory is MISSING:
                continue
            raise Unfit("a field that is not set", "Set it, or declare it with init=False").under(key_step(field.name))
        try:
            wire[field.name] = field.shape.to_wire(item, depth)
        except Unfit as no:
            raise no.under(key_step(field.name)) from None
    return wire


def _with_gaps_from_wire(wire: dict[str, Any], fields: list[Field], tagged: bool) -> dict[str, Any]:
    """The fields of a record that was written when it had fewer of them."""
    state: dict[str, Any] = {}
    for field in fields:
        try:
            item = field.shape.from_wire(wire[field.name], tagged) if field.name in wire else field.when_missing()
        except Unfit as no:
            raise no.under(key_step(field.name)) from None
        if item is not MISSING:
            state[field.name] = item
    return state


def is_mark(wire: Any) -> bool:
    """Whether a record's wire is that of a marked member of a union."""
    return type_of(wire) is dict and len(wire) == 1 and "$u" in wire


def only_member(wire: dict[str, Any], words: str) -> Any:
    """The wire of a record that was one member of a union when it was written, and is alone now."""
    mark = wire["$u"]
    if type_of(mark) is not list or len(mark) != 3 or mark[0] != words:
        raise Unfit(f"another member of a union was recorded where {words} is declared")
    return mark[2]


def _refuse_strangers(cls: type, attributes: Any, names: frozenset[str]) -> None:
    """Attributes that are not fields would be lost. Cached properties may be: they are computed again."""
    for name in attributes:
        if name in names or name == "__orig_class__" or isinstance(getattr(cls, name, None), functools.cached_property):
            continue
        raise Unfit(
            f"an attribute that is not a field of {cls.__name__}",
            "It would be lost: declare it as a field (field(init=False) if need be) or as a cached_property",
        ).under(key_step(name))


# ── dataclasses and attrs ───────────────────────────────────────────────────────────────────

_STATEFUL_BASES = (dict, list, set, frozenset, tuple, str, bytes, bytearray, int, float, complex, BaseException, type)


def refused_base(cls: type) -> type | None:
    """A base class that holds state beside the fields."""
    return next((base for base in _STATEFUL_BASES if issubclass(cls, base)), None)


def _unless(default: Any, absent: Any) -> Any:
    return MISSING if default is absent else default


def _slots(cls: type) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _maker(cls: type, fields: list[Field], has_dict: bool) -> Callable[[dict[str, Any]], Any]:
    """Makes an instance of its fields' values, past `__init__` and whatever `__setattr__` the class has."""
    new: Any = object.__new__
    put = object.__setattr__
    by_descriptor = any(hasattr(getattr(cls, field.name, None), "__set__") for field in fields)

    def make_one_by_one(state: dict[str, Any]) -> Any:
        value: Any = new(cls)
        for name, item in state.items():
            put(value, name, item)
        return value

    def make(state: dict[str, Any]) -> Any:
        value: Any = new(cls)
        put(value, "__dict__", state)
        return value

    return make if has_dict and not by_descriptor else make_one_by_one


def dataclass_shape(cls: type, shape_of: Callable[[str], Shape], words: str) -> Shape:
    """A dataclass; `shape_of` gives the shape of a field by name."""
    fields = [
        Field(
            each.name,
            shape_of(each.name),
            _unless(each.default, dataclasses.MISSING),
            _unless(each.default_factory, dataclasses.MISSING),
            may_be_unset=not each.init,
        )
        for each in dataclasses.fields(cls)
    ]
    return _object_shape(cls, fields, words)


def attrs_shape(cls: Any, shape_of: Callable[[str], Shape], words: str) -> Shape:
    """A class made by attrs, told by its `__attrs_attrs__`."""
    fields: list[Field] = []
    for each in cls.__attrs_attrs__:
        factory = getattr(each.default, "factory", MISSING)
        default = MISSING if factory is not MISSING or repr(each.default) == "NOTHING" else each.default
        takes_self = getattr(each.default, "takes_self", False)
        fields.append(Field(each.name, shape_of(each.name), default, MISSING if takes_self else factory, not each.init))
    return _object_shape(cls, fields, words)


def _object_shape(cls: type, fields: list[Field], words: str) -> Shape:
    has_dict = cls.__dictoffset__ != 0
    names = {field.name for field in fields}
    stray = tuple(name for name in _slots(cls) if name not in names and not name.startswith("__"))
    return record_shape(cls, fields, _maker(cls, fields, has_dict), words, has_dict, stray)


def none_defaults(cls: Any) -> frozenset[str]:
    """Fields declared like `x: int = None`: the None is taken, whatever the annotation says."""
    if dataclasses.is_dataclass(cls):
        return frozenset([each.name for each in dataclasses.fields(cls) if each.default is None])
    if hasattr(cls, "_field_defaults"):
        return frozenset([name for name, default in cls._field_defaults.items() if default is None])
    return frozenset()


# ── the others ──────────────────────────────────────────────────────────────────────────────


def named_tuple_shape(cls: Any, shape_of: Callable[[str], Shape], words: str) -> Shape:
    """typing.NamedTuple and collections.namedtuple."""
    names: tuple[str, ...] = cls._fields
    defaults = cls._field_defaults
    fields = [Field(name, shape_of(name), defaults.get(name, MISSING)) for name in names]

    def make(state: dict[str, Any]) -> Any:
        return cls._make([state[name] for name in names])

    return record_shape(cls, fields, make, words, has_dict=cls.__dictoffset__ != 0)


def struct_shape(cls: Any, shape_of: Callable[[str], Shape], words: str) -> Shape:
    """A msgspec Struct. Its constructor is the only way to make one; the fields are set once more, whatever it did."""
    names: tuple[str, ...] = cls.__struct_fields__
    defaults: tuple[Any, ...] = cls.__struct_defaults__  # of the last fields
    absent = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    fields = [_struct_field(name, shape_of(name), it) for name, it in zip(names, (*absent, *defaults), strict=True)]
    force = msgspec.structs.force_setattr
    has_post_init = hasattr(cls, "__post_init__")

    def make(state: dict[str, Any]) -> Any:
        value = cls(**state)
        if has_post_init:
            for name, item in state.items():
                force(value, name, item)
        return value

    return record_shape(cls, fields, make, words, has_dict=cls.__dictoffset__ != 0)


def _struct_field(name: str, shape: Shape, default: Any) -> Field:
    factory = getattr(default, "factory", MISSING) if type_of(default).__module__ == "msgspec._core" else MISSING
    return Field(name, shape, MISSING if factory is not MISSING else _unless(default, msgspec.NODEFAULT), factory)


def typed_dict_shape(shapes: dict[str, Shape], words: str) -> Shape:
    """A TypedDict is a dict: whatever keys it has come back, undeclared ones as plain JSON."""

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not dict:
            raise not_this(value, words)
        wire: dict[str, Any] = {}
        key: Any = ""
        try:
            for key, item in value.items():
                wire[key] = shapes.get(checked_key(key), PLAIN).to_wire(item, depth + 1)
        except Unfit as no:
            raise no.under(key_step(key)) from None
        return escaped(wire)

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict:
            raise not_wire(wire, words)
        value: dict[str, Any] = {}
        key = ""
        try:
            for key, item in unescaped(wire).items():
                value[key] = shapes.get(key, PLAIN).from_wire(item, tagged)
        except Unfit as no:
            raise no.under(key_step(key)) from None
        return value

    return Shape(words, to_wire, from_wire, frozenset({dict}), OBJECT)

"""How are pydantic models recorded, without importing pydantic?

As an object by field name (never by alias), every field included, so that defaults may change later. Which fields
were set explicitly, extra fields and private attributes are kept beside them under `$unset`, `$extra` and `$private`.
Reading restores the fields and runs no validator: what was recorded had been validated. A class that pydantic
understands but that is no model (URLs and the like) goes through pydantic's own JSON form, and is refused if that
does not give back an equal value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perdure.codec.plain import PLAIN
from perdure.codec.records import MISSING, Field, is_mark, only_member, record_shape
from perdure.codec.resolving import Unresolved, resolved_hints
from perdure.codec.shape import SECRET_ADVICE, Shape, Unfit, is_secret, key_step, not_this, refusing_shape, type_of

OBJECT = frozenset({"object"})


def is_model(cls: Any) -> bool:
    """Whether it is a pydantic BaseModel: only asked of pydantic when somebody else has imported it."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base) and cls is not base


def is_known_to_pydantic(cls: Any) -> bool:
    """Whether pydantic has a schema for this class."""
    return sys.modules.get("pydantic") is not None and hasattr(cls, "__get_pydantic_core_schema__")


def model_shape(cls: Any, shape_for: Callable[[Any], Shape], words: str) -> Shape:
    """A BaseModel or RootModel. A model whose building was deferred is built now."""
    if not cls.__pydantic_complete__:
        cls.model_rebuild(raise_errors=True)
    fields = [Field(name, shape_for(each.annotation), *_defaults(each)) for name, each in cls.model_fields.items()]
    private = {name: (each, _private_shape(cls, name, shape_for)) for name, each in cls.__private_attributes__.items()}
    names = frozenset(cls.model_fields)
    new, put = cls.__new__, object.__setattr__

    def make(state: dict[str, Any]) -> Any:
        value = new(cls)
        put(value, "__dict__", state)
        put(value, "__pydantic_extra__", None)
        put(value, "__pydantic_private__", None)
        return value

    record = record_shape(cls, fields, make, words, has_dict=True)

    def to_wire(value: Any, depth: int) -> Any:
        wire: dict[str, Any] = record.to_wire(value, depth)
        unset = names - value.__pydantic_fields_set__
        if unset:
            wire["$unset"] = sorted(unset)
        if value.__pydantic_extra__:
            wire["$extra"] = _extra_to_wire(value.__pydantic_extra__, depth + 2)
        if value.__pydantic_private__:
            hidden = _private_to_wire(value.__pydantic_private__, private, depth + 2)
            if hidden:
                wire["$private"] = hidden
        return wire

    def from_wire(wire: Any, tagged: bool) -> Any:
        if tagged and is_mark(wire):
            wire = only_member(wire, words)
        value = record.from_wire(wire, tagged)
        extra = wire.get("$extra", {})
        explicit = (set(wire) & names).difference(wire.get("$unset", ())).union(extra)
        put(value, "__pydantic_fields_set__", explicit)
        if cls.model_config.get("extra") == "allow":
            put(value, "__pydantic_extra__", {key: PLAIN.from_wire(item, tagged) for key, item in extra.items()})
        if private:
            put(value, "__pydantic_private__", _private_from_wire(wire.get("$private", {}), private, tagged))
        return value

    return Shape(words, to_wire, from_wire, frozenset({cls}), OBJECT)


def _defaults(field: Any) -> tuple[Any, Any]:
    """A FieldInfo's default and default factory, for a text that was written before the field existed."""
    if field.is_required():
        return MISSING, MISSING
    if field.default_factory is None:
        return MISSING, lambda: field.get_default(call_default_factory=True)
    return MISSING, MISSING if getattr(field, "default_factory_takes_validated_data", False) else field.default_factory


def _extra_to_wire(extra: dict[str, Any], depth: int) -> dict[str, Any]:
    wire: dict[str, Any] = {}
    for name, item in extra.items():
        try:
            wire[name] = PLAIN.to_wire(item, depth)
        except Unfit as no:
            raise no.under(key_step(name)) from None
    return wire


def _private_shape(cls: Any, name: str, shape_for: Callable[[Any], Shape]) -> Shape:
    hint = resolved_hints(cls).get(name, Any)
    return PLAIN if isinstance(hint, Unresolved) else shape_for(hint)


def _private_to_wire(attributes: dict[str, Any], private: dict[str, Any], depth: int) -> dict[str, Any]:
    """Private attributes that differ from their defaults."""
    wire: dict[str, Any] = {}
    for name, item in attributes.items():
        attribute, shape = private.get(name, (None, PLAIN))
        if attribute is not None and attribute.default_factory is None and item is attribute.default:
            continue
        try:
            wire[name] = shape.to_wire(item, depth)
        except Unfit as no:
            raise no.under(key_step(name)) from None
    return wire


def _private_from_wire(wire: dict[str, Any], private: dict[str, Any], tagged: bool) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name, (attribute, shape) in private.items():
        if name in wire:
            attributes[name] = shape.from_wire(wire[name], tagged)
        elif attribute.default_factory is None and repr(attribute.default) != "PydanticUndefined":
            attributes[name] = attribute.get_default()
    return attributes


def pydantic_form_shape(cls: type, words: str) -> Shape:
    """A class that pydantic can write and validate: recorded in that form, if it gives back an equal value."""
    if is_secret(cls):
        return refusing_shape(words, f"a {words}", SECRET_ADVICE)
    adapter: Any = sys.modules["pydantic"].TypeAdapter(cls)

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        wire = PLAIN.to_wire(adapter.dump_python(value, mode="json"), depth)
        again = adapter.validate_python(PLAIN.from_wire(wire, True))
        if type_of(again) is not cls or again != value:
            raise Unfit(f"a {words} whose JSON form is not equal to it", "Convert it first")
        return wire

    def from_wire(wire: Any, tagged: bool) -> Any:
        try:
            return adapter.validate_python(PLAIN.from_wire(wire, tagged))
        except ValueError as no:
            raise Unfit(f"something was recorded that is no {words} ({no})") from None

    return Shape(words, to_wire, from_wire, frozenset({cls}), PLAIN.kinds)

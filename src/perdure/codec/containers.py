"""How are collections recorded: lists, tuples, sets, dicts and their relatives?

What has no order (sets, dict keys) is written in the order of its elements' texts, so that equal values give equal
bytes. What has one (OrderedDict, deque, tuple) keeps it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from perdure.codec.canonical import canonical_bytes
from perdure.codec.plain import (
    FLOAT,
    INT,
    PLAIN,
    STR,
    checked_key,
    escaped,
    float_wires,
    plain_from_wire,
    plain_to_wire,
    unescaped,
)
from perdure.codec.shape import Shape, Unfit, key_step, not_this, not_wire, type_of

ARRAY = frozenset({"array"})
OBJECT = frozenset({"object"})
_LIST: Any = list
_DICT: Any = dict


def _items_to_wire(items: Iterable[Any], shape: Shape, depth: int) -> list[Any]:
    own, item_to_wire = shape.own, shape.to_wire
    wire: list[Any] = []
    try:
        for item in items:
            wire.append(item if type_of(item) is own else item_to_wire(item, depth))
    except Unfit as no:
        raise no.under(f"[{len(wire)}]") from None
    return wire


def _items_from_wire(wire: Any, shape: Shape, tagged: bool, words: str) -> list[Any]:
    if type_of(wire) is not list:
        raise not_wire(wire, words)
    own, item_from_wire = shape.own_wire, shape.from_wire
    items: list[Any] = []
    try:
        for item in wire:
            items.append(item if type_of(item) is own else item_from_wire(item, tagged))
    except Unfit as no:
        raise no.under(f"[{len(items)}]") from None
    return items


def sequence_shape(cls: Callable[[Any], Any], of: type, item: Shape, words: str) -> Shape:
    """list[X], tuple[X, ...]: elements in order. `cls` makes the value from a list."""

    own, item_to_wire = item.own, item.to_wire
    own_wire, item_from_wire = item.own_wire, item.from_wire

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not of:
            raise not_this(value, words)
        depth += 1
        try:
            return [each if type_of(each) is own else item_to_wire(each, depth) for each in value]
        except Unfit:
            return _items_to_wire(value, item, depth)  # once more, to say which

    def floats_to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not of:
            raise not_this(value, words)
        try:
            return float_wires(value)
        except Unfit:
            return _items_to_wire(value, item, depth + 1)

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not list:
            raise not_wire(wire, words)
        try:
            items = [each if type_of(each) is own_wire else item_from_wire(each, tagged) for each in wire]
        except Unfit:
            items = _items_from_wire(wire, item, tagged, words)  # once more, to say which
        return items if of is list else cls(items)

    native = _LIST[item.native] if of is list and item.native is not None else None
    write = floats_to_wire if item is FLOAT else to_wire
    return Shape(words, write, from_wire, frozenset({of}), ARRAY, native=native)


def plain_container_shape(of: type, words: str) -> Shape:
    """dict and list without more: plain JSON, of this one type."""

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not of:
            raise not_this(value, words)
        return plain_to_wire(value, depth)

    def from_wire(wire: Any, tagged: bool) -> Any:
        value = plain_from_wire(wire, tagged)
        if type_of(value) is not of:
            raise not_wire(wire, words)
        return value

    kinds, native = (OBJECT, dict[str, Any]) if of is dict else (ARRAY, list[Any])
    return Shape(words, to_wire, from_wire, frozenset({of}), kinds, native=native)


def fixed_tuple_shape(items: list[Shape], words: str) -> Shape:
    """tuple[A, B]: exactly as many elements as declared."""

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not tuple:
            raise not_this(value, words)
        if len(value) != len(items):
            raise Unfit(f"{len(value)} elements where {words} is declared")
        return [
            _at(index, shape.to_wire, item, depth + 1)
            for index, (shape, item) in enumerate(zip(items, value, strict=True))
        ]

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not list or len(wire) != len(items):
            raise not_wire(wire, words)
        return tuple(
            [
                _at(index, shape.from_wire, item, tagged)
                for index, (shape, item) in enumerate(zip(items, wire, strict=True))
            ]
        )

    return Shape(words, to_wire, from_wire, frozenset({tuple}), ARRAY)


def _at(index: int, convert: Callable[[Any, Any], Any], item: Any, extra: Any) -> Any:
    try:
        return convert(item, extra)
    except Unfit as no:
        raise no.under(f"[{index}]") from None


def set_shape(of: type, item: Shape, words: str) -> Shape:
    """set[X], frozenset[X]: in the order of the elements' texts."""

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not of:
            raise not_this(value, words)
        own, item_to_wire = item.own, item.to_wire
        try:
            wire = [each if type_of(each) is own else item_to_wire(each, depth + 1) for each in value]
        except Unfit as no:
            raise no.under("{…}") from None
        wire.sort(key=canonical_bytes)
        return wire

    def from_wire(wire: Any, tagged: bool) -> Any:
        items = _items_from_wire(wire, item, tagged, words)
        try:
            return of(items)
        except TypeError as no:
            raise Unfit(f"an element that cannot be in a set ({no})") from None

    return Shape(words, to_wire, from_wire, frozenset({of}), ARRAY)


def deque_shape(item: Shape, words: str) -> Shape:
    """deque[X], with its maxlen."""

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not deque:
            raise not_this(value, words)
        return {"items": _items_to_wire(value, item, depth + 2), "maxlen": value.maxlen}

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict or wire.keys() != {"items", "maxlen"}:
            raise not_wire(wire, words)
        return deque(_items_from_wire(wire["items"], item, tagged, words), wire["maxlen"])

    return Shape(words, to_wire, from_wire, frozenset({deque}), OBJECT)


# ── dict and its relatives ──────────────────────────────────────────────────────────────────


def is_object_key(key: Shape) -> bool:
    """Whether keys of this shape are written as the keys of an object."""
    return key.kinds == frozenset({"string"})


def dict_shape(key: Shape, item: Shape, words: str) -> Shape:
    """dict[K, V]: an object if every key is written as a string, else a list of pairs."""
    if key is STR:
        return plain_container_shape(dict, words) if item is PLAIN else _object_shape(item, words)
    if is_object_key(key):
        to_wire, from_wire = _keyed_object(key, item, words)
        return _dict_of(dict, to_wire, from_wire, OBJECT, words)
    to_wire, from_wire = _pairs(key, item, words)
    return _dict_of(dict, to_wire, from_wire, ARRAY, words)


def _object_shape(item: Shape, words: str) -> Shape:
    own, item_to_wire = item.own, item.to_wire
    own_wire, item_from_wire = item.own_wire, item.from_wire

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not dict:
            raise not_this(value, words)
        wire: dict[str, Any] = {}
        key: Any = None
        try:
            for key, each in value.items():
                if type_of(key) is not str:
                    checked_key(key)
                wire[key] = each if type_of(each) is own else item_to_wire(each, depth + 1)
        except Unfit as no:
            raise no.under(key_step(key)) from None
        return escaped(wire)

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict:
            raise not_wire(wire, words)
        key = ""
        value: dict[str, Any] = {}
        try:
            for key, each in unescaped(wire).items():
                value[key] = each if type_of(each) is own_wire else item_from_wire(each, tagged)
        except Unfit as no:
            raise no.under(key_step(key)) from None
        return value

    native = _DICT[str, item.native] if item.native is not None else None
    return Shape(words, to_wire, from_wire, frozenset({dict}), OBJECT, native=native)


def _dict_of(
    cls: type,
    to_wire: Callable[[Any, int], Any],
    from_wire: Callable[[Any, bool], Any],
    kinds: frozenset[str],
    words: str,
) -> Shape:
    def checked_to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        return to_wire(value, depth)

    return Shape(words, checked_to_wire, from_wire, frozenset({cls}), kinds)


def _keyed_object(key: Shape, item: Shape, words: str) -> tuple[Callable[[Any, int], Any], Callable[[Any, bool], Any]]:
    """Keys that are written as strings: enums, UUIDs, dates."""

    def to_wire(value: Any, depth: int) -> Any:
        wire: dict[str, Any] = {}
        for each, it in value.items():
            try:
                wire[key.to_wire(each, depth + 1)] = item.to_wire(it, depth + 1)
            except Unfit as no:
                raise no.under(key_step(each)) from None
        return escaped(wire)

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict:
            raise not_wire(wire, words)
        value: dict[Any, Any] = {}
        for each, it in unescaped(wire).items():
            try:
                value[key.from_wire(each, tagged)] = item.from_wire(it, tagged)
            except Unfit as no:
                raise no.under(key_step(each)) from None
        return value

    return to_wire, from_wire


def _pairs(
    key: Shape, item: Shape, words: str, in_order: bool = False
) -> tuple[Callable[[Any, int], Any], Callable[[Any, bool], Any]]:
    """[[key, value], ...]: in the order of the keys' texts, unless the value's own order is part of it."""

    def to_wire(value: Any, depth: int) -> Any:
        wire: list[Any] = []
        for each, it in value.items():
            try:
                wire.append([key.to_wire(each, depth + 2), item.to_wire(it, depth + 2)])
            except Unfit as no:
                raise no.under(key_step(each)) from None
        if not in_order:
            wire.sort(key=_pair_order)
        return wire

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not list:
            raise not_wire(wire, words)
        value: dict[Any, Any] = {}
        for index, pair in enumerate(wire):
            try:
                if type_of(pair) is not list or len(pair) != 2:
                    raise not_wire(pair, "a pair of key and value")
                value[key.from_wire(pair[0], tagged)] = item.from_wire(pair[1], tagged)
            except Unfit as no:
                raise no.under(f"[{index}]") from None
            except TypeError as no:
                raise Unfit(f"a key that cannot be in a dict ({no})").under(f"[{index}]") from None
        return value

    return to_wire, from_wire


def _pair_order(pair: list[Any]) -> bytes:
    return canonical_bytes(pair[0])


def ordered_dict_shape(key: Shape, item: Shape, words: str) -> Shape:
    """OrderedDict[K, V]: its order is part of its equality."""
    to_wire, from_wire = _pairs(key, item, words, in_order=True)
    return _dict_of(OrderedDict, to_wire, lambda wire, tagged: OrderedDict(from_wire(wire, tagged)), ARRAY, words)


def counter_shape(key: Shape, words: str) -> Shape:
    """Counter[K]: order decides ties in most_common(), so it is kept."""
    to_wire, from_wire = _pairs(key, INT, words, in_order=True)

    def counter_from_wire(wire: Any, tagged: bool) -> Counter[Any]:
        return Counter(from_wire(wire, tagged))

    return _dict_of(Counter, to_wire, counter_from_wire, ARRAY, words)


FACTORIES: dict[str, Any] = {each.__name__: each for each in (int, float, str, bool, bytes, list, tuple, set, dict)}
_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}


def defaultdict_shape(key: Shape, item: Shape, words: str) -> Shape:
    """defaultdict[K, V] with a builtin as its factory, or none; others cannot be recorded."""
    plain = dict_shape(key, item, words)

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not defaultdict:
            raise not_this(value, words)
        factory = value.default_factory
        try:
            name = None if factory is None else _FACTORY_NAMES[factory]
        except (KeyError, TypeError):
            raise Unfit(f"a defaultdict with the factory {factory!r}", f"Known are {', '.join(FACTORIES)}") from None
        return {"default": name, "items": plain.to_wire(dict(value), depth + 1)}

    def from_wire(wire: Any, tagged: bool) -> Any:
        if type_of(wire) is not dict or wire.keys() != {"default", "items"}:
            raise not_wire(wire, words)
        name = wire["default"]
        if name is not None and name not in FACTORIES:
            raise not_wire(wire, words)
        return defaultdict(None if name is None else FACTORIES[name], plain.from_wire(wire["items"], tagged))

    return Shape(words, to_wire, from_wire, frozenset({defaultdict}), OBJECT)

"""How are values recorded that nobody described with a type hint?

They must be plain JSON: None, bool, int, float, str, list, dict with str keys, of exactly these types. What JSON
numbers and strings cannot carry exactly is tagged: an object with one key that starts with "$".

    {"$f": "NaN"}    a float whose JSON form would come back as something else: NaN, Infinity, -0, and whole floats
    ("1") {"$i": "1..."}   an integer beyond 2**53 {"$s": "..."}    a string with half a surrogate pair, base64 of
    UTF-16 {"$u": [...]}    a member of a union (`unions.py`) {"$": {...}}     a user's own object that looks like one
    of these
"""

from __future__ import annotations

import math
from typing import Any

from perdure.codec.canonical import SAFE_INTEGER_MAX, ecmascript_number, number_wire, surrogate_text
from perdure.codec.shape import (
    DEPTH_MAX,
    PLAIN_TYPES,
    PLAIN_WORDS,
    Shape,
    Unfit,
    key_step,
    not_this,
    not_wire,
    too_deep,
    type_of,
)

_SAFE_MIN, _SAFE_MAX = -SAFE_INTEGER_MAX, SAFE_INTEGER_MAX


def is_own_wire(value: Any, depth: int) -> bool:
    """Whether a dict or list is plain JSON that needs no tag anywhere. The hot path: one walk, no copies.

    Written out twice and without calls per item, because every value passes here.
    """
    if depth > DEPTH_MAX:
        return False
    key = ""
    if type_of(value) is dict:
        for key, item in value.items():
            if type_of(key) is not str:
                return False
            kind = type_of(item)
            if kind is str or kind is bool or item is None:
                continue
            if kind is int:
                if _SAFE_MIN <= item <= _SAFE_MAX:
                    continue
                return False
            if kind is dict or kind is list:
                if is_own_wire(item, depth + 1):
                    continue
                return False
            if kind is float and (1e-5 <= item < 1e15 or -1e15 < item <= -1e-5) and not item.is_integer():
                continue
            return False
        return len(value) != 1 or not key.startswith("$")
    if type_of(value) is not list:
        return False
    for item in value:
        kind = type_of(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is int:
            if _SAFE_MIN <= item <= _SAFE_MAX:
                continue
            return False
        if kind is dict or kind is list:
            if is_own_wire(item, depth + 1):
                continue
            return False
        if kind is float and (1e-5 <= item < 1e15 or -1e15 < item <= -1e-5) and not item.is_integer():
            continue
        return False
    return True


def plain_to_wire(value: Any, depth: int) -> Any:
    """The wire of a plain JSON value. Raises Unfit for anything else."""
    kind = type_of(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return int_to_wire(value)
    if kind is float:
        return float_tagged(value)
    if kind is dict or kind is list:
        return value if is_own_wire(value, depth) else _container_to_wire(value, depth)
    raise not_this(value, PLAIN_WORDS)


def _container_to_wire(value: Any, depth: int) -> Any:
    """A dict or list with something inside that needs a tag, or has no wire."""
    if depth > DEPTH_MAX:
        raise too_deep()
    if type_of(value) is list:
        items: list[Any] = []
        try:
            for item in value:
                items.append(plain_to_wire(item, depth + 1))
        except Unfit as no:
            raise no.under(f"[{len(items)}]") from None
        return items
    wire: dict[str, Any] = {}
    for key, item in value.items():
        try:
            wire[checked_key(key)] = plain_to_wire(item, depth + 1)
        except Unfit as no:
            raise no.under(key_step(key)) from None
    return escaped(wire)


def checked_key(key: Any) -> str:
    """The key of a plain JSON object, or Unfit."""
    if type_of(key) is not str:
        raise Unfit(
            f"a key of type {type_of(key).__qualname__} ({key!r:.40})",
            f"Plain JSON has str keys: annotate it, for example as dict[{type_of(key).__qualname__}, ...]",
        )
    return str(key)


def escaped(wire: dict[str, Any]) -> dict[str, Any]:
    """An object of the user's, kept apart from our tags."""
    if len(wire) == 1 and next(iter(wire)).startswith("$"):
        return {"$": wire}
    return wire


def unescaped(wire: dict[str, Any]) -> dict[str, Any]:
    """The user's object in a wire that cannot be one of our tags otherwise."""
    if len(wire) == 1 and "$" in wire and type_of(wire["$"]) is dict:
        inner: dict[str, Any] = wire["$"]
        return inner
    return wire


def plain_from_wire(wire: Any, tagged: bool) -> Any:
    """The plain value of a wire."""
    if not tagged:
        return wire
    if type_of(wire) is list:
        return [plain_from_wire(item, True) if type_of(item) in _NESTED else item for item in wire]
    if type_of(wire) is not dict:
        return wire
    if len(wire) == 1:
        (key,) = wire
        if key.startswith("$"):
            return _untagged(key, wire[key])
    return {key: plain_from_wire(item, True) if type_of(item) in _NESTED else item for key, item in wire.items()}


_NESTED = frozenset({dict, list})


def _untagged(key: str, inner: Any) -> Any:
    if key == "$" and type_of(inner) is dict:
        return {key: plain_from_wire(item, True) for key, item in inner.items()}
    if key == "$f":
        return _float_of(inner)
    if key == "$i":
        return _int_of(inner)
    if key == "$s":
        return surrogate_text(inner)
    if key == "$u":
        raise Unfit(
            "a member of a union was recorded where plain JSON is declared", "Declare the union it was written under"
        )
    raise Unfit(f"an unknown tag {key!r}", "A newer perdure may have written it")


# ── the scalars under their own hints ───────────────────────────────────────────────────────


def int_to_wire(value: int) -> Any:
    """An exact int, tagged when JSON readers would round it."""
    return value if _SAFE_MIN <= value <= _SAFE_MAX else {"$i": _digits(value)}


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # longer than Python is willing to print in decimal
        return hex(value)


def _int_of(digits: Any) -> int:
    try:
        return int(digits, 16 if "x" in digits else 10)
    except (TypeError, ValueError):
        raise Unfit(f"a damaged integer tag ({digits!r})") from None


def float_tagged(value: float) -> Any:
    """A float where an int could stand too: whole numbers are tagged, so that they come back as floats."""
    if (value.is_integer() and abs(value) < 1e21) or not math.isfinite(value):
        return {"$f": _float_text(value)}
    return number_wire(value)


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return ecmascript_number(value) if value else ("-0" if math.copysign(1, value) < 0 else "0")
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _float_of(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        raise Unfit(f"a damaged float tag ({text!r})") from None


def _float_to_wire(value: Any, depth: int) -> Any:
    kind = type_of(value)
    if kind is float:
        if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
            return {"$f": _float_text(value)}
        return number_wire(value)
    if kind is int:  # where float is declared Python takes an int too, and it must come back as one
        return {"$i": _digits(value)}
    raise not_this(value, "float")


def float_wires(values: Any) -> list[Any]:
    """The wires of many floats: embeddings are thousands of them."""
    return [
        value
        if type_of(value) is float and (1e-5 <= value < 1e15 or -1e15 < value <= -1e-5) and not value.is_integer()
        else _float_to_wire(value, 0)
        for value in values
    ]


def _float_from_wire(wire: Any, tagged: bool) -> Any:
    if type_of(wire) is int:
        return _float_of(wire)
    return _scalar_from_wire(wire, (float, int), "float")


def _int_to_wire(value: Any, depth: int) -> Any:
    if type_of(value) is int:
        return value if _SAFE_MIN <= value <= _SAFE_MAX else int_to_wire(value)
    if type_of(value) is bool:  # where int is declared Python takes a bool too, and it must come back as one
        return value
    raise not_this(value, "int")


def _int_from_wire(wire: Any, tagged: bool) -> Any:
    return _scalar_from_wire(wire, (int, bool), "int")


def _scalar_from_wire(wire: Any, types: tuple[type, ...], words: str) -> Any:
    value = plain_from_wire(wire, True) if type_of(wire) is dict else wire
    if type_of(value) not in types:
        raise not_wire(wire, words)
    return value


def _scalar(words: str, of: type, kind: str) -> Shape:
    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not of:
            raise not_this(value, words)
        return value

    def from_wire(wire: Any, tagged: bool) -> Any:
        return _scalar_from_wire(wire, (of,), words)

    return Shape(words, to_wire, from_wire, frozenset({of}), frozenset({kind}), own=of, own_wire=of, native=of)


NONE = _scalar("None", type(None), "null")
BOOL = _scalar("bool", bool, "boolean")
STR = _scalar("str", str, "string")
INT = Shape(
    "int",
    _int_to_wire,
    _int_from_wire,
    frozenset({int, bool}),
    frozenset({"number", "boolean"}),
    own_wire=int,
    native=int | bool,
)
FLOAT = Shape(
    "float",
    _float_to_wire,
    _float_from_wire,
    frozenset({float, int}),
    frozenset({"number"}),
    own_wire=float,
    native=float,
)
PLAIN = Shape(
    PLAIN_WORDS, plain_to_wire, plain_from_wire, PLAIN_TYPES,
    frozenset({"null", "boolean", "number", "string", "array", "object"}), native=Any,
)  # fmt: skip

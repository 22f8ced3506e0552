"""How does a wire become bytes that are the same on every machine?

RFC 8785 (JSON Canonicalization Scheme): keys in the order of their UTF-16 code units, numbers as ECMAScript prints
them, no white space, UTF-8. msgspec writes exactly that for all but a few values; those are found here and written by
hand.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import msgspec

from perdure.codec.shape import Unfit, key_step, type_of

SAFE_INTEGER_MAX = 2**53
"""Every integer up to this is exact in every JSON reader."""

encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


def canonical_bytes(wire: Any) -> bytes:
    """The one text of this wire."""
    try:
        raw = encode_sorted(wire)
    except UnicodeEncodeError:  # a lone surrogate somewhere
        return b"".join(_pieces(wire))
    if not raw.isascii() and _has_astral_key(wire):
        return b"".join(_pieces(wire))
    return raw


def parse(raw: bytes) -> Any:
    """The wire of a text. Raises Unfit when it is not JSON."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as no:
        raise Unfit(f"not JSON: {no}") from None


def number_wire(number: float) -> Any:
    """A float as something that is written the way RFC 8785 wants. Not for NaN, infinity and -0.0."""
    if number.is_integer() and -SAFE_INTEGER_MAX <= number <= SAFE_INTEGER_MAX:
        return int(number)
    if 1e-5 <= abs(number) < 1e15:
        return number
    return msgspec.Raw(ecmascript_number(number).encode())


def ecmascript_number(number: float) -> str:
    """Number.prototype.toString of ECMAScript, which RFC 8785 prescribes.

    Both languages print the shortest digits that read back as the same number; only the layout differs.
    """
    if number == 0:
        return "0"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or "0")
    digits = whole + ("" if fraction == "0" else fraction)
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.lstrip("0").rstrip("0")
    return sign + _layout(digits, point)


def _layout(digits: str, point: int) -> str:
    """`digits` with the decimal point after `point` of them, as ECMAScript lays it out."""
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    exponent = point - 1
    tail = f"e{'+' if exponent > 0 else '-'}{abs(exponent)}"
    return digits[0] + (f".{digits[1:]}" if count > 1 else "") + tail


def _has_astral_key(wire: Any) -> bool:
    """Whether some key holds a character beyond U+FFFF: there UTF-16 order and code point order differ."""
    if type_of(wire) is dict:
        for key, item in wire.items():
            if not key.isascii() and max(key) > "\uffff":
                return True
            if type_of(item) in _CONTAINERS and _has_astral_key(item):
                return True
    elif type_of(wire) is list:
        return any(type_of(item) in _CONTAINERS and _has_astral_key(item) for item in wire)
    return False


_CONTAINERS = frozenset({dict, list})


def _pieces(wire: Any) -> list[bytes]:
    """The text of a wire that msgspec would refuse or order differently."""
    if type_of(wire) is dict:
        return _object_pieces(wire)
    if type_of(wire) is list:
        pieces = [b"["]
        for item in wire:
            pieces += _pieces(item)
            pieces.append(b",")
        return _closed(pieces, b"]")
    if type_of(wire) is str and not is_encodable(wire):
        surrogates = base64.b64encode(wire.encode("utf-16-be", "surrogatepass")).decode()
        return [encode_sorted({"$s": surrogates})]
    return [encode_sorted(wire)]


def _object_pieces(wire: dict[str, Any]) -> list[bytes]:
    pieces = [b"{"]
    for key in sorted(wire, key=utf16_order):
        if not is_encodable(key):
            raise Unfit("a key with half a surrogate pair", "Such text is not Unicode: repair it first").under(
                key_step(key)
            )
        try:
            pieces += (encode_sorted(key), b":", *_pieces(wire[key]), b",")
        except Unfit as no:
            raise no.under(key_step(key)) from None
    return _closed(pieces, b"}")


def _closed(pieces: list[bytes], bracket: bytes) -> list[bytes]:
    if len(pieces) > 1:
        pieces[-1] = bracket
    else:
        pieces.append(bracket)
    return pieces


def utf16_order(key: str) -> bytes:
    """Sorts like the UTF-16 code units of the key."""
    return key.encode("utf-16-be", "surrogatepass")


def is_encodable(text: str) -> bool:
    """Whether it is proper Unicode, without half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def surrogate_text(encoded: Any) -> str:
    """The string that `{"$s": encoded}` stands for."""
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-16-be", "surrogatepass")
    except (ValueError, TypeError):
        raise Unfit(f"a damaged string tag ({encoded!r})") from None

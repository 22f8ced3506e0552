"""How does a value become bytes under a type hint, and the same value again?

For every value, `loads(dumps(x)) == x` with the same exact types at every level, or `dumps` raises EncodeError that
names the path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perdure.codec import hiding
from perdure.codec.canonical import canonical_bytes, parse
from perdure.codec.hints import shape_of
from perdure.codec.resolving import words_of
from perdure.codec.shape import UNDECLARED, Shape, Unfit, too_deep
from perdure.errors import DecodeError, EncodeError

TAG = b'{"$'
"""Text without this holds no tag: inside strings the quote is escaped."""

DOLLAR = TAG[-1]


def is_tagged(raw: bytes) -> bool:
    """Whether a text may hold a tag. By `find`: in Python 3.11 `TAG in raw` raises and swallows an error first. One
    character alone is found five times as fast, and most texts have none."""
    return DOLLAR in raw and raw.find(TAG) >= 0


class ValueCodec:
    """Values of one type hint ⇄ canonical JSON. Get one with `codec_for`; it is immutable and shared."""

    __slots__ = ("_from_wire", "_to_wire", "hint", "native", "shape", "words")

    def __init__(self, hint: Any, shape: Shape) -> None:
        self.hint, self.shape, self.words = hint, shape, shape.words
        self._to_wire, self._from_wire = shape.to_wire, shape.from_wire
        native = None if shape.native is None else msgspec.json.Decoder(shape.native).decode
        self.native: Callable[[bytes], Any] | None = native

    def refusal(self) -> str:
        """Why no value at all can be recorded under the hint; empty if some can."""
        if self.shape.kinds:
            return ""
        try:
            self._to_wire(None, 0)
        except Unfit as no:
            return f"{no.what}. {no.hint}" if no.hint else no.what
        return ""

    def dumps(self, value: Any, at: str = "$") -> bytes:
        """The canonical JSON of a value.

        Raises EncodeError for what would not come back equal and of the same types; `at` is what its path begins with.
        """
        try:
            raw = canonical_bytes(self._to_wire(value, 0))
            return raw if hiding.active is None else without_secrets(raw, self.loads)
        except Unfit as no:
            raise EncodeError(at + no.path(), no.what, no.hint) from None
        except RecursionError:
            raise EncodeError(at, too_deep().what, too_deep().hint) from None

    def loads(self, raw: bytes, at: str = "$") -> Any:
        """The value of a canonical JSON text. Raises DecodeError when it does not fit the hint."""
        tagged = DOLLAR in raw and raw.find(TAG) >= 0  # `is_tagged`, which every value that is read is spared
        try:
            if self.native is not None and not tagged:
                return self.native(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # said again below, with path and words
        try:
            return self._from_wire(parse(raw), tagged)
        except Unfit as no:
            raise DecodeError(at + no.path(), no.what, no.hint) from None
        except RecursionError:
            raise DecodeError(at, "more levels of nesting than the stack has left") from None


def without_secrets(raw: bytes, loads: Callable[[bytes], Any]) -> bytes:
    """The text with marks in place of what is never recorded. Unfit if it could not be read any more: whoever wants a
    number, or bytes, cannot do with a mark."""
    raw = hiding.hidden(raw)
    if hiding.MARK_BYTES in raw:
        try:
            loads(raw)
        except DecodeError as no:
            raise Unfit(
                f"what is never recorded, in a place where no mark can stand ({no})",
                "Leave the secret out, or fetch it with perdure.secret() in the step that needs it",
            ) from None
    return raw


def codec_for(hint: Any) -> ValueCodec:
    """The codec of a type hint; cached. Hints that cannot be recorded give a codec that refuses their values.

    >>> codec_for(tuple[int, ...]).dumps((1, 2))
    b'[1,2]'
    """
    shape = shape_of(hint)
    codec = _codecs.get(id(shape))
    if codec is None:
        codec = _codecs[id(shape)] = ValueCodec(hint, shape)
    return codec


def about_result(error: EncodeError, function: str) -> EncodeError:
    """The error, which says that it is about what a function returned. Where nothing declares what that is, the return
    type is what is missing."""
    is_undeclared = error.path == "$" and error.hint == UNDECLARED
    hint = f"Annotate the return type of {function}()" if is_undeclared else error.hint
    return EncodeError(error.path, error.what, hint, f"the result of {function}()")


_codecs: dict[int, ValueCodec] = {}
"""By identity of the shape: shapes are cached for good, so an id is never used twice."""


def describe(hint: Any) -> str:
    """The hint in short words, for messages."""
    return words_of(hint)

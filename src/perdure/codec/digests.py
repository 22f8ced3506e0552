"""What is the digest of a value, however it is stored?

The *skeleton* of a text is the text in which every large direct child (over 1 KiB) is replaced by a zero byte and the
child's digest. Small texts, and those without children, are their own skeletons. The digest is the SHA-256 of the
skeleton. JSON holds no zero byte, so a skeleton with children cannot be mistaken for a text, nor an array for an
object.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

SMALL_MAX = 1024
"""Texts up to this many bytes are never taken apart."""

REFERENCE = b"\0"
"""What precedes a digest in a skeleton."""

DIGEST_SIZE = 32

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


def digest(raw: bytes) -> bytes:
    """The 32 bytes that stand for this canonical text."""
    if len(raw) <= SMALL_MAX:
        return sha256(raw).digest()
    return sha256(skeleton(raw)).digest()


def skeleton(raw: bytes) -> bytes:
    """The text with its large children replaced by their digests."""
    parts = children(raw)
    if parts is None or all(len(part) <= SMALL_MAX for _, part in parts):
        return raw
    return assembled(raw, [(key, part if len(part) <= SMALL_MAX else REFERENCE + digest(part)) for key, part in parts])


def children(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """(what precedes it, its text) of each direct child of an object or array; None if the text has no such form."""
    try:
        if raw[:1] == b"{":
            parts = [(_encode(key) + b":", bytes(item)) for key, item in _object(raw).items()]
        elif raw[:1] == b"[":
            parts = [(b"", bytes(item)) for item in _array(raw)]
        else:
            return None
    except msgspec.DecodeError:
        return None
    length = 1 + sum(len(key) + len(part) + 1 for key, part in parts)
    return parts if length == len(raw) else None  # not canonical: never taken apart


def assembled(raw: bytes, parts: list[tuple[bytes, bytes]]) -> bytes:
    """Children put together again, in the brackets of `raw`."""
    return raw[:1] + b",".join([key + part for key, part in parts]) + raw[-1:]

"""How a history is made tamper-evident: every event's hash covers the hash before it.

hash(i) = SHA-256 of hash(i - 1), the position and time as 8-byte big-endian numbers, and the envelope; the hash before
the first event is 32 zero bytes. Payloads are covered through their digests in the envelope.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

GENESIS = bytes(32)

_place = Struct(">QQ").pack


def link(previous: bytes, seq: int, at: int, envelope: bytes) -> bytes:
    """The hash of the event at position `seq`."""
    return sha256(previous + _place(seq, at) + envelope).digest()

"""How are texts stored so that what repeats is stored once?

Texts up to 1 KiB stay inline. Larger ones become blobs under their digest (`digests.py`). A blob is one of

    a skeleton                          the text, with zero byte and digest for each large child 00 + base digest +
    tail             an array: the stored array `base`, then the elements of `tail`, which ends with "]" 01 + base
    digest + deflated tail    the same over many steps, so that reading does not follow one base per step

so a conversation that grows by one message costs one message each turn. The tail is the skeleton's own text, and the
digest is that of the whole skeleton, so a reader can check what it put together.

What a step returned is often said again in the arguments of the next. A small text of that kind is *quoted*: where a
blob would hold it, there stands a byte 2 and the position of the event that it is the output of (8 bytes, big-endian).
Quotes are in blobs alone; skeletons, and so digests, have the text itself.

`Memo` is what one run knows to be stored already. It learns only by `committed`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from perdure.codec.digests import DIGEST_SIZE, REFERENCE, SMALL_MAX, assembled, children
from perdure.errors import HistoryCorruptError

TAIL = b"\0"
DEFLATED = b"\1"
QUOTE = b"\2"

POSITION_SIZE = 8
"""Bytes of the address of a text that stands beside an event. All other addresses are digests."""

QUOTED_MIN = 256
"""Texts of fewer bytes are never quoted: they are not worth the search, nor a read of their own."""

QUOTABLE_MAX = 1_024
"""How many of the latest outputs can be quoted."""

SEAL_EVERY = 64
"""After so many tails a deflated one covers them all, if that at least halves them."""

CUTS_KEPT = 4
"""Earlier lengths of a growing array from which a new branch can still start without being hashed again."""

PROBES_MAX = 16
"""Elements at the end of an unfamiliar array that are tried as the ends of a stored prefix."""


class Hasher(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...
    def copy(self) -> Hasher: ...
    def digest(self) -> bytes: ...


class Packed(msgspec.Struct, frozen=True, gc=False):
    """What to store for one text: `blobs` are those that the memo did not know yet.

    Give it to `memo.committed` once they are stored, and not before.
    """

    digest: bytes
    inline: bytes | None
    blobs: tuple[tuple[bytes, bytes], ...] = ()
    grown: tuple[Growth, ...] = ()


class Cut(msgspec.Struct, frozen=True, eq=False):
    """A growing array at one of its lengths."""

    length: int
    """Bytes of its text, without the closing bracket."""

    digest: bytes
    hasher: Hasher
    """Has seen the skeleton up to here."""

    sealed: bytes
    """The last stored array that is not a mere tail of another."""

    since: tuple[bytes, ...]
    """The tails since then."""


class Growth(msgspec.Struct, eq=False):
    """One growing array: its latest text, and some of the lengths it had."""

    text: bytes
    """Emptied once the memo has let go of it: whoever still holds the Packed does not hold the text."""

    cuts: tuple[Cut, ...]
    replaces: Growth | None = None

    def matching(self, raw: bytes) -> Cut | None:
        """The longest earlier length that `raw` continues."""
        text = memoryview(self.text)  # slices of it are not copied
        for cut in reversed(self.cuts):
            if len(text) >= cut.length < len(raw) and raw[cut.length] in b",]" and raw.startswith(text[: cut.length]):
                return cut
        return None


_NO_DIGESTS: dict[bytes, None] = {}
_NOT_QUOTABLE: dict[bytes, bytes] = {}


class Memo:
    """What one run has stored already: digests, and the arrays that keep growing.

    It is a cache: without it more is stored. But what it was told must be true, or later blobs build on missing ones:
    tell it only of what is stored. `known` may ask the store about digests that the memo has not seen. To restore a
    memo after a restart, pack a recorded value again and call `committed`, if the digest is the recorded one and the
    value was stored with it.
    """

    __slots__ = ("_arrays_max", "_ask", "_bytes_max", "_digests", "_digests_max", "_growths", "_quotable")

    def __init__(
        self,
        known: Callable[[bytes], bool] | None = None,
        *,
        digests_max: int = 65_536,
        arrays_max: int = 8,
        bytes_max: int = 4 << 20,
    ) -> None:
        self._ask = known
        self._digests, self._quotable = _NO_DIGESTS, _NOT_QUOTABLE  # until there are any: most runs have none
        self._growths: tuple[Growth, ...] = ()
        self._digests_max, self._arrays_max, self._bytes_max = digests_max, arrays_max, bytes_max

    def knows(self, digest: bytes) -> bool:
        """Whether the blob of this digest is stored."""
        return digest in self._digests or (self._ask is not None and self._ask(digest))

    def is_empty(self) -> bool:
        """Whether it can know nothing at all."""
        return not self._digests and self._ask is None

    def remember(self, digest: bytes) -> None:
        """The blob of this digest is stored."""
        if self._digests is _NO_DIGESTS:
            self._digests = {}
        self._digests[digest] = None
        if len(self._digests) > self._digests_max:  # half of them at once: a dict is slow to lose its first key
            self._digests = dict.fromkeys([*self._digests][len(self._digests) // 2 :])

    def quotable(self, text: bytes, position: int) -> None:
        """This small text is stored as the output of the event at `position`."""
        if self._quotable is _NOT_QUOTABLE:
            self._quotable = {}
        self._quotable[sha256(text).digest()] = position.to_bytes(POSITION_SIZE, "big")
        if len(self._quotable) > QUOTABLE_MAX:
            del self._quotable[next(iter(self._quotable))]

    def quoted(self, text: bytes) -> bytes:
        """A text of at most SMALL_MAX bytes, or a reference, as it stands in a blob: what can be quoted is."""
        if len(text) < QUOTED_MIN or not self._quotable:
            return text
        position = self._quotable.get(sha256(text).digest())
        if position is not None:
            return QUOTE + position
        return self.with_quotes(text, children(text) or [])

    def with_quotes(self, whole: bytes, parts: list[tuple[bytes, bytes]]) -> bytes:
        """An object or array of these parts, with what can be quoted of them quoted."""
        if not self._quotable:
            return whole
        quoted = [(key, self.quoted(part)) for key, part in parts]
        return whole if quoted == parts else assembled(whole, quoted)

    def committed(self, packed: Packed) -> None:
        """What `packed` holds is stored now. Never call it before the commit succeeded."""
        for digest, _ in packed.blobs:
            self.remember(digest)
        for growth in packed.grown:
            replaced, growth.replaces = growth.replaces, None
            if replaced is not None and replaced in self._growths:
                self._growths = tuple(kept for kept in self._growths if kept is not replaced)
                replaced.text = b""
            self._growths += (growth,)
        if packed.grown:
            self._trim()

    def _trim(self) -> None:
        """Let go of the arrays that were not seen for longest."""
        total = 0
        for count, growth in enumerate(self._growths[::-1]):
            total += len(growth.text)
            if total > self._bytes_max or count >= self._arrays_max:
                growth.text = b""
        self._growths = tuple(growth for growth in self._growths if growth.text)

    def growth_of(self, raw: bytes) -> tuple[Growth, Cut] | None:
        """The growing array that this text continues, and from which length on."""
        for growth in reversed(self._growths):
            cut = growth.matching(raw)
            if cut is not None:
                return growth, cut
        return None


def pack(raw: bytes, memo: Memo) -> Packed:
    """What to store for this canonical text. Changes nothing: see `Memo.committed`."""
    if len(raw) <= SMALL_MAX:
        return Packed(sha256(raw).digest(), raw)
    if REFERENCE in raw or QUOTE in raw or raw[:1] == DEFLATED:
        raise ValueError("a byte 0 or 2, or a first byte of 1: this is no JSON text")
    packing = _Packing(memo)
    digest = packing.store(raw)
    return Packed(digest, None, tuple(packing.blobs.items()), tuple(packing.grown))


class _Packing:
    """One `pack`: the blobs that it found to be new."""

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self.blobs: dict[bytes, bytes] = {}
        self.grown: list[Growth] = []

    def store(self, raw: bytes) -> bytes:
        """See that a large text is stored; its digest."""
        if raw[:1] == b"[":
            known = self.memo.growth_of(raw)
            if known is not None:
                return self._continued(raw, *known)
            parts = children(raw)
            return self._leaf(raw) if parts is None else self._new_array(raw, [part for _, part in parts])
        parts = children(raw)
        if parts is None:
            return self._leaf(raw)
        skeleton = raw
        if any(len(part) > SMALL_MAX for _, part in parts):
            parts = [(key, self._referred(part)) for key, part in parts]
            skeleton = assembled(raw, parts)
        return self._leaf(skeleton, self.memo.with_quotes(skeleton, parts))

    def _leaf(self, skeleton: bytes, stored: bytes = b"") -> bytes:
        digest = sha256(skeleton).digest()
        self._emit(digest, stored or skeleton)
        return digest

    def _emit(self, digest: bytes, content: bytes) -> None:
        if digest not in self.blobs and not self.memo.knows(digest):
            self.blobs[digest] = content

    def _referred(self, part: bytes) -> bytes:
        return part if len(part) <= SMALL_MAX else REFERENCE + self.store(part)

    # ── arrays ──

    def _continued(self, raw: bytes, growth: Growth, cut: Cut) -> bytes:
        """An array that begins like one that is stored."""
        if raw[cut.length :] == b"]":
            return cut.digest
        parts = children(b"[" + raw[cut.length + 1 :])
        if parts is None:
            return self._leaf(raw)
        new = self._tail_of(cut, len(raw) - 1, [self._referred(part) for _, part in parts])
        latest = cut is growth.cuts[-1]
        cuts = [each for each in growth.cuts if each.length <= cut.length][1 - CUTS_KEPT :]
        self.grown.append(Growth(raw, (*cuts, new), replaces=growth if latest else None))
        return new.digest

    def _tail_of(self, base: Cut, length: int, referred: Sequence[bytes]) -> Cut:
        """Store more elements on top of a stored array."""
        hasher = base.hasher.copy()
        hasher.update(b"," + b",".join(referred))
        digest = _closed(hasher)
        tail = b"," + b",".join([self.memo.quoted(part) for part in referred]) + b"]"
        since = (*base.since, tail)
        if len(since) < SEAL_EVERY:
            self._emit(digest, TAIL + base.digest + tail)
            return Cut(length, digest, hasher, base.sealed, since)
        joined = b"".join([each[:-1] for each in since]) + b"]"
        deflated = zlib.compress(joined, 1)
        if 2 * len(deflated) <= len(joined):
            self._emit(digest, DEFLATED + base.sealed + deflated)
        else:
            self._emit(digest, TAIL + base.digest + tail)
        return Cut(length, digest, hasher, digest, ())

    def _new_array(self, raw: bytes, parts: list[bytes]) -> bytes:
        """An array that no growing array begins; perhaps its beginning is stored all the same."""
        referred = [self._referred(part) for part in parts]
        base = None if self.memo.is_empty() else self._stored_prefix(parts, referred)
        if base is None:
            hasher = sha256(b"[" + b",".join(referred))
            digest = _closed(hasher)
            self._emit(digest, b"[" + b",".join([self.memo.quoted(part) for part in referred]) + b"]")
            cut = Cut(len(raw) - 1, digest, hasher, digest, ())
        else:
            count, prefix = base
            if count == len(parts):
                cut = prefix
            else:
                cut = self._tail_of(prefix, len(raw) - 1, referred[count:])
        self.grown.append(Growth(raw, (cut,)))
        return cut.digest

    def _stored_prefix(self, parts: list[bytes], referred: list[bytes]) -> tuple[int, Cut] | None:
        """The longest beginning of the array that is stored, looked for from the end."""
        first = max(0, len(parts) - PROBES_MAX)
        length = sum(len(part) + 1 for part in parts[:first])
        hasher = sha256(b"[" + b"".join([each + b"," for each in referred[:first]]))
        prefixes: list[tuple[int, int, Hasher]] = []
        for index in range(first, len(parts)):
            length += len(parts[index]) + 1
            hasher.update(referred[index])
            if length >= SMALL_MAX:
                prefixes.append((index + 1, length, hasher.copy()))
            hasher.update(b",")
        for count, size, seen in reversed(prefixes):
            digest = _closed(seen)
            if self.memo.knows(digest):
                return count, Cut(size, digest, seen, digest, ())
        return None


def _closed(hasher: Hasher) -> bytes:
    """The digest of the array whose skeleton the hasher has seen but for the closing bracket."""
    hasher = hasher.copy()
    hasher.update(b"]")
    return hasher.digest()


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def unpack(digest: bytes, inline: bytes | None, fetch: Callable[[bytes], bytes]) -> bytes:
    """The text that was packed. `fetch` gives the blob of a digest, or the output at a position of POSITION_SIZE bytes.

    Raises HistoryCorruptError when a blob is missing or is not what its digest says.
    """
    if inline is not None:
        return inline
    reader = _Reader(fetch)
    pieces: list[bytes] = []
    pending = [(reader.skeleton(digest), 0)]
    while pending:  # a stack of skeletons copied up to a position, the innermost last
        skeleton, start = pending.pop()
        at = skeleton.find(REFERENCE, start)
        if at < 0:
            pieces.append(skeleton[start:])
            continue
        after = at + 1 + DIGEST_SIZE
        pieces.append(skeleton[start:at])
        pending.append((skeleton, after))
        pending.append((reader.skeleton(skeleton[at + 1 : after]), 0))
    return b"".join(pieces)


class _Reader:
    """Fetches blobs and puts skeletons together; each is fetched once."""

    def __init__(self, fetch: Callable[[bytes], bytes]) -> None:
        self._fetch = fetch
        self._skeletons: dict[bytes, bytes] = {}

    def skeleton(self, digest: bytes) -> bytes:
        found = self._skeletons.get(digest)
        if found is None:
            found = self._skeletons[digest] = self._read(digest)
        return found

    def _read(self, digest: bytes) -> bytes:
        """Follow the bases to an array that is whole, then put the tails behind it."""
        tails: list[bytes] = []
        followed: set[bytes] = set()
        address = digest
        while True:
            blob = self._blob(address, digest)
            if address in followed:
                raise HistoryCorruptError(f"blob {address.hex()} builds on itself")
            followed.add(address)
            if blob[:1] == TAIL:
                tails.append(self._unquoted(blob[1 + DIGEST_SIZE :], digest))
            elif blob[:1] == DEFLATED:
                tails.append(self._unquoted(_inflated(blob[1 + DIGEST_SIZE :], address), digest))
            else:
                blob = self._unquoted(blob, digest)
                break
            address = blob[1 : 1 + DIGEST_SIZE]
        whole = b"".join([blob[:-1], *[tail[:-1] for tail in reversed(tails)], b"]"]) if tails else blob
        if sha256(whole).digest() != digest:
            raise HistoryCorruptError(
                f"blob {digest.hex()} does not hold what its digest says: the database was altered or damaged"
            )
        return whole

    def _unquoted(self, stored: bytes, wanted: bytes) -> bytes:
        """With the texts themselves in place of quotes."""
        if QUOTE not in stored:
            return stored
        return _MARKED.sub(lambda found: found[0] if found[1] is None else self._blob(found[1], wanted), stored)

    def _blob(self, address: bytes, wanted: bytes) -> bytes:
        try:
            blob = self._fetch(address)
        except LookupError:
            blob = b""
        if not blob:
            needed = "" if address == wanted else f", which {wanted.hex()} builds on,"
            raise HistoryCorruptError(f"{told(address)}{needed} is missing from the database")
        return blob


_MARKED = re.compile(b"%b.{%d}|%b(.{%d})" % (REFERENCE, DIGEST_SIZE, QUOTE, POSITION_SIZE), re.DOTALL)
"""References, which may hold any byte, and quotes, with their position as group 1."""


def position_of(address: bytes) -> int | None:
    """The position of the event whose output has this address; None if the address is a blob's."""
    return int.from_bytes(address, "big") if len(address) == POSITION_SIZE else None


def told(address: bytes) -> str:
    """An address, for a person."""
    position = position_of(address)
    return f"blob {address.hex()}" if position is None else f"output of event {position}"


def _inflated(content: bytes, address: bytes) -> bytes:
    try:
        return zlib.decompress(content)
    except zlib.error as no:
        raise HistoryCorruptError(f"blob {address.hex()} cannot be read ({no})") from None

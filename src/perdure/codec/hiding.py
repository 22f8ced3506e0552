"""What may not be recorded: the values of secrets, and whatever looks like one.

Each is replaced by a mark that names it, `‹secret:stripe›`, before anything is encoded, hashed or stored. `active` is
what this process hides, None while nobody has registered anything: beside its arguments the one thing that the codec's
answers depend on. What a secret looks like is in `scrubbing.py`, which is loaded only where there are any.
"""

from __future__ import annotations

from typing import Protocol

from perdure.errors import UsageError

MARK = "‹secret:"
MARK_BYTES = MARK.encode()


class Hides(Protocol):
    """What is hidden at one time."""

    def text(self, text: str) -> str: ...
    def json(self, raw: bytes) -> bytes: ...
    def names_in(self, text: str) -> str: ...
    def is_in(self, raw: bytes) -> bool: ...


active: Hides | None = None
"""What this process hides; None if nothing."""


def mark(name: str) -> str:
    """What stands in the place of a secret.

    >>> mark("stripe")
    '‹secret:stripe›'
    """
    return f"{MARK}{name}›"


def hidden(raw: bytes) -> bytes:
    """A JSON text with marks for what is hidden. Unfit where no mark can stand: for a number, say."""
    return raw if active is None else active.json(raw)


def hidden_text(text: str) -> str:
    """A text with marks for what is hidden."""
    return text if active is None else active.text(text)


def refuse_hidden(text: str, *, what: str) -> None:
    """UsageError for a name or an id that holds a secret: with a mark in it, it would name something else."""
    names = "" if active is None else active.names_in(text)
    if names:
        raise UsageError(f"{what} holds what is never recorded, {names}: make it of what everybody may read")


def alike(one: bytes, other: bytes) -> bool:
    """Whether two JSON texts are the same but for what is hidden in one of them and stands in the other as it is.

    What is known to be secret may differ between the process that recorded a call and the one that makes it again.

    >>> alike('{"to":"‹secret:iban›"}'.encode(), b'{"to":"DE89 3704"}')
    True
    """
    return one == other or _fits(one, other) or _fits(other, one)


def _fits(marked: bytes, plain: bytes) -> bool:
    """Whether `plain` is `marked` with texts in the places of its marks: none of them may leave its string."""
    if MARK_BYTES not in marked:
        return False
    first, *others = marked.split(MARK_BYTES)
    if not plain.startswith(first):
        return False
    place = len(first)
    for index, other in enumerate(others, 1):
        part = other.partition(_MARK_ENDS)[2]
        end = plain.find(part, place) if index < len(others) else len(plain) - len(part)
        if end < place or not plain.endswith(part, 0, end + len(part)) or b'"' in plain[place:end].replace(b'\\"', b""):
            return False
        place = end + len(part)
    return True


_MARK_ENDS = "›".encode()

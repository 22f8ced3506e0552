"""How a chapter of a run begins, and how it can end."""

from __future__ import annotations

from typing import Any

import msgspec


class Blocked(msgspec.Struct, frozen=True):
    """Why the run cannot go on by itself: one of the documented reasons, and what unblocks it."""

    reason: str
    hint: str


class ContinueAsNew(BaseException):
    """Ends a chapter: the workflow begins anew with other arguments. Not an Exception: user code must not swallow
    it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments, self.keywords = args, kwargs


class Completed(msgspec.Struct, frozen=True):
    """The workflow returned; `output` is its result, canonical."""

    output: bytes


class Failed(msgspec.Struct, frozen=True):
    """The workflow raised; `output` is the exception, canonical."""

    output: bytes


class WasCancelled(msgspec.Struct, frozen=True):
    """The workflow ended by being cancelled."""


class NextChapter(msgspec.Struct, frozen=True):
    """The workflow asked to begin anew. Messages that it did not take, and those that still come, are carried over."""

    input: bytes


Ending = Completed | Failed | WasCancelled | NextChapter


class Beginning(msgspec.Struct, frozen=True):
    """What a chapter begins with."""

    seed: int
    input: bytes
    at: int
    chapter: int = 0
    carried: tuple[tuple[str, bytes], ...] = ()

"""What a section's history says of the calls that its code made, and which of them the code has not made again yet.

A call is found by what it is (lane, name, digest of the arguments), not by its place: foreign threads have no order.
Finding one costs the same however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from perdure.engine.calls import Key
from perdure.history import events as e

Happened = tuple[e.Keyed, int, "bytes | None"]
"""An event of a section, its time, its payload."""


OUTCOMES = (e.StepCompleted, e.StepFailed, e.ChildEnded, e.PersonAnswered)
"""What ends a call of foreign code, whatever it is."""


RECEIVE = "receive:"
LIMITED = b"limited"
"""Stands for the digest of a receive with a time limit: one without takes its message, and never its time."""


class Record(NamedTuple):
    """One recorded call of foreign code. `outcome` is None while only its start, or failed attempts, are known; `place`
    is where it stands among the events of the section."""

    key: Key
    lane: str
    name: str
    digest: bytes | None
    outcome: e.Keyed | None
    at: int
    raw: bytes | None
    deadline: int = 0
    place: int = 0


def records_of(history: Iterable[Happened]) -> list[Record]:
    """What was recorded, one record a call, in the order of the first event about each."""
    records: dict[Key, Record] = {}
    for place, (event, at, raw) in enumerate(history):
        before = records.get(event.key)
        digest = getattr(event, "view", None) or getattr(event, "input", None) or (before.digest if before else None)
        lane = event.task.partition("/")[2]
        record = before or Record(event.key, lane, event.name, digest, None, at, None)
        if isinstance(event, OUTCOMES):
            record = record._replace(outcome=event, at=at, raw=raw, place=place)
        elif isinstance(event, e.SectionWait):
            record = record._replace(deadline=event.deadline)
            digest = LIMITED if event.name.startswith(RECEIVE) else digest
        elif isinstance(event, e.PersonAsked):
            record = record._replace(deadline=event.expires_at)
        elif isinstance(event, e.SectionReceived) and raw is not None:
            record = record._replace(outcome=event, at=at, raw=raw, place=place)
        elif isinstance(event, e.SectionGaveBack):
            records.pop(event.key, None)
            continue
        records[event.key] = record._replace(digest=digest)
    return list(records.values())


def untaken(history: Iterable[Happened]) -> dict[Key, str]:
    """Messages that were taken for the code, by the call, of which no trace shows that the code has them: nothing of
    their lane is recorded after them."""
    last: dict[str, e.Keyed] = {event.task: event for event, _, raw in history if raw is not None or _is_trace(event)}
    return {event.key: event.message for event in last.values() if isinstance(event, e.SectionReceived)}


def _is_trace(event: e.Keyed) -> bool:
    """Whether it shows that the code has gone on. A message that was asked for in vain does not."""
    return not isinstance(event, e.SectionReceived)


class Unclaimed:
    """The records that the code, run again, has not asked for yet. False when there are none."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._left: dict[Key, Record] = {}
        self._of_lane: dict[tuple[str, str, bytes | None], deque[Key]] = {}
        self._of_any: dict[tuple[str, bytes | None], deque[Key]] = {}
        for record in records:
            self._left[record.key] = record
            self._of_lane.setdefault((record.lane, record.name, record.digest), deque()).append(record.key)
            self._of_any.setdefault((record.name, record.digest), deque()).append(record.key)

    def __bool__(self) -> bool:
        return bool(self._left)

    def has(self, key: Key) -> bool:
        """Whether the code has not asked for this yet."""
        return key in self._left

    def left(self) -> list[Record]:
        """All of them, in the order of the history."""
        return list(self._left.values())

    def claim(self, lane: str, name: str, *digests: bytes | None) -> Record | None:
        """Take the oldest record of this call in its own lane, by the first of the digests that finds one."""
        found = (self._first(self._of_lane.get((lane, name, digest))) for digest in digests)
        return next(filter(None, found), None)

    def claim_of_any(self, name: str, *digests: bytes | None) -> Record | None:
        """Take the oldest record of this call, whichever lane it was in."""
        found = (self._first(self._of_any.get((name, digest))) for digest in digests)
        return next(filter(None, found), None)

    def _first(self, keys: deque[Key] | None) -> Record | None:
        """Those claimed by the other way are skipped, each once."""
        while keys:
            record = self._left.pop(keys.popleft(), None)
            if record is not None:
                return record
        return None

    def settle(self, outcome: e.Keyed, at: int, raw: bytes | None, place: int) -> bool:
        """A call has ended before the code, run again, has come as far as asking for it. False if it is none."""
        record = self._left.get(outcome.key)
        if record is not None:
            self._left[outcome.key] = record._replace(outcome=outcome, at=at, raw=raw, place=place)
        return record is not None


def running_children(history: Iterable[Happened]) -> dict[Key, e.ChildStarted]:
    """Child runs that the code has started, whose end is not known, and that its own end waits for."""
    running: dict[Key, e.ChildStarted] = {}
    for event, _, _ in history:
        if isinstance(event, e.ChildStarted) and event.on_cancel == "wait":
            running[event.key] = event
        elif isinstance(event, e.ChildEnded):
            running.pop(event.key, None)
    return running


def told_children(history: Iterable[Happened]) -> set[Key]:
    """Calls of child runs that were told to stop: once is enough."""
    return {event.key for event, _, _ in history if isinstance(event, e.CallCancelled)}

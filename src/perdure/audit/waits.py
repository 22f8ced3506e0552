"""What a run waits for, told for people: from its index row, and from what its history has begun and not ended."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

import msgspec

from perdure.engine.calls import Waiting, WaitingSet
from perdure.history import events as e
from perdure.store.protocol import Row, RunInfo, Status, Store


class Wait(NamedTuple):
    """One thing that a run waits for.

    `until`: microseconds since the epoch, where that is known. `message`: the name of the message, if it is one.
    """

    call: str
    what: str
    until: int | None = None
    message: str = ""


def waits(store: Store, info: RunInfo) -> list[Wait]:
    """What the run waits for as it stands. Nothing for one that has ended, or whose code is executed right now."""
    if info.status.is_final:
        return []
    if info.status is Status.BLOCKED:
        return [Wait("", f"a person ({info.reason}): {info.hint}")]
    if info.status is Status.QUEUED:
        return [Wait("", "a worker", info.due_at)]
    if info.reason == "paused":
        return [Wait("", "somebody who resumes it")]
    held = is_held(info.status, info.owner, dict(store.lost("")))
    nobody = [] if held else [Wait("", "a worker" + (f", since {info.owner} is dead" if info.owner else ""))]
    return [*nobody, *map(_of_waiting_set, _waiting_set(info)), *under_way(store.load(info.rid).rows)]


def is_held(status: Status, owner: str | None, lost: Container[str]) -> bool:
    """False for a run that stands as running although its worker has left it, or is among those that are lost."""
    return status is not Status.RUNNING or (owner is not None and owner not in lost)


def _waiting_set(info: RunInfo) -> Iterable[Waiting]:
    return msgspec.json.decode(info.waiting, type=WaitingSet).entries if info.waiting else ()


def _of_waiting_set(entry: Waiting) -> Wait:
    if entry.kind == "receive":
        message = entry.name.partition(":")[2]
        return Wait(f"{entry.task}/{entry.name}", f"message {message!r}", message=message)
    return Wait(f"{entry.task}/{entry.name}", "a timer", entry.deadline or None)


def under_way(rows: Iterable[Row]) -> Iterator[Wait]:
    """Steps, children and sections that have begun and not ended, and what people have not decided."""
    begun: dict[tuple[str, int], Wait] = {}
    for row in rows:
        event = e.decode(row.envelope)
        if isinstance(event, e.Keyed):
            wait = _begun(event)
            if wait is not None:
                begun[event.key] = wait
            elif not isinstance(event, e.Heartbeat | e.SectionUndoes | e.SectionWait | e.SectionReceived):
                begun.pop(event.key, None)
    yield from begun.values()


def _begun(event: e.Keyed) -> Wait | None:
    match event:
        case e.StepStarted():
            return Wait(event.label, f"attempt {event.attempt}")
        case e.AttemptFailed():
            return Wait(event.label, f"attempt {event.attempt + 1}", event.retry_at)
        case e.ChildStarted():
            return Wait(event.label, f"child {event.run_id}")
        case e.PersonAsked():
            return Wait(event.label, f"people: {event.kind} {event.id}", event.expires_at or None)
        case e.SectionStarted():
            return Wait(event.label, "hosted code")
        case _:
            return None

"""A run is moved to another version of its workflow: checked first, recorded, and refused with the difference.

Only a run that nobody has in hands is moved, by compare-and-set: what was checked is exactly what is moved. None of its
code runs for that but in the check, which performs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from perdure.api.checking import Outlook, checked
from perdure.api.surroundings import FIELDS
from perdure.engine.calls import WaitingSet
from perdure.errors import MoveRefused, RunFinishedError
from perdure.history import events as e
from perdure.runtime.contracts import manifest
from perdure.runtime.live import Entry
from perdure.runtime.unattended import TRIES, rows_after
from perdure.specs import WorkflowSpec
from perdure.store.protocol import Append, Change, Done, RunInfo, Status, Store, Stored

OF_CODE = frozenset({"diverged", "incompatible_version", "undecodable", "stuck_turn", "deadlocked"})
"""Reasons for which a run as a whole is parked until other code is there: that is now."""


def move(store: Store, info: RunInfo, spec: WorkflowSpec, *, by: str, now: int) -> int:
    """Have a run go on under this version of its workflow from now on; gives the version that it had.

    Where it goes on under that already, nothing is changed. MoveRefused, and nothing is changed: its history does not
    replay there, or a worker has it in hands.
    RunFinishedError if it has ended."""
    for _ in range(TRIES):
        stored = store.load(info.rid)
        _refuse(stored.info, spec, store)
        if _is_there(stored, spec):
            return stored.info.version
        _refuse_unless_it_replays(stored, store, spec)
        if isinstance(store.commit([_append(stored, spec, by, now)])[0], Done):
            return stored.info.version
    raise MoveRefused(info.run_id, "it is not standing still: pause it first, perdure runs pause")


def _is_there(stored: Stored, spec: WorkflowSpec) -> bool:
    """Whether the run goes on under exactly this already: somebody asks again who has not heard that it was moved."""
    info = stored.info
    if info.version != spec.version or (info.status is Status.BLOCKED and info.reason in OF_CODE):
        return False
    manifests = [row for row in stored.rows if row.kind in {"run.started", "run.continued", "run.adopted"}]
    latest: object = getattr(e.decode(manifests[-1].envelope), "manifest", None) if manifests else None
    return latest == manifest(spec)


def _refuse(info: RunInfo, spec: WorkflowSpec, store: Store) -> None:
    if info.status.is_final:
        raise RunFinishedError(f"run {info.run_id} has ended: there is nothing to move")
    if info.workflow != spec.name:
        raise MoveRefused(info.run_id, f"it is a run of {info.workflow}, and not of {spec.name}")
    if info.owner is not None and (info.owner, True) not in store.lost(""):
        raise MoveRefused(
            info.run_id, f"worker {info.owner} has it in hands: try again, or pause it first, perdure runs pause"
        )


def _refuse_unless_it_replays(stored: Stored, store: Store, spec: WorkflowSpec) -> None:
    """A move is an act: whatever else is declared differently is taken with it. Replay decides about the rest."""
    around = msgspec.structs.replace(spec.surroundings, accepts=frozenset(FIELDS))
    there = stored._replace(info=stored.info._replace(version=spec.version))
    found = checked(there, store, msgspec.structs.replace(spec, surroundings=around))
    if found.outlook not in {Outlook.REPLAYS, Outlook.NOT_CHECKED}:
        raise MoveRefused(stored.info.run_id, f"it does not replay under version {spec.version}: {found.why}")


def _append(stored: Stored, spec: WorkflowSpec, by: str, now: int) -> Append:
    info = stored.info
    told = f"version {info.version} before"
    events: list[e.Event] = [e.Adopted(manifest(spec), "moved", told, by)]
    is_parked = info.status is Status.BLOCKED and info.reason in OF_CODE and _is_parked_whole(stored)
    if is_parked:
        events.append(e.RunUnblocked("retry", by, why=f"moved to version {spec.version}"))
    change = Change(version=spec.version, waiting=_waiting(info, stored.length + len(events)))
    if is_parked:
        change = change._replace(status=Status.QUEUED, reason="", hint="", release=True, due_at=now)
    rows = tuple(rows_after(stored.rows[-1], map(Entry, events), now))
    return Append(os.urandom(16), info.rid, info.epoch, stored.length, rows, change=change)


def _is_parked_whole(stored: Stored) -> bool:
    """Whether the run as a whole is parked, and not one call of it."""
    return _last_block(e.decode(row.envelope) for row in stored.rows if row.kind == "run.blocked")


def _last_block(events: Iterable[e.Event]) -> bool:
    blocks = [event for event in events if isinstance(event, e.RunBlocked)]
    return not blocks or blocks[-1].task is None


def _waiting(info: RunInfo, length: int) -> bytes | None:
    """What the run waits for goes on to be compared when it is loaded."""
    if not info.waiting:
        return None
    waiting = msgspec.json.decode(info.waiting, type=WaitingSet)
    return msgspec.json.encode(msgspec.structs.replace(waiting, history_length=length))

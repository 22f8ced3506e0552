"""A fork: a new run that begins with a copy of another run's first events, and goes its own way from there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from perdure.audit.verify import version_of
from perdure.engine.forking import ForkPoints
from perdure.errors import ForkPointError, HistoryCorruptError, RunConflictError, UsageError
from perdure.history import events as e
from perdure.history.chain import link
from perdure.specs import is_whole
from perdure.store.protocol import ForkPoint, NewRun, Row, RunInfo, Store

At = int | Literal["last"]


def checked_at(at: object) -> None:
    """UsageError for what is no place in a history."""
    if at != "last" and not (is_whole(at) and isinstance(at, int) and at >= 0):
        raise UsageError(f"fork(at={at!r}): the number of an event, from 0 on, or 'last'")


def new_fork(store: Store, info: RunInfo, at: At, run_id: str, *, by: str, why: str, now: int) -> NewRun:
    """What is to be written. ForkPointError if the run cannot be forked there, HistoryCorruptError if its history
    cannot be read: all of it is, once."""
    rows = store.load(info.rid, from_seq=0).rows
    events = [e.readable(row.envelope, row.kind) for row in rows]
    readable = [event for event in events if event is not None]
    if len(readable) < len(events):
        raise HistoryCorruptError(f"run {info.run_id}: event {events.index(None)} cannot be read: it cannot be forked")
    seq = _place(ForkPoints(info.run_id, readable), at)
    forked = e.RunForked(info.run_id, info.rid, seq, rows[seq].hash.hex(), by, why)
    envelope, stamp = e.encode(forked), max(now, rows[seq].at)
    row = Row(seq + 1, stamp, e.kind(forked), envelope, None, None, link(rows[seq].hash, seq + 1, stamp, envelope))
    version = version_of(readable[: seq + 1])  # the run may have been moved to another one since
    return NewRun(
        os.urandom(16), run_id, info.workflow, version, info.input_digest, now, (row,), tags=info.tags, due_at=now,
        forked_from=ForkPoint(info.rid, info.run_id, seq), lineage=(info.rid, *info.lineage),
        chapter_seq=_chapter_of(rows[: seq + 1]),
    )  # fmt: skip


def _place(points: ForkPoints, at: At) -> int:
    if at != "last":
        points.check(at)
        return at
    last = points.last()
    if last is None:
        raise ForkPointError(f"run {points.run_id} cannot be forked at any event")
    return last


def _chapter_of(rows: Sequence[Row]) -> int:
    return max((row.seq for row in rows if row.kind == "run.continued"), default=0)


def check_attaches(there: RunInfo, of: RunInfo, at: At) -> None:
    """RunConflictError unless the run that has the id is a fork of that run, at that event."""
    is_same = (there.forked_from, there.lineage[:1]) == (of.run_id, (of.rid,))
    if is_same and at in {"last", there.forked_seq}:
        return
    what = f"{there.workflow} version {there.version}"
    if there.forked_from is not None:
        what = f"a fork of run {there.forked_from}, after its event {there.forked_seq}"
    raise RunConflictError(f"run id {there.run_id!r} belongs to {what}: choose another id; that run is unharmed")

"""Runs and their histories as people and programs read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from perdure.clock import when
from perdure.codec import unpack
from perdure.history import events as e
from perdure.store.protocol import NewRun, Row, RunInfo, Status, Store


class HistoryEvent(msgspec.Struct, frozen=True):
    """One event of a run, for people and programs that read it. `input` and `output` are plain JSON values."""

    seq: int
    at: datetime
    kind: str
    event: e.Event
    input: Any
    output: Any
    hash: str


class RunSummary(msgspec.Struct, frozen=True):
    """One run in a list. `forked_from`: the run that it was forked from, after its event `forked_at`."""

    id: str
    workflow: str
    version: int
    status: Status
    reason: str
    hint: str
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    tags: Mapping[str, str]
    parent: str | None
    owner: str | None
    forked_from: str | None = None
    forked_at: int | None = None


def summary_of(info: RunInfo) -> RunSummary:
    return RunSummary(
        info.run_id, info.workflow, info.version, info.status, info.reason or "", info.hint or "",
        when(info.created_at),
        when(info.updated_at), None if info.due_at is None else when(info.due_at), info.tags, info.parent_run_id,
        info.owner, info.forked_from, info.forked_seq,
    )  # fmt: skip


def info_of(new: NewRun, rid: int) -> RunInfo:
    status = Status.RUNNING if new.owner else Status.QUEUED
    return RunInfo(
        rid, new.run_id, new.workflow, new.version, status, None, None, new.owner, 1 if new.owner else 0,
        new.input_digest,
        new.created_at, new.created_at, new.due_at, new.parent_run_id, new.tags, new.chapter_seq, None, None,
        new.lineage, new.forked_from and new.forked_from.run_id, new.forked_from and new.forked_from.seq,
    )  # fmt: skip


def payload(store: Store, rid: int, row: Row, slot: Literal["input", "output"]) -> bytes | None:
    """A payload beside an event, wherever it is kept; None if there is none."""
    inline = row.input if slot == "input" else row.output
    if inline is not None:
        return inline
    event = e.decode(row.envelope)
    address = getattr(event, slot, None)
    if not address or (slot == "input" and not getattr(event, "kept", True)):
        return None
    return unpack(address, None, lambda wanted: store.blob(rid, wanted))


def readable(store: Store, rid: int, row: Row) -> HistoryEvent:
    event = e.decode(row.envelope)
    raw_in, raw_out = payload(store, rid, row, "input"), payload(store, rid, row, "output")
    return HistoryEvent(row.seq, when(row.at), row.kind, event, _plain(raw_in), _plain(raw_out), row.hash.hex())


def _plain(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)

"""Effects as the ledger has them, for people and programs that read it; and which of them a decision is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import when
from perdure.errors import OperationNotInDoubt, RunFinishedError, UnknownNameError, UsageError
from perdure.ledger import EffectState, LedgerEntry
from perdure.specs import members
from perdure.store.protocol import RunInfo, Status, Store

if TYPE_CHECKING:
    from perdure.api.inbox import InboxEntry


class OperationSummary(msgspec.Struct, frozen=True):
    """One effect in the ledger.

    `id` is the operation id, under which it was sent; `call` the call that asked for it (`0/refund#1`). `reference`:
    what the other side calls it; `references`: others that it answered success under. `request_id`: what was noted of
    the request before it was sent. `approval`: the id of the request to people that it was approved by. `note`: what is
    known, in a sentence. `request_hash` is hexadecimal.
    """

    id: str
    run_id: str
    call: str
    action: str
    key: str
    scope: str
    revision: int
    status: str
    downstream: str
    risk: str
    attempts: int
    request_hash: str
    reference: str | None
    references: tuple[str, ...]
    request_id: str | None
    note: str
    compensated_by: str | None
    approval: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    committed_at: datetime | None


def summary_of(entry: LedgerEntry) -> OperationSummary:
    return OperationSummary(
        entry.operation_id, entry.run_id, entry.label, entry.action_name, entry.business_key, entry.scope,
        entry.revision, str(entry.status), entry.downstream, entry.risk, entry.attempts, entry.request_hash.hex(),
        entry.external_ref, tuple(entry.references.split()), entry.external_request_id, entry.note,
        entry.compensated_by, entry.approval or None, when(entry.created_at), when(entry.updated_at),
        _when(entry.started_at), _when(entry.committed_at),
    )  # fmt: skip


def _when(at: int) -> datetime | None:
    return when(at) if at else None


# ── listing ─────────────────────────────────────────────────────────────────────────────────


def states(status: Any) -> frozenset[EffectState] | None:
    """The states that are meant. UnknownNameError for what is none."""
    return members(EffectState, status, call="effects", noun="state", name="state of an effect")


# ── which one is meant ──────────────────────────────────────────────────────────────────────


def in_doubt(store: Store, info: RunInfo, *, operation: str | None, call: str | None) -> InboxEntry:
    """The entry of the inbox that a decision about an effect of this run is about.

    UnknownNameError for an operation that the run does not have, OperationNotInDoubt for one that needs no decision (or
    has one), UsageError if it is not said which of several is meant."""
    from perdure.api.inbox import blocked

    if info.status.is_final:
        raise RunFinishedError(f"run {info.run_id} has {info.status}: nothing in it is in doubt")
    open_ones = [entry for entry in blocked(store, info) if entry.operation is not None]
    meant = [entry for entry in open_ones if _is_meant(entry, operation, call)]
    if not meant:
        raise _nothing_in_doubt(store, info, open_ones, operation, call)
    if len(meant) > 1:
        which = ", ".join(f"{entry.call} ({_id(entry)})" for entry in meant)
        raise UsageError(f"several effects of run {info.run_id} are in doubt: {which}; say which, with operation=")
    (entry,) = meant
    decided = [letter for letter in entry.pending if letter.startswith(("settle", "unblock"))]
    if decided:
        raise OperationNotInDoubt(
            f"{entry.call} of run {info.run_id} was decided already: {', '.join(decided)}; its worker has not "
            "read that yet",
            _id(entry), "decided",
        )  # fmt: skip
    return entry


def _is_meant(entry: InboxEntry, operation: str | None, call: str | None) -> bool:
    return operation in {None, _id(entry)} and call in {None, entry.call}


def _id(entry: InboxEntry) -> str:
    return "" if entry.operation is None else entry.operation.id


def _nothing_in_doubt(
    store: Store, info: RunInfo, open_ones: Sequence[InboxEntry], operation: str | None, call: str | None
) -> Exception:
    others = ", ".join(f"{entry.call} ({_id(entry)})" for entry in open_ones)
    in_doubt = f"in doubt is {others}" if others else "nothing in it is in doubt"
    if operation is not None:
        entry = store.effect(operation)
        if entry is None or entry.rid != info.rid:
            return UnknownNameError(f"operation of run {info.run_id}", operation, map(_id, open_ones))
        return OperationNotInDoubt(
            f"operation {operation} of run {info.run_id} ({entry.label}) is {entry.status}"
            + (f": {entry.note}" if entry.note else "")
            + f"; {in_doubt}",
            operation, str(entry.status),
        )  # fmt: skip
    if call is None and info.status is Status.BLOCKED and not others:
        way = f"decide with unblock (perdure inbox unblock {info.run_id})"
        return OperationNotInDoubt(f"run {info.run_id} is {info.status} ({info.reason}), and {in_doubt}: {way}")
    what = f"run {info.run_id} is {info.status}" if call is None else f"{call} of run {info.run_id} is no effect"
    return OperationNotInDoubt(f"{what}{'' if call is None else ' in doubt'}; {in_doubt}")


__all__ = ["EffectState", "OperationSummary", "in_doubt", "states", "summary_of"]

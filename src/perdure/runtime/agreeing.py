"""A look at the ledger, at the table of approvals and at the statuses of runs when a worker opens the store: do they
say the same as the histories of the runs?

Cheap: only effects without a proof and requests that are open, only runs that nobody holds, not many of them; `perdure
store verify` looks at all. A row that the history proves to be over is put right; everything else is said, for a person
to look at."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence

from perdure.decisions import ApprovalEntry
from perdure.engine.agreement import Disagreement, disagreements, told_of_effects
from perdure.engine.asked import OPEN, disagreements_of_requests, told_of_requests
from perdure.errors import HistoryCorruptError, StoreError
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import (
    UNFINISHED,
    Append,
    ApprovalFilter,
    Change,
    Done,
    EffectFilter,
    Filter,
    RunInfo,
    Status,
    Store,
    Stored,
)

log = logging.getLogger("perdure")

WITHOUT_PROOF = frozenset({EffectState.STARTED, EffectState.UNKNOWN, EffectState.FAILED_RETRYABLE})
ABOUT_REQUESTS = ("person.", "approval.", "call.cancelled", "effect.")
"""How kinds of events begin that say something of requests."""
ENDED = frozenset(e.KINDS[ending] for ending in e.ENDINGS)
ROWS_AT_START_MAX = 100
RUNS_AT_START_MAX = 20


def look_at_ledger(store: Store) -> None:
    """Put right what can be, and log the rest. Never fails: whoever opens the store goes on."""
    try:
        effects = store.effects(EffectFilter(status=WITHOUT_PROOF, limit=ROWS_AT_START_MAX))
        requests = store.approvals(ApprovalFilter(status=OPEN, limit=ROWS_AT_START_MAX))
        for rid in _unheld(store, effects):
            _look_at_effects(store, store.load(rid), [row for row in effects if row.rid == rid])
        for rid in _unheld(store, requests):
            _look_at_requests(store, store.load(rid), [row for row in requests if row.rid == rid])
        for info in store.runs(Filter(status=UNFINISHED, limit=RUNS_AT_START_MAX)):
            if info.owner is None:
                _look_at_status(store, info)
    except (StoreError, HistoryCorruptError) as error:
        log.warning("ledger and approvals could not be compared with the histories: %s", error)


def _unheld(store: Store, rows: Iterable[LedgerEntry | ApprovalEntry]) -> Iterator[int]:
    """The first runs of these rows, as far as nobody holds them."""
    runs = {row.rid: row.run_id for row in rows}
    for rid in list(runs)[:RUNS_AT_START_MAX]:
        info = store.find(runs[rid])
        if info is not None and info.rid == rid and info.owner is None:
            yield rid


def _look_at_effects(store: Store, stored: Stored, rows: Sequence[LedgerEntry]) -> None:
    told = told_of_effects(_events(stored, ("effect.",)))
    has_ended = stored.info.status.is_final
    ours = {row.operation_id: told[row.operation_id] for row in rows if row.operation_id in told}
    _put_right(store, stored, disagreements(rows, ours, has_ended=has_ended, is_whole=False))


def _look_at_requests(store: Store, stored: Stored, rows: Sequence[ApprovalEntry]) -> None:
    told = told_of_requests(_events(stored, ABOUT_REQUESTS))
    has_ended = stored.info.status.is_final
    ours = {row.approval_id: told[row.approval_id] for row in rows if row.approval_id in told}
    _put_right(store, stored, disagreements_of_requests(rows, ours, has_ended=has_ended, is_whole=False))


def _look_at_status(store: Store, seen: RunInfo) -> None:
    """A run whose history has ended is over, whatever the index says. It is made due: whoever takes it up sees its end,
    and the index says so from then on."""
    last = store.last_row(seen.rid)
    info = store.find(seen.run_id)  # which may have ended since it was seen
    if last.kind not in ENDED or info is None or info.rid != seen.rid or info.owner or info.status.is_final:
        return
    again = Change(status=Status.QUEUED, release=True, due_at=info.updated_at)
    append = Append(os.urandom(16), info.rid, info.epoch, last.seq + 1, change=again)
    is_done = isinstance(store.commit([append])[0], Done)
    what = f"the index says {info.status}, and its history has ended ({last.kind})"
    log.warning("run %s: %s; it is %staken up once more", info.run_id, what, "" if is_done else "not ")


def _events(stored: Stored, kinds: tuple[str, ...]) -> Iterable[tuple[e.Event | None, int]]:
    return ((e.readable(row.envelope, row.kind), row.at) for row in stored.rows if row.kind.startswith(kinds))


def _put_right(store: Store, stored: Stored, found: Iterable[Disagreement]) -> None:
    run_id = stored.info.run_id
    for each in found:
        if each.repaired is not None and _repair(store, stored, each.repaired):
            log.warning("run %s: %s; the row is put right", run_id, each.what)
        else:
            log.error("run %s: %s; `perdure store verify` looks at all runs", run_id, each.what)


def _repair(store: Store, stored: Stored, row: LedgerEntry | ApprovalEntry) -> bool:
    """Write the row as it has to be; refused if the run has ended, or has moved on meanwhile."""
    info = stored.info
    effects, approvals = ((row,), ()) if isinstance(row, LedgerEntry) else ((), (row,))
    append = Append(os.urandom(16), info.rid, info.epoch, stored.length, effects=effects, approvals=approvals)
    return isinstance(store.commit([append])[0], Done)

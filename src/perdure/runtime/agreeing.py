"""A look at the ledger when a worker opens the store: does it say the same as the histories of the runs?

Cheap: only effects without a proof, only runs that nobody holds, not many of them; `perdure store verify` looks at all.
A row that the history proves to be over is put right; everything else is said, for a person to look at."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from perdure.engine.agreement import Disagreement, disagreements, told_of_effects
from perdure.errors import HistoryCorruptError, StoreError
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import Append, Done, EffectFilter, Store, Stored

log = logging.getLogger("perdure")

WITHOUT_PROOF = frozenset({EffectState.STARTED, EffectState.UNKNOWN, EffectState.FAILED_RETRYABLE})
EFFECTS_AT_START_MAX = 100
RUNS_AT_START_MAX = 20


def look_at_ledger(store: Store) -> None:
    """Put right what can be, and log the rest. Never fails: whoever opens the store goes on."""
    try:
        rows = store.effects(EffectFilter(status=WITHOUT_PROOF, limit=EFFECTS_AT_START_MAX))
        runs = {row.rid: row.run_id for row in rows}
        for rid in list(runs)[:RUNS_AT_START_MAX]:
            info = store.find(runs[rid])
            if info is not None and info.rid == rid and info.owner is None:
                _look_at_run(store, rid, [row for row in rows if row.rid == rid])
    except (StoreError, HistoryCorruptError) as error:
        log.warning("the ledger could not be compared with the histories: %s", error)


def _look_at_run(store: Store, rid: int, rows: Sequence[LedgerEntry]) -> None:
    stored = store.load(rid)
    events = ((e.readable(row.envelope, row.kind), row.at) for row in stored.rows if row.kind.startswith("effect."))
    ours = {row.operation_id for row in rows}
    told = {operation: said for operation, said in told_of_effects(events).items() if operation in ours}
    for found in disagreements(rows, told, has_ended=stored.info.status.is_final, is_whole=False):
        if found.repaired is not None and _repair(store, stored, found.repaired):
            log.warning("run %s: %s; the ledger is put right", stored.info.run_id, found.what)
        else:
            _tell(stored.info.run_id, found)


def _tell(run_id: str, found: Disagreement) -> None:
    log.error("run %s: %s; `perdure store verify` looks at all runs", run_id, found.what)


def _repair(store: Store, stored: Stored, row: LedgerEntry) -> bool:
    """Write the row as it has to be; refused if the run has ended, or has moved on meanwhile."""
    info = stored.info
    append = Append(os.urandom(16), info.rid, info.epoch, stored.length, effects=(row,))
    return isinstance(store.commit([append])[0], Done)

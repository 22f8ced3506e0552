"""One row of the ledger."""

from __future__ import annotations

from typing import NamedTuple

from perdure.ledger.states import TRANSITIONS, EffectState, Happening
from perdure.transitions import after

RESULT_IN_ROW_BYTES_MAX = 1024


class LedgerEntry(NamedTuple):
    """What is known of one operation. Times in microseconds since the epoch, UTC, 0 where there is none yet.

    `call` is the call that first asked for it (`chapter:task:n`); `label` the same, readable. `request_hash` and
    `response_hash` are digests of 32 bytes. `result` is the recorded result as canonical JSON if it is small; a large
    one is in the run's blobs under `response_hash`. `note` says in a sentence what is known, for a person. `references`
    are further references under which the other side answered success: shown, never taken for the first one.
    `approval`: the id of the approval that it was sent under, if it needed one.
    """

    operation_id: str
    rid: int
    run_id: str
    call: str
    label: str
    action_name: str
    scope: str
    business_key: str
    revision: int
    request_hash: bytes
    status: EffectState
    downstream: str
    risk: str
    created_at: int
    updated_at: int
    attempts: int = 0
    started_at: int = 0
    committed_at: int = 0
    external_ref: str | None = None
    external_request_id: str | None = None
    response_hash: bytes | None = None
    result: bytes | None = None
    compensated_by: str | None = None
    note: str = ""
    references: str = ""
    approval: str = ""

    def moved(self, happening: Happening, *, now: int, note: str = "") -> LedgerEntry:
        """The row after this. PerdureBug if that cannot happen to it."""
        status = after(TRANSITIONS, self.status, happening, noun="an effect")
        row = self._replace(status=status, updated_at=max(now, self.updated_at), note=note)
        if happening in {Happening.SENT, Happening.SENT_AGAIN}:
            return row._replace(attempts=self.attempts + 1, started_at=now)
        return row._replace(committed_at=now) if status.is_final else row

    def answered(self, raw: bytes, response_hash: bytes) -> LedgerEntry:
        """The row with its result: in the row if it is small, else by its digest alone."""
        return self._replace(response_hash=response_hash, result=raw if len(raw) <= RESULT_IN_ROW_BYTES_MAX else None)

    def undone_by(self, operation_id: str, *, now: int) -> LedgerEntry:
        """The row after another operation took this one back."""
        return self._replace(compensated_by=operation_id, updated_at=max(now, self.updated_at))

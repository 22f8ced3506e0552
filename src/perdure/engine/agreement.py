"""Do a run's history and the ledger say the same of its effects? They are written in one transaction, so whatever they
disagree in came from outside: a file that was edited, a backup put together from two moments, a bug of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from perdure.decisions import ApprovalEntry
from perdure.engine.calls import Key
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry

SAYS_NOTHING_OF_ITS_OWN = frozenset({"conflict", "duplicate", "denied", "reused", "cancelled"})
"""How an effect can end without anything having been sent for it: the operation may be another call's."""


class Told(msgspec.Struct, frozen=True):
    """What a history says of an operation: where it stands after the last event about it. `at`: of that event."""

    state: EffectState
    at: int
    outcome: e.EffectSucceeded | e.EffectFailed | None = None


class Disagreement(msgspec.Struct, frozen=True):
    """An operation, or a request to people, of which the two do not say the same. `repaired`: the row as the history
    has it, where the history proves what the row leaves open."""

    id: str
    what: str
    repaired: LedgerEntry | ApprovalEntry | None = None


def told_of_effects(events: Iterable[tuple[e.Event | None, int]]) -> dict[str, Told]:
    """What the events (with their times; None for one that cannot be read) say of each operation."""
    told: dict[str, Told] = {}
    sent: dict[str, Key] = {}
    for event, at in events:
        match event:
            case e.EffectStarted():
                told[event.operation], sent[event.operation] = Told(EffectState.STARTED, at), event.key
            case e.EffectNotDone():
                told[event.operation] = Told(EffectState.FAILED_RETRYABLE, at)
            case e.EffectSucceeded() if event.how != "reused":
                told[event.operation] = Told(EffectState.SUCCEEDED, at, event)
            case e.EffectFailed() if event.how in {"cancelled", "denied"} and sent.get(event.operation) == event.key:
                if told[event.operation].outcome is None:  # else asked for again, after the run had gone back
                    told[event.operation] = Told(EffectState.FAILED_FINAL, at, event)  # given up between two attempts
            case e.EffectFailed() if event.how not in SAYS_NOTHING_OF_ITS_OWN:
                told[event.operation] = Told(EffectState.FAILED_FINAL, at, event)
            case _:
                pass
    return told


def disagreements(
    rows: Iterable[LedgerEntry], told: Mapping[str, Told], *, has_ended: bool, is_whole: bool = True
) -> Iterable[Disagreement]:
    """Where the ledger's rows of one run and its history part. `is_whole`: that is the whole history."""
    by_id = {row.operation_id: row for row in rows}
    for operation, row in by_id.items():
        what = _of_row(row, told.get(operation), has_ended=has_ended, is_whole=is_whole)
        if what:
            yield Disagreement(operation, what, _repaired(row, told.get(operation)))
    for operation, said in told.items():
        if operation not in by_id and said.outcome is None:
            yield Disagreement(operation, f"the history has started operation {operation}, and the ledger has no row")


def _of_row(row: LedgerEntry, said: Told | None, *, has_ended: bool, is_whole: bool) -> str:
    name = f"operation {row.operation_id} ({row.label})"
    is_settled = row.status.is_final
    if said is None:
        return f"{name} is {row.status} in the ledger, and the history does not know it" if is_whole else ""
    if said.outcome is not None and said.state is not row.status:
        return f"{name} is {row.status} in the ledger, and {said.state} in the history"
    if said.outcome is None and is_settled and not _waits_for_its_result(row):
        return f"{name} is {row.status} in the ledger, and the history has no outcome"
    if said.outcome is None and has_ended and row.status.is_open:
        return f"{name} is {row.status}, and its run has ended: nobody will find out what became of it"
    return ""


def _waits_for_its_result(row: LedgerEntry) -> bool:
    """It has succeeded, with a result that could not be recorded: a person is asked for it."""
    return row.status is EffectState.SUCCEEDED and row.response_hash is None


def _repaired(row: LedgerEntry, said: Told | None) -> LedgerEntry | None:
    if said is None or said.outcome is None or row.status.is_final:
        return None
    fixed = row._replace(
        status=said.state, committed_at=said.at, updated_at=max(row.updated_at, said.at),
        note="as its run's history has it",
    )  # fmt: skip
    if not isinstance(said.outcome, e.EffectSucceeded):
        return fixed
    return fixed._replace(
        response_hash=said.outcome.output, result=None, external_ref=said.outcome.reference or row.external_ref
    )

"""What became of effects, told from a run's history and from the ledger: for people, and for checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.engine.calls import Key
from perdure.engine.known import MOVES_EFFECTS, Standing, standings
from perdure.history import events as e
from perdure.ledger import LedgerEntry
from perdure.store.protocol import Row, Store


def without_outcome(rows: Iterable[Row]) -> dict[Key, Standing]:
    """How far the effects got whose outcome is not in these rows, the first one first."""
    about_effects = (row for row in rows if row.kind.startswith("effect.") or row.kind in MOVES_EFFECTS)
    return standings((e.decode(row.envelope), row.at) for row in about_effects)


# ── the phases of each effect ───────────────────────────────────────────────────────────────


class Phases(NamedTuple):
    """How one effect of a run went, by time: microseconds since the epoch, 0 for what has not happened.

    `prepared_at`: it was asked for, and whether it may be sent was decided; `executed_at`: the last attempt was about
    to leave, and that was durable; `committed_at`: the ledger knew the outcome; `checkpoint_at`: the history had it.
    `state`: of the ledger, or why it was denied.
    """

    call: str
    operation: str
    state: str
    prepared_at: int
    executed_at: int = 0
    committed_at: int = 0
    checkpoint_at: int = 0
    attempts: int = 0
    reference: str | None = None


def phases(store: Store, rid: int) -> list[Phases]:
    """The effects of a run, in the order in which they were first heard of."""
    found: dict[tuple[int, Key, str], Phases] = {}
    chapter = 0
    for row in store.load(rid, from_seq=0).rows:
        is_told = row.kind == "run.continued" or row.kind.startswith("effect.")
        event = e.decode(row.envelope) if is_told else None
        if isinstance(event, e.ChapterStarted):
            chapter = event.number
        elif isinstance(event, e.Keyed):  # a run that went back may have made another request in the same place
            place = (chapter, event.key, getattr(event, "operation", ""))
            found[place] = _further(found.get(place), event, row.at)
    return [_with_ledger(each, store.effect(each.operation)) for each in found.values()]


def _further(before: Phases | None, event: e.Keyed, at: int) -> Phases:
    phases = before or Phases(event.label, getattr(event, "operation", ""), "", at)
    match event:
        case e.EffectStarted():
            return phases._replace(executed_at=at, attempts=event.attempt)
        case e.EffectSucceeded():
            return phases._replace(checkpoint_at=at, state="succeeded", reference=event.reference)
        case e.EffectFailed():
            return phases._replace(checkpoint_at=at, state=_why(event.how))
        case _:
            return phases


def _why(how: str) -> str:
    return f"not sent: {how}" if how in {"denied", "conflict", "duplicate"} else "failed"


def _with_ledger(phases: Phases, row: LedgerEntry | None) -> Phases:
    if row is None or phases.state.startswith("not sent"):
        return phases
    return phases._replace(
        state=str(row.status).replace("_", " "), prepared_at=min(row.created_at, phases.prepared_at),
        committed_at=row.committed_at, reference=row.external_ref,
    )  # fmt: skip

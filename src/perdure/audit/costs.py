"""What steps and effects have used, added up by run, step or model; and what was recorded and not paid again.

Read from histories alone. A model's part of what an attempt used is what the attempt said of that model; what it did
not say, and counts as it was reserved, has no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from perdure.gates.budget import money
from perdure.history import events as e
from perdure.history.spending import NOTHING, Amount
from perdure.store.protocol import Filter, Row, RunInfo, Store, every_run

RUNS_PER_READ = 500




class Cost(msgspec.Struct):
    """What was used under one name. `calls`: that have used something, each once; `attempts`: at them. `saved`: what
    takeovers found recorded, `saved_calls`: of how many calls; each time it counts again."""

    name: str
    calls: int = 0
    attempts: int = 0
    used: Amount = NOTHING
    saved_calls: int = 0
    saved: Amount = NOTHING


def costs(
    store: Store, *, by: str = "run", run_id: str | None = None, workflow: str | None = None, since: int = 0
) -> list[Cost]:
    """What was used, the most expensive first. `since`: microseconds since the epoch. Runs that were pruned are not
    in it."""
    found: dict[str, Cost] = {}
    for info in _runs(store, run_id, workflow):
        _add(found, info, by, store.load(info.rid, from_seq=0).rows, since)
    return sorted(found.values(), key=lambda each: (-each.used.cost, -each.used.tokens, each.name))


def _runs(store: Store, run_id: str | None, workflow: str | None) -> Iterator[RunInfo]:
    if run_id is not None:
        info = store.find(run_id)
        if info is not None and workflow in {None, info.workflow}:
            yield info
        return
    yield from every_run(store, Filter(workflow=workflow, limit=RUNS_PER_READ))


def _add(found: dict[str, Cost], info: RunInfo, by: str, rows: Sequence[Row], since: int) -> None:
    """Take in the history of one run."""
    forked = max((row.seq for row in rows if row.kind == "run.forked"), default=-1)  # before, it is another run's
    chapter: list[tuple[str, tuple[str, int], Amount]] = []
    counted: set[tuple[str, tuple[str, int]]] = set()
    for row in rows:
        if row.kind == "run.continued":
            chapter, counted = [], set()
        elif row.kind in {"run.taken_over", "run.forked"} and row.at >= since and row.seq >= forked:
            _save(found, chapter)
        elif row.kind in {"budget.spent", "budget.priced"}:
            for name, key, amount, is_attempt in _parts(e.decode(row.envelope), info, by):
                chapter.append((name, key, amount))
                if row.at >= since and row.seq > forked:
                    cost = found.setdefault(name, Cost(name))
                    cost.attempts += is_attempt
                    cost.calls += is_attempt and (name, key) not in counted
                    cost.used += amount
                    counted.add((name, key))


def _save(found: dict[str, Cost], chapter: list[tuple[str, tuple[str, int], Amount]]) -> None:
    """What the chapter had used so far was recorded: it was not paid again."""
    saved: set[tuple[str, tuple[str, int]]] = set()
    for name, key, amount in chapter:
        cost = found.setdefault(name, Cost(name))
        cost.saved += amount
        cost.saved_calls += (name, key) not in saved and bool(key[0])
        saved.add((name, key))


def _parts(event: e.Event, info: RunInfo, by: str) -> Iterator[tuple[str, tuple[str, int], Amount, bool]]:
    """Under which names what of it counts, for which call, and whether it is an attempt."""
    if isinstance(event, e.BudgetPriced):
        for use in event.uses:
            name = {"run": info.run_id, "model": use.model}.get(by, "(priced later)")
            yield name, ("", 0), Amount(cost=use.cost or 0), False
    if not isinstance(event, e.BudgetSpent) or event.how == "not_begun":
        return
    if by != "model":
        yield (info.run_id if by == "run" else event.name), event.key, event.amount, True
        return
    said = NOTHING
    for use in event.uses:
        part = Amount(use.tokens, use.cost or 0)
        said += part
        yield use.model or "(not said)", event.key, part, True
    rest = Amount(event.amount.tokens, event.amount.cost) - said
    if rest != NOTHING or not event.uses:
        yield "(not said)", event.key, rest, not event.uses


__all__ = ["Cost", "costs", "money"]

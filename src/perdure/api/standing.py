"""Would a run's decisions stand today? What they rest on is read, and nothing is changed or recorded."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from perdure.api.approving import is_reading
from perdure.api.checking import replayed
from perdure.clock import MICROSECONDS, when
from perdure.codec.exceptions import message_of
from perdure.decisions.premises import Asked, Rest, Values, changed, plain, told
from perdure.errors import UsageError
from perdure.history import events as e
from perdure.history.spending import NOTHING, Amount
from perdure.runtime.attempt import ATTEMPT, Attempt
from perdure.runtime.dismissing import RUNS_PER_READ, done_by
from perdure.runtime.load import Past
from perdure.runtime.premises import place_of_result, readings_of, superseded_by
from perdure.specs import WorkflowSpec
from perdure.store.protocol import Filter, RunInfo, Store, every_run


class DecisionStanding(msgspec.Struct, frozen=True):
    """Whether one recorded result would stand today.

    `stands`: None if that cannot be told, `why` says the reason in each case. `then`, `now`: its premises, plain JSON.
    `on_stale`: what would be done if it does not. `took_seconds`, `tokens`, `cost` (billionths of the currency unit):
    what making it again would cost, going by the last time. `reused`: how many later results would be had again, and
    `owed`: which later effects would be owed, should it come to something else, those of children too. `relied_on_by`:
    the effects that were sent since, and before which it was checked. `came_back`: how often the result was had from
    the history instead, when a worker took the run over or the run went back: so often its cost was saved."""

    call: str
    stands: bool | None
    why: str
    on_stale: str
    read_at: datetime
    valid_until: datetime | None
    then: Mapping[str, Any]
    now: Mapping[str, Any]
    took_seconds: float
    tokens: int
    cost: int
    reused: int
    owed: tuple[str, ...]
    relied_on_by: tuple[str, ...]
    came_back: int


async def decisions_of(
    store: Store, info: RunInfo, spec: WorkflowSpec | None, *, now: int, provide: Mapping[type, Any]
) -> list[DecisionStanding]:
    """The recorded results of a run that rest on something, in their order. UsageError without the run's code."""
    if spec is None:
        raise UsageError(
            f"whether the decisions of run {info.run_id} stand is read by its own code: name the workflow "
            f"{info.workflow} version {info.version} (Client(workflows=[...]), or --app)"
        )
    past = Past(store.load(info.rid), store)
    with replayed(past, spec) as execution:
        decisions = execution.known.decisions
        asked, rests = dict(decisions.asked), dict(decisions.rests)
    standing = partial(_standing, store, past, now=now, provide=provide)
    return [await standing(rest, asked.get(key)) for key, rest in rests.items()]


async def _standing(
    store: Store, past: Past, rest: Rest, asked: Asked | None, *, now: int, provide: Mapping[type, Any]
) -> DecisionStanding:
    event = rest.event
    found: Values = {}
    stands: bool | None
    rests = None if asked is None else asked.spec.rests
    if asked is None or rests is None:
        stands, why = None, "its code has not called it again: it is hosted, or changed"
    elif not rests.is_verified or rest.is_kept:
        stands, why = True, "it is not checked any more" if rest.is_kept else 'recovery="replay": it stands for ever'
    else:
        try:
            found = await _read(past, rest, asked, provide)
            names = changed(rests.premises, rest.values, found)
        except Exception as error:
            stands, why = None, f"cannot be read: {type(error).__name__}: {message_of(error)}"
        else:
            finding = e.Finding(event.task, event.n, event.call, tuple(names), rest.is_over(now))
            stands, why = not names and not finding.is_expired, told(finding, rest.values, found)
    on_stale = "" if rests is None else "a function" if callable(rests.on_stale) else str(rests.on_stale)
    used, took = _cost(past, event)
    later, result = _later(past, event)
    reused = sum(_is_had_again(each) for each in later if each is not result)
    return DecisionStanding(
        event.call, stands, why, on_stale, when(event.read_at), when(rest.valid_until) if rest.valid_until else None,
        plain(rest.values), plain(found), took, used.tokens, used.cost, reused,
        tuple(_owed(store, past.stored.info, later)), _relied_on_by(rest, later), _came_back(past, event),
    )  # fmt: skip


def _is_had_again(event: e.Event) -> bool:
    """Whether a result would be. What an approval rests on is read anew whenever it is asked for."""
    return type(event) in (e.StepCompleted, e.StepReused) and not is_reading(getattr(event, "name", ""))


def _owed(store: Store, info: RunInfo, later: list[e.Event]) -> Iterator[str]:
    """What the run has done itself, and what the children have done that it has started, and their children."""
    for event in later:
        if isinstance(event, e.EffectSucceeded) and not event.undoes:
            yield event.label
    started = (store.find(event.run_id) for event in later if isinstance(event, e.ChildStarted))
    runs = {run.run_id: run for run in started if run is not None and run.parent_run_id == info.run_id}
    for run in (left := list(runs.values())):
        yield from (f"{debt.name} {debt.business_key!r} of {run.run_id}" for debt in done_by(store, run))
        left += every_run(store, Filter(parent_run_id=run.run_id, limit=RUNS_PER_READ))


async def _read(past: Past, rest: Rest, asked: Asked, provide: Mapping[type, Any]) -> Values:
    """As the runtime reads it, but for secrets, which are not there."""
    info, spec = past.stored.info, asked.spec
    attempt = Attempt(
        info.run_id, info.workflow, spec.name, rest.event.call, 0, spec.retry.max_attempts, when(rest.event.read_at),
        _ignored, _nothing, provide, _ignored, _ignored,
    )  # fmt: skip
    context = contextvars.copy_context()
    context.run(ATTEMPT.set, attempt)

    async def read() -> Values:
        readings = readings_of(spec, asked.input, rest.readers, asyncio.to_thread)
        return dict(zip(readings, await asyncio.gather(*(each() for each in readings.values())), strict=True))

    return await asyncio.get_running_loop().create_task(read(), context=context)


def _ignored(*_: Any) -> None:
    """Nothing of it is recorded."""


def _nothing(_: Any) -> Any:
    """There was no heartbeat."""
    return None


def _later(past: Past, event: e.PremisesRead) -> tuple[list[e.Event], e.Event | None]:
    """What would not count any more, if the run were rewound for this, and the result itself among it."""
    place = place_of_result(past, event.key)
    rewound = e.Rewound(past.stored.rows[place].seq, event.task, event.n, event.name, event.use)
    found = past.events[place:]
    result = next((each for each in found if isinstance(each, e.StepCompleted) and each.key == event.key), None)
    return superseded_by(rewound, past), result


def _came_back(past: Past, event: e.PremisesRead) -> int:
    since = past.events[place_of_result(past, event.key) :]
    reused = (isinstance(each, e.StepReused) and each.key == event.key for each in since)
    return sum(reused) + sum(isinstance(each, e.TakenOver) for each in since)


def _relied_on_by(rest: Rest, later: list[e.Event]) -> tuple[str, ...]:
    sent = (each for each in later if isinstance(each, e.EffectStarted) and not each.name.endswith(".undo"))
    return tuple(dict.fromkeys(each.label for each in sent if rest.is_meant(each.relies_on)))


def _cost(past: Past, event: e.PremisesRead) -> tuple[Amount, float]:
    used, took = NOTHING, 0.0
    for each, row in zip(past.events, past.stored.rows, strict=True):
        if isinstance(each, e.BudgetSpent) and each.key == event.key:
            used = each.amount
        elif isinstance(each, e.StepCompleted) and each.key == event.key and each.started_at:
            took = max(0, row.at - each.started_at) / MICROSECONDS
    return used, took

"""Replays a run from its start and compares: does its code, given the same outcomes, stand where it stood?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.engine.calls import Ask, ChildAsk, ReceiveAsk, SleepAsk, StepAsk
from perdure.engine.execution import Execution
from perdure.runtime.live import Delivery, LiveRun
from perdure.runtime.load import Past
from perdure.store.protocol import Store


def difference(live: LiveRun, store: Store) -> str | None:
    """Between the code of a run as it stands after a turn, and the same code replayed from the store. None if there is
    none: it asks for the same, waits for the same, ends the same."""
    past = Past(store.load(live.rid), store)
    known = past.known()
    known.patches.update(live.execution.known.patches)
    again = Execution(live.execution.spec, live.run_id, past.beginning(), known=known, compare_all_inputs=True)
    try:
        past.replay(again)
        for event, at, raw in _not_stored_yet(live):
            again.deliver(event, at, raw)
        return _compare(live.execution, again)
    finally:
        again.close()


def _not_stored_yet(live: LiveRun) -> Iterator[Delivery]:
    """Lazy results that the code got before they were written."""
    under_way = live.under_way.entries if live.under_way is not None else ()
    for entry in (*under_way, *live.entries):
        if entry.at is not None and entry.event.is_outcome and not entry.delivers:
            yield entry.event, entry.at, entry.raw


def _compare(first: Execution, again: Execution) -> str | None:
    if first.failure is not None:
        return None
    if again.failure is not None:
        return again.failure.hint
    then, now = _standing(first), _standing(again)
    for what, before in then.items():
        if before != now[what]:
            return f"{what}: {_told(before)} the first time, {_told(now[what])} when it is replayed"
    return None


def _told(value: Any) -> str:
    return str(value) if value else "nothing"


def _standing(execution: Execution) -> dict[str, Any]:
    """Where code stands: everything that decides about how it goes on, and what others see of it."""
    return {
        "it asks for": [_asked(ask) for ask in execution.open.values()],
        "it ends with": execution.ending,
        "its tasks are": [task.path for task in execution.loop.live_tasks()],
        "its next timer is due": execution.loop.next_deadline_of_any(),
        "its state is": execution.state,
        "its mailbox holds": {name: list(queue) for name, queue in execution.mailbox.queues.items() if queue},
        "its end waits for": sorted(execution.holding),
    }


def _asked(ask: Ask) -> str:
    match ask:
        case StepAsk():
            return f"{ask.label}({_shown(ask.input)})"
        case ChildAsk():
            return f"{ask.label}({_shown(ask.input)})"
        case SleepAsk():
            return f"{ask.label} until {ask.deadline}"
        case ReceiveAsk():
            return ask.label
        case _:
            return f"{ask.kind} {ask.label}"


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return text if len(text) <= 200 else text[:200] + "..."




"""Whose code is on the event loop just now? Asked from another thread, while the loop does not come round.

The body of a step that blocks the loop keeps its own timeout from firing, and hosted code that does has none. What is
found here is parked once its time is over (`lease`), so that no other worker hangs on it too.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.runtime.attempt import ATTEMPT, JOURNAL
from perdure.runtime.hosted.journal import Journal
from perdure.runtime.performer import Flight
from perdure.specs import DEFAULT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from perdure.runtime.live import LiveRun
    from perdure.runtime.turn import Turns


class Body(NamedTuple):
    """A body of a run that is on the loop: what it is called, and for how long it may be at work."""

    live: LiveRun
    label: str
    seconds_max: float


def body_on(loop: asyncio.AbstractEventLoop, turns: Turns) -> Body | None:
    """The body of a step, or the hosted code, whose task runs on this loop now. None if it is the program's own code;
    on Python 3.11 also if it is a task that a body has started, whose context nobody else can look into."""
    task = asyncio.current_task(loop)
    if task is None:
        return None
    context: Callable[[], contextvars.Context] | None = getattr(task, "get_context", None)
    if context is not None:
        return _body_of(context().get(ATTEMPT) or context().get(JOURNAL))
    flight = next((each for each in turns.performer.running if each.task is task), None)
    return _body_of(flight or turns.sections.journal_of(task))


def _body_of(code: Any) -> Body | None:
    match code:
        case Flight():
            return Body(code.live, code.ask.label, code.ask.spec.timeout_seconds)
        case Journal():
            return Body(code.live, code.ask.label, DEFAULT_TIMEOUT_SECONDS)
        case _:
            return None

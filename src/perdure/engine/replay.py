"""A history being replayed: which outcome comes next, and whether a call can have its own on the spot.

Code that awaits a recorded step gives way to the loop, which finds nothing else to do, delivers the next outcome, and
wakes the code again. Where that is all that would happen, the call is answered where it is made, which costs half as
much. So the condition is that nobody could tell: the next outcome is this very call's; nothing else is ready and no
timer is armed; and the `await` stands in the workflow's own function, which its task drives without anybody in
between. (Code that drives a coroutine by hand sees whether that gives way. What is compiled and does so inside of one
`await`, with the call itself, goes unnoticed.)
"""

from __future__ import annotations

from asyncio.tasks import _enter_task, _leave_task  # pyright: ignore[reportPrivateUsage]
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from opcode import opmap
from types import CoroutineType, FrameType
from typing import Any

from perdure.clock import MICROSECONDS
from perdure.codec import ValueCodec
from perdure.codec.values import DOLLAR
from perdure.engine.execution import Execution
from perdure.engine.known import Stored
from perdure.engine.loop import current_task
from perdure.history import events as e
from perdure.specs import StepSpec

AWAITS = opmap["GET_AWAITABLE"]


class Replay:
    """Hands the code its recorded outcomes, in the order in which they are given."""

    __slots__ = ("_code", "_execution", "_main", "_outcomes")

    def __init__(self, execution: Execution, outcomes: Sequence[tuple[e.Event, Stored]]) -> None:
        self._execution = execution
        self._outcomes = list(reversed(outcomes))  # those that the code has not got yet, the next one last
        self._main: CoroutineType[Any, Any, Any] | None = None
        self._code = b""

    def run(self, fetch: Callable[[e.Event, Any], bytes | None]) -> None:
        """Begin, and go on until all is delivered. `fetch` gives the payloads that do not stand beside their events."""
        execution, outcomes = self._execution, self._outcomes
        execution.replay = self
        try:
            execution.begin()
            while outcomes:
                event, stored = outcomes.pop()
                output = stored.output
                execution.deliver(event, stored.at, fetch(event, stored) if output is None else output)
        finally:
            execution.replay = None

    def follow(self, main: Any) -> None:
        """The workflow's own function begins."""
        if type(main) is CoroutineType:
            self._main, self._code = main, main.cr_code.co_code

    def answered(
        self, spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> Generator[Any, Any, Any] | None:
        """What awaits a call that `caller` has just made, if it can have its outcome at once; else None, and nothing
        has happened yet."""
        outcomes, main = self._outcomes, self._main
        if not outcomes or main is None or main.cr_frame is not caller or self._code[caller.f_lasti] != AWAITS:
            return None
        event, stored = outcomes[-1]
        execution = self._execution
        task: Any = execution.root
        loop = execution.loop
        if (
            type(event) is not e.StepCompleted or event.n != task.calls or event.task != task.path
            or task._must_cancel or current_task(loop) is not task or execution.failure is not None
            or loop.ready or (loop.timers and loop.next_deadline_of_any() is not None)
            or type(spec) is not StepSpec or event.name != spec.name
            or spec.rests is not None or spec.ignore or spec.digest_view is not None
        ):  # fmt: skip
            return None
        return self._answer(task, event, stored, spec, spec.arguments.dumps(args, kwargs))

    def _answer(
        self, task: Any, event: e.StepCompleted, stored: Stored, spec: StepSpec, raw: bytes
    ) -> Generator[Any, Any, Any] | None:
        """Whatever is out of the ordinary goes the usual way."""
        execution, output, native = self._execution, stored.output, spec.result.native
        loop, entries, key = execution.loop, execution.claims.recorded, (event.task, event.n)
        recorded = entries.get(key)
        if recorded is None or recorded.input != raw or output is None:
            return None
        if stored.at > execution.now_us:
            execution.now_us = stored.at
            loop.now_seconds = stored.at / MICROSECONDS
        try:
            value = native(output) if native and DOLLAR not in output else _read(spec.result, output, loop, task)
        except Exception:
            return None
        del self._outcomes[-1], entries[key]
        task.calls += 1
        task.uses[event.name] = task.uses.get(event.name, 0) + 1
        loop.ordinal += 1  # of the future that would have been made
        loop.idle_callbacks = 0
        if execution.outcomes_left:
            execution.outcomes_left -= 1
        return _given(value)


def _read(codec: ValueCodec, output: bytes, loop: Any, task: Any) -> Any:
    """Outside of the task, as when it is delivered: whatever code of the user's reads it finds no task there."""
    _leave_task(loop, task)
    try:
        return Context().run(codec.loads, output)
    finally:
        _enter_task(loop, task)


def _given(value: Any) -> Generator[Any, Any, Any]:
    """Awaits nothing any more."""
    return value
    yield  # type: ignore[unreachable]  # an iterator is what `__await__` has to give

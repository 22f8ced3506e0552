"""Performs steps: attempts, timeouts, heartbeats, waits between attempts, threads for plain functions.

What came of an attempt is reported to the turn as an event to be recorded; nothing here reaches workflow code. A flight
is one step under way, through all its attempts; once it is over, or its attempt has timed out, whatever its body still
produces is ignored (fenced off).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from perdure.clock import MICROSECONDS, Alarm, Clock, when
from perdure.codec import about_result, codec_for, dump_exception, pack
from perdure.codec.exceptions import message_of
from perdure.engine.calls import NO_ATTEMPTS, Attempts, StepAsk
from perdure.errors import EncodeError, PremiseUnreadableError, StepTimeoutError, UsageError
from perdure.history import events as e
from perdure.history.spending import Use
from perdure.http.classify import Failure, Kind, classify
from perdure.http.sender import SENDER
from perdure.runtime.attempt import ATTEMPT, Attempt, Outgoing, attempt_here
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.retrying import Again, next_attempt
from perdure.runtime.threads import DaemonThreads

if TYPE_CHECKING:
    from perdure.gates.policy import Policy
    from perdure.gates.ruling import Use as Counted
    from perdure.runtime.vault import Vault

log = logging.getLogger("perdure")

STILL_HERE_SECONDS = 3.0
"""Longer than a worker takes to leave."""

PUT_OFF_MICROSECONDS = 50_000
UNREADABLE_MICROSECONDS = 1_000_000
"""After that time it is asked again who may decide, if that could not be read."""
_PLAIN = codec_for(Any)

Function = Callable[..., Any]
"""What an author gave us: the body of a step, or a look-up."""


class Handler(Protocol):
    """Who is told what came of an attempt instead of its being the step's outcome: for effects."""

    def returned(self, flight: Any, value: Any) -> None: ...
    def failed(self, flight: Any, number: int, error: BaseException) -> None: ...
    def came_late(self, flight: Any, number: int, value: Any) -> None: ...
    def may_launch(self, flight: Any) -> bool: ...


class Flight:
    """A step under way. `uses`: the rates that it counts against, where it counts against any. `facts`: what its result
    rests on, where that was read, and when."""

    __slots__ = (
        "airborne", "alarm", "ask", "beat_at", "deadline", "details", "ended_at", "facts", "first_at", "handler",
        "is_over",
        "is_start_recorded", "live", "number", "performer", "started_at", "task", "uses", "wakes_at",
    )  # fmt: skip

    is_anew: ClassVar[bool] = False
    """Whether the step has a result already, which does not stand."""
    uses: tuple[Counted, ...]
    facts: tuple[int, dict[str, bytes], dict[str, Any]]

    def __init__(self, performer: Performer, live: LiveRun, ask: StepAsk, before: Attempts, now: int) -> None:
        self.performer = performer
        self.live = live
        self.ask = ask
        self.number = before.failed
        self.first_at = before.first_at or now
        self.details: bytes | None = None
        self.airborne = 0
        self.is_start_recorded = ask.is_recorded
        self.is_over = False
        self.handler: Handler | None = None
        self.alarm: Alarm | None = None
        self.wakes_at = 0
        self.task: asyncio.Future[Any] | None = None
        self.started_at = self.beat_at = self.deadline = now
        self.ended_at = 0

    @property
    def only_waits(self) -> bool:
        """Whether nothing is done about it until a moment that the history tells to whoever has the run then."""
        return self.alarm is not None

    def attempt(self) -> Attempt:
        """What the body can ask about itself: also one that was given up for lost, beside the next one."""
        ask, live, performer = self.ask, self.live, self.performer
        here = attempt_here(self)
        number, started_at = (self.number, self.started_at) if here is None else (here.number, here.started_at)
        return Attempt(
            live.run_id, live.info.workflow, ask.name, ask.label, number, ask.spec.retry.max_attempts,
            when(started_at),
            lambda details: performer.beat(self, number, details),
            lambda hint: performer.details(self, hint), performer.provided,
            lambda use: performer.note_use(self, number, use),
            lambda name, value, reader: performer.note_premise(self, number, name, value, reader),
        )  # fmt: skip

    def operation_id(self) -> str | None:
        """What a request carries as its idempotency key: nothing, in a plain step."""
        return None

    def start_entry(self, number: int = 0) -> Entry:
        """The event that says that this step is under way, or about to be with its attempt `number`."""
        ask = self.ask
        started = e.StepStarted(
            *ask.key,
            ask.name,
            ask.use,
            ask.packed.digest if ask.packed else None,
            ask.view,
            ask.spec.record_input,
            number or self.number or 1,
        )
        return Entry(started, ask.packed if ask.spec.record_input else None)


class Performer:
    """Runs the bodies of steps on the loop that entered the Runtime, in a copy of that context."""

    def __init__(
        self,
        clock: Clock,
        report: Callable[..., None],
        block: Callable[[LiveRun, str, str, Flight], None],
        *,
        steps_max: int,
        threads_max: int,
        provided: Mapping[type, Any],
    ) -> None:
        self._clock = clock
        self._report = report
        self._block = block
        self._steps_max = steps_max
        self.provided = provided
        self.vault: Vault | None = None
        self.policies: Callable[[LiveRun], tuple[Policy, ...]] = _no_policies
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._threads = DaemonThreads(threads_max, "perdure-step")
        self._lock = threading.Lock()
        self._bodies: dict[tuple[int, tuple[str, int]], int] = {}
        self._running: dict[Flight, None] = {}  # no set: what times out in the same moment is in the order of its start
        self._queue: deque[Flight] = deque()
        self._alarm: Alarm | None = None
        self._alarm_at = 0
        self.on_launch: Callable[[Flight], None] | None = None
        self.on_escape: Callable[[LiveRun, Exception], None] = _raise
        self.may_begin: Callable[[], bool] = _always
        self.gate: Callable[[Flight], bool] = _passes
        self.around: Callable[[Flight, Function], Function] = _as_declared
        self.is_reserved: Callable[[Flight, Callable[[Flight], None]], bool] = _is_free
        self.on_use: Callable[[Flight, Use], None] = _unheard
        self.settle: Callable[[Flight, BaseException | None], None] = _owes_nothing
        self.read_first: Callable[[Flight], Awaitable[None]] = _reads_nothing
        self.rest: Callable[[Flight, bytes], None] = _rests_on_nothing

    # ── flights ──────────────────────────────────────────────────────────────────────────────
    def start(self, live: LiveRun, ask: StepAsk) -> None:
        """Perform a step, going on with the attempt after the last recorded one."""
        now = self._clock.now()
        before = live.execution.attempts_at(ask.key)
        flight = live.flights[ask.key] = Flight(self, live, ask, before, now)
        if live.is_gated or ask.grant is not None:
            if self.gate(flight):
                self.begin(flight)
        elif before.retry_at > now:
            self._wait(flight, before.retry_at)
        else:
            self._take_up(flight, now)

    def begin(self, flight: Flight) -> None:
        """Nothing stands in the way of a step any more."""
        if flight.is_over:
            return
        now, retry_at = self._clock.now(), flight.live.execution.attempts_at(flight.ask.key).retry_at
        if retry_at > now:
            self._wait(flight, retry_at)
        else:
            self._take_up(flight, now)

    def deny(self, flight: Flight, raw: bytes, denied: e.Denied | None) -> None:
        """The step does not pass its gate: a policy's, or that of the approval that it is made under."""
        if flight.live.account is not None:
            self.settle(flight, None)
        self.end(flight)
        self._record(flight, partial(e.StepFailed, denied=denied), raw, delivers=True)

    def cancel(self, live: LiveRun, key: tuple[str, int]) -> None:
        """Stop a step that nobody waits for any more; what it still produces is ignored."""
        flight = live.flights.pop(key, None)
        if flight is not None:
            if live.account is not None:
                self.settle(flight, None)
            self._finish(flight)
            if flight.task is not None:
                flight.task.cancel()
                flight.task = None

    def drop(self, live: LiveRun) -> None:
        """Stop all steps of a run that leaves this worker."""
        for key in list(live.flights):
            self.cancel(live, key)

    def _wait(self, flight: Flight, at: int) -> None:
        """Let the next attempt begin then; unless the step was given up while the failure of the last one was
        written."""
        if not flight.is_over:
            self.wait_until(flight, at, partial(self.enqueue, flight))

    def wait_until(self, flight: Flight, at: int, then: Callable[[], None]) -> None:
        """Do the next thing about a flight then; a later call replaces an earlier one."""
        if flight.alarm is not None:
            flight.alarm.cancel()
        flight.alarm, flight.wakes_at = self._clock.wake_at(at, then), at

    async def call(self, function: Any, argument: Any) -> Any:
        """Call what an author gave us beside the body of a step: awaited here, or in one of the threads for steps."""
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        inside = partial(contextvars.copy_context().run, function, argument)
        answer = await self._loop.run_in_executor(self._threads, inside)
        return await answer if inspect.isawaitable(answer) else answer

    def fresh_context(self) -> contextvars.Context:
        """The context in which the body of a step begins."""
        return self._context.copy()

    def enqueue(self, flight: Flight) -> None:
        """Begin the next attempt as soon as there is room; in a run that is leaving whoever has it next does."""
        flight.alarm = None
        if not (flight.is_over or flight.live.is_leaving):
            self._take_up(flight, self._clock.now())

    def _take_up(self, flight: Flight, now: int) -> None:
        if flight.live.account is not None and flight.handler is None and not self.is_reserved(flight, self.enqueue):
            return
        if len(self._running) >= self._steps_max:
            self._queue.append(flight)
            return
        self._launch(flight, now)

    def _launch(self, flight: Flight, now: int) -> None:
        if flight.handler is not None and not flight.handler.may_launch(flight):
            return
        number = flight.number = flight.airborne = flight.number + 1
        flight.started_at = flight.beat_at = now
        deadline = flight.deadline = self._deadline(flight)
        self._running[flight] = None
        if self.on_launch is not None:
            self.on_launch(flight)
        if not self._alarm_at or deadline < self._alarm_at:
            self._set_alarm(deadline)
        flight.task = self._loop.create_task(self._run(flight, number), context=self._context.copy())

    async def in_thread(self, inside: Callable[[], Any]) -> Any:
        """Call this in one of the threads for steps."""
        return await self._loop.run_in_executor(self._threads, inside)

    def enter(self, flight: Flight, number: int) -> None:
        """Say in the body's context whose body it is."""
        spec, began, until = flight.ask.spec, flight.started_at, flight.deadline
        if spec.heartbeat_timeout_seconds is not None:
            until = began + round(spec.timeout_seconds * MICROSECONDS)
        ATTEMPT.set(flight)
        SENDER.set(Outgoing(flight, number, began, until, self._clock.now))

    async def unlock(self, flight: Flight, number: int) -> None:
        """Fetch the secrets that are declared for a body, into the context in which it begins."""
        from perdure.runtime.vault import unlock

        await unlock(self.vault, flight, number, self._clock.now(), self.policies(flight.live))

    def failure_of(self, flight: Flight, error: BaseException, now: int) -> Failure:
        """What the failure of a body means. One that was refused with a secret that is not good any more is worth
        another attempt, with a new one."""
        cause = error.__cause__ if isinstance(error, PremiseUnreadableError) else error
        failure = classify(cause or error, now=now)
        if flight.ask.spec.secrets and self.vault is not None and self.vault.has_newer(error):
            return msgspec.structs.replace(failure, kind=Kind.RETRYABLE)
        return failure

    async def _run(self, flight: Flight, number: int) -> None:
        ask = flight.ask
        try:
            args, kwargs = ask.spec.arguments.loads(ask.input)
            if ask.spec.secrets:
                await self.unlock(flight, number)
            self.enter(flight, number)
            if ask.spec.rests is not None:
                await self.read_first(flight)
            if not ask.spec.is_async:
                value = await self._call_in_thread(flight, number, args, kwargs)
            elif self.may_begin():
                value = await self.around(flight, ask.spec.function)(*args, **kwargs)
            else:
                raise _NotNow
        except _NotNow:
            self._put_off(flight, number)
        except asyncio.CancelledError:
            self._was_cancelled(flight, number)
        except KeyboardInterrupt:
            self._finish(flight)
            raise
        except GeneratorExit as error:
            if not self._is_running(flight):
                raise  # the loop went away under it
            self._failed(flight, number, error)
        except BaseException as error:
            self._failed(flight, number, error)
        else:
            self._returned(flight, number, value)

    async def _call_in_thread(self, flight: Flight, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inside, function = contextvars.copy_context(), self.around(flight, flight.ask.spec.function)

        def body() -> Any:
            return inside.run(_called, self.may_begin, function, args, kwargs)

        watched = body if flight.handler is None else partial(self._watched, flight, number, body)
        try:
            called = self._loop.run_in_executor(self._threads, watched)
        except RuntimeError:  # no thread can be had: nothing was called, and nothing is in doubt
            raise _NotNow from None
        return await called

    def _watched(self, flight: Flight, number: int, body: Callable[[], Any]) -> Any:
        """The body of an effect, in its thread. It cannot be stopped, and so it is known as long as it runs; one that
        has timed out before there was a thread for it does not begin."""
        call = (flight.live.rid, flight.ask.key)
        with self._lock:
            self._bodies[call] = self._bodies.get(call, 0) + 1
        try:
            if number != flight.airborne:
                raise _NotNow
            return body()
        finally:
            with self._lock:
                self._bodies[call] -= 1
                if not self._bodies[call]:
                    del self._bodies[call]
            flight.ended_at = self._clock.now()

    def is_in_thread(self, live: LiveRun, key: tuple[str, int]) -> bool:
        """Whether some attempt at an effect is running in a thread of this process, given up for lost or not."""
        return (live.rid, key) in self._bodies

    def _put_off(self, flight: Flight, number: int) -> None:
        """The body was not called: this worker may be taken for dead, and its runs be another's. Look again a little
        later; by then the lease is renewed, or what it held is dropped."""
        if number == flight.airborne:
            flight.number -= 1
            self.land(flight)
            self._wait(flight, self._clock.now() + PUT_OFF_MICROSECONDS)

    def _is_running(self, flight: Flight) -> bool:
        """Whether this is the step's task, running: its coroutine may also be closed from outside, by whoever."""
        return asyncio._get_running_loop() is self._loop and asyncio.current_task() is flight.task

    # ── what comes of an attempt ─────────────────────────────────────────────────────────────
    def _returned(self, flight: Flight, number: int, value: Any) -> None:
        handler = flight.handler
        if number != flight.airborne:
            if handler is not None:
                handler.came_late(flight, number, value)
            return
        if flight.live.account is not None:
            self.settle(flight, None)
        if handler is not None:
            handler.returned(flight, value)
            return
        ask = flight.ask
        try:
            raw = ask.spec.result.dumps(value)
        except EncodeError as error:
            self.give_up(flight, about_result(error, ask.spec.name))
            return
        except Exception as error:  # what the value's own methods raise
            error.add_note(f"raised while what {ask.spec.name}() returned was recorded")
            self.give_up(flight, error)
            return
        self.end(flight)
        try:
            if ask.spec.rests is not None:
                self.rest(flight, raw)
            self._record(flight, e.StepCompleted, raw, delivers=True, is_lazy=ask.spec.lazy)
        except Exception as error:
            self.on_escape(flight.live, error)

    def _record(
        self, flight: Flight, kind: Callable[..., e.Event], raw: bytes, *, delivers: bool = False, is_lazy: bool = False
    ) -> None:
        """Report what came of an attempt; the first event about a step carries its arguments."""
        live, ask = flight.live, flight.ask
        if live.is_in_turn:
            live.deferred += (partial(self._record, flight, kind, raw, delivers=delivers, is_lazy=is_lazy),)
            return
        output = pack(raw, live.execution.memo)
        packed = digest = view = None
        kept = True
        if not flight.is_start_recorded and ask.packed is not None:
            flight.is_start_recorded = True
            digest, view, kept = ask.packed.digest, ask.view, ask.spec.record_input
            packed = ask.packed if kept else None
        task, n = ask.key
        event = kind(task, n, ask.name, ask.use, output.digest, digest, view, kept, flight.number, flight.started_at)
        self._report(live, event, raw=raw, output=output, input=packed, delivers=delivers, is_lazy=is_lazy)

    def _failed(self, flight: Flight, number: int, error: BaseException) -> None:
        if number != flight.airborne:
            return
        if flight.live.account is not None:
            self.settle(flight, error)
        if flight.handler is not None:
            flight.handler.failed(flight, number, error)
            return
        try:
            self._judge(flight, number, error)
        except Exception as escaped:
            self.on_escape(flight.live, escaped)

    def _judge(self, flight: Flight, number: int, error: BaseException) -> None:
        now = self._clock.now()
        retry = flight.ask.spec.retry
        try:
            failure = self.failure_of(flight, error, now)
            decision = next_attempt(
                retry, attempt=number, first_at=flight.first_at, now=now, failure=failure, random=random.random()
            )
        except Exception as problem:
            problem.add_note(f"raised by Retry(on=) of {flight.ask.spec.name}")
            self.give_up(flight, problem)
            return
        if isinstance(decision, Again):
            self._try_again(flight, error, decision.at, now)
        elif isinstance(error, PremiseUnreadableError):
            self.land(flight)
            self._block(flight.live, "premise_unreadable", f"{flight.ask.label}: {message_of(error)}", flight)
        elif decision.needs_person:
            self.land(flight)
            self._block(flight.live, "needs_person", f"{flight.ask.label}: {message_of(error)}", flight)
        else:
            self.give_up(flight, error)

    def _try_again(self, flight: Flight, error: BaseException, at: int, now: int) -> None:
        self.land(flight)
        raw = dump_exception(error, flight.ask.spec.raises)
        self._record(flight, partial(e.AttemptFailed, retry_at=at, first_at=flight.first_at), raw)
        flight.live.then += (lambda: self._wait(flight, at),)  # that it failed is durable before the next one begins

    def give_up(self, flight: Flight, error: BaseException) -> None:
        """The step fails, and is not tried again."""
        self.end(flight)
        self._record(flight, e.StepFailed, dump_exception(error, flight.ask.spec.raises), delivers=True)

    def _was_cancelled(self, flight: Flight, number: int) -> None:
        """The body was cancelled, and not by us: for the step that is a failure like another.

        Unless the program is about to end: `asyncio.run` cancels all tasks in no order, the steps' before the Runtime's
        perhaps, and that is nothing that a step did. So it counts only if we are still here a little later."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            self._loop.call_later(STILL_HERE_SECONDS, self._is_cancelled_for_good, flight, number)
        else:
            self._is_cancelled_for_good(flight, number)

    def _is_cancelled_for_good(self, flight: Flight, number: int) -> None:
        if number == flight.airborne and not self._loop.is_closed():
            self._failed(flight, number, StepTimeoutError("the body was cancelled from outside", "CancelledError"))

    def end(self, flight: Flight) -> None:
        flight.live.flights.pop(flight.ask.key, None)
        self._finish(flight)
        flight.task = None  # which holds its context, which holds the flight: a circle a step, were it left

    def _finish(self, flight: Flight) -> None:
        flight.is_over = True
        if flight.alarm is not None:  # it would keep the run in memory until then
            flight.alarm.cancel()
            flight.alarm = None
        self.land(flight)

    def land(self, flight: Flight) -> None:
        """The attempt is over: its place is free, and what its body still produces is fenced off."""
        flight.airborne = 0
        if flight in self._running:
            del self._running[flight]
            while self._queue and len(self._running) < self._steps_max:
                waiting = self._queue.popleft()
                if not waiting.is_over:
                    self._launch(waiting, self._clock.now())

    # ── timeouts and heartbeats ──────────────────────────────────────────────────────────────
    def _deadline(self, flight: Flight) -> int:
        spec = flight.ask.spec
        deadline = flight.started_at + round(spec.timeout_seconds * MICROSECONDS)
        if spec.heartbeat_timeout_seconds is not None:
            deadline = min(deadline, flight.beat_at + round(spec.heartbeat_timeout_seconds * MICROSECONDS))
        return deadline

    def _set_alarm(self, at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._clock.wake_at(at, self._stop_overdue)

    def _stop_overdue(self) -> None:
        self._alarm, self._alarm_at = None, 0
        now = self._clock.now()
        for flight in [f for f in self._running if f.deadline <= now]:
            self._time_out(flight)
        if self._running:
            self._set_alarm(min(f.deadline for f in self._running))

    def _time_out(self, flight: Flight) -> None:
        spec, number = flight.ask.spec, flight.number
        silent = flight.deadline < flight.started_at + round(spec.timeout_seconds * MICROSECONDS)
        what = (
            f"was silent for longer than heartbeat_timeout={spec.heartbeat_timeout_seconds:g} s"
            if silent
            else f"took longer than timeout={spec.timeout_seconds:g} s"
        )
        task = flight.task
        self._failed(flight, number, StepTimeoutError(f"attempt {number} of {flight.ask.label} {what}"))
        is_heard = flight.handler is not None and not spec.is_async  # a thread cannot be stopped; its answer may count
        if task is not None and not is_heard:
            task.cancel()

    def beat(self, flight: Flight, number: int, details: Any) -> None:
        raw = _PLAIN.dumps(details)
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._beat(flight, number, raw)
        else:
            self._loop.call_soon_threadsafe(self._beat, flight, number, raw)

    def _beat(self, flight: Flight, number: int, raw: bytes) -> None:
        if number != flight.airborne:
            return
        if flight.live.is_in_turn:
            flight.live.deferred += (partial(self._beat, flight, number, raw),)
            return
        flight.beat_at = self._clock.now()
        flight.deadline = self._deadline(flight)
        packed = pack(raw, flight.live.execution.memo)
        if raw == b"null" or packed.digest == flight.details:
            return
        flight.details = packed.digest
        attempts = flight.live.execution.known.attempts
        attempts[flight.ask.key] = attempts.get(flight.ask.key, NO_ATTEMPTS)._replace(details=raw)
        ask = flight.ask
        self._report(flight.live, e.Heartbeat(*ask.key, ask.name, ask.use, packed.digest, number), output=packed)

    def note_use(self, flight: Flight, number: int, use: Use) -> None:
        """The body says what it has used."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._note_use(flight, number, use)
        else:  # before what it returns, which comes by the same way
            self._loop.call_soon_threadsafe(self._note_use, flight, number, use)

    def _note_use(self, flight: Flight, number: int, use: Use) -> None:
        if number == flight.airborne:
            self.on_use(flight, use)

    def note_premise(self, flight: Flight, number: int, name: str, value: bytes, reader: Any) -> None:
        """The body names a fact that its result rests on."""
        if flight.ask.spec.rests is None:
            raise UsageError(
                f"perdure.premise({name!r}) in {flight.ask.name}, which does not declare that its result rests on "
                'something: @step(recovery="verify")'
            )
        if number == flight.airborne:
            _, values, readers = flight.facts
            values[name], readers[name] = value, reader

    def details(self, flight: Flight, hint: Any) -> Any:
        known = flight.live.execution.attempts_at(flight.ask.key)
        return None if known.details is None else codec_for(hint).loads(known.details)

    # ── the end ──────────────────────────────────────────────────────────────────────────────
    @property
    def running(self) -> list[Flight]:
        return list(self._running)

    def close(self) -> None:
        """No further attempt begins. Threads that cannot be stopped are left alone."""
        for flight in list(self._running) + list(self._queue):
            flight.is_over = True
            if flight.task is not None:
                flight.task.cancel()
        self._running.clear()
        self._queue.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_ours(error: BaseException) -> bool:
    """Whether what an author's function ended with was meant for the task in which it was called: that is cancelled,
    the program interrupted, or the loop gone. Whatever else it ends with (SystemExit, the cancellation of something
    that it waited for) it came to by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return task is None or isinstance(error, KeyboardInterrupt)


def _is_free(flight: Flight, then: Callable[[Flight], None]) -> bool:
    """Nobody limits what is spent."""
    return True


def _unheard(flight: Flight, use: Use) -> None:
    """Nobody counts what is used."""


def _owes_nothing(flight: Flight, error: BaseException | None) -> None:
    """Nobody counts what is spent."""


async def _reads_nothing(flight: Flight) -> None:
    """Nobody reads what a result rests on."""


def _rests_on_nothing(flight: Flight, raw: bytes) -> None:
    """Nobody records it."""


def _as_declared(flight: Flight, function: Function) -> Function:
    """Nothing stands around what is called."""
    return function


def _raise(live: LiveRun, error: Exception) -> None:
    """Nobody contains what escapes."""
    raise error


def _passes(flight: Flight) -> bool:
    """There are no policies."""
    return True


def _no_policies(live: LiveRun) -> tuple[Policy, ...]:
    """None applies."""
    return ()


def _always() -> bool:
    """Nobody says that it may not."""
    return True


class _NotNow(BaseException):
    """The body of a step is not to begin yet."""


def _called(
    may_begin: Callable[[], bool], function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A future takes no StopIteration, and whoever waits for it would never hear of it: as in a coroutine."""
    if not may_begin():
        raise _NotNow
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error

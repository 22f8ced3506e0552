"""Answers what hosted code asks for, from the record or by performing it.

A request is known by its lane, its name and the digest of its arguments, the n-th of that kind; lanes are names that an
adapter gives, and a record of another lane serves where a lane has none of its own (thread pools hand out work as they
like). A request that is new while recorded ones are unused is held as long as some participant (a thread or task that
uses the journal) is not itself waiting; the record it lacks may still be asked for by that one. Only when all wait and
something is unused have code and history parted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from perdure import decisions
from perdure.clock import MICROSECONDS, when
from perdure.codec import ValueCodec, arguments_codec_for, codec_for, dump_exception, load_exception, pack
from perdure.codec.exceptions import message_of
from perdure.engine.calls import CallFuture, ChildAsk, EffectAsk, Grant, Key, SectionAsk, StepAsk
from perdure.engine.chapters import ContinueAsNew, next_chapter
from perdure.engine.execution import REFUSALS_MAX
from perdure.engine.known import section_of
from perdure.engine.mailbox import unread
from perdure.engine.randomness import drawn
from perdure.engine.sagas import Answer, Undoing, open_here, refuse_next_chapter
from perdure.errors import DecodeError, EncodeError, RunCancelledError, UsageError
from perdure.history import events as e
from perdure.http.classify import classify
from perdure.http.sender import SENDER
from perdure.ledger.operations import business_key_of
from perdure.runtime.attempt import ATTEMPT, LANE, Attempt, Outgoing
from perdure.runtime.live import LiveRun
from perdure.runtime.records import (
    OUTCOMES,
    Happened,
    Record,
    Unclaimed,
    records_of,
    running_children,
    told_children,
)
from perdure.runtime.retrying import Again, next_attempt
from perdure.runtime.undoing import Hears, HostedSaga
from perdure.runtime.unwound import Unwound
from perdure.specs import EffectSpec, Retry, StepSpec, WorkflowSpec

if TYPE_CHECKING:
    from perdure.runtime.sections import Sections

log = logging.getLogger("perdure")

T = TypeVar("T")

HELD_LOOK_SECONDS = 0.25
HELD_TASKS_SECONDS = 5.0
_WAITING_MODULES = (
    "/threading.py",
    "/queue.py",
    "/concurrent/futures/_base.py",
    "/concurrent/futures/thread.py",
    "/selectors.py",
)


NO_CALL = "this section is over, or waits: no call is made any more"
_running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]

_ANSWERED = -1
"""The record has the answer: nothing is to be performed."""


class ChildCall(msgspec.Struct, frozen=True):
    """A child run to be started."""

    spec: WorkflowSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run_id: str | None
    on_cancel: str


class Outcome(NamedTuple):
    """What hosted code has come to: its result, what it raised, or the arguments of the next chapter."""

    raw: bytes
    failed: bool = False
    continues: bool = False


class Request:
    """What foreign code asks for. `future` is answered on the host loop and waited for wherever the code runs.

    `waiting`: the threads or tasks that wait for the answer. `started`: of a child run that is not waited for at once.
    `is_reported`: an outcome is on its way into the history, so no other may follow. `is_held_back`: the run is paused
    or blocked; it is performed when that is over. Of effects: `as_ask` makes what is sent, `hears` is told what came of
    it. `is_undoing`: a saga asks for it, which goes on when the section is cancelled. `kind`: of what people are asked,
    approval or question."""

    def __init__(self, lane: str, name: str, arguments: bytes | None, perform: Callable[[Request], None]) -> None:
        self.lane, self.name, self.arguments, self.perform = lane, name, arguments, perform
        self.digest: bytes | None = None
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.key: Key = ("", 0)
        self.record: Record | None = None
        self.load: Callable[[e.Keyed, bytes | None], Any] = lambda event, raw: None
        self.waiting: list[object] = []
        self.is_wait = False
        self.is_reported = False
        self.is_held_back = False
        self.deadline: int | None = None
        self.asked_at = 0.0
        self.packed: Any = None
        self.started: concurrent.futures.Future[None] | None = None
        self.child_id: str | None = None
        self.is_abandoned = False
        self.ended_at = 0
        self.unread: bytes | None = None
        self.as_ask: Callable[[], StepAsk] | None = None
        self.hears: Hears = _nobody_hears
        self.is_undoing = False
        self.kind = ""
        self.received: Happened | None = None

    @property
    def is_receive(self) -> bool:
        return self.name.startswith("receive:")


class Journal:
    """Answers one section's calls, from the record or by performing them."""

    def __init__(
        self,
        sections: Sections,
        live: LiveRun,
        ask: SectionAsk,
        history: Iterable[Happened] | None = None,
    ) -> None:
        self._sections = sections
        self._turns = sections.turns
        self.live = live
        self.ask = ask
        self.section = section_of(ask.key)
        self._loop = asyncio.get_running_loop()
        self.is_closed = False
        self.is_suspended = False
        self.outcome: Outcome | None = None
        self.thread = 0
        self._refusals = 0
        self._expected: set[concurrent.futures.Future[None]] = set()
        self.is_cancelling = self.cancelled is not None
        self.is_past_cancellation = False
        self.next_look: asyncio.TimerHandle | None = None
        self.history: list[Happened] = list(history or ())
        if history is None:
            for event, at, raw in live.execution.known.journals.get(self.section, ()):
                self._remember(event, at, raw)
        self._begin()

    # ── the record ───────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """Nothing is asked for yet, everything recorded is unused."""
        self.unused = Unclaimed(records_of(self.history))
        self.by_key: dict[Key, Record] = {}
        self.counters: dict[str, int] = {}
        for event, _, _ in self.history:
            self.counters[event.task] = max(self.counters.get(event.task, 0), event.n + 1)
        self.requests: dict[Key, Request] = {}
        self.held: list[Request] = []
        self._put_aside: list[Request] = []
        self._left: dict[str, deque[tuple[Key, e.Keyed, int, bytes | None]]] = {}
        self.participants: dict[object, int] = {}
        self.lane_now: dict[str, int] = {}
        self.lane_randoms: dict[str, int] = {}
        self.began_at = self.live.execution.now_us
        self.told = told_children(self.history)
        self._starting: set[Key] = set()
        self._state: bytes | None = None
        self.last_activity = self._loop.time()

    def _remember(self, event: e.Keyed, at: int, raw: bytes | None) -> None:
        message = self.live.execution.mailbox.handed.get(event.key) if isinstance(event, e.SectionReceived) else None
        self.history.append((event, at, raw if message is None else message))

    # ── requests, on the host loop ───────────────────────────────────────────────────────────
    def arrive(self, request: Request) -> None:
        """Take a request in: answer it from the record, hold it, or perform it."""
        if self.is_over:
            self._refuse(request.future)
            return
        if request.future.cancelled() and (request.is_receive or request.name == "sleep"):
            return
        if self.is_cancelling and self.cancelled is None:
            self._put_aside.append(request)
            return
        if request.is_receive and (left := self._left.pop(request.name, None)):
            key, event, at, raw = left.popleft()
            if left:
                self._left[request.name] = left
            request.key = key
            self._answer(request, event, at, raw)
            return
        self.last_activity = request.asked_at = self._loop.time()
        if request.arguments is not None:  # here and not where it was asked: the memo belongs to this thread
            request.packed = pack(request.arguments, self.live.execution.memo)
            request.digest = request.packed.digest
        for who in request.waiting:
            self.participants[who] = self.participants.get(who, 0) + 1
        record = self.unused.claim(request.lane, request.name, request.digest)
        if record is None and self.unused and self.cancelled is None:
            self.held.append(request)
            self._loop.call_later(HELD_LOOK_SECONDS, self._look_at_held)
        else:
            if record is None:
                self.show_state()
            self._serve(request, record)
        if not self.unused:
            self._release_held()

    def _refuse(self, answer: concurrent.futures.Future[Any]) -> None:
        """Code that swallows being unwound and asks again would spin: after so many times it is left without an
        answer."""
        self._refusals += 1
        if self._refusals <= REFUSALS_MAX:
            answer.set_exception(Unwound(NO_CALL))

    def _release_held(self) -> None:
        held, self.held = self.held, []
        for request in held:
            self._serve(request, None)

    def _serve(self, request: Request, record: Record | None) -> None:
        if record is not None:
            request.key, request.record, request.deadline = record.key, record, record.deadline or None
        if self.cancelled is not None and not self._is_answered_in_spite(request, record, *self.cancelled):
            self._call_off(request, record)
            return
        if self.cancelled is not None and request.name == "sleep":  # it was over by then
            self.requests[request.key] = request
            self._wake(request)
            return
        if record is not None:
            if record.outcome is not None and record.key not in self.told:
                self._answer(request, record.outcome, record.at, record.raw)
                return
        else:
            task = f"{self.section}/{request.lane}"
            n = self.counters.get(task, 0)
            self.counters[task] = n + 1
            request.key = (task, n)
        self.requests[request.key] = request
        self.perform(request)
        if record is not None:
            self._has_started(request)
        if request.key in self.live.blocked_calls or request.kind:
            # a decision about it may have come before it was asked for again
            self._turns.on_letters()

    # ── cancelled, with sagas to undo ────────────────────────────────────────────────────────
    @property
    def cancelled(self) -> tuple[int, int] | None:
        """Where in the record and when the section was cancelled, if its code has sagas: they are left, and undo."""
        return self.live.execution.known.cancelled_sections.get(self.section)

    def cancel(self) -> None:
        """That the section is cancelled is durable: unwind its code. What its sagas ask for goes on."""
        asked, self.held = [*self.requests.values(), *self.held], []
        _, at = self.cancelled or (0, 0)
        for request in asked:
            if request.is_undoing:
                if request.key not in self.requests:
                    self._serve(request, None)
            elif request.name == "sleep" and (request.deadline or at + 1) <= at:
                self._wake(request)
            else:
                self._call_off(request, None)
        put_aside, self._put_aside = self._put_aside, []
        for request in put_aside:
            self.arrive(request)
        self.look_at_tasks()

    def look_at_tasks(self) -> None:
        """A coroutine that waits for something else than a durable call is cancelled as any task is; once it has come
        as far as it had when the section was cancelled."""
        if self.is_over or self.cancelled is None:
            return
        place, _ = self.cancelled
        has_come = not any(record.outcome is not None and record.place < place for record in self.unused.left())
        if has_come and self._loop.time() - self.last_activity > HELD_LOOK_SECONDS:
            for who, calls in self.participants.items():
                if isinstance(who, asyncio.Task) and not calls:
                    who.cancel()
        else:
            self._loop.call_later(HELD_LOOK_SECONDS, self.look_at_tasks)

    def _is_answered_in_spite(self, request: Request, record: Record | None, place: int, at: int) -> bool:
        """Whether code that is run again after it was cancelled gets an answer: as it did then, or to undo."""
        if request.is_undoing:
            self.is_past_cancellation |= record is None or record.outcome is None or record.place > place
            return True
        if record is None:
            return False
        if request.name == "sleep":
            return 0 < record.deadline <= at
        return record.outcome is not None and record.place < place

    def _call_off(self, request: Request, record: Record | None) -> None:
        """The section was cancelled before this had an answer. An effect that may have left is seen through, and told
        to the saga that it belongs to."""
        self.is_past_cancellation = True
        live, key = self.live, request.key
        known, outcome = live.execution.known, None if record is None else record.outcome
        is_on_its_way = outcome is None and (key in known.effects or key in known.ended_effects)
        if request.as_ask is not None and is_on_its_way:
            self.requests[key] = request
            self._turns.effects.cancel(live, cast("EffectAsk", request.as_ask()))
            if key in live.blocked_calls:  # a decision about it may have come before it was asked for again
                self._turns.on_letters()
        else:
            self._turns.performer.cancel(live, key)
            self.requests.pop(key, None)
            request.hears(outcome, (None if record is None else record.raw) or b"null")
        if record is not None:  # a child was started, and that was the answer
            self._has_started(request)
        self._no_longer_waits(request)
        if not request.future.done():
            request.future.set_exception(Unwound(NO_CALL))

    def enter_saga(self) -> None:
        """The code enters a saga: recorded once, so that code that is cancelled after a restart is run again, to undo.
        """
        self._at_once(self._enter_saga)

    def _enter_saga(self) -> None:
        live, ask = self.live, self.ask
        if ask.key in live.execution.known.undoing:
            return
        if live.execution.open.get(ask.key) is not ask:  # it was cancelled just now
            raise Unwound(NO_CALL)
        live.execution.known.undoing.add(ask.key)
        self._turns.report(live, e.SectionUndoes(*ask.key, ask.name, ask.use))

    def expect(self, known: concurrent.futures.Future[None]) -> None:
        """Somebody waits for this, until the section is over."""
        self._expected.add(known)
        if self.is_over and not known.done():
            known.set_exception(Unwound(NO_CALL))

    def no_longer_expects(self, known: concurrent.futures.Future[None]) -> None:
        """It has come."""
        self._expected.discard(known)
        if not known.done():
            known.set_result(None)

    def places_of_outcomes(self) -> dict[str, int]:
        """Where in the record it stands that an operation was done."""
        happened = enumerate(self.history)
        return {event.operation: place for place, (event, _, _) in happened if isinstance(event, e.EffectSucceeded)}

    def undo(
        self, spec: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str, undoing: Undoing
    ) -> Request:
        """An effect that takes another one back."""
        request = self._step(spec, args, kwargs, business_key, undoing)
        request.is_undoing = True
        return request

    def question(self, question: str, reason: str, hint: str, about: list[str]) -> Request:
        """A person is to decide about these operations; what is given is their `Answer`."""

        def perform(request: Request) -> None:
            request.is_wait = True
            if request.key not in self.live.blocked_calls:
                self._ask_person(request, reason, hint)

        def load(event: e.Keyed, raw: bytes | None) -> Answer:
            return Answer.of(cast("e.PersonAnswered", event), raw or b"null")

        request = Request(LANE.get(), question, codec_for(list[str]).dumps(about), perform)
        request.load, request.is_undoing = load, True
        return request

    # ── performing, and answering ────────────────────────────────────────────────────────────
    def perform(self, request: Request) -> None:
        """Do what is asked for; in a run that is paused or blocked nothing new begins, and in a section that was
        cancelled nothing but what undoes."""
        if self.cancelled is not None and not request.is_undoing:
            self._call_off(request, None)
            return
        request.is_held_back = request.is_wait = self.live.is_parked
        if not request.is_held_back and request.unread is None:
            request.perform(request)

    def go_on(self) -> None:
        """The run is not paused any more."""
        for request in list(self.requests.values()):
            if request.is_held_back:
                self.perform(request)
            elif request.kind:
                self._wait_for_people(request)

    def misfit(self, request: Request, value: bytes) -> str | None:
        """Why a value cannot be what is asked for; None if it can."""
        try:
            request.load(e.StepCompleted(*request.key, request.name), value)
        except Exception as error:  # a DecodeError, or what a class makes of its fields
            return str(error)
        return None

    def _cannot_read(self, request: Request, message: bytes, problem: str) -> None:
        """A message that does not fit what is received there: a person decides, as in a workflow."""
        self.requests[request.key] = request
        request.unread, request.is_wait = message, True
        if request.key in self.live.blocked_calls:  # a decision about it may have come already
            self._turns.on_letters()
        else:
            hint = f"{unread(request.name.partition(':')[2], message)} does not fit what is received there: {problem}"
            blocked = e.RunBlocked("undecodable", hint, *request.key, request.name, request.key[1] + 1)
            self._turns.parking.block_asked(self.live, blocked)

    def _answer(self, request: Request, event: e.Keyed, at: int, raw: bytes | None) -> None:
        if isinstance(event, e.SectionReceived):
            problem = self.misfit(request, raw or b"null")
            if problem is not None or request.key in self.live.blocked_calls:
                self._cannot_read(request, raw or b"null", problem or "")
                return
        self.requests.pop(request.key, None)
        self._no_longer_waits(request)
        request.hears(event, raw or b"null")
        if isinstance(event, e.SectionReceived):
            if request.future.cancelled():
                self._pass_on(request, event, at, raw)
                return
            request.received = (event, at, raw)
        if request.started is None:
            self.lane_now[request.lane] = at
        request.ended_at = at
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # whoever asked has given up waiting
            try:
                value = request.load(event, raw)
            except BaseException as error:
                request.future.set_exception(error)
            else:
                request.future.set_result(value)

    def _pass_on(self, request: Request, event: e.Keyed, at: int, raw: bytes | None) -> None:
        """Whoever was to have this message has given up meanwhile: the next one who waits for such a message has it."""
        waiting = [other for other in self.requests.values() if other.name == request.name and not other.is_reported]
        if waiting:
            del self.requests[waiting[0].key]
            waiting[0].key = request.key
            self._answer(waiting[0], event, at, raw)
        else:
            self._left.setdefault(request.name, deque()).append((request.key, event, at, raw))

    def _no_longer_waits(self, request: Request) -> None:
        self.last_activity = self._loop.time()
        waiting, request.waiting = request.waiting, []
        for who in waiting:
            self.participants[who] = self.participants.get(who, 1) - 1

    def _look_at_held(self) -> None:
        """Divergence is only certain when everybody waits and something recorded is unused."""
        if not self.held or self.is_closed:
            return
        if all(self._is_waiting(who) for who in self.participants):
            wanted, nearest = self.held[0], self.unused.left()[0]
            self.live.execution.diverge(
                f"section {self.ask.label}: the history has {nearest.name!r} (lane {nearest.lane}), unused so far",
                f"the code asks for {wanted.name!r} (lane {wanted.lane}) with other arguments or in another place",
            )
            self.close()
            self._turns.advance(self.live)
        else:
            self._loop.call_later(HELD_LOOK_SECONDS, self._look_at_held)

    def _is_waiting(self, who: object) -> bool:
        if self.participants.get(who, 0) > 0:
            return True
        if isinstance(who, int):
            frame = sys._current_frames().get(who)  # pyright: ignore[reportPrivateUsage]
            return frame is None or frame.f_code.co_filename.endswith(_WAITING_MODULES)
        return self._loop.time() - self.last_activity > HELD_TASKS_SECONDS

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in here: the thread was given back, or the code has ended and its children have not."""
        return self.is_suspended or self.outcome is not None

    @property
    def is_still(self) -> bool:
        """Whether nothing happens in here until time passes or news comes: what it asked for waits, or its next attempt
        does."""
        asked = [r for r in self.requests.values() if r.waiting or (self.cancelled is not None and not r.is_undoing)]
        still = bool(asked) and not self.held and all(r.is_wait or self._waits_for_attempt(r) for r in asked)
        return still and all(map(self._is_waiting, self.participants))

    def _waits_for_attempt(self, request: Request) -> bool:
        flight = self.live.flights.get(request.key)
        return flight is not None and flight.alarm is not None

    def deliver(self, event: e.Keyed, at: int, raw: bytes | None) -> None:
        """Something of this section is durable."""
        self._remember(event, at, raw)
        self._starting.discard(event.key)
        request = self.requests.get(event.key)
        if request is None and isinstance(event, OUTCOMES):
            # the code was hosted anew, and has not come as far as this
            self.unused.settle(event, at, raw, len(self.history) - 1)
        if request is None or self.is_suspended:
            return
        if isinstance(event, e.ChildStarted):
            self._has_started(request)
        if event.key in self.told:
            pass  # the code, run again, is about to cancel this child, and hears nothing of its end
        elif isinstance(event, OUTCOMES):
            self.is_past_cancellation |= self.cancelled is not None
            self._answer(request, event, at, raw)
        elif isinstance(event, e.SectionReceived):
            message = self.live.execution.mailbox.handed.get(event.key)
            if message is not None:
                self._answer(request, event, at, message)
            else:  # another one took the message
                request.is_reported = False
                self.perform(request)
        elif isinstance(event, e.SectionWait):
            request.perform(request)

    def close(self) -> None:
        """The section is over, or lost: whoever still asks is unwound."""
        self.is_closed = True
        if self.next_look is not None:  # it would keep the run in memory until then
            self.next_look.cancel()
        waiting = [*self.requests.values(), *self.held, *self._put_aside]
        self.requests, self.held, self._put_aside = {}, [], []
        for expected in list(self._expected):
            if not expected.done():
                expected.set_exception(Unwound("this section is over"))
        self._expected.clear()
        for request in waiting:
            self._turns.effects.let_go(self.live, request.key)
            if not request.future.done():
                request.future.set_exception(Unwound("this section is over"))

    # ── what foreign code calls ──────────────────────────────────────────────────────────────
    def call_blocking(self, of: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step or workflow is called by a plain call, from a thread."""
        self._refuse_on_loop(of.name)
        return self.wait(self.call_of(of.spec, args, kwargs))

    def call_of(self, spec: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grant: Grant | None = None) -> Request:
        """The call of a step or workflow, to be waited for; made under an approval, if there is a `grant`."""
        if isinstance(spec, StepSpec):
            return self._step(spec, args, kwargs, grant=grant)
        return self._child(spec, args, kwargs, grant=grant)

    async def step(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step is awaited, from whichever loop."""
        return await self.wait_async(self._step(spec, args, kwargs))

    async def child(self, spec: WorkflowSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A child run is awaited, from whichever loop."""
        return await self.wait_async(self._child(spec, args, kwargs))

    def wait(self, request: Request) -> Any:
        """Submit from a thread, and wait there."""
        self._submit(request)
        return request.future.result()

    async def wait_async(self, request: Request) -> Any:
        """Submit from a coroutine, and wait there. Who cancels a wait takes no message with it."""
        self._submit(request)
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            if (request.is_receive or request.name == "sleep") and not self.is_over:
                self._at_once(lambda: self._withdraw(request))
            raise

    def _withdraw(self, request: Request) -> None:
        """Nobody waits for this any more. A message that is on its way to it is the next receive's."""
        self._no_longer_waits(request)
        if request.received is not None:
            self._pass_on(request, *request.received)
        elif request in self.held:
            self.held.remove(request)
        elif not request.is_reported and self.requests.get(request.key) is request:
            del self.requests[request.key]

    def _submit(self, request: Request) -> None:
        request.waiting = [_who()]
        if _running_loop() is self._loop:
            self._loop.call_soon(self.arrive, request, context=self._sections.context)
        else:
            self._loop.call_soon_threadsafe(self.arrive, request, context=self._sections.context)

    # ── what is answered there and then ──────────────────────────────────────────────────────
    def _at_once(self, ask: Callable[[], T]) -> T:
        """Ask something on the host loop that is answered there and then, from wherever the code runs."""
        if _running_loop() is self._loop:
            return self._if_open(ask)
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def told() -> None:
            try:
                answer.set_result(self._if_open(ask))
            except Unwound:
                self._refuse(answer)
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(told, context=self._sections.context)
        return answer.result()

    def _if_open(self, ask: Callable[[], T]) -> T:
        if self.is_over:
            raise Unwound(NO_CALL)
        return ask()

    @property
    def is_over(self) -> bool:
        """Whether no call is made here any more: the code is being unwound, or outlives its section."""
        return self.is_closed or self.is_suspended

    @property
    def is_replaying(self) -> bool:
        """Whether something recorded is still to be asked for: nothing that the code does now is new."""
        return bool(self.unused)

    def patched(self, patch: str) -> bool:
        """Whether the code behind this guard may run; answered once per run and recorded."""
        return self._at_once(lambda: self.live.execution.patched(patch, is_passed=bool(self.unused)))

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContinueAsNew:
        """What ends this chapter, to be raised. UsageError in a section, in a thread that the code started, and while
        calls are in flight."""
        spec = self.live.execution.spec
        if spec.is_async or threading.get_ident() != self.thread:
            raise UsageError(
                "continue_as_new() belongs into the workflow's own code: not into perdure.section(), nor into a thread "
                "that a `def` workflow started"
            )
        refuse_next_chapter()
        return next_chapter(spec, args, kwargs, self._at_once(self._in_flight))

    def _in_flight(self) -> list[str]:
        """A receive takes nothing with it when it goes, and of an abandoned child the run wants to hear nothing."""
        flying = [r for r in self.requests.values() if not r.is_abandoned and (r.is_reported or not r.is_receive)]
        return [f"{request.lane}/{request.name}" for request in (*flying, *self.held)]

    def set_state(self, state: bytes) -> None:
        """What `Run.state()` shows. Code that is run again shows nothing until it does something new: else the state
        would go back in time for whoever looks."""
        if self.live.execution.spec.is_async:
            raise UsageError(
                "perdure.set_state() in perdure.section(): the state is the workflow's, and a section that has ended "
                "is not run again on replay; set it in the workflow"
            )
        self._at_once(lambda: self._set_state(state))

    def _set_state(self, state: bytes) -> None:
        self._state = state
        if not self.unused:
            self.show_state()

    def show_state(self) -> None:
        """Have the state that the code gave last written, with the next commit."""
        if self._state is not None:
            self.live.execution.set_state(self._state)
            self._state = None
            self._turns.mark(self.live)

    def _refuse_on_loop(self, name: str) -> None:
        if _running_loop() is not None:
            raise UsageError(f"{name} was called where an event loop runs: await {name}.call(...) there")

    def _step(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str | None = None,
        undoing: Undoing | None = None, grant: Grant | None = None,
    ) -> Request:  # fmt: skip
        raw = spec.arguments.dumps(args, kwargs)
        if business_key is None and isinstance(spec, EffectSpec):
            business_key = business_key_of(spec, args, kwargs)

        def perform(request: Request) -> None:
            if self.live.waits_for_person(request.key):
                return
            ask = self._as_ask(request, spec, raw, business_key, undoing, grant)
            if isinstance(ask, EffectAsk):
                self._turns.effects.start(self.live, ask)
            else:
                self._spend(grant, ask.label)
                self._turns.performer.start(self.live, ask)

        request = Request(LANE.get(), spec.name, raw, perform)
        request.load = _load_with(spec.result, spec.raises)
        if isinstance(spec, EffectSpec):
            request.as_ask = partial(self._as_ask, request, spec, raw, business_key, undoing, grant)
            saga = open_here(f"effect {spec.name}") if undoing is None else None
            if isinstance(saga, HostedSaga):
                request.hears = saga.join(request, spec, raw)
        return request

    def has_lapsed(self, grant: Grant, name: str) -> None:
        """A call that was approved is not made: it is too late for it."""
        self._at_once(lambda: self._turns.approvals.spend(self.live, grant, name, lapsed=True))

    def _spend(self, grant: Grant | None, call: str) -> None:
        if grant is not None:
            self._turns.approvals.spend(self.live, grant, call)

    def ask_people(self, asked: decisions.Request, codec: ValueCodec) -> Request:
        """People are asked. What comes of it is the event that says so, and the value that came with it."""
        raw = asked.encoded()

        def perform(request: Request) -> None:
            live, key = self.live, request.key
            request.is_wait = True
            approval = decisions.approval_id(live.run_id, decisions.identity(live.execution.beginning.chapter, *key))
            before = live.execution.known.requests.get(key)
            until = self._turns.clock.now() + asked.within if asked.within else 0
            until = until if before is None else before.expires_at
            of = (*key, request.name, key[1] + 1)
            self._turns.approvals.put(live, of, approval, asked, raw, request.packed, until)
            request.deadline = until or None
            self._wait_for_people(request)

        def load(event: e.Keyed, answer: bytes | None) -> Any:
            if isinstance(event, e.PersonAnswered):
                return event, answer or b"null", request.deadline or 0
            if (no := asked.refuses(answer or b"null")) is not None:  # it is asked whether this would do
                raise DecodeError("$", no)
            return codec.loads(answer or b"null")

        request = Request(LANE.get(), asked.label, raw, perform)
        request.load, request.kind = load, asked.kind
        return request

    def _wait_for_people(self, request: Request) -> None:
        if request.deadline is not None:
            self._turns.clock.wake_at(request.deadline, lambda: self._request_is_due(request))

    def _request_is_due(self, request: Request) -> None:
        asked = self.live.execution.known.requests.get(request.key)
        is_waiting = self.requests.get(request.key) is request and not request.future.done()
        if asked is not None and is_waiting and not self.live.is_parked:
            self._turns.approvals.expire(self.live, asked.id)

    def _as_ask(
        self, request: Request, spec: StepSpec, raw: bytes, business_key: str | None, undoing: Undoing | None,
        grant: Grant | None,
    ) -> StepAsk:  # fmt: skip
        of, future = (request.key, spec.name, request.key[1] + 1), _unused_future(self.live)
        if business_key is None:
            ask = StepAsk(*of, future)
        else:
            ask = EffectAsk(*of, future)
            ask.business_key, ask.grant = business_key, grant
            if undoing is not None:
                ask.undoes, ask.revision = undoing
        ask.spec, ask.input, ask.packed, ask.view = spec, raw, request.packed, None
        ask.is_recorded = request.record is not None
        return ask

    def _child(
        self,
        spec: WorkflowSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        run_id: str | None = None,
        on_cancel: str = "wait",
        grant: Grant | None = None,
    ) -> Request:
        self.live.execution.check_child_id(run_id)
        raw = spec.arguments.dumps(args, kwargs)

        def perform(request: Request) -> None:
            ask = ChildAsk(request.key, spec.name, request.key[1] + 1, _unused_future(self.live))
            ask.spec, ask.input, ask.packed, ask.on_cancel = spec, raw, request.packed, on_cancel
            ask.is_started = request.record is not None
            ask.run_id = self.child_id(request)
            request.is_wait = True
            if not ask.is_started:
                self._starting.add(request.key)
                self._spend(grant, ask.label)
            self._turns.children.start(self.live, ask)

        request = Request(LANE.get(), spec.name, raw, perform)
        request.load = _load_with(spec.result, spec.raises)
        request.child_id, request.is_abandoned = run_id, on_cancel == "abandon"
        return request

    def child_id(self, request: Request) -> str:
        """The id of a child run: as given, else derived from the call."""
        number = self.live.execution.beginning.chapter
        chapter = f"{number}:" if number else ""
        task, n = request.key
        return request.child_id or f"{self.live.run_id}/{chapter}{task.replace('/', '.')}.{request.name}.{n}"

    # ── children that are not waited for at once ─────────────────────────────────────────────
    def start(self, child: ChildCall) -> Request:
        """Start a child run, from a thread: it is recorded when this returns."""
        request, started = self._to_start(child)
        self._submit(request)
        started.result()
        return request

    async def start_async(self, child: ChildCall) -> Request:
        """Start a child run, from a coroutine."""
        request, started = self._to_start(child)
        self._submit(request)
        await asyncio.wrap_future(started)
        return request

    def _to_start(self, child: ChildCall) -> tuple[Request, concurrent.futures.Future[None]]:
        request = self._child(child.spec, child.args, child.kwargs, run_id=child.run_id, on_cancel=child.on_cancel)
        started = request.started = concurrent.futures.Future()

        def is_over(done: concurrent.futures.Future[Any]) -> None:
            error = done.exception()
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was started long ago
                if isinstance(error, Unwound):
                    started.set_exception(error)
                else:
                    started.set_result(None)

        request.future.add_done_callback(is_over)
        return request, started

    def _has_started(self, request: Request) -> None:
        """Whoever started a child goes on; from now on nobody waits for it, until somebody asks for its result."""
        if request.started is not None and not request.started.done():
            self._no_longer_waits(request)
            request.started.set_result(None)

    def result(self, child: Request) -> Any:
        """A child's result, from a thread."""
        who = _who()
        self._at_once(lambda: self._join(child, who))
        try:
            return child.future.result()
        finally:
            self._has_come(child)

    async def result_async(self, child: Request) -> Any:
        """A child's result, from a coroutine. Cancelling the wait does not cancel the child."""
        who = _who()
        self._at_once(lambda: self._join(child, who))
        try:
            return await asyncio.shield(asyncio.wrap_future(child.future))
        finally:
            self._has_come(child)
            if not self.is_over:
                self._at_once(lambda: self._leave(child, who))

    def _join(self, child: Request, who: object) -> None:
        if not child.future.done():
            child.waiting.append(who)
            self.participants[who] = self.participants.get(who, 0) + 1
            self.last_activity = child.asked_at = self._loop.time()

    def _leave(self, child: Request, who: object) -> None:
        if who in child.waiting:
            child.waiting.remove(who)
            self.participants[who] -= 1

    def _has_come(self, child: Request) -> None:
        lane = LANE.get()
        self.lane_now[lane] = max(self.lane_now.get(lane, self.began_at), child.ended_at)

    def cancel_child(self, child: Request) -> None:
        """Ask a child to stop; its result is RunCancelledError from now on, whatever becomes of it."""
        self._at_once(lambda: self._cancel_child(child))

    def _cancel_child(self, child: Request) -> None:
        if child.future.done():
            return
        self._tell(child.key, child.name, self.child_id(child))
        self.requests.pop(child.key, None)
        self._no_longer_waits(child)
        child.future.set_exception(RunCancelledError(f"child run {self.child_id(child)} was cancelled by its parent"))

    def _tell(self, key: Key, name: str, run_id: str) -> None:
        """Have a child run cancelled, in the commit that says so: a second time would disturb its cleaning up."""
        if key not in self.told:
            self.told.add(key)
            self._turns.children.tell(self.live, [run_id])
            self._turns.report(self.live, e.CallCancelled(*key, name, key[1] + 1))

    def tell_children(self) -> bool:
        """The code has ended: its children are cancelled. True as long as some have not ended."""
        running = running_children(self.history)
        for key, child in running.items():
            self._tell(key, child.name, child.run_id)
        return bool(running or self._starting)

    # ── waits ────────────────────────────────────────────────────────────────────────────────
    def sleep(self, length: float) -> Request:
        """A durable wait."""
        return self._waiting("sleep", length)

    def receive(self, name: str, codec: ValueCodec, within: float | None) -> Request:
        """The next message of this name."""
        self.live.execution._check_message_name(name)  # pyright: ignore[reportPrivateUsage]

        def perform(request: Request) -> None:
            request.is_wait = True
            if within is not None and request.deadline is None:
                self._record_deadline(request, within)
                return
            if request.is_reported:
                return
            if self.live.execution.mailbox.queues.get(name):
                request.is_reported = True
                event = e.SectionReceived(*request.key, request.name, request.key[1] + 1, name)
                self._turns.report(self.live, event, delivers=True)
            elif request.deadline is not None:
                self._turns.clock.wake_at(request.deadline, lambda: self._time_out(request))

        request = Request(LANE.get(), f"receive:{name}", None, perform)
        request.load = lambda event, raw: (
            codec.loads(raw or b"null") if isinstance(event, e.SectionReceived | e.StepCompleted) else _fail(raw)
        )
        return request

    def _waiting(self, name: str, length: float) -> Request:
        def perform(request: Request) -> None:
            request.is_wait = True
            if request.deadline is None:
                self._record_deadline(request, length)
                return
            self._turns.clock.wake_at(request.deadline, lambda: self._wake(request))

        return Request(LANE.get(), name, None, perform)

    def _record_deadline(self, request: Request, length: float) -> None:
        request.deadline = self._turns.clock.now() + round(length * MICROSECONDS)
        event = e.SectionWait(*request.key, request.name, request.key[1] + 1, request.deadline)
        self._turns.report(self.live, event)

    def _wake(self, request: Request) -> None:
        if self.requests.get(request.key) is request and not request.future.done():
            self._answer(request, e.SectionWait(*request.key, request.name), request.deadline or 0, None)

    def _time_out(self, request: Request) -> None:
        is_waiting = self.requests.get(request.key) is request and not request.future.done()
        if is_waiting and not request.is_reported:
            request.is_reported = True
            raw = dump_exception(TimeoutError(f"no message {request.name.partition(':')[2]!r} came in time"), ())
            output = pack(raw, self.live.execution.memo)
            event = e.StepFailed(*request.key, request.name, request.key[1] + 1, output=output.digest)
            self._turns.report(self.live, event, raw=raw, output=output, delivers=True)

    def now(self) -> datetime:
        """The time of the last answer that this lane got: the same when it runs again."""
        return when(self.now_us())

    def now_us(self) -> int:
        """The same, in microseconds since the epoch."""
        return self.lane_now.get(LANE.get(), self.began_at)

    def random_bytes(self) -> bytes:
        """32 random bytes, the same when the section runs again."""
        lane = LANE.get()
        self.lane_randoms[lane] = use = self.lane_randoms.get(lane, 0) + 1
        return drawn(self.live.execution.beginning.seed, self.section, lane, use)

    def call(
        self, name: str, request: Any, perform: Callable[[], Any], *, retry: Retry | None = None, hint: Any = Any
    ) -> Any:
        """For adapters: record what `perform()` gives for this request (plain JSON), or answer it from the record.

        `perform` runs in the calling thread, as the body of a step: what it calls in turn is not recorded."""
        raw = codec_for(Any).dumps(request)
        spec = StepSpec(name=name, function=perform, is_async=False, arguments=_NO_ARGUMENTS, result=codec_for(hint),
                        retry=retry or Retry())  # fmt: skip
        go: queue.SimpleQueue[int] = queue.SimpleQueue()

        def start(wanted: Request) -> None:
            if not self.live.waits_for_person(wanted.key):
                known = self.live.execution.known.attempts.get(wanted.key)
                go.put(known.failed if known else 0)

        wanted = Request(LANE.get(), name, raw, start)
        wanted.load = _load_with(spec.result, spec.raises)
        wanted.future.add_done_callback(lambda done: go.put(_ANSWERED))
        self._submit(wanted)
        while (failed := go.get()) != _ANSWERED:  # again after a person has decided so
            self._perform_here(wanted, spec, perform, failed)
        return wanted.future.result()

    def _perform_here(self, wanted: Request, spec: StepSpec, perform: Callable[[], Any], failed: int) -> None:
        import random
        import time

        first_at = self._turns.clock.now()
        while not wanted.future.done():
            failed += 1
            started_at = self._turns.clock.now()
            attempt = _attempt_of(self, wanted, spec, failed, started_at)
            token = ATTEMPT.set(attempt)
            sender = SENDER.set(Outgoing(attempt, failed, None, self._turns.clock.now))
            try:
                raw = spec.result.dumps(perform())
                kind: Any = e.StepCompleted
            except EncodeError as error:
                raw, kind = dump_exception(error.about(f"the result of {spec.name}()"), ()), e.StepFailed
            except Exception as error:
                now = self._turns.clock.now()
                decision = next_attempt(
                    spec.retry,
                    attempt=failed,
                    first_at=first_at,
                    now=now,
                    failure=classify(error, now=now),
                    random=random.random(),
                )
                raw = dump_exception(error, spec.raises)
                if isinstance(decision, Again):
                    more = {"retry_at": decision.at, "first_at": first_at}
                    self._report_from_thread(wanted, e.AttemptFailed, raw, failed, started_at, more).result()
                    time.sleep(max(0.0, (decision.at - now) / MICROSECONDS))
                    continue
                if decision.needs_person:
                    self._block_from_thread(wanted, failed, message_of(error))
                    return
                kind = e.StepFailed
            finally:
                ATTEMPT.reset(token)
                SENDER.reset(sender)
            self._report_from_thread(wanted, kind, raw, failed, started_at, {})
            return

    def _report_from_thread(
        self, wanted: Request, kind: Any, raw: bytes, attempt: int, started_at: int, more: dict[str, Any]
    ) -> concurrent.futures.Future[None]:
        """Report what came of an attempt. What is given is done when that is durable: before another one begins."""
        durable: concurrent.futures.Future[None] = concurrent.futures.Future()

        def is_durable() -> None:
            if durable in self._expected:
                self.no_longer_expects(durable)

        def report() -> None:
            if self.is_closed:
                durable.set_exception(Unwound("this section is over"))
                return
            self._expected.add(durable)
            self.live.then += (is_durable,)
            output = pack(raw, self.live.execution.memo)
            kept = wanted.packed if wanted.record is None else None
            wanted.record = wanted.record or Record(wanted.key, wanted.lane, wanted.name, wanted.digest, None, 0, None)
            event = kind(
                *wanted.key, wanted.name, wanted.key[1] + 1, output=output.digest, attempt=attempt,
                started_at=started_at,
                input=None if kept is None else kept.digest, **more,
            )  # fmt: skip
            self._turns.report(
                self.live, event, raw=raw, output=output, input=kept, delivers=kind is not e.AttemptFailed
            )

        self._sections.call_soon(report)
        return durable

    def _block_from_thread(self, wanted: Request, attempt: int, question: str) -> None:
        def block() -> None:
            if not self.is_closed:
                hint = f"{wanted.key[0]}/{wanted.name}#{wanted.key[1] + 1}: {question}"
                self._ask_person(wanted, "needs_person", hint, attempt)

        self._sections.call_soon(block)

    def _ask_person(self, wanted: Request, reason: str, hint: str, attempt: int = 1) -> None:
        """The start is recorded with the question: by its number the answer finds it again after a restart."""
        of = (*wanted.key, wanted.name, wanted.key[1] + 1)
        if wanted.record is None:
            wanted.record = Record(wanted.key, wanted.lane, wanted.name, wanted.digest, None, 0, None)
            started = e.StepStarted(*of, wanted.digest, attempt=attempt)
            self._turns.report(self.live, started, input=wanted.packed)
        self._turns.parking.block_asked(self.live, e.RunBlocked(reason, hint, *of))


def _who() -> object:
    """Who waits: the task, if it is one, else the thread."""
    return (asyncio.current_task() if _running_loop() is not None else None) or threading.get_ident()


def _load_with(codec: ValueCodec, raises: tuple[type[BaseException], ...]) -> Callable[[e.Keyed, bytes | None], Any]:
    def load(event: e.Keyed, raw: bytes | None) -> Any:
        if isinstance(event, e.StepCompleted) or (isinstance(event, e.ChildEnded) and event.status == "completed"):
            return codec.loads(raw or b"null")
        raise load_exception(raw or b"null", raises)

    return load


def _fail(raw: bytes | None) -> Any:
    raise load_exception(raw or b"null", ())


def _unused_future(live: LiveRun) -> CallFuture:
    future = CallFuture(loop=live.execution.loop)
    future.ordinal = 0
    future.execution = live.execution
    return future


def _attempt_of(journal: Journal, wanted: Request, spec: StepSpec, number: int, started_at: int) -> Attempt:
    live = journal.live
    return Attempt(
        live.run_id, live.info.workflow, wanted.name, f"{wanted.key[0]}/{wanted.name}", number, spec.retry.max_attempts,
        when(started_at), lambda details: None, lambda hint: None, {},
    )  # fmt: skip


def _nobody_hears(event: e.Keyed | None, raw: bytes) -> None:
    """It belongs to no saga."""


def _nothing() -> None:
    """The signature of a call without arguments."""


_NO_ARGUMENTS = arguments_codec_for(_nothing)

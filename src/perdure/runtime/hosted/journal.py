"""Answers what hosted code asks for, from the record or by performing it.

A request is known by its lane, its name and the digest of its arguments, the n-th of that kind; lanes are names that an
adapter gives. A request that is new in its lane while recorded ones are unused is held as long as some participant (a
thread or task that uses the journal) is not itself waiting; the record it lacks may still be asked for by that one.
Only when all wait does a record of another lane serve (thread pools hand out work as they like): before, that lane may
be about to ask the same. If there is none, code and history have parted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.clock import Alarm, when
from perdure.codec import pack
from perdure.engine.calls import EffectAsk, Grant, Key, SectionAsk, section_of
from perdure.engine.chapters import ContinueAsNew, next_chapter
from perdure.engine.claims import beside
from perdure.engine.execution import REFUSALS_MAX
from perdure.engine.mailbox import unread
from perdure.engine.randomness import drawn
from perdure.engine.sagas import refuse_next_chapter
from perdure.errors import StoreError, UsageError
from perdure.history import events as e
from perdure.runtime.attempt import LANE
from perdure.runtime.hosted.children import HostedChildren
from perdure.runtime.hosted.here import PerformedHere
from perdure.runtime.hosted.order import Order
from perdure.runtime.hosted.people import HostedPeople
from perdure.runtime.hosted.records import OUTCOMES, RECEIVE, Happened, Record, Unclaimed, records_of, untaken
from perdure.runtime.hosted.request import Outcome, Request, running_loop, who_waits
from perdure.runtime.hosted.steps import HostedSteps
from perdure.runtime.hosted.unwound import Unwound
from perdure.runtime.hosted.waits import HostedWaits
from perdure.runtime.live import LiveRun
from perdure.runtime.load import Past
from perdure.specs import Retry, StepSpec, Usage, WorkflowSpec

if TYPE_CHECKING:
    from perdure.runtime.sections import Sections

log = logging.getLogger("perdure")

T = TypeVar("T")

HELD_LOOK_SECONDS = 0.25
HELD_QUIET_SECONDS = 5.0
"""So long nothing has to be heard of a thread that waits elsewhere than in the journal: maybe not for its own kind."""
HELD_SILENT_SECONDS = 60.0
"""So long of those who may be at work: threads that have not asked for anything yet, and coroutines, of which nobody
can tell what they wait for."""
_WAITING_MODULES = (
    "/threading.py",
    "/queue.py",
    "/concurrent/futures/_base.py",
    "/concurrent/futures/thread.py",
    "/selectors.py",
)


NO_CALL = "this section is over, or waits: no call is made any more"


class Journal:
    """Answers one section's calls, from the record or by performing them."""

    def __init__(
        self, sections: Sections, live: LiveRun, ask: SectionAsk, history: Iterable[Happened] | None = None
    ) -> None:
        self._sections = sections
        self.turns = sections.turns
        self.live = live
        self.ask = ask
        self.section = section_of(ask.key)
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self.is_suspended = False
        self.outcome: Outcome | None = None
        self.thread = 0
        self._refusals = 0
        self.expected: set[concurrent.futures.Future[None]] = set()
        self.is_cancelling = self.cancelled is not None
        self.is_past_cancellation = False
        self.next_look: Alarm | None = None
        self.history: list[Happened] = list(history or ())
        if history is None:
            for event, at, raw in live.execution.known.journals.get(self.section, ()):
                self._remember(event, at, raw)
        self.steps, self.children, self.waits = HostedSteps(self), HostedChildren(self), HostedWaits(self)
        self.people, self.here = HostedPeople(self), PerformedHere(self)
        self._begin()

    @property
    def code_id(self) -> str:
        """The run's id as the code is to see it: that of the run which made the calls that it makes again now."""
        for of, lengths in self.live.execution.known.origins:
            if any(self.unused.has(event.key) for event, _, _ in self.history[: lengths.get(self.section, 0)]):
                return of
        return self.live.run_id

    # ── the record ───────────────────────────────────────────────────────────────────────────
    def _begin(self) -> None:
        """Nothing is asked for yet, everything recorded is unused."""
        records = records_of(self.history)
        self.unused = Unclaimed(records)
        self.order = Order(self, records)
        self._is_looking = False
        self.counters: dict[str, int] = {}
        for event, _, _ in self.history:
            self.counters[event.task] = max(self.counters.get(event.task, 0), event.n + 1)
        self.requests: dict[Key, Request] = {}
        self.held: list[Request] = []
        self._put_aside: list[Request] = []
        self._left: dict[str, deque[tuple[Key, e.Keyed, int, bytes | None]]] = {}
        self.untaken = untaken(self.history)
        """Messages that are on their way to the code, by the call that they were taken for."""
        self.participants: dict[object, int] = {}
        self.started: set[threading.Thread] = set()
        """Threads that the code has started, or that are busy with what it gave to a pool. They say so themselves."""
        self.lane_now: dict[str, int] = {}
        self.lane_randoms: dict[str, int] = {}
        self.began_at = self.live.execution.now_us
        self._state: bytes | None = None
        self.last_activity = self.loop.time()

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
            self.answer(request, event, at, raw)
            return
        self.last_activity = request.asked_at = self.loop.time()
        if request.arguments is not None:  # here and not where it was asked: the memo belongs to this thread
            request.packed = pack(request.arguments, self.live.execution.memo)
            request.digest = request.packed.digest
        for who in request.waiting:
            self.participants[who] = self.participants.get(who, 0) + 1
        record = self.unused.claim(request.lane, request.name, *request.digests)
        if record is None and self.cancelled is not None:
            record = self.unused.claim_of_any(request.name, *request.digests)
        if record is None and self.unused and self.cancelled is None:
            self.held.append(request)
            self.loop.call_later(HELD_LOOK_SECONDS, self._look_at_held)
        else:
            if record is None:
                self.show_state()
            self._serve(request, record)
        self._look_at_unused()

    def _look_at_unused(self) -> None:
        """Once nothing recorded is unused, what was held is new."""
        if self.unused:
            return
        held, self.held = self.held, []
        for request in held:
            self._serve(request, None)
        if self.live.has_decisions:
            self.turns.premises.has_caught_up(self.live)

    def _refuse(self, answer: concurrent.futures.Future[Any]) -> None:
        """Code that swallows being unwound and asks again would spin: after so many times it is left without an
        answer."""
        self._refusals += 1
        if self._refusals <= REFUSALS_MAX:
            answer.set_exception(Unwound(NO_CALL))

    def _serve(self, request: Request, record: Record | None) -> None:
        if record is not None:
            request.key, request.record, request.deadline = record.key, record, record.deadline or None
        if self.cancelled is not None and not self._is_answered_in_spite(request, record, *self.cancelled):
            self._call_off(request, record)
            return
        if self.cancelled is not None and request.name == "sleep":  # it was over by then
            self.requests[request.key] = request
            self.waits.wake(request)
            return
        if record is not None:
            self._rely(request)
            if record.outcome is not None and record.key not in self.children.told:
                self.order.tell(request, record.outcome, record.at, record.raw)
                return
            self.order.leave_out(record.key)
        else:
            task = f"{self.section}/{request.lane}"
            n = self.counters.get(task, 0)
            self.counters[task] = n + 1
            request.key = (task, n)
            self._rely(request)
        self.requests[request.key] = request
        self.perform(request)
        if record is not None:
            self.children.has_started(request)
        if request.key in self.live.blocked_calls or request.kind:
            # a decision about it may have come before it was asked for again
            self.turns.on_letters()

    def _rely(self, request: Request) -> None:
        """Of a step whose result rests on something it is to be known how to read that again."""
        if request.rests is not None:
            self.live.execution.known.rely(request.key, *request.rests)

    # ── cancelled, with sagas to undo ────────────────────────────────────────────────────────
    @property
    def cancelled(self) -> tuple[int, int] | None:
        """Where in the record and when the section was cancelled, if its code has sagas: they are left, and undo."""
        return self.live.execution.known.cancelled_sections.get(self.section)

    def cancel(self) -> None:
        """That the section is cancelled is durable: unwind its code. What its sagas ask for goes on."""
        for waiting in self.order.let_go():  # what was known before
            self.answer(*waiting)
        asked, self.held = [*self.requests.values(), *self.held], []
        _, at = self.cancelled or (0, 0)
        for request in asked:
            if request.is_undoing:
                if request.key not in self.requests:
                    self._serve(request, None)
            elif request.name == "sleep" and (request.deadline or at + 1) <= at:
                self.waits.wake(request)
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
        if has_come and self.loop.time() - self.last_activity > HELD_LOOK_SECONDS:
            for who, calls in self.participants.items():
                if isinstance(who, asyncio.Task) and not calls:
                    who.cancel()
        else:
            self.loop.call_later(HELD_LOOK_SECONDS, self.look_at_tasks)

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
            self.turns.effects.cancel(live, cast("EffectAsk", request.as_ask()))
            if key in live.blocked_calls:  # a decision about it may have come before it was asked for again
                self.turns.on_letters()
        else:
            self.turns.performer.cancel(live, key)
            self.requests.pop(key, None)
            request.hears(outcome, (None if record is None else record.raw) or b"null")
        if record is not None:  # a child was started, and that was the answer
            self.children.has_started(request)
        self.no_longer_waits(request)
        if not request.future.done():
            request.future.set_exception(Unwound(NO_CALL))

    def enter_saga(self) -> None:
        """The code enters a saga: recorded once, so that code cancelled after a restart is run again, to undo."""
        self.at_once(self._enter_saga)

    def _enter_saga(self) -> None:
        live, ask = self.live, self.ask
        if ask.key in live.execution.known.undoing:
            return
        if live.execution.open.get(ask.key) is not ask:  # it was cancelled just now
            raise Unwound(NO_CALL)
        live.execution.known.undoing.add(ask.key)
        self.turns.report(live, e.SectionUndoes(*ask.key, ask.name, ask.use))

    def expect(self, known: concurrent.futures.Future[None]) -> None:
        """Somebody waits for this, until the section is over."""
        self.expected.add(known)
        if self.is_over and not known.done():
            known.set_exception(Unwound(NO_CALL))

    def no_longer_expects(self, known: concurrent.futures.Future[None]) -> None:
        """It has come."""
        self.expected.discard(known)
        if not known.done():
            known.set_result(None)

    def places_of_outcomes(self) -> dict[str, int]:
        """Where in the record it stands that an operation was done."""
        happened = enumerate(self.history)
        return {event.operation: place for place, (event, _, _) in happened if isinstance(event, e.EffectSucceeded)}

    # ── performing, and answering ────────────────────────────────────────────────────────────
    def perform(self, request: Request) -> None:
        """Do what is asked for; in a run that is paused or blocked nothing new begins, and in a section that was
        cancelled nothing but what undoes. In one that was dropped nothing at all."""
        if self.live.is_gone:
            return
        if self.cancelled is not None and not request.is_undoing:
            self._call_off(request, None)
            return
        request.is_held_back = request.is_wait = self.live.is_parked
        if not request.is_held_back and request.unread is None:
            try:
                request.perform(request)
            except StoreError as error:  # nobody could be told: the run is loaded again, as soon as that can be
                self.turns.contain(self.live, error)

    def go_on(self) -> None:
        """The run is not paused any more."""
        for request in list(self.requests.values()):
            if request.is_held_back:
                self.perform(request)
            elif request.kind:
                self.people.wait_for_answer(request)

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
            self.turns.on_letters()
        else:
            hint = f"{unread(request.name.partition(':')[2], message)} does not fit what is received there: {problem}"
            blocked = e.RunBlocked("undecodable", hint, *request.key, request.name, request.key[1] + 1)
            self.turns.parking.block_asked(self.live, blocked)

    def answer(self, request: Request, event: e.Keyed, at: int, raw: bytes | None) -> None:
        if isinstance(event, e.SectionReceived):
            problem = self.misfit(request, raw or b"null")
            if problem is not None or request.key in self.live.blocked_calls:
                self._cannot_read(request, raw or b"null", problem or "")
                return
        self.requests.pop(request.key, None)
        self.no_longer_waits(request)
        request.hears(event, raw or b"null")
        if isinstance(event, e.SectionReceived):
            if request.future.cancelled():
                self._pass_on(request, event, at, raw)
                return
            request.received = (event, at, raw)
        if not (request.is_here and isinstance(event, e.SectionReceived)):
            self.untaken.pop(request.key, None)
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
        self.untaken[request.key] = request.name.partition(":")[2]
        asked = (*self.requests.values(), *self.held)
        waiting = [other for other in asked if other.name == request.name and not other.is_reported]
        if waiting and waiting[0] in self.held:
            self.held.remove(waiting[0])
        elif waiting:
            del self.requests[waiting[0].key]
        if waiting:
            waiting[0].key = request.key
            self.answer(waiting[0], event, at, raw)
        else:
            self._left.setdefault(request.name, deque()).append((request.key, event, at, raw))

    def wake_at(self, request: Request, at: int, then: Callable[[], None]) -> None:
        """The time of a request is up then; said again, this replaces what was said before."""
        request.silence()
        request.alarm = self.turns.clock.wake_at(at, then)

    def no_longer_waits(self, request: Request) -> None:
        request.silence()
        self.last_activity = self.loop.time()
        waiting, request.waiting = request.waiting, []
        for who in waiting:
            self.participants[who] = self.participants.get(who, 1) - 1

    def _look_at_held(self) -> None:
        """Divergence is only certain when everybody waits and something recorded is unused."""
        if not self.held or self.is_closed:
            return
        if all(map(self._has_halted, self.participants)) and all(map(self._is_silent, list(self.started))):
            if self._serve_of_other_lanes():
                return
            self.live.execution.diverge(*self._parted(self.held[0]))
            self.close()
            self.turns.advance(self.live)
        else:
            self.loop.call_later(HELD_LOOK_SECONDS, self._look_at_held)

    def look_later(self) -> None:
        """Somebody waits to be told of something, and nobody has asked for what came before it."""
        if not self._is_looking:
            self._is_looking = True
            self.loop.call_later(HELD_LOOK_SECONDS, self._look_at_order)

    def _look_at_order(self) -> None:
        self._is_looking = False
        if not self.order or self.is_over:
            return
        if self._is_quiet_for(HELD_QUIET_SECONDS) and all(map(self._is_waiting, self.participants)):
            self.order.skip()
        if self.order:
            self.look_later()

    def _serve_of_other_lanes(self) -> bool:
        """Answer the first request for which another lane has a record that it does not ask for itself."""
        for request in self.held:
            record = self.unused.claim_of_any(request.name, *request.digests)
            if record is not None:
                self.held.remove(request)
                self._serve(request, record)
                self._look_at_unused()
                self.loop.call_later(HELD_LOOK_SECONDS, self._look_at_held)
                return True
        return False

    def _parted(self, wanted: Request) -> tuple[str, str]:
        """What the history has in the place of a call, and what the code asks for: the nearest that is unused."""
        near = min(self.unused.left(), key=lambda record: (record.name != wanted.name, record.lane != wanted.lane))
        recorded = f"section {self.ask.label}: the history has {near.name!r} (lane {near.lane})"
        asked = f"the code asks for {wanted.name!r} (lane {wanted.lane})"
        kept = self._kept_input_of(near.key) if near.name == wanted.name and wanted.arguments is not None else None
        if kept is not None and wanted.arguments is not None:
            one, other = beside(kept, wanted.arguments)
            recorded, asked = f"{recorded} with {one}", f"{asked} with {other}"
        return f"{recorded}, never asked for", asked

    def _kept_input_of(self, key: Key) -> bytes | None:
        with contextlib.suppress(StoreError):
            return Past(self.turns.store.load(self.live.rid), self.turns.store).input_of(key)
        return None

    def _has_halted(self, who: object) -> bool:
        """Whether somebody does not come to its next call by itself. Who waits elsewhere may wait for another process,
        or for a socket: it is to be quiet for a while."""
        if self.participants.get(who, 0) > 0:
            return True
        return self._is_waiting(who) and self._is_quiet_for(
            HELD_QUIET_SECONDS if isinstance(who, int) else HELD_SILENT_SECONDS
        )

    def _is_silent(self, thread: threading.Thread) -> bool:
        """Whether no call is to be expected of a thread that the code has started."""
        if thread.ident in self.participants:  # it has asked before
            return True
        is_at_work = thread.ident is None or not self._is_waiting(thread.ident)
        return self._is_quiet_for(HELD_SILENT_SECONDS if is_at_work else HELD_QUIET_SECONDS)

    def _is_quiet_for(self, seconds: float) -> bool:
        return self.loop.time() - self.last_activity > seconds

    def _is_waiting(self, who: object) -> bool:
        if self.participants.get(who, 0) > 0:
            return True
        if isinstance(who, int):
            frame = sys._current_frames().get(who)  # pyright: ignore[reportPrivateUsage]
            return frame is None or frame.f_code.co_filename.endswith(_WAITING_MODULES)
        return self._is_quiet_for(HELD_QUIET_SECONDS)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in here: the thread was given back, or the code has ended and its children have not."""
        return self.is_suspended or self.outcome is not None

    @property
    def is_still(self) -> bool:
        """Whether nothing happens in here until time passes or news comes: what it asked for waits, or its next attempt
        does, or a person is to decide."""
        asked = [r for r in self.requests.values() if r.waiting or (self.cancelled is not None and not r.is_undoing)]
        still = bool(asked) and all(r.is_wait or self._waits_for_attempt(r) for r in asked)
        return still and not (self.held or self.order) and all(map(self._is_waiting, self.participants))

    @property
    def is_waiting(self) -> bool:
        """Whether everybody in here waits for an answer, whatever it is about."""
        return self.is_idle or (not (self.held or self.order) and all(map(self._is_waiting, self.participants)))

    def _waits_for_attempt(self, request: Request) -> bool:
        flight = self.live.flights.get(request.key)
        return request.key in self.live.blocked_calls or (flight is not None and flight.alarm is not None)

    def deliver(self, event: e.Keyed, at: int, raw: bytes | None) -> None:
        """Something of this section is durable."""
        self._remember(event, at, raw)
        self.children.starting.discard(event.key)
        request = self.requests.get(event.key)
        is_early = request is None and isinstance(event, OUTCOMES)  # code that was hosted anew has not come so far
        if is_early and self.unused.settle(event, at, raw, len(self.history) - 1):
            self.order.expect(event.key, at)
        if request is None or self.is_suspended:
            return
        if isinstance(event, e.ChildStarted):
            self.children.has_started(request)
        if event.key in self.children.told:
            pass  # the code, run again, is about to cancel this child, and hears nothing of its end
        elif isinstance(event, OUTCOMES):
            self.is_past_cancellation |= self.cancelled is not None
            self.order.tell(request, event, at, raw)
        elif isinstance(event, e.SectionReceived):
            message = self.live.execution.mailbox.handed.get(event.key)
            if message is not None:
                self.order.tell(request, event, at, message)
            else:  # another one took the message
                self.untaken.pop(event.key, None)
                request.is_reported = False
                self.perform(request)
        elif isinstance(event, e.SectionWait):
            request.perform(request)

    def give_back(self) -> None:
        """The code is over: what it never got of the messages that were taken for it is in the mailbox again."""
        taken, self.untaken = self.untaken, {}
        for (task, n), message in taken.items():
            gave_back = e.SectionGaveBack(task, n, RECEIVE + message, n + 1, message)
            self.turns.report(self.live, gave_back, delivers=True)

    def close(self) -> None:
        """The section is over, or lost: whoever still asks is unwound."""
        self.is_closed = True
        if self.next_look is not None:  # it would keep the run in memory until then
            self.next_look.cancel()
        untold = [request for request, *_ in self.order.let_go()]
        waiting = [*self.requests.values(), *untold, *self.held, *self._put_aside]
        self.requests, self.held, self._put_aside = {}, [], []
        for expected in list(self.expected):
            if not expected.done():
                expected.set_exception(Unwound("this section is over"))
        self.expected.clear()
        for request in waiting:
            request.silence()
            self.turns.effects.let_go(self.live, request.key)
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
            return self.steps.call(spec, args, kwargs, grant=grant)
        return self.children.call(spec, args, kwargs, grant=grant)

    async def step(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step is awaited, from whichever loop."""
        return await self.wait_async(self.steps.call(spec, args, kwargs))

    async def child(self, spec: WorkflowSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A child run is awaited, from whichever loop."""
        return await self.wait_async(self.children.call(spec, args, kwargs))

    def wait(self, request: Request) -> Any:
        """Submit from a thread, and wait there."""
        self.submit(request)
        return request.future.result()

    async def wait_async(self, request: Request) -> Any:
        """Submit from a coroutine, and wait there. Who cancels a wait takes no message with it."""
        self.submit(request)
        try:
            value = await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            if (request.is_receive or request.name == "sleep") and not self.is_over:
                self.at_once(lambda: self._withdraw(request))
            raise
        if request.is_here and request.received is not None:
            if self.is_over:  # it was given back, or is told again when the code runs again
                raise Unwound(NO_CALL)
            self.untaken.pop(request.key, None)
        return value

    def _withdraw(self, request: Request) -> None:
        """Nobody waits for this any more. A message that is on its way to it is the next receive's."""
        self.no_longer_waits(request)
        if request.received is not None:
            self._pass_on(request, *request.received)
        elif request in self.held:
            self.held.remove(request)
        elif not request.is_reported and self.requests.get(request.key) is request:
            del self.requests[request.key]

    def submit(self, request: Request) -> None:
        request.waiting = [who_waits()]
        request.is_here = running_loop() is self.loop
        if request.is_here:
            self.loop.call_soon(self.arrive, request, context=self._sections.context)
        else:
            self.loop.call_soon_threadsafe(self.arrive, request, context=self._sections.context)

    # ── what is answered there and then ──────────────────────────────────────────────────────
    def at_once(self, ask: Callable[[], T]) -> T:
        """Ask something on the host loop that is answered there and then, from wherever the code runs."""
        if running_loop() is self.loop:
            return self._if_open(ask)
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def told() -> None:
            try:
                answer.set_result(self._if_open(ask))
            except Unwound:
                self._refuse(answer)
            except BaseException as error:
                answer.set_exception(error)

        self.loop.call_soon_threadsafe(told, context=self._sections.context)
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

    def deprecate_patch(self, patch: str) -> None:
        """As in workflow code; what its answer was is known to the run as a whole."""
        self.at_once(lambda: self.live.execution.deprecate_patch(patch))

    def patched(self, patch: str) -> bool:
        """Whether the code behind this guard may run; answered once per run and recorded."""
        return self.at_once(lambda: self.live.execution.patched(patch, is_passed=bool(self.unused)))

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
        return next_chapter(spec, args, kwargs, self.at_once(self._in_flight))

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
        self.at_once(lambda: self._set_state(state))

    def _set_state(self, state: bytes) -> None:
        self._state = state
        if not self.unused:
            self.show_state()

    def show_state(self) -> None:
        """Have the state that the code gave last written, with the next commit."""
        if self._state is not None:
            self.live.execution.set_state(self._state)
            self._state = None
            self.turns.mark(self.live)

    def _refuse_on_loop(self, name: str) -> None:
        if running_loop() is not None:
            raise UsageError(f"{name} was called where an event loop runs: await {name}.call(...) there")

    # ── for adapters ─────────────────────────────────────────────────────────────────────────
    def call(
        self, name: str, request: Any, perform: Callable[[], Any], *, retry: Retry | None = None, hint: Any = Any,
        uses: Usage | None = None, premises: Mapping[str, Any] | None = None, on_stale: Any = None,
    ) -> Any:  # fmt: skip
        """For adapters: record what `perform()` gives for this request (plain JSON), or answer it from the record.

        `perform` runs in the calling thread, as the body of a step: what it calls in turn is not recorded. `uses`: what
        one attempt is expected to use, for budgets. Policies see the fields of the request as arguments. `premises`:
        what the answer rests on and the request does not say, such as the model; values, or functions without arguments
        that read them. `on_stale`: what is done about an answer that does not stand any more, as in `@step`; default
        "note"."""
        return self.here.call(name, request, perform, retry or Retry(), hint, uses, (premises, on_stale))

    def call_soon(self, function: Callable[[], None]) -> None:
        """Have something done on the host loop, from a thread of hosted code."""
        self._sections.call_soon(function)

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

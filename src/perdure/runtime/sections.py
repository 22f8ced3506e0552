"""Hosts foreign code: functions that insist on threads or sockets of their own. `def` workflows are built on it.

The function runs outside the workflow's loop; every step, child, wait and message in it goes through a `Journal`. After
a crash the function runs again from its start, and what it asks for is answered from the record. A function that has
only waited for UNWIND_SECONDS is unwound (its thread ends) and hosted again when what it waits for is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.codec import about_result, dump_exception, pack
from perdure.engine.calls import EffectAsk, Key, SectionAsk, section_of
from perdure.engine.chapters import ContinueAsNew
from perdure.errors import EncodeError
from perdure.history import events as e
from perdure.runtime import inherit
from perdure.runtime.attempt import JOURNAL
from perdure.runtime.hosted.journal import Journal
from perdure.runtime.hosted.records import RECEIVE, running_children, told_children
from perdure.runtime.hosted.request import Outcome
from perdure.runtime.hosted.unwound import Unwound
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import STILL_HERE_SECONDS

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure")

UNWIND_SECONDS = 10.0


class Sections:
    """All sections that this process hosts."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._journals: dict[tuple[int, Key], Journal] = {}
        self._to_undo: dict[tuple[int, Key], SectionAsk] = {}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self.context = self._context.copy()
        """In which the loop answers hosted code: not in that code's own, which every timer armed there would keep."""

    def start(self, live: LiveRun, ask: SectionAsk) -> None:
        """Host a section's function, from its start."""
        inherit.install()
        live.has_sections = True
        journal = self._journals[live.rid, ask.key] = Journal(self, live, ask)
        if not ask.is_recorded:
            live.record(e.SectionStarted(*ask.key, ask.name, ask.use))
        self._host(journal)

    def _host(self, journal: Journal) -> None:
        context = self._context.copy()
        context.run(JOURNAL.set, journal)
        if journal.ask.is_async:
            task = self._loop.create_task(self._run_async(journal), context=context)
            journal.participants[task] = 0
            journal.look_at_tasks()
        else:
            name = f"perdure-section-{journal.live.run_id}"
            thread = threading.Thread(target=context.run, args=(self._run_in_thread, journal), name=name, daemon=True)
            thread.start()
            if thread.ident is not None:
                journal.participants[thread.ident] = 0
        journal.next_look = self._loop.call_later(UNWIND_SECONDS, self._look, journal)

    async def _run_async(self, journal: Journal) -> None:
        ask = journal.ask
        try:
            outcome = _returned(ask, await ask.function(*ask.args, **ask.kwargs))
        except Unwound as error:
            if journal.cancelled is None:
                return
            outcome = _raised(journal, error)
        except asyncio.CancelledError as error:
            outcome = _raised(journal, error)
            task = asyncio.current_task()
            is_ending = task is not None and task.cancelling()  # the program, perhaps: see the performer
            if is_ending and journal.cancelled is None:
                self._loop.call_later(STILL_HERE_SECONDS, self._ended, journal, outcome)
                return
        except KeyboardInterrupt:  # as in a turn: nothing of it is recorded
            self.turns.lose(journal.live)
            raise
        except BaseException as error:
            outcome = _raised(journal, error)
        self._ended(journal, outcome)

    def _run_in_thread(self, journal: Journal) -> None:
        ask = journal.ask
        journal.thread = threading.get_ident()
        try:
            outcome = _returned(ask, ask.function(*ask.args, **ask.kwargs))
        except Unwound as error:
            if journal.cancelled is None:
                return
            outcome = _raised(journal, error)
        except ContinueAsNew as error:
            outcome = _continues(journal, error)
        except BaseException as error:
            outcome = _raised(journal, error)
        self.call_soon(self._ended, journal, outcome)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """From a thread of hosted code, which may be left over when the program has gone on."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments, context=self.context)

    def _ended(self, journal: Journal, outcome: Outcome) -> None:
        """The function has returned or raised. What it makes of being unwound (a `finally` that returns or raises, an
        `except BaseException`) is no outcome."""
        if journal.is_over or journal.live.is_gone:
            return
        journal.show_state()
        journal.close()
        journal.outcome = outcome
        self._end(journal, outcome)

    def _end(self, journal: Journal, outcome: Outcome) -> None:
        """Record the end, if the code's children have ended too. Those of a section that was cancelled know already."""
        if not journal.is_cancelling and journal.children.tell_all():
            return
        live, ask, (raw, failed, continues) = journal.live, journal.ask, outcome
        self.turns.approvals.withdraw_all(live, f"{journal.section}/")
        self.turns.unblock(live, ask)
        journal.give_back()
        live.execution.known.ended_sections.add(ask.key)
        unused = tuple(f"{r.lane}/{r.name}" for r in journal.unused.left() if r.outcome is not None)
        self._journals.pop((live.rid, ask.key), None)
        if self._to_undo.pop((live.rid, ask.key), None) is not None or live.has_effects:
            live.then += (lambda: self.turns.doubts.adopt_orphans(live),)
        output = pack(raw, live.execution.memo)
        event = e.SectionEnded(*ask.key, ask.name, ask.use, failed, output.digest, unused, continues)
        self.turns.report(live, event, raw=raw, output=output, delivers=True)

    # ── long waits ───────────────────────────────────────────────────────────────────────────
    def _look(self, journal: Journal) -> None:
        """Is this a section that has done nothing but wait?"""
        if not (journal.is_closed or journal.is_suspended or self._unwind(journal, UNWIND_SECONDS)):
            journal.next_look = self._loop.call_later(UNWIND_SECONDS / 4, self._look, journal)

    def give_back(self, live: LiveRun) -> None:
        """End the threads and tasks of hosted code that only waits, however short: the run is to leave memory."""
        for journal in self._of(live):
            if not journal.is_over:
                self._unwind(journal, 0)

    def _unwind(self, journal: Journal, after_seconds: float) -> bool:
        """End code that has waited for so long, for all that it has asked for. False: it does more than that, or an
        answer is on its way: code that were hosted again before it is there would be given another one."""
        waits = [request for request in journal.requests.values() if request.waiting]
        now = self._loop.time()
        if journal.held or journal.order or len(journal.participants) != 1 or not waits:
            return False
        if not all(r.is_wait and not r.is_reported and now - r.asked_at >= after_seconds for r in waits):
            return False
        journal.is_suspended = True
        for request in journal.requests.values():
            if not request.future.done():
                request.future.set_exception(Unwound("waiting: this thread is given back"))
        deadline = min((r.deadline for r in waits if r.deadline is not None), default=None)
        if journal.next_look is not None:
            journal.next_look.cancel()
        if deadline is not None:
            journal.next_look = self.turns.clock.wake_at(deadline, lambda: self._host_again(journal))
        return True

    def _host_again(self, journal: Journal) -> None:
        """From its start, with a journal of its own: to the thread that is being unwound the old one stays closed."""
        live, key = journal.live, (journal.live.rid, journal.ask.key)
        if self._journals.get(key) is journal and journal.is_suspended and not (live.is_gone or live.is_leaving):
            journal.close()
            self._journals[key] = again = Journal(self, live, journal.ask, journal.history)
            again.is_cancelling = journal.is_cancelling
            self._host(again)

    def deadline(self, live: LiveRun) -> int | None:
        """When the earliest wait of a suspended section ends."""
        waits = [
            r.deadline for j in self._of(live) if j.is_suspended for r in j.requests.values() if r.deadline is not None
        ]
        return min(waits, default=None)

    def waits_for(self, live: LiveRun) -> set[str]:
        """Kinds of what suspended sections wait for: `sleep`, `receive`, `child`."""
        journals = self._of(live)
        requests = [r for j in journals if j.is_suspended for r in j.requests.values() if r.waiting]
        kinds = {r.kind or (r.name.partition(":")[0] if r.arguments is None else "child") for r in requests}
        return kinds | {"child" for journal in journals if journal.outcome is not None}

    # ── what the turn tells ──────────────────────────────────────────────────────────────────
    def deliver(self, live: LiveRun, event: e.Event, at: int, raw: bytes | None) -> None:
        """An event of a run with sections is durable."""
        if isinstance(event, e.Keyed) and event.is_in_section:
            task, _, n = event.section.rpartition(":")
            journal = self._journals.get((live.rid, (task, int(n))))
            if journal is None:  # it is about to be hosted, after a restart
                live.execution.known.journals.setdefault(event.section, []).append((event, at, raw))
                return
            journal.deliver(event, at, raw)
            if journal.is_suspended:
                self._host_again(journal)
            elif journal.outcome is not None:
                self._end(journal, journal.outcome)
        elif isinstance(event, e.CallCancelled):
            if (live.rid, event.key) in self._to_undo:
                self._undo(live, event.key, at)
        elif isinstance(event, e.MessageArrived):
            for journal in self._of(live):
                self._message_came(journal, event.name)

    def go_on_in_order(self, live: LiveRun) -> None:
        """What was under way is durable: what hosted code is to hear of after that it hears now."""
        for journal in self._of(live):
            journal.order.go_on()

    def _message_came(self, journal: Journal, name: str) -> None:
        if journal.is_suspended:
            self._host_again(journal)
            return
        for request in list(journal.requests.values()):
            if request.name == RECEIVE + name and not request.is_reported:
                journal.perform(request)
                return

    def has_asked(self, live: LiveRun, key: Key) -> bool:
        """Whether hosted code waits for this call: it has to be told when it is to be tried again."""
        return any(key in journal.requests for journal in self._of(live))

    def hold_back(self, live: LiveRun, key: Key) -> bool:
        """Let this call go on when the run does. False if no hosted code asks for it."""
        requests = [journal.requests[key] for journal in self._of(live) if key in journal.requests]
        for request in requests:
            request.is_held_back = request.is_wait = True
        return bool(requests)

    def unread(self, live: LiveRun, key: Key) -> bytes | None:
        """The message that hosted code got for this call and could not read, if that is what it waits for."""
        requests = [journal.requests[key] for journal in self._of(live) if key in journal.requests]
        return requests[0].unread if requests else None

    def misfit(self, live: LiveRun, key: Key, value: bytes) -> str | None:
        """Why a value cannot stand for the result of a call of hosted code; None if it can."""
        for journal in self._of(live):
            if key in journal.requests:
                return journal.misfit(journal.requests[key], value)
        return None

    def perform_again(self, live: LiveRun, key: Key) -> None:
        """A person wants a stuck call tried again."""
        for journal in self._of(live):
            request = journal.requests.get(key)
            if request is None:
                continue
            if journal.is_suspended:
                self._host_again(journal)
            else:
                journal.perform(request)

    def go_on(self, live: LiveRun) -> None:
        """The run is not paused any more."""
        for journal in self._of(live) if live.has_sections else ():
            if live.execution.open.get(journal.ask.key) is not journal.ask and journal.cancelled is None:
                continue  # cancelled
            if journal.is_suspended and any(request.is_held_back for request in journal.requests.values()):
                self._host_again(journal)
            else:
                journal.go_on()

    def children_left(self, live: LiveRun, key: Key) -> list[str]:
        """Ids of child runs that a section has started and whose end is not known."""
        journal = self._journals.get((live.rid, key))
        recorded = live.execution.known.journals.get(section_of(key), [])
        events = journal.history if journal is not None else recorded
        told = told_children(events)
        return [child.run_id for key, child in running_children(events).items() if key not in told]

    def _of(self, live: LiveRun) -> list[Journal]:
        return [journal for (rid, _), journal in self._journals.items() if rid == live.rid]

    def cancel(self, live: LiveRun, ask: SectionAsk) -> None:
        """Nobody waits for this section any more. Code that has entered a saga is unwound as soon as it is durable that
        it is cancelled: what was answered before and what not is then the same whenever it runs again."""
        if ask.key not in live.execution.holding:
            if ask.key not in live.execution.known.ended_sections:
                (self._journals.get((live.rid, ask.key)) or Journal(self, live, ask)).give_back()
            self._close(live, ask.key)
            return
        live.has_sections = True
        self._to_undo[live.rid, ask.key] = ask
        if (journal := self._journals.get((live.rid, ask.key))) is not None:
            journal.is_cancelling = True
        if section_of(ask.key) in live.execution.known.cancelled_sections:  # before it was loaded
            self._undo(live, ask.key, 0)

    def _undo(self, live: LiveRun, key: Key, at: int) -> None:
        """Let the code of a cancelled section leave its sagas; run it again for that if it is not here."""
        journal, known = self._journals.get((live.rid, key)), live.execution.known
        history = known.journals.get(section_of(key), []) if journal is None else journal.history
        known.cancelled_sections.setdefault(section_of(key), (len(history), at))
        if journal is None:
            inherit.install()
            journal = self._journals[live.rid, key] = Journal(self, live, self._to_undo[live.rid, key])
            self._host(journal)
        elif journal.outcome is not None:
            self._end(journal, journal.outcome)
        elif journal.is_suspended:
            self._host_again(journal)
        else:
            journal.cancel()

    def undoes(self, live: LiveRun, key: Key) -> str:
        """The operation that a call of hosted code takes back, if it is an undoing."""
        for journal in self._of(live):
            request = journal.requests.get(key)
            ask = request.as_ask() if request is not None and request.as_ask is not None else None
            if isinstance(ask, EffectAsk):
                return ask.undoes
        return ""

    def _close(self, live: LiveRun, key: Key) -> None:
        journal = self._journals.pop((live.rid, key), None)
        if journal is not None:
            journal.close()
            for who in journal.participants:
                if isinstance(who, asyncio.Task):
                    who.cancel()

    def drop(self, live: LiveRun) -> None:
        """The run leaves this worker."""
        if live.has_sections:
            for rid, key in list(self._journals):
                if rid == live.rid:
                    self._close(live, key)
            for rid, key in list(self._to_undo):
                if rid == live.rid:
                    del self._to_undo[rid, key]

    def journal_of(self, task: asyncio.Task[Any]) -> Journal | None:
        """Whose code runs in this task."""
        return next((journal for journal in list(self._journals.values()) if task in journal.participants), None)

    def is_still(self, live: LiveRun) -> bool:
        """Whether all hosted code of the run waits for time to pass, or for news from outside."""
        return not live.has_sections or all(j.is_idle or j.is_still for j in self._of(live))

    def is_waiting(self, live: LiveRun) -> bool:
        """Whether all hosted code of the run waits for an answer: it can be unwound."""
        return not live.has_sections or all(journal.is_waiting for journal in self._of(live))

    def is_busy(self, live: LiveRun) -> bool:
        """Whether some section of the run is doing more than wait."""
        return live.has_sections and any(not journal.is_idle for journal in self._of(live))


def _returned(ask: SectionAsk, value: Any) -> Outcome:
    try:
        return Outcome(ask.result.dumps(value))
    except EncodeError as error:
        raise about_result(error, ask.name) from None


def _continues(journal: Journal, error: ContinueAsNew) -> Outcome:
    """The code ends this chapter. Its arguments could be recorded when it said so; it may have changed them since."""
    try:
        return Outcome(journal.live.execution.spec.arguments.dumps(error.arguments, error.keywords), continues=True)
    except Exception as problem:
        return _raised(journal, problem)


def _raised(journal: Journal, error: BaseException) -> Outcome:
    return Outcome(dump_exception(error, journal.live.execution.spec.raises), failed=True)

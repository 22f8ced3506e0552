"""How a run stops for a while: blocked until a person decides, paused, or out of memory because it only waits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from perdure.engine.calls import Key
from perdure.gates.budget import Movement
from perdure.history import events as e
from perdure.history.spending import Shortfall
from perdure.runtime import mail
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.performer import Flight
from perdure.runtime.standstill import Standstill
from perdure.store.protocol import Change, Status, Wakes

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

LOOK_SECONDS = 0.05

WAITS_FOR = {"approval": "approval", "question": "question", "receive": "message", "child": "child"}
"""What a run is said to wait for, by what its code asks for; the first that there is."""


class Parking:
    """Stops runs, and lets them go on or out of memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def block_call(
        self, live: LiveRun, reason: str, hint: str, flight: Flight, short: Shortfall | None = None,
        spending: tuple[Movement, ...] = (),
    ) -> None:  # fmt: skip
        """One call is stuck until a person decides; what else is under way goes on."""
        ask = flight.ask
        live.flights.pop(ask.key, None)
        if not flight.is_start_recorded:
            flight.is_start_recorded = ask.is_recorded = True
            live.entries.append(flight.start_entry())
        self.block(live, e.RunBlocked(reason, hint, *ask.key, ask.name, ask.use, short), spending)

    def block_asked(self, live: LiveRun, event: e.RunBlocked) -> None:
        """Hosted code comes to a question by itself, in the middle of a turn perhaps."""
        if live.is_in_turn:
            live.deferred += (lambda: self.block_asked(live, event),)
        elif not (live.is_gone or live.is_leaving):
            self.block(live, event)

    def heed(self, live: LiveRun) -> None:
        """The engine notes where a call of the code is stuck, and where it is not any more."""
        notes, live.execution.notes = live.execution.notes, ()
        for note in notes:
            if isinstance(note, e.RunBlocked):
                self.block(live, note)
            elif isinstance(note, e.RunUnblocked):
                live.note_unblocked(note)
                live.record(note)
                live.change = self.change(live)
            elif isinstance(note, e.ApprovalSpent):
                self._turns.approvals.has_lapsed(live, note)
            else:
                live.execution.notes += (note,)

    def block(self, live: LiveRun, event: e.RunBlocked, spending: tuple[Movement, ...] = ()) -> None:
        """Note that the run, or one call of it, waits for a person."""
        live.note_blocked(event)
        live.entries.append(Entry(event, spending=spending))
        live.change = self.change(live)
        log.warning("run %s is blocked (%s): %s", live.run_id, event.reason, event.hint)
        self._tell(live, event)
        self._turns.mark(live)

    def unblock(self, live: LiveRun, key: Key, choice: str, by: str = "", why: str = "") -> None:
        """Note that a call of the run waits for no person any more."""
        blocked = live.blocked_calls[key]
        unblocked = e.RunUnblocked(choice, by, *key, why, blocked.name, blocked.use)
        live.note_unblocked(unblocked)
        live.record(unblocked)
        live.change = self.change(live)

    def decided(self, live: LiveRun) -> None:
        """A decision was taken in. If somebody has to decide still, whoever waits for the run is told: the decision may
        have been about another call, or about one that was decided before."""
        blocked = self._blocked(live)
        if blocked is not None:
            self._tell(live, blocked)

    def _tell(self, live: LiveRun, event: e.RunBlocked) -> None:
        how = Standstill(Status.BLOCKED, event.reason, event.hint)
        live.then += (lambda: self._turns.on_standstill(live.rid, how),)

    def _blocked(self, live: LiveRun) -> e.RunBlocked | None:
        return live.blocked or next(iter(live.blocked_calls.values()), None)

    def change(self, live: LiveRun) -> Change:
        """The index row of a run as it stands: running, paused or blocked."""
        blocked = self._blocked(live)
        if blocked is not None:
            return Change(status=Status.BLOCKED, reason=blocked.reason, hint=blocked.hint)
        if live.is_paused:
            return Change(status=Status.WAITING, reason="paused", hint="")
        return Change(status=Status.RUNNING, reason="", hint="")

    def park(self, live: LiveRun, reason: str, hint: str) -> None:
        """The code cannot go on: wait for what is under way, note it, let go of the run."""
        live.silence()
        said = live.blocked
        if said is None or said.reason != reason or said.hint.removeprefix(mail.NO_VALUE) != hint:
            self.block(live, e.RunBlocked(reason, hint))
        if not live.flights and not self._turns.sections.is_busy(live):
            live.change = self.change(live)._replace(release=True, wakes=Wakes.CONTROL)
            self.leave(live)

    def release(self, live: LiveRun) -> None:
        """Let a run that only waits leave memory."""
        change = self.change(live)
        if change.status is Status.RUNNING:
            change = change._replace(status=Status.WAITING, reason=self._waits_for(live))
        moments = (self._turns.deadline(live), *(flight.wakes_at for flight in live.flights.values()))
        live.change = change._replace(
            waiting=live.waiting_bytes(), release=True,
            due_at=None if live.is_parked else min((at for at in moments if at is not None), default=None),
            wakes=Wakes.CONTROL if live.is_parked else Wakes.MAIL,
        )  # fmt: skip
        live.has_waiting_set = False
        self.leave(live)

    def _waits_for(self, live: LiveRun) -> str:
        asks = (ask for ask in live.execution.open.values() if not ask.is_about_debt)
        kinds = {ask.kind for ask in asks} | self._turns.sections.waits_for(live)
        if live.execution.holding or (live.execution.debts is not None and live.execution.debts.waits):
            kinds.add("child")
        for kind, reason in WAITS_FOR.items():
            if kind in kinds:
                return reason
        return "timer"

    def is_still(self, live: LiveRun) -> bool:
        """Whether nothing happens in this run until time passes or something comes from outside. What is left of its
        steps waits for the next attempt."""
        moves = live.is_in_turn or live.under_way or live.has_something_to_write or live.is_leaving or live.then
        reads = live.has_decisions and self._turns.premises.is_reading(live)
        return not (moves or reads or live.undelivered) and self._turns.sections.is_still(live)

    def is_kept_by_a_wait(self, live: LiveRun) -> bool:
        """Whether the run is in memory only because its hosted code is, and that waits."""
        return live.has_sections and not live.flights and self.is_still(live)

    def may_leave(self, live: LiveRun) -> bool:
        """Whether nothing is under way that would be lost with the memory."""
        return not live.flights and self._is_quiet(live) and not self._turns.sections.is_busy(live)

    def next_attempt_of_suspect(self, live: LiveRun) -> int | None:
        """When the first of its steps is tried again, if all of them wait for that, and the run is under suspicion. It
        is better off in the store then: it cannot be what the next death is about, and keeps no other suspect waiting.
        """
        flights = live.flights.values()
        if not (live.is_suspect and flights and self._is_quiet(live) and self._turns.sections.is_still(live)):
            return None
        return min(flight.wakes_at for flight in flights) if all(flight.only_waits for flight in flights) else None

    def _is_quiet(self, live: LiveRun) -> bool:
        quiet = not (
            live.is_in_turn
            or live.under_way
            or live.has_something_to_write
            or live.is_leaving
            or live.then
        )
        quiet = quiet and not (live.has_decisions and self._turns.premises.is_checking(live))
        return quiet and (live.is_parked or not live.held)

    def pause(self, live: LiveRun, by: str) -> None:
        """Start nothing new in this run until somebody resumes it."""
        live.is_paused = True
        live.record(e.RunPaused(by))
        live.change = self.change(live)
        live.silence()

    def resume(self, live: LiveRun, by: str) -> None:
        """Go on with a paused run."""
        live.is_paused = False
        live.record(e.RunResumed(by))
        live.change = self.change(live)
        held, live.held = live.held, ()
        live.execution.commands = [*held, *live.execution.commands]
        live.then += (lambda: self._turns.sections.go_on(live),)
        live.then += (self._turns.on_letters,)

    def load_again(self, live: LiveRun) -> None:
        """Let go of a run so that it is loaded afresh, with the code as it is now; once what of it is under way has
        ended, since that would begin a second time beside itself."""
        if live.flights or not self._turns.sections.is_waiting(live):
            if live.has_something_to_write:
                self._turns.mark(live)
            elif not live.flights:  # hosted code tells nobody when it comes to wait
                self._turns.loop.call_later(LOOK_SECONDS, self._turns.advance, live)
            return
        live.change = Change(status=Status.QUEUED, reason="", hint="", release=True, due_at=self._turns.clock.now())
        self.leave(live)

    def leave(self, live: LiveRun) -> None:
        live.is_leaving = True
        live.silence()
        live.then += (lambda: self._left(live),)
        self._turns.mark(live)

    def _left(self, live: LiveRun) -> None:
        self._turns.forget(live)
        self._turns.on_letters()  # it may be due again soon, or at once

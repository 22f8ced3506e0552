"""How a run gets on: load, step, append, perform, append. Read this file first.

    outcome ──▶ record ──▶ one append, shared with all runs that are ready ──▶ durable
                                                                                  │
    perform what the code asks for ◀── advance ◀── deliver to the code, in order ◀┘

An outcome (a step's result, a message, the passing of time) is recorded before the code sees it; only a lazy step's
result may come first. After each delivery the code runs dry; what it asks for then is performed. Nothing else happens
to a run. `Turns` is driven by plain callbacks of the loop that entered the Runtime, never from inside a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import Clock
from perdure.codec import hiding
from perdure.codec.exceptions import message_of
from perdure.decisions import Authority
from perdure.engine import where
from perdure.engine.calls import (
    QUESTIONS,
    Cancelled,
    ChildAsk,
    Command,
    EffectAsk,
    Overdue,
    RequestAsk,
    SectionAsk,
    StepAsk,
    section_of,
)
from perdure.engine.execution import Execution
from perdure.engine.loop import current_task
from perdure.errors import AuthorityUnreadableError, HistoryCorruptError, PerdureBug, StoreError
from perdure.history import events as e
from perdure.runtime import contracts, load, mail
from perdure.runtime.approvals import Approvals
from perdure.runtime.budgets import Budgets
from perdure.runtime.children import Children
from perdure.runtime.doubts import Doubts
from perdure.runtime.effects import Effects
from perdure.runtime.ends import Ends
from perdure.runtime.live import Delivery, Entry, LiveRun, OpenTurn, Written
from perdure.runtime.options import NO_RULES, Rules
from perdure.runtime.parking import Parking
from perdure.runtime.performer import UNREADABLE_MICROSECONDS, Flight, Performer
from perdure.runtime.sections import Sections
from perdure.runtime.settling import Settling
from perdure.runtime.standstill import Standstill
from perdure.runtime.threads import DaemonThreads
from perdure.runtime.transactions import Transactions
from perdure.runtime.writer import Job, Writer
from perdure.specs import WorkflowSpec
from perdure.store.protocol import (
    CONTROL_KINDS,
    Append,
    Change,
    Claim,
    Done,
    Exists,
    Held,
    Mail,
    NewRun,
    Outcome,
    Overdrawn,
    OverRate,
    RunInfo,
    Status,
    Store,
    Wakes,
)

if TYPE_CHECKING:
    from perdure.gates.policy import Policy
    from perdure.runtime.dismissing import Dismissing
    from perdure.runtime.forks import Forks
    from perdure.runtime.gates import Gates
    from perdure.runtime.premises import Premises

log = logging.getLogger("perdure")

warn = log.warning

SLOW_TURN_SECONDS = 0.05
TURN_THREADS_MAX = 4
EVENTS_REPLAYED_INLINE_MAX = 2_000

STARTED_PAUSED = "a worker that was started paused"

ABOUT_ANOTHER = (Cancelled, Overdue)
"""Commands that say something about an earlier one."""

Catalog = Mapping[tuple[str, int], WorkflowSpec]


class Turns:
    """All runs that this process holds in memory, and what drives them.

    What is called later is a `partial`: a lambda makes cells of the names that it uses, at every call of the method
    that it stands in, also when there is nothing to be called later.
    """

    def __init__(
        self,
        worker: str,
        store: Store,
        clock: Clock,
        writer: Writer,
        catalog: Catalog,
        *,
        steps_max: int,
        threads_max: int,
        provided: Mapping[type, Any],
        spending: Rules = NO_RULES,
        compare_all_inputs: bool = False,
        guard: Callable[[LiveRun, Callable[[], None]], None] | None = None,
        policy: Policy | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
        authority: Authority | None = None,
    ) -> None:
        self.authority = authority
        self.worker = worker
        self.store = store
        self.clock = clock
        self.writer = writer
        self.catalog = catalog
        self.compare_all_inputs = compare_all_inputs
        self.sections = Sections(self)
        self.children = Children(self)
        self.parking = Parking(self)
        self.approvals = Approvals(self)
        self.ends = Ends(self)
        self.performer = Performer(
            clock, self.report, self.parking.block_call, steps_max=steps_max, threads_max=threads_max, provided=provided
        )
        self.performer.on_escape = self.contain
        self.performer.gate = self._may_begin
        self.performer.policies = self._policies
        self.performer.read_first, self.performer.rest = self._read_first, self._rest
        self.policy = policy
        self._gates: Gates | None = None
        self.budgets = Budgets(self, spending)
        self.effects = Effects(self)
        self.doubts = Doubts(self)
        self.settling = Settling(self)
        self.transactions = Transactions(self)
        self._forks: Forks | None = None
        self._premises: Premises | None = None
        self._dismissing: Dismissing | None = None
        self.live: dict[int, LiveRun] = {}
        self.pauses_from: int | None = None
        self.on_interruption = self.interrupted
        self.on_standstill: Callable[[int, Standstill], None] = lambda rid, how: None
        self.on_gone: Callable[[LiveRun], None] = lambda _: None
        self.on_posts: Callable[[], None] = lambda: None
        self.on_letters: Callable[[], None] = lambda: None
        self.on_trouble: Callable[[], None] = lambda: None
        self.on_child: Callable[[str], None] = lambda _: None
        self._open_turns: dict[int, OpenTurn] = {}
        self._threads = DaemonThreads(TURN_THREADS_MAX, "perdure-turn")
        self._guard = guard
        self._stopwatch = stopwatch
        self._dirty: dict[int, LiveRun] = {}
        self._ids = itertools.count()
        self._id_prefix = os.urandom(8)
        self.loop = asyncio.get_running_loop()
        self.is_stopping = False
        writer.add_source(self._appends)

    @property
    def gates(self) -> Gates:
        """Who asks the policies; imported by those who have some."""
        if self._gates is None:
            from perdure.runtime.gates import Gates

            self._gates = Gates(self, self.policy)
        return self._gates

    def _policies(self, live: LiveRun) -> tuple[Policy, ...]:
        """Those that a run's calls have to pass."""
        return self.gates.policies(live)

    def _may_begin(self, flight: Flight) -> bool:
        if flight.live.has_decisions and self.premises.reuses(flight):
            return False
        return self.gates.step(flight)

    def _take_in(self, live: LiveRun) -> None:
        self.live[live.rid] = live
        live.is_gated = self.policy is not None or live.execution.spec.policy is not None or live.was_rewound
        self.budgets.admit(live)

    @property
    def forks(self) -> Forks:
        """Most processes have none."""
        if self._forks is None:
            from perdure.runtime.forks import Forks

            self._forks = Forks(self)
        return self._forks

    @property
    def premises(self) -> Premises:
        """Who reads what decisions rest on; imported by those whose steps declare that."""
        if self._premises is None:
            from perdure.runtime.premises import Premises

            self._premises = Premises(self)
        return self._premises

    async def _read_first(self, flight: Flight) -> None:
        await self.premises.read_first(flight)

    def _rest(self, flight: Flight, raw: bytes) -> None:
        self.premises.rest(flight, raw)

    @property
    def dismissing(self) -> Dismissing:
        """Who sees to the children of runs that have gone back."""
        if self._dismissing is None:
            from perdure.runtime.dismissing import Dismissing

            self._dismissing = Dismissing(self)
        return self._dismissing

    # ── load ─────────────────────────────────────────────────────────────────────────────────
    def admit(self, claim: Claim) -> None:
        """Take a claimed run into memory: load it, replay it, go on."""
        try:
            live, replay = load.rebuild(
                claim, self.store, self.catalog, log=warn, compare_all=self.compare_all_inputs
            )
            is_to_pause = self.pauses_from is not None and not live.is_paused
            is_to_pause = is_to_pause and not load.was_resumed(self.store, live.rid, since=self.pauses_from or 0)
        except StoreError:
            raise
        except Exception as error:  # whatever goes wrong while a history is read concerns this run alone
            log.error("run %s cannot be loaded: %s", claim.info.run_id, error)
            self._park_unheld(claim.info, "undecodable", f"its history cannot be loaded: {error}")
            return
        if (stale := self.live.get(live.rid)) is not None:
            self.forget(stale)
        self._take_in(live)
        for started in live.execution.known.children.values():
            self.on_child(started.run_id)
        known = live.execution.known
        was_left = claim.lost_owner is None and any(s.is_under_way for s in known.effects.values())
        if claim.lost_owner is not None or was_left:
            taken = e.TakenOver(claim.lost_owner or "", claim.lost_how or "left", live.epoch)
            live.execution.known.note_effect(taken, max(self.clock.now(), live.last_at))
            live.record(taken)
        if is_to_pause:
            self.parking.pause(live, STARTED_PAUSED)
        if live.entries:
            self.mark(live)
        if live.info.lineage and live.blocked_calls and live.info.status is not Status.BLOCKED:
            live.change = self.parking.change(live)  # a fork that begins where a person has to decide
            self.budgets.wait_too(live)
            self.mark(live)
        live.execution.on_interruption = self.on_interruption
        live.is_slow = live.length > EVENTS_REPLAYED_INLINE_MAX
        trouble: list[StoreError] = []

        def turn() -> None:
            try:
                replay()
            except StoreError as error:
                trouble.append(error)
            except HistoryCorruptError as error:
                live.execution.fail("undecodable", str(error))

        self.turn(live, turn, (), self._replayed, live, trouble)

    def _park_unheld(self, info: RunInfo, reason: str, hint: str) -> None:
        """A run that cannot be held in memory waits for a person, or for other code. Decisions about it are taken in:
        what they want was tried just now."""
        how = Standstill(Status.BLOCKED, reason, hint)
        decisions = tuple(letter.mail_id for letter in self.store.mail([info.rid]) if letter.kind in CONTROL_KINDS)
        change = Change(status=how.status, reason=how.reason, hint=how.hint, release=True, wakes=Wakes.CONTROL)
        append = Append(
            os.urandom(16), info.rid, info.epoch, self.store.last_row(info.rid).seq + 1, change=change, taken=decisions
        )

        def parked(done: asyncio.Future[Outcome]) -> None:
            if done.cancelled() or done.exception() is not None or not isinstance(done.result(), Done):
                self.on_trouble()  # something of it was still being written: it is given back, and loaded again
            else:
                self.on_standstill(info.rid, how)

        self.writer.submit(append).add_done_callback(parked)

    def contain(self, live: LiveRun, error: BaseException) -> None:
        """An exception that is nobody's (a bug of ours, or of a method of the user's objects that was called in
        passing) parks its run. It harms no other run, and leaves none stuck in memory."""
        if live.is_gone:
            return
        if isinstance(error, StoreError):
            self.lose(live)
            return
        log.error("run %s is parked: an exception escaped its turn", live.run_id, exc_info=error)
        told = f"{type(error).__name__}: {message_of(error)} ({where.raised_at(error)})"
        hint = (
            f"an exception escaped its turn: {told}. It comes from perdure, or from a method of one of your objects "
            "(__eq__, __hash__, ...) that perdure called"
        )
        self.forget(live)
        try:
            self._park_unheld(live.info._replace(epoch=live.epoch), "stuck_turn", hint)
        except Exception:  # the store is away, or worse: it is given back and loaded again, as soon as that can be
            self.on_trouble()

    def _replayed(self, live: LiveRun, trouble: Sequence[StoreError]) -> None:
        if trouble:
            log.warning("run %s could not be loaded, trying again: %s", live.run_id, trouble[0])
            self.lose(live)
            return
        if live.account is not None:
            self.budgets.settle_open(live)
        try:
            self.take_mail(self.store.mail([live.rid]))
        except StoreError:
            self.on_trouble()
        if live.blocked_calls:
            self.budgets.look_again(live)
        if live.execution.known.effects and live.execution.failure is None:
            self.doubts.adopt_orphans(live)
        self.advance(live)

    def admit_new(self, info: RunInfo, new: NewRun, input_raw: bytes) -> None:
        """Take a run into memory that this worker has just created."""
        if self.is_stopping or info.rid in self.live:
            return
        live = load.fresh(info, new, input_raw, self.catalog, log=warn)
        self._take_in(live)
        live.execution.on_interruption = self.on_interruption
        self.turn(live, live.execution.begin, (), self.advance, live)

    def interrupted(self, execution: Execution) -> None:
        """Code failed between its turns: a foreign thread called into it. Called in that thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: we have left
            self.loop.call_soon_threadsafe(self._interrupted, execution)

    def _interrupted(self, execution: Execution) -> None:
        for live in list(self.live.values()):
            if live.execution is execution and not live.is_in_turn:
                try:
                    self.advance(live)
                except Exception as error:
                    self.contain(live, error)

    # ── record ───────────────────────────────────────────────────────────────────────────────
    def report(
        self, live: LiveRun, event: e.Event, *, raw: bytes | None = None, output: Any = None, input: Any = None,
        delivers: bool = False, is_lazy: bool = False,
    ) -> None:  # fmt: skip
        """Something happened to a run: record it, then deliver it."""
        if live.is_gone or live.is_leaving:
            return
        if live.is_in_turn:
            again = partial(self.report, live, event, raw=raw, output=output, input=input)
            live.deferred += (partial(again, delivers=delivers, is_lazy=is_lazy),)
            return
        if is_lazy and self._may_deliver_first(live):
            self._deliver_first(live, event, raw, output, input)
            return
        live.entries.append(Entry(event, input, output, raw, delivers))
        self.mark(live)

    def _may_deliver_first(self, live: LiveRun) -> bool:
        """A lazy result may reach the code before it is durable, unless something recorded earlier is to be delivered
        first."""
        return live.under_way is None and not any(entry.delivers for entry in live.entries)

    def _deliver_first(self, live: LiveRun, event: e.Event, raw: bytes | None, output: Any, input: Any) -> None:
        at = live.last_at = max(self.clock.now(), live.last_at)
        live.entries.append(Entry(event, input, output, raw, False, at))
        live.lazy += 1
        live.undelivered += ((event, at, raw),)
        self.loop.call_soon(self._deliver_now, live)

    def _deliver_now(self, live: LiveRun) -> None:
        if live.is_in_turn:
            live.deferred += (partial(self._deliver_now, live),)
        elif live.undelivered and not live.is_gone:
            self._deliver(live, (), self.advance, live)

    def _deliver(self, live: LiveRun, outcomes: Sequence[Delivery], then: Callable[..., None], *of: Any) -> None:
        """Deliver these; lazy results that are still to be delivered stand before them in the history, and go first."""
        if live.undelivered:
            outcomes, live.undelivered = (*live.undelivered, *outcomes), ()
        following = () if live.under_way is None else live.under_way.outcomes  # the code does not know them yet
        live.execution.outcomes_left = len(outcomes) + len(following)
        if len(outcomes) == 1:
            self.turn(live, live.execution.deliver, outcomes[0], then, *of)
        elif outcomes:
            self.turn(live, live.execution.deliver_all, (outcomes,), then, *of)
        else:
            then(*of)

    def flush_lazy(self) -> None:
        """Have lazy results written that nothing else has taken along."""
        for live in self.live.values():
            if live.lazy:
                self.mark(live)

    def mark(self, live: LiveRun) -> None:
        """Have what the run has to write written."""
        if live.under_way is None and not live.is_in_turn:
            self._dirty[live.rid] = live
            self.writer.schedule()

    # ── append ───────────────────────────────────────────────────────────────────────────────
    def _appends(self) -> Iterable[Job]:
        dirty, self._dirty = self._dirty, {}
        now, committed = self.clock.now(), self.committed
        for live in dirty.values():
            if live.under_way is None and not live.is_gone and not live.is_in_turn:
                try:
                    yield self._append(live, now), committed, live
                except Exception as error:  # in one run it keeps no other from being written
                    self.contain(live, error)

    def _append(self, live: LiveRun, now: int) -> Append:
        if live.execution.state is not live.state_written:
            live.state_written = live.execution.state
            live.change = (live.change or Change())._replace(state=live.state_written)
        if live.has_waiting_set:
            live.has_waiting_set = False
            change = live.change or self.parking.change(live)
            live.change = change if change.waiting is not None else change._replace(waiting=b"")
        return live.build(self._id_prefix + next(self._ids).to_bytes(8, "big"), now)

    def committed(self, live: LiveRun, outcome: Outcome | Exception) -> None:
        if live.is_gone:
            return
        if live.is_in_turn:
            live.deferred += (partial(self.committed, live, outcome),)
            return
        try:
            if isinstance(outcome, Done):
                written = live.committed(outcome.length)
                self._deliver(live, written.outcomes, self._delivered, live, written)
            elif isinstance(outcome, Exists):
                self.children.exists(live, outcome)
            elif isinstance(outcome, Held):
                self.effects.held(live, outcome)
            elif isinstance(outcome, OverRate):
                self.gates.over_rate(live, outcome)
            elif isinstance(outcome, Overdrawn):
                self.budgets.overdrawn(live, outcome)
            elif isinstance(outcome, PerdureBug):
                self.contain(live, outcome)
            else:
                self._lost(live, outcome)
        except Exception as error:
            self.contain(live, error)

    def _delivered(self, live: LiveRun, written: Written) -> None:
        if live.has_sections:
            for entry, row in zip(written.entries, written.append.rows, strict=True):
                if not live.is_gone:
                    self.sections.deliver(live, entry.event, row.at, entry.raw)
            self.sections.go_on_in_order(live)
        for follow_up in written.then:
            follow_up()
        if not live.is_gone and not live.is_in_turn:
            self.advance(live)

    def _lost(self, live: LiveRun, outcome: Outcome | Exception) -> None:
        """Another worker owns the run now, or the store went away while we were leaving: nothing of ours counts."""
        if not self.is_stopping:
            log.warning("run %s is no longer ours (%s); dropped", live.run_id, outcome)
        self.forget(live)

    # ── step ─────────────────────────────────────────────────────────────────────────────────
    def turn(
        self, live: LiveRun, turn: Callable[..., None], given: tuple[Any, ...], then: Callable[..., None], *of: Any
    ) -> None:
        """Let the code run, by `turn(*given)`: here, or in a turn thread if its turns have shown to be long. After that
        `then(*of)`."""
        if not live.is_slow or self._guard is not None:
            try:
                if current_task(self.loop) is not None:
                    raise PerdureBug("a turn was driven from inside a task")
                self._drive(live, turn, given)
                then(*of)
            except KeyboardInterrupt:
                self.lose(live)
                raise
            except Exception as error:
                self.contain(live, error)
            return
        live.is_in_turn = True
        turning = self.loop.run_in_executor(self._threads, self._drive, live, turn, given)
        turning.add_done_callback(partial(self._turned, live, partial(then, *of)))

    def _turned(self, live: LiveRun, then: Callable[[], None], done: asyncio.Future[None]) -> None:
        """A turn thread is back: what happened to the run meanwhile is taken in now."""
        live.is_in_turn = False
        deferred, live.deferred = live.deferred, ()
        interrupt = None if done.cancelled() else done.exception()  # there was no thread for it before we left
        if live.is_gone:
            live.execution.close()
        elif isinstance(interrupt, Exception):
            self.contain(live, interrupt)
        elif interrupt is not None:
            self.lose(live)
        if interrupt is not None and not isinstance(interrupt, Exception):
            raise interrupt
        try:
            for action in (then, *deferred):
                if not live.is_gone:
                    action()
        except Exception as error:
            self.contain(live, error)
        self.on_letters()

    def _drive(self, live: LiveRun, turn: Callable[..., None], given: tuple[Any, ...]) -> None:
        """One turn. KeyboardInterrupt goes on its way: the run is then dropped from memory, unrecorded."""
        began = self._stopwatch()
        self._open_turns[live.rid] = OpenTurn(live, began, threading.get_ident())
        try:
            if self._guard is None:
                turn(*given)
            else:
                self._guard(live, partial(turn, *given))
        finally:
            self._open_turns.pop(live.rid, None)
            live.is_slow = self._stopwatch() - began > SLOW_TURN_SECONDS

    @property
    def driving(self) -> OpenTurn | None:
        """The turn that has been open for longest."""
        return min(list(self._open_turns.values()), key=lambda turn: turn.since, default=None)

    def advance(self, live: LiveRun) -> None:
        """Look at what the code asks for, and see to it."""
        execution = live.execution
        if live.is_gone:
            return
        if live.is_leaving:
            if live.has_something_to_write:  # it left while another commit was under way
                self.mark(live)
            return
        if execution.notes:
            self.parking.heed(live)
        if live.is_to_reload:
            self.parking.load_again(live)
            return
        if live.has_decisions and execution.failure is None and self.premises.holds_back(live):
            if live.has_something_to_write:
                self.mark(live)
            return
        if execution.failure is None and execution.ending is None:
            if execution.commands and not self._perform_all(live):
                return
            if (
                (not execution.open or execution.debts is not None)
                and execution.is_deadlocked
                and not live.held
                and not live.has_something_to_write
                and live.under_way is None
                and not live.flights
            ):
                execution.block_deadlocked()
        if execution.failure is not None:
            self.parking.park(live, execution.failure.reason, contracts.hint(live, execution.failure, self.store))
        elif execution.ending is not None and live.is_paused and self.pauses_from is not None:
            if live.has_something_to_write:  # it ends when somebody resumes it
                self.mark(live)
        elif execution.ending is not None:
            self.ends.end(live)
        else:
            if execution.loop.timers or live.alarm_at is not None or live.has_approvals or live.blocked_calls:
                self.set_alarm(live)
            if live.has_more_than_lazy() or live.then or execution.state is not live.state_written:
                self.mark(live)

    # ── perform ──────────────────────────────────────────────────────────────────────────────
    def _perform_all(self, live: LiveRun) -> bool:
        """Whether the run goes on here: it does not when the store could not be read for one of its commands, or when
        one of them took in that it is to end."""
        commands, live.execution.commands = live.execution.commands, []
        if live.is_parked:
            live.held += tuple(commands)
        elif live.is_suspect or (live.has_lazy() and not all(_is_lazy(c) for c in commands)):
            self._perform_after_append(live, commands)
        else:
            self._perform_each(live, commands)
        return not (live.is_gone or live.is_leaving)

    def _perform_each(self, live: LiveRun, commands: Sequence[Command]) -> None:
        """One after the other. While they are, letters may be taken in: the run may be parked by then, or over."""
        for place, command in enumerate(commands):
            if live.is_gone or live.is_leaving:
                return
            if live.is_parked:
                live.held += tuple(commands[place:])
                return
            self.perform(live, command)

    def _perform_after_append(self, live: LiveRun, commands: Sequence[Command]) -> None:
        """What came before has to be durable first: lazy results, and the starts of a run that may have killed us."""
        if live.is_suspect:
            for command in commands:
                if type(command) is StepAsk and not command.is_recorded:
                    command.is_recorded = True
                    live.entries.append(_start_of(command))

        live.unperformed += (commands,)

        def perform() -> None:
            if commands in live.unperformed:  # else the run has ended meanwhile
                live.unperformed = tuple(left for left in live.unperformed if left is not commands)
                self._perform_each(live, commands)

        if live.has_something_to_write:
            live.then += (perform,)
            self.mark(live)
        elif live.under_way is not None and live.under_way.lazy:
            live.under_way = msgspec.structs.replace(live.under_way, then=(*live.under_way.then, perform))
        else:
            perform()

    def perform(self, live: LiveRun, command: Command) -> None:
        if not isinstance(command, ABOUT_ANOTHER):
            if live.execution.open.get(command.key) is not command:
                return
            if self.is_stopping:  # whoever has the run next begins it
                live.held += (command,)
                return
        if type(command) is StepAsk:  # most of what there is
            if not live.waits_for_person(command.key):
                self.performer.start(live, command)
            return
        match command:
            case EffectAsk():
                if not live.waits_for_person(command.key):
                    self.effects.start(live, command)
            case StepAsk():
                pass  # seen to above
            case ChildAsk():
                self.children.start(live, command)
            case SectionAsk():
                self.sections.start(live, command)
            case RequestAsk():
                self.approvals.ask(live, command)
            case Overdue(ask):
                if live.execution.open.get(ask.key) is ask:
                    self.approvals.expire(live, ask.id)
            case Cancelled(ask):
                self.cancel(live, ask)

    def _cancel_effect(self, live: LiveRun, ask: EffectAsk) -> None:
        """What may have left stays under way, or with the person who is asked about it, until its outcome is known."""
        if ask.key not in live.execution.known.cancelled and ":" not in ask.key[0]:
            live.execution.known.cancelled.add(ask.key)
            live.record(e.CallCancelled(*ask.key, ask.name, ask.use))
        self.unblock(live, ask)
        self.effects.cancel(live, ask)
        self.mark(live)

    def perform_again(self, live: LiveRun, key: tuple[str, int]) -> None:
        """A person wants a stuck step tried again; in a run whose code has ended meanwhile nobody does."""
        ask = live.execution.open.get(key)
        if key in live.flights or live.execution.ending is not None:
            return
        if isinstance(ask, StepAsk) and live.is_parked:
            live.held += (ask,)
        elif isinstance(ask, StepAsk):
            self.perform(live, ask)
        elif live.has_sections:
            self.sections.perform_again(live, key)

    def cancel(self, live: LiveRun, ask: Any) -> None:
        if isinstance(ask, EffectAsk):
            self._cancel_effect(live, ask)
            return
        task, n = ask.key
        cancelled = e.CallCancelled(task, n, ask.name, ask.use)
        if isinstance(ask, RequestAsk):
            self.approvals.withdraw(live, ask.key, cancelled)
            self.mark(live)
            return
        if isinstance(ask, StepAsk):
            self.performer.cancel(live, ask.key)
        elif isinstance(ask, SectionAsk):
            if section_of(ask.key) in live.execution.known.cancelled_sections:  # it has still to undo what it did
                self.sections.cancel(live, ask)
                return
            self.children.tell(live, self.sections.children_left(live, ask.key))
            self.approvals.withdraw_all(live, section_of(ask.key) + "/")
            self.sections.cancel(live, ask)
        else:
            self.children.tell(live, [ask.run_id])
        live.record(cancelled)
        self.unblock(live, ask)
        if isinstance(ask, SectionAsk):
            self.doubts.adopt_orphans(live)
        self.mark(live)

    def unblock(self, live: LiveRun, ask: Any) -> None:
        """Nobody has to decide any more about a call that is over, nor about what hosted code asked for that is over
        with it. What may have happened outside is another matter."""
        inside, undoes = section_of(ask.key) + "/", ask.key in live.execution.holding
        effects = live.execution.known.effects
        for key, blocked in list(live.blocked_calls.items()):
            if undoes and blocked.name in QUESTIONS:
                continue
            may_have_happened = key in effects and effects[key].state.is_open
            if (key == ask.key or key[0].startswith(inside)) and not may_have_happened:
                self.parking.unblock(live, key, "cancelled")

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def deadline(self, live: LiveRun) -> int | None:
        deadlines = [d for d in (self._own_deadline(live), self.sections.deadline(live)) if d is not None]
        return min(deadlines, default=None)

    def _own_deadline(self, live: LiveRun) -> int | None:
        """When something is to happen next in a run by itself; sections see to their own waits."""
        deadline = live.execution.deadline()
        if not (live.has_approvals or live.blocked_calls):
            return deadline
        deadlines = (deadline, self.approvals.deadline(live), self.budgets.deadline(live))
        return min((each for each in deadlines if each is not None), default=None)

    def set_alarm(self, live: LiveRun) -> None:
        deadline = self._own_deadline(live)
        if deadline == live.alarm_at:
            return
        live.silence()
        if deadline is not None and not live.is_parked:
            live.alarm_at = deadline
            live.alarm = self.clock.wake_at(deadline, partial(self._time_passed, live))

    def _time_passed(self, live: LiveRun) -> None:
        live.alarm = live.alarm_at = None
        if live.is_in_turn or live.is_gone or live.is_leaving:
            return
        if live.has_approvals:
            self.approvals.remind(live)
        if live.blocked_calls:
            self.budgets.look_again(live)
        deadline = live.execution.deadline()
        if deadline is None:
            self.set_alarm(live)
            return
        if deadline > self.clock.now():
            self.set_alarm(live)
        else:
            live.entries.append(Entry(e.TimePassed(), delivers=True, at=None))
            live.last_at = max(live.last_at, deadline)
            self.mark(live)

    # ── mail ─────────────────────────────────────────────────────────────────────────────────
    def take_mail(self, letters: Sequence[Mail]) -> None:
        """Letters to runs that are in memory enter their histories, in the order in which they were sent."""
        left: dict[int, list[Mail]] = {}
        for letter in letters:
            live = self.live.get(letter.rid)
            if live is None:
                continue
            cannot_go_on = live.is_parked or live.execution.failure is not None
            if cannot_go_on and letter.kind not in CONTROL_KINDS:
                left.setdefault(live.rid, []).append(letter)
                continue
            self._take(live, letter)
            if not live.is_parked:
                for earlier in left.pop(live.rid, ()):
                    self._take(live, earlier)

    def _take(self, live: LiveRun, letter: Mail) -> None:
        if live.is_gone or live.is_leaving or live.is_in_turn or live.has_taken(letter.mail_id):
            return
        try:
            if mail.is_too_early(self, live, letter):
                return
            live.taken += (letter.mail_id,)
            mail.take(self, live, letter if hiding.active is None else mail.without_secrets(letter))
        except AuthorityUnreadableError as error:
            self._take_later(live, letter, error)
        except Exception as error:  # a letter that cannot be read harms no run but its own
            self.contain(live, error)
        else:
            self.mark(live)

    def _take_later(self, live: LiveRun, letter: Mail, error: AuthorityUnreadableError) -> None:
        """Whether a decision counts cannot be told now; it stays where it is, and nothing of it was recorded."""
        log.warning("run %s: a decision waits: %s", live.run_id, error)
        live.taken = tuple(mail_id for mail_id in live.taken if mail_id != letter.mail_id)
        self.clock.wake_at(self.clock.now() + UNREADABLE_MICROSECONDS, self.on_letters)

    # ── leaving ──────────────────────────────────────────────────────────────────────────────
    def close(self) -> None:
        """No further turn. A turn thread that does not come back is left alone."""
        self.doubts.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def lose(self, live: LiveRun) -> None:
        """Drop a run from memory that is still this worker's. If the worker goes on, the run is given back and loaded
        again."""
        self.forget(live)
        self.on_trouble()

    def forget(self, live: LiveRun) -> None:
        """Drop a run from memory; what of it was under way is stopped."""
        if live.is_gone:
            return
        live.is_gone = True
        live.silence()
        for kept in (self.live, self._dirty):
            if kept.get(live.rid) is live:
                del kept[live.rid]
        self.performer.drop(live)
        self.effects.drop(live)
        self.sections.drop(live)
        if live.is_in_turn:
            pass  # its turn thread closes it
        elif live.execution.ending is None:
            self.loop.call_soon(live.execution.close)
        else:
            live.execution.close()
        self.on_gone(live)


def _is_lazy(command: Command) -> bool:
    return isinstance(command, StepAsk) and command.spec.lazy


def _start_of(ask: StepAsk) -> Entry:
    kept = ask.spec.record_input
    started = e.StepStarted(*ask.key, ask.name, ask.use, ask.packed.digest if ask.packed else None, ask.view, kept)
    return Entry(started, ask.packed if kept else None)

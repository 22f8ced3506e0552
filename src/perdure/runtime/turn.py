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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure.clock import Clock
from perdure.codec import Memo, dump_exception, pack
from perdure.engine.calls import Cancelled, ChildAsk, Command, SectionAsk, StepAsk
from perdure.engine.chapters import Completed, Failed, NextChapter, WasCancelled
from perdure.errors import HistoryCorruptError, PerdureBug, RunConflictError, StoreError
from perdure.history import events as e
from perdure.runtime import load, mail
from perdure.runtime.live import CHAPTER_TO_BE_PLACED, Delivery, Entry, LiveRun, Written
from perdure.runtime.performer import Flight, Performer
from perdure.runtime.sections import Sections
from perdure.runtime.threads import DaemonThreads
from perdure.runtime.writer import Done as DoneCallback
from perdure.runtime.writer import Writer
from perdure.specs import WorkflowSpec
from perdure.store.protocol import (
    CONTROL_KINDS,
    Append,
    Change,
    Claim,
    Done,
    Exists,
    Mail,
    NewRun,
    Outcome,
    RunInfo,
    Status,
    Store,
    Wakes,
    Watch,
    Write,
)

_get_running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]

log = logging.getLogger("perdure")

SLOW_TURN_SECONDS = 0.05
TURN_THREADS_MAX = 4
EVENTS_REPLAYED_INLINE_MAX = 2_000

Catalog = Mapping[tuple[str, int], WorkflowSpec]


class Standstill(NamedTuple):
    """How a run came to a stop, for those who wait for it. `raw`: the result, or the exception, canonical."""

    status: Status
    reason: str = ""
    hint: str = ""
    raw: bytes | None = None


class Turns:
    """All runs that this process holds in memory, and what drives them."""

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
        compare_all_inputs: bool = False,
        guard: Callable[[LiveRun, Callable[[], None]], None] | None = None,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self.store = store
        self.clock = clock
        self.writer = writer
        self.catalog = catalog
        self.compare_all_inputs = compare_all_inputs
        self.performer = Performer(
            clock, self.report, self.block_call, steps_max=steps_max, threads_max=threads_max, provided=provided
        )
        self.sections = Sections(self)
        self.live: dict[int, LiveRun] = {}
        self.on_standstill: Callable[[int, Standstill], None] = lambda rid, how: None
        self.on_gone: Callable[[LiveRun], None] = lambda _: None
        self.on_letters: Callable[[], None] = lambda: None
        self.on_trouble: Callable[[], None] = lambda: None
        self.on_child: Callable[[str], None] = lambda _: None
        self._open_turns: dict[int, tuple[LiveRun, float]] = {}
        self._threads = DaemonThreads(TURN_THREADS_MAX, "perdure-turn")
        self._guard = guard
        self._stopwatch = stopwatch
        self._failed_here: set[str] = set()
        self._dirty: dict[int, LiveRun] = {}
        self._ids = itertools.count()
        self._id_prefix = os.urandom(8)
        self._loop = asyncio.get_running_loop()
        self.is_stopping = False
        writer.add_source(self._appends)

    # ── load ─────────────────────────────────────────────────────────────────────────────────
    def admit(self, claim: Claim) -> None:
        """Take a claimed run into memory: load it, replay it, go on."""
        try:
            live, replay = load.rebuild(
                claim, self.store, self.catalog, log=log.warning, compare_all=self.compare_all_inputs
            )
        except StoreError:
            raise
        except Exception as error:  # whatever goes wrong while a history is read concerns this run alone
            self._park_unreadable(claim, error)
            return
        if (stale := self.live.get(live.rid)) is not None:
            self.forget(stale)
        self.live[live.rid] = live
        for started in live.execution.known.children.values():
            self.on_child(started.run_id)
        if claim.lost_owner is not None:
            live.record(e.TakenOver(claim.lost_owner, claim.lost_how or "", live.epoch))
            self._mark(live)
        self._listen(live)
        live.is_slow = live.length > EVENTS_REPLAYED_INLINE_MAX
        trouble: list[StoreError] = []

        def turn() -> None:
            try:
                replay()
            except StoreError as error:
                trouble.append(error)
            except HistoryCorruptError as error:
                live.execution.fail("undecodable", str(error))

        self._turn(live, turn, lambda: self._replayed(live, trouble))

    def _park_unreadable(self, claim: Claim, error: Exception) -> None:
        """A run that cannot be loaded waits for a person, or for other code. Decisions about it are taken in: what they
        want was tried just now."""
        info = claim.info
        log.error("run %s cannot be loaded: %s", info.run_id, error)
        how = Standstill(Status.BLOCKED, "undecodable", f"its history cannot be loaded: {error}")
        decisions = tuple(letter.mail_id for letter in self.store.mail([info.rid]) if letter.kind in CONTROL_KINDS)
        change = Change(status=how.status, reason=how.reason, hint=how.hint, release=True, wakes=Wakes.CONTROL)
        append = Append(
            os.urandom(16), info.rid, info.epoch, self.store.last_row(info.rid).seq + 1, change=change, taken=decisions
        )
        parking = self.writer.submit(append)
        parking.add_done_callback(lambda done: done.exception() or self.on_standstill(info.rid, how))

    def _replayed(self, live: LiveRun, trouble: Sequence[StoreError]) -> None:
        if trouble:
            log.warning("run %s could not be loaded, trying again: %s", live.run_id, trouble[0])
            self.forget(live)
            self.on_trouble()
            return
        try:
            self.take_mail(self.store.mail([live.rid]))
        except StoreError:
            self.on_trouble()
        self.advance(live)

    def admit_new(self, info: RunInfo, new: NewRun, input_raw: bytes) -> None:
        """Take a run into memory that this worker has just created."""
        if self.is_stopping or info.rid in self.live:
            return
        live = load.fresh(info, new, input_raw, self.catalog, log=log.warning)
        self.live[live.rid] = live
        self._listen(live)
        self._turn(live, live.execution.begin, lambda: self.advance(live))

    def _listen(self, live: LiveRun) -> None:
        """Hear of code that fails between its turns: a foreign thread called into it."""

        def interrupted() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: we have left
                self._loop.call_soon_threadsafe(self._interrupted, live)

        live.execution.on_interruption = interrupted

    def _interrupted(self, live: LiveRun) -> None:
        if not live.is_gone and not live.is_in_turn:
            self.advance(live)

    # ── record ───────────────────────────────────────────────────────────────────────────────
    def report(
        self, live: LiveRun, event: e.Event, *, raw: bytes | None = None, output: Any = None, input: Any = None,
        delivers: bool = False, is_lazy: bool = False,
    ) -> None:  # fmt: skip
        """Something happened to a run: record it, then deliver it."""
        if live.is_gone or live.is_leaving:
            return
        if live.is_in_turn:
            live.deferred.append(
                lambda: self.report(
                    live, event, raw=raw, output=output, input=input, delivers=delivers, is_lazy=is_lazy
                )
            )
            return
        if is_lazy and self._may_deliver_first(live):
            self._deliver_first(live, event, raw, output, input)
            return
        live.entries.append(Entry(event, input, output, raw, delivers))
        self._mark(live)

    def _may_deliver_first(self, live: LiveRun) -> bool:
        """A lazy result may reach the code before it is durable, unless something recorded earlier is to be delivered
        first."""
        return live.under_way is None and not any(entry.delivers for entry in live.entries)

    def _deliver_first(self, live: LiveRun, event: e.Event, raw: bytes | None, output: Any, input: Any) -> None:
        at = max(self.clock.now(), live.last_at)
        live.entries.append(Entry(event, input, output, raw, False, at))
        live.lazy += 1
        live.undelivered.append((event, at, raw))
        self._loop.call_soon(self._deliver_now, live)

    def _deliver_now(self, live: LiveRun) -> None:
        if live.is_in_turn:
            live.deferred.append(lambda: self._deliver_now(live))
        elif live.undelivered and not live.is_gone:
            self._deliver_in_turn(live, [], lambda: self.advance(live))

    def _deliver_in_turn(self, live: LiveRun, outcomes: list[Delivery], then: Callable[[], None]) -> None:
        """Deliver these; lazy results that are still to be delivered stand before them in the history, and go first."""
        outcomes, live.undelivered = live.undelivered + outcomes, []
        deliver = live.execution.deliver
        live.execution.outcomes_left = len(outcomes) + live.outcomes_under_way

        def turn() -> None:
            for event, at, raw in outcomes:
                deliver(event, at, raw)

        if outcomes:
            self._turn(live, turn, then)
        else:
            then()

    def flush_lazy(self) -> None:
        """Have lazy results written that nothing else has taken along."""
        for live in self.live.values():
            if live.lazy:
                self._mark(live)

    def _mark(self, live: LiveRun) -> None:
        """Have what the run has to write written."""
        if live.under_way is None and not live.is_in_turn:
            self._dirty[live.rid] = live
            self.writer.schedule()

    # ── append ───────────────────────────────────────────────────────────────────────────────
    def _appends(self) -> Iterable[tuple[Write, DoneCallback]]:
        dirty, self._dirty = self._dirty, {}
        now = self.clock.now()
        for live in dirty.values():
            if live.under_way is None and not live.is_gone and not live.is_in_turn:
                try:
                    yield self._append(live, now)
                except Exception:  # a bug of ours in one run keeps no other from being written
                    log.exception("run %s cannot be written; dropped from memory", live.run_id)
                    self.forget(live)

    def _append(self, live: LiveRun, now: int) -> tuple[Write, DoneCallback]:
        if live.execution.state is not live.state_written:
            live.state_written = live.execution.state
            live.change = (live.change or Change())._replace(state=live.state_written)
        if live.has_waiting_set:
            live.has_waiting_set = False
            change = live.change or self.parked_change(live)
            live.change = change if change.waiting is not None else change._replace(waiting=b"")
        written = live.build(self._id_prefix + next(self._ids).to_bytes(8, "big"), now)
        return written.append, lambda outcome: self._committed(live, written, outcome)

    def _committed(self, live: LiveRun, written: Written, outcome: Outcome | Exception) -> None:
        if live.is_gone:
            return
        if live.is_in_turn:
            live.deferred.append(lambda: self._committed(live, written, outcome))
            return
        if isinstance(outcome, Done):
            self._deliver_all(live, live.committed(outcome.length))
        elif isinstance(outcome, Exists):
            self._child_exists(live, written, outcome)
        else:
            self._lost(live, outcome)

    def _deliver_all(self, live: LiveRun, written: Written) -> None:
        outcomes: list[Delivery] = [(entry.event, at, entry.raw) for entry, at in written.entries if entry.delivers]
        self._deliver_in_turn(live, outcomes, lambda: self._delivered(live, written))

    def _delivered(self, live: LiveRun, written: Written) -> None:
        if live.has_sections:
            for entry, at in written.entries:
                self.sections.deliver(live, entry.event, at, entry.raw)
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
    def _turn(self, live: LiveRun, turn: Callable[[], None], then: Callable[[], None]) -> None:
        """Let the code run: here, or in a turn thread if its turns have shown to be long."""
        if not live.is_slow or self._guard is not None:
            try:
                self._drive(live, turn)
            except KeyboardInterrupt:
                self.forget(live)
                raise
            then()
            return
        live.is_in_turn = True
        turning = self._loop.run_in_executor(self._threads, self._drive, live, turn)
        turning.add_done_callback(lambda done: self._turned(live, done, then))

    def _turned(self, live: LiveRun, done: asyncio.Future[None], then: Callable[[], None]) -> None:
        """A turn thread is back: what happened to the run meanwhile is taken in now."""
        live.is_in_turn = False
        deferred, live.deferred = live.deferred, []
        interrupt = done.exception()
        if live.is_gone:
            live.execution.close()
        elif interrupt is not None:
            self.forget(live)
        if interrupt is not None:
            raise interrupt
        if live.is_gone:
            return
        then()
        for action in deferred:
            action()
        self.on_letters()

    def _drive(self, live: LiveRun, turn: Callable[[], None]) -> None:
        """One turn. KeyboardInterrupt goes on its way: the run is then dropped from memory, unrecorded."""
        if _get_running_loop() is not None and asyncio.current_task() is not None:
            raise PerdureBug("a turn was driven from inside a task")
        began = self._stopwatch()
        self._open_turns[live.rid] = (live, began)
        try:
            if self._guard is None:
                turn()
            else:
                self._guard(live, turn)
        finally:
            self._open_turns.pop(live.rid, None)
            live.is_slow = self._stopwatch() - began > SLOW_TURN_SECONDS

    @property
    def driving(self) -> tuple[LiveRun, float] | None:
        """The turn that has been open for longest, and since when (monotonic seconds)."""
        return min(list(self._open_turns.values()), key=lambda turn: turn[1], default=None)

    def advance(self, live: LiveRun) -> None:
        """Look at what the code asks for, and see to it."""
        execution = live.execution
        if live.is_gone:
            return
        if live.is_leaving:
            if live.has_something_to_write:  # it left while another commit was under way
                self._mark(live)
            return
        if execution.failure is None and execution.ending is None:
            self._perform_all(live)
            if (
                execution.is_deadlocked
                and not live.held
                and not live.has_something_to_write
                and live.under_way is None
                and not live.flights
            ):
                execution.block_deadlocked()
        if execution.failure is not None:
            self._park(live, execution.failure.reason, execution.failure.hint)
        elif execution.ending is not None:
            self._end(live)
        else:
            self._set_alarm(live)
            if live.has_more_than_lazy or execution.state is not live.state_written:
                self._mark(live)

    # ── perform ──────────────────────────────────────────────────────────────────────────────
    def _perform_all(self, live: LiveRun) -> None:
        commands = live.execution.commands
        if not commands:
            return
        live.execution.commands = []
        if live.is_parked:
            live.held.extend(commands)
        elif live.is_suspect or (live.has_lazy and not all(_is_lazy(c) for c in commands)):
            self._perform_after_append(live, commands)
        else:
            for command in commands:
                self._perform(live, command)

    def _perform_after_append(self, live: LiveRun, commands: Sequence[Command]) -> None:
        """What came before has to be durable first: lazy results, and the starts of a run that may have killed us."""
        if live.is_suspect:
            for command in commands:
                if isinstance(command, StepAsk) and not command.is_recorded:
                    command.is_recorded = True
                    live.entries.append(_start_of(command))

        live.unperformed.append(commands)

        def perform() -> None:
            if commands in live.unperformed:  # else the run has ended meanwhile
                live.unperformed.remove(commands)
                if live.is_parked:  # meanwhile
                    live.held.extend(commands)
                    return
                for command in commands:
                    self._perform(live, command)

        if live.has_something_to_write:
            live.then.append(perform)
            self._mark(live)
        elif live.under_way is not None and live.under_way.has_lazy:
            live.under_way.then.append(perform)
        else:
            perform()

    def _perform(self, live: LiveRun, command: Command) -> None:
        if not isinstance(command, Cancelled) and live.execution.open.get(command.key) is not command:
            return
        match command:
            case StepAsk():
                if not live.waits_for_person(command.key):
                    self.performer.start(live, command)
            case ChildAsk():
                self.start_child(live, command)
            case SectionAsk():
                self.sections.start(live, command)
            case Cancelled(ask):
                self._cancel(live, ask)

    def start_child(self, live: LiveRun, ask: ChildAsk) -> None:
        """Start a child run: its first row and our note of it are one transaction."""
        if ask.is_started or ask.key in live.execution.known.children:
            return
        sibling = next((new for new in live.new_runs if new.run_id == ask.run_id), None)
        if sibling is not None:
            self._attach_to_sibling(live, ask, sibling)
            return
        now = max(self.clock.now(), live.last_at)
        is_ours = ask.spec.key in self.catalog and not self.is_stopping
        new = load.new_run(
            ask.spec, ask.run_id, ask.input, now=now, parent=live.run_id, owner=self.worker if is_ours else None
        )
        live.new_runs.append(new)
        self._record_child(live, ask, is_attached=False)
        live.then.append(partial(self._admit_child, new, ask.input))

    def _attach_to_sibling(self, live: LiveRun, ask: ChildAsk, sibling: NewRun) -> None:
        """Another call of the same turn has just asked for a child of this id."""
        if (sibling.workflow, sibling.version, sibling.input_digest) == (*ask.spec.key, ask.packed.digest):
            self._record_child(live, ask, is_attached=True)
            return
        ask.is_started = True
        live.entries.extend(_refused(Entry(_child_started(ask), ask.packed), sibling))
        self._mark(live)

    def _admit_child(self, new: NewRun, input_raw: bytes) -> None:
        try:
            info = self.store.find(new.run_id)
        except StoreError:
            self.on_trouble()
            return
        if info is not None and info.owner == self.worker and info.rid not in self.live:
            self._loop.call_soon(self.admit_new, info, new, input_raw)

    def _record_child(self, live: LiveRun, ask: ChildAsk, *, is_attached: bool) -> None:
        self.on_child(ask.run_id)
        ask.is_started = True
        live.watches.append(Watch(ask.run_id, live.rid, mail.child_key(ask)))
        live.execution.children[ask.key] = ask.run_id
        live.record(_child_started(ask, is_attached=is_attached), input=ask.packed)
        self._mark(live)

    def _child_exists(self, live: LiveRun, written: Written, taken: Exists) -> None:
        """A child's id is in use: attach to it if it is the same work, else that call fails. All else goes again."""
        live.under_way = None
        other = taken.run
        new = next(n for n in written.append.new_runs if n.run_id == other.run_id)
        same = (other.workflow, other.version, other.input_digest) == (new.workflow, new.version, new.input_digest)
        settled = {entry.event.key for entry, _ in written.entries if isinstance(entry.event, e.ChildEnded)}
        entries: list[Entry] = []
        for entry, _ in written.entries:
            event = entry.event
            if isinstance(event, e.ChildStarted) and event.run_id == other.run_id and event.key not in settled:
                entries.extend(_attached(entry) if same else _refused(entry, other))
            else:
                entries.append(entry)
        live.entries = entries + live.entries
        live.then = [then for then in written.then if not _is_about(then, new)] + live.then
        live.change = live.change or written.change
        live.taken = list(written.append.taken) + live.taken
        live.new_runs = [n for n in written.append.new_runs if n is not new] + live.new_runs
        live.watches = [w for w in written.append.watches if same or w.run_id != other.run_id] + live.watches
        live.letters = list(written.append.letters) + live.letters
        self._mark(live)

    def _cancel(self, live: LiveRun, ask: Any) -> None:
        if isinstance(ask, StepAsk):
            self.performer.cancel(live, ask.key)
        elif isinstance(ask, SectionAsk):
            self._tell_children(live, self.sections.children_left(live, ask.key))
            self.sections.cancel(live, ask.key)
        else:
            self._tell_children(live, [ask.run_id])
        task, n = ask.key
        live.record(e.CallCancelled(task, n, ask.name, ask.use))
        if live.blocked_calls.pop(ask.key, None) is not None:
            live.record(e.RunUnblocked("cancelled", "", task, n))
            live.change = self.parked_change(live)
        self._mark(live)

    def _tell_children(self, live: LiveRun, run_ids: Iterable[str]) -> None:
        """Cancel these child runs, in the same commit."""
        for run_id in run_ids:
            live.letters.append(
                mail.letter(run_id, "cancel", body=b'{"reason":"the parent cancelled it"}', now=self.clock.now())
            )
            live.then.append(self.on_letters)

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def _deadline(self, live: LiveRun) -> int | None:
        deadlines = [d for d in (live.execution.deadline(), self.sections.deadline(live)) if d is not None]
        return min(deadlines, default=None)

    def _set_alarm(self, live: LiveRun) -> None:
        deadline = live.execution.deadline()
        if deadline == live.alarm_at:
            return
        live.silence()
        if deadline is not None and not live.is_parked:
            live.alarm_at = deadline
            live.alarm = self.clock.wake_at(deadline, lambda: self._time_passed(live))

    def _time_passed(self, live: LiveRun) -> None:
        live.alarm = live.alarm_at = None
        if live.is_in_turn:
            return
        deadline = live.execution.deadline()
        if live.is_gone or live.is_leaving or deadline is None:
            return
        if deadline > self.clock.now():
            self._set_alarm(live)
        else:
            live.entries.append(Entry(e.TimePassed(), delivers=True, at=None))
            live.last_at = max(live.last_at, deadline)
            self._mark(live)

    # ── mail ─────────────────────────────────────────────────────────────────────────────────
    def take_mail(self, letters: Sequence[Mail]) -> None:
        """Letters to runs that are in memory enter their histories, in the order in which they were sent."""
        left: dict[int, list[Mail]] = {}
        for letter in letters:
            live = self.live.get(letter.rid)
            if live is None:
                continue
            cannot_go_on = live.is_parked or live.execution.failure is not None
            if cannot_go_on and letter.kind in {"message", "child"}:
                left.setdefault(live.rid, []).append(letter)
                continue
            self._take(live, letter)
            if not live.is_parked:
                for earlier in left.pop(live.rid, ()):
                    self._take(live, earlier)

    def _take(self, live: LiveRun, letter: Mail) -> None:
        if not (live.is_leaving or live.is_in_turn or live.has_taken(letter.mail_id)):
            live.taken.append(letter.mail_id)
            mail.take(self, live, letter)
            self._mark(live)

    # ── parking and ending ───────────────────────────────────────────────────────────────────
    def block_call(self, live: LiveRun, reason: str, hint: str, flight: Flight) -> None:
        """One call is stuck until a person decides; what else is under way goes on."""
        ask = flight.ask
        live.flights.pop(ask.key, None)
        if not flight.is_start_recorded:
            flight.is_start_recorded = ask.is_recorded = True
            live.entries.append(flight.start_entry())
        self.block(live, e.RunBlocked(reason, hint, *ask.key, ask.name, ask.use))

    def block(self, live: LiveRun, event: e.RunBlocked) -> None:
        """Note that the run, or one call of it, waits for a person."""
        live.note_blocked(event)
        live.record(event)
        live.change = self.parked_change(live)
        log.warning("run %s is blocked (%s): %s", live.run_id, event.reason, event.hint)
        how = Standstill(Status.BLOCKED, event.reason, event.hint)
        live.then.append(lambda: self.on_standstill(live.rid, how))
        self._mark(live)

    def parked_change(self, live: LiveRun) -> Change:
        """The index row of a run as it stands: running, paused or blocked."""
        blocked = live.blocked or next(iter(live.blocked_calls.values()), None)
        if blocked is not None:
            return Change(status=Status.BLOCKED, reason=blocked.reason, hint=blocked.hint)
        if live.is_paused:
            return Change(status=Status.WAITING, reason="paused", hint="")
        return Change(status=Status.RUNNING, reason="", hint="")

    def _park(self, live: LiveRun, reason: str, hint: str) -> None:
        """The code cannot go on: wait for what is under way, note it, let go of the run."""
        live.silence()
        said = live.blocked
        if said is None or said.reason != reason or said.hint.removeprefix(mail.NO_VALUE) != hint:
            self.block(live, e.RunBlocked(reason, hint))
        if not live.flights and not self.sections.is_busy(live):
            live.change = self.parked_change(live)._replace(release=True, wakes=Wakes.CONTROL)
            self._leave(live)

    def release(self, live: LiveRun) -> None:
        """Let a run that only waits leave memory."""
        change = self.parked_change(live)
        if change.status is Status.RUNNING:
            change = change._replace(status=Status.WAITING, reason=self._waits_for(live))
        live.change = change._replace(
            waiting=live.waiting_bytes(), release=True,
            due_at=None if live.is_parked else self._deadline(live),
            wakes=Wakes.CONTROL if live.is_parked else Wakes.MAIL,
        )  # fmt: skip
        live.has_waiting_set = False
        self._leave(live)

    def _waits_for(self, live: LiveRun) -> str:
        kinds = {ask.kind for ask in live.execution.open.values()} | self.sections.waits_for(live)
        if live.execution.holding:
            kinds.add("child")
        for kind, reason in (("receive", "message"), ("child", "child")):
            if kind in kinds:
                return reason
        return "timer"

    def is_still(self, live: LiveRun) -> bool:
        """Whether nothing happens in this run until time passes or something comes from outside. What is left of its
        steps waits for the next attempt."""
        moves = live.is_in_turn or live.under_way or live.has_something_to_write or live.is_leaving or live.then
        return not moves and not live.undelivered and self.sections.only_waits(live)

    def is_kept_by_a_wait(self, live: LiveRun) -> bool:
        """Whether the run is in memory only because its hosted code is, and that waits."""
        return live.has_sections and not live.flights and self.is_still(live)

    def may_leave(self, live: LiveRun) -> bool:
        """Whether nothing is under way that would be lost with the memory."""
        quiet = not (
            live.is_in_turn
            or live.flights
            or live.under_way
            or live.has_something_to_write
            or live.is_leaving
            or live.then
        )
        return quiet and not self.sections.is_busy(live) and (live.is_parked or not live.held)

    def resume(self, live: LiveRun, by: str) -> None:
        """Go on with a paused run."""
        live.is_paused = False
        live.record(e.RunResumed(by))
        live.change = self.parked_change(live)
        held, live.held = live.held, []
        live.execution.commands = held + live.execution.commands
        live.then.append(lambda: self.sections.go_on(live))
        live.then.append(self.on_letters)

    def perform_again(self, live: LiveRun, key: tuple[str, int]) -> None:
        """A person wants a stuck step tried again."""
        ask = live.execution.open.get(key)
        if key in live.flights:
            return
        if isinstance(ask, StepAsk) and live.is_parked:
            live.held.append(ask)
        elif isinstance(ask, StepAsk):
            self._perform(live, ask)
        elif live.has_sections:
            self.sections.perform_again(live, key)

    def load_again(self, live: LiveRun) -> None:
        """Let go of a run so that it is loaded afresh, with the code as it is now."""
        live.change = Change(status=Status.QUEUED, reason="", hint="", release=True, due_at=self.clock.now())
        self._leave(live)

    def _leave(self, live: LiveRun) -> None:
        live.is_leaving = True
        live.silence()
        live.then.append(lambda: self._left(live))
        self._mark(live)

    def _left(self, live: LiveRun) -> None:
        self.forget(live)
        self.on_letters()  # it may be due again soon, or at once

    def _end(self, live: LiveRun) -> None:
        ending = live.execution.ending
        live.silence()
        self.performer.drop(live)
        self._tell_cancelled(live)
        for ask in list(live.execution.open.values()):
            if isinstance(ask, ChildAsk):
                self.start_child(live, ask)
        if isinstance(ending, NextChapter):
            self._next_chapter(live, ending)
            return
        self._finish(live, *_final(ending))

    def _tell_cancelled(self, live: LiveRun) -> None:
        """Of all that was still to be done in a run that ends, only what it cancelled is."""
        for command in [*live.held, *itertools.chain(*live.unperformed), *live.execution.commands]:
            if isinstance(command, Cancelled):
                self._cancel(live, command.ask)
        live.held, live.unperformed, live.execution.commands = [], [], []

    def end_failed(self, live: LiveRun, raw: bytes) -> None:
        """End a run as failed, by a person's decision."""
        self._tell_cancelled(live)
        self._tell_children(live, self._children_left(live))
        self._finish(live, Status.FAILED, e.RunFailed, raw)

    def end_by_force(self, live: LiveRun) -> None:
        """End a run as cancelled without running any of its code."""
        self._tell_cancelled(live)
        self._tell_children(live, self._children_left(live))
        self._finish(live, Status.CANCELLED, lambda _: e.RunCancelled(forced=True), mail.CANCELLED)

    def _children_left(self, live: LiveRun) -> list[str]:
        """Ids of child runs that are not to outlive this one, where its code cannot cancel them any more."""
        execution = live.execution
        asks = [ask for ask in execution.open.values() if isinstance(ask, ChildAsk) and ask.is_started]
        sections = [ask.key for ask in execution.open.values() if isinstance(ask, SectionAsk)]
        unclaimed = [c for key, c in execution.known.children.items() if key not in execution.children]
        return [
            *(ask.run_id for ask in asks if ask.on_cancel == "wait"),
            *(run_id for key in sections for run_id in self.sections.children_left(live, key)),
            *(child.run_id for child in unclaimed if child.on_cancel == "wait" and not child.is_in_section),
        ]

    def _finish(self, live: LiveRun, status: Status, event: Callable[[bytes], e.Event], raw: bytes) -> None:
        self.performer.drop(live)
        self.sections.drop(live)
        output = pack(raw, live.execution.memo)
        live.record(event(output.digest), output=None if status is Status.CANCELLED else output)
        live.change = Change(
            status=status, reason="", hint="", waiting=b"", release=True, ending=mail.ending(status, raw)
        )
        live.is_leaving = True
        live.then.append(lambda: self._ended(live, Standstill(status, raw=raw)))
        self._mark(live)

    def _ended(self, live: LiveRun, how: Standstill) -> None:
        self.forget(live)
        self.on_standstill(live.rid, how)
        self.on_letters()

    def _next_chapter(self, live: LiveRun, ending: NextChapter) -> None:
        if live.under_way is not None or any(entry.delivers for entry in live.entries):
            self._mark(live)  # a message that came meanwhile belongs to what is carried over
            return
        execution = live.execution
        cancel = execution.cancel_carried
        chapter = execution.beginning.chapter + 1
        left_over = execution.carried()
        packed, carried = pack(ending.input, execution.memo), pack(left_over, execution.memo)
        seed = load.next_seed(execution.beginning.seed, chapter)
        event = e.ChapterStarted(chapter, seed, load.manifest(execution.spec), packed.digest, carried.digest)
        live.record(event, input=packed, output=carried)
        if cancel is not None:
            live.record(cancel)
        if live.is_paused:  # a chapter is loaded without those before it
            live.record(e.RunPaused())
        live.change = self.parked_change(live)._replace(chapter_seq=CHAPTER_TO_BE_PLACED)
        live.then.append(lambda: self._begin_chapter(live, event, ending.input, left_over, cancel))
        live.is_leaving = True
        self._mark(live)

    def _begin_chapter(
        self, live: LiveRun, event: e.ChapterStarted, input_raw: bytes, carried: bytes, cancel: e.CancelRequested | None
    ) -> None:
        live.execution.close()
        execution = live.execution = load.next_execution(live, event, input_raw, carried, log=log.warning)
        live.is_leaving = False
        live.undelivered, live.supplied = [], set()
        live.state_written = execution.state
        self._listen(live)

        def turn() -> None:
            execution.begin()
            if cancel is not None:
                execution.deliver(cancel, live.last_at)

        self._turn(live, turn, lambda: self.advance(live))
        self.on_letters()

    def close(self) -> None:
        """No further turn. A turn thread that does not come back is left alone."""
        self._threads.shutdown(wait=False, cancel_futures=True)

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
        self.sections.drop(live)
        if live.is_in_turn:
            pass  # its turn thread closes it
        elif live.execution.ending is None:
            self._loop.call_soon(live.execution.close)
        else:
            live.execution.close()
        self.on_gone(live)


def _is_lazy(command: Command) -> bool:
    return isinstance(command, StepAsk) and command.spec.lazy


def _start_of(ask: StepAsk) -> Entry:
    kept = ask.spec.record_input
    started = e.StepStarted(*ask.key, ask.name, ask.use, ask.packed.digest if ask.packed else None, ask.view, kept)
    return Entry(started, ask.packed if kept else None)


def _attached(entry: Entry) -> list[Entry]:
    return [entry._replace(event=msgspec.structs.replace(entry.event, attached=True))]


def _is_about(follow_up: Callable[[], None], new: NewRun) -> bool:
    """Whether it takes up a child that was not created after all: its id belongs to another run."""
    return isinstance(follow_up, partial) and any(argument is new for argument in follow_up.args)


def _child_started(ask: ChildAsk, *, is_attached: bool = False) -> e.ChildStarted:
    return e.ChildStarted(
        *ask.key, ask.name, ask.use, ask.run_id, ask.spec.version, ask.packed.digest, ask.on_cancel, is_attached
    )


def _refused(entry: Entry, other: RunInfo | NewRun) -> list[Entry]:
    started = entry.event
    if not isinstance(started, e.ChildStarted):
        return [entry]
    error = RunConflictError(
        f"run id {other.run_id!r} belongs to {other.workflow} version {other.version} with another input: "
        "give the child another id"
    )
    raw = dump_exception(error, ())
    output = pack(raw, Memo())
    ended = e.ChildEnded(*started.key, started.name, started.use, started.run_id, "failed", output.digest)
    return [entry, Entry(ended, None, output, raw, True)]


def _final(ending: Any) -> tuple[Status, Callable[[bytes], e.Event], bytes]:
    match ending:
        case Completed(output):
            return Status.COMPLETED, e.RunCompleted, output
        case Failed(output):
            return Status.FAILED, e.RunFailed, output
        case WasCancelled():
            return Status.CANCELLED, lambda _: e.RunCancelled(), mail.CANCELLED
        case _:
            raise PerdureBug(f"no such ending: {ending!r}")

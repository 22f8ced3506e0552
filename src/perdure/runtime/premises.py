"""Do a run's decisions still stand? Reads what they rest on: before a step's body, and again before they are relied on.

    the step's body is about to begin ──▶ read ──▶ recorded beside its result
    the run was taken over, a validity has passed, an effect is about to be sent ──▶ read again ──▶ compared, recorded
                                        ──▶ all stands: on it goes
                                        ├─▶ something does not: noted, kept, or put to a person
                                        └─▶ or the step is made again ──▶ the same: renewed
                                                                      └─▶ something else: the run is rewound

A check of an effect rides in the commit of the effect's start. What was read is good for a few seconds; then the effect
is checked once more. A fact that cannot be read is no change: it is tried again, then a person is asked. The rules are
`perdure.decisions.premises`'.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.clock import MICROSECONDS
from perdure.codec import digest, pack
from perdure.codec.exceptions import message_of
from perdure.decisions import ApprovalState
from perdure.decisions.premises import (
    NOT_AGAIN,
    REAPPROVE,
    Asked,
    Decisions,
    Key,
    On,
    Reader,
    Readers,
    Rest,
    Values,
    changed,
    encode_values,
    plain,
    told,
)
from perdure.engine.calls import CHECK_AGE_MAX_MICROSECONDS, Attempts, EffectAsk, StepAsk, linked
from perdure.engine.rewinding import Reusable, declared, split, step_named
from perdure.errors import PremiseUnreadableError, UnknownNameError, UsageError
from perdure.history import events as e
from perdure.ledger import Answered, Call, EffectState, LedgerEntry, NextRevision, Perform
from perdure.ledger.prepare import Decision
from perdure.runtime import load
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.performer import Flight, Performer
from perdure.runtime.retrying import Again, next_attempt
from perdure.specs import CallSpec, OnStale, Premise, Rests, StepSpec
from perdure.store.protocol import Change, Status

if TYPE_CHECKING:
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

READ_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
MADE_AGAIN_MAX = 10
"""How often a step is made again in one run since its result does not stand; then a person decides."""
DELAYS_SECONDS = (1.0, 2.0)
"""Between the tries of a check whose facts cannot be read."""


class Check:
    """One check under way. `on`: what of the run's decisions is looked at, if not all. `holds`: nothing of the run goes
    on meanwhile; `flights`: the effects that wait for it. `stale`: the steps that are to be made again; `rewinding`:
    one that has given another result, and that result."""

    def __init__(self, live: LiveRun, why: str, on: On = None) -> None:
        self.live, self.why, self.on = live, why, on
        self.holds = why != "effect"
        self.flights: list[EffectFlight] = []
        self.tries = 0
        self.read_at = 0
        self.is_reading = False
        self.stale: list[Key] = []
        self.rewinding: tuple[Recomputed, bytes] | None = None
        self.task: asyncio.Task[None] | None = None


class Recomputed(Flight):
    """A step that is made again, since its result does not stand."""

    is_anew = True

    def __init__(self, performer: Performer, live: LiveRun, ask: StepAsk, check: Check, now: int) -> None:
        super().__init__(performer, live, ask, Attempts(), now)
        self.check = check
        self.is_start_recorded = True


class Unread(NamedTuple):
    """Which fact cannot be read, and why."""

    name: str
    why: str


class Premises:
    """Reads what the decisions of the runs in memory rest on."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._checks: dict[LiveRun, Check] = {}

    # ── before a step's body ─────────────────────────────────────────────────────────────────
    async def read_first(self, flight: Flight) -> None:
        """Read what a step's result is going to rest on, in the context in which its body will run."""
        now, ask = self._turns.clock.now(), flight.ask
        flight.facts = (now, await self._read(ask.spec, ask.input, {}), {})

    async def _read(self, spec: StepSpec, raw: bytes, readers: Readers, part: frozenset[str] | None = None) -> Values:
        """What is declared of the step, and what its body has named; or a part of it."""
        readings = readings_of(spec, raw, readers, self._turns.performer.in_thread, part)
        read = await asyncio.gather(*(_told_if_unread(spec, name, read) for name, read in readings.items()))
        return dict(zip(readings, read, strict=True))

    def rest(self, flight: Flight, raw: bytes) -> None:
        """The step has given this: record what it rests on in the same commit."""
        live, rests = flight.live, flight.ask.spec.rests
        if live.is_in_turn:
            live.deferred += (partial(self.rest, flight, raw),)
        elif rests is not None and (flight.facts[1] or rests.valid_for_seconds is not None):
            self._record_read(flight, raw)

    def _record_read(self, flight: Flight, raw: bytes, *, renews: bool = False) -> None:
        live, ask, (read_at, values, readers) = flight.live, flight.ask, flight.facts
        limit = None if ask.spec.rests is None else ask.spec.rests.valid_for_seconds
        valid_until = 0 if limit is None else read_at + round(limit * MICROSECONDS)
        encoded = encode_values(values, readers)
        packed, result = pack(encoded, live.execution.memo), pack(raw, live.execution.memo)
        facts = tuple(e.Fact(name, digest(value)) for name, value in values.items())
        event = e.PremisesRead(
            *ask.key, ask.name, ask.use, facts, packed.digest, result.digest, read_at, valid_until, renews
        )  # fmt: skip
        live.entries.append(Entry(event, output=packed))
        self.decisions(live).note(event, encoded)
        live.has_decisions = True

    def decisions(self, live: LiveRun) -> Decisions:
        """What the run's history says of its decisions."""
        return live.execution.known.decisions

    # ── before the run goes on ───────────────────────────────────────────────────────────────
    def is_checking(self, live: LiveRun) -> bool:
        """Whether facts are being read for this run."""
        return live in self._checks

    def is_reading(self, live: LiveRun) -> bool:
        """Whether something comes of that by itself: not while the next try is waited for."""
        return live in self._checks and self._checks[live].is_reading

    def holds_back(self, live: LiveRun) -> bool:
        """Whether nothing of the run goes on before its decisions are checked."""
        if live.execution.leftovers is not None:
            self._turns.dismissing.look(live)
        check = self._checks.get(live)
        if check is not None and check.rewinding is not None:
            self._rewind(check, *check.rewinding)
            return True
        if check is not None:
            return check.holds
        if live.is_parked or not (live.execution.commands or live.execution.ending is not None):
            return False
        decisions, now = self.decisions(live), self._turns.clock.now()
        is_resumed, live.is_to_check = live.is_to_check, False
        decisions.awaits_code |= is_resumed
        if is_resumed and any(decisions.live()):
            self._begin(live, "resumed")
        elif decisions.is_any_over(now):
            self._begin(live, "waited")
        return live in self._checks

    def has_caught_up(self, live: LiveRun) -> None:
        """Hosted code that is run again after its worker died has asked for all that is recorded: now it is known how
        to read what that rests on."""
        decisions = self.decisions(live)
        if decisions.awaits_code and live not in self._checks and not live.is_parked:
            decisions.awaits_code = False
            if any(decisions.live()):
                self._begin(live, "resumed")

    def stand(self, flight: EffectFlight) -> bool:
        """Whether an effect may be sent, as far as its run's decisions are concerned. If not, it is sent once they are
        checked; or held, with its run."""
        live = flight.live
        if flight.ask.undoes or flight.may_have_left:  # what was done is taken back, whatever has changed
            return True
        check, on = self._checks.get(live), flight.spec.relies_on
        if check is None and self._are_fresh(live, on):
            return True
        if live.is_in_turn:
            live.deferred += (partial(self._turns.effects.send, flight),)
            return False
        check = check or self._begin(live, "effect", on)
        if flight not in check.flights:
            check.flights.append(flight)
        return False

    def unknown(self, flight: EffectFlight) -> UnknownNameError | None:
        """What an effect says that it relies on, by a name that nothing has which its run's code can name; None if all
        is well. Said where it is called: steps may be declared after the effect."""
        live, spec = flight.live, flight.spec
        known = self.decisions(live).names()
        for each in (*declared(live.execution.spec.function), *declared(spec.function)):
            if type(each) is StepSpec and each.rests is not None:
                known |= {each.name, *(premise.name for premise in each.rests.premises)}
        missing = next((name for name in spec.unproven if name not in known), None)
        what = f"premise or step for relies_on= of effect {spec.name}:"
        return None if missing is None else UnknownNameError(what, missing, known)

    def are_old(self, flight: EffectFlight) -> bool:
        """Whether what the effect's run rests on was read too long ago for it to be sent now."""
        return not flight.ask.undoes and not self._are_fresh(flight.live, flight.spec.relies_on)

    def _are_fresh(self, live: LiveRun, on: On) -> bool:
        return self.decisions(live).are_fresh(self._turns.clock.now(), CHECK_AGE_MAX_MICROSECONDS, on)

    # ── a check ──────────────────────────────────────────────────────────────────────────────
    def _begin(self, live: LiveRun, why: str, on: On = None) -> Check:
        check = self._checks[live] = Check(live, why, on)
        self._read_again(check)
        return check

    def _read_again(self, check: Check) -> None:
        if self._is_off(check):
            return
        check.tries += 1
        check.read_at, check.is_reading = self._turns.clock.now(), True
        check.task = self._turns.loop.create_task(self._read_all(check), context=self._turns.performer.fresh_context())
        until = check.read_at + round(READ_SECONDS_MAX * MICROSECONDS)
        alarm = self._turns.clock.wake_at(until, partial(_stop, check.task))
        check.task.add_done_callback(lambda _: alarm.cancel())

    def _is_off(self, check: Check) -> bool:
        """Whether the run has left meanwhile: whoever has it next checks for itself."""
        if not (check.live.is_gone or check.live.is_leaving or self._turns.is_stopping):
            return False
        self._checks.pop(check.live, None)
        if check.task is not None:
            check.task.cancel()
        return True

    async def _read_all(self, check: Check) -> None:
        """Read what every decision rests on; equal reads are made once."""
        performer = self._turns.performer
        reads: dict[tuple[Any, ...], asyncio.Task[Values]] = {}
        wanted: list[tuple[Key, asyncio.Task[Values]]] = []
        for key, rest, asked in self.decisions(check.live).live(check.on):
            part = rest.part(check.on)
            of = (*_what_reads(asked), encode_values({}, rest.readers), part)
            if of not in reads:
                flight = self.flight_of(check.live, rest, asked)
                reading = self._read_apart(flight, rest.readers, part)
                reads[of] = asyncio.create_task(reading, context=performer.fresh_context())
            wanted.append((key, reads[of]))
        try:
            await asyncio.gather(*reads.values(), return_exceptions=True)
        except asyncio.CancelledError:
            for task in reads.values():
                task.cancel()
        found: dict[Key, Values | Unread] = {key: _what_was_read(task) for key, task in wanted}
        self._turns.loop.call_soon(self._have_read, check, found)

    def flight_of(self, live: LiveRun, rest: Rest, asked: Asked) -> Flight:
        """In whose name facts are read: the step's, as if its body ran."""
        ask, now = self._ask_of(live, rest, asked), self._turns.clock.now()
        flight = Flight(self._turns.performer, live, ask, Attempts(), now)
        flight.airborne = -1  # what its readers say of themselves is nobody's
        flight.deadline = flight.started_at + round(READ_SECONDS_MAX * MICROSECONDS)
        return flight

    def _ask_of(self, live: LiveRun, rest: Rest, asked: Asked) -> StepAsk:
        from perdure.runtime.hosted.request import unused_future

        event, future = rest.event, unused_future(live)
        return linked(StepAsk(event.key, event.name, event.use, future, asked.spec, asked.input, is_recorded=True))

    async def _read_apart(self, flight: Flight, readers: Readers, part: frozenset[str] | None) -> Values:
        performer, spec = self._turns.performer, flight.ask.spec
        if spec.secrets:
            await performer.unlock(flight, 0)
        performer.enter(flight, 0)
        return await self._read(spec, flight.ask.input, readers, part)

    def _have_read(self, check: Check, found: dict[Key, Values | Unread]) -> None:
        live = check.live
        if self._is_off(check):
            return
        if live.is_in_turn:
            live.deferred += (partial(self._have_read, check, found),)
            return
        check.is_reading = False
        is_unread = any(isinstance(each, Unread) for each in found.values())
        if is_unread and check.tries <= len(DELAYS_SECONDS):
            again = self._turns.clock.now() + round(DELAYS_SECONDS[check.tries - 1] * MICROSECONDS)
            self._turns.clock.wake_at(again, partial(self._read_again, check))
            return
        try:
            self._judge(check, found)
            self._go_on(check)
        except Exception as error:
            self._turns.contain(live, error)

    def _go_on(self, check: Check) -> None:
        """The next step that is to be made again; or, when none is left, what waits for the check."""
        live, decisions = check.live, self.decisions(check.live)
        if check.stale and not live.is_parked:
            key = check.stale[0]
            check.holds = True
            self._make_again(check, decisions.rests[key], decisions.asked[key])
            return
        self._checks.pop(live, None)
        for flight in check.flights:
            self._turns.effects.send(flight)
        self._turns.advance(live)

    def _judge(self, check: Check, found: dict[Key, Values | Unread]) -> None:
        """Compare what was read with what was recorded, and record what comes of it."""
        live, now = check.live, self._turns.clock.now()
        decisions = self.decisions(live)
        findings: list[e.Finding] = []
        values: dict[str, Values] = {}
        lines: list[str] = []
        looked_at = 0
        for key, rest, asked in decisions.live(check.on):
            if key not in found:  # recorded since
                continue
            looked_at += 1
            finding, line = _finding(rest, asked, found[key], now, is_whole=rest.part(check.on) is None)
            if finding is not None and finding.did == REAPPROVE and key in decisions.refused:
                finding = msgspec.structs.replace(finding, did="recompute")
            if finding is not None and finding.did == "recompute" and decisions.made_again(key) >= MADE_AGAIN_MAX:
                finding = msgspec.structs.replace(finding, did="block")
                line += f"; it was made again {MADE_AGAIN_MAX} times, and has not stood"
            if finding is not None and finding.did == "recompute":
                check.stale.append(key)
            if finding is not None:
                findings.append(finding)
                lines.append(line)
                read = found[key]
                values[finding.call] = read if isinstance(read, dict) else {}
        self._record(check, looked_at, findings, values)
        if any(finding.did == "unreadable" for finding in findings):
            self._turns.parking.block(live, e.RunBlocked("premise_unreadable", "; ".join(lines)))
        elif any(finding.did == "block" for finding in findings):
            self._turns.parking.block(live, e.RunBlocked("stale_decision", "; ".join(lines)))
        elif any(finding.did == REAPPROVE for finding in findings):
            self._turns.parking.block(live, e.RunBlocked("stale_decision", "; ".join(lines), name=REAPPROVE))

    def _record(self, check: Check, looked_at: int, findings: list[e.Finding], values: dict[str, Values]) -> None:
        live, decisions = check.live, self.decisions(check.live)
        raw = msgspec.json.encode(
            {call: {name: msgspec.Raw(value) for name, value in read.items()} for call, read in values.items()},
            order="sorted",
        )
        packed = pack(raw, live.execution.memo) if values else None
        event = e.PremisesChecked(
            decisions.checks + 1, check.why, check.read_at, looked_at, tuple(findings),
            packed.digest if packed is not None else b"", check.on,
        )  # fmt: skip
        live.entries.append(Entry(event, output=packed))
        decisions.note(event, raw)
        for finding in findings:
            level = logging.INFO if finding.did in NOT_AGAIN else logging.WARNING
            log.log(level, "run %s: %s: %s", live.run_id, finding.call, finding.did)
        self._turns.mark(live)

    # ── made again ───────────────────────────────────────────────────────────────────────────
    def _make_again(self, check: Check, rest: Rest, asked: Asked) -> None:
        live, performer = check.live, self._turns.performer
        flight = Recomputed(performer, live, self._ask_of(live, rest, asked), check, self._turns.clock.now())
        flight.handler = self
        live.flights[flight.ask.key] = flight
        self._begin_again(flight)

    def _begin_again(self, flight: Recomputed) -> None:
        if flight.live.account is None or self._turns.budgets.is_reserved(flight, self._begin_again):
            self._turns.performer.enqueue(flight)

    def may_launch(self, flight: Recomputed) -> bool:
        """Nothing more is asked of it."""
        return True

    def came_late(self, flight: Recomputed, number: int, value: Any) -> None:
        """It was given up for lost."""

    def returned(self, flight: Recomputed, value: Any) -> None:
        """The step, made again, has given this: is it the same?"""
        try:
            raw = flight.ask.spec.result.dumps(value)
        except Exception as error:  # an EncodeError, or what the value's own methods raise
            self._could_not(flight, error)
            return
        self._turns.performer.end(flight)
        self._compare(flight, raw)

    def failed(self, flight: Recomputed, number: int, error: BaseException) -> None:
        """It is tried as often as the step is; then a person decides."""
        performer, now = self._turns.performer, self._turns.clock.now()
        try:
            failure = performer.failure_of(flight, error, now)
            decision = next_attempt(
                flight.ask.spec.retry, attempt=number, first_at=flight.first_at, now=now, failure=failure,
                random=random.random(),
            )  # fmt: skip
        except Exception as problem:
            self._could_not(flight, problem)
            return
        if isinstance(decision, Again):
            performer.land(flight)
            performer.wait_until(flight, decision.at, partial(performer.enqueue, flight))
        else:
            self._could_not(flight, error)

    def _could_not(self, flight: Recomputed, error: BaseException) -> None:
        self._turns.performer.end(flight)
        told = f"made again, it fails: {type(error).__name__}: {message_of(error)}"
        self._put_to_a_person(flight, told)

    def _put_to_a_person(self, flight: Recomputed, told: str) -> None:
        live, check = flight.live, flight.check
        if live.is_in_turn:
            live.deferred += (partial(self._put_to_a_person, flight, told),)
            return
        hint = f"{flight.ask.label} does not stand any more, and {told}"
        self._turns.parking.block(live, e.RunBlocked("stale_decision", hint))
        check.rewinding, check.stale = None, []
        self._go_on(check)

    def _compare(self, flight: Recomputed, raw: bytes) -> None:
        live, check = flight.live, flight.check
        if self._is_off(check):
            return
        if live.is_in_turn:
            live.deferred += (partial(self._compare, flight, raw),)
            return
        try:
            if pack(raw, live.execution.memo).digest == self.decisions(live).rests[flight.ask.key].event.result:
                self._record_read(flight, raw, renews=True)
                check.stale.remove(flight.ask.key)
                self._turns.mark(live)
                self._go_on(check)
            else:
                check.rewinding = (flight, raw)
                self._rewind(check, flight, raw)
        except Exception as error:
            self._turns.contain(live, error)

    # ── rewound ──────────────────────────────────────────────────────────────────────────────
    def _rewind(self, check: Check, flight: Recomputed, raw: bytes) -> None:
        """Let the run go back, once nothing of it is under way; asked again whenever something of it has happened."""
        live = check.live
        self._see_through(live)
        if live.is_leaving or live.is_parked or not self._is_quiet(live):
            if live.has_something_to_write:
                self._turns.mark(live)
            elif not (live.is_leaving or live.is_parked):  # hosted code tells nobody when it comes to wait
                self._turns.loop.call_later(LOOK_SECONDS, self._look_again, check)
            return
        past = load.Past(self._turns.store.load(live.rid), self._turns.store)
        rewound = self._rewound(check, flight, past)
        superseded = superseded_by(rewound, past)
        self._let_go_of_requests(live, superseded)
        live.record(rewound)
        self._record_read(flight, raw)
        self._record_result(flight, raw)
        log.warning(
            "run %s is rewound to event %s: %s has another result now", live.run_id, rewound.to, flight.ask.label
        )
        self._checks.pop(live, None)
        live.change = Change(status=Status.QUEUED, reason="", hint="", release=True, due_at=self._turns.clock.now())
        self._turns.parking.leave(live)

    def _record_result(self, flight: Recomputed, raw: bytes) -> None:
        """With the arguments: what had these is superseded, and hosted code finds its calls by them."""
        memo, ask, spec = flight.live.execution.memo, flight.ask, flight.ask.spec
        output, given = pack(raw, memo), pack(spec.request if isinstance(spec, CallSpec) else ask.input, memo)
        is_hosted = ":" in ask.key[0]
        has_view = not is_hosted and (spec.digest_view is not None or bool(spec.ignore))
        event = e.StepCompleted(
            *ask.key, ask.name, ask.use, output.digest, None if has_view else given.digest,
            ask.view if is_hosted else None, spec.record_input, flight.number, flight.started_at,
        )  # fmt: skip
        flight.live.record(event, output=output, input=given if spec.record_input and not has_view else None)

    def _look_again(self, check: Check) -> None:
        if self._checks.get(check.live) is check and not check.live.is_gone:
            self._turns.advance(check.live)

    def _see_through(self, live: LiveRun) -> None:
        """What an earlier worker may have sent is found out about, though nothing else of the run goes on."""
        effects, asked = live.execution.known.effects, live.execution.commands
        is_open = {key for key, standing in effects.items() if standing.state.is_open}
        sent = [ask for ask in asked if isinstance(ask, EffectAsk) and ask.key in is_open]
        if sent and not (live.is_leaving or live.is_parked):
            live.execution.commands = [ask for ask in asked if ask not in sent]
            for ask in sent:
                self._turns.perform(live, ask)

    def _is_quiet(self, live: LiveRun) -> bool:
        """Steps under way are stopped, and so is what has not been sent; what may have left is waited for, and written
        is what is to be written."""
        effects, performer = live.execution.known.effects, self._turns.performer
        for key in list(live.flights):
            standing = effects.get(key)
            if standing is None or not standing.state.is_open:
                performer.cancel(live, key)
        is_open = any(standing.state.is_open for standing in effects.values())
        is_written = not (live.has_something_to_write or live.under_way or live.undelivered or live.then)
        is_under_way = is_open or live.flights or live.is_in_turn
        return is_written and not is_under_way and self._turns.sections.is_waiting(live)

    def _rewound(self, check: Check, flight: Recomputed, past: load.Past) -> e.Rewound:
        ask, decisions = flight.ask, self.decisions(check.live)
        to = past.stored.rows[place_of_result(past, ask.key)].seq
        timers = tuple(e.Timer(*key, *timer) for key, timer in decisions.timers.items())
        stale = tuple(key for key in check.stale if key != ask.key)
        return e.Rewound(to, *ask.key, ask.name, ask.use, stale, timers)

    def _let_go_of_requests(self, live: LiveRun, superseded: Iterable[e.Event]) -> None:
        """Nobody waits any more for what people were asked since, and what they have approved is good for nothing: they
        are asked anew. Nor for a decision about a call that is stuck."""
        for key, blocked in list(live.blocked_calls.items()):
            live.note_unblocked(unblocked := e.RunUnblocked("cancelled", "", *key, "", blocked.name, blocked.use))
            live.record(unblocked)
        approvals = self._turns.approvals
        for key, event in {event.key: event for event in superseded if isinstance(event, e.PersonAsked)}.items():
            row = approvals.row(live, event.id)
            if row is not None and row.status is ApprovalState.PENDING:
                approvals.withdraw(live, key, e.CallCancelled(*key, event.name, event.use))
            elif row is not None and row.status is ApprovalState.APPROVED:
                approvals.lapse(live, event.id, event.label)

    def reuses(self, flight: Flight) -> bool:
        """Whether a step has its result already: from before the run was rewound, with the same arguments."""
        live, ask = flight.live, flight.ask
        before = live.execution.known.before
        if before is None or not ask.spec.reuse or not before.reusable:
            return False
        given = ask.view or (ask.packed or pack(ask.input, live.execution.memo)).digest
        found = before.found(ask.key, ask.name, given)
        if found is None:
            return False
        if live.is_in_turn:
            live.deferred += (partial(self._reuse, flight, found),)
        else:
            self._reuse(flight, found)
        return True

    def _reuse(self, flight: Flight, found: Reusable) -> None:
        live, ask = flight.live, flight.ask
        if flight.is_over:
            return
        self._turns.performer.end(flight)
        if found.read is not None:
            read = msgspec.structs.replace(found.read, renews=False)
            live.entries.append(Entry(read, output=pack(found.values, live.execution.memo)))
            self.decisions(live).note(read, found.values)
        output = pack(found.output, live.execution.memo)
        packed = None if flight.is_start_recorded else ask.packed
        kept = ask.spec.record_input
        event = e.StepReused(
            *ask.key, ask.name, ask.use, output.digest, None if packed is None else packed.digest,
            None if packed is None else ask.view, kept, of=found.seq,
        )  # fmt: skip
        self._turns.report(live, event, raw=found.output, output=output, input=packed if kept else None, delivers=True)

    def prepared(self, flight: EffectFlight, call: Call, found: LedgerEntry, decision: Decision) -> Decision:
        """What is to be done about an operation that is asked for again since the run was rewound. One that happened is
        answered, whichever call of the new way asks; one that was given up or taken back is done under the next id. So
        is the undoing of what was done a second time under the same key."""
        live, undone = flight.live, flight.undone
        before = live.execution.known.before
        if before is None or found.rid != live.rid:
            return decision
        if undone is not None and found.status is EffectState.SUCCEEDED and found.call != call.call:
            return decision if undone.compensated_by == found.operation_id else NextRevision()
        if found.operation_id in before.struck:
            return NextRevision()
        if found.status is EffectState.FAILED_RETRYABLE:  # the call that was to try it once more does not count
            return Perform() if found.request_hash == call.request_hash else NextRevision()
        if found.operation_id in live.execution.owed and found.request_hash == call.request_hash:
            return Answered(found)
        return decision


async def _told_if_unread(spec: StepSpec, name: str, read: Reads) -> bytes:
    try:
        return await read()
    except Exception as error:
        why = f"{type(error).__name__}: {message_of(error)}"
        raise PremiseUnreadableError(f"premise {name!r} of {spec.name} cannot be read: {why}", name) from error


InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in another thread."""
Reads = Callable[[], Coroutine[Any, Any, bytes]]


def readings_of(
    spec: StepSpec, raw: bytes, readers: Readers, in_thread: InThread, part: frozenset[str] | None = None
) -> Mapping[str, Reads]:
    """By name, what reads each fact that a step with these arguments rests on, or a part of those: those that are
    declared, and those that its body has named. Each is to be called, and awaited, in the context in which the step's
    body would run."""
    premises = {each.name: each for each in (spec.rests or Rests()).premises if each.name not in readers}
    wanted = [name for name in (*premises, *readers) if part is None or name in part]
    named: dict[str, Reads] = {name: partial(_read_named, spec, readers[name]) for name in wanted if name in readers}
    declared = {name: premises[name] for name in wanted if name in premises}
    return named | {name: partial(_read_declared, spec, each, raw, in_thread) for name, each in declared.items()}


async def _read_declared(spec: StepSpec, premise: Premise, raw: bytes, in_thread: InThread) -> bytes:
    args, kwargs = ((), {}) if premise.is_given else spec.arguments.loads(raw)
    if premise.is_async:
        return premise.result.dumps(await premise.read(*args, **kwargs))
    inside = partial(contextvars.copy_context().run, premise.read, *args, **kwargs)
    return premise.result.dumps(await in_thread(inside))


async def _read_named(spec: StepSpec, reader: Reader) -> bytes:
    """What a step gives now that the body of another one has named as the reader of a fact."""
    by = step_named(spec.function, reader.step)
    if by is None:
        raise UsageError(f"the code of {spec.name} names no step {reader.step!r} any more")
    args, kwargs = by.arguments.loads(bytes(reader.arguments))
    if by.is_async:
        return by.result.dumps(await by.function(*args, **kwargs))
    return by.result.dumps(await asyncio.to_thread(by.function, *args, **kwargs))


def place_of_result(past: load.Past, key: Key) -> int:
    """Where the result of a step begins that counts: with what it rests on. A renewal is no result."""
    return next(
        place for place in reversed(range(len(past.events)))
        if isinstance(event := past.events[place], e.PremisesRead) and event.key == key and not event.renews
    )  # fmt: skip


def superseded_by(rewound: e.Rewound, past: load.Past) -> list[e.Event]:
    """What of the events that count does not count any more once the run is rewound."""
    seqs = [*(row.seq for row in past.stored.rows), past.stored.length]
    return [past.events[place] for place in split([*past.events, rewound], seqs).superseded]


def _finding(
    rest: Rest, asked: Asked, read: Values | Unread, now: int, *, is_whole: bool
) -> tuple[e.Finding | None, str]:
    """What a decision has come to; None if it simply stands. And the same in words. Its time is not looked at where
    only some of its premises are."""
    event = rest.event
    of, rests = (event.task, event.n, event.call), asked.spec.rests
    if isinstance(read, Unread):
        return e.Finding(*of, (read.name,) if read.name else (), did="unreadable"), f"{event.call}: {read.why}"
    try:
        names = changed(rests.premises if rests else (), rest.values, read)
    except Exception as error:
        why = f"same= of its premises raised {type(error).__name__}: {message_of(error)}"
        return e.Finding(*of, did="unreadable"), f"{event.call}: {why}"
    is_over = is_whole and rest.is_over(now)
    if not names and not is_over:
        return None, ""
    finding = e.Finding(*of, tuple(names), is_over)
    did, note = _disposition(asked.spec, rest.values, read)
    return msgspec.structs.replace(finding, did=did), told(finding, rest.values, read) + note


def _disposition(spec: StepSpec, then: Values, now: Values) -> tuple[str, str]:
    """What is done about a result that does not stand; what the author's function cannot decide, a person does."""
    on_stale: Callable[..., Any] | OnStale = spec.rests.on_stale if spec.rests is not None else OnStale.BLOCK
    if isinstance(on_stale, OnStale):
        return on_stale, ""
    try:
        return OnStale(on_stale(plain(then), plain(now))), ""
    except Exception as error:
        return OnStale.BLOCK, f" (on_stale= of {spec.name} did not decide: {type(error).__name__}: {message_of(error)})"


def _what_reads(asked: Asked) -> tuple[Any, ...]:
    """Equal for calls of which the same is read; what is given with a call does not depend on its arguments."""
    premises = asked.spec.rests.premises if asked.spec.rests is not None else ()
    arguments = b"" if all(premise.is_given for premise in premises) else asked.input
    return tuple(premise.read for premise in premises), arguments


def _what_was_read(task: asyncio.Task[Values]) -> Values | Unread:
    if task.cancelled() or not task.done():
        return Unread("", f"what it rests on was not read within {READ_SECONDS_MAX:g} s")
    error = task.exception()
    if error is None:
        return task.result()
    name = error.premise if isinstance(error, PremiseUnreadableError) else ""
    return Unread(name, message_of(error))


def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()


__all__ = ["Premises"]

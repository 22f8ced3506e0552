"""Do a run's decisions still stand? Reads what they rest on: before a step's body, and again before they are relied on.

    the step's body is about to begin ──▶ read ──▶ recorded beside its result
    the run was taken over, a validity has passed, an effect is about to be sent ──▶ read again ──▶ compared, recorded
                                        ──▶ all stands: on it goes
                                        └─▶ something does not: noted, kept, or put to a person

A check of an effect rides in the commit of the effect's start. What was read is good for a few seconds; then the effect
is checked once more. A fact that cannot be read is no change: it is tried again, then a person is asked. The rules are
`perdure.decisions.premises`'.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.clock import MICROSECONDS
from perdure.codec import digest, pack
from perdure.codec.exceptions import message_of
from perdure.decisions.premises import Asked, Decisions, Key, Rest, Values, changed, encode_values, plain, told
from perdure.engine.calls import CHECK_AGE_MAX_MICROSECONDS, Attempts, StepAsk
from perdure.errors import PremiseUnreadableError
from perdure.history import events as e
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.performer import Flight
from perdure.specs import OnStale, Premise, StepSpec

if TYPE_CHECKING:
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

READ_SECONDS_MAX = 60.0
DELAYS_SECONDS = (1.0, 2.0)
"""Between the tries of a check whose facts cannot be read."""


class Check:
    """One check under way. `holds`: nothing of the run goes on meanwhile; `flights`: the effects that wait for it."""

    def __init__(self, live: LiveRun, why: str) -> None:
        self.live, self.why = live, why
        self.holds = why != "effect"
        self.flights: list[EffectFlight] = []
        self.tries = 0
        self.read_at = 0
        self.is_reading = False
        self.task: asyncio.Task[None] | None = None


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
        flight.facts = (now, await self._read(ask.spec, ask.input))

    async def _read(self, spec: StepSpec, raw: bytes) -> Values:
        premises = spec.rests.premises if spec.rests is not None else ()
        read = await asyncio.gather(*(self._read_one(spec, premise, raw) for premise in premises))
        return {premise.name: value for premise, value in zip(premises, read, strict=True)}

    async def _read_one(self, spec: StepSpec, premise: Premise, raw: bytes) -> bytes:
        args, kwargs = spec.arguments.loads(raw)
        try:
            if premise.is_async:
                value = await premise.read(*args, **kwargs)
            else:
                inside = partial(contextvars.copy_context().run, premise.read, *args, **kwargs)
                value = await self._turns.performer.in_thread(inside)
            return premise.result.dumps(value)
        except Exception as error:
            why = f"{type(error).__name__}: {message_of(error)}"
            what = f"premise {premise.name!r} of {spec.name} cannot be read: {why}"
            raise PremiseUnreadableError(what, premise.name) from error

    def rest(self, flight: Flight, raw: bytes) -> None:
        """The step has given this: record what it rests on in the same commit."""
        live, rests = flight.live, flight.ask.spec.rests
        if live.is_in_turn:
            live.deferred += (partial(self.rest, flight, raw),)
        elif rests is not None and (rests.premises or rests.valid_for_seconds is not None):
            self._record_read(flight, raw)

    def _record_read(self, flight: Flight, raw: bytes) -> None:
        live, ask, (read_at, values) = flight.live, flight.ask, flight.facts
        limit = None if ask.spec.rests is None else ask.spec.rests.valid_for_seconds
        valid_until = 0 if limit is None else read_at + round(limit * MICROSECONDS)
        encoded = encode_values(values)
        packed, result = pack(encoded, live.execution.memo), pack(raw, live.execution.memo)
        facts = tuple(e.Fact(name, digest(value)) for name, value in values.items())
        event = e.PremisesRead(
            *ask.key, ask.name, ask.use, facts, packed.digest, result.digest, read_at, valid_until
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
        if live in self._checks:
            return self._checks[live].holds
        if live.is_parked or not (live.execution.commands or live.execution.ending is not None):
            return False
        decisions, now = self.decisions(live), self._turns.clock.now()
        is_resumed, live.is_to_check = live.is_to_check, False
        if is_resumed and any(decisions.live()):
            self._begin(live, "resumed")
        elif decisions.is_any_over(now):
            self._begin(live, "waited")
        return live in self._checks

    def stand(self, flight: EffectFlight) -> bool:
        """Whether an effect may be sent, as far as its run's decisions are concerned. If not, it is sent once they are
        checked; or held, with its run."""
        live = flight.live
        if flight.ask.undoes or flight.may_have_left:  # what was done is taken back, whatever has changed
            return True
        check = self._checks.get(live)
        if check is None and self._are_fresh(live):
            return True
        if live.is_in_turn:
            live.deferred += (partial(self._turns.effects.send, flight),)
            return False
        check = check or self._begin(live, "effect")
        if flight not in check.flights:
            check.flights.append(flight)
        return False

    def are_old(self, flight: EffectFlight) -> bool:
        """Whether what the effect's run rests on was read too long ago for it to be sent now."""
        return not flight.ask.undoes and not self._are_fresh(flight.live)

    def _are_fresh(self, live: LiveRun) -> bool:
        return self.decisions(live).are_fresh(self._turns.clock.now(), CHECK_AGE_MAX_MICROSECONDS)

    # ── a check ──────────────────────────────────────────────────────────────────────────────
    def _begin(self, live: LiveRun, why: str) -> Check:
        check = self._checks[live] = Check(live, why)
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
        reads: dict[tuple[int, bytes], asyncio.Task[Values]] = {}
        wanted: list[tuple[Key, asyncio.Task[Values]]] = []
        for key, rest, asked in self.decisions(check.live).live():
            of = (id(asked.spec.rests), asked.input)
            if of not in reads:
                flight = self.flight_of(check.live, rest, asked)
                reads[of] = asyncio.create_task(self._read_apart(flight), context=performer.fresh_context())
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
        from perdure.runtime.hosted.request import unused_future

        event = rest.event
        ask = StepAsk(event.key, event.name, event.use, unused_future(live))
        ask.spec, ask.input, ask.is_recorded = asked.spec, asked.input, True
        ask.packed = ask.view = ask.grant = None
        flight = Flight(self._turns.performer, live, ask, Attempts(), self._turns.clock.now())
        flight.airborne = -1  # what its readers say of themselves is nobody's
        flight.deadline = flight.started_at + round(READ_SECONDS_MAX * MICROSECONDS)
        return flight

    async def _read_apart(self, flight: Flight) -> Values:
        performer, spec = self._turns.performer, flight.ask.spec
        if spec.secrets:
            await performer.unlock(flight, 0)
        performer.enter(flight, 0)
        return await self._read(spec, flight.ask.input)

    def _have_read(self, check: Check, found: dict[Key, Values | Unread]) -> None:
        live = check.live
        if self._is_off(check):
            return
        if live.is_in_turn:
            live.deferred += (partial(self._have_read, check, found),)
            return
        is_unread = any(isinstance(each, Unread) for each in found.values())
        if is_unread and check.tries <= len(DELAYS_SECONDS):
            check.is_reading = False
            again = self._turns.clock.now() + round(DELAYS_SECONDS[check.tries - 1] * MICROSECONDS)
            self._turns.clock.wake_at(again, partial(self._read_again, check))
            return
        del self._checks[live]
        try:
            self._judge(check, found)
            for flight in check.flights:
                self._turns.effects.send(flight)
            self._turns.advance(live)
        except Exception as error:
            self._turns.contain(live, error)

    def _judge(self, check: Check, found: dict[Key, Values | Unread]) -> None:
        """Compare what was read with what was recorded, and record what comes of it."""
        live, now = check.live, self._turns.clock.now()
        decisions = self.decisions(live)
        findings: list[e.Finding] = []
        values: dict[str, Values] = {}
        lines: list[str] = []
        looked_at = 0
        for key, rest, asked in decisions.live():
            if key not in found:  # recorded since
                continue
            looked_at += 1
            finding, line = _finding(rest, asked, found[key], now)
            if finding is not None:
                findings.append(finding)
                lines.append(line)
                read = found[key]
                values[finding.call] = read if isinstance(read, dict) else {}
        self._record(check, looked_at, findings, values)
        if any(finding.did == "unreadable" for finding in findings):
            self._turns.parking.block(live, e.RunBlocked("premise_unreadable", "; ".join(lines)))
        elif decisions.open:
            self._turns.parking.block(live, e.RunBlocked("stale_decision", "; ".join(lines)))

    def _record(self, check: Check, looked_at: int, findings: list[e.Finding], values: dict[str, Values]) -> None:
        live, decisions = check.live, self.decisions(check.live)
        raw = msgspec.json.encode(
            {call: {name: msgspec.Raw(value) for name, value in read.items()} for call, read in values.items()},
            order="sorted",
        )
        packed = pack(raw, live.execution.memo) if values else None
        event = e.PremisesChecked(
            decisions.checks + 1, check.why, check.read_at, looked_at, tuple(findings),
            packed.digest if packed is not None else b"",
        )  # fmt: skip
        live.entries.append(Entry(event, output=packed))
        decisions.note(event, raw)
        for finding in findings:
            log.warning("run %s: %s: %s", live.run_id, finding.call, finding.did)
        self._turns.mark(live)


def _finding(rest: Rest, asked: Asked, read: Values | Unread, now: int) -> tuple[e.Finding | None, str]:
    """What a decision has come to; None if it simply stands. And the same in words."""
    event = rest.event
    of, rests = (event.task, event.n, event.call), asked.spec.rests
    if isinstance(read, Unread):
        return e.Finding(*of, (read.name,) if read.name else (), did="unreadable"), f"{event.call}: {read.why}"
    try:
        names = changed(rests.premises if rests else (), rest.values, read)
    except Exception as error:
        why = f"same= of its premises raised {type(error).__name__}: {message_of(error)}"
        return e.Finding(*of, did="unreadable"), f"{event.call}: {why}"
    if not names and not rest.is_over(now):
        return None, ""
    finding = e.Finding(*of, tuple(names), rest.is_over(now))
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

"""An effect whose outcome nobody knows: does what the author declared for that case, until it is proven or a person is
asked. The rules are `perdure.ledger.doubt`'s."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from perdure.clock import MICROSECONDS, time_text
from perdure.codec import dump_exception
from perdure.codec.exceptions import message_of
from perdure.engine.calls import Key
from perdure.engine.known import Standing
from perdure.errors import StepError, StoreError
from perdure.history import events as e
from perdure.ledger import (
    AskPerson,
    Doubt,
    EffectState,
    Happening,
    LedgerEntry,
    LookUpNow,
    NothingHappened,
    SendAgain,
    WaitUntil,
    next_move,
    quiet_until,
)
from perdure.runtime.attempt import ATTEMPT
from perdure.runtime.effects import HELD_LOOK_MICROSECONDS, EffectFlight
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import PUT_OFF_MICROSECONDS, is_ours
from perdure.runtime.retrying import Again
from perdure.specs import CanLookUp, Found, NotFound, Unsure

if TYPE_CHECKING:
    from perdure.runtime.effects import Effects
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure")

LOOKUP_SECONDS_MAX = 60.0
_SETTLES = "settle it: `perdure inbox settle RUN --succeeded --value ... | --failed | --retry`"


class Doubts:
    """The effects in doubt of all runs in memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._looks: set[asyncio.Task[None]] = set()

    @property
    def _effects(self) -> Effects:
        return self._turns.effects

    def lost(
        self, flight: EffectFlight, why: str, *, again: Again | None = None, counts: bool = True,
        by_suspicion: bool = False, wants_person: bool = False,
    ) -> None:  # fmt: skip
        """Nobody knows what became of the attempt: note it, and do what the author declared."""
        ask, now = flight.ask, self._turns.clock.now()
        is_resent = flight.spec.downstream.kind == "idempotent" and not wants_person
        retry_at = again.at if again is not None and is_resent else 0
        if retry_at:
            flight.entry = flight.entry._replace(note=why, updated_at=now)
        elif flight.entry.status is EffectState.STARTED:
            flight.entry = flight.entry.moved(Happening.LOST, now=now, note=why)
        event = e.EffectInDoubt(
            *ask.key, ask.name, ask.use, flight.entry.operation_id, flight.entry.attempts, why, retry_at,
            0, counts, by_suspicion, wants_person,
        )  # fmt: skip
        self._effects.record(flight.live, event, flight.entry)
        self._turns.mark(flight.live)
        self.resolve(flight)

    def go_on(self, flight: EffectFlight) -> None:
        """The history knows this effect, and no outcome: go on where it stands."""
        if flight.is_over:
            return
        standing, now = flight.standing, self._turns.clock.now()
        try:
            entry = self._effects.row(flight.live, standing.operation)
            flight.undone = self._effects.undone_by(flight)
        except StoreError as error:
            self._effects.later(flight, PUT_OFF_MICROSECONDS, self.go_on, error)
            return
        if entry is None:
            hint = f"the ledger has no row for {standing.operation}, which the history has started"
            self._effects.block(flight, "unknown_effect", hint)
            return
        flight.entry, flight.number = entry, entry.attempts
        if standing.state is EffectState.FAILED_RETRYABLE and entry.status is not standing.state:
            self._turns.lose(flight.live)  # somebody else has the run, and has gone on with it
        elif standing.state is EffectState.FAILED_RETRYABLE:
            self._effects.wait(flight, 0 if flight.is_cancelled else standing.retry_at, self._effects.send)
        elif entry.status is EffectState.SUCCEEDED:
            hint = f"{flight.ask.label} succeeded, and its result could not be recorded"
            self._effects.undecodable(flight, hint, None)
        elif standing.doubt is not None:
            self.resolve(flight)
        else:
            self._interrupted(flight, standing, now)

    def _interrupted(self, flight: EffectFlight, standing: Standing, now: int) -> None:
        """Whoever sent it has not told what came of it."""
        quiet = quiet_until(
            started_at=standing.started_at, suspected_at=standing.suspected_at, is_proven_dead=standing.is_proven_dead,
            timeout=round(flight.spec.timeout_seconds * MICROSECONDS),
        )  # fmt: skip
        if now < quiet:
            self._effects.wait(flight, quiet, self.go_on)
            return
        how = "was taken for dead" if standing.suspected_at else "died" if standing.is_proven_dead else "was stopped"
        may_still_send = bool(standing.suspected_at) or (standing.was_left and not flight.spec.is_async)
        self.lost(
            flight, f"the process that sent attempt {standing.attempt} {how} before it noted an answer",
            again=Again(now), counts=False, by_suspicion=may_still_send,
        )  # fmt: skip

    def resolve(self, flight: EffectFlight) -> None:
        """Do the next thing about a doubt."""
        if flight.is_over:
            return
        now = self._turns.clock.now()
        match next_move(self._doubt(flight), now):
            case SendAgain():
                self._effects.wait(flight, flight.standing.retry_at, self._effects.send)
            case LookUpNow():
                self._look_up(flight)
            case WaitUntil(at):
                self._effects.wait(flight, at, self.resolve)
            case NothingHappened() if self._turns.performer.is_in_thread(flight.live, flight.ask.key):
                self._wait_for_thread(flight, now)
            case NothingHappened():
                self._nothing_happened(flight, now)
            case AskPerson(why):
                self._ask_person(flight, why)

    def _doubt(self, flight: EffectFlight) -> Doubt:
        spec, standing = flight.spec, flight.standing
        doubt = standing.doubt or e.EffectInDoubt("", 0, "")
        since = max(standing.doubt_at, flight.ended_at)
        settle = spec.downstream.settle_after_seconds if isinstance(spec.downstream, CanLookUp) else 0
        return Doubt(
            spec.downstream.kind, spec.lookup is not None, since, round(settle * MICROSECONDS),
            doubt.by_suspicion, standing.retry_at > 0, doubt.wants_person, standing.looks,
        )  # fmt: skip

    def _wait_for_thread(self, flight: EffectFlight, now: int) -> None:
        """The other side does not know it, and a thread of ours that has timed out may still send it. What was said
        before that thread ended proves nothing."""
        patience_until = flight.standing.looks[-1].at + round(flight.spec.timeout_seconds * MICROSECONDS)
        if now < patience_until:
            self._effects.wait(flight, min(patience_until, now + HELD_LOOK_MICROSECONDS), self.resolve)
        else:
            why = "the other side does not know it; but its body still runs in a thread here, and may still send"
            self._ask_person(flight, why)

    def _nothing_happened(self, flight: EffectFlight, now: int) -> None:
        standing, why = flight.standing, "looked up twice: the other side does not know it"
        raw = dump_exception(StepError(f"attempt {standing.attempt} of {flight.ask.label} did nothing ({why})"), ())
        if standing.failed < flight.spec.retry.max_attempts and not flight.is_cancelled:
            self._effects.not_done(flight, raw, now, standing.failed, why)
            return
        entry = flight.entry.moved(Happening.NOT_FOUND, now=now).moved(Happening.GIVEN_UP, now=now, note=why)
        self._effects.fail(flight, raw, "refused", entry)

    def _ask_person(self, flight: EffectFlight, why: str) -> None:
        entry, run_id = flight.entry, flight.live.run_id
        known = f"; known: {entry.note}" if entry.note else ""
        reference = f"; reference {entry.external_ref}" if entry.external_ref else ""
        last = time_text(entry.started_at) if entry.started_at else "?"
        sent = f"sent {entry.attempts} time(s), last at {last}, under the key {entry.operation_id}"
        hint = (
            f"{entry.action_name} {entry.business_key!r} was {sent}{reference}{known}. {why[:1].upper()}{why[1:]}. "
            f"Find out what became of it, then {_SETTLES.replace('RUN', run_id)}"
        )
        self._effects.block(flight, "unknown_effect", hint)

    def _look_up(self, flight: EffectFlight) -> None:
        if not self._turns.performer.may_begin():
            self._effects.wait(flight, self._turns.clock.now() + PUT_OFF_MICROSECONDS, self.resolve)
            return
        context = self._turns.performer.fresh_context()
        task = self._loop.create_task(self._ask_other_side(flight), context=context)
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _ask_other_side(self, flight: EffectFlight) -> None:
        answer: Any
        try:
            ATTEMPT.set(flight)
            seconds = min(LOOKUP_SECONDS_MAX, flight.spec.timeout_seconds)
            async with asyncio.timeout(seconds):
                if flight.spec.secrets:
                    await self._turns.performer.unlock(flight, flight.entry.attempts)
                operation = flight.operation_of(None, flight.entry.attempts)
                performer, lookup = self._turns.performer, flight.spec.lookup
                if lookup is None:
                    raise AssertionError("there is nobody to ask")
                answer = await performer.call(performer.around(flight, lookup), operation)
        except BaseException as error:
            if is_ours(error):
                raise
            answer = Unsure(f"{type(error).__name__}: {message_of(error)}")
        self._looked_up(flight, answer)

    def _looked_up(self, flight: EffectFlight, answer: Any) -> None:
        live = flight.live
        if flight.is_over or live.is_gone or live.is_leaving:
            return
        if live.is_in_turn:
            live.deferred += (lambda: self._looked_up(flight, answer),)
            return
        match answer:
            case Found():
                self._found(flight, answer)  # pyright: ignore[reportUnknownArgumentType]
                return
            case NotFound():
                said, why = "not_found", ""
            case Unsure(why):
                said = "unsure"
            case _:
                said = "unsure"
                expected = "return Found(result), NotFound() or Unsure()"
                why = f"the lookup of {flight.spec.name} returned {answer!r}: {expected}"
                log.error("run %s: %s", live.run_id, why)
        flight.entry = flight.entry._replace(note=f"looked up: {said.replace('_', ' ')} {why}".strip())
        self._effects.record(flight.live, self._look(flight, said, why), flight.entry)
        self._turns.mark(live)
        self.resolve(flight)

    def _look(self, flight: EffectFlight, answer: str, why: str, reference: str | None = None) -> e.EffectLookedUp:
        ask = flight.ask
        return e.EffectLookedUp(*ask.key, ask.name, ask.use, flight.entry.operation_id, answer, why, reference)

    def _found(self, flight: EffectFlight, found: Found[Any]) -> None:
        entry = flight.entry.moved(Happening.FOUND, now=self._turns.clock.now())
        reference = found.reference or entry.external_ref
        flight.entry = entry._replace(external_ref=reference, note="found by look-up")
        self._effects.record(flight.live, self._look(flight, "found", "", reference), None)
        try:
            raw = flight.spec.result.dumps(found.result)
        except Exception as error:  # an EncodeError, or what the value's own methods raise
            hint = f"{flight.ask.label} was found, and its result cannot be recorded: {error}"
            self._effects.undecodable(flight, hint, flight.entry)
            return
        self._effects.succeed(flight, raw, "found", flight.entry)

    def adopt_orphans(self, live: LiveRun) -> None:
        """Effects that may have happened, whose hosted code is over: nobody will ask for them again, and so a person
        is. What provably did nothing is given up."""
        if live.is_gone or live.is_leaving:
            return
        for key, standing in list(live.execution.known.effects.items()):
            task, _, n = key[0].partition("/")[0].partition(":")
            if not n or key in live.flights:
                continue
            section = (task, int(n))
            if section in live.execution.open or section in live.execution.holding:  # its code asks, or sees it through
                continue
            live.execution.holding.add(key)
            try:
                entry = self._effects.row(live, standing.operation)
            except StoreError:
                self._loop.call_later(PUT_OFF_MICROSECONDS / MICROSECONDS, self.adopt_orphans, live)
                return
            if entry is not None and key not in live.blocked_calls:
                self._adopt(live, key, standing, entry)

    def _adopt(self, live: LiveRun, key: Key, standing: Standing, entry: LedgerEntry) -> None:
        if not standing.state.is_open:
            self._effects.give_up_orphan(live, key, standing, entry)
            return
        if entry.status is EffectState.STARTED:
            why = "whoever asked for it is gone"
            entry = entry.moved(Happening.LOST, now=self._turns.clock.now(), note=why)
            event = e.EffectInDoubt(
                *key, standing.name, key[1] + 1, standing.operation, standing.attempt, why, counts=False,
                by_suspicion=bool(standing.suspected_at),
            )  # fmt: skip
            self._effects.record(live, event, entry)
        hint = f"operation {standing.operation} may have happened, and its caller is gone; {_SETTLES}"
        self._turns.parking.block(live, e.RunBlocked("unknown_effect", hint, *key, standing.name, key[1] + 1))

    def close(self) -> None:
        """Nobody waits for the look-ups under way any more."""
        for look in list(self._looks):
            look.cancel()

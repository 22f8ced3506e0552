"""Performs effects: prepare, execute, commit; and finds out what became of those in doubt.

    ask ──▶ prepare (the ledger: may it be sent?) ──▶ STARTED, durable ──▶ the body, under the lease ──▶ what came of it

What came of it is one of three: it happened, it provably did not, or nobody knows. The rules are `perdure.ledger`'s;
here they are carried out. Where an effect stands is read from the history alone (`Known.effects`), which the events
recorded here keep up to date; the ledger's row changes in the commit of its event.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from perdure.clock import MICROSECONDS, when
from perdure.codec import Memo, dump_exception, pack, unpack
from perdure.codec.exceptions import message_of
from perdure.decisions import ApprovalEntry
from perdure.engine.calls import Attempts, Cancelled, EffectAsk, Key
from perdure.engine.known import Standing
from perdure.errors import (
    AuthorityUnreadableError,
    DuplicateOperation,
    FencedError,
    OperationConflict,
    PerdureError,
    PolicyDenied,
    RunCancelledError,
    StepError,
    StoreError,
)
from perdure.history import events as e
from perdure.http.classify import Failure, Kind, Sent
from perdure.ledger import (
    Answered,
    Call,
    Conflict,
    Duplicate,
    EffectState,
    GoOn,
    Happening,
    Held,
    LedgerEntry,
    NextRevision,
    Perform,
    operation_id,
    prepare,
)
from perdure.runtime.attempt import attempt_here
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.operation import Operation
from perdure.runtime.performer import PUT_OFF_MICROSECONDS, UNREADABLE_MICROSECONDS, Flight, Performer
from perdure.runtime.retrying import Again, next_attempt
from perdure.specs import EffectSpec
from perdure.store import protocol

if TYPE_CHECKING:
    from perdure.runtime.forks import Forks
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure")

HELD_LOOK_MICROSECONDS = 250_000


class EffectFlight(Flight):
    """An effect under way: through all its attempts, look-ups and waits, until it is proven or a person is asked."""

    __slots__ = (
        "approval", "before", "checked_at", "effects", "entry", "is_cancelled", "is_in_transaction", "is_under_way",
        "operations", "passed", "undone",
    )  # fmt: skip
    ask: EffectAsk
    entry: LedgerEntry
    undone: LedgerEntry | None
    """The row of the effect that this one takes back."""
    approval: ApprovalEntry | None
    """The row of the approval that it uses up, once it has."""
    checked_at: int
    """When it was last asked whether it may be sent."""
    passed: e.Denied | None
    """What let it pass then, where a policy is set."""
    before: tuple[LedgerEntry, Standing | None, bool, int]
    """Its row, where it stood, whether its call is recorded, and its number, before it was sent."""

    def __init__(self, effects: Effects, live: LiveRun, ask: EffectAsk, now: int) -> None:
        super().__init__(effects.performer, live, ask, Attempts(), now)
        self.effects = self.handler = effects
        self.is_cancelled = self.is_in_transaction = self.is_under_way = False
        self.operations: dict[int, Operation] = {}
        self.undone = self.approval = self.passed = None
        self.checked_at, self.uses = 0, ()

    @property
    def spec(self) -> EffectSpec:
        spec = self.ask.spec
        if not isinstance(spec, EffectSpec):
            raise AssertionError("an effect's call without an effect's spec")
        return spec

    @property
    def standing(self) -> Standing:
        return self.live.execution.known.effects[self.ask.key]

    @property
    def only_waits(self) -> bool:
        standing, performer = self.live.execution.known.effects.get(self.ask.key), self.performer
        if not super().only_waits or standing is None or self.is_cancelled:
            return False
        is_told = standing.state is EffectState.FAILED_RETRYABLE or standing.doubt is not None
        return is_told and not performer.is_in_thread(self.live, self.ask.key)

    @property
    def may_have_left(self) -> bool:
        """Whether the request may have left, and nothing proves what became of it."""
        standing = self.live.execution.known.effects.get(self.ask.key)
        return self.is_in_transaction or (standing is not None and standing.state.is_open)

    def is_about(self, operation: str) -> bool:
        """Whether it has come to this operation already."""
        return hasattr(self, "entry") and self.entry.operation_id == operation

    def operation(self) -> Operation:
        """What the body of an attempt gets: one and the same however often it asks."""
        here = attempt_here(self)
        number = self.number if here is None else here.number
        if number not in self.operations:
            self.operations[number] = self.operation_of(self.effects.noter(self), number)
        return self.operations[number]

    def operation_id(self) -> str:
        return self.entry.operation_id

    def operation_of(self, note: Callable[[str], Awaitable[None]] | None, number: int) -> Operation:
        entry = self.entry
        args, kwargs = self.ask.spec.arguments.loads(self.ask.input)
        bound = inspect.signature(self.ask.spec.function).bind(*args, **kwargs)
        return Operation(
            id=entry.operation_id, action=entry.action_name, run_id=entry.run_id, business_key=entry.business_key,
            revision=entry.revision, attempt=number, request_hash=entry.request_hash.hex(),
            arguments=dict(bound.arguments), started_at=when(entry.started_at),
            reference=entry.external_ref, external_request_id=entry.external_request_id, note=note,
        )  # fmt: skip


class Effects:
    """All effects of the runs in memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._noting: dict[asyncio.Future[None], LiveRun] = {}

    @property
    def performer(self) -> Performer:
        return self._turns.performer

    @property
    def forks(self) -> Forks:
        return self._turns.forks

    # ── prepare ──────────────────────────────────────────────────────────────────────────────
    def start(self, live: LiveRun, ask: EffectAsk) -> None:
        """The code asks for an effect: send it, answer it from the ledger, or go on where it stood."""
        if ask.key in live.execution.known.ended_effects or ask.key in live.flights:
            return
        flight = EffectFlight(self, live, ask, self._turns.clock.now())
        live.flights[ask.key] = flight
        if ask.key in live.execution.known.effects:
            self._turns.doubts.go_on(flight)
        else:
            self.prepare(flight)

    def row(self, live: LiveRun, operation: str) -> LedgerEntry | None:
        """The ledger's row as it will be once what this run has on its way is durable."""
        written = live.under_way.entries if live.under_way is not None else ()
        for entry in chain(reversed(live.entries), reversed(written)):
            for row in (entry.ledger, entry.undone):
                if row is not None and row.operation_id == operation:
                    return row
        return self._turns.store.effect(operation)

    def prepare(self, flight: EffectFlight) -> None:
        if flight.is_over:
            return
        try:
            decision, entry = self._decide(flight)
        except StoreError as error:
            self.later(flight, PUT_OFF_MICROSECONDS, self.prepare, error)
            return
        flight.entry = entry
        match decision:
            case Perform() if flight.spec.unproven and (unknown := self._turns.premises.unknown(flight)) is not None:
                self.deny(flight, unknown, "denied")
            case Perform():
                self.send(flight)
            case Answered(entry):
                self._answer(flight, entry)
            case Held() | GoOn():  # of another call; or of this one, sent by whoever has taken the run over
                self.wait(flight, self._turns.clock.now() + HELD_LOOK_MICROSECONDS, self.prepare)
            case Duplicate(entry):
                self.deny(flight, _duplicate(flight.ask, entry), "duplicate")
            case Conflict(entry):
                self.deny(flight, _conflict(flight.ask, entry), "conflict")
            case _:
                raise AssertionError("the revisions were gone through")

    def _decide(self, flight: EffectFlight) -> tuple[Any, LedgerEntry]:
        """What to do, and the row that it is about: that of the last revision, or a new one."""
        live, ask, spec = flight.live, flight.ask, flight.spec
        if ask.packed is None:
            ask.packed = pack(ask.input, live.execution.memo)
        chapter = live.execution.beginning.chapter
        label, request = f"{chapter}:{ask.key[0]}:{ask.key[1]}", ask.view or ask.packed.digest
        call = Call(live.rid, label, request, spec.on_repeat == "reuse")
        revision = ask.revision
        flight.undone = self.undone_by(flight)
        while True:
            found, name = self._find(flight, revision)
            is_copied = found is not None and live.info.lineage and found.rid in live.info.lineage
            decision = prepare(call._replace(rid=found.rid) if found is not None and is_copied else call, found)
            if found is not None and live.was_rewound:
                decision = self._turns.premises.prepared(flight, call, found, decision)
            if not isinstance(decision, NextRevision):
                return decision, found or self._new_entry(flight, call, name, revision)
            revision += 1

    def undone_by(self, flight: EffectFlight) -> LedgerEntry | None:
        """The row of the effect that this call takes back, if it is an undoing."""
        return self.own_row(flight.live, flight.ask.undoes) if flight.ask.undoes else None

    def own_row(self, live: LiveRun, operation: str) -> LedgerEntry | None:
        """The row of an operation, unless it is that of the run which this one was forked from."""
        row = self.row(live, operation)
        return None if row is not None and row.rid in live.info.lineage else row

    def _find(self, flight: EffectFlight, revision: int) -> tuple[LedgerEntry | None, str]:
        """The row under the effect's name, or under a name that it had before."""
        spec = flight.spec
        for name in (spec.name, *spec.aliases):
            found = self.row(flight.live, self._operation_id(flight, name, revision))
            if found is None and flight.live.info.lineage and spec.scope == "run":
                found = self._turns.forks.taken_along(flight, name, revision)
            if found is not None:
                return found, name
        return None, spec.name

    def _operation_id(self, flight: EffectFlight, name: str, revision: int) -> str:
        return operation_id(
            scope=flight.spec.scope, run_id=flight.live.run_id, name=name, business_key=flight.ask.business_key,
            revision=revision,
        )  # fmt: skip

    def _new_entry(self, flight: EffectFlight, call: Call, name: str, revision: int) -> LedgerEntry:
        live, ask, spec, now = flight.live, flight.ask, flight.spec, self._turns.clock.now()
        return LedgerEntry(
            self._operation_id(flight, name, revision), live.rid, live.run_id, call.call, ask.label, name, spec.scope,
            ask.business_key, revision, call.request_hash, EffectState.PENDING, spec.downstream.kind, spec.stakes, now,
            now, approval="" if ask.grant is None else ask.grant.id,
        )  # fmt: skip

    def deny(self, flight: EffectFlight, error: PerdureError, how: str, entry: LedgerEntry | None = None) -> None:
        """Refused before anything was sent. The row of the other call stays as it is."""
        denied = None
        if isinstance(error, PolicyDenied):
            denied = e.Denied(error.policy, error.version, error.rule)
            self._turns.gates.note(flight.live, flight.ask.label, error)
            if flight.ask.grant is not None:
                flight.approval = self._turns.approvals.unused(flight.live, flight.ask.grant)
        self.fail(flight, dump_exception(error, ()), how, entry, denied)

    def given_up(self, flight: EffectFlight, why: str) -> LedgerEntry | None:
        """The row of an operation that is not sent any more. It has none if it never was: it may be asked for again."""
        if flight.entry.status is EffectState.PENDING:
            return None
        return flight.entry.moved(Happening.GIVEN_UP, now=self._turns.clock.now(), note=why)

    def _gate(self, flight: EffectFlight) -> PerdureError | None:
        """May this effect be sent at all, and now? What has to hold in the commit that records its start is asked here.
        Why not, or None."""
        is_gated = flight.live.is_gated or not flight.spec.reversible
        if is_gated and not flight.may_have_left:  # else no policy takes it back
            refused = self._turns.gates.effect(flight)
            if refused is not None:
                return refused
        grant = flight.ask.grant
        return None if grant is None else self._turns.approvals.gate(flight, grant)

    def may_launch(self, flight: EffectFlight) -> bool:
        """Whether what was checked for this attempt still holds when its body is about to be called: the commit of its
        start may have taken its time. If it does not hold any more it is denied."""
        if flight.standing.is_resent:
            return True
        grant = flight.ask.grant
        refused: PerdureError | None = None if grant is None else self._turns.approvals.too_late(flight, grant)
        if refused is None and flight.checked_at and self._turns.gates.is_old(flight):
            refused = self._turns.gates.effect(flight)
        if refused is None and flight.live.has_decisions and self._turns.premises.are_old(flight):
            self._check_again(flight)
            return False
        if refused is None:
            return True
        flight.is_under_way = False
        flight.entry = flight.entry.moved(Happening.NOT_DONE, now=self._turns.clock.now())
        self.deny(flight, refused, "denied", self.given_up(flight, str(refused)))
        return False

    def _check_again(self, flight: EffectFlight) -> None:
        """It took too long until its start was recorded: nothing has left, and what its run rests on is read again."""
        flight.is_under_way = False
        now, why = self._turns.clock.now(), "what its run's decisions rest on was read too long ago"
        self.not_done(flight, dump_exception(StepError(why), ()), now, flight.standing.failed, why)

    def unsent(self, flight: EffectFlight, refused: PolicyDenied) -> None:
        """Its start was not written, since its rate is used up: it is denied, from where it stood before."""
        live, key = flight.live, flight.ask.key
        flight.entry, standing, flight.ask.is_recorded, flight.number = flight.before
        flight.is_start_recorded = flight.ask.is_recorded
        flight.is_under_way = flight.is_in_transaction = False
        flight.approval = None
        if standing is None:
            live.execution.known.effects.pop(key, None)
        else:
            live.execution.known.effects[key] = standing
        if flight.is_cancelled:
            self._give_up_cancelled(flight)
        else:
            self.deny(flight, refused, "denied", self.given_up(flight, str(refused)))

    def _answer(self, flight: EffectFlight, entry: LedgerEntry) -> None:
        """The operation has its answer already."""
        raw = entry.result
        try:
            if raw is None and entry.response_hash is not None:
                raw = unpack(entry.response_hash, None, partial(self._turns.store.blob, entry.rid))
        except StoreError as error:
            self.later(flight, PUT_OFF_MICROSECONDS, self.prepare, error)
            return
        if entry.status is EffectState.SUCCEEDED and raw is not None:
            self.succeed(flight, raw, "reused", None)
        elif entry.status is EffectState.SUCCEEDED:
            self.undecodable(flight, "it succeeded, and its result could not be recorded", None)
        else:
            refused = StepError(f"{entry.label} was refused: {entry.note}")
            self.fail(flight, dump_exception(refused, ()), "reused", None)

    # ── execute ──────────────────────────────────────────────────────────────────────────────
    def send(self, flight: EffectFlight) -> None:
        """Record that an attempt is about to leave; when that is durable, let it."""
        live, ask = flight.live, flight.ask
        if flight.is_over:
            return
        if flight.is_cancelled and not flight.may_have_left:
            self._give_up_cancelled(flight)
            return
        if self._turns.is_stopping:  # nothing new leaves; whoever has the run next sends it
            return
        if live.is_parked:
            self.hold(flight)
            return
        if live.info.lineage and self._turns.forks.holds(flight):
            return
        if live.has_decisions and not self._turns.premises.stand(flight):
            return
        if live.account is not None and not self._turns.budgets.is_reserved(flight, self.send):
            return
        try:
            refused = self._gate(flight)
        except (AuthorityUnreadableError, StoreError) as error:  # what was attempted before is in the ledger already
            again = self.prepare if flight.entry.status is EffectState.PENDING else self.send
            self.later(flight, UNREADABLE_MICROSECONDS, again, error)
            return
        if refused is not None:
            self.deny(flight, refused, "denied", self.given_up(flight, str(refused)))
            return
        standing = live.execution.known.effects.get(ask.key)
        flight.before = (flight.entry, standing, ask.is_recorded, flight.number)
        if flight.spec.downstream.kind == "same_database":
            self._turns.transactions.begin(flight)
            return
        if flight.uses:
            self._turns.gates.count(flight)
        happening = Happening.SENT if flight.entry.status is not EffectState.STARTED else Happening.SENT_AGAIN
        entry = flight.entry = flight.entry.moved(happening, now=self._turns.clock.now())
        flight.number = entry.attempts - 1
        kept, packed = ask.spec.record_input, None if ask.is_recorded else ask.packed
        digest, view = (packed.digest, ask.view) if packed is not None else (None, None)
        ask.is_recorded = flight.is_start_recorded = flight.is_under_way = True
        self.record(
            live,
            e.EffectStarted(
                *ask.key, ask.name, ask.use, digest, view, kept, entry.attempts, entry.operation_id, ask.business_key,
                entry.revision, entry.approval, live.execution.known.decisions.checks if live.has_decisions else 0,
                flight.passed, flight.spec.relies_on,
            ),
            entry, input=packed if kept else None, approval=flight.approval,
        )  # fmt: skip
        live.then += (partial(self._launch, flight, entry.attempts),)
        self._turns.mark(live)

    def hold(self, flight: Flight) -> None:
        """The run is paused or blocked: nothing new leaves; it goes on where it stands when that is over, cancelled if
        it was."""
        live, ask = flight.live, flight.ask
        self.performer.land(flight)
        live.flights.pop(ask.key, None)
        if isinstance(flight, EffectFlight) and flight.is_cancelled:
            live.held += (Cancelled(ask),)
        elif not self._turns.sections.hold_back(live, ask.key):
            live.held += (ask,)

    def _launch(self, flight: EffectFlight, attempt: int) -> None:
        """The start is durable. Whoever cancelled it meanwhile is in time: nothing has left. Unless an earlier attempt
        may have happened: then sending it again is how to find out."""
        if flight.is_over or flight.entry.attempts != attempt:
            return
        if flight.is_cancelled and not flight.standing.is_resent:
            entry = flight.entry.moved(Happening.NOT_DONE, now=self._turns.clock.now())
            flight.entry = entry
            self._give_up_cancelled(flight)
        elif flight.live.info.lineage and self._is_met_after_start(flight):
            why = "the run that this one was forked from has begun the same"
            now, counted = self._turns.clock.now(), flight.standing.failed
            self.not_done(flight, dump_exception(StepError(why), ()), now, counted, why)
        else:
            self.performer.enqueue(flight)

    def _is_met_after_start(self, flight: EffectFlight) -> bool:
        try:
            return self._turns.forks.is_met_after_start(flight)
        except StoreError as error:  # it is recorded as started, and nothing has left
            log.warning("run %s: the ledger cannot be read: %s", flight.live.run_id, error)
            return True  # looked at again before the next attempt

    def held(self, live: LiveRun, outcome: protocol.Held) -> None:
        """Another run was faster with an operation that both want: nothing of this append is written. All of it goes
        again, without that start, which is prepared again. What another call was refused for asking the same stands."""
        operation, flights = outcome.entry.operation_id, live.flights.values()
        mine = [f for f in flights if isinstance(f, EffectFlight) and f.is_about(operation) and not f.is_over]
        keys = {flight.ask.key for flight in mine}

        def is_left_out(event: e.Event) -> bool:
            return isinstance(event, e.Keyed) and event.key in keys and getattr(event, "operation", "") == operation

        live.go_again_without(mine, operation, is_left_out)
        for flight in mine:
            live.execution.known.effects.pop(flight.ask.key, None)
            flight.is_start_recorded = flight.ask.is_recorded = flight.is_under_way = False
            self.prepare(flight)
        self._turns.mark(live)

    # ── what comes of an attempt ─────────────────────────────────────────────────────────────
    def returned(self, flight: EffectFlight, value: Any) -> None:
        """The body returned: it happened, whatever its result."""
        flight.is_under_way = False
        self.performer.land(flight)
        if flight.live.is_in_turn:
            flight.live.deferred += (lambda: self.returned(flight, value),)
            return
        now, reference = self._turns.clock.now(), _reference(flight)
        entry = flight.entry.moved(Happening.RETURNED, now=now)._replace(external_ref=reference)
        try:
            raw = flight.spec.result.dumps(value)
        except Exception as error:  # an EncodeError, or what the value's own methods raise
            flight.entry = entry._replace(note=f"its result cannot be recorded: {error}")
            hint = f"{flight.ask.label} succeeded, and its result cannot be recorded: {error}"
            self.undecodable(flight, hint, flight.entry)
            return
        flight.entry = entry
        self.succeed(flight, raw, "returned", entry)

    def failed(self, flight: EffectFlight, number: int, error: BaseException) -> None:
        """The body raised, or took too long: a proof that nothing happened, or a doubt."""
        flight.is_under_way = False
        self.performer.land(flight)
        if flight.live.is_in_turn:
            flight.live.deferred += (lambda: self.failed(flight, number, error),)
            return
        now = self._turns.clock.now()
        try:
            failure = self.performer.failure_of(flight, error, now)
            decision = self._decision(flight, failure, now)
        except Exception as problem:
            problem.add_note(f"raised by Retry(on=) of {flight.spec.name}")
            failure, decision, error = Failure(Kind.FINAL, Sent.UNKNOWN, message_of(problem)), None, problem
        self.keep_reference(flight)
        if failure.sent is Sent.UNKNOWN or (flight.standing.is_resent and not _is_about_key(failure)):
            why = f"{type(error).__name__}: {message_of(error)}"
            again = decision if isinstance(decision, Again) else None
            self._turns.doubts.lost(flight, why, again=again, wants_person=failure.kind is Kind.PERSON)
        elif isinstance(decision, Again):
            raw, counted = dump_exception(error, flight.spec.raises), flight.standing.failed + 1
            self.not_done(flight, raw, decision.at, counted, failure.reason)
        else:
            entry = flight.entry.moved(Happening.REFUSED, now=now, note=message_of(error))
            self.fail(flight, dump_exception(error, flight.spec.raises), "refused", entry)

    def _decision(self, flight: EffectFlight, failure: Failure, now: int) -> Any:
        standing = flight.standing
        return next_attempt(
            flight.spec.retry, attempt=standing.failed + 1, first_at=standing.first_at, now=now, failure=failure,
            random=random.random(),
        )  # fmt: skip

    def came_late(self, flight: EffectFlight, number: int, value: Any) -> None:
        """An attempt that was given up for lost has returned after all: a proof where there was none, a second answer
        where there was one."""
        live = flight.live
        if live.is_gone or live.is_leaving:
            return
        if live.is_in_turn:
            live.deferred += (lambda: self.came_late(flight, number, value),)
            return
        said = flight.operations[number].reference if number in flight.operations else None
        try:
            entry = self.row(live, flight.entry.operation_id)
        except StoreError:
            self._loop.call_later(PUT_OFF_MICROSECONDS / MICROSECONDS, self.came_late, flight, number, value)
            return
        if entry is None:
            return
        if entry.status.is_final:
            self._note_second_answer(flight, entry, number, said)
        else:
            current = live.flights.get(flight.ask.key)
            flight = current if isinstance(current, EffectFlight) else flight
            flight.entry = entry
            self._answered_late(flight, value, said)

    def _answered_late(self, flight: EffectFlight, value: Any, reference: str | None) -> None:
        try:
            raw = flight.spec.result.dumps(value)
        except Exception:  # what became of it is asked for all the same, and its result by a person
            return
        live, key = flight.live, flight.ask.key
        entry = flight.entry.moved(Happening.ANSWERED_LATE, now=self._turns.clock.now())
        flight.entry = entry._replace(external_ref=reference or entry.external_ref)
        if key in live.blocked_calls:
            unblocked = e.RunUnblocked("answered_late", "", *key, "the attempt that was given up for lost has returned")
            live.note_unblocked(unblocked)
            live.record(unblocked)
            live.change = self._turns.parking.change(live)
        self.succeed(flight, raw, "late", flight.entry)

    def _note_second_answer(self, flight: EffectFlight, entry: LedgerEntry, number: int, reference: str | None) -> None:
        """Success twice under two references, or of what was settled as failed: kept and shown, never in place of what
        is recorded."""
        is_known = reference is None or reference in {entry.external_ref, *entry.references.split(" ")}
        if is_known and entry.status is EffectState.SUCCEEDED:
            return
        ask, others = flight.ask, f"{entry.references} {reference or ''}".strip()
        under = f", under the reference {reference}" if reference else ""
        note = f"attempt {number} answered success after all{under}"
        row = entry._replace(references=others, note=note, updated_at=max(self._turns.clock.now(), entry.updated_at))
        event = e.EffectNoted(*ask.key, ask.name, ask.use, entry.operation_id, None, reference, note)
        self.record(flight.live, event, row)
        log.error("run %s: %s: %s", flight.live.run_id, ask.label, note)
        self._turns.mark(flight.live)

    # ── commit ───────────────────────────────────────────────────────────────────────────────
    def succeed(self, flight: EffectFlight, raw: bytes, how: str, entry: LedgerEntry | None) -> None:
        live, ask = flight.live, flight.ask
        output = pack(raw, live.execution.memo)
        reference = None
        if entry is not None:
            entry, reference = entry.answered(raw, output.digest), entry.external_ref
        digest, view, kept, packed = self._input(flight)
        event = e.EffectSucceeded(
            *ask.key, ask.name, ask.use, output.digest, digest, view, kept, flight.number, flight.entry.started_at,
            flight.entry.operation_id, ask.business_key, reference, how, ask.undoes,
        )  # fmt: skip
        self.release(flight)
        self.performer.end(flight)
        undone = flight.undone and flight.undone.undone_by(flight.entry.operation_id, now=self._turns.clock.now())
        self.record(flight.live, event, entry, raw=raw, output=output, input=packed, delivers=True, undone=undone)
        self._turns.mark(live)

    def fail(
        self, flight: EffectFlight, raw: bytes, how: str, entry: LedgerEntry | None, denied: e.Denied | None = None
    ) -> None:
        live, ask = flight.live, flight.ask
        output = pack(raw, live.execution.memo)
        digest, view, kept, packed = self._input(flight)
        event = e.EffectFailed(
            *ask.key, ask.name, ask.use, output.digest, digest, view, kept, flight.number, flight.entry.started_at,
            denied, flight.entry.operation_id, ask.business_key, how,
        )  # fmt: skip
        self.release(flight)
        self.performer.end(flight)
        approval = flight.approval if how == "denied" else None
        self.record(
            flight.live, event, entry, raw=raw, output=output, input=packed, delivers=True, approval=approval
        )
        self._turns.mark(live)

    def release(self, flight: EffectFlight) -> None:
        """What is still reserved for it was reserved for an attempt that has not begun."""
        if flight.live.account is not None:
            self._turns.budgets.settle(flight, None)

    def not_done(self, flight: EffectFlight, raw: bytes, retry_at: int, counted: int, note: str) -> None:
        """Proven that nothing happened; another attempt follows."""
        ask = flight.ask
        happening = Happening.NOT_DONE if flight.entry.status is EffectState.STARTED else Happening.NOT_FOUND
        flight.entry = flight.entry.moved(happening, now=self._turns.clock.now(), note=note)
        output = pack(raw, flight.live.execution.memo)
        event = e.EffectNotDone(
            *ask.key, ask.name, ask.use, output.digest, None, None, True, flight.entry.attempts,
            flight.entry.started_at, retry_at, flight.standing.first_at, flight.entry.operation_id, ask.business_key,
            counted,
        )  # fmt: skip
        self.record(flight.live, event, flight.entry, output=output)
        self._turns.mark(flight.live)
        self.wait(flight, retry_at, self.send)

    def undecodable(self, flight: EffectFlight, hint: str, entry: LedgerEntry | None) -> None:
        """It happened, and nobody but a person can say with what result."""
        ask = flight.ask
        if entry is not None:
            noted = e.EffectNoted(*ask.key, ask.name, ask.use, entry.operation_id, None, entry.external_ref, hint)
            self.record(flight.live, noted, entry)
        supply = f"perdure inbox settle {flight.live.run_id} --succeeded --value @file"
        self.block(flight, "undecodable", f"{hint}. Supply it: `{supply}`")

    def block(self, flight: EffectFlight, reason: str, hint: str) -> None:
        flight.is_start_recorded = flight.ask.is_recorded = True
        self.performer.end(flight)
        self._turns.parking.block_call(flight.live, reason, hint, flight)

    # ── cancelling, leaving ──────────────────────────────────────────────────────────────────
    def cancel(self, live: LiveRun, ask: EffectAsk) -> None:
        """Nobody waits for this effect any more. Once it may have left it goes on until its outcome is known; until
        then the run cannot end."""
        flight = live.flights.get(ask.key)
        if live.info.lineage:
            self._turns.forks.withdraw(live, ask.key)
        if ask.key in live.execution.known.ended_effects or live.waits_for_person(ask.key):
            return
        if isinstance(flight, EffectFlight):
            flight.is_cancelled = True
            if not flight.may_have_left:
                self._give_up_cancelled(flight)
            return
        flight = live.flights[ask.key] = EffectFlight(self, live, ask, self._turns.clock.now())
        flight.is_cancelled = True
        if ask.key in live.execution.known.effects:
            self._turns.doubts.go_on(flight)
        else:
            self._give_up_cancelled(flight)

    def let_go(self, live: LiveRun, key: Key) -> None:
        """Hosted code that is over asked for this: a step is stopped; an effect that may have left is seen through."""
        flight = live.flights.get(key)
        if not isinstance(flight, EffectFlight) or key not in live.execution.known.effects:
            self.performer.cancel(live, key)
            return
        flight.is_cancelled = True
        live.execution.holding.add(key)
        if not flight.may_have_left:
            self._give_up_cancelled(flight)

    def give_up_orphan(self, live: LiveRun, key: Key, standing: Standing, entry: LedgerEntry) -> None:
        """Nobody is left who could ask for another attempt; of those before it is proven that they did nothing."""
        given_up = given_up_entry(key, standing, entry, live.execution.memo, now=self._turns.clock.now())
        live.has_sections |= ":" in key[0]
        live.has_effects = True
        live.entries.append(given_up)
        live.execution.known.note_effect(given_up.event, max(self._turns.clock.now(), live.last_at))

    def _give_up_cancelled(self, flight: EffectFlight) -> None:
        raw = dump_exception(RunCancelledError("the call was cancelled before anything was sent"), ())
        is_known = flight.ask.key in flight.live.execution.known.effects
        if not hasattr(flight, "entry"):
            if not is_known:  # else the ledger cannot be read just now; when it can, nothing is sent
                self._fail_unprepared(flight, raw)
            return
        if not is_known:  # the row that it waited for is another call's
            self.fail(flight, raw, "cancelled", None)
            return
        now, why = self._turns.clock.now(), "cancelled by the workflow"
        self.fail(flight, raw, "cancelled", flight.entry.moved(Happening.GIVEN_UP, now=now, note=why))

    def give_up_all(self, live: LiveRun) -> None:
        """The run ends: nobody wants another attempt of what has provably not happened so far."""
        for key, standing in list(live.execution.known.effects.items()):
            entry = self.row(live, standing.operation)
            if standing.state is EffectState.FAILED_RETRYABLE and entry is not None:
                self.give_up_orphan(live, key, standing, entry)

    def _fail_unprepared(self, flight: EffectFlight, raw: bytes) -> None:
        call = Call(flight.live.rid, "", b"")
        flight.entry = self._new_entry(flight, call, flight.spec.name, 0)
        self.fail(flight, raw, "cancelled", None)

    @property
    def under_way(self) -> list[EffectFlight]:
        """Effects of which an attempt is recorded as sent by this worker, and has not come back."""
        flights = (flight for live in self._turns.live.values() for flight in live.flights.values())
        return [flight for flight in flights if isinstance(flight, EffectFlight) and flight.is_under_way]

    # ── small things ─────────────────────────────────────────────────────────────────────────
    def _input(self, flight: EffectFlight) -> tuple[bytes | None, bytes | None, bool, Any]:
        """What the first event about a call says about its arguments."""
        ask = flight.ask
        if flight.is_start_recorded or ask.packed is None:
            return None, None, True, None
        flight.is_start_recorded = ask.is_recorded = True
        kept = ask.spec.record_input
        return ask.packed.digest, ask.view, kept, ask.packed if kept else None

    def record(self, live: LiveRun, event: e.Event, entry: LedgerEntry | None, **more: Any) -> None:
        """Put an event on its way, the ledger's row in the same commit. Where the effect stands follows from it."""
        live.has_effects = True
        live.has_approvals |= more.get("approval") is not None
        live.entries.append(Entry(event, ledger=entry, **more))
        live.execution.known.note_effect(event, max(self._turns.clock.now(), live.last_at))

    def keep_reference(self, flight: EffectFlight) -> None:
        reference = _reference(flight)
        if reference is not None:
            flight.entry = flight.entry._replace(external_ref=reference)

    def noter(self, flight: EffectFlight) -> Callable[[str], Awaitable[None]]:
        """Keeps an id of the request, durably: awaited on the loop, waited for in a thread."""

        def note(request_id: str) -> Awaitable[None]:
            noted = self._note_request_id(flight, request_id)
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                asyncio.run_coroutine_threadsafe(noted, self._loop).result()
                return _Noted()
            return noted

        return note

    async def _note_request_id(self, flight: EffectFlight, request_id: str) -> None:
        is_durable: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            if not is_durable.done():
                is_durable.set_result(None)

        def note() -> None:
            live, ask = flight.live, flight.ask
            if live.is_gone:
                self.drop(live)
                return
            if live.is_in_turn:
                live.deferred += (note,)
                return
            try:
                entry = self.row(live, flight.entry.operation_id)
            except StoreError as error:
                is_durable.set_exception(error)
                return
            if entry is None or entry.status.is_final:
                tell()
                return
            entry = flight.entry = entry._replace(external_request_id=request_id)
            noted = f"request id {request_id}"
            event = e.EffectNoted(*ask.key, ask.name, ask.use, entry.operation_id, request_id, None, noted)
            self.record(flight.live, event, entry)
            live.then += (tell,)
            self._turns.mark(live)

        self._noting[is_durable] = flight.live
        self._loop.call_soon(note)
        try:
            await is_durable
        finally:
            del self._noting[is_durable]

    def drop(self, live: LiveRun) -> None:
        """The run leaves this worker: no note about its effects will be durable, and whoever waits for one, in a thread
        that cannot be stopped, is not to send."""
        for noting, of in self._noting.items():
            if of is live and not noting.done():
                noting.set_exception(FencedError(f"run {live.run_id} is not this worker's any more: nothing is noted"))

    def wait(self, flight: EffectFlight, at: int, then: Callable[[EffectFlight], None]) -> None:
        """Go on then. A wait that is over goes on at once."""
        if at <= self._turns.clock.now():
            then(flight)
            return
        self.performer.wait_until(flight, at, partial(self._woken, flight, then))

    def _woken(self, flight: EffectFlight, then: Callable[[EffectFlight], None]) -> None:
        flight.alarm = None
        if flight.live.is_in_turn:
            flight.live.deferred += (lambda: self._woken(flight, then),)
        elif not (flight.is_over or flight.live.is_gone or flight.live.is_leaving):
            then(flight)

    def later(
        self, flight: EffectFlight, delay: int, then: Callable[[EffectFlight], None], error: PerdureError
    ) -> None:
        log.warning("run %s: %s waits, trying again: %s", flight.live.run_id, flight.ask.label, error)
        self.performer.wait_until(flight, self._turns.clock.now() + delay, partial(self._woken, flight, then))


def given_up_entry(key: Key, standing: Standing, entry: LedgerEntry, memo: Memo, *, now: int) -> Entry:
    """What ends an effect of which another attempt would follow, and nobody is left who wants it."""
    why = "whoever asked for it is gone"
    raw = dump_exception(RunCancelledError(why), ())
    output = pack(raw, memo)
    event = e.EffectFailed(
        *key, standing.name, key[1] + 1, output=output.digest, attempt=standing.attempt,
        operation=standing.operation, business_key=entry.business_key, how="cancelled",
    )  # fmt: skip
    row = entry.moved(Happening.GIVEN_UP, now=now, note=why)
    return Entry(event, output=output, raw=raw, delivers=True, ledger=row)


class _Noted:
    """What was waited for already. No coroutine: Python complains of one that nobody awaits."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def _reference(flight: EffectFlight) -> str | None:
    """What the body said the other side calls it; of an earlier attempt, if this one did not say."""
    operation = flight.operations.get(flight.number)
    said = None if operation is None else operation.reference
    return flight.entry.external_ref if said is None else str(said)


def _is_about_key(failure: Failure) -> bool:
    """Whether a refusal is the other side's answer to everything that was sent under this key. That it is too busy, or
    that nothing left this time, says nothing about the attempts before."""
    return failure.sent is Sent.REFUSED and failure.kind is Kind.FINAL


def _duplicate(ask: EffectAsk, entry: LedgerEntry) -> DuplicateOperation:
    return DuplicateOperation(
        f"{ask.label}: exactly this was asked for already, by {entry.label} of run {entry.run_id} ({entry.status}); "
        f"nothing was sent. Let its key tell the two apart, or declare on_repeat=\"reuse\" to get that answer",
        entry.operation_id, str(entry.status),
    )  # fmt: skip


def _conflict(ask: EffectAsk, entry: LedgerEntry) -> OperationConflict:
    return OperationConflict(
        f"{ask.label}: the key {entry.business_key!r} belongs to another request, {entry.label} of run {entry.run_id} "
        f"({entry.status}); nothing was sent. Let the key tell the two requests apart",
        entry.operation_id, str(entry.status),
    )  # fmt: skip

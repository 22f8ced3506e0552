"""Transactional effects: changes in the store's own database, in the transaction that records them. Both or neither.

Nothing is ever in doubt here. What was not committed did not happen, so the body runs again after a crash; what was
committed is recorded. The body runs on the writer's thread, while everybody else who wants to write waits for it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.clock import MICROSECONDS
from perdure.codec import Memo, about_result, dump_exception, pack
from perdure.errors import EncodeError, StepTimeoutError, StoreError
from perdure.history import events as e
from perdure.http.classify import classify
from perdure.ledger import Happening, LedgerEntry
from perdure.runtime.attempt import ATTEMPT, Attempt
from perdure.runtime.live import Entry, Written
from perdure.runtime.performer import PUT_OFF_MICROSECONDS
from perdure.runtime.retrying import Again, next_attempt
from perdure.store.protocol import Append, Done, Outcome, Post

if TYPE_CHECKING:
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.operation import Operation
    from perdure.runtime.turn import Turns

INSTRUCTIONS_BETWEEN_LOOKS = 1000


class Transaction:
    """The body of a transactional effect while it runs: what `perdure.transaction()` and `operation()` give it."""

    def __init__(self, flight: EffectFlight, connection: Any) -> None:
        self._flight = flight
        self.connection = connection
        self.operation: Operation = flight.operation_of(None, flight.entry.attempts)
        self.posted: list[tuple[str, str, bytes]] = []

    def post(self, topic: str, key: str, payload: bytes) -> None:
        """Have a message delivered once this transaction is committed."""
        self.posted.append((topic, key, payload))

    def posts(self, rid: int, now: int) -> tuple[Post, ...]:
        """What was posted, each under an id of its own."""
        operation = self.operation.id
        return tuple(Post(f"{operation}:{place}", rid, *what, now) for place, what in enumerate(self.posted))

    def attempt(self) -> Attempt:
        """What the body can ask about itself."""
        return self._flight.attempt()


class Transactions:
    """The transactional effects of all runs in memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()

    def begin(self, flight: EffectFlight) -> None:
        """Run the body as soon as nothing else of its run is being written: its append comes next."""
        live = flight.live
        if flight.is_over or live.is_gone or live.is_leaving:
            return
        flight.is_in_transaction = False
        if live.is_parked:
            self._turns.effects.hold(flight)
        elif live.under_way is not None or live.is_in_turn or live.has_something_to_write or live.execution.notes:
            live.then += (partial(self.begin, flight),)
            self._turns.mark(live)
        elif flight.checked_at and self._turns.gates.is_old(flight):
            self._turns.effects.send(flight)
        elif not self._turns.performer.may_begin():
            self._turns.effects.wait(flight, self._turns.clock.now() + PUT_OFF_MICROSECONDS, self.begin)
        else:
            self._begin(flight)

    def _begin(self, flight: EffectFlight) -> None:
        live, now = flight.live, self._turns.clock.now()
        flight.number += 1
        flight.is_in_transaction = True
        flight.first_at = flight.first_at or now
        flight.entry = flight.entry.moved(Happening.SENT, now=now)
        uses = self._turns.gates.used_by(flight) if flight.uses else ()
        intent = Append(os.urandom(16), live.rid, live.epoch, live.length, uses=uses)
        live.under_way = Written(intent, (), ())
        self._send(flight, _Body(flight, intent, now))

    def _send(self, flight: EffectFlight, body: _Body) -> None:
        working = self._turns.writer.run(partial(self._turns.store.transact, body.intent, body))
        working.add_done_callback(partial(self._ended, flight, body))

    def _ended(self, flight: EffectFlight, body: _Body, working: asyncio.Future[Outcome]) -> None:
        live = flight.live
        if live.is_gone or working.cancelled():
            return
        error = working.exception()
        if isinstance(error, StoreError) and body.error is None:
            if not self._turns.is_stopping:  # the outcome is unknown: the same again, under the same id
                self._loop.call_later(PUT_OFF_MICROSECONDS / MICROSECONDS, self._send, flight, body)
        elif isinstance(error, DoneMeanwhile):
            live.under_way, flight.is_in_transaction = None, False
            self._turns.effects.prepare(flight)
        elif error is not None:
            live.under_way, flight.is_in_transaction = None, False
            self._failed(flight, error)
            if live.has_something_to_write:
                self._turns.mark(live)
        else:
            self._told(flight, body, working.result())

    def _told(self, flight: EffectFlight, body: _Body, outcome: Outcome) -> None:
        live = flight.live
        if body.written is not None:
            live.under_way = body.written
        if isinstance(outcome, Done):
            if live.account is not None:
                self._turns.budgets.settle(flight, None, has_begun=True)
            flight.entry = body.entry
            self._turns.performer.end(flight)
            self._turns.on_posts()
        self._turns.committed(live, outcome)

    def _failed(self, flight: EffectFlight, error: BaseException) -> None:
        """It was undone, all of it: nothing happened."""
        now, effects = self._turns.clock.now(), self._turns.effects
        flight.entry = flight.entry.moved(Happening.NOT_DONE, now=now)
        raw = dump_exception(error, flight.spec.raises)
        decision = next_attempt(
            flight.spec.retry, attempt=flight.number, first_at=flight.first_at, now=now,
            failure=classify(error, now=now), random=random.random(),
        )  # fmt: skip
        if isinstance(decision, Again) and not flight.is_cancelled:
            effects.wait(flight, decision.at, effects.send)
            return
        effects.fail(flight, raw, "refused", flight.entry.moved(Happening.GIVEN_UP, now=now, note=str(error)))


class DoneMeanwhile(Exception):
    """The run that this one was forked from has done the same since it was looked at."""


class _Body:
    """Runs the body inside the transaction, and makes the append that records it. Called on the writer's thread."""

    def __init__(self, flight: EffectFlight, intent: Append, now: int) -> None:
        self.flight, self.intent, self._now = flight, intent, now
        self.written: Written | None = None
        self.error: BaseException | None = None
        self.entry: LedgerEntry = flight.entry

    def __call__(self, connection: Any) -> Append:
        self.error = None
        try:
            if self.flight.live.info.lineage:
                self._refuse_what_was_done()
            value, running = self._run(connection)
            return self._record(value, running)
        except BaseException as error:
            self.error = error
            raise

    def _refuse_what_was_done(self) -> None:
        """While this transaction is open, no other writes: what the original has not done by now comes later."""
        forks, flight = self.flight.effects.forks, self.flight
        if not forks.is_confirmed(flight) and forks.met(flight) is not None:
            raise DoneMeanwhile

    def _run(self, connection: Any) -> tuple[Any, Transaction]:
        spec = self.flight.spec
        args, kwargs = spec.arguments.loads(self.flight.ask.input)
        running = Transaction(self.flight, connection)
        until = time.monotonic() + spec.timeout_seconds
        too_long = f"{self.flight.ask.label} took longer than {spec.timeout_seconds:g} s"
        if connection is not None:
            connection.set_progress_handler(lambda: time.monotonic() > until, INSTRUCTIONS_BETWEEN_LOOKS)
        token = ATTEMPT.set(running)
        try:
            value = self.flight.performer.around(self.flight, spec.function)(*args, **kwargs)
        except Exception as error:
            if time.monotonic() > until:
                raise StepTimeoutError(too_long) from error
            raise
        finally:
            ATTEMPT.reset(token)
            if connection is not None:
                connection.set_progress_handler(None, 0)
        if time.monotonic() > until:
            raise StepTimeoutError(too_long)
        return value, running

    def _record(self, value: Any, running: Transaction) -> Append:
        flight, live, ask = self.flight, self.flight.live, self.flight.ask
        try:
            raw = flight.spec.result.dumps(value)
        except EncodeError as error:
            raise about_result(error, ask.name) from None
        packed_in, output = pack(ask.input, Memo()), pack(raw, Memo())
        reference = running.operation.reference
        entry = flight.entry.moved(Happening.RETURNED, now=self._now)._replace(external_ref=reference)
        entry = entry.answered(raw, output.digest)
        kept = ask.spec.record_input
        event = e.EffectSucceeded(
            *ask.key, ask.name, ask.use, output.digest, packed_in.digest, ask.view, kept, flight.number,
            entry.started_at, entry.operation_id, ask.business_key, reference, "returned", ask.undoes, entry.approval,
            flight.passed,
        )  # fmt: skip
        undone = flight.undone and flight.undone.undone_by(entry.operation_id, now=self._now)
        recorded = Entry(
            event, packed_in if kept else None, output, raw, True, ledger=entry, undone=undone, approval=flight.approval
        )
        self.entry = entry
        posts = running.posts(live.rid, self._now)
        self.written = live.alone(self.intent.id, recorded, self._now, posts, self.intent.uses)
        return self.written.append

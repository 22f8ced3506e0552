"""What an adapter performs in the calling thread, recorded as a step is."""

from __future__ import annotations

import concurrent.futures
import queue
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.clock import MICROSECONDS, when
from perdure.codec import arguments_codec_for, codec_for, dump_exception, pack
from perdure.codec.exceptions import message_of
from perdure.errors import EncodeError
from perdure.history import events as e
from perdure.http.classify import classify
from perdure.http.sender import SENDER
from perdure.runtime.attempt import ATTEMPT, LANE, Attempt, Outgoing
from perdure.runtime.hosted.records import Record
from perdure.runtime.hosted.request import Request, load_with
from perdure.runtime.hosted.unwound import Unwound
from perdure.runtime.retrying import Again, next_attempt
from perdure.specs import Retry, StepSpec

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal


_ANSWERED = -1
"""The record has the answer: nothing is to be performed."""


class PerformedHere:
    """The calls of one section that are performed where they are made."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live, self._turns = journal.live, journal.turns

    def call(self, name: str, request: Any, perform: Callable[[], Any], retry: Retry, hint: Any) -> Any:
        """What is recorded for this request, or what `perform()` gives: see `Journal.call`."""
        raw = codec_for(Any).dumps(request)
        spec = StepSpec(name=name, function=perform, is_async=False, arguments=_NO_ARGUMENTS, result=codec_for(hint),
                        retry=retry)  # fmt: skip
        go: queue.SimpleQueue[int] = queue.SimpleQueue()

        def start(wanted: Request) -> None:
            if not self._live.waits_for_person(wanted.key):
                known = self._live.execution.known.attempts.get(wanted.key)
                go.put(known.failed if known else 0)

        wanted = Request(LANE.get(), name, raw, start)
        wanted.load = load_with(spec.result, spec.raises)
        wanted.future.add_done_callback(lambda done: go.put(_ANSWERED))
        self._journal.submit(wanted)
        while (failed := go.get()) != _ANSWERED:  # again after a person has decided so
            self._perform(wanted, spec, perform, failed)
        return wanted.future.result()

    def _perform(self, wanted: Request, spec: StepSpec, perform: Callable[[], Any], failed: int) -> None:
        """Attempt after attempt, in the thread that asked."""
        first_at = self._turns.clock.now()
        while not wanted.future.done():
            failed += 1
            started_at = self._turns.clock.now()
            raw, error = self._try(wanted, spec, perform, failed, started_at)
            if error is None:
                self._report(wanted, e.StepCompleted, raw, failed, started_at)
                return
            if isinstance(error, EncodeError):
                raw = dump_exception(error.about(f"the result of {spec.name}()"), ())
                self._report(wanted, e.StepFailed, raw, failed, started_at)
                return
            now, raw = self._turns.clock.now(), dump_exception(error, spec.raises)
            decision = next_attempt(
                spec.retry, attempt=failed, first_at=first_at, now=now, failure=classify(error, now=now),
                random=random.random(),
            )  # fmt: skip
            if not isinstance(decision, Again):
                if decision.needs_person:
                    self._block(wanted, failed, message_of(error))
                else:
                    self._report(wanted, e.StepFailed, raw, failed, started_at)
                return
            more = {"retry_at": decision.at, "first_at": first_at}
            self._report(wanted, e.AttemptFailed, raw, failed, started_at, **more).result()
            time.sleep(max(0.0, (decision.at - now) / MICROSECONDS))

    def _try(
        self, wanted: Request, spec: StepSpec, perform: Callable[[], Any], number: int, started_at: int
    ) -> tuple[bytes, Exception | None]:
        """One attempt: what it gives, or what it raises."""
        attempt = Attempt(
            self._live.run_id, self._live.info.workflow, wanted.name, f"{wanted.key[0]}/{wanted.name}", number,
            spec.retry.max_attempts, when(started_at), lambda details: None, lambda hint: None, {},
            lambda use: None,
        )  # fmt: skip
        token = ATTEMPT.set(attempt)
        sender = SENDER.set(Outgoing(attempt, number, started_at, None, self._turns.clock.now))
        try:
            return spec.result.dumps(perform()), None
        except Exception as error:
            return b"", error
        finally:
            ATTEMPT.reset(token)
            SENDER.reset(sender)

    def _report(
        self, wanted: Request, kind: Any, raw: bytes, attempt: int, started_at: int, **more: int
    ) -> concurrent.futures.Future[None]:
        """Report what came of an attempt. What is given is done when that is durable: before another one begins."""
        durable: concurrent.futures.Future[None] = concurrent.futures.Future()

        def is_durable() -> None:
            if durable in self._journal.expected:
                self._journal.no_longer_expects(durable)

        def report() -> None:
            if self._journal.is_closed:
                durable.set_exception(Unwound("this section is over"))
                return
            self._journal.expected.add(durable)
            self._live.then += (is_durable,)
            output = pack(raw, self._live.execution.memo)
            kept = wanted.packed if wanted.record is None else None
            wanted.record = wanted.record or Record(wanted.key, wanted.lane, wanted.name, wanted.digest, None, 0, None)
            event = kind(
                *wanted.key, wanted.name, wanted.key[1] + 1, output=output.digest, attempt=attempt,
                started_at=started_at,
                input=None if kept is None else kept.digest, **more,
            )  # fmt: skip
            self._turns.report(
                self._live, event, raw=raw, output=output, input=kept, delivers=kind is not e.AttemptFailed
            )

        self._journal.call_soon(report)
        return durable

    def _block(self, wanted: Request, attempt: int, question: str) -> None:
        def block() -> None:
            if not self._journal.is_closed:
                hint = f"{wanted.key[0]}/{wanted.name}#{wanted.key[1] + 1}: {question}"
                self._journal.people.block(wanted, "needs_person", hint, attempt)

        self._journal.call_soon(block)


def _nothing() -> None:
    """The signature of a call without arguments."""


_NO_ARGUMENTS = arguments_codec_for(_nothing)

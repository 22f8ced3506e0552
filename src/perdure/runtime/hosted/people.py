"""What hosted code asks people: approvals, questions, and what becomes of something that is stuck."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from perdure import decisions
from perdure.codec import ValueCodec, codec_for
from perdure.engine.sagas import Answer
from perdure.errors import DecodeError, StoreError
from perdure.history import events as e
from perdure.runtime.attempt import LANE
from perdure.runtime.hosted.records import Record
from perdure.runtime.hosted.request import Request
from perdure.specs import StepSpec

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal


class HostedPeople:
    """Makes the requests of one section to people."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live, self._turns = journal.live, journal.turns

    def question(self, question: str, reason: str, hint: str, about: list[str]) -> Request:
        """A person is to decide about these operations; what is given is their `Answer`."""

        def perform(request: Request) -> None:
            request.is_wait = True
            asked = self._live.execution.known.asked
            if request.key not in asked:  # or it was, and an answer may be on its way into the history
                asked.add(request.key)
                self.block(request, reason, hint)

        def load(event: e.Keyed, raw: bytes | None) -> Answer:
            return Answer.of(cast("e.PersonAnswered", event), raw or b"null")

        request = Request(LANE.get(), question, codec_for(list[str]).dumps(about), perform)
        request.load, request.is_undoing = load, True
        return request

    def ask(self, asked: decisions.Request, codec: ValueCodec, about: StepSpec | None = None) -> Request:
        """People are asked. What comes of it is the event that says so, and the value that came with it."""
        raw = asked.encoded()

        def perform(request: Request) -> None:
            live, key = self._live, request.key
            request.is_wait = True
            approval = live.execution.approval_at(key)
            before = live.execution.known.requests.get(key)
            if before is not None:
                until = before.expires_at
            else:  # asked just now, or before and decided meanwhile: its time is not counted anew
                until = request.deadline or (self._turns.clock.now() + asked.within if asked.within else 0)
            of = (*key, request.name, key[1] + 1)
            self._turns.approvals.put(live, of, approval, asked, raw, request.packed, until, about)
            request.deadline = until or None
            self.wait_for_answer(request)

        def load(event: e.Keyed, answer: bytes | None) -> Any:
            if isinstance(event, e.PersonAnswered):
                return event, answer or b"null", request.deadline or 0
            if (no := asked.refuses(answer or b"null")) is not None:  # it is asked whether this would do
                raise DecodeError("$", no)
            return codec.loads(answer or b"null")

        request = Request(LANE.get(), asked.label, raw, perform)
        request.load, request.kind = load, asked.kind
        return request

    def wait_for_answer(self, request: Request) -> None:
        """Until its time is up, if it has one."""
        if request.deadline is not None:
            self._journal.wake_at(request, request.deadline, lambda: self._is_due(request))

    def _is_due(self, request: Request) -> None:
        if self._live.is_in_turn:  # it may be that it is not even put to anybody yet
            self._live.deferred += (partial(self._is_due, request),)
            return
        asked = self._live.execution.known.requests.get(request.key)
        is_waiting = self._journal.requests.get(request.key) is request and not request.future.done()
        if asked is not None and is_waiting and not self._live.is_parked:
            try:
                self._turns.approvals.expire(self._live, asked.id)
            except StoreError as error:
                self._turns.contain(self._live, error)

    def block(self, wanted: Request, reason: str, hint: str) -> None:
        """A person decides what becomes of this call. Its start is recorded with the question: by its number the answer
        finds it again after a restart."""
        of = (*wanted.key, wanted.name, wanted.key[1] + 1)
        if wanted.record is None:
            wanted.record = Record(wanted.key, wanted.lane, wanted.name, wanted.view or wanted.digest, None, 0, None)
            started = e.StepStarted(*of, wanted.digest, wanted.view, attempt=1)
            self._turns.report(self._live, started, input=wanted.packed)
        self._turns.parking.block_asked(self._live, e.RunBlocked(reason, hint, *of))

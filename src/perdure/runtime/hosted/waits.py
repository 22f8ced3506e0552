"""What hosted code waits for: time, and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.clock import MICROSECONDS
from perdure.codec import ValueCodec, dump_exception, load_exception, pack
from perdure.history import events as e
from perdure.runtime.attempt import LANE
from perdure.runtime.hosted.records import LIMITED, RECEIVE
from perdure.runtime.hosted.request import Request

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal


class HostedWaits:
    """Makes the requests of one section that wait."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live, self._turns = journal.live, journal.turns

    def sleep(self, length: float) -> Request:
        """A durable wait, in seconds."""

        def perform(request: Request) -> None:
            request.is_wait = True
            if request.deadline is None:
                self._record_deadline(request, length)
            else:
                self._wake_at(request, request.deadline)

        return Request(LANE.get(), "sleep", None, perform)

    def receive(self, name: str, codec: ValueCodec, within: float | None) -> Request:
        """The next message of this name; TimeoutError if none has come within so many seconds."""
        self._live.execution._check_message_name(name)  # pyright: ignore[reportPrivateUsage]

        def perform(request: Request) -> None:
            request.is_wait = True
            if within is not None and request.deadline is None:
                self._record_deadline(request, within)
                return
            if request.is_reported:
                return
            if self._live.execution.mailbox.queues.get(name):
                request.is_reported = True
                self._journal.untaken[request.key] = name
                event = e.SectionReceived(*request.key, request.name, request.key[1] + 1, name)
                self._turns.report(self._live, event, delivers=True)
            elif request.deadline is not None:
                self._wake_at(request, request.deadline)

        request = Request(LANE.get(), RECEIVE + name, None, perform)
        request.digest = None if within is None else LIMITED
        request.load = lambda event, raw: (
            codec.loads(raw or b"null") if isinstance(event, e.SectionReceived | e.StepCompleted) else _fail(raw)
        )
        return request

    def _record_deadline(self, request: Request, length: float) -> None:
        request.deadline = self._turns.clock.now() + round(length * MICROSECONDS)
        self._journal.order.sleeps(request)
        event = e.SectionWait(*request.key, request.name, request.key[1] + 1, request.deadline)
        self._turns.report(self._live, event)

    def _wake_at(self, request: Request, deadline: int) -> None:
        self._journal.order.sleeps(request)
        self._journal.wake_at(request, deadline, lambda: self.wake(request))

    def wake(self, request: Request) -> None:
        """Its time is up."""
        if request.is_here and self._journal.cancelled is None:
            self._journal.order.wake(request)
        else:
            self.has_slept(request)

    def has_slept(self, request: Request) -> None:
        """It hears of that."""
        if request.is_receive:
            self._time_out(request)
        elif self._journal.requests.get(request.key) is request and not request.future.done():
            self._journal.answer(request, e.SectionWait(*request.key, request.name), request.deadline or 0, None)

    def _time_out(self, request: Request) -> None:
        is_waiting = self._journal.requests.get(request.key) is request and not request.future.done()
        if is_waiting and not request.is_reported:
            request.is_reported = True
            raw = dump_exception(TimeoutError(f"no message {request.name.partition(':')[2]!r} came in time"), ())
            output = pack(raw, self._live.execution.memo)
            event = e.StepFailed(*request.key, request.name, request.key[1] + 1, output=output.digest)
            self._turns.report(self._live, event, raw=raw, output=output, delivers=True)


def _fail(raw: bytes | None) -> Any:
    raise load_exception(raw or b"null", ())

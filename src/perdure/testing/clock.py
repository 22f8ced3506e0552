"""A clock that stands still until it is told to move: days pass in no time, and always in the same order."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from perdure.clock import MICROSECONDS
from perdure.specs import seconds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


class FakeAlarm:
    """What `FakeClock.wake_at` gives. It has what asyncio asks of a timer handle."""

    __slots__ = ("_callback", "_context", "_loop", "at", "is_off", "ordinal")

    def __init__(
        self,
        at: int,
        ordinal: int,
        callback: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None,
        context: contextvars.Context | None,
    ) -> None:
        self.at, self.ordinal, self.is_off = at, ordinal, False
        self._callback, self._loop, self._context = callback, loop, context

    def cancel(self) -> None:
        self.is_off = True

    def cancelled(self) -> bool:
        return self.is_off

    def when(self) -> float:
        return self.at / MICROSECONDS

    def ring(self) -> None:
        """Call back: on the loop that it was armed on, directly if there was none."""
        if self._loop is None:
            self._run()
        elif not self._loop.is_closed():
            self._loop.call_soon(self._run, context=self._context)

    def _run(self) -> None:
        if not self.is_off:
            self._callback()

    def __lt__(self, other: FakeAlarm) -> bool:
        return (self.at, self.ordinal) < (other.at, other.ordinal)


class FakeClock:
    """`perdure.clock.Clock` for tests: `Runtime(clock=FakeClock())`.

    Time moves only by `advance` and `advance_to_next`. What is due then rings in the order of its time, and what is due
    at the same time in the order in which it was armed. A callback runs when the loop on which it was armed comes
    round, as it would by a real clock.

    >>> clock = FakeClock()
    >>> alarm = clock.wake_at(clock.now() + 2_000_000, lambda: print("two seconds later"))
    >>> clock.advance(timedelta(seconds=3))
    two seconds later
    """

    def __init__(self, start: datetime = NEW_YEAR) -> None:
        self._now = round((start - _EPOCH) / timedelta(microseconds=1))
        self._alarms: list[FakeAlarm] = []
        self._ordinal = 0

    def now(self) -> int:
        """Microseconds since the epoch."""
        return self._now

    @property
    def time(self) -> datetime:
        """The same as an aware datetime."""
        return _EPOCH + timedelta(microseconds=self._now)

    def wake_at(self, at: int, callback: Callable[[], None]) -> FakeAlarm:
        """Call `callback` once `now() >= at`, on the event loop that is running now."""
        return self.arm(at, callback, asyncio._get_running_loop())

    def arm(
        self,
        at: int,
        callback: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None,
        context: contextvars.Context | None = None,
    ) -> FakeAlarm:
        """`wake_at` on a given loop; without one the callback is called by whoever moves the time."""
        self._ordinal += 1
        alarm = FakeAlarm(at, self._ordinal, callback, loop, context)
        if at <= self._now and loop is not None:
            alarm.ring()
        else:
            heapq.heappush(self._alarms, alarm)
        return alarm

    def next_alarm_at(self) -> int | None:
        """When the next alarm is due, in microseconds since the epoch."""
        alarms = self._alarms
        while alarms and alarms[0].is_off:
            heapq.heappop(alarms)
        return alarms[0].at if alarms else None

    def advance(self, duration: timedelta | float) -> None:
        """Let a time pass: a timedelta, or seconds."""
        self.advance_to(self._now + round(seconds(duration, what="duration") * MICROSECONDS))

    def advance_to(self, at: int) -> None:
        """Let it be `at` (microseconds since the epoch). Time never goes back."""
        while (due := self.next_alarm_at()) is not None and due <= at:
            self._now = max(self._now, due)
            heapq.heappop(self._alarms).ring()
        self._now = max(self._now, at)

    def advance_to_next(self) -> bool:
        """Let it be the time of the next alarm. False if there is none."""
        at = self.next_alarm_at()
        if at is None:
            return False
        self.advance_to(at)
        return True

"""What time is it, and wake me at: the two questions that perdure asks a clock.

Times are whole microseconds since 1970-01-01 UTC, everywhere in perdure; durations are seconds.
`perdure.testing.clock.FakeClock` is the other implementation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def when(at: int) -> datetime:
    """Microseconds since the epoch as an aware datetime, UTC.

    >>> when(1_500_000).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    return _EPOCH + timedelta(microseconds=at)


def time_text(at: int) -> str:
    """Microseconds since the epoch as people read a time, to the second.

    >>> time_text(1_500_000)
    '1970-01-01 00:00:01 UTC'
    """
    return when(at).strftime("%Y-%m-%d %H:%M:%S UTC")


class Alarm(Protocol):
    """What `wake_at` gives back; `cancel()` makes it silent."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time of the outside world."""

    def now(self) -> int:
        """Microseconds since the epoch."""
        ...

    def wake_at(self, at: int, callback: Callable[[], None]) -> Alarm:
        """Call `callback` on the running event loop once `now() >= at`."""
        ...


LOOK_SECONDS = 10.0
"""How often a long alarm looks at the clock."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def wake_at(self, at: int, callback: Callable[[], None]) -> Alarm:
        from asyncio import get_running_loop  # whoever asks has it; `import perdure` does without

        delay = max(0.0, (at - self.now()) / MICROSECONDS)
        if delay > LOOK_SECONDS:
            return _LongAlarm(self, at, callback)
        return get_running_loop().call_later(delay, callback)


class _LongAlarm:
    """The loop counts the seconds that it has lived. While a machine sleeps it counts none, and it does not hear that
    the clock was put right: so the clock itself is looked at now and then."""

    __slots__ = ("_at", "_callback", "_clock", "_next")

    def __init__(self, clock: Clock, at: int, callback: Callable[[], None]) -> None:
        self._clock, self._at, self._callback = clock, at, callback
        self._look()

    def _look(self) -> None:
        from asyncio import get_running_loop

        left = (self._at - self._clock.now()) / MICROSECONDS
        if left > 0:
            self._next: Alarm = get_running_loop().call_later(min(left, LOOK_SECONDS), self._look)
        else:
            self._callback()

    def cancel(self) -> None:
        self._next.cancel()

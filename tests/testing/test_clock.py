"""FakeClock: time passes when it is told to, and always in the same order."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure.clock import Clock
from perdure.errors import DeclarationError
from perdure.testing.clock import FakeClock

SECOND = 1_000_000


def test_it_is_a_clock_and_stands_still() -> None:
    fake = FakeClock(datetime(2031, 5, 1, tzinfo=UTC))
    clock: Clock = fake
    assert clock.now() == clock.now() == fake.now()
    assert fake.time == datetime(2031, 5, 1, tzinfo=UTC)


def test_what_is_due_rings_in_the_order_of_its_time_and_of_its_arming() -> None:
    clock, rung = FakeClock(), list[str]()
    start = clock.now()

    def arm(name: str, seconds: int) -> None:
        clock.wake_at(start + seconds * SECOND, lambda: rung.append(f"{name} {(clock.now() - start) // SECOND}"))

    for name, seconds in (("late", 3), ("first", 1), ("second", 1), ("never", 9)):
        arm(name, seconds)
    clock.advance(timedelta(seconds=4))
    assert rung == ["first 1", "second 1", "late 3"]
    assert clock.now() == start + 4 * SECOND
    assert clock.next_alarm_at() == start + 9 * SECOND


def test_a_cancelled_alarm_is_silent() -> None:
    clock, rung = FakeClock(), list[int]()
    alarm = clock.wake_at(clock.now() + SECOND, lambda: rung.append(1))
    alarm.cancel()
    assert alarm.cancelled()
    assert not clock.advance_to_next()
    clock.advance(5)
    assert rung == []


def test_it_goes_from_alarm_to_alarm() -> None:
    clock, rung = FakeClock(), list[int]()

    def again() -> None:
        rung.append(clock.now())
        if len(rung) < 3:
            clock.wake_at(clock.now() + SECOND, again)

    start = clock.now()
    clock.wake_at(start + SECOND, again)
    while clock.advance_to_next():
        pass
    assert rung == [start + SECOND, start + 2 * SECOND, start + 3 * SECOND]


def test_time_never_goes_back() -> None:
    clock = FakeClock()
    before = clock.now()
    clock.advance_to(before - SECOND)
    assert clock.now() == before
    with pytest.raises(DeclarationError, match="duration"):
        clock.advance(-1)


async def ring_on_loop() -> list[str]:
    clock, rung = FakeClock(), list[str]()
    clock.wake_at(clock.now() + SECOND, lambda: rung.append(f"on {asyncio.get_running_loop() is loop}"))
    loop = asyncio.get_running_loop()
    clock.advance(2)
    assert rung == [], "not from inside the caller: when the loop comes round"
    clock.wake_at(clock.now(), lambda: rung.append("due at once"))
    await asyncio.sleep(0)
    return rung


def test_it_calls_back_on_the_loop_that_armed_it() -> None:
    assert asyncio.run(ring_on_loop()) == ["on True", "due at once"]


def test_an_alarm_of_a_closed_loop_is_dropped() -> None:
    clock = FakeClock()

    async def arm() -> None:
        clock.wake_at(clock.now() + SECOND, lambda: pytest.fail("the loop is closed"))

    asyncio.run(arm())
    clock.advance(2)

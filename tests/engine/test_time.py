"""Time in a run: that of the event being delivered. Timers fire when it has come, once each."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engine.driving import SECOND, START, Driver

import perdure
from perdure import step, workflow
from perdure.engine.execution import _due_at
from perdure.errors import UsageError
from perdure.history import events as e


@step
async def work(item: int = 0) -> int:
    return item


@workflow
async def clock() -> list[datetime]:
    seen = [perdure.now()]
    await work()
    seen += [perdure.now(), perdure.now()]
    await perdure.sleep(60)
    return [*seen, perdure.now()]


def test_now_is_the_time_of_the_event_being_delivered() -> None:
    driver = Driver(clock).complete("work", after=5).pass_time(61)
    start = datetime.fromtimestamp(START / SECOND, UTC)
    assert driver.result() == [start, *[start + timedelta(seconds=5)] * 2, start + timedelta(seconds=66)]
    driver.check_replays()


def test_time_never_goes_back() -> None:
    driver = Driver(clock).complete("work", after=-100).pass_time(161)
    seen = driver.result()
    assert seen == sorted(seen)
    assert seen[1] == seen[0]
    driver.check_replays()


@workflow
async def ticking(ticks: int) -> list[float]:
    seen: list[float] = []
    began = perdure.now()
    for _ in range(ticks):
        await perdure.sleep(10)
        seen.append((perdure.now() - began).total_seconds())
    return seen


def test_there_is_no_catching_up() -> None:
    """A worker that comes an hour late fires one timer; the next one is armed from then on."""
    driver = Driver(ticking, 3).pass_time(3600)
    assert driver.asked == ["0/sleep#2"]
    driver.wake().wake()
    assert driver.result() == [3600, 3610, 3620]
    driver.check_replays()


@workflow
async def polling() -> int:
    polls = 0
    try:
        async with asyncio.timeout(60):
            while True:
                await asyncio.sleep(10)
                polls += 1
    except TimeoutError:
        return polls


def test_asyncio_sleep_is_virtual_too() -> None:
    driver = Driver(polling)
    while not driver.is_over:
        driver.wake()
    assert driver.result() == 5
    driver.check_replays()


@workflow
async def racing() -> list[str]:
    order: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await perdure.sleep(seconds)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 30), ("a", 10), ("b", 20), ("also b", 20)):
            group.create_task(sleeper(name, seconds))
    return order


@pytest.mark.parametrize("late", [False, True])
def test_timers_fire_by_deadline_and_then_in_the_order_of_arming(late: bool) -> None:
    driver = Driver(racing)
    if late:
        driver.pass_time(1000)
    while not driver.is_over:
        driver.wake()
    assert driver.result() == ["a", "b", "also b", "c"]
    driver.check_replays()


@workflow
async def message_or_timer() -> str:
    try:
        return await perdure.receive("go", str, within=60)
    except TimeoutError:
        return "nobody came"


@pytest.mark.parametrize(("after", "came"), [(59.999, "yes"), (60, "yes"), (60.001, "yes")])
def test_a_message_delivered_first_wins_over_the_timer_that_is_due(after: float, came: str) -> None:
    """Outcome first, then the timers: also when the timer was due a little earlier and nobody had noticed yet."""
    driver = Driver(message_or_timer)
    raw = b'"yes"'
    driver.deliver(e.MessageArrived("go", b""), raw, after=after)
    assert driver.result() == came
    driver.check_replays()


def test_a_timer_delivered_first_wins_and_the_message_stays_in_the_mailbox() -> None:
    driver = Driver(message_or_timer).wake()
    assert driver.result() == "nobody came"
    driver.check_replays()


@workflow
async def race() -> str:
    """A message against five minutes: the loser is cancelled and holds nobody up."""
    message = asyncio.create_task(perdure.receive("go", str))
    timer = asyncio.create_task(perdure.sleep(300))
    done, pending = await asyncio.wait({message, timer}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return "message" if message in done else "timer"


def test_a_lost_timer_is_gone() -> None:
    driver = Driver(race).message("go", "now")
    assert driver.result() == "message"
    assert driver.execution.deadline() is None
    driver.check_replays()


@workflow
async def cancelled_sleep() -> int:
    task = asyncio.create_task(perdure.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    return await work()


def test_a_cancelled_sleep_leaves_no_timer_behind() -> None:
    driver = Driver(cancelled_sleep)
    assert driver.asked == ["0/work#1"]
    assert driver.execution.deadline() is None
    assert driver.execution.waiting_set() == ()
    driver.complete("work").check_replays()


# ── lengths ─────────────────────────────────────────────────────────────────────────────────


@workflow
async def sleeping(seconds: float) -> str:
    try:
        await perdure.sleep(seconds)
    except UsageError as error:
        return str(error)
    return "slept"


@pytest.mark.parametrize("seconds", [101 * 366 * 86_400.0, 1e300])
def test_a_length_that_cannot_be_meant(seconds: float) -> None:
    assert "between 0 and 100 years" in Driver(sleeping, seconds).result()


def test_sleep_of_nothing() -> None:
    assert Driver(sleeping, 0).result() == "slept"


@workflow
async def sleeping_by_name() -> None:
    await perdure.sleep(days=1, hours=2, minutes=3, seconds=4)


def test_lengths_add_up() -> None:
    driver = Driver(sleeping_by_name)
    assert driver.execution.deadline() == START + (((24 + 2) * 60 + 3) * 60 + 4) * SECOND


@workflow
async def has_all_the_time(seconds: float) -> int:
    for_ever = asyncio.create_task(asyncio.sleep(seconds))
    got = await asyncio.wait_for(work(1), seconds)
    try:
        async with asyncio.timeout(60):
            await for_ever
    except TimeoutError:
        return got
    return -1


FOR_EVER = [math.inf, 1e300, 1e13]
"""Lengths by which code says that it waits for ever; the last one is more microseconds than a store can count."""


@pytest.mark.parametrize("seconds", FOR_EVER)
def test_a_timer_that_never_fires_is_in_the_way_of_no_other(seconds: float) -> None:
    driver = Driver(has_all_the_time, seconds)
    assert driver.execution.deadline() is None
    driver.complete("work", 1)
    assert driver.execution.deadline() == driver.at + 60 * SECOND
    assert driver.wake().result() == 1
    driver.check_replays()


@workflow
async def waits_for_ever(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("seconds", FOR_EVER)
def test_who_only_waits_for_ever_waits_for_nothing(seconds: float) -> None:
    assert Driver(waits_for_ever, seconds).execution.is_deadlocked


# ── deadlines in microseconds and time in seconds ───────────────────────────────────────────


@given(st.integers(0, 10**12), st.floats(0, 1e8))
@example(924, 1.00001)
def test_at_its_deadline_every_timer_is_due(offset: int, delay: float) -> None:
    """A runtime wakes a run at exactly the microsecond that the run names; the timer has to fire then."""
    loop = Driver(sleeping, 0).execution.loop
    now = START + offset
    loop.now_seconds = now / SECOND
    loop.call_later(delay, print)
    when = loop.next_deadline()
    assert when is not None
    at = _due_at(when)
    assert 0 <= at - when * SECOND <= 1.5
    loop.now_seconds = at / SECOND
    assert len(loop.pop_due()) == 1

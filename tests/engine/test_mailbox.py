"""Messages: kept until they are received, in order, by the receives in order; a cancelled receive loses none."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.codec import pack
from perdure.errors import UnknownNameError
from perdure.history import events as e


@step
async def work(item: int = 0) -> int:
    return item


@workflow
async def three() -> list[str]:
    await work()
    return [await perdure.receive("m", str) for _ in range(3)]


def test_messages_that_come_early_are_kept_in_order() -> None:
    driver = Driver(three).message("m", "a").message("m", "b").complete("work").message("m", "c")
    assert driver.result() == ["a", "b", "c"]
    driver.check_replays()


@workflow
async def by_name() -> str:
    second = await perdure.receive("second", str)
    return second + await perdure.receive("first", str)


def test_each_name_has_its_own_queue() -> None:
    driver = Driver(by_name).message("first", "1").message("second", "2")
    assert driver.result() == "21"
    driver.check_replays()


@workflow
async def impatient() -> list[str]:
    seen: list[str] = []
    for _ in range(3):
        try:
            seen.append(await perdure.receive("m", str, within=10))
        except TimeoutError:
            seen.append("late")
    return seen


def test_a_receive_that_timed_out_takes_nothing() -> None:
    driver = Driver(impatient).wake().message("m", "a").message("m", "b")
    assert driver.result() == ["late", "a", "b"]
    driver.check_replays()


@workflow
async def given_up() -> list[str]:
    first = asyncio.create_task(perdure.receive("m", str))
    await work()
    first.cancel()
    await work()
    return [await perdure.receive("m", str)]


def test_a_cancelled_receive_takes_nothing() -> None:
    driver = Driver(given_up).complete("work").message("m", "a").complete("work")
    assert driver.result() == ["a"]
    driver.check_replays()


@workflow
async def cancelled_as_it_comes() -> list[str]:
    """The message wakes the receive, and in the same run of the loop the receiving task is cancelled."""
    first = asyncio.create_task(perdure.receive("m", str))
    signal = asyncio.create_task(perdure.receive("stop", str))
    await asyncio.wait([signal])
    first.cancel()
    try:
        return ["first", await first]
    except asyncio.CancelledError:
        return ["second", await perdure.receive("m", str)]


def test_a_message_to_a_receive_cancelled_at_the_same_moment_goes_to_the_next() -> None:
    driver = Driver(cancelled_as_it_comes)
    driver.execution.mailbox.put("m", b'"a"')
    driver.execution.mailbox.wake("m")
    driver.message("stop", "now")
    assert driver.result() in (["first", "a"], ["second", "a"])


@workflow
async def two_receivers() -> list[list[str]]:
    seen: list[list[str]] = []

    async def receiver(name: str) -> None:
        seen.append([name, await perdure.receive("m", str)])

    async with asyncio.TaskGroup() as group:
        for name in ("first", "second"):
            group.create_task(receiver(name))
    return seen


def test_two_receivers_are_served_in_the_order_of_their_coming() -> None:
    driver = Driver(two_receivers).message("m", "a")
    assert driver.asked == ["0.2/receive:m#1"]
    assert driver.message("m", "b").result() == [["first", "a"], ["second", "b"]]
    driver.check_replays()


@workflow
async def late_comer() -> list[list[str]]:
    """A receive that comes while an older one is being woken must not take its message and leave it to wait on."""
    seen: list[list[str]] = []

    async def receiver(name: str) -> None:
        seen.append([name, await perdure.receive("m", str)])

    old = asyncio.create_task(receiver("old"))
    await work()
    new = asyncio.create_task(receiver("new"))
    await asyncio.gather(old, new)
    return seen


def test_a_message_goes_to_the_older_receive() -> None:
    driver = Driver(late_comer).message("m", "a").complete("work").message("m", "b")
    assert driver.result() == [["old", "a"], ["new", "b"]]
    driver.check_replays()


@workflow
async def first_receiver_is_cancelled() -> list[list[str]]:
    seen: list[list[str]] = []

    async def receiver(name: str) -> None:
        seen.append([name, await perdure.receive("m", str)])

    first, second = (asyncio.create_task(receiver(name)) for name in ("first", "second"))
    await work()
    first.cancel()
    await second
    return seen


def test_behind_a_cancelled_receiver_the_next_is_served() -> None:
    driver = Driver(first_receiver_is_cancelled).complete("work").message("m", "a")
    assert driver.result() == [["second", "a"]]
    driver.check_replays()


# ── names and types ─────────────────────────────────────────────────────────────────────────


@workflow(receives={"answer": int})
async def declared(name: str) -> int:
    return int(await perdure.receive(name))


def test_a_name_that_is_not_declared_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match="near: answer"):
        Driver(declared, "anwser").result()


def test_a_message_is_read_as_declared() -> None:
    driver = Driver(declared, "answer").message("answer", 5)
    assert driver.result() == 5


def test_a_message_that_is_no_such_thing_waits_for_a_person() -> None:
    """What is noted says which receive, and what it got; the code sees nothing of it."""
    driver = Driver(declared, "answer").message("answer", "five")
    (noted,) = driver.execution.notes
    assert isinstance(noted, e.RunBlocked)
    assert noted.call == "0/receive:answer#1"
    assert "the message 'answer'" in noted.hint
    assert '"five"' in noted.hint
    assert driver.asked == ["0/receive:answer#1"]
    packed = pack(b"5", driver.execution.memo)
    driver.deliver(e.MessageSettled("0", 0, "receive:answer", 1, output=packed.digest), b"5")
    assert driver.result() == 5
    driver.check_replays()


# ── parked ──────────────────────────────────────────────────────────────────────────────────


def test_a_parked_receive_is_claimed_again() -> None:
    driver = Driver(by_name).park()
    assert driver.asked == ["0/receive:second#1"]
    assert driver.message("second", "2").park().message("first", "1").result() == "21"

"""continue_as_new: a new chapter with new arguments; what was not taken from the mailbox goes along."""
# ruff: noqa: RET503  (continue_as_new never returns)

from __future__ import annotations

import asyncio

import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.engine.chapters import NextChapter
from perdure.errors import EncodeError, UsageError


@step
async def work(item: int = 0) -> int:
    return item


@workflow
async def child(item: int) -> int:
    return item


@workflow
async def counting(total: int, rounds: int) -> int:
    if rounds == 0:
        return total
    perdure.continue_as_new(total + await work(rounds), rounds - 1)


def test_a_chapter_begins_with_the_new_arguments() -> None:
    driver = Driver(counting, 0, 3)
    for n in (3, 2, 1):
        driver.check_replays()
        driver = driver.complete("work", n).next_chapter()
    assert driver.result() == 6
    assert driver.beginning.chapter == 3


@workflow
async def draws(rounds: int) -> float:
    drawn = perdure.random()
    if rounds:
        perdure.continue_as_new(rounds - 1)
    return drawn


def test_each_chapter_has_randomness_of_its_own() -> None:
    assert Driver(draws, 1).next_chapter().result() != Driver(draws, 0).result()


# ── the mailbox ─────────────────────────────────────────────────────────────────────────────


@workflow
async def collecting(seen: list[str]) -> list[str]:
    seen = [*seen, await perdure.receive("m", str)]
    if len(seen) < 4:
        perdure.continue_as_new(seen)
    return seen


def test_messages_that_were_not_taken_are_carried_over_in_order() -> None:
    driver = Driver(collecting, []).message("m", "a")
    for message in ("b", "c", "d"):
        driver.message("m", message)
    driver = driver.next_chapter().next_chapter().next_chapter()
    assert driver.result() == ["a", "b", "c", "d"]
    driver.check_replays()


def test_a_message_that_comes_when_the_chapter_has_ended_is_carried_over() -> None:
    """Its commit is the one that ends the chapter, or the one before: nobody will deliver it again."""
    driver = Driver(collecting, []).message("m", "a")
    assert isinstance(driver.execution.ending, NextChapter)
    assert driver.message("m", "b").next_chapter().execution.ending == NextChapter(b'{"seen":["a","b"]}')


@workflow
async def waits_in_a_task(rounds: int) -> str:
    """A receive of another task does not hold the chapter's end up, and does not swallow what it was woken for."""
    if rounds == 0:
        return await perdure.receive("m", str)
    waiting = asyncio.create_task(perdure.receive("m", str))
    await work()
    del waiting
    perdure.continue_as_new(rounds - 1)


def test_a_receive_under_way_is_given_up() -> None:
    driver = Driver(waits_in_a_task, 1).complete("work").next_chapter()
    assert driver.asked == ["0/receive:m#1"]
    assert driver.message("m", "a").result() == "a"


# ── refused ─────────────────────────────────────────────────────────────────────────────────


async def make(what: str) -> None:
    if what == "step":
        await work(1)
    elif what == "child":
        await child(1)
    else:
        await perdure.sleep(60)


@workflow
async def in_flight(what: str) -> str:
    task = asyncio.create_task(make(what))
    await asyncio.sleep(0)
    try:
        perdure.continue_as_new(what)
    except UsageError as error:
        task.cancel()
        return str(error)


@pytest.mark.parametrize("what", ["step", "child", "sleep"])
def test_it_is_refused_while_a_call_is_in_flight(what: str) -> None:
    driver = Driver(in_flight, what)
    assert "is in flight: await or cancel it first" in str(driver.execution.ending)


@workflow
async def in_a_task() -> str:
    async def elsewhere() -> None:
        perdure.continue_as_new()

    try:
        await asyncio.create_task(elsewhere())
    except UsageError as error:
        return str(error)
    return ""


def test_it_is_refused_in_another_task() -> None:
    assert "belongs into the workflow's own task" in Driver(in_a_task).result()


@workflow
async def with_what(what: str, item: int = 0) -> None:
    if what == "a value":
        perdure.continue_as_new(object())
    perdure.continue_as_new("", 1, 2)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(EncodeError, match="what"):
        Driver(with_what, "a value").result()
    with pytest.raises(TypeError):
        Driver(with_what, "too many").result()


@workflow
async def swallowing() -> str:
    try:
        perdure.continue_as_new()
    except Exception:
        return "swallowed"


def test_except_exception_does_not_swallow_it() -> None:
    assert isinstance(Driver(swallowing).execution.ending, NextChapter)


# ── what is let go of at the end ────────────────────────────────────────────────────────────


@workflow
async def cleaning(rounds: int) -> int:
    async def helper() -> None:
        try:
            await perdure.receive("never")
        finally:
            await work(rounds)

    if rounds == 0:
        return 0
    helping = asyncio.create_task(helper())
    await asyncio.sleep(0)
    del helping
    perdure.continue_as_new(rounds - 1)


def test_the_cleanup_of_other_tasks_comes_before_the_next_chapter() -> None:
    driver = Driver(cleaning, 1)
    assert driver.asked == ["0.1/work#1"]
    assert driver.complete("work").next_chapter().result() == 0
    driver.check_replays()


@workflow
async def cancels_a_child(rounds: int) -> int:
    if rounds == 0:
        return 0
    started = await perdure.start(child.call(1))
    await work()
    started.cancel()
    perdure.continue_as_new(rounds - 1)


def test_a_cancelled_child_is_waited_for() -> None:
    driver = Driver(cancels_a_child, 1)
    ask = driver.ask("child")
    driver.complete("work")
    assert not driver.is_over
    driver.end_child(ask, error=asyncio.CancelledError())
    assert isinstance(driver.execution.ending, NextChapter)
    driver.check_replays()


@workflow
async def leaves_a_child(rounds: int) -> int:
    if rounds == 0:
        return await work()
    await perdure.start(child.call(1), on_cancel="abandon")
    perdure.continue_as_new(rounds - 1)


def test_a_child_left_to_itself_does_not_hold_the_chapter_up() -> None:
    driver = Driver(leaves_a_child, 1)
    ask = driver.ask("child")
    driver = driver.next_chapter()
    driver.end_child(ask, 1)
    assert driver.complete("work", 5).result() == 5

"""Cancelling: of the run, of a call, of a child; and cleanup that makes calls itself."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.errors import RunCancelledError
from perdure.history import events as e


@step
async def work(item: int = 0) -> int:
    return item


@step
async def clean_up(item: int = 0) -> int:
    return item


@workflow
async def child(item: int = 0) -> int:
    return item


def cancelled_calls(driver: Driver) -> list[str]:
    return [h.event.label for h in driver.history if isinstance(h.event, e.CallCancelled)]


# ── the run ─────────────────────────────────────────────────────────────────────────────────


@workflow
async def tidy() -> int:
    try:
        return await work() + await work()
    finally:
        await clean_up(1)
        await perdure.sleep(5)
        await clean_up(2)


def test_a_cancelled_run_cleans_up_with_calls_of_its_own() -> None:
    driver = Driver(tidy).complete("work", 1).cancel("enough")
    assert driver.asked == ["0/clean_up#1"]
    driver.complete("clean_up").wake().complete("clean_up")
    assert driver.was_cancelled
    assert cancelled_calls(driver) == ["0/work#2"]
    driver.check_replays()


def test_the_result_of_a_step_that_was_cancelled_is_recorded_and_not_delivered() -> None:
    driver = Driver(tidy)
    ask = driver.ask("work")
    driver.cancel()
    driver.complete(ask, 7)
    assert driver.asked == ["0/clean_up#1"]
    driver.complete("clean_up").wake().complete("clean_up")
    assert driver.was_cancelled
    driver.check_replays()


@workflow
async def stubborn() -> int:
    try:
        await work()
    except asyncio.CancelledError:
        return await clean_up(5)
    return 0


def test_a_run_that_swallows_its_cancel_completes() -> None:
    assert Driver(stubborn).cancel().complete("clean_up", 5).result() == 5


def test_a_second_cancel_interrupts_the_cleanup_as_in_asyncio() -> None:
    driver = Driver(tidy).cancel().complete("clean_up").cancel()
    assert driver.was_cancelled
    assert driver.performed == ["0/work#1", "0/clean_up#1"]
    driver.check_replays()


@workflow
async def waits_for_tasks() -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(1)), group.create_task(tidy_branch()), group.create_task(work(3))]
    return [task.result() for task in tasks]


async def tidy_branch() -> int:
    try:
        return await work(2)
    finally:
        await clean_up()


def test_a_cancel_reaches_all_tasks_of_a_group() -> None:
    driver = Driver(waits_for_tasks).cancel()
    assert driver.asked == ["0.2/clean_up#1"]
    driver.complete("clean_up")
    assert driver.was_cancelled
    assert cancelled_calls(driver) == ["0.1/work#1", "0.2/work#1", "0.3/work#1"]
    driver.check_replays()


# ── the end of the workflow ─────────────────────────────────────────────────────────────────


@workflow
async def leaves_tasks() -> str:
    async def background() -> None:
        try:
            await work()
        finally:
            await clean_up()

    kept = [asyncio.create_task(background()) for _ in range(2)]
    await asyncio.sleep(0)
    return f"{len(kept)} left"


def test_tasks_alive_at_the_end_are_cancelled_and_their_cleanup_is_waited_for() -> None:
    driver = Driver(leaves_tasks)
    assert driver.asked == ["0.1/clean_up#1", "0.2/clean_up#1"]
    driver.complete("0.2/clean_up#1").complete("0.1/clean_up#1")
    assert driver.result() == "2 left"
    driver.check_replays()


@workflow
async def leaves_a_call() -> int:
    _ = work.call(5)
    return 1


def test_a_call_that_is_never_awaited_is_never_made() -> None:
    driver = Driver(leaves_a_call)
    assert driver.result() == 1
    assert "0/work#1" not in driver.performed


# ── children ────────────────────────────────────────────────────────────────────────────────


@workflow
async def awaits_child() -> int:
    try:
        return await child(1)
    except RunCancelledError:
        return -1


def test_a_cancelled_parent_cancels_its_child_and_ends_after_it() -> None:
    """The await is over at once; the parent's end waits until the child has ended."""
    driver = Driver(awaits_child)
    ask = driver.ask("child")
    driver.cancel()
    assert driver.asked == []
    assert not driver.is_over
    assert not driver.execution.is_deadlocked
    driver.end_child(ask, error=RunCancelledError("cancelled"))
    assert driver.was_cancelled
    driver.check_replays()


def test_a_child_that_was_cancelled_by_somebody_else() -> None:
    driver = Driver(awaits_child).end_child("child", error=RunCancelledError("cancelled"))
    assert driver.result() == -1
    driver.check_replays()


@workflow
async def child_in_time() -> str:
    try:
        async with asyncio.timeout(60):
            return str(await child(1))
    except TimeoutError:
        return f"late, {await clean_up(5)}"


def test_a_timeout_around_a_child() -> None:
    """The code goes on at once, without waiting for the child; the run's end waits for it."""
    driver = Driver(child_in_time)
    ask = driver.ask("child")
    driver.wake()
    assert driver.asked == ["0/clean_up#1"]
    driver.complete("clean_up", 5)
    assert not driver.is_over
    driver.end_child(ask, 1)
    assert driver.result() == "late, 5"
    driver.check_replays()


@workflow
async def timer_left_behind() -> str:
    loop = asyncio.get_running_loop()
    loop.call_later(30, lambda: loop.create_task(clean_up(7)))
    started = await perdure.start(child.call(1))
    await work()
    return started.id


def test_a_timer_left_behind_begins_nothing_while_the_end_waits_for_a_child() -> None:
    """As after asyncio.run: the workflow has returned and its tasks have ended, so nothing of it runs any more."""
    driver = Driver(timer_left_behind)
    ask = driver.ask("child")
    driver.complete("work")
    assert not driver.is_over
    driver.pass_time(60)
    assert driver.asked == []
    assert driver.execution.deadline() is None
    driver.end_child(ask, error=RunCancelledError("cancelled"))
    assert driver.result() == ask.run_id
    driver.check_replays()


@workflow
async def child_and_failure() -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child(1))
            group.create_task(fail())
    except ExceptionGroup as failures:
        return str(failures.exceptions[0])
    return ""


async def fail() -> None:
    raise ValueError("at once")


def test_a_child_cancelled_in_the_turn_that_asked_for_it_is_never_started() -> None:
    """Nobody has heard of it, so nobody will report its end: the run must not wait for that."""
    driver = Driver(child_and_failure)
    assert driver.result() == "at once"
    assert driver.performed == []
    assert driver.history == []
    driver.check_replays()


@workflow
async def step_and_failure() -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(work(1))
            group.create_task(fail())
    except ExceptionGroup as failures:
        return str(failures.exceptions[0])
    return ""


def test_a_step_cancelled_in_the_turn_that_asked_for_it_is_never_started() -> None:
    driver = Driver(step_and_failure)
    assert driver.result() == "at once"
    assert driver.performed == []
    driver.check_replays()


@workflow
async def left_alone() -> str:
    started = await perdure.start(child.call(1), on_cancel="abandon")
    try:
        async with asyncio.timeout(60):
            await started.result()
    except TimeoutError:
        return "not waiting any more"
    return "waited"


def test_a_wait_for_a_child_is_not_the_child() -> None:
    """Giving up the wait leaves the child alone; so does the end of a run that has abandoned it."""
    driver = Driver(left_alone).wake()
    assert driver.result() == "not waiting any more"
    assert cancelled_calls(driver) == []
    driver.check_replays()


@workflow
async def cancels_by_handle() -> str:
    started = await perdure.start(child.call(1), id="the child")
    assert started.id == "the child"
    await work()
    started.cancel()
    try:
        await started.result()
    except asyncio.CancelledError:
        return await say(5)
    return ""


@step
async def say(item: int) -> str:
    return str(item)


def test_a_child_is_cancelled_by_its_handle() -> None:
    driver = Driver(cancels_by_handle)
    ask = driver.ask("child")
    driver.complete("work")
    assert cancelled_calls(driver) == ["0/child#1"]
    driver.complete("say", "done")
    assert not driver.is_over
    driver.end_child(ask, error=RunCancelledError("cancelled"))
    assert driver.result() == "done"
    driver.check_replays()


@workflow
async def cancels_an_abandoned_child() -> int:
    started = await perdure.start(child.call(1), on_cancel="abandon")
    await work()
    started.cancel()
    return 1


def test_an_abandoned_child_can_still_be_cancelled_by_its_handle() -> None:
    driver = Driver(cancels_an_abandoned_child).complete("work")
    assert cancelled_calls(driver) == ["0/child#1"]
    assert driver.result() == 1
    driver.check_replays()


@pytest.mark.parametrize("ends", ["completes", "fails"])
def test_a_child_that_ends_in_the_moment_it_is_cancelled(ends: str) -> None:
    driver = Driver(child_in_time)
    ask = driver.ask("child")
    driver.wake()
    if ends == "completes":
        driver.end_child(ask, 1)
    else:
        driver.end_child(ask, error=ValueError("no"))
    assert driver.complete("clean_up", 5).result() == "late, 5"
    driver.check_replays()

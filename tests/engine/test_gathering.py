"""Several calls at once: gather, wait, as_completed, wait_for, timeout, TaskGroup, shield."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import anyio
import pytest
from tests.engine.driving import Driver, argument_of

import perdure
from perdure import step, workflow
from perdure.history import events as e


@step
async def work(item: int) -> int:
    return item


@step
async def clean_up(item: int) -> int:
    return item


def ten_times(ask: Any) -> int:
    return int(argument_of(ask)) * 10


# ── gather ──────────────────────────────────────────────────────────────────────────────────


@workflow
async def gathering(items: list[int]) -> list[int]:
    return await asyncio.gather(*(work(item) for item in items))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_gather_gives_results_in_the_order_of_its_arguments(order: tuple[int, ...]) -> None:
    driver = Driver(gathering, [10, 11, 12])
    assert driver.asked == ["0.1/work#1", "0.2/work#1", "0.3/work#1"]
    for n in order:
        driver.complete(f"0.{n + 1}/work#1", n)
    assert driver.result() == [0, 1, 2]
    driver.check_replays()


def test_gather_raises_the_first_failure_and_stops_what_is_left_at_the_end() -> None:
    driver = Driver(gathering, [10, 11, 12])
    driver.fail("0.2/work#1", ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        driver.result()
    driver.check_replays()


@workflow
async def gathering_errors() -> list[str]:
    answers = await asyncio.gather(work(1), work(2), return_exceptions=True)
    return [str(answer) for answer in answers]


def test_gather_can_return_exceptions() -> None:
    driver = Driver(gathering_errors)
    driver.fail("0.1/work#1", OSError("gone")).complete("0.2/work#1", 2)
    assert driver.result() == ["gone", "2"]
    driver.check_replays()


@workflow
async def nested_gathers() -> list[int]:
    async def pair(first: int) -> int:
        return sum(await asyncio.gather(work(first), work(first + 1)))

    return list(await asyncio.gather(pair(1), pair(10)))


def test_a_nested_gather_has_paths_below_its_task() -> None:
    driver = Driver(nested_gathers)
    assert driver.asked == ["0.1.1/work#1", "0.1.2/work#1", "0.2.1/work#1", "0.2.2/work#1"]
    assert driver.run(ten_times) == [30, 210]
    driver.check_replays()


# ── wait ────────────────────────────────────────────────────────────────────────────────────


@workflow
async def waiting(mode: str) -> list[list[int]]:
    tasks = [asyncio.create_task(work(item)) for item in range(8)]
    done, pending = await asyncio.wait(tasks, return_when=mode)
    seen = [[tasks.index(t) for t in done], [tasks.index(t) for t in pending]]
    for task in pending:
        task.cancel()
    return seen


def test_wait_for_all() -> None:
    driver = Driver(waiting, asyncio.ALL_COMPLETED)
    for n in (3, 1, 2, 8, 7, 6, 5, 4):
        driver.complete(f"0.{n}/work#1", n)
    assert sorted(driver.result()[0]) == list(range(8))
    driver.check_replays()


def test_wait_for_the_first() -> None:
    driver = Driver(waiting, asyncio.FIRST_COMPLETED).complete("0.6/work#1", 0)
    done, pending = driver.result()
    assert done == [5]
    assert sorted(pending) == [0, 1, 2, 3, 4, 6, 7]
    driver.check_replays()


def test_wait_for_the_first_exception() -> None:
    driver = Driver(waiting, asyncio.FIRST_EXCEPTION).complete("0.2/work#1", 0).fail("0.5/work#1", ValueError("no"))
    assert sorted(driver.result()[0]) == [1, 4]
    driver.check_replays()


@workflow
async def waiting_for_a_while() -> list[int]:
    tasks = [asyncio.create_task(work(item)) for item in range(3)]
    done, _ = await asyncio.wait(tasks, timeout=60)
    return [tasks.index(t) for t in done]


def test_wait_with_a_time_limit() -> None:
    driver = Driver(waiting_for_a_while).complete("0.2/work#1", 0).wake()
    assert driver.result() == [1]
    driver.check_replays()


@workflow
async def waiting_for_gathers() -> list[list[int]]:
    pending: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(asyncio.gather(work(n), work(n + 1))) for n in (10, 20, 30, 40)
    }
    order: list[list[int]] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        order += [list(await gathered) for gathered in done]
        if len(pending) == 2:
            for late in pending:
                late.cancel()
            await asyncio.wait(pending)
            pending = set()
    return order


def test_sets_of_gathers_iterate_alike_on_replay() -> None:
    driver = Driver(waiting_for_gathers)
    for n in (5, 6, 1, 2):
        driver.complete(f"0.{n}/work#1", n)
    assert driver.result() == [[5, 6], [1, 2]]
    cancelled = {h.event.label for h in driver.history if isinstance(h.event, e.CallCancelled)}
    assert cancelled == {f"0.{n}/work#1" for n in (3, 4, 7, 8)}
    driver.check_replays()


# ── as_completed ────────────────────────────────────────────────────────────────────────────


@workflow
async def as_they_come() -> list[int]:
    return [await soonest for soonest in asyncio.as_completed([work(n) for n in range(5)])]


def test_as_completed_starts_bare_calls_in_the_order_given() -> None:
    driver = Driver(as_they_come)
    assert [driver.argument(f"0.{n + 1}/work#1") for n in range(5)] == [0, 1, 2, 3, 4]
    for n in (4, 0, 3, 1, 2):
        driver.complete(f"0.{n + 1}/work#1", n)
    assert driver.result() == [4, 0, 3, 1, 2]
    driver.check_replays()


@workflow
async def as_they_come_in_time() -> list[int]:
    results: list[int] = []
    try:
        for soonest in asyncio.as_completed([work(1), work(2)], timeout=30):
            results.append(await soonest)
    except TimeoutError:
        results.append(-1)
    return results


def test_as_completed_with_a_time_limit() -> None:
    driver = Driver(as_they_come_in_time).complete("0.2/work#1", 2).wake()
    assert driver.result() == [2, -1]
    driver.check_replays()


@workflow
async def as_they_come_twice_the_same() -> list[int]:
    task = asyncio.create_task(work(1))
    return [await soonest for soonest in asyncio.as_completed([task, task, work(2)])]


def test_as_completed_gives_the_same_awaitable_once() -> None:
    driver = Driver(as_they_come_twice_the_same).complete("0.2/work#1", 2).complete("0.1/work#1", 1)
    assert driver.result() == [2, 1]
    driver.check_replays()


# ── wait_for, timeout ───────────────────────────────────────────────────────────────────────


@workflow
async def limited(seconds: float) -> str:
    try:
        return str(await asyncio.wait_for(work(1), seconds))
    except TimeoutError:
        return f"late, then {await clean_up(2)}"


def test_wait_for_runs_its_body_in_the_callers_task_on_every_python() -> None:
    driver = Driver(limited, 60)
    assert driver.asked == ["0/work#1"]
    assert driver.complete("work", 5).result() == "5"
    driver.check_replays()


def test_wait_for_cancels_the_call_that_is_late() -> None:
    driver = Driver(limited, 60).wake()
    assert driver.asked == ["0/clean_up#1"]
    assert driver.complete("clean_up", 6).result() == "late, then 6"
    driver.check_replays()


def test_wait_for_nothing_does_not_wait() -> None:
    driver = Driver(limited, 0)
    assert "0/clean_up#1" in driver.asked
    driver.complete("clean_up", 6)
    assert driver.result() == "late, then 6"
    driver.check_replays()


def test_a_result_and_its_time_limit_in_the_same_moment() -> None:
    """The result is delivered first, so it counts; the timer that is due at the same time changes nothing."""
    driver = Driver(limited, 60).complete("work", 5, after=60)
    assert driver.result() == "5"
    driver.check_replays()


@workflow
async def wait_for_a_task() -> str:
    task = asyncio.create_task(work(1))
    try:
        return str(await asyncio.wait_for(asyncio.shield(task), 10))
    except TimeoutError:
        return f"late: {await task}"


def test_a_shielded_task_outlives_its_time_limit() -> None:
    driver = Driver(wait_for_a_task).wake()
    assert driver.asked == ["0.1/work#1"]
    assert driver.complete("work", 5).result() == "late: 5"
    driver.check_replays()


@workflow
async def timed(seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds) as limit:
            first = await work(1)
            limit.reschedule(asyncio.get_running_loop().time() + 100)
            return f"{first}, {await work(2)}"
    except TimeoutError:
        return f"late: {await clean_up(3)}"


def test_a_timeout_around_a_step() -> None:
    driver = Driver(timed, 30).wake().complete("clean_up", 3)
    assert driver.result() == "late: 3"
    driver.check_replays()


def test_a_timeout_that_is_moved() -> None:
    driver = Driver(timed, 30).complete("work", 1, after=29).pass_time(99)
    assert driver.asked == ["0/work#2"]
    driver.pass_time(1).complete("clean_up", 3)
    assert driver.result() == "late: 3"
    driver.check_replays()


@workflow
async def nested_limits() -> list[str]:
    seen: list[str] = []
    try:
        async with asyncio.timeout(20):
            try:
                async with asyncio.timeout(10):
                    await work(1)
            except TimeoutError:
                seen.append("inner")
                await work(2)
    except TimeoutError:
        seen.append("outer")
    return seen


def test_nested_timeouts() -> None:
    driver = Driver(nested_limits).wake()
    assert driver.asked == ["0/work#2"]
    assert driver.wake().result() == ["inner", "outer"]
    driver.check_replays()


@workflow
async def anyio_limit() -> str:
    with anyio.move_on_after(0.1) as scope:
        await work(1)
    return f"cancelled: {scope.cancelled_caught}"


def test_anyio_move_on_after_around_a_step() -> None:
    driver = Driver(anyio_limit).wake()
    assert driver.result() == "cancelled: True"
    assert driver.execution.loop.idle_callbacks < 100, "the loop spun"
    driver.check_replays()


@workflow
async def anyio_group() -> list[int]:
    results: list[int] = []

    async def collect(item: int) -> None:
        results.append(await work(item))

    async with anyio.create_task_group() as group:
        for item in range(3):
            group.start_soon(collect, item)
    return results


def test_an_anyio_task_group() -> None:
    driver = Driver(anyio_group)
    for n in (2, 1, 3):
        driver.complete(f"0.{n}/work#1", n)
    assert driver.result() == [2, 1, 3]
    driver.check_replays()


# ── TaskGroup, shield ───────────────────────────────────────────────────────────────────────


@workflow
async def group_of(siblings: int) -> str:
    async def sibling(item: int) -> int:
        try:
            return await work(item)
        except asyncio.CancelledError:
            await clean_up(item)
            raise

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sibling(item)) for item in range(siblings)]
    except ExceptionGroup as failures:
        return ", ".join(str(failure) for failure in failures.exceptions)
    return str([task.result() for task in tasks])


class OwnError(Exception):
    pass


def test_a_task_group_waits_for_all() -> None:
    driver = Driver(group_of, 8)
    for n in (8, 1, 7, 2, 6, 3, 5, 4):
        driver.complete(f"0.{n}/work#1", n)
    assert driver.result() == "[1, 2, 3, 4, 5, 6, 7, 8]"
    driver.check_replays()


def test_a_task_group_of_eight_is_aborted_in_the_same_order_on_replay() -> None:
    """The group keeps its tasks in a set: in which order they are cancelled must not depend on their addresses."""
    driver = Driver(group_of, 8).complete("0.2/work#1", 2).fail("0.5/work#1", OwnError("broken"))
    assert sorted(driver.asked) == [f"0.{n}/clean_up#1" for n in (1, 3, 4, 6, 7, 8)]
    assert driver.replay().asked == driver.asked
    for n in (8, 6, 1, 3, 4, 7):
        driver.complete(f"0.{n}/clean_up#1", n)
    assert driver.result() == "OwnError: broken"
    driver.check_replays()


def test_what_a_cancelled_step_returns_later_reaches_nobody() -> None:
    driver = Driver(group_of, 2)
    late = driver.ask("0.1/work#1")
    driver.fail("0.2/work#1", OwnError("broken"))
    with pytest.raises(AssertionError):
        driver.ask("0.1/work#1")
    assert late.future.cancelled()
    driver.complete("clean_up", 1)
    assert driver.result() == "OwnError: broken"
    driver.check_replays()


@workflow
async def shielded() -> list[int]:
    inner = asyncio.create_task(work(1))
    try:
        await asyncio.shield(inner)
    except asyncio.CancelledError:
        asyncio.current_task().uncancel()  # type: ignore[union-attr]
        first = await inner
        await perdure.sleep(5)
        return [first, await clean_up(2)]
    return []


def test_a_shielded_call_survives_the_cancel_that_is_taken_back() -> None:
    """One cancel interrupts one wait: after uncancel() two more waits and a cleanup go through."""
    driver = Driver(shielded).cancel()
    assert driver.asked == ["0.1/work#1"]
    driver.complete("work", 1).wake().complete("clean_up", 2)
    assert driver.result() == [1, 2]
    driver.check_replays()

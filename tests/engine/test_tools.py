"""What else asyncio has in one process: queues, locks, context variables, eager tasks, callbacks, generators."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.engine.driving import Driver, argument_of

import perdure
from perdure import step, workflow


@step
async def work(item: int) -> int:
    return item


# ── queues, events, locks ───────────────────────────────────────────────────────────────────


@workflow
async def consumers() -> list[list[int]]:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    taken: list[list[int]] = []

    async def consume(name: int) -> None:
        while True:
            item = await queue.get()
            taken.append([name, await work(item)])
            queue.task_done()

    workers = [asyncio.create_task(consume(name)) for name in range(3)]
    for item in range(7):
        await queue.put(item)
    await queue.join()
    for worker in workers:
        worker.cancel()
    return taken


def test_consumers_of_a_queue() -> None:
    driver = Driver(consumers)
    while not driver.is_over:
        newest = driver.asked[-1]
        driver.complete(newest, driver.argument(newest))
    assert sorted(item for _, item in driver.result()) == list(range(7))
    driver.check_replays()


@workflow
async def by_priority() -> list[int]:
    queue: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
    for item in (3, 1, 2):
        queue.put_nowait(await work(item))
    return [queue.get_nowait() for _ in range(3)]


def test_a_priority_queue() -> None:
    driver = Driver(by_priority)
    assert driver.run(argument_of) == [1, 2, 3]
    driver.check_replays()


@workflow
async def signalled() -> list[str]:
    go, seen = asyncio.Event(), list[str]()

    async def waiter(name: str) -> None:
        await go.wait()
        seen.append(name)

    waiters = [asyncio.create_task(waiter(name)) for name in "abc"]
    await work(1)
    go.set()
    await asyncio.gather(*waiters)
    return seen


def test_an_event_wakes_its_waiters_in_order() -> None:
    driver = Driver(signalled)
    assert driver.run(argument_of) == ["a", "b", "c"]
    driver.check_replays()


@workflow
async def one_at_a_time(limit: int) -> list[int]:
    lock: Any = asyncio.Lock() if limit == 1 else asyncio.Semaphore(limit)
    order: list[int] = []

    async def enter(item: int) -> None:
        async with lock:
            order.append(await work(item))

    await asyncio.gather(*(enter(item) for item in range(5)))
    return order


@pytest.mark.parametrize("limit", [1, 2])
def test_locks_and_semaphores_let_in_by_order_of_arrival(limit: int) -> None:
    driver = Driver(one_at_a_time, limit)
    assert len(driver.asked) == limit
    assert driver.run(argument_of) == [0, 1, 2, 3, 4]
    driver.check_replays()


@workflow
async def conditions() -> list[str]:
    condition, ready, seen = asyncio.Condition(), list[int](), list[str]()

    async def consumer(name: str) -> None:
        async with condition:
            await condition.wait_for(lambda: bool(ready))
            seen.append(f"{name}{ready.pop()}")

    consumers = [asyncio.create_task(consumer(name)) for name in "ab"]
    for item in range(2):
        value = await work(item)
        async with condition:
            ready.append(value)
            condition.notify()
    await asyncio.gather(*consumers)
    return seen


def test_a_condition() -> None:
    driver = Driver(conditions)
    assert driver.run(argument_of) == ["a0", "b1"]
    driver.check_replays()


@workflow
async def at_the_barrier() -> list[int]:
    barrier, places = asyncio.Barrier(3), list[int]()

    async def come(item: int) -> None:
        await work(item)
        places.append(await barrier.wait())

    await asyncio.gather(*(come(item) for item in range(3)))
    return sorted(places)


def test_a_barrier() -> None:
    driver = Driver(at_the_barrier)
    assert driver.run(argument_of) == [0, 1, 2]
    driver.check_replays()


# ── context variables ───────────────────────────────────────────────────────────────────────

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@workflow
async def with_context() -> list[str]:
    seen = [WHO.get()]
    WHO.set("the run")

    async def branch(name: str) -> str:
        before = WHO.get()
        WHO.set(name)
        await work(1)
        return f"{before}, {WHO.get()}"

    seen += await asyncio.gather(branch("a"), branch("b"))
    return [*seen, WHO.get()]


def test_a_run_begins_in_an_empty_context_and_its_tasks_have_their_own() -> None:
    WHO.set("whoever called start")
    driver = Driver(with_context)
    driver.complete("0.2/work#1", 1).complete("0.1/work#1", 1)
    assert driver.result() == ["nobody", "the run, a", "the run, b", "the run"]
    assert WHO.get() == "whoever called start"
    driver.check_replays()


@workflow
async def without_variables_of_its_own() -> list[str]:
    seen = [WHO.get()]
    await work(1)
    seen.append(WHO.get())
    await asyncio.sleep(0)
    return [*seen, WHO.get(), *await asyncio.gather(look(), look())]


async def look() -> str:
    return WHO.get()


def test_the_variables_of_whoever_drives_a_run_never_get_into_it() -> None:
    """Also not into a context that is empty, and so is false."""
    WHO.set("whoever drives")
    driver = Driver(without_variables_of_its_own).complete("work", 1)
    assert driver.result() == ["nobody"] * 5


# ── eager tasks, tasks from callbacks ───────────────────────────────────────────────────────


@workflow
async def eagerly() -> list[int]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]

    async def branch(item: int) -> int:
        first = await work(item)
        return first + await asyncio.create_task(work(item + 10))

    return await asyncio.gather(*(branch(item) for item in range(3)))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_have_paths_before_they_run() -> None:
    driver = Driver(eagerly)
    assert driver.asked == ["0.1/work#1", "0.2/work#1", "0.3/work#1"]
    driver.complete("0.2/work#1", 1)
    assert driver.asked == ["0.1/work#1", "0.3/work#1", "0.2.1/work#1"]
    assert driver.run(argument_of) == [10, 12, 14]
    driver.check_replays()


@workflow
async def from_callbacks() -> list[int]:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    results: list[int] = []

    def called_back(item: int) -> None:
        task = loop.create_task(work(item))
        task.add_done_callback(collect)

    def collect(finished: asyncio.Task[int]) -> None:
        results.append(finished.result())
        if len(results) == 2:
            done.set()

    loop.call_soon(called_back, 1)
    loop.call_later(60, called_back, 2)
    await done.wait()
    return results


def test_tasks_that_callbacks_make_have_a_root_of_their_own() -> None:
    driver = Driver(from_callbacks)
    assert driver.asked == ["c1/work#1"]
    driver.complete("work", 1).wake()
    assert driver.asked == ["c2/work#1"]
    assert driver.complete("work", 2).result() == [1, 2]
    driver.check_replays()


@workflow
async def call_in_a_callback() -> str:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def called_back() -> None:
        try:
            work(1).send(None)
        except Exception as error:
            future.set_result(str(error))

    asyncio.get_running_loop().call_soon(called_back)
    return await future


def test_a_call_outside_every_task_says_what_to_do() -> None:
    assert "make a task for it" in Driver(call_in_a_callback).result()


@workflow
async def forgotten_tasks() -> int:
    """Nobody keeps these tasks: the loop does, whatever the collector thinks."""

    async def cyclic(item: int) -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cycle = me  # type: ignore[attr-defined]
        await work(item)
        finished.append(item)

    finished: list[int] = []
    for item in range(70):
        _ = asyncio.create_task(cyclic(item))  # noqa: RUF006
    await perdure.sleep(60)
    return len(finished)


def test_forgotten_tasks_live_on() -> None:
    driver = Driver(forgotten_tasks)
    gc.collect()
    assert len(driver.asked) == 71
    while "work" in str(driver.asked):
        driver.complete("work", 0)
        gc.collect(0)
    assert driver.wake().result() == 70
    driver.check_replays()


# ── generators ──────────────────────────────────────────────────────────────────────────────

CLOSED: list[str] = []


async def produce(name: str) -> AsyncIterator[int]:
    try:
        yield await work(1)
        yield await work(2)
    finally:
        CLOSED.append(name)


@workflow
async def consuming() -> list[int]:
    return [item async for item in produce("whole")]


def test_an_async_generator_that_makes_calls() -> None:
    driver = Driver(consuming)
    assert driver.run(argument_of) == [1, 2]
    driver.check_replays()


class Node:
    def __init__(self) -> None:
        self.me = self
        self.generator = produce("cyclic")


@workflow
async def generator_in_a_cycle() -> int:
    node = Node()
    first = await anext(node.generator)
    del node
    return first + await work(10)


def test_a_generator_left_in_a_cycle_is_closed_by_the_loop_not_by_the_collector() -> None:
    """When the collector finds it is an accident; its cleanup must not run in the middle of some other run."""
    CLOSED.clear()
    driver = Driver(generator_in_a_cycle).complete("work", 1)
    gc.collect()
    assert CLOSED == []
    assert driver.complete("work", 10).result() == 11
    gc.collect()
    driver.execution.close()
    assert CLOSED == ["cyclic"]
    driver.check_replays()


@workflow
async def several_generators() -> int:
    generators = [produce(name) for name in "abc"]
    total = 0
    for generator in generators:
        total += await anext(generator)
    await perdure.sleep(1000)
    return total


def test_generators_are_closed_in_the_order_of_their_first_use() -> None:
    CLOSED.clear()
    driver = Driver(several_generators)
    for _ in range(3):
        driver.complete("work", 1)
    driver.execution.close()
    assert CLOSED == ["a", "b", "c"]


async def cleans_up_after(item: int) -> AsyncIterator[int]:
    try:
        yield item
        yield item
    finally:
        await work(item + 100)


async def first_of(items: AsyncIterator[int]) -> int:
    """The rest is left alone."""
    async for item in items:
        return item
    return 0


@workflow
async def breaks_off(then: str) -> int:
    for item in (1, 2):
        await first_of(cleans_up_after(item))
    if then == "raise":
        raise ValueError
    if then == "continue":
        perdure.continue_as_new("return")
    return 5


@pytest.mark.parametrize("then", ["return", "raise", "continue"])
def test_generators_left_open_are_closed_when_the_workflow_has_returned_with_calls_of_their_own(then: str) -> None:
    """As by asyncio.run, one after the other in order of first use; the run ends when they have ended."""
    driver = Driver(breaks_off, then)
    assert driver.argument("work") == 101
    assert not driver.is_over
    driver.complete("work", 0)
    assert driver.argument("work") == 102
    assert driver.complete("work", 0).is_over
    driver.check_replays()


def test_a_generator_that_cleans_up_is_closed_also_when_the_run_is_cancelled() -> None:
    driver = Driver(waits_in_a_generator).cancel()
    assert driver.argument("work") == 107
    driver.complete("work", 0)
    assert driver.was_cancelled
    driver.check_replays()


@workflow
async def waits_in_a_generator() -> int:
    async for _ in cleans_up_after(7):
        await perdure.receive("never")
    return 0


# ── what a workflow's loop has not ──────────────────────────────────────────────────────────


@workflow
async def reaching_out(what: str) -> str:
    loop = asyncio.get_running_loop()
    try:
        if what == "socket":
            await asyncio.open_connection("localhost", 1)
        elif what == "process":
            await asyncio.create_subprocess_exec("true")
        elif what == "signal":
            loop.add_signal_handler(1, print)
        else:
            loop.add_reader(0, print)
        said = "let through"
    except NotImplementedError:
        said = "refused"
    return said


@pytest.mark.parametrize("what", ["socket", "process", "signal", "reader"])
def test_the_loop_has_no_sockets_no_processes_and_no_signals(what: str) -> None:
    assert Driver(reaching_out, what).result() == "refused"


@workflow
async def in_an_executor() -> list[Any]:
    loop = asyncio.get_running_loop()
    WHO.set("the run")
    return [await asyncio.to_thread(WHO.get), await loop.run_in_executor(None, lambda: 1 + 1)]


def test_executors_run_inline() -> None:
    driver = Driver(in_an_executor)
    assert driver.result() == ["the run", 2]
    driver.check_replays()


@workflow
async def stop_iteration_in_an_executor() -> str:
    try:
        await asyncio.to_thread(next, iter([1][1:]))
    except RuntimeError as error:
        return str(error)
    return ""


def test_stop_iteration_out_of_an_executor_is_told_as_a_runtime_error() -> None:
    assert "StopIteration" in Driver(stop_iteration_in_an_executor).result()

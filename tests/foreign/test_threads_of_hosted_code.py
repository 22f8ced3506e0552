"""Threads that hosted code starts by itself: every step in them is recorded, however the thread came about."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perdure

CALLS: Counter[int] = Counter()
EARLIER_POOL = ThreadPoolExecutor(2)


@perdure.step
def square(number: int) -> int:
    CALLS[number] += 1
    return number * number


def in_threads() -> list[int]:
    found: list[int] = []

    def work(number: int) -> None:
        found.append(square(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


def in_a_new_pool() -> list[int]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(square, range(10)))


def in_a_pool_that_was_there() -> list[int]:
    return [job.result() for job in [EARLIER_POOL.submit(square, number) for number in range(10)]]


WAYS: dict[str, Callable[[], list[int]]] = {
    "threads": in_threads, "new pool": in_a_new_pool, "earlier pool": in_a_pool_that_was_there,
}  # fmt: skip


@perdure.workflow
def hosted(way: str) -> list[int]:
    return WAYS[way]()


@pytest.mark.parametrize("way", WAYS)
def test_steps_in_own_threads_are_recorded(way: str, tmp_path: Path) -> None:
    CALLS.clear()
    EARLIER_POOL.submit(os.getpid).result()

    async def main() -> tuple[list[int], int]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[hosted]) as runtime:
            run = await runtime.start(hosted.call(way))
            result = await run.result(timeout=30)
            return result, sum(event.kind == "step.completed" for event in await run.history())

    assert asyncio.run(main()) == ([number * number for number in range(10)], 10)
    assert EARLIER_POOL.submit(square, 3).result() == 9  # outside of a run it is the plain function again

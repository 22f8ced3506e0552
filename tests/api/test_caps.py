"""What a runtime does at the same time is capped, however much is asked of it at once."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Runtime, step, workflow


class Peak:
    now = most = 0
    is_held = False
    """No work ends while it is."""


@step
async def work() -> None:
    Peak.now += 1
    Peak.most = max(Peak.most, Peak.now)
    while Peak.is_held:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.005)
    Peak.now -= 1


@workflow
async def one() -> None:
    await work()


@workflow
async def many() -> None:
    await asyncio.gather(*(work() for _ in range(20)))


@pytest.fixture(autouse=True)
def _no_peak_yet() -> None:
    Peak.now = Peak.most = 0
    Peak.is_held = False


def test_runs_that_are_started_together_are_not_all_taken_at_once() -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[one], concurrent_runs=2) as runtime:
            runs = await asyncio.gather(*(runtime.start(one.call()) for _ in range(20)))
            for run in runs:
                await run.result(timeout=10)

    asyncio.run(main())
    assert Peak.most == 2


def test_runs_that_are_started_one_after_the_other_are_not_all_taken_at_once() -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[one], concurrent_runs=2) as runtime:
            Peak.is_held = True  # else the first may be at its end before the second is started
            runs = [await runtime.start(one.call()) for _ in range(20)]
            Peak.is_held = False
            for run in runs:
                await run.result(timeout=10)

    asyncio.run(main())
    assert Peak.most == 2


def test_steps_wait_for_their_turn() -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[many], concurrent_steps=3) as runtime:
            await (await runtime.start(many.call())).result(timeout=10)

    asyncio.run(main())
    assert Peak.most == 3

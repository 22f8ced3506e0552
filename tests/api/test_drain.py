"""`drain`: what is due is done, and what is left waits in the store."""

from __future__ import annotations

import asyncio

import perdure
from perdure import Runtime, Status, step, workflow


@step
async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow
async def work_and_wait(seconds: float) -> None:
    await work(seconds)
    await perdure.receive("go on")


async def _status_after_drain(seconds: float, *, max_seconds: float) -> tuple[int, Status]:
    async with Runtime(":memory:", workflows=[work_and_wait]) as runtime:
        run = await runtime.start(work_and_wait.call(seconds))
        return await runtime.drain(max_seconds=max_seconds), await run.status()


def test_what_is_left_waits_and_is_written_so() -> None:
    assert asyncio.run(_status_after_drain(0.01, max_seconds=5)) == (0, Status.WAITING)


def test_what_is_still_under_way_is_counted() -> None:
    assert asyncio.run(_status_after_drain(60, max_seconds=0.05)) == (1, Status.RUNNING)

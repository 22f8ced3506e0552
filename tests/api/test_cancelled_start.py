"""Whoever stops waiting for `start` does not strand the run that is being started."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from perdure import Status, step, workflow
from perdure.testing.runtime import RuntimeUnderTest


@step
async def double(n: int) -> int:
    return 2 * n


@workflow
async def doubling(n: int) -> int:
    return await double(n)


@pytest.mark.parametrize("rounds", range(1, 6))
async def test_a_run_whose_start_was_cancelled_goes_on(perdure_runtime: RuntimeUnderTest, rounds: int) -> None:
    starting = asyncio.create_task(perdure_runtime.start(doubling.call(4), id="r"))
    for _ in range(rounds):
        await asyncio.sleep(0)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    runs = await perdure_runtime.list()
    assert [run.id for run in runs] == ["r"]
    run = await perdure_runtime.get("r")
    assert await run.result(timeout=5) == 8
    assert await run.status() is Status.COMPLETED

"""A run that is tried again while some of its steps are still under way."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async

from perdure import Status, step, workflow

BEGUN: list[str] = []
GO_ON = threading.Event()


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    BEGUN.clear()
    GO_ON.clear()


@step
def in_a_thread() -> str:
    BEGUN.append("in a thread")
    GO_ON.wait(20)
    return "done"


@step
async def on_the_loop() -> str:
    BEGUN.append("on the loop")
    while not GO_ON.is_set():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:  # it has to clean up, and takes its time
            continue
    return "done"


MENDED: list[bool] = []


@workflow
async def spins(how: str) -> str:
    working = asyncio.ensure_future(in_a_thread.call() if how == "in a thread" else on_the_loop())
    await asyncio.sleep(0.05)
    if not MENDED:
        while True:
            await asyncio.sleep(0)
    return await working


@pytest.mark.parametrize("how", ["in a thread", "on the loop"])
def test_a_step_under_way_does_not_begin_a_second_time_beside_itself(how: str) -> None:
    """The code hangs while a step is under way; a person mends it and has the run tried again. The step ends first, is
    recorded, and its result is the run's."""
    MENDED.clear()

    async def main() -> None:
        make = on_one_store()
        async with make(spins) as runtime:
            run = await runtime.start(spins.call(how), id="r")

            async def is_blocked() -> bool:
                return await run.status() is Status.BLOCKED

            await eventually(is_blocked)
            assert len(BEGUN) == 1
            MENDED.append(True)
            await run.unblock("retry")
            await eventually(lambda: not host_of(runtime).store.mail())
            await asyncio.sleep(0.2)
            assert len(BEGUN) == 1
            GO_ON.set()
            assert await run.result(wait_blocked=True, timeout=20) == "done"
        assert len(BEGUN) == 1

    run_async(main())

"""Threads in workflow code: the run is parked by name, whatever else it waits for."""

from __future__ import annotations

import asyncio

import anyio.to_thread
import pytest
from tests.runtime.hosting import on_one_store, run_async

import perdure
from perdure import RunBlockedError, UsageError, step, workflow
from perdure.api.workflow import Workflow


def nothing() -> int:
    return 1


@workflow
async def alone() -> int:
    return await anyio.to_thread.run_sync(nothing)


@workflow
async def beside_a_timer() -> int:
    async with asyncio.timeout(3600):
        return await anyio.to_thread.run_sync(nothing)


@workflow
async def beside_a_receive() -> int:
    message = asyncio.create_task(perdure.receive("never"))
    result = await anyio.to_thread.run_sync(nothing)
    message.cancel()
    return result


@pytest.mark.parametrize("code", [alone, beside_a_timer, beside_a_receive], ids=lambda code: str(code.name))
def test_anyio_to_thread_in_workflow_code_parks_the_run_instead_of_hanging_it(
    code: Workflow[[], int],
) -> None:
    async def main() -> None:
        async with on_one_store()(code) as runtime:
            run = await runtime.start(code.call())
            with pytest.raises(RunBlockedError, match="move that into a step") as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "diverged"

    run_async(main())


@step
def add(one: int, other: int) -> int:
    return one + other


@workflow
async def calls_a_plain_step() -> int:
    return add(1, 2)


@workflow
async def calls_plain_steps_in_threads() -> list[int]:
    return list(await asyncio.gather(*(asyncio.to_thread(add, n, n) for n in range(10))))


@pytest.mark.parametrize("code", [calls_a_plain_step, calls_plain_steps_in_threads], ids=lambda code: str(code.name))
def test_a_bare_call_of_a_plain_step_is_refused_before_it_runs(code: Workflow[[], object]) -> None:
    async def main() -> None:
        async with on_one_store()(code) as runtime:
            run = await runtime.start(code.call())
            with pytest.raises(UsageError, match=r"write `await add\.call\(\.\.\.\)`"):
                await run.result(timeout=10)

    run_async(main())


@workflow
async def awaits_plain_steps() -> list[int]:
    return list(await asyncio.gather(*(add.call(n, n) for n in range(10))))


def test_plain_steps_awaited_by_call_are_all_recorded() -> None:
    async def main() -> None:
        async with on_one_store()(awaits_plain_steps) as runtime:
            run = await runtime.start(awaits_plain_steps.call())
            assert await run.result(timeout=10) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
            recorded = [h for h in await run.history() if h.kind == "step.completed"]
            assert len({h.event.key for h in recorded}) == 10  # type: ignore[attr-defined]

    run_async(main())

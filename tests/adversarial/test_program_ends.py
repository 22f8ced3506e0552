"""A program that ends is nothing that a step did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.hosting import on_one_store, run_async

import perdure
from perdure import Retry, Runtime, StepError, step, workflow

CALLS: list[int] = []
TIMES = 6


async def hangs_at_first() -> str:
    CALLS.append(1)
    if len(CALLS) == 1:
        await asyncio.Event().wait()
    return "done"


only_once = step(retry=Retry(max_attempts=1))(hangs_at_first)


@workflow
async def in_a_step() -> str:
    return await only_once()


@workflow
async def in_a_section() -> str:
    return str(await perdure.section("s").run(hangs_at_first))


@pytest.mark.parametrize("code", [in_a_step, in_a_section])
def test_a_main_that_returns_while_its_worker_is_a_task_fails_no_step(code: Any) -> None:
    """`asyncio.run` cancels all tasks at once and in no order: the step's before the Runtime's, or after it. The step
    has one attempt, and must not be told that it was used up."""
    make: Callable[..., Runtime] = on_one_store()
    for number in range(TIMES):
        CALLS.clear()

        async def main(name: str) -> None:
            async def serve() -> None:
                async with make(code) as runtime:
                    await runtime.start(code.call(), id=name)
                    await asyncio.Event().wait()

            serving = asyncio.create_task(serve())
            while not CALLS:
                await asyncio.sleep(0.001)
            assert not serving.done()

        async def once_more(name: str) -> str:
            async with make(code) as runtime:
                return str(await (await runtime.get(name)).result(timeout=20))

        asyncio.run(main(f"run-{number}"))
        assert run_async(once_more(f"run-{number}")) == "done"


async def cancels_itself() -> str:
    raise asyncio.CancelledError


@workflow
async def hosts_what_cancels_itself() -> str:
    try:
        return str(await perdure.section("s").run(cancels_itself))
    except StepError as error:
        return error.type_name


def test_hosted_code_that_ends_with_a_cancellation_of_its_own_has_ended() -> None:
    """An `async def` section raises CancelledError, which nobody asked it to: no run waits for it for ever."""

    async def main() -> str:
        async with on_one_store()(hosts_what_cancels_itself) as runtime:
            return await (await runtime.start(hosts_what_cancels_itself.call())).result(timeout=20)

    assert run_async(main()) == "CancelledError"

"""A decision that is about nothing any more: whoever waits for the run hears that it still waits for somebody."""

import asyncio

import pytest

from perdure import NeedsPerson, RunBlockedError, step, workflow
from perdure.testing.runtime import RuntimeUnderTest


@step
async def asks(what: str) -> str:
    raise NeedsPerson(what)


@workflow
async def asks_twice() -> list[str]:
    return list(await asyncio.gather(asks("one"), asks("two")))


async def test_who_waits_is_told_that_the_run_is_still_blocked(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(asks_twice.call(), id="r")
    with pytest.raises(RunBlockedError, match="one"):
        await run.result()
    await run.unblock("value", value="1", call="0.1/asks#1", by="ann")
    with pytest.raises(RunBlockedError, match="two"):
        await run.result()
    await run.unblock("value", value="1", call="0.1/asks#1", by="bob")  # decided before
    with pytest.raises(RunBlockedError, match="two"):
        await run.result()
    await run.unblock("value", value="2", call="0.2/asks#1", by="ann")
    assert await run.result() == ["1", "2"]

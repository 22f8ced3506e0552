"""A coroutine that is hosted in a section waits as durably as a workflow does: for time, and for messages."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.runtime.hosting import eventually, is_in_memory, let_go, on_one_store, run_async

import perdure
from perdure import UnknownNameError, step, workflow
from perdure.runtime import sections
from perdure.testing.sweep import sweep_crashes

BEGAN: list[str] = []


@step
async def note(what: str) -> str:
    return what


async def program() -> list[Any]:
    BEGAN.append("program")
    first = await note("before")
    begin = perdure.now()
    await perdure.sleep(days=2)
    days = (perdure.now() - begin).days
    word = await perdure.receive("word", str)
    try:
        await perdure.receive("other", str, within=60)
    except TimeoutError:
        word += ", and nothing else"
    return [first, days, word]


@workflow(receives={"word": str, "other": str})
async def hosts(name: str) -> list[Any]:
    return list(await perdure.section(name).run(program))


def test_it_waits_for_days_and_for_messages_whatever_crashes() -> None:
    async def scenario(runtime: Any) -> Any:
        run = await runtime.start(hosts.call("s"), id="r")
        with contextlib.suppress(perdure.RunFinishedError):
            await run.send("word", "tea")
        return await run.result()

    sweep = run_async(sweep_crashes(scenario, workflows=[hosts]))
    assert sweep.result == ["before", 2, "tea, and nothing else"], sweep.error


def test_it_leaves_memory_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.05)
    BEGAN.clear()

    async def waits() -> str:
        BEGAN.append("waits")
        return str(await perdure.receive("word", str))

    @workflow
    async def waiting() -> str:
        return str(await perdure.section("s").run(waits))

    async def main() -> None:
        async with on_one_store()(waiting) as runtime:
            run = await runtime.start(waiting.call(), id="r")
            await eventually(lambda: BEGAN == ["waits"])
            await let_go(runtime, "r")
            assert not is_in_memory(runtime, "r")
            await run.send("word", "tea")
            assert await run.result(timeout=20) == "tea"
            assert BEGAN == ["waits", "waits"]

    run_async(main())


async def gives_up(times: int) -> list[str]:
    got: list[str] = []
    for _ in range(times):
        waiting = asyncio.ensure_future(perdure.receive("word", str))
        await asyncio.sleep(0)
        await note("asked")
        waiting.cancel()
        got += [str(word) for word in await asyncio.gather(waiting, return_exceptions=True) if isinstance(word, str)]
    while len(got) < 3:
        got.append(str(await perdure.receive("word", str)))
    return got


@workflow
async def hosts_one_that_gives_up(times: int) -> list[str]:
    return list(await perdure.section("s").run(gives_up, times))


def test_a_receive_that_is_given_up_takes_no_message_with_it() -> None:
    async def main() -> None:
        async with on_one_store()(hosts_one_that_gives_up) as runtime:
            for number in range(10):
                run = await runtime.start(hosts_one_that_gives_up.call(30), id=f"r{number}")
                for word in ("one", "two", "three"):
                    await run.send("word", word)
                    await asyncio.sleep(0.002 * (number % 4))
                assert sorted(await run.result(timeout=20)) == ["one", "three", "two"]

    run_async(main())


async def undeclared() -> None:
    await perdure.receive("letter", str)


@workflow(receives={"word": str})
async def hosts_undeclared() -> None:
    await perdure.section("s").run(undeclared)


def test_a_name_that_the_workflow_does_not_declare_is_refused() -> None:
    async def main() -> None:
        async with on_one_store()(hosts_undeclared) as runtime:
            run = await runtime.start(hosts_undeclared.call())
            with pytest.raises(UnknownNameError, match="letter"):
                await run.result(timeout=20)

    run_async(main())

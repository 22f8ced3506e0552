"""Whoever waits for a result hears of it, wherever the run is executed."""

from __future__ import annotations

from tests.runtime.hosting import eventually, on_one_store, run_async

from perdure import Client, NeedsPerson, RunBlockedError, Runtime, step, workflow
from perdure.store.protocol import Store


@workflow
async def at_once() -> str:
    return "done"


def test_a_runtime_waits_for_a_run_that_another_worker_executes() -> None:
    """One Runtime asks for the result of a run that is claimed, executed and ended by another one."""
    make = on_one_store()

    async def main() -> str:
        async with make(at_once, adopt="none") as waiting, make(at_once) as executing:
            async with Client(host_store(executing), workflows=[at_once]) as client:
                await client.start(at_once.call(), id="a", delay=0.2)
            return str(await (await waiting.get("a")).result(timeout=20))

    assert run_async(main()) == "done"


def host_store(runtime: Runtime) -> Store:
    return runtime._store  # pyright: ignore[reportPrivateUsage]


@step
async def asks() -> str:
    raise NeedsPerson("a person has to look")


@workflow
async def blocked() -> str:
    return await asks()


def test_a_result_asked_for_when_the_run_is_blocked_and_still_in_memory() -> None:
    """The run is blocked; only then, and before it leaves memory, somebody asks for its result."""
    make = on_one_store(evict_after=1000)

    async def main() -> str:
        async with make(blocked) as runtime:
            run = await runtime.start(blocked.call(), id="a")

            async def is_blocked() -> bool:
                return await run.status() == "blocked"

            await eventually(is_blocked)
            try:
                return await run.result(timeout=20)
            except RunBlockedError as error:
                return error.reason

    assert run_async(main()) == "needs_person"

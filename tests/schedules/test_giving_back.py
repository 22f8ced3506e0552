"""Giving back what a worker owns but does not hold, while what it has just started is on its way into its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async

from perdure import Runtime, step, workflow

BEGUN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    BEGUN.clear()


@step
async def first() -> str:
    BEGUN.append("first")
    await asyncio.sleep(0.3)
    return "done"


@workflow
async def job() -> str:
    return await first()


@workflow
async def parent() -> str:
    return await job()


async def as_soon_as_it_is_there(a: Runtime, run_id: str, then: Callable[[], None]) -> None:
    """In a callback of the loop between the commit that creates a run for worker a and its coming into a's memory."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def look() -> None:
        info = host_of(a).store.find(run_id)
        if info is None:
            loop.call_soon(look)
            return
        assert info.rid not in host_of(a).turns.live, "it was too late for this schedule"
        then()
        done.set_result(None)

    loop.call_soon(look)
    await done


def give_back(a: Runtime, b: Runtime) -> None:
    """Worker a gives back what it does not hold, and b takes it."""
    host_of(a).be_unsure()
    host_of(a)._poll_store()  # pyright: ignore[reportPrivateUsage]
    host_of(b)._claim()  # pyright: ignore[reportPrivateUsage]


def take_for_dead(a: Runtime, b: Runtime) -> None:
    """Worker b takes everything of a over; a hears of it, and enters anew."""
    host_of(b).store.take_over(host_of(a).worker, proven=False, retry_after=(0.0,))
    host_of(a)._lost_everything()  # pyright: ignore[reportPrivateUsage]
    host_of(b)._claim()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("what", [give_back, take_for_dead])
def test_a_run_that_is_lost_right_after_its_start_begins_once(what: Callable[[Runtime, Runtime], None]) -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(job) as a, make(job) as b:
            starting = asyncio.ensure_future(a.start(job.call(), id="r"))
            await as_soon_as_it_is_there(a, "r", lambda: what(a, b))
            taken = host_of(b).store.find("r")
            assert taken is not None
            assert taken.owner == host_of(b).worker
            assert await (await starting).result(timeout=20) == "done"
        assert BEGUN == ["first"]

    run_async(main())


def test_a_child_that_is_given_back_right_after_its_start_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent's worker reads whose it is, and in the next moment it is another's."""

    async def main() -> None:
        make = on_one_store()
        async with make(job, parent) as a, make(job) as b:
            genuine = host_of(a).store.find
            stolen: list[str] = []

            def find(run_id: str) -> Any:
                info = genuine(run_id)
                if run_id != "r" and info is not None and not stolen and info.rid not in host_of(a).turns.live:
                    stolen.append(run_id)
                    asyncio.get_running_loop().call_soon(give_back, a, b)
                return info

            monkeypatch.setattr(host_of(a).store, "find", find)
            run = await a.start(parent.call(), id="r")
            assert await run.result(timeout=20) == "done"
            await eventually(lambda: bool(stolen))
        assert BEGUN == ["first"]

    run_async(main())

"""Leaving a Runtime: what was sent is waited for, plain steps are not, and nothing new begins."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import cast

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, live, on_one_store, run_async

import perdure
from perdure import CanLookUp, NoGuarantee, NotFound, Operation, Runtime, effect, step, workflow
from perdure.store.memory import MemoryStore

BEGUN: list[str] = []
ENDED: list[str] = []
LENGTH = {"seconds": 0.3}


@pytest.fixture(autouse=True)
def fresh() -> None:
    BEGUN.clear()
    ENDED.clear()
    LENGTH["seconds"] = 0.3


@effect(downstream=NoGuarantee(), timeout=60)
async def post(letter: str) -> str:
    BEGUN.append(letter)
    await asyncio.sleep(LENGTH["seconds"])
    ENDED.append(letter)
    return f"posted {letter}"


@post.key
def _(letter: str) -> str:
    return letter


@step
async def reads(what: str) -> str:
    BEGUN.append(what)
    await asyncio.sleep(60 if what == "long" else 0)
    ENDED.append(what)
    return what


@workflow
async def writes() -> list[str]:
    first = await post("a")
    await reads("then")
    return [first, await post("b")]


@workflow
async def only_reads() -> str:
    return await reads("long")


def test_what_was_sent_is_recorded_and_nothing_new_begins() -> None:
    make = on_one_store()

    async def main() -> None:
        async with make(writes) as runtime:
            run = await runtime.start(writes.call(), id="r")
            await eventually(lambda: BEGUN == ["a"], "it is sent")
        assert runtime.unfinished == ["r"]
        async with perdure.Client(make()._given) as client:  # pyright: ignore[reportPrivateUsage]
            rows = await client.effects()
            assert [row.status for row in rows] == ["succeeded"]
        assert BEGUN == ENDED == ["a"], "what began has ended, and nothing else began"
        LENGTH["seconds"] = 0
        async with make(writes) as runtime:
            run = await runtime.get("r")
            assert await run.result(timeout=20) == ["posted a", "posted b"]
        assert sorted(BEGUN) == ["a", "b", "then"], "each once"

    run_async(main())


def test_plain_steps_are_not_waited_for() -> None:
    async def main() -> None:
        async with on_one_store()(only_reads) as runtime:
            await runtime.start(only_reads.call(), id="r")
            await eventually(lambda: BEGUN == ["long"], "it has begun")
            begin = time.monotonic()
        assert time.monotonic() - begin < 5

    run_async(main())


def test_after_the_grace_it_leaves_and_names_what_may_be_happening(caplog: pytest.LogCaptureFixture) -> None:
    LENGTH["seconds"] = 60
    make = on_one_store(grace=0.1)

    async def main() -> None:
        async with make(writes) as runtime:
            await runtime.start(writes.call(), id="r")
            await eventually(lambda: BEGUN == ["a"], "it is sent")
        async with perdure.Client(make()._given) as client:  # pyright: ignore[reportPrivateUsage]
            (row,) = await client.effects()
            assert row.status == "started"

    with caplog.at_level(logging.WARNING, "perdure"):
        run_async(main())
    assert "waits up to 0.1 s for what is being sent: 0/post#1 of run r" in caplog.text
    assert "although this may be happening: 0/post#1 of run r" in caplog.text


def test_whoever_cancels_the_leaving_does_not_wait() -> None:
    LENGTH["seconds"] = 60

    async def leaves() -> None:
        async with on_one_store()(writes) as runtime:
            await runtime.start(writes.call(), id="r")
            await eventually(lambda: BEGUN == ["a"], "it is sent")
            raise asyncio.CancelledError

    async def main() -> None:
        leaving = asyncio.create_task(leaves())
        await eventually(lambda: BEGUN == ["a"], "it is sent")
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert time.monotonic() - begin < 5

    run_async(main())


MAY_RETURN = threading.Event()


@effect(downstream=CanLookUp(settle_after=0), timeout=60)
def wire(order: str) -> str:
    BEGUN.append(order)
    MAY_RETURN.wait(30)
    return f"wired {order}"


@wire.key
def _(order: str) -> str:
    return order


@wire.lookup
def _(op: Operation) -> NotFound:
    BEGUN.append("looked up")
    return NotFound()


@workflow
async def wires() -> str:
    return await wire.call("w")


def test_the_death_of_a_successor_proves_nothing_of_who_left_while_sending() -> None:
    """A leaves with a thread that would not end, B takes the run on and is killed: to C, A may still be sending."""
    make = on_one_store(grace=0.05)

    async def main() -> None:
        async with make(wires) as first:
            await first.start(wires.call(), id="r")
            await eventually(lambda: BEGUN == ["w"], "it is sent")
        second = await make(wires).__aenter__()
        await eventually(lambda: is_in_memory(second, "r"))
        killed = host_of(second)
        await eventually(lambda: "run.taken_over" in kinds_of(second))
        second._host_open = None  # pyright: ignore[reportPrivateUsage]
        await killed.abandon()
        cast("MemoryStore", killed.store).kill(killed.worker)
        async with make(wires) as third:
            await eventually(lambda: kinds_of(third).count("run.taken_over") == 2)
            await asyncio.sleep(0.3)
            (standing,) = live(third, "r").execution.known.effects.values()
            assert not standing.is_proven_dead
            assert BEGUN == ["w"], "nothing is asked or sent before the attempt's time is over"
        MAY_RETURN.set()

    run_async(main())


def kinds_of(runtime: Runtime) -> list[str]:
    store = host_of(runtime).store
    info = store.find("r")
    assert info is not None
    return [row.kind for row in store.load(info.rid).rows]

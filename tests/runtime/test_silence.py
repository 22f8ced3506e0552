"""Runs that do not move, and of which nobody has said why: who notices, and what the inbox says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, run_async

import perdure
from perdure import Client, step, workflow
from perdure.runtime.hosted import journal
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

GOES_ON = threading.Event()


def hangs() -> str:
    GOES_ON.wait(30)
    return "at last"


@workflow
async def hosted() -> str:
    return str(await perdure.section("agent").run(hangs))


@step(timeout=3_600)
async def slow() -> None:
    await asyncio.sleep(30)


@workflow
async def patient() -> None:
    await slow()


@workflow
async def letters() -> str:
    return await perdure.receive("letter", str)


async def both() -> list[str]:
    return list(await asyncio.gather(perdure.receive("letter", str), perdure.receive("other", str)))


@workflow
async def hosted_letters() -> list[str]:
    return list(await perdure.section("both").run(both))


async def look(runtime: RuntimeUnderTest, clock: FakeClock, seconds: float) -> list[Any]:
    """The inbox after a time, as the worker's own look leaves it."""
    clock.advance_to(clock.now() + round(seconds * 1_000_000))
    host_of(runtime).silence.look()
    return await runtime.inbox()


def test_hosted_code_that_does_not_come_back_is_there_when_its_limit_has_passed() -> None:
    GOES_ON.clear()

    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with (
            RuntimeUnderTest(store, clock=clock, workflows=[hosted], guard=False) as runtime,
            Client(store.again(), clock=clock) as outside,
        ):
            run = await runtime.start(hosted.call(), id="r")
            await eventually(lambda: is_hosted(run))
            assert await look(runtime, clock, 359) == []
            (entry,) = await look(runtime, clock, 2)
            assert (entry.reason, entry.run_id, dict(entry.choices)) == ("silent", "r", {})
            assert host_of(runtime).worker in entry.hint
            assert [(it.id, it.since) for it in await outside.inbox()] == [(entry.id, entry.since)]
            GOES_ON.set()
            await eventually(lambda: is_over(run))
            assert await outside.inbox() == [], "it has moved"

    run_async(main())


async def is_hosted(run: Any) -> bool:
    return "section.started" in [event.kind for event in await run.history()]


async def is_over(run: Any) -> bool:
    return bool((await run.status()).is_final)


def test_a_step_within_its_timeout_and_a_run_that_only_waits_are_not_silent() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with RuntimeUnderTest(MemoryStore(clock), clock=clock, workflows=[patient, letters]) as runtime:
            await runtime.start(patient.call())
            await runtime.start(letters.call())
            for _ in range(20):
                await asyncio.sleep(0)
            assert await look(runtime, clock, 3_500) == []

    run_async(main())


def test_hosted_code_of_several_tasks_that_wait_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HELD_QUIET_SECONDS", 0.05)

    async def main() -> None:
        clock = FakeClock()
        workflows = [hosted_letters]
        async with RuntimeUnderTest(MemoryStore(clock), clock=clock, workflows=workflows, guard=False) as runtime:
            run = await runtime.start(hosted_letters.call(), id="r")
            live = host_of(runtime).turns.live
            await eventually(lambda: is_hosted(run))
            await eventually(lambda: host_of(runtime).turns.parking.is_kept_by_a_wait(*live.values()))
            assert await look(runtime, clock, 3_500) == []

    run_async(main())


def test_runs_of_a_dead_worker_that_nobody_takes_over_are_there_after_a_minute() -> None:
    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        runtime = await RuntimeUnderTest(store, clock=clock, workflows=[patient]).__aenter__()
        await runtime.start(patient.call(), id="r")
        worker = runtime.worker
        host_of(runtime).store.renew(worker, lease_seconds=10)
        await runtime.die()
        async with Client(store.again(), clock=clock) as outside:
            clock.advance_to(clock.now() + 69_000_000)
            assert await outside.inbox() == []
            clock.advance_to(clock.now() + 2_000_000)
            (entry,) = await outside.inbox()
            assert (entry.run_id, entry.reason) == ("r", "silent")
            assert f"{worker} (process" in entry.hint
            assert "is dead" in entry.hint

    run_async(main())

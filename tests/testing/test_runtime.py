"""RuntimeUnderTest: time that is skipped, turns that are replayed, a process that dies."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

import perdure
from perdure import Retry, Status, step, workflow
from perdure.store.memory import MemoryStore
from perdure.testing import runtime as testing_runtime
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest


@step
async def add(a: int, b: int) -> int:
    return a + b


@step(record="lazy")
async def guess(n: int) -> int:
    return n


@step(retry=Retry(max_attempts=4, first_delay=60, jitter=0))
async def stumble() -> int:
    if perdure.attempt().number < 4:
        raise ConnectionError("not this time")
    return perdure.attempt().number


@step
async def real(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@workflow
async def sleeps(days: float) -> int:
    await perdure.sleep(days=days)
    return await add(1, 2)


@workflow
async def stumbles() -> int:
    return await stumble()


@workflow
async def waits() -> int:
    return await perdure.receive("number", int)


async def test_days_pass_while_a_result_is_waited_for(perdure_runtime: RuntimeUnderTest) -> None:
    before = perdure_runtime.clock.time
    run = await perdure_runtime.start(sleeps.call(3))
    assert await run.result() == 3
    assert perdure_runtime.clock.time - before == timedelta(days=3)


async def test_attempts_wait_for_each_other_in_skipped_time_too(perdure_runtime: RuntimeUnderTest) -> None:
    before = perdure_runtime.clock.time
    assert await (await perdure_runtime.start(stumbles.call())).result() == 4
    assert perdure_runtime.clock.time - before == timedelta(seconds=60 + 60 + 60)


async def test_time_does_not_pass_while_a_step_is_at_work(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def both() -> list[float]:
        return list(await asyncio.gather(real(0.05), add(1, 1)))

    long = await perdure_runtime.start(sleeps.call(3))
    before = perdure_runtime.clock.time
    assert await (await perdure_runtime.start(both.call())).result() == [0.05, 2]
    assert perdure_runtime.clock.time == before
    assert await long.status() in {Status.RUNNING, Status.WAITING}


async def test_several_may_wait(perdure_runtime: RuntimeUnderTest) -> None:
    runs = [await perdure_runtime.start(sleeps.call(days)) for days in (3, 1, 2)]
    assert await asyncio.gather(*(run.result() for run in runs)) == [3, 3, 3]


async def test_time_passes_as_far_as_it_is_told(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(sleeps.call(3))
    await perdure_runtime.advance(timedelta(days=2))
    assert await run.status() in {Status.RUNNING, Status.WAITING}
    await perdure_runtime.advance(timedelta(days=1))
    assert await run.status() is Status.COMPLETED


async def test_settling_lets_everything_happen_that_needs_no_time(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(waits.call())
    await run.send("number", 4)
    await perdure_runtime.run_dry()
    assert await run.status() is Status.COMPLETED


async def test_a_message_may_come_while_somebody_waits(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(waits.call())

    async def send() -> None:
        await asyncio.sleep(0.02)
        await run.send("number", 4)

    sending = asyncio.create_task(send())
    assert await run.result() == 4
    await sending


async def test_whoever_waits_in_vain_is_told(
    perdure_runtime: RuntimeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing_runtime, "STANDSTILL_SECONDS_MAX", 0.05)
    run = await perdure_runtime.start(waits.call(), id="forlorn")
    with pytest.raises(AssertionError, match=r"nothing happens any more.*run forlorn is waiting \(message\)"):
        await run.result()
    await run.send("number", 1)
    assert await run.result() == 1


async def test_a_run_that_goes_on_for_ever_is_told(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def endless() -> None:
        while True:
            await perdure.sleep(days=300)

    run = await perdure_runtime.start(endless.call())
    with pytest.raises(AssertionError, match="3660 days passed without a result"):
        await run.result()


async def test_whoever_stops_waiting_stops_the_time(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(waits.call())
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.01)
    before = perdure_runtime.clock.time
    await asyncio.sleep(0.01)
    assert perdure_runtime.clock.time == before


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# ── replay ──────────────────────────────────────────────────────────────────────────────────

VISITS: list[int] = []


@workflow
async def forgetful() -> int:
    VISITS.append(1)
    total = await add(1, 1)
    if len(VISITS) % 2:
        await perdure.sleep(60)
    return total


@workflow
async def lazy_all_the_way() -> int:
    total = 0
    for i in range(5):
        total += await guess(i)
    return await add(total, 0)


async def test_code_that_does_something_else_when_it_is_replayed_is_found(perdure_runtime: RuntimeUnderTest) -> None:
    VISITS.clear()
    run = await perdure_runtime.start(forgetful.call())
    with pytest.raises(perdure.RunBlockedError, match="does not do the same again") as blocked:
        await run.result()
    assert blocked.value.reason == "diverged"


async def test_lazy_results_are_known_to_the_replay_before_they_are_written(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(lazy_all_the_way.call())
    assert await run.result() == 10


@pytest.mark.anyio
async def test_without_replays_and_guard_code_does_what_it_likes() -> None:
    @workflow
    async def careless() -> float:
        return random.random() + await add(1, 1)

    async with RuntimeUnderTest(guard=False, replays=False) as runtime:
        assert 2 <= await (await runtime.start(careless.call())).result() < 3


# ── death ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.anyio
async def test_who_dies_gives_nothing_back_and_is_succeeded() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    first = RuntimeUnderTest(store, clock=clock)
    await first.__aenter__()
    run = await first.start(sleeps.call(3), id="r")
    await first.run_dry()
    await first.die()
    info = store.find("r")
    assert info is not None
    assert info.owner is not None, "nothing was given back"
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[sleeps]) as second:
        again = await second.get(run.id)
        assert await again.result() == 3
        assert "run.taken_over" in [event.kind for event in await again.history()]

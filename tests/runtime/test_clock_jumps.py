"""The machine slept, or its clock was put right: what was due meanwhile is done soon after."""

from __future__ import annotations

import asyncio

import pytest
from tests.runtime.hosting import eventually, is_in_memory, live, run_async

import perdure
from perdure import Runtime, clock, step, workflow
from perdure.clock import MICROSECONDS, SystemClock
from perdure.store.memory import MemoryStore


class Jumping(SystemClock):
    """Seconds that pass while nobody is awake to count them."""

    slept_seconds = 0.0

    def now(self) -> int:
        return super().now() + round(self.slept_seconds * MICROSECONDS)


@workflow
async def rests() -> str:
    await perdure.sleep(hours=1)
    return "rested"


BEGUN = asyncio.Event()


@step(retry=perdure.Retry(max_attempts=1), timeout=3600)
async def takes_long() -> None:
    BEGUN.set()
    await asyncio.Event().wait()


@workflow
async def gives_up() -> str:
    try:
        await takes_long()
    except perdure.StepTimeoutError:
        return "given up"
    return ""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "LOOK_SECONDS", 0.02)


@pytest.mark.parametrize("is_parked", [True, False], ids=["parked", "in memory"])
def test_a_timer_that_was_due_while_the_machine_slept_fires_when_it_is_awake(is_parked: bool) -> None:
    async def main() -> str:
        time = Jumping()
        evict_after = 0.01 if is_parked else 1000.0
        async with Runtime(MemoryStore(time), workflows=[rests], clock=time, evict_after=evict_after) as runtime:
            run = await runtime.start(rests.call(), id="r")

            async def waits() -> bool:
                if is_parked:
                    return await run.status() == "waiting" and not is_in_memory(runtime, "r")
                return is_in_memory(runtime, "r") and bool(live(runtime, "r").execution.open)

            await eventually(waits)
            time.slept_seconds = 3600
            return await run.result(timeout=20)

    assert run_async(main()) == "rested"


def test_an_attempt_whose_time_was_over_meanwhile_is_given_up() -> None:
    async def main() -> str:
        time = Jumping()
        async with Runtime(MemoryStore(time), workflows=[gives_up], clock=time) as runtime:
            run = await runtime.start(gives_up.call(), id="r")
            await BEGUN.wait()
            time.slept_seconds = 3601
            return await run.result(timeout=20)

    assert run_async(main()) == "given up"

"""A process dies at any write of taking a run under another version, or of moving it: that makes no difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.code import workflow_of
from tests.runtime.hosting import run_async

from perdure import Client
from perdure.audit.verify import verify
from perdure.errors import StoreError
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import Crash, CrashingStore, When, failing
from perdure.testing.mortal import Death, Mortal, Outcome, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest

TEXT = """
DONE = []

@step
async def search(query: str) -> str:
    DONE.append(query)
    return query

@step
async def rank(hits: str) -> str:
    DONE.append(f"{hits} ranked")
    return hits

@workflow(version=7, prompt_release="May")
async def agent() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    return hits

@workflow(name="agent", version=8, prompt_release="June", replays={7})
async def claims() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    return await rank(hits) + " by 8"

@workflow(name="agent", version=8, prompt_release="June")
async def later() -> str:
    hits = await search("tea")
    await perdure.receive("go on")
    return await rank(hits) + " by 8"
"""


@pytest.fixture
def module(tmp_path: Path) -> dict[str, Any]:
    seven = workflow_of(tmp_path, TEXT)
    names: dict[str, Any] = seven.spec.function.__globals__
    return names


async def parked(clock: FakeClock, seven: Any) -> MemoryStore:
    """A store in which a run of version 7 waits."""
    store = MemoryStore(clock)
    async with RuntimeUnderTest(store, clock=clock, workflows=[seven]) as runtime:
        await runtime.start(seven.call(), id="r")
        await runtime.drain()
    return store.again()


async def goes_on(runtime: RuntimeUnderTest) -> str:
    run = await runtime.get("r")
    if not (await run.status()).is_final:
        await run.send("go on")
    result: str = await run.result()
    return result


def adopted(store: MemoryStore) -> list[str]:
    info = store.find("r")
    assert info is not None
    events = [e.decode(row.envelope) for row in store.load(info.rid).rows]
    return [event.how for event in events if isinstance(event, e.Adopted)]


def sound(store: MemoryStore) -> bool:
    return not verify(store.again()).damage


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_claims_a_run_takes_it_once(module: dict[str, Any], when: When) -> None:
    async def main() -> None:
        for n in itertools.count(1):
            clock, death = FakeClock(), Death()
            inner = await parked(clock, module["agent"])
            module["DONE"].clear()
            store = CrashingStore(inner.again(), fail_at=n, when=when, how=death.come)
            with QuietAboutCrashes():
                runtime = RuntimeUnderTest(store, clock=clock, workflows=[module["claims"]])
                outcome = await Mortal[str](runtime, death).live(goes_on)
            if death.has_come:
                again = RuntimeUnderTest(inner.again(), clock=clock, workflows=[module["claims"]])
                outcome = await Mortal[str](again, Death()).live(goes_on)
            assert isinstance(outcome, Outcome)
            assert (outcome.error, outcome.result) == (None, "tea by 8")
            assert (adopted(inner), {*module["DONE"]}, sound(inner)) == (["claimed"], {"tea ranked"}, True)
            if not death.has_come:
                assert n > 3
                break

    run_async(main())


HOWS: dict[str, Callable[[], BaseException]] = {"dies": Crash, "is not heard": failing()}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_is_moved_or_not_and_a_second_time_changes_nothing(
    module: dict[str, Any], when: When, how: str
) -> None:
    async def main() -> None:
        for n in itertools.count(1):
            clock = FakeClock()
            inner = await parked(clock, module["agent"])
            store = CrashingStore(inner.again(), fail_at=n, when=when, how=HOWS[how], times=1)
            crashed = False
            try:
                await move(store, clock, module["later"])
            except (Crash, StoreError):
                crashed = True
            has_moved = adopted(inner) == ["moved"]
            assert has_moved is (not crashed or when == "after")
            assert await move(inner.again(), clock, module["later"]) == (8 if has_moved else 7)
            assert adopted(inner) == ["moved"]
            async with RuntimeUnderTest(inner.again(), clock=clock, workflows=[module["later"]]) as runtime:
                assert await goes_on(runtime) == "tea by 8"
            assert (adopted(inner), sound(inner)) == (["moved"], True)
            if not crashed:
                assert n > 1
                break

    run_async(main())


async def move(store: Any, clock: FakeClock, workflow: Any) -> int:
    client = Client(store, clock=clock, workflows=[workflow])
    await client.__aenter__()
    version: int = await (await client.get("r")).move(8)
    await client.__aexit__(None, None, None)
    return version

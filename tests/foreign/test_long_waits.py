"""A `def` workflow that waits long gives its thread back, leaves memory, and comes back from the journal."""

import asyncio
import gc
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, is_in_memory, let_go, live

import perdure
from perdure.runtime import sections
from perdure.runtime.live import LiveRun
from perdure.store.protocol import Status

CALLS: Counter[str] = Counter()


@perdure.step
def note(what: str) -> str:
    CALLS[what] += 1
    return what


@perdure.workflow
def echo(what: str) -> str:
    return what


@perdure.workflow
def patient() -> list[str]:
    first = note("before the wait")
    perdure.sync.sleep(0.6)
    second = note("after the wait")
    word = perdure.sync.receive("word", str)
    try:
        perdure.sync.receive("word", str, within=0.2)
    except TimeoutError:
        word += ", and no other"
    return [first, second, word, echo("child")]


def section_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-section-patient")]


def test_a_waiting_thread_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.1)
    CALLS.clear()

    async def until_parked(run: perdure.Run[list[str]], runtime: perdure.Runtime, reason: str) -> None:
        limit = time.monotonic() + 10
        while (await run.summary()).reason != reason or section_threads():
            assert time.monotonic() < limit, (await run.summary(), section_threads())
            await asyncio.sleep(0.005)

    async def main() -> list[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[patient, echo], evict_after=0.05) as runtime:
            run = await runtime.start(patient.call(), id="patient")
            await until_parked(run, runtime, "timer")
            assert await run.status() is Status.WAITING
            await until_parked(run, runtime, "message")
            await run.send("word", "done")
            return await run.result(timeout=10)

    assert asyncio.run(main()) == ["before the wait", "after the wait", "done, and no other", "child"]
    assert CALLS == {"before the wait": 1, "after the wait": 1}


@perdure.workflow
def asleep() -> None:
    perdure.sync.sleep(days=2)


@perdure.workflow
def listening() -> str:
    return perdure.sync.receive("word", str, within=86_400)


@perdure.workflow
def asking() -> str:
    return perdure.sync.ask("go on?", type=str, by={"ann"}, within=86_400)


def runs_in_memory() -> int:
    gc.collect()
    return sum(type(thing) is LiveRun for thing in gc.get_objects())


@pytest.mark.parametrize("waits", [asleep, listening, asking])
def test_a_wait_of_days_keeps_nothing_in_memory_of_a_run_that_has_left_it(waits: Any, tmp_path: Path) -> None:
    async def main() -> None:
        before = runs_in_memory()
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[waits]) as runtime:
            await runtime.start(waits.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r") and live(runtime, "r").has_sections)
            await let_go(runtime, "r")
            await eventually(lambda: runs_in_memory() == before)

    asyncio.run(main())


def test_a_wait_of_days_that_is_over_keeps_nothing_in_memory_of_a_run_that_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        before = runs_in_memory()
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[listening]) as runtime:
            run = await runtime.start(listening.call(), id="r")
            await run.send("word", "done")
            assert await run.result(timeout=10) == "done"
            await eventually(lambda: runs_in_memory() == before)

    asyncio.run(main())

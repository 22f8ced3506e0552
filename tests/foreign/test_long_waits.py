"""A `def` workflow that waits long gives its thread back, leaves memory, and comes back from the journal."""

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import perdure
from perdure.runtime import sections
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

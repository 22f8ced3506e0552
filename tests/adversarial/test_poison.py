"""One run, one call or one write that cannot work must cost nobody else anything, and must not hang in silence."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, live, run_async

import perdure
from perdure import Client, NeedsPerson, Retry, RunBlockedError, Runtime, UsageError, step, workflow
from perdure.errors import StoreBusyError, StoreError, StoreFullError
from perdure.runtime import mail
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Outcome, Write

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done_yet() -> None:
    DONE.clear()


@step
async def note(what: str) -> str:
    DONE.append(what)
    return what


@workflow
async def healthy() -> str:
    return await note("healthy")


# ── names that no store takes ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("odd", [{"id": "a\ud800"}, {"id": " "}, {"delay": 1e14}])
def test_a_start_that_no_store_takes_is_refused_at_once_and_harms_no_other(odd: dict[str, Any], tmp_path: Path) -> None:
    """It would share its transaction with the start of a healthy run."""

    async def main() -> str:
        async with Runtime(str(tmp_path / "runs.db"), workflows=[healthy]) as runtime:
            refused, run = await asyncio.gather(
                runtime.start(healthy.call(), **odd), runtime.start(healthy.call()), return_exceptions=True
            )
            assert isinstance(refused, UsageError)
            assert isinstance(run, perdure.Run)
            return str(await run.result(timeout=20))

    assert run_async(main()) == "healthy"


@workflow
async def names_oddly(what: str) -> str:
    try:
        match what:
            case "child":
                await perdure.start(healthy.call(), id="\ud800")
            case "own child":
                await perdure.start(healthy.call(), id="a")
            case "patch":
                perdure.patched("\ud800")
            case "message":
                await perdure.receive("\ud800")
            case _:
                await perdure.section("\ud800").run(healthy)
    except UsageError:
        return "refused"
    return "taken"


@pytest.mark.parametrize("what", ["child", "own child", "patch", "message", "section"])
def test_a_name_that_cannot_be_recorded_is_refused_where_it_is_given(what: str) -> None:
    """It would be found out when the run is written, or when it leaves memory: in the middle of others."""

    async def main() -> str:
        async with Runtime(MemoryStore(), workflows=[names_oddly, healthy]) as runtime:
            return await (await runtime.start(names_oddly.call(what), id="a")).result(timeout=20)

    assert run_async(main()) == "refused"


# ── what steps raise ────────────────────────────────────────────────────────────────────────


@step(retry=Retry(max_attempts=1))
def runs_out() -> str:
    return next(iter(()))


@step(retry=Retry(max_attempts=1))
async def leaves_like_a_generator() -> str:
    raise GeneratorExit


@step
async def asks_with_an_odd_text() -> str:
    raise NeedsPerson("\ud800")


@workflow
async def tries(what: str) -> str:
    try:
        match what:
            case "StopIteration":
                return await runs_out.call()
            case "GeneratorExit":
                return await leaves_like_a_generator()
            case _:
                return await asks_with_an_odd_text()
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize(
    ("what", "comes_of_it"),
    [("StopIteration", "RuntimeError"), ("GeneratorExit", "StepError"), ("NeedsPerson", "needs_person")],
)
def test_odd_exceptions_of_steps_are_outcomes_like_others(what: str, comes_of_it: str) -> None:
    """A future takes no StopIteration, a task that is closed raises GeneratorExit, a text need not be Unicode: none of
    them leaves the step under way until its timeout."""

    async def main() -> str:
        async with Runtime(MemoryStore(), workflows=[tries]) as runtime:
            run = await runtime.start(tries.call(what), id="a")
            try:
                return await run.result(timeout=20)
            except RunBlockedError as error:
                return error.reason

    assert run_async(main()) == comes_of_it


# ── what the store does ─────────────────────────────────────────────────────────────────────


@step
async def long_text(n: int) -> str:
    DONE.append(f"text {n}")
    return f"{n}" * 5_000


@workflow
async def reads_blobs() -> int:
    text = await long_text(1)
    await perdure.receive("go")
    return len(text + await long_text(2))


@pytest.mark.parametrize("fault", ["busy", "missing"])
def test_a_blob_that_cannot_be_read_while_a_run_is_replayed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy for a moment: the run is loaded again. Missing: that run is parked for a person, the others that were
    claimed with it go on."""
    path = str(tmp_path / "runs.db")

    async def begin() -> None:
        async with Runtime(path, workflows=[reads_blobs]) as runtime:
            for name in ("a", "b"):
                await runtime.start(reads_blobs.call(), id=name)
            await eventually(lambda: len(DONE) == 2)
        async with Client(path) as client:
            for name in ("a", "b"):
                await (await client.get(name)).send("go")

    async def go_on() -> tuple[Any, Any]:
        runtime = Runtime(path, workflows=[reads_blobs])
        if fault == "missing":
            with sqlite3.connect(path) as connection:
                connection.execute("DELETE FROM blobs WHERE rid = 1")
            connection.close()
        async with runtime:
            if fault == "busy":
                store = runtime._store  # pyright: ignore[reportPrivateUsage]
                read, failures = store.blob, [StoreBusyError("busy")] * 2

                def blob(rid: int, digest: bytes) -> bytes:
                    if failures:
                        raise failures.pop()
                    return read(rid, digest)

                monkeypatch.setattr(store, "blob", blob)
            runs = [await runtime.get(name) for name in ("a", "b")]
            first, second = await asyncio.gather(*(run.result(timeout=20) for run in runs), return_exceptions=True)
            return first, second

    run_async(begin())
    first, second = run_async(go_on())
    assert second == 10_000
    if fault == "busy":
        assert first == 10_000
        assert sorted(DONE) == ["text 1"] * 2 + ["text 2"] * 2
    else:
        assert isinstance(first, RunBlockedError)
        assert first.reason == "undecodable"


@step(timeout=60)
async def takes_a_while() -> None:
    await asyncio.Event().wait()


@workflow
async def at_work() -> None:
    await takes_a_while()


@workflow
async def listening() -> str:
    return await perdure.receive("go", str)


def test_a_letter_that_cannot_be_read_keeps_no_other_run_from_its_mail() -> None:
    async def main() -> None:
        async with Runtime(MemoryStore(), workflows=[at_work, listening]) as runtime:
            busy = await runtime.start(at_work.call(), id="busy")
            other = await runtime.start(listening.call(), id="other")
            await eventually(lambda: is_in_memory(runtime, "busy") and bool(live(runtime, "busy").flights))
            host_of(runtime).store.commit([mail.letter("busy", "unblock", body=b"no letter", now=1)])
            await other.send("go", "on")
            assert await other.result(timeout=10) == "on"
            with pytest.raises(RunBlockedError, match="stuck_turn"):
                await busy.result(timeout=10)

    run_async(main())


class RefusingStore(MemoryStore):
    """Its disk is full once `is_full`."""

    is_full = False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.is_full:
            raise StoreFullError("no space left")
        return super().commit(writes)


def test_leaving_while_the_store_is_full_leaves_nobody_waiting() -> None:
    """A start waits for a store that takes nothing; the Runtime is left meanwhile."""

    async def main() -> None:
        store = RefusingStore()
        async with Runtime(store, workflows=[healthy]) as runtime:
            store.is_full = True
            starting = asyncio.create_task(runtime.start(healthy.call()))
            await asyncio.sleep(0)
        with pytest.raises(StoreError):
            await asyncio.wait_for(starting, 20)

    run_async(main())

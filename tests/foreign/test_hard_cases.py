"""Hosted code that behaves badly, and hosted code in bad moments."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import step, workflow
from perdure.runtime import sections
from perdure.runtime.hosted import journal
from perdure.runtime.hosted.records import Record, Unclaimed
from perdure.store.protocol import Status
from perdure.testing.runtime import RuntimeUnderTest

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done_yet() -> None:
    DONE.clear()


@pytest.fixture
def gives_threads_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.02)


@step
def note(what: str) -> str:
    DONE.append(what)
    return what


def hosting_threads() -> list[threading.Thread]:
    """Those of the runs called `run`, and of their children: one that swallows everything is never heard of again."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("perdure-section-run")]


async def until(is_so: Callable[[], Any]) -> None:
    limit = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < limit
        await asyncio.sleep(0.005)


# ── records ─────────────────────────────────────────────────────────────────────────────────


def record(lane: str, n: int, name: str = "s", digest: bytes = b"d") -> Record:
    return Record((f"0:0/{lane}", n), lane, name, digest, None, 0, None)


def test_a_record_of_the_own_lane_comes_first_and_each_is_claimed_once() -> None:
    records = [record("a", 0), record("b", 0), record("a", 1), record("b", 1), record("b", 2, digest=b"e")]
    unclaimed = Unclaimed(records)
    assert unclaimed.claim("b", "s", b"d") is records[1]
    assert unclaimed.claim("c", "s", b"d") is None
    assert unclaimed.claim_of_any("s", b"d") is records[0]
    assert unclaimed.claim("a", "s", b"d") is records[2]
    assert unclaimed.claim("a", "s", b"d") is None
    assert unclaimed.claim_of_any("s", b"d") is records[3]
    assert unclaimed.claim_of_any("s", b"d") is None
    assert unclaimed.claim("b", "other", b"e") is None
    assert unclaimed.left() == records[4:]
    assert unclaimed.claim("a", "s", b"e") is None
    assert unclaimed.claim_of_any("s", b"e") is records[4]
    assert not unclaimed


# ── code that does not let go ───────────────────────────────────────────────────────────────


@workflow
def leaves_a_thread() -> str:
    def goes_on() -> None:
        while True:
            note("once more")
            time.sleep(0.01)

    threading.Thread(target=goes_on, name="outlives", daemon=True).start()
    return note("returned")


def test_a_thread_that_outlives_its_code_ends_at_its_next_call_and_quietly() -> None:
    async def main() -> None:
        async with perdure.Runtime(":memory:", workflows=[leaves_a_thread]) as runtime:
            assert await (await runtime.start(leaves_a_thread.call())).result(timeout=20) == "returned"
            await until(lambda: not [t for t in threading.enumerate() if t.name == "outlives"])

    asyncio.run(main())


CAUGHT: list[BaseException] = []


@workflow
def swallows_everything() -> None:
    while True:
        try:
            perdure.sync.receive("never")
        except BaseException as error:
            CAUGHT.append(error)
            with contextlib.suppress(BaseException):
                perdure.patched("and asks for more")


@pytest.mark.usefixtures("gives_threads_back_at_once")
def test_code_that_swallows_its_unwinding_does_not_spin() -> None:
    CAUGHT.clear()

    async def main() -> None:
        async with perdure.Runtime(":memory:", workflows=[swallows_everything]) as runtime:
            run = await runtime.start(swallows_everything.call(), id="swallower")
            await until(lambda: len(CAUGHT) > 10)
            await asyncio.sleep(0.1)
            so_far = len(CAUGHT)
            await asyncio.sleep(0.1)
            assert len(CAUGHT) == so_far < 60
            await run.cancel(force=True)
            with pytest.raises(perdure.RunCancelledError):
                await run.result(timeout=20)

    asyncio.run(main())


# ── where hosted code stands ────────────────────────────────────────────────────────────────


async def inner() -> Any:
    return await perdure.section("inner").run(note, "too deep")


@workflow
async def nests() -> Any:
    return await perdure.section("outer").run(inner)


def test_a_section_in_a_section_is_refused() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(workflows=[nests]) as runtime:
            with pytest.raises(perdure.UsageError, match="which is in one already"):
                await (await runtime.start(nests.call())).result()

    asyncio.run(main())


LANES = 50


@workflow
def many_lanes(steps: int) -> int:
    total: list[int] = []

    def branch(lane: int) -> None:
        with perdure.lane(f"lane {lane}"):
            total.append(sum(len(note(f"{lane}/{n}")) for n in range(steps)))

    threads = [threading.Thread(target=branch, args=(lane,)) for lane in range(LANES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(total)


def test_fifty_lanes_over_a_restart_make_each_call_once(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    async def first() -> None:
        async with perdure.Runtime(store, workflows=[many_lanes]) as runtime:
            run = await runtime.start(many_lanes.call(8), id="run")
            while sum(event.kind == "step.completed" for event in await run.history()) < 100:
                await asyncio.sleep(0.005)

    async def again() -> int:
        async with perdure.Runtime(store, workflows=[many_lanes]) as runtime:
            run = await runtime.get("run")
            result = int(await run.result(timeout=60))
            assert sum(event.kind == "step.completed" for event in await run.history()) == LANES * 8
            return result

    asyncio.run(first())
    assert asyncio.run(again()) == sum(len(f"{lane}/{n}") for lane in range(LANES) for n in range(8))


# ── long waits ──────────────────────────────────────────────────────────────────────────────


@workflow
def waits_for_days() -> str:
    try:
        perdure.sync.sleep(days=2)
        return note("two days later")
    finally:
        DONE.append("finally")


@workflow
async def parent_of_one_that_waits() -> str:
    return await waits_for_days.call()


@pytest.mark.usefixtures("gives_threads_back_at_once")
@pytest.mark.parametrize("evict_after", [0.05, 3600])
@pytest.mark.parametrize("target", [waits_for_days, parent_of_one_that_waits])
def test_a_wait_of_days_holds_no_thread_and_can_be_cancelled(target: Any, evict_after: float, tmp_path: Path) -> None:
    async def main() -> None:
        workflows = [waits_for_days, parent_of_one_that_waits]
        store = str(tmp_path / "runs.db")
        async with perdure.Runtime(store, workflows=workflows, evict_after=evict_after) as runtime:
            run = await runtime.start(target.call(), id="run")
            await until(lambda: "finally" in DONE and not hosting_threads())
            if evict_after < 1:
                while any(
                    [await (await runtime.get(r.id)).status() is not Status.WAITING for r in await runtime.list()]
                ):
                    await asyncio.sleep(0.005)
            assert await run.cancel("enough") in {"requested", "cancelled"}
            with pytest.raises(perdure.RunCancelledError):
                await run.result(timeout=20)
            assert {await (await runtime.get(r.id)).status() for r in await runtime.list()} == {Status.CANCELLED}
        assert "two days later" not in DONE
        assert not hosting_threads()

    asyncio.run(main())


@pytest.mark.usefixtures("gives_threads_back_at_once")
def test_paused_while_its_thread_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[asks], evict_after=0.05) as runtime:
            run = await runtime.start(asks.call(), id="run")
            await until(lambda: "asking" in DONE and not hosting_threads())
            await run.pause()
            await run.send("word", "late")
            await asyncio.sleep(0.2)
            assert "late" not in DONE
            await run.resume()
            assert await run.result(timeout=20) == "late"

    asyncio.run(main())


@workflow
def asks() -> str:
    note("asking")
    return note(perdure.sync.receive("word", str))


@pytest.mark.parametrize("unwind_seconds", [0.02, 10])
def test_drain_returns_while_hosted_code_waits(
    unwind_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "UNWIND_SECONDS", unwind_seconds)

    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[asks]) as runtime:
            run = await runtime.start(asks.call(), id="run")
            await asyncio.wait_for(runtime.drain(), 5)
            assert DONE == ["asking"]
            await run.send("word", "drained")
            await asyncio.wait_for(runtime.drain(), 5)
            assert DONE == ["asking", "drained"]
            assert await run.result(timeout=20) == "drained"

    asyncio.run(main())


async def asks_twice() -> list[str]:
    """Two of its tasks wait, and it waits for them: it cannot be given back."""
    return list(await asyncio.gather(perdure.receive("one", str), perdure.receive("other", str)))


@workflow
async def asks_for_two() -> list[str]:
    return list(await perdure.section("two").run(asks_twice))


def test_drain_returns_while_several_tasks_of_hosted_code_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stays in memory; when the program leaves, it is whoever's comes next."""
    monkeypatch.setattr(journal, "HELD_QUIET_SECONDS", 0.1)

    async def life(word: str, *, last: bool) -> list[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[asks_for_two]) as runtime:
            run = await runtime.start(asks_for_two.call(), id="run")
            assert await asyncio.wait_for(runtime.drain(), 5) == 1
            await run.send(word, word)
            assert await asyncio.wait_for(runtime.drain(), 5) == (not last)
            return await run.result(timeout=20) if last else []

    asyncio.run(life("one", last=False))
    assert asyncio.run(life("other", last=True)) == ["one", "other"]

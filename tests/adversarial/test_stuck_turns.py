"""A turn that does not come back costs its run a stop, and the worker nothing that it cannot make good again."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from tests.runtime.hosting import PATIENCE_SECONDS, eventually, host_of, is_in_memory, live, run_async

import perdure
from perdure import Client, Runtime, step, workflow
from perdure.runtime import lease
from perdure.runtime.live import OpenTurn
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Status
from perdure.testing.runtime import StillLease

GATE = threading.Event()


@pytest.fixture(autouse=True)
def turns_are_stuck_soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lease, "LOOP_BLOCKED_SECONDS_MAX", 0.2)
    GATE.clear()
    yield
    GATE.set()


@step
async def note() -> None: ...


@workflow
async def blocks() -> None:
    await note()
    GATE.wait(PATIENCE_SECONDS)


@workflow
async def blocks_later() -> None:
    await perdure.receive("go")
    GATE.wait(PATIENCE_SECONDS)


@workflow
async def healthy() -> str:
    return "done"


def test_a_worker_that_was_declared_dead_over_a_stuck_turn_works_again() -> None:
    """A turn blocks the loop for longer than the lease; the run is parked, another process declares the worker dead;
    then the turn comes back. The worker takes runs again."""
    store = MemoryStore()

    def declare_dead(worker: str) -> None:
        other, until = store.again(), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            info = other.find("a")
            if info is not None and info.status is Status.BLOCKED:
                other.take_over(worker, proven=False, retry_after=())
                break
            time.sleep(0.005)
        GATE.set()

    async def main() -> str:
        async with Runtime(store.again(), workflows=[blocks, healthy], lease=0.3) as runtime:
            helper = threading.Thread(target=declare_dead, args=(host_of(runtime).worker,))
            helper.start()
            await runtime.start(blocks.call(), id="a")
            await eventually(GATE.is_set)
            helper.join()
            async with Client(store.again(), workflows=[healthy]) as client:
                run = await client.start(healthy.call(), id="b")
                result = await run.result(timeout=20)
                summary = await (await client.get("a")).summary()
            assert (summary.status, summary.reason) == ("blocked", "stuck_turn")
            return result

    assert run_async(main()) == "done"


def test_a_turn_that_hangs_in_a_thread_of_its_own_is_parked() -> None:
    """Its loop comes round all the time, so nothing but the turn's own age tells."""

    async def main() -> tuple[str, str]:
        async with Runtime(MemoryStore(), workflows=[blocks_later], lease=0.3, evict_after=1000) as runtime:
            run = await runtime.start(blocks_later.call(), id="a")
            await eventually(lambda: is_in_memory(runtime, "a") and bool(live(runtime, "a").execution.open))
            live(runtime, "a").is_slow = True
            await run.send("go")

            async def is_parked() -> bool:
                return await run.status() == "blocked"

            await eventually(is_parked)
            GATE.set()
            await eventually(lambda: not is_in_memory(runtime, "a"))
            summary = await run.summary()
            return summary.status, summary.reason

    assert run_async(main()) == ("blocked", "stuck_turn")


@step(timeout=0.3)
async def blocks_the_loop() -> None:
    await asyncio.sleep(0)
    GATE.wait(PATIENCE_SECONDS)


@workflow
async def forgets_a_thread() -> None:
    await blocks_the_loop()


@step(timeout=1000)
async def blocks_the_loop_in_time() -> str:
    await asyncio.sleep(0)
    time.sleep(0.9)
    return "came back"


@workflow
async def may_block() -> str:
    return await blocks_the_loop_in_time()


def test_a_step_that_blocks_the_loop_for_longer_than_it_may_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    """Its own timeout cannot fire. What it gives when it comes back reaches nobody, and the worker goes on."""
    store = MemoryStore()

    def look() -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and not is_blocked(store.again(), "a"):
            time.sleep(0.005)
        GATE.set()

    async def main() -> tuple[str, str, str]:
        async with Runtime(store.again(), workflows=[forgets_a_thread, healthy], lease=0.3) as runtime:
            onlooker = threading.Thread(target=look)
            onlooker.start()
            run = await runtime.start(forgets_a_thread.call(), id="a")
            await eventually(GATE.is_set)
            onlooker.join()
            await eventually(lambda: not is_in_memory(runtime, "a"))
            result = await (await runtime.start(healthy.call(), id="b")).result()
            summary = await run.summary()
            return result, summary.reason, summary.hint

    result, reason, hint = run_async(main())
    assert (result, reason) == ("done", "stuck_turn")
    assert hint.startswith("0/blocks_the_loop#1 did not come back within 0.3 s")
    assert "in blocks_the_loop" in caplog.text, "the log says where it hangs"


def is_blocked(store: MemoryStore, id: str) -> bool:
    info = store.find(id)
    return info is not None and info.status is Status.BLOCKED


def test_a_step_may_block_the_loop_for_as_long_as_it_may_take() -> None:
    """For longer than a turn may, and than a lease lasts: its worker is not lost to others meanwhile."""
    store, lost = MemoryStore(), list[object]()

    def look() -> None:
        while not GATE.wait(0.02):
            lost.extend(store.again().lost("another"))

    async def main() -> str:
        async with Runtime(store.again(), workflows=[may_block], lease=0.3) as runtime:
            onlooker = threading.Thread(target=look)
            onlooker.start()
            result = await (await runtime.start(may_block.call(), id="a")).result()
            GATE.set()
            onlooker.join()
            return result

    assert (run_async(main()), lost) == ("came back", [])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="nobody can look into the context of a task of another loop")
def test_a_task_of_a_body_that_blocks_the_loop_is_known() -> None:
    async def main() -> str:
        async with Runtime(MemoryStore(), workflows=[gathers], lease=0.3) as runtime:
            opener = threading.Timer(1.0, GATE.set)
            opener.start()
            run = await runtime.start(gathers.call(), id="a")
            await eventually(GATE.is_set)
            return (await run.summary()).hint

    assert run_async(main()).startswith("0/gathers_in_its_body#1 did not come back")


@step(timeout=0.3)
async def gathers_in_its_body() -> None:
    async def blocking() -> None:
        await asyncio.sleep(0)
        GATE.wait(PATIENCE_SECONDS)

    await asyncio.gather(blocking())


@workflow
async def gathers() -> None:
    await gathers_in_its_body()


@workflow
async def takes_its_time() -> str:
    await perdure.receive("go")
    busy_for_a_while()
    return "done"


def busy_for_a_while() -> None:
    GATE.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_long_turn_is_logged_with_its_own_stack_before_it_is_over(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it is in a thread of its own."""
    monkeypatch.setattr(lease, "LOOP_BLOCKED_SECONDS_MAX", PATIENCE_SECONDS)
    monkeypatch.setattr(lease, "TURN_LOGGED_SECONDS", 0.1)

    def is_logged() -> bool:
        return any("takes longer than 0.1 s" in record.getMessage() for record in caplog.records)

    def let_go_when_logged() -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not is_logged() and time.monotonic() < until:
            time.sleep(0.005)
        GATE.set()

    async def main() -> None:
        async with Runtime(MemoryStore(), workflows=[takes_its_time], lease=1000, evict_after=1000) as runtime:
            run = await runtime.start(takes_its_time.call(), id="a")
            await eventually(lambda: is_in_memory(runtime, "a") and bool(live(runtime, "a").execution.open))
            live(runtime, "a").is_slow = is_slow
            helper = threading.Thread(target=let_go_when_logged)
            helper.start()
            await run.send("go")
            assert await run.result() == "done"
            helper.join()

    run_async(main())
    (said,) = [record.getMessage() for record in caplog.records if "takes longer than" in record.getMessage()]
    assert "in busy_for_a_while" in said


@pytest.mark.parametrize("began", [0.01, 0.5, 0.99])
def test_a_turn_that_is_over_soon_after_it_is_long_has_been_logged(
    began: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Looks are a second apart; one comes when the turn becomes long."""
    monkeypatch.setattr(lease, "LOOP_BLOCKED_SECONDS_MAX", 30)
    time_passed = 0.0
    turn = OpenTurn(LiveRunOfThatName("a"), began, threading.get_ident())  # type: ignore[arg-type]
    kept = StillLease(
        "w", MemoryStore(), 1000.0, driving=lambda: turn if began <= time_passed <= began + 2.01 else None,
        on_lost=lambda: None, body=lambda: None, now=lambda: 0, monotonic=lambda: time_passed,
    )  # fmt: skip
    while time_passed < 5:
        time_passed += kept.seconds_to_next_look() + 0.001
        kept.tick()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a turn of run a takes longer than 2 s"
    ]


class LiveRunOfThatName:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.rid = 1

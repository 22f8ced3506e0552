"""Code that blocks its turn, turns that take long, processes that fork, steps that die while they get on."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import PATIENCE_SECONDS, eventually, is_in_memory, live, on_one_store, run_async
from tests.schedules import program
from tests.schedules.processes import World, wait_for_death

import perdure
from perdure import Client, RunCancelledError, Runtime, step, workflow
from perdure.runtime import turn


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── a turn that does not come back ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("role", "told"),
    [("hang", "its turn did not come back"), ("hang_in_a_step", "0/hangs_on_the_loop#1 did not come back")],
)
def test_code_that_does_not_come_back_is_parked_and_hangs_no_other_worker(world: World, role: str, told: str) -> None:
    """The lease thread parks the run under its own epoch before it lets the lease go; then others take what is left."""

    async def main() -> None:
        async with (
            Client(world.store, workflows=program.WORKFLOWS) as client,
            Runtime(world.store, workflows=program.WORKFLOWS, lease=1) as other,
        ):
            await eventually(lambda: is_blocked(client, "hung"))
            beside = await other.get("beside")
            await beside.send("go", "taken over")
            assert await beside.result(timeout=30) == "taken over"
            hung = await (await client.get("hung")).summary()
            assert (hung.reason, told in hung.hint) == ("stuck_turn", True)
            assert not is_in_memory(other, "hung")
            assert world.what() == ["hangs"]

    with world.worker(role, lease=1):
        run_async(main())


def test_a_program_that_blocks_its_own_loop_loses_its_runs_to_others(world: World) -> None:
    """No run is to blame: whoever takes them over does not hang."""

    async def main() -> None:
        await eventually(lambda: world.what() == ["hangs"])
        async with Runtime(world.store, workflows=program.WORKFLOWS, lease=1) as other:
            beside = await other.get("beside")
            await beside.send("go", "taken over")
            assert await beside.result(timeout=30) == "taken over"
            assert [run.status for run in await other.list(status="blocked")] == []

    with world.worker("hang_itself", lease=1):
        run_async(main())


async def is_blocked(client: Client, id: str) -> bool:
    try:
        return await (await client.get(id)).status() == "blocked"
    except perdure.UnknownNameError:
        return False


# ── turns that take long ────────────────────────────────────────────────────────────────────


@step
async def work(item: int) -> int:
    return item


@workflow
async def ponders(rounds: int) -> int:
    """Its turns take longer than a turn should: they move to a thread."""
    total = 0
    for n in range(rounds):
        time.sleep(0.02)
        total += await work(n)
    time.sleep(0.02)
    return total + await perdure.receive("more", int)


@workflow
async def quick(item: int) -> int:
    return await work(item)


@pytest.fixture
def slow_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "SLOW_TURN_SECONDS", 0.01)


def ponders_now(runtime: Runtime, run_id: str) -> bool:
    return is_in_memory(runtime, run_id) and live(runtime, run_id).is_in_turn


@pytest.mark.usefixtures("slow_turns")
def test_long_turns_do_not_hold_up_other_runs_and_lose_nothing() -> None:
    async def main() -> None:
        async with on_one_store()(ponders, quick) as runtime:
            slow = [await runtime.start(ponders.call(6), id=f"slow-{n}") for n in range(3)]
            await eventually(lambda: any(ponders_now(runtime, run.id) for run in slow))
            for run in slow:
                await run.send("more", 100)
            for n in range(20):
                assert await (await runtime.start(quick.call(n))).result(timeout=10) == n
            assert await asyncio.gather(*(run.result(timeout=20) for run in slow)) == [115] * 3

    run_async(main())


@pytest.mark.usefixtures("slow_turns")
def test_a_run_cancelled_paused_and_resumed_while_it_ponders() -> None:
    async def main() -> None:
        async with on_one_store()(ponders) as runtime:
            run = await runtime.start(ponders.call(1000), id="r")
            await eventually(lambda: ponders_now(runtime, "r"))
            await run.pause()
            await eventually(lambda: reason_is(run, "paused"))
            await run.resume()
            await eventually(lambda: ponders_now(runtime, "r"))
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)

    run_async(main())


async def reason_is(run: perdure.Run[Any], reason: str) -> bool:
    return (await run.summary()).reason == reason


@pytest.mark.usefixtures("slow_turns")
def test_a_worker_that_leaves_in_the_middle_of_a_long_turn() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(ponders) as runtime:
            await runtime.start(ponders.call(5), id="r")
            await eventually(lambda: ponders_now(runtime, "r"))
        async with make(ponders) as runtime:
            run = await runtime.get("r")
            await run.send("more", 1)
            assert await run.result(timeout=20) == 11

    run_async(main())


GATE = threading.Event()
LEFT: list[int] = []


@workflow
async def waits_at_the_gate(n: int) -> None:
    try:
        time.sleep(0.02)
        await work(n)
        GATE.wait(PATIENCE_SECONDS)
        await work(n)
    finally:
        LEFT.append(n)


@pytest.mark.usefixtures("slow_turns")
def test_long_turns_that_found_no_thread_before_the_worker_leaves_are_unwound_too() -> None:
    GATE.clear()
    LEFT.clear()
    runs = turn.TURN_THREADS_MAX + 2

    async def main() -> None:
        async with on_one_store()(waits_at_the_gate) as runtime:
            for n in range(runs):
                await runtime.start(waits_at_the_gate.call(n), id=f"r{n}")
            await eventually(lambda: all(ponders_now(runtime, f"r{n}") for n in range(runs)))
        GATE.set()
        await eventually(lambda: sorted(LEFT) == list(range(runs)))

    run_async(main())


INTERRUPTS: list[str] = []


@workflow
async def interrupted_while_it_ponders() -> int:
    await ponder(0.02)
    if INTERRUPTS:
        INTERRUPTS.clear()
        raise KeyboardInterrupt
    return await work(1)


async def ponder(seconds: float) -> None:
    for n in range(3):
        time.sleep(seconds)
        await work(n)


@pytest.mark.usefixtures("slow_turns")
def test_keyboard_interrupt_in_a_long_turn_is_raised_on_the_loop() -> None:
    make = on_one_store()
    INTERRUPTS[:] = ["once"]

    async def first() -> None:
        async with make(interrupted_while_it_ponders) as runtime:
            await runtime.start(interrupted_while_it_ponders.call(), id="r")
            await asyncio.Event().wait()

    async def second() -> None:
        async with make(interrupted_while_it_ponders) as runtime:
            assert await (await runtime.get("r")).result(timeout=10) == 1

    with pytest.raises(KeyboardInterrupt):
        run_async(first())
    run_async(second())


# ── fork, progress ──────────────────────────────────────────────────────────────────────────


def test_a_forked_child_is_refused_the_handle_and_can_open_the_store_for_itself(world: World) -> None:
    said = world.serve("fork").splitlines()
    assert said[1:] == ["ForkedError", "['child.0', 'child.1', 'child.2']", "child: 0", "on"]


def test_a_step_that_gets_on_may_die_as_often_as_it_likes(world: World) -> None:
    """Heartbeats with new details are progress: five deaths are no crash loop."""
    for life in range(1, 8):
        with world.worker("start_dying", life=str(life)) as process:
            wait_for_death(process)
            if process.returncode == 0:
                break
    assert world.what() == [f"item {n}" for n in range(6)]

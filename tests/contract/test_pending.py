"""What `check` says of the calls that a run waits for is what then becomes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.contract.code import workflow_of
from tests.runtime.hosting import eventually, host_of, run_async

from perdure import Runtime, Status
from perdure.api.checking import Does, check_store
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock

TEXT = """
DONE = []
HANGS = asyncio.Event()

async def do(what):
    DONE.append(what)
    if len(DONE) == HANGS_AT:
        await HANGS.wait()

@effect(downstream=perdure.Idempotent())
async def with_key(order: str) -> str:
    await do("sent")
    return "paid"

@effect(downstream=perdure.CanLookUp(settle_after=0))
async def with_look(order: str) -> str:
    await do("sent")
    return "paid"

@with_look.lookup
async def _(op: perdure.Operation) -> perdure.Found[str] | perdure.NotFound | perdure.Unsure:
    DONE.append("looked up")
    return perdure.Found("paid")

@effect(downstream=perdure.NoGuarantee())
async def with_nothing(order: str) -> str:
    await do("sent")
    return "paid"

@effect(downstream=perdure.Idempotent())
async def with_undo(order: str) -> str:
    await do("sent")
    return "paid"

@with_undo.undo
async def _(result: str, order: str) -> None:
    await do("undone")

for each in (with_key, with_look, with_nothing, with_undo):
    each.key(lambda order: order)

@step
async def think() -> str:
    await do("thought")
    return "paid"

@step
async def ask_somebody() -> str:
    DONE.append("asked")
    raise perdure.NeedsPerson("which?")

async def regret() -> str:
    async with perdure.saga():
        await with_undo("o")
        raise ValueError("no")

async def wait() -> str:
    return await perdure.receive("answer", str)

@workflow
async def agent() -> str:
    return await CALL
"""

CASES: dict[str, tuple[str, int, Does, list[str]]] = {
    "step": ("think()", 1, Does.PERFORM, ["thought"]),
    "key": ('with_key("o")', 1, Does.PERFORM, ["sent"]),
    "look": ('with_look("o")', 1, Does.LOOK_UP, ["looked up"]),
    "nothing": ('with_nothing("o")', 1, Does.BLOCK, []),
    "undo": ("regret()", 2, Does.COMPENSATE, ["undone"]),
    "person": ("ask_somebody()", 0, Does.BLOCK, []),
    "message": ("wait()", 0, Does.WAIT, []),
}
"""The call, the how-many-eth act at which the process dies, what `check` says, and what is done after it."""


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_call(tmp_path: Path, case: str) -> None:
    call, hangs_at, does, done = CASES[case]
    text = TEXT.replace("CALL", call)
    clock = FakeClock()
    store = MemoryStore(clock)

    async def main() -> None:
        agent = workflow_of(tmp_path, text.replace("HANGS_AT", str(hangs_at)))
        acts: list[str] = agent.spec.function.__globals__["DONE"]
        async with Runtime(store.again(), workflows=[agent], clock=clock) as runtime:
            run = await runtime.start(agent.call(), id="r")
            if hangs_at:
                await eventually(lambda: len(acts) == hangs_at)
            else:
                await eventually(lambda: _stands(run, clock))
            await host_of(runtime).abandon()
        again = workflow_of(tmp_path, text.replace("HANGS_AT", "0"))
        opened = store.again()
        (found,) = check_store(opened, [again.spec])
        assert [pending.does for pending in found.pending] == [does], found
        async with Runtime(opened, workflows=[again], clock=clock) as runtime:
            run = await runtime.get("r")
            await eventually(lambda: _stands(run, clock))
            status = await run.status()
        assert again.spec.function.__globals__["DONE"] == done
        assert (status is Status.BLOCKED) == (does is Does.BLOCK)
        assert (status is Status.WAITING) == (does is Does.WAIT)

    run_async(main())


async def _stands(run: Any, clock: FakeClock) -> bool:
    """Whether it has ended, or waits for somebody. Until then time passes: a lease, a time limit."""
    clock.advance(30)
    return await run.status() not in {Status.RUNNING, Status.QUEUED}


@pytest.mark.parametrize(("how", "does"), [("paused", Does.WAIT), ("parked", Does.BLOCK)])
def test_what_becomes_of_a_run_that_is_stopped_as_a_whole(tmp_path: Path, how: str, does: Does) -> None:
    """It replays, and goes on only when somebody says so."""
    text = TEXT.replace("CALL", "wait()").replace("HANGS_AT", "0")
    store = MemoryStore()

    async def main() -> None:
        agent = workflow_of(tmp_path, text)
        other = workflow_of(tmp_path, text.replace("await wait()", 'await perdure.receive("other", str)'))
        async with Runtime(store.again(), workflows=[agent]) as runtime:
            run = await runtime.start(agent.call(), id="r")
            await runtime.drain()
            if how == "paused":
                await run.pause()
                await runtime.drain()
        if how == "parked":
            async with Runtime(store.again(), workflows=[other]) as runtime:
                run = await runtime.get("r")
                await run.send("unknown")
                await eventually(lambda: _is(run, Status.BLOCKED))
        opened = store.again()
        (found,) = check_store(opened, [agent.spec])
        assert [pending.does for pending in found.pending] == [does, Does.WAIT], found
        async with Runtime(opened, workflows=[agent]) as runtime:
            run = await runtime.get("r")
            await run.send("answer", "yes")
            await runtime.drain()
            assert await run.status() in {Status.WAITING, Status.BLOCKED}
            await (run.resume() if how == "paused" else run.unblock("retry"))
            assert await run.result(timeout=20, wait_blocked=True) == "yes"

    run_async(main())


async def _is(run: Any, status: Status) -> bool:
    return await run.status() is status


DECIDING = """
@step(OPTIONS)
async def decide() -> int:
    return 3

@decide.premise("policy")
async def _() -> int:
    return 1

@workflow
async def agent() -> str:
    await decide()
    return await perdure.receive("answer", str)
"""


@pytest.mark.parametrize(
    ("options", "does", "then"),
    [
        ("", Does.REUSE, "stands if policy is as it was when it is read again, else recompute"),
        ("valid_for=3_600", Does.RECOMPUTE, ": recompute"),
        ('valid_for=3_600, on_stale="block"', Does.BLOCK, ": block"),
        ('valid_for=3_600, on_stale="keep"', Does.REUSE, ": keep"),
        ('valid_for=3_600, on_stale=lambda then, now: "keep"', Does.REUSE, ": as its function says"),
    ],
)
def test_what_becomes_of_a_decision(tmp_path: Path, options: str, does: Does, then: str) -> None:
    """It is known without reading what it rests on: nothing is performed."""
    clock = FakeClock(datetime.now(UTC) - timedelta(hours=2))
    store = MemoryStore(clock)
    agent = workflow_of(tmp_path, DECIDING.replace("OPTIONS", options))

    async def main() -> None:
        async with Runtime(store.again(), workflows=[agent], clock=clock) as runtime:
            await runtime.start(agent.call(), id="r")
            await runtime.drain()

    run_async(main())
    (found,) = check_store(store.again(), [agent.spec])
    waits, rests = found.pending
    assert (waits.does, rests.call, rests.does) == (Does.WAIT, "0/decide#1", does)
    assert rests.then.endswith(then)

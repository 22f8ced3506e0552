"""What a run was told, and what its code has passed, counts after a restart too."""

from __future__ import annotations

import asyncio

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, let_go, live, on_one_store, run_async

import perdure
from perdure import Runtime, step, workflow

DONE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done_yet() -> None:
    DONE.clear()


@step
async def note(what: str) -> str:
    DONE.append(what)
    return what


def stop_dead(runtime: Runtime) -> None:
    """As a kill would: on leaving, nothing more is written about what its runs wait for."""
    host_of(runtime).release_idle = lambda: None  # type: ignore[method-assign]


# ── letters ─────────────────────────────────────────────────────────────────────────────────


@workflow
async def child() -> str:
    return await perdure.receive("finish", str)


@workflow(name="parent")
async def parent() -> str:
    return await child()


@workflow(name="parent")
async def parent_of_a_bad_deploy() -> str:
    await note("something new before the child")
    return await child()


def test_a_childs_end_that_arrives_while_the_code_has_diverged_is_not_lost() -> None:
    """The parent waits in the store; a deploy diverges; the child ends, which wakes the parent under the new code; the
    old code comes back and the parent is unblocked."""
    make = on_one_store(evict_after=1000)

    async def main() -> str:
        async with make(parent, child) as runtime:
            run = await runtime.start(parent.call(), id="a")
            await eventually(lambda: is_in_memory(runtime, "a/0.child.0"))
            await let_go(runtime, "a")
        async with make(parent_of_a_bad_deploy, child) as runtime:
            await (await runtime.get("a/0.child.0")).send("finish", "the child's result")
            run = await runtime.get("a")

            async def is_blocked() -> bool:
                return await run.status() == "blocked"

            await eventually(is_blocked)
            assert (await run.summary()).reason == "diverged"
        async with make(parent, child) as runtime:
            run = await runtime.get("a")
            await run.unblock("retry")
            return str(await run.result(timeout=20))

    assert run_async(main()) == "the child's result"


# ── pausing ─────────────────────────────────────────────────────────────────────────────────

gate = asyncio.Event()


@step
async def wait_for_the_gate() -> None:
    await gate.wait()


@workflow
async def rolls_over(n: int) -> str:
    if n == 0:
        await wait_for_the_gate()
        perdure.continue_as_new(1)
    return await note("paid")


def test_a_pause_outlives_a_chapter_and_a_crash() -> None:
    """Paused while a step is under way; the step ends, the code continues as new; the worker dies. Whoever takes the
    run over finds it paused."""
    make = on_one_store(evict_after=1000)

    async def main() -> str:
        global gate
        gate = asyncio.Event()
        async with make(rolls_over) as runtime:
            run = await runtime.start(rolls_over.call(0), id="a")
            await eventually(lambda: is_in_memory(runtime, "a") and bool(live(runtime, "a").flights))
            await run.pause()
            await eventually(lambda: live(runtime, "a").is_paused)
            gate.set()
            await eventually(lambda: live(runtime, "a").execution.beginning.chapter == 1)
            await eventually(lambda: bool(live(runtime, "a").held))
            summary = await run.summary()
            assert (summary.status, summary.reason) == ("waiting", "paused")
            stop_dead(runtime)
        async with make(rolls_over) as runtime:
            run = await runtime.get("a")
            await eventually(lambda: is_in_memory(runtime, "a"))
            assert live(runtime, "a").is_paused
            await run.resume()
            return await run.result(timeout=20)

    assert run_async(main()) == "paid"
    assert DONE == ["paid"]


# ── patched ─────────────────────────────────────────────────────────────────────────────────


@workflow(name="listens")
async def listens() -> list[str]:
    first = await perdure.receive("m", str)
    second = await perdure.receive("m", str)
    return [first, second]


@workflow(name="listens")
async def listens_guarded() -> list[str]:
    if perdure.patched("say hello first"):
        await note("hello")
    first = await perdure.receive("m", str)
    second = await perdure.receive("m", str)
    return [first, second]


def test_a_guard_that_a_run_has_passed_with_nothing_but_messages_behind_it() -> None:
    """The run took a message, its worker was killed, new code has a guard in front of that place: not for this run."""
    make = on_one_store(evict_after=1000)

    async def main() -> list[str]:
        async with make(listens) as runtime:
            run = await runtime.start(listens.call(), id="a")
            await run.send("m", "one")
            await eventually(lambda: is_in_memory(runtime, "a") and live(runtime, "a").length >= 2)
            stop_dead(runtime)
        async with make(listens_guarded) as runtime:
            run = await runtime.get("a")
            await run.send("m", "two")
            return list(await run.result(timeout=20))

    assert run_async(main()) == ["one", "two"]
    assert DONE == []

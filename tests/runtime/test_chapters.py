"""continue_as_new in a worker: no message, cancel or child is lost where one chapter ends and the next begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import Run, RunCancelledError, Runtime, step, workflow
from perdure.runtime import mail

at_the_end_of_the_step: list[Callable[[], None]] = []


@step
async def work(item: int = 0) -> int:
    for action in at_the_end_of_the_step:
        action()
    return item


def post(runtime: Runtime, run_id: str, kind: str, name: str = "", body: bytes = b"{}") -> None:
    """Put a letter into the store and let the worker take it, here and now."""
    host = host_of(runtime)
    host.store.commit([mail.letter(run_id, kind, key=name, body=body, now=host.clock.now())])
    host.turns.take_mail(host.store.mail(owner=host.worker))


def soon(action: Callable[[], None]) -> Callable[[], None]:
    """After what happens now, and before the next commit."""

    def later() -> None:
        asyncio.get_running_loop().call_soon(action)

    return later


@workflow
async def collecting(rounds: int) -> str:
    if rounds:
        await work()
        perdure.continue_as_new(rounds - 1)
    return await perdure.receive("m", str)


@pytest.mark.parametrize("order", ["message first", "message last"])
def test_a_message_in_the_same_commit_as_the_end_of_a_chapter(order: str) -> None:
    """Nobody will deliver that message again: it has to be carried over."""

    async def main() -> None:
        async with on_one_store()(collecting) as runtime:

            def send() -> None:
                post(runtime, "r", "message", "m", b'"a"')

            at_the_end_of_the_step[:] = [send if order == "message first" else soon(send)]
            run = await runtime.start(collecting.call(1), id="r")
            assert await run.result(timeout=10) == "a"
            assert await kinds(run) == [
                "run.started",
                *sorted(["message.arrived", "step.completed"], reverse=order == "message last"),
                "run.continued",
                "run.completed",
            ]

    run_async(main())


@workflow
async def endless(rounds: int) -> str:
    if rounds:
        await work()
        perdure.continue_as_new(rounds - 1)
    try:
        await perdure.receive("never")
    except asyncio.CancelledError:
        await work(1)
        raise
    return "never"


@pytest.mark.parametrize("order", ["cancel first", "cancel last"])
def test_a_cancel_in_the_same_commit_as_the_end_of_a_chapter(order: str) -> None:
    async def main() -> None:
        async with on_one_store()(endless) as runtime:

            def cancel() -> None:
                at_the_end_of_the_step.clear()
                post(runtime, "r", "cancel")

            at_the_end_of_the_step[:] = [cancel if order == "cancel first" else soon(cancel)]
            run = await runtime.start(endless.call(1), id="r")
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)

    run_async(main())


def test_a_cancel_at_a_chapters_end_survives_a_restart() -> None:
    """It is recorded once more at the head of the new chapter, in the commit that begins it."""

    async def main() -> None:
        make = on_one_store()
        async with make(endless) as runtime:

            def cancel() -> None:
                at_the_end_of_the_step[:] = [stop_here]
                post(runtime, "r", "cancel")

            def stop_here() -> None:
                raise ConnectionError("not yet")

            at_the_end_of_the_step[:] = [soon(cancel)]
            run = await runtime.start(endless.call(1), id="r")
            await eventually(lambda: has_kind(run, "run.continued"))
        at_the_end_of_the_step.clear()
        async with make(endless) as runtime:
            with pytest.raises(RunCancelledError):
                await (await runtime.get("r")).result(timeout=10)

    run_async(main())


async def has_kind(run: Run[Any], kind: str) -> bool:
    return kind in await kinds(run)


@workflow
async def patched_at_the_end(rounds: int) -> str:
    await work()
    if perdure.patched("once more") and rounds:
        perdure.continue_as_new(rounds - 1)
    await perdure.receive("go")
    return "gone"


def test_a_chapter_that_ends_behind_a_guard_is_found_again() -> None:
    """The guard's answer is written in the same commit, before the event that begins the chapter."""

    async def main() -> None:
        at_the_end_of_the_step.clear()
        make = on_one_store()
        async with make(patched_at_the_end) as runtime:
            run = await runtime.start(patched_at_the_end.call(2), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            await eventually(lambda: waits(run))
            await let_go(runtime, "r")
            await run.send("go")
            assert await run.result(timeout=10) == "gone"

    run_async(main())


async def waits(run: Run[Any]) -> bool:
    return (await kinds(run)).count("run.continued") == 2


# ── children in the last turn ───────────────────────────────────────────────────────────────


@workflow
async def child(item: int) -> int:
    return await work(item)


@workflow
async def fires_and_forgets(then: str) -> str:
    await work()
    await perdure.start(child.call(1), id="forgotten", on_cancel="abandon")
    if then == "continue":
        perdure.continue_as_new("end")
    return then


@pytest.mark.parametrize("then", ["return", "continue"])
def test_an_abandoned_child_started_in_the_last_turn_is_started(then: str) -> None:
    async def main() -> None:
        at_the_end_of_the_step.clear()
        async with on_one_store()(fires_and_forgets, child) as runtime:
            run = await runtime.start(fires_and_forgets.call(then), id="r")
            await run.result(timeout=10)
            forgotten = await runtime.get("forgotten")
            assert await forgotten.result(timeout=10) == 1

    run_async(main())


# ── five rollovers under fire ───────────────────────────────────────────────────────────────


@workflow
async def rolling(seen: list[int]) -> list[int]:
    while len(seen) < 100:
        seen.append(await perdure.receive("m", int))
        if len(seen) % 20 == 0 and len(seen) < 100:
            perdure.continue_as_new(seen)
    return seen


def test_a_hundred_messages_while_the_run_rolls_over_five_times() -> None:
    async def main() -> None:
        async with on_one_store()(rolling) as runtime:
            run = await runtime.start(rolling.call([]))
            for n in range(100):
                await run.send("m", n)
            assert await run.result(timeout=20) == list(range(100))
            assert (await kinds(run)).count("run.continued") == 4

    run_async(main())

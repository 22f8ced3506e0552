"""Two things that happen to a run in the same moment: one is first, and the other finds the run as it then is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, kinds, let_go, live, on_one_store, run_async

import perdure
from perdure import RunCancelledError, Runtime, Status, UnknownNameError, step, workflow
from perdure.runtime import mail
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Done, Letter
from perdure.testing.clock import FakeClock

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def store_of(make: Any) -> MemoryStore:
    store = make()._given
    assert isinstance(store, MemoryStore)
    return store


async def receives(runtime: Runtime, run_id: str) -> None:
    """The run is in memory, and its code waits for a message."""

    def does() -> bool:
        held = [live for live in host_of(runtime).turns.live.values() if live.run_id == run_id]
        return any(ask.kind == "receive" for live in held for ask in live.execution.open.values())

    await eventually(does, f"{run_id} receives")


@step
async def work(what: str) -> str:
    CALLS.append(what)
    return what


@step(record="lazy")
async def lazily(what: str) -> str:
    CALLS.append(what)
    return what


# ── a cancel and an end ─────────────────────────────────────────────────────────────────────


@workflow
async def returns_at_once() -> str:
    return await perdure.receive("go", str)


@workflow
async def swallows() -> str:
    try:
        return await perdure.receive("go", str)
    except asyncio.CancelledError:
        return await work("cleaned up")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("order", ["message, cancel", "cancel, message"])
def test_a_cancel_in_the_commit_that_ends_the_run(order: str, force: bool) -> None:
    """Both letters are taken into one append. The first decides; the ending is recorded once, and is the last event."""

    async def main() -> None:
        make = on_one_store()
        async with make(returns_at_once) as runtime:
            run = await runtime.start(returns_at_once.call(), id="r")
            await receives(runtime, "r")
            host = host_of(runtime)
            letters = {
                "message": mail.letter("r", "message", key="go", body=b'"m"', now=host.clock.now()),
                "cancel": mail.letter(
                    "r", "cancel", body=b'{"force":true}' if force else b"{}", now=host.clock.now()
                ),
            }  # fmt: skip
            host.store.commit([letters[name] for name in order.split(", ")])
            host.kick()
            if order.startswith("message") and not force:
                assert await run.result(timeout=20) == "m"
            else:
                with pytest.raises(RunCancelledError):
                    await run.result(timeout=20)
            written = await kinds(run)
            endings = [kind for kind in written if kind in {"run.completed", "run.cancelled", "run.failed"}]
            assert endings == written[-1:]

    run_async(main())


def test_a_run_that_swallows_its_cancel_is_ended_by_force_afterwards() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(swallows) as runtime:
            run = await runtime.start(swallows.call(), id="r")
            await receives(runtime, "r")
            await run.cancel()
            await run.cancel()
            assert await run.result(timeout=20) == "cleaned up"
            assert await run.cancel(force=True) == "completed"
        assert CALLS == ["cleaned up"]

    run_async(main())


# ── a letter and a run that leaves memory ───────────────────────────────────────────────────


@workflow
async def takes(count: int) -> list[str]:
    return [await perdure.receive("part", str) for _ in range(count)]


def test_letters_that_come_while_a_run_leaves_memory_are_taken_once_and_in_order() -> None:
    """Before, during and after the commit with which it leaves; each letter is sent twice, as after a lost answer."""

    async def main() -> None:
        make = on_one_store()
        async with make(takes) as runtime:
            run = await runtime.start(takes.call(40), id="r")
            host = host_of(runtime)
            for n in range(40):
                letter = mail.letter("r", "message", key="part", body=f'"{n}"'.encode(), now=host.clock.now())
                if n % 4 == 0:
                    host.release_idle()
                store_of(make).commit([letter])
                if n % 4 == 1:
                    host.release_idle()
                if n % 4 == 2:
                    await asyncio.sleep(0)
                    host.release_idle()
                assert isinstance(store_of(make).commit([letter])[0], Done)
                if n % 3 == 0:
                    await asyncio.sleep(0.003)
            assert await run.result(timeout=20) == [str(n) for n in range(40)]
            assert (await kinds(run)).count("message.arrived") == 40

    run_async(main())


def test_a_letter_sent_again_under_its_id_after_it_was_taken_is_known() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(takes) as runtime:
            run = await runtime.start(takes.call(2), id="r")
            store = store_of(make)
            first: Letter = mail.letter("r", "message", key="part", body=b'"a"', now=1)
            store.commit([first])
            await eventually(lambda: not store.mail())
            await let_go(runtime, "r")
            store.commit([first])
            store.commit([first._replace(body=b'"other"')])
            await run.send("part", "b")
            assert await run.result(timeout=20) == ["a", "b"]

    run_async(main())


# ── lazy results ────────────────────────────────────────────────────────────────────────────


@workflow
async def child(what: str) -> str:
    return await work(what)


@workflow
async def lazy_then_child() -> list[str]:
    first = await lazily("lazy")
    return [first, await child("child of " + first)]


@workflow
async def lazy_then_message() -> list[str]:
    first = await lazily("lazy")
    return [first, await perdure.receive("go", str)]


@workflow
async def lazy_then_end() -> str:
    return await lazily("lazy")


@pytest.mark.parametrize("flow", [lazy_then_child, lazy_then_message, lazy_then_end])
def test_nothing_that_rests_on_a_lazy_result_is_written_before_it(flow: Any) -> None:
    """A child's start, a run's letting go and its end: all stand behind the result, in the same commit or later."""

    async def main() -> None:
        make = on_one_store()
        async with make(flow, child) as runtime:
            run = await runtime.start(flow.call(), id="r")
            if flow is lazy_then_message:
                await receives(runtime, "r")
                await let_go(runtime, "r")
                assert "step.completed" in await kinds(run)
                await run.send("go", "on")
            await run.result(timeout=20)
            written = await kinds(run)
            later = {"child.started", "message.arrived", "run.completed"} & set(written)
            assert later
            assert written.index("step.completed") < min(written.index(kind) for kind in later)
        assert CALLS.count("lazy") == 1

    run_async(main())


# ── two workers and a paused run ────────────────────────────────────────────────────────────


@workflow
async def two_steps() -> list[str]:
    first = await work("first")
    await perdure.receive("go", str)
    return [first, await work("second")]


def test_a_paused_run_stays_paused_whoever_has_it() -> None:
    """Its worker dies; another takes it over. Messages and the takeover move nothing, `resume` does, once."""

    async def main() -> None:
        make = on_one_store()
        async with make(two_steps) as a:
            run = await a.start(two_steps.call(), id="r")
            await eventually(lambda: CALLS == ["first"])
            await run.pause("ann")
            await eventually(lambda: not host_of(a).store.mail())
            store, worker = store_of(make), host_of(a).worker
            await host_of(a).abandon()
            store.kill(worker)
        async with make(two_steps) as b, make(two_steps) as c:
            there = await b.get("r")
            await there.send("go", "on")
            await asyncio.sleep(0.2)
            assert CALLS == ["first"]
            assert (await there.summary()).reason == "paused"
            await asyncio.gather(there.resume("bob"), (await c.get("r")).resume("cid"))
            assert await there.result(timeout=20) == ["first", "second"]
        assert CALLS == ["first", "second"]

    run_async(main())


# ── pruned, and attached to ─────────────────────────────────────────────────────────────────


def test_a_run_pruned_between_looking_and_doing() -> None:
    """A handle on a run that is gone says that there is none; its id starts another, which gets nothing of it."""

    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(returns_at_once) as runtime:
            run = await runtime.start(returns_at_once.call(), id="r")
            await run.send("go", "first")
            assert await run.result(timeout=20) == "first"
            stale = await runtime.get("r")
            assert host_of(runtime).store.prune(ended_before=1 << 60, limit=10) == 1
            with pytest.raises(UnknownNameError):
                await stale.status()
            with pytest.raises((UnknownNameError, perdure.PerdureError)):
                await stale.send("go", "lost")
            again = await runtime.start(returns_at_once.call(), id="r")
            assert again.how == "started"
            await again.send("go", "second")
            assert await again.result(timeout=20) == "second"

    run_async(main())


# ── clocks ──────────────────────────────────────────────────────────────────────────────────


@workflow
async def looks_twice() -> list[bool]:
    before = perdure.now()
    await perdure.receive("go", str)
    after = perdure.now()
    await perdure.sleep(60)
    return [after >= before, (perdure.now() - after).total_seconds() >= 60]


def test_a_clock_that_jumps_back_turns_no_time_of_a_run_back() -> None:
    """The machine's clock is set back an hour: events are dated no earlier than those before them, a timer is waited
    for in full, and the replay in another process sees the same times."""

    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(looks_twice) as runtime:
            run = await runtime.start(looks_twice.call(), id="r")
            await receives(runtime, "r")
            clock._now -= 3_600_000_000  # pyright: ignore[reportPrivateUsage]
            await run.send("go", "on")
            await eventually(lambda: live(runtime, "r").alarm_at is not None)
            await let_go(runtime, "r")
            times = [each.at for each in await run.history()]
            assert times == sorted(times)
        async with make(looks_twice) as runtime:
            clock.advance(3_600)
            await asyncio.sleep(0.1)
            clock.advance(61)
            assert await (await runtime.get("r")).result(timeout=20) == [True, True]

    run_async(main())


CLOCKS: list[FakeClock] = []


@step(record="lazy")
async def moves_the_clock(seconds: int) -> int:
    CLOCKS[0]._now += seconds * 1_000_000  # pyright: ignore[reportPrivateUsage]
    return seconds


@step
async def is_written_at_once() -> int:
    return 1


@workflow
async def moves_it_to_and_fro() -> int:
    return await moves_the_clock(10) + await moves_the_clock(-5) + await is_written_at_once()


def test_a_clock_that_jumps_back_turns_no_time_of_lazy_results_back() -> None:
    """Each is dated when it is delivered, and both are written later."""

    async def main() -> None:
        CLOCKS[:] = [FakeClock()]
        async with on_one_store(clock=CLOCKS[0])(moves_it_to_and_fro) as runtime:
            run = await runtime.start(moves_it_to_and_fro.call(), id="r")
            assert await run.result(timeout=20) == 6
            times = [each.at for each in await run.history()]
            assert times == sorted(times)

    run_async(main())


# ── chapters ────────────────────────────────────────────────────────────────────────────────


@workflow
async def rolls(n: int = 0) -> str:
    if n < 3:
        await work(f"chapter {n}")
        raise perdure.continue_as_new(n + 1)
    return await perdure.receive("go", str)


@pytest.mark.parametrize("moment", range(8))
def test_a_cancel_at_any_moment_of_a_run_that_rolls_over(moment: int) -> None:
    """It is heard in one chapter or the next, never in none."""

    async def main() -> None:
        make = on_one_store()
        async with make(rolls) as runtime:
            run = await runtime.start(rolls.call(), id="r")
            for _ in range(moment):
                await asyncio.sleep(0)
            await run.cancel("enough")
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)
            written = await kinds(run)
            assert written.count("run.cancel_requested") >= 1
            assert written[-1] == "run.cancelled"
            assert await run.status() is Status.CANCELLED

    run_async(main())



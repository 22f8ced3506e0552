"""Runs that no worker has, and perhaps none knows: ended by force all the same, and what was decided can be seen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async

import perdure
from perdure import Client, Idempotent, Retry, RunCancelledError, Runtime, Status, effect, workflow
from perdure.api.inbox import pending
from perdure.audit.verify import verify
from perdure.engine import exact
from perdure.history import events as e
from perdure.runtime.host import OWN_BEFORE_SWEEP
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Done, EffectFilter, Fenced
from perdure.testing.clock import FakeClock


@workflow
async def waits() -> str:
    return await perdure.receive("go", str)


@workflow
async def kept() -> str:
    return await perdure.receive("go", str)


@workflow
async def parent() -> str:
    await perdure.start(kept.call(), id="kept", on_cancel="abandon")
    return await waits()


CHILD = "r/0.waits.1"


def store_of(make: Any) -> MemoryStore:
    """The store that the Runtimes are on, by a handle of its own."""
    store = make()._given
    assert isinstance(store, MemoryStore)
    return store


async def parked(runtime: Runtime, run_id: str) -> None:
    """Have a run leave memory as soon as it only waits."""

    def is_parked() -> bool:
        host_of(runtime).release_idle()
        info = host_of(runtime).store.find(run_id)
        return info is not None and info.status is Status.WAITING and info.owner is None

    await eventually(is_parked, f"{run_id} is parked")


@pytest.mark.parametrize("known", ["by nobody", "by a worker that has let go"])
def test_a_run_that_no_worker_has_ends_at_once_by_force(known: str) -> None:
    """None of its code runs; its parent hears of it, its history is whole."""

    async def main() -> None:
        make = on_one_store()
        async with make(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            await parked(runtime, "r")
            if known == "by a worker that has let go":
                assert await run.cancel(force=True) == "cancelled"
                with pytest.raises(RunCancelledError):
                    await run.result(timeout=20)
        async with Client(store_of(make)) as client:
            there = await client.get("r")
            assert await there.cancel(force=True) == "cancelled"
            assert await there.status() is Status.CANCELLED
            last = (await there.history())[-1]
            assert last.event == e.RunCancelled(forced=True)
            with pytest.raises(RunCancelledError):
                await there.result(timeout=20)

    run_async(main())


def test_children_are_told_and_abandoned_ones_left() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(parent, waits, kept) as runtime:
            await runtime.start(parent.call(), id="r")
            for each in ("r", "kept", CHILD):
                await parked(runtime, each)
        async with Client(store_of(make)) as client:
            assert await (await client.get("r")).cancel(force=True) == "cancelled"
        async with make(waits, kept) as runtime:
            with pytest.raises(RunCancelledError):
                await (await runtime.get(CHILD)).result(timeout=20)
            left = await runtime.get("kept")
            await left.send("go", "on")
            assert await left.result(timeout=20) == "on"

    run_async(main())


def test_a_parent_hears_of_a_child_that_was_ended_by_force() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(parent, waits, kept) as runtime:
            run = await runtime.start(parent.call(), id="r")
            await parked(runtime, "r")
            await parked(runtime, CHILD)
            assert await (await runtime.get(CHILD)).cancel(force=True) == "cancelled"
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)

    run_async(main())


def test_whoever_claims_it_in_the_same_moment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """And finds the letter: it is cancelled once, by whoever has it."""

    async def main() -> None:
        make = on_one_store()
        async with make(waits) as runtime:
            await runtime.start(waits.call(), id="r")
            await parked(runtime, "r")
            store, host = store_of(make), host_of(runtime)
            genuine, outcomes = store.commit, list[Any]()

            def commit(writes: Any) -> Any:
                if not hasattr(writes[0], "key"):  # no letter: the end itself
                    host.store.claim(host.worker, now=host.clock.now(), limit=5, known=host.known)
                done = genuine(writes)
                outcomes.extend(done)
                return done

            monkeypatch.setattr(store, "commit", commit)
            async with Client(store) as client:
                there = await client.get("r")
                host.kick = lambda: None  # type: ignore[method-assign]
                assert await there.cancel(force=True) == "requested"
                assert [type(outcome) for outcome in outcomes] == [Done, Fenced]
            del host.kick
            host.be_unsure()  # what it claimed here it does not hold
            with pytest.raises(RunCancelledError):
                await (await runtime.get("r")).result(timeout=20)

    run_async(main())


def test_a_run_of_a_worker_that_died_ends_by_force_without_any_other() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(waits) as runtime:
            await runtime.start(waits.call(), id="r")
            store = store_of(make)
            host = host_of(runtime)
            await host.abandon()
            store.kill(host.worker)
            async with Client(store) as client:
                there = await client.get("r")
                assert await there.cancel(force=True) == "cancelled"

    run_async(main())


def test_what_is_held_by_a_living_worker_is_its_to_end() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            async with Client(store_of(make)) as client:
                assert await (await client.get("r")).cancel(force=True) == "requested"
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)

    run_async(main())


@workflow
async def stuck() -> None:
    await ask()


@perdure.step
async def ask() -> None:
    raise perdure.NeedsPerson("how?")


def test_a_decision_that_nobody_has_read_can_be_seen() -> None:
    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(stuck, waits) as runtime:
            await runtime.start(stuck.call(), id="stuck")
            await runtime.start(waits.call(), id="waits")

            async def is_asked() -> bool:
                return bool(await runtime.inbox())

            await eventually(is_asked)
        store = store_of(make)
        async with Client(store, clock=clock) as client:
            await (await client.get("stuck")).unblock("fail", by="ann")
            entry = next(each for each in await client.inbox() if each.run_id == "stuck")
            assert entry.pending == ("unblock --fail of 0/ask#1 by ann",)
            await (await client.get("waits")).cancel("enough")
            clock.advance(100)
            late = next(each for each in await client.inbox() if each.run_id == "waits")
            assert (late.reason, late.pending) == ("no_worker_for_version", ("cancel",))
            info = store.find("waits")
            assert info is not None
            assert pending(store.mail([info.rid])) == ("cancel",)

    run_async(main())


# ── whose runs are continued ────────────────────────────────────────────────────────────────


def test_who_continues_its_own_runs_sleeps_while_others_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due of others' is no reason to look at the store again and again; what has ended is forgotten."""

    async def main() -> None:
        make = on_one_store()
        async with make(waits) as other:
            await other.start(waits.call(), id="other")
            await parked(other, "other")
        async with Client(store_of(make)) as client:
            await (await client.get("other")).send("go", "on")  # due, and nobody's
        async with make(waits, adopt="own") as runtime:
            host = host_of(runtime)
            for n in range(OWN_BEFORE_SWEEP + 5):
                run = await runtime.start(waits.call(), id=str(n))
                await run.send("go", "on")
                await run.result(timeout=20)
            await eventually(lambda: host.is_quiet)
            host.kick()
            await eventually(lambda: not host._kick_is_scheduled)  # pyright: ignore[reportPrivateUsage]
            assert host._alarm is None  # pyright: ignore[reportPrivateUsage]
            assert len(host.own) < OWN_BEFORE_SWEEP
            assert host.store.find("other").status is Status.WAITING  # type: ignore[union-attr]

    run_async(main())




def test_a_worker_that_is_closed_after_it_was_abandoned_takes_exact_asyncio_from_nobody() -> None:
    async def main() -> None:
        async with on_one_store()(waits), on_one_store()(waits) as second:
            await host_of(second).abandon()
            await host_of(second).close()
            assert asyncio.as_completed is exact.as_completed

    run_async(main())


@effect(downstream=Idempotent(), retry=Retry(max_attempts=9, first_delay=3600, max_delay=3600))
async def busy(order: str) -> str:
    raise perdure.Retryable("try again later")


@busy.key
def _(order: str) -> str:
    return order


@workflow
async def keeps_trying() -> str:
    return await busy("o-1")


def test_an_end_by_force_gives_up_what_would_be_tried_again() -> None:
    """In the same commit, as a worker does that has the run: nothing in the ledger waits for ever."""

    async def main() -> None:
        make = on_one_store()
        async with make(keeps_trying) as runtime:
            run = await runtime.start(keeps_trying.call(), id="r")
            await eventually(lambda: [r.status for r in store_of(make).effects(EffectFilter())] == ["failed_retryable"])
        async with Client(store_of(make)) as client:
            run = await client.get("r")
            assert await run.cancel(force=True) == "cancelled"
            (row,) = await client.effects()
            assert (row.status, row.note) == ("failed_final", "whoever asked for it is gone")
            assert [happened.kind for happened in await run.history()][-2:] == ["effect.failed", "run.cancelled"]
        assert verify(store_of(make)).is_sound

    run_async(main())

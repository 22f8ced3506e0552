"""What shares a commit, what a commit must wait for, and commits that fail: the order in the history is the order."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.runtime.hosting import (
    GatedStore,
    eventually,
    host_of,
    is_in_memory,
    kinds,
    live,
    on_one_store,
    run_async,
)

import perdure
from perdure import Client, Retry, Run, RunCancelledError, Runtime, Status, StoreError, step, workflow
from perdure.runtime import mail
from perdure.runtime.live import LiveRun
from perdure.runtime.writer import Job, Writer
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Append, NewRun, Outcome, Write
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore, failing

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def post(runtime: Runtime, run_id: str, name: str, body: bytes = b'"m"') -> None:
    """A message is sent, and the worker takes it, here and now: it goes into the next commit."""
    host = host_of(runtime)
    host.store.commit([mail.letter(run_id, "message", key=name, body=body, now=host.clock.now())])
    host.turns.take_mail(host.store.mail(owner=host.worker))


# ── a message and a timer ───────────────────────────────────────────────────────────────────


@workflow
async def race() -> list[str]:
    try:
        first = await perdure.receive("go", str, within=60)
    except TimeoutError:
        first = "late"
    try:
        async with asyncio.timeout(0.001):
            second = await perdure.receive("go", str)
    except TimeoutError:
        second = "nothing"
    return [first, second, await perdure.receive("end", str)]


@pytest.mark.parametrize(
    ("order", "result"),
    [
        ("message, timer", ["m", "nothing", "end"]),
        ("timer, message", ["late", "m", "end"]),
    ],
)
def test_a_message_and_a_timer_in_one_commit(order: str, result: list[str]) -> None:
    """Whichever is recorded first wins; the other loses, in this life and in every later one."""

    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(race) as runtime:
            run = await runtime.start(race.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r") and clock.next_alarm_at() is not None)
            await eventually(lambda: alarm_of(runtime))
            clock.advance(60)
            if order.startswith("message"):
                post(runtime, "r", "go")
            else:
                asyncio.get_running_loop().call_soon(post, runtime, "r", "go")
            await eventually(lambda: has_kinds(run, "message.arrived", "time.passed"))
            recorded = await kinds(run)
            first, second = recorded.index("message.arrived"), recorded.index("time.passed")
            assert (first < second) == order.startswith("message")
            clock.advance(1)
            await eventually(lambda: is_in_memory(runtime, "r"))
        async with make(race) as runtime:
            run = await runtime.get("r")
            clock.advance(1)
            await run.send("end", "end")
            assert await run.result(timeout=10) == result

    run_async(main())


def alarm_of(runtime: Runtime) -> bool:
    return any(live.alarm_at is not None for live in host_of(runtime).turns.live.values())


async def has_kinds(run: Run[Any], *wanted: str) -> bool:
    return set(wanted) <= set(await kinds(run))


# ── lazy results ────────────────────────────────────────────────────────────────────────────


@step(record="lazy")
async def guess(item: int) -> int:
    CALLS.append(("guess", item))
    return item


@step
async def looks(runtime_of: str) -> list[str]:
    """A step that is not lazy sees in the store what came before it."""
    run = await RUNTIMES[runtime_of].get("r")
    return await kinds(run)


@workflow
async def child_that_looks() -> list[str]:
    return await looks("here")


RUNTIMES: dict[str, Runtime] = {}


@workflow
async def guesses_then(what: str) -> list[str]:
    await guess(1)
    await guess(2)
    if what == "step":
        return await looks("here")
    if what == "child":
        return await child_that_looks()
    return []


@pytest.mark.parametrize("what", ["step", "child", "end"])
def test_lazy_results_are_on_disk_before_anything_that_is_not_lazy(what: str) -> None:
    async def main() -> None:
        async with on_one_store()(guesses_then, child_that_looks) as runtime:
            RUNTIMES["here"] = runtime
            run = await runtime.start(guesses_then.call(what), id="r")
            seen = await run.result(timeout=10) or await kinds(run)
            assert seen.count("step.completed") >= 2

    run_async(main())


def test_two_lazy_results_in_a_row_share_a_commit() -> None:
    async def main() -> None:
        async with on_one_store()(guesses_only) as runtime:
            run = await runtime.start(guesses_only.call(), id="r")
            before = host_of(runtime).writer.commits
            await run.result(timeout=10)
            assert host_of(runtime).writer.commits - before <= 2

    run_async(main())


@workflow
async def guesses_only() -> int:
    return sum([await guess(n) for n in range(20)])


@step
async def durable(item: int) -> int:
    return item


@workflow
async def lazy_beside_durable() -> list[int]:
    order: list[int] = []

    async def one(call: Any) -> None:
        order.append(await call)

    async with asyncio.TaskGroup() as group:
        for n in range(6):
            group.create_task(one(guess(n) if n % 2 else durable(n)))
    return [*order, await perdure.receive("end", int)]


def test_lazy_and_durable_results_of_one_moment_are_delivered_in_the_order_of_the_history() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(lazy_beside_durable) as runtime:
            run = await runtime.start(lazy_beside_durable.call(), id="r")
            await eventually(lambda: six_completed(run))
            await eventually(lambda: is_in_memory(runtime, "r"))
        async with make(lazy_beside_durable) as runtime:
            run = await runtime.get("r")
            await run.send("end", 9)
            recorded = [h.output for h in await run.history() if h.kind == "step.completed"]
            assert await run.result(timeout=10) == [*recorded, 9]

    run_async(main())


async def six_completed(run: Run[Any]) -> bool:
    return (await kinds(run)).count("step.completed") == 6


# ── commits that fail ───────────────────────────────────────────────────────────────────────


class PoisonedStore(MemoryStore):
    """A store that cannot take what one run writes: as SQLite, it then tries each write alone."""

    poisoned: str | None = None
    is_healed = False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        bad = [write for write in writes if self._is_poison(write)]
        if not bad or self.is_healed:
            return super().commit(writes)
        for write in writes:
            if not self._is_poison(write):
                super().commit([write])
        raise StoreError("this write cannot be taken")

    def _is_poison(self, write: Write) -> bool:
        if self.poisoned is None or not isinstance(write, Append):
            return False
        info = self.find(self.poisoned)
        return info is not None and write.rid == info.rid


@workflow
async def steps(item: int) -> int:
    return sum([await durable(item) for _ in range(3)])


def test_a_commit_that_fails_for_one_run_of_a_batch_holds_up_no_other() -> None:
    async def main() -> None:
        store = PoisonedStore()
        async with Runtime(store, workflows=[steps]) as runtime:
            store.poisoned = "poisoned"
            poisoned = await runtime.start(steps.call(0), id="poisoned")
            others = [await runtime.start(steps.call(n), id=f"run-{n}") for n in range(20)]
            assert await asyncio.gather(*(run.result(timeout=20) for run in others)) == [3 * n for n in range(20)]
            assert await poisoned.status() is Status.RUNNING
            store.is_healed = True
            assert await poisoned.result(timeout=20) == 0

    run_async(main())


class ClosedStore(MemoryStore):
    """A store that takes nothing as long as it is away."""

    is_away = False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.is_away:
            raise StoreError("the disk is full")
        return super().commit(writes)


def test_who_starts_or_sends_is_told_that_the_store_is_away_and_runs_wait_until_it_is_back() -> None:
    async def main() -> None:
        store = ClosedStore()
        gate = HELD["gate"] = asyncio.Event()
        async with Runtime(store, workflows=[holding, steps]) as runtime:
            run = await runtime.start(holding.call(), id="r")
            await eventually(lambda: CALLS == ["begun"])
            store.is_away = True
            gate.set()
            for _ in range(2):
                with pytest.raises(StoreError, match="the disk is full"):
                    await runtime.start(steps.call(1), id="not started")
                with pytest.raises(StoreError, match="the disk is full"):
                    await run.send("m")
            assert await run.status() is Status.RUNNING
            store.is_away = False
            assert await run.result(timeout=20) == 1
            assert await (await runtime.start(steps.call(1), id="not started")).result(timeout=20) == 3
            assert CALLS == ["begun"]

    run_async(main())


class DeafStore(MemoryStore):
    """A store that takes what it is given and cannot say so."""

    is_deaf = False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = super().commit(writes)
        if self.is_deaf and any(isinstance(write, NewRun) for write in writes):
            raise StoreError("the connection was lost")
        return outcomes


def test_a_start_that_seems_to_have_failed_and_was_written_is_executed_all_the_same() -> None:
    async def main() -> None:
        store = DeafStore()
        async with Runtime(store, workflows=[steps]) as runtime:
            store.is_deaf = True
            with pytest.raises(StoreError, match="the connection was lost"):
                await runtime.start(steps.call(2), id="r")
            store.is_deaf = False
            assert await (await runtime.get("r")).result(timeout=20) == 6

    run_async(main())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_outcome_is_unknown_is_sent_again_and_applied_once(when: Any) -> None:
    """At each write in turn; with `after` the write had been applied, and the sender cannot know."""

    async def once(fail_at: int) -> int:
        CALLS.clear()
        store = CrashingStore(MemoryStore(), fail_at=fail_at, when=when, how=failing(), times=1)
        async with Runtime(store, workflows=[mixed]) as runtime:
            try:
                run = await runtime.start(mixed.call(), id="r")
            except StoreError:
                run = await runtime.start(mixed.call(), id="r")
            assert await run.result(timeout=20) == [0, 1, 2]
            assert (await kinds(run)).count("step.completed") == 3
            assert CALLS == [0, 1, 2]
            return store.writes

    writes = 1
    fail_at = 2  # the first is the worker's own entering
    while fail_at <= writes + 1 and fail_at < 12:
        writes = run_async(once(fail_at))
        fail_at += 1


@step
async def counted(item: int) -> int:
    CALLS.append(item)
    return item


@workflow
async def mixed() -> list[int]:
    first = await counted(0)
    await perdure.sleep(0)
    return [first, await counted(1), await counted(2)]


@workflow
async def echoes() -> list[str]:
    return [await perdure.receive("m", str) for _ in range(2)]


def test_a_run_claimed_again_before_its_release_came_back_is_not_forgotten() -> None:
    """It has left memory in the store, is woken by a message and claimed, while the release is still under way here."""

    async def main() -> None:
        store = GatedStore()
        async with Runtime(store, workflows=[echoes], evict_after=1000) as runtime:
            run = await runtime.start(echoes.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            await eventually(lambda: host_of(runtime).is_quiet)
            store.gate = threading.Event()
            applied = store.applied
            host_of(runtime).release_idle()
            await eventually(lambda: store.applied > applied)
            other = store.again()
            for text in ("a", "b"):
                other.commit([mail.letter("r", "message", key="m", body=b'"%s"' % text.encode(), now=1)])
            host_of(runtime).kick()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            store.gate.set()
            store.gate = None
            assert await run.result(timeout=10) == ["a", "b"]

    run_async(main())


# ── interrupted, and going on ───────────────────────────────────────────────────────────────


INTERRUPTS: list[str] = []


@workflow
async def interrupted() -> int:
    first = await counted(1)
    if INTERRUPTS:
        raise KeyboardInterrupt(INTERRUPTS.pop())
    return first + await counted(2)


async def hosted_and_interrupted() -> int:
    first = await counted(1)
    if INTERRUPTS:
        raise KeyboardInterrupt(INTERRUPTS.pop())
    return first + await counted(2)


@workflow
async def hosts_an_interrupt() -> int:
    return int(await perdure.section("crew").run(hosted_and_interrupted))


@pytest.mark.parametrize("interrupts", [interrupted, hosts_an_interrupt])
def test_a_program_that_survives_an_interrupt_gets_on_with_all_its_runs(interrupts: Any) -> None:
    """As in a notebook: the loop that was interrupted goes on. So does the run, and what another one had to write in
    the meantime is written."""
    store, loop = GatedStore(), asyncio.new_event_loop()
    runtime = Runtime(store, workflows=[interrupts, echoes])
    INTERRUPTS[:] = ["once"]

    async def until_interrupted() -> None:
        await runtime.__aenter__()
        await runtime.start(echoes.call(), id="other")
        store.gate = threading.Event()
        await runtime.start(interrupts.call(), id="r")
        await eventually(lambda: CALLS == [1] and host_of(runtime).writer._is_busy)  # pyright: ignore[reportPrivateUsage]
        for text in (b'"a"', b'"b"'):
            post(runtime, "other", "m", text)
        gate, store.gate = store.gate, None
        gate.set()
        await asyncio.Event().wait()

    async def goes_on() -> None:
        assert await (await runtime.get("other")).result(timeout=10) == ["a", "b"]
        assert await (await runtime.get("r")).result(timeout=10) == 3
        await runtime.__aexit__(None, None, None)

    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(until_interrupted())
        loop.run_until_complete(goes_on())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    assert CALLS == [1, 2]


def test_an_interrupt_in_who_is_told_of_a_commit_leaves_no_write_behind() -> None:
    loop = asyncio.new_event_loop()
    first, second = (mail.letter("nobody", "message", now=1) for _ in range(2))

    def interrupt(_: object, outcome: object) -> None:
        raise KeyboardInterrupt

    async def until_interrupted() -> None:
        writer = Writer(GatedStore())
        jobs: list[Job] = [(first, interrupt, None)]
        writer.add_source(lambda: [jobs.pop()] if jobs else [])
        writer.schedule()
        await asyncio.sleep(0)
        assert writer._is_busy  # pyright: ignore[reportPrivateUsage]
        waiting.append(writer.submit(second))
        await asyncio.Event().wait()

    waiting = list[asyncio.Future[Outcome]]()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(until_interrupted())
        loop.run_until_complete(asyncio.wait_for(waiting[0], 10))
    finally:
        loop.close()


# ── given up while it is written ────────────────────────────────────────────────────────────


RETRIES: list[GatedStore] = []


@step(retry=Retry(max_attempts=5, first_delay=86_400, max_delay=86_400, jitter=0))
async def tries_again_tomorrow() -> None:
    RETRIES[0].gate = threading.Event()
    raise perdure.Retryable("not yet")


@workflow
async def patient() -> None:
    await tries_again_tomorrow()


def runs_in_memory() -> int:
    gc.collect()
    return sum(type(thing) is LiveRun for thing in gc.get_objects())


def test_a_step_given_up_while_its_failure_is_written_keeps_nothing_in_memory_until_its_next_attempt() -> None:
    async def main() -> None:
        before, store = runs_in_memory(), GatedStore()
        RETRIES[:] = [store]
        async with Runtime(store, workflows=[patient]) as runtime:
            run = await runtime.start(patient.call(), id="r")
            await eventually(lambda: store.gate is not None and live(runtime, "r").under_way is not None)
            async with Client(store.again()) as client:
                await (await client.get("r")).cancel(force=True)
            await eventually(lambda: live(runtime, "r").is_leaving)
            gate, store.gate = store.gate, None
            assert gate is not None
            gate.set()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            await eventually(lambda: runs_in_memory() == before)

    run_async(main())


# ── fencing ─────────────────────────────────────────────────────────────────────────────────


def test_what_a_worker_writes_after_it_lost_a_run_counts_for_nothing() -> None:
    async def main() -> None:
        make = on_one_store(lease=1000)
        release = asyncio.Event()
        HELD["gate"] = release
        first = make(holding)
        await first.__aenter__()
        await first.start(holding.call(), id="r")
        await eventually(lambda: CALLS == ["begun"])
        store = host_of(first).store
        store.kill(host_of(first).worker)  # type: ignore[attr-defined]
        async with make(holding) as second:
            await eventually(lambda: CALLS == ["begun", "begun"])
            release.set()
            assert await (await second.get("r")).result(timeout=10) == 1
            await eventually(lambda: not is_in_memory(first, "r"))
            recorded = await kinds(await second.get("r"))
            assert recorded.count("step.completed") == 1
        await first.__aexit__(None, None, None)

    run_async(main())


HELD: dict[str, asyncio.Event] = {}


@step
async def holds() -> int:
    CALLS.append("begun")
    await HELD["gate"].wait()
    return 1


@workflow
async def holding() -> int:
    return await holds()

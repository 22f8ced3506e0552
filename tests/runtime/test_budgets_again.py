"""Over a budget that many runs share: a call is tried again by itself, in the next period, when it was raised, and when
others leave room."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, let_go, run_async

import perdure
from perdure import Budget, Idempotent, Retry, Run, RunBlockedError, Runtime, Usage, effect, step, workflow
from perdure.gates.budget import Movement
from perdure.history import events as e
from perdure.history.spending import Amount, Limits
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Done, Outcome, Overdrawn, Store, Write
from perdure.testing.clock import FakeClock
from perdure.testing.conformance.base import append, new_run
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

HOURLY = Budget(tokens=100, tag="team", per=timedelta(hours=1))
FOREVER = Budget(tokens=100, tag="team")
TEAM = {"team": "x"}
HOUR = 3_600_000_000


@step
async def think(tokens: int) -> int:
    perdure.used(tokens=tokens)
    return tokens


@think.estimate
def _(tokens: int) -> Usage:
    return Usage(tokens=tokens)


@workflow
async def thinks(*tokens: int) -> int:
    return sum([await think(each) for each in tokens])


@workflow
def thinks_hosted(tokens: list[int]) -> int:
    return sum([think_now(each) for each in tokens])


@step
def think_now(tokens: int) -> int:
    perdure.used(tokens=tokens)
    return tokens


@think_now.estimate
def _(tokens: int) -> Usage:
    return Usage(tokens=tokens)


async def is_stuck(run: Run[Any]) -> str:
    with pytest.raises(RunBlockedError) as stuck:
        await run.result()
    assert stuck.value.reason == "over_budget"
    return stuck.value.hint


async def blocks(run: Run[Any]) -> list[str]:
    return [kind for kind in await kinds(run) if kind in {"run.blocked", "run.unblocked"}]


async def all_done(runs: Sequence[Run[Any]]) -> bool:
    return all([str(await run.status()) == "completed" for run in runs])


async def spends(runtime: RuntimeUnderTest, *tokens: int) -> None:
    """Another run of the team uses so much."""
    await (await runtime.start(thinks.call(*tokens), tags=TEAM)).result()


def taken_already(runtime: RuntimeUnderTest, since: int) -> None:
    """Somebody has used most of what the period has that begins then."""
    used = Movement("tag team=x per 3600s", since, ("", 0), used=Amount(90))
    write(runtime._store, used)  # pyright: ignore[reportPrivateUsage]


def write(store: Store, movement: Movement) -> None:
    """A run of nobody's moves an account."""
    (new,) = store.commit([new_run(os.urandom(4).hex(), workflow="elsewhere")])
    assert isinstance(new, Done)
    (done,) = store.commit([append(new.rid, 1, epoch=0, spending=(movement,))])
    assert isinstance(done, Done)


# ── the next period ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("leaves", "hosted"), [(False, False), (True, False), (False, True)])
def test_in_the_next_period_it_goes_on(leaves: bool, hosted: bool) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[HOURLY]) as runtime:
            await spends(runtime, 90)
            call = thinks_hosted.call([40, 50]) if hosted else thinks.call(40, 50)
            run = await runtime.start(call, id="r", tags=TEAM)
            assert "it is tried again by itself at " in await is_stuck(run)
            if leaves:
                await let_go(runtime, "r")
            await runtime.advance(timedelta(hours=1))
            assert await run.result() == 90
            assert await blocks(run) == ["run.blocked", "run.unblocked"]

    run_async(main())


def test_who_finds_too_little_again_waits_on_and_says_so_once_a_period() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[HOURLY]) as runtime:
            await spends(runtime, 90)
            run = await runtime.start(thinks.call(60), id="r", tags=TEAM)
            await is_stuck(run)
            now = runtime.clock.now()
            for hour in (1, 2):
                taken_already(runtime, now - now % HOUR + hour * HOUR)
                await runtime.advance(timedelta(hours=1))
                assert await blocks(run) == ["run.blocked"] * (hour + 1)
                await let_go(runtime, "r")
                assert await blocks(run) == ["run.blocked"] * (hour + 1)
            await runtime.advance(timedelta(hours=1))
            assert await run.result() == 60
            assert await blocks(run) == [*["run.blocked"] * 3, "run.unblocked"]

    run_async(main())


def test_of_many_that_wait_each_period_lets_as_many_go_on_as_it_has() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[HOURLY]) as runtime:
            await spends(runtime, 90)
            runs = [await runtime.start(thinks.call(60), id=f"r{n}", tags=TEAM) for n in range(3)]
            for run in runs:
                await is_stuck(run)
            for passed in range(1, 4):
                await runtime.advance(timedelta(hours=1))
                assert [str(await run.status()) for run in runs].count("completed") == passed

    run_async(main())


def test_what_fits_into_no_period_wakes_nobody() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[HOURLY]) as runtime:
            run = await runtime.start(thinks.call(101), id="r", tags=TEAM)
            assert "by itself" not in await is_stuck(run)
            await let_go(runtime, "r")
            await runtime.advance(timedelta(hours=5))
            assert not is_in_memory(runtime, "r")
            await runtime.raise_budget("r", tokens=101, by="ann")
            assert await run.result() == 101

    run_async(main())


def test_a_paused_run_goes_on_when_it_is_resumed() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[HOURLY]) as runtime:
            await spends(runtime, 90)
            run = await runtime.start(thinks.call(60), id="r", tags=TEAM)
            await is_stuck(run)
            await run.pause(by="ann")
            await runtime.advance(timedelta(hours=1))
            assert not [each for each in await run.history() if isinstance(each.event, e.StepCompleted)]
            await run.resume(by="ann")
            await runtime.advance(1)
            assert await run.result() == 60

    run_async(main())


@effect(downstream=Idempotent())
async def pay(order: str) -> str:
    return order


@pay.key
def _(order: str) -> str:
    return order


@workflow
async def pays(*orders: str) -> list[str]:
    return [await pay(order) for order in orders]


@pytest.mark.parametrize("leaves", [False, True])
def test_an_effect_is_sent_in_the_next_period(leaves: bool) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[Budget(effects=1, tag="team", per=timedelta(hours=1))]) as runtime:
            run = await runtime.start(pays.call("a", "b", "c"), id="r", tags=TEAM)
            for passed in range(2):
                await is_stuck(run)
                if leaves:
                    await let_go(runtime, "r")
                assert len(await runtime.effects()) == 1 + passed
                await runtime.advance(timedelta(hours=1))
            assert await run.result() == ["a", "b", "c"]

    run_async(main())


# ── what was reserved is given back ─────────────────────────────────────────────────────────


@step(uses=Usage(tokens=60))
async def uses_less(tokens: int) -> int:
    perdure.used(tokens=tokens)
    return tokens


@workflow(budget=Budget(tokens=100))
async def at_once(tokens: int) -> int:
    return sum(await asyncio.gather(*(uses_less(tokens) for _ in range(3))))


@pytest.mark.parametrize(("tokens", "begun"), [(20, 3), (21, 2)])
def test_a_call_goes_on_when_others_of_the_run_have_used_less_than_they_reserved(tokens: int, begun: int) -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(at_once.call(tokens))
            await runtime.run_dry()
            assert len([each for each in await run.history() if isinstance(each.event, e.StepCompleted)]) == begun
            assert len(await runtime.inbox()) == 3 - begun

    run_async(main())


# ── raised by way of another run ────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def two_workers(budget: Budget) -> AsyncGenerator[tuple[RuntimeUnderTest, RuntimeUnderTest]]:
    clock = FakeClock()
    store = MemoryStore(clock)
    async with (
        RuntimeUnderTest(store, clock=clock, workflows=[thinks], budgets=[budget]) as one,
        RuntimeUnderTest(store.again(), clock=clock, workflows=[thinks], budgets=[budget]) as other,
    ):
        yield one, other


@pytest.mark.parametrize("leaves", [False, True])
def test_whoever_waits_for_it_goes_on_when_it_is_raised_by_way_of_another_run(leaves: bool) -> None:
    async def main() -> None:
        async with two_workers(FOREVER) as (one, other):
            await spends(one, 90)
            mine = await one.start(thinks.call(60), id="mine", tags=TEAM)
            others = await other.start(thinks.call(70), id="others", tags=TEAM)
            for run in (mine, others):
                assert "by itself" not in await is_stuck(run)
            if leaves:
                await let_go(other, "others")
            await one.raise_budget("mine", tokens=300, by="ann", reason="a busy day")
            assert await mine.result() == 60
            assert await others.result() == 70
            (unblocked,) = [each.event for each in await others.history() if isinstance(each.event, e.RunUnblocked)]
            assert (unblocked.choice, unblocked.by) == ("go_on", "")

    run_async(main())


def test_two_workers_in_the_next_period() -> None:
    async def main() -> None:
        async with two_workers(HOURLY) as (one, other):
            await spends(one, 90)
            runs = [await worker.start(thinks.call(50), tags=TEAM) for worker in (one, other, one, other)]
            for run in runs:
                await is_stuck(run)
            for _ in range(2):
                await one.advance(timedelta(hours=1))
                await other.run_dry()
                await one.run_dry()
            assert [await run.result() for run in runs] == [50] * 4
            assert all(account.used.tokens <= 100 for account in one._store.accounts())  # pyright: ignore[reportPrivateUsage]

    run_async(main())


@pytest.mark.parametrize("leaves", [False, True])
def test_a_fork_that_begins_where_its_original_waits_is_told_too(leaves: bool) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[FOREVER]) as runtime:
            await spends(runtime, 90)
            run = await runtime.start(thinks.call(60), id="r", tags=TEAM)
            await is_stuck(run)
            other = await runtime.start(thinks.call(70), id="other", tags=TEAM)
            await is_stuck(other)
            (at,) = [each.seq for each in await run.history() if isinstance(each.event, e.RunBlocked)]
            fork = await run.fork(at, by="ann")
            await runtime.run_dry()
            if leaves:
                await let_go(runtime, fork.id)
            await runtime.raise_budget("other", tokens=300, by="ann")
            await eventually(lambda: all_done([fork, run, other]))

    run_async(main())


class RaisedMeanwhile(MemoryStore):
    """Somebody raises the account in the moment between a refused reservation and the note that the run waits."""

    is_raised = False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = super().commit(writes)
        if not self.is_raised and any(isinstance(each, Overdrawn) for each in outcomes):
            self.is_raised = True
            write(self, Movement("tag team=x", 0, ("", 0), raised=Limits(tokens=500), tells=b"{}"))
        return outcomes


def test_what_is_raised_before_it_is_known_who_waits_is_seen_all_the_same() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with RuntimeUnderTest(RaisedMeanwhile(clock), clock=clock, budgets=[FOREVER]) as runtime:
            run = await runtime.start(thinks.call(90, 60), id="r", tags=TEAM)
            await runtime.run_dry()
            assert str(await run.status()) == "completed"

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


def test_a_crash_at_any_write_of_waiting_for_the_next_period() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> list[int]:
        runs = [await runtime.start(thinks.call(60, 30), id=f"r{n}", tags=TEAM) for n in range(2)]
        await runtime.advance(timedelta(hours=3))
        return [await run.result() for run in runs]

    async def main() -> None:
        assert (await sweep_crashes(scenario, budgets=[HOURLY])).result == [90, 90]

    run_async(main())


def test_a_crash_at_any_write_of_a_raise_by_way_of_another_run() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> list[int]:
        runs = [await runtime.start(thinks.call(90), id=f"r{n}", tags=TEAM) for n in range(3)]
        await runtime.run_dry()
        for entry in await runtime.inbox():
            if entry.budget is not None and not entry.pending:
                with contextlib.suppress(perdure.UsageError):
                    await runtime.raise_budget(entry.run_id, tokens=1000, by="ann")
                break
        await runtime.run_dry()
        return [await run.result() for run in runs]

    async def main() -> None:
        assert (await sweep_crashes(scenario, budgets=[FOREVER])).result == [90, 90, 90]

    run_async(main())


# ── whatever the programs are ───────────────────────────────────────────────────────────────

calls = st.lists(st.integers(1, 100), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs=st.lists(calls, min_size=2, max_size=5), away=st.sets(st.integers(0, 4)))
def test_nobody_needs_to_decide_anything_where_each_call_fits_into_a_period(
    programs: list[list[int]], away: set[int]
) -> None:
    """Two workers, runs in memory and out of it: each hour the account is used up to its limit at most, and in as many
    hours as there are calls all are done."""

    async def main() -> None:
        async with two_workers(HOURLY) as workers:
            runs = [
                await workers[n % 2].start(thinks.call(*tokens), id=f"r{n}", tags=TEAM)
                for n, tokens in enumerate(programs)
            ]
            for hour in range(sum(map(len, programs)) + 1):
                for n, worker in enumerate((*workers, *workers)):
                    await worker.run_dry()
                    if hour in away and n > 1:
                        host_of(worker).release_idle()
                await workers[hour % 2].advance(timedelta(hours=1))
            for worker in (*workers, *workers):
                await worker.run_dry()
            assert [await run.result() for run in runs] == [sum(tokens) for tokens in programs]
            accounts = workers[0]._store.accounts()  # pyright: ignore[reportPrivateUsage]
            assert all(each.used.tokens <= 100 and not each.held.tokens for each in accounts)
            assert sum(each.used.tokens for each in accounts) == sum(map(sum, programs))

    run_async(main())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs=st.lists(calls, min_size=2, max_size=5), by=st.integers(0, 4), away=st.booleans())
def test_one_raise_by_way_of_any_run_is_enough_for_all(programs: list[list[int]], by: int, away: bool) -> None:
    async def main() -> None:
        async with two_workers(FOREVER) as workers:
            runs = [
                await workers[n % 2].start(thinks.call(*tokens), id=f"r{n}", tags=TEAM)
                for n, tokens in enumerate(programs)
            ]
            for worker in (*workers, *workers):
                await worker.run_dry()
            stuck = [entry.run_id for entry in await workers[0].inbox() if entry.budget is not None]
            if away:
                for worker in workers:
                    host_of(worker).release_idle()
                    await worker.run_dry()
            if stuck:
                await workers[by % 2].raise_budget(stuck[by % len(stuck)], tokens=10_000, by="ann")
            await eventually(lambda: all_done(runs), "all go on")  # the other worker hears of it when it looks
            assert [await run.result() for run in runs] == [sum(tokens) for tokens in programs]

    run_async(main())


def test_a_raise_that_is_too_little_leaves_it_to_the_next_one() -> None:
    async def main() -> None:
        async with two_workers(FOREVER) as (one, other):
            await spends(one, 90)
            large = await one.start(thinks.call(500), id="large", tags=TEAM)
            waits = await other.start(thinks.call(200), id="waits", tags=TEAM)
            for run in (large, waits):
                await is_stuck(run)
            for tokens in (150, 300):
                await one.raise_budget("large", tokens=tokens, by="ann", budget="tag team=x")
                await one.run_dry()
                await other.advance(0.2)
                await other.run_dry()
            assert await waits.result() == 200

    run_async(main())


# ── others have used less than they had reserved ────────────────────────────────────────────

GOES: dict[str, asyncio.Event] = {}


@step(retry=Retry(max_attempts=1))
async def saves(name: str, expected: int, used: int) -> int:
    if used >= 0:
        perdure.used(tokens=used)
    if name in GOES:
        await GOES[name].wait()
    else:  # long enough for others to come and find too little
        for _ in range(50):
            await asyncio.sleep(0)
    if used < 0:
        raise ConnectionRefusedError("nothing of it was done")
    return used


@saves.estimate
def _(name: str, expected: int, used: int) -> Usage:
    return Usage(tokens=expected)


@workflow
async def saver(name: str, expected: int, used: int) -> int:
    return await saves(name, expected, used)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("how", ["uses less", "fails", "is cancelled", "is over by force"])
def test_room_that_another_process_leaves_is_taken_by_those_for_whom_it_is_enough(
    tmp_path: Path, how: str, leaves: bool
) -> None:
    """The first holds all there is; of those that wait two fit into what it has not used, the largest does not."""
    store = str(tmp_path / "perdure.db")

    async def main() -> None:
        GOES.clear()
        GOES.update({name: asyncio.Event() for name in ("first", "large", "r1", "r2", "r3")})
        async with (
            Runtime(store, workflows=[saver], budgets=[FOREVER]) as one,
            Runtime(store, workflows=[saver], budgets=[FOREVER]) as other,
        ):
            first = await one.start(saver.call("first", 100, -1 if how == "fails" else 10), id="first", tags=TEAM)
            await eventually(lambda: has_begun(first))
            wants = {"large": 95, "r1": 45, "r2": 45, "r3": 45}
            if how == "fails":
                wants["large"] = 101
            runs = {
                name: await other.start(saver.call(name, tokens, tokens), id=name, tags=TEAM)
                for name, tokens in wants.items()
            }
            for run in runs.values():
                await is_stuck(run)
            if leaves:
                for name in runs:
                    await let_go(other, name)
            if how == "is cancelled":
                await first.cancel()
            elif how == "is over by force":
                await first.cancel(force=True)
            GOES["first"].set()
            await eventually(lambda: begun(runs, "r1", "r2"), "both go on")
            for name in ("r1", "r2"):
                GOES[name].set()
                assert await runs[name].result(wait_blocked=True, timeout=20) == 45
            assert sorted(entry.run_id for entry in await other.inbox()) == ["large", "r3"]
            assert [await blocks(runs[name]) for name in ("large", "r3")] == [["run.blocked"]] * 2, "nobody woke them"

    run_async(main())


def test_a_crash_at_any_write_of_leaving_room() -> None:
    """What was interrupted counts as reserved, and may leave too little for all: then somebody raises it. Else nobody
    needs to do anything."""

    async def scenario(runtime: RuntimeUnderTest) -> list[int]:
        GOES.clear()
        runs = [await runtime.start(saver.call("r", 60, 10), id=f"r{n}", tags=TEAM) for n in range(3)]
        await runtime.run_dry()
        spent = [each.event for run in runs for each in await run.history() if isinstance(each.event, e.BudgetSpent)]
        stuck = [entry.run_id for entry in await runtime.inbox() if entry.budget is not None]
        if stuck and any(event.how == "interrupted" for event in spent):
            with contextlib.suppress(perdure.UsageError):
                await runtime.raise_budget(stuck[0], tokens=1000, by="ann")
        return [await run.result() for run in runs]

    async def main() -> None:
        assert (await sweep_crashes(scenario, budgets=[FOREVER])).result == [10, 10, 10]

    run_async(main())


async def has_begun(run: Run[Any]) -> bool:
    return "budget.reserved" in await kinds(run)


async def begun(runs: Mapping[str, Run[Any]], *names: str) -> bool:
    return all([await has_begun(runs[name]) for name in names])


def test_a_raise_reaches_runs_of_the_same_worker_that_writes_nothing_else() -> None:
    """The run by way of which it was raised is stuck again at once; nobody else commits anything."""

    async def main() -> None:
        async with RuntimeUnderTest(budgets=[FOREVER]) as runtime:
            await spends(runtime, 90)
            large = await runtime.start(thinks.call(500), id="large", tags=TEAM)
            small = await runtime.start(thinks.call(20), id="small", tags=TEAM)
            await is_stuck(large)
            await is_stuck(small)
            await runtime.raise_budget(large, tokens=120, by="ann", budget="tag team=x")
            await runtime.run_dry()
            assert await blocks(small) == ["run.blocked", "run.unblocked"]
            assert await small.result() == 20

    run_async(main())


# ── nobody wants the call any more ──────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), uses=Usage(tokens=60), retry=Retry(first_delay=60))
async def pay_soon(order: str) -> str:
    raise ConnectionRefusedError


@pay_soon.key
def _(order: str) -> str:
    return order


@workflow(budget=Budget(tokens=100))
async def pays_in_time(is_sent: bool) -> str:
    """What is sent is refused at once, and is to be sent again a minute later; by then too little is left."""
    try:
        async with asyncio.timeout(3600):
            if not is_sent:
                await uses_less(60)
            await asyncio.gather(pay_soon("o-1"), uses_less_later(60))
    except TimeoutError:
        return "not in time"
    return "paid"


@step
async def uses_less_later(tokens: int) -> None:
    await asyncio.sleep(0.01)
    perdure.used(tokens=tokens)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
def test_an_effect_that_waits_for_a_budget_can_be_cancelled(is_sent: bool, leaves: bool) -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(pays_in_time.call(is_sent), id="r")
            await runtime.advance(timedelta(minutes=10))
            await is_stuck(run)
            if leaves:
                await let_go(runtime, "r")
            await runtime.advance(timedelta(hours=1))
            assert await run.result() == "not in time"
            assert [operation.status for operation in await runtime.effects()] == ["failed_final"] * is_sent

    run_async(main())

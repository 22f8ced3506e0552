"""Corners: control from inside workflow code, blocked runs, large and deep runs, results that cannot be recorded."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest
from tests.runtime.hosting import eventually, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import (
    Client,
    EncodeError,
    NeedsPerson,
    RunBlockedError,
    RunCancelledError,
    Runtime,
    Status,
    UsageError,
    step,
    workflow,
)
from perdure.errors import StoreBusyError
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Claim

CALLS: list[Any] = []
HERE: list[Runtime] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()
    HERE.clear()


@step
async def work(item: int) -> int:
    CALLS.append(item)
    return item


@workflow
async def adds(item: int) -> int:
    return await work(item) + 1


@workflow
async def waits() -> str:
    return await perdure.receive("go", str)


# ── control belongs outside ─────────────────────────────────────────────────────────────────


@workflow
async def controls(what: str) -> str:
    """What is done through a Runtime is not recorded: a replay would do it again."""
    runtime = HERE[0]
    if what == "start":
        await runtime.start(adds.call(1))
    elif what == "get":
        await runtime.get("other")
    elif what == "list":
        await runtime.list()
    else:
        perdure.run(adds.call(1))
    return "done"


@pytest.mark.parametrize("what", ["start", "get", "list", "run"])
def test_a_runtime_is_refused_in_workflow_code_before_it_does_anything(what: str) -> None:
    async def main() -> None:
        async with on_one_store()(controls, adds, waits) as runtime:
            HERE.append(runtime)
            await runtime.start(waits.call(), id="other")
            run = await runtime.start(controls.call(what), id="r")
            with pytest.raises(UsageError):
                await run.result(timeout=10)
            assert {summary.id for summary in await runtime.list()} == {"r", "other"}

    run_async(main())


@step
async def controls_in_a_step() -> int:
    return await (await HERE[0].start(adds.call(1), id="from a step")).result()


@workflow
async def controls_by_a_step() -> int:
    return await controls_in_a_step()


def test_a_step_may_use_a_runtime() -> None:
    async def main() -> None:
        async with on_one_store()(controls_by_a_step, adds) as runtime:
            HERE.append(runtime)
            assert await (await runtime.start(controls_by_a_step.call())).result(timeout=10) == 2

    run_async(main())


# ── blocked runs ────────────────────────────────────────────────────────────────────────────


@workflow
async def forgets() -> str:
    message = asyncio.create_task(perdure.receive("go", str))
    await work(1)
    if len(CALLS) == 1:
        await asyncio.Event().wait()
    return await message


@step
async def needs_somebody() -> int:
    raise NeedsPerson("who pays?")


@workflow
async def stuck() -> list[Any]:
    return [await needs_somebody(), await perdure.receive("go", str)]


def test_a_value_cannot_unblock_a_run_that_waits_for_other_code() -> None:
    @workflow(name="w")
    async def deadlocks() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with on_one_store()(deadlocks) as runtime:
            run = await runtime.start(deadlocks.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            await run.unblock("value", value=1)
            await eventually(lambda: hint_has(run, "no value can unblock this"))
            await run.unblock("fail", by="ada", reason="enough")
            with pytest.raises(perdure.StepError, match="failed by ada: enough"):
                await run.result(timeout=10, wait_blocked=True)
            assert await run.status() is Status.FAILED

    run_async(main())


async def hint_has(run: perdure.Run[Any], text: str) -> bool:
    return text in (await run.summary()).hint


def test_messages_to_a_blocked_run_are_kept() -> None:
    async def main() -> None:
        make = on_one_store(evict_after=0)
        async with make(stuck) as runtime:
            run = await runtime.start(stuck.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            await run.send("go", "kept")
        async with make(stuck) as runtime:
            run = await runtime.get("r")
            await run.unblock("value", value=1)
            assert await run.result(timeout=10, wait_blocked=True) == [1, "kept"]

    run_async(main())


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("is_parked", [False, True])
def test_a_blocked_run_can_be_cancelled(force: bool, is_parked: bool) -> None:
    async def main() -> None:
        async with on_one_store()(stuck) as runtime:
            run = await runtime.start(stuck.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            if is_parked:
                await let_go(runtime, "r")
            await run.cancel(force=force)
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10, wait_blocked=True)

    run_async(main())


def test_unblocking_what_is_not_blocked_changes_nothing() -> None:
    async def main() -> None:
        async with on_one_store()(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            await run.unblock("retry")
            await run.unblock("fail")
            await run.send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())


@step
async def wants(what: str) -> str:
    raise NeedsPerson(what)


@workflow
async def wants_two() -> list[str]:
    told = await asyncio.gather(wants("one"), wants("two"), return_exceptions=True)
    return [str(each) for each in told]


def test_two_who_decide_at_once_decide_the_same_call() -> None:
    """Neither says which call. Who comes second has decided nothing, least of all what nobody looked at."""

    async def main() -> None:
        async with on_one_store()(wants_two) as runtime:
            run = await runtime.start(wants_two.call(), id="r")

            async def are_stuck() -> bool:
                return len(await runtime.inbox()) == 2

            await eventually(are_stuck)
            await asyncio.gather(run.unblock("fail", by="ann"), run.unblock("fail", by="bo"))
            with pytest.raises(RunBlockedError, match="two"):
                await run.result(timeout=10)
            (entry,) = await runtime.inbox()
            assert str(entry.call).startswith("0.2/")
            await run.unblock("value", value="by hand")
            first, second = await run.result(timeout=10, wait_blocked=True)
            assert "failed by" in first
            assert second == "by hand"

    run_async(main())


def test_pausing_twice_and_resuming_twice_is_once() -> None:
    async def main() -> None:
        async with on_one_store()(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            for _ in range(2):
                await run.pause()
            for _ in range(2):
                await run.resume()
            await run.send("go", "on")
            assert await run.result(timeout=10) == "on"
            recorded = await kinds(run)
            assert (recorded.count("run.paused"), recorded.count("run.resumed")) == (1, 1)

    run_async(main())


# ── results ─────────────────────────────────────────────────────────────────────────────────


@workflow
async def returns_a_lock() -> Any:
    await work(1)
    return {"lock": threading.Lock()}


@step(retry=perdure.Retry(max_attempts=1))
async def pairs():  # type: ignore[no-untyped-def]  # nothing says what it gives
    return (1, 2)


@workflow
async def unannotated(where: str):  # type: ignore[no-untyped-def]
    return {3} if where == "workflow" else await pairs()


@workflow
def hosted():  # type: ignore[no-untyped-def]
    return {3}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (unannotated.call("step"), r"the result of pairs\(\): \$: .* Annotate the return type of pairs\(\)$"),
        (unannotated.call("workflow"), r"the result of unannotated\(\): .* the return type of unannotated\(\)$"),
        (hosted.call(), r"the result of hosted\(\): \$: .* Annotate the return type of hosted\(\)$"),
    ],
)
def test_a_result_that_nothing_describes_says_which_return_type_to_annotate(call: Any, told: str) -> None:
    async def main() -> None:
        async with on_one_store()(unannotated, hosted) as runtime:
            with pytest.raises(EncodeError, match=told):
                await (await runtime.start(call)).result(timeout=10)

    run_async(main())


def test_a_result_that_cannot_be_recorded_fails_the_run_once_and_names_the_path() -> None:
    async def main() -> None:
        async with on_one_store()(returns_a_lock) as runtime:
            run = await runtime.start(returns_a_lock.call())
            with pytest.raises(EncodeError, match=r"\$\.lock"):
                await run.result(timeout=10)
            assert await run.status() is Status.FAILED

    run_async(main())


@pytest.mark.parametrize("ends", ["failed", "cancelled"])
def test_starting_a_run_that_has_ended_badly_attaches_to_it(ends: str) -> None:
    async def main() -> None:
        async with on_one_store()(waits, fails) as runtime:
            call: Any = fails.call() if ends == "failed" else waits.call()
            run = await runtime.start(call, id="r")
            if ends == "cancelled":
                await run.cancel()
            with pytest.raises((ValueError, RunCancelledError)):
                await run.result(timeout=10)
            again = await runtime.start(call, id="r")
            assert again.how == "finished earlier"
            with pytest.raises((ValueError, RunCancelledError)):
                await again.result(timeout=10)

    run_async(main())


@workflow
async def fails() -> None:
    raise ValueError("no")


# ── checked mode ────────────────────────────────────────────────────────────────────────────


@workflow
async def reads_the_clock(swallows: bool) -> float:
    try:
        return time.time()
    except Exception:
        if not swallows:
            raise
    return 0.0


@pytest.mark.parametrize("swallows", [False, True])
def test_in_checked_mode_a_turn_that_reads_the_clock_parks_the_run(swallows: bool) -> None:
    async def main() -> None:
        async with on_one_store(guard=True)(reads_the_clock, adds) as runtime:
            run = await runtime.start(reads_the_clock.call(swallows))
            with pytest.raises(RunBlockedError, match=r"Use perdure\.now\(\)") as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "diverged"
            assert await (await runtime.start(adds.call(1))).result(timeout=10) == 2

    run_async(main())


# ── each once ───────────────────────────────────────────────────────────────────────────────


@step
async def fourth_is_stuck(item: int) -> int:
    CALLS.append(item)
    if item == 4 and CALLS.count(4) == 1:
        raise NeedsPerson("the fourth")
    return item


@workflow
async def forty_at_once() -> int:
    return sum(await asyncio.gather(*(fourth_is_stuck(n) for n in range(40))))


def test_of_forty_parallel_steps_the_one_that_was_stuck_runs_again_and_no_other() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(forty_at_once) as runtime:
            run = await runtime.start(forty_at_once.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            await eventually(lambda: len(CALLS) == 40)
            await eventually(lambda: thirty_nine_are_recorded(run))
        async with make(forty_at_once) as runtime:
            run = await runtime.get("r")
            await run.unblock("retry")
            assert await run.result(timeout=10, wait_blocked=True) == sum(range(40))
        assert sorted(CALLS) == sorted([*range(40), 4])

    run_async(main())


async def thirty_nine_are_recorded(run: perdure.Run[Any]) -> bool:
    return (await kinds(run)).count("step.completed") == 39


@step
async def races(item: int) -> int:
    CALLS.append(item)
    if item:
        await asyncio.Event().wait()
    return item


@workflow
async def race_of_three() -> int:
    racers = [asyncio.create_task(races(n)) for n in range(3)]
    done, pending = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    for loser in pending:
        loser.cancel()
    return done.pop().result() + await work(10)


def test_of_a_race_each_runs_once_and_so_does_what_follows() -> None:
    async def main() -> None:
        async with on_one_store()(race_of_three) as runtime:
            run = await runtime.start(race_of_three.call())
            assert await run.result(timeout=10) == 10
            assert CALLS == [0, 1, 2, 10]
            assert (await kinds(run)).count("call.cancelled") == 2

    run_async(main())


def test_an_edit_of_another_workflow_strands_nobody() -> None:
    """What counts is what was recorded, not the text of the program."""

    async def main() -> None:
        make = on_one_store()

        @workflow(name="unrelated")
        async def before() -> int:
            return 1

        @workflow(name="unrelated")
        async def after() -> int:
            """With a comment, and another result."""
            return 2

        async with make(waits, before) as runtime:
            await runtime.start(waits.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            await let_go(runtime, "r")
        async with make(waits, after) as runtime:
            run = await runtime.get("r")
            await run.send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())


# ── many, large, deep ───────────────────────────────────────────────────────────────────────


@workflow
async def many_children(count: int) -> int:
    return sum(await asyncio.gather(*(adds(n) for n in range(count))))


def test_three_hundred_children_in_one_turn() -> None:
    async def main() -> None:
        async with on_one_store()(many_children, adds) as runtime:
            run = await runtime.start(many_children.call(300))
            assert await run.result(timeout=30) == sum(range(1, 301))

    run_async(main())


@workflow
async def deep(levels: int) -> int:
    return 1 + await deep(levels - 1) if levels else 0


def test_forty_levels_of_children() -> None:
    async def main() -> None:
        async with on_one_store()(deep) as runtime:
            assert await (await runtime.start(deep.call(40))).result(timeout=30) == 40

    run_async(main())


@workflow
async def wide(count: int) -> int:
    return sum(await asyncio.gather(*(work(n) for n in range(count))))


def test_two_thousand_steps_at_once_over_a_restart() -> None:
    """What is recorded when a worker leaves never runs again; all else does, once."""

    async def main() -> None:
        make = on_one_store(concurrent_steps=100)
        async with make(wide) as runtime:
            await runtime.start(wide.call(2000), id="r")
            await eventually(lambda: len(CALLS) >= 500)
        first_life = list(CALLS)
        async with make() as runtime:  # one that does not go on with it
            events = await (await runtime.get("r")).history()
        recorded = {event.output for event in events if event.kind == "step.completed"}
        async with make(wide) as runtime:
            assert await (await runtime.get("r")).result(timeout=30) == sum(range(2000))
        again = CALLS[len(first_life) :]
        assert recorded
        assert len(set(first_life)) == len(first_life)
        assert sorted(again) == sorted(set(range(2000)) - recorded)

    run_async(main())


def test_a_message_of_twenty_megabytes() -> None:
    async def main() -> None:
        async with on_one_store()(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            await run.send("go", "x" * 20_000_000)
            assert len(await run.result(timeout=30)) == 20_000_000

    run_async(main())


def test_odd_run_ids() -> None:
    async def main() -> None:
        async with on_one_store()(parent_of_one, adds) as runtime:
            for id in ("a/b", "ü ☃", "line\nbreak", "'; drop table runs", "%s", "x" * 500):  # noqa: A001
                run = await runtime.start(parent_of_one.call(), id=id)
                assert await run.result(timeout=10) == 2
                assert await (await runtime.get(id)).result() == 2

    run_async(main())


@workflow
async def parent_of_one() -> int:
    return await adds(1)


# ── a history that cannot be read ───────────────────────────────────────────────────────────


class DamagedStore(MemoryStore):
    """A store in which the disk has done something to one run's rows."""

    def damage(self, run_id: str, how: str) -> None:
        info = self.find(run_id)
        assert info is not None
        rows = self._shared.runs[info.rid].rows
        if how == "an event of a kind that nobody knows":
            rows[0] = msgspec.structs.replace(rows[0], envelope=b'{"event":"from.the.future"}')
        elif how == "no JSON":
            rows[-1] = msgspec.structs.replace(rows[-1], envelope=b"\x00")
        else:
            rows[0] = rows[1]


@pytest.mark.parametrize("how", ["an event of a kind that nobody knows", "no JSON", "a lost beginning"])
def test_a_history_that_cannot_be_read_parks_its_run_and_holds_up_no_other(how: str) -> None:
    async def main() -> None:
        store = DamagedStore()
        async with Runtime(store, workflows=[works_and_waits, adds], evict_after=0) as runtime:
            run = await runtime.start(works_and_waits.call(), id="r")
            await eventually(lambda: completed(run))
            await eventually(lambda: not is_in_memory(runtime, "r"))
            store.damage("r", how)
            await run.send("go", "on")
            assert await (await runtime.start(adds.call(1))).result(timeout=10) == 2
            for _ in range(2):
                with pytest.raises(RunBlockedError, match="cannot be loaded") as blocked:
                    await run.result(timeout=10)
                assert blocked.value.reason == "undecodable"
                assert [entry.reason for entry in await runtime.inbox()] == ["undecodable"]
                await run.unblock("retry")
                await runtime.drain()

    run_async(main())


@workflow
async def works_and_waits() -> str:
    await work(1)
    return await perdure.receive("go", str)


# ── another process that hangs in the middle of a write ─────────────────────────────────────


class HeldUpStore(MemoryStore):
    """While `is_held` nobody gets a turn to write; each claim waits for one in vain, on the loop."""

    is_held = False
    waited_in_vain = looks = 0

    def claim(self, worker: str, **how: Any) -> list[Claim]:
        if self.is_held:
            self.waited_in_vain += 1
            raise StoreBusyError("others have been writing for too long")
        return super().claim(worker, **how)

    def is_free(self) -> bool:
        self.looks += self.is_held
        return not self.is_held


def test_a_write_that_was_waited_for_in_vain_is_not_waited_for_again_and_again() -> None:
    async def main() -> None:
        store = HeldUpStore()
        async with Runtime(store, workflows=[adds]) as runtime, Client(store, workflows=[adds]) as client:
            store.is_held = True
            run = await client.start(adds.call(1))
            await eventually(lambda: store.looks >= 5)
            assert store.waited_in_vain == 1
            store.is_held = False
            assert await run.result(timeout=10) == 2
            assert runtime.is_open

    run_async(main())


# ── the order of events in one call ─────────────────────────────────────────────────────────


@step(record_input=False)
async def secretive(password: str) -> int:
    return len(password)


@workflow
async def logs_in(password: str) -> int:
    first = await secretive("hunter2")
    await perdure.receive("go")
    return first


def test_arguments_that_are_not_to_be_recorded_are_not() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(logs_in) as runtime:
            run = await runtime.start(logs_in.call("none"), id="r")
            await eventually(lambda: completed(run))
        async with make(logs_in) as runtime:
            run = await runtime.get("r")
            await run.send("go")
            assert await run.result(timeout=10) == 7
            done = next(h for h in await run.history() if h.kind == "step.completed")
            assert done.input is None
            assert "hunter2" not in repr(await run.history())

    run_async(main())


async def completed(run: perdure.Run[Any]) -> bool:
    return "step.completed" in await kinds(run)

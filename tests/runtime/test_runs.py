"""Runs from outside: started once, attached to, found, cancelled, paused, and waited for."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import (
    Client,
    EncodeError,
    Run,
    RunBlockedError,
    RunCancelledError,
    RunConflictError,
    RunFinishedError,
    Runtime,
    Status,
    StepError,
    UnknownNameError,
    UsageError,
    step,
    workflow,
)
from perdure.api.calls import Call
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


@step
async def work(item: int) -> int:
    CALLS.append(item)
    return item


@workflow
async def worker(item: int) -> int:
    return await work(item)


@workflow
async def other_worker(item: int) -> int:
    return await work(item)


@workflow
async def waiter(name: str = "go") -> str:
    return str(await perdure.receive(name))


# ── starting ────────────────────────────────────────────────────────────────────────────────


def test_five_simultaneous_starts_run_one_body() -> None:
    async def main() -> None:
        async with on_one_store()(worker) as runtime:
            runs = await asyncio.gather(*(runtime.start(worker.call(7), id="once") for _ in range(5)))
            assert await asyncio.gather(*(run.result(timeout=10) for run in runs)) == [7] * 5
            assert sorted(run.how for run in runs) == ["attached"] * 4 + ["started"]
            assert CALLS == [7]

    run_async(main())


def test_five_simultaneous_starts_from_five_workers_run_one_body() -> None:
    async def main() -> None:
        make = on_one_store()
        runtimes = [make(worker) for _ in range(5)]
        for runtime in runtimes:
            await runtime.__aenter__()
        runs = await asyncio.gather(*(runtime.start(worker.call(7), id="once") for runtime in runtimes))
        assert await asyncio.gather(*(run.result(timeout=10) for run in runs)) == [7] * 5
        assert CALLS == [7]
        for runtime in runtimes:
            await runtime.__aexit__(None, None, None)

    run_async(main())


def test_a_used_id_with_another_workflow_or_input_is_a_conflict_and_harms_nobody() -> None:
    async def main() -> None:
        async with on_one_store()(waiter, worker, other_worker) as runtime:
            run = await runtime.start(waiter.call(), id="taken")
            with pytest.raises(RunConflictError, match="belongs to waiter version 1: choose another id"):
                await runtime.start(worker.call(1), id="taken")
            with pytest.raises(RunConflictError, match="waiter version 1 with another input"):
                await runtime.start(waiter.call("stop"), id="taken")
            await run.send("go", "fine")
            assert await run.result(timeout=10) == "fine"
            again = await runtime.start(waiter.call(), id="taken")
            assert (again.how, await again.result()) == ("finished earlier", "fine")

    run_async(main())


def test_a_start_with_arguments_that_cannot_be_recorded_writes_nothing() -> None:
    @workflow(name="w")
    async def takes_anything(it: Any) -> None: ...

    async def main() -> None:
        async with on_one_store()(takes_anything) as runtime:
            with pytest.raises(EncodeError, match=r"it\.a\[0\]"):
                await runtime.start(takes_anything.call({"a": [object()]}), id="r")
            assert await runtime.list() == []

    run_async(main())


@pytest.mark.parametrize("id", ["", "  ", "x" * 501])
def test_an_id_that_is_none(id: str) -> None:
    async def main() -> None:
        async with on_one_store()(worker) as runtime:
            with pytest.raises(UsageError, match="1 to 500 characters"):
                await runtime.start(worker.call(1), id=id)

    run_async(main())


def test_a_workflow_that_this_runtime_does_not_execute() -> None:
    async def main() -> None:
        async with on_one_store()(worker) as runtime:
            with pytest.raises(
                UsageError, match=r"add it to Runtime\(workflows=\[\.\.\.\]\) \(has: worker version 1\)"
            ):
                await runtime.start(waiter.call())
            with pytest.raises(UsageError, match="is a step, not a workflow"):
                await runtime.start(work.call(1))

    run_async(main())


def test_two_workflows_of_one_name_are_refused() -> None:
    @workflow(name="worker")
    async def another(item: int) -> int:
        return item

    with pytest.raises(UsageError, match="two workflows are called worker version 1"):
        on_one_store()(worker, another)


def two_modules(folder: Path) -> tuple[Any, Any]:
    """Two workflows of one name and version, each in a module of its own."""
    said = {"first": "from the first", "second": "from the second"}
    modules: list[Any] = []
    for name, text in said.items():
        path = folder / f"{name}_of_two.py"
        path.write_text(f"import perdure\n\n@perdure.workflow\nasync def twin() -> str:\n    return {text!r}\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        modules.append(module)
    return modules[0].twin, modules[1].twin


TWINS = r"two workflows are called twin version 1: first_of_two\.twin and second_of_two\.twin: give one another name="


def test_a_child_is_never_mistaken_for_another_workflow_of_its_name(tmp_path: Path) -> None:
    first, second = two_modules(tmp_path)

    @workflow(name="parent")
    async def parent() -> str:
        return str(await second())

    with pytest.raises(UsageError, match=TWINS):
        on_one_store()(first, parent)
    with pytest.raises(UsageError, match=TWINS):
        on_one_store()(first, second)


def test_what_is_started_is_never_mistaken_for_another_workflow_of_its_name(tmp_path: Path) -> None:
    first, second = two_modules(tmp_path)
    again, _ = two_modules(tmp_path)  # the first module once more, as when a program imports itself

    async def main() -> None:
        async with on_one_store()(first) as runtime:
            with pytest.raises(UsageError, match=TWINS):
                await runtime.start(second.call())
            assert await runtime.list() == []
            for call in (first.call(), again.call()):
                assert await (await runtime.start(call)).result(timeout=10) == "from the first"

    run_async(main())


def test_a_delayed_start() -> None:
    clock = FakeClock()

    async def main() -> None:
        async with on_one_store(clock=clock)(worker) as runtime:
            run = await runtime.start(worker.call(1), delay=timedelta(hours=1))
            assert await run.status() is Status.QUEUED
            await eventually(lambda: clock.next_alarm_at() is not None)
            clock.advance(timedelta(minutes=59))
            assert CALLS == []
            clock.advance(timedelta(minutes=1))
            assert await run.result(timeout=10) == 1

    run_async(main())


# ── finding ─────────────────────────────────────────────────────────────────────────────────


def test_unknown_names_list_near_ones() -> None:
    @workflow(name="w", receives={"answer": str, "approve": bool})
    async def declared() -> str:
        return str(await perdure.receive("answer"))

    async def main() -> None:
        async with on_one_store()(declared) as runtime:
            run = await runtime.start(declared.call(), id="claim-42")
            with pytest.raises(UnknownNameError, match="there is no run 'claim-43'; near: claim-42"):
                await runtime.get("claim-43")
            with pytest.raises(UnknownNameError, match="no declared message 'anwser'; near: answer"):
                await run.send("anwser", "yes")
            with pytest.raises(UnknownNameError, match="no status 'runing'; near: running"):
                await runtime.list(status="runing")
            with pytest.raises(EncodeError):
                await run.send("approve", "yes")

    run_async(main())


def test_listing_by_workflow_status_tag_and_time() -> None:
    clock = FakeClock()

    async def main() -> None:
        async with on_one_store(clock=clock)(worker, waiter) as runtime:
            for day in range(4):
                call: Call[Any] = worker.call(day) if day % 2 else waiter.call()
                await runtime.start(call, id=f"day-{day}", tags={"even": str(day % 2 == 0)})
                clock.advance(timedelta(days=1))

            async def ids(**which: Any) -> list[str]:
                return [summary.id for summary in await runtime.list(**which)]

            await eventually(lambda: has_status(runtime, "day-3", Status.COMPLETED))
            await eventually(lambda: has_status(runtime, "day-1", Status.COMPLETED))
            assert await ids() == ["day-3", "day-2", "day-1", "day-0"]
            assert await ids(workflow="worker") == ["day-3", "day-1"]
            assert await ids(status="completed") == ["day-3", "day-1"]
            assert await ids(status=["running", Status.WAITING]) == ["day-2", "day-0"]
            assert await ids(tags={"even": "True"}) == ["day-2", "day-0"]
            first = (await (await runtime.get("day-0")).summary()).created_at
            assert await ids(started_after=first + timedelta(days=2)) == ["day-3", "day-2"]
            assert await ids(started_before=first + timedelta(days=2)) == ["day-1", "day-0"]
            assert await ids(limit=1) == ["day-3"]
            with pytest.raises(UsageError, match="has no time zone"):
                await runtime.list(started_after=datetime(2030, 1, 1))  # noqa: DTZ001

    run_async(main())


async def has_status(runtime: Client, id: str, status: Status) -> bool:
    return await (await runtime.get(id)).status() is status


# ── results ─────────────────────────────────────────────────────────────────────────────────


class Declined(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@workflow(raises=[Declined])
async def declines(how: str) -> None:
    if how == "declared":
        raise Declined("no money")
    if how == "a typo":
        None.no_such_attribute  # type: ignore[attr-defined] # noqa: B018
    raise Own("own")


class Own(Exception):
    pass


@pytest.mark.parametrize(
    ("how", "raised"), [("declared", Declined), ("a typo", AttributeError), ("not declared", StepError)]
)
def test_an_exception_in_workflow_code_fails_the_run_once(how: str, raised: type[Exception]) -> None:
    async def main() -> None:
        async with on_one_store()(declines) as runtime:
            run = await runtime.start(declines.call(how))
            with pytest.raises(raised):
                await run.result(timeout=10)
            assert await run.status() is Status.FAILED
            assert await kinds(run) == ["run.started", "run.failed"]

    run_async(main())


def test_waiting_is_not_owning() -> None:
    async def main() -> None:
        async with on_one_store()(waiter) as runtime:
            run = await runtime.start(waiter.call())
            with pytest.raises(TimeoutError):
                await run.result(timeout=0.001)
            waiting = asyncio.create_task(run.result())
            await asyncio.sleep(0)
            waiting.cancel()
            await run.send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())


def test_state_is_what_the_workflow_last_said() -> None:
    @workflow(name="w")
    async def tells() -> None:
        perdure.set_state({"done": 1})
        await perdure.receive("go")
        perdure.set_state({"done": 2})

    async def main() -> None:
        async with on_one_store()(tells) as runtime:
            run = await runtime.start(tells.call(), id="r")
            await eventually(lambda: state_is(run, {"done": 1}))
            await run.send("go")
            await run.result(timeout=10)
            assert await run.state() == {"done": 2}

    run_async(main())


async def state_is(run: Run[Any], state: Any) -> bool:
    return bool(await run.state() == state)


# ── messages ────────────────────────────────────────────────────────────────────────────────


def test_a_message_sent_before_the_run_waits_for_it_is_kept() -> None:
    @workflow(name="w")
    async def late() -> str:
        await perdure.receive("first")
        return str(await perdure.receive("second"))

    async def main() -> None:
        async with on_one_store()(late) as runtime:
            run = await runtime.start(late.call())
            await run.send("second", "b")
            await run.send("first", "a")
            assert await run.result(timeout=10) == "b"
            with pytest.raises(RunFinishedError, match="it takes no message any more"):
                await run.send("second", "c")

    run_async(main())


def test_a_message_wins_over_five_minutes_at_once() -> None:
    @workflow(name="w")
    async def race() -> str:
        return await perdure.receive("go", str, within=300)

    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(clock=clock)(race) as runtime:
            run = await runtime.start(race.call(), id="r")
            await run.send("go", "now")
            assert await run.result(timeout=10) == "now"
            assert not is_in_memory(runtime, "r")

    run_async(main())


@pytest.mark.parametrize("microseconds", [-1, 0, 1])
def test_a_message_around_the_time_limit_has_one_winner_also_after_a_restart(microseconds: int) -> None:
    @workflow(name="w")
    async def race() -> list[Any]:
        try:
            first = await perdure.receive("go", str, within=60)
        except TimeoutError:
            first = "late"
        return [first, await perdure.receive("end", str), await left_over()]

    async def main() -> None:
        for _ in range(30):
            clock = FakeClock()
            make = on_one_store(clock=clock)
            async with make(race) as runtime:
                run = await runtime.start(race.call(), id="r")
                await eventually(lambda: is_in_memory(runtime, "r"))
                clock.advance_to(clock.now() + 60_000_000 + microseconds)
                await run.send("go", "in time")
                await eventually(lambda run=run: has_kind(run, "message.arrived"))  # type: ignore[misc]
            async with make(race) as runtime:
                run = await runtime.get("r")
                await run.send("end", "end")
                first, _, left = await run.result(timeout=10)
                assert (first, left) in [("in time", ""), ("late", "in time")]
                assert (first == "late") or microseconds <= 0

    run_async(main())


async def left_over() -> str:
    try:
        async with asyncio.timeout(0):
            return await perdure.receive("go", str)
    except TimeoutError:
        return ""


async def has_kind(run: Run[Any], kind: str) -> bool:
    return kind in await kinds(run)


# ── cancelling ──────────────────────────────────────────────────────────────────────────────


@step
async def clean_up() -> str:
    CALLS.append("clean")
    return ""


@workflow
async def tidy() -> str:
    try:
        return str(await perdure.receive("go"))
    finally:
        await clean_up()


def test_a_cancelled_run_cleans_up_and_is_cancelled() -> None:
    async def main() -> None:
        async with on_one_store()(tidy) as runtime:
            run = await runtime.start(tidy.call(), id="r")
            assert await run.cancel("enough") == "requested"
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            assert await run.status() is Status.CANCELLED
            assert CALLS == ["clean"]
            assert await run.cancel() == "cancelled"

    run_async(main())


def test_a_cancel_by_force_runs_no_code() -> None:
    async def main() -> None:
        async with on_one_store()(tidy) as runtime:
            run = await runtime.start(tidy.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            await run.cancel(force=True)
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            assert CALLS == []
            assert (await kinds(run))[-1] == "run.cancelled"

    run_async(main())


def test_a_run_that_is_parked_is_cancelled_too() -> None:
    async def main() -> None:
        async with on_one_store()(tidy) as runtime:
            run = await runtime.start(tidy.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            await let_go(runtime, "r")
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            assert CALLS == ["clean"]

    run_async(main())


@workflow
async def loops(rounds: int) -> int:
    for n in range(rounds):
        await pause_a_little(n)
    return rounds


@step
async def pause_a_little(n: int) -> int:
    CALLS.append(n)
    await asyncio.sleep(random.random() / 1000)
    return n


def test_cancel_says_what_happened_at_two_hundred_random_moments() -> None:
    """What it answers and how the run ends agree, and a request that was recorded before the end is never lost."""

    async def once(runtime: Runtime, n: int) -> tuple[str, Status]:
        run = await runtime.start(loops.call(8), id=f"run-{n}")
        await asyncio.sleep(random.random() / 50)
        said = await run.cancel()
        try:
            await run.result(timeout=20)
        except RunCancelledError:
            pass
        status = await run.status()
        recorded = await kinds(run)
        if "run.cancel_requested" in recorded:
            assert status is Status.CANCELLED or recorded.index("run.cancel_requested") == len(recorded) - 2, recorded
        return said, status

    async def main() -> None:
        async with on_one_store()(loops) as runtime:
            seen = await asyncio.gather(*(once(runtime, n) for n in range(200)))
        allowed = {
            ("requested", Status.CANCELLED), ("requested", Status.COMPLETED),
            ("completed", Status.COMPLETED), ("cancelled", Status.CANCELLED),
        }  # fmt: skip
        assert set(seen) <= allowed
        assert ("requested", Status.CANCELLED) in seen

    run_async(main())


# ── pausing ─────────────────────────────────────────────────────────────────────────────────


def test_a_paused_run_starts_nothing_new_until_it_is_resumed() -> None:
    @workflow(name="w")
    async def works() -> int:
        total = 0
        for n in range(3):
            total += await perdure.receive("go", int) + await work(n)
        return total

    async def main() -> None:
        async with on_one_store()(works) as runtime:
            run = await runtime.start(works.call(), id="r")
            await run.send("go", 10)
            await eventually(lambda: CALLS == [0])
            await run.pause("ada")
            await eventually(lambda: reason_is(run, "paused"))
            await run.send("go", 10)
            await run.send("go", 10)
            await let_go(runtime, "r")
            assert await run.status() is Status.WAITING
            assert CALLS == [0]
            await run.resume("ada")
            assert await run.result(timeout=10) == 33
            assert CALLS == [0, 1, 2]

    run_async(main())


async def reason_is(run: Run[Any], reason: str) -> bool:
    return (await run.summary()).reason == reason


def test_what_is_under_way_ends_and_is_recorded_while_the_run_is_paused() -> None:
    gate = asyncio.Event()

    @step
    async def slow() -> int:
        CALLS.append("slow")
        await gate.wait()
        return 1

    @workflow(name="w")
    async def works() -> int:
        return await slow() + await work(2)

    async def main() -> None:
        async with on_one_store()(works) as runtime:
            run = await runtime.start(works.call(), id="r")
            await eventually(lambda: CALLS == ["slow"])
            await run.pause()
            await eventually(lambda: reason_is(run, "paused"))
            gate.set()
            await eventually(lambda: has_kind(run, "step.completed"))
            assert CALLS == ["slow"]
            await run.resume()
            assert await run.result(timeout=10) == 3

    run_async(main())


def test_a_paused_run_whose_timer_is_due_stays_paused() -> None:
    clock = FakeClock()

    @workflow(name="w")
    async def sleeps() -> int:
        await perdure.sleep(60)
        return await work(1)

    async def main() -> None:
        async with on_one_store(clock=clock)(sleeps) as runtime:
            run = await runtime.start(sleeps.call(), id="r")
            await run.pause()
            await eventually(lambda: reason_is(run, "paused"))
            clock.advance(3600)
            await let_go(runtime, "r")
            clock.advance(3600)
            assert CALLS == []
            await run.resume()
            assert await run.result(timeout=10) == 1

    run_async(main())


def test_a_paused_run_can_be_cancelled() -> None:
    async def main() -> None:
        async with on_one_store()(tidy) as runtime:
            run = await runtime.start(tidy.call(), id="r")
            await run.pause()
            await eventually(lambda: reason_is(run, "paused"))
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            assert CALLS == ["clean"]

    run_async(main())


# ── blocked runs ────────────────────────────────────────────────────────────────────────────


def test_a_deadlock_is_blocked_at_once_with_its_await_stack() -> None:
    @workflow(name="w")
    async def forgets() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with on_one_store()(forgets) as runtime:
            run = await runtime.start(forgets.call(), id="r")
            with pytest.raises(RunBlockedError, match=r"task 0: test_runs\.py:\d+ in forgets") as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "deadlocked"
            await eventually(lambda: not is_in_memory(runtime, "r"))
            assert await run.cancel() == "requested"
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10, wait_blocked=True)

    run_async(main())


def test_diverged_code_is_parked_and_goes_on_with_the_right_code() -> None:
    async def main() -> None:
        make = on_one_store()

        @workflow(name="agent")
        async def before() -> int:
            return await work(1) + await perdure.receive("go", int) + await work(3)

        @workflow(name="agent")
        async def after() -> int:
            return await clean_up() == "" and await perdure.receive("go", int) + await work(3)

        async with make(before) as runtime:
            run: Run[int] = await runtime.start(before.call(), id="r")
            await eventually(lambda: CALLS == [1])
            await eventually(lambda: has_kind(run, "step.completed"))
        async with make(after) as runtime:
            run = await runtime.get("r")
            await run.send("go", 2)
            with pytest.raises(RunBlockedError, match="the history has step 'work' as call 0 of task 0") as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "diverged"
            assert CALLS == [1]
        async with make(before) as runtime:
            run = await runtime.get("r")
            await run.unblock("retry")
            assert await run.result(timeout=10, wait_blocked=True) == 6

    run_async(main())


def test_input_that_does_not_fit_the_code_any_more_parks_the_run() -> None:
    async def main() -> None:
        make = on_one_store()

        @workflow(name="agent")
        async def before(it: str) -> str:
            return it + await perdure.receive("go", str)

        @workflow(name="agent")
        async def after(it: int) -> int:
            return it

        async with make(before) as runtime:
            await runtime.start(before.call("a"), id="r")
        async with make(after) as runtime:
            run = await runtime.get("r")
            with pytest.raises(RunBlockedError) as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "undecodable"
        async with make(before) as runtime:
            run = await runtime.get("r")
            await run.unblock("retry")
            await run.send("go", "b")
            assert await run.result(timeout=10, wait_blocked=True) == "ab"

    run_async(main())


INTERRUPTS: list[bool] = []


@workflow
async def interrupted() -> int:
    await work(1)
    if INTERRUPTS:
        INTERRUPTS.clear()
        raise KeyboardInterrupt
    return await work(2)


def test_keyboard_interrupt_in_a_turn_drops_the_run_unrecorded_and_harms_no_other() -> None:
    make = on_one_store()
    INTERRUPTS[:] = [True]

    async def first() -> None:
        async with make(interrupted, waiter) as runtime:
            await runtime.start(waiter.call(), id="other")
            await runtime.start(interrupted.call(), id="r")
            await asyncio.Event().wait()

    async def second() -> None:
        async with make(interrupted, waiter) as runtime:
            assert await (await runtime.get("r")).result(timeout=10) == 2
            other = await runtime.get("other")
            await other.send("go", "on")
            assert await other.result(timeout=10) == "on"

    with pytest.raises(KeyboardInterrupt):
        run_async(first())
    run_async(second())
    assert CALLS == [1, 2]


async def hosted_and_interrupted() -> int:
    await work(1)
    if INTERRUPTS:
        INTERRUPTS.clear()
        raise KeyboardInterrupt
    return await work(2)


@workflow
async def hosts_an_interrupt() -> int:
    return int(await perdure.section("crew").run(hosted_and_interrupted))


def test_keyboard_interrupt_in_hosted_code_drops_the_run_unrecorded() -> None:
    make = on_one_store()
    INTERRUPTS[:] = [True]

    async def first() -> None:
        async with make(hosts_an_interrupt) as runtime:
            await runtime.start(hosts_an_interrupt.call(), id="r")
            await asyncio.Event().wait()

    async def second() -> None:
        async with make(hosts_an_interrupt) as runtime:
            run = await runtime.get("r")
            assert await run.result(timeout=10) == 2
            assert "run.failed" not in await kinds(run)

    with pytest.raises(KeyboardInterrupt):
        run_async(first())
    run_async(second())
    assert CALLS == [1, 2]


async def exits() -> None:
    raise SystemExit(3)


@workflow
async def hosts_an_exit() -> None:
    await perdure.section("crew").run(exits)


def test_sys_exit_in_hosted_code_ends_the_run_and_not_the_worker() -> None:
    """As in a workflow of its own, and as in a step: nobody has asked this process to stop."""

    async def main() -> None:
        async with on_one_store()(hosts_an_exit) as runtime:
            run = await runtime.start(hosts_an_exit.call())
            with pytest.raises(StepError, match="SystemExit: 3"):
                await run.result(timeout=10)

    run_async(main())


# ── replay-aware logging ────────────────────────────────────────────────────────────────────


def test_five_replays_of_a_ten_step_run_log_each_line_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "told")
    log = perdure.logger("told")

    @workflow(name="w")
    async def tells() -> None:
        for n in range(10):
            await work(n)
            log.info("step %d", n)
            if n % 2:
                await perdure.receive("go")

    async def main() -> None:
        async with on_one_store()(tells) as runtime:
            run = await runtime.start(tells.call(), id="r")
            for n in range(5):
                await eventually(lambda n=n: len(CALLS) == 2 * n + 2)  # type: ignore[misc]
                await eventually(lambda: is_in_memory(runtime, "r"))
                await let_go(runtime, "r")
                await run.send("go")
            await run.result(timeout=10)

    run_async(main())
    assert [record.getMessage() for record in caplog.records] == [f"step {n}" for n in range(10)]


# ── the same id twice, in one store with a client of its own ────────────────────────────────


def test_a_client_controls_runs_that_others_execute() -> None:
    store = MemoryStore()

    async def main() -> None:
        async with (
            Runtime(store.again(), workflows=[waiter]) as runtime,
            Client(store.again(), workflows=[waiter]) as client,
        ):
            run = await client.start(waiter.call(), id="r")
            await run.send("go", "by the client")
            assert await run.result(timeout=10) == "by the client"
            assert await (await runtime.get("r")).status() is Status.COMPLETED

    run_async(main())


def test_a_handle_that_is_not_open_says_so() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=r"use it as `async with Client\(\.\.\.\) as \.\.\.:`"):
            await Client(MemoryStore()).get("r")
        with pytest.raises(UsageError, match="this Runtime is not open"):
            await Runtime(MemoryStore()).drain()

    run_async(main())

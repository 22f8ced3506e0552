"""Child runs: ids, cancelling, attaching, conflicts; what becomes of them when their parent ends or dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import Run, RunCancelledError, RunConflictError, Runtime, Status, step, workflow

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


@step
async def work(item: int) -> int:
    CALLS.append(item)
    return item


@workflow
async def child(item: int) -> int:
    return await work(item)


@workflow
async def waiting_child(name: str) -> str:
    try:
        return str(await perdure.receive("go"))
    finally:
        CALLS.append(f"{name} leaves")


@workflow
async def failing_child() -> int:
    raise ValueError("the child's own")


async def status_is(runtime: Runtime, id: str, status: Status) -> bool:
    try:
        return await (await runtime.get(id)).status() is status
    except perdure.UnknownNameError:
        return False


# ── results ─────────────────────────────────────────────────────────────────────────────────


@workflow
async def parent() -> list[Any]:
    results: list[Any] = [await child(1)]
    results += await asyncio.gather(child(2), child(3))
    try:
        await failing_child()
    except ValueError as error:
        results.append(str(error))
    return results


def test_children_give_their_results_and_raise_their_failures() -> None:
    async def main() -> None:
        async with on_one_store()(parent, child, failing_child) as runtime:
            run = await runtime.start(parent.call(), id="p")
            assert await run.result(timeout=10) == [1, 2, 3, "the child's own"]
            ids = {summary.id: summary.parent for summary in await runtime.list()}
            assert ids == {
                "p": None, "p/0.child.0": "p", "p/0.1.child.0": "p", "p/0.2.child.0": "p", "p/0.failing_child.1": "p",
            }  # fmt: skip

    run_async(main())


@workflow
async def awaits(name: str) -> str:
    return await waiting_child(name)


def test_a_child_that_nobody_executes_does_not_wait_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Said once; and not where another worker on the store executes it."""

    @workflow
    async def twice() -> list[int]:
        return list(await asyncio.gather(child(1), child(2)))

    async def main() -> None:
        make = on_one_store()
        async with make(twice) as runtime:
            run = await runtime.start(twice.call())
            await eventually(lambda: "waits for a child, child version 1, that no worker executes" in caplog.text)
            async with make(child):
                assert await run.result(timeout=30) == [1, 2]
                async with make(twice) as again:
                    assert await (await again.start(twice.call())).result(timeout=30) == [1, 2]

    run_async(main())
    assert caplog.text.count("that no worker executes") == 1


def test_a_parked_parent_hears_of_its_parked_childs_end() -> None:
    async def main() -> None:
        async with on_one_store(evict_after=0)(awaits, waiting_child) as runtime:
            run = await runtime.start(awaits.call("c"), id="p")
            await eventually(lambda: status_is(runtime, "p", Status.WAITING))
            await eventually(lambda: status_is(runtime, "p/0.waiting_child.0", Status.WAITING))
            assert (await run.summary()).reason == "child"
            assert not is_in_memory(runtime, "p")
            await (await runtime.get("p/0.waiting_child.0")).send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())


# ── cancelling ──────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_parent_ends_after_its_child() -> None:
    async def main() -> None:
        async with on_one_store()(awaits, waiting_child) as runtime:
            run = await runtime.start(awaits.call("c"), id="p")
            await eventually(lambda: status_is(runtime, "p/0.waiting_child.0", Status.RUNNING))
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)
            theirs = await runtime.get("p/0.waiting_child.0")
            assert await theirs.status() is Status.CANCELLED
            assert CALLS == ["c leaves"]

    run_async(main())


@workflow
async def in_time() -> str:
    try:
        async with asyncio.timeout(0.01):
            return await waiting_child("late")
    except TimeoutError:
        return f"went on, {await work(1)}"


def test_a_timeout_around_a_child_cancels_it_and_goes_on() -> None:
    async def main() -> None:
        async with on_one_store()(in_time, waiting_child) as runtime:
            run = await runtime.start(in_time.call(), id="p")
            assert await run.result(timeout=10) == "went on, 1"
            assert await (await runtime.get("p/0.waiting_child.0")).status() is Status.CANCELLED

    run_async(main())


@workflow
async def at_once_too_late() -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(waiting_child("never started"))
            group.create_task(fails())
    except ExceptionGroup:
        return "failed at once"
    return ""


async def fails() -> None:
    raise ValueError


def test_a_child_cancelled_in_the_turn_that_asked_for_it_is_never_started_and_not_waited_for() -> None:
    async def main() -> None:
        async with on_one_store()(at_once_too_late, waiting_child) as runtime:
            run = await runtime.start(at_once_too_late.call(), id="p")
            assert await run.result(timeout=10) == "failed at once"
            assert [summary.id for summary in await runtime.list()] == ["p"]

    run_async(main())


@workflow
async def ends_first(on_cancel: str) -> str:
    await perdure.start(waiting_child.call("c"), id="c", on_cancel=on_cancel)  # type: ignore[arg-type]
    await work(1)
    return "over"


def test_a_child_still_running_at_the_end_is_cancelled_and_waited_for() -> None:
    async def main() -> None:
        async with on_one_store()(ends_first, waiting_child) as runtime:
            run = await runtime.start(ends_first.call("wait"), id="p")
            assert await run.result(timeout=10) == "over"
            assert await (await runtime.get("c")).status() is Status.CANCELLED

    run_async(main())


def test_an_abandoned_child_outlives_its_parent() -> None:
    async def main() -> None:
        async with on_one_store()(ends_first, waiting_child) as runtime:
            run = await runtime.start(ends_first.call("abandon"), id="p")
            assert await run.result(timeout=10) == "over"
            theirs = await runtime.get("c")
            await theirs.send("go", "alone")
            assert await theirs.result(timeout=10) == "alone"

    run_async(main())


def test_a_parent_cancelled_by_force_ends_without_its_children() -> None:
    async def main() -> None:
        async with on_one_store()(awaits, waiting_child) as runtime:
            run = await runtime.start(awaits.call("c"), id="p")
            await eventually(lambda: status_is(runtime, "p/0.waiting_child.0", Status.RUNNING))
            await run.cancel(force=True)
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)

    run_async(main())


def test_a_parent_that_waits_for_its_cancelled_child_can_leave_memory() -> None:
    """The child's cleanup may take days: the parent must not wait for it in memory, and must not be taken for dead."""

    async def main() -> None:
        async with on_one_store()(awaits, slow_to_go, awaits_slow) as runtime:
            run = await runtime.start(awaits_slow.call(), id="p")
            await eventually(lambda: status_is(runtime, "p/0.slow_to_go.0", Status.RUNNING))
            await run.cancel()
            await eventually(lambda: has_kind(run, "call.cancelled"))
            await eventually(lambda: CALLS == ["cleaning"])
            await let_go(runtime, "p")
            assert (await run.summary()).reason == "child"
            await (await runtime.get("p/0.slow_to_go.0")).send("clean")
            with pytest.raises(RunCancelledError):
                await run.result(timeout=10)

    run_async(main())


@workflow
async def slow_to_go() -> None:
    try:
        await perdure.receive("go")
    finally:
        CALLS.append("cleaning")
        await perdure.receive("clean")


@workflow
async def awaits_slow() -> None:
    await slow_to_go()


async def has_kind(run: Run[Any], kind: str) -> bool:
    return kind in await kinds(run)


# ── ids ─────────────────────────────────────────────────────────────────────────────────────


@workflow
async def starts(id: str, item: int) -> int:
    return await (await perdure.start(child.call(item), id=id)).result()


def test_a_child_attaches_to_a_run_of_the_same_work() -> None:
    async def main() -> None:
        async with on_one_store()(starts, child) as runtime:
            assert await (await runtime.start(child.call(5), id="c")).result(timeout=10) == 5
            run = await runtime.start(starts.call("c", 5), id="p")
            assert await run.result(timeout=10) == 5
            assert CALLS == [5]
            started = next(h for h in await run.history() if h.kind == "child.started")
            assert started.event.attached  # type: ignore[attr-defined]

    run_async(main())


def test_a_child_whose_id_belongs_to_other_work_raises_a_conflict_in_the_code() -> None:
    async def main() -> None:
        async with on_one_store()(starts, child) as runtime:
            await (await runtime.start(child.call(4), id="c")).result(timeout=10)
            run = await runtime.start(starts.call("c", 5), id="p")
            with pytest.raises(RunConflictError, match="give the child another id"):
                await run.result(timeout=10)
            assert CALLS == [4]

    run_async(main())


@pytest.mark.parametrize(("second", "result"), [(5, 5), (6, RunConflictError)])
def test_two_children_of_one_id_in_one_turn(second: int, result: Any) -> None:
    async def main() -> None:
        async with on_one_store()(twice, child) as runtime:
            run = await runtime.start(twice.call(5, second), id="p")
            assert await run.result(timeout=10) == [5, result if isinstance(result, int) else result.__name__]
            assert CALLS == [5]
            assert len(await runtime.list()) == 2

    run_async(main())


@workflow
async def twice(first: int, second: int) -> list[Any]:
    one = await perdure.start(child.call(first), id="c")
    other = await perdure.start(child.call(second), id="c")
    results: list[Any] = []
    for handle in (one, other):
        try:
            results.append(await handle.result())
        except Exception as error:
            results.append(type(error).__name__)
    return results


# ── death ───────────────────────────────────────────────────────────────────────────────────


def test_a_parent_whose_process_died_goes_on_with_the_child_it_had_started() -> None:
    async def main() -> None:
        make = on_one_store(lease=1000)
        first = make(awaits, waiting_child)
        await first.__aenter__()
        await first.start(awaits.call("c"), id="p")
        await eventually(lambda: status_is(first, "p/0.waiting_child.0", Status.RUNNING))
        host_of(first).store.kill(host_of(first).worker)  # type: ignore[attr-defined]
        async with make(awaits, waiting_child) as second:
            await eventually(lambda: is_in_memory(second, "p/0.waiting_child.0"))
            theirs = await second.get("p/0.waiting_child.0")
            await theirs.send("go", "taken over")
            assert await (await second.get("p")).result(timeout=10) == "taken over"
            assert len(await second.list()) == 2
        await first.__aexit__(None, None, None)

    run_async(main())


# ── workers that adopt only their own ───────────────────────────────────────────────────────


@pytest.mark.parametrize("adopt", ["own", "none"])
def test_who_continues_a_run_continues_its_children(adopt: Any) -> None:
    async def main() -> None:
        make = on_one_store(evict_after=0)
        async with make(awaits, waiting_child, adopt=adopt) as runtime:
            run = await runtime.start(awaits.call("c"), id="p")
            await eventually(lambda: status_is(runtime, "p/0.waiting_child.0", Status.WAITING))
            await (await runtime.get("p/0.waiting_child.0")).send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())


def test_who_attaches_to_a_run_continues_its_children_after_a_restart() -> None:
    async def main() -> None:
        make = on_one_store(adopt="own")
        async with make(awaits, waiting_child) as runtime:
            await runtime.start(awaits.call("c"), id="p")
            await eventually(lambda: status_is(runtime, "p/0.waiting_child.0", Status.RUNNING))
        async with make(awaits, waiting_child) as runtime:
            run = await runtime.start(awaits.call("c"), id="p")
            assert run.how == "attached"
            await (await runtime.get("p/0.waiting_child.0")).send("go", "on")
            assert await run.result(timeout=10) == "on"

    run_async(main())

"""Opening, sharing and leaving a Runtime: loops, threads, lifespan, drain, shutdown, adoption, many parked runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop
from tests.runtime.hosting import eventually, host_of, is_in_memory, on_one_store, run_async

import perdure
from perdure import Client, Retry, Run, Runtime, Status, UsageError, Worker, step, workflow
from perdure.runtime.beginnings import new_run
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


@step
async def hangs() -> int:
    CALLS.append("hangs")
    await asyncio.Event().wait()
    return 1


@step(retry=Retry(max_attempts=1))
def blocks(seconds: float) -> int:
    CALLS.append("blocks")
    RELEASE.wait(seconds)
    return 1


RELEASE = threading.Event()


@workflow
async def adds(first: int) -> int:
    return first + await work(1)


@workflow
async def sleeps() -> str:
    await perdure.sleep(300)
    return "slept"


@workflow
async def waits() -> str:
    return await perdure.receive("go", str)


@workflow
async def is_at_work() -> int:
    return await hangs()


@workflow
async def is_blocking() -> int:
    return await blocks.call(60)


async def waiting_for(run: Run[Any], reason: str) -> bool:
    return (await run.summary()).reason == reason


# ── loops ───────────────────────────────────────────────────────────────────────────────────


def test_one_runtime_object_under_one_loop_after_another_and_in_a_thread(tmp_path: Path) -> None:
    runtime = Runtime(str(tmp_path / "runs.db"), workflows=[adds])

    async def once(first: int) -> int:
        async with runtime:
            return await (await runtime.start(adds.call(first))).result(timeout=20)

    assert asyncio.run(once(1)) == 2
    assert asyncio.run(once(2)) == 3
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(once(3))))
    thread.start()
    thread.join(30)
    assert results == [4]


def test_two_runtimes_on_two_loops_at_the_same_time(tmp_path: Path) -> None:
    async def once(first: int) -> int:
        async with Runtime(str(tmp_path / "runs.db"), workflows=[adds]) as runtime:
            runs = [await runtime.start(adds.call(first + n)) for n in range(5)]
            return sum(await asyncio.gather(*(run.result(timeout=20) for run in runs)))

    results: list[int] = []

    def in_a_loop_of_its_own(first: int) -> None:
        results.append(asyncio.run(once(first)))

    threads = [threading.Thread(target=in_a_loop_of_its_own, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [15, 515]


def test_uvloop() -> None:
    async def main() -> int:
        async with on_one_store()(adds, sleeps) as runtime:
            await runtime.start(sleeps.call())
            results = [await (await runtime.start(adds.call(n))).result(timeout=20) for n in range(20)]
            return sum(results)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == 210


def test_a_runtime_that_is_not_open_executes_nothing() -> None:
    async def main() -> None:
        runtime = on_one_store()(adds)
        with pytest.raises(UsageError, match="as `async with"):
            await runtime.start(adds.call(1))

    run_async(main())


def test_a_runtime_that_is_open_cannot_be_opened_once_more() -> None:
    async def main() -> None:
        async with on_one_store()(adds) as runtime:
            with pytest.raises(UsageError, match="this Runtime is open already"):
                await runtime.__aenter__()
            assert await (await runtime.start(adds.call(1))).result(timeout=10) == 2

    run_async(main())


@pytest.mark.parametrize("kind", [Runtime, Client])
def test_a_loop_that_is_not_asyncios_is_refused(kind: type[Client]) -> None:
    """Such as trio's: pytest with anyio runs tests on both."""
    with pytest.raises(UsageError, match=f"a {kind.__name__} is opened on asyncio's loop, and here runs another one"):
        kind(":memory:").__aenter__().send(None)


def test_leaving_a_runtime_leaves_asyncio_as_it_was() -> None:
    originals = (asyncio.wait_for, asyncio.as_completed)

    async def main() -> None:
        async with on_one_store()(adds):
            assert asyncio.wait_for is not originals[0]

    run_async(main())
    assert (asyncio.wait_for, asyncio.as_completed) == originals


# ── leaving ─────────────────────────────────────────────────────────────────────────────────


def test_leaving_takes_less_than_two_seconds_names_what_is_unfinished_and_fails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(sleeps, waits, is_at_work, adds) as runtime:
            await runtime.start(sleeps.call(), id="sleeper")
            await runtime.start(waits.call(), id="waiter")
            await runtime.start(is_at_work.call(), id="worker")
            await (await runtime.start(adds.call(1), id="finished")).result(timeout=10)
            await eventually(lambda: CALLS == [1, "hangs"] or CALLS == ["hangs", 1])
            began = time.monotonic()
        assert time.monotonic() - began < 2
        assert runtime.unfinished == ["sleeper", "waiter", "worker"]
        assert "leaving with 3 unfinished run(s): sleeper, waiter, worker" in caplog.text

        async with make(sleeps, waits, is_at_work, adds, adopt="none") as runtime:
            assert {summary.id for summary in await runtime.list(status="failed")} == set()
            assert {summary.id for summary in await runtime.list(status="completed")} == {"finished"}
        CALLS.clear()
        async with make(sleeps, waits, is_at_work, adds) as runtime:
            await eventually(lambda: CALLS == ["hangs"])
            await (await runtime.get("waiter")).send("go", "on")
            assert await (await runtime.get("waiter")).result(timeout=10) == "on"

    run_async(main())


def test_a_sleep_goes_on_from_its_deadline_on_the_next_start() -> None:
    clock = FakeClock()

    async def main() -> None:
        make = on_one_store(clock=clock)
        async with make(sleeps) as runtime:
            await runtime.start(sleeps.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
        clock.advance(299)
        async with make(sleeps) as runtime:
            run = await runtime.get("r")
            assert await run.status() is Status.WAITING
            clock.advance(1)
            assert await run.result(timeout=10) == "slept"

    run_async(main())


def test_leaving_does_not_wait_for_a_plain_function() -> None:
    RELEASE.clear()

    async def main() -> float:
        async with on_one_store()(is_blocking) as runtime:
            await runtime.start(is_blocking.call())
            await eventually(lambda: CALLS == ["blocks"])
            began = time.monotonic()
        return time.monotonic() - began

    assert run_async(main()) < 2
    RELEASE.set()


def test_cancelled_steps_of_a_worker_that_leaves_do_not_count_as_failed() -> None:
    async def main() -> None:
        make = on_one_store()
        for _ in range(5):
            CALLS.clear()
            async with make(is_at_work) as runtime:
                run = await runtime.start(is_at_work.call(), id="r")
                await eventually(lambda: CALLS == ["hangs"])
        async with make(adopt="none") as runtime:
            run = await runtime.get("r")
            assert [h.kind for h in await run.history() if "attempt" in h.kind or "failed" in h.kind] == []

    run_async(main())


def test_an_error_in_the_program_leaves_runs_as_they_are() -> None:
    async def main() -> None:
        make = on_one_store()

        async def breaks() -> None:
            async with make(waits) as runtime:
                await runtime.start(waits.call(), id="r")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await breaks()
        async with make(waits) as runtime:
            run = await runtime.get("r")
            await run.send("go", "fine")
            assert await run.result(timeout=10) == "fine"

    run_async(main())


async def cancelled_by_a_scope(serving: Coroutine[Any, Any, None], begun: asyncio.Event) -> None:
    """anyio cancels at every `await` of a scope, as long as that is not left."""
    with anyio.CancelScope() as scope:
        waiting = asyncio.create_task(begun.wait())
        waiting.add_done_callback(lambda _: scope.cancel())
        await serving


async def cancelled_until_it_ends(serving: Coroutine[Any, Any, None], begun: asyncio.Event) -> None:
    task = asyncio.create_task(serving)
    await begun.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("cancelled", [cancelled_by_a_scope, cancelled_until_it_ends])
def test_who_is_cancelled_while_it_leaves_leaves_all_the_same(
    cancelled: Callable[[Coroutine[Any, Any, None], asyncio.Event], Coroutine[Any, Any, None]],
) -> None:
    """Half way out, its lease would go on and keep its runs from everybody else, as long as the process lives."""

    async def main() -> None:
        make = on_one_store()
        first, begun = make(waits), asyncio.Event()

        async def serves() -> None:
            async with first:
                await first.start(waits.call(), id="r")
                begun.set()
                await asyncio.Event().wait()

        await cancelled(serves(), begun)
        assert not first.is_open
        async with make(waits) as second:
            run = await second.get("r")
            await run.send("go", "fine")
            assert await run.result(timeout=5) == "fine"

    run_async(main())


# ── drain, serve, lifespan ──────────────────────────────────────────────────────────────────


def test_drain_does_what_is_due_and_comes_back() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(adds, waits, adopt="none") as runtime:
            pass
        async with make(adds, waits) as runtime:
            for n in range(10):
                await runtime.start(adds.call(n))
            await runtime.start(waits.call(), id="w")
            await runtime.drain()
            assert len(await runtime.list(status="completed")) == 10
            assert await (await runtime.get("w")).status() in {Status.WAITING, Status.RUNNING}

    run_async(main())


def test_drain_comes_back_when_its_time_is_over() -> None:
    async def main() -> int:
        async with on_one_store()(is_at_work) as runtime:
            await runtime.start(is_at_work.call())
            await eventually(lambda: CALLS == ["hangs"])
            return await runtime.drain(max_seconds=timedelta(milliseconds=20))

    assert run_async(main()) == 1


def test_a_worker_serves_until_it_is_cancelled() -> None:
    async def main() -> None:
        store = MemoryStore()
        serving = asyncio.create_task(Worker(store.again(), workflows=[adds]).serve())
        async with perdure.Client(store.again(), workflows=[adds]) as client:
            run = await client.start(adds.call(4))
            assert await run.result(timeout=10) == 5
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    run_async(main())


def test_lifespan_opens_the_runtime_for_handlers() -> None:
    starlette = pytest.importorskip("starlette.applications")
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def handle(request: Request) -> JSONResponse:
        runtime: Runtime = request.state.runtime
        run = await runtime.start(adds.call(int(request.query_params["n"])))
        return JSONResponse(await run.result(timeout=10))

    app = starlette.Starlette(routes=[Route("/", handle)], lifespan=perdure.lifespan(on_one_store()(adds)))
    assert run_async(ask_twice(app)) == [b"2", b"3"]


async def ask_twice(app: Any) -> list[bytes]:
    """The lifespan protocol and two requests, spoken by hand."""
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    state: dict[str, Any] = {}
    living = asyncio.create_task(app({"type": "lifespan", "state": state}, to_app.get, from_app.put))
    to_app.put_nowait({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    answers = [await ask(app, state, n) for n in (1, 2)]
    to_app.put_nowait({"type": "lifespan.shutdown"})
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    await living
    return answers


async def ask(app: Any, state: dict[str, Any], n: int) -> bytes:
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"n=%d" % n, "headers": [], "state": dict(state),
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent)


# ── adoption ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("adopt", "starts_again", "goes_on"),
    [("all", False, True), ("own", False, False), ("own", True, True), ("none", False, False)],
)
def test_who_continues_what_lies_in_the_store(adopt: Any, starts_again: bool, goes_on: bool) -> None:
    clock = FakeClock()

    async def main() -> None:
        make = on_one_store(clock=clock)
        async with make(sleeps) as runtime:
            await runtime.start(sleeps.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
        clock.advance(1000)
        async with make(sleeps, adds, adopt=adopt) as runtime:
            if starts_again:
                await runtime.start(sleeps.call(), id="r")
            await (await runtime.start(adds.call(1))).result(timeout=10)
            await runtime.drain()
            assert await (await runtime.get("r")).status() is (Status.COMPLETED if goes_on else Status.WAITING)

    run_async(main())


def test_a_worker_that_does_not_know_the_workflow_leaves_it_to_one_that_does() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(waits) as runtime:
            await runtime.start(waits.call(), id="r")
        async with make(adds) as stranger:
            await (await stranger.get("r")).send("go", "later")
            await stranger.drain()
            assert not is_in_memory(stranger, "r")
        async with make(waits) as runtime:
            assert await (await runtime.get("r")).result(timeout=10) == "later"

    run_async(main())


def test_a_newer_version_that_replays_an_older_one_continues_its_runs() -> None:
    @workflow(name="agent", version=1)
    async def first() -> str:
        return await perdure.receive("go", str)

    @workflow(name="agent", version=2)
    async def second() -> str:
        return "second " + await perdure.receive("go", str)

    @workflow(name="agent", version=3, replays={1})
    async def third() -> str:
        return "third " + await perdure.receive("go", str)

    async def main() -> None:
        make = on_one_store()
        async with make(first) as runtime:
            await runtime.start(first.call(), id="r")
            await eventually(lambda: is_in_memory(runtime, "r"))
        async with make(second) as runtime:
            await (await runtime.get("r")).send("go", "on")
            await runtime.drain()
            assert await (await runtime.get("r")).status() is Status.WAITING
        async with make(second, third) as runtime:
            assert await (await runtime.get("r")).result(timeout=10) == "third on"

    run_async(main())


def test_a_second_worker_beside_a_healthy_one_disturbs_nothing() -> None:
    """Also not when it starts, looks around and leaves, again and again."""

    async def main() -> None:
        make = on_one_store()
        async with make(is_at_work, adds) as first:
            await first.start(is_at_work.call(), id="r")
            await eventually(lambda: CALLS == ["hangs"])
            for n in range(5):
                async with make(is_at_work, adds) as second:
                    assert await (await second.start(adds.call(n))).result(timeout=10) == n + 1
                    await second.drain()
            assert is_in_memory(first, "r")
            assert CALLS.count("hangs") == 1
            recorded = [h.kind for h in await (await first.get("r")).history()]
            assert "run.taken_over" not in recorded

    run_async(main())


# ── many parked runs ────────────────────────────────────────────────────────────────────────

PARKED = 10_000


def test_ten_thousand_parked_runs_cost_nothing() -> None:
    """They are rows: no task, no thread, no object each; and a worker that starts does not load them."""
    store = MemoryStore()
    fill(store, PARKED)

    async def main() -> None:
        async with Runtime(store, workflows=[waits, adds]) as runtime:
            await (await runtime.start(adds.call(1))).result(timeout=30)
            await runtime.drain()
            gc.collect()
            tasks, threads = len(asyncio.all_tasks()), threading.active_count()
            tracemalloc.start()
            await (await runtime.start(adds.call(1))).result(timeout=30)
            await asyncio.sleep(0.1)
            grown, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert tasks < 10
            assert threads < 10
            assert grown < 1_000_000
            assert host_of(runtime).turns.live == {}
            run = await runtime.get(f"parked-{PARKED - 1}")
            await run.send("go", "on")
            assert await run.result(timeout=30) == "on"

    run_async(main())


def fill(store: MemoryStore, runs: int) -> None:
    """So many runs that wait for a message."""
    now = time.time_ns() // 1_000
    new = (new_run(waits.spec, f"parked-{n}", b"{}", now=now) for n in range(runs))
    for run in new:
        store.commit([run._replace(due_at=None)])

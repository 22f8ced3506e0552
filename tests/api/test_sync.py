"""The blocking client: the same calls without `await`, from threads, under a loop, once more, and after a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Client, Run, Runtime, Status, UnknownNameError, UsageError, step, workflow
from perdure.api.sync import SyncClient
from perdure.errors import ForkedError, StoreFormatError
from perdure.store import open_store

called_from: list[int] = []
handed: list[SyncClient] = []


@step
async def where() -> int:
    called_from.append(threading.get_ident())
    return 1


@workflow
async def agent(text: str) -> str:
    await where()
    perdure.set_state({"text": text})
    answer: str = await perdure.receive("answer", str)
    return f"{text} {answer}"


@workflow
async def broken() -> None:
    raise ValueError("broken on purpose")


@workflow
async def hopeless() -> None:
    await asyncio.Event().wait()


ALL = [agent, broken, hopeless]


@pytest.fixture
def sync() -> Iterator[SyncClient]:
    with Runtime(open_store(":memory:"), workflows=ALL).sync() as client:
        yield client


# ── the calls ───────────────────────────────────────────────────────────────────────────────


def test_start_send_and_wait(sync: SyncClient) -> None:
    run = sync.start(agent.call("hello"), id="a", tags={"to": "you"})
    run.send("answer", "world")
    assert run.result(timeout=10) == "hello world"
    assert (run.id, run.how, run.status()) == ("a", "started", Status.COMPLETED)
    assert run.state() == {"text": "hello"}
    assert run.summary().tags == {"to": "you"}
    assert [event.kind for event in run.history()][-1] == "run.completed"
    assert [summary.id for summary in sync.list(status="completed")] == ["a"]
    assert sync.get("a").result() == "hello world"
    assert sync.start(agent.call("hello"), id="a").how == "finished earlier"


def test_what_the_workflow_raised_is_raised(sync: SyncClient) -> None:
    with pytest.raises(ValueError, match="broken on purpose"):
        sync.start(broken.call()).result(timeout=10)
    with pytest.raises(UnknownNameError, match="no run 'x'"):
        sync.get("x")


def test_waiting_no_longer_than_wanted(sync: SyncClient) -> None:
    run = sync.start(agent.call("hello"))
    with pytest.raises(TimeoutError):
        run.result(timeout=0.05)
    assert not run.status().is_final


def test_pause_resume_and_cancel(sync: SyncClient) -> None:
    run = sync.start(agent.call("hello"))
    run.pause()
    run.resume()
    assert run.cancel() == "requested"
    with pytest.raises(perdure.RunCancelledError):
        run.result(timeout=10)
    assert run.cancel() == "cancelled"


def test_the_inbox(sync: SyncClient) -> None:
    run = sync.start(hopeless.call())
    with pytest.raises(perdure.RunBlockedError):
        run.result(timeout=10)
    (entry,) = sync.inbox()
    assert entry.reason == "deadlocked"
    run.unblock("fail")
    with pytest.raises(perdure.StepError):
        run.result(wait_blocked=True, timeout=10)


def test_steps_run_on_the_thread_of_its_own(sync: SyncClient) -> None:
    called_from.clear()
    run = sync.start(agent.call("hello"))
    run.send("answer", "world")
    run.result(timeout=10)
    assert called_from[0] != threading.get_ident()


def test_a_client_that_executes_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    with Client(url).sync() as client, Runtime(url, workflows=ALL).sync():
        run = client.start(agent.call("hello"))
        run.send("answer", "world")
        assert run.result(timeout=10) == "hello world"


def test_many_threads_at_once(sync: SyncClient) -> None:
    def one(number: int) -> str:
        run = sync.start(agent.call(str(number)))
        run.send("answer", "!")
        return run.result(timeout=30)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(40))) == [f"{number} !" for number in range(40)]


# ── where it is called ──────────────────────────────────────────────────────────────────────


def test_under_a_running_loop_it_works() -> None:
    async def notebook_cell() -> str:
        with Runtime(open_store(":memory:"), workflows=ALL).sync() as client:
            run = client.start(agent.call("hello"))
            run.send("answer", "world")
            return run.result(timeout=10)

    assert asyncio.run(notebook_cell()) == "hello world"


def test_one_object_in_two_loops_one_after_the_other_and_in_a_thread() -> None:
    runtime = Runtime(open_store(":memory:"), workflows=ALL)

    async def once(number: int) -> str:
        async with runtime:
            run = await runtime.start(agent.call(str(number)))
            await run.send("answer", "!")
            return await run.result(timeout=10)

    assert [asyncio.run(once(1)), asyncio.run(once(2))] == ["1 !", "2 !"]
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: asyncio.run(once(3))).result() == "3 !"
    with runtime.sync() as client:
        assert len(client.list()) == 3


CALLS: dict[str, Callable[[SyncClient], Any]] = {
    "start": lambda sync: sync.start(agent.call("x")),
    "get": lambda sync: sync.get("x"),
    "list": lambda sync: sync.list(),
    "inbox": lambda sync: sync.inbox(),
}


@workflow(name="reaches out")
async def reaches_out(name: str) -> str:
    try:
        CALLS[name](handed[0])
    except UsageError as error:
        return str(error)
    return "allowed"


@pytest.mark.parametrize("name", CALLS)
def test_in_workflow_code_it_is_refused(name: str, sync: SyncClient) -> None:
    handed[:] = [sync]
    with Runtime(open_store(":memory:"), workflows=[reaches_out]).sync() as other:
        said = other.start(reaches_out.call(name)).result(timeout=10)
    assert f"client.sync().{name}() in workflow code: move it into a step" in said


def test_on_its_own_loop_it_names_the_call_to_await() -> None:
    @step
    async def calls_back() -> str:
        with pytest.raises(UsageError, match=r"`await client\.list\(\.\.\.\)` there"):
            handed[0].list()
        return "refused"

    @workflow
    async def loops_back() -> str:
        return await calls_back()

    with Runtime(open_store(":memory:"), workflows=[loops_back]).sync() as client:
        handed[:] = [client]
        assert client.start(loops_back.call()).result(timeout=10) == "refused"


def test_a_def_step_may_use_it() -> None:
    @step
    def counts() -> int:
        return len(handed[0].list())

    @workflow
    async def counting() -> int:
        return await counts.call()

    with Runtime(open_store(":memory:"), workflows=[counting]).sync() as client:
        handed[:] = [client]
        assert client.start(counting.call()).result(timeout=10) == 1


# ── open and closed ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CALLS)
def test_closed_it_says_how_to_open_it(name: str) -> None:
    sync = Client(":memory:").sync()
    with pytest.raises(UsageError, match=r"not open: use it as `with Client\(\.\.\.\)\.sync\(\) as client:`"):
        CALLS[name](sync)


def test_it_can_be_opened_again() -> None:
    sync = Runtime(open_store(":memory:"), workflows=ALL).sync()
    for number in range(2):
        with sync as client:
            client.start(agent.call("hello"), id=str(number))
    sync.close()
    assert len(sync.open().list()) == 2
    sync.close()


def test_twice_open_is_refused(sync: SyncClient) -> None:
    with pytest.raises(UsageError, match="open already"):
        sync.open()


def test_a_client_that_is_open_on_a_loop_is_refused() -> None:
    async def scenario() -> None:
        async with Client(":memory:") as client:
            with pytest.raises(UsageError, match="open on an event loop"):
                client.sync().open()

    asyncio.run(scenario())


def test_what_goes_wrong_on_opening_is_raised_and_leaves_it_closed(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear store," * 100)
    sync = Client(str(tmp_path / "letter.txt")).sync()
    for _ in range(2):
        with pytest.raises(StoreFormatError):
            sync.open()


def test_closing_ends_the_waiting_of_others() -> None:
    said: list[BaseException] = []
    client = Runtime(open_store(":memory:"), workflows=ALL).sync().open()
    run = client.start(agent.call("hello"))

    def wait() -> None:
        try:
            run.result()
        except UsageError as error:
            said.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "closed by another thread" in str(said[0]) or "not open" in str(said[0])


# ── forked ──────────────────────────────────────────────────────────────────────────────────


def in_a_child(action: Callable[[], Any]) -> str:
    """What comes of it in a forked process: the error's name and text, or the repr of what it gives."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(action())
        except BaseException as error:
            said = "".join(traceback.format_exception_only(error))
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_is_told_to_make_its_own(tmp_path: Path) -> None:
    url = str(tmp_path / "shop.db")
    with Client(url).sync() as client:
        for use in (client.list, client.open):
            assert ForkedError.__name__ in in_a_child(use)
        assert "make a new Client here" in in_a_child(client.list)
        assert in_a_child(client.close) == "None"
        assert client.list() == []


USES: dict[str, Callable[[Runtime, Run[str]], Coroutine[Any, Any, Any]]] = {
    "start": lambda runtime, _: runtime.start(agent.call("hello")),
    "send": lambda _, run: run.send("answer", "world"),
    "result": lambda _, run: run.result(),
    "drain": lambda runtime, _: runtime.drain(max_seconds=1),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("use", USES)
def test_a_runtime_that_was_opened_before_a_fork_is_refused_after_it(use: str) -> None:
    """With a loop of the child's own, too, as a server has that opens things before it forks."""

    async def main() -> str:
        async with Runtime(open_store(":memory:"), workflows=ALL) as runtime:
            run = await runtime.start(agent.call("hello"))
            return in_a_child(lambda: asyncio.run(USES[use](runtime, run)))

    said = asyncio.run(main())
    assert "ForkedError: this Runtime was opened before fork()" in said


@pytest.mark.parametrize("use", USES)
def test_a_runtime_is_refused_on_another_loop(use: str) -> None:
    async def main() -> None:
        async with Runtime(open_store(":memory:"), workflows=ALL) as runtime:
            run = await runtime.start(agent.call("hello"))
            with pytest.raises(UsageError, match=r"on another event loop.*run_coroutine_threadsafe.*\.sync\(\)"):
                await asyncio.to_thread(lambda: asyncio.run(USES[use](runtime, run)))
            await run.send("answer", "here")
            assert await run.result(timeout=30) == "hello here"

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_made_before_and_opened_after_fork_it_works(tmp_path: Path) -> None:
    sync = Client(str(tmp_path / "shop.db")).sync()
    assert in_a_child(lambda: sync.open().list()) == "[]"

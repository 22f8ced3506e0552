"""Hosted code (`def` workflows, sections) under schedules that lose, repeat or invent what it does.

Each test says the schedule in its docstring.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, live, on_one_store, run_async

import perdure
from perdure import Run, RunCancelledError, Runtime, step, workflow
from perdure.runtime import sections
from perdure.runtime.attempt import JOURNAL
from perdure.runtime.hosted.journal import Journal

DONE: list[str] = []
GATE = threading.Event()


@pytest.fixture(autouse=True)
def nothing_done_yet() -> Iterator[None]:
    DONE.clear()
    GATE.clear()
    yield
    GATE.set()


@pytest.fixture
def gives_threads_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.02)


def journal_of(runtime: Runtime, run_id: str) -> Journal | None:
    """The journal of the only section of a run that is in memory."""
    if not is_in_memory(runtime, run_id):
        return None
    found = host_of(runtime).turns.sections._of(live(runtime, run_id))  # pyright: ignore[reportPrivateUsage]
    return found[0] if found else None


async def until_it_waits(runtime: Runtime, run_id: str) -> Journal:
    def waits() -> bool:
        journal = journal_of(runtime, run_id)
        return journal is not None and bool(journal.requests)

    await eventually(waits, "hosted code waits in its journal")
    journal = journal_of(runtime, run_id)
    assert journal is not None
    return journal


async def until_suspended(runtime: Runtime, run_id: str) -> None:
    def is_suspended() -> bool:
        journal = journal_of(runtime, run_id)
        return journal is not None and journal.is_suspended

    await eventually(is_suspended, "the thread is given back")


async def only_child(runtime: Runtime, parent: str) -> Run[Any]:
    async def is_there() -> bool:
        return len(await runtime.list()) == 2

    await eventually(is_there, "the child is started")
    return await runtime.get(next(run.id for run in await runtime.list() if run.id != parent))


@step
def note(what: str) -> str:
    DONE.append(what)
    return what


@step
def wait_for_the_gate() -> None:
    GATE.wait(30)


def call(of: Any, *arguments: Any) -> Any:
    """A plain call of another workflow, as from a `def` workflow."""
    return JOURNAL.get().call_blocking(of, arguments, {})


# ── messages ────────────────────────────────────────────────────────────────────────────────


@workflow
def takes_two() -> list[str]:
    return [perdure.sync.receive("m", str), perdure.sync.receive("m", str)]


def test_two_messages_that_arrive_in_one_commit_are_both_received() -> None:
    """The function waits; two messages enter the history together, so both find it waiting."""
    make = on_one_store()

    async def main() -> list[str]:
        async with make(takes_two) as runtime:
            run = await runtime.start(takes_two.call(), id="a")
            await until_it_waits(runtime, "a")
            await asyncio.gather(run.send("m", "one"), run.send("m", "two"))
            return await run.result(timeout=20)

    assert run_async(main()) == ["one", "two"]


@workflow
def waits_a_little() -> list[str]:
    try:
        return [perdure.sync.receive("m", str, within=3600)]
    except TimeoutError:
        return ["too late", perdure.sync.receive("m", str)]


@pytest.mark.parametrize("first", ["time", "message"])
def test_a_message_and_the_end_of_its_wait_in_one_moment(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends while the taking of a message is not durable yet, or the other way round: one of them counts, and
    the message is not taken by a wait that was told of a timeout."""
    make = on_one_store()

    async def main() -> tuple[list[str], list[str]]:
        async with make(waits_a_little) as runtime:
            run = await runtime.start(waits_a_little.call(), id="a")
            journal = await until_it_waits(runtime, "a")
            await eventually(lambda: next(iter(journal.requests.values())).deadline is not None)
            request = next(iter(journal.requests.values()))
            deliver = host_of(runtime).turns.sections._message_came  # pyright: ignore[reportPrivateUsage]

            def both(*arguments: Any) -> None:
                if first == "time":
                    journal.waits._time_out(request)  # pyright: ignore[reportPrivateUsage]
                deliver(*arguments)
                if first == "message":
                    journal.waits._time_out(request)  # pyright: ignore[reportPrivateUsage]

            monkeypatch.setattr(host_of(runtime).turns.sections, "_message_came", both)
            await run.send("m", "the message")
            return await run.result(timeout=20), await kinds(run)

    result, history = run_async(main())
    assert result == (["too late", "the message"] if first == "time" else ["the message"])
    assert history.count("section.received") == 1


# ── being unwound ───────────────────────────────────────────────────────────────────────────


@workflow
def cleans_up_with_a_step() -> str:
    try:
        perdure.sync.receive("go")
    finally:
        note("cleaned up")
    return "went"


@workflow
def swallows_everything() -> str:
    try:
        perdure.sync.receive("go")
    except BaseException:
        return "swallowed"
    return "went"


@workflow
def fails_in_its_cleanup() -> str:
    try:
        perdure.sync.receive("go")
    finally:
        if sys.exc_info()[0] is not None:
            raise RuntimeError("in the cleanup")
    return "went"


@pytest.mark.parametrize("code", [cleans_up_with_a_step, swallows_everything, fails_in_its_cleanup])
@pytest.mark.usefixtures("gives_threads_back_at_once")
def test_what_code_does_with_being_unwound_is_no_step_and_no_outcome(code: Any) -> None:
    """A long wait gives the thread back: a `finally` that calls a step, swallows or raises must not be taken at its
    word; the wait goes on."""
    make = on_one_store(evict_after=60)

    async def main() -> str:
        async with make(code) as runtime:
            run = await runtime.start(code.call(), id="a")
            await until_suspended(runtime, "a")
            await eventually(lambda: not any(t.name == "perdure-section-a" for t in threading.enumerate()))
            assert DONE == []
            assert "section.ended" not in await kinds(run)
            await run.send("go")
            result: str = await run.result(timeout=20)
            return result

    assert run_async(main()) == "went"
    assert len(DONE) == (code is cleans_up_with_a_step)


@workflow
async def child() -> str:
    return await perdure.receive("finish", str)


@workflow
def waits_for_a_child() -> str:
    return str(call(child))


@pytest.mark.usefixtures("gives_threads_back_at_once")
def test_a_child_ends_while_the_thread_is_given_back_and_the_run_is_in_memory() -> None:
    """The thread waits for a child and is given back; the child ends before the run has left memory. Another message
    before that must not start the child again."""
    make = on_one_store(evict_after=60)

    async def main() -> tuple[str, list[str]]:
        async with make(waits_for_a_child, child) as runtime:
            run = await runtime.start(waits_for_a_child.call(), id="a")
            await until_suspended(runtime, "a")
            first = journal_of(runtime, "a")
            await run.send("something else")
            await eventually(lambda: journal_of(runtime, "a") is not first, "it is hosted again")
            await until_suspended(runtime, "a")
            await (await only_child(runtime, "a")).send("finish", "yes")
            return await run.result(timeout=20), await kinds(run)

    result, history = run_async(main())
    assert result == "yes"
    assert history.count("child.started") == 1


# ── children that must not be left alone ────────────────────────────────────────────────────


@workflow
async def awaits_a_child() -> str:
    return await child()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("parent", [waits_for_a_child, awaits_a_child])
def test_a_parent_that_is_cancelled_leaves_no_child_running(parent: Any, force: bool) -> None:
    """A run waits for a child, and is cancelled, by force or not; its child hears of it."""
    make = on_one_store()

    async def main() -> None:
        async with make(parent, child) as runtime:
            run = await runtime.start(parent.call(), id="a")
            started = await only_child(runtime, "a")
            await run.cancel(force=force)
            for each in (run, started):
                with pytest.raises(RunCancelledError):
                    await each.result(timeout=20)

    run_async(main())


@workflow
async def leaf(n: int) -> int:
    await note.call(f"leaf {n}")
    return n


def hosted(n: int) -> int:
    return int(call(leaf, n))


@workflow
async def rolls_over(n: int, total: int) -> int:
    total += await perdure.section("hosted").run(hosted, 7)
    if n:
        perdure.continue_as_new(n - 1, total)
    return total


def test_hosted_code_starts_a_child_of_its_own_in_each_chapter() -> None:
    """The same section calls the same child with the same input in three chapters: three children."""
    make = on_one_store()

    async def main() -> int:
        async with make(rolls_over, leaf) as runtime:
            return await (await runtime.start(rolls_over.call(2, 0), id="a")).result(timeout=20)

    assert run_async(main()) == 21
    assert DONE == ["leaf 7"] * 3


# ── pausing ─────────────────────────────────────────────────────────────────────────────────


@workflow
def pays() -> str:
    wait_for_the_gate()
    note("paid")
    return "ok"


@pytest.mark.usefixtures("gives_threads_back_at_once")
def test_a_paused_function_begins_no_further_step() -> None:
    """Paused while its first step is under way: that one ends, the next one waits for resume; also when the thread was
    given back and the run had left memory meanwhile."""
    make = on_one_store(evict_after=0.02)

    async def main() -> str:
        async with make(pays) as runtime:
            run = await runtime.start(pays.call(), id="a")
            await eventually(lambda: is_in_memory(runtime, "a") and bool(live(runtime, "a").flights))
            await run.pause()
            await eventually(lambda: live(runtime, "a").is_paused)
            GATE.set()
            await eventually(lambda: not is_in_memory(runtime, "a"), "the paused run leaves memory")
            assert DONE == []
            await run.resume()
            return await run.result(timeout=20)

    assert run_async(main()) == "ok"
    assert DONE == ["paid"]


def test_a_paused_function_that_is_cancelled_begins_nothing() -> None:
    """Paused before its second step, then cancelled, which ends the pause."""
    make = on_one_store()

    async def main() -> None:
        async with make(pays) as runtime:
            run = await runtime.start(pays.call(), id="a")
            await eventually(lambda: is_in_memory(runtime, "a") and bool(live(runtime, "a").flights))
            await run.pause()
            await eventually(lambda: live(runtime, "a").is_paused)
            GATE.set()
            journal = journal_of(runtime, "a")
            assert journal is not None
            await eventually(lambda: any(request.is_held_back for request in journal.requests.values()))
            await run.cancel()
            with pytest.raises(RunCancelledError):
                await run.result(timeout=20)

    run_async(main())
    assert DONE == []


# ── giving up ───────────────────────────────────────────────────────────────────────────────


@step
async def slow() -> str:
    await asyncio.to_thread(GATE.wait, 30)
    return "slow"


async def gives_up_waiting() -> str:
    waiting = asyncio.ensure_future(slow.call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    GATE.set()
    return await asyncio.ensure_future(slow.call())


@workflow
async def hosts() -> str:
    return str(await perdure.section("s").run(gives_up_waiting))


def test_hosted_code_that_gives_up_waiting_for_a_step() -> None:
    """An `async def` section cancels its wait for a step; the step's result comes all the same."""
    make = on_one_store()

    async def main() -> str:
        async with make(hosts) as runtime:
            return await (await runtime.start(hosts.call(), id="a")).result(timeout=20)

    assert run_async(main()) == "slow"

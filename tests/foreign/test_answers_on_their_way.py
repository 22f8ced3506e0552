"""Hosted code is hosted again while an answer to it is being written: it is not asked for, or taken, a second time."""

from __future__ import annotations

# pyright: reportPrivateUsage=false
import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.runtime.hosting import GatedStore, eventually, host_of, kinds, live, run_async
from tests.runtime.test_saga import WORLD, blocked, book, fresh_world

import perdure
from perdure import Runtime, workflow
from perdure.runtime import sections
from perdure.runtime.hosted.journal import Journal

wait = perdure.sync.wait

MAY_GO_ON = threading.Event()


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    MAY_GO_ON.set()
    fresh_world()
    monkeypatch.setattr(sections, "UNWIND_SECONDS", 0.0)


def journal_of(runtime: Runtime) -> Journal:
    (journal,) = host_of(runtime).turns.sections._journals.values()
    return journal


def has_asked(runtime: Runtime) -> Callable[[], bool]:
    return lambda: bool(journal_of(runtime).requests)


def host_again(runtime: Runtime) -> None:
    host_of(runtime).turns.sections._host_again(journal_of(runtime))


@workflow
def asks() -> str:
    MAY_GO_ON.wait(10)
    try:
        with perdure.saga():
            wait(book.call("thing"))
            raise ValueError("late")
    except ValueError as error:
        return error.__notes__[0]


def test_a_question_that_was_answered_is_not_put_again() -> None:
    """The code comes back to its question after the answer was taken in, and before that is durable."""
    WORLD.refused["drop thing"] = ""

    async def main() -> None:
        store = GatedStore()
        async with Runtime(store, workflows=[asks]) as runtime:
            run = await runtime.start(asks.call(), id="r")
            await blocked(run, "failed_compensation")
            await eventually(lambda: journal_of(runtime).is_suspended and host_of(runtime).is_quiet)
            MAY_GO_ON.clear()
            host_again(runtime)
            store.gate = gate = threading.Event()
            applied = store.applied
            await run.unblock("fail", by="ann")
            await eventually(lambda: store.applied == applied + 2)  # the letter, and what was made of it
            MAY_GO_ON.set()
            await eventually(has_asked(runtime))
            store.gate = None
            gate.set()
            assert await run.result(timeout=10) == "saga: stands: book 'thing' (left standing by ann)"
            assert (await kinds(run)).count("run.blocked") == 1

    run_async(main())


@workflow
def hears() -> list[str]:
    MAY_GO_ON.wait(10)
    return [perdure.sync.receive("word", str) for _ in range(2)]


def test_a_message_that_is_being_handed_over_is_not_asked_for_again() -> None:
    """The next one lies in the mailbox already: code that came back before its answer is there would be given that."""

    async def main() -> None:
        MAY_GO_ON.clear()
        store = GatedStore()
        async with Runtime(store, workflows=[hears]) as runtime:
            run = await runtime.start(hears.call(), id="r")
            for word in ("one", "two"):
                await run.send("word", word)
            await eventually(lambda: len(live(runtime, "r").execution.mailbox.queues.get("word", ())) == 2)
            store.gate = gate = threading.Event()
            applied, journal = store.applied, journal_of(runtime)
            MAY_GO_ON.set()
            await eventually(lambda: store.applied == applied + 1)  # it is given the first
            await asyncio.sleep(0.05)  # in which it would be unwound, since it may wait for no time at all
            host_again(runtime)
            if journal_of(runtime) is not journal:
                await eventually(has_asked(runtime))
            store.gate = None
            gate.set()
            assert await run.result(timeout=10) == ["one", "two"]

    run_async(main())

"""Hosted code that is run again and asks for something new while recorded calls have not been asked for: is that only a
matter of time, or have code and record parted?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.runtime.hosting import PATIENCE_SECONDS, eventually, host_of, on_one_store, run_async

import perdure
from perdure import Run, RunBlockedError, Runtime, step, workflow
from perdure.runtime.hosted import journal

DONE: list[str] = []
LIFE = [0]
GATE = threading.Event()


@pytest.fixture(autouse=True)
def nothing_done_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(journal, "HELD_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(journal, "HELD_QUIET_SECONDS", 0.1)
    DONE.clear()
    LIFE[0] = 0
    GATE.clear()
    yield
    GATE.set()


def is_again() -> bool:
    """Whether the code is run again. A workflow would not ask; here it stands for what else differs."""
    return LIFE[0] > 1


def until(fact: Callable[[], bool]) -> None:
    """At work, not waiting for another thread."""
    late = time.monotonic() + PATIENCE_SECONDS
    while not fact() and time.monotonic() < late:
        time.sleep(0.001)


@step
def ask(what: str) -> str:
    DONE.append(what)
    return what.upper()


def twice(code: Callable[[], Any], meanwhile: Callable[[Runtime], Any], *, recorded: int) -> list[str]:
    """Host this code until so many calls are recorded, and again from its start."""
    make = on_one_store(evict_after=1000)

    async def main() -> list[str]:
        LIFE[0] = 1
        async with make(hosts) as runtime:
            run = await runtime.start(hosts.call(), id="a")
            await until_recorded(run, recorded)
        LIFE[0] = 2
        async with make(hosts) as runtime:
            watching = asyncio.ensure_future(meanwhile(runtime))
            try:
                found: list[str] = await (await runtime.get("a")).result(timeout=PATIENCE_SECONDS)
            finally:
                await watching
            return found

    CODE[0] = code
    return run_async(main())


async def until_recorded(run: Run[Any], steps: int) -> None:
    async def are_recorded() -> bool:
        return sum(event.kind == "step.completed" for event in await run.history()) == steps

    await eventually(are_recorded)


CODE: list[Callable[[], Any]] = []


@pytest.fixture(autouse=True)
def no_code_yet() -> None:
    CODE[:] = [list]


@workflow
async def hosts() -> list[str]:
    return list(await perdure.section("crew").run(CODE[0]))


async def nothing(runtime: Runtime) -> None:
    """Nothing happens meanwhile."""


# ── only a matter of time ───────────────────────────────────────────────────────────────────


def first() -> str:
    with perdure.lane("first"):
        before = ask("a1")
        until(lambda: is_again() or GATE.is_set())
        return before + ask("a2")


def second() -> str:
    """Makes its first call at once, and later than the other one its last when it is run again."""
    if is_again():
        until(GATE.is_set)
    with perdure.lane("second"):
        return ask("b1")


def in_a_pool() -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(first), pool.submit(second)]]


def in_threads() -> list[str]:
    found = dict[str, str]()

    def note(code: Callable[[], str]) -> None:
        found[code.__name__] = code()

    threads = [threading.Thread(target=note, args=[code]) for code in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found["first"], found["second"]]


async def in_coroutines() -> list[str]:
    """The same, where the work is done by awaiting something."""

    async def turns(fact: Callable[[], bool]) -> None:
        while not fact():
            await asyncio.sleep(0.001)

    async def first() -> str:
        before = await asyncio.to_thread(ask, "a1")
        await turns(lambda: is_again() or GATE.is_set())
        return before + await asyncio.to_thread(ask, "a2")

    async def second() -> str:
        await turns(lambda: not is_again() or GATE.is_set())
        return await asyncio.to_thread(ask, "b1")

    return list(await asyncio.gather(first(), second()))


@pytest.mark.parametrize("code", [in_a_pool, in_threads, in_coroutines])
def test_who_has_not_asked_yet_may_be_the_one_who_will(code: Callable[[], Any]) -> None:
    """It is at work on something that is no step, for much longer than others are given."""

    async def let_go_later(runtime: Runtime) -> None:
        await eventually(lambda: any(each.held for each in journals(runtime)))
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 5 * journal.HELD_QUIET_SECONDS)
        GATE.set()

    assert twice(code, let_go_later, recorded=2) == ["A1A2", "B1"]
    assert sorted(DONE) == ["a1", "a2", "b1"]


def journals(runtime: Runtime) -> list[journal.Journal]:
    return list(host_of(runtime).turns.sections._journals.values())  # pyright: ignore[reportPrivateUsage]


# ── lanes ───────────────────────────────────────────────────────────────────────────────────


@step
def sample(question: str) -> str:
    """What a model says: no two answers are the same."""
    DONE.append(question)
    return f"answer {len(DONE)}"


def agents_that_are_asked_the_same() -> list[str]:
    """The first one alone comes to an answer; when the code is run again, the second one is asked first."""
    told = dict[int, str]()

    def agent(number: int) -> None:
        with perdure.lane(f"agent {number}"):
            until(lambda: is_again() or number == 0 or GATE.is_set())
            if is_again() and number == 0:
                until(GATE.is_set)
            answer = sample("why?")
            told[number] = ask(f"is {answer} right?")

    agents = [threading.Thread(target=agent, args=[number]) for number in range(2)]
    for each in agents:
        each.start()
    for each in agents:
        each.join()
    return [told[0], told[1]]


def test_a_record_is_its_own_lanes_whoever_asks_the_same_first() -> None:
    """What the first one was told it is told again, and goes on from there. The second gets an answer of its own."""

    async def let_go_later(runtime: Runtime) -> None:
        await eventually(lambda: any(each.held for each in journals(runtime)))
        GATE.set()

    found = twice(agents_that_are_asked_the_same, let_go_later, recorded=2)
    assert found == ["IS ANSWER 1 RIGHT?", "IS ANSWER 3 RIGHT?"]
    assert DONE == ["why?", "is answer 1 right?", "why?", "is answer 3 right?"]


def in_lanes_that_are_called_otherwise() -> list[str]:
    def one(number: int) -> str:
        with perdure.lane(f"worker {number + 10 * LIFE[0]}"):
            return ask(f"what {number} asks")

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    until(lambda: is_again() or GATE.is_set())
    return found


def test_a_record_of_another_lane_serves_once_nobody_else_asks_for_it() -> None:
    assert twice(in_lanes_that_are_called_otherwise, nothing, recorded=3) == [f"WHAT {n} ASKS" for n in range(3)]
    assert sorted(DONE) == [f"what {n} asks" for n in range(3)]


# ── order ───────────────────────────────────────────────────────────────────────────────────


async def leaves_the_first_out() -> list[str]:
    """A coroutine that makes only the second of its calls when it is run again."""
    told = [] if is_again() else [await asyncio.to_thread(ask, "first")]
    told += await asyncio.gather(ask_now("second"), asyncio.sleep(0, "a task that only waits"))
    while not (is_again() or GATE.is_set()):
        await asyncio.sleep(0.001)
    return told


@step
async def ask_now(what: str) -> str:
    DONE.append(what)
    return what.upper()


def test_what_came_first_and_is_not_asked_for_again_is_not_waited_for_for_ever() -> None:
    assert twice(leaves_the_first_out, nothing, recorded=2) == ["SECOND", "a task that only waits"]
    assert DONE == ["first", "second"]


# ── parted ──────────────────────────────────────────────────────────────────────────────────


def in_three_lanes() -> list[str]:
    def one(number: int) -> str:
        with perdure.lane(f"lane {number}"):
            return ask("changed" if number == 1 and is_again() else f"what {number} asks")

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, range(3)))
    until(GATE.is_set)
    return found


def test_code_that_asks_for_something_else_is_parked_with_both_sides() -> None:
    with pytest.raises(RunBlockedError) as blocked:
        twice(in_three_lanes, nothing, recorded=3)
    assert blocked.value.reason == "diverged"
    assert (
        "section 0/crew#1: the history has 'ask' (lane lane 1) with {\"what\":\"what 1 asks\"}, never asked for; "
        "the code asks for 'ask' (lane lane 1) with {\"what\":\"changed\"} (task 0: test_unused_records.py:"
    ) in blocked.value.hint
    assert sorted(DONE) == ["what 0 asks", "what 1 asks", "what 2 asks"]


def beside_a_thread_that_never_asks() -> list[str]:
    threading.Thread(target=until, args=[GATE.is_set], daemon=True).start()
    found = ask("changed" if is_again() else "asked")
    until(GATE.is_set)
    return [found]


def test_a_thread_that_never_asks_holds_nothing_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HELD_SILENT_SECONDS", 0.3)
    with pytest.raises(RunBlockedError, match="never asked for"):
        twice(beside_a_thread_that_never_asks, nothing, recorded=1)


@step(record_input=False)
def ask_in_private(what: str) -> str:
    return what.upper()


def in_private() -> list[str]:
    found = ask_in_private("changed" if is_again() else "asked")
    until(GATE.is_set)
    return [found]


def test_arguments_that_are_not_kept_are_not_shown() -> None:
    with pytest.raises(RunBlockedError, match="the code asks for 'ask_in_private'") as blocked:
        twice(in_private, nothing, recorded=1)
    assert "changed" not in blocked.value.hint


# ── the same ────────────────────────────────────────────────────────────────────────────────


@step(ignore=["$.sent_at"])
def ask_at(what: str, sent_at: int) -> str:
    DONE.append(what)
    return what.upper()


def what_counts(what: str, sent_at: int) -> str:
    return what


@step(digest=what_counts)
def ask_by_digest(what: str, sent_at: int) -> str:
    DONE.append(what)
    return what.upper()


def stamped() -> list[str]:
    found = [call("asked", LIFE[0]) for call in (ask_at, ask_by_digest)]
    until(lambda: is_again() or GATE.is_set())
    return [*found, ask("last")]


def test_what_does_not_count_of_the_arguments_does_not_count_in_hosted_code_either() -> None:
    assert twice(stamped, nothing, recorded=2) == ["ASKED", "ASKED", "LAST"]
    assert DONE == ["asked", "asked", "last"]


def asks_for_less() -> list[str]:
    found = [ask(what) for what in (["one"] if is_again() else ["one", "two"])]
    until(lambda: is_again() or GATE.is_set())
    return found


def test_what_was_not_asked_for_again_is_noted_at_the_end() -> None:
    make = on_one_store(evict_after=1000)

    async def main() -> tuple[list[str], Any]:
        LIFE[0] = 1
        async with make(hosts) as runtime:
            run = await runtime.start(hosts.call(), id="a")
            await until_recorded(run, 2)
        LIFE[0] = 2
        async with make(hosts) as runtime:
            run = await runtime.get("a")
            result = await run.result(timeout=PATIENCE_SECONDS)
            (ended,) = [each.event for each in await run.history() if each.kind == "section.ended"]
            return result, ended

    CODE[0] = asks_for_less
    result, ended = run_async(main())
    assert result == ["ONE"]
    assert ended.unused == ("main/ask",)

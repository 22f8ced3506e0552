"""Calls of hosted code that wait for a person, while others are under way: each keeps its number over a restart."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, run_async

import perdure
from perdure import step, workflow
from perdure.audit.verify import verify
from perdure.runtime.hosted.unwound import Unwound

ASKED: list[str] = []
OPEN = threading.Event()
LIVES = [1]
"""Which life of the worker it is, last."""


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()
    OPEN.clear()


@step
def answer(question: str) -> str:
    return _answer(question)


def _answer(question: str) -> str:
    ASKED.append(f"{question} in life {LIVES[-1]}")
    if question == "hard":
        raise perdure.NeedsPerson(question)
    if LIVES[-1] == 1:
        OPEN.wait(20)
    return f"answer to {question}"


def _by_step(question: str) -> str:
    return answer(question)


def _by_adapter(question: str) -> str:
    return str(perdure.journal().call("answer", question, lambda: _answer(question)))


def _ask(how: str, questions: list[str]) -> dict[str, str]:
    answers: dict[str, str] = {}

    def one(question: str) -> None:
        with contextlib.suppress(Unwound):  # the first life is over
            answers[question] = _by_step(question) if how == "step" else _by_adapter(question)

    threads = [threading.Thread(target=one, args=(question,), daemon=True) for question in questions]
    for thread, question in zip(threads, questions, strict=True):
        thread.start()
        until_asked(question)
    for thread in threads:
        thread.join()
    return answers


def until_asked(question: str) -> None:
    """They ask one after the other. In the second life nothing new is asked where a person is waited for."""
    for _ in range(2_000):
        if LIVES[-1] == 2 or any(asked.startswith(question) for asked in ASKED):
            return
        OPEN.wait(0.005)


@workflow(name="crew")
def crew(how: str) -> dict[str, str]:
    return _ask(how, ["hard", "easy", "other"][::-1] if LIVES[-1] == 1 else ["hard", "other", "easy"])


@pytest.mark.parametrize("how", ["step", "adapter"])
def test_a_question_among_calls_under_way_is_the_same_after_a_restart(how: str, tmp_path: Path) -> None:
    """The one that is answered is the one that was asked; what was under way runs again, the question does not."""
    store = str(tmp_path / "runs.db")

    async def first() -> None:
        async with perdure.Runtime(store, workflows=[crew]) as runtime:
            run = await runtime.start(crew.call(how), id="r")

            async def is_asked() -> bool:
                return bool(await runtime.inbox())

            await eventually(is_asked)
            assert "step.started" in await kinds(run)
            await host_of(runtime).abandon()

    async def second() -> None:
        async with perdure.Runtime(store, workflows=[crew]) as runtime:
            run = await runtime.get("r")
            await eventually(lambda: len([asked for asked in ASKED if asked.endswith("2")]) == 2)
            (entry,) = await runtime.inbox()
            assert "hard" in entry.hint
            await run.unblock("value", value="by hand", call=entry.call)
            answers: Any = await run.result(wait_blocked=True, timeout=20)
            assert answers == {"hard": "by hand", "easy": "answer to easy", "other": "answer to other"}
            events = await run.history()
            started = [each for each in events if each.kind == "step.started"]
            assert len({(each.event.task, each.event.n) for each in started}) == len(started)  # type: ignore[attr-defined]
            assert sorted(asked for asked in ASKED if asked.endswith("2")) == ["easy in life 2", "other in life 2"]

    LIVES.append(1)
    run_async(first())
    LIVES.append(2)
    OPEN.set()
    run_async(second())


@pytest.mark.parametrize("how", ["step", "adapter"])
def test_a_question_can_be_asked_again_and_failed(how: str, tmp_path: Path) -> None:
    LIVES.append(3)
    OPEN.set()

    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[alone]) as runtime:
            run = await runtime.start(alone.call(how), id="r")

            async def asked(times: int) -> bool:
                return len(ASKED) == times and bool(await runtime.inbox())

            await eventually(lambda: asked(1))
            await run.unblock("retry")
            await eventually(lambda: asked(2))
            await run.unblock("fail", by="ann")
            assert await run.result(wait_blocked=True, timeout=20) == "failed by ann"

    run_async(main())


@workflow(name="alone")
def alone(how: str) -> str:
    try:
        return _by_step("hard") if how == "step" else _by_adapter("hard")
    except perdure.StepError as error:
        return str(error)


@step
def quick(n: int) -> int:
    return n


@workflow(name="hurries")
def hurries() -> int:
    return quick(1) + quick(2)


def test_nothing_of_a_section_stands_before_its_beginning(tmp_path: Path) -> None:
    """Also not the start of a step that was under way when its section's beginning was written."""

    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[hurries, beside]) as runtime:
            runs = [await runtime.start(beside.call(n)) for n in range(30)]
            for run in runs:
                await run.result(timeout=20)
                written = await kinds(run)
                began = written.index("section.started")
                hosted = [n for n, each in enumerate(await run.history()) if ":" in getattr(each.event, "task", "")]
                assert min(hosted) > began

    run_async(main())


def _slow(n: int) -> int:
    return slow(n)


@step
def slow(n: int) -> int:
    import time

    time.sleep(0.02)
    return n


@step
async def tick(n: int) -> int:
    return n


@workflow(name="beside")
async def beside(n: int) -> int:
    import asyncio

    ticks = asyncio.ensure_future(_ticks())
    got = await perdure.section("slow").run(_slow, n)
    await ticks
    return int(got)


async def _ticks() -> None:
    for n in range(3):
        await tick(n)


# ── the code is over before anybody has decided ─────────────────────────────────────────────

IS_TOLD = threading.Event()
"""That a person is asked, or that the code has ended: the other step waits for it."""


@step
async def wants_a_person(waits: bool) -> str:
    if waits:
        await asyncio.to_thread(IS_TOLD.wait, 20)
    raise perdure.NeedsPerson("which of the two?")


@step
async def gives_up(waits: bool) -> str:
    if waits:
        await asyncio.to_thread(IS_TOLD.wait, 20)
    raise perdure.Final("no such order")


async def team(first: str) -> str:
    """One of its calls fails, and with it the code; the other one wants a person."""
    return "".join(await asyncio.gather(wants_a_person(first == "code"), gives_up(first == "person")))


@workflow(name="goes-on-without")
async def goes_on_without(first: str) -> str:
    with contextlib.suppress(perdure.Final):
        await perdure.section("team").run(team, first)
    return await perdure.receive("word", str)


@pytest.mark.parametrize("first", ["person", "code"])
def test_nobody_is_asked_about_a_call_of_hosted_code_that_is_over(first: str, tmp_path: Path) -> None:
    IS_TOLD.clear()

    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[goes_on_without]) as runtime:
            run = await runtime.start(goes_on_without.call(first), id="r")

            async def is_asked() -> bool:
                return bool(await runtime.inbox())

            async def has_ended() -> bool:
                return "section.ended" in await kinds(run)

            await eventually(is_asked if first == "person" else has_ended)
            IS_TOLD.set()
            await eventually(has_ended)
            await eventually(lambda: not host_of(runtime).turns.performer.running)
            await eventually(lambda: not is_in_memory(runtime, "r"))  # it only waits: for the word
            assert not await runtime.inbox()
            summary = await run.summary()
            assert (summary.status, summary.reason) == (perdure.Status.WAITING, "message")
            await run.send("word", "go")
            assert await run.result(timeout=20) == "go"
            assert not verify(host_of(runtime).turns.store).damage

    run_async(main())


@step(uses=perdure.Usage(tokens=60))
async def spends() -> None:
    await asyncio.to_thread(IS_REFUSED.wait, 20)
    perdure.used(tokens=60)


IS_REFUSED = threading.Event()
"""The first attempt of the payment was: nothing was paid."""


@perdure.effect(
    downstream=perdure.Idempotent(), uses=perdure.Usage(tokens=60),
    retry=perdure.Retry(max_attempts=3, first_delay=0.1),
)
async def pay(order: str) -> str:
    IS_REFUSED.set()
    raise ConnectionRefusedError


@pay.key
def _(order: str) -> str:
    return order


async def pays_or_gives_up() -> None:
    """The second attempt of the payment is more than is left; and then the code is over."""

    async def gives_up_later() -> None:
        await spends()
        await gives_up(True)

    await asyncio.gather(pay("o-1"), gives_up_later())


@workflow(name="goes-on-unpaid", budget=perdure.Budget(tokens=100))
async def goes_on_unpaid() -> str:
    with contextlib.suppress(perdure.Final):
        await perdure.section("team").run(pays_or_gives_up)
    return await perdure.receive("word", str)


def test_what_provably_did_nothing_does_not_wait_for_a_budget_when_its_code_is_over(tmp_path: Path) -> None:
    IS_TOLD.clear()
    IS_REFUSED.clear()

    async def main() -> None:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[goes_on_unpaid]) as runtime:
            run = await runtime.start(goes_on_unpaid.call(), id="r")

            async def is_asked() -> bool:
                return bool(await runtime.inbox())

            await eventually(is_asked)
            IS_TOLD.set()
            await eventually(lambda: not is_in_memory(runtime, "r"))  # it only waits: for the word
            assert not await runtime.inbox()
            (operation,) = await runtime.effects()
            assert operation.status == "failed_final"
            await run.send("word", "go")
            assert await run.result(timeout=20) == "go"
            assert not verify(host_of(runtime).turns.store).damage

    run_async(main())

"""A recorded call that is answered where it is made: nobody can tell it from one that gives way to the loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.driving import Driver, Happened, argument_of

import perdure
from perdure import step, workflow
from perdure.engine.calls import StepAsk
from perdure.engine.execution import Execution
from perdure.engine.known import Known
from perdure.engine.replay import Replay
from perdure.history import events as e

SEEN: list[Any] = []
"""What code notices while it runs."""


def notice(*what: Any) -> None:
    loop: Any = asyncio.get_running_loop()
    task = asyncio.current_task()
    SEEN.append((*what, perdure.now().timestamp(), task and task.get_name(), loop.ordinal, len(asyncio.all_tasks())))


@step
async def double(n: int) -> int:
    return n


@step(ignore=["$.n"])
async def ignoring(n: int) -> int:
    return n


@dataclasses.dataclass
class Answer:
    n: int


@step
async def answer(n: int) -> Answer:
    return Answer(n)


class ByHand:
    """Awaits what it is given by hand, and notices whenever it gives way."""

    def __init__(self, awaited: Any) -> None:
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._awaited.__await__()
        while True:
            try:
                future = inner.send(None)
            except StopIteration as done:
                notice("by hand: done", done.value)
                return done.value
            notice("by hand: gives way")
            yield future


async def helper(n: int) -> int:
    return await double(n)


async def background(n: int) -> None:
    notice("background begins")
    notice("background", await double(n), await double(n + 1))


@workflow
async def does(what: list[str]) -> list[Any]:
    """One thing after the other. Calls stand in the function itself, where they can be answered on the spot."""
    got: list[Any] = []
    tasks: list[asyncio.Task[Any]] = []
    for n, each in enumerate(what):
        notice(each)
        match each:
            case "step":
                got.append(await double(n))
            case "two":
                got.append([await double(n), await double(n + 1)])
            case "ignoring":
                got.append(await ignoring(n))
            case "class":
                got.append((await answer(n)).n)
            case "helper":
                got.append(await helper(n))
            case "by hand":
                got.append(await ByHand(double(n)))
            case "its __await__ by hand":
                call = double(n).__await__()
                with suppress(StopIteration):
                    future: Any = call.send(None)
                    notice("gave way", future.done())
                    future._asyncio_future_blocking = False
                    future.cancel()
                    with suppress(asyncio.CancelledError):
                        call.send(None)
            case "gather":
                got.append(await asyncio.gather(double(n), helper(n + 1)))
            case "task":
                tasks.append(asyncio.create_task(background(n)))
            case "give way":
                await asyncio.sleep(0)
            case "sleep":
                await perdure.sleep(1)
            case "timeout":
                async with asyncio.timeout(60):
                    got.append(await double(n))
            case "random":
                got.append(round(perdure.random(), 6))
            case "later":
                asyncio.get_running_loop().call_soon(notice, "later")
            case "timer":
                asyncio.get_running_loop().call_later(0.002, notice, "timer")
            case "patched":
                got.append(perdure.patched(f"p{n}"))
            case "cancels itself":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                try:
                    got.append(await double(n))
                except asyncio.CancelledError:
                    notice("cancelled")
                    task.uncancel()
            case _:
                raise AssertionError(each)
        notice(each, "done")
    got += await asyncio.gather(*tasks)
    return got


THINGS = (
    "step", "step", "step", "two", "ignoring", "class", "helper", "by hand", "its __await__ by hand", "gather", "task",
    "give way", "sleep", "timeout", "random", "later", "timer", "patched", "cancels itself",
)  # fmt: skip


def result_of(ask: StepAsk) -> Any:
    number = argument_of(ask) * 2
    return Answer(number) if ask.name == "answer" else number


def seen_by(driver: Driver, *, plainly: bool) -> list[Any]:
    SEEN.clear()
    again = driver.replay(replays_plainly=plainly)
    assert again.execution.failure is None, again.blocked()
    again.execution.close()
    return list(SEEN)


@given(st.lists(st.sampled_from(THINGS), max_size=12), st.data())
def test_code_sees_the_same_whether_calls_are_answered_on_the_spot_or_not(what: list[str], data: st.DataObject) -> None:
    SEEN.clear()
    driver = Driver(does, what)
    while not driver.is_over:
        open_steps = [ask for ask in driver.execution.open.values() if isinstance(ask, StepAsk)]
        if open_steps:
            ask = data.draw(st.sampled_from(open_steps))
            driver.complete(ask, result_of(ask))
        else:
            driver.wake()
    live = list(SEEN)
    driver.check_replays()
    assert seen_by(driver, plainly=True) == live
    assert seen_by(driver, plainly=False) == live


# ── and where it can be, it is ──────────────────────────────────────────────────────────────


class Delivering(Execution):
    """Counts what is delivered by way of the loop."""

    delivered = 0

    def deliver(self, event: e.Event, at: int, output: bytes | None = None) -> None:
        self.delivered += 1
        super().deliver(event, at, output)


def delivered(driver: Driver) -> int:
    known = Known()
    assert not list(known.note_completed((happened.event, happened) for happened in driver.history))
    execution = Delivering(driver.spec, "run", driver.beginning, known=known)
    outcomes: list[tuple[e.Event, Happened]] = [(happened.event, happened) for happened in driver.history]
    execution.outcomes_left = len(outcomes)
    Replay(execution, outcomes).run(lambda _, happened: happened.raw)
    execution.finish_replay()
    assert execution.ending == driver.execution.ending
    assert execution.loop.ordinal == driver.execution.loop.ordinal
    return execution.delivered


def driven(*what: str) -> Driver:
    driver = Driver(does, list(what))
    driver.run(result_of)
    return driver


def test_calls_of_the_workflows_own_function_are_answered_on_the_spot() -> None:
    assert delivered(driven("step", "two", "class", "give way", "step")) == 0


def test_calls_that_others_might_see_are_not() -> None:
    assert delivered(driven("step", "by hand", "step")) == 1
    assert delivered(driven("step", "helper")) == 1
    assert delivered(driven("ignoring", "step")) == 1
    assert delivered(driven("timeout", "step")) == 1
    assert delivered(driven("later", "step", "step")) == 1


def test_other_arguments_are_a_divergence_as_ever() -> None:
    @workflow(name="does")
    async def other(what: list[str]) -> list[Any]:
        return [await double(n + (n == 2)) for n, _ in enumerate(what)] and []

    driver = driven("step", "step", "step")
    told = [driver.replay(other, replays_plainly=plainly).blocked() for plainly in (False, True)]
    assert told[0] == told[1]
    assert "diverged" in told[0]
    assert "double#3 with other arguments" in told[0]


def test_a_result_that_does_not_fit_any_more_is_told_as_ever() -> None:
    driver = driven("step", "step")
    first, second = driver.history
    driver.history[1] = second._replace(raw=b'"text"')
    told = [driver.replay(replays_plainly=plainly).blocked() for plainly in (False, True)]
    assert told[0] == told[1]
    assert told[0].startswith("undecodable: the recorded result of 0/double#2")
    assert first.raw == b"0"

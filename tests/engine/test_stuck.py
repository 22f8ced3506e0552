"""Code that cannot go on: it spins, waits for nothing, waits for a thread; and exceptions of the odd kinds."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import anyio.to_thread
import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.engine import loop as engine_loop
from perdure.errors import StepError


@step
async def work(item: int = 0) -> int:
    return item


# ── stuck turns ─────────────────────────────────────────────────────────────────────────────


@workflow
async def spinning() -> int:
    await work()
    while True:
        await asyncio.sleep(0)


def test_a_hundred_thousand_callbacks_without_a_call_are_a_stuck_turn() -> None:
    message = Driver(spinning).complete("work").blocked()
    assert message.startswith("stuck_turn: 100,000 callbacks ran without one durable call: task 0: test_stuck.py:")
    assert "in spinning" in message


@workflow
async def spinning_with_care() -> int:
    try:
        await work()
        while True:
            await asyncio.sleep(0)
    finally:
        cared_for.append("a lock given back")


cared_for: list[str] = []


def test_code_that_spins_is_unwound_when_it_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loop, "CALLBACKS_WITHOUT_A_COMMAND_MAX", 50)
    cared_for.clear()
    driver = Driver(spinning_with_care).complete("work")
    assert driver.blocked().startswith("stuck_turn")
    driver.execution.close()
    assert cared_for == ["a lock given back"]
    assert driver.execution.loop.live_tasks() == []


@workflow
async def ticking(ticks: int) -> int:
    """Many turns of few callbacks are no stuck turn, also if none of them makes a durable call."""
    for _ in range(ticks):
        await asyncio.sleep(1)
    return ticks


@workflow
async def many_messages(messages: int) -> int:
    ready = asyncio.Event()

    async def wait_for_it() -> int:
        await ready.wait()
        return messages

    waiting = asyncio.create_task(wait_for_it())
    for _ in range(messages):
        await perdure.receive("m")
    ready.set()
    return await waiting


def test_a_long_life_of_short_turns_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_loop, "CALLBACKS_WITHOUT_A_COMMAND_MAX", 50)
    driver = Driver(ticking, 100)
    while not driver.is_over and driver.execution.failure is None:
        driver.wake()
    assert driver.result() == 100
    driver = Driver(many_messages, 100)
    for _ in range(100):
        driver.message("m")
    assert driver.result() == 100


@workflow
async def busy_but_fine(rounds: int) -> int:
    total = 0
    for _ in range(rounds):
        for _ in range(1000):
            await asyncio.sleep(0)
        total += await work()
    return total


def test_a_call_begins_the_count_anew() -> None:
    assert Driver(busy_but_fine, 120).run(lambda _: 1) == 120


# ── deadlocks ───────────────────────────────────────────────────────────────────────────────


@workflow
async def waits_for_an_event_nobody_sets() -> None:
    await work()

    async def helper() -> None:
        await asyncio.Event().wait()

    await asyncio.gather(helper(), asyncio.Lock().acquire(), asyncio.Queue[int]().get())


def test_an_event_nobody_sets_is_a_deadlock_shown_with_its_awaits() -> None:
    driver = Driver(waits_for_an_event_nobody_sets)
    assert not driver.execution.is_deadlocked
    assert driver.complete("work").execution.is_deadlocked
    driver.execution.block_deadlocked()
    message = driver.blocked()
    assert message.startswith("deadlocked: nothing is pending that could wake it: task 0: test_stuck.py:")
    assert "in helper" in message


@workflow
async def waits_for_a_message() -> None:
    await perdure.receive("never")


@workflow
async def waits_for_time() -> None:
    await asyncio.sleep(1)


@workflow
async def child() -> int:
    return 1


@workflow
async def waits_for_a_cancelled_child() -> None:
    (await perdure.start(child.call())).cancel()
    started = await perdure.start(child.call())
    await work()
    started.cancel()


@pytest.mark.parametrize("waiting", [waits_for_a_message, waits_for_time])
def test_what_can_still_be_woken_is_no_deadlock(waiting: object) -> None:
    assert not Driver(waiting).execution.is_deadlocked


def test_a_run_that_only_waits_for_its_child_to_be_cancelled_is_no_deadlock() -> None:
    driver = Driver(waits_for_a_cancelled_child).complete("work")
    assert not driver.execution.is_deadlocked
    assert not driver.is_over


# ── threads in workflow code ────────────────────────────────────────────────────────────────

WENT_ON = threading.Event()


def in_a_thread() -> int:
    WENT_ON.wait(10)
    return 1


@workflow
async def in_anyios_threads() -> int:
    return await anyio.to_thread.run_sync(in_a_thread)


def test_anyio_to_thread_is_named_when_nothing_else_is_pending() -> None:
    WENT_ON.clear()
    driver = Driver(in_anyios_threads)
    assert driver.execution.is_deadlocked
    driver.execution.block_deadlocked()
    message = driver.blocked()
    WENT_ON.set()
    driver.execution.close()  # anyio's thread ends with the task that it worked for
    assert message.startswith("diverged: workflow code must not use threads (anyio.to_thread or the like): move that")
    assert "in in_anyios_threads" in message


@workflow
async def in_anyios_threads_beside_a_timer() -> int:
    async with asyncio.timeout(1000):
        return await anyio.to_thread.run_sync(in_a_thread)


def test_a_callback_from_another_thread_fails_the_turn_by_name() -> None:
    WENT_ON.set()
    driver = Driver(in_anyios_threads_beside_a_timer)
    wait_until(lambda: driver.execution.failure is not None)
    message = driver.blocked()
    driver.execution.close()
    assert message.startswith("diverged: workflow code must not use threads (anyio.to_thread or the like): move that")
    assert "AnyIO worker thread" in message


def wait_until(fact: object) -> None:
    until = time.monotonic() + 10
    while not fact():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.001)


# ── exceptions of the odd kinds ─────────────────────────────────────────────────────────────


class Own(BaseException):
    pass


@workflow
async def raises(what: str) -> int:
    await work()
    raise {
        "StopIteration": StopIteration("s"),
        "StopAsyncIteration": StopAsyncIteration("s"),
        "GeneratorExit": GeneratorExit("g"),
        "Own": Own("o"),
        "ValueError": ValueError("v"),
        "CancelledError": asyncio.CancelledError(),
    }[what]


@pytest.mark.parametrize(
    ("what", "comes"),
    [
        ("StopIteration", RuntimeError),
        ("StopAsyncIteration", StepError),
        ("GeneratorExit", StepError),
        ("Own", StepError),
        ("ValueError", ValueError),
    ],
)
def test_whatever_a_workflow_raises_ends_it(what: str, comes: type[BaseException]) -> None:
    driver = Driver(raises, what).complete("work")
    with pytest.raises(comes):
        driver.result()
    driver.check_replays()


def test_a_workflow_that_raises_cancelled_was_cancelled() -> None:
    assert Driver(raises, "CancelledError").complete("work").was_cancelled


@workflow
async def catches() -> str:
    try:
        await work()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    "error",
    [StopIteration("s"), StopAsyncIteration("s"), GeneratorExit("g"), KeyboardInterrupt("k"), SystemExit(3), Own("o")],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_step_raised_reaches_the_code_and_stops_nothing_else(error: BaseException) -> None:
    driver = Driver(catches).fail("work", error)
    assert str(error) in driver.result()
    driver.check_replays()


@workflow
async def exits(how: str) -> int:
    await work()
    if how == "in a task":
        await asyncio.create_task(exit_soon())
    elif how == "in a thread":
        await asyncio.to_thread(sys.exit, 3)
    elif how == "in a callback":
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        return await work()
    sys.exit(3)


async def exit_soon() -> None:
    sys.exit(3)


@pytest.mark.parametrize("how", ["at once", "in a task", "in a thread"])
def test_sys_exit_in_workflow_code_ends_the_run_not_the_worker(how: str) -> None:
    """A worker that ended would leave the run to the next one, which would end in its turn."""
    driver = Driver(exits, how).complete("work")
    with pytest.raises(StepError, match="SystemExit: 3"):
        driver.result()
    driver.check_replays()


def test_sys_exit_in_a_callback_is_logged_as_any_exception() -> None:
    driver = Driver(exits, "in a callback").complete("work")
    assert "SystemExit(3)" in driver.logged[-1]
    assert driver.complete("work", 5).result() == 5


@workflow
async def interrupted() -> int:
    await work()
    raise KeyboardInterrupt


@workflow
async def interrupted_in_a_callback() -> int:
    await work()

    def press() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(press)
    await asyncio.sleep(10)
    return 1


@pytest.mark.parametrize("where", [interrupted, interrupted_in_a_callback])
def test_keyboard_interrupt_in_a_turn_goes_on_its_way(where: object) -> None:
    driver = Driver(where)
    with pytest.raises(KeyboardInterrupt):
        driver.complete("work")
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert not driver.is_over or driver.execution.failure is None


@workflow
async def complains() -> int:
    def broken() -> None:
        raise ValueError("in a callback")

    async def fails() -> None:
        raise ValueError("never retrieved")

    asyncio.get_running_loop().call_soon(broken)
    task = asyncio.create_task(fails())
    await work()
    return 1 if task.done() else 0


def test_an_exception_in_a_callback_is_logged_once_and_stops_nothing() -> None:
    driver = Driver(complains)
    assert any("in a callback" in line for line in driver.logged)
    assert driver.complete("work").result() == 1
    assert driver.replay().logged == []

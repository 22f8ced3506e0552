"""Leaving memory: the code is cancelled and drained in its own context; it can ask for nothing any more."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.errors import GuardError

SEEN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@step
async def work(item: int = 0) -> int:
    return item


@workflow
async def tidy() -> int:
    try:
        await perdure.receive("never")
    except BaseException as error:
        SEEN.append(type(error).__name__)
        raise
    finally:
        SEEN.append("finally")
        try:
            await work()
        except BaseException as refused:
            SEEN.append(str(refused))
            raise
        SEEN.append("not reached")
    return 0


def test_finally_blocks_run_and_calls_in_them_are_refused() -> None:
    driver = Driver(tidy)
    driver.execution.close()
    assert SEEN[:2] == ["CancelledError", "finally"]
    assert "being dropped from memory" in SEEN[2]
    assert SEEN[3:] == []
    assert driver.execution.commands == []
    assert driver.performed == []


def test_a_run_left_to_the_collector_after_it_was_closed_does_nothing_more() -> None:
    """Cleanup that the collector runs would run at any time, and ask for things in the middle of another run."""
    driver = Driver(tidy)
    driver.execution.close()
    seen = list(SEEN)
    other = Driver(tidy)
    del driver
    gc.collect()
    assert seen == SEEN
    assert other.asked == ["0/receive:never#1"]
    other.execution.close()


def test_closing_twice_is_closing_once() -> None:
    driver = Driver(tidy)
    driver.execution.close()
    seen = list(SEEN)
    driver.execution.close()
    assert seen == SEEN


# ── code that will not go ───────────────────────────────────────────────────────────────────


@workflow
async def swallows_while_waiting(what: str) -> int:
    while True:
        try:
            if what == "receive":
                await perdure.receive("never")
            elif what == "step":
                await work()
            elif what == "sleep":
                await perdure.sleep(60)
            elif what == "child":
                await swallows_while_waiting("receive")
            else:
                await asyncio.Event().wait()
        except BaseException:
            SEEN.append("swallowed")


@pytest.mark.parametrize("what", ["receive", "step", "sleep", "child", "event"])
def test_code_that_swallows_every_cancellation_is_given_up_after_fifty_rounds(what: str) -> None:
    """`while True: ... except BaseException`: closing ends, says so, and the collector never runs the code again."""
    driver = Driver(swallows_while_waiting, what)
    driver.execution.close()
    assert 1 <= len(SEEN) < 1000
    assert "would not end when it left memory" in driver.logged[-1]
    seen = len(SEEN)
    del driver
    gc.collect()
    assert len(SEEN) == seen


@workflow
async def spins_in_cleanup() -> int:
    try:
        await perdure.receive("never")
    finally:
        while True:
            await asyncio.sleep(0)


def test_code_that_spins_in_its_cleanup_is_given_up() -> None:
    driver = Driver(spins_in_cleanup)
    driver.execution.close()
    assert "would not end" in driver.logged[-1]


@workflow
async def waits_in_cleanup() -> int:
    try:
        await perdure.receive("never")
    finally:
        try:
            await asyncio.sleep(1000)
        finally:
            SEEN.append("inner")
    return 0


def test_cleanup_that_waits_is_cancelled_again() -> None:
    driver = Driver(waits_in_cleanup)
    driver.execution.close()
    assert SEEN == ["inner"]
    assert driver.logged == []


@workflow
async def starts_tasks_in_cleanup() -> int:
    async def helper() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            SEEN.append("helper")

    try:
        await perdure.receive("never")
    finally:
        await asyncio.gather(helper(), helper())
    return 0


def test_tasks_started_in_cleanup_are_drained_too() -> None:
    driver = Driver(starts_tasks_in_cleanup)
    driver.execution.close()
    assert SEEN == ["helper", "helper"]
    assert driver.logged == []


# ── generators, contexts, logs ──────────────────────────────────────────────────────────────


async def numbers() -> AsyncIterator[int]:
    try:
        for n in range(10):
            yield n
            await work(n)
    finally:
        SEEN.append("generator")


@workflow
async def in_a_generator() -> int:
    async for number in numbers():
        SEEN.append(str(number))
    return 0


def test_a_generator_that_waits_is_unwound_with_its_task() -> None:
    driver = Driver(in_a_generator)
    driver.execution.close()
    assert SEEN == ["0", "generator"]


log = perdure.logger("told")


@workflow
async def leaves_generators_open() -> int:
    kept = [numbers(), numbers()]
    for generator in kept:
        await anext(generator)
    loop: Any = asyncio.get_running_loop()
    loop.execution.fail("diverged", "the guard has seen something")
    raise GuardError("the same")


def test_generators_left_open_by_code_that_has_failed_are_closed(recwarn: pytest.WarningsRecorder) -> None:
    """No task of it is left that could be cancelled."""
    driver = Driver(leaves_generators_open)
    driver.execution.close()
    assert SEEN == ["generator", "generator"]
    assert driver.logged == []
    gc.collect()
    assert not recwarn.list


@workflow
async def tells() -> int:
    log.info("begins")
    try:
        await work()
        log.info("worked")
        await perdure.receive("never")
    finally:
        log.info("leaves")
    return 0


def test_a_workflows_logger_is_silent_on_replay_and_on_leaving(caplog: pytest.LogCaptureFixture) -> None:
    """Five replays of a run: each line once."""
    caplog.set_level(logging.INFO, "told")
    driver = Driver(tells).complete("work")
    for _ in range(5):
        driver = driver.park()
    driver.execution.close()
    assert [record.message for record in caplog.records] == ["begins", "worked"]
    assert {getattr(record, "run_id", None) for record in caplog.records} == {"run"}


@workflow
async def knows_itself() -> list[bool]:
    before = perdure.current_run().is_replaying
    await work()
    return [before, perdure.current_run().is_replaying]


def test_code_can_ask_whether_it_is_only_being_brought_back() -> None:
    driver = Driver(knows_itself)
    again = driver.replay()
    assert again.complete("work").result() == [False, False] or again.result() == [True, False]
    known = driver.complete("work").replay()
    assert known.result() == [True, True]

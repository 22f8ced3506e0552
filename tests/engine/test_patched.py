"""`patched`: may the code behind this guard run? Answered once per run, and recorded."""

from __future__ import annotations

from tests.engine.driving import Driver

import perdure
from perdure import step, workflow
from perdure.history import events as e


@step
async def a(item: int = 0) -> int:
    return item


@step
async def b(item: int = 0) -> int:
    return item


@step
async def check(item: int = 0) -> int:
    return item


def answers(driver: Driver) -> list[bool]:
    """What was recorded, and what is to be."""
    noted = [*(h.event for h in driver.history), *driver.execution.notes]
    return [event.answer for event in noted if isinstance(event, e.Patched)]


@workflow(name="agent")
async def before() -> int:
    return await a() + await b()


@workflow(name="agent")
async def guarded_first() -> int:
    if perdure.patched("check first"):
        await check()
    return await a() + await b()


@workflow(name="agent")
async def guarded_between() -> int:
    first = await a()
    if perdure.patched("check between"):
        await check()
    return first + await b()


@workflow(name="agent")
async def guarded_last() -> int:
    total = await a() + await b()
    if perdure.patched("check last"):
        await check()
    return total


def test_a_new_run_takes_the_new_code() -> None:
    driver = Driver(guarded_first)
    assert driver.asked == ["0/check#1"]
    driver.complete("check").complete("a", 1).complete("b", 2)
    assert driver.result() == 3
    assert answers(driver) == [True]
    driver.check_replays()


def test_a_run_that_has_passed_the_place_goes_on_without() -> None:
    driver = Driver(before).complete("a", 1)
    again = driver.replay(guarded_first)
    assert again.asked == ["0/b#1"]
    assert again.complete("b", 2).result() == 3
    assert answers(again) == [False]
    again.check_replays()


def test_a_run_that_has_not_passed_the_place_takes_the_new_code() -> None:
    again = Driver(before).complete("a", 1).replay(guarded_between)
    assert again.asked == ["0/check#1"]
    assert again.complete("check").complete("b", 2).result() == 3
    again.check_replays()


def test_a_step_that_is_started_and_not_finished_counts_as_passed() -> None:
    """`b` is under way and its start is on record: the place before it has been passed."""
    driver = Driver(before, records_starts=True).complete("a", 1)
    again = driver.replay(guarded_between)
    assert again.asked == ["0/b#1"]
    assert answers(again) == [False]
    again.complete("b", 2).check_replays()


def test_behind_everything_recorded_the_answer_is_yes() -> None:
    again = Driver(before).complete("a", 1).complete("b", 2).replay(guarded_last)
    assert again.asked == ["0/check#1"]
    assert answers(again) == [True]


@workflow(name="loop")
async def in_a_loop_before(times: int) -> int:
    return sum([await a(n) for n in range(times)])


@workflow(name="loop")
async def in_a_loop(times: int) -> int:
    total = 0
    for n in range(times):
        if perdure.patched("check each"):
            await check(n)
        total += await a(n)
    return total


def test_in_a_loop_the_first_answer_holds_for_the_whole_run() -> None:
    driver = Driver(in_a_loop_before, 3).complete("a", 0)
    again = driver.replay(in_a_loop)
    again.complete("a", 1).complete("a", 2)
    assert again.result() == 3
    assert "0/check#1" not in again.performed
    assert answers(again) == [False]
    again.check_replays()

    fresh = Driver(in_a_loop, 2)
    assert fresh.run(lambda ask: 1) == 2
    assert fresh.performed.count("0/check#2") == 1
    assert answers(fresh) == [True]
    fresh.check_replays()


# ── what has been passed without a call ─────────────────────────────────────────────────────


@workflow(name="sleeper")
async def sleeps() -> int:
    await perdure.sleep(60)
    return await a()


@workflow(name="sleeper")
async def sleeps_guarded() -> int:
    if perdure.patched("check first"):
        await check()
    await perdure.sleep(60)
    return await a()


def test_before_a_parked_sleep() -> None:
    again = Driver(sleeps).park(sleeps_guarded)
    assert answers(again) == [False]
    assert again.wake().complete("a", 1).result() == 1


def test_before_a_sleep_that_is_over() -> None:
    """The only thing on record is that time has passed; the run went through this place before that."""
    driver = Driver(sleeps).wake()
    again = driver.replay(sleeps_guarded)
    assert answers(again) == [False]
    assert again.asked == ["0/a#1"]
    assert again.complete("a", 1).result() == 1
    again.check_replays()


@workflow(name="receiver")
async def receives() -> str:
    first = await perdure.receive("go", str)
    return first + await perdure.receive("on", str)


@workflow(name="receiver")
async def receives_guarded() -> str:
    if perdure.patched("check first"):
        await check()
    first = await perdure.receive("go", str)
    return first + await perdure.receive("on", str)


def test_before_a_message_that_was_taken() -> None:
    again = Driver(receives).message("go", "g").replay(receives_guarded)
    assert answers(again) == [False]
    assert again.message("on", "o").result() == "go"
    again.check_replays()


@workflow(name="canceller")
async def cleans() -> int:
    try:
        await perdure.receive("never")
    finally:
        await a()
    return 0


@workflow(name="canceller")
async def cleans_guarded() -> int:
    try:
        if perdure.patched("check first"):
            await check()
        await perdure.receive("never")
    finally:
        await a()
    return 0


def test_before_a_cancel_request() -> None:
    again = Driver(cleans).cancel().replay(cleans_guarded)
    assert answers(again) == [False]
    assert again.asked == ["0/a#1"]
    again.complete("a", 0)
    assert again.was_cancelled
    again.check_replays()

"""Steps in a worker: attempts, what they may say, time limits, heartbeats, contexts, clients, odd exceptions."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.runtime.hosting import eventually, is_in_memory, kinds, live, on_one_store, run_async

import perdure
from perdure import (
    DecodeError,
    EncodeError,
    Final,
    NeedsPerson,
    Retry,
    Retryable,
    RunBlockedError,
    StepError,
    StepTimeoutError,
    UsageError,
    step,
    workflow,
)
from perdure.testing.clock import FakeClock

CALLS: list[Any] = []
QUICK = Retry(max_attempts=3, first_delay=0.001, max_delay=0.01)


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


Body = Callable[..., Awaitable[Any]]


async def outcome_of(body: Any, *arguments: Any, **options: Any) -> Any:
    """What a workflow gets that calls this step once."""

    @workflow(name="calls once")
    async def calls_once(arguments: list[Any]) -> Any:
        return await body.call(*arguments)

    async with on_one_store(**options)(calls_once) as runtime:
        run = await runtime.start(calls_once.call(list(arguments)), id="r")
        return await run.result(timeout=20)


# ── attempts ────────────────────────────────────────────────────────────────────────────────


@step(retry=QUICK)
async def flaky(fails: int) -> int:
    CALLS.append(perdure.attempt().number)
    if len(CALLS) <= fails:
        raise ConnectionError(f"attempt {len(CALLS)}")
    return len(CALLS)


def test_a_step_is_tried_again_and_numbers_its_attempts() -> None:
    assert run_async(outcome_of(flaky, 2)) == 3
    assert CALLS == [1, 2, 3]


def test_the_last_error_is_the_steps_error() -> None:
    with pytest.raises(ConnectionError, match="attempt 3"):
        run_async(outcome_of(flaky, 5))
    assert CALLS == [1, 2, 3]


@workflow
async def catching() -> list[str]:
    seen: list[str] = []
    for _ in range(2):
        try:
            seen.append(str(await flaky(2)))
        except ConnectionError as error:
            seen.append(str(error))
    return seen


def test_except_sees_only_the_final_failure() -> None:
    async def main() -> None:
        async with on_one_store()(catching) as runtime:
            run = await runtime.start(catching.call())
            assert await run.result(timeout=10) == ["3", "4"]
            recorded = await kinds(run)
            assert recorded.count("step.attempt_failed") == 2
            assert recorded.count("step.completed") == 2

    run_async(main())


def test_there_is_no_wait_after_the_last_attempt() -> None:
    """Two attempts with three seconds between them take three seconds, not six."""
    clock = FakeClock()

    @step(retry=Retry(max_attempts=2, first_delay=3, jitter=0))
    async def failing() -> None:
        CALLS.append(clock.now())
        raise ConnectionError

    @workflow(name="w")
    async def w() -> int:
        try:
            await failing()
        except ConnectionError:
            return int(perdure.now().timestamp() * 1_000_000)
        return 0

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call())
            await eventually(lambda: len(CALLS) == 1 and clock.next_alarm_at() is not None)
            await eventually(lambda: moved_on(clock, until=2))
            assert await run.result(timeout=10) == CALLS[1]
            assert CALLS[1] - CALLS[0] == 3_000_000

    run_async(main())


def moved_on(clock: FakeClock, *, until: int) -> bool:
    if len(CALLS) < until:
        clock.advance(0.5)
    return len(CALLS) >= until


@step(retry=Retry(max_attempts=5, first_delay=0.001))
async def final() -> None:
    CALLS.append(1)
    raise Final("there is no such order")


@step(retry=Retry(max_attempts=5, first_delay=0.001))
async def wrapped_final() -> None:
    CALLS.append(1)
    try:
        raise Final("there is no such order")
    except Final as no:
        raise RuntimeError("the tool failed") from no


class NotThere(Final):
    """A subclass says the same."""


@step(retry=Retry(max_attempts=5, first_delay=0.001))
async def own_final() -> None:
    CALLS.append(1)
    raise NotThere("gone")


@step(retry=Retry(max_attempts=5, first_delay=0.001, on=lambda error: "again" in str(error)))
async def by_predicate(text: str) -> None:
    CALLS.append(1)
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("body", "arguments", "calls", "raised"),
    [
        (final, (), 1, Final),
        (wrapped_final, (), 1, RuntimeError),
        (own_final, (), 1, StepError),
        (by_predicate, ("again",), 5, RuntimeError),
        (by_predicate, ("enough",), 1, RuntimeError),
    ],
)
def test_a_step_says_that_it_is_final(
    body: Body, arguments: tuple[Any, ...], calls: int, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        run_async(outcome_of(body, *arguments))
    assert len(CALLS) == calls


@step(retry=Retry(max_attempts=3, first_delay=0.001))
async def asks_for_time() -> int:
    CALLS.append(1)
    if len(CALLS) < 2:
        raise Retryable("busy", after=timedelta(minutes=2))
    return len(CALLS)


def test_what_the_other_side_asks_for_is_waited_for() -> None:
    clock = FakeClock()

    @workflow(name="w")
    async def w() -> int:
        return await asks_for_time()

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call(), id="r")
            await eventually(lambda: has_kind(run, "step.attempt_failed"))
            clock.advance(119)
            assert len(CALLS) == 1
            clock.advance(1)
            assert await run.result(timeout=10) == 2

    run_async(main())


def test_a_wait_between_attempts_ends_with_the_run() -> None:
    clock = FakeClock()

    async def main() -> None:
        async with on_one_store(clock=clock)(asks_once) as runtime:
            run = await runtime.start(asks_once.call(), id="r")
            await eventually(lambda: has_kind(run, "step.attempt_failed"))
            (flight,) = live(runtime, "r").flights.values()
            alarm: Any = flight.alarm
            await run.cancel()
            with pytest.raises(perdure.RunCancelledError):
                await run.result(timeout=10)
            assert alarm.cancelled()

    run_async(main())


@workflow
async def asks_once() -> int:
    return await asks_for_time()


def test_a_wait_between_attempts_goes_on_over_a_restart() -> None:
    clock = FakeClock()

    async def main() -> None:
        make = on_one_store(clock=clock)
        async with make(asks_once) as runtime:
            run = await runtime.start(asks_once.call(), id="r")
            await eventually(lambda: has_kind(run, "step.attempt_failed"))
        clock.advance(60)
        async with make(asks_once) as runtime:
            run = await runtime.get("r")
            await eventually(lambda: is_in_memory(runtime, "r"))
            clock.advance(59)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(CALLS) == 1
            clock.advance(1)
            assert await run.result(timeout=10) == 2

    run_async(main())


@step(retry=Retry(max_attempts=100, first_delay=10, factor=1, jitter=0, max_elapsed=60))
async def fails_for_a_minute() -> None:
    CALLS.append(1)
    raise ConnectionError


@workflow
async def tries_for_a_minute() -> int:
    try:
        await fails_for_a_minute()
    except ConnectionError:
        return len(CALLS)
    return 0


def test_the_longest_time_for_all_attempts_counts_over_restarts() -> None:
    """Attempts at 0, 10, ... 60 seconds after the first; a restart in between begins nothing anew."""
    clock = FakeClock()

    async def main() -> None:
        make = on_one_store(clock=clock)
        async with make(tries_for_a_minute) as runtime:
            run = await runtime.start(tries_for_a_minute.call(), id="r")
            for attempt in range(1, 4):
                await eventually(lambda attempt=attempt: has_kind(run, "step.attempt_failed", attempt))  # type: ignore[misc]
                clock.advance(10)
        async with make(tries_for_a_minute) as runtime:
            run = await runtime.get("r")
            for attempt in range(4, 7):
                await eventually(lambda attempt=attempt: has_kind(run, "step.attempt_failed", attempt))  # type: ignore[misc]
                clock.advance(10)
            assert await run.result(timeout=10) == 7

    run_async(main())


async def has_kind(run: perdure.Run[Any], kind: str, times: int = 1) -> bool:
    return (await kinds(run)).count(kind) >= times


# ── time limits ─────────────────────────────────────────────────────────────────────────────


def test_a_late_result_of_an_attempt_that_timed_out_is_fenced_off() -> None:
    """A plain function cannot be stopped: its thread goes on beside the next attempt; what it returns is ignored."""
    release, begun = threading.Event(), threading.Event()
    clock = FakeClock()

    @step(timeout=2, retry=Retry(max_attempts=2, first_delay=0))
    def slow() -> str:
        number = perdure.attempt().number
        CALLS.append(number)
        if number == 1:
            begun.set()
            release.wait(20)
            CALLS.append("late")
            return "the late one"
        return "the second"

    @workflow(name="w")
    async def w() -> list[str]:
        first = await slow.call()
        await perdure.receive("go")
        return [first]

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call())
            await eventually(begun.is_set)
            clock.advance(3)
            await eventually(lambda: has_kind(run, "step.completed"))
            release.set()
            await eventually(lambda: "late" in CALLS)
            await run.send("go")
            assert await run.result(timeout=10) == ["the second"]
            assert (await kinds(run)).count("step.completed") == 1

    run_async(main())
    assert CALLS == [1, 2, "late"]


def test_an_attempt_that_takes_too_long_is_cancelled() -> None:
    clock = FakeClock()
    cancelled: list[int] = []

    @step(timeout=60, retry=Retry(max_attempts=2, first_delay=0))
    async def hangs() -> None:
        CALLS.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    @workflow(name="w")
    async def w() -> str:
        try:
            await hangs()
        except StepTimeoutError as error:
            return str(error)
        return ""

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call())
            for attempt in (1, 2):
                await eventually(lambda attempt=attempt: len(CALLS) == attempt)  # type: ignore[misc]
                clock.advance(61)
            assert "attempt 2 of 0/hangs#1 took longer than timeout=60 s" in await run.result(timeout=10)

    run_async(main())
    assert cancelled == [1, 1]


def test_time_that_a_run_is_parked_does_not_count_against_a_step() -> None:
    clock = FakeClock()

    @step(timeout=2)
    async def quick() -> int:
        return 1

    @workflow(name="w")
    async def w() -> int:
        first = await quick()
        await perdure.sleep(3600)
        return first + await quick()

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call(), id="r")
            await eventually(lambda: has_kind(run, "step.completed"))
            clock.advance(3600)
            assert await run.result(timeout=10) == 2

    run_async(main())


# ── heartbeats ──────────────────────────────────────────────────────────────────────────────


@step(retry=QUICK)
async def resumes_from_its_heartbeat() -> list[int]:
    done = perdure.last_heartbeat(int) or 0
    seen = [done]
    for item in range(done, 10):
        perdure.heartbeat(item + 1)
        if item == 4 and not CALLS:
            CALLS.append(1)
            raise ConnectionError
    return seen


def test_the_next_attempt_reads_the_details_of_the_last_heartbeat() -> None:
    assert run_async(outcome_of(resumes_from_its_heartbeat)) == [5]


def test_silence_longer_than_heartbeat_timeout_ends_an_attempt() -> None:
    clock = FakeClock()
    beating = asyncio.Event()

    @step(timeout=3600, heartbeat_timeout=10, retry=Retry(max_attempts=1))
    async def falls_silent() -> None:
        for beat in range(3):
            perdure.heartbeat()
            CALLS.append(beat)
            beating.clear()
            await beating.wait()
        await asyncio.Event().wait()

    @workflow(name="w")
    async def w() -> str:
        try:
            await falls_silent()
        except StepTimeoutError as error:
            return str(error)
        return ""

    async def main() -> None:
        async with on_one_store(clock=clock)(w) as runtime:
            run = await runtime.start(w.call())
            for beat in range(3):
                await eventually(lambda beat=beat: len(CALLS) == beat + 1)  # type: ignore[misc]
                clock.advance(9)
                await asyncio.sleep(0)
                beating.set()
            clock.advance(11)
            assert "0/falls_silent#1 was silent for longer than heartbeat_timeout=10 s" in await run.result(timeout=10)

    run_async(main())


def test_heartbeats_from_a_thread() -> None:
    @step(retry=QUICK)
    def beats() -> Any:
        last = perdure.last_heartbeat()
        if last is None:
            perdure.heartbeat({"page": 7})
            time.sleep(0)
            raise ConnectionError
        return last

    assert run_async(outcome_of(beats)) == {"page": 7}


# ── a person ────────────────────────────────────────────────────────────────────────────────


@step(retry=QUICK)
async def asks_a_person() -> int:
    CALLS.append(1)
    if len(CALLS) == 1:
        raise NeedsPerson("which account is meant?")
    return len(CALLS)


@workflow
async def stuck_at_a_person() -> list[Any]:
    try:
        return [await asks_a_person()]
    except StepError as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("choice", "value", "result"),
    [("retry", None, [2]), ("value", 42, [42]), ("fail", None, ["failed by ada: no idea"])],
)
def test_a_step_that_needs_a_person_blocks_the_run_until_somebody_decides(choice: Any, value: Any, result: Any) -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(stuck_at_a_person) as runtime:
            run = await runtime.start(stuck_at_a_person.call(), id="r")
            with pytest.raises(RunBlockedError, match="which account is meant") as blocked:
                await run.result(timeout=10)
            assert blocked.value.reason == "needs_person"
        async with make(stuck_at_a_person) as runtime:
            run = await runtime.get("r")
            assert (await run.summary()).reason == "needs_person"
            await run.unblock(choice, value=value, by="ada", reason="no idea")
            assert await run.result(timeout=10, wait_blocked=True) == result
            assert len(CALLS) == (2 if choice == "retry" else 1)

    run_async(main())


def test_a_value_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    async def main() -> None:
        async with on_one_store()(stuck_at_a_person) as runtime:
            run = await runtime.start(stuck_at_a_person.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            with pytest.raises(DecodeError, match="int is declared"):
                await run.unblock("value", value="not a number")
            await run.unblock("value", value=3)
            assert await run.result(timeout=10, wait_blocked=True) == [3]

    run_async(main())


def test_a_run_blocked_at_a_step_leaves_memory() -> None:
    """It may stay blocked for days; then it must not cost more than a row."""

    async def main() -> None:
        async with on_one_store(evict_after=0)(stuck_at_a_person) as runtime:
            run = await runtime.start(stuck_at_a_person.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            await eventually(lambda: not is_in_memory(runtime, "r"))
            assert (await run.summary()).status == "blocked"
            await run.unblock("retry")
            assert await run.result(timeout=10, wait_blocked=True) == [2]

    run_async(main())


@workflow
async def one_of_two_is_stuck() -> list[Any]:
    first = asyncio.create_task(asks_a_person())
    message = await perdure.receive("m", str)
    return [message, await first]


def test_what_else_a_run_does_goes_on_beside_the_stuck_step() -> None:
    async def main() -> None:
        async with on_one_store(evict_after=0)(one_of_two_is_stuck) as runtime:
            run = await runtime.start(one_of_two_is_stuck.call(), id="r")
            with pytest.raises(RunBlockedError):
                await run.result(timeout=10)
            await eventually(lambda: not is_in_memory(runtime, "r"))
            await run.send("m", "hello")
            await eventually(lambda: has_kind(run, "message.arrived"))
            assert (await run.summary()).status == "blocked"
            await run.unblock("value", value=5)
            assert await run.result(timeout=10, wait_blocked=True) == ["hello", 5]
            assert len(CALLS) == 1

    run_async(main())


# ── context, clients ────────────────────────────────────────────────────────────────────────

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


@step
async def sees() -> str:
    return REQUEST.get()


@step
def sees_in_a_thread() -> str:
    return REQUEST.get()


@workflow
async def looks() -> list[str]:
    return [await sees(), await sees_in_a_thread.call(), REQUEST.get()]


def test_steps_run_in_the_context_in_which_the_runtime_was_opened() -> None:
    """The variables of whoever called start (a request, a user) must not leak into steps."""

    async def main() -> None:
        REQUEST.set("the program")
        async with on_one_store()(looks) as runtime:

            async def handle() -> list[str]:
                REQUEST.set("a request")
                run = await runtime.start(looks.call())
                return await run.result(timeout=10)

            assert await asyncio.create_task(handle()) == ["the program", "the program", "none"]

    run_async(main())


class Payments:
    pass


class Mailer:
    pass


@step
async def pays() -> str:
    return type(perdure.use(Payments)).__name__


@step
async def mails() -> str:
    return type(perdure.use(Mailer)).__name__


def test_steps_get_the_clients_that_the_program_provided() -> None:
    assert run_async(outcome_of(pays, provide={Payments: Payments()})) == "Payments"
    with pytest.raises(UsageError, match="has Payments"):
        run_async(outcome_of(mails, provide={Payments: Payments()}))


@step
async def reaches_out_of_its_body(what: str) -> None:
    if what == "sleep":
        await perdure.sleep(1)
    elif what == "receive":
        await perdure.receive("m")
    elif what == "patched":
        perdure.patched("x")
    else:
        perdure.set_state(1)


@pytest.mark.parametrize("what", ["sleep", "receive", "patched", "set_state"])
def test_what_belongs_to_workflow_code_is_refused_in_a_steps_body(what: str) -> None:
    with pytest.raises(UsageError, match="inside the body of a step"):
        run_async(outcome_of(reaches_out_of_its_body, what))


@step
async def outer(item: int) -> int:
    return await inner(item) + 1


@step
async def inner(item: int) -> int:
    CALLS.append(item)
    return item


def test_a_step_called_in_a_steps_body_is_a_plain_call() -> None:
    assert run_async(outcome_of(outer, 4)) == 5
    assert CALLS == [4]


# ── what cannot be recorded ─────────────────────────────────────────────────────────────────


@step(retry=Retry(max_attempts=1))
async def returns_a_lock() -> Any:
    CALLS.append(1)
    return {"items": [1, {"lock": threading.Lock()}]}


@step
async def takes_anything(items: Any) -> int:
    CALLS.append(1)
    return len(items)


@workflow
async def passes_a_lock() -> int:
    return await takes_anything([1, threading.Lock()])


def test_a_result_that_cannot_be_recorded_fails_the_step_once_and_names_the_path() -> None:
    with pytest.raises(EncodeError, match=r"\$\.items\[1\]\.lock"):
        run_async(outcome_of(returns_a_lock))
    assert CALLS == [1]


def test_an_argument_that_cannot_be_recorded_is_refused_before_the_step_starts() -> None:
    async def main() -> None:
        async with on_one_store()(passes_a_lock) as runtime:
            run = await runtime.start(passes_a_lock.call())
            with pytest.raises(EncodeError, match=r"items\[1\]"):
                await run.result(timeout=10)
            assert await kinds(run) == ["run.started", "run.failed"]

    run_async(main())
    assert CALLS == []


def test_a_result_of_fifty_megabytes_is_recorded() -> None:
    @step
    async def large() -> str:
        return "x" * 50_000_000

    @workflow(name="w")
    async def w() -> int:
        return len(await large())

    async def main() -> None:
        async with on_one_store()(w) as runtime:
            assert await (await runtime.start(w.call())).result(timeout=30) == 50_000_000

    run_async(main())


# ── odd exceptions ──────────────────────────────────────────────────────────────────────────


def raise_stop() -> int:
    return next(iter([1][1:]))


@step(retry=Retry(max_attempts=1), timeout=20)
def stops_in_a_thread() -> int:
    return raise_stop()


@step(retry=Retry(max_attempts=1), timeout=20)
async def stops() -> int:
    return raise_stop()


@pytest.mark.parametrize("body", [stops_in_a_thread, stops])
def test_stop_iteration_out_of_a_step_fails_it(body: Any) -> None:
    with pytest.raises((RuntimeError, StepError), match="StopIteration"):
        run_async(outcome_of(body))


@step(timeout=20)
async def calls_a_tool() -> int:
    CALLS.append(1)
    sys.exit(2)


@step(timeout=20)
def calls_a_tool_in_a_thread() -> int:
    CALLS.append(1)
    sys.exit(2)


@pytest.mark.parametrize("body", [calls_a_tool, calls_a_tool_in_a_thread])
def test_sys_exit_in_a_step_is_its_final_failure_and_ends_no_worker(body: Any) -> None:
    """Tools made for the command line do that. Worker after worker would take the run, and leave."""
    with pytest.raises(StepError, match="SystemExit: 2"):
        run_async(outcome_of(body))
    assert CALLS == [1]


class Strange(BaseException):
    pass


@step(retry=Retry(max_attempts=1), timeout=20)
async def strange() -> int:
    raise Strange("strange")


@step(retry=Retry(max_attempts=1), timeout=20)
def strange_in_a_thread() -> int:
    raise Strange("strange")


@step(retry=Retry(max_attempts=1), timeout=20)
async def cancels_itself() -> int:
    raise asyncio.CancelledError


@step(retry=Retry(max_attempts=1), timeout=20)
async def exits_a_generator() -> int:
    raise GeneratorExit


@pytest.mark.parametrize("body", [strange, strange_in_a_thread, cancels_itself, exits_a_generator])
def test_whatever_a_step_raises_fails_it_and_nothing_else(body: Any) -> None:
    with pytest.raises(StepError):
        run_async(outcome_of(body))


def test_an_error_in_the_retry_predicate_fails_the_step() -> None:
    def broken(error: BaseException) -> bool:
        raise LookupError("broken predicate")

    @step(retry=Retry(on=broken))
    async def fails() -> None:
        raise RuntimeError

    with pytest.raises(LookupError, match="broken predicate"):
        run_async(outcome_of(fails))


# ── places ──────────────────────────────────────────────────────────────────────────────────


def test_no_more_steps_run_at_once_than_allowed() -> None:
    running: list[int] = []
    most: list[int] = []

    @step
    async def counted(item: int) -> int:
        running.append(item)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(item)
        return item

    @workflow(name="w")
    async def w() -> int:
        return sum(await asyncio.gather(*(counted(n) for n in range(20))))

    async def main() -> None:
        async with on_one_store(concurrent_steps=3)(w) as runtime:
            assert await (await runtime.start(w.call())).result(timeout=10) == 190
        assert max(most) == 3

    run_async(main())


def test_a_cancelled_step_gives_its_place_to_one_that_waits() -> None:
    begun: list[str] = []

    @step
    async def hangs(name: str) -> str:
        begun.append(name)
        await asyncio.Event().wait()
        return name

    @step
    async def quick(name: str) -> str:
        begun.append(name)
        return name

    @workflow(name="w")
    async def w() -> str:
        first = asyncio.create_task(hangs("first"))
        await perdure.sleep(0)
        second = asyncio.create_task(quick("second"))
        await perdure.receive("go")
        first.cancel()
        return await second

    async def main() -> None:
        async with on_one_store(concurrent_steps=1)(w) as runtime:
            run = await runtime.start(w.call(), id="r")
            await eventually(lambda: begun == ["first"])
            await eventually(lambda: len(live(runtime, "r").flights) == 2)
            await run.send("go")
            assert await run.result(timeout=10) == "second"

    run_async(main())


# ── threads that outlive their attempt ──────────────────────────────────────────────────────

FIRST_BEGAN, SECOND_BEGAN, FIRST_HAS_SPOKEN = threading.Event(), threading.Event(), threading.Event()
FIRST: list[Any] = []


@step(timeout=60, retry=Retry(max_attempts=2, first_delay=0))
def outlives_its_attempt() -> Any:
    if perdure.attempt().number == 1:
        began = perdure.attempt().started_at
        FIRST_BEGAN.set()
        SECOND_BEGAN.wait(20)
        FIRST.extend([perdure.attempt().number, perdure.attempt().started_at == began])
        perdure.heartbeat("from the first")
        FIRST_HAS_SPOKEN.set()
        return "the first"
    SECOND_BEGAN.set()
    FIRST_HAS_SPOKEN.wait(20)
    perdure.heartbeat()
    return [perdure.attempt().number, perdure.last_heartbeat()]


@workflow
async def outlived() -> Any:
    return await outlives_its_attempt.call()


def test_a_thread_that_outlives_its_attempt_speaks_for_no_other() -> None:
    async def main() -> None:
        clock = FakeClock()
        async with on_one_store(clock=clock)(outlived) as runtime:
            run = await runtime.start(outlived.call(), id="r")
            await eventually(FIRST_BEGAN.is_set)
            clock.advance(61)
            assert await run.result(timeout=20) == [2, None]
            assert FIRST == [1, True]
            assert "step.heartbeat" not in await kinds(run)

    run_async(main())

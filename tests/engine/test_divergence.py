"""Where code and history part, the run is stopped at the first differing call, with both sides and the source line."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from tests.engine.driving import Driver, Happened

import perdure
from perdure import step, workflow
from perdure.api.workflow import Step, Workflow


@step
async def a(item: int = 0) -> int:
    return item


@step
async def b(item: int = 0) -> int:
    return item


@step
async def c(item: int = 0) -> int:
    return item


@workflow
async def child(item: int = 0) -> int:
    return item


@workflow(name="agent")
async def before() -> int:
    first = await a()
    await perdure.sleep(60)
    return first + await b()


@workflow(name="agent")
async def swapped() -> int:
    first = await a()
    await perdure.sleep(60)
    return first + await c()


def recorded() -> list[Happened]:
    driver = Driver(before).complete("a", 1).wake().complete("b", 2)
    assert driver.result() == 3
    return driver.history


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(n for n, line in enumerate(lines) if text in line)


def test_a_step_swapped_for_another_at_the_same_place() -> None:
    """The recorded result of `b` is not given to `c`: the code stops, and the message shows both and the line."""
    again = Driver(swapped, past=recorded())
    message = again.blocked()
    assert message.startswith("diverged: ")
    assert "the history has step 'b' as call 2 of task 0" in message
    assert "the code asks for step 'c' (0/c#1)" in message
    assert f"test_divergence.py:{line_of(swapped.spec.function, 'await c()')} in swapped" in message
    assert not again.is_over


@workflow(name="agent")
async def one_more_first() -> int:
    await c()
    return await a() + await b()


@workflow(name="agent")
async def one_less() -> int:
    await a()
    return 7


@workflow(name="agent")
async def child_instead() -> int:
    return await child() + await b()


@workflow(name="agent")
async def sleep_instead() -> int:
    await perdure.sleep(1)
    return await b()


@workflow(name="agent")
async def in_another_task() -> int:
    return await asyncio.create_task(a())


@workflow(name="agent")
async def receive_instead() -> int:
    return int(await perdure.receive("go"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (one_more_first, "the history has step 'a' as call 0 of task 0; the code asks for step 'c'"),
        (one_less, "the history has step 'b' as call 2 of task 0, never asked for"),
        (child_instead, "the history has step 'a' as call 0 of task 0; the code asks for child 'child'"),
        (sleep_instead, "the history has step 'a' as call 0 of task 0; the code asks for sleep 'sleep'"),
        (receive_instead, "the history has step 'a' as call 0 of task 0; the code asks for receive 'receive:go'"),
        (in_another_task, "the history has 0/a#1, which the code does not ask for here; the code waits for 0.1/a#1"),
    ],
)
def test_what_else_can_differ(changed: object, told: str) -> None:
    again = Driver(changed, past=recorded())
    assert told in again.blocked()


def test_nothing_is_performed_after_a_divergence() -> None:
    again = Driver(one_more_first, past=recorded())
    assert again.performed == []
    assert again.execution.commands == []


@workflow(name="agent")
async def swallowing() -> int:
    """A divergence does not pass through the code: it cannot be swallowed."""
    try:
        await c()
    except BaseException:
        return -1
    return 0


def test_a_divergence_cannot_be_swallowed() -> None:
    again = Driver(swallowing, past=recorded())
    assert "the code asks for step 'c'" in again.blocked()
    assert not again.is_over


# ── arguments ───────────────────────────────────────────────────────────────────────────────


@workflow(name="agent")
async def with_argument() -> int:
    return await a(1) + await b(2)


@workflow(name="agent")
async def with_another_argument() -> int:
    return await a(1) + await b(3)


def test_another_argument_under_the_same_manifest() -> None:
    past = Driver(with_argument).complete("a", 1).complete("b", 2).history
    message = Driver(with_another_argument, past=past).blocked()
    assert "the history has 0/b#1 with other arguments" in message
    assert '{"item":3}' in message


@step(record_input=False)
async def in_private(item: int) -> int:
    return item


@workflow(name="private")
async def asks_in_private() -> int:
    return await in_private(1234)


@workflow(name="private")
async def asks_another_in_private() -> int:
    return await in_private(5678)


def test_arguments_that_are_not_kept_are_not_shown() -> None:
    """The message is recorded."""
    driver = Driver(asks_in_private).complete("in_private", 1)
    message = Driver(asks_another_in_private, past=driver.history).blocked()
    assert "the history has 0/in_private#1 with other arguments, whose digest is" in message
    assert "1234" not in message
    assert "5678" not in message


@step(on_input_drift="accept")
async def tolerant(item: int) -> int:
    return item


@workflow(name="tolerant agent")
async def asks_1() -> int:
    return await tolerant(1)


@workflow(name="tolerant agent")
async def asks_2() -> int:
    return await tolerant(2)


def test_another_argument_is_accepted_under_another_manifest_where_the_step_says_so() -> None:
    past = Driver(asks_1).complete("tolerant", 10).history
    assert Driver(asks_2, past=past, same_manifest=False).result() == 10
    assert "with other arguments" in Driver(asks_2, past=past).blocked()


@step(ignore=["$.request.at"])
async def stamped(request: dict[str, int]) -> int:
    return request["q"]


def question_of(request: dict[str, int]) -> int:
    return request["q"]


@step(digest=question_of)
async def digested(request: dict[str, int]) -> int:
    return request["q"]


@pytest.mark.parametrize("ask", [stamped, digested])
def test_what_a_step_ignores_does_not_count(ask: Step[[dict[str, int]], int]) -> None:
    @workflow(name="viewed")
    async def earlier() -> int:
        return await ask({"q": 1, "at": 1000})

    @workflow(name="viewed")
    async def later() -> int:
        return await ask({"q": 1, "at": 2000})

    @workflow(name="viewed")
    async def other() -> int:
        return await ask({"q": 2, "at": 1000})

    past = Driver(earlier).complete(ask.name, 5).history
    assert Driver(later, past=past).result() == 5
    assert "with other arguments" in Driver(other, past=past).blocked()


@workflow(name="large")
async def large(size: int, tail: str) -> int:
    return await measure("x" * size + tail)


@step
async def measure(text: str) -> int:
    return len(text)


def test_large_arguments_are_compared_when_the_manifest_changed() -> None:
    driver = Driver(large, 20_000, "a").complete("measure", 1)

    @workflow(name="large")
    async def other_tail(size: int, tail: str) -> int:
        return await measure("x" * size + tail + "!")

    assert driver.replay(other_tail).result() == 1
    assert "with other arguments" in driver.replay(other_tail, same_manifest=False).blocked()


@workflow(name="parent")
async def parent() -> int:
    return await child(1)


@workflow(name="parent")
async def parent_of_another() -> int:
    return await child(2)


def test_a_child_with_another_input() -> None:
    past = Driver(parent).end_child("child", 1).history
    assert "the history has 0/child#1 with another input" in Driver(parent_of_another, past=past).blocked()


# ── starts, parked waits ────────────────────────────────────────────────────────────────────


@workflow(name="two")
async def two_at_once() -> list[int]:
    return list(await asyncio.gather(a(1), b(2)))


@workflow(name="two")
async def only_one() -> list[int]:
    return list(await asyncio.gather(a(1)))


def test_a_start_that_is_never_claimed_again() -> None:
    driver = Driver(two_at_once, records_starts=True)
    message = driver.replay(only_one).blocked()
    assert "the history has step 'b' as call 0 of task 0.2, never asked for" in message
    driver.check_replays()


@workflow(name="sleeper")
async def sleeps_an_hour() -> None:
    await a()
    await perdure.sleep(hours=1)


@workflow(name="sleeper")
async def sleeps_a_day() -> None:
    await a()
    await perdure.sleep(days=1)


@workflow(name="sleeper")
async def receives_instead() -> None:
    await a()
    await perdure.receive("go")


@workflow(name="sleeper")
async def works_instead() -> None:
    await a()
    await b()


@workflow(name="sleeper")
async def does_nothing_instead() -> None:
    await a()


def test_a_parked_sleep_whose_length_the_code_changed() -> None:
    driver = Driver(sleeps_an_hour).complete("a", 1)
    message = driver.park(sleeps_a_day).blocked()
    assert "the run was parked on sleep of 3600 s (call 1 of task 0)" in message
    assert "the code asks for sleep of 86400 s" in message


@workflow(name="receiver")
async def receives_within_a_day() -> None:
    await perdure.receive("go", within=86_400)


@workflow(name="receiver")
async def receives_within_an_hour() -> None:
    await perdure.receive("go", within=3600)


@workflow(name="receiver")
async def receives_at_any_time() -> None:
    await perdure.receive("go")


@pytest.mark.parametrize(
    ("changed", "told"),
    [(receives_within_an_hour, "receive:go within 3600 s"), (receives_at_any_time, "the code asks for receive:go (")],
)
def test_a_parked_receive_whose_limit_the_code_changed(changed: object, told: str) -> None:
    driver = Driver(receives_within_a_day)
    message = driver.park(changed).blocked()
    assert "the run was parked on receive:go within 86400 s (call 0 of task 0)" in message
    assert told in message
    assert driver.park().execution.failure is None


def test_a_parked_sleep_is_claimed_again_and_keeps_its_deadline() -> None:
    driver = Driver(sleeps_an_hour).complete("a", 1)
    deadline = driver.execution.deadline()
    again = driver.park()
    assert again.execution.deadline() == deadline
    again.wake()
    assert again.is_over


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (receives_instead, "the code asks for receive:go (test_divergence.py:{} in receives_instead)."),
        (works_instead, "the code waits for 0/b#1 (task 0: test_divergence.py:{} in works_instead)."),
        (does_nothing_instead, "parked on sleep of 3600 s (call 1 of task 0); the code waits for nothing."),
    ],
)
def test_a_parked_wait_that_the_code_has_no_more(changed: Workflow[[], None], told: str) -> None:
    """The place is that of the workflow's code, also where it differs in what it does not ask for: not that of the
    program that drives it."""
    driver = Driver(sleeps_an_hour).complete("a", 1)
    last = line_of(changed.spec.function, "await a()") + 1
    assert told.format(last) in driver.park(changed).blocked()

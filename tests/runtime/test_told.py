"""What is said of a run that failed, or that cannot go on, says what a person needs in order to mend it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Retry, RunBlockedError, Runtime, step, workflow
from perdure.audit.timeline import timeline
from perdure.store import open_store


@step(retry=Retry(max_attempts=2, first_delay=0.001))
async def breaks(order: str) -> str:
    raise perdure.Retryable(f"{order}\nis sold out")


@step
def breaks_in_a_library() -> int:
    return int("seven")


@workflow
async def ends_badly() -> None:
    await breaks("tea")


@workflow
async def ends_in_a_library() -> None:
    await breaks_in_a_library.call()


def place(declared: Any) -> str:
    """Of the first line of its body, which raises."""
    code = declared.spec.function.__code__
    return f"test_told.py:{max(line for _, _, line in code.co_lines() if line)} in {code.co_name}"


def test_a_failure_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[ends_badly]) as runtime:
            with pytest.raises(perdure.Retryable):
                await (await runtime.start(ends_badly.call(), id="r")).result()

    with caplog.at_level(logging.WARNING, "perdure"):
        asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"run r failed: Retryable at {place(ends_badly)}: tea is sold out"


@pytest.mark.parametrize(
    ("flow", "values"),
    [
        (ends_badly, [f"Retryable at {place(breaks)}: tea\nis sold out"] * 2),
        (
            ends_in_a_library,
            [f"ValueError at {place(breaks_in_a_library)}: invalid literal for int() with base 10: 'seven'"],
        ),
    ],
)
def test_a_failed_attempt_says_where(flow: Any, values: list[str], tmp_path: Path) -> None:
    async def main() -> None:
        async with Runtime(str(tmp_path / "s.db"), workflows=[flow]) as runtime:
            with pytest.raises((perdure.Retryable, ValueError)):
                await (await runtime.start(flow.call(), id="r")).result()

    asyncio.run(main())
    store = open_store(str(tmp_path / "s.db"))
    info = store.find("r")
    assert info is not None
    told = [each.value for each in timeline(store, info.rid) if each.attempt and "failed" in each.what]
    assert told == values
    store.close()


# ── both sides of a divergence ──────────────────────────────────────────────────────────────


@step
async def ask(question: str, context: str = "") -> str:
    return question


@workflow
async def part(number: int) -> int:
    return number


SMALL = {"question": "tea"}
LONG = {"question": "x" * 300 + "old" + "y" * 900, "context": "z"}

ONCE: dict[str, Any] = {"ask": SMALL, "number": 1}


@workflow(version=1)
async def waits_then() -> None:
    await ask(**ONCE["ask"])
    await part(ONCE["number"])
    await perdure.receive("go")


def blocked_with(path: Path, ask: dict[str, str], number: int, then: dict[str, str], then_number: int) -> str:
    """What is said when code that has changed finds the history of what it was."""

    async def main() -> str:
        ONCE.update(ask=ask, number=number)
        async with Runtime(str(path / "s.db"), workflows=[waits_then, part], evict_after=0) as runtime:
            await runtime.start(waits_then.call(), id="r")
            await runtime.drain()
        ONCE.update(ask=then, number=then_number)
        async with Runtime(str(path / "s.db"), workflows=[waits_then, part]) as runtime:
            run = await runtime.get("r")
            await run.send("go")
            with pytest.raises(RunBlockedError) as blocked:
                await run.result(timeout=30)
            return blocked.value.hint

    return asyncio.run(main())


def test_both_sides_arguments_are_told(tmp_path: Path) -> None:
    hint = blocked_with(tmp_path, SMALL, 1, {"question": "milk"}, 1)
    assert hint.startswith(
        'the history has 0/ask#1 with other arguments, {"question":"tea"}; the code asks for it with '
        '{"question":"milk"} (test_told.py:'
    )


def test_of_long_ones_the_part_that_differs(tmp_path: Path) -> None:
    new = {**LONG, "question": LONG["question"].replace("old", "new")}
    hint = blocked_with(tmp_path, LONG, 1, new, 1)
    before, after = f"…{'x' * 40}", f"{'y' * 157}…"
    assert f"other arguments, {before}old{after}; the code asks for it with {before}new{after} (" in hint


def test_of_a_child_too(tmp_path: Path) -> None:
    hint = blocked_with(tmp_path, SMALL, 1, SMALL, 2)
    assert 'the history has 0/part#1 with another input, {"number":1}; the code asks for it with {"number":2}' in hint

"""What can be declared, and what the refusal of the rest says."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import re
from asyncio import as_completed as by_completion
from asyncio import wait_for
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

import pytest

from perdure.api.declaration import check_step, check_workflow
from perdure.errors import DeclarationError
from perdure.specs import Retry


class Declared:
    """Stands for a step, an effect or a workflow."""

    def __init__(self, name: str = "declared") -> None:
        self.name = name

    async def __call__(self) -> None: ...


def is_durable(it: object) -> bool:
    return isinstance(it, Declared)


def refused_as_step(it: object) -> str:
    with pytest.raises(DeclarationError) as raised:
        check_step(it)
    return str(raised.value)


def refused(it: object) -> str:
    with pytest.raises(DeclarationError) as raised:
        check_workflow(it, is_durable)
    return str(raised.value)


# ── kinds ───────────────────────────────────────────────────────────────────────────────────


def plain(q: str, *more: str, limit: int = 3, **rest: str) -> list[str]:
    return [q, *more]


async def asynchronous(q: str) -> str:
    return q


async def star_only(*args: int) -> int:
    return sum(args)


async def async_generator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


class Agent:
    async def run(self, q: str) -> str:
        return q

    @classmethod
    async def of_class(cls, q: str) -> str:
        return q

    @staticmethod
    async def static(q: str) -> str:
        return q

    def __call__(self) -> None: ...


@functools.lru_cache
def cached(q: str) -> str:
    return q


@functools.wraps(asynchronous)
async def wrapped(*args: Any, **kwargs: Any) -> str:
    return await asynchronous(*args, **kwargs)


@pytest.mark.parametrize("function", [plain, asynchronous, star_only, Agent.static, wrapped])
def test_functions_can_be_declared(function: object) -> None:
    check_step(function)
    check_workflow(function, is_durable)


KINDS: list[tuple[object, str, str]] = [
    (lambda: 7, "a lambda", "Write `def name(...)`"),
    (Agent().run, "a method", "as arguments"),
    (Agent.run, "a method", "perdure.use()"),
    (Agent.of_class, "a classmethod", "as arguments"),
    (Agent.__dict__["of_class"], "a classmethod", "as arguments"),
    (Agent.__dict__["static"], "a staticmethod object", "Put @staticmethod above"),
    (async_generator, "an async generator", "Return a list"),
    (generator, "a generator", "Return a list"),
    (Agent, "a class", "returns its data"),
    (functools.partial(plain, "q"), "a functools.partial", "passes it on"),
    (Agent(), "a Agent object", "Write a `def` that calls it"),
    (cached, "a _lru_cache_wrapper object", "Write a `def` that calls it"),
    (print, "a builtin_function_or_method object", "Write a `def` that calls it"),
    (min, "a builtin_function_or_method object", "Write a `def` that calls it"),
    ("plan", "a str object", "Options have names: @step(name=...)"),
    (None, "a NoneType object", "Options have names"),
    (7, "an int object", "Options have names"),
]


@pytest.mark.parametrize(("it", "noun", "fix"), KINDS)
def test_what_is_no_function_is_refused_with_the_fix(it: object, noun: str, fix: str) -> None:
    message = refused_as_step(it)
    assert message.startswith(f"{noun} cannot be a step: ")
    assert fix in message
    assert f"{noun} cannot be a workflow: " in refused(it)


def test_a_coroutine_was_called_already() -> None:
    coroutine = asynchronous("q")
    assert "Leave out the parentheses" in refused_as_step(coroutine)
    coroutine.close()


def test_the_refusal_says_where() -> None:
    assert re.search(r"\(generator, .*test_declaration\.py:\d+\)$", refused_as_step(generator))
    assert re.search(r"\(Agent\.run, .*test_declaration\.py:\d+\)$", refused_as_step(Agent().run))


def test_what_is_declared_already_is_no_workflow() -> None:
    assert refused(Declared("plan")) == "plan is declared already: a function is a step or a workflow, not both."


# ── closures ────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T")


class Mode(Enum):
    FAST = "fast"


@dataclass(frozen=True)
class Frozen:
    mode: Mode = Mode.FAST
    retry: Retry = field(default_factory=Retry)


@dataclass(frozen=True)
class FrozenAroundState:
    seen: list[str] = field(default_factory=list[str])


@dataclass
class Thawed:
    limit: int = 3


def around(value: object) -> Callable[[], Any]:
    """A workflow that closes over `value`."""

    async def flow() -> object:
        return value

    return flow


def helper(q: str) -> str:
    return q


FIXED: list[object] = [
    Declared(), None, True, 7, 1.5, "text", b"bytes", (1, ("a", Mode.FAST)), frozenset({1}), timedelta(days=2),
    re.compile("x"), asyncio, Agent, list[int], int | None, T, helper, print, Frozen(), Retry(), object(),
    logging.getLogger("app"), logging.LoggerAdapter(logging.getLogger("app")),
    contextvars.ContextVar[str]("request"), range(3), ..., around(1),
]  # fmt: skip


@pytest.mark.parametrize("value", FIXED)
def test_closing_over_what_cannot_change(value: object) -> None:
    check_workflow(around(value), is_durable)


STATE: list[object] = [
    [], {}, set[int](), Agent(), Agent().run, list[int]().append, (1, []), FrozenAroundState(), Thawed(),
    asyncio.Event(), cached,
]  # fmt: skip


@pytest.mark.parametrize("value", STATE)
def test_closing_over_state_is_refused(value: object) -> None:
    message = refused(around(value))
    assert message.startswith(f"the workflow 'flow' closes over 'value' ({type(value).__qualname__}). A run may go on")
    assert "pass them as arguments" in message
    assert "test_declaration.py:" in message


def test_all_names_are_listed() -> None:
    calls: list[int] = []
    client = Agent()
    limit = 3
    plan = Declared()

    def note(n: int) -> None:
        calls.append(n)

    async def flow() -> None:
        await plan()
        note(limit)
        client()

    assert "closes over 'client' (Agent), 'note: calls' (list). " in refused(flow)


def test_a_step_may_close_over_anything() -> None:
    check_step(around([]))


def test_a_workflow_declared_in_a_test() -> None:
    plan, act, child = Declared("plan"), Declared("act"), Declared("child")

    async def flow() -> None:
        await asyncio.gather(plan(), act())
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    check_workflow(flow, is_durable)


def test_a_workflow_that_names_itself() -> None:
    async def countdown(n: int) -> None:
        if n:
            await countdown(n - 1)

    check_workflow(countdown, is_durable)


def test_functions_that_name_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    async def flow() -> bool:
        return even(2)

    check_workflow(flow, is_durable)


def test_assigning_to_an_outer_variable_is_state() -> None:
    count = 0

    async def flow() -> None:
        def up() -> None:
            nonlocal count
            count += 1

        up()

    assert "closes over 'count' (assigned to from inside)" in refused(flow)
    assert count == 0


def test_a_name_that_is_bound_only_after_the_declaration_is_not_looked_at() -> None:
    async def flow() -> int:
        return later() + await flow()

    check_workflow(flow, lambda _: False)

    def later() -> int:
        return 1


# ── the stock wait_for and as_completed ─────────────────────────────────────────────────────


async def waits_by_name() -> None:
    await wait_for(asyncio.sleep(0), 1)


async def waits_by_another_name() -> None:
    async def inner() -> list[Any]:
        return list(by_completion([]))

    await inner()


async def waits_by_module() -> None:
    await asyncio.wait_for(asyncio.sleep(0), 1)


async def has_an_attribute_of_that_name(it: Any) -> None:
    await it.wait_for(3)


def test_the_stock_waits_are_refused_by_name() -> None:
    message = refused(waits_by_name)
    assert "'waits_by_name' uses 'wait_for'" in message
    assert "call asyncio.wait_for(...) instead" in message
    message = refused(waits_by_another_name)
    assert "uses 'by_completion'" in message
    assert "call asyncio.as_completed(...) instead" in message


def test_the_stock_waits_are_refused_in_a_closure() -> None:
    assert "uses 'value', which is asyncio.wait_for" in refused(around(asyncio.wait_for))


@pytest.mark.parametrize("function", [waits_by_module, has_an_attribute_of_that_name])
def test_asyncio_is_used_by_its_module(function: object) -> None:
    check_workflow(function, is_durable)


def test_a_step_may_use_them() -> None:
    check_step(waits_by_name)

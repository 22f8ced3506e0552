"""A person says what became of an effect: which one is meant, what cannot be, and that no code of a run may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure import (
    Client,
    DecodeError,
    Idempotent,
    NoGuarantee,
    OperationNotInDoubt,
    OperationOpen,
    Run,
    RunBlockedError,
    RunCancelledError,
    RunFinishedError,
    Runtime,
    StepError,
    UnknownNameError,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.api.inbox import InboxEntry
from perdure.history import events as e
from perdure.runtime.unattended import end_by_force
from perdure.store import open_store

SENT: list[str] = []
LOSES = {"answers": True}


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    SENT.clear()
    LOSES["answers"] = True


@effect(downstream=NoGuarantee(), timeout=5)
async def post(letter: str, pages: int) -> int:
    SENT.append(letter)
    if LOSES["answers"]:
        raise ConnectionResetError("the connection went away")
    return pages


@post.key
def _(letter: str, pages: int) -> str:
    return letter


@workflow
async def writes(letter: str) -> int:
    return await post(letter, 3)


@workflow
async def writes_twice() -> list[int]:
    return list(await asyncio.gather(post("a", 1), post("b", 2)))


def with_runtime(scenario: Callable[[Runtime], Awaitable[None]], *workflows: Any) -> None:
    async def run() -> None:
        async with Runtime(open_store(":memory:"), workflows=workflows or [writes, writes_twice]) as runtime:
            await scenario(runtime)

    asyncio.run(run())


async def in_doubt(run: Run[Any]) -> None:
    with pytest.raises(RunBlockedError) as blocked:
        await run.result(timeout=10)
    assert blocked.value.reason == "unknown_effect"


def test_succeeded_gives_the_call_its_result_and_keeps_who_said_so() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes.call("a"), id="r")
        await in_doubt(run)
        await runtime.settle("r", "succeeded", value=3, reference="post-7", by="ann", reason="the office has it")
        assert await run.result(wait_blocked=True, timeout=10) == 3
        (row,) = await runtime.effects()
        assert (row.status, row.reference, row.attempts) == ("succeeded", "post-7", 1)
        assert row.note == "settled by ann: the office has it"
        (decided,) = [event.event for event in await run.history() if event.kind == "run.unblocked"]
        assert isinstance(decided, e.RunUnblocked)
        assert (decided.choice, decided.by, decided.why) == ("succeeded", "ann", "the office has it")
        assert SENT == ["a"]

    with_runtime(scenario)


def test_failed_is_an_exception_and_retry_sends_again() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes.call("a"), id="r")
        await in_doubt(run)
        LOSES["answers"] = False
        await run.settle("retry", by="ann")
        assert await run.result(wait_blocked=True, timeout=10) == 3
        assert SENT == ["a", "a"]
        LOSES["answers"] = True
        other = await runtime.start(writes.call("b"), id="s")
        await in_doubt(other)
        await other.settle("failed", by="ann", reason="they know nothing")
        with pytest.raises(StepError, match="settled by ann: they know nothing"):
            await other.result(wait_blocked=True, timeout=10)

    with_runtime(scenario)


def test_the_inbox_says_what_was_sent_and_what_is_known() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes.call("a"), id="r")
        await in_doubt(run)
        (entry,) = await runtime.inbox()
        assert entry.operation is not None
        assert (entry.operation.action, entry.operation.key, entry.operation.attempts) == ("post", "a", 1)
        assert entry.operation.started_at is not None
        assert entry.sent == {"letter": "a", "pages": 3}
        assert entry.operation.note == "ConnectionResetError: the connection went away"
        assert list(entry.choices) == ["succeeded", "failed", "retry"]

    with_runtime(scenario)


Refusal = Callable[[Run[Any], InboxEntry], Awaitable[None]]

REFUSED: dict[str, tuple[Refusal, type[Exception], str]] = {
    "no such operation": (
        lambda run, _: run.settle("failed", operation="ab" * 16),
        UnknownNameError,
        "no operation of run r 'abab",
    ),
    "no such call": (lambda run, _: run.settle("failed", call="0/x#1"), OperationNotInDoubt, "0/x#1 of run r is no ef"),
    "a value of another type": (lambda run, _: run.settle("succeeded", value="three"), DecodeError, "int"),
    "no value": (lambda run, _: run.settle("succeeded"), DecodeError, "int"),
    "a value of what failed": (lambda run, _: run.settle("failed", value=3), UsageError, "value= and reference= belo"),
    "another word": (lambda run, _: run.settle("done"), UsageError, "'succeeded', 'failed' or 'retry'"),  # type: ignore[arg-type]
    "an unblock": (lambda run, _: run.unblock("fail"), UsageError, r"is an effect.*settle\('succeeded'"),
    "a retry by unblock": (lambda run, it: run.unblock("retry", call=it.call), UsageError, r"settle\('retry'\)"),
}


@pytest.mark.parametrize(("act", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(act: Refusal, error: type[Exception], says: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes.call("a"), id="r")
        await in_doubt(run)
        (before,) = await runtime.inbox()
        with pytest.raises(error, match=says):
            await act(run, before)
        assert await runtime.inbox() == [before]

    with_runtime(scenario)


def test_of_several_in_doubt_it_has_to_be_said_which() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes_twice.call(), id="r")
        await in_doubt(run)
        while len(entries := await runtime.inbox()) < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="several effects of run r are in doubt"):
            await run.settle("succeeded", value=1)
        for entry in entries:
            assert entry.operation is not None
            await run.settle("succeeded", value=entry.sent["pages"], operation=entry.operation.id)
        assert await run.result(wait_blocked=True, timeout=10) == [1, 2]

    with_runtime(scenario)


def test_a_decision_is_made_once(tmp_path: Any) -> None:
    """Also while nobody has read the first one: here no worker is left."""

    async def doubt() -> str:
        async with Runtime(str(tmp_path / "db"), workflows=[writes]) as runtime:
            run = await runtime.start(writes.call("a"), id="r")
            await in_doubt(run)
            (row,) = await runtime.effects(run="r", status="unknown")
            return row.id

    async def scenario() -> None:
        operation = await doubt()
        async with Client(str(tmp_path / "db")) as client:
            await client.settle("r", "succeeded", value=3, operation=operation, by="ann")
            with pytest.raises(OperationNotInDoubt, match=r"decided already: settle --succeeded of .* by ann; its wor"):
                await client.settle("r", "failed", operation=operation, by="bo")
        async with Runtime(str(tmp_path / "db"), workflows=[writes]) as runtime:
            run = await runtime.get("r")
            assert await run.result(wait_blocked=True, timeout=10) == 3
            with pytest.raises(RunFinishedError, match="nothing in it is in doubt"):
                await run.settle("failed", operation=operation)

    asyncio.run(scenario())


# ── not by the code ─────────────────────────────────────────────────────────────────────────

SAID: dict[str, str] = {}


async def noted(where: str, attempt: Callable[[], Awaitable[object]]) -> None:
    try:
        await attempt()
    except UsageError as no:
        SAID[where] = str(no)


@step
async def an_agents_tool() -> None:
    await noted("step", lambda: HELD["runtime"].settle("r", "succeeded", value=3))


@step
def an_agents_blocking_tool(path: str) -> None:
    with Client(path).sync() as client:
        try:
            client.settle("r", "succeeded", value=3)
        except UsageError as no:
            SAID["def step"] = str(no)


HELD: dict[str, Runtime] = {}


@workflow
async def decides(path: str) -> None:
    await an_agents_tool()
    await an_agents_blocking_tool.call(path)
    await noted("workflow", lambda: HELD["runtime"].settle("r", "succeeded", value=3))


def test_nothing_inside_a_run_can_settle(tmp_path: Any) -> None:
    SAID.clear()

    async def scenario() -> None:
        path = str(tmp_path / "db")
        async with Runtime(path, workflows=[writes, decides]) as runtime:
            HELD["runtime"] = runtime
            run = await runtime.start(writes.call("a"), id="r")
            await in_doubt(run)
            await (await runtime.start(decides.call(path), id="agent")).result(timeout=20)
            (row,) = await runtime.effects(run="r")
            assert row.status == "unknown"

    asyncio.run(scenario())
    assert set(SAID) == {"step", "def step", "workflow"}
    assert all("that is a person's to say" in said for said in SAID.values()), SAID


# ── a success without a result ──────────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), timeout=5)
async def odd(letter: str) -> int:
    return object()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@odd.key
def _(letter: str) -> str:
    return letter


@workflow
async def odd_one() -> int:
    return await odd("a")


def test_of_what_has_succeeded_only_the_result_can_be_supplied() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(odd_one.call(), id="r")
        with pytest.raises(RunBlockedError) as blocked:
            await run.result(timeout=10)
        assert blocked.value.reason == "undecodable"
        (entry,) = await runtime.inbox()
        assert list(entry.choices) == ["succeeded"]
        with pytest.raises(OperationNotInDoubt, match="has succeeded: only its result can be supplied"):
            await run.settle("failed")
        await run.settle("succeeded", value=5)
        assert await run.result(wait_blocked=True, timeout=10) == 5

    with_runtime(scenario, odd_one)


# ── an end by force ─────────────────────────────────────────────────────────────────────────


@effect(downstream=NoGuarantee(), timeout=20)
async def slow_post(letter: str) -> None:
    SENT.append(letter)
    await asyncio.sleep(0.2)


@slow_post.key
def _(letter: str) -> str:
    return letter


@workflow
async def writes_slowly() -> None:
    await slow_post("a")
    await perdure.receive("more")


def test_a_run_is_not_ended_by_force_while_an_effect_of_it_may_have_happened() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(writes_slowly.call(), id="r")
        while not SENT:
            await asyncio.sleep(0.005)
        with pytest.raises(OperationOpen, match=r"operation \w{32} \(slow_post\) may have .*inbox settle r") as no:
            await run.cancel(force=True)
        (row,) = await runtime.effects(run="r")
        assert (no.value.operation_id, no.value.state) == (row.id, "started")
        while (await runtime.effects(run="r"))[0].status != "succeeded":
            await asyncio.sleep(0.005)
        assert await run.cancel(force=True) in {"cancelled", "requested"}
        with pytest.raises(RunCancelledError):
            await run.result(timeout=10)

    with_runtime(scenario, writes_slowly)


def test_nor_is_one_that_nobody_holds(tmp_path: Any) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "db")
        async with Runtime(path, workflows=[writes]) as runtime:
            await in_doubt(await runtime.start(writes.call("a"), id="r"))
        async with Client(path) as client:
            run = await client.get("r")
            with pytest.raises(OperationOpen):
                await run.cancel(force=True)
            with pytest.raises(OperationOpen):  # also for whoever gets past the first look
                end_by_force(client._store, "r", retry_after=(0.0,), now=0)  # pyright: ignore[reportPrivateUsage]
            assert await run.status() == "blocked"
            await run.settle("failed", by="ann")
        async with Runtime(path, workflows=[writes]) as runtime:
            with pytest.raises(StepError):
                await (await runtime.get("r")).result(wait_blocked=True, timeout=10)

    asyncio.run(scenario())

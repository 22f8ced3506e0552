"""What is in the inbox, in which order, and what comes of each choice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import (
    Client,
    DecodeError,
    Idempotent,
    NeedsPerson,
    Run,
    RunBlockedError,
    Runtime,
    StepError,
    effect,
    step,
    with_approval,
    workflow,
)
from perdure.api.inbox import REASONS, InboxEntry, entries
from perdure.clock import MICROSECONDS, SystemClock
from perdure.history import events as e
from perdure.history.chain import GENESIS, link
from perdure.store import Store, open_store
from perdure.store.protocol import NewRun, Row, Status

asked: list[str] = []
patience: dict[str, bool] = {"is_sure": False}


@step
async def judge(case: str) -> int:
    asked.append(case)
    if patience["is_sure"]:
        return 7
    raise NeedsPerson(f"is {case} a hard case?")


@workflow
async def trial(case: str) -> int:
    try:
        return await judge(case)
    except StepError as no:
        return -len(no.message)


@workflow
async def two_trials(first: str, second: str) -> list[int]:
    return list(await asyncio.gather(judge(first), judge(second)))


@workflow
async def stuck() -> None:
    await asyncio.Event().wait()


@effect(downstream=Idempotent())
async def move() -> None: ...


@effect(downstream=Idempotent(), reversible=False)
async def burn() -> None: ...


move.key(lambda: "it")
burn.key(lambda: "it")


@workflow
async def gate(is_reversible: bool) -> None:
    await with_approval((move if is_reversible else burn).call(), by="ann")


@workflow(name="gone", version=3)
async def gone_before() -> None: ...


def with_runtime(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    """Run a scenario on a store in memory, with a worker that knows the workflows of this module."""
    asked.clear()
    patience["is_sure"] = False

    async def run() -> None:
        async with Runtime(open_store(":memory:"), workflows=[trial, two_trials, stuck, gate]) as runtime:
            await scenario(runtime)

    asyncio.run(run())


async def blocked(run: Run[Any]) -> RunBlockedError:
    """What the run says once it stands still."""
    with pytest.raises(RunBlockedError) as error:
        await run.result(timeout=10)
    return error.value


async def only_entry(client: Client) -> InboxEntry:
    (entry,) = await client.inbox()
    return entry


# ── entries ─────────────────────────────────────────────────────────────────────────────────


def test_an_entry_says_what_happened_to_which_call_and_what_each_choice_will_do() -> None:
    async def scenario(runtime: Runtime) -> None:
        before = datetime.now(UTC)
        run = await runtime.start(trial.call("the case"), id="t1")
        error = await blocked(run)
        entry = await only_entry(runtime)
        assert (error.reason, error.hint) == (entry.reason, entry.hint)
        assert (entry.run_id, entry.workflow, entry.version) == ("t1", "trial", 1)
        assert (entry.reason, entry.call) == ("needs_person", "0/judge#1")
        assert "is the case a hard case?" in entry.hint
        assert before <= entry.since <= datetime.now(UTC)
        assert set(entry.choices) == {"retry", "value", "fail"}

    with_runtime(scenario)


def test_oldest_first_whatever_the_order_of_the_runs() -> None:
    async def scenario(runtime: Runtime) -> None:
        late = await runtime.start(trial.call("late"), id="started first", delay=0)
        await blocked(late)
        early = await runtime.start(stuck.call(), id="started second")
        await blocked(early)
        await late.unblock("retry", call="0/judge#1")
        while (await runtime.inbox())[-1].run_id != "started first":
            await asyncio.sleep(0.01)
        assert [entry.run_id for entry in await runtime.inbox()] == ["started second", "started first"]

    with_runtime(scenario)


def test_a_run_that_is_stuck_as_a_whole_offers_no_value() -> None:
    async def scenario(runtime: Runtime) -> None:
        await blocked(await runtime.start(stuck.call()))
        entry = await only_entry(runtime)
        assert (entry.reason, entry.call) == ("deadlocked", None)
        assert set(entry.choices) == {"retry", "fail"}

    with_runtime(scenario)


def test_a_pause_does_not_hide_what_is_blocked() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(trial.call("paused"))
        await blocked(run)
        await run.pause()
        while "run.paused" not in [event.kind for event in await run.history()]:
            await asyncio.sleep(0.01)
        assert await run.status() is Status.BLOCKED
        assert (await only_entry(runtime)).call == "0/judge#1"

    with_runtime(scenario)


def test_nothing_waits_where_nothing_is_wrong() -> None:
    async def scenario(runtime: Runtime) -> None:
        assert await runtime.inbox() == []

    with_runtime(scenario)


# ── choices ─────────────────────────────────────────────────────────────────────────────────


def test_retry_tries_the_call_again() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(trial.call("again"))
        await blocked(run)
        patience["is_sure"] = True
        await run.unblock("retry")
        assert await run.result(wait_blocked=True, timeout=10) == 7
        assert asked == ["again", "again"]

    with_runtime(scenario)


def test_a_value_stands_for_the_result_and_nothing_is_called() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(trial.call("given"))
        await blocked(run)
        await run.unblock("value", value=42, by="ann")
        assert await run.result(wait_blocked=True, timeout=10) == 42
        assert asked == ["given"]

    with_runtime(scenario)


def test_a_value_that_does_not_fit_is_refused_with_the_reason() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(trial.call("odd"))
        await blocked(run)
        before = await only_entry(runtime)
        with pytest.raises(DecodeError, match="'forty-two' was recorded where int is declared"):
            await run.unblock("value", value="forty-two")
        assert await only_entry(runtime) == before

    with_runtime(scenario)


def test_fail_lets_the_workflow_see_a_step_error() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(trial.call("no"))
        await blocked(run)
        await run.unblock("fail", by="ann", reason="hopeless")
        assert await run.result(wait_blocked=True, timeout=10) == -len("failed by ann: hopeless")

    with_runtime(scenario)


def test_fail_ends_a_run_that_is_stuck_as_a_whole() -> None:
    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(stuck.call())
        await blocked(run)
        await run.unblock("fail")
        with pytest.raises(StepError):
            await run.result(wait_blocked=True, timeout=10)

    with_runtime(scenario)


def test_a_decision_about_one_call_is_none_about_another() -> None:
    """Two people decide at the same time about the same call: the second decision must not hit the other call."""

    async def scenario(runtime: Runtime) -> None:
        run = await runtime.start(two_trials.call("one", "two"))
        await blocked(run)
        while len(await runtime.inbox()) < 2:
            await asyncio.sleep(0.01)
        first, second = await runtime.inbox()
        await run.unblock("value", value=1, call=first.call)
        await run.unblock("value", value=1, call=first.call)
        while len(await runtime.inbox()) > 1:
            await asyncio.sleep(0.01)
        assert (await only_entry(runtime)).call == second.call
        await run.unblock("value", value=2, call=second.call)
        assert sorted(await run.result(wait_blocked=True, timeout=10)) == [1, 2]

    with_runtime(scenario)


def test_every_reason_offers_only_choices_that_can_be_made() -> None:
    others = {"unknown_effect": {"succeeded", "failed", "retry"}, "over_budget": {"raise_budget", "retry", "fail"}}
    others["done_by_original"] = {"retry", "reuse", "fail"}
    others["stale_decision"] = {"keep", "retry", "fail"}
    others["premise_unreadable"] = {"keep", "retry", "value", "fail"}
    for name, reason in REASONS.items():
        takes = others.get(name, {"retry", "value", "fail"})
        assert {*reason.of_call, *reason.of_run} <= takes
        assert "value" not in reason.of_run


# ── runs that nobody executes ───────────────────────────────────────────────────────────────


def abandoned(run_id: str, workflow: str = "gone", version: int = 3, *, due_at: int | None = 0) -> NewRun:
    """A run that nobody owns, due since 1970 unless told otherwise."""
    started = e.encode(e.RunStarted(workflow, version, 1, {}, bytes(32)))
    row = Row(0, 0, "run.started", started, b"{}", None, link(GENESIS, 0, 0, started))
    return NewRun(os.urandom(16), run_id, workflow, version, bytes(32), 0, (row,), due_at=due_at)


def waiting(store: Store, seconds: float = 61) -> list[InboxEntry]:
    """The inbox, so many seconds from 1970 on."""
    return entries(store, round(seconds * MICROSECONDS))


def test_a_run_that_nobody_can_execute_is_there_after_a_minute() -> None:
    store = open_store(":memory:")
    store.commit([abandoned("old")])
    assert waiting(store, 59) == []
    (entry,) = waiting(store)
    assert (entry.run_id, entry.reason, entry.version) == ("old", "no_worker_for_version", 3)
    assert dict(entry.choices) == {}
    assert "no live worker knows that workflow" in entry.hint


def test_the_versions_that_are_served_are_named() -> None:
    store = open_store(":memory:")
    store.enter("w", lease_seconds=1000, workflows=["gone/4", "gone/12", "other/3"])
    store.commit([abandoned("old")])
    (entry,) = waiting(store)
    assert "live workers have version 4, 12" in entry.hint
    assert "replays={3}" in entry.hint


def test_runs_that_are_served_or_wait_for_their_time_are_not_there() -> None:
    store = open_store(":memory:")
    store.enter("w", lease_seconds=1000, workflows=["gone/3"])
    store.commit([abandoned("served"), abandoned("later", "other", due_at=120 * MICROSECONDS)])
    store.commit([abandoned("only mail wakes it", "other", due_at=None)])
    assert waiting(store) == []


def test_of_what_is_served_the_oldest_is_there_when_nobody_takes_it_for_five_minutes() -> None:
    store = open_store(":memory:")
    store.enter("w", lease_seconds=1000, workflows=["gone/3"])
    store.commit([abandoned("second", due_at=2), abandoned("first", due_at=1), abandoned("third", due_at=3)])
    assert waiting(store, 299) == []
    (entry,) = waiting(store, 301)
    assert (entry.run_id, entry.reason, dict(entry.choices)) == ("first", "silent", {})
    assert "concurrent_runs" in entry.hint


def test_what_cannot_be_taken_back_is_first_although_it_is_younger() -> None:
    async def scenario(runtime: Runtime) -> None:
        await blocked(await runtime.start(stuck.call(), id="old"))
        await runtime.start(gate.call(True), id="harmless")
        await runtime.start(gate.call(False), id="final")
        while len(found := await runtime.inbox()) < 3:
            await asyncio.sleep(0.01)
        assert [(entry.run_id, entry.risk) for entry in found] == [("final", "high"), ("old", ""), ("harmless", "")]
        assert len({entry.id for entry in found}) == 3
        assert [entry.id for entry in await runtime.inbox()] == [entry.id for entry in found]

    with_runtime(scenario)


def test_a_dead_worker_serves_nothing() -> None:
    store = open_store(":memory:", clock=SystemClock())
    store.enter("w", lease_seconds=-1, workflows=["gone/3"])
    store.commit([abandoned("old")])
    assert [entry.run_id for entry in waiting(store)] == ["old"]


def test_more_runs_than_are_read_at_once() -> None:
    store = open_store(":memory:")
    store.commit([abandoned(f"run-{number}") for number in range(1_100)])
    assert len(waiting(store)) == 1_100

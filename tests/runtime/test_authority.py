"""Who may decide, judged before a decision is sent, when it is taken in, and before an approval is used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from tests.runtime.hosting import eventually, on_one_store, run_async
from tests.runtime.test_approvals import asked

import perdure
from perdure import ApprovalExpired, Authority, Client, DecisionRefused, Idempotent, NeedsPerson, effect, step, workflow
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

PAID: list[str] = []


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    PAID.clear()


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str) -> str:
    PAID.append(order)
    return f"refunded {order}"


@refund.key
def _(order: str) -> str:
    return order


@workflow
async def agent(order: str, quorum: int = 1) -> str:
    try:
        return await perdure.with_approval(refund.call(order), by={"supervisor"}, quorum=quorum)
    except ApprovalExpired as stale:
        return f"stale: {stale}"


@step
async def judge(case: str) -> int:
    raise NeedsPerson(f"is {case} a hard case?")


@workflow
async def trial(case: str) -> int:
    return await judge(case)


async def why(decision: Any) -> str | None:
    try:
        await decision
    except DecisionRefused as no:
        return no.why
    return None


def test_a_client_asks_before_it_sends() -> None:
    make = on_one_store(authority={"bo": {"supervisor"}, "cy": set[str](), "supervisor": set[str]()})

    async def main() -> None:
        async with make(agent) as runtime:
            run = await runtime.start(agent.call("o-1"), id="r")
            (it,) = await asked(runtime)
            about: Any = {"hash": it.hash, "role": "supervisor"}
            assert await why(runtime.approve(it.id, by="dee", **about)) == "unknown_person"
            assert await why(runtime.approve(it.id, by="cy", **about)) == "role_not_held"
            assert await why(runtime.approve(it.id, by="cy", hash=it.hash)) == "not_an_approver"
            assert PAID == []
            assert await why(runtime.approve(it.id, by="bo", **about)) is None
            assert await run.result(timeout=20) == "refunded o-1"

    run_async(main())


def test_what_a_client_without_authority_sends_is_judged_by_the_worker() -> None:
    """It stands in the history as refused, and the request stands."""
    make = on_one_store()

    async def main() -> None:
        async with make(agent) as runtime:
            await runtime.start(agent.call("o-1"), id="r")
            (it,) = await asked(runtime)
        async with make() as client:
            await client.approve(it.id, hash=it.hash, by="eve", role="supervisor")
        async with make(agent, authority={"bo": ["supervisor"]}) as runtime:
            run = await runtime.get("r")
            await eventually(lambda: is_refused(run, "eve"))
            assert [row.status for row in await runtime.requests()] == ["pending"]
            await runtime.approve(it.id, hash=it.hash, by="bo", role="supervisor")
            assert await run.result(timeout=20) == "refunded o-1"
            (row,) = await runtime.requests()
            assert [said.by for said in row.said] == ["bo"]

    run_async(main())


async def is_refused(run: Any, by: str) -> bool:
    events = [happened.event for happened in await run.history() if happened.kind == "person.decided"]
    return any(event.by == by and event.refused for event in events)


def test_blocked_runs_and_effects_in_doubt_have_rules_of_their_own() -> None:
    may = {"needs_person": {"lawyer"}, "needs_person.fail": {"judge"}}
    make = on_one_store(authority=Authority({"ann": ["lawyer"], "bo": ["judge"], "cy": []}, may=may))

    async def main() -> None:
        async with make(trial) as runtime:
            run = await runtime.start(trial.call("case"), id="r")
            await eventually(lambda: is_blocked(runtime))
            assert await why(run.unblock("value", value=7)) == "unknown_person"
            assert await why(run.unblock("value", value=7, by="cy")) == "not_allowed"
            assert await why(run.unblock("value", value=7, by="bo")) == "not_allowed"
            assert await why(run.unblock("fail", by="ann")) == "not_allowed"
            assert await why(run.unblock("value", value=7, by="ann")) is None
            assert await run.result(timeout=20, wait_blocked=True) == 7

    run_async(main())


async def is_blocked(client: Client) -> bool:
    return bool(await client.inbox())


def test_a_worker_refuses_to_unblock_for_who_may_not() -> None:
    make = on_one_store()

    async def main() -> None:
        async with make(trial, authority={"ann": []}) as runtime, make() as client:
            run = await runtime.start(trial.call("case"), id="r")
            await eventually(lambda: is_blocked(runtime))
            outside = await client.get("r")
            await outside.unblock("value", value=6, by="eve")
            await eventually(lambda: is_refused(run, "eve"))
            (entry,) = await runtime.inbox()
            assert (entry.reason, entry.pending) == ("needs_person", ())
            await outside.unblock("value", value=7, by="ann")
            assert await run.result(timeout=20, wait_blocked=True) == 7

    run_async(main())


# ── withdrawn roles ─────────────────────────────────────────────────────────────────────────


class Directory:
    """Who has which role; it changes, and is away at times."""

    def __init__(self, **roles: Iterable[str]) -> None:
        self.roles: dict[str, Iterable[str]] = dict(roles)
        self.is_away = False

    def __call__(self, person: str) -> Iterable[str] | None:
        if self.is_away:
            raise ConnectionError("away")
        return self.roles.get(person)


def under_test(test: Any) -> Any:
    """With a store in memory and a clock of the test's."""

    def run() -> None:
        clock = FakeClock()
        asyncio.run(test(clock, MemoryStore(clock)))

    run.__name__ = test.__name__
    return run


@under_test
async def test_of_several_votes_the_withdrawn_ones_count_no_more(clock: FakeClock, store: MemoryStore) -> None:
    directory = Directory(ann=["supervisor"], bo=["supervisor"], cy=["supervisor"])
    async with RuntimeUnderTest(store, clock=clock, workflows=[agent], authority=directory) as runtime:
        run = await runtime.start(agent.call("o-1", 2), id="r")
        await runtime.run_dry()
        (it,) = await runtime.requests()
        await runtime.approve(it.id, hash=it.hash, by="ann", role="supervisor")
        await runtime.run_dry()
        directory.roles["ann"] = []
        await runtime.approve(it.id, hash=it.hash, by="bo", role="supervisor")
        await runtime.run_dry()
        (row,) = await runtime.requests()
        assert (row.status, [said.by for said in row.said], PAID) == ("pending", ["bo"], [])
        assert await is_refused(run, "ann")
        await runtime.approve(it.id, hash=it.hash, by="cy", role="supervisor")
        assert await run.result() == "refunded o-1"


@under_test
async def test_an_approval_whose_role_is_withdrawn_before_use_is_stale(clock: FakeClock, store: MemoryStore) -> None:
    """The worker dies when the decision is recorded, and before the start of the effect is."""
    directory = Directory(bo=["supervisor"])
    async with RuntimeUnderTest(store, clock=clock, workflows=[agent], authority=directory) as first:
        await first.start(agent.call("o-1"), id="r")
        await first.run_dry()
        (it,) = await first.requests()
        await first.approve(it.id, hash=it.hash, by="bo", role="supervisor")
        turns = first._host.turns  # pyright: ignore[reportPrivateUsage]
        turns.effects.start = lambda live, ask: None  # type: ignore[method-assign]
        await first.run_dry()
        assert [row.status for row in await first.requests()] == ["approved"]
        await first.die()
    directory.roles["bo"] = []
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent], authority=directory) as second:
        told = await (await second.get("r")).result()
        assert "bo is no supervisor" in told
        assert [row.status for row in await second.requests()] == ["lapsed"]
    assert PAID == []


@under_test
async def test_while_nobody_can_tell_who_may_a_decision_waits(clock: FakeClock, store: MemoryStore) -> None:
    directory = Directory(bo=["supervisor"])
    outside = Client(store.again(), clock=clock)
    async with RuntimeUnderTest(store, clock=clock, workflows=[agent], authority=directory) as runtime, outside:
        run = await runtime.start(agent.call("o-1"), id="r")
        await runtime.run_dry()
        (it,) = await runtime.requests()
        directory.is_away = True
        with pytest.raises(perdure.PerdureError, match="away"):
            await runtime.approve(it.id, hash=it.hash, by="bo", role="supervisor")
        await outside.approve(it.id, hash=it.hash, by="bo", role="supervisor")
        await runtime.advance(5)
        assert [row.status for row in await runtime.requests()] == ["pending"]
        directory.is_away = False
        assert await run.result() == "refunded o-1"

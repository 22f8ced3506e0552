"""Approvals in a worker: what is asked, who decides, what is done with it, and how often."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from tests.runtime.hosting import eventually, kinds, let_go, on_one_store, run_async

import perdure
from perdure import (
    ApprovalExpired,
    CanLookUp,
    Client,
    DecisionRefused,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Operation,
    Rejected,
    Run,
    Runtime,
    UnknownNameError,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.api.inputs import micros
from perdure.api.requests import RequestSummary
from perdure.decisions import Decision
from perdure.decisions.deciding import encode_decision
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Decide, Done
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

PAID: list[tuple[str, int]] = []
"""What reached the other side."""
RAN: list[str] = []
DAY = 86_400_000_000


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    PAID.clear()
    RAN.clear()


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str, cents: int) -> str:
    PAID.append((order, cents))
    return f"refunded {cents}"


@refund.key
def _(order: str, cents: int) -> str:
    return order


@workflow
async def agent(order: str, cents: int) -> str:
    return await perdure.with_approval(refund.call(order, cents), by={"ann", "supervisor"}, note="as agreed")


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Of a test that makes its own runtimes."""

    @functools.wraps(test)
    def run() -> None:
        run_async(test())

    del run.__wrapped__
    return run


async def refusal(decision: Awaitable[None]) -> str | None:
    """Why it was refused; None if it counts."""
    try:
        await decision
    except DecisionRefused as no:
        return no.why
    return None


async def asked(client: Client, run: str | None = None, count: int = 1) -> list[RequestSummary]:
    """What people are asked just now, once there is so much of it."""
    found: list[RequestSummary] = []

    async def are_there() -> bool:
        found[:] = await client.requests(run=run, status="pending")
        return len(found) >= count

    await eventually(are_there)
    return found[::-1]


@contextlib.asynccontextmanager
async def one_request(
    make: Callable[..., Runtime], call: Any
) -> AsyncGenerator[tuple[Runtime, Run[Any], RequestSummary]]:
    """A run "r" that asks people for one thing: who executes it, the run, and what it asks."""
    async with make(call.of) as runtime:
        run = await runtime.start(call, id="r")
        (it,) = await asked(runtime)
        yield runtime, run, it


def test_exactly_what_was_approved_is_done_once() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, agent.call("o-1", 4200)) as (runtime, run, it):
            assert PAID == []
            assert (it.kind, it.subject, it.key) == ("approval", "refund", "o-1")
            assert it.arguments == {"order": "o-1", "cents": 4200}
            assert (it.note, it.approvers, it.quorum) == ("as agreed", ("ann", "supervisor"), 1)
            assert (it.recheck, it.version, it.call) == (True, 1, "0/approve:refund#1")
            (entry,) = await runtime.inbox()
            assert (entry.reason, entry.run_id, entry.request) == ("approval", "r", it)
            assert set(entry.choices) == {"approve", "reject", "delegate"}
            await runtime.approve(it.id, hash=it.hash, by="ann", comment="fine")
            assert await run.result(timeout=20) == "refunded 4200"
            assert PAID == [("o-1", 4200)]
            assert await runtime.inbox() == []
            (used,) = await runtime.requests(run="r")
            (operation,) = await runtime.effects(run="r")
            assert (used.status, used.used_by) == ("used", operation.id)
            assert operation.approval == it.id
            assert [(s.choice, s.by, s.comment) for s in used.said] == [("approve", "ann", "fine")]
            assert await kinds(run) == [
                "run.started", "person.asked", "person.answered", "effect.started", "effect.succeeded", "run.completed",
            ]  # fmt: skip

    run_async(main())


def test_a_rejection_comes_out_with_who_and_why() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, agent.call("o-1", 4200)) as (runtime, run, it):
            await runtime.reject(it.id, hash=it.hash[:8], by="bo", role="supervisor", comment="too much")
            with pytest.raises(Rejected) as no:
                await run.result(timeout=20)
            assert (no.value.by, no.value.role, no.value.comment, no.value.approval_id) == (
                "bo", "supervisor", "too much", it.id,
            )  # fmt: skip
            assert PAID == []

    run_async(main())


async def test_nobody_decides_in_time(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def in_time(order: str) -> str:
        return await perdure.with_approval(refund.call(order, 1), by="ann", within=timedelta(days=3))

    run = await perdure_runtime.start(in_time.call("o-1"), id="r")
    with pytest.raises(ApprovalExpired) as late:
        await run.result()
    (it,) = await perdure_runtime.requests()
    assert (it.status, it.id) == ("expired", late.value.approval_id)
    assert it.expires_at is not None
    assert it.expires_at - it.asked_at == timedelta(days=3)
    assert PAID == []


# ── decisions that change nothing ───────────────────────────────────────────────────────────


def test_a_decision_that_cannot_count_is_refused_and_changes_nothing() -> None:
    make = on_one_store()

    async def main() -> None:
        async with make(agent) as runtime:
            run = await runtime.start(agent.call("o-1", 4200), id="r")
            await runtime.start(agent.call("o-2", 1), id="other")
            mine, other = sorted(await asked(runtime, count=2), key=lambda it: it.run_id, reverse=True)
            before = await runtime.requests()
            wrong = "0" * 64 if mine.hash[0] != "0" else "1" * 64
            for attempt, why in [
                (runtime.approve(mine.id, hash=wrong, by="ann"), "wrong_hash"),
                (runtime.approve(mine.id, hash=other.hash, by="ann"), "wrong_hash"),
                (runtime.approve(other.id, hash=mine.hash, by="ann"), "wrong_hash"),
                (runtime.approve(mine.id, hash=mine.hash, by="bo"), "not_an_approver"),
                (runtime.approve(mine.id, hash=mine.hash, by="bo", role="clerk"), "not_an_approver"),
                (runtime.answer(mine.id, True, hash=mine.hash, by="ann"), "wrong_kind"),
            ]:
                with pytest.raises(DecisionRefused) as no:
                    await attempt
                assert (no.value.why, no.value.approval_id) in {(why, mine.id), (why, other.id)}
            for misused in [
                runtime.approve(mine.id, hash=mine.hash[:7], by="ann"),
                runtime.approve(mine.id, hash="", by="ann"),
                runtime.approve(mine.id, hash=mine.hash, by=""),
                runtime.delegate(mine.id, to="ann", hash=mine.hash, by="ann"),
            ]:
                with pytest.raises(UsageError):
                    await misused
            with pytest.raises(UnknownNameError, match=mine.id):
                await runtime.approve(mine.id[:-1] + "x", hash=mine.hash, by="ann")
            with pytest.raises(UnknownNameError):
                await runtime.approve(mine.id, hash=mine.hash, by="ann", run="other")
            assert await runtime.requests() == before
            await runtime.approve(mine.id, hash=mine.hash, by="ann")
            assert await run.result(timeout=20) == "refunded 4200"
            with pytest.raises(DecisionRefused, match="used already, by ann") as no:
                await runtime.reject(mine.id, hash=mine.hash, by="ann")
            assert no.value.why == "decided"
            assert PAID == [("o-1", 4200)]
            assert [it.run_id for it in await runtime.requests(status="pending")] == ["other"]

    run_async(main())


def test_of_many_who_decide_at_once_one_wins() -> None:
    """All see it pending; what counts is judged where the decision is kept."""
    make = on_one_store()

    async def main() -> None:
        async with make(agent) as first:
            await first.start(agent.call("o-1", 1), id="r")
            (it,) = await asked(first)
        others: list[Client] = []
        try:
            for _ in range(6):
                others.append(await make().__aenter__())
            tries = [
                (client.approve if n % 2 else client.reject)(it.id, hash=it.hash, by="ann")
                for n, client in enumerate(others)
            ]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
        finally:
            for client in others:
                await client.__aexit__(None, None, None)
        refusals = [outcome for outcome in outcomes if isinstance(outcome, DecisionRefused)]
        assert len(refusals) == 5
        assert {refusal.why for refusal in refusals} == {"decided"}
        won = next(n for n, outcome in enumerate(outcomes) if outcome is None)
        async with make(agent) as runtime:
            run = await runtime.get("r")
            if won % 2:
                assert await run.result(timeout=20) == "refunded 1"
            else:
                with pytest.raises(Rejected):
                    await run.result(timeout=20)
            (said,) = await runtime.requests()
            assert len(said.said) == 1

    run_async(main())


def test_several_at_once_never_mix() -> None:
    make = on_one_store()

    @workflow
    async def three() -> list[str]:
        calls = [refund.call(f"o-{n}", n) for n in range(3)]
        tasks = [perdure.with_approval(call, by="ann") for call in calls]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [type(result).__name__ if isinstance(result, BaseException) else result for result in results]

    async def main() -> None:
        async with make(three) as runtime:
            run = await runtime.start(three.call(), id="r")
            all_three = await asked(runtime, count=3)
            of = {it.arguments["cents"]: it for it in all_three}
            await runtime.approve(of[2].id, hash=of[2].hash, by="ann")
            await eventually(lambda: len(PAID) == 1)
            await runtime.reject(of[0].id, hash=of[0].hash, by="ann")
            await runtime.approve(of[1].id, hash=of[1].hash, by="ann")
            assert await run.result(timeout=20) == ["Rejected", "refunded 1", "refunded 2"]
            assert sorted(PAID) == [("o-1", 1), ("o-2", 2)]

    run_async(main())


def test_the_same_call_is_asked_for_anew_after_a_rejection() -> None:
    make = on_one_store()

    @workflow
    async def insists(order: str) -> str:
        try:
            return await perdure.with_approval(refund.call(order, 1), by="ann")
        except Rejected:
            return await perdure.with_approval(refund.call(order, 1), by="ann")

    async def main() -> None:
        async with make(insists) as runtime:
            run = await runtime.start(insists.call("o-1"), id="r")
            (first,) = await asked(runtime)
            await runtime.reject(first.id, hash=first.hash, by="ann")
            await eventually(lambda: _is_rejected(runtime))
            (second,) = await asked(runtime)
            assert second.id != first.id
            assert second.hash != first.hash
            with pytest.raises(DecisionRefused):
                await runtime.approve(first.id, hash=first.hash, by="ann")
            await runtime.approve(second.id, hash=second.hash, by="ann")
            assert await run.result(timeout=20) == "refunded 1"

    async def _is_rejected(runtime: Runtime) -> bool:
        return any(it.status == "rejected" for it in await runtime.requests())

    run_async(main())


# ── several persons ─────────────────────────────────────────────────────────────────────────


@workflow
async def of_two(order: str) -> str:
    return await perdure.with_approval(refund.call(order, 1), by={"ann", "supervisor"}, quorum=2)


def test_a_quorum_counts_persons() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, of_two.call("o-1")) as (runtime, run, it):
            await runtime.approve(it.id, hash=it.hash, by="ann")
            for role in ("", "supervisor"):
                with pytest.raises(DecisionRefused) as no:
                    await runtime.approve(it.id, hash=it.hash, by="ann", role=role)
                assert no.value.why == "decided_already"
            await eventually(lambda: _has_said(runtime, 1))
            assert PAID == []
            await let_go(runtime, "r")
            await runtime.approve(it.id, hash=it.hash, by="bo", role="supervisor")
            assert await run.result(timeout=20) == "refunded 1"
            (used,) = await runtime.requests()
            assert [(s.by, s.role) for s in used.said] == [("ann", ""), ("bo", "supervisor")]

    async def _has_said(runtime: Runtime, count: int) -> bool:
        (it,) = await runtime.requests()
        return len(it.said) == count

    run_async(main())


def test_one_who_rejects_is_enough() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, of_two.call("o-1")) as (runtime, run, it):
            await runtime.approve(it.id, hash=it.hash, by="ann")
            await runtime.reject(it.id, hash=it.hash, by="bo", role="supervisor", comment="no")
            with pytest.raises(Rejected, match="no"):
                await run.result(timeout=20)
            assert PAID == []

    run_async(main())


def test_a_decision_is_handed_on() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, of_two.call("o-1")) as (runtime, run, it):
            await runtime.delegate(it.id, to="cy", hash=it.hash, by="ann", comment="on leave")
            with pytest.raises(DecisionRefused) as no:
                await runtime.approve(it.id, hash=it.hash, by="ann")
            assert no.value.why == "delegated"
            await runtime.approve(it.id, hash=it.hash, by="cy")
            await runtime.approve(it.id, hash=it.hash, by="bo", role="supervisor")
            assert await run.result(timeout=20) == "refunded 1"
            (used,) = await runtime.requests()
            assert [(s.choice, s.by, s.to) for s in used.said] == [
                ("delegate", "ann", "cy"), ("approve", "cy", ""), ("approve", "bo", ""),
            ]  # fmt: skip

    run_async(main())


# ── what is approved is what is done ────────────────────────────────────────────────────────


def test_what_is_done_is_what_was_shown_whatever_becomes_of_it_meanwhile() -> None:
    make = on_one_store()

    @step
    async def send(lines: list[str]) -> int:
        RAN.extend(lines)
        return len(lines)

    @workflow
    async def grows() -> int:
        lines = ["one"]
        sent = asyncio.ensure_future(perdure.with_approval(send.call(lines), by="ann"))
        await perdure.receive("more")
        lines.append("two")
        return await sent

    async def main() -> None:
        async with one_request(make, grows.call()) as (runtime, run, it):
            await run.send("more")
            await eventually(lambda: _has_come(run))
            await runtime.approve(it.id, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == 1
            assert RAN == ["one"]
            (used,) = await runtime.requests()
            assert (used.status, used.used_by, used.arguments) == ("used", "0.1/send#1", {"lines": ["one"]})
            assert "approval.spent" in await kinds(run)

    async def _has_come(run: Any) -> bool:
        return "message.arrived" in await kinds(run)

    run_async(main())


def test_a_child_run_can_be_approved() -> None:
    make = on_one_store()

    @workflow
    async def child(order: str) -> str:
        RAN.append(order)
        return f"child of {order}"

    @workflow
    async def parent() -> str:
        return await perdure.with_approval(child.call("o-1"), by="ann")

    async def main() -> None:
        async with make(parent, child) as runtime:
            run = await runtime.start(parent.call(), id="r")
            (it,) = await asked(runtime)
            assert RAN == []
            await runtime.approve(it.id, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == "child of o-1"
            (used,) = await runtime.requests()
            assert (used.status, used.used_by) == ("used", "0/child#1")

    run_async(main())


def test_an_approval_that_is_used_is_good_for_nothing_else() -> None:
    """Asked for, done, then three further turns, and a restart in between: once is once."""
    make = on_one_store()

    @workflow
    async def chat(order: str) -> list[str]:
        said = [await perdure.with_approval(refund.call(order, 1), by="ann")]
        for _ in range(3):
            said.append(await perdure.receive("turn"))
        try:
            await refund(order, 1)
        except perdure.DuplicateOperation:
            said.append("not twice")
        return said

    async def main() -> None:
        async with one_request(make, chat.call("o-1")) as (runtime, run, it):
            await runtime.approve(it.id, hash=it.hash, by="ann")
            for turn in ("a", "b"):
                await run.send("turn", turn)
            await eventually(lambda: len(PAID) == 1)
        async with make(chat) as runtime:
            run = await runtime.get("r")
            assert await runtime.requests(status="pending") == []
            await run.send("turn", "c")
            assert await run.result(timeout=20) == ["refunded 1", "a", "b", "c", "not twice"]
            assert len(PAID) == 1

    run_async(main())


# ── in time, too late, too early ────────────────────────────────────────────────────────────


@workflow
async def within_a_day(order: str, recheck: bool) -> str:
    return await perdure.with_approval(
        refund.call(order, 1), by="ann", within=timedelta(days=1), recheck=recheck
    )  # fmt: skip


@in_a_loop
async def test_a_decision_in_time_counts_although_nobody_reads_it_in_time() -> None:
    """Sent while nobody runs; read after its time was up. `recheck` says whether the call may still begin then."""
    clock = FakeClock()
    store = MemoryStore(clock)
    for recheck in (False, True):
        async with RuntimeUnderTest(store.again(), clock=clock) as runtime:
            await runtime.start(within_a_day.call(f"o-{recheck}", recheck), id=f"r-{recheck}")
            await runtime.run_dry()
        async with Client(store.again(), clock=clock) as client:
            (it,) = await client.requests(status="pending")
            clock.advance_to(clock.now() + DAY - 1)
            await client.approve(it.id, hash=it.hash, by="ann")
            clock.advance_to(clock.now() + DAY)
        async with RuntimeUnderTest(store.again(), clock=clock, workflows=[within_a_day]) as runtime:
            run = await runtime.get(f"r-{recheck}")
            if recheck:
                with pytest.raises(ApprovalExpired, match="had to begin before"):
                    await run.result()
            else:
                assert await run.result() == "refunded 1"
            (it,) = await runtime.requests(run=run)
            assert it.status == ("lapsed" if recheck else "used")
            assert [said.by for said in it.said] == ["ann"]
    assert PAID == [("o-False", 1)]


@in_a_loop
async def test_a_step_that_was_approved_lapses_as_an_effect_does() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)

    @step
    async def note(text: str) -> None:
        RAN.append(text)

    @workflow
    async def writes() -> None:
        await perdure.with_approval(note.call("x"), by="ann", within=timedelta(days=1))

    async with RuntimeUnderTest(store.again(), clock=clock) as runtime:
        await runtime.start(writes.call(), id="r")
        await runtime.run_dry()
    async with Client(store.again(), clock=clock) as client:
        (it,) = await client.requests()
        await client.approve(it.id, hash=it.hash, by="ann")
        clock.advance_to(clock.now() + 2 * DAY)
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[writes]) as runtime:
        with pytest.raises(ApprovalExpired):
            await (await runtime.get("r")).result()
        (it,) = await runtime.requests()
        assert (it.status, RAN) == ("lapsed", [])


@in_a_loop
async def test_a_decision_and_the_expiry_have_one_winner() -> None:
    """A moment before, at that moment, and after it, with the worker there or not."""
    for offset in (-1_000, -1, 0, 1, 1_000):
        for is_there in (True, False):
            clock = FakeClock()
            store = MemoryStore(clock)
            runtime = await RuntimeUnderTest(store.again(), clock=clock, workflows=[within_a_day]).__aenter__()
            await runtime.start(within_a_day.call(f"o{offset}{is_there}", False), id="r")
            await runtime.run_dry()
            async with Client(store.again(), clock=clock) as client:
                (it,) = await client.requests()
                assert it.expires_at is not None
                if not is_there:
                    await runtime.__aexit__(None, None, None)
                clock.advance_to(micros(it.expires_at) + offset)
                counts = await refusal(client.approve(it.id, hash=it.hash, by="ann")) is None
                assert counts is (offset < 0)
                if not is_there:
                    runtime = await RuntimeUnderTest(
                        store.again(), clock=clock, workflows=[within_a_day]
                    ).__aenter__()
                run = await runtime.get("r")
                if counts:
                    assert await run.result() == "refunded 1"
                else:
                    with pytest.raises(ApprovalExpired):
                        await run.result()
                answers = [each for each in await run.history() if each.kind == "person.answered"]
                assert len(answers) == 1
            await runtime.__aexit__(None, None, None)
    assert len(PAID) == 4


@in_a_loop
async def test_a_decision_that_lies_in_the_mailbox_when_the_time_is_up_counts() -> None:
    """The worker is there, and has not read it when its alarm goes off."""
    clock = FakeClock()
    store = MemoryStore(clock)
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[within_a_day]) as runtime:
        run = await runtime.start(within_a_day.call("o-1", False), id="r")
        (it,) = await asked(runtime)
        clock.advance_to(clock.now() + DAY - 1)
        body = encode_decision(Decision("approve", it.hash, "ann"))
        (outcome,) = store.again().commit([Decide(b"x" * 16, "r", it.id, body)])
        clock.advance_to(clock.now() + 1)
        assert isinstance(outcome, Done)
        assert await run.result() == "refunded 1"


def hash_of(run: str, order: str, cents: int, *, version: int = 1) -> tuple[str, str]:
    """The id and the hash of what `agent` will ask, worked out by hand."""
    body = {
        "approvers": ["ann", "supervisor"], "arguments": {"cents": cents, "order": order}, "key": order,
        "kind": "approval", "name": "refund", "note": "as agreed", "of": "effect",
        "risk": "high",
    }  # fmt: skip
    head = json.dumps([run, "0:0:0", "agent", version], separators=(",", ":"))
    text = head + "\n" + json.dumps(body, separators=(",", ":"))
    call = json.dumps([run, "0:0:0"], separators=(",", ":"))
    return sha256(call.encode()).hexdigest()[:16], sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("cents", [4200, 4300])
def test_an_early_decision_counts_if_exactly_that_is_asked_later(cents: int) -> None:
    store = MemoryStore()

    async def main() -> None:
        async with Client(store.again()) as client:
            run = await client.start(agent.call("o-1", cents), id="r")
            early, whole = hash_of("r", "o-1", 4200)
            with pytest.raises(UnknownNameError):
                await client.approve(early, hash=whole, by="ann")
            with pytest.raises(UsageError, match="all 64 digits"):
                await client.approve(early, hash=whole[:10], by="ann", run="r")
            with pytest.raises(UnknownNameError, match="run 'x'"):
                await client.approve(early, hash=whole, by="ann", run="x")
            await client.approve(early, hash=whole, by="ann", run="r")
        async with Runtime(store.again(), workflows=[agent]) as runtime:
            run = await runtime.get("r")
            if cents == 4200:
                assert await run.result(timeout=20) == "refunded 4200"
                return
            (it,) = await asked(runtime)
            assert it.id == early
            (told,) = [each.event for each in await run.history() if getattr(each.event, "refused", "")]
            assert "wrong_hash" in told.refused  # type: ignore[attr-defined]
            assert PAID == []
            await runtime.approve(it.id, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == "refunded 4300"

    run_async(main())


def test_early_decisions_that_came_in_an_earlier_chapter_are_not_lost() -> None:
    make = on_one_store()

    @workflow
    async def chapters(left: int) -> str:
        if left:
            await perdure.receive("go")
            perdure.continue_as_new(left - 1)
        return await perdure.with_approval(refund.call("o-1", 1), by="ann")

    async def main() -> None:
        async with make(chapters) as runtime:
            run = await runtime.start(chapters.call(2), id="r")
            call = '["r","2:0:0"]'
            body = '{"approvers":["ann"],"arguments":{"cents":1,"order":"o-1"},"key":"o-1","kind":"approval",'
            body += '"name":"refund","of":"effect","risk":"high"}'
            whole = sha256(f'["r","2:0:0","chapters",1]\n{body}'.encode()).hexdigest()
            early = sha256(call.encode()).hexdigest()[:16]
            await runtime.approve(early, hash=whole, by="ann", run="r")
            for _ in range(2):
                await run.send("go")
            assert await run.result(timeout=20) == "refunded 1"

    run_async(main())


@in_a_loop
async def test_what_has_lapsed_is_asked_for_anew() -> None:
    """Nothing was sent for it: the same call may be asked for again. The ledger agrees, and opens no doubt."""
    clock = FakeClock()
    store = MemoryStore(clock)

    async with RuntimeUnderTest(store.again(), clock=clock) as runtime:
        await runtime.start(until_it_is_done.call("o-1"), id="r")
        await runtime.run_dry()
    async with Client(store.again(), clock=clock) as client:
        (first,) = await client.requests()
        await client.approve(first.id, hash=first.hash, by="ann")
        clock.advance_to(clock.now() + 2 * DAY)
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[until_it_is_done]) as runtime:
        await eventually(lambda: _has_lapsed(runtime))
        (second,) = await asked(runtime)
        assert await runtime.effects() == []
        await runtime.approve(second.id, hash=second.hash, by="ann")
        assert await (await runtime.get("r")).result() == ["lapsed", "refunded 1"]
    assert PAID == [("o-1", 1)]
    assert [it.status for it in await _requests(store, clock)] == ["used", "lapsed"]


@workflow
async def until_it_is_done(order: str) -> list[str]:
    said: list[str] = []
    while True:
        try:
            said.append(await perdure.with_approval(refund.call(order, 1), by="ann", within=timedelta(days=1)))
        except ApprovalExpired:
            said.append("lapsed")
        else:
            return said


async def _has_lapsed(runtime: RuntimeUnderTest) -> bool:
    return any(it.status == "lapsed" for it in await runtime.requests())


async def _requests(store: MemoryStore, clock: FakeClock) -> list[RequestSummary]:
    async with Client(store.again(), clock=clock) as client:
        return await client.requests()


# ── not wanted any more ─────────────────────────────────────────────────────────────────────


def test_who_gives_up_waiting_withdraws_the_request() -> None:
    make = on_one_store()

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.05):
                return await perdure.with_approval(refund.call("o-1", 1), by="ann")
        except TimeoutError:
            return "nobody came"

    async def main() -> None:
        async with make(impatient) as runtime:
            run = await runtime.start(impatient.call(), id="r")
            assert await run.result(timeout=20) == "nobody came"
            (it,) = await runtime.requests()
            assert it.status == "withdrawn"
            assert await runtime.inbox() == []
            with pytest.raises(DecisionRefused) as no:
                await runtime.approve(it.id, hash=it.hash, by="ann")
            assert no.value.why == "withdrawn"
            assert PAID == []

    run_async(main())


@pytest.mark.parametrize("how", ["cancel", "force", "unattended", "sibling"])
def test_the_end_of_a_run_withdraws_what_it_asks(how: str) -> None:
    make = on_one_store()

    @workflow(name="waits")
    async def waits() -> str:
        asking = asyncio.ensure_future(perdure.with_approval(refund.call("o-1", 1), by="ann"))
        if how == "sibling":
            await perdure.receive("go")
            return "without it"
        return await asking

    async def main() -> None:
        async with one_request(make, waits.call()) as (_, run, it):
            if how == "sibling":
                await run.send("go")
                assert await run.result(timeout=20) == "without it"
            elif how != "unattended":
                await run.cancel(force=how == "force")
                with pytest.raises(perdure.RunCancelledError):
                    await run.result(timeout=20)
        async with make() as client:
            run = await client.get("r")
            if how == "unattended":
                assert await run.cancel(force=True) == "cancelled"
            (it,) = await client.requests()
            assert it.status == "withdrawn"
            assert await client.inbox() == []
            with pytest.raises(DecisionRefused) as no:
                await client.approve(it.id, hash=it.hash, by="ann")
            assert no.value.why == "withdrawn"
            assert PAID == []

    run_async(main())


def test_a_paused_run_takes_decisions_when_it_goes_on() -> None:
    make = on_one_store()

    async def main() -> None:
        async with one_request(make, agent.call("o-1", 1)) as (runtime, run, it):
            await run.pause()
            await runtime.approve(it.id, hash=it.hash, by="ann")
            await eventually(lambda: _is_paused(run))
            assert PAID == []
            (entry,) = await runtime.inbox()
            assert entry.pending == ("approve by ann",)
            with pytest.raises(DecisionRefused):
                await runtime.reject(it.id, hash=it.hash, by="ann")
            await run.resume()
            assert await run.result(timeout=20) == "refunded 1"

    async def _is_paused(run: Any) -> bool:
        return bool((await run.summary()).reason == "paused")

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=CanLookUp(settle_after=1), timeout=5)
async def transfer(order: str, cents: int) -> str:
    PAID.append((perdure.operation().id, cents))
    return f"transferred {cents}"


@transfer.key
def _(order: str, cents: int) -> str:
    return order


@transfer.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    if any(operation == op.id for operation, _ in PAID):
        return Found(f"transferred {op.arguments['cents']}")
    return NotFound()


@effect(downstream=NoGuarantee(), timeout=5)
async def shout(order: str, cents: int) -> str:
    PAID.append((order, cents))
    return "shouted"


@shout.key
def _(order: str, cents: int) -> str:
    return order


@step
async def note_down(text: str) -> str:
    RAN.append(text)
    return text


@workflow
async def gated() -> list[Any]:
    said: list[Any] = [await note_down("first")]
    said += await asyncio.gather(
        perdure.with_approval(transfer.call("o-1", 5), by="ann", quorum=2),
        perdure.with_approval(note_down.call("second"), by="bo"),
        perdure.ask("which?", type=str),
    )
    try:
        await perdure.with_approval(refund.call("o-2", 7), by="ann")
    except Rejected as no:
        said.append(no.by)
    return said


async def decide_all(runtime: RuntimeUnderTest) -> None:
    """Each as often as it takes: whoever decides a second time is refused."""
    await runtime.run_dry()
    while pending := await runtime.requests(status="pending"):
        for it in pending:
            how = {"refund": "reject", "which?": "answer"}.get(it.subject, "approve")
            for by in ("ann", "bo", "cy"):
                match how:
                    case "answer":
                        said = runtime.answer(it.id, "", hash=it.hash, by=by)
                    case "reject":
                        said = runtime.reject(it.id, hash=it.hash, by=by)
                    case _:
                        said = runtime.approve(it.id, hash=it.hash, by=by, role="ann")
                assert await refusal(said) in {None, "decided", "decided_already", "not_an_approver"}
        await runtime.run_dry()


def test_a_crash_at_every_write_changes_nothing() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> list[Any]:
        if not await runtime.list():
            PAID.clear()  # a world of its own for each crash
        run = await runtime.start(gated.call(), id="r")
        coming = asyncio.ensure_future(run.result())
        try:
            while not coming.done():
                await decide_all(runtime)
                await asyncio.wait([coming], timeout=0.001)
            result = coming.result()
        finally:
            coming.cancel()
        rows = await runtime.requests(run=run)
        assert sorted((row.subject, row.status) for row in rows) == [
            ("note_down", "used"), ("refund", "rejected"), ("transfer", "used"), ("which?", "answered"),
        ]  # fmt: skip
        (sent,) = await runtime.effects(run=run)
        assert [operation for operation, _ in PAID].count(sent.id) == 1
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[gated]))
    assert sweep.result == ["first", "transferred 5", "second", "", "ann"]
    assert sweep.writes > 12

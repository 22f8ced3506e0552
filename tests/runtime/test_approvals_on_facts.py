"""Approvals that rest on facts: what is shown, what is read again, and when people are asked once more."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from tests.runtime.hosting import kinds, run_async

import perdure
from perdure import (
    ApprovalExpired,
    DecisionRefused,
    Idempotent,
    Rejected,
    StepError,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.api.requests import RequestSummary
from perdure.decisions import ApprovalEntry
from perdure.engine.calls import Grant
from perdure.errors import StoreError
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Append, Write
from perdure.store.protocol import Outcome as Stored
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore
from perdure.testing.mortal import Death, Mortal, Outcome, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
WORLD: dict[str, int] = {}
"""What the facts are just now."""
PAID: list[tuple[str, int, int]] = []
"""What reached the other side: order, amount, and the stock at that moment."""


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.clear()
    WORLD.update(stock=3, limit=100)
    PAID.clear()


@effect(downstream=Idempotent())
async def refund(order: str, cents: int) -> str:
    PAID.append((order, cents, WORLD["stock"]))
    return f"refunded {cents}"


@refund.key
def _(order: str, cents: int) -> str:
    return order


@step(retry=perdure.Retry(max_attempts=1))
async def read(what: str) -> int:
    return WORLD[what]


@step
def read_in_thread(what: str) -> int:
    return WORLD[what]


def facts() -> dict[str, Any]:
    return {"stock": read.call("stock"), "limit": read_in_thread.call("limit")}


@workflow
async def on_loop(order: str) -> str:
    return await perdure.with_approval(refund.call(order, 42), by="ann", premises=facts())


@workflow
async def hosted(order: str) -> str:
    async def inside() -> str:
        return await perdure.with_approval(refund.call(order, 42), by="ann", premises=facts())

    return str(await perdure.section("pays").run(inside))


@workflow
def in_thread(order: str) -> str:
    return perdure.sync.with_approval(refund.call(order, 42), by="ann", premises=facts())


@workflow
async def without_facts(order: str) -> str:
    return await perdure.with_approval(refund.call(order, 42), by="ann", within=5)


ALL = pytest.mark.parametrize("program", [on_loop, hosted, in_thread], ids=["loop", "section", "def"])


async def pending(runtime: RuntimeUnderTest) -> RequestSummary:
    await runtime.run_dry()
    (it,) = await runtime.requests(status="pending")
    return it


async def approve(runtime: RuntimeUnderTest, it: RequestSummary) -> None:
    await runtime.approve(it.id, hash=it.hash, by="ann")


@ALL
async def test_whoever_decides_sees_what_it_rests_on(program: Any, perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(program.call("o-1"), id="r")
    it = await pending(perdure_runtime)
    assert it.facts == {"stock": 3, "limit": 100}
    await approve(perdure_runtime, it)
    assert await run.result() == "refunded 42"
    assert PAID == [("o-1", 42, 3)]
    reads = [kind for kind in await kinds(run) if kind == "step.completed"]
    assert len(reads) == 2, "before people are asked, and before it is done"


@ALL
async def test_a_fact_that_has_changed_is_put_to_people_again(program: Any, perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(program.call("o-1"), id="r")
    first = await pending(perdure_runtime)
    WORLD["stock"] = 1
    await approve(perdure_runtime, first)
    second = await pending(perdure_runtime)
    assert PAID == []
    assert (second.id != first.id, second.hash != first.hash) == (True, True)
    assert (second.facts, second.arguments) == ({"stock": 1, "limit": 100}, first.arguments)
    with pytest.raises(DecisionRefused) as no:
        await perdure_runtime.approve(second.id, hash=first.hash, by="ann")
    assert no.value.why == "wrong_hash", "it is about other facts"
    await approve(perdure_runtime, second)
    assert await run.result() == "refunded 42"
    assert PAID == [("o-1", 42, 1)]
    by_id = {it.id: it.status for it in await perdure_runtime.requests(run="r")}
    assert by_id == {first.id: "lapsed", second.id: "used"}


async def test_what_was_seen_with_the_changed_facts_can_be_rejected(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(on_loop.call("o-1"), id="r")
    first = await pending(perdure_runtime)
    WORLD["limit"] = 0
    await approve(perdure_runtime, first)
    second = await pending(perdure_runtime)
    await perdure_runtime.reject(second.id, hash=second.hash, by="ann", comment="over the limit now")
    with pytest.raises(Rejected, match="over the limit now"):
        await run.result()
    assert PAID == []


async def test_without_recheck_the_facts_are_only_shown(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def once(order: str) -> str:
        return await perdure.with_approval(refund.call(order, 1), by="ann", premises=facts(), recheck=False)

    run = await perdure_runtime.start(once.call("o-1"), id="r")
    it = await pending(perdure_runtime)
    WORLD["stock"] = 0
    await approve(perdure_runtime, it)
    assert await run.result() == "refunded 1"
    assert PAID == [("o-1", 1, 0)]


async def test_steps_and_child_runs_rest_on_facts_too(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def child(order: str) -> str:
        return f"did {order}"

    @workflow
    async def both(order: str) -> list[str]:
        of_step = await perdure.with_approval(read.call("limit"), by="ann", premises=facts())
        of_child = await perdure.with_approval(child.call(order), by="ann", premises=facts())
        return [str(of_step), of_child]

    run = await perdure_runtime.start(both.call("o-1"), id="r")
    for stock in (2, 1):
        first = await pending(perdure_runtime)
        WORLD["stock"] = stock
        await approve(perdure_runtime, first)
        await approve(perdure_runtime, await pending(perdure_runtime))
    assert await run.result() == ["100", "did o-1"]
    states = sorted(it.status for it in await perdure_runtime.requests(run="r"))
    assert states == ["lapsed", "lapsed", "used", "used"]


async def test_a_fact_that_cannot_be_read_stops_it_before_anybody_is_asked(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def unreadable(order: str) -> str:
        return await perdure.with_approval(refund.call(order, 1), by="ann", premises={"x": read.call("nothing")})

    run = await perdure_runtime.start(unreadable.call("o-1"), id="r")
    with pytest.raises((KeyError, StepError)):
        await run.result()
    assert (await perdure_runtime.requests(), PAID) == ([], [])


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("list", "names and calls of steps"),
        ("value", "'stock' is 3, and has to be a call of a step"),
        ("function", "has to be a call of a step"),
        ("effect", "has to be a call of a step"),
        ("no name", "premises ''"),
    ],
)
async def test_what_is_no_premise_is_refused(kind: str, told: str, perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(misuse.call(kind), id="r")
    with pytest.raises(UsageError, match=told):
        await run.result()
    assert await perdure_runtime.requests() == []


@workflow
async def misuse(kind: str) -> str:
    given: dict[str, Any] = {
        "list": [("stock", 1)], "value": {"stock": 3}, "function": {"stock": read},
        "effect": {"stock": refund.call("o", 1)}, "no name": {"": read.call("stock")},
    }  # fmt: skip
    return await perdure.with_approval(refund.call("o-1", 1), by="ann", premises=given[kind])


# ── a check is good for a moment ────────────────────────────────────────────────────────────


async def decides(runtime: RuntimeUnderTest) -> str:
    """A person approves whatever is asked, seeing what it rests on."""
    run = await runtime.start(on_loop.call("o-1"), id="r")
    while True:
        await runtime.run_dry()
        if (await run.summary()).status.is_final:
            return await run.result()
        for it in await runtime.requests(status="pending"):
            await approve(runtime, it)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_check_from_before_a_crash_is_worth_nothing(when: Literal["before", "after"]) -> None:
    """The process dies at each of its writes, and is gone for an hour in which the facts change, unless the effect may
    have left by then. What is done rests on the facts as they are when it is done, and a person has seen those."""

    async def main() -> None:
        counts = [0, 0]
        for n in itertools.count(1):
            has_crashed, was_asked_again = await crash_at(n, when)
            counts[0] += has_crashed
            counts[1] += was_asked_again
            if not has_crashed:
                break
        assert counts[0] > 8
        assert counts[1] > 4, "with the facts changed people are asked again, wherever it died"

    run_async(main())


async def crash_at(n: int, when: Literal["before", "after"]) -> tuple[bool, bool]:
    """Whether there was an n-th write, and whether people were asked twice."""
    WORLD.update(stock=3, limit=100)
    PAID.clear()
    clock, death = FakeClock(), Death()
    inner = MemoryStore(clock)
    store = CrashingStore(inner, fail_at=n, when=when, how=death.come)
    with QuietAboutCrashes():
        outcome = await Mortal[str](RuntimeUnderTest(store, clock=clock, workflows=[on_loop]), death).live(decides)
    if death.has_come:
        found = inner.find("r")
        began = [] if found is None else [row for row in inner.load(found.rid).rows if row.kind == "effect.started"]
        if not began:
            WORLD["stock"] = 1
        clock.advance_to(clock.now() + 3600 * SECOND)
        again = RuntimeUnderTest(inner.again(), clock=clock, workflows=[on_loop])
        outcome = await Mortal[str](again, Death()).live(decides)
    assert isinstance(outcome, Outcome)
    assert (outcome.error, outcome.result) == (None, "refunded 42")
    async with perdure.Client(inner.again(), clock=clock) as client:
        requests = await client.requests(run="r")
    (used,) = [it for it in requests if it.status == "used"]
    assert {*PAID} == {("o-1", 42, used.facts["stock"])}
    return death.has_come, len(requests) == 2


def test_a_check_that_is_too_old_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fact is as it was: nobody is asked again, but it was looked at once more."""
    ages = iter([True, True])

    def is_outdated(grant: Grant, now: int) -> bool:
        return next(ages, False)

    monkeypatch.setattr(Grant, "is_outdated", is_outdated)

    async def main() -> None:
        async with RuntimeUnderTest(MemoryStore(FakeClock()), workflows=[on_loop]) as runtime:
            run = await runtime.start(on_loop.call("o-1"), id="r")
            await approve(runtime, await pending(runtime))
            assert await run.result() == "refunded 42"
            assert len(await runtime.requests(run="r")) == 1
            found = await kinds(run)
            assert (found.count("effect.failed"), found.count("step.completed")) == (2, 4)
            assert [it.status for it in await runtime.effects(run="r")] == ["succeeded"]

    run_async(main())


def test_how_old_a_check_may_be() -> None:
    grant = Grant("a", b"", checked_at=10 * SECOND)
    assert [grant.is_outdated(at * SECOND) for at in (10, 15, 16)] == [False, False, True]
    assert not Grant("a", b"").is_outdated(1_000 * SECOND), "it rests on nothing"


class SlowToStart(MemoryStore):
    """It takes six seconds to record the start of an effect."""

    clock: FakeClock

    def commit(self, writes: Sequence[Write]) -> list[Stored]:
        rows = [row for write in writes if isinstance(write, Append) for row in write.rows]
        if any(row.kind == "effect.started" for row in rows):
            self.clock.advance_to(self.clock.now() + 6 * SECOND)
        return super().commit(writes)


@pytest.mark.parametrize("program", [on_loop, without_facts], ids=["facts", "time limit"])
def test_an_effect_whose_start_took_too_long_to_record_is_not_sent(program: Any) -> None:
    async def main() -> None:
        clock = FakeClock()
        store = SlowToStart(clock)
        store.clock = clock
        async with RuntimeUnderTest(store, clock=clock, workflows=[program]) as runtime:
            run = await runtime.start(program.call("o-1"), id="r")
            await approve(runtime, await pending(runtime))
            with pytest.raises(ApprovalExpired, match="took too long to be recorded"):
                await run.result()
            assert PAID == []
            assert [it.status for it in await runtime.effects(run="r")] == ["failed_final"]

    run_async(main())


# ── a store that does not answer ────────────────────────────────────────────────────────────


class ForgetfulStore(MemoryStore):
    """One look at what people were asked fails."""

    looks = fails_at = 0

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        self.looks += 1
        if self.looks == self.fails_at:
            raise StoreError("the store does not answer")
        return super().approval(approval_id)


@effect(downstream=Idempotent(), retry=perdure.Retry(max_attempts=3, first_delay=60))
async def refund_later(order: str) -> str:
    if perdure.attempt().number == 1:
        raise perdure.Retryable("come back later")
    return "refunded"


@refund_later.key
def _(order: str) -> str:
    return order


@step
async def tell(order: str) -> str:
    return "told"


@workflow
async def report(order: str) -> str:
    return "reported"


@workflow
async def all_of_it(order: str) -> list[str]:
    calls = (refund_later.call(order), tell.call(order), report.call(order))
    return [await perdure.with_approval(call, by={"ann"}) for call in calls]


async def look_away_once(fails_at: int) -> bool:
    """False: there was no such look."""
    clock = FakeClock()
    store = ForgetfulStore(clock)
    store.fails_at = fails_at
    async with RuntimeUnderTest(store, clock=clock, workflows=[all_of_it, report]) as runtime:
        run = await runtime.start(all_of_it.call("o-1"), id="r")
        while not (await run.status()).is_final:
            await runtime.advance(120)
            for it in await runtime.requests(status="pending"):
                with contextlib.suppress(StoreError, DecisionRefused):  # the second: it is on its way
                    await runtime.approve(it.id, hash=it.hash, by="ann")
        assert await run.result() == ["refunded", "told", "reported"]
    return store.looks >= fails_at


def test_any_look_at_what_people_have_decided_may_fail_once() -> None:
    async def main() -> None:
        looks = 1
        while await look_away_once(looks):
            looks += 1
        assert looks > 6

    run_async(main())

"""Policies in a worker: what is judged, when, by whose rules, and what is recorded and shown of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, kinds, on_one_store, run_async
from tests.runtime.test_approvals import asked, in_a_loop

import perdure
from perdure import (
    CanLookUp,
    Client,
    DecisionRefused,
    Found,
    Idempotent,
    NotFound,
    Operation,
    Policy,
    PolicyDenied,
    Retryable,
    Rule,
    RunConflictError,
    Runtime,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.audit.timeline import timeline
from perdure.audit.verify import verify
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

PAID: list[tuple[str, int]] = []
"""What reached the other side."""
FAILS: list[Exception] = []
"""What the next attempts raise instead."""


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    PAID.clear()
    FAILS.clear()


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str, cents: int, currency: str = "EUR") -> str:
    if FAILS:
        raise FAILS.pop(0)
    PAID.append((order, cents))
    return f"refunded {cents}"


@refund.key
def _(order: str, cents: int, currency: str = "EUR") -> str:
    return order


@step
async def find(order: str) -> str:
    return f"found {order}"


@workflow
async def agent(order: str, cents: int) -> str:
    return await refund(order, cents)


@workflow
async def careful(order: str, cents: int) -> str:
    return await perdure.with_approval(refund.call(order, cents), by={"ann", "bob", "supervisor"})


@workflow
async def reads(order: str) -> str:
    return await find(order)


ALLOWS = Policy("shop", 3, [Rule("refunds", "refund", must={"cents": {"<=": 5000}}, then="allow")])


async def denial(run: perdure.Run[Any]) -> PolicyDenied:
    with pytest.raises(PolicyDenied) as raised:
        await run.result(timeout=20)
    return raised.value


async def last_denied(run: perdure.Run[Any]) -> tuple[str, e.Denied]:
    """The kind of the event that says so, and what it says."""
    (found,) = [happened for happened in await run.history() if getattr(happened.event, "denied", None)]
    assert isinstance(found.event, e.StepFailed)
    assert found.event.denied is not None
    return found.kind, found.event.denied


# ── what cannot be taken back ───────────────────────────────────────────────────────────────


@in_a_loop
async def test_what_cannot_be_taken_back_is_refused_without_an_approval() -> None:
    async with on_one_store()(agent) as runtime:
        run = await runtime.start(agent.call("o-1", 42), id="r")
        no = await denial(run)
        assert (no.call, no.policy, no.rule) == ("refund", "default", "what cannot be taken back")
        assert "perdure.with_approval(refund.call(...), by=...)" in str(no)
        assert await last_denied(run) == ("effect.failed", e.Denied("default", "1", "what cannot be taken back"))
        assert await runtime.effects() == []
    assert PAID == []


@in_a_loop
async def test_an_approval_is_enough_where_no_policy_says_more() -> None:
    async with on_one_store()(careful) as runtime:
        run = await runtime.start(careful.call("o-1", 42))
        (it,) = await asked(runtime)
        assert it.policy == "policy default version 1, rule 'what cannot be taken back'"
        await runtime.approve(it.id, hash=it.hash, by="ann")
        assert await run.result(timeout=20) == "refunded 42"


@workflow(policy=ALLOWS)
async def allowed(order: str, cents: int) -> str:
    return await refund(order, cents)


@in_a_loop
async def test_a_policy_allows_in_advance_within_its_bounds() -> None:
    async with on_one_store()(allowed) as runtime:
        assert await (await runtime.start(allowed.call("o-1", 5000))).result(timeout=20) == "refunded 5000"
        no = await denial(await runtime.start(allowed.call("o-2", 50000), id="r"))
        assert (no.policy, no.version, no.rule) == ("shop", "3", "refunds")
        assert no.why == "it must keep cents <= 5000, and has cents 50000"
    assert PAID == [("o-1", 5000)]


@in_a_loop
async def test_of_the_workflow_s_policy_and_the_runtime_s_the_stricter_wins() -> None:
    euros = Policy("house", 1, [Rule("euros", "refund", must={"currency": "EUR", "cents": {"<": 100}})])
    async with on_one_store()(allowed, policy=euros) as runtime:
        assert await (await runtime.start(allowed.call("o-1", 99))).result(timeout=20) == "refunded 99"
        assert (await denial(await runtime.start(allowed.call("o-2", 100)))).policy == "house"
        assert (await denial(await runtime.start(allowed.call("o-3", 5001)))).policy == "shop"


# ── approvals as a policy wants them ────────────────────────────────────────────────────────

TWO = Policy("house", 2, [Rule("two eyes more", "refund", then="approve", by=["supervisor", "eve"])])


@in_a_loop
async def test_an_approval_has_to_be_by_whom_the_policy_names() -> None:
    async with on_one_store()(careful, policy=TWO) as runtime:
        run = await runtime.start(careful.call("o-1", 42))
        (it,) = await asked(runtime)
        assert it.policy == "policy house version 2, rule 'two eyes more'"
        await runtime.approve(it.id, hash=it.hash, by="ann")
        no = await denial(run)
        assert no.why == "it needs an approval by eve, supervisor; approved so by nobody"
        run = await runtime.start(careful.call("o-1", 42))
        (it,) = await asked(runtime)
        await runtime.approve(it.id, hash=it.hash, by="ann", role="supervisor")
        assert await run.result(timeout=20) == "refunded 42"
    assert PAID == [("o-1", 42)]


@in_a_loop
async def test_an_approval_is_judged_under_the_policy_of_the_moment_in_which_it_is_used() -> None:
    make, strict = on_one_store(), Policy("house", 3, [Rule("not now", "refund", then="refuse")])
    async with make(careful) as runtime:
        await runtime.start(careful.call("o-1", 42), id="r")
        (it,) = await asked(runtime)
    async with make() as other:
        await other.approve(it.id, hash=it.hash, by="ann")
    async with make(careful, policy=strict) as runtime:
        run = await runtime.get("r")
        assert (await denial(run)).version == "3"
        assert (await runtime.requests(run="r"))[0].status == "lapsed"
    assert PAID == []


@in_a_loop
async def test_nobody_is_asked_for_what_would_be_refused_all_the_same() -> None:
    async with on_one_store()(careful, policy=ALLOWS) as runtime:
        run = await runtime.start(careful.call("o-1", 50000))
        assert (await denial(run)).rule == "refunds"
        assert await runtime.requests(status="pending") == []
        assert await kinds(run) == ["run.started", "person.asked", "person.answered", "run.failed"]
        (entry,) = await runtime.inbox()
        assert (entry.reason, entry.sent) == ("denied", {"order": "o-1", "cents": 50000})
        quorum = Policy("house", 1, [Rule("two", "refund", then="approve", quorum=2)])
    async with on_one_store()(careful, policy=quorum) as runtime:
        no = await denial(await runtime.start(careful.call("o-1", 42)))
        assert "with_approval(..., quorum=2)" in no.why


@workflow
async def careful_reader(order: str) -> str:
    return await perdure.with_approval(find.call(order), by={"ann"})


@in_a_loop
async def test_a_step_too_may_need_an_approval() -> None:
    policy = Policy("p", 1, [Rule("reads", "find", then="approve", by="ann")])
    async with on_one_store()(reads, careful_reader, policy=policy) as runtime:
        run = await runtime.start(reads.call("o"))
        assert (await denial(run)).why == "it needs an approval by ann"
        assert await last_denied(run) == ("step.failed", e.Denied("p", "1", "reads"))
        run = await runtime.start(careful_reader.call("o"))
        (it,) = await asked(runtime)
        await runtime.approve(it.id, hash=it.hash, by="ann")
        assert await run.result(timeout=20) == "found o"


# ── what is shown ───────────────────────────────────────────────────────────────────────────


@in_a_loop
async def test_what_was_denied_stands_in_the_inbox_until_somebody_has_seen_it() -> None:
    store = MemoryStore()
    async with Runtime(store.again(), workflows=[allowed], authority={"ann": [], "bob": []}) as runtime:
        await denial(await runtime.start(allowed.call("o-1", 50000), id="r"))
        (entry,) = await runtime.inbox()
        assert (entry.run_id, entry.reason, entry.call) == ("r", "denied", "0/refund#1")
        assert entry.hint == (
            "refund: policy shop version 3, rule 'refunds': it must keep cents <= 5000, and has cents 50000"
        )
        assert entry.sent == {"order": "o-1", "cents": 50000}
        assert set(entry.choices) == {"acknowledge"}
        with pytest.raises(DecisionRefused):
            await runtime.acknowledge("r", by="eve")
        with pytest.raises(DecisionRefused):
            await runtime.acknowledge("r", call="0/refund#2", by="ann")
        await runtime.acknowledge("r", call="0/refund#1", by="ann", comment="a test")
        with pytest.raises(DecisionRefused, match="nothing that nobody has seen"):
            await runtime.acknowledge("r", by="bob")
        assert await runtime.inbox() == []
        (seen,) = store.notes("denied.seen")
        assert b'"by":"ann","comment":"a test"' in seen.body
        told = [each.what for each in timeline(store, 1)]
        assert told[-2] == "denied by policy shop version 3, rule 'refunds'"
    assert verify(store).damage == ()


@workflow(policy=ALLOWS)
async def stubborn(times: int) -> list[str]:
    said: list[str] = []
    for cents in range(50000, 50000 + times):
        try:
            await refund("o", cents)
        except PolicyDenied as no:
            said.append(no.rule)
    return said


@in_a_loop
async def test_of_a_run_that_tries_on_and_on_the_last_one_is_shown() -> None:
    async with on_one_store()(stubborn) as runtime:
        run = await runtime.start(stubborn.call(5))
        assert await run.result(timeout=20) == ["refunds"] * 5
        (entry,) = await runtime.inbox()
        assert (entry.call, entry.sent["cents"]) == ("0/refund#5", 50004)


# ── goal and scope ──────────────────────────────────────────────────────────────────────────

HELD = Policy("held", 1, [Rule("the order", "refund", scope={"order": "order"}, then="allow")])


@workflow(policy=HELD)
async def held(order: str) -> str:
    return await refund(order, 1)


@workflow
async def parent(order: str) -> str:
    return await held(order)


@workflow(policy=HELD)
async def chapters(order: str, left: int) -> str:
    if left:
        perdure.continue_as_new(order, left - 1)
    return await refund(order, 1)


@in_a_loop
async def test_calls_are_held_to_the_scope_of_their_run_in_children_and_later_chapters_too() -> None:
    async with on_one_store()(held, parent, chapters) as runtime:
        stated: dict[str, Any] = {"goal": "make it right", "scope": {"order": "42"}}
        for call in (held.call("42"), parent.call("42"), chapters.call("42", 2)):
            assert await (await runtime.start(call, **stated)).result(timeout=20) == "refunded 1"
        for call in (held.call("43"), chapters.call("43", 2)):
            no = await denial(await runtime.start(call, **stated))
            assert no.why == "order '43' is outside the run's scope: its order is '42'"
        with pytest.raises(PolicyDenied):
            await (await runtime.start(parent.call("43"), **stated)).result(timeout=20)
        no = await denial(await runtime.start(held.call("42")))
        assert no.why == "order has to be the order in the run's scope, and the run states none"


@in_a_loop
async def test_the_same_id_with_another_scope_is_another_run_and_a_goal_is_words() -> None:
    make = on_one_store()
    async with make(reads) as runtime:
        await runtime.start(reads.call("o"), id="r", goal="one", scope={"order": "42", "shop": "a"})
        same = await runtime.start(reads.call("o"), id="r", goal="two", scope={"shop": "a", "order": "42"})
        assert same.how != "started"
        for scope in ({"order": "43", "shop": "a"}, None, {"order": "42"}):
            with pytest.raises(RunConflictError, match="input or scope"):
                await runtime.start(reads.call("o"), id="r", scope=scope)
        for wrong in ({"order": 42}, "order", {"": "x"}):
            with pytest.raises(UsageError):
                await runtime.start(reads.call("o"), scope=wrong)  # type: ignore[arg-type]
        first = (await same.history())[0].event
        assert isinstance(first, e.RunStarted)
        assert (first.goal, first.scope) == ("one", {"order": "42", "shop": "a"})


@in_a_loop
async def test_what_the_run_has_stated_is_shown_to_whoever_approves() -> None:
    async with on_one_store()(careful) as runtime:
        await runtime.start(careful.call("o-1", 42), goal="make it right", scope={"order": "o-1"})
        (it,) = await asked(runtime)
        assert (it.goal, it.scope) == ("make it right", {"order": "o-1"})


def test_a_script_states_it_too(tmp_path: Path) -> None:
    for order in ("1", "2"):
        done = perdure.run(held.call(order), store=str(tmp_path / "a.db"), scope={"order": order}, goal="g")
        assert done == "refunded 1"
    with pytest.raises(PolicyDenied):
        perdure.run(held.call("1"), store=str(tmp_path / "a.db"), scope={"order": "3"})
    no = Policy("p", 1, [Rule("no", "*", then="refuse")])
    with pytest.raises(PolicyDenied):
        perdure.run(reads.call("1"), store=str(tmp_path / "a.db"), policy=no)


# ── a policy that changes ───────────────────────────────────────────────────────────────────

NEVER = Policy("never", 1, [Rule("no", "refund", then="refuse")])


@effect(downstream=CanLookUp(), timeout=5, retry=perdure.Retry(max_attempts=5, first_delay=0.01, jitter=0))
async def charge(order: str) -> str:
    PAID.append((order, len(PAID)))
    if FAILS:
        raise FAILS.pop(0)
    return "charged"


@charge.key
def _(order: str) -> str:
    return order


@charge.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    return Found("charged") if PAID else NotFound()


@workflow
async def charges(order: str) -> str:
    return await charge(order)


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_changed_policy_counts_from_the_next_prepare_and_takes_nothing_back(in_doubt: bool) -> None:
    """Between two attempts the worker is another one, whose policy refuses. What provably did nothing is not tried
    again; what may have happened is found out all the same."""
    make, never = on_one_store(), Policy("never", 1, [Rule("no", "charge", then="refuse")])
    FAILS.append(TimeoutError("lost") if in_doubt else Retryable("busy", after=3600))

    async def main() -> None:
        async with make(charges, grace=0) as runtime:
            run = await runtime.start(charges.call("o"), id="r")
            wanted = "effect.in_doubt" if in_doubt else "effect.not_done"

            async def is_recorded() -> bool:
                return wanted in await kinds(run)

            await eventually(is_recorded)
            if in_doubt:
                assert await run.result(timeout=20) == "charged"
                return
        clock = FakeClock()
        clock.advance(100 * 366 * 86400)
        async with make(charges, policy=never, clock=clock) as runtime:
            run = await runtime.get("r")
            assert (await denial(run)).policy == "never"
            (row,) = await runtime.effects()
            assert (str(row.status), row.attempts) == ("failed_final", 1)

    run_async(main())
    assert len(PAID) == 1


# ── rates ───────────────────────────────────────────────────────────────────────────────────

FEW = Policy("few", 1, [Rule("two an hour", "refund", rate="2 per hour", then="allow")])


@in_a_loop
async def test_a_rate_holds_across_runs_and_workers() -> None:
    make = on_one_store()
    async with make(agent, policy=FEW) as one, make(agent, policy=FEW) as other:
        starts = [runtime.start(agent.call(f"o-{n}", n)) for n in range(6) for runtime in (one, other)]
        runs = await asyncio.gather(*starts)
        done = await asyncio.gather(*(run.result(timeout=30) for run in runs), return_exceptions=True)
        denied = [each for each in done if isinstance(each, PolicyDenied)]
        assert (len(PAID), len(denied), len(done)) == (2, 10, 12)
        assert {each.rule for each in denied} == {"two an hour"}
        assert denied[0].free_at is not None
        assert datetime.fromisoformat(denied[0].free_at).tzinfo is not None
        assert len(await one.effects()) == 2


@in_a_loop
async def test_a_rate_has_room_again_when_its_period_is_over() -> None:
    async with RuntimeUnderTest(policy=FEW) as runtime:
        for n in range(2):
            assert await (await runtime.start(agent.call(f"o-{n}", n))).result() == f"refunded {n}"
        await denial(await runtime.start(agent.call("o-2", 2)))
        await runtime.advance(3601)
        assert await (await runtime.start(agent.call("o-2", 2))).result() == "refunded 2"


@in_a_loop
async def test_a_retried_effect_counts_once() -> None:
    FAILS.extend([Retryable("busy", after=0.01)] * 2)
    once = Policy("once", 1, [Rule("once", "*", rate="1 per day", then="allow")])
    async with RuntimeUnderTest(policy=once) as runtime:
        assert await (await runtime.start(agent.call("o", 1))).result() == "refunded 1"
        await denial(await runtime.start(agent.call("p", 1)))


@in_a_loop
async def test_steps_count_too_and_are_recorded_before_they_begin() -> None:
    policy = Policy("p", 1, [Rule("reads", "find", rate={"count": 1, "per": 60, "each": "order"})])
    async with on_one_store()(reads, policy=policy) as runtime:
        run = await runtime.start(reads.call("a"))
        assert await run.result(timeout=20) == "found a"
        assert await kinds(run) == ["run.started", "step.started", "step.completed", "run.completed"]
        assert await (await runtime.start(reads.call("b"))).result(timeout=20) == "found b"
        run = await runtime.start(reads.call("a"))
        assert (await denial(run)).rule == "reads"
        assert await kinds(run) == ["run.started", "step.failed", "run.failed"]


BODIES: list[int] = []


@effect(transactional=True)
def book(n: int) -> int:
    BODIES.append(n)
    return n


@book.key
def _(n: int) -> str:
    return str(n)


@workflow
async def books(n: int) -> int:
    return await book.call(n)


def test_a_body_in_the_store_s_transaction_is_not_called_when_its_rate_is_used_up(tmp_path: Path) -> None:
    BODIES.clear()
    policy = Policy("p", 1, [Rule("books", "book", rate="2 per hour")])

    async def main() -> None:
        async with Runtime(str(tmp_path / "a.db"), workflows=[books], policy=policy) as runtime:
            runs = [await runtime.start(books.call(n)) for n in range(4)]
            done = await asyncio.gather(*(run.result(timeout=20) for run in runs), return_exceptions=True)
            assert sum(isinstance(each, PolicyDenied) for each in done) == 2
            assert len(await runtime.effects()) == 2

    run_async(main())
    assert len(BODIES) == 2
    store = SqliteStore(str(tmp_path / "a.db"))
    assert verify(store).damage == ()
    store.close()


# ── a check grows old ───────────────────────────────────────────────────────────────────────

OPEN: list[bool] = [True]


@step
async def long(until: str) -> str:
    while until not in {order for order, _ in PAID}:
        await asyncio.sleep(0.001)
    return "done"


@workflow(policy=Policy("p", 1, [Rule("while open", "refund", check=lambda _: OPEN[0] or "closed", then="allow")]))
async def waits_for_room(order: str) -> str:
    held_up = asyncio.ensure_future(long("go"))
    try:
        return await refund(order, 1)
    finally:
        PAID.append(("go", 0))
        await held_up


@pytest.mark.parametrize("is_open", [True, False])
def test_what_was_checked_too_long_ago_is_checked_again(is_open: bool) -> None:
    """The effect has its start recorded, and waits for room; by then the policy says something else."""
    run_async(wait_for_room(is_open))


async def wait_for_room(is_open: bool) -> None:
    OPEN[0] = True
    clock = FakeClock()
    async with Runtime(
        MemoryStore(clock), workflows=[waits_for_room], concurrent_steps=1, clock=clock, lease=36_500 * 86_400
    ) as runtime:
        run = await runtime.start(waits_for_room.call("o"), id="r")

        async def is_sent() -> bool:
            return "effect.started" in await kinds(run)

        await eventually(is_sent)
        OPEN[0] = is_open
        clock.advance(6)
        PAID.append(("go", 0))
        if is_open:
            assert await run.result(timeout=20) == "refunded 1"
        else:
            assert (await denial(run)).why == "closed"
            (row,) = await runtime.effects()
            assert str(row.status) == "failed_final"
    OPEN[0] = True
    assert (("o", 1) in PAID) is is_open


# ── hosted code ─────────────────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), reversible=False)
def wire(order: str, cents: int) -> str:
    PAID.append((order, cents))
    return f"wired {cents}"


@wire.key
def _(order: str, cents: int) -> str:
    return order


@step
def look(order: str) -> str:
    return f"looked at {order}"


@workflow
def plain(order: str, cents: int, is_asked: bool) -> str:
    try:
        look(order)
        if is_asked:
            return perdure.sync.with_approval(wire.call(order, cents), by={"ann"})
        return wire(order, cents)
    except PolicyDenied as no:
        return f"denied: {no.rule}"


@in_a_loop
async def test_hosted_code_passes_the_same_gates() -> None:
    bounds = Policy("p", 1, [Rule("bounds", "wire", must={"cents": {"<": 100}}), Rule("looks", "look", then="allow")])
    no_looks = Policy("p", 2, [Rule("no looks", "look", then="refuse")])
    few_looks = Policy("p", 3, [Rule("few looks", "look", rate="1 per hour")])
    make = on_one_store()
    async with make(plain, policy=bounds) as runtime:
        for call in (plain.call("a", 1, False), plain.call("b", 100, False), plain.call("c", 100, True)):
            wanted = "denied: what cannot be taken back" if call.args[1] == 1 else "denied: bounds"
            assert await (await runtime.start(call)).result(timeout=20) == wanted
        run = await runtime.start(plain.call("d", 99, True))
        (it,) = await asked(runtime)
        await runtime.approve(it.id, hash=it.hash, by="ann")
        assert await run.result(timeout=20) == "wired 99"
    async with make(plain, policy=no_looks) as runtime:
        assert await (await runtime.start(plain.call("e", 1, False))).result(timeout=20) == "denied: no looks"
    async with make(plain, policy=few_looks) as runtime:
        wanted = "denied: what cannot be taken back"
        assert await (await runtime.start(plain.call("f", 1, False))).result(timeout=20) == wanted
        assert await (await runtime.start(plain.call("g", 1, False))).result(timeout=20) == "denied: few looks"
    assert PAID == [("d", 99)]


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


@workflow(
    policy=Policy(
        "p", 1,
        [
            Rule("refunds", "refund", must={"cents": {"<": 100}}, rate="2 per hour", then="allow"),
            Rule("finds", "find", rate="1 per hour"),
        ],
    )
)  # fmt: skip
async def tries(order: str) -> list[str]:
    said: list[str] = []
    for call in (
        find.call("a"), find.call("b"), refund.call("a", 1), refund.call("b", 100), refund.call("c", 3),
        refund.call("d", 4),
    ):  # fmt: skip
        try:
            said.append(await call)
        except PolicyDenied as no:
            said.append(f"{no.call}: {no.rule}" + (", later" if no.free_at else ""))
    return said


def test_a_crash_at_any_write_changes_nothing() -> None:
    sweep = run_async(sweep_crashes(tries.call("o")))
    assert sweep.result == [
        "found a", "find: finds, later", "refunded 1", "refund: refunds", "refunded 3", "refund: refunds, later",
    ]  # fmt: skip
    assert sweep.writes > 8


# ── what is wrong ───────────────────────────────────────────────────────────────────────────


async def wrong() -> None: ...


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Policy\.load"):
        Runtime(policy="policy.toml")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    with pytest.raises(perdure.DeclarationError, match=r"Policy\.load"):

        workflow(policy="policy.toml")(wrong)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]

    with pytest.raises(perdure.DeclarationError, match="cannot be read"):
        Policy.load("no such.toml")


@in_a_loop
async def test_code_cannot_acknowledge_for_people() -> None:
    @step
    async def meddles() -> None:
        await Client(MemoryStore()).acknowledge("r", by="me")

    make: Callable[..., Runtime] = on_one_store()

    @workflow
    async def tries_to() -> None:
        await meddles()

    async with make(tries_to) as runtime:
        with pytest.raises(UsageError, match="a person's to say"):
            await (await runtime.start(tries_to.call())).result(timeout=20)


# ── what let it pass ────────────────────────────────────────────────────────────────────────


DEFAULT = e.Denied("default", "1", "what cannot be taken back")


@pytest.mark.parametrize(
    ("policy", "passed"),
    [(ALLOWS, e.Denied("shop", "3", "refunds")), (Policy("shop", 3), DEFAULT), (None, None),
     (Policy("shop", 3, [Rule("large", "refund", then="approve", by="ann")]), e.Denied("shop", "3", "large"))],
)  # fmt: skip
def test_the_start_of_an_effect_says_what_let_it_pass(policy: Policy | None, passed: e.Denied | None) -> None:
    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with RuntimeUnderTest(store, clock=clock, policy=policy) as runtime:
            run = await runtime.start(careful.call("7", 100), id="r")
            await runtime.run_dry()
            (entry,) = await runtime.inbox()
            assert entry.request is not None
            await runtime.approve(entry.request.id, hash=entry.request.hash, by="ann")
            await run.result()
            history = [each.event for each in await run.history()]
            (start,) = [event for event in history if isinstance(event, e.EffectStarted)]
            assert start.passed == passed
            told = [each.what for each in timeline(store, 1) if each.kind.startswith("effect.")]
            by = "" if passed is None else f", let pass by {passed.told}"
            assert told == [f"sent{by}", f"succeeded{by}"]

    run_async(main())

"""Forks, and what else decides whether a call is made: policies, approvals, budgets, secrets, the risk that people see,
the transaction of the store. A person's word that something is to be done again opens none of these doors."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async
from tests.runtime.test_budgets import account_of
from tests.runtime.test_forks import held, place, sound

import perdure
from perdure import (
    Budget,
    Idempotent,
    NoGuarantee,
    Policy,
    PolicyDenied,
    Rule,
    Run,
    RunBlockedError,
    Runtime,
    Usage,
    effect,
    step,
    workflow,
)
from perdure.cli.inbox import print_entries
from perdure.history import events as e
from perdure.history.spending import NOTHING
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

SENT: list[str] = []
"""What reached the other side."""


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    SENT.clear()


@step(uses=Usage(tokens=10))
async def look() -> str:
    perdure.used(tokens=10)
    return "stock"


@effect(downstream=Idempotent(), reversible=False, uses=Usage(tokens=100, cost=Decimal(1)))
async def pay(order: str) -> str:
    SENT.append(order)
    perdure.used(tokens=100, cost=Decimal(1))
    return f"receipt {len(SENT)}"


@pay.key
def _(order: str) -> str:
    return order


@effect(downstream=NoGuarantee())
async def write(letter: str) -> str:
    SENT.append(letter)
    return letter


@write.key
def _(letter: str) -> str:
    return letter


@workflow
async def shop(order: str) -> str:
    await look()
    return await pay(order)


@workflow(name="shop")
def hosted_shop(order: str) -> str:
    perdure.sync.wait(look.call())
    return perdure.sync.wait(pay.call(order))


@workflow
async def letters(letter: str) -> str:
    await look()
    return await write(letter)


ALLOWS = Policy("allows", 1, [Rule("payments", "pay", then="allow")])


async def forked(runtime: Runtime, flow: Any, **options: Any) -> Any:
    """A fork that is about to do what its original has done."""
    run = await runtime.start(flow.call("a"), id="r", **options)
    await run.result()
    return await run.fork(await place(run, e.StepCompleted), id="f")


def blind_once(runtime: Runtime) -> None:
    """The original begins the same right after the fork has looked: the fork's first look finds nothing."""
    forks, looks = host_of(runtime).turns.forks, list[Any]()
    met = forks.met

    def look_once(flight: Any) -> Any:
        looks.append(flight)
        return None if len(looks) == 1 else met(flight)

    forks.met = look_once  # type: ignore[method-assign]


# ── risk ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("flow", "risk"), [(shop, "high"), (letters, "")])
def test_people_see_the_risk_of_what_a_fork_would_do_again(
    flow: Any, risk: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        make = on_one_store(policy=ALLOWS)
        async with make(flow) as runtime:
            entry = await held(runtime, await forked(runtime, flow))
            assert (entry.reason, entry.risk, entry.place.rank) == ("done_by_original", risk, 0 if risk else 2)
        async with make(flow) as runtime:  # it is in the history, not in a worker's memory
            assert (await held(runtime, await runtime.get("f"))).risk == risk
            print_entries([entry])
            assert ("\n    risk          high\n" in capsys.readouterr().out) == bool(risk)
            sound(runtime)

    run_async(main())


# ── policies and approvals ──────────────────────────────────────────────────────────────────


def test_what_a_policy_does_not_let_pass_is_not_done_again_whoever_says_so() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(shop, policy=ALLOWS) as runtime:
            await held(runtime, await forked(runtime, shop))
        async with make(shop, policy=Policy("stop", 2, [Rule("none", "pay", then="refuse")])) as runtime:
            fork = await runtime.get("f")
            await fork.unblock("retry", by="ann")
            with pytest.raises(PolicyDenied, match="denied by policy stop version 2"):
                await fork.result(wait_blocked=True)
            sound(runtime)
        assert SENT == ["a"]

    run_async(main())


@pytest.mark.parametrize("choice", ["reuse", "retry"])
def test_a_fork_counts_against_rates_only_for_what_it_does(choice: Literal["reuse", "retry"]) -> None:
    few = Policy("few", 1, [Rule("two", "pay", rate="2 per day", then="allow")])

    async def main() -> None:
        async with RuntimeUnderTest(policy=few) as runtime:
            fork = await forked(runtime, shop)
            await runtime.run_dry()
            await fork.unblock(choice, by="ann")
            await fork.result(wait_blocked=True)
            other = await runtime.start(shop.call("b"), id="other")
            if choice == "reuse":
                await other.result()
            else:
                with pytest.raises(PolicyDenied, match="used up"):
                    await other.result()

    run_async(main())
    assert SENT[1:] == ["a" if choice == "retry" else "b"]


@pytest.mark.parametrize("is_met_late", [False, True])
def test_an_approval_of_the_forks_own_call_is_no_word_about_doing_it_twice(is_met_late: bool) -> None:
    """Who approves decides whether the call may be made, not whether what the original did is done again: both are
    asked, and the approval is used once, also if the original's was met only after the fork's start was recorded."""

    @workflow
    async def careful(order: str) -> str:
        await look()
        return await perdure.with_approval(pay.call(order), by={"ann"})

    async def approve(runtime: RuntimeUnderTest, run_id: str) -> None:
        await runtime.run_dry()
        (asked,) = [it for it in await runtime.requests(status="pending") if it.run_id == run_id]
        await runtime.approve(asked.id, hash=asked.hash, by="ann")
        await runtime.run_dry()

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(careful.call("a"), id="r")
            await approve(runtime, "r")
            assert await run.result() == "receipt 1"
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            if is_met_late:
                blind_once(runtime)
            await approve(runtime, "f")
            assert (await held(runtime, fork)).reason == "done_by_original"
            assert SENT == ["a"]
            await fork.unblock("retry", by="bob")
            assert await fork.result(wait_blocked=True) == "receipt 2"
            events = [each.event for each in await fork.history()]
            assert len([each for each in events if isinstance(each, e.PersonAsked)]) == 1
            started = [each for each in events if isinstance(each, e.EffectStarted)]
            assert len({each.approval for each in started}) == 1
            assert started[0].approval
            sound(runtime)

    run_async(main())


# ── budgets ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flow", [shop, hosted_shop], ids=["", "hosted"])
@pytest.mark.parametrize("is_met_late", [False, True])
@pytest.mark.parametrize(("choice", "tokens"), [("retry", 110), ("reuse", 10), ("fail", 10)])
def test_a_call_that_waits_for_a_person_holds_nothing_of_a_budget(
    choice: Any, tokens: int, is_met_late: bool, flow: Any
) -> None:
    shared = Budget(tokens=1000, workflow="shop")

    async def main() -> None:
        async with RuntimeUnderTest(policy=ALLOWS, budgets=[shared]) as runtime:
            run = await runtime.start(flow.call("a"), id="r", budget=Budget(tokens=500))
            await run.result()
            if is_met_late:
                blind_once(runtime)
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            await runtime.run_dry()
            assert (await held(runtime, fork)).reason == "done_by_original"
            store = host_of(runtime).turns.store
            assert [(each.held, each.used.tokens) for each in store.accounts()] == [(NOTHING, 110)]
            assert (await account_of(fork)).spent.tokens == 10, "what the original had used up to there"
            await fork.unblock(choice, by="ann")
            with contextlib.suppress(perdure.StepError):
                await fork.result(wait_blocked=True)
            account = await account_of(fork)
            assert (account.spent.tokens, account.spent.effects) == (tokens, int(choice == "retry"))
            assert not account.open
            assert [each.held for each in store.accounts()] == [NOTHING]
            sound(runtime)

    run_async(main())
    assert len(SENT) == 1 + (choice == "retry")


def test_what_a_person_wants_done_again_may_be_too_much_for_a_budget_that_many_runs_share() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(policy=ALLOWS, budgets=[Budget(tokens=200, workflow="shop")]) as runtime:
            fork = await forked(runtime, shop)
            await held(runtime, fork)
            await fork.unblock("retry", by="ann")
            await eventually(lambda: is_blocked(fork, "over_budget"))
            with pytest.raises(RunBlockedError, match="wants 100 tokens"):
                await fork.result()
            assert SENT == ["a"]
            await runtime.raise_budget("f", tokens=300, by="ann")
            assert await fork.result(wait_blocked=True) == "receipt 2"
            sound(runtime)

    run_async(main())


@effect(downstream=Idempotent(), uses=Usage(tokens=100))
async def charge(order: str) -> str:
    SENT.append(order)
    return f"charged {order}"


@charge.key
def _(order: str) -> str:
    return order


@workflow
async def charges(order: str) -> str:
    await look()
    return await charge(order)


@pytest.mark.parametrize(("choice", "tokens"), [("retry", 210), ("reuse", 110)])
def test_a_crash_at_any_write_of_a_fork_leaves_nothing_held_and_counts_what_may_have_been_paid(
    choice: Literal["retry", "reuse"], tokens: int
) -> None:
    """A crash may have cost one attempt more: of the step, or of the effect."""

    async def scenario(runtime: RuntimeUnderTest) -> str:
        run = await runtime.start(charges.call("a"), id="r")
        await run.result()
        fork = await run.fork(await place(run, e.StepCompleted), id="f")
        while not (await fork.status()).is_final:
            await runtime.run_dry()
            for entry in [it for it in await runtime.inbox() if it.run_id == "f" and not it.pending]:
                (account,) = host_of(runtime).turns.store.accounts()
                assert account.held == NOTHING
                await fork.unblock(choice, call=entry.call, by="ann")
        await fork.result()
        (account,) = host_of(runtime).turns.store.accounts()
        assert account.held == NOTHING
        assert account.used.tokens - tokens in {0, 10, 100}
        sound(runtime)
        return await fork.result()

    shared = [Budget(tokens=10_000, workflow="charges")]
    sweep = run_async(sweep_crashes(scenario, workflows=[charges], budgets=shared))
    assert sweep.result == "charged a"
    assert sweep.writes > 10


async def is_blocked(run: Run[Any], reason: str) -> bool:
    return (await run.summary()).reason == reason


# ── secrets ─────────────────────────────────────────────────────────────────────────────────


def test_a_fork_has_marks_where_its_original_has_and_fetches_secrets_anew() -> None:
    asked: list[str] = []

    def ask(name: str) -> str:
        asked.append(name)
        return f"value-of-key-{len(asked)}"

    @step(secrets={"key"})
    async def opens(door: str) -> str:
        return f"{door}: {perdure.secret('key')}"

    @effect(downstream=NoGuarantee(), secrets={"key"})
    async def sends(to: str) -> str:
        SENT.append(perdure.secret("key"))
        perdure.operation().reference = f"sent with {perdure.secret('key')}"
        return to

    @sends.key
    def _(to: str) -> str:
        return to

    @workflow
    async def doors() -> list[str]:
        return [await opens("front"), await sends("ann"), await opens("back")]

    async def main() -> None:
        async with RuntimeUnderTest(secrets=[perdure.secrets.Minted(["key"], lambda request: ask("key"))]) as runtime:
            run = await runtime.start(doors.call(), id="r")
            assert await run.result() == ["front: ‹secret:key›", "ann", "back: ‹secret:key›"]
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            entry = await held(runtime, fork)
            assert "sent with ‹secret:key›" in entry.hint
            await fork.unblock("retry", by="ann")
            assert await fork.result(wait_blocked=True) == ["front: ‹secret:key›", "ann", "back: ‹secret:key›"]
            assert SENT == ["value-of-key-2", "value-of-key-4"]
            assert "value-of-key" not in str([await fork.history(), await run.history(), entry])
            sound(runtime)

    run_async(main())


# ── the store's own database ────────────────────────────────────────────────────────────────


@effect(transactional=True)
def reserve(item: str) -> int:
    database = perdure.transaction()
    database.execute("UPDATE stock SET count = count - 1 WHERE item = ?", (item,))
    (left,) = database.execute("SELECT count FROM stock WHERE item = ?", (item,)).fetchone()
    return int(left)


@reserve.key
def _(item: str) -> str:
    return item


@workflow
async def sells() -> int:
    await look()
    await perdure.receive("go", bool)
    return await reserve.call("lamp")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER NOT NULL)")
        database.execute("INSERT INTO stock VALUES ('lamp', 9)")
        database.commit()
    return path


def stock(path: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count FROM stock").fetchone()[0])


@pytest.mark.parametrize("budgets", [(), (Budget(tokens=1000, workflow="sells"),)], ids=["", "with a budget"])
@pytest.mark.parametrize(("choice", "result", "left"), [("retry", 7, 7), ("reuse", 8, 8), ("fail", None, 8)])
@pytest.mark.parametrize("is_between", [False, True], ids=["before the look", "between the look and the transaction"])
def test_what_the_original_has_changed_in_the_database_is_not_changed_again(
    path: str, choice: Any, result: int | None, left: int, is_between: bool, budgets: Any
) -> None:
    """Also where the original's transaction comes between the fork's look and the fork's own: the fork looks once more
    in it, where no other writes."""

    async def main() -> None:
        async with Runtime(path, workflows=[sells], budgets=budgets) as runtime:
            run = await runtime.start(sells.call(), id="r")
            await eventually(lambda: is_in_history(run, "step.completed"))
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            is_held, has_changed = hold_transaction_of_fork(runtime)
            if is_between:
                await fork.send("go", True)
                await is_held.wait()
            await run.send("go", True)
            assert await run.result() == 8
            has_changed.set()
            if not is_between:
                await fork.send("go", True)
            entry = await held(runtime, fork)
            assert (entry.reason, stock(path)) == ("done_by_original", 8)
            assert all(each.held == NOTHING for each in host_of(runtime).turns.store.accounts())
            await fork.unblock(choice, by="ann")
            if result is None:
                with pytest.raises(perdure.StepError, match="was not made"):
                    await fork.result(wait_blocked=True)
            else:
                assert await fork.result(wait_blocked=True) == result
            sound(runtime)

    run_async(main())
    assert stock(path) == left


def hold_transaction_of_fork(runtime: Runtime) -> tuple[asyncio.Event, asyncio.Event]:
    """The fork has looked, and its transaction does not begin before the second of these events: that it waits is the
    first one."""
    turns, is_held, may_go_on = host_of(runtime).turns, asyncio.Event(), asyncio.Event()
    begin = turns.transactions.begin

    async def later(flight: Any) -> None:
        is_held.set()
        await may_go_on.wait()
        begin(flight)

    waiting: list[Any] = []

    def begin_when_told(flight: Any) -> None:
        if flight.live.run_id == "f" and not may_go_on.is_set():
            waiting.append(asyncio.ensure_future(later(flight)))
        else:
            begin(flight)

    turns.transactions.begin = begin_when_told  # type: ignore[method-assign]
    return is_held, may_go_on


async def is_in_history(run: Run[Any], kind: str) -> bool:
    return any(each.kind == kind for each in await run.history())

"""Budgets in a worker: reserved before, settled after, counted once; over one the call waits for a person."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, run_async

import perdure
from perdure import (
    Budget,
    Client,
    DeclarationError,
    Idempotent,
    OverBudget,
    Retry,
    Retryable,
    Run,
    RunBlockedError,
    Runtime,
    UnknownNameError,
    Usage,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.audit.costs import costs
from perdure.gates.budget import Account, account_at
from perdure.history import events as e
from perdure.history.spending import NOTHING, Amount
from perdure.store.memory import MemoryStore
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

RAN: list[str] = []
"""Which bodies began."""


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@step(uses=Usage(tokens=40, cost="0.04"), retry=Retry(max_attempts=3, first_delay=0.1, jitter=0))
async def think(what: str, tokens: int = 30, failures: int = 0) -> str:
    RAN.append(what)
    perdure.used(tokens=tokens - 10, cost="0.01")
    perdure.used(tokens=10, cost="0.02")
    if perdure.attempt().number <= failures:
        raise RuntimeError("the model stumbled")
    return what


@step
async def unsaid(tokens: int = 0) -> int:
    RAN.append("unsaid")
    if tokens:
        perdure.used(tokens=tokens)
    return tokens


@effect(downstream=Idempotent())
async def pay(order: str) -> str:
    RAN.append(f"pay {order}")
    return order


@pay.key
def _(order: str) -> str:
    return order


@pay.undo
async def _(paid: str, order: str) -> None:
    RAN.append(f"undo {order}")


@workflow(budget=Budget(tokens=100))
async def thinks_thrice() -> list[str]:
    return [await think(str(n)) for n in range(3)]


@workflow
async def thinks_at_once(count: int) -> list[str]:
    return await asyncio.gather(*(think(str(n)) for n in range(count)))


async def account_of(run: Run[Any]) -> Account:
    """By the run's history."""
    events = [each.event for each in await run.history()]
    account = account_at(events[0]) or Account()
    for event in events:
        account.note(event)
    return account


async def blocked(run: Run[Any]) -> RunBlockedError:
    with pytest.raises(RunBlockedError) as stuck:
        await run.result()
    assert stuck.value.reason == "over_budget"
    return stuck.value


# ── within, over, raised ────────────────────────────────────────────────────────────────────


def test_what_is_used_counts_and_not_what_was_reserved() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_thrice.call())
            assert await run.result() == ["0", "1", "2"]  # 30 + 30 + 40 reserved, within 100
            account = await account_of(run)
            assert account.spent == Amount(90, 90_000_000, 0, 3)
            assert not account.open
            reserved = (await run.history())[2]
            assert (reserved.kind, reserved.seq) == ("budget.reserved", 2)

    run_async(main())


def test_over_it_the_call_waits_and_a_person_raises_it() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_thrice.call(), id="r", budget=Budget(tokens=99))
            stuck = await blocked(run)
            assert "the run's budget is 99 tokens: 60 tokens used, and this call wants 40 tokens" in stuck.hint
            assert RAN == ["0", "1"]
            (entry,) = await runtime.inbox()
            assert (entry.reason, entry.call, set(entry.choices)) == (
                "over_budget", "0/think#3", {"raise_budget", "retry", "fail"},
            )  # fmt: skip
            it = entry.budget
            assert it is not None
            assert (it.account, it.unit, it.since) == ("", "tokens", None)
            assert [it.limit, it.used, it.reserved, it.wanted] == [99, 60, 0, 40]
            await runtime.raise_budget("r", tokens=100, by="ann", reason="it is nearly there")
            assert await run.result() == ["0", "1", "2"]
            (raised,) = [each.event for each in await run.history() if isinstance(each.event, e.BudgetRaised)]
            assert (raised.by, raised.why, raised.limits.tokens) == ("ann", "it is nearly there", 100)

    run_async(main())


def test_what_else_is_under_way_goes_on() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_at_once.call(4), budget=Budget(tokens=80))
            await blocked(run)
            await runtime.run_dry()
            assert RAN == ["0", "1"]
            done = [each for each in await run.history() if each.kind == "step.completed"]
            assert len(done) == 2
            assert len(await runtime.inbox()) == 2
            await runtime.raise_budget(run, tokens=200, by="ann")
            assert await run.result() == ["0", "1", "2", "3"]

    run_async(main())


def test_a_raise_that_is_not_enough_leaves_it_stuck() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_thrice.call(), budget=Budget(tokens=50))
            await blocked(run)
            await runtime.raise_budget(run, tokens=60, by="ann")
            assert "60 tokens: 30 tokens used" in (await blocked(run)).hint
            await runtime.raise_budget(run, tokens=1000, by="ann")
            await run.result()

    run_async(main())


@workflow
async def gives_in() -> str:
    try:
        return await think("dear")
    except OverBudget as no:
        return f"{no.unit} {no.limit} {no.used} {no.budget!r}"


def test_a_person_lets_the_call_fail() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(gives_in.call(), budget=Budget(tokens=39))
            await blocked(run)
            await run.unblock("fail", by="ann")
            assert await run.result() == "tokens 39 0 ''"
            assert RAN == []

    run_async(main())


@workflow
async def pays(count: int) -> list[str]:
    paid = list[str]()
    for n in range(count):
        try:
            paid.append(await pay(str(n)))
        except OverBudget:
            paid.append("no")
    return paid


def test_effects_count_and_one_that_failed_may_be_asked_for_again() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(pays.call(3), budget=Budget(effects=2))
            await blocked(run)
            assert RAN == ["pay 0", "pay 1"]
            await run.unblock("fail", by="ann")
            assert await run.result() == ["0", "1", "no"]
            assert [row.status for row in await runtime.effects()] == ["succeeded", "succeeded"]
            assert (await account_of(run)).spent.effects == 2

    run_async(main())


@effect(downstream=Idempotent(), retry=Retry(max_attempts=3, first_delay=0.1, jitter=0), uses=Usage(tokens=10, cost=0))
async def stumbles(times: int) -> int:
    RAN.append("stumbles")
    if perdure.operation().attempt <= times:
        raise Retryable("not yet")
    return times


@stumbles.key
def _(times: int) -> int:
    return times


@workflow
async def stumbling(times: int) -> int:
    return await stumbles(times)


def test_a_call_counts_once_as_effect_however_often_it_is_tried() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(stumbling.call(2), budget=Budget(effects=1, tokens=10))
            assert await run.result() == 2
            assert RAN == ["stumbles"] * 3
            # attempts that provably did nothing, and said nothing, used no tokens
            assert (await account_of(run)).spent == Amount(10, 0, 1, 0)

    run_async(main())


def test_failed_attempts_count_with_what_they_said() -> None:
    @workflow
    async def stumbles_twice() -> str:
        return await think("a", 30, failures=2)

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(stumbles_twice.call(), budget=Budget(tokens=1000, steps=1))
            assert await run.result() == "a"
            assert (await account_of(run)).spent == Amount(90, 90_000_000, 0, 1)
            short = await runtime.start(stumbles_twice.call(), budget=Budget(tokens=99))
            await blocked(short)  # the third attempt: 60 used, 40 wanted
            await runtime.raise_budget(short, tokens=100, by="ann")
            assert await short.result() == "a"

    run_async(main())


@step(uses=Usage(tokens=40), retry=Retry(max_attempts=1))
async def tells_nothing(fails: str = "") -> None:
    if fails == "refused":
        raise ConnectionRefusedError
    if fails:
        raise RuntimeError(fails)


@pytest.mark.parametrize(("fails", "counted"), [("", 40), ("no idea what happened", 40), ("refused", 0)])
def test_what_is_not_said_counts_as_reserved_unless_it_is_proven_that_nothing_was_done(
    fails: str, counted: int
) -> None:
    @workflow
    async def once() -> None:
        await tells_nothing(fails)

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(once.call(), budget=Budget(tokens=100))
            await asyncio.gather(run.result(), return_exceptions=True)
            assert (await account_of(run)).spent.tokens == counted

    run_async(main())


def test_a_step_that_does_not_say_begins_as_long_as_something_is_left() -> None:
    @workflow(budget=Budget(tokens=100))
    async def at_random() -> int:
        return sum([await unsaid(60), await unsaid(60), await unsaid(60)])

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(at_random.call())
            assert "does not say what it uses" in (await blocked(run)).hint
            assert RAN == ["unsaid"] * 2  # exceeded by what the last one used
            assert (await account_of(run)).spent.tokens == 120

    run_async(main())


@step
async def sized(text: str) -> int:
    perdure.used(tokens=len(text))
    return len(text)


@sized.estimate
def _(text: str) -> Usage:
    if not text:
        raise ValueError("nothing to estimate")
    return Usage(tokens=len(text))


@workflow
async def sizes(*texts: str) -> list[int]:
    return [await sized(text) for text in texts]


def test_an_estimate_depends_on_the_arguments() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(sizes.call("four", "sixsix", "x"), budget=Budget(tokens=10))
            assert "10 tokens used, and this call wants 1 token" in (await blocked(run)).hint

    run_async(main())


def test_an_estimate_that_fails_fails_the_step() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(sizes.call(""), budget=Budget(tokens=10))
            with pytest.raises(ValueError, match="nothing to estimate"):
                await run.result()

    run_async(main())


def test_time_is_a_budget_too() -> None:
    @workflow(budget=Budget(wall=timedelta(hours=2)))
    async def dawdles() -> str:
        await think("early")
        await perdure.sleep(hours=3)
        return await think("late")

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(dawdles.call())
            assert "the run's budget is 7200 s, and the run was started 10800 s ago" in (await blocked(run)).hint
            await runtime.raise_budget(run, wall=timedelta(hours=4), by="ann")
            assert await run.result() == "late"

    run_async(main())


def test_undoing_is_never_held_up() -> None:
    @workflow(budget=Budget(effects=1))
    async def regrets() -> None:
        async with perdure.saga():
            await pay("a")
            raise LookupError

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(regrets.call())
            with pytest.raises(LookupError):
                await run.result()
            assert RAN == ["pay a", "undo a"]
            assert (await account_of(run)).spent.effects == 2

    run_async(main())


def test_a_cancelled_step_counts_with_what_it_said_or_as_reserved() -> None:
    @step(uses=Usage(tokens=40))
    async def hangs(said: int) -> None:
        if said:
            perdure.used(tokens=said)
        await asyncio.sleep(3600)

    @workflow(budget=Budget(tokens=200))
    async def gives_up(said: int) -> None:
        task = asyncio.create_task(hangs(said))
        await unsaid(1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def main(said: int, counted: int) -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(gives_up.call(said))
            await run.result()
            account = await account_of(run)
            assert account.spent.tokens == counted
            assert not account.open

    run_async(main(7, 8))
    run_async(main(0, 41))


def test_it_goes_along_into_the_next_chapter() -> None:
    @workflow(budget=Budget(tokens=100))
    async def forever(chapter: int) -> str:
        await think(str(chapter))
        if chapter < 3:
            perdure.continue_as_new(chapter + 1)
        return "done"

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(forever.call(0))
            assert "90 tokens used" in (await blocked(run)).hint
            await runtime.raise_budget(run, tokens=130, by="ann")
            assert await run.result() == "done"

    run_async(main())


def test_a_def_workflow_has_its_budget_too() -> None:
    @step(uses=Usage(tokens=40))
    def ponder(n: int) -> int:
        perdure.used(tokens=35)
        return n

    @workflow(budget=Budget(tokens=100, effects=1))
    def hosted() -> list[int]:
        return [ponder(n) for n in range(3)]

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(hosted.call())
            assert "70 tokens used, and this call wants 40 tokens" in (await blocked(run)).hint
            await runtime.raise_budget(run, tokens=110, by="ann")
            assert await run.result() == [0, 1, 2]
            assert (await account_of(run)).spent == Amount(105, 0, 0, 3)

    run_async(main())


def test_a_run_without_any_budget_writes_what_it_wrote_before() -> None:
    @workflow
    async def plain() -> list[int]:
        return [await unsaid() for _ in range(3)]

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(plain.call())
            await run.result()
            assert [each.kind for each in await run.history()] == [
                "run.started", *["step.completed"] * 3, "run.completed",
            ]  # fmt: skip

    run_async(main())


def test_what_a_step_says_is_recorded_without_any_budget() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_at_once.call(1))
            await run.result()
            assert [each.kind for each in await run.history()] == [
                "run.started", "budget.spent", "step.completed", "run.completed",
            ]  # fmt: skip

    run_async(main())


# ── what many runs share ────────────────────────────────────────────────────────────────────


DAILY = Budget(tokens=100, per=timedelta(days=1), workflow="thinks_at_once")


def test_runs_share_a_budget_and_each_day_has_its_own() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[DAILY]) as runtime:
            await (await runtime.start(thinks_at_once.call(2))).result()
            other = await runtime.start(thinks_at_once.call(2), id="other")
            stuck = await blocked(other)
            assert "the budget of workflow thinks_at_once per 86400s is 100 tokens: 60 tokens used" in stuck.hint
            await runtime.run_dry()
            (entry, *_) = await runtime.inbox()
            assert entry.budget is not None
            assert entry.budget.since is not None
            assert "it is tried again by itself at " in stuck.hint
            await runtime.advance(timedelta(days=1))
            assert await other.result() == ["0", "1"]

    run_async(main())


def test_a_shared_budget_is_raised_by_way_of_the_run_that_is_stuck() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[DAILY]) as runtime:
            run = await runtime.start(thinks_at_once.call(4), id="r")
            await blocked(run)
            await runtime.run_dry()
            await runtime.raise_budget("r", tokens=140, by="ann", reason="a busy day")
            assert await run.result() == ["0", "1", "2", "3"]
            (account,) = runtime._store.accounts()  # pyright: ignore[reportPrivateUsage]
            assert (account.used.tokens, account.held, account.raised.tokens) == (120, NOTHING, 140)

    run_async(main())


def test_each_value_of_a_tag_has_an_account() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[Budget(tokens=50, tag="customer")]) as runtime:
            for customer in ("ada", "bo"):
                await (await runtime.start(thinks_at_once.call(1), tags={"customer": customer})).result()
            await (await runtime.start(thinks_at_once.call(3))).result()
            await blocked(await runtime.start(thinks_at_once.call(1), tags={"customer": "ada"}))
            assert [each.account for each in runtime._store.accounts()] == [  # pyright: ignore[reportPrivateUsage]
                "tag customer=ada", "tag customer=bo",
            ]  # fmt: skip

    run_async(main())


def test_the_tightest_of_all_budgets_counts() -> None:
    budgets = [
        Budget(tokens=1000, tag="team=x"), Budget(tokens=70, workflow="thinks_at_once"), Budget(steps=9, tag="team"),
    ]  # fmt: skip

    async def main() -> None:
        async with RuntimeUnderTest(budgets=budgets) as runtime:
            run = await runtime.start(thinks_at_once.call(3), tags={"team": "x"}, budget=Budget(tokens=5000))
            assert "workflow thinks_at_once" in (await blocked(run)).hint

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


@workflow(budget=Budget(tokens=1000, effects=5))
async def works() -> str:
    said = await asyncio.gather(think("a"), think("b", 30, failures=1), unsaid(5))
    await pay("x")
    return ",".join(map(str, said))


@pytest.mark.parametrize("shared", [False, True])
def test_a_crash_at_any_write_counts_everything_once(shared: bool) -> None:
    budgets = [Budget(tokens=1000, tag="team")] if shared else []
    found: list[tuple[Account, Any, list[str]]] = []

    async def scenario(runtime: RuntimeUnderTest) -> str:
        run = await runtime.start(works.call(), id="swept", tags={"team": "x"} if shared else None)
        result = await run.result()
        found.append((await account_of(run), runtime._store.accounts(), list(RAN)))  # pyright: ignore[reportPrivateUsage]
        RAN.clear()
        return result

    async def main() -> None:
        sweep = await sweep_crashes(scenario, budgets=budgets)
        assert sweep.result == "a,b,5"

    run_async(main())
    for account, accounts, _ in found:
        assert not account.open
        assert account.spent.effects == 1
        assert account.spent.steps == 3
        assert account.spent.tokens >= 95  # 30 + 2 * 30 + 5, and what was interrupted
        assert account.spent.tokens <= 95 + 3 * 40
        for each in accounts:
            assert (each.used, each.held) == (account.spent, NOTHING)
    assert found[0][0].spent == Amount(95, 90_000_000, 1, 3)


def test_raising_survives_a_crash_at_any_write() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> str:
        run = await runtime.start(thinks_thrice.call(), id="swept", budget=Budget(tokens=50))
        try:
            await run.result()
        except RunBlockedError:
            await runtime.raise_budget(run, tokens=10_000, by="ann")
        return "".join(await run.result())

    async def main() -> None:
        assert (await sweep_crashes(scenario)).result == "012"

    run_async(main())


def test_what_a_process_had_reserved_that_is_gone_counts_as_used() -> None:
    @step(uses=Usage(tokens=40))
    async def hangs_once() -> int:
        RAN.append("hangs")
        if len(RAN) == 1:
            await asyncio.sleep(3600)
        perdure.used(tokens=1)
        return 1

    @workflow(budget=Budget(tokens=100))
    async def once() -> int:
        return await hangs_once()

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            store = runtime._store  # pyright: ignore[reportPrivateUsage]
            assert isinstance(store, MemoryStore)
            await runtime.start(once.call(), id="r")
            await eventually(lambda: RAN == ["hangs"])
            clock = runtime.clock
        async with RuntimeUnderTest(store, clock=clock, workflows=[once]) as second:
            run = await second.get("r")
            assert await run.result() == 1
            assert (await account_of(run)).spent.tokens == 41
            assert [each.event.how for each in await run.history() if isinstance(each.event, e.BudgetSpent)] == [
                "interrupted", "told",
            ]  # fmt: skip

    run_async(main())


# ── prices ──────────────────────────────────────────────────────────────────────────────────


PRICES = """
currency = "USD"

[[price]]
model = "small-1"
as_of = 1970-01-01
input = 0.50
output = 2
cached = 0.05
"""


@step(uses=Usage(tokens=2000, cost="0.01"))
async def ask_model(model: str) -> str:
    perdure.used(model=model, input_tokens=1000, output_tokens=500, cached_tokens=200)
    return model


@workflow
async def asks(*models: str) -> list[str]:
    return [await ask_model(model) for model in models]


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return path


def test_a_cost_is_reckoned_from_the_price_list(prices: Path) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(prices=prices) as runtime:
            run = await runtime.start(asks.call("small-1"), budget=Budget(cost=Decimal("0.02")))
            await run.result()
            account = await account_of(run)
            assert account.spent.cost == 1_410_000  # (800 * 0.50 + 200 * 0.05 + 500 * 2) / 10**6
            (spent,) = [each.event for each in await run.history() if isinstance(each.event, e.BudgetSpent)]
            (use,) = spent.uses
            assert use.prices.startswith("1970-01-01 ")
            assert use.tokens == 1500

    run_async(main())


def test_what_has_no_price_stops_the_next_call_until_it_has_one(prices: Path) -> None:
    async def main() -> None:
        async with RuntimeUnderTest(prices=prices) as runtime:
            store = runtime._store  # pyright: ignore[reportPrivateUsage]
            assert isinstance(store, MemoryStore)
            run = await runtime.start(asks.call("new-9", "small-1"), id="r", budget=Budget(cost=1))
            stuck = await blocked(run)
            assert "no price for new-9 (1,000 tokens in, 500 out)" in stuck.hint
            clock = runtime.clock
        prices.write_text(PRICES + PRICES.partition("\n\n")[2].replace("small-1", "new-9"))
        async with RuntimeUnderTest(store, clock=clock, prices=prices, workflows=[asks]) as runtime:
            run = await runtime.get("r")
            await run.unblock("retry", by="ann")
            assert await run.result() == ["new-9", "small-1"]
            account = await account_of(run)
            assert account.spent.cost == 2 * 1_410_000
            assert not account.owed

    run_async(main())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("currency = 'USD'", "a `currency`, and a [[price]]"),
        ("curency = 'USD'\nprice = []", "not curency"),
        ("=", "no TOML"),
        (PRICES.replace("1970-01-01", "'soon'"), "price 1 (small-1): `as_of` is the day"),
        (PRICES.replace("output = 2", ""), "price 1 (small-1): `output` is what a million tokens cost"),
        (PRICES.replace("0.50", "-1"), "`input` is what a million tokens cost"),
        (PRICES.replace("cached", "cashed"), "not cashed"),
        (PRICES + PRICES.partition("\n\n")[2], "two prices of the same date"),
    ],
)
def test_a_price_list_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as no:
        Runtime(":memory:", prices=path)
    assert says in str(no.value)


# ── what cannot be meant ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given",
    [
        {}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": True}, {"cost": "much"}, {"cost": -1}, {"cost": float("nan")},
        {"wall": 0}, {"tokens": 1, "per": -1}, {"tokens": 1, "tag": ""}, {"per": 60},
    ],
)  # fmt: skip
def test_a_budget_that_is_none(given: dict[str, Any]) -> None:
    with pytest.raises((DeclarationError, UsageError)):
        Budget(**given)


def test_a_run_has_no_period_and_many_runs_have_no_clock() -> None:
    with pytest.raises(DeclarationError, match="belong to Runtime"):
        workflow(budget=Budget(tokens=5, per=60))(asks.spec.function)
    with pytest.raises(UsageError, match="wall= belongs to the budget of one run"):
        Runtime(":memory:", budgets=[Budget(wall=5)])
    with pytest.raises(DeclarationError, match="says already what it uses"):
        think.estimate(lambda what, tokens=30, failures=0: Usage())
    with pytest.raises(UsageError, match="belongs inside the body of a step"):
        perdure.used(tokens=1)


def test_a_raise_that_raises_nothing_is_refused_and_changes_nothing() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(thinks_thrice.call(), id="r", budget=Budget(tokens=50))
            await blocked(run)
            before = len(await run.history())
            wrongs: list[tuple[dict[str, Any], str]] = [
                ({}, "give a new limit"),
                ({"tokens": 50}, "is 50 tokens already"),
                ({"tokens": -3}, "a whole number"),
                ({"cost": 5}, "does not limit cost; it limits 50 tokens"),
            ]
            for wrong, says in wrongs:
                with pytest.raises(UsageError, match=says):
                    await runtime.raise_budget("r", by="ann", **wrong)
            with pytest.raises(UnknownNameError):
                await runtime.raise_budget("r", tokens=60, by="ann", budget="tag x=y")
            with pytest.raises(UnknownNameError):
                await runtime.raise_budget("q", tokens=60, by="ann")
            assert len(await run.history()) == before

    run_async(main())


def test_a_client_elsewhere_raises_it() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            store = runtime._store  # pyright: ignore[reportPrivateUsage]
            assert isinstance(store, MemoryStore)
            run = await runtime.start(thinks_thrice.call(), id="r", budget=Budget(tokens=50))
            await blocked(run)
            async with Client(store.again()) as client:
                await client.raise_budget("r", tokens=500, by="ann")
            assert await run.result(wait_blocked=True) == ["0", "1", "2"]

    run_async(main())


def test_a_fork_counts_what_was_used_before_it_and_gives_back_nothing_of_others() -> None:
    async def main() -> None:
        async with RuntimeUnderTest(budgets=[Budget(tokens=1000, tag="team")]) as runtime:
            run = await runtime.start(thinks_thrice.call(), id="r", tags={"team": "x"})
            await run.result()
            done = [each.seq for each in await run.history() if each.kind == "step.completed"]
            fork = await run.fork(done[0], id="f")
            assert await fork.result() == ["0", "1", "2"]
            account = await account_of(fork)
            assert account.spent.tokens == 90
            shared = runtime._store.accounts()  # pyright: ignore[reportPrivateUsage]
            assert all(each.held == NOTHING for each in shared)
            assert sum(each.used.tokens for each in shared) in {90, 150}  # by whether a fork keeps its tags
            found = {each.name: (each.used.tokens, each.saved.tokens) for each in costs(runtime._store)}  # pyright: ignore[reportPrivateUsage]
            assert found == {"r": (90, 0), "f": (60, 30)}

    run_async(main())

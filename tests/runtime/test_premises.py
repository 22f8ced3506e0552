"""Decisions that rest on facts: what is recorded, when it is read again, what becomes of one that does not stand."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any, Literal

import pytest
from tests.runtime.hosting import host_of, run_async

import perdure
from perdure import Idempotent, RunBlockedError, effect, step, workflow
from perdure.audit.timeline import timeline
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore
from perdure.testing.mortal import Death, Mortal, Outcome, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
WORLD: dict[str, Any] = {}
"""What the facts are just now; `unreadable` ones raise."""
READ: list[str] = []
DECIDED: list[int] = []
PAID: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.clear()
    WORLD.update(policy=1, limit=100, unreadable="")
    for kept in (READ, DECIDED, PAID):
        kept.clear()


def look(what: str) -> Any:
    READ.append(what)
    if WORLD["unreadable"] == what:
        raise OSError("nobody answers")
    return WORLD[what]


@effect(downstream=Idempotent())
async def pay(order: str, cents: int) -> str:
    PAID.append((order, cents))
    return f"paid {cents}"


@pay.key
def _(order: str, cents: int) -> str:
    return order


def deciding(**options: Any) -> Any:
    """A step that decides an amount, and rests on two facts."""

    @step(name="decide", retry=perdure.Retry(max_attempts=1), **options)
    async def decide(order: str) -> int:
        DECIDED.append(WORLD["policy"])
        return 40 + int(WORLD["policy"])

    @decide.premise("policy")
    async def _(order: str) -> int:
        return int(look("policy"))

    @decide.premise("limit", same=lambda then, now: now >= then)
    def _(order: str) -> int:
        return int(look("limit"))

    return decide


def paying(decide: Any) -> Any:
    @workflow(name="agent")
    async def agent(order: str) -> str:
        cents = await decide(order)
        await perdure.receive("go")
        return await pay(order, cents)

    return agent


async def history(runtime: RuntimeUnderTest, run_id: str = "r") -> list[e.Event]:
    store = host_of(runtime).turns.store
    info = store.find(run_id)
    assert info is not None
    return [e.decode(row.envelope) for row in store.load(info.rid, from_seq=0).rows]


async def test_what_a_result_rests_on_is_recorded_with_it(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding()).call("o"), id="r")
    await perdure_runtime.run_dry()
    found = await history(perdure_runtime)
    (read,) = [event for event in found if isinstance(event, e.PremisesRead)]
    assert [fact.name for fact in read.facts] == ["policy", "limit"]
    assert isinstance(found[found.index(read) + 1], e.StepCompleted), "in one commit"
    await run.send("go", None)
    assert await run.result() == "paid 41"
    assert (READ, PAID) == (["policy", "limit"], [("o", 41)]), "read just now: it is not read again"


async def test_before_an_effect_it_is_read_again(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding()).call("o"), id="r")
    await perdure_runtime.run_dry()
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 41"
    assert READ == ["policy", "limit"] * 2
    found = await history(perdure_runtime)
    (checked,) = [event for event in found if isinstance(event, e.PremisesChecked)]
    (started,) = [event for event in found if isinstance(event, e.EffectStarted)]
    assert (checked.number, checked.why, checked.looked_at, checked.findings) == (1, "effect", 1, ())
    assert started.check == 1
    assert found.index(started) == found.index(checked) + 1, "in the same commit"


async def test_what_same_allows_is_no_change(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding()).call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["limit"] = 150
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 41"


@pytest.mark.parametrize("on_stale", ["note", "keep", "function"])
async def test_a_change_can_be_noted_and_kept(on_stale: str, perdure_runtime: RuntimeUnderTest) -> None:
    asked: list[Any] = []

    def decides(then: Any, now: Any) -> str:
        asked.append((then, now))
        return "note"

    run = await perdure_runtime.start(
        paying(deciding(on_stale=decides if on_stale == "function" else on_stale)).call("o"), id="r"
    )
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 41"
    (checked,) = [event for event in await history(perdure_runtime) if isinstance(event, e.PremisesChecked)]
    (finding,) = checked.findings
    assert (finding.changed, finding.did) == (("policy",), "note" if on_stale == "function" else on_stale)
    if on_stale == "function":
        assert asked == [({"limit": 100, "policy": 1}, {"limit": 100, "policy": 2})]


async def test_a_change_can_be_put_to_a_person(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding(on_stale="block")).call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await run.send("go", None)
    with pytest.raises(RunBlockedError, match="0/decide#1 rests on policy 1, which is 2 now"):
        await run.result()
    (entry,) = await perdure_runtime.inbox()
    assert (entry.reason, list(entry.choices)) == ("stale_decision", ["keep", "retry", "fail"])
    assert PAID == []
    await run.unblock("retry", by="ann")
    await perdure_runtime.run_dry()
    assert [entry.reason for entry in await perdure_runtime.inbox()] == ["stale_decision"], "it is still so"
    await run.unblock("keep", by="ann")
    assert await run.result() == "paid 41"


async def test_a_fact_that_cannot_be_read_is_no_change(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding(on_stale="note")).call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["unreadable"] = "policy"
    await perdure_runtime.advance(60)
    await run.send("go", None)
    with pytest.raises(RunBlockedError, match="premise 'policy' of decide cannot be read: OSError: nobody answers"):
        await run.result()
    (entry,) = await perdure_runtime.inbox()
    assert entry.reason == "premise_unreadable"
    assert READ.count("policy") == 4, "once, and three tries"
    WORLD["unreadable"] = ""
    await run.unblock("retry", by="ann")
    assert await run.result() == "paid 41"


async def test_a_fact_that_cannot_be_read_at_first_is_for_a_person(perdure_runtime: RuntimeUnderTest) -> None:
    WORLD["unreadable"] = "policy"
    run = await perdure_runtime.start(paying(deciding()).call("o"), id="r")
    with pytest.raises(RunBlockedError, match="cannot be read"):
        await run.result()
    assert DECIDED == []
    (entry,) = await perdure_runtime.inbox()
    assert (entry.reason, entry.call) == ("premise_unreadable", "0/decide#1")
    WORLD["unreadable"] = ""
    await run.unblock("retry", by="ann")
    await run.send("go", None)
    assert await run.result() == "paid 41"


async def test_a_result_is_good_for_a_time(perdure_runtime: RuntimeUnderTest) -> None:
    @step(valid_for=timedelta(hours=2), on_stale="block")
    async def price() -> int:
        return 5

    @step
    async def tell(cents: int) -> int:
        return cents

    @workflow
    async def agent() -> int:
        cents = await price()
        await perdure.sleep(hours=3)
        return await tell(cents)

    run = await perdure_runtime.start(agent.call(), id="r")
    with pytest.raises(RunBlockedError, match="the time for which 0/price#1 is good is over"):
        await run.result()
    await run.unblock("keep", by="ann")
    assert await run.result() == 5
    checks = [event.why for event in await history(perdure_runtime) if isinstance(event, e.PremisesChecked)]
    assert checks == ["waited"]


# ── taken over, and crashed ─────────────────────────────────────────────────────────────────


async def asks(runtime: RuntimeUnderTest) -> str:
    run = await runtime.start(SWEPT.call("o"), id="r")
    if not (await run.status()).is_final:
        await run.send("go", None)
    result: str = await run.result()
    return result


SWEPT: Any = paying(deciding(on_stale="note"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_read_before_a_crash_is_read_again_after_it(when: Literal["before", "after"]) -> None:
    """The process dies at each of its writes, and is gone for an hour. Every start of an effect has, in front of it, a
    reading of all that the run rests on that is a few seconds old."""

    async def main() -> None:
        for n in itertools.count(1):
            if not await crash_at(n, when):
                assert n > 4
                break

    run_async(main())


async def crash_at(n: int, when: Literal["before", "after"]) -> bool:
    PAID.clear()
    clock, death = FakeClock(), Death()
    inner = MemoryStore(clock)
    store = CrashingStore(inner, fail_at=n, when=when, how=death.come)
    with QuietAboutCrashes():
        outcome = await Mortal[str](RuntimeUnderTest(store, clock=clock, workflows=[SWEPT]), death).live(asks)
    if death.has_come:
        clock.advance_to(clock.now() + 3600 * SECOND)
        again = RuntimeUnderTest(inner.again(), clock=clock, workflows=[SWEPT])
        outcome = await Mortal[str](again, Death()).live(asks)
    assert isinstance(outcome, Outcome)
    assert (outcome.error, outcome.result, {*PAID}) == (None, "paid 41", {("o", 41)})
    info = inner.find("r")
    assert info is not None
    assert_read_in_time([(e.decode(row.envelope), row.at) for row in inner.load(info.rid, from_seq=0).rows])
    return death.has_come


def assert_read_in_time(events: list[tuple[e.Event, int]]) -> None:
    """Every start of an effect names the last check, and all that the run rests on was read just before."""
    read: dict[tuple[str, int], int] = {}
    checks = 0
    has_left = False
    for event, at in events:
        match event:
            case e.PremisesRead():
                read[event.key] = event.read_at
            case e.PremisesChecked():
                assert event.number == checks + 1
                checks = event.number
                read = dict.fromkeys(read, event.read_at)
            case e.EffectStarted():
                assert event.check == checks
                if not has_left:  # one that may have left is sent again, to find out
                    assert all(at - read_at <= 5 * SECOND for read_at in read.values()), (at, read)
                has_left = True
            case e.EffectNotDone():
                has_left = False
            case _:
                pass


# ── made again ──────────────────────────────────────────────────────────────────────────────


async def test_a_step_that_gives_the_same_is_renewed(perdure_runtime: RuntimeUnderTest) -> None:
    @step(retry=perdure.Retry(max_attempts=1))
    async def decide(order: str) -> int:
        DECIDED.append(WORLD["policy"])
        return 40

    @decide.premise("policy")
    async def _(order: str) -> int:
        return int(look("policy"))

    run = await perdure_runtime.start(paying(decide).call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 40"
    assert DECIDED == [1, 2]
    found = await history(perdure_runtime)
    assert [event.renews for event in found if isinstance(event, e.PremisesRead)] == [False, True]
    assert not any(isinstance(event, e.Rewound) for event in found)


async def test_a_step_that_gives_something_else_takes_the_run_back(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(paying(deciding()).call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 42"
    assert (DECIDED, PAID) == ([1, 2], [("o", 42)])
    (rewound,) = [event for event in await history(perdure_runtime) if isinstance(event, e.Rewound)]
    assert isinstance((await history(perdure_runtime))[rewound.to], e.PremisesRead)


def test_it_is_told_how_often_a_result_came_back_from_the_history() -> None:
    """Each time that a worker took the run over; and when the run went back to another decision."""

    async def main() -> int:
        clock, came_back = FakeClock(), -1
        store = MemoryStore(clock)
        agent = paying(deciding(on_stale="note"))
        for _ in range(3):
            async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent]) as runtime:
                run = await runtime.start(agent.call("o"), id="r")
                await run.send("nothing")
                await runtime.run_dry()
                (it,) = await run.stands()
                came_back = it.came_back
                await runtime.die()
        return came_back

    assert run_async(main()) == 2
    assert DECIDED == [1]


# ── named by the body ───────────────────────────────────────────────────────────────────────


@step
async def price_of(item: str) -> int:
    return int(look("policy"))


@step
def limit_of(item: str) -> int:
    return int(look("limit"))


@step(recovery="verify")
async def offer(item: str) -> int:
    price = perdure.premise("price", await price_of(item), read=price_of.call(item))
    perdure.premise("limit", await limit_of.call(item), read=limit_of.call(item))
    return 40 + price


@workflow
async def offers(item: str) -> str:
    cents = await offer(item)
    await perdure.receive("go")
    return await pay(item, cents)


async def test_a_body_can_name_what_its_result_rests_on(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(offers.call("o"), id="r")
    await perdure_runtime.run_dry()
    await perdure_runtime.advance(60)
    assert [(it.stands, it.then) for it in await run.stands()] == [(True, {"limit": 100, "price": 1})]
    shown = [moment.value for moment in timeline(host_of(perdure_runtime).turns.store, 1) if "rests on" in moment.what]
    assert shown == ['{"limit":100,"price":1}']
    WORLD["policy"] = 2
    (it,) = await run.stands()
    assert (it.stands, it.now["price"], it.why) == (False, 2, "0/offer#1 rests on price 1, which is 2 now")
    await run.send("go", None)
    assert await run.result() == "paid 42"


class Tariff:
    def of(self, item: str) -> int:
        return int(look("policy"))


@step
async def tariff_of(item: str) -> int:
    return perdure.use(Tariff).of(item)


@step(recovery="verify")
async def by_tariff(item: str) -> int:
    return perdure.premise("tariff", await tariff_of(item), read=tariff_of.call(item))


@workflow
async def goes_by_tariff(item: str) -> int:
    return await by_tariff(item)


async def test_what_the_body_named_is_read_with_the_clients_that_are_given(perdure_runtime: RuntimeUnderTest) -> None:
    perdure_runtime.provide(Tariff, Tariff())
    run = await perdure_runtime.start(goes_by_tariff.call("o"), id="r")
    assert await run.result() == 1
    (it,) = await run.stands(provide={Tariff: Tariff()})
    assert (it.stands, it.now) == (True, {"tariff": 1})
    (it,) = await run.stands()
    assert it.stands is None


async def test_a_step_says_that_its_body_names_something(perdure_runtime: RuntimeUnderTest) -> None:
    @step
    async def forgets() -> int:
        return perdure.premise("price", 1, read=price_of.call("o"))

    @workflow
    async def agent() -> int:
        return await forgets()

    run = await perdure_runtime.start(agent.call(), id="r")
    with pytest.raises(perdure.UsageError, match="recovery="):
        await run.result()


# ── what an effect relies on ────────────────────────────────────────────────────────────────


@step(valid_for=timedelta(hours=2), on_stale="block")
async def rate(order: str) -> int:
    return 5


def relying(decide: Any, *on: Any) -> Any:
    """A workflow whose effect says which decisions it relies on."""

    @effect(downstream=Idempotent(), relies_on=on)
    async def pay(order: str, cents: int) -> str:
        PAID.append((order, cents))
        return f"paid {cents}"

    pay.key(lambda order, cents: order)

    @workflow(name="agent")
    async def agent(order: str) -> str:
        cents = await decide(order) + await rate(order)
        await perdure.receive("go")
        return await pay(order, cents)

    return agent


@pytest.mark.parametrize(
    ("on", "read"),
    [
        (["policy"], ["policy"]),
        (["decide"], ["policy", "limit"]),
        (["policy", "decide"], ["policy", "limit"]),
        (["limit", "policy"], ["policy", "limit"]),
        (["rate"], []),
        ([rate], []),
        ([], []),
    ],
)
async def test_an_effect_relies_on_what_it_names(
    on: list[Any], read: list[str], perdure_runtime: RuntimeUnderTest
) -> None:
    """What it does not name is not read, whatever has become of it; what was read for it stands in the history."""
    run = await perdure_runtime.start(relying(deciding(on_stale="block"), *on).call("o"), id="r")
    await perdure_runtime.run_dry()
    await perdure_runtime.advance(60)
    READ.clear()
    await run.send("go", None)
    assert await run.result() == "paid 46"
    assert sorted(READ) == sorted(read)
    found = await history(perdure_runtime)
    (started,) = [event for event in found if isinstance(event, e.EffectStarted)]
    checks = [event for event in found if isinstance(event, e.PremisesChecked)]
    names = tuple(getattr(each, "name", each) for each in on)
    assert started.relies_on == names
    assert [check.relies_on for check in checks] == [names] * bool(names)
    assert started.check == len(checks)


async def test_what_an_effect_does_not_rely_on_keeps_nothing_from_it(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(relying(deciding(on_stale="block"), "limit").call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD.update(policy=2, unreadable="policy")
    await perdure_runtime.advance(60)
    await run.send("go", None)
    assert await run.result() == "paid 46"
    (decided, rated) = await run.stands()
    assert (decided.call, decided.relied_on_by, rated.relied_on_by) == ("0/decide#1", ("0/pay#1",), ())


async def test_what_an_effect_relies_on_is_checked_although_something_else_was_just_now(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    """A check of one premise says nothing of another one."""
    decide = deciding(on_stale="block")

    def sending(name: str, on: Any) -> Any:
        @effect(downstream=Idempotent(), relies_on=on, name=name)
        async def send(order: str) -> str:
            PAID.append((name, 0))
            return name

        send.key(lambda order: order)
        return send

    by_limit, by_policy, by_all = sending("by_limit", ["limit"]), sending("by_policy", ["policy"]), sending("by", None)

    @workflow
    async def agent(order: str) -> None:
        await decide(order)
        await perdure.receive("go")
        await by_limit(order)
        await by_policy(order)
        await by_all(order)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    await perdure_runtime.advance(60)
    READ.clear()
    WORLD["policy"] = 2
    await run.send("go", None)
    with pytest.raises(RunBlockedError, match="policy 1, which is 2 now"):
        await run.result()
    assert (READ, PAID) == (["limit", "policy"], [("by_limit", 0)])
    await run.unblock("keep", by="ann")
    await run.result()
    assert READ == ["limit", "policy", "policy", "limit"], "all of it before the last one"


async def test_what_nothing_is_called_cannot_be_relied_on(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(relying(deciding(), "polcy").call("o"), id="r")
    await run.send("go", None)
    with pytest.raises(perdure.UnknownNameError, match="relies_on= of effect pay: 'polcy'; near: policy"):
        await run.result()
    assert PAID == []


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("policy", "a list is wanted"),
        ([3], "3 is neither a step nor the name"),
        ([""], "a text of 1 to"),
        ([pay], "is neither a step nor the name"),
        ([price_of], "nothing of price_of is checked"),
    ],
)
def test_what_cannot_be_relied_on_is_refused_early(on: Any, said: str) -> None:
    with pytest.raises((perdure.DeclarationError, perdure.UsageError), match=said):

        @effect(downstream=Idempotent(), relies_on=on)
        async def send(order: str) -> None: ...

"""A run goes back to a decision that does not stand: what is had again, what is owed, what people are asked anew."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any, Literal

import pytest
from tests.runtime.hosting import host_of, run_async
from tests.runtime.lives import lives

import perdure
from perdure import Idempotent, RunBlockedError, effect, step, workflow
from perdure.audit.verify import verify
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
WORLD: dict[str, Any] = {}
MADE: list[str] = []
"""Steps whose bodies ran, with what they were given."""
DONE: dict[str, str] = {}
"""What stands outside, by idempotency key."""


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.clear()
    WORLD.update(policy=1)
    MADE.clear()
    DONE.clear()


@step
async def decide(order: str) -> int:
    MADE.append("decide")
    return 40 + int(WORLD["policy"])


@decide.premise("policy")
async def _(order: str) -> int:
    return int(WORLD["policy"])


@step
async def think(about: str) -> str:
    MADE.append(f"think {about}")
    return f"thought about {about}"


@effect(downstream=Idempotent())
async def pay(order: str, cents: int) -> str:
    DONE[perdure.operation().id] = f"paid {cents}"
    return f"paid {cents}"


@pay.key
def _(order: str, cents: int) -> str:
    return f"{order}:{cents}"


@pay.undo
async def _(receipt: str, order: str, cents: int) -> None:
    DONE[perdure.operation().id] = f"took {cents} back"


@effect(downstream=Idempotent())
async def announce(cents: int) -> str:
    DONE[perdure.operation().id] = f"announced {cents}"
    return "announced"


@announce.key
def _(cents: int) -> str:
    return str(cents)


async def changed_in_between(runtime: RuntimeUnderTest, run: Any, message: str = "go") -> None:
    """A minute passes, in which the policy becomes another one; then the run goes on."""
    await runtime.run_dry()
    WORLD["policy"] += 1
    await runtime.advance(60)
    await run.send(message)


async def history(runtime: RuntimeUnderTest, run_id: str = "r") -> list[e.Event]:
    store = host_of(runtime).turns.store
    info = store.find(run_id)
    assert info is not None
    return [e.decode(row.envelope) for row in store.load(info.rid, from_seq=0).rows]


async def test_what_was_paid_for_is_had_again(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> list[str]:
        cents = await decide(order)
        same, other = await asyncio.gather(think("tea"), think(f"{cents}"))
        await perdure.receive("go")
        return [same, other, await pay(order, cents)]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == ["thought about tea", "thought about 42", "paid 42"]
    assert MADE == ["decide", "think tea", "think 41", "decide", "think 42"]
    assert [event.name for event in await history(perdure_runtime) if isinstance(event, e.StepReused)] == ["think"]


async def test_a_timer_keeps_its_deadline(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> Any:
        began = perdure.now()
        cents = await decide(order)
        await perdure.sleep(hours=1)
        paid = await pay(order, cents)
        return [paid, perdure.now() - began < timedelta(hours=1, minutes=1)]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    assert await run.result() == ["paid 42", True]


async def test_an_effect_that_is_wanted_again_is_not_sent_again(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> list[str]:
        cents = await decide(order)
        first = await announce(1)
        if cents == 42:
            await think("42")
        await perdure.receive("go")
        return [first, await pay(order, cents), await announce(2)]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == ["announced", "paid 42", "announced"]
    assert sorted(DONE.values()) == ["announced 1", "announced 2", "paid 42"]
    found = await history(perdure_runtime)
    assert [event.how for event in found if isinstance(event, e.EffectSucceeded)][:2] == ["returned", "reused"]


@workflow
async def pays_twice(order: str) -> str:
    cents = await decide(order)
    await pay(order, cents)
    await perdure.receive("go")
    await announce(cents)
    return f"{cents}"


async def test_what_is_not_wanted_any_more_is_taken_back(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(pays_twice.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "42"
    assert list(DONE.values()) == ["paid 41", "paid 42", "announced 42", "took 41 back"]
    assert not verify(host_of(perdure_runtime).turns.store).damage


async def test_what_cannot_be_taken_back_is_put_to_a_person(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        await announce(cents)
        await perdure.receive("go")
        return await pay(order, cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    with pytest.raises(RunBlockedError, match="it cannot be undone: announce '41'"):
        await run.result()
    (entry,) = await perdure_runtime.inbox()
    assert entry.reason == "failed_compensation"
    await run.unblock("fail", by="ann", reason="said is said")
    assert await run.result() == "paid 42"


async def debts(runtime: RuntimeUnderTest) -> dict[str, Any]:
    """What is in the inbox of what runs owe, by what was done."""
    await runtime.run_dry()
    found = [it for it in await runtime.requests(status="pending") if it.call.startswith("~")]
    return {f"{it.arguments['effect']} {it.arguments['key']}": it for it in found}


@workflow
async def pays_and_waits(order: str) -> list[str]:
    cents = await decide(order)
    said = [await pay(order, cents)]
    await perdure.receive("go")
    said.append(await announce(cents))
    while (again := await perdure.receive("again")) is not None:
        said.append(await pay(order, again))
    return said


async def test_what_is_owed_is_in_the_inbox_at_once(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(pays_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    (it,) = (await debts(perdure_runtime)).values()
    assert (it.arguments["arguments"], it.arguments["result"]) == ({"order": "o", "cents": 41}, "paid 41")
    (entry,) = await perdure_runtime.inbox()
    assert (entry.reason, entry.run_id) == ("question", "r")
    await run.send("again", 41)
    assert not await debts(perdure_runtime), "it was asked for again"
    await run.send("again", None)
    assert await run.result() == ["paid 42", "announced", "paid 41"]
    assert list(DONE.values()) == ["paid 41", "paid 42", "announced 42"]
    assert not verify(host_of(perdure_runtime).turns.store).damage


@pytest.mark.parametrize(
    ("said", "done"),
    [
        ("undo", ["paid 41", "paid 42", "announced 42", "took 41 back"]),
        ("undone", ["paid 41", "paid 42", "announced 42"]),
        ("stands", ["paid 41", "paid 42", "announced 42"]),
    ],
)
async def test_a_person_decides_about_a_debt(said: str, done: list[str], perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(pays_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    (it,) = (await debts(perdure_runtime)).values()
    await perdure_runtime.answer(it.id, said, hash=it.hash, by="ann")
    assert not await debts(perdure_runtime)
    assert list(DONE.values()) == done, "what is to be undone is undone while the code still waits"
    await run.send("again", 41)
    await perdure_runtime.run_dry()
    assert list(DONE.values()) == [*done, *([] if said == "stands" else ["paid 41"])]
    await run.send("again", None)
    assert await run.result() == ["paid 42", "announced", "paid 41"]
    assert len(DONE) == len(done) + (said != "stands")
    assert not verify(host_of(perdure_runtime).turns.store).damage


async def test_what_was_said_of_a_debt_holds_when_the_run_goes_back_again(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(pays_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    (it,) = (await debts(perdure_runtime)).values()
    await perdure_runtime.answer(it.id, "stands", hash=it.hash, by="ann")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 3
    await perdure_runtime.advance(60)
    await run.send("again", 77)
    assert sorted(await debts(perdure_runtime)) == ["announce 42", "pay o:42"]
    await run.send("again", None)
    await perdure_runtime.run_dry()
    (entry,) = await perdure_runtime.inbox()
    assert "announce '42' (has no .undo)" in entry.hint
    assert list(DONE.values())[-1] == "took 42 back"
    await run.unblock("value", by="ann")
    assert await run.result() == ["paid 43", "announced", "paid 77"]
    assert "took 41 back" not in DONE.values()


async def test_a_run_can_be_rewound_again(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        await perdure.receive("go")
        await pay(order, cents)
        await perdure.receive("go on")
        return await announce(cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    await changed_in_between(perdure_runtime, run, "go on")
    assert await run.result() == "announced"
    assert list(DONE.values()) == ["paid 42", "paid 43", "announced 43", "took 42 back"]
    assert len([event for event in await history(perdure_runtime) if isinstance(event, e.Rewound)]) == 2


async def test_people_are_asked_anew(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        return await perdure.with_approval(pay.call(order, cents), by="ann")

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    (first,) = await perdure_runtime.requests(status="pending")
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await perdure_runtime.approve(first.id, hash=first.hash, by="ann")
    await perdure_runtime.run_dry()
    (second,) = await perdure_runtime.requests(status="pending")
    assert (first.arguments["cents"], second.arguments["cents"]) == (41, 42)
    assert DONE == {}
    await perdure_runtime.approve(second.id, hash=second.hash, by="ann")
    assert await run.result() == "paid 42"
    by_id = {it.id: it.status for it in await perdure_runtime.requests(run="r")}
    assert by_id == {first.id: "lapsed", second.id: "used"}
    assert not verify(host_of(perdure_runtime).turns.store).damage


@step
async def status(order: str) -> str:
    return str(WORLD["status"])


async def test_what_an_approval_rests_on_is_never_had_again(perdure_runtime: RuntimeUnderTest) -> None:
    """It was read a second time, right before the run went back; the second approval is not held to that."""
    WORLD["status"] = "broken"

    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        facts = {"status": status.call(order)}
        return await perdure.with_approval(pay.call(order, cents), by="ann", premises=facts)

    async def asked() -> Any:
        await perdure_runtime.run_dry()
        (it,) = await perdure_runtime.requests(status="pending")
        await perdure_runtime.advance(60)
        return it

    run = await perdure_runtime.start(agent.call("o"), id="r")
    first = await asked()
    WORLD["policy"] = 2
    await perdure_runtime.approve(first.id, hash=first.hash, by="ann")
    second = await asked()
    WORLD["status"] = "replaced"
    await perdure_runtime.approve(second.id, hash=second.hash, by="ann")
    third = await asked()
    assert DONE == {}
    assert [(it.arguments["cents"], it.facts["status"]) for it in (first, second, third)] == [
        (41, "broken"), (42, "broken"), (42, "replaced"),
    ]  # fmt: skip
    await perdure_runtime.approve(third.id, hash=third.hash, by="ann")
    assert await run.result() == "paid 42"
    assert not [event for event in await history(perdure_runtime) if isinstance(event, e.StepReused)]


@step(on_stale="reapprove")
async def judge(order: str) -> int:
    MADE.append("judge")
    return 40 + int(WORLD["policy"])


@judge.premise("policy")
async def _(order: str) -> int:
    return int(WORLD["policy"])


@workflow
async def judges(order: str) -> str:
    cents = await judge(order)
    await perdure.receive("go")
    return await pay(order, cents)


async def judged(runtime: RuntimeUnderTest) -> Any:
    """A run whose result a person is to confirm."""
    run = await runtime.start(judges.call("o"), id="r")
    await changed_in_between(runtime, run)
    with pytest.raises(RunBlockedError, match="0/judge#1 rests on policy 1, which is 2 now"):
        await run.result()
    (entry,) = await runtime.inbox()
    assert (entry.reason, list(entry.choices)) == ("stale_decision", ["keep", "recompute", "fail"])
    assert DONE == {}
    return run


@pytest.mark.parametrize(("said", "result"), [("keep", "paid 41"), ("recompute", "paid 42")])
async def test_a_person_says_whether_a_recorded_result_stands(
    said: Literal["keep", "recompute"], result: str, perdure_runtime: RuntimeUnderTest
) -> None:
    run = await judged(perdure_runtime)
    await run.unblock(said, by="ann")
    assert await run.result() == result
    assert len(MADE) == (1 if said == "keep" else 2)
    assert list(DONE.values()) == [result]
    assert not verify(host_of(perdure_runtime).turns.store).damage


async def test_what_is_to_be_made_again_is_not_if_the_facts_are_back_where_they_were(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    run = await judged(perdure_runtime)
    WORLD["policy"] = 1
    await run.unblock("recompute", by="ann")
    assert await run.result() == "paid 41"
    assert MADE == ["judge"]


async def test_a_result_that_was_made_again_is_put_to_a_person_the_next_time(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await judge(order)
        await perdure.receive("go")
        await pay(order, cents)
        await perdure.receive("go")
        return await announce(cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    await perdure_runtime.run_dry()
    await run.unblock("recompute", by="ann")
    await changed_in_between(perdure_runtime, run)
    await perdure_runtime.run_dry()
    (entry,) = await perdure_runtime.inbox()
    assert "policy 2, which is 3 now" in entry.hint
    await run.unblock("keep", by="ann")
    assert await run.result() == "announced"
    assert list(DONE.values()) == ["paid 42", "announced 42"]


async def test_only_a_result_that_a_person_is_to_confirm_is_made_again_by_a_word(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    @step(on_stale="block")
    async def look(order: str) -> int:
        return int(WORLD["policy"])

    @look.premise("policy")
    async def _(order: str) -> int:
        return int(WORLD["policy"])

    @workflow
    async def agent(order: str) -> str:
        cents = await look(order)
        await perdure.receive("go")
        return await pay(order, cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    await perdure_runtime.run_dry()
    await run.unblock("recompute", by="ann")
    await perdure_runtime.run_dry()
    (entry,) = await perdure_runtime.inbox()
    assert list(entry.choices) == ["keep", "retry", "fail"]
    await run.unblock("keep", by="ann")
    assert await run.result() == "paid 1"


def test_what_is_compensated_is_declared_of_effects() -> None:
    options: dict[str, Any] = {"on_stale": "compensate"}

    async def guess() -> int:
        return 1

    with pytest.raises(perdure.errors.DeclarationError, match=r"is an effect: @effect\(recovery='compensate'\)"):
        step(**options)(guess)


async def test_each_chapter_settles_what_it_owes(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def chapters(n: int) -> str:
        cents = await decide("o")
        await pay(f"{n}", cents)
        await perdure.receive("go")
        await announce(cents + 100 * n)
        if n < 1:
            perdure.continue_as_new(n + 1)
        return "end"

    run = await perdure_runtime.start(chapters.call(0), id="r")
    await changed_in_between(perdure_runtime, run)
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "end"
    first = ["paid 41", "paid 42", "announced 42", "took 41 back"]
    assert list(DONE.values()) == [*first, "paid 42", "paid 43", "announced 143", "took 42 back"]
    assert not verify(host_of(perdure_runtime).turns.store).damage


@workflow
async def ends_badly(order: str, how: str) -> str:
    cents = await decide(order)
    await pay(order, cents)
    await perdure.receive("go")
    await announce(cents)
    if how == "fails":
        raise ValueError("no")
    return str(await perdure.receive("never"))


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_what_is_owed_is_taken_back_however_the_run_ends(how: str, perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(ends_badly.call("o", how), id="r")
    await changed_in_between(perdure_runtime, run)
    await perdure_runtime.run_dry()
    if how == "is cancelled":
        await run.cancel()
    with pytest.raises((ValueError, perdure.RunCancelledError)):
        await run.result()
    assert list(DONE.values()) == ["paid 41", "paid 42", "announced 42", "took 41 back"]


async def test_a_saga_of_the_new_way_undoes_its_own_and_what_is_owed_comes_after(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    @workflow
    async def agent(order: str) -> str:
        async with perdure.saga():
            cents = await decide(order)
            await pay(order, cents)
            await perdure.receive("go")
            await pay(f"{order}-2", cents + 10)
            raise ValueError("no")

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    with pytest.raises(ValueError, match="no"):
        await run.result()
    undone = ["took 52 back", "took 42 back", "took 41 back"]
    assert list(DONE.values()) == ["paid 41", "paid 42", "paid 52", *undone]


async def test_a_decision_that_keeps_going_stale_is_put_to_a_person(perdure_runtime: RuntimeUnderTest) -> None:
    readings, clock = itertools.count(), perdure_runtime.clock

    @step
    async def guess() -> int:
        return next(readings)

    @guess.premise("anything")
    async def _() -> int:
        return next(readings)

    @step
    async def takes_long(about: int) -> None:
        clock.advance_to(clock.now() + 10 * SECOND)

    @workflow
    async def agent() -> str:
        cents = await guess()
        await takes_long(cents)
        return await announce(cents)

    run = await perdure_runtime.start(agent.call(), id="r")
    with pytest.raises(RunBlockedError, match="made again 10 times"):
        await run.result()
    assert DONE == {}


@workflow
def in_thread(order: str) -> str:
    cents = decide_here(order)
    think_here("tea")
    pay_here(order, cents)
    perdure.sync.receive("go")
    announce_here(cents)
    return str(cents)


@step
def decide_here(order: str) -> int:
    MADE.append("decide")
    return 40 + int(WORLD["policy"])


@decide_here.premise("policy")
def _(order: str) -> int:
    return int(WORLD["policy"])


@step
def think_here(about: str) -> str:
    MADE.append(f"think {about}")
    return about


@effect(downstream=Idempotent())
def pay_here(order: str, cents: int) -> str:
    DONE[perdure.operation().id] = f"paid {cents}"
    return f"paid {cents}"


@pay_here.key
def _(order: str, cents: int) -> str:
    return f"{order}:{cents}"


@pay_here.undo
def _(receipt: str, order: str, cents: int) -> None:
    DONE[perdure.operation().id] = f"took {cents} back"


@effect(downstream=Idempotent())
def announce_here(cents: int) -> str:
    DONE[perdure.operation().id] = f"announced {cents}"
    return "announced"


@announce_here.key
def _(cents: int) -> str:
    return str(cents)


async def test_a_def_workflow_goes_back_as_well(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(in_thread.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "42"
    assert list(DONE.values()) == ["paid 41", "paid 42", "announced 42", "took 41 back"]
    assert MADE == ["decide", "think tea", "decide"]


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


async def goes_through(runtime: RuntimeUnderTest) -> str:
    """The policy becomes another one while the run waits; whoever comes after a crash meets that one."""
    run = await runtime.start(pays_twice.call("o"), id="r")
    await runtime.run_dry()
    WORLD["policy"] = 2
    if not (await run.status()).is_final:
        await runtime.advance(60)
        await run.send("go")
    return await run.result()


@workflow
async def pays_once_more(order: str) -> str:
    cents = await decide(order)
    await pay(order, cents)
    await perdure.receive("go")
    await announce(cents)
    return await pay(order, await perdure.receive("again"))


async def has_a_debt_undone(runtime: RuntimeUnderTest) -> str:
    """The same; a person has the debt undone, and then the code asks for it again."""
    run = await runtime.start(pays_once_more.call("o"), id="r")
    await runtime.run_dry()
    WORLD["policy"] = 2
    if not (await run.status()).is_final:
        await runtime.advance(60)
        await run.send("go")
    for it in (await debts(runtime)).values():
        await runtime.answer(it.id, "undo", hash=it.hash, by="ann")
    await runtime.run_dry()
    if not (await run.status()).is_final:
        await run.send("again", 41)
    return await run.result()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("scenario", "result", "allowed"),
    [
        # at first: it came to nothing else before the policy changed
        (goes_through, "42", [["announced 42", "paid 42"], ["announced 42", "paid 41", "paid 42", "took 41 back"]]),
        (
            has_a_debt_undone, "paid 41",
            [["announced 42", "paid 41", "paid 42"], ["announced 42", "paid 41", "paid 41", "paid 42", "took 41 back"]],
        ),
    ],
    ids=["undone in the end", "undone by a person"],
)
def test_a_crash_at_any_write_of_going_back_makes_no_difference(
    scenario: Any, result: str, allowed: list[list[str]], when: Literal["before", "after"]
) -> None:
    async def main() -> None:
        for n in itertools.count(1):
            if not await crash_at(n, when, scenario, result, allowed):
                assert n > 12
                break

    run_async(main())


async def crash_at(
    n: int, when: Literal["before", "after"], scenario: Any, result: str, allowed: list[list[str]]
) -> bool:
    WORLD["policy"] = 1
    DONE.clear()
    clock = FakeClock()
    inner = MemoryStore(clock)
    outcome, deaths = await lives(scenario, [pays_twice, pays_once_more], inner, clock, [(n, when)])
    assert (outcome.error, outcome.result) == (None, result)
    done = sorted(DONE.values())
    assert done in allowed, (n, when, done)
    assert not verify(inner.again()).damage
    return deaths > 0

"""A run goes back that has started child runs: which are had again, which are stopped, and who owes what they did."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any, Literal

import pytest
from tests.runtime.hosting import host_of, run_async
from tests.runtime.lives import lives

import perdure
from perdure import Idempotent, NoGuarantee, effect, step, workflow
from perdure.audit.timeline import timeline
from perdure.audit.verify import verify
from perdure.errors import ForkPointError
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

WORLD: dict[str, int] = {}
DONE: list[str] = []
"""What stands outside, in the order in which it was done."""


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.update(policy=1)
    DONE.clear()


@step
async def decide(order: str) -> int:
    return 40 + WORLD["policy"]


@decide.premise("policy")
async def _(order: str) -> int:
    return WORLD["policy"]


def do(what: str) -> str:
    if what not in DONE:
        DONE.append(what)
    return what


@effect(downstream=Idempotent())
async def pay(order: str, cents: int) -> str:
    return do(f"paid {cents} for {order}")


@pay.key
def _(order: str, cents: int) -> str:
    return f"{order}:{cents}"


@pay.undo
async def _(receipt: str, order: str, cents: int) -> None:
    do(f"took {cents} back for {order}")


@effect(downstream=Idempotent())
async def announce(cents: int) -> str:
    return do(f"announced {cents}")


@announce.key
def _(cents: int) -> str:
    return str(cents)


@workflow
async def pays(order: str, cents: int, until: str = "") -> str:
    receipt = await pay(order, cents)
    if until:
        await perdure.receive(until)
    return receipt


async def changed_in_between(runtime: RuntimeUnderTest, run: Any, message: str = "go") -> None:
    await runtime.run_dry()
    WORLD["policy"] += 1
    await runtime.advance(60)
    await run.send(message)
    await runtime.run_dry()


async def history(runtime: RuntimeUnderTest, run_id: str = "r") -> list[e.Event]:
    store = host_of(runtime).turns.store
    info = store.find(run_id)
    assert info is not None
    return [e.decode(row.envelope) for row in store.load(info.rid, from_seq=0).rows]


def runs_of(runtime: RuntimeUnderTest) -> dict[str, str]:
    """All runs, and where they stand. One that only waits may have left memory or not."""
    runs = reversed(host_of(runtime).turns.store.runs(Filter()))
    return {info.run_id: str(info.status) if info.status.is_final else "alive" for info in runs}


def sound(runtime: RuntimeUnderTest) -> None:
    report = verify(host_of(runtime).turns.store)
    assert not report.damage, report.damage


async def test_one_that_has_ended_is_had_again(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> list[str]:
        cents = await decide(order)
        receipt = await pays(order, 7)
        await perdure.receive("go")
        return [receipt, await announce(cents)]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == ["paid 7 for o", "announced 42"]
    assert DONE == ["paid 7 for o", "announced 42"]
    assert runs_of(perdure_runtime) == {"r": "completed", "r/0.pays.1": "completed"}
    assert [event.attached for event in await history(perdure_runtime) if isinstance(event, e.ChildStarted)] == [
        False, True,
    ]  # fmt: skip
    sound(perdure_runtime)


@pytest.mark.parametrize("on_cancel", ["wait", "abandon"])
async def test_one_that_runs_is_had_again(
    on_cancel: Literal["wait", "abandon"], perdure_runtime: RuntimeUnderTest
) -> None:
    @workflow
    async def agent(order: str) -> list[str]:
        cents = await decide(order)
        child = await perdure.start(pays.call(order, 7, "on"), on_cancel=on_cancel)
        await perdure.receive("go")
        return [await announce(cents), await child.result()]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert runs_of(perdure_runtime)["r/0.pays.1"] == "alive"
    await (await perdure_runtime.get("r/0.pays.1")).send("on")
    assert await run.result() == ["announced 42", "paid 7 for o"]
    assert DONE == ["paid 7 for o", "announced 42"]
    assert len(runs_of(perdure_runtime)) == 2
    sound(perdure_runtime)


async def test_with_another_input_it_is_another_run_and_the_old_one_is_taken_back(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        receipt = await pays(order, cents)
        await perdure.receive("go")
        await announce(cents)
        await perdure.receive("end")
        return receipt

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert runs_of(perdure_runtime) == {"r": "alive", "r/0.pays.1": "completed", "r/0.pays.1.2": "completed"}
    (it,) = await perdure_runtime.requests(status="pending")
    assert (it.run_id, it.arguments["effect"], it.arguments["arguments"]) == ("r", "pay", {"order": "o", "cents": 41})
    await run.send("end")
    assert await run.result() == "paid 42 for o"
    assert DONE == ["paid 41 for o", "paid 42 for o", "announced 42", "took 41 back for o"]
    sound(perdure_runtime)


@workflow
async def starts_and_waits(order: str) -> str:
    cents = await decide(order)
    child = await perdure.start(pays.call(order, cents, "on"))
    await perdure.receive("go")
    await announce(cents)
    return await child.result()


async def test_one_that_runs_with_another_input_is_stopped_before_the_new_one_is_started(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    run = await perdure_runtime.start(starts_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert runs_of(perdure_runtime) == {"r": "alive", "r/0.pays.1": "cancelled", "r/0.pays.1.2": "alive"}
    told = [type(event) for event in await history(perdure_runtime) if "Child" in type(event).__name__]
    assert (told[:2], told[4:]) == ([e.ChildStarted, e.ChildDismissed], [e.ChildStarted])
    assert set(told[2:4]) == {e.ChildEnded, e.ChildOwed}, "what it did may be known before its end is told"
    await (await perdure_runtime.get("r/0.pays.1.2")).send("on")
    assert await run.result() == "paid 42 for o"
    assert DONE == ["paid 41 for o", "announced 42", "paid 42 for o", "took 41 back for o"]
    sound(perdure_runtime)


async def test_each_time_that_the_run_goes_back_the_child_has_another_id(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(starts_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run, "nothing")
    WORLD["policy"] = 1  # as it was at first: the first child is gone all the same
    await perdure_runtime.advance(60)
    await run.send("go")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 5
    await perdure_runtime.advance(60)
    ids = [run_id for run_id in runs_of(perdure_runtime) if run_id != "r"]
    await (await perdure_runtime.get(ids[-1])).send("on")
    result = await run.result()
    assert result == "paid 41 for o"
    sound(perdure_runtime)


@pytest.mark.parametrize("on_cancel", ["wait", "abandon"])
async def test_one_that_is_not_wanted_any_more_is_stopped_and_taken_back(
    on_cancel: Literal["wait", "abandon"], perdure_runtime: RuntimeUnderTest
) -> None:
    @workflow
    async def agent(order: str) -> str:
        if await decide(order) == 41:
            await perdure.start(pays.call(order, 7, "on"), on_cancel=on_cancel)
        await perdure.receive("go")
        await announce(1)
        await perdure.receive("end")
        return "end"

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert runs_of(perdure_runtime)["r/0.pays.1"] == "cancelled", "as soon as its place has been passed"
    (it,) = await perdure_runtime.requests(status="pending")
    assert it.arguments["key"] == "o:7"
    await run.send("end")
    assert await run.result() == "end"
    assert DONE == ["paid 7 for o", "announced 1", "took 7 back for o"]
    sound(perdure_runtime)


async def test_what_is_never_passed_is_stopped_when_the_code_has_ended(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        if cents == 41:
            await perdure.receive("go")
            await perdure.start(pays.call(order, 7, "on"))
            await perdure.receive("on")
            await announce(cents)
        return f"{cents}"

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    await run.send("go")
    await changed_in_between(perdure_runtime, run, "on")
    assert await run.result() == "42"
    assert DONE == ["paid 7 for o", "took 7 back for o"]
    assert runs_of(perdure_runtime) == {"r": "completed", "r/0.pays.2": "cancelled"}
    sound(perdure_runtime)


async def test_one_that_the_old_way_has_cancelled_is_started_anew(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        child = await perdure.start(pays.call(order, 7, "on"))
        await perdure.receive("started")
        if cents == 41:
            child.cancel()
        await perdure.receive("go")
        await announce(cents)
        return await child.result()

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    await run.send("started")
    await changed_in_between(perdure_runtime, run)
    await (await perdure_runtime.get("r/0.pays.1.2")).send("on")
    assert await run.result() == "paid 7 for o"
    assert runs_of(perdure_runtime) == {"r": "completed", "r/0.pays.1": "cancelled", "r/0.pays.1.2": "completed"}
    sound(perdure_runtime)


async def test_one_that_somebody_else_has_cancelled_is_had_again_as_it_ended(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        child = await perdure.start(pays.call(order, 7, "on"))
        await perdure.receive("go")
        await announce(cents)
        try:
            return await child.result()
        except perdure.RunCancelledError:
            return "cancelled"

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    await (await perdure_runtime.get("r/0.pays.1")).cancel()
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "cancelled"
    assert len(runs_of(perdure_runtime)) == 2
    sound(perdure_runtime)


async def test_an_id_that_the_code_gives_gets_a_number_too(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> list[str]:
        cents = await decide(order)
        if cents == 42:
            await perdure.sleep(1)  # in another place
        one = await perdure.start(pays.call(order, 7), id="seven")
        other = await perdure.start(pays.call(order, cents), id="other")
        again = await perdure.start(pays.call(order, cents), id="other")
        await perdure.receive("go")
        await announce(cents)
        return [one.id, other.id, again.id, await one.result(), await other.result(), await again.result()]

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == [
        "seven", "other.2", "other.2", "paid 7 for o", "paid 42 for o", "paid 42 for o",
    ]  # fmt: skip
    assert set(runs_of(perdure_runtime)) == {"r", "seven", "other", "other.2"}
    assert DONE[-1] == "took 41 back for o"
    sound(perdure_runtime)


async def test_what_the_children_of_children_did_is_owed_too(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def middle(order: str, cents: int) -> str:
        await pays(order, cents)
        await perdure.start(pays.call(f"{order}-2", cents, "never"), on_cancel="abandon")
        await pay(f"{order}-3", cents)
        return "done"

    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        await middle(order, cents)
        await perdure.receive("go")
        await announce(cents)
        return str(cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "42"
    assert sorted(DONE[-3:]) == ["took 41 back for o", "took 41 back for o-2", "took 41 back for o-3"]
    standing = runs_of(perdure_runtime)
    assert standing["r/0.middle.1/0.pays.1"] == "cancelled", "left to itself by its parent, which is not wanted itself"
    assert standing["r/0.middle.1.2/0.pays.1"] == "alive"
    sound(perdure_runtime)


@effect(downstream=NoGuarantee())
async def wire(order: str, cents: int) -> str:
    DONE.append(f"wired {cents}")
    raise TimeoutError("no answer")


@wire.key
def _(order: str, cents: int) -> str:
    return f"{order}:{cents}"


@workflow
async def wires(order: str, cents: int) -> str:
    return await wire(order, cents)


async def test_what_a_child_has_under_way_is_held_until_it_is_known(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        if cents == 41:
            await perdure.start(wires.call(order, cents))
        await perdure.receive("go")
        await announce(cents)
        return str(cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert DONE == ["wired 41", "announced 42"]
    assert not (await run.status()).is_final, "nobody knows what became of it"
    (entry,) = await perdure_runtime.inbox()
    assert (entry.run_id, entry.reason) == ("r/0.wires.1", "unknown_effect")
    assert entry.operation is not None
    await perdure_runtime.settle(entry.run_id, "succeeded", value="receipt", by="ann")
    await perdure_runtime.run_dry()
    (entry,) = await perdure_runtime.inbox()
    assert (entry.run_id, entry.reason) == ("r", "failed_compensation")
    assert "wire 'o:41' (has no .undo)" in entry.hint
    await run.unblock("fail", by="ann")
    assert await run.result() == "42"
    sound(perdure_runtime)


@pytest.mark.parametrize("ends", ["cancelled", "completed"])
async def test_what_a_child_does_while_it_is_stopped_is_owed_too(
    ends: Literal["cancelled", "completed"], perdure_runtime: RuntimeUnderTest
) -> None:
    @workflow
    async def tidies_up(order: str, cents: int) -> str:
        try:
            await perdure.receive("never")
        except asyncio.CancelledError:
            await pay(order, cents)
            if ends == "cancelled":
                raise
        return "done all the same"

    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        if cents == 41:
            await perdure.start(tidies_up.call(order, cents))
        await perdure.receive("go")
        await announce(cents)
        return str(cents)

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    assert await run.result() == "42"
    assert DONE[-1] == "took 41 back for o"
    assert runs_of(perdure_runtime)["r/0.tidies_up.1"] == ends
    sound(perdure_runtime)


async def test_a_child_that_goes_back_itself_is_had_again(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def child(order: str) -> str:
        cents = await decide(order)
        await pay(order, cents)
        await perdure.receive("on")
        return await pay(f"{order}-2", cents)

    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        started = await perdure.start(child.call(order))
        await perdure.receive("go")
        await announce(cents)
        return await started.result()

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    WORLD["policy"] = 2
    await perdure_runtime.advance(60)
    await (await perdure_runtime.get("r/0.child.1")).send("on")
    await run.send("go")
    assert await run.result() == "paid 42 for o-2"
    assert sorted(DONE) == ["announced 42", "paid 41 for o", "paid 42 for o", "paid 42 for o-2", "took 41 back for o"]
    assert len(runs_of(perdure_runtime)) == 2
    sound(perdure_runtime)


@step
def decide_here(order: str) -> int:
    return 40 + WORLD["policy"]


@decide_here.premise("policy")
def _(order: str) -> int:
    return WORLD["policy"]


@effect(downstream=Idempotent())
def announce_here(cents: int) -> str:
    return do(f"announced {cents}")


@announce_here.key
def _(cents: int) -> str:
    return str(cents)


@workflow
def in_a_thread(order: str) -> list[str]:
    cents = decide_here(order)
    same = perdure.sync.wait(pays.call(order, 7))
    other = perdure.sync.start(pays.call(order, cents, "on"))
    perdure.sync.receive("go")
    announce_here(cents)
    return [same, other.result()]


async def test_a_def_workflow_has_its_children_again_or_not(perdure_runtime: RuntimeUnderTest) -> None:
    perdure_runtime.learn(pays.spec)
    run = await perdure_runtime.start(in_a_thread.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    standing = runs_of(perdure_runtime)
    assert list(standing.values()) == ["alive", "completed", "cancelled", "alive"], standing
    await (await perdure_runtime.get(list(standing)[-1])).send("on")
    assert await run.result() == ["paid 7 for o", "paid 42 for o"]
    assert DONE[-1] == "took 41 back for o"
    sound(perdure_runtime)


@step
async def status(order: str) -> str:
    return "open"


async def test_it_is_said_before_what_would_be_owed(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def agent(order: str) -> str:
        cents = await decide(order)
        await perdure.start(pays.call(order, cents, "on"))
        await pay(order, cents)
        return await perdure.with_approval(announce.call(cents), by="ann", premises={"status": status.call(order)})

    run = await perdure_runtime.start(agent.call("o"), id="r")
    await perdure_runtime.run_dry()
    (found,) = await run.stands()
    assert (found.reused, found.owed) == (0, ("0/pay#1", "pay 'o:41' of r/0.pays.1"))
    await run.cancel()


async def test_the_history_tells_what_became_of_them(perdure_runtime: RuntimeUnderTest) -> None:
    run = await perdure_runtime.start(starts_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    store = host_of(perdure_runtime).turns.store
    info = store.find("r")
    assert info is not None
    told = [(moment.what, moment.is_superseded) for moment in timeline(store, info.rid) if "child" in moment.what]
    assert told == [
        ("child r/0.pays.1 started", True),
        ("child r/0.pays.1 is not wanted any more: it is to stop", False),
        ("child r/0.pays.1 cancelled", False),
        ("owes what child r/0.pays.1 has done", False),
        ("child r/0.pays.1.2 started", False),
    ]


async def test_a_run_that_went_back_over_children_can_be_forked_anywhere_but_while_one_is_under_way(
    perdure_runtime: RuntimeUnderTest,
) -> None:
    """A fork has the children of its original again where they have ended, and stops and takes back none of them."""
    run = await perdure_runtime.start(starts_and_waits.call("o"), id="r")
    await changed_in_between(perdure_runtime, run)
    await (await perdure_runtime.get("r/0.pays.1.2")).send("on")
    assert await run.result() == "paid 42 for o"
    before, events = list(DONE), await history(perdure_runtime)
    made = 0
    for at in range(len(events)):
        with contextlib.suppress(ForkPointError):
            fork = await run.fork(at, id=f"f{at}")
            await fork.send("go")
            for _ in range(6):
                await perdure_runtime.advance(60)
                for run_id, status in runs_of(perdure_runtime).items():
                    if run_id.startswith(f"f{at}/") and status == "alive":
                        await (await perdure_runtime.get(run_id)).send("on")
                for entry in await perdure_runtime.inbox():
                    choice: Any = {"done_by_original": "reuse", "failed_compensation": "fail"}.get(entry.reason)
                    if choice is not None and not entry.pending:
                        await (await perdure_runtime.get(entry.run_id)).unblock(choice, call=entry.call, by="ann")
            assert await fork.result() == "paid 42 for o", at
            made += 1
    assert made >= 7
    assert before == DONE
    sound(perdure_runtime)


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


async def goes_through(runtime: RuntimeUnderTest) -> str:
    """The policy becomes another one while the run waits; whoever comes after a crash meets that one."""
    run = await runtime.start(starts_and_waits.call("o"), id="r")
    await runtime.run_dry()
    WORLD["policy"] = 2
    if not (await run.status()).is_final:
        await runtime.advance(60)
        await run.send("go")
        await runtime.run_dry()
    children = [run_id for run_id, status in runs_of(runtime).items() if run_id != "r" and status == "alive"]
    for run_id in children:
        await (await runtime.get(run_id)).send("on")
    return await run.result()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_makes_no_difference(when: Literal["before", "after"]) -> None:
    async def main() -> None:
        for n in itertools.count(1):
            if not await crash_at(n, when):
                assert n > 20
                break

    run_async(main())


async def crash_at(n: int, when: Literal["before", "after"]) -> bool:
    WORLD["policy"] = 1
    DONE.clear()
    clock = FakeClock()
    inner = MemoryStore(clock)
    outcome, deaths = await lives(goes_through, [starts_and_waits, pays], inner, clock, [(n, when)])
    assert (outcome.error, outcome.result) == (None, "paid 42 for o"), n
    assert sorted(DONE) in (
        ["announced 42", "paid 42 for o"],  # it came to nothing else before the policy changed
        ["announced 42", "paid 41 for o", "paid 42 for o", "took 41 back for o"],
    ), (n, when, DONE)
    assert not verify(inner.again()).damage
    return deaths > 0

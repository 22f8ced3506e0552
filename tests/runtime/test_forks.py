"""Forks: a new run that begins with another run's first events, and does nothing again that was done."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, Literal

import msgspec
import pytest
from tests.runtime.hosting import eventually, host_of, on_one_store, run_async

import perdure
from perdure import (
    Client,
    ForkPointError,
    Idempotent,
    NeedsPerson,
    NoGuarantee,
    RunBlockedError,
    RunConflictError,
    Runtime,
    StepError,
    UnknownNameError,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.api.run import Run
from perdure.audit.verify import verify
from perdure.engine.forking import ForkPoints
from perdure.history import events as e
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

STEPS: list[str] = []
SENT: list[tuple[str, str]] = []
"""What reached the other side: the operation's id, and the order."""


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    STEPS.clear()
    SENT.clear()


@step
async def look(what: str) -> str:
    STEPS.append(what)
    return f"saw {what}"


@effect(downstream=NoGuarantee(), on_repeat="reuse")
async def pay(order: str, cents: int) -> str:
    SENT.append((perdure.operation().id, order))
    return f"receipt {len(SENT)}"


@pay.key
def _(order: str, cents: int) -> str:
    return order


@effect(downstream=NoGuarantee())
async def unpay(order: str) -> None:
    SENT.append((perdure.operation().id, f"not {order}"))


@unpay.key
def _(order: str) -> str:
    return order


@workflow
async def shop(order: str) -> list[str]:
    first = await look("stock")
    paid = await pay(order, 500)
    last = await look("parcel")
    noted = await pay(f"{order}, tip", 5)
    return [first, paid, last, noted]


@workflow
def hosted_shop(order: str) -> list[str]:
    first = perdure.sync.wait(look.call("stock"))
    paid = perdure.sync.wait(pay.call(order, 500))
    last = perdure.sync.wait(look.call("parcel"))
    noted = perdure.sync.wait(pay.call(f"{order}, tip", 5))
    return [first, paid, last, noted]


FLOWS = [shop, hosted_shop]


async def place(run: Run[Any], kind: type[e.Event], name: str | None = None, nth: int = 0) -> int:
    """Where in a run's history the n-th event of this kind stands, of this name if one is given."""
    found = [
        happened.seq for happened in await run.history()
        if type(happened.event) is kind and name in {None, getattr(happened.event, "name", None)}
    ]  # fmt: skip
    return found[nth]


async def held(runtime: Runtime, run: Run[Any]) -> Any:
    async def is_there() -> bool:
        return any(entry.run_id == run.id for entry in await runtime.inbox())

    await eventually(is_there, f"{run.id} is in the inbox")
    return next(entry for entry in await runtime.inbox() if entry.run_id == run.id)


def sound(runtime: Runtime) -> None:
    report = verify(host_of(runtime).turns.store)
    assert report.is_sound, report.damage


async def same_beginning(run: Run[Any], fork: Run[Any], at: int) -> None:
    """Event for event and hash for hash, with what the events carry."""
    before, after = await run.history(), await fork.history()
    assert after[: at + 1] == before[: at + 1]
    forked = after[at + 1].event
    assert isinstance(forked, e.RunForked)
    assert (forked.of, forked.seq, forked.head) == (run.id, at, before[at].hash)


# ── what it has, and what it does ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("flow", FLOWS)
def test_it_begins_with_the_same_events_and_goes_on_by_itself(flow: Any) -> None:
    async def main() -> None:
        async with on_one_store()(flow) as runtime:
            run = await runtime.start(flow.call("a"), id="r", tags={"customer": "Ada"})
            was = await run.result()
            history = await run.history()
            at = await place(run, e.EffectSucceeded, nth=1)
            fork = await run.fork(at, id="f", by="ann", reason="what if")
            assert fork.how == "started"
            assert await fork.result() == was
            await same_beginning(run, fork, at)
            summary = await fork.summary()
            assert (summary.forked_from, summary.forked_at, summary.parent, summary.tags) == (
                "r", at, None, {"customer": "Ada"},
            )  # fmt: skip
            assert (await runtime.list())[0].forked_from == "r"
            forked = (await fork.history())[at + 1].event
            assert isinstance(forked, e.RunForked)
            assert (forked.by, forked.why) == ("ann", "what if")
            assert await run.history() == history, "the original is not touched"
            sound(runtime)
        assert (STEPS, [order for _, order in SENT]) == (["stock", "parcel"], ["a", "a, tip"])

    run_async(main())


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(("choice", "sent"), [("retry", 2), ("reuse", 1), ("fail", 1)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_the_original_did_is_done_again_only_if_a_person_says_so(
    flow: Any, choice: Any, sent: int, is_restarted: bool
) -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(flow) as runtime:
            run = await runtime.start(flow.call("a"), id="r")
            was = await run.result()
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            entry = await held(runtime, fork)
            assert entry.reason == "done_by_original"
            assert "was done by the original, run r, with the same arguments: " in entry.hint
            assert SENT[0][0] in entry.hint
            assert set(entry.choices) == {"retry", "reuse", "fail"}
            with pytest.raises(RunBlockedError, match="done_by_original"):
                await fork.result()
            assert len(SENT) == 2
        async with Client(host_of_store(make)) as client:
            if is_restarted:
                await (await client.get("f")).unblock(choice, by="ann", reason="sure")
        async with make(flow) as runtime:
            fork = await runtime.get("f")
            if not is_restarted:
                await fork.unblock(choice, by="ann", reason="sure")
            if choice == "fail":
                with pytest.raises(StepError, match="was not made: the run that this one was forked from has done it"):
                    await fork.result(wait_blocked=True)
            else:
                entry = await until_asked(runtime, fork, "tip")
                await fork.unblock("reuse")
                answer = await fork.result(wait_blocked=True)
                assert answer == ([*was[:1], "receipt 3", *was[2:]] if choice == "retry" else was)
            sound(runtime)
        assert Counter(order for _, order in SENT)["a"] == sent
        assert len({operation for operation, _ in SENT}) == len(SENT), "each has an operation of its own"

    run_async(main())


async def until_asked(runtime: Runtime, run: Run[Any], about: str) -> Any:
    async def is_asked() -> bool:
        return any(entry.run_id == run.id and about in entry.hint for entry in await runtime.inbox())

    await eventually(is_asked, f"{run.id} is asked about {about}")
    return next(entry for entry in await runtime.inbox() if entry.run_id == run.id and about in entry.hint)


def host_of_store(make: Any) -> Any:
    """A store handle of its own, as another process has it."""
    return make()._given


def test_a_wrong_choice_changes_nothing() -> None:
    async def main() -> None:
        async with on_one_store()(shop) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            fork = await run.fork(await place(run, e.StepCompleted))
            await held(runtime, fork)
            await fork.unblock("value", value="a receipt")
            await until_asked(runtime, fork, "refused: 'value' does not decide this; one of retry, reuse, fail does")
            assert len(SENT) == 2

    run_async(main())


def test_what_was_done_before_the_fork_counts_as_its_own() -> None:
    """Asked for again, by another call, it has the answer that the original would have had: reused, a duplicate, a
    conflict, or a corrected request after a refusal."""

    @effect(downstream=NoGuarantee())
    async def strict(order: str, cents: int) -> str:
        SENT.append((perdure.operation().id, order))
        if cents < 0:
            raise perdure.Final("less than nothing")
        return "done"

    @strict.key
    def _(order: str, cents: int) -> str:
        return order

    @workflow
    async def again() -> list[str]:
        told = [await pay("a", 5), await strict("b", 5)]
        for cents in (-1, 7):
            try:
                told.append(await strict("c", cents))
            except perdure.Final as error:
                told.append(str(error))
            if cents < 0:
                await look("middle")
        for call in (pay.call("a", 5), strict.call("b", 5), strict.call("b", 6)):
            try:
                told.append(await call)
            except perdure.PerdureError as error:
                told.append(type(error).__name__)
        return told

    async def main() -> None:
        async with on_one_store()(again) as runtime:
            run = await runtime.start(again.call(), id="r")
            was = await run.result()
            assert was[4:] == ["receipt 1", "DuplicateOperation", "OperationConflict"]
            fork = await run.fork(await place(run, e.EffectSucceeded, nth=2))
            assert await fork.result() == was
            assert len(SENT) == 4
            refused = await run.fork(await place(run, e.StepCompleted), id="corrects")
            entry = await held(runtime, refused)
            assert "strict#3" in entry.hint
            await refused.unblock("retry")
            assert await refused.result(wait_blocked=True) == was
            assert len(SENT) == 5
            sound(runtime)

    run_async(main())


def test_what_the_original_was_refused_may_be_done() -> None:
    @effect(downstream=NoGuarantee())
    async def moody(order: str) -> str:
        SENT.append((perdure.operation().id, order))
        if len(SENT) == 1:
            raise perdure.Final("not today")
        return "done"

    @moody.key
    def _(order: str) -> str:
        return order

    @workflow
    async def tries() -> str:
        await look("stock")
        return await moody("a")

    async def main() -> None:
        async with on_one_store()(tries) as runtime:
            run = await runtime.start(tries.call(), id="r")
            with pytest.raises(perdure.Final, match="not today"):
                await run.result()
            assert await (await run.fork(await place(run, e.StepCompleted))).result() == "done"
            assert len({operation for operation, _ in SENT}) == 2
            sound(runtime)

    run_async(main())


def test_an_effect_under_another_name_is_the_same() -> None:
    @effect(downstream=NoGuarantee(), name="wire", aliases=["pay"])
    async def renamed(order: str, cents: int) -> str:
        SENT.append((perdure.operation().id, order))
        return "wired"

    @renamed.key
    def _(order: str, cents: int) -> str:
        return order

    @workflow(name="shop")
    async def newer(order: str) -> list[str]:
        return [await look("stock"), await renamed(order, 500)]

    async def main() -> None:
        make = on_one_store()
        async with make(shop) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            at = await place(run, e.StepCompleted)
        async with make(newer) as runtime:
            fork = await (await runtime.get("r")).fork(at)
            assert "was done by the original" in (await held(runtime, fork)).hint
        assert len(SENT) == 2

    run_async(main())


def test_a_fork_of_a_fork_does_nothing_again_of_either() -> None:
    @workflow
    async def branches(order: str) -> list[str]:
        which = await perdure.receive("which", str)
        return [await pay(f"{order} {which}", 1), await perdure.receive("end", str)]

    async def ends(run: Run[Any], which: str) -> Any:
        await run.send("which", which)
        await run.send("end", "over")
        return await run.result(wait_blocked=True)

    async def main() -> None:
        async with on_one_store()(branches) as runtime:
            run = await runtime.start(branches.call("a"), id="r")
            await ends(run, "left")
            fork = await run.fork(0, id="f")
            await ends(fork, "right")
            third = await fork.fork(0, id="g")
            assert (await third.summary()).forked_from == "f"
            await third.send("which", "left")
            assert "run r" in (await held(runtime, third)).hint
            await third.unblock("reuse")
            fourth = await fork.fork(1, id="h")
            await fourth.send("which", "right")
            assert "run f" in (await held(runtime, fourth)).hint
            assert [order for _, order in SENT] == ["a left", "a right"]
            sound(runtime)

    run_async(main())


def test_what_a_child_of_the_original_did_is_not_done_by_a_child_of_the_fork() -> None:
    @workflow
    async def child(order: str) -> str:
        return await pay(order, 1)

    @workflow
    async def parent(order: str) -> list[str]:
        return [await look("stock"), await child(order)]

    async def main() -> None:
        async with on_one_store()(parent, child) as runtime:
            run = await runtime.start(parent.call("a"), id="r")
            was = await run.result()
            early = await run.fork(await place(run, e.StepCompleted), id="f")

            async def child_asks() -> bool:
                return any(entry.run_id.startswith("f/") for entry in await runtime.inbox())

            await eventually(child_asks)
            (entry,) = await runtime.inbox()
            assert "was done by the original, run r/" in entry.hint
            await (await runtime.get(entry.run_id)).unblock("reuse")
            assert await early.result(wait_blocked=True) == was
            late = await run.fork(await place(run, e.ChildEnded), id="g")
            assert await late.result() == was
            assert len(SENT) == 1
            assert not [each.id for each in await runtime.list() if each.id.startswith("g/")]
            sound(runtime)

    run_async(main())


def test_taking_back_what_the_original_did_is_a_persons_to_say() -> None:
    @effect(downstream=NoGuarantee())
    async def book(order: str) -> str:
        SENT.append((perdure.operation().id, order))
        return "booked"

    @book.key
    def _(order: str) -> str:
        return order

    @book.undo
    async def _(result: str, order: str) -> None:
        SENT.append((perdure.operation().id, f"not {order}"))

    @workflow
    async def trip() -> str:
        async with perdure.saga():
            booked = await book("hotel")
            if await perdure.receive("is fine", bool):
                return booked
            raise perdure.Final("no trip")

    async def main() -> None:
        async with on_one_store()(trip) as runtime:
            run = await runtime.start(trip.call(), id="r")
            await run.send("is fine", True)
            assert await run.result() == "booked"
            fork = await run.fork(await place(run, e.EffectSucceeded))
            await fork.send("is fine", False)
            entry = await held(runtime, fork)
            assert "takes back what the original did, run r: " in entry.hint
            assert [what for _, what in SENT] == ["hotel"]
            await fork.unblock("retry", by="ann")
            with pytest.raises(Exception, match="no trip"):
                await fork.result(wait_blocked=True)
            assert [what for _, what in SENT] == ["hotel", "not hotel"]
            (row,) = [each for each in await runtime.effects() if each.action == "book"]
            assert row.compensated_by is None, "the original's row is not the fork's to write"
            sound(runtime)

    run_async(main())


def test_a_call_that_the_code_gives_up_waits_for_nobody() -> None:
    @workflow
    async def impatient() -> str:
        await look("stock")
        try:
            async with asyncio.timeout(await perdure.receive("patience", float)):
                return await pay("a", 1)
        except TimeoutError:
            return "gave up"

    async def main() -> None:
        async with on_one_store()(impatient) as runtime:
            run = await runtime.start(impatient.call(), id="r")
            await run.send("patience", 60)
            assert await run.result() == "receipt 1"
            fork = await run.fork(await place(run, e.StepCompleted))
            await fork.send("patience", 0.01)
            assert await fork.result(wait_blocked=True) == "gave up"
            assert await runtime.inbox() == []
            sound(runtime)

    run_async(main())


def test_the_original_may_begin_the_same_while_the_start_of_the_forks_is_recorded() -> None:
    """Whoever looks again after its own start is durable sees the other's."""

    async def main() -> None:
        async with on_one_store()(shop) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            effects = host_of(runtime).turns.effects
            forks, looks = effects.forks, list[Any]()
            met = forks.met

            def blind_once(flight: Any) -> Any:
                looks.append(flight)
                return None if len(looks) == 1 else met(flight)

            forks.met = blind_once  # type: ignore[method-assign]
            fork = await run.fork(await place(run, e.StepCompleted))
            await held(runtime, fork)
            assert [type(each.event) for each in await fork.history()][-3:] == [
                e.EffectStarted, e.EffectNotDone, e.RunBlocked,
            ]  # fmt: skip
            assert len(SENT) == 2
            await fork.unblock("retry")
            await until_asked(runtime, fork, "tip")
            assert len(SENT) == 3
            sound(runtime)

    run_async(main())


@step
async def reports(run_id: str) -> str:
    STEPS.append(run_id)
    return run_id


@workflow
async def says_who() -> list[str]:
    """Its own id, before and after each step, is what it calls its steps with."""
    return [await reports(perdure.current_run().id) for _ in range(4)]


@workflow
def hosted_says_who() -> list[str]:
    return [perdure.sync.wait(reports.call(perdure.current_run().id)) for _ in range(4)]


@pytest.mark.parametrize("flow", [says_who, hosted_says_who])
def test_the_code_sees_the_id_of_the_run_that_made_its_calls(flow: Any) -> None:
    """Else what it calls its steps with would not be what is recorded. So it is again when the fork is loaded anew."""

    async def main() -> None:
        make = on_one_store()
        async with make(flow) as runtime:
            run = await runtime.start(flow.call(), id="r")
            assert await run.result() == ["r", "r", "r", "r"]
            fork = await run.fork(await place(run, e.StepCompleted), id="f")
            assert await fork.result() == ["r", "f", "f", "f"]
            second = await fork.fork(await place(fork, e.StepCompleted, nth=2), id="g")
            assert await second.result() == ["r", "f", "f", "g"]
            third = await second.fork(id="h")  # after its last step, before its end
            assert await third.result() == ["r", "f", "f", "g"]
            sound(runtime)
        assert len(STEPS) == 4 + 3 + 1

    run_async(main())


# ── where ───────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_forked_between_an_effects_start_and_its_outcome() -> None:
    async def main() -> None:
        async with on_one_store()(shop) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            at = await place(run, e.EffectStarted)
            with pytest.raises(ForkPointError, match=r"effect 0/pay#1 is under way; the nearest .*: 1 .* 3") as caught:
                await run.fork(at)
            assert (caught.value.before, caught.value.after) == (at - 1, at + 1)
            end = len(await run.history())
            with pytest.raises(ForkPointError, match="has ended there, and nothing is left to do"):
                await run.fork(end - 1)
            with pytest.raises(ForkPointError, match=f"has no event {end}: it has 0 to {end - 1}"):
                await run.fork(end)
            assert (await (await run.fork()).summary()).forked_at == end - 2
            assert len(await runtime.list()) == 2

    run_async(main())


def test_a_running_child_is_not_shared() -> None:
    @workflow
    async def child() -> str:
        return await perdure.receive("answer", str)

    @workflow
    async def parent() -> str:
        await look("stock")
        return await child()

    async def main() -> None:
        async with on_one_store()(parent, child) as runtime:
            run = await runtime.start(parent.call(), id="r")

            async def has_child() -> bool:
                return len(await runtime.list()) == 2

            await eventually(has_child)
            with pytest.raises(ForkPointError, match=r"child run r/.* is under way") as caught:
                await run.fork(await place(run, e.ChildStarted))
            assert caught.value.after is None
            assert (await (await run.fork()).summary()).forked_at == 1

    run_async(main())


def test_bad_places_and_ids_leave_nothing() -> None:
    async def main() -> None:
        async with on_one_store()(shop, says_who) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            for at in (-1, 1.5, True, "first", None):
                with pytest.raises(UsageError, match="the number of an event"):
                    await run.fork(at)  # type: ignore[arg-type]
            for wrong in ("", 7):
                with pytest.raises(UsageError):
                    await run.fork(1, id=wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="by"):
                await run.fork(1, by=7)  # type: ignore[arg-type]
            await (await runtime.start(says_who.call(), id="other")).result()
            with pytest.raises(RunConflictError, match="'other' belongs to says_who version 1"):
                await run.fork(1, id="other")
            with pytest.raises(RunConflictError, match="'r' belongs to shop"):
                await run.fork(1, id="r")
            assert len(await runtime.list()) == 2
            host_of(runtime).turns.store.prune(ended_before=2**62, limit=10)
            with pytest.raises(UnknownNameError):
                await run.fork(1)

    run_async(main())


def test_the_same_fork_again_attaches() -> None:
    async def main() -> None:
        async with on_one_store()(shop) as runtime:
            run = await runtime.start(shop.call("a"), id="r")
            await run.result()
            at = await place(run, e.EffectSucceeded, nth=1)
            forks = await asyncio.gather(*(run.fork(at, id="f") for _ in range(5)))
            assert Counter(fork.how for fork in forks)["started"] == 1
            await forks[0].result()
            assert (await run.fork(at, id="f")).how == "finished earlier"
            assert (await run.fork(id="f")).how == "finished earlier"
            with pytest.raises(RunConflictError, match=f"a fork of run r, after its event {at}"):
                await run.fork(1, id="f")
            assert len(await runtime.list()) == 2

    run_async(main())


# ── what is left where it stands ────────────────────────────────────────────────────────────


def test_people_are_asked_again_by_the_fork_and_decide_about_each_alone() -> None:
    @workflow
    async def careful(order: str) -> str:
        return await perdure.with_approval(pay.call(order, 5), by={"ann"})

    async def pending(runtime: Runtime, count: int) -> list[Any]:
        async def are_asked() -> bool:
            return len(await runtime.requests(status="pending")) == count

        await eventually(are_asked)
        return await runtime.requests(status="pending")

    async def main() -> None:
        async with on_one_store()(careful) as runtime:
            run = await runtime.start(careful.call("a"), id="r")
            (asked,) = await pending(runtime, 1)
            fork = await run.fork(id="f")
            again = next(each for each in await pending(runtime, 2) if each.run_id == "f")
            assert again.id != asked.id
            await runtime.reject(again.id, hash=again.hash, by="ann")
            with pytest.raises(perdure.Rejected):
                await fork.result()
            assert [each.run_id for each in await pending(runtime, 1)] == ["r"]
            await runtime.approve(asked.id, hash=asked.hash, by="ann")
            assert await run.result() == "receipt 1"
            with pytest.raises(ForkPointError, match="is given and not used yet"):
                await run.fork(await place(run, e.PersonAnswered))
            used = await run.fork(await place(run, e.EffectSucceeded), id="g")
            assert await used.result() == "receipt 1"
            sound(runtime)

    run_async(main())


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_fork_of_a_run_that_waits_or_is_paused_goes_on_with_the_messages_that_came(is_paused: bool) -> None:
    @workflow
    async def waits() -> list[str]:
        first = await perdure.receive("word", str)
        await perdure.sleep(0.3)
        return [first, await perdure.receive("word", str)]

    async def main() -> None:
        async with on_one_store()(waits) as runtime:
            run = await runtime.start(waits.call(), id="r")
            await run.send("word", "one")
            await run.send("word", "two")

            async def have_come() -> bool:
                return [each.kind for each in await run.history()].count("message.arrived") == 2

            await eventually(have_come)
            if is_paused:
                await run.pause("ann")

                async def stands_still() -> bool:
                    return (await run.summary()).reason == "paused"

                await eventually(stands_still)
            fork = await run.fork(id="f")
            assert await fork.result() == ["one", "two"]
            if not is_paused:
                assert await run.result() == ["one", "two"]
            sound(runtime)

    run_async(main())


def test_an_earlier_chapter_is_where_the_fork_goes_on() -> None:
    @workflow
    async def tells(number: int) -> list[str]:
        said = await look(f"chapter {number}")
        if number < 2:
            raise perdure.continue_as_new(number + 1)
        return [said]

    async def main() -> None:
        async with on_one_store()(tells) as runtime:
            run = await runtime.start(tells.call(0), id="r")
            assert await run.result() == ["saw chapter 2"]
            for nth, left in ((0, 2), (1, 1), (2, 0)):
                STEPS.clear()
                fork = await run.fork(await place(run, e.StepCompleted, nth=nth))
                assert await fork.result() == ["saw chapter 2"]
                assert len(STEPS) == left
            sound(runtime)

    run_async(main())


def test_a_call_that_waits_for_a_person_waits_in_the_fork_too() -> None:
    @step
    async def judge() -> str:
        raise NeedsPerson("is it so?")

    @workflow
    async def judged() -> str:
        return await judge()

    async def main() -> None:
        async with on_one_store()(judged) as runtime:
            run = await runtime.start(judged.call(), id="r")
            await held(runtime, run)
            fork = await run.fork(id="f")
            assert (await held(runtime, fork)).reason == "needs_person"
            await fork.unblock("value", value="yes")
            assert await fork.result(wait_blocked=True) == "yes"
            assert (await held(runtime, run)).reason == "needs_person"
            sound(runtime)

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent())
async def charge(order: str) -> str:
    SENT.append((perdure.operation().id, order))
    return f"charged {order}"


@charge.key
def _(order: str) -> str:
    return order


@workflow
async def charges(order: str) -> list[str]:
    first = await look("stock")
    return [first, await charge(order), await charge(f"{order}, tip")]


@pytest.mark.parametrize("choice", ["retry", "reuse"])
def test_a_crash_at_any_write_forks_once_and_asks_as_often_as_it_takes(choice: Literal["retry", "reuse"]) -> None:
    """The process dies before and after each of its writes: that of the fork, of the questions, of the answers."""

    async def scenario(runtime: RuntimeUnderTest) -> list[str]:
        run = await runtime.start(charges.call("o-1"), id="r")
        await run.result()
        fork = await run.fork(await place(run, e.StepCompleted, "look"), id="f")
        while not (await fork.status()).is_final:
            await runtime.run_dry()
            asked = [it for it in await runtime.inbox() if it.run_id == "f" and not it.pending]
            for entry in asked:
                await fork.unblock(choice, call=entry.call, by="ann")
        assert [info.id for info in await runtime.list()] in (["f", "r"], ["r", "f"])
        done = {row.key: row.run_id for row in await runtime.effects(run="f") if row.status == "succeeded"}
        again = {"o-1": "f", "o-1, tip": "f"} if choice == "retry" else {}
        assert done == again
        return await fork.result()

    sweep = run_async(sweep_crashes(scenario, workflows=[charges]))
    assert sweep.result == ["saw stock", "charged o-1", "charged o-1, tip"]
    assert sweep.writes > 10


# ── runs that went back ─────────────────────────────────────────────────────────────────────

RATES = [41]


@step
async def decide(order: str) -> int:
    return RATES[0]


@decide.premise("rate")
async def _(order: str) -> int:
    return RATES[0]


@effect(downstream=NoGuarantee())
async def give(order: str, cents: int) -> str:
    SENT.append((perdure.operation().id, f"{order} {cents}"))
    return f"gave {cents}"


@give.key
def _(order: str, cents: int) -> str:
    return f"{order} {cents}"


@give.undo
async def _(result: str, order: str, cents: int) -> None:
    SENT.append((perdure.operation().id, f"not {order} {cents}"))


@workflow
async def gives(order: str) -> str:
    given = await give(order, await decide(order))
    await perdure.receive("go", bool)
    return await pay(given, 1)


async def goes_back(runtime: RuntimeUnderTest) -> Run[str]:
    """A run whose decision did not stand any more when it had given something."""
    RATES[:] = [41]
    run = await runtime.start(gives.call("a"), id="r")
    await runtime.run_dry()
    RATES[:] = [42]
    await runtime.advance(10)
    await run.send("go", True)
    assert await run.result() == "receipt 3"
    assert [order for _, order in SENT] == ["a 41", "a 42", "gave 42", "not a 41"]
    return run


def test_a_run_that_went_back_is_forked_at_any_event_and_nothing_of_either_way_is_done_again() -> None:
    """Neither what counts, nor what does not count any more, nor what took that back."""

    async def to_the_end(runtime: RuntimeUnderTest, fork: Run[str]) -> None:
        await fork.send("go", True)
        while not (await fork.status()).is_final:
            await runtime.advance(10)
            for entry in [it for it in await runtime.inbox() if it.run_id == fork.id and not it.pending]:
                if entry.reason == "question":  # about what is owed: nobody has to answer it
                    continue
                assert entry.reason == "done_by_original"
                await fork.unblock("reuse", call=entry.call, by="ann")
        assert await fork.result() == "receipt 3"

    async def main() -> None:
        async with RuntimeUnderTest(workflows=[gives]) as runtime:
            run = await goes_back(runtime)
            history = await run.history()
            assert any(isinstance(each.event, e.Rewound) for each in history)
            made = 0
            for at in range(len(history)):
                with contextlib.suppress(ForkPointError):
                    await to_the_end(runtime, await run.fork(at, id=f"f{at}"))
                    made += 1
            assert made >= 10
            assert len(SENT) == 4
            sound(runtime)

    run_async(main())


def test_a_result_and_what_it_rests_on_are_not_parted() -> None:
    """A fork between them would have to look after a decision that it has not made."""
    read = e.PremisesRead("0", 0, "decide", 1, result=b"x" * 32)
    events = [
        e.RunStarted("agent", 1, 7, {}, b""), read, e.StepCompleted("0", 0, "decide", 1),
        msgspec.structs.replace(read, renews=True), e.TimePassed(),
    ]  # fmt: skip
    points = ForkPoints("r", events)
    assert [obstacle is None for obstacle in points.obstacles] == [True, False, True, True, True]
    with pytest.raises(perdure.errors.ForkPointError, match="belong together; the nearest events where it can: 0"):
        points.check(1)

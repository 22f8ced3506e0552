"""Nobody decides: people are reminded, then others may decide, too. Once each, and it costs nothing meanwhile."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.runtime.hosting import run_async

import perdure
from perdure import Client, DecisionRefused, Idempotent, effect, workflow
from perdure.errors import UserCodeError
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

HOUR = 3_600


@effect(downstream=Idempotent())
async def refund(order: str) -> str:
    return f"refunded {order}"


refund.key(lambda order: order)


@workflow
async def agent(order: str) -> str:
    return await perdure.with_approval(
        refund.call(order), by="ann", within=timedelta(hours=9), remind_after=timedelta(hours=1),
        escalate_after=3 * HOUR, escalate_to={"boss", "cy"},
    )  # fmt: skip


@workflow
async def question() -> str:
    return await perdure.ask("Tea?", type=str, by="ann", remind_after=HOUR, escalate_after=2 * HOUR, escalate_to="bo")


@workflow
def hosted() -> str:
    return perdure.sync.ask("Tea?", type=str, by="ann", remind_after=HOUR, escalate_after=2 * HOUR, escalate_to="bo")


class World:
    """A store, and whoever executes its runs just now."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.told: list[tuple[str, int]] = []
        self.began = self.clock.now()

    def open(self) -> RuntimeUnderTest:
        return RuntimeUnderTest(
            self.store.again(), clock=self.clock, workflows=[agent, question, hosted], replays=False, guard=False
        )

    def listen(self, runtime: RuntimeUnderTest) -> None:
        approvals = runtime._host.turns.approvals  # pyright: ignore[reportPrivateUsage]
        approvals.on_announced = lambda row, what, once: self.told.append(
            (what, round((self.clock.now() - self.began) / 1_000_000 / HOUR))
        )

    def events(self, run_id: str) -> list[tuple[str, tuple[str, ...]]]:
        info = self.store.find(run_id)
        assert info is not None
        rows = self.store.load(info.rid).rows
        events: list[Any] = [perdure_event(row) for row in rows if row.kind == "person.reminded"]
        return [(event.what, event.to) for event in events]


def perdure_event(row: Any) -> Any:
    from perdure.history import events

    return events.decode(row.envelope)


async def why(decision: Any) -> str | None:
    try:
        await decision
    except DecisionRefused as no:
        return no.why
    return None


@pytest.mark.parametrize("of", [question, hosted])
def test_people_are_reminded_and_then_others_may_decide_too(of: Any) -> None:
    async def main() -> None:
        world = World()
        async with world.open() as runtime:
            world.listen(runtime)
            run = await runtime.start(of.call(), id="r")
            await runtime.run_dry()
            (it,) = await runtime.requests()
            assert it.escalate_to == ("bo",)
            assert it.escalates_at == it.asked_at + timedelta(hours=2)
            assert await why(runtime.answer(it.id, "yes", hash=it.hash, by="bo")) == "not_an_approver"
            for _ in range(5):
                await runtime.advance(HOUR / 2)
                runtime._host.release_idle()  # pyright: ignore[reportPrivateUsage]
                await runtime.run_dry()
            assert world.events("r") == [("reminder", ()), ("escalation", ("bo",))]
            first = dict(reversed(world.told))  # told again, under the same id, it is one message
            assert first == {"new": 0, "reminder": 1, "escalation": 2}
            await runtime.answer(it.id, "yes", hash=it.hash, by="bo")
            assert await run.result() == "yes"

    run_async(main())


def test_between_two_times_it_costs_nothing_and_any_worker_goes_on() -> None:
    async def main() -> None:
        world = World()
        async with world.open() as first:
            await first.start(agent.call("o-1"), id="r")
            await first.run_dry()
        info = world.store.find("r")
        assert info is not None
        assert (info.owner, info.due_at) == (None, world.began + HOUR * 1_000_000)
        world.clock.advance_to(world.began + 2 * HOUR * 1_000_000)
        async with world.open() as second:
            world.listen(second)
            await second.run_dry()
            await second.die()
        assert world.events("r") == [("reminder", ())]
        assert [what for what, _ in world.told] == ["reminder"], "not as a repeat besides"
        async with world.open() as third:
            world.listen(third)
            await third.run_dry()
            assert [what for what, _ in world.told] == ["reminder", "reminder", "repeat"], "whoever recorded it died"
            await third.advance(HOUR)
        assert world.events("r") == [("reminder", ()), ("escalation", ("boss", "cy"))]

    run_async(main())


def test_others_may_decide_when_the_time_has_come_though_no_worker_has_noticed() -> None:
    async def main() -> None:
        world = World()
        async with world.open() as first:
            await first.start(agent.call("o-1"), id="r")
            await first.run_dry()
        async with Client(world.store.again(), clock=world.clock) as client:
            (it,) = await client.requests()
            about: Any = {"hash": it.hash, "by": "eve", "role": "boss"}
            world.clock.advance_to(world.began + 3 * HOUR * 1_000_000 - 1)
            assert await why(client.approve(it.id, **about)) == "not_an_approver"
            world.clock.advance_to(world.began + 3 * HOUR * 1_000_000)
            assert await why(client.approve(it.id, **about)) is None
        async with world.open() as second:
            world.listen(second)
            assert await (await second.get("r")).result() == "refunded o-1"
        assert world.events("r") == [], "it was decided: nobody is told any more"

    run_async(main())


def test_whoever_decides_in_time_is_not_reminded_and_what_has_expired_is_not_either() -> None:
    async def main() -> None:
        world = World()
        async with world.open() as first:
            run = await first.start(agent.call("o-1"), id="r")
            await first.start(agent.call("o-2"), id="late")
            await first.run_dry()
            (it,) = await first.requests(run="r")
            await first.approve(it.id, hash=it.hash, by="ann")
            assert await run.result() == "refunded o-1"
        world.clock.advance_to(world.began + 10 * HOUR * 1_000_000)
        async with world.open() as second:
            with pytest.raises(perdure.ApprovalExpired):
                await (await second.get("late")).result()
        assert (world.events("r"), world.events("late")) == ([], [])

    run_async(main())


def test_a_paused_run_is_not_reminded_of_until_it_goes_on() -> None:
    async def main() -> None:
        world = World()
        async with world.open() as runtime:
            run = await runtime.start(question.call(), id="r")
            await runtime.run_dry()
            await run.pause()
            await runtime.advance(5 * HOUR)
            assert world.events("r") == []
            await run.resume()
            await runtime.advance(1)
            assert world.events("r") == [("reminder", ()), ("escalation", ("bo",))]

    run_async(main())


def test_a_crash_at_any_write_makes_no_difference() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> Any:
        run = await runtime.start(agent.call("o-1"), id="swept")
        await runtime.run_dry()
        await runtime.advance(4 * HOUR)
        (it,) = await runtime.requests()
        if it.status == "pending":
            await runtime.approve(it.id, hash=it.hash, by="cy")
        result = await run.result()
        told = [happened.event for happened in await run.history() if happened.kind == "person.reminded"]
        return result, [getattr(event, "what", "") for event in told]

    sweep = run_async(sweep_crashes(scenario, workflows=[agent]))
    assert sweep.result == ("refunded o-1", ["reminder", "escalation"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"escalate_after": 5}, "belong together"),
        ({"escalate_to": "bo"}, "belong together"),
        ({"remind_after": 10, "within": 10}, "no earlier than"),
        ({"escalate_after": 11, "escalate_to": "bo", "within": 10}, "no earlier than"),
        ({"remind_after": 0}, "remind_after=0"),
        ({"remind_after": -1}, "remind_after"),
        ({"escalate_after": 5, "escalate_to": "bo", "by": ()}, "everybody"),
        ({"escalate_after": 5, "escalate_to": 7}, "names of persons"),
    ],
)
def test_what_could_never_happen_is_refused(options: dict[str, Any], told: str) -> None:
    ask: Any = perdure.ask
    with pytest.raises(UserCodeError, match=told):
        asyncio.run(ask("Tea?", **{"by": "ann", **options}))

"""A step or a child run that was approved begins only while its approval holds, whatever came between the two."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.runtime.hosting import kinds
from tests.runtime.test_authority import Directory

import perdure
from perdure import ApprovalExpired, Budget, Client, Idempotent, Policy, Rule, Usage, effect, step, workflow
from perdure.api import approving
from perdure.audit.verify import verify
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

DONE: list[str] = []
STOCK = {"order-1": 7}


@pytest.fixture(autouse=True)
def fresh() -> None:
    DONE.clear()
    STOCK["order-1"] = 7


@step(uses=Usage(tokens=10))
async def tell(order: str) -> str:
    DONE.append(order)
    return f"told {order}"


@workflow
async def deliver(order: str) -> str:
    DONE.append(order)
    return f"told {order}"


@step
async def stock(order: str) -> int:
    return STOCK[order]


async def gated(what: Any, order: str, **how: Any) -> str:
    """Asked for until it is made, or people are asked for the third time."""
    said: list[str] = []
    for _ in range(2):
        try:
            return " | ".join([*said, await perdure.with_approval(what.call(order), by={"boss"}, **how)])
        except ApprovalExpired as stale:
            said.append(str(stale).partition("ask again: ")[2] or str(stale))
    return " | ".join(said)


@workflow
async def on_loop(kind: str, order: str, within: int = 0) -> str:
    return await gated(CALLS[kind], order, within=within or None)


@workflow
async def in_second_chapter(kind: str, order: str, chapter: int = 1) -> str:
    if chapter == 1:
        return perdure.continue_as_new(kind, order, 2)
    return await gated(CALLS[kind], order)


@workflow
def in_a_thread(kind: str, order: str) -> str:
    said = ""
    for _ in range(2):
        try:
            made: str = perdure.sync.with_approval(CALLS[kind].call(order), by={"boss"})
            return said + made
        except ApprovalExpired as stale:
            said += str(stale).partition("ask again: ")[2] + " | "
    return said


@workflow
async def on_facts(kind: str, order: str) -> str:
    facts = {"stock": stock.call(order)}
    return await perdure.with_approval(CALLS[kind].call(order), by={"boss"}, premises=facts)


CALLS: dict[str, Any] = {"step": tell, "child": deliver}
PROGRAMS: dict[str, Any] = {
    "on the loop": on_loop, "in a second chapter": in_second_chapter, "in a thread": in_a_thread,
}  # fmt: skip


class World:
    """A store, its clock, and who has which role; one worker after the other."""

    def __init__(self, clock: FakeClock, store: MemoryStore) -> None:
        self.clock, self.store = clock, store
        self.directory = Directory(bo=["boss"], cy=["boss"])
        self.options: dict[str, Any] = {}

    def worker(self) -> RuntimeUnderTest:
        workflows = [*PROGRAMS.values(), deliver, on_facts, refunds]
        return RuntimeUnderTest(
            self.store.again(), clock=self.clock, workflows=workflows, authority=self.directory, replays=False,
            **self.options,
        )  # fmt: skip

    async def approve(self, client: Client, by: str = "bo") -> None:
        (it,) = await client.requests(status="pending")
        await client.approve(it.id, hash=it.hash, by=by, role="boss")

    async def pause_between(self, call: Any) -> tuple[RuntimeUnderTest, Any]:
        """A run of which a decision is taken in, and which is paused before what was approved begins: both letters are
        there when a worker has it again."""
        async with self.worker() as first:
            await first.start(call, id="r")
            await first.run_dry()
        async with Client(self.store.again(), clock=self.clock) as outside:
            await self.approve(outside)
            await (await outside.get("r")).pause()
        runtime = await self.worker().__aenter__()
        await runtime.run_dry()
        run = await runtime.get("r")
        assert DONE == []
        assert [it.status for it in await runtime.requests()] == ["approved"], await kinds(run)
        return runtime, run

    def damage(self) -> list[str]:
        return [str(each) for each in verify(self.store).damage]


@contextlib.asynccontextmanager
async def let_go(runtime: RuntimeUnderTest) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await runtime.__aexit__(None, None, None)


def in_a_world(schedule: Callable[[World], Awaitable[None]], **options: Any) -> World:
    clock = FakeClock()
    world = World(clock, MemoryStore(clock))
    world.options = options
    asyncio.run(schedule(world))  # type: ignore[arg-type]
    assert world.damage() == []
    return world


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("where", PROGRAMS)
@pytest.mark.parametrize("moves", [False, True])
def test_a_role_that_is_withdrawn_before_the_beginning_makes_it_stale(kind: str, where: str, moves: bool) -> None:
    """People are asked again, and whoever has the role may decide then; in the same process, and after a death."""

    async def schedule(world: World) -> None:
        runtime, run = await world.pause_between(PROGRAMS[where].call(kind, "order-1"))
        world.directory.roles["bo"] = []
        if moves:
            await runtime.die()
            runtime = await world.worker().__aenter__()
            await runtime.run_dry()
            run = await runtime.get("r")
        await run.resume()
        await runtime.run_dry()
        assert DONE == []
        await world.approve(runtime, by="cy")
        assert await run.result() == "bo is no boss | told order-1"
        assert DONE == ["order-1"]
        assert [it.status for it in await runtime.requests()] == ["used", "lapsed"]
        assert len(await runtime.list()) == (2 if kind == "child" else 1), "the child that was not to begin is none"
        await runtime.__aexit__(None, None, None)

    in_a_world(schedule)


@pytest.mark.parametrize("kind", CALLS)
def test_time_that_is_up_before_the_beginning_makes_it_stale(kind: str) -> None:
    async def schedule(world: World) -> None:
        runtime, run = await world.pause_between(on_loop.call(kind, "order-1", 60))
        async with let_go(runtime):
            await runtime.advance(timedelta(seconds=61))
            await run.resume()
            await runtime.run_dry()
            assert [it.status for it in await runtime.requests()] == ["pending", "lapsed"]
            await world.approve(runtime)
            assert "told order-1" in await run.result()
            assert DONE == ["order-1"]

    in_a_world(schedule)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("changes", [False, True])
def test_facts_that_were_read_long_ago_are_read_again(kind: str, changes: bool) -> None:
    """The run is paused after they were read, and before the call begins."""

    async def schedule(world: World) -> None:
        async with world.worker() as runtime:
            await runtime.start(on_facts.call(kind, "order-1"), id="r")
            await runtime.run_dry()
            run = await runtime.get("r")
            await world.approve(runtime)
            pauses: list[asyncio.Task[None]] = []
            runtime.watch_steps(lambda flight: pauses.append(asyncio.create_task(run.pause())))
            await runtime.run_dry()
            assert DONE == []
            runtime.watch_steps(lambda flight: None)
            STOCK["order-1"] -= changes
            await runtime.advance(timedelta(seconds=6))
            await run.resume()
            await runtime.run_dry()
            if changes:
                assert DONE == []
                await world.approve(runtime)
            assert await run.result() == "told order-1"
            assert [it.status for it in await runtime.requests()] == (["used", "lapsed"] if changes else ["used"])

    in_a_world(schedule)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("where", ["on the loop", "in a thread"])
@pytest.mark.parametrize("pauses", [False, True])
def test_while_nobody_can_tell_who_has_the_role_it_waits(kind: str, where: str, pauses: bool) -> None:
    async def schedule(world: World) -> None:
        runtime, run = await world.pause_between(PROGRAMS[where].call(kind, "order-1"))
        async with let_go(runtime):
            world.directory.is_away = True
            await run.resume()
            await runtime.advance(timedelta(seconds=3))
            assert DONE == []
            if pauses:
                await run.pause()
                await runtime.advance(timedelta(seconds=3))
            world.directory.is_away = False
            if pauses:
                await runtime.advance(timedelta(seconds=3))
                assert DONE == []
                await run.resume()
            assert await run.result() == "told order-1"

    in_a_world(schedule)


def test_a_call_that_waits_for_its_budget_asks_once_more() -> None:
    """The approval is used up when the step begins, not when it is stuck."""

    async def schedule(world: World) -> None:
        async with world.worker() as runtime:
            run = await runtime.start(on_loop.call("step", "order-1"), id="r", budget=Budget(tokens=5))
            await runtime.run_dry()
            await world.approve(runtime)
            await runtime.run_dry()
            (stuck,) = await runtime.inbox()
            assert stuck.reason == "over_budget"
            assert [it.status for it in await runtime.requests()] == ["approved"]
            world.directory.roles["bo"] = []
            await runtime.raise_budget("r", tokens=100, by="cy")
            await runtime.run_dry()
            assert DONE == []
            await world.approve(runtime, by="cy")
            assert await run.result() == "bo is no boss | told order-1"
            events = [each.event for each in await run.history()]
            spent = [event for event in events if type(event).__name__ == "BudgetSpent"]
            assert [getattr(event, "how", "") for event in spent] == ["not_begun", "told"]

    in_a_world(schedule)


def test_a_call_that_policies_refuse_in_between_uses_nothing() -> None:
    policy = Policy("p", version=1, rules=[Rule("seldom", "tell", rate="1 per hour")])

    async def schedule(world: World) -> None:
        async with world.worker() as runtime:
            runs = [await runtime.start(on_loop.call("step", f"o-{n}"), id=f"r{n}") for n in range(2)]
            await runtime.run_dry()
            for it in await runtime.requests():
                await runtime.approve(it.id, hash=it.hash, by="bo", role="boss")
            told = [await run.result(wait_blocked=True) for run in runs if not await failed(run)]
            assert len(told) == len(DONE) == 1
            assert sorted(str(it.status) for it in await runtime.requests()) == ["lapsed", "used"]

    in_a_world(schedule, policy=policy)


async def failed(run: Any) -> bool:
    try:
        await run.result()
    except perdure.PolicyDenied:
        return True
    return False


# ── one approval, one call ──────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str) -> str:
    DONE.append(order)
    return f"told {order}"


refund.key(lambda order: order)


@workflow
async def refunds(order: str) -> str:
    return await gated(refund, order)


@pytest.mark.parametrize("kind", ["step", "child", "effect"])
def test_a_used_approval_is_good_for_no_other_call_whoever_makes_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that made a second call under the same approval would be a bug of ours: it is refused where calls begin."""
    make = approving._OnLoop.make  # pyright: ignore[reportPrivateUsage]

    async def makes_two(code: Any, asked: Any, grant: Any) -> Any:
        made = await make(code, asked, grant)
        request = msgspec.structs.replace(asked.request, key="another")
        with pytest.raises(ApprovalExpired, match="used by"):
            await make(code, asked._replace(request=request), grant)
        return made

    monkeypatch.setattr(approving._OnLoop, "make", makes_two)  # pyright: ignore[reportPrivateUsage]

    async def schedule(world: World) -> None:
        async with world.worker() as runtime:
            call = refunds.call("order-1") if kind == "effect" else on_loop.call(kind, "order-1")
            run = await runtime.start(call, id="r")
            await runtime.run_dry()
            await world.approve(runtime)
            assert await run.result() == "told order-1"
            assert DONE == ["order-1"]

    in_a_world(schedule)

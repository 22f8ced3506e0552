"""115 public tasks of a shop's agent, killed before and after each of its calls, on each kind of downstream.

In the end the shop's data differs from the start by exactly what the task is to change. Where nobody can know, the run
is in the inbox with the one call in doubt, and right once it is settled.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest
from tests.retail.orders import WRITES, OrderService, Record, RefusedError, load
from tests.runtime.hosting import run_async

import perdure
from perdure import (
    CanLookUp,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Operation,
    RunBlockedError,
    effect,
    step,
    workflow,
)
from perdure.ledger import EffectState
from perdure.store.memory import MemoryStore
from perdure.store.protocol import EffectFilter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

TASKS: list[Record] = load("tasks") or []
pytestmark = pytest.mark.skipif(not TASKS, reason="the retail data is not there: PERDURE_RETAIL_DATA says where")


@cache
def data() -> tuple[Any, Any, Any]:
    return load("users"), load("orders"), load("products")


class Shop:
    """The service, and when the process that calls it dies: before or after it has done its n-th call."""

    def __init__(self, kind: str, dies_at: int | None = None, when: str = "before") -> None:
        self.service = OrderService(*data())
        self.kind, self.dies_at, self.when = kind, dies_at, when
        self.died = asyncio.Event()

    async def dies(self, turn: int, when: str) -> None:
        """Whoever calls now does not come back, once."""
        if (turn, when) == (self.dies_at, self.when) and not self.died.is_set():
            self.died.set()
            await asyncio.Event().wait()

    async def write(self, turn: int, tool: str, args: Record) -> str:
        await self.dies(turn, "before")
        operation = perdure.operation().id
        try:
            if self.kind == "idempotent" and operation in self.service.books:
                answer = self.service.books[operation]
            else:
                answer = self.service.write(operation, tool, args)
        except RefusedError as no:
            await self.dies(turn, "after")
            raise perdure.Final(str(no)) from no
        await self.dies(turn, "after")
        return answer


@step
async def think(task: int, turn: int, said: str) -> Record | None:
    """The model: it answers from a script."""
    calls = TASKS[task]["calls"]
    return calls[turn] if turn < len(calls) else None


@step
async def read(turn: int, tool: str, args: Record) -> str:
    shop = perdure.use(Shop)
    await shop.dies(turn, "before")
    try:
        answer = shop.service.read(tool, args)
    except RefusedError as no:
        answer = str(no)
    await shop.dies(turn, "after")
    return answer


@effect(downstream=Idempotent(), timeout=60)
async def idempotent(turn: int, tool: str, args: Record) -> str:
    return await perdure.use(Shop).write(turn, tool, args)


@effect(downstream=CanLookUp(settle_after=5), timeout=60)
async def can_look_up(turn: int, tool: str, args: Record) -> str:
    return await perdure.use(Shop).write(turn, tool, args)


@effect(downstream=NoGuarantee(), timeout=60)
async def no_guarantee(turn: int, tool: str, args: Record) -> str:
    return await perdure.use(Shop).write(turn, tool, args)


@idempotent.key
@can_look_up.key
@no_guarantee.key
def _(turn: int, tool: str, args: Record) -> int:
    return turn


SHOPS: list[Shop] = []


@can_look_up.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    books = SHOPS[0].service.books
    return Found(books[op.id]) if op.id in books else NotFound()


KINDS: dict[str, Any] = {"idempotent": idempotent, "can_look_up": can_look_up, "no_guarantee": no_guarantee}


@workflow
async def shop_agent(task: int, kind: str) -> list[str]:
    said: list[str] = []
    while True:
        call = await think(task, len(said), said[-1] if said else "")
        if call is None:
            return said
        tool, args = call["tool"], call["args"]
        try:
            said.append(await (KINDS[kind] if tool in WRITES else read)(len(said), tool, args))
        except perdure.Final as no:
            said.append(str(no))


async def performed(task: int, shop: Shop) -> tuple[list[str], int]:
    """What the agent heard, and how often a person was asked."""
    SHOPS[:] = [shop]
    clock = FakeClock()
    store = MemoryStore(clock)
    call = shop_agent.call(task, shop.kind)
    first = runtime_on(store, clock, shop)
    await first.__aenter__()
    run = await first.start(call, id="shop")
    if shop.dies_at is None:
        said = await run.result()
        await first.__aexit__()
        return said, 0
    await asyncio.wait_for(shop.died.wait(), 20)
    await first.die()
    async with runtime_on(store.again(), clock, shop) as second:
        run = await second.get("shop")
        try:
            return await run.result(), 0
        except RunBlockedError:
            pass
        await settle_from_the_books(second, shop, run)
        return await run.result(wait_blocked=True), 1


def runtime_on(store: Any, clock: FakeClock, shop: Shop) -> RuntimeUnderTest:
    return RuntimeUnderTest(
        store, clock=clock, workflows=[shop_agent], provide={Shop: shop}, guard=False, replays=False
    )


async def settle_from_the_books(runtime: RuntimeUnderTest, shop: Shop, run: Any) -> None:
    (doubt,) = [entry for entry in await runtime.inbox() if entry.run_id == "shop"]
    unknown = frozenset({EffectState.UNKNOWN})
    (row,) = runtime._host.store.effects(EffectFilter(status=unknown))  # pyright: ignore[reportPrivateUsage]
    assert doubt.reason == "unknown_effect"
    assert doubt.call == row.label, "it is the one call in doubt"
    assert row.business_key == str(shop.dies_at)
    done = shop.service.books.get(row.operation_id)
    if done is None:
        await run.settle("retry", by="ann")
    else:
        await run.settle("succeeded", value=done, by="ann")


def check(task: int, shop: Shop, said: list[str]) -> None:
    wanted = {tuple(path): value for path, value in TASKS[task]["final_changes"]}
    assert shop.service.changes() == wanted
    for call, answer in zip(TASKS[task]["calls"], said, strict=True):
        assert answer == call["error"] if call.get("error") else not answer.startswith("Error")
    carried_out = [operation for operation, _ in shop.service.received if operation in shop.service.books]
    assert len(carried_out) == len(set(carried_out)), "nothing is carried out twice"


@pytest.mark.parametrize("task", range(len(TASKS)))
def test_a_task_survives_a_kill_before_and_after_each_of_its_calls(task: int) -> None:
    async def main() -> None:
        calls = TASKS[task]["calls"]
        shop = Shop("idempotent")
        check(task, shop, (await performed(task, shop))[0])
        for turn, call in enumerate(calls):
            for kind in KINDS if call["tool"] in WRITES else ["idempotent"]:
                for when in ("before", "after"):
                    shop = Shop(kind, turn, when)
                    said, asked = await performed(task, shop)
                    check(task, shop, said)
                    assert asked == (kind == "no_guarantee")

    run_async(main())

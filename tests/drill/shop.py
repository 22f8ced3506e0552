"""A shop as a team would have it: its fakes, its effects of every kind, and workflows over them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import perdure
from perdure import CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Operation, Unsure, effect, step, workflow


class Bank:
    """Does what it is asked, once per key; tells what it has done."""

    def __init__(self) -> None:
        self.moved = Counter[str]()
        """What was moved, by key."""
        self.requests = Counter[str]()

    async def move(self, key: str, cents: int) -> str:
        self.requests[key] += 1
        await asyncio.sleep(0)
        self.moved[key] = cents
        return f"moved {cents}"

    async def send(self, key: str, cents: int) -> str:
        """Each time that it is asked."""
        self.requests[key] += 1
        self.moved[key] += cents
        return f"moved {cents}"

    def find(self, key: str) -> int | None:
        return self.moved.get(key)


def bank() -> dict[type, object]:
    """Anew for each trial."""
    return {Bank: Bank()}


# ── calls ───────────────────────────────────────────────────────────────────────────────────


@step
async def price(item: str) -> int:
    return len(item)


@step
def price_in_thread(item: str) -> int:
    return len(item)


@effect(downstream=Idempotent())
async def charge(order: str, cents: int) -> str:
    op = perdure.operation()
    answer = await perdure.use(Bank).move(op.id, cents)
    op.reference = f"re-{order}"
    return answer


@charge.key
def _(order: str, cents: int) -> str:
    return order


@charge.undo
async def _(result: str, order: str, cents: int) -> str:
    await perdure.use(Bank).move(perdure.operation().id, -cents)
    return f"took back {result}"


@effect(downstream=CanLookUp(settle_after=30))
async def transfer(order: str, cents: int) -> str:
    return await perdure.use(Bank).send(perdure.operation().id, cents)


@transfer.key
def _(order: str, cents: int) -> str:
    return order


@transfer.lookup
async def _(op: Operation) -> Found[str] | NotFound | Unsure:
    cents = perdure.use(Bank).find(op.id)
    return NotFound() if cents is None else Found(f"moved {cents}")


@effect(downstream=NoGuarantee())
async def post(order: str, cents: int) -> str:
    return await perdure.use(Bank).send(perdure.operation().id, cents)


@post.key
def _(order: str, cents: int) -> str:
    return order


@effect(downstream=NoGuarantee())
def post_in_thread(order: str, cents: int) -> str:
    perdure.use(Bank).requests[perdure.operation().id] += 1
    perdure.use(Bank).moved[perdure.operation().id] += cents
    return f"moved {cents}"


@post_in_thread.key
def _(order: str, cents: int) -> str:
    return order


@effect(transactional=True)
def book(order: str, cents: int) -> int:
    database = perdure.transaction()
    database.execute("CREATE TABLE IF NOT EXISTS booked (name TEXT, cents INTEGER)")
    database.execute("INSERT INTO booked VALUES (?, ?)", (order, cents))
    ((total,),) = database.execute("SELECT sum(cents) FROM booked").fetchall()
    return int(total)


@book.key
def _(order: str, cents: int) -> str:
    return order


# ── workflows ───────────────────────────────────────────────────────────────────────────────


@workflow
async def charges(order: str) -> str:
    return await charge(order, await price(order))


@workflow
async def transfers(order: str) -> str:
    return await transfer(order, await price_in_thread.call(order))


@workflow
async def posts(order: str) -> str:
    return await post(order, 5)


@workflow
async def posts_in_thread(order: str) -> str:
    return await post_in_thread.call(order, 5)


@workflow
async def books(order: str) -> int:
    first = await book.call(order, 5)
    return first + await book.call(f"{order} again", 5)


@workflow
async def all_at_once(order: str) -> list[str]:
    return list(await asyncio.gather(charge(order, 1), transfer(order, 2), post(order, 3)))


@workflow
async def takes_back(order: str) -> str:
    async with perdure.saga():
        await charge(order, 5)
        await charge(f"{order} again", 7)
        raise perdure.Final("sold out")


@workflow
async def parent(order: str) -> list[str]:
    return [await charges(order), await transfers(order)]


@workflow(receives={"approval": bool, "comment": str})
async def asks(order: str) -> str:
    if not await perdure.receive("approval", bool):
        return "refused"
    comment = await perdure.receive("comment", str, within=timedelta(days=3))
    await perdure.sleep(days=2)
    return f"{await charge(order, 5)}: {comment}"


@workflow
async def asks_people(order: str) -> str:
    cents = await perdure.ask(f"how much for {order}?", type=int)
    done = await perdure.with_approval(charge.call(order, cents), by={"ann", "supervisor"}, quorum=2)
    priced = await perdure.with_approval(price.call(order), by={"bo"})
    return f"{done}, {priced}"


@workflow
async def asks_in_vain(order: str) -> str:
    try:
        return str(await perdure.receive("approval", within=timedelta(days=3)))
    except TimeoutError:
        return await charge(order, 5)


@workflow
async def chapters(n: int) -> str:
    done = await charge(f"chapter {n}", n)
    if n < 2:
        perdure.continue_as_new(n + 1)
    return done


@workflow
def blocking(order: str) -> str:
    perdure.sync.sleep(days=1)
    return perdure.sync.wait(charge.call(order, price_in_thread(order)))


@workflow
async def tells_the_time(order: str) -> str:
    await charge(order, 5)
    return perdure.now().isoformat()

"""The shop's agent: a scripted model whose tool calls are the reference calls of a task, and the tools, by HTTP.

As a process of its own it starts, or goes on with, one run for each shop that is named:

    python -m tests.retail.agent STORE URL TASK:KIND:SHOP ...
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from tests.retail.shop import WRITES, Record, load

import perdure
from perdure import CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Operation, Runtime, effect, step, workflow

TASKS: list[Record] = load("tasks") or []


class Fate:
    """Whether the process that makes the n-th call dies before or after it. This one never does."""

    async def strike(self, turn: int, when: str) -> None:
        """Whoever is struck does not come back."""


@step
async def think(task: int, turn: int, said: str) -> Record | None:
    """The model: it answers from a script."""
    calls = TASKS[task]["calls"]
    return calls[turn] if turn < len(calls) else None


@step
async def read(shop: int, turn: int, tool: str, args: Record) -> str:
    """A tool that only reads. What the service refuses, the agent hears."""
    fate, orders = perdure.use(Fate), perdure.use(httpx.AsyncClient)
    await fate.strike(turn, "before")
    try:
        answer = await orders.get(f"/shops/{shop}/tools/{tool}", params={"args": json.dumps(args)})
        said = answer.json()["answer"]
    except httpx.HTTPStatusError as no:
        said = refusal(no)
    await fate.strike(turn, "after")
    return str(said)


def refusal(no: httpx.HTTPStatusError) -> str:
    """What the service says when it refuses. Anything else is an error."""
    if no.response.status_code != 409:
        raise no
    return str(no.response.json()["error"])


async def change(shop: int, turn: int, tool: str, route: str, body: Record) -> str:
    """A tool that changes something, on one of the three routes."""
    fate, orders = perdure.use(Fate), perdure.use(httpx.AsyncClient)
    await fate.strike(turn, "before")
    try:
        answer = await orders.post(f"/shops/{shop}/{route}/{tool}", json=body)
    except httpx.HTTPStatusError as no:
        await fate.strike(turn, "after")
        raise perdure.Final(refusal(no)) from no
    await fate.strike(turn, "after")
    return str(answer.json()["answer"])


@effect(downstream=Idempotent(), timeout=60)
async def idempotent(shop: int, turn: int, tool: str, args: Record) -> str:
    return await change(shop, turn, tool, "keyed", {"args": args})  # the client sends the key


@effect(downstream=CanLookUp(settle_after=5), timeout=60)
async def can_look_up(shop: int, turn: int, tool: str, args: Record) -> str:
    return await change(shop, turn, tool, "referenced", {"args": args, "reference": perdure.operation().id})


@can_look_up.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    orders = perdure.use(httpx.AsyncClient)
    answer = await orders.get(f"/shops/{op.arguments['shop']}/books", params={"reference": op.id})
    books = answer.json()["books"]
    return Found(books[0]["answer"]) if books else NotFound()


@effect(downstream=NoGuarantee(), timeout=60)
async def no_guarantee(shop: int, turn: int, tool: str, args: Record) -> str:
    return await change(shop, turn, tool, "bare", {"args": args})


@idempotent.key
@can_look_up.key
@no_guarantee.key
def _(shop: int, turn: int, tool: str, args: Record) -> int:
    return turn


KINDS: dict[str, Any] = {"idempotent": idempotent, "can_look_up": can_look_up, "no_guarantee": no_guarantee}


@workflow
async def shop_agent(task: int, kind: str, shop: int) -> list[str]:
    said: list[str] = []
    while True:
        call = await think(task, len(said), said[-1] if said else "")
        if call is None:
            return said
        tool, args = call["tool"], call["args"]
        try:
            said.append(await (KINDS[kind] if tool in WRITES else read)(shop, len(said), tool, args))
        except perdure.Final as no:
            said.append(str(no))


async def main(store: str, url: str, named: list[str]) -> None:
    async with (
        perdure.http.client(base_url=url) as orders,
        Runtime(store, workflows=[shop_agent], provide={httpx.AsyncClient: orders, Fate: Fate()}) as runtime,
    ):
        runs = [
            await runtime.start(shop_agent.call(int(task), kind, int(shop)), id=f"shop-{shop}")
            for task, kind, shop in (each.split(":") for each in named)
        ]
        for run in runs:
            await run.result(wait_blocked=True)


if __name__ == "__main__":
    store, url, *named = sys.argv[1:]
    asyncio.run(main(store, url, named))

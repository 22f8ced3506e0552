"""An application that may go live: every question of the checklist that a reader can answer, it answers well."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx

import perdure
from perdure import (
    CanLookUp,
    Client,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Unsure,
    effect,
    step,
    workflow,
)


class Post:
    """A service without keys and without answers."""

    async def send(self, letter: str) -> str:
        return f"posted {letter}"


@asynccontextmanager
async def provide() -> AsyncGenerator[dict[type, object]]:
    async with perdure.http.client(base_url="http://127.0.0.1:9", timeout=10) as client:
        yield {httpx.AsyncClient: client, Post: Post()}


@step(retry=perdure.Retry(max_attempts=5), timeout=60, secrets={"claims-token"})
async def read_claim(claim: str) -> str:
    headers = {"Authorization": perdure.secret("claims-token")}
    answer = await perdure.use(httpx.AsyncClient).get(f"/claims/{claim}", headers=headers)
    return answer.text


@effect(downstream=Idempotent(), timeout=30)
async def charge(claim: str, cents: int) -> str:
    return (await perdure.use(httpx.AsyncClient).post("/charges", json={"claim": claim, "cents": cents})).text


@charge.key
def _(claim: str, cents: int) -> str:
    return claim


@charge.undo
async def _(receipt: str, claim: str, cents: int) -> None:
    await perdure.use(httpx.AsyncClient).post("/refunds", json={"of": perdure.operation().id})


@effect(downstream=CanLookUp(settle_after=30))
async def transfer(claim: str, cents: int) -> str:
    return (await perdure.use(httpx.AsyncClient).post("/transfers", json={"ref": perdure.operation().id})).text


@transfer.key
def _(claim: str, cents: int) -> str:
    return claim


@transfer.lookup
async def _(op: perdure.Operation) -> Found[str] | NotFound | Unsure:
    try:
        answer = await perdure.use(httpx.AsyncClient).get(f"/transfers/{op.id}")
    except httpx.HTTPStatusError as error:
        return NotFound() if error.response.status_code == 404 else Unsure(str(error))
    return Found(answer.text)


@effect(downstream=NoGuarantee(), risk="high")
async def write_to(claim: str) -> str:
    return await perdure.use(Post).send(claim)


@write_to.key
def _(claim: str) -> str:
    return claim


@workflow
async def handle(claim: str) -> str:
    text = await read_claim(claim)
    try:
        async with perdure.saga():
            await perdure.with_approval(
                charge.call(claim, len(text)), by={"supervisor"}, within=timedelta(days=3),
                premises={"text": read_claim.call(claim)}, note="as usual",
            )  # fmt: skip
            await transfer(claim, len(text))
    except perdure.Rejected:
        return "rejected"
    await perdure.receive("signed", bool, within=timedelta(days=30))
    return await write_to(claim)


async def what_waits() -> list[str]:
    """What the team's own page shows."""
    async with Client() as client:
        return [str(entry.reason) for entry in await client.inbox()]

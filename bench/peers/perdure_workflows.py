"""The workflows as perdure has them."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
import work
from perdure import step, workflow


@step
async def quick(number: int) -> dict[str, Any]:
    return await work.quick(number)


@step
async def slow(number: int) -> dict[str, Any]:
    return await work.slow(number)


@step
async def last(number: int) -> dict[str, Any]:
    return await work.last(number)


@step
async def respond(messages: list[str], turn: int) -> str:
    return work.reply(turn)


@step
async def extend(messages: list[str], turn: int) -> list[str]:
    return [*messages, work.question(turn), work.reply(turn)]


@workflow
async def seq(n: int) -> None:
    for k in range(n):
        await quick(k)


@workflow
async def gather(n: int) -> None:
    await asyncio.gather(*[quick(k) for k in range(n)])


@workflow
async def slow_run(n: int) -> None:
    for k in range(n):
        await slow(k)


@workflow
async def long(n: int) -> None:
    for k in range(n):
        await quick(k)
    await last(n)


@workflow
async def park(n: int) -> None:
    await quick(0)
    work.PARKED["runs"] += 1
    await perdure.sleep(3600)


@workflow
async def chat(n: int) -> None:
    messages: list[str] = []
    for turn in range(n):
        messages.append(work.question(turn))
        messages.append(await respond(messages, turn))


@workflow
async def thread(n: int) -> None:
    messages: list[str] = []
    for turn in range(n):
        messages = await extend(messages, turn)


WORKFLOWS = {"seq": seq, "gather": gather, "slow": slow_run, "long": long, "park": park, "chat": chat, "thread": thread}

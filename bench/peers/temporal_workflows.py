"""The workflows as Temporal has them: classes, and activities by name. The 10 s are ours; Temporal demands a limit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import work

LIMIT = timedelta(seconds=10)


@activity.defn
async def quick(number: int) -> dict[str, Any]:
    return await work.quick(number)


@activity.defn
async def slow(number: int) -> dict[str, Any]:
    return await work.slow(number)


@activity.defn
async def last(number: int) -> dict[str, Any]:
    return await work.last(number)


@activity.defn
async def respond(messages: list[str], turn: int) -> str:
    return work.reply(turn)


@activity.defn
async def extend(messages: list[str], turn: int) -> list[str]:
    return [*messages, work.question(turn), work.reply(turn)]


def do(what: Any, *arguments: Any) -> Any:
    return workflow.execute_activity(what, args=arguments, start_to_close_timeout=LIMIT)


@workflow.defn(name="seq")
class Seq:
    @workflow.run
    async def run(self, n: int) -> None:
        for k in range(n):
            await do(quick, k)


@workflow.defn(name="gather")
class Gather:
    @workflow.run
    async def run(self, n: int) -> None:
        await asyncio.gather(*[do(quick, k) for k in range(n)])


@workflow.defn(name="slow")
class Slow:
    @workflow.run
    async def run(self, n: int) -> None:
        for k in range(n):
            await do(slow, k)


@workflow.defn(name="long")
class Long:
    @workflow.run
    async def run(self, n: int) -> None:
        for k in range(n):
            await do(quick, k)
        await do(last, n)


@workflow.defn(name="park")
class Park:
    @workflow.run
    async def run(self, n: int) -> None:
        await do(quick, 0)
        work.PARKED["runs"] += 1
        await asyncio.sleep(3600)


@workflow.defn(name="chat")
class Chat:
    @workflow.run
    async def run(self, n: int) -> None:
        messages: list[str] = []
        for turn in range(n):
            messages.append(work.question(turn))
            messages.append(await do(respond, messages, turn))


@workflow.defn(name="thread")
class Thread:
    @workflow.run
    async def run(self, n: int) -> None:
        messages: list[str] = []
        for turn in range(n):
            messages = await do(extend, messages, turn)


WORKFLOWS = [Seq, Gather, Slow, Long, Park, Chat, Thread]
ACTIVITIES = [quick, slow, last, respond, extend]

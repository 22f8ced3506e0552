"""Run by several Pythons on one store: `program.py record STORE`, later, elsewhere, `program.py go_on STORE`.

The workflow leans on everything in asyncio whose insides differ between Pythons, and writes down in which order things
happened. What it wrote before its wait is its state; what it returns was written again by the replay.
"""

from __future__ import annotations

import asyncio
import json
import sys

import perdure
from perdure import step, workflow


@step
async def fetch(name: str, milliseconds: int) -> str:
    await asyncio.sleep(milliseconds / 1000)
    return name


async def pipeline(name: str, pauses: list[int], trace: list[str]) -> str:
    for n, pause in enumerate(pauses):
        trace.append(await fetch(f"{name}{n}", pause))
    return name


async def late(trace: list[str]) -> None:
    try:
        async with asyncio.timeout(0.02):
            await fetch("never", 5_000)
    except TimeoutError:
        trace.append("timeout")


@workflow
async def everything(_: int) -> list[str]:
    trace: list[str] = []
    await asyncio.gather(*(pipeline(name, pauses, trace) for name, pauses in PAUSES.items()))
    for finished in asyncio.as_completed([fetch("slow", 30), fetch("quick", 2), fetch("middling", 15)]):
        trace.append(await finished)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pipeline(name, pauses, trace)) for name, pauses in PAUSES.items()]
    trace += [task.result() for task in tasks]
    done, rest = await asyncio.wait(
        {asyncio.ensure_future(fetch("first", 1)), asyncio.ensure_future(fetch("second", 200))},
        return_when=asyncio.FIRST_COMPLETED,
    )
    trace += [str(task.result()) for task in done]
    for task in rest:
        task.cancel()
    trace.append(await asyncio.wait_for(fetch("in time", 1), 10))
    await late(trace)
    queue: asyncio.Queue[str] = asyncio.Queue(1)
    async with asyncio.TaskGroup() as group:
        group.create_task(fill(queue))
        for _ in range(3):
            trace.append(await queue.get())
    trace += [str(perdure.random()), str(perdure.uuid4()), perdure.now().isoformat()]
    perdure.set_state(trace)
    await perdure.receive("go")
    return trace


async def fill(queue: asyncio.Queue[str]) -> None:
    for n in range(3):
        await queue.put(await fetch(f"item{n}", 3 - n))


PAUSES = {"a": [9, 1, 4], "b": [1, 7, 2], "c": [5, 5, 5], "d": [2, 2, 2]}


async def record(store: str) -> None:
    async with perdure.Runtime(store, workflows=[everything]) as runtime:
        run = await runtime.start(everything.call(1), id="run")
        while await run.state() is None:
            await asyncio.sleep(0.01)
        print(json.dumps(await run.state()))


async def go_on(store: str) -> None:
    async with perdure.Runtime(store, workflows=[everything]) as runtime:
        run = await runtime.start(everything.call(1), id="run")
        await run.send("go")
        print(json.dumps(await run.result(timeout=60)))


if __name__ == "__main__":
    asyncio.run({"record": record, "go_on": go_on}[sys.argv[1]](sys.argv[2]))

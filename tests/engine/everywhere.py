"""One workflow of everything that could depend on the process it runs in, and how it is recorded and replayed.

    python -c "from tests.engine.everywhere import main; main()" > tests/engine/recorded.jsonl

Hash seeds, addresses and Python versions decide in which order sets iterate and which task runs what. Here they must
decide nothing.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
from tests.engine.driving import Driver, Happened, argument_of

import perdure
from perdure import step, workflow
from perdure.engine import exact
from perdure.engine.calls import StepAsk
from perdure.history import events as e

RECORDED = Path(__file__).with_name("recorded.jsonl")


@step
async def work(item: int) -> int:
    return item


@step
async def tidy(item: int) -> int:
    return item


class Breaks(Exception):
    pass


@step(raises=[Breaks])
async def breaks(item: int) -> int:
    raise Breaks(str(item))


async def bare_coroutines() -> list[int]:
    """The stock as_completed starts them in the order of a set: of their addresses."""
    return [await soonest for soonest in asyncio.as_completed([work(n) for n in range(8)])]


async def sets_of_tasks() -> list[int]:
    pending = {asyncio.create_task(work(n + 100)) for n in range(8)}
    order: list[int] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        order += [await tidy(task.result()) for task in done if not task.cancelled()]
        if len(pending) == 4:
            for task in pending:
                task.cancel()
    return order


async def limited() -> list[str]:
    async def both(item: int) -> int:
        return await work(item) + await work(item + 1)

    seen: list[str] = []
    for item, seconds in ((200, 60), (210, 0.005), (220, 0)):
        try:
            seen.append(str(await asyncio.wait_for(both(item), seconds)))
        except TimeoutError:
            seen.append(f"late {await tidy(item)}")
    return seen


async def aborted() -> list[str]:
    async def sibling(item: int) -> int:
        try:
            return await (breaks(item) if item == 303 else work(item))
        except asyncio.CancelledError:
            await tidy(item)
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for item in range(300, 308):
                group.create_task(sibling(item))
    except ExceptionGroup as group_of_errors:
        told = [str(error) for error in group_of_errors.exceptions]
    else:
        told = ["none"]
    return told


async def shielded() -> int:
    inner = asyncio.ensure_future(asyncio.gather(work(400), work(401)))
    try:
        async with asyncio.timeout(0.002):
            await asyncio.shield(inner)
    except TimeoutError:
        await tidy(400)
    return sum(await inner)


async def queued() -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    taken: list[int] = []

    async def consume() -> None:
        while True:
            item = await queue.get()
            taken.append(await work(item))
            queue.task_done()

    consumers = {asyncio.create_task(consume()) for _ in range(3)}
    for item in range(500, 506):
        await queue.put(item)
    await queue.join()
    for consumer in consumers:
        consumer.cancel()
    await asyncio.wait(consumers)
    return taken


async def slept() -> list[str]:
    drawn = [f"{perdure.random():.6f}", str(perdure.uuid4())]
    await perdure.sleep(0.01)
    await asyncio.gather(*(perdure.sleep(n / 100) for n in range(5)))
    try:
        drawn.append(await perdure.receive("m", str, within=0.01))
    except TimeoutError:
        drawn.append("no message")
    return [*drawn, perdure.now().isoformat()]


@workflow
async def everything() -> dict[str, Any]:
    parts = (bare_coroutines, sets_of_tasks, limited, aborted, shielded, queued, slept)
    results = await asyncio.gather(*(part() for part in parts))
    return {part.__name__: result for part, result in zip(parts, results, strict=True)}


def record(order: int) -> Driver:
    """Run it, with outcomes in an order that only depends on `order`."""
    driver = Driver(everything)
    choose = random.Random(order)
    while not driver.is_over:
        steps = [ask for ask in driver.execution.open.values() if isinstance(ask, StepAsk)]
        if not steps or choose.random() < 0.1:
            if driver.execution.deadline() is not None:
                driver.wake()
            continue
        ask = choose.choice(steps)
        if ask.name == "breaks":
            driver.fail(ask.label, Breaks("303"))
        else:
            driver.complete(ask, argument_of(ask))
    return driver


def dump(driver: Driver) -> str:
    """A history and its result as text, one event a line."""
    lines: list[Any] = [
        {"event": msgspec.json.decode(e.encode(h.event)), "at": h.at, "raw": None if h.raw is None else h.raw.decode()}
        for h in driver.history
    ]
    return "\n".join(msgspec.json.encode(line).decode() for line in [*lines, {"result": driver.result()}])


def load(text: str) -> tuple[list[Happened], Any]:
    """What `dump` wrote."""
    *lines, last = (msgspec.json.decode(line) for line in text.splitlines())
    history = [
        Happened(e.decode(msgspec.json.encode(line["event"])), line["at"], line["raw"] and line["raw"].encode())
        for line in lines
    ]
    return history, last["result"]


def main() -> None:
    """Print the recorded history."""
    exact.install()
    sys.stdout.write(dump(record(1)) + "\n")

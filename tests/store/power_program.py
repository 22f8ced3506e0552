"""A program that says what may be relied on: python power_program.py DATABASE [SYNCHRONOUS]. See `power`.

Several runs at once with steps, effects, large values, a growing conversation and messages: enough for SQLite to begin
its log again from its start.
"""

from __future__ import annotations

import asyncio
import sys

from tests.store.power import say

import perdure
from perdure import Idempotent, effect, step, workflow
from perdure.store.sqlite import connect

STEPS, RUNS, ALONE = 30, 3, 220


@step
async def answer(talk: list[str]) -> str:
    return f"answer {len(talk)} " + "x" * (3000 if len(talk) % 7 == 0 else 150)


@effect(downstream=Idempotent())
async def pay(order: str) -> str:
    say(f"sends {order}")
    return f"receipt of {order}"


@pay.key
def _(order: str) -> str:
    return order


@workflow
async def talks(name: str, steps: int) -> str:
    talk: list[str] = []
    for n in range(steps):
        talk.append(await answer(talk[-20:]))
        say(f"answered {name} {n + 1}")
        if n % 5 == 0:
            await pay(f"{name}-{n}")
            say(f"paid {name}-{n}")
    if steps == STEPS:
        said = await perdure.receive("last")
        say(f"received {name}")
        talk.append(said)
    return talk[-1]


async def main(url: str) -> None:
    async with perdure.Runtime(url, workflows=[talks]) as runtime:
        runs: list[perdure.Run[str]] = []
        for n in range(RUNS):
            runs.append(await runtime.start(talks.call(f"r{n}", STEPS), id=f"r{n}"))
            say(f"started r{n}")
        for n, run in enumerate(runs):
            await run.send("last", f"bye {n}")
            say(f"told r{n}")
        for n, run in enumerate(runs):
            await run.result()
            say(f"ended r{n}")
        alone = await runtime.start(talks.call("alone", ALONE), id="alone")
        say("started alone")
        await alone.result()
        say("ended alone")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        configure = connect.configure

        def careless(connection: object, **options: object) -> None:
            configure(connection, **options)  # type: ignore[arg-type]
            connection.execute(f"PRAGMA synchronous = {sys.argv[2]}")  # type: ignore[attr-defined]

        connect.configure = careless
    asyncio.run(main(sys.argv[1]))

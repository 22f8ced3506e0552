"""Decisions from before are checked before they are acted upon: the log can be replayed, the world cannot.

    python examples/standing_decisions.py

Three refunds are decided, then nobody is there for a while. Meanwhile the policy changes for one of them, the limit of
another is raised, and the third is settled by hand.
"""

import asyncio
import tempfile
from pathlib import Path

import perdure
from perdure import Idempotent, Runtime, effect, step, workflow

CHECKED_SECONDS = 5.0  # what was read is good for so long

share = {"tea": 50, "milk": 50, "cake": 50}  # percent, by policy
limit = {"tea": 1_000, "milk": 1_000, "cake": 1_000}
settled: set[str] = set()  # by hand


@step
async def decide(order: str) -> int:
    cents = 0 if order in settled else min(800 * share[order] // 100, limit[order])
    print(f"  the model decides: {order} gets {cents}")
    return cents


@decide.premise("share")
async def _(order: str) -> int:
    return share[order]


@decide.premise("limit", same=lambda then, now: now >= then)  # a higher one changes nothing
async def _(order: str) -> int:
    return limit[order]


@decide.premise("settled")
async def _(order: str) -> bool:
    return order in settled


@effect(downstream=Idempotent())
async def refund(order: str, cents: int) -> str:
    return f"{cents} are refunded"


@refund.key
def _(order: str, cents: int) -> str:
    return f"{order}:{cents}"


@effect(downstream=Idempotent())
async def tell(order: str, what: str) -> str:
    return what


@tell.key
def _(order: str, what: str) -> str:
    return order


@workflow
async def refunds(order: str) -> str:
    cents = await decide(order)
    await perdure.receive("go")
    if not cents:
        return await tell(order, "it was settled by hand, and nothing is sent")
    return await refund(order, cents)


async def main(store: str) -> None:
    async with Runtime(store, workflows=[refunds]) as runtime:
        for order in share:
            await runtime.start(refunds.call(order), id=order)
            await asyncio.sleep(0.1)
    print("nobody is there")
    share["tea"], limit["milk"] = 80, 2_000
    settled.add("cake")
    await asyncio.sleep(CHECKED_SECONDS + 0.1)
    async with Runtime(store, workflows=[refunds]) as runtime:
        for order in share:
            run = await runtime.get(order)
            await run.send("go")
            print(f"{order}: {await run.result()}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(str(Path(folder) / "refunds.db")))

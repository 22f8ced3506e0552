"""What a team may spend in a day, in money and from a price list; a run that is over it waits, and nothing is lost.

    python examples/budget.py
"""

import asyncio
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import perdure
from perdure import Budget, Runtime, Usage, step, workflow

PRICES = """
currency = "EUR"
[[price]]
model = "large-1"
as_of = 2026-01-01
input = 2.00            # for a million tokens
output = 8.00
"""


@step(uses=Usage(tokens=30_000, cost=Decimal("0.10")))          # what an attempt is expected to use at most
async def summarise(text: str) -> str:
    perdure.used(model="large-1", input_tokens=20_000, output_tokens=5_000)         # what it used: 0.08 by the list
    return text.upper()


@workflow
async def digest(*texts: str) -> list[str]:
    return [await summarise(text) for text in texts]


async def main() -> None:
    daily = Budget(cost=Decimal("0.30"), tag="team", per=timedelta(days=1))
    async with Runtime("budget.db", workflows=[digest], budgets=[daily], prices="prices.toml") as runtime:
        first = await runtime.start(digest.call("tea", "milk"), id="digest-1", tags={"team": "x"})
        print(await first.result())
        second = await runtime.start(digest.call("cake", "bread"), id="digest-2", tags={"team": "x"})
        try:
            await second.result()
        except perdure.RunBlockedError as blocked:
            print(blocked.reason)
        (entry,) = await runtime.inbox()
        it = entry.budget
        assert it is not None
        print(f"{entry.call} wants {it.unit} {it.wanted}, {it.used} of {it.limit} used today")
        await runtime.raise_budget("digest-2", cost=1, by="ann", reason="nobody waits until tomorrow for bread")
        print(await second.result())


if __name__ == "__main__":
    Path("prices.toml").write_text(PRICES)
    asyncio.run(main())

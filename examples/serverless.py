"""No process stays alive: each call does what is due, and leaves. For serverless functions and cron.

    python examples/serverless.py new A-1     an invoice is sent
    python examples/serverless.py             called now and then: reminds of what has not been paid
    python examples/serverless.py paid A-1    the invoice is paid
"""

import asyncio
import sys

import perdure
from perdure import Runtime, step, workflow

PATIENCE_SECONDS = 0.5  # days, in earnest


@step
async def send(letter: str) -> None:
    print(f"sent: {letter}")


@workflow
async def invoice(number: str) -> str:
    await send(f"invoice {number}")
    for reminder in (1, 2):
        try:
            await perdure.receive("paid", within=PATIENCE_SECONDS)
        except TimeoutError:
            await send(f"reminder {reminder} of {number}")
        else:
            return "paid"
    return "given to the lawyers"


async def handler(words: list[str]) -> None:
    async with Runtime(workflows=[invoice]) as runtime:
        match words:
            case ["new", number]:
                await runtime.start(invoice.call(number), id=number)
            case ["paid", number]:
                await (await runtime.get(number)).send("paid")
            case _:
                pass
        await runtime.drain(max_seconds=10)
        for summary in await runtime.list():
            print(f"{summary.id}: {summary.status}")


if __name__ == "__main__":
    asyncio.run(handler(sys.argv[1:]))

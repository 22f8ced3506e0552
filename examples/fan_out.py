"""Many steps at once, a few at a time, and no lost work when some of them fail.

    python examples/fan_out.py
"""

import asyncio

import perdure
from perdure import Retry, step, workflow


@step(retry=Retry(max_attempts=2, first_delay=0.01))
async def summarize(page: int) -> str:
    if page == 3:
        raise perdure.Final(f"page {page} cannot be read")
    if page == 4 and perdure.attempt().number == 1:
        raise ConnectionError("once")
    await asyncio.sleep(0.02)
    return f"summary {page}"


@workflow
async def digest(pages: int) -> list[str]:
    at_once = asyncio.Semaphore(3)

    async def one(page: int) -> str:
        async with at_once:
            return await summarize(page)

    outcomes = await asyncio.gather(*(one(page) for page in range(pages)), return_exceptions=True)
    return [outcome if isinstance(outcome, str) else f"failed: {outcome}" for outcome in outcomes]


async def main() -> None:
    async with perdure.Runtime(":memory:", workflows=[digest]) as runtime:
        run = await runtime.start(digest.call(6))
        print("\n".join(await run.result()))
        attempts = sum(event.kind == "step.attempt_failed" for event in await run.history())
        print(f"{attempts} attempt failed and was made again")


if __name__ == "__main__":
    asyncio.run(main())

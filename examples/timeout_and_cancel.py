"""Limits of time, and cleaning up when somebody cancels.

    python examples/timeout_and_cancel.py
"""

import asyncio

import perdure
from perdure import step, workflow


@step
async def reserve(what: str) -> str:
    print(f"  reserved: {what}")
    return what


@step
async def release(what: str) -> None:
    print(f"  released: {what}")


@step
async def price_from(source: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"a price from {source}"


@workflow
async def booking() -> str:
    room = await reserve("room")
    try:
        async with asyncio.timeout(0.05):  # how long the run waits, retries included
            price = await price_from("a slow service", 60)
    except TimeoutError:
        price = await price_from("a fast service", 0)
    print(f"  {price}")
    try:
        return await perdure.receive("confirmation", str)
    except asyncio.CancelledError:
        await release(room)
        raise


async def main() -> None:
    async with perdure.Runtime(":memory:", workflows=[booking]) as runtime:
        run = await runtime.start(booking.call(), id="booking")
        await asyncio.sleep(0.3)
        print("cancel:", await run.cancel("the trip is off"))
        try:
            await run.result()
        except perdure.RunCancelledError as error:
            print(error)
        print("cancel again:", await run.cancel())


if __name__ == "__main__":
    asyncio.run(main())

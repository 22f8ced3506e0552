"""What if? A fork goes another way from a point of a finished run, and pays nobody twice.

    python examples/fork.py
"""

import asyncio

import perdure
from perdure import Idempotent, Runtime, effect, step, workflow


@step
async def estimate(claim: str) -> int:
    print(f"  the model estimates {claim}")
    return 400


@effect(downstream=Idempotent())
async def pay(claim: str, cents: int) -> str:
    print(f"  {cents} are paid for {claim}")
    return f"receipt for {cents}"


@pay.key
def _(claim: str, cents: int) -> str:
    return claim


@workflow
async def settle(claim: str) -> str:
    amount = await estimate(claim)
    granted = await perdure.receive("granted", int)
    return await pay(claim, min(amount, granted))


async def main() -> None:
    async with Runtime(":memory:", workflows=[settle]) as runtime:
        run = await runtime.start(settle.call("claim-7"), id="claim-7")
        await run.send("granted", 300)
        print("the run:", await run.result())

        before_grant = next(each.seq for each in await run.history() if each.kind == "message.arrived") - 1
        fork = await run.fork(before_grant, id="claim-7 anew", by="ann", reason="the limit was wrong")
        await fork.send("granted", 350)
        while not (entries := await runtime.inbox()):
            await asyncio.sleep(0.01)
        (entry,) = entries
        print(f"{entry.run_id} waits: {entry.reason}")
        await fork.unblock("reuse", by="ann", reason="300 is what the customer has")
        print("the fork:", await fork.result(wait_blocked=True))


if __name__ == "__main__":
    asyncio.run(main())

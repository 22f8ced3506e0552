"""A model decides about refunds, and a policy about what may come of that.

    python examples/policy.py 400          pre-authorised by the policy
    python examples/policy.py 4000         asks a supervisor first
    python examples/policy.py 40000        refused: ten times what an order may cost

The policy is examples/policy.toml; try it: perdure code policy examples/policy.toml --call 'refund({"cents": 400})'
"""

import asyncio
import sys
from pathlib import Path

import perdure
from perdure import Idempotent, Policy, PolicyDenied, Runtime, effect, step, workflow

SHOP = Policy.load(Path(__file__).with_name("policy.toml"))


@step
async def decide(cents: str) -> int:
    return int(cents)  # what a model made of the customer's letter


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str, cents: int, currency: str = "EUR") -> str:
    return f"refunded {cents} {currency} of order {order}"


@refund.key
def _(order: str, cents: int, currency: str = "EUR") -> str:
    return order


@workflow(policy=SHOP)
async def agent(order: str, letter: str) -> str:
    cents = await decide(letter)
    try:
        if cents <= 1000:
            return await refund(order, cents)
        return await perdure.with_approval(refund.call(order, cents), by={"supervisor"}, note="as the model says")
    except PolicyDenied as no:
        return f"denied by rule {no.rule!r}: {no.why}"


async def main(letter: str) -> None:
    async with Runtime(":memory:", workflows=[agent]) as runtime:
        run = await runtime.start(agent.call("42", letter), goal="make order 42 right", scope={"order": "42"})
        while not (await run.status()).is_final:
            for it in await runtime.requests(status="pending"):
                print(f"{it.goal}: {it.subject} {it.arguments['cents']}? {it.policy} wants to know")
                await runtime.approve(it.id, hash=it.hash, by="Ada", role="supervisor")
            await asyncio.sleep(0.01)
        print(await run.result())
        for entry in await runtime.inbox():
            print(f"in the inbox: {entry.reason}, {entry.sent}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [cents]:
            asyncio.run(main(cents))
        case _:
            sys.exit(__doc__)

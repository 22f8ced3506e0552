"""A person decides about exactly one call: the run asks, waits without a process, and goes on when the answer is there.

    python examples/approval.py ask          starts the run, and leaves
    python examples/approval.py show         what is asked
    python examples/approval.py yes | no     decides, and lets the run finish
"""

import asyncio
import sys
from datetime import timedelta

import perdure
from perdure import Client, Idempotent, Runtime, effect, step, workflow


@step
async def draft(topic: str) -> str:
    return f"an essay about {topic}"


@effect(downstream=Idempotent(), reversible=False)
async def publish(text: str) -> str:
    print(f"published: {text}")
    return "published"


@publish.key
def _(text: str) -> str:
    return text


@workflow
async def essay(topic: str) -> str:
    text = await draft(topic)
    try:
        return await perdure.with_approval(publish.call(text), by={"Ada"}, within=timedelta(days=3))
    except perdure.Rejected as no:
        return f"dropped by {no.by}: {no.comment}"
    except perdure.ApprovalExpired:
        return "nobody decided"


async def ask() -> None:
    async with Runtime(workflows=[essay]) as runtime:
        await runtime.start(essay.call("tea"), id="essay")
        await runtime.drain()
    print("asked; nothing runs now")


async def show() -> None:
    async with Client() as client:
        (it,) = await client.requests(run="essay", status="pending")
        print(f"{it.subject}({it.arguments['text']!r})? {', '.join(it.approvers)} may say")


async def decide(choice: str) -> None:
    async with Runtime(workflows=[essay]) as runtime:
        (it,) = await runtime.requests(run="essay", status="pending")
        if choice == "yes":
            await runtime.approve(it.id, hash=it.hash, by="Ada")
        else:
            await runtime.reject(it.id, hash=it.hash, by="Ada", comment="too short")
        print(await (await runtime.get("essay")).result())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask"]:
            asyncio.run(ask())
        case ["show"]:
            asyncio.run(show())
        case ["yes" | "no" as choice]:
            asyncio.run(decide(choice))
        case _:
            sys.exit(__doc__)

"""A person decides: the run shows what it asks, waits without a process, and goes on when the answer is there.

    python examples/approval.py ask          starts the run, and leaves
    python examples/approval.py show         what is asked
    python examples/approval.py answer yes   answers, and lets the run finish
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import timedelta

import perdure
from perdure import Client, Runtime, step, workflow


@dataclass(frozen=True)
class Answer:
    question: str
    approved: bool
    by: str


@step
async def draft(topic: str) -> str:
    return f"an essay about {topic}"


@step
async def publish(text: str) -> str:
    print(f"published: {text}")
    return "published"


@workflow(receives={"answer": Answer})
async def essay(topic: str) -> str:
    text = await draft(topic)
    question = str(perdure.uuid4())
    perdure.set_state({"question": question, "text": text})
    while True:
        try:
            answer = await perdure.receive("answer", Answer, within=timedelta(days=3))
        except TimeoutError:
            return "nobody answered"
        if answer.question == question:  # one to an earlier question, perhaps
            break
    perdure.set_state(None)
    return await publish(text) if answer.approved else f"dropped by {answer.by}"


async def ask() -> None:
    async with Runtime(workflows=[essay]) as runtime:
        run = await runtime.start(essay.call("tea"), id="essay")
        while await run.state() is None:
            await asyncio.sleep(0.01)
    print("asked; nothing runs now")


async def show() -> None:
    async with Client(workflows=[essay]) as client:
        run = await client.get("essay")
        state = await run.state()
        print(f"{await run.status()}: publish {state['text']!r}?")


async def answer(said: str) -> None:
    async with Runtime(workflows=[essay]) as runtime:
        run = await runtime.get("essay")
        state = await run.state()
        await run.send("answer", Answer(state["question"], approved=said == "yes", by="Ada"))
        print(await run.result())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask"]:
            asyncio.run(ask())
        case ["show"]:
            asyncio.run(show())
        case ["answer", said]:
            asyncio.run(answer(said))
        case _:
            sys.exit(__doc__)

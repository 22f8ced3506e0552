"""A conversation that never ends: a run that begins a new chapter every few turns, so that its history stays short.

    python examples/chat.py
"""

import asyncio

import perdure
from perdure import step, workflow

TURNS_PER_CHAPTER = 2


@step
async def ask_model(messages: list[str]) -> str:
    return f"answer {(len(messages) + 1) // 2}"


@workflow(receives={"user": str})
async def chat(messages: list[str]) -> list[str]:
    for _ in range(TURNS_PER_CHAPTER):
        said = await perdure.receive("user", str)
        if said == "bye":
            return messages
        messages.append(said)
        messages.append(await ask_model(messages))
        perdure.set_state(messages[-1])
    return perdure.continue_as_new(messages)


async def main() -> None:
    async with perdure.Runtime(":memory:", workflows=[chat]) as runtime:
        run = await runtime.start(chat.call([]), id="chat")
        for said in ("hello", "how are you", "what is new", "bye"):
            await run.send("user", said)
        print(await run.result())
        chapters = 1 + sum(event.kind == "run.continued" for event in await run.history())
        print(f"{chapters} chapters")


if __name__ == "__main__":
    asyncio.run(main())

"""An agent loop: a model decides which tool to call, until it has an answer. Each call is a step.

    python examples/agent_with_tools.py

The model is a stub in this file; put your client's call into `ask_model` instead.
"""

import asyncio
import operator
from dataclasses import dataclass, field

import perdure
from perdure import Retry, step, workflow


@dataclass
class ToolCall:
    name: str
    arguments: list[float]


@dataclass
class Reply:
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])


@step(retry=Retry(max_attempts=5), timeout=120)
async def ask_model(messages: list[str]) -> Reply:
    """One answer of the model. Once recorded, it is never paid for again."""
    print(f"  the model reads {len(messages)} message(s)")
    if len(messages) == 1:
        return Reply(tool_calls=[ToolCall("multiply", [17, 3]), ToolCall("add", [17, 3])])
    return Reply(text=f"I have {' and '.join(messages[1:])}.")


@step
async def call_tool(call: ToolCall) -> float:
    print(f"  tool: {call.name}{tuple(call.arguments)}")
    tool = {"multiply": operator.mul, "add": operator.add}[call.name]
    return float(tool(*call.arguments))


@workflow
async def agent(question: str) -> str:
    messages = [question]
    while True:
        reply = await ask_model(messages)
        if not reply.tool_calls:
            return reply.text
        results = await asyncio.gather(*(call_tool(call) for call in reply.tool_calls))
        messages += [f"{call.name}: {result:g}" for call, result in zip(reply.tool_calls, results, strict=True)]


async def main() -> None:
    async with perdure.Runtime(workflows=[agent]) as runtime:
        for _ in range(2):
            run = await runtime.start(agent.call("What are 17 and 3?"), id="sums")
            print(f"{run.how}: {await run.result()}")


if __name__ == "__main__":
    asyncio.run(main())

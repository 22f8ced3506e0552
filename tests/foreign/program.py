"""A worker process: foreign code with threads and a real HTTP client, in a section. Usage: program.py STORE URL MODEL.

Its calls rest on the model, which is another one in each process; they are steps in one workflow, and the adapter's in
the other.
"""

import asyncio
import contextvars
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import perdure

THREADS = 4
TASKS = 8
CALLS_PER_TASK = 5


PREMISES = {"model": sys.argv[3] if sys.argv[3:] else "", "tools": ["search"]}

Ask = Callable[[str, str], str]


@perdure.step
def ask(url: str, question: str) -> str:
    with urllib.request.urlopen(f"{url}/{question}", timeout=10) as answer:
        return str(answer.read().decode())


def ask_by_adapter(url: str, question: str) -> str:
    request = {"url": url, "question": question}
    return str(perdure.journal().call("ask", request, lambda: ask(url, question), premises=PREMISES))


@perdure.effect(downstream=perdure.Idempotent())
def publish(url: str, answers: list[str]) -> list[str]:
    return answers


@publish.key
def _(url: str, answers: list[str]) -> str:
    return url


def crew(url: str, ask: Ask) -> list[str]:
    """What a framework does that insists on threads: a pool, each task a chain of calls."""

    def chain(number: int) -> str:
        answer = ""
        for turn in range(CALLS_PER_TASK):
            answer = ask(url, f"{number}-{turn}-{len(answer)}")
        return answer

    with ThreadPoolExecutor(THREADS) as pool:
        contexts = [contextvars.copy_context() for _ in range(TASKS)]
        answers = [pool.submit(context.run, chain, number) for number, context in enumerate(contexts)]
        return publish(url, [answer.result() for answer in answers])


@perdure.workflow
async def hosted(url: str) -> list[str]:
    return list(await perdure.section("crew").run(crew, url, ask_by_adapter))


@perdure.workflow
def plain(url: str) -> list[str]:
    return crew(url, ask.with_premises(PREMISES))


async def main(store: str, url: str, _model: str) -> None:
    async with perdure.Runtime(store, workflows=[hosted, plain]) as runtime:
        first = await runtime.start(hosted.call(url), id="hosted")
        second = await runtime.start(plain.call(url), id="plain")
        for run in (first, second):
            print(run.id, len(await run.result(timeout=60)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

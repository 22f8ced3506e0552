"""A worker process: foreign code with threads and a real HTTP client, in a section. Usage: program.py STORE URL."""

import asyncio
import contextvars
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import perdure

THREADS = 4
TASKS = 8
CALLS_PER_TASK = 5


@perdure.step
def ask(url: str, question: str) -> str:
    with urllib.request.urlopen(f"{url}/{question}", timeout=10) as answer:
        return str(answer.read().decode())


def crew(url: str) -> list[str]:
    """What a framework does that insists on threads: a pool, each task a chain of calls."""

    def chain(number: int) -> str:
        answer = ""
        for turn in range(CALLS_PER_TASK):
            answer = ask(url, f"{number}-{turn}-{len(answer)}")
        return answer

    with ThreadPoolExecutor(THREADS) as pool:
        contexts = [contextvars.copy_context() for _ in range(TASKS)]
        answers = [pool.submit(context.run, chain, number) for number, context in enumerate(contexts)]
        return [answer.result() for answer in answers]



@perdure.workflow
async def hosted(url: str) -> list[str]:
    return list(await perdure.section("crew").run(crew, url))


@perdure.workflow
def plain(url: str) -> list[str]:
    return crew(url)


async def main(store: str, url: str) -> None:
    async with perdure.Runtime(store, workflows=[hosted, plain]) as runtime:
        first = await runtime.start(hosted.call(url), id="hosted")
        second = await runtime.start(plain.call(url), id="plain")
        for run in (first, second):
            print(run.id, len(await run.result(timeout=60)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

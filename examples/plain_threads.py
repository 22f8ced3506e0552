"""Code without async, with threads of its own: a `def` workflow. After a crash it runs again, answered from the record.

    python examples/plain_threads.py
"""

import contextvars
from concurrent.futures import ThreadPoolExecutor

from perdure import run, step, workflow


@step
def translate(word: str, language: str) -> str:
    return f"{word} in {language}"


@workflow
def dictionary(words: list[str]) -> list[str]:
    def entry(word: str) -> str:
        return ", ".join(translate(word, language) for language in ("French", "Greek"))

    with ThreadPoolExecutor(2) as pool:  # a thread gets the context of the run, so that its calls are recorded
        entries = [pool.submit(contextvars.copy_context().run, entry, word) for word in words]
        return [each.result() for each in entries]


if __name__ == "__main__":
    for line in run(dictionary.call(["tea", "milk"]), id="dictionary"):
        print(line)

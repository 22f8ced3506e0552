"""How long `perdure code check` takes: 1,000 runs whose histories have 50 events each.

    .venv/bin/python bench/check.py            fills a store in a temporary folder, then checks it five times

Each run has made 47 steps, received two messages and waits for a third one. The whole command is measured, with
Python's own start and the imports, as it runs in CI: `perdure code check app.py --store runs.db`. It uses as many
processes as there are cores, four at most.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from importlib import import_module
from pathlib import Path

RUNS = 1_000
EVENTS = 50
STEPS = EVENTS - 3  # besides, it was started, and two messages have come
REPETITIONS = 5

APP = textwrap.dedent(
    f"""
    import perdure
    from perdure import step, workflow

    @step
    async def search(number: int) -> dict[str, str]:
        return {{"text": f"what was found of {{number}}"}}

    @workflow
    async def agent(topic: str) -> int:
        found = 0
        for number in range({STEPS}):
            found += len(await search(number))
        for _ in range(3):
            await perdure.receive("go on")
        return found
    """
)


async def fill(path: str) -> list[int]:
    """Have all runs wait; how many events the history of each has."""
    import perdure

    agent = import_module("app").agent
    async with perdure.Runtime(path, workflows=[agent]) as runtime:
        for first in range(0, RUNS, 100):
            runs = [await runtime.start(agent.call("tea"), id=f"run-{first + n}") for n in range(100)]
            for run in runs:
                await run.send("go on")
                await run.send("go on")
            await runtime.drain()
        return [len(await run.history()) for run in runs]


def check(folder: str) -> tuple[float, float]:
    """Seconds, and processor seconds of all its processes."""
    command = [sys.executable, "-m", "perdure", "code", "check", "app.py", "--store", "runs.db"]
    began, used = time.perf_counter(), processor_seconds()
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began, processor_seconds() - used
    if said.returncode or f"{RUNS} replay" not in said.stdout + said.stderr:
        sys.exit(f"it has not found that all runs replay:\n{said.stdout}{said.stderr}")
    return took


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP, encoding="utf-8")
        sys.path.insert(0, folder)
        lengths = asyncio.run(fill(f"{folder}/runs.db"))
        if set(lengths) != {EVENTS}:
            sys.exit(f"histories of {sorted(set(lengths))} events, not of {EVENTS}")
        seconds, processor = zip(*(check(folder) for _ in range(REPETITIONS)), strict=True)
    print(
        f"perdure code check, {RUNS:,} runs of {EVENTS} events: {statistics.median(seconds):.1f} s "
        f"({min(seconds):.1f} to {max(seconds):.1f}, {REPETITIONS} times); "
        f"{statistics.median(processor):.1f} s of a processor"
    )


if __name__ == "__main__":
    main()

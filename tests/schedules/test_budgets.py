"""Two worker processes share the budget of a workflow; one of them is killed in the middle of a step."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

from tests.runtime.hosting import eventually, run_async
from tests.schedules.processes import environment

from perdure import Client
from perdure.api.inbox import InboxEntry
from perdure.gates.budget import SharedAccount
from perdure.store import open_store

PROGRAM = '''
    import asyncio
    import os
    import sys
    import perdure
    from perdure import Budget, Runtime, Usage, step, workflow

    store, first, hangs = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "hangs"

    @step(uses=Usage(tokens=10), timeout=600)
    async def think(number: int) -> int:
        with open("world.txt", "a") as world:
            world.write(f"{number}\\n")
        if hangs and number == 3:
            await asyncio.Event().wait()
        perdure.used(tokens=10)
        return number

    @workflow
    async def agent(number: int) -> int:
        return await think(number)

    async def main() -> None:
        budgets = [Budget(tokens=100, workflow="agent")]
        async with Runtime(store, workflows=[agent], budgets=budgets, lease=1.0) as runtime:
            for number in range(first, first + 8):
                await runtime.start(agent.call(number), id=f"run-{number}")
            await asyncio.Event().wait()

    asyncio.run(main())
'''


@contextlib.contextmanager
def worker(folder: Path, first: int, how: str) -> Generator[subprocess.Popen[bytes]]:
    """A process that starts eight runs and works on whatever there is; killed at the end."""
    (folder / "app.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "app.py", "runs.db", str(first), how]
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(folder: Path) -> list[str]:
    """Which steps' bodies have begun."""
    world = folder / "world.txt"
    return world.read_text().split() if world.exists() else []


async def ended(client: Client) -> int:
    return len(await client.list(status="completed"))


def stuck(client: Client, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many calls wait for a budget."""

    async def are() -> bool:
        entries: list[InboxEntry] = await client.inbox()
        return len([entry for entry in entries if entry.reason == "over_budget"]) == count

    return are


async def shared_by_two(folder: Path) -> None:
    store = os.fspath(folder / "runs.db")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(worker(folder, 0, "hangs"))
        await eventually(lambda: "3" in begun(folder), "a step hangs")
        stack.enter_context(worker(folder, 8, "works"))
        async with Client(store) as client:
            await eventually(stuck(client, 6), "all but ten wait for the budget")
            assert len(begun(folder)) == 10, "no eleventh body began"
            first.kill()  # with 10 tokens reserved, and in use perhaps
            await eventually(stuck(client, 7), "the step that hung is taken over, and is over budget now")
            (account,) = accounts(store)
            assert (account.used.tokens, account.held.tokens) == (100, 0)
            (entry, *_) = [each for each in await client.inbox() if each.budget is not None]
            assert entry.budget is not None
            await client.raise_budget(entry.run_id, tokens=1_000, by="ann")

            async def are_done() -> bool:
                return await ended(client) == 16

            await eventually(are_done, "all runs end: whoever waits for this budget hears of it")
    (account,) = accounts(store)
    assert len(begun(folder)) == 17, "each step once, and the one that was killed once more"
    assert (account.used.tokens, account.held.tokens) == (170, 0)


def accounts(path: str) -> list[SharedAccount]:
    store = open_store(path)
    try:
        return list(store.accounts())
    finally:
        store.close()


def test_two_processes_share_a_budget_and_one_is_killed(tmp_path: Path) -> None:
    run_async(shared_by_two(tmp_path))

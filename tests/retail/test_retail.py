"""115 public tasks of a shop's agent, killed before and after each of its calls, on each kind of downstream.

The order service is a process of its own. In the end its data differs from the start by exactly what the task is to
change. Where nobody can know, the run is in the inbox with the one call in doubt, and right once it is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.retail.agent import KINDS, TASKS, Fate, shop_agent
from tests.retail.conftest import Orders
from tests.retail.shop import WRITES, Record
from tests.runtime.hosting import run_async
from tests.schedules.processes import PATIENCE_SECONDS, ROOT, environment, wait_for_death, wait_until

import perdure
from perdure import Client, Run, RunBlockedError
from perdure.api.inbox import InboxEntry
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

pytestmark = pytest.mark.skipif(not TASKS, reason="the retail data is not there: PERDURE_RETAIL_DATA says where")


class DiesAtEachCall(Fate):
    """Each process dies at one call, the next one at the next: before the service has done it, or after."""

    def __init__(self, when: str) -> None:
        self.when, self.turn = when, 0
        self.has_struck = asyncio.Event()

    async def strike(self, turn: int, when: str) -> None:
        if (turn, when) == (self.turn, self.when):
            self.turn += 1
            self.has_struck.set()
            await asyncio.Event().wait()


# ── what is right in the end ────────────────────────────────────────────────────────────────


def changing_calls(task: int) -> list[Record]:
    """The calls that are carried out, in order."""
    return [call for call in TASKS[task]["calls"] if call["tool"] in WRITES and not call.get("error")]


def check(orders: Orders, shop: int, task: int, said: list[str]) -> None:
    wanted = {tuple(path): value for path, value in TASKS[task]["final_changes"]}
    assert orders.changes(shop) == wanted
    for call, answer in zip(TASKS[task]["calls"], said, strict=True):
        assert answer == call["error"] if call.get("error") else not answer.startswith("Error")
    carried_out = [(done["tool"], done["args"]) for done in orders.books(shop)]
    assert carried_out == [(call["tool"], call["args"]) for call in changing_calls(task)], "each once, and in order"


async def settle_from_the_books(run: Run[list[str]], inbox: list[InboxEntry], orders: Orders, shop: int) -> int:
    """A person looks at what was sent, finds out in the service's books whether it was carried out, and says so. Which
    call it was."""
    (doubt,) = [entry for entry in inbox if entry.run_id == run.id]
    assert doubt.reason == "unknown_effect"
    assert doubt.operation is not None
    sent: Any = doubt.sent
    asked = (sent["tool"], sent["args"])
    done = [each["answer"] for each in orders.books(shop) if (each["tool"], each["args"]) == asked]
    if done:
        await run.settle("succeeded", value=done[0], operation=doubt.operation.id, by="ann", reason="in their books")
    else:
        await run.settle("retry", operation=doubt.operation.id, by="ann", reason="not in their books")
    assert doubt.operation.key == str(sent["turn"])
    return int(sent["turn"])


# ── each call of each task ──────────────────────────────────────────────────────────────────


class Lives:
    """A run through the lives of the processes that work on it, one after the other, on one store."""

    def __init__(self, orders: Orders, client: httpx.AsyncClient, task: int, kind: str, fate: Fate) -> None:
        self.orders, self.client, self.task, self.kind, self.fate = orders, client, task, kind, fate
        self.shop, self.clock = orders.open_shop(), FakeClock()
        self.store = MemoryStore(self.clock)
        self.asked = list[int]()

    async def live(self, has_died: asyncio.Event) -> list[str] | None:
        """One life: what the agent heard, or None where it was cut short."""
        clients: dict[type, Any] = {httpx.AsyncClient: self.client, Fate: self.fate}
        runtime = RuntimeUnderTest(
            self.store, clock=self.clock, workflows=[shop_agent], provide=clients, guard=False, replays=False
        )
        await runtime.__aenter__()
        run = await runtime.start(shop_agent.call(self.task, self.kind, self.shop), id=f"shop-{self.shop}")
        result, death = asyncio.create_task(self.result(runtime, run)), asyncio.create_task(has_died.wait())
        await asyncio.wait({result, death}, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not result.done() and death.done():
            result.cancel()
            await asyncio.wait({result})
            await runtime.die()
            self.store = self.store.again()
            return None
        death.cancel()
        said = result.result()
        await runtime.__aexit__(None, None, None)
        return said

    async def result(self, runtime: RuntimeUnderTest, run: Run[list[str]]) -> list[str]:
        try:
            return await run.result()
        except RunBlockedError:
            self.asked.append(await settle_from_the_books(run, await runtime.inbox(), self.orders, self.shop))
        return await run.result(wait_blocked=True)


async def survives(lives: Lives, fate: DiesAtEachCall) -> None:
    calls = TASKS[lives.task]["calls"]
    while (said := await lives.live(fate.has_struck)) is None:
        fate.has_struck.clear()
    assert fate.turn == len(calls), "it has died at each call"
    check(lives.orders, lives.shop, lives.task, said)
    in_doubt = [turn for turn, call in enumerate(calls) if call["tool"] in WRITES]
    assert lives.asked == (in_doubt if lives.kind == "no_guarantee" else []), "about each a person was asked once"


EACH = [pytest.param(task, marks=[] if task % 10 == 0 else [pytest.mark.soak]) for task in range(len(TASKS))]
"""All of them take minutes: `scripts/test-all`, or `-m "soak or not soak"`."""


@pytest.mark.parametrize("task", EACH)
def test_a_task_survives_a_kill_before_and_after_each_of_its_calls(orders: Orders, task: int) -> None:
    async def main() -> None:
        async with perdure.http.client(base_url=orders.service.url, verify=False, trust_env=False) as client:
            undisturbed = Lives(orders, client, task, "idempotent", Fate())
            check(orders, undisturbed.shop, task, await undisturbed.live(asyncio.Event()) or [])
            for kind, when in itertools.product(KINDS, ("before", "after")):
                fate = DiesAtEachCall(when)
                await survives(Lives(orders, client, task, kind, fate), fate)

    run_async(main())


# ── and by a real signal ────────────────────────────────────────────────────────────────────


class Held(NamedTuple):
    """A run whose service has carried out a change and keeps the answer back."""

    task: int
    kind: str
    shop: int


@contextlib.contextmanager
def agent(folder: Path, orders: Orders, held: list[Held]) -> Generator[subprocess.Popen[str]]:
    """A process with all these runs on the store in `folder`."""
    named = [f"{each.task}:{each.kind}:{each.shop}" for each in held]
    command = [sys.executable, "-m", "tests.retail.agent", str(folder / "runs.db"), orders.service.url, *named]
    with (folder / "agent.log").open("a") as log:
        process = subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


SAMPLE = [task for task in range(len(TASKS)) if changing_calls(task)][::8]
MONEY = [task for task in range(len(TASKS)) if any("balance" in path for path, _ in TASKS[task]["final_changes"])][:3]


def test_runs_whose_process_is_killed_by_a_signal_go_on_in_another_one(orders: Orders, tmp_path: Path) -> None:
    """The service has carried out each run's last change, and its answer is on the way when the process dies."""
    held = [
        Held(task, kind, orders.open_shop(hold=len(changing_calls(task))))
        for task in {*SAMPLE, *MONEY}
        for kind in KINDS
    ]
    with agent(tmp_path, orders, held) as first:
        wait_until(lambda: orders.count_of_held() == len(held) or first.poll() is not None, "all answers are held")
        os.kill(first.pid, signal.SIGKILL)
        wait_for_death(first)
    assert [len(orders.books(each.shop)) for each in held] == [len(changing_calls(each.task)) for each in held]
    with agent(tmp_path, orders, held) as second:
        run_async(look_after(str(tmp_path / "runs.db"), orders, held))
        assert second.wait(PATIENCE_SECONDS) == 0, (tmp_path / "agent.log").read_text()


async def look_after(store: str, orders: Orders, held: list[Held]) -> None:
    async with Client(store, workflows=[shop_agent]) as client:
        for each in held:
            run: Run[list[str]] = await client.get(f"shop-{each.shop}")
            if each.kind == "no_guarantee":
                with pytest.raises(RunBlockedError):
                    await run.result(timeout=PATIENCE_SECONDS)
                await settle_from_the_books(run, await client.inbox(), orders, each.shop)
            said = await run.result(wait_blocked=True, timeout=PATIENCE_SECONDS)
            check(orders, each.shop, each.task, said)

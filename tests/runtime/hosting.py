"""What tests with a real store and a real Runtime share: to wait for facts, and to look inside a worker."""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure import Run, Runtime
from perdure.runtime.host import Host
from perdure.runtime.live import LiveRun
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Letter, NewRun, Outcome, Write

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.005


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, given up when it takes far too long."""

    async def limited() -> T:
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            return await main

    return asyncio.run(limited())


async def eventually(fact: Callable[[], bool | Awaitable[bool]], what: str = "") -> None:
    """Come back when `fact()` holds. AssertionError if it does not within PATIENCE_SECONDS."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        holds = fact()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what or inspect.getsource(fact).strip()}")
        await asyncio.sleep(LOOK_SECONDS)


def host_of(runtime: Runtime) -> Host:
    """The worker inside a Runtime."""
    return runtime._host  # pyright: ignore[reportPrivateUsage]


def live(runtime: Runtime, run_id: str) -> LiveRun:
    """A run that is in the worker's memory."""
    return next(live for live in host_of(runtime).turns.live.values() if live.run_id == run_id)


def is_in_memory(runtime: Runtime, run_id: str) -> bool:
    """Whether a run is in the worker's memory."""
    return any(live.run_id == run_id for live in host_of(runtime).turns.live.values())


async def let_go(runtime: Runtime, run_id: str) -> None:
    """Have a run that only waits leave memory."""

    def is_gone() -> bool:
        host_of(runtime).release_idle()
        return not is_in_memory(runtime, run_id)

    await eventually(is_gone, f"{run_id} leaves memory")


async def kinds(run: Run[Any]) -> list[str]:
    """The kinds of the events in a run's history."""
    return [happened.kind for happened in await run.history()]


def on_one_store(**options: Any) -> Callable[..., Runtime]:
    """Makes Runtimes on one store in memory, one after the other or side by side, each with a handle of its own.

    With PERDURE_TESTS_ON=sqlite in the environment it is a file."""
    store = MemoryStore()
    path = os.path.join(tempfile.mkdtemp(), "runs.db") if os.environ.get("PERDURE_TESTS_ON") == "sqlite" else None

    def make(*workflows: Any, **more: Any) -> Runtime:
        return Runtime(path or store.again(), workflows=workflows, **{**options, **more})

    return make


class GatedStore(MemoryStore):
    """A store whose commits come back late: they are applied, and nobody has heard of it yet."""

    gate: threading.Event | None = None
    applied = 0

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = super().commit(writes)
        self.applied += 1
        if self.gate is not None and not all(isinstance(write, NewRun | Letter) for write in writes):
            self.gate.wait(10)
        return outcomes

    def is_free(self) -> bool:
        return False  # so that every commit is done by the writer's thread

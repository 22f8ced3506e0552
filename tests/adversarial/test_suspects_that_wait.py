"""A run that only waits for its next attempt is no cause of any death, and is not treated as one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.runtime.hosting import eventually, host_of, run_async

import perdure
from perdure import CanLookUp, Found, Idempotent, NotFound, Operation, Retry, Runtime, Unsure, effect, step, workflow
from perdure.store.memory import MemoryStore
from perdure.store.protocol import RunInfo
from perdure.testing.clock import FakeClock

BEGUN: list[str] = []
IN_AN_HOUR = Retry(max_attempts=9, first_delay=3600, max_delay=3600, jitter=0)


@pytest.fixture(autouse=True)
def nothing_begun_yet() -> None:
    BEGUN.clear()


def answer_of(what: str) -> str:
    BEGUN.append(what)
    if BEGUN.count(what) == 1:
        raise perdure.Retryable("come back in an hour", after=3600)
    return f"{what} is done"


@step
async def limited() -> str:
    return answer_of("limited")


@effect(downstream=Idempotent(), retry=IN_AN_HOUR)
async def refused(order: str) -> str:
    return answer_of("refused")


@effect(downstream=Idempotent(), retry=IN_AN_HOUR)
async def lost(order: str) -> str:
    BEGUN.append("lost")
    if BEGUN.count("lost") == 1:
        raise ConnectionResetError("the answer is lost")
    return "lost is done"


@effect(downstream=CanLookUp(settle_after=3600))
async def settling(order: str) -> str:
    BEGUN.append("settling")
    raise ConnectionResetError("the answer is lost")


@settling.lookup
async def _(op: Operation) -> Found[str] | NotFound | Unsure:
    BEGUN.append("looked up")
    return Found("settling is done") if BEGUN.count("looked up") == 2 else NotFound()


for each in (refused, lost, settling):
    each.key(lambda order: order)


@workflow
async def waits(which: str) -> str:
    match which:
        case "limited":
            return await limited()
        case "refused":
            return await refused("o")
        case "lost":
            return await lost("o")
        case _:
            return await settling("o")


@step
def limited_here() -> str:
    return answer_of("limited_here")


@effect(downstream=Idempotent(), retry=IN_AN_HOUR)
def refused_here(order: str) -> str:
    return answer_of("refused_here")


refused_here.key(lambda order: order)


@workflow
def waits_in_a_thread(which: str) -> str:
    return limited_here() if which == "limited_here" else refused_here("o")


@workflow
async def waits_in_a_section(which: str) -> str:
    answer: str = await perdure.section("hosted").run(limited_here)
    return answer


class Workers:
    """One after the other on one store, each killed in the end."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._store = MemoryStore(clock=self.clock)

    async def enter(self) -> Runtime:
        opened = Runtime(self._store.again(), workflows=WORKFLOWS.values(), clock=self.clock, evict_after=0, lease=1e5)
        return await opened.__aenter__()

    async def kill(self, runtime: Runtime) -> None:
        host = host_of(runtime)
        runtime._host_open = None  # pyright: ignore[reportPrivateUsage]
        await host.abandon()
        cast("MemoryStore", host.store).kill(host.worker)

    def run(self) -> RunInfo:
        info = self._store.find("r")
        assert info is not None
        return info

    def is_let_go(self) -> bool:
        """A suspect is tried again some seconds after a death was noticed, which pass here."""
        self.clock.advance(timedelta(milliseconds=500))
        return self.run().status == "waiting"


def has_only_waits(runtime: Runtime) -> Callable[[], bool]:
    def has() -> bool:
        lives = list(host_of(runtime).turns.live.values())
        flights = [flight for live in lives for flight in live.flights.values()]
        is_written = not any(live.under_way or live.has_something_to_write for live in lives)
        return bool(flights) and is_written and all(flight.only_waits for flight in flights)

    return has


WORKFLOWS: dict[str, Any] = {
    "workflow": waits,
    "thread": waits_in_a_thread,
    "section": waits_in_a_section,
}


@pytest.mark.parametrize(
    ("code", "which"),
    [
        ("workflow", "limited"),
        ("workflow", "refused"),
        ("workflow", "lost"),
        ("workflow", "settling"),
        ("thread", "limited_here"),
        ("thread", "refused_here"),
        ("section", "limited_here"),
    ],
)
def test_however_often_its_process_dies_while_it_waits_for_its_next_attempt(code: str, which: str) -> None:
    """The first two deaths find it in memory. From then on it is in the store while it waits, and no death counts."""
    workers = Workers()

    async def main() -> None:
        runtime = await workers.enter()
        await runtime.start(WORKFLOWS[code].call(which), id="r")
        await eventually(has_only_waits(runtime))
        await workers.kill(runtime)
        runtime = await workers.enter()
        await eventually(has_only_waits(runtime))
        await workers.kill(runtime)
        begun = list(BEGUN)
        for _ in range(5):
            runtime = await workers.enter()
            await eventually(workers.is_let_go, "it is in the store while it waits")
            await workers.kill(runtime)
        assert workers.run().reason == "timer"
        assert begun == BEGUN
        runtime = await workers.enter()
        workers.clock.advance(timedelta(hours=1, seconds=1))
        assert await (await runtime.get("r")).result(timeout=30) == f"{which} is done"
        await runtime.__aexit__(None, None, None)

    run_async(main())

"""The picture of a run's status, held against what a store sees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.docs.generated import NEW, STATUS_CHANGES

import perdure
from perdure import Client, Retry, Runtime, step, workflow
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Claim, Filter, Outcome, Status, Write


class Watched(MemoryStore):
    """Notes every change of a run's status."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, str] = {}
        self.seen: set[tuple[str, str]] = set()

    def look(self) -> None:
        for info in self.runs(Filter()):
            before = self.last.get(info.rid, NEW)
            if before != info.status:
                self.seen.add((before, info.status))
                self.last[info.rid] = info.status

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        done: list[Outcome] = []
        for write in writes:  # one at a time, so that no change hides behind the next
            done += super().commit([write])
            self.look()
        return done

    def claim(self, *args: Any, **options: Any) -> list[Claim]:
        claims = super().claim(*args, **options)
        self.look()
        return claims


@step(retry=Retry(max_attempts=1))
async def question() -> str:
    raise perdure.NeedsPerson("what now?")


@step
async def other() -> str:
    return "other"


@workflow
async def ask() -> str:
    return await question()


@workflow
async def wait() -> str:
    return str(await perdure.receive("go on"))


@workflow(name="changed")
async def before() -> str:
    await perdure.receive("go on")
    return "before"


@workflow(name="changed")
async def after() -> str:
    return await other()


@workflow
async def stuck() -> None:
    await asyncio.Event().wait()


@workflow
async def fails() -> None:
    raise ValueError


WORKFLOWS = [ask, wait, before, stuck, fails]


def test_the_picture_shows_every_change_and_no_other() -> None:
    store = Watched()
    asyncio.run(_everything_that_happens(store))
    assert store.seen == set(STATUS_CHANGES)


async def _everything_that_happens(store: Watched) -> None:
    async with Client(store, workflows=WORKFLOWS) as client:
        waiting = await client.start(wait.call(), id="by a client")
        forced = await client.start(wait.call(), id="forced")
        changed = await client.start(before.call(), id="changed")
    async with Runtime(store, workflows=WORKFLOWS, evict_after=0) as runtime:
        for run in (waiting, forced, changed):
            await _until(store, run.id, Status.WAITING)
        await (await runtime.get(forced.id)).cancel(force=True)
        await (await runtime.get(waiting.id)).send("go on", "done")
        await _until(store, waiting.id, Status.COMPLETED)
        await _decide(runtime, store)
        await runtime.start(fails.call(), id="fails")
        await _until(store, "fails", Status.FAILED)
        cancelled = await runtime.start(wait.call(), id="cancelled")
        await cancelled.cancel()
        await _until(store, "cancelled", Status.CANCELLED)
    async with Runtime(store, workflows=[after], evict_after=0) as runtime:
        await (await runtime.get(changed.id)).send("go on")
        await _until(store, changed.id, Status.BLOCKED)


async def _decide(runtime: Runtime, store: Watched) -> None:
    """What people can do about runs that are blocked."""
    for name, choice, becomes in (("a", "value", Status.COMPLETED), ("b", "fail", Status.FAILED)):
        asked = await runtime.start(ask.call(), id=name)
        await _until(store, name, Status.BLOCKED)
        await asked.unblock(choice, value="this")  # type: ignore[arg-type]
        await _until(store, name, becomes)
    run = await runtime.start(stuck.call(), id="retried")
    await _until(store, "retried", Status.BLOCKED)
    await run.unblock("retry")
    while (Status.BLOCKED, Status.QUEUED) not in store.seen:
        await asyncio.sleep(0.002)
    await _until(store, "retried", Status.BLOCKED)
    await run.unblock("fail")
    await _until(store, "retried", Status.FAILED)
    run = await runtime.start(stuck.call(), id="cancelled while blocked")
    await _until(store, run.id, Status.BLOCKED)
    await run.cancel(force=True)
    await _until(store, run.id, Status.CANCELLED)


async def _until(store: Watched, id: str, status: Status) -> None:
    async with asyncio.timeout(10):
        while (info := store.find(id)) is None or info.status is not status:
            await asyncio.sleep(0.002)

"""What one process does is noticed by those whom it concerns: news of the store, and children that others execute."""

from __future__ import annotations

import asyncio
from pathlib import Path

import perdure
from perdure import Client, Runtime, workflow


@workflow
async def echo() -> str:
    text: str = await perdure.receive("text", str)
    return text


@workflow
async def elsewhere(number: int) -> int:
    return number + 1


@workflow
async def parent(number: int) -> int:
    return await elsewhere(number)


def test_whoever_waits_for_a_result_keeps_no_news_from_the_worker(tmp_path: Path) -> None:
    """Both look at the store in the same rhythm; a letter has to reach the run whoever of them looks first."""
    asyncio.run(_send_at_many_moments(str(tmp_path / "news.db")))


async def _send_at_many_moments(url: str) -> None:
    async with Runtime(url, workflows=[echo], evict_after=1000, lease=1000) as runtime, Client(url) as client:
        for number in range(8):
            run = await runtime.start(echo.call(), id=f"run-{number}")
            result = asyncio.create_task(run.result(timeout=5))
            await asyncio.sleep(0.1 + number * 0.005)
            await (await client.get(run.id)).send("text", "heard")
            assert await result == "heard"


def test_a_child_that_its_parents_worker_does_not_know_is_left_to_others(tmp_path: Path) -> None:
    asyncio.run(_with_a_worker_for_each(str(tmp_path / "children.db")))


async def _with_a_worker_for_each(url: str) -> None:
    async with Runtime(url, workflows=[parent]) as one, Runtime(url, workflows=[elsewhere]):
        run = await one.start(parent.call(1))
        assert await run.result(timeout=5) == 2

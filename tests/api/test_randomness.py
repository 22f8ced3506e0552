"""Random numbers and ids are the same again, also where a `def` workflow or hosted code runs again from its start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import perdure
from perdure import Runtime, workflow
from perdure.api.workflow import AnyWorkflow

drawn: list[tuple[float, str]] = []


def _draw() -> None:
    drawn.extend((perdure.random(), str(perdure.uuid4())) for _ in range(2))


@workflow
def plain() -> None:
    _draw()
    perdure.sync.receive("go on")


@workflow
async def on_the_loop() -> None:
    _draw()
    await perdure.receive("go on")


def test_a_def_workflow_draws_the_same_again(tmp_path: Path) -> None:
    asyncio.run(_twice(plain, str(tmp_path / "plain.db")))
    assert drawn[:2] == drawn[2:]
    assert len(set(drawn)) == 2


def test_an_async_workflow_draws_the_same_again(tmp_path: Path) -> None:
    asyncio.run(_twice(on_the_loop, str(tmp_path / "loop.db")))
    assert drawn[:2] == drawn[2:]
    assert len(set(drawn)) == 2


async def _twice(what: AnyWorkflow, url: str) -> None:
    drawn.clear()
    async with Runtime(url, workflows=[plain, on_the_loop]) as runtime:
        await runtime.start(what.call(), id="draw")
        while not drawn:
            await asyncio.sleep(0.005)
    async with Runtime(url, workflows=[plain, on_the_loop]) as runtime:
        run = await runtime.get("draw")
        await run.send("go on")
        await run.result(timeout=5)

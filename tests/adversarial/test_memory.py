"""Runs that have ended are gone from memory."""

from __future__ import annotations

import asyncio
import gc

from tests.runtime.hosting import on_one_store, run_async

from perdure import step, workflow
from perdure.runtime.live import LiveRun


@step
def one() -> int:
    return 1


@workflow
def plain() -> int:
    return one() + one()


@workflow
async def with_a_child() -> int:
    return await plain.call() + await one.call()


def _held() -> int:
    gc.collect()
    return sum(type(each) is LiveRun for each in gc.get_objects())


def test_runs_that_ended_are_not_kept_by_what_was_to_look_after_them() -> None:
    """Hosted functions end long before their thread would have been given back; nothing waits for that with them. A few
    may still be reached through the context in which some timer was armed."""

    async def main() -> int:
        async with on_one_store()(plain, with_a_child) as runtime:
            before = _held()
            runs = [await runtime.start(with_a_child.call()) for _ in range(30)]
            assert await asyncio.gather(*(run.result(timeout=20) for run in runs)) == [3] * 30
            del runs
            for _ in range(3):
                await asyncio.sleep(0)
            return _held() - before

    assert run_async(main()) < 10

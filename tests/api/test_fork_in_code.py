"""Workflow code that forks: its child is in no run, as it is on no event loop."""

from __future__ import annotations

import asyncio
import os

import pytest

import perdure
from perdure import Runtime, workflow


@workflow
async def forks() -> list[int]:
    child = os.fork()
    if not child:
        try:
            perdure.current_run()
        except perdure.UsageError:
            os._exit(7)
        os._exit(1)
    perdure.current_run()
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_the_child_of_a_fork_is_in_no_run() -> None:
    async def main() -> list[int]:
        async with Runtime(":memory:", workflows=[forks]) as runtime:
            return await (await runtime.start(forks.call())).result(timeout=10)

    assert asyncio.run(main()) == [7]

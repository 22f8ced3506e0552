"""What ended is freed at once: neither a step nor a run leaves anything circular for the collector to find. A run that
waits is not in memory at all."""

import asyncio
import collections
import gc
import weakref
from pathlib import Path

from tests.runtime.hosting import eventually, host_of

import perdure


@perdure.step
async def double(number: int) -> int:
    return 2 * number


@perdure.workflow
async def several(count: int) -> int:
    return sum(await asyncio.gather(*[double(number) for number in range(count)]))


def test_neither_steps_nor_runs_leave_garbage(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[several]) as runtime:

            async def runs(count: int) -> None:
                started = [await runtime.start(several.call(5)) for _ in range(count)]
                for run in started:
                    assert await run.result(timeout=30) == 20

            await runs(3)
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                await runs(20)
                gc.collect()
                return [type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("perdure")]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert asyncio.run(main()) == []


MORE_RUNS = 200


@perdure.workflow
async def sleeper() -> None:
    await double(1)
    await perdure.sleep(days=1)


def is_dead(thing: object) -> bool:
    """A reference to something that is gone; sqlite3 throws those to its cursors away at every 200th of them."""
    return isinstance(thing, weakref.ref) and thing() is None


def test_nothing_is_left_in_memory_of_a_run_that_waits(tmp_path: Path) -> None:
    async def main() -> collections.Counter[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[sleeper]) as runtime:

            def all_left() -> bool:
                host_of(runtime).release_idle()
                return not host_of(runtime).turns.live

            async def objects_with_more_parked(count: int) -> collections.Counter[str]:
                for _ in range(count):
                    await runtime.start(sleeper.call())
                await eventually(all_left)
                gc.collect()
                return collections.Counter(type(thing).__name__ for thing in gc.get_objects() if not is_dead(thing))

            await objects_with_more_parked(20)
            fewer = await objects_with_more_parked(20)
            return await objects_with_more_parked(MORE_RUNS) - fewer

    left = asyncio.run(main())
    assert {name: count for name, count in left.items() if count >= MORE_RUNS // 2} == {}, "something for each run"

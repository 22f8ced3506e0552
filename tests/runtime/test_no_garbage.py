"""What ended is freed at once: neither a step nor a run leaves anything circular for the collector to find."""

import asyncio
import gc
from pathlib import Path

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

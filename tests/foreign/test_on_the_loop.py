"""Foreign code on the workflow's loop: branches that race are replayed exactly as they ran."""

import asyncio
import random
from pathlib import Path

import perdure
from perdure.engine.chapters import Completed
from perdure.engine.execution import Execution
from perdure.history import events as e
from perdure.runtime.load import Past
from perdure.store import open_store

REPLAYS = 200
BRANCHES = 6
CALLS_PER_BRANCH = 4
TOOLS = ["search", "pay"]


@perdure.step
async def model(branch: int, turn: int) -> str:
    """Answers after a while that nobody can foresee."""
    await asyncio.sleep(random.random() * 0.01)
    return f"{branch}.{turn}"


class MiniFramework:
    """What agent frameworks do: branches with state of their own, a shared blackboard, whoever is first goes on."""

    def __init__(self) -> None:
        self.blackboard: list[str] = []
        self.first_done = asyncio.Event()
        self.lock = asyncio.Lock()

    async def branch(self, number: int) -> int:
        for turn in range(CALLS_PER_BRANCH):
            seen = len(self.blackboard)
            answer = await model.with_premises({"model": "small-1", "tools": TOOLS})(number, turn)
            async with self.lock:
                self.blackboard.append(f"{answer} after {len(self.blackboard) - seen} others")
        self.first_done.set()
        return number

    async def run(self) -> list[str]:
        tasks = [asyncio.create_task(self.branch(number)) for number in range(BRANCHES)]
        await self.first_done.wait()
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        order = [await finished for finished in asyncio.as_completed(tasks)]
        return [*self.blackboard, f"{len(done)} done, {len(pending)} pending, then {order}"]


@perdure.workflow
async def racing() -> list[str]:
    return await MiniFramework().run()


def test_branches_that_finish_in_random_order_replay_the_same_200_times(tmp_path: Path) -> None:
    url = str(tmp_path / "runs.db")

    async def live() -> list[str]:
        async with perdure.Runtime(url, workflows=[racing]) as runtime:
            run = await runtime.start(racing.call(), id="race")
            return await run.result(timeout=30)

    result = asyncio.run(live())
    store = open_store(url)
    info = store.find("race")
    assert info is not None
    past = Past(store.load(info.rid), store)
    store.close()
    calls = BRANCHES * CALLS_PER_BRANCH
    kinds = [type(event) for event in past.events]
    assert (kinds.count(e.StepCompleted), kinds.count(e.PremisesRead)) == (calls, calls)
    different = 0
    for _ in range(REPLAYS):
        execution = Execution(racing.spec, "race", past.beginning(), known=past.known())
        past.replay(execution)
        assert execution.failure is None
        ending = execution.ending
        different += not (isinstance(ending, Completed) and racing.spec.result.loads(ending.output) == result)
        execution.close()
    assert different == 0

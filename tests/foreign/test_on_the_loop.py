"""Foreign code on the workflow's loop: branches that race are replayed exactly as they ran."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.runtime.hosting import eventually

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


# ── hosted coroutines that race ─────────────────────────────────────────────────────────────


@perdure.step
async def takes(name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return name


async def race() -> list[str]:
    """The one that is asked for first comes last; what it goes on with rests on who was first."""
    racers = {asyncio.ensure_future(takes(name, seconds)): name for name, seconds in (("slow", 0.2), ("fast", 0.01))}
    done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    firsts = sorted(racers[racer] for racer in done)
    told = await model(len(firsts), 1), await takes(f"after {firsts}", 0)
    await asyncio.gather(*racers)
    return [told[1], await perdure.receive("word", str)]


async def race_with_time() -> list[str]:
    """A wait of its own races with a step and a message; who is given up takes nothing along."""
    racers = [
        asyncio.ensure_future(takes("step", 0.15)), asyncio.ensure_future(perdure.receive("word", str)),
        asyncio.ensure_future(perdure.sleep(0.02)),
    ]  # fmt: skip
    done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
    firsts = [place for place, racer in enumerate(racers) if racer in done]
    for racer in racers:
        racer.cancel()
    said = await takes(f"after {firsts}", 0)
    return [said, await perdure.receive("word", str)]


@perdure.workflow
async def races(is_with_time: bool) -> list[str]:
    return list(await perdure.section("race").run(race_with_time if is_with_time else race))


async def are_recorded(run: perdure.Run[list[str]], results: set[str]) -> bool:
    return results <= {str(event.output) for event in await run.history() if event.kind == "step.completed"}


@pytest.mark.parametrize(("is_with_time", "first"), [(False, "['fast']"), (True, "[2]")])
def test_who_was_first_is_first_whenever_hosted_coroutines_run_again(
    is_with_time: bool, first: str, tmp_path: Path
) -> None:
    """They wait for a message, and so run again from their start in each life of the worker. What the slowest gave is
    recorded by then, too."""
    loser = "step" if is_with_time else "slow"

    async def life(word: str | None) -> list[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[races]) as runtime:
            run = await runtime.start(races.call(is_with_time), id="r")
            await eventually(lambda: are_recorded(run, {f"after {first}", loser}))
            if word is None:
                return []
            await run.send("word", word)
            return await run.result(timeout=20)

    for _ in range(3):
        assert asyncio.run(life(None)) == []
    assert asyncio.run(life("go")) == [f"after {first}", "go"]

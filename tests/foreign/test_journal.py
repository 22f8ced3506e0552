"""What adapters use: a call that is no step, recorded by its request, in a lane of its own."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import perdure

ASKED: Counter[str] = Counter()


def model(question: str) -> str:
    """A framework's own model call: not a step, and it fails once."""

    def request() -> str:
        ASKED[question] += 1
        if ASKED[question] == 1 and question == "second":
            raise ConnectionResetError("the line broke")
        return f"answer to {question}"

    retry = perdure.Retry(first_delay=0.001)
    return str(perdure.journal().call("llm:demo", {"question": question}, request, retry=retry))


def crew(questions: list[str]) -> list[str]:
    with perdure.lane("agent 1"):
        answers = [model(question) for question in questions]
    perdure.sync.receive("go")
    return answers


@perdure.workflow
async def hosted(questions: list[str]) -> list[str]:
    return list(await perdure.section("crew").run(crew, questions))


def test_an_adapters_calls_are_answered_from_the_record_after_a_restart(tmp_path: Path) -> None:
    ASKED.clear()

    async def life(*, is_last: bool) -> list[str]:
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[hosted]) as runtime:
            run = await runtime.start(hosted.call(["first", "second"]), id="hosted")
            if not is_last:
                while sum(event.kind == "step.completed" for event in await run.history()) < 2:
                    await asyncio.sleep(0.005)
                return []
            await run.send("go")
            return await run.result(timeout=20)

    assert asyncio.run(life(is_last=False)) == []
    assert asyncio.run(life(is_last=True)) == ["answer to first", "answer to second"]
    assert ASKED == {"first": 1, "second": 2}


def test_the_journal_is_only_there_in_hosted_code() -> None:
    with pytest.raises(perdure.UsageError, match="belongs into hosted code"):
        perdure.journal()

"""A conversation that grows by a message a turn is stored once, not once a turn; also over a restart."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

import perdure
from perdure.api.workflow import Workflow
from perdure.audit.verify import verify
from perdure.store import open_store

TURNS = 60
WORDS = "lorem ipsum dolor sit amet " * 40


@perdure.step
async def answer(messages: list[dict[str, str]]) -> str:
    return f"answer {len(messages)}: {WORDS}"


@perdure.workflow(receives={"ask": str})
async def chat(turns: int) -> int:
    messages: list[dict[str, str]] = []
    for _ in range(turns):
        messages.append({"role": "user", "content": await perdure.receive("ask", str)})
        messages.append({"role": "assistant", "content": await answer(messages)})
    return sum(len(message["content"]) for message in messages)


@perdure.step
async def answer_briefly(messages: list[dict[str, str]], turn: int) -> str:
    return f"answer {turn}: {WORDS[:800]}"


@perdure.workflow(receives={"ask": str})
async def brief_chat(turns: int) -> int:
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": await perdure.receive("ask", str)})
        messages.append({"role": "assistant", "content": await answer_briefly(messages, turn)})
    return sum(len(message["content"]) for message in messages)


def stored_bytes(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        blobs = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM blobs").fetchone()[0]
        inline = connection.execute(
            "SELECT sum(length(envelope) + coalesce(length(input), 0) + coalesce(length(output), 0)) FROM events"
        ).fetchone()[0]
    connection.close()
    return int(blobs) + int(inline)


@pytest.mark.parametrize(
    ("workflow", "question", "times"), [(chat, WORDS, 3), (brief_chat, WORDS[:400], 1.6)], ids=["long", "brief"]
)
def test_a_conversation_over_restarts_is_stored_about_once(
    tmp_path: Path, workflow: Workflow[[int], int], question: str, times: float
) -> None:
    """Long texts are blobs; short ones stand beside their event, and are quoted where they are said again."""
    path = tmp_path / "runs.db"

    async def some_turns(turns: int, *, is_last: bool) -> int:
        async with perdure.Runtime(str(path), workflows=[workflow]) as runtime:
            run = await runtime.start(workflow.call(TURNS), id="chat")
            for turn in range(turns):
                await run.send("ask", f"question {turn}: {question}")
            if is_last:
                return await run.result(timeout=30)
            await runtime.drain()
            return 0

    text = 0
    for life in range(6):
        text = asyncio.run(some_turns(TURNS // 6, is_last=life == 5))
    assert text > TURNS * 1_200
    assert stored_bytes(path) <= times * text
    with contextlib.closing(open_store(str(path))) as store:
        assert verify(store).is_sound

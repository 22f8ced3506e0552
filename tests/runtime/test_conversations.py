"""A conversation that grows by a message a turn is stored once, not once a turn; also over a restart."""

import asyncio
import sqlite3
from pathlib import Path

import perdure

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


def stored_bytes(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        blobs = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM blobs").fetchone()[0]
        inline = connection.execute(
            "SELECT sum(length(envelope) + coalesce(length(input), 0) + coalesce(length(output), 0)) FROM events"
        ).fetchone()[0]
    connection.close()
    return int(blobs) + int(inline)


def test_a_conversation_over_restarts_is_stored_about_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"

    async def some_turns(turns: int, *, is_last: bool) -> int:
        async with perdure.Runtime(str(path), workflows=[chat]) as runtime:
            run = await runtime.start(chat.call(TURNS), id="chat")
            for turn in range(turns):
                await run.send("ask", f"question {turn}: {WORDS}")
            if is_last:
                return await run.result(timeout=30)
            await runtime.drain()
            return 0

    text = 0
    for life in range(6):
        text = asyncio.run(some_turns(TURNS // 6, is_last=life == 5))
    assert text > TURNS * 2_000
    assert stored_bytes(path) <= 3 * text

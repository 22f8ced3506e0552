"""The ledger, the history and the status of a run say the same; where not, it is put right or told."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import perdure
from perdure import Client, NoGuarantee, Runtime, effect, workflow
from perdure.audit.verify import verify
from perdure.store import open_store


@effect(downstream=NoGuarantee())
async def post(letter: str) -> str:
    perdure.operation().reference = f"post-{letter}"
    if letter == "lost":
        raise ConnectionResetError("gone")
    return f"posted {letter}"


@post.key
def _(letter: str) -> str:
    return letter


@workflow
async def writes_and_waits(letter: str) -> str:
    posted = await post(letter)
    await perdure.receive("more")
    return posted


@workflow
async def writes(letter: str) -> str:
    return await post(letter)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a run that waits after its effect, one that has ended after its own, and one in doubt."""
    path = tmp_path / "db"

    async def fill() -> None:
        async with Runtime(str(path), workflows=[writes, writes_and_waits]) as runtime:
            await runtime.start(writes_and_waits.call("a"), id="waits")
            await (await runtime.start(writes.call("b"), id="ended")).result(timeout=20)
            await runtime.start(writes.call("lost"), id="doubt")
            while len(await runtime.inbox()) < 1:
                await asyncio.sleep(0.01)
            await runtime.drain(max_seconds=10)

    asyncio.run(fill())
    return path


def damage(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def open_again(path: Path) -> dict[str, str]:
    """A worker comes and goes. How the effects of the runs stand afterwards."""

    async def look() -> dict[str, str]:
        async with Runtime(str(path)):
            pass
        async with Client(str(path)) as client:
            return {row.run_id: f"{row.status} {row.reference}" for row in await client.effects()}

    return asyncio.run(look())


def damages(path: Path) -> list[str]:
    with closing(open_store(str(path))) as store:
        return [str(each) for each in verify(store).damage]


SOUND = {"waits": "succeeded post-a", "ended": "succeeded post-b", "doubt": "unknown post-lost"}


def test_what_is_as_written_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "perdure"):
        assert open_again(path) == SOUND
    assert "the ledger" not in caplog.text
    assert damages(path) == []


@pytest.mark.parametrize("state", ["started", "unknown", "failed_retryable"])
def test_a_row_that_the_history_proves_to_be_over_is_put_right(
    path: Path, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(path, f"UPDATE effects SET status = '{state}', response_hash = NULL WHERE run_id = 'waits'")
    (told,) = damages(path)
    assert told.startswith("run waits: operation ")
    assert told.endswith(f"(0/post#1) is {state} in the ledger, and succeeded in the history")
    with caplog.at_level(logging.WARNING, "perdure"):
        assert open_again(path) == SOUND
    assert "succeeded in the history; the ledger is put right" in caplog.text
    assert damages(path) == []


DAMAGE = {
    "an open row of a run that has ended": (
        "UPDATE effects SET status = 'unknown' WHERE run_id = 'ended'",
        "is unknown in the ledger, and succeeded in the history",
        True,
    ),
    "an end under an effect in doubt": (
        "UPDATE runs SET status = 'cancelled', reason = NULL, hint = NULL, due_at = NULL WHERE run_id = 'doubt'",
        "is unknown, and its run has ended: nobody will find out what became of it",
        True,
    ),
    "a success that nobody recorded": (
        "UPDATE effects SET status = 'succeeded', response_hash = x'00' WHERE run_id = 'doubt'",
        "is succeeded in the ledger, and the history has no outcome",
        False,
    ),
    "a row that is gone": (
        "DELETE FROM effects WHERE run_id = 'doubt'",
        "and the ledger has no row",
        False,
    ),
    "a row too many": (
        "UPDATE effects SET operation_id = 'ff' || substr(operation_id, 3) WHERE run_id = 'ended'",
        "is succeeded in the ledger, and the history does not know it",
        False,
    ),
}


@pytest.mark.parametrize(("sql", "says", "is_seen_at_start"), DAMAGE.values(), ids=DAMAGE)
def test_what_cannot_be_put_right_is_told(
    path: Path, sql: str, says: str, is_seen_at_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    damage(path, sql)
    assert any(says in each for each in damages(path)), damages(path)
    with caplog.at_level(logging.WARNING, "perdure"):
        open_again(path)
    assert (says in caplog.text) is is_seen_at_start
    assert any(says in each for each in damages(path))

"""The ledger, the table of approvals, the history and the status of a run say the same; where not, it is put right or
told."""

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
from perdure.store.protocol import EffectFilter


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
    assert "succeeded in the history; the row is put right" in caplog.text
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


@pytest.mark.parametrize("status", ["running", "queued", "waiting", "blocked"])
def test_a_run_whose_history_has_ended_is_over_whatever_the_index_says(
    path: Path, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(path, f"UPDATE runs SET status = '{status}', due_at = NULL WHERE run_id = 'ended'")
    assert damages(path) == [f"run ended: the index says {status}, the history completed"]

    async def somebody_takes_it_up() -> str:
        async with Runtime(str(path), workflows=[writes, writes_and_waits]) as runtime:
            result: str = await (await runtime.get("ended")).result(timeout=20)
            return result

    with caplog.at_level(logging.WARNING, "perdure"):
        assert asyncio.run(somebody_takes_it_up()) == "posted b"
    assert f"run ended: the index says {status}, and its history has ended (run.completed)" in caplog.text
    assert damages(path) == []
    assert open_again(path) == SOUND


# ── what people were asked ──────────────────────────────────────────────────────────────────


@workflow
async def asks(letter: str) -> str:
    return await perdure.with_approval(post.call(letter), by={"ann", "bo"}, quorum=2)


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """A store with a request that one of two has approved, one that was used, one that was rejected, one withdrawn."""
    path = tmp_path / "asked"

    async def fill() -> None:
        async with Runtime(str(path), workflows=[asks]) as runtime:
            for run_id in ("half", "used", "rejected", "withdrawn"):
                await runtime.start(asks.call(run_id), id=run_id)
            while len(pending := await runtime.requests(status="pending")) < 4:
                await asyncio.sleep(0.01)
            of = {it.run_id: it for it in pending}
            for run_id in ("half", "used"):
                await runtime.approve(of[run_id].id, hash=of[run_id].hash, by="ann")
            await runtime.approve(of["used"].id, hash=of["used"].hash, by="bo")
            await runtime.reject(of["rejected"].id, hash=of["rejected"].hash, by="bo")
            await (await runtime.get("used")).result(timeout=20)
            await (await runtime.get("withdrawn")).cancel()
            while not (it := await one_half(runtime)) or await runtime.requests(status="pending") != [it]:
                await asyncio.sleep(0.01)
            await runtime.drain(max_seconds=10)

    asyncio.run(fill())
    return path


async def one_half(runtime: Runtime) -> object:
    """The request that one of two has approved, once that is taken in."""
    found = [it for it in await runtime.requests(status="pending") if it.run_id == "half" and it.said]
    return found[0] if found else None


STANDING = {"half": "pending ann", "used": "used ann, bo", "rejected": "rejected bo", "withdrawn": "withdrawn "}


def requests_after(path: Path) -> dict[str, str]:
    """A worker comes and goes. How the requests stand afterwards."""

    async def look() -> dict[str, str]:
        async with Runtime(str(path)):
            pass
        async with Client(str(path)) as client:
            found = await client.requests()
        return {it.run_id: f"{it.status} {', '.join(said.by for said in it.said)}" for it in found}

    return asyncio.run(look())


def test_requests_that_are_as_written_are_left_alone(asked: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "perdure"):
        assert requests_after(asked) == STANDING
    assert "request" not in caplog.text
    assert damages(asked) == []


@pytest.mark.parametrize(
    ("run_id", "open_again_as", "says"),
    [
        ("used", "approved", "(0/approve:post#1) is approved in the table, and used by {operation} in the history"),
        ("rejected", "pending", "(0/approve:post#1) is pending in the table, and rejected in the history"),
        ("withdrawn", "pending", "(0/approve:post#1) is pending in the table, and withdrawn in the history"),
        ("withdrawn", "approved", "(0/approve:post#1) is approved in the table, and withdrawn in the history"),
    ],
)
def test_a_request_that_the_history_has_ended_is_told(
    asked: Path, run_id: str, open_again_as: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run has ended: nothing is written to it any more."""
    with closing(open_store(str(asked))) as store:
        operation = {row.run_id: row.operation_id for row in store.effects(EffectFilter())}["used"]
    damage(asked, f"UPDATE approvals SET status = '{open_again_as}', used_by = '' WHERE run_id = '{run_id}'")
    (told,) = damages(asked)
    assert told.startswith(f"run {run_id}: request ")
    assert told.endswith(says.format(operation=operation))
    with caplog.at_level(logging.WARNING, "perdure"):
        requests_after(asked)
    assert says.format(operation=operation) in caplog.text


REQUESTS_DAMAGED = {
    "an approval that nobody gave": (
        "UPDATE approvals SET status = 'approved' WHERE run_id = 'half'",
        "is approved in the table, and pending in the history",
        True,
    ),
    "another request": (
        "UPDATE approvals SET request_hash = zeroblob(32) WHERE run_id = 'half'",
        "asks for something else in the table than in the history",
        True,
    ),
    "other persons": (
        "UPDATE approvals SET said = replace(said, 'ann', 'eve') WHERE run_id = 'used'",
        "was approved by bo, eve in the table, and by ann, bo in the history",
        False,
    ),
    "another use": (
        "UPDATE approvals SET used_by = 'another' WHERE run_id = 'used'",
        "is used by another in the table, and used by",
        False,
    ),
    "a rejection that is an expiry": (
        "UPDATE approvals SET status = 'expired' WHERE run_id = 'rejected'",
        "is expired in the table, and rejected in the history",
        False,
    ),
    "a row that is gone": (
        "DELETE FROM approvals WHERE run_id = 'half'",
        "(pending), and the table has no row",
        False,
    ),
    "a row too many": (
        "UPDATE approvals SET approval_id = 'ff' || substr(approval_id, 3) WHERE run_id = 'rejected'",
        "is rejected in the table, and the history does not know it",
        False,
    ),
    "an end under a request": (
        "UPDATE runs SET status = 'cancelled', reason = NULL, hint = NULL, due_at = NULL WHERE run_id = 'half'",
        "is pending, and its run has ended: nobody waits for it",
        True,
    ),
}


@pytest.mark.parametrize(("sql", "says", "is_seen_at_start"), REQUESTS_DAMAGED.values(), ids=REQUESTS_DAMAGED)
def test_what_is_wrong_with_a_request_is_told(
    asked: Path, sql: str, says: str, is_seen_at_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    damage(asked, sql)
    assert any(says in each for each in damages(asked)), damages(asked)
    with caplog.at_level(logging.WARNING, "perdure"):
        requests_after(asked)
    assert (says in caplog.text) is is_seen_at_start
    assert any(says in each for each in damages(asked))


def test_a_request_of_a_run_that_goes_on_is_put_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "db"

    @workflow
    async def asks_and_waits() -> str:
        answer = await perdure.ask("Which?", type=str)
        return f"{answer} {await perdure.receive('more')}"

    async def fill() -> None:
        async with Runtime(str(path), workflows=[asks_and_waits]) as runtime:
            await runtime.start(asks_and_waits.call(), id="r")
            while not (pending := await runtime.requests(status="pending")):
                await asyncio.sleep(0.01)
            await runtime.answer(pending[0].id, "this", hash=pending[0].hash, by="ann")
            while await runtime.requests(status="pending"):
                await asyncio.sleep(0.01)
            await runtime.drain(max_seconds=10)

    asyncio.run(fill())
    damage(path, "UPDATE approvals SET status = 'pending'")
    (told,) = damages(path)
    assert told.endswith("(0/ask#1) is pending in the table, and answered in the history")
    with caplog.at_level(logging.WARNING, "perdure"):
        assert requests_after(path) == {"r": "answered ann"}
    assert "answered in the history; the row is put right" in caplog.text
    assert damages(path) == []

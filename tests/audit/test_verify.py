"""Whatever is altered or lost inside a store is found, and named; what is as it was written is not."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import perdure
from perdure import Runtime, step, workflow
from perdure.audit.verify import Damage, Report, verify
from perdure.store import Store, open_store


@step
async def repeat(text: str) -> str:
    return text * 2_000


@workflow
async def talks(text: str) -> list[str]:
    said: list[str] = []
    for number in range(5):
        said.append(await repeat(f"{text}{number}"))
    await perdure.sleep(0)
    return said


@workflow
async def fails() -> None:
    raise ValueError("no")


@workflow
async def waits() -> None:
    await perdure.receive("never")


async def fill(url: str, prefix: str = "") -> None:
    async with Runtime(url, workflows=[talks, fails, waits]) as runtime:
        for number in range(3):
            run = await runtime.start(talks.call(f"t{number}"), id=f"{prefix}talk-{number}")
            await run.result(timeout=10)
        await runtime.start(fails.call(), id=f"{prefix}fails")
        await runtime.start(waits.call(), id=f"{prefix}waits")
        await runtime.drain(max_seconds=10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    asyncio.run(fill(str(path)))
    return path


@pytest.fixture
def report(path: Path) -> Callable[[], Report]:
    """Verifies the store as it is."""

    def check() -> Report:
        with closing(open_store(str(path))) as store:
            return verify(store)

    return check


def alter(path: Path, sql: str, *values: object) -> None:
    """Change the database by hand. The statement has to hit something."""
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(sql, values).rowcount > 0, sql


RID = "(SELECT rid FROM runs WHERE run_id = 'talk-1')"

ALTERED: dict[str, tuple[int | None, str]] = {
    # what is done to run talk-1: at which event it is found, and what is said
    f"UPDATE events SET envelope = CAST(replace(envelope, 'repeat', 'repaet') AS BLOB) WHERE rid = {RID} AND seq = 2": (
        2, "altered: its hash",
    ),
    f"UPDATE events SET at = at + 1 WHERE rid = {RID} AND seq = 2": (2, "altered: its hash"),
    f"UPDATE events SET hash = zeroblob(32) WHERE rid = {RID} AND seq = 2": (2, "altered: its hash"),
    f"UPDATE events SET kind = 'step.failed' WHERE rid = {RID} AND seq = 2": (2, "cannot be read"),
    f"UPDATE events SET envelope = CAST('{{' AS BLOB) WHERE rid = {RID} AND seq = 2": (2, "cannot be read"),
    f"UPDATE events SET input = CAST('{{}}' AS BLOB) WHERE rid = {RID} AND seq = 0": (0, "its input is not the one"),
    f"UPDATE events SET input = NULL WHERE rid = {RID} AND seq = 0": (0, "its input: "),
    f"UPDATE events SET output = CAST('1' AS BLOB) WHERE rid = {RID} AND seq = 2": (2, "its output is not the one"),
    f"DELETE FROM blobs WHERE rid = {RID}": (1, "has no blob"),
    f"UPDATE blobs SET body = CAST(body || ' ' AS BLOB) WHERE rid = {RID}": (1, "not hold what its digest says"),
    f"DELETE FROM events WHERE rid = {RID} AND seq = 2": (None, "has no event 2, but later ones"),
    f"DELETE FROM events WHERE rid = {RID} AND seq = (SELECT max(seq) FROM events WHERE rid = {RID})": (
        None, "the index says completed, the history that it has not ended",
    ),
    f"DELETE FROM events WHERE rid = {RID}": (None, "events with another last one; there are 0"),
    f"UPDATE runs SET status = 'failed' WHERE rid = {RID}": (None, "the index says failed, the history completed"),
    f"UPDATE runs SET status = 'waiting' WHERE rid = {RID}": (None, "the index says waiting, the history completed"),
    f"UPDATE runs SET version = 2 WHERE rid = {RID}": (None, "the index says another workflow, version"),
    f"UPDATE runs SET parent_run_id = 'x' WHERE rid = {RID}": (None, "the index says another workflow"),
}  # fmt: skip


def test_a_store_as_it_was_written_is_sound(path: Path, report: Callable[[], Report]) -> None:
    found = report()
    assert (found.runs, found.pruned, found.damage) == (5, 0, ())
    assert found.is_sound
    assert found.events > 20


@pytest.mark.parametrize("sql", ALTERED)
def test_what_was_altered_is_found(sql: str, path: Path, report: Callable[[], Report]) -> None:
    seq, says = ALTERED[sql]
    alter(path, sql)
    found = report()
    assert {each.run_id for each in found.damage} == {"talk-1"}
    assert any(each.seq == seq and says in each.what for each in found.damage), found.damage


def test_events_that_changed_places_are_found(path: Path, report: Callable[[], Report]) -> None:
    alter(path, f"UPDATE events SET seq = -2 WHERE rid = {RID} AND seq = 2")
    alter(path, f"UPDATE events SET seq = 2 WHERE rid = {RID} AND seq = 3")
    alter(path, f"UPDATE events SET seq = 3 WHERE rid = {RID} AND seq = -2")
    assert {each.seq for each in report().damage} >= {2, 3}


def test_a_history_of_another_run_is_found(path: Path, report: Callable[[], Report]) -> None:
    """Each chain holds, but it is not that of its run."""
    other = "(SELECT rid FROM runs WHERE run_id = 'talk-2')"
    alter(path, f"UPDATE events SET rid = -rid WHERE rid = {RID}")
    alter(path, f"UPDATE events SET rid = {RID} WHERE rid = {other}")
    alter(path, f"UPDATE events SET rid = {other} WHERE rid = -{RID}")
    found = report()
    assert {each.run_id for each in found.damage} >= {"talk-1", "talk-2"}
    assert any("another workflow, version, parent, input or scope" in each.what for each in found.damage)


def test_a_byte_that_flips_anywhere_in_an_event_is_found(path: Path, report: Callable[[], Report]) -> None:
    with closing(sqlite3.connect(path)) as database:
        (envelope,) = database.execute(f"SELECT envelope FROM events WHERE rid = {RID} AND seq = 1").fetchone()
    for place in range(len(envelope)):
        changed = bytearray(envelope)
        changed[place] ^= 4
        alter(path, f"UPDATE events SET envelope = ? WHERE rid = {RID} AND seq = 1", bytes(changed))
        assert Damage("talk-1", 1, "altered: its hash is not the one that was recorded") in report().damage


def test_of_pruned_runs_the_head_is_left(path: Path, report: Callable[[], Report]) -> None:
    with closing(open_store(str(path))) as store:
        assert store.prune(ended_before=2**60, limit=10) == 4
    found = report()
    assert (found.runs, found.pruned, found.is_sound) == (1, 4, True)


def test_a_damaged_file_is_damage_too(path: Path, report: Callable[[], Report]) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half:] = b"\xff" * (len(content) - half)
    path.write_bytes(content)
    found = report()
    assert not found.is_sound
    assert found.damage[-1].run_id == ""
    assert str(found.damage[-1]).startswith("the store: ")


def test_it_may_run_while_runs_go_on(tmp_path: Path) -> None:
    url = str(tmp_path / "busy.db")
    done = threading.Event()
    found: list[Report] = []

    def keep_verifying(store: Store) -> None:
        while not done.is_set():
            found.append(verify(store))
        store.close()

    with closing(open_store(url)):
        thread = threading.Thread(target=keep_verifying, args=[open_store(url)])
        thread.start()
        for number in range(5):
            asyncio.run(fill(url, f"{number}-"))
        done.set()
        thread.join(30)
    assert found
    assert all(each.is_sound for each in found), [each.damage for each in found if each.damage]


def test_progress_is_told(path: Path) -> None:
    told: list[int] = []
    with closing(open_store(str(path))) as store:
        verify(store, progress=told.append)
    assert told == [1, 2, 3, 4, 5]

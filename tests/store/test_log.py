"""SQLite's log is made longer ahead of time, and stays a log: what is recorded comes back from the files alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from perdure.errors import StoreBusyError
from perdure.store.protocol import Done
from perdure.store.sqlite import SqliteStore, log
from perdure.testing.conformance.base import append, new_run


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "perdure.db")


@pytest.fixture(autouse=True)
def room_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that few commits pass many borders between what is written and what is only room."""
    monkeypatch.setattr(log, "LOOK_EVERY", 1)
    monkeypatch.setattr(log, "ZEROS", bytes(10_000))
    monkeypatch.setattr(log, "TIMES", 3)


def start(store: SqliteStore) -> int:
    store.enter("w", lease_seconds=600, workflows=["agent"])
    (outcome,) = store.commit([new_run("r", owner="w")])
    assert isinstance(outcome, Done)
    return outcome.rid


def room_behind(path: str) -> int:
    """Zeros at the end of the log."""
    raw = Path(f"{path}-wal").read_bytes()
    return len(raw) - len(raw.rstrip(b"\0"))


def length_after_power_cut(path: str, folder: Path) -> int:
    """What a machine finds that has only the files: the memory that openers share, `-shm`, is gone."""
    folder.mkdir()
    copy = str(folder / "perdure.db")
    for end in ("", "-wal"):
        shutil.copy(path + end, copy + end)
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    store = SqliteStore(copy)
    found = store.find("r")
    assert found is not None
    length = store.load(found.rid).length
    store.close()
    return length


def test_every_commit_is_there_after_a_power_cut_wherever_the_room_begins(path: str, tmp_path: Path) -> None:
    store = SqliteStore(path)
    rid, rooms = start(store), set[int]()
    for length in range(1, 25):
        assert store.commit([append(rid, length)]) == [Done(rid, length + 1)]
        rooms.add(room_behind(path) // 4120)
        assert length_after_power_cut(path, tmp_path / str(length)) == length + 1
    assert rooms == {0, 1, 3, 5}
    store.close()


def test_commits_of_others_are_never_written_over(path: str, tmp_path: Path) -> None:
    store, other = SqliteStore(path), SqliteStore(path)
    foreign = sqlite3.connect(path, isolation_level=None)
    rid = start(store)
    for length in range(1, 40, 2):
        store.commit([append(rid, length)])
        foreign.execute("INSERT INTO notes (kind, key, body, at) VALUES ('n', ?, zeroblob(9000), 0)", [str(length)])
        other.commit([append(rid, length + 1)])
    assert length_after_power_cut(path, tmp_path / "copy") == 41
    foreign.close()
    other.close()
    store.close()


def test_nothing_is_added_while_somebody_else_may_write(path: str) -> None:
    store = SqliteStore(path, busy_seconds=0.02)
    rid = start(store)
    store.commit([append(rid, 1)])
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    before = os.path.getsize(f"{path}-wal")
    for _ in range(5):
        with pytest.raises(StoreBusyError):
            store.commit([append(rid, 2)])
    assert os.path.getsize(f"{path}-wal") == before
    foreign.close()
    store.close()


def test_a_handle_that_writes_little_adds_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "LOOK_EVERY", 8)
    store = SqliteStore(path)
    rid = start(store)
    for length in range(1, 10):
        store.commit([append(rid, length)])
    assert room_behind(path) == 0
    store.close()


def test_a_log_of_full_length_is_left_as_it_is(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    monkeypatch.setattr(log, "BYTES_MAX", os.path.getsize(f"{path}-wal") + 200_000)
    rid, rooms = start(store), list[int]()
    for length in range(1, 60):
        store.commit([append(rid, length)])
        rooms.append(room_behind(path))
    assert max(rooms[:15]) > 20_000
    assert max(rooms[-15:]) == 0
    store.close()
    assert not os.path.exists(f"{path}-wal")


def test_a_disk_without_room_for_more_log_harms_no_commit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    store = SqliteStore(path)
    rid = start(store)
    monkeypatch.setattr(os, "pwrite", full)
    for length in range(1, 10):
        assert store.commit([append(rid, length)]) == [Done(rid, length + 1)]
    store.close()

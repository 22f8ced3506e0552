"""A store that cannot be written is read as far as that can be done without making anything beside it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure.errors import StoreBusyError, StoreError, StoreFormatError, StoreReadOnlyError
from perdure.store import Store, open_store
from perdure.store.protocol import Done, Filter
from perdure.store.sqlite import SqliteStore
from perdure.testing.conformance.base import append, new_run


class Places(NamedTuple):
    """One folder by two names: under the second nothing in it can be written."""

    own: Path
    shown: Path

    @property
    def store(self) -> str:
        return str(self.own / "perdure.db")

    @property
    def shown_store(self) -> str:
        return str(self.shown / "perdure.db")

    def look(self) -> Store:
        return open_store(self.shown_store, read_only=True)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    own, shown = tmp_path / "own", tmp_path / "shown"
    own.mkdir()
    shown.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "--bind", own, shown], check=False).returncode:
        pytest.skip("cannot mount a folder here")
    try:
        subprocess.run([mount, "-o", "remount,ro,bind", shown], check=True)
        yield Places(own, shown)
    finally:
        subprocess.run(["umount", shown], check=True)


def start(store: Store, run_id: str = "r") -> int:
    (outcome,) = store.commit([new_run(run_id, owner="w")])
    assert isinstance(outcome, Done)
    return outcome.rid


def written(path: str) -> SqliteStore:
    store = SqliteStore(path)
    store.enter("w", lease_seconds=600, workflows=["agent"])
    start(store)
    return store


def names(store: Store) -> list[str]:
    return [run.run_id for run in store.runs(Filter())]


def test_what_was_closed_is_read_and_nothing_is_made(places: Places, tmp_path: Path) -> None:
    written(places.store).close()
    before = sorted(os.listdir(places.own))
    with pytest.raises(StoreReadOnlyError, match=r"cannot be written, .* so does open_store\(path, read_only=True\)"):
        open_store(places.shown_store)
    store = places.look()
    assert names(store) == ["r"]
    assert store.load(store.runs(Filter())[0].rid).length == 1
    assert store.stats()["runs"] == 1
    assert [run_id for run_id, *_ in store.heads()] == ["r"]
    assert store.lost("") == [("w", True)], "its worker is known to be dead"
    assert not store.is_free()
    store.backup(str(tmp_path / "copy.db"))
    store.close()
    assert sorted(os.listdir(places.own)) == before
    copy = open_store(str(tmp_path / "copy.db"))
    assert names(copy) == ["r"]
    copy.close()


def test_who_writes_there_is_refused(places: Places) -> None:
    written(places.store).close()
    store = places.look()
    with pytest.raises(StoreReadOnlyError, match=r"perdure\.db: is open for reading only; write where"):
        start(store, "another")
    with pytest.raises(StoreReadOnlyError):
        store.enter("v", lease_seconds=600, workflows=["agent"])
    with pytest.raises(StoreReadOnlyError):
        store.prune(ended_before=0, limit=1)
    store.close()
    again = SqliteStore(places.store)
    assert names(again) == ["r"]
    again.close()


def test_what_others_write_meanwhile_is_seen(places: Places) -> None:
    store = written(places.store)
    looks = places.look()
    assert names(looks) == ["r"]
    rid = start(store, "s")
    assert store.commit([append(rid, 1)]) == [Done(rid, 2)]
    assert names(looks) == ["s", "r"]
    assert looks.load(rid).length == 2
    assert looks.lost("") == [], "its worker lives"
    store.close()
    assert names(looks) == ["s", "r"], "read without a log now"
    looks.close()


def test_what_could_be_written_can_be_looked_at_too(places: Places) -> None:
    store = written(places.store)
    looks = open_store(places.store, read_only=True)
    assert names(looks) == ["r"]
    store.close()
    assert names(looks) == ["r"]
    with pytest.raises(StoreReadOnlyError):
        start(looks, "s")
    looks.close()


def test_what_is_read_without_locks_counts_only_if_nobody_wrote_meanwhile(places: Places) -> None:
    store = written(places.store)
    store.leave("w")
    store.close()
    looks = places.look()
    with pytest.raises(StoreBusyError, match=r"others wrote while it was read without locks; read it again"):
        looks.backup(str(places.own / "copy.db"), lambda done, total: written_once(places))
    assert not (places.own / "copy.db").exists()
    assert names(looks) == ["s", "r"]
    looks.close()


def written_once(places: Places) -> None:
    store = SqliteStore(places.store)
    if store.find("s") is None:
        store.enter("w", lease_seconds=600, workflows=["agent"])
        start(store, "s")
    store.close()


def test_a_log_that_was_left_is_read_with_its_index_and_refused_without(places: Places) -> None:
    store = written(places.store)
    left = places.own / "left"
    left.mkdir()
    for file in places.own.glob("perdure.db*"):
        if file.is_file():
            shutil.copy(file, left)
    store.close()
    path = str(places.shown / "left" / "perdure.db")
    looks = open_store(path, read_only=True)
    assert names(looks) == ["r"]
    looks.close()
    (left / "perdure.db-shm").unlink()
    with pytest.raises(StoreReadOnlyError, match=r"has a log \(.*-wal\) without its index .*; copy file and log to"):
        open_store(path, read_only=True)


def test_an_older_store_is_not_brought_up_to_date_there(places: Places) -> None:
    store = written(places.store)
    with store.writing() as connection:
        connection.execute("PRAGMA user_version = 3")
    store.close()
    with pytest.raises(StoreFormatError, match=r"schema version 3 is older than .* where it can be written"):
        places.look()


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such file"):
        open_store(str(tmp_path / "none.db"), read_only=True)
    assert os.listdir(tmp_path) == []


def test_what_belongs_to_something_else_gets_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE things (x)")
    connection.close()
    with pytest.raises(StoreFormatError, match="belongs to something else"):
        open_store(str(path))
    assert os.listdir(tmp_path) == ["other.db"]

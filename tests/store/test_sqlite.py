"""What is SQLite's own about the SQLite store: its file, its connections, and what goes wrong with a disk."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import (
    HistoryCorruptError,
    PerdureBug,
    PerdureError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnsupportedError,
)
from perdure.store.protocol import Done, Filter, Note
from perdure.store.sql import load_migrations
from perdure.store.sqlite import SqliteStore, connect, locks, schema, writer
from perdure.store.sqlite.commit import QUERIES
from perdure.testing.conformance.base import append, new_run, released, row

MIGRATIONS = load_migrations(str(Path(schema.__file__).parent / "migrations"))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "perdure.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path, busy_seconds=0.05)
    store.enter("w", lease_seconds=600, workflows=["agent"])
    yield store
    store.close()


def start(store: SqliteStore, run_id: str = "r") -> int:
    (outcome,) = store.commit([new_run(run_id, owner="w")])
    assert isinstance(outcome, Done)
    return outcome.rid


def raw(path: str, *statements: str) -> list[object]:
    """Run statements on the file by other means than ours."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return [connection.execute(statement).fetchall() for statement in statements]
    finally:
        connection.close()


# ── connections ──────────────────────────────────────────────────────────────────────────────
def test_every_connection_has_every_pragma(path: str) -> None:
    SqliteStore(path).close()
    for is_reader in (False, True):
        connection = connect.connect(path, busy_seconds=7.5, is_reader=is_reader)
        values = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "busy_timeout", "query_only", "trusted_schema")
        }
        expected = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 7500, "trusted_schema": 0}
        assert values == {**expected, "query_only": int(is_reader)}
        connection.close()


def test_a_reader_keeps_no_writer_waiting(store: SqliteStore, path: str) -> None:
    rid = start(store)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM events").fetchall()
    assert store.commit([append(rid, 1)]) == [Done(rid, 2)]
    reader.close()


def test_a_writer_keeps_no_reader_waiting(store: SqliteStore, path: str) -> None:
    rid = start(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM events")
    assert store.load(rid).length == 1
    assert not store.changed()
    other.close()


def test_what_other_tools_lock_is_waited_for_and_then_given_up(store: SqliteStore, path: str) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusyError, match=r"perdure\.db: .*; "):
        store.commit([new_run("r")])
    other.execute("ROLLBACK")
    other.close()
    assert len(store.commit([new_run("r")])) == 1


def test_a_connection_that_cannot_roll_back_is_replaced(store: SqliteStore) -> None:
    """Whatever broke it, the next commit has a new one, with every pragma."""
    rid = start(store)
    with pytest.raises(PerdureError), store.writing() as connection:
        connection.close()
    assert store.commit([append(rid, 1)]) == [Done(rid, 2)]
    with store.writing() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_thread_that_writes_without_a_pause_starves_no_other(store: SqliteStore) -> None:
    busy, other = start(store, "busy"), start(store, "other")
    stop, is_running = threading.Event(), threading.Event()

    def hog() -> None:
        length = 1
        while not stop.is_set():
            store.commit([append(busy, length)])
            length += 1
            is_running.set()

    thread = threading.Thread(target=hog)
    thread.start()
    is_running.wait(30)
    lengths = [store.load(busy).length]
    for length in range(1, 22):
        store.commit([append(other, length)])
        lengths.append(store.load(busy).length)
    stop.set()
    thread.join(30)
    # how often it was overtaken, most of the time: now and then the system lets this thread wait before it even asks
    assert statistics.median(after - before for before, after in pairwise(lengths)) <= 5


# ── files that cannot be a store ─────────────────────────────────────────────────────────────
def test_a_file_of_something_else_is_refused_and_not_touched(path: str) -> None:
    raw(path, "CREATE TABLE precious (x)")
    before = Path(path).read_bytes()
    with pytest.raises(StoreFormatError, match="belongs to something else"):
        SqliteStore(path)
    assert Path(path).read_bytes() == before


def test_another_applications_file_is_refused(path: str) -> None:
    raw(path, "PRAGMA application_id = 42")
    with pytest.raises(StoreFormatError, match="belongs to something else"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_text("Dear diary, " * 100)
    with pytest.raises(StoreFormatError, match=r"not a SQLite database"):
        SqliteStore(path)


def test_a_store_of_a_newer_perdure_is_refused(path: str) -> None:
    SqliteStore(path).close()
    raw(path, "PRAGMA user_version = 999")
    with pytest.raises(StoreFormatError, match=r"999 was written by a newer perdure.*upgrade"):
        SqliteStore(path)


def test_an_empty_file_becomes_a_store(path: str) -> None:
    Path(path).touch()
    SqliteStore(path).close()
    assert raw(path, "PRAGMA application_id", "PRAGMA user_version", "PRAGMA journal_mode") == [
        [(schema.APPLICATION_ID,)],
        [(len(MIGRATIONS),)],
        [("wal",)],
    ]


def test_a_store_of_an_older_perdure_becomes_one_of_this(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in schema.statements_of(MIGRATIONS[0]):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("INSERT INTO heads VALUES (7, 'old', 'agent', 'completed', 3, x'00', 1, 2)")
    connection.close()
    store = SqliteStore(path)
    assert store.stats()["schema_version"] == len(MIGRATIONS)
    assert [head[0] for head in store.heads()] == ["old"]
    store.keep(Note("drill", "a", b"", 1))
    store.close()


def test_a_store_that_lost_its_log_mode_gets_it_back(path: str) -> None:
    SqliteStore(path).close()
    raw(path, "PRAGMA journal_mode = DELETE")
    SqliteStore(path).close()
    assert raw(path, "PRAGMA journal_mode") == [[("wal",)]]


def test_a_lock_file_that_is_gone_proves_no_death(store: SqliteStore, path: str) -> None:
    shutil.rmtree(f"{path}-workers")
    other = SqliteStore(path)
    assert other.lost("v") == []
    assert other.take_over("w", proven=True, retry_after=[0.0]) == 0
    other.close()


def test_a_worker_that_was_taken_over_leaves_no_file(store: SqliteStore, path: str) -> None:
    assert len(os.listdir(f"{path}-workers")) == 1
    store.kill("w")
    assert store.take_over("w", proven=True, retry_after=[0.0]) == 0
    assert os.listdir(f"{path}-workers") == []


def test_a_run_that_waits_costs_no_memory(store: SqliteStore) -> None:
    rid = start(store)
    store.commit([append(rid, 1)])
    standing = store._writer.facts.standing  # pyright: ignore[reportPrivateUsage]
    assert standing == {rid: (1, 2)}
    store.commit([append(rid, 2, change=released(due_at=5))])
    assert standing == {}
    (claim,) = store.claim("w", now=10, limit=1, known=frozenset({("agent", 1)}))
    assert isinstance(store.commit([append(rid, 3, epoch=claim.info.epoch)])[0], Done)


def test_a_backup_is_a_store(store: SqliteStore, path: str, tmp_path: Path) -> None:
    rid = start(store)
    store.commit([append(rid, 1, 5, blobs=((b"b" * 32, b"blob"),))])
    target = str(tmp_path / "copy.db")
    store.backup(target)
    copy = SqliteStore(target)
    assert copy.load(rid) == store.load(rid)
    assert copy.blob(rid, b"b" * 32) == b"blob"
    assert not os.path.exists(f"{target}.unfinished")
    copy.close()


def test_a_backup_that_fails_leaves_nothing_behind(store: SqliteStore, tmp_path: Path) -> None:
    start(store)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.backup(str(tmp_path / "copy.db"), stop)
    assert list(tmp_path.glob("copy*")) == []


def test_a_backup_that_does_not_fit_is_said_of_the_copy(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rid = start(store)
    store.commit([append(rid, 1, rows=(row(1, output=os.urandom(200_000)),))])
    connect_as_usual = sqlite3.connect

    def small(path: str, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect_as_usual(path, **options)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreFullError, match=r"copy\.db: no space left"):
        store.backup(str(tmp_path / "copy.db"))
    assert list(tmp_path.glob("copy*")) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no folder .*nowhere; create it"):
        SqliteStore(str(tmp_path / "nowhere" / "perdure.db"))


def test_a_place_where_locks_do_not_hold_is_refused(path: str) -> None:
    with pytest.raises(StoreUnsupportedError, match="keep the store on a local disk"):
        locks.check_locks_hold(path, take=lambda fd: True)


def test_a_place_without_locks_is_refused(path: str) -> None:
    def take(_fd: int) -> bool:
        raise OSError(95, "Operation not supported")

    with pytest.raises(StoreUnsupportedError, match="keep the store on a local disk"):
        locks.check_locks_hold(path, take=take)


def test_a_network_disk_is_refused_and_named(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/x /mnt/my\\040share nfs4 rw 0 0\n/dev/vdb /mnt/my\\040share/in xfs rw 0 0\n"
    )
    locks.check_disk("/home/perdure.db", str(mounts))
    locks.check_disk("/mnt/my share/in/perdure.db", str(mounts))
    locks.check_disk("/mnt/my share/perdure.db", str(tmp_path / "no such file"))
    with pytest.raises(StoreUnsupportedError, match=r"/mnt/my share is a network disk \(nfs4\)"):
        locks.check_disk("/mnt/my share/perdure.db", str(mounts))


def test_a_closed_handle_says_so_and_closes_again_without_a_word(path: str) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.commit([])
    with pytest.raises(StoreError, match="closed"):
        store.find("r")


def test_the_same_file_by_another_name_is_the_same_store(tmp_path: Path, path: str) -> None:
    (tmp_path / "link.db").symlink_to(path)
    one, two = SqliteStore(path), SqliteStore(str(tmp_path / "link.db"))
    assert one.url == two.url == f"sqlite:///{path}"
    one.close()
    two.close()


# ── values and damage ────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("fields", [{"at": 2**63}, {"at": "text"}, {"envelope": object()}, {"kind": "\ud800"}])
def test_a_value_that_cannot_be_stored_harms_no_other_write(store: SqliteStore, fields: dict[str, Any]) -> None:
    rids = [start(store, f"r{number}") for number in range(3)]
    good = [append(rid, 1) for rid in rids]
    bad = append(start(store, "bad"), 1, rows=(row(1, **fields),))
    with pytest.raises(PerdureBug, match="SQLite does not take"):
        store.commit([good[0], bad, *good[1:]])
    assert [store.load(rid).length for rid in rids] == [2, 2, 2]
    assert store.commit(good) == [Done(rid, 2) for rid in rids]


def test_a_gap_in_a_history_is_corruption(store: SqliteStore, path: str) -> None:
    rid = start(store)
    store.commit([append(rid, 1, 5)])
    raw(path, f"DELETE FROM events WHERE rid = {rid} AND seq = 3")
    with pytest.raises(HistoryCorruptError, match="run r has no event 3"):
        store.load(rid)
    assert store.load(rid, from_seq=4).length == 6


def test_a_damaged_file_is_corruption(path: str) -> None:
    store = SqliteStore(path)
    store.commit([new_run(f"r{number}", rows=tuple(row(seq) for seq in range(200))) for number in range(20)])
    store.close()
    with open(path, "r+b") as file:
        half = os.path.getsize(path) // 2
        file.seek(half)
        file.write(b"\xff" * half)
    store = SqliteStore(path)
    with pytest.raises(HistoryCorruptError, match="or the disk fails to read it"):
        list(store.heads())
    store.close()


# ── a disk that is full, or cannot be written ────────────────────────────────────────────────
def fill(store: SqliteStore, rid: int) -> int:
    """Append until nothing fits any more; gives the length that was reached."""
    length = 1
    for _ in range(10_000):
        big = row(length, output=os.urandom(20_000))
        try:
            store.commit([append(rid, length, rows=(big,))])
        except StoreFullError:
            return length
        length += 1
    pytest.fail("it never got full")


def check_full(store: SqliteStore, path: str) -> int:
    rid = start(store)
    length = fill(store, rid)
    for _ in range(3):
        with pytest.raises(StoreFullError, match="no space left"):
            store.commit([append(rid, length, rows=(row(length, output=os.urandom(200_000)),))])
    assert store.load(rid).length == length
    return rid


def test_a_file_that_may_not_grow_is_full_and_goes_on_when_it_may(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(connection: sqlite3.Connection, *, busy_seconds: float, is_reader: bool) -> None:
        connect_as_usual(connection, busy_seconds=busy_seconds, is_reader=is_reader)
        connection.execute("PRAGMA max_page_count = 200")

    connect_as_usual = connect.configure
    monkeypatch.setattr(connect, "configure", small)
    store = SqliteStore(path)
    store.enter("w", lease_seconds=600, workflows=["agent"])
    rid = check_full(store, path)
    with store.writing() as connection:
        connection.execute("PRAGMA max_page_count = 100000")
    length = store.load(rid).length
    assert store.commit([append(rid, length)]) == [Done(rid, length + 1)]
    store.close()


def test_of_a_batch_that_does_not_fit_what_fits_is_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(connection: sqlite3.Connection, *, busy_seconds: float, is_reader: bool) -> None:
        connect_as_usual(connection, busy_seconds=busy_seconds, is_reader=is_reader)
        connection.execute("PRAGMA max_page_count = 200")

    connect_as_usual = connect.configure
    monkeypatch.setattr(connect, "configure", small)
    store = SqliteStore(path)
    store.enter("w", lease_seconds=600, workflows=["agent"])
    one, two, three = (start(store, run_id) for run_id in ("one", "two", "three"))
    huge = append(two, 1, rows=(row(1, output=b"x" * 2_000_000),))
    with pytest.raises(StoreFullError):
        store.commit([append(one, 1), huge, append(three, 1)])
    assert [store.load(rid).length for rid in (one, two, three)] == [2, 1, 2]
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "none", disk], check=False).returncode:
        pytest.skip("cannot mount a small disk here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_loses_nothing_and_the_store_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    store = SqliteStore(str(small_disk / "perdure.db"))
    store.enter("w", lease_seconds=600, workflows=["agent"])
    rid = check_full(store, store.path)
    ballast.unlink()
    length = store.load(rid).length
    assert store.commit([append(rid, length)]) == [Done(rid, length + 1)]
    store.close()
    assert raw(store.path, "PRAGMA integrity_check") == [[("ok",)]]


def test_a_disk_that_turns_read_only_is_named_and_the_store_goes_on_afterwards(small_disk: Path) -> None:
    store = SqliteStore(str(small_disk / "perdure.db"))
    store.enter("w", lease_seconds=600, workflows=["agent"])
    rid = start(store)
    with store.writing() as connection:
        connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnlyError, match="cannot be written"):
        store.commit([append(rid, 1)])
    assert store.commit([append(rid, 1)]) == [Done(rid, 2)]
    store.close()


def test_a_read_only_disk_is_named_at_opening(small_disk: Path) -> None:
    SqliteStore(str(small_disk / "perdure.db")).close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreReadOnlyError, match=r"perdure\.db: cannot be written, by its permissions or its disk's"):
        SqliteStore(str(small_disk / "perdure.db"))


# ── queries ──────────────────────────────────────────────────────────────────────────────────
SCANS = {  # these read everything, and are asked for it
    "all_mail",
    "all_workers",
    "count_rest",
    "count_runs",
    "list_effects",
    "list_runs",
    "other_leases",
    "size",
}


TABLE_SCAN = r"SCAN (runs|events|blobs|mailbox|watchers|workers|heads|effects)\b"


def test_no_query_reads_a_whole_table_but_those_that_list_it(store: SqliteStore) -> None:
    scanning = set[str]()
    with store.writing() as connection:
        for name, query in QUERIES.items():
            if name.startswith(("and_", "newest_")):
                continue
            names = dict.fromkeys(re.findall(r":(\w+)", query))
            values = names or (None,) * query.count("?")
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
            if any(re.match(TABLE_SCAN, step[3]) for step in plan):
                scanning.add(name)
    assert scanning <= SCANS


@pytest.mark.parametrize("query", ["insert_run", "insert_event", "insert_event_with_gaps", "end_run"])
def test_what_each_run_passes_fills_no_table_of_its_own(store: SqliteStore, query: str) -> None:
    """As the test of an index's condition did that looked for a status in a list: SQLite made that list a table."""
    wants = [0] * QUERIES[query].count("?")
    with store._writer as connection:  # pyright: ignore[reportPrivateUsage]
        program = connection.execute(f"EXPLAIN {QUERIES[query]}", wants).fetchall()
    assert "OpenEphemeral" not in {opcode for _, opcode, *_ in program}


# ── what is remembered between commits ───────────────────────────────────────────────────────
def test_the_memory_of_verified_runs_is_bounded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RUNS_REMEMBERED_MAX", 10)
    rids = [start(store, f"r{number}") for number in range(30)]
    assert store.commit([append(rid, 1) for rid in rids]) == [Done(rid, 2) for rid in rids]
    assert len(store.runs(Filter())) == 30

"""Long histories are read in packs: what comes is what row by row would come, whatever is missing or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import starmap, takewhile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import HistoryCorruptError
from perdure.store.protocol import Row
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.histories import ROWS_PER_PACK, rows_from
from perdure.testing.conformance.base import append, new_run

TABLE = """CREATE TABLE events (
    rid INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, kind TEXT NOT NULL, envelope BLOB NOT NULL,
    input BLOB, output BLOB, hash BLOB NOT NULL, UNIQUE (rid, seq)
) STRICT"""
INSERT = "INSERT INTO events (seq, at, kind, envelope, input, output, hash, rid) VALUES (?, ?, ?, ?, ?, ?, ?, 7)"
ONE_BY_ONE = "SELECT seq, at, kind, envelope, input, output, hash FROM events WHERE rid = 7 AND seq >= ? ORDER BY seq"

PAYLOADS = [None, b"null", b"-1", b'"-"', "\"größe ✓\"".encode(), b"[1,2]", b"{}" * 500]
ODD = st.sampled_from([b"", b"-", b"\x1f", b"\0", b"\xff\xfe", b"-\x1f-", b",", b"x" * 32]) | st.binary(max_size=40)
COLUMNS = st.sampled_from(["envelope", "input", "output", "hash"])
LENGTHS = st.sampled_from([0, 1, ROWS_PER_PACK, ROWS_PER_PACK + 1, 3 * ROWS_PER_PACK, 3 * ROWS_PER_PACK + 9])
POSITIONS = st.integers(0, 3 * ROWS_PER_PACK)


def a_table(length: int) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(TABLE)
    rows = [
        (
            seq, 10**15 + seq, "step.completed", b'{"n":%d}' % seq, PAYLOADS[seq % len(PAYLOADS)],
            PAYLOADS[(seq * 3 + 1) % len(PAYLOADS)], bytes([seq % 256]) * 32,
        )
        for seq in range(length)
    ]  # fmt: skip
    connection.executemany(INSERT, rows)
    return connection


def dense(rows: Iterable[Row], first: int) -> list[Row]:
    """The rows up to the first that is missing."""
    return [row for _, row in takewhile(lambda at: at[0] == at[1].seq, enumerate(rows, first))]


DAMAGE = st.lists(st.tuples(POSITIONS, COLUMNS, ODD), max_size=4)


@given(LENGTHS, st.integers(0, 300), DAMAGE, st.lists(POSITIONS, max_size=2))
@example(3 * ROWS_PER_PACK, 0, [(ROWS_PER_PACK + 3, "output", b"-")], [])
@example(3 * ROWS_PER_PACK, 0, [(ROWS_PER_PACK + 3, "hash", b""), (ROWS_PER_PACK + 4, "hash", b"x" * 64)], [])
@example(3 * ROWS_PER_PACK, 0, [(ROWS_PER_PACK + 3, "envelope", b"1\x1f2")], [])
@example(3 * ROWS_PER_PACK, 0, [(ROWS_PER_PACK + 3, "output", b"1\x1f2")], [])
@settings(max_examples=60, deadline=None)
def test_packs_hold_what_stands_in_the_rows(
    length: int, first: int, damage: list[tuple[int, str, bytes]], missing: list[int]
) -> None:
    connection = a_table(length)
    for seq, column, blob in damage:
        connection.execute(f"UPDATE events SET {column} = ? WHERE seq = ?", (blob, seq))
    for seq in missing:
        connection.execute("DELETE FROM events WHERE seq = ?", (seq,))
    expected = list(starmap(Row, connection.execute(ONE_BY_ONE, (first,))))
    assert dense(rows_from(connection, 7, first), first) == dense(expected, first)
    connection.close()


@pytest.mark.parametrize("missing", [0, 5, ROWS_PER_PACK - 1, ROWS_PER_PACK, ROWS_PER_PACK + 9, 2 * ROWS_PER_PACK + 1])
def test_a_gap_in_a_long_history_is_named(tmp_path: Path, missing: int) -> None:
    store = SqliteStore(str(tmp_path / "perdure.db"))
    store.enter("w", lease_seconds=600, workflows=["agent"])
    store.commit([new_run("r", owner="w"), append(1, 1, count=3 * ROWS_PER_PACK)])
    assert [row.seq for row in store.load(1).rows] == list(range(3 * ROWS_PER_PACK + 1))
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("DELETE FROM events WHERE seq >= ? AND seq < ?", (missing, missing + 2))
    other.close()
    with pytest.raises(HistoryCorruptError, match=f"no event {missing}, but later ones"):
        store.load(1)
    store.close()

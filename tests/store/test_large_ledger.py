"""A large ledger answers by id as a small one does: with as many steps of the database's machine, whatever else the
computer does meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.ledger import EffectState, LedgerEntry, operation_id
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.commit import QUERIES
from perdure.store.sqlite.reading import Readers

FEW = 100


def entry(n: int) -> LedgerEntry:
    order = f"order-{n}"
    operation = operation_id(scope="global", run_id="", name="refund", business_key=order)
    return LedgerEntry(
        operation, 1 + n % 1000, f"run-{n % 1000}", "0:0:0", "0/refund#1", "refund", "global", order, 0, b"h" * 32,
        EffectState.SUCCEEDED, "idempotent", "low", n, n, 1, n, n, f"re_{n}", None, b"r" * 32, b'"receipt"',
    )  # fmt: skip


def filled(path: Path, rows: int) -> Path:
    SqliteStore(str(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(QUERIES["write_effect"], (entry(n) for n in range(rows)))
    return path


def steps_taken(path: Path, wanted: list[LedgerEntry]) -> set[int]:
    """How many steps the database takes to find each of these."""
    readers = Readers(str(path), busy_seconds=5)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with readers.connection() as connection:
        connection.set_progress_handler(step, 1)
    taken = set[int]()
    for each in wanted:
        steps = 0
        assert readers.effect(each.operation_id) == each
        taken.add(steps)
    readers.close()
    return taken


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_large_ledger_answers_by_id_in_as_many_steps_as_a_small_one(rows: int, tmp_path: Path) -> None:
    small, large = filled(tmp_path / "small.db", FEW), filled(tmp_path / "large.db", rows)
    few = steps_taken(small, [entry(n) for n in range(FEW)])
    assert 1 < max(few) < FEW, "they are counted, and no row but one is looked at"
    assert steps_taken(large, [entry(n) for n in range(0, rows, rows // FEW)]) == few


def test_nothing_is_searched_through(tmp_path: Path) -> None:
    with closing(sqlite3.connect(filled(tmp_path / "runs.db", FEW))) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {QUERIES['effect']}", ("any",)).fetchall()
    assert all(told.startswith("SEARCH ") for *_, told in plan), plan

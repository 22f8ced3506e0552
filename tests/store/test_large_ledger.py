"""A ledger of a million rows answers by id as fast as a small one."""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path

import pytest

from perdure.ledger import EffectState, LedgerEntry, operation_id
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.commit import QUERIES

ROWS = 1_000_000
SECONDS_MAX = 0.001


def entry(n: int) -> LedgerEntry:
    order = f"order-{n}"
    operation = operation_id(scope="global", run_id="", name="refund", business_key=order)
    return LedgerEntry(
        operation, 1 + n % 1000, f"run-{n % 1000}", "0:0:0", "0/refund#1", "refund", "global", order, 0, b"h" * 32,
        EffectState.SUCCEEDED, "idempotent", "low", n, n, 1, n, n, f"re_{n}", None, b"r" * 32, b'"receipt"',
    )  # fmt: skip


@pytest.mark.soak
def test_a_million_rows_answer_by_id_in_under_a_millisecond(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    SqliteStore(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(QUERIES["write_effect"], (entry(n) for n in range(ROWS)))
    connection.close()
    store = SqliteStore(str(path))
    took = list[float]()
    for n in range(0, ROWS, ROWS // 2000):
        wanted = entry(n)
        began = time.perf_counter()
        found = store.effect(wanted.operation_id)
        took.append(time.perf_counter() - began)
        assert found == wanted
    store.close()
    print(f"median {statistics.median(took) * 1e6:.0f} us, 99 % {sorted(took)[-20] * 1e6:.0f} us")
    assert statistics.median(took) < SECONDS_MAX



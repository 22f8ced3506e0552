"""How long a ledger of effects takes to say what became of an operation, by its id: a small ledger, and a large one.

    .venv/bin/python bench/ledger.py [--rows 1000000] [--questions 20000]

Each question is for another row, chosen at random, or for one that is not there, and goes through the store as a
worker's does. Most of the file's pages are in memory, since it has just been written. On a busy machine look at the
median: the slowest waited for a processor, in the small ledger too.
"""

import argparse
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from perdure.ledger import EffectState, LedgerEntry, operation_id
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite.commit import QUERIES

FEW = 1_000
AIM_MICROSECONDS = 1_000


def operation(n: int) -> str:
    return operation_id(scope="global", run_id="", name="refund", business_key=f"order-{n}")


def entries(rows: int) -> Iterator[LedgerEntry]:
    for n in range(rows):
        yield LedgerEntry(
            operation(n), 1 + n % 1000, f"run-{n % 1000}", "0:0:0", "0/refund#1", "refund", "global", f"order-{n}", 0,
            b"h" * 32, EffectState.SUCCEEDED, "idempotent", "low", n, n, 1, n, n, f"re_{n}", None, b"r" * 32,
            b'"receipt"',
        )  # fmt: skip


def fill(path: Path, rows: int) -> None:
    """Write the rows with the store's own statement; not durably, which nobody measures here."""
    SqliteStore(str(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executemany(QUERIES["write_effect"], entries(rows))


def ask(path: Path, rows: int, questions: int) -> list[float]:
    """How long each answer took."""
    chosen, store, took = random.Random(1), SqliteStore(str(path)), list[float]()
    for _ in range(questions):
        n = chosen.randrange(rows + rows // 10)
        wanted = operation(n)
        began = time.perf_counter()
        found = store.effect(wanted)
        took.append((time.perf_counter() - began) * 1e6)
        if (found is not None) != (n < rows):
            raise SystemExit(f"operation {wanted}: the ledger is wrong about it")
    store.close()
    return sorted(took)


def main() -> None:
    parser = argparse.ArgumentParser(description="How long a ledger takes to answer by id.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=20_000)
    asked = parser.parse_args()
    print(f"{'rows':>10}  {'median':>8}  {'99 %':>8}  {'slowest':>8}  microseconds")
    with tempfile.TemporaryDirectory() as folder:
        for rows in (FEW, asked.rows):
            path = Path(folder) / f"{rows}.db"
            fill(path, rows)
            took = ask(path, rows, asked.questions)
            late = took[len(took) * 99 // 100]
            print(f"{rows:>10,}  {statistics.median(took):8.1f}  {late:8.1f}  {took[-1]:8.1f}", flush=True)
    aim = "under" if statistics.median(took) < AIM_MICROSECONDS else "NOT under"
    print(f"the median is {aim} {AIM_MICROSECONDS / 1000:g} ms")


if __name__ == "__main__":
    main()

"""What the SQLite store costs: `python tests/store/measure.py [FOLDER]`. Figures are medians, in microseconds."""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure.store.protocol import Append, Change, Done, NewRun, Row, Status
from perdure.store.sqlite import SqliteStore

INSERT = "INSERT INTO e VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
KNOWN = frozenset({("agent", 1)})


def row(seq: int) -> Row:
    """300 bytes of payload, as a small step has."""
    return Row(seq, 10**15, "step.done", b"e" * 150, None, b"o" * 118, b"h" * 32)


def microseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def raw_connection(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    columns = "rid INT, seq INT, at INT, kind TEXT, envelope BLOB, input BLOB, output BLOB, hash BLOB, append_id BLOB"
    connection.execute(f"CREATE TABLE e ({columns}, PRIMARY KEY (rid, seq)) WITHOUT ROWID")
    return connection


def new_run(run_id: str, owner: str | None = None) -> NewRun:
    due_at = 0 if owner is None else None
    return NewRun(os.urandom(16), run_id, "agent", 1, b"d" * 32, 0, (row(0),), owner=owner, due_at=due_at)


def start(store: SqliteStore, *run_ids: str) -> list[int]:
    return [done.rid for done in store.commit([new_run(run_id, "w") for run_id in run_ids]) if isinstance(done, Done)]


def append(rid: int, seq: int, change: Change | None = None) -> Append:
    return Append(os.urandom(16), rid, 1, seq, (row(seq),), change=change)


def lone(folder: str, store: SqliteStore) -> None:
    """A commit of one append, in turns with the same insert without us."""
    raw, (rid,) = raw_connection(f"{folder}/raw.db"), start(store, "lone")

    def insert(seq: int) -> None:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute(INSERT, (1, *msgspec.structs.astuple(row(seq)), b"a" * 16))
        raw.execute("COMMIT")

    floor, ours = list[float](), list[float]()
    for block in range(20):
        for seq in range(1 + block * 250, 251 + block * 250):
            floor.append(microseconds(lambda: insert(seq)))  # noqa: B023  called at once
        for seq in range(1 + block * 250, 251 + block * 250):
            write = append(rid, seq)
            ours.append(microseconds(lambda: store.commit([write])))  # noqa: B023
    raw.close()
    raw_cost, cost = statistics.median(floor), statistics.median(ours)
    print(f"one append, one commit      {cost:8.1f}   raw {raw_cost:.1f}: {raw_cost / cost:.0%} of it")
    print(f"load, 5,000 rows            {min(microseconds(lambda: store.load(rid)) for _ in range(10)):8.1f}")


def batches(store: SqliteStore) -> None:
    rids = start(store, *(f"batch{number}" for number in range(200)))
    costs = list[float]()
    for seq in range(1, 51):
        writes = [append(rid, seq) for rid in rids]
        costs.append(microseconds(lambda: store.commit(writes)) / 200)  # noqa: B023
    print(f"append in a commit of 200   {statistics.median(costs):8.1f}")


def whole_runs(store: SqliteStore) -> None:
    starts = [new_run(f"run{number}") for number in range(1000)]
    print(f"start, 1,000 in a commit    {microseconds(lambda: store.commit(starts)) / 1000:8.1f}")
    begin = time.perf_counter()
    claims = store.claim("w", now=10, limit=1000, known=KNOWN)
    print(f"claim, 1,000 at once        {(time.perf_counter() - begin) * 1e3:8.1f}")
    change = Change(Status.COMPLETED, ending=b"end")
    ends = [append(claim.info.rid, 1, change) for claim in claims]
    print(f"end, 1,000 in a commit      {microseconds(lambda: store.commit(ends)) / 1000:8.1f}")


def probes(store: SqliteStore) -> None:
    calls: dict[str, Callable[[], object]] = {
        "changed()": store.changed,
        "is_free()": store.is_free,
        "lost()": lambda: store.lost("me"),
    }
    for name, call in calls.items():
        costs = [microseconds(call) for _ in range(1000)]
        print(f"{name:27} {statistics.median(costs):8.1f}")


def four_processes(path: str) -> None:
    """Each appends to a run of its own without a pause, for three seconds."""
    children = [
        subprocess.Popen([sys.executable, __file__, "hammer", path, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    said = [child.communicate()[0].split() for child in children]
    print(
        f"four processes: commits {[int(one[0]) for one in said]}, longest wait in ms {[float(one[1]) for one in said]}"
    )


def hammer(path: str, name: str) -> None:
    store = SqliteStore(path)
    store.enter(name, lease_seconds=60, workflows=["agent"])
    ((done),) = store.commit([new_run(f"hammer{name}", name)])
    rid = done.rid if isinstance(done, Done) else 0
    costs, stop = list[float](), time.monotonic() + 3
    while time.monotonic() < stop:
        write = append(rid, len(costs) + 1)
        costs.append(microseconds(lambda: store.commit([write])))  # noqa: B023
    store.close()
    print(len(costs), round(max(costs) / 1000, 1))


def main(folder: str) -> None:
    store = SqliteStore(f"{folder}/perdure.db")
    store.enter("w", lease_seconds=600, workflows=["agent"])
    lone(folder, store)
    batches(store)
    whole_runs(store)
    probes(store)
    store.close()
    four_processes(f"{folder}/four.db")


if __name__ == "__main__":
    if sys.argv[1:2] == ["hammer"]:
        hammer(*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory(dir=Path(*sys.argv[1:2]) if sys.argv[1:] else None) as folder:
            main(folder)

"""The raw database: what SQLite alone charges for the rows that a durable run leaves behind. Nobody can be faster.

One row of about 200 bytes per step; WAL and synchronous=FULL, as perdure has it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from typing import Any

import work

ROWS_PER_BATCH = 100


class Peer(work.Peer):
    durability = "SQLite, WAL, synchronous=FULL"
    imports = "import sqlite3"
    leaves_out = ("resume", "takeover", "second", "sleepers", "conversation", "late")

    def measure(self, case: str, n: int) -> dict[str, Any]:
        match case:
            case "seq":
                seconds = self.insert(n, 1)
                return {
                    "steps_per_s": n / seconds,
                    "ms_per_step": seconds / n * 1000,
                    "fdatasync_ms": self.fdatasync_ms(),
                }
            case "fan":
                return {"steps_per_s": n * 20 / self.insert(n * 20, ROWS_PER_BATCH)}
            case "gather":
                return {"ms": self.insert(n, n) * 1000}
            case "start":
                return {"runs_per_s": n / self.insert(n * 2, ROWS_PER_BATCH)}
            case "long_first_life":
                self.insert(n, ROWS_PER_BATCH)
                (self.folder / "died").write_text("0")
                return {}
            case "long_second_life":
                return self.read()
            case _:
                raise ValueError(f"the floor does not know {case}")

    def connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.store / "floor.db", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        return database

    def insert(self, rows: int, rows_per_commit: int) -> float:
        database = self.connect()
        database.execute(
            "CREATE TABLE steps (run TEXT, step INTEGER, result TEXT, PRIMARY KEY (run, step)) WITHOUT ROWID"
        )
        result = json.dumps(work.answer(1))
        began = time.perf_counter()
        for low in range(0, rows, rows_per_commit):
            database.execute("BEGIN IMMEDIATE")
            for step in range(low, min(low + rows_per_commit, rows)):
                database.execute("INSERT INTO steps VALUES (?, ?, ?)", ("run", step, result))
            database.execute("COMMIT")
        return time.perf_counter() - began

    def read(self) -> dict[str, Any]:
        """A replay that is nothing but reading and decoding."""
        began = time.perf_counter()
        results = [json.loads(row[0]) for row in self.connect().execute("SELECT result FROM steps ORDER BY step")]
        return {"replay_s": time.perf_counter() - began, "steps_run_again": 0, "rows": len(results)}

    def fdatasync_ms(self) -> float:
        file = os.open(self.folder / "sync", os.O_CREAT | os.O_WRONLY)
        times: list[float] = []
        for _ in range(200):
            os.write(file, b"x" * 4096)
            began = time.perf_counter()
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
        os.close(file)
        return sorted(times)[100] * 1000

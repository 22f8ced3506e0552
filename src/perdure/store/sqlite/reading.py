"""Reads: on connections of their own, so that no reader waits for the writer or keeps it waiting."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from itertools import starmap
from typing import Any

import msgspec

from perdure.codec.packing import position_of, told
from perdure.decisions import ApprovalEntry, ApprovalState
from perdure.errors import HistoryCorruptError
from perdure.ledger.entry import LedgerEntry
from perdure.ledger.states import EffectState
from perdure.store.protocol import ApprovalFilter, EffectFilter, Filter, Mail, Row, RunInfo, Stored, WorkerInfo
from perdure.store.sqlite.commit import QUERIES
from perdure.store.sqlite.connect import connect, leaves_doubts, translated
from perdure.store.sqlite.rows import approval_entry, ledger_entry, run_info, worker_info

IDLE_READERS_MAX = 4
OPEN_IN_THE_INDEX = {EffectState.STARTED, EffectState.UNKNOWN, EffectState.FAILED_RETRYABLE}


class Readers:
    """A few connections for reading, lent to one thread at a time."""

    def __init__(self, path: str, *, busy_seconds: float) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._idle = list[sqlite3.Connection]()
        self._lent = 0
        self._is_closed = False
        self._is_resting = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def connection(self) -> Generator[sqlite3.Connection, None, None]:
        try:
            connection = self._take()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        try:
            yield connection
        except sqlite3.Error as error:
            self._give_back(connection, is_good=not leaves_doubts(error))
            raise translated(error, self.path) from error
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)

    @contextlib.contextmanager
    def snapshot(self) -> Generator[sqlite3.Connection, None, None]:
        """Reads that all see the same state."""
        with self.connection() as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def _take(self) -> sqlite3.Connection:
        with self._changed:
            if self._is_resting:
                self._changed.wait_for(lambda: not self._is_resting)
            idle = self._idle.pop() if self._idle else None
            self._lent += 1
        if idle is not None:
            return idle
        try:
            return self._connect()
        except BaseException:
            self._count_back()
            raise

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, busy_seconds=self._busy_seconds, is_reader=True)

    def _give_back(self, connection: sqlite3.Connection, *, is_good: bool = True) -> None:
        """One in the middle of something is closed, which ends it."""
        is_kept = is_good and len(self._idle) < IDLE_READERS_MAX and not connection.in_transaction
        if not is_kept:
            connection.close()
        self._count_back(connection if is_kept else None)

    def _count_back(self, connection: sqlite3.Connection | None = None) -> None:
        with self._changed:
            self._lent -= 1
            if connection is not None:
                self._idle.append(connection)
            if self._is_closed:
                self._close_idle()
            self._changed.notify_all()

    def close(self) -> None:
        """What is lent is closed when it comes back."""
        with self._changed:
            self._is_closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    # ── fork ─────────────────────────────────────────────────────────────────────────────────
    def rest(self, *, until: float) -> bool:
        """Lend nothing more, and wait until nothing is lent. If it is in time, the lock is kept until `go_on`."""
        self._changed.acquire()
        self._is_resting = True
        if self._changed.wait_for(lambda: self._lent == 0, max(0.0, until - time.monotonic())):
            return True
        self.go_on()
        return False

    def go_on(self) -> None:
        self._is_resting = False
        self._changed.notify_all()
        self._changed.release()

    # ── what is read ─────────────────────────────────────────────────────────────────────────
    def all(self, name: str, *parameters: Any) -> list[Any]:
        with self.connection() as connection:
            return connection.execute(QUERIES[name], parameters).fetchall()

    def named(self, name: str, values: dict[str, Any]) -> list[Any]:
        """All rows of a query whose parameters have names."""
        with self.connection() as connection:
            return connection.execute(QUERIES[name], values).fetchall()

    def first(self, name: str, *parameters: Any) -> Any:
        """The first row, or None."""
        with self.connection() as connection:
            return connection.execute(QUERIES[name], parameters).fetchone()

    def find(self, run_id: str) -> RunInfo | None:
        found = self.first("run_by_id", run_id)
        return None if found is None else run_info(found)

    def load(self, rid: int, from_seq: int | None) -> Stored:
        with self.snapshot() as connection:
            found = connection.execute(QUERIES["run_by_rid"], (rid,)).fetchone()
            if found is None:
                raise HistoryCorruptError(f"{self.path}: there is no run with number {rid}")
            info = run_info(found)
            first = info.chapter_seq if from_seq is None else from_seq
            rows = list(starmap(Row, connection.execute(QUERIES["events_from"], (rid, first))))
            last = rows[-1:] or list(starmap(Row, connection.execute(QUERIES["last_event"], (rid,))))
        self._check_dense(info, first, rows)
        length, head = (last[0].seq + 1, last[0].hash) if last else (0, b"")
        return Stored(info, length, head, rows)

    def _check_dense(self, info: RunInfo, first: int, rows: Sequence[Row]) -> None:
        if [row.seq for row in rows] != list(range(first, first + len(rows))):
            expected = next(seq for seq, row in enumerate(rows, first) if row.seq != seq)
            raise HistoryCorruptError(
                f"{self.path}: run {info.run_id} has no event {expected}, but later ones; restore a backup"
            )

    def last_row(self, rid: int) -> Row:
        found = self.first("last_event", rid)
        if found is None:
            raise HistoryCorruptError(f"{self.path}: run number {rid} has no events")
        return Row(*found)

    def blob(self, rid: int, address: bytes) -> bytes:
        position = position_of(address)
        found = self.first("blob", rid, address) if position is None else self.first("output_at", rid, position)
        if found is None or found[0] is None:
            raise HistoryCorruptError(f"{self.path}: run number {rid} has no {told(address)}")
        return bytes(found[0])

    def mail(self, rids: Sequence[int] | None, owner: str | None) -> list[Mail]:
        if owner is not None:
            found = self.all("mail_of_owner", owner)
        elif rids is None:
            found = self.all("all_mail")
        else:
            with self.snapshot() as connection:
                found = [row for rid in set(rids) for row in connection.execute(QUERIES["mail_of_run"], (rid,))]
        mails = sorted(map(Mail._make, found))
        return mails if rids is None else [mail for mail in mails if mail.rid in rids]

    def runs(self, which: Filter) -> list[RunInfo]:
        values = _filter_values(which)
        parts = ["list_runs", *(f"and_{name}" for name in values), "newest_first"]
        query = " ".join(QUERIES[part] for part in parts)
        with self.connection() as connection:
            return [run_info(row) for row in connection.execute(query, {**values, "limit": which.limit})]

    def unserved(
        self, served: frozenset[tuple[str, int]], due_before: int, oldest_served: bool
    ) -> list[RunInfo]:
        """From kind to kind of what is nobody's, by the index; of those that are served one run at most is looked
        at."""
        found: list[RunInfo] = []
        with self.snapshot() as connection:
            kind = connection.execute(QUERIES["unowned_kind_after"], ("", 0)).fetchone()
            while kind is not None:
                if kind not in served or oldest_served:
                    query = "overdue_of_kind" if kind not in served else "longest_overdue_of_kind"
                    found += map(run_info, connection.execute(QUERIES[query], (*kind, due_before)))
                kind = connection.execute(QUERIES["unowned_kind_after"], kind).fetchone()
        return found

    def effect(self, operation_id: str) -> LedgerEntry | None:
        found = self.first("effect", operation_id)
        return None if found is None else ledger_entry(found)

    def effects(self, which: EffectFilter) -> list[LedgerEntry]:
        values = {name: value for name, value in which._asdict().items() if value is not None}
        if which.status is not None:
            values["status"] = msgspec.json.encode(sorted(which.status)).decode()
        parts = ["list_effects", *(f"and_{name}" for name in values if name != "limit"), "newest_effect_first"]
        if which.status is not None and which.status <= OPEN_IN_THE_INDEX:
            parts.insert(1, "and_open")
        query = " ".join(QUERIES[part] for part in parts)
        with self.connection() as connection:
            return [ledger_entry(row) for row in connection.execute(query, values)]

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        found = self.first("approval", approval_id)
        return None if found is None else approval_entry(found)

    def approvals(self, which: ApprovalFilter) -> list[ApprovalEntry]:
        values = {name: value for name, value in which._asdict().items() if value is not None}
        if which.status is not None:
            values["status"] = msgspec.json.encode(sorted(which.status)).decode()
        narrowed = [f"and_{name}" for name in values if name not in {"limit", "before"}]
        parts = ["list_approvals", *narrowed, *(["and_asked_before"] if which.before is not None else ())]
        if which.status == frozenset({ApprovalState.PENDING}):
            parts.insert(1, "and_pending")
        query = " ".join(QUERIES[part] for part in (*parts, "newest_approval_first"))
        with self.connection() as connection:
            return [approval_entry(row) for row in connection.execute(query, values)]

    def workers(self) -> list[WorkerInfo]:
        return [worker_info(row) for row in self.all("all_workers")]


def _filter_values(which: Filter) -> dict[str, Any]:
    """The fields that narrow, by name."""
    values: dict[str, Any] = {
        "workflow": which.workflow,
        "status": None if which.status is None else msgspec.json.encode(sorted(which.status)).decode(),
        "tags": msgspec.json.encode(dict(which.tags)).decode() if which.tags else None,
        "created_from": which.created_from,
        "created_until": which.created_until,
        "parent_run_id": which.parent_run_id,
        "owner": which.owner,
        "before_rid": which.before_rid,
    }
    return {name: value for name, value in values.items() if value is not None}

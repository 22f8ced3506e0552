"""The one connection of a store that writes: whose turn it is, how a transaction begins and ends, what is news.

It also keeps what it has verified (`Facts`) for as long as nobody else commits, so that a plain append need not ask
the database for what this process itself wrote last.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from perdure.errors import StoreBusyError, StoreError
from perdure.store.sqlite.connect import connect, leaves_doubts, translated
from perdure.store.sqlite.log import Log
from perdure.store.sqlite.turns import Turns

RUNS_REMEMBERED_MAX = 50_000
HURRIED_SECONDS = 0.25


@dataclass(slots=True)
class Facts:
    """What the last transaction left behind; true until somebody else commits.

    `standing`: epoch and length of runs that have not ended. `workers`: names of those that have entered.
    """

    standing: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    workers: set[str] = field(default_factory=set[str])
    newest_rid: int | None = None

    def forget(self) -> None:
        self.standing.clear()
        self.workers.clear()
        self.newest_rid = None


class Writer:
    """A connection with the lock that its users hold while they use it."""

    def __init__(self, path: str, turns: Turns, *, busy_seconds: float) -> None:
        self.path = path
        self.facts = Facts()
        self._turns = turns
        self._log = Log(path)
        self._patience_seconds = self._busy_seconds = busy_seconds
        self._next = threading.Lock()  # two locks, as in `turns`: a thread that never pauses starves no other
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._version: int | None = None
        self._is_closed = False
        self._news = self._told = 0

    def __enter__(self) -> sqlite3.Connection:
        """Begin a transaction: `with writer as connection`. It is committed at the end, or undone altogether.

        SQLite's errors come out as ours. Written without generators: a lone append passes here at each step of a run.
        """
        self._take_turn()
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            self._look_for_news(connection)
            self._log.keep_room()
            return connection
        except BaseException as error:
            self._undo(error)
            self._end_turn()
            self._raise_ours(error)
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._undo(error)
        finally:
            self._end_turn()
        if error is not None:
            self._raise_ours(error)

    def _commit(self) -> None:
        try:
            self._connected().execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            self._raise_ours(error)
            raise

    @contextlib.contextmanager
    def turn(self) -> Generator[sqlite3.Connection, None, None]:
        """The connection, alone among all threads and processes, outside a transaction."""
        self._take_turn()
        try:
            yield self._connected()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._end_turn()

    def _take_turn(self) -> None:
        until = time.monotonic() + self._busy_seconds
        if not self._take_lock(until):
            raise StoreBusyError(f"{self.path}: another thread has been writing for too long; is it stopped?")
        try:
            self._check_open()
            self._turns.acquire(until=until)
        except BaseException:
            self._lock.release()
            raise

    def _check_open(self) -> None:
        """Whoever waited while another thread closed the store comes too late."""
        if self._is_closed:
            raise StoreError(f"{self.path}: this handle is closed; open the store anew")

    def _take_lock(self, until: float) -> bool:
        if not _take(self._next, until):
            return False
        try:
            return _take(self._lock, until)
        finally:
            self._next.release()

    def _end_turn(self) -> None:
        self._turns.release()
        self._lock.release()

    def _raise_ours(self, error: BaseException) -> None:
        if isinstance(error, sqlite3.Error | OverflowError | UnicodeError):
            raise translated(error, self.path) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self.path, busy_seconds=self._patience_seconds)
            self._version = None
        return self._connection

    def _undo(self, error: BaseException) -> None:
        """Roll back; a connection that cannot even do that is replaced by the next transaction."""
        self.facts.forget()
        connection = self._connection
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()
        if leaves_doubts(error):
            self._drop_connection()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look_for_news(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:  # or the connection is a new one
            self._news, self._version = self._news + 1, version
            self.facts.forget()
        elif len(self.facts.standing) > RUNS_REMEMBERED_MAX:
            self.facts.forget()

    def hurry(self) -> None:
        """Other processes are not waited for any longer than a moment, also by a thread that does so now."""
        self._busy_seconds = min(self._busy_seconds, HURRIED_SECONDS)
        self._turns.hurry(HURRIED_SECONDS)

    def take_time(self) -> None:
        """Other processes are waited for again."""
        self._busy_seconds = self._patience_seconds
        self._turns.hurry(math.inf)

    def is_free(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._turns.is_free()
        finally:
            self._lock.release()

    def changed(self) -> bool:
        """Whether anybody else committed since the last call. While this process commits, that looks for it."""
        if self._lock.acquire(blocking=False):
            try:
                self._check_open()
                self._look_for_news(self._connected())
            except sqlite3.Error as error:
                raise translated(error, self.path) from error
            finally:
                self._lock.release()
        news = self._news
        is_news, self._told = news != self._told, news
        return is_news

    def close(self) -> None:
        """Whoever closes last folds the log back into the file: that is a write too, and waits for its turn. One who
        does not get it is not the last: there is another process, and it is hung."""
        self.hurry()
        try:
            with contextlib.suppress(StoreBusyError), self.turn():
                self._is_closed = True
                self._drop_connection()
        finally:
            self._is_closed = True
            self._drop_connection()
            self._turns.close()

    # ── fork ─────────────────────────────────────────────────────────────────────────────────
    def rest(self, *, until: float) -> bool:
        return self._take_lock(until)

    def go_on(self) -> None:
        self._lock.release()

    def abandon(self) -> None:
        self._drop_connection()
        self._turns.close_in_child()


def _take(lock: threading.Lock, until: float) -> bool:
    """The clock is asked only where there is something to wait for."""
    return lock.acquire(blocking=False) or lock.acquire(timeout=max(0.0, until - time.monotonic()))

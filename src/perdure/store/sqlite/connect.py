"""How a connection to the database file is opened, and what SQLite's errors are called here.

Every connection gets every pragma: one that another library or an earlier one had set does not carry over.
"""

from __future__ import annotations

import os
import sqlite3

from perdure.errors import (
    HistoryCorruptError,
    PerdureBug,
    PerdureError,
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreReadOnlyError,
)

CHECKPOINT_PAGES = 1000
STATEMENTS_CACHED = 256


def connect(path: str, *, busy_seconds: float, is_reader: bool = False, is_uri: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode that any thread may use, one at a time."""
    connection = sqlite3.connect(
        path,
        uri=is_uri,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_CACHED,
    )
    try:
        configure(connection, busy_seconds=busy_seconds, is_reader=is_reader)
    except BaseException:
        connection.close()
        raise
    return connection


def configure(connection: sqlite3.Connection, *, busy_seconds: float, is_reader: bool) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync() alone leaves data in the disk's own cache
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA wal_autocheckpoint = {0 if is_reader else CHECKPOINT_PAGES}")
    if is_reader:
        connection.execute("PRAGMA query_only = ON")


def quoted(path: str) -> str:
    """A path as it stands in SQLite's addresses."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


HARMLESS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT})


def leaves_doubts(error: BaseException) -> bool:
    """Whether the connection had better be replaced after this: one opened on a read-only disk, say, stays so."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in HARMLESS


def translated(error: Exception, path: str) -> PerdureError:
    """The error of ours that says what SQLite's means, where it happened and what to do."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return PerdureBug(f"{path}: something that SQLite does not take ({type(error).__name__}: {error})")
    primary = code & 0xFF
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreBusyError(f"{path}: locked by another process for too long; find who holds it, or wait longer")
    if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and _is_disk_full(path)):
        return StoreFullError(f"{path}: no space left; free some, and runs under way go on by themselves")
    if primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}:
        return StoreReadOnlyError(f"{path}: cannot be written ({error}); check the file's and its folder's permissions")
    if primary == sqlite3.SQLITE_NOTADB:
        return StoreFormatError(f"{path}: this file is not a SQLite database; name another")
    if primary == sqlite3.SQLITE_CORRUPT:
        # SQLite says the same of a disk that does not give back what is on it (EIO)
        return HistoryCorruptError(
            f"{path}: the database file is damaged, or the disk fails to read it ({error}); look whether the disk is "
            "sound, and if `perdure store verify` says the same then, restore a backup"
        )
    return StoreError(f"{path}: {error} ({getattr(error, 'sqlite_errorname', '')})")


def _is_disk_full(path: str) -> bool:
    disk = os.statvfs(os.path.dirname(path) or ".")
    return disk.f_bavail == 0

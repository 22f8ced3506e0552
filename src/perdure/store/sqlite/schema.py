"""Whether a file is a perdure store, and how an empty or older one becomes one of this version."""

from __future__ import annotations

import os
import sqlite3

from perdure.errors import StoreError, StoreFormatError, StoreReadOnlyError, StoreUnsupportedError
from perdure.store.sql import load_migrations
from perdure.store.sqlite.connect import quoted, translated

APPLICATION_ID = 0x70657264
"""The letters `perd`, in the file's header."""

OLDEST_SQLITE = (3, 37, 0)


def check_place(path: str) -> None:
    """Refuse what cannot be or become a store, before anything is written beside it."""
    if os.path.isdir(path):
        raise StoreError(f"{path}: this is a folder; name a file in it, such as {os.path.join(path, 'perdure.db')}")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreError(f"{path}: there is no folder {folder}; create it, or name another path")
    if not os.path.exists(path):
        return
    if not os.path.exists(f"{path}-turn") and not os.path.exists(f"{path}-journal"):
        _check_file(path)  # `-turn` is left by whoever opened it as a store; only who writes can undo a `-journal`
    if not os.access(path, os.W_OK):
        raise StoreReadOnlyError(
            f"{path}: cannot be written, by its permissions or its disk's; commands that only look read it all the "
            "same, and so does open_store(path, read_only=True)"
        )


def _check_file(path: str) -> None:
    """SQLite would make a log beside a file that has none, also for who only reads."""
    way = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"
    try:
        connection = sqlite3.connect(f"file:{quoted(path)}?{way}", uri=True)
        try:
            _version(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise translated(error, path) from error


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to this version's schema. The caller holds the writers' queue.

    Each migration is one transaction with its version number: killed anywhere, the next opener goes on from there.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreUnsupportedError(f"SQLite {sqlite3.sqlite_version} is too old; perdure needs 3.37 or newer")
    migrations = _migrations()
    version = _version(connection, path)
    if version > len(migrations):
        raise _newer(path, version, len(migrations))
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnsupportedError(f"{path}: SQLite cannot keep a log here ({mode}); keep the store on a local disk")
    for number, script in enumerate(migrations[version:], version + 1):
        _migrate(connection, number, script)


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """StoreFormatError for what is not a store of this version: what is only read cannot be brought to it."""
    version, known = _version(connection, path), len(_migrations())
    if version > known:
        raise _newer(path, version, known)
    if version < known:
        raise StoreFormatError(
            f"{path}: schema version {version} is older than {known}, and cannot be brought to that where it is only "
            "read; open it, or a copy of it, where it can be written"
        )


def _migrations() -> list[str]:
    return load_migrations(os.path.join(os.path.dirname(__file__), "migrations"))


def _newer(path: str, version: int, known: int) -> StoreFormatError:
    return StoreFormatError(
        f"{path}: schema version {version} was written by a newer perdure, this one knows {known}; "
        "upgrade perdure, or name another file"
    )


def _version(connection: sqlite3.Connection, path: str) -> int:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application_id == APPLICATION_ID:
        return int(version)
    if application_id or version or tables:
        raise StoreFormatError(f"{path}: this database belongs to something else; name another file")
    return 0


def _migrate(connection: sqlite3.Connection, number: int, script: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements_of(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements_of(script: str) -> list[str]:
    """The script's statements one by one: `executescript` would commit before it starts."""
    statements, piece = list[str](), ""
    for line in script.splitlines(keepends=True):
        piece += line
        if sqlite3.complete_statement(piece):
            statements.append(piece)
            piece = ""
    return statements

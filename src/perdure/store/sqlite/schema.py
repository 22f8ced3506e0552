"""Whether a file is a perdure store, and how an empty or older one becomes one of this version."""

from __future__ import annotations

import os
import sqlite3

from perdure.errors import StoreError, StoreFormatError, StoreUnsupportedError
from perdure.store.sql import load_migrations
from perdure.store.sqlite.connect import translated

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
    if os.path.exists(path) and not os.path.exists(f"{path}-turn"):  # whoever opened it as a store left that
        _check_file(path)


def _check_file(path: str) -> None:
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        connection = sqlite3.connect(f"file:{quoted}?mode=ro", uri=True)
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
    migrations = load_migrations(os.path.join(os.path.dirname(__file__), "migrations"))
    version = _version(connection, path)
    if version > len(migrations):
        raise StoreFormatError(
            f"{path}: schema version {version} was written by a newer perdure, this one knows {len(migrations)}; "
            "upgrade perdure, or name another file"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnsupportedError(f"{path}: SQLite cannot keep a log here ({mode}); keep the store on a local disk")
    for number, script in enumerate(migrations[version:], version + 1):
        _migrate(connection, number, script)


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

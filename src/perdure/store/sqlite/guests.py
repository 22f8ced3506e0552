"""Statements of others inside a transaction of ours: they may read and write their own tables, and nothing else.

They may not end the transaction, nor open other files, nor touch what the store keeps.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator

OURS = frozenset(
    {"runs", "events", "blobs", "mailbox", "effects", "approvals", "watchers", "workers", "heads", "outbox", "notes"}
)
_LOOKS = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT})
_CONTROL = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


@contextlib.contextmanager
def host(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """Let others use the connection in here."""
    connection.set_authorizer(_judge)
    try:
        yield
    finally:
        connection.set_authorizer(None)


def _judge(action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None) -> int:
    """SQLite asks when a statement is prepared. sqlite3.DatabaseError ("not authorized") is what a refusal becomes."""
    if action in _CONTROL or (action not in _LOOKS and (first in OURS or second in OURS)):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK

"""Statements of others inside a transaction of ours: they may read and write their own tables, and nothing else.

They may not end the transaction, nor open other files, nor touch what the store keeps.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator

OURS = frozenset(
    {
        "runs", "events", "blobs", "mailbox", "effects", "approvals", "watchers", "workers", "heads", "outbox", "notes",
        "uses", "accounts", "account_waits",
    }
)  # fmt: skip
_LOOKS = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT})
_CONTROL = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_DESCRIBE = frozenset(
    "table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check".split()
)
"""Pragmas that change nothing, whatever they are given; any other with a value sets something, of the store's file or
of its connection."""


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
    names = [(name or "").lower() for name in (first, second)]  # SQLite's know no case
    if action == sqlite3.SQLITE_PRAGMA:
        is_allowed = second is None or names[0] in _DESCRIBE
    else:
        is_allowed = action in _LOOKS or (action not in _CONTROL and OURS.isdisjoint(names))
    return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

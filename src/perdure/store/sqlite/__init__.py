"""The store in a SQLite file. Read `store` first, then `writer` and `commit`."""

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]

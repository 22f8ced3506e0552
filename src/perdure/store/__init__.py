"""Where runs are kept. `open_store` finds the store that a URL names; nothing here loads a database driver before that.

`protocol` says what a store promises, `rules` decides what all stores decide alike, `memory` and `sqlite` keep it.
"""

from __future__ import annotations

from perdure.clock import Clock
from perdure.errors import StoreUnsupportedError
from perdure.store.protocol import Store

__all__ = ["Store", "open_store"]

BUSY_SECONDS = 10.0


def open_store(
    url: str, *, clock: Clock | None = None, busy_seconds: float = BUSY_SECONDS, read_only: bool = False
) -> Store:
    """Open the store at `url`: a path, `sqlite:///path`, or `:memory:`.

    `busy_seconds` is how long a write waits for other writers before it gives up with StoreBusyError. `read_only`: for
    a file, or a disk, that cannot be written; whoever writes gets StoreReadOnlyError.

    >>> store = open_store(":memory:")
    >>> store.url
    ':memory:'
    """
    if url in {":memory:", "memory:", "sqlite://", "sqlite:///:memory:"}:
        from perdure.store.memory import MemoryStore

        return MemoryStore(clock)
    if "://" in url and not url.startswith("sqlite:///"):
        raise StoreUnsupportedError(_unsupported(url))
    from perdure.store.sqlite import SqliteStore

    return SqliteStore(url.removeprefix("sqlite:///"), clock=clock, busy_seconds=busy_seconds, read_only=read_only)


def _unsupported(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        return f"{url}: write sqlite:///relative/path or sqlite:////absolute/path"
    if scheme in {"postgresql", "postgres"}:
        return "the PostgreSQL store is not part of this version of perdure; name a file, such as ./perdure.db"
    return f"there is no store for {scheme}:// URLs; name a file, such as ./perdure.db, or :memory:"

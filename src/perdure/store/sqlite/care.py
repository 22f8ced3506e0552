"""Pruning, heads, backups and counts."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator

from perdure.errors import StoreError, StoreFullError, StoreReadOnlyError
from perdure.store.protocol import Status
from perdure.store.sqlite.commit import QUERIES
from perdure.store.sqlite.connect import translated
from perdure.store.sqlite.reading import Readers

HEADS_PER_READ = 1000
PAGES_PER_STEP = 1000


def delete_run(connection: sqlite3.Connection, rid: int) -> bool:
    """The run with all that belongs to it; its line in `heads` stays. False: somebody else has done that."""
    if connection.execute(QUERIES["keep_head"], (rid,)).rowcount == 0:
        return False
    for table in ("events", "blobs", "letters", "watchers", "effects", "approvals", "posts", "waits", "run"):
        connection.execute(QUERIES[f"delete_{table}"], (rid,))
    return True


def heads(readers: Readers) -> Iterator[tuple[str, int, int, bytes]]:
    """In pages: no read stays open while the caller thinks."""
    rid = 0
    while page := _heads_after(readers, rid):
        yield from page
        rid = page[-1][1]


def _heads_after(readers: Readers, rid: int) -> list[tuple[str, int, int, bytes]]:
    with readers.connection() as connection:
        values = {"rid": rid, "limit": HEADS_PER_READ}
        return connection.execute(QUERIES["heads_after"], values).fetchall()


def backup(readers: Readers, target: str, progress: Callable[[int, int], None] | None) -> None:
    """Copy one snapshot, in steps, to a file that gets its name when it is complete."""
    if os.path.exists(target):
        raise StoreError(f"{target}: there is a file already; name another for the backup")
    folder = os.path.dirname(target) or "."
    if not os.path.isdir(folder):
        raise StoreError(f"{target}: there is no folder {folder}; create it, or name another path")
    unfinished = f"{target}.unfinished"
    if os.path.exists(unfinished):
        os.unlink(unfinished)
    try:
        try:
            _copy(readers, unfinished, progress, named=target)
        except sqlite3.Error as error:
            raise translated(error, target) from error
        os.replace(unfinished, target)
        _sync_folder(folder)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _sync_folder(folder: str) -> None:
    """Wait until the disk has the names of its files."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _copy(readers: Readers, target: str, progress: Callable[[int, int], None] | None, *, named: str) -> None:
    def tell(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    copy = sqlite3.connect(target, isolation_level=None)
    try:
        with readers.snapshot() as connection:
            connection.execute(QUERIES["size"]).fetchone()
            try:
                connection.backup(copy, pages=PAGES_PER_STEP, progress=tell)
            except sqlite3.Error as error:
                said = translated(error, named)
                if isinstance(said, StoreFullError | StoreReadOnlyError):  # about the copy: the store is only read here
                    raise said from error
                raise
    finally:
        copy.close()


def counts(readers: Readers) -> dict[str, int]:
    with readers.snapshot() as connection:
        by_status = dict(connection.execute(QUERIES["count_runs"]).fetchall())
        rest = connection.execute(QUERIES["count_rest"]).fetchone()
        pruned, events, blobs, letters, effects, approvals, workers = rest
        (size,) = connection.execute(QUERIES["size"]).fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return {
        **{f"runs_{status}": by_status.get(status, 0) for status in Status},
        "runs": sum(by_status.values()),
        "runs_pruned": pruned,
        "events": events,
        "blobs": blobs,
        "letters": letters,
        "effects": effects,
        "approvals": approvals,
        "workers": workers,
        "bytes": size,
        "schema_version": version,
    }

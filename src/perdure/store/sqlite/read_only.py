"""How is a store read where it cannot be written: a copy on a read-only disk, a file that is somebody else's?

SQLite reads what is still in the log (`-wal`) by its index (`-shm`), and makes both where they are missing. Here
nothing is made, since others could not use what this user made:

    log and index are there    SQLite reads them as they are, also while others write
    no log, or an empty one    whoever used the store last has closed it: all is in the file, which is read without any
                               lock. So what was read counts only if the file has not changed meanwhile
    a log without its index    refused: only who may write can make the index
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator
from typing import NoReturn

from perdure.errors import StoreBusyError, StoreError, StoreReadOnlyError
from perdure.store.sqlite.connect import connect, quoted
from perdure.store.sqlite.reading import Readers
from perdure.store.sqlite.writer import Facts, Writer

WAY_OUT = "let who may write it make a copy (`perdure store backup`), and read that"


def check_readable(path: str) -> None:
    """Refuse what is not there, or cannot be read."""
    if not os.path.exists(path):
        raise StoreError(f"{path}: there is no such file; name another")
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path}: cannot be read; check the file's and its folder's permissions")


class LookingReaders(Readers):
    """Connections that write nothing, nowhere. None is kept: what is read without locks is read anew each time."""

    @contextlib.contextmanager
    def connection(self) -> Generator[sqlite3.Connection, None, None]:
        before = _content(self.path)
        with super().connection() as connection:
            yield connection
            if before != _content(self.path):  # of a log that is read with locks only its files are looked at
                raise StoreBusyError(f"{self.path}: others wrote while it was read without locks; read it again")

    def _connect(self) -> sqlite3.Connection:
        return connect(_uri(self.path), busy_seconds=self._busy_seconds, is_reader=True, is_uri=True)

    def _give_back(self, connection: sqlite3.Connection, *, is_good: bool = True) -> None:
        super()._give_back(connection, is_good=False)


def _content(path: str) -> tuple[object, ...]:
    """What is the same as long as nobody has changed what is read."""
    if _has_log(path):
        return tuple(os.stat(f"{path}{end}").st_ino for end in ("-wal", "-shm"))
    file = os.stat(path)
    return "file", file.st_ino, file.st_size, file.st_mtime_ns, _log_bytes(path)


def _has_log(path: str) -> bool:
    return os.path.exists(f"{path}-wal") and os.path.exists(f"{path}-shm")


def _log_bytes(path: str) -> int:
    try:
        return os.path.getsize(f"{path}-wal")
    except FileNotFoundError:
        return 0


def _uri(path: str) -> str:
    if _has_log(path):
        if os.access(os.path.dirname(path), os.W_OK) and not os.access(path, os.W_OK):
            # should they go away just now, SQLite would make new ones, as this user's
            raise StoreReadOnlyError(f"{path}: in use, cannot be written, and its folder can be; {WAY_OUT}")
        return f"file:{quoted(path)}?mode=ro"
    if _log_bytes(path):
        raise StoreReadOnlyError(
            f"{path}: has a log ({path}-wal) without its index ({path}-shm), which cannot be made here; copy file and "
            f"log to a folder that can be written, or {WAY_OUT}"
        )
    return f"file:{quoted(path)}?immutable=1"


class NoWriter(Writer):
    """Nobody's turn to write ever comes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.facts = Facts()

    def __enter__(self) -> NoReturn:
        raise StoreReadOnlyError(f"{self.path}: is open for reading only; write where file and folder can be written")

    def is_free(self) -> bool:
        return False

    def hurry(self) -> None: ...

    def take_time(self) -> None: ...

    def changed(self) -> bool:
        """Nothing tells, so whoever waits for news looks."""
        return True

    def close(self) -> None: ...

    def rest(self, *, until: float) -> bool:
        return True

    def go_on(self) -> None: ...

    def abandon(self) -> None: ...

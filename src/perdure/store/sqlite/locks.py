"""Locks between processes, and what they prove: who is alive.

They are flock()s: the kernel drops them when their process dies, however it dies. A child made by fork() shares its
parent's locks until it closes its copies, so a store closes them there; exec() closes them by itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from perdure.errors import StoreError, StoreUnsupportedError

try:
    import fcntl
except ImportError as error:
    raise StoreUnsupportedError(
        "the SQLite store needs flock(), which this system does not have; run it on Linux or macOS"
    ) from error


def open_lock_file(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def try_lock(fd: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if nobody holds it; False otherwise."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True


def lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def check_locks_hold(path: str, take: Callable[[int], bool] = try_lock) -> None:
    """StoreUnsupportedError where one process could not see another's lock."""
    first, second = open_lock_file(path), open_lock_file(path)
    try:
        if take(first) and take(second):
            raise StoreUnsupportedError(f"{path}: file locks do not hold here; keep the store on a local disk")
    except OSError as error:
        raise StoreUnsupportedError(f"{path}: no file locks here ({error}); keep the store on a local disk") from error
    finally:
        os.close(first)
        os.close(second)


class Liveness:
    """Proofs of life: each worker holds the lock of a file of its own as long as its process lives."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._held = dict[str, int]()

    def _file(self, worker: str) -> str:
        return str(self._folder / f"{hashlib.blake2b(worker.encode(), digest_size=16).hexdigest()}.lock")

    def prove(self, worker: str) -> None:
        """Hold the worker's lock from now on. StoreError if it is held elsewhere."""
        if worker in self._held:
            return
        self._folder.mkdir(exist_ok=True)
        fd = open_lock_file(self._file(worker))
        if not try_lock(fd):
            os.close(fd)
            raise StoreError(f"worker {worker} is alive in another process; give each worker a name of its own")
        self._held[worker] = fd

    def is_dead(self, worker: str) -> bool:
        """Whether nobody holds the worker's lock: proof that its process has ended."""
        if worker in self._held:
            return False
        try:
            fd = os.open(self._file(worker), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def drop(self, worker: str) -> None:
        """Give the proof up and remove its file."""
        fd = self._held.pop(worker, None)
        if fd is not None:
            os.close(fd)

    def sweep(self, worker: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(worker))

    def close(self) -> None:
        for worker in list(self._held):
            self.drop(worker)

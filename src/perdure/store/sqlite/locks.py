"""Locks between processes, and what they prove: who is alive.

They are flock()s: the kernel drops them when their process dies, however it dies. A child made by fork() shares its
parent's locks until it closes its copies, so a store closes them there; exec() closes them by itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable

from perdure.errors import StoreError, StoreFullError, StoreReadOnlyError, StoreUnsupportedError

try:
    import fcntl
except ImportError as error:
    raise StoreUnsupportedError(
        "the SQLite store needs flock(), which this system does not have; run it on Linux or macOS"
    ) from error


def open_lock_file(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _refused(error, path) from error


def _refused(error: OSError, path: str) -> StoreError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return StoreError(f"{path}: there is no folder {os.path.dirname(path)}; create it, or name another path")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return StoreReadOnlyError(f"{path}: cannot be written ({error.strerror}); check the folder's permissions")
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFullError(f"{path}: no space left; free some")
        case _:
            return StoreError(f"{path}: {error.strerror}")


def try_lock(fd: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if nobody holds it; False otherwise."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True


def try_lock_patiently(fd: int) -> bool:
    """Take the lock unless somebody keeps it; who only looks whether it is held lets go at once."""
    for _ in range(20):
        if try_lock(fd):
            return True
        time.sleep(0.001)
    return False


def lock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)


def unlock(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


NETWORK_DISKS = frozenset(
    "nfs nfs4 cifs smb3 smbfs afs ceph glusterfs lustre fuse.sshfs fuse.glusterfs fuse.ceph-fuse fuse.rclone".split()
)


def check_disk(path: str, mounts: str = "/proc/self/mounts") -> None:
    """StoreUnsupportedError on a disk that other machines share: SQLite's log needs memory that all openers share."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return  # not Linux; the locks are tried in any case
    disks = [(point.replace("\\040", " "), kind) for _, point, kind, *_ in map(str.split, lines)]
    over = [(point, kind) for point, kind in disks if path.startswith(os.path.join(point, ""))]
    point, kind = max(over, key=lambda disk: len(disk[0]), default=("", ""))
    if kind in NETWORK_DISKS:
        raise StoreUnsupportedError(f"{path}: {point} is a network disk ({kind}); keep the store on a local one")


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
        self._folder = folder
        self._held = dict[str, int]()

    def _file(self, worker: str) -> str:
        name = hashlib.blake2b(worker.encode(), digest_size=16).hexdigest()
        return os.path.join(self._folder, f"{name}.lock")

    def proves(self, worker: str) -> bool:
        """Whether it is this handle that holds the worker's lock."""
        return worker in self._held

    def prove(self, worker: str) -> None:
        """Hold the worker's lock from now on. StoreError if it is held elsewhere."""
        if worker not in self._held:
            self._held[worker] = self._lock_anew(worker)

    def _lock_anew(self, worker: str) -> int:
        """Until the file that was locked is also the one that others find: a predecessor may have removed it."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder)
        path = self._file(worker)
        while True:
            fd = open_lock_file(path)
            if not try_lock_patiently(fd):
                os.close(fd)
                raise StoreError(f"worker {worker} is alive in another process; give each worker a name of its own")
            if _is_same_file(fd, path):
                return fd
            os.close(fd)

    def is_dead(self, worker: str) -> bool:
        """Whether nobody holds the worker's lock: proof that its process has ended. A missing file proves nothing."""
        if worker in self._held:
            return False
        try:
            fd = os.open(self._file(worker), os.O_RDONLY | os.O_CLOEXEC)  # who only looks need not be able to write
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _refused(error, self._file(worker)) from error
        try:
            return try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def remove(self, worker: str) -> None:
        """Of a worker that is no more, nothing is left."""
        with contextlib.suppress(OSError):
            os.unlink(self._file(worker))
        self.drop(worker)

    def drop(self, worker: str) -> None:
        """Give up the proof, as death does."""
        fd = self._held.pop(worker, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        for worker in list(self._held):
            self.drop(worker)


def _is_same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False

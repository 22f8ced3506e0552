"""SQLite's write-ahead log, made longer before it has to grow.

A file that grows with a commit makes the disk note its new length with the same fsync, which takes twice as long as to
write over what is there; on a busy machine far longer, since that is done by a thread of the system's. So whoever
finds that the log has grown puts zeros behind it, in pieces. SQLite takes no zeros for a part of its log: a frame of
page 0 ends it, when the log is read after a crash, too. Once the log has reached the length at which SQLite begins it
again from its start, nothing is left to do.
"""

from __future__ import annotations

import os

from perdure.store.sqlite.connect import CHECKPOINT_PAGES

LOOK_EVERY = 8
"""Transactions between two looks: a look costs a call of the system."""
ZEROS = bytes(64 * 1024)
TIMES = 8
"""Half a megabyte of them are a piece: some sixty commits of one event. Its own way to the disk takes less than a
millisecond."""
BYTES_MAX = CHECKPOINT_PAGES * (4096 + 24)


class Log:
    """The log of one database, as seen by the connection of this process that writes."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        self._length: int | None = None
        self._transactions = 0

    def keep_room(self) -> None:
        """Called in each transaction that holds SQLite's write lock: nobody else writes to the log meanwhile, other
        programs included."""
        self._transactions += 1
        if self._transactions % LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        try:
            length = os.stat(self._path).st_size
            if self._length is not None and self._length < length < BYTES_MAX:
                length += self._lengthen(length)
        except OSError:
            return  # no room on the disk, say: whoever writes next is told
        self._length = length

    def _lengthen(self, length: int) -> int:
        """Bytes that were added."""
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return sum(os.pwrite(file, ZEROS, length + n * len(ZEROS)) for n in range(TIMES))
        finally:
            os.close(file)

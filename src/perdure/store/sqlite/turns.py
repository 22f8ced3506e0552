"""Whose turn it is to write, among all processes on the file.

Two locks make it fair: who wants to write waits on the first with everybody else, and keeps it while it waits, alone,
for the second, which is the turn. So a process that writes without a pause cannot take the turn again before the one
that was waiting had it. With SQLite's own busy handler, which sleeps and tries again, four such processes make each
other wait for seconds; with these two locks, for milliseconds.

flock() knows no time limit: when there is something to wait for, a thread does the waiting.
"""

from __future__ import annotations

import math
import os
import threading
import time

from perdure.errors import StoreBusyError
from perdure.store.sqlite.locks import lock, open_lock_file, try_lock, unlock


class Turns:
    """This process's place in the queue, for one thread at a time: the one that holds the writer's own lock."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._next = open_lock_file(f"{path}-next")
        self._turn = open_lock_file(f"{path}-turn")
        self._waiter: Waiter | None = None
        self._seconds_max = math.inf

    def acquire(self, *, until: float) -> None:
        """Wait for the turn, until that time of the monotonic clock at most."""
        if self._take_if_free():
            return
        if self._waiter is None:
            self._waiter = Waiter(self._next, self._turn)
            self._waiter.hurry(self._seconds_max)  # somebody may have said so before there was one
        if not self._waiter.wait(until):
            raise StoreBusyError(f"{self.path}: others have been writing for too long; is one of them stopped?")

    def _take_if_free(self) -> bool:
        if self._waiter is not None and self._waiter.is_asked:
            return False
        if not try_lock(self._next):
            return False
        is_taken = try_lock(self._turn)
        unlock(self._next)
        return is_taken

    def release(self) -> None:
        unlock(self._turn)

    def hurry(self, seconds: float) -> None:
        """Whoever waits, from now on or already, does so for no longer than that."""
        self._seconds_max = seconds
        if self._waiter is not None:
            self._waiter.hurry(seconds)

    def is_free(self) -> bool:
        """Whether nobody has the turn right now, or waits for it."""
        if not self._take_if_free():
            return False
        self.release()
        return True

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
        os.close(self._next)
        os.close(self._turn)

    def close_in_child(self) -> None:
        """After fork(): the copies of the files, those of the thread that is not here too."""
        if self._waiter is not None:
            self._waiter.close_files()
        os.close(self._next)
        os.close(self._turn)


class Waiter:
    """A thread that waits for the turn on behalf of one that can wait no longer than it said.

    If that one has given up when the turn comes, it goes to the next in the queue. The thread has file descriptors of
    its own, and closes them, as it may be waiting still when everything else is closed.
    """

    def __init__(self, next_fd: int, turn_fd: int) -> None:
        self._next, self._turn = os.dup(next_fd), os.dup(turn_fd)
        self._changed = threading.Condition()
        self.is_asked = False
        self._is_wanted = False
        self._is_here = False
        self._is_stopped = False
        self._until = 0.0
        self._seconds_max = math.inf
        threading.Thread(target=self._run, name="perdure-turns", daemon=True).start()

    def wait(self, until: float) -> bool:
        """Whether the turn came by that time of the monotonic clock."""
        with self._changed:
            self.is_asked = self._is_wanted = True
            self._until = min(until, time.monotonic() + self._seconds_max)
            self._changed.notify_all()
            try:
                while not self._is_here and (left := self._until - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._is_here:
                    self.is_asked = self._is_here = False
                    return True
                return False
            finally:
                self._is_wanted = False
                if self._is_here:
                    self._pass_on()

    def hurry(self, seconds: float) -> None:
        """Whoever waits, from now on or already, gives up after that time."""
        with self._changed:
            self._seconds_max = seconds
            self._until = min(self._until, time.monotonic() + seconds)
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while self._wait_until_asked():
            lock(self._next)
            lock(self._turn)
            unlock(self._next)
            self._hand_over()
        self.close_files()

    def _wait_until_asked(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or (self.is_asked and not self._is_here))
            return not self._is_stopped

    def _hand_over(self) -> None:
        with self._changed:
            self._is_here = True
            self._changed.notify_all()
            if not self._is_wanted:
                self._pass_on()

    def _pass_on(self) -> None:
        self.is_asked = self._is_here = False
        unlock(self._turn)

    def close_files(self) -> None:
        os.close(self._next)
        os.close(self._turn)

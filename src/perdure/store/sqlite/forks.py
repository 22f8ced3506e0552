"""What fork() does to an open store, and what is done about it.

A child has copies of everything: locks that would make a dead parent look alive, and SQLite's notes on file locks that
belong to the parent's process id. So before a fork every store comes to rest, and in the child its files and
connections are closed. The child can then open the store anew; the old handle raises ForkedError.

If a store does not come to rest in time (a backup is being read, another process blocks the writer), the copies in the
child cannot be closed safely. They are left alone, and that child cannot open the store at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Generator
from typing import Protocol

from perdure.errors import ForkedError

REST_SECONDS = 1.0


class Forkable(Protocol):
    """An open store."""

    @property
    def path(self) -> str: ...

    def rest(self, *, until: float) -> bool:
        """Wait until no connection is in use and keep it so. False if that took too long."""
        ...

    def go_on(self) -> None: ...

    def abandon(self) -> None:
        """In the child: close the copies."""
        ...


_opening = threading.Lock()
_open = weakref.WeakSet[Forkable]()
_at_rest = list[Forkable]()
_in_use = list[Forkable]()
_unusable = set[str]()


@contextlib.contextmanager
def opening(store: Forkable) -> Generator[None, None, None]:
    """Around the opening of a store, which no fork interrupts."""
    with _opening:
        if store.path in _unusable:
            raise ForkedError(
                f"{store.path}: was in use when this process was forked; open it before, or spawn instead"
            )
        yield
        _open.add(store)


def closed(store: Forkable) -> None:
    """It has nothing left that a fork could copy."""
    with _opening:
        _open.discard(store)


def _before() -> None:
    until = time.monotonic() + REST_SECONDS
    _opening.acquire()
    for store in list(_open):
        (_at_rest if store.rest(until=until) else _in_use).append(store)


def _in_parent() -> None:
    for store in _at_rest:
        store.go_on()
    _end()


def _in_child() -> None:
    for store in _at_rest:
        store.abandon()
    for store in _in_use:
        _unusable.add(store.path)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # its connections must not be closed, not even at exit
    _open.clear()
    _end()


def _end() -> None:
    _at_rest.clear()
    _in_use.clear()
    _opening.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

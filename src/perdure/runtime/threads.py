"""Threads for plain functions: as many as are needed, up to a cap, and none that keeps the program from ending.

The standard pool waits for its threads when the interpreter exits; a step that blocks for minutes would hold up Ctrl-C
for as long. A plain step under way runs again elsewhere, so there is nothing to wait for.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
Job = Callable[[], None]


class DaemonThreads(concurrent.futures.Executor):
    """An executor of daemon threads."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._jobs: deque[Job | None] = deque()
        self._news = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[R]:
        """Run `fn` in a thread, as soon as one is free. RuntimeError after `shutdown`."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        with self._news:
            if self._is_closed:
                raise RuntimeError(f"{self._name}: no further work after shutdown")
            self._jobs.append(lambda: _run(future, fn, args, kwargs))
            if len(self._jobs) > self._idle and self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
            else:
                self._news.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._news:
                self._idle += 1
                while not self._jobs and not self._is_closed:
                    self._news.wait()
                self._idle -= 1
                job = self._jobs.popleft() if self._jobs else None
            if job is None:
                return
            job()
            del job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing new; idle threads end, busy ones are left alone."""
        with self._news:
            self._is_closed = True
            if cancel_futures:
                self._jobs.clear()
            self._news.notify_all()


def _run(future: concurrent.futures.Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # it belongs to whoever waits, as in the standard pool
        future.set_exception(error)
    else:
        future.set_result(result)

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
Job = tuple[concurrent.futures.Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What is to be called, with what, and whose answer it is."""


class DaemonThreads(concurrent.futures.Executor):
    """An executor of daemon threads."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._jobs: deque[Job] = deque()
        self._news = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[R]:
        """Run `fn` in a thread, as soon as one is free. RuntimeError after `shutdown`, and where no thread can be had:
        then it is not run later either."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        with self._news:
            if self._is_closed:
                raise RuntimeError(f"{self._name}: no further work after shutdown")
            if len(self._jobs) >= self._idle and self._threads < self._threads_max:
                name = f"{self._name}-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
            else:
                self._news.notify()
            self._jobs.append((future, fn, args, kwargs))
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
            _run(*job)
            del job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing new; idle threads end, busy ones are left alone. What is still to be begun is, unless it is
        cancelled: whoever waits for it hears of that."""
        with self._news:
            self._is_closed = True
            left = list(self._jobs) if cancel_futures else []
            if cancel_futures:
                self._jobs.clear()
            self._news.notify_all()
        for future, *_ in left:
            future.cancel()


def _run(future: concurrent.futures.Future[Any], fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:  # it belongs to whoever waits, as in the standard pool
        future.set_exception(error)
    else:
        future.set_result(result)

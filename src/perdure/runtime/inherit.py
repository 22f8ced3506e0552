"""Threads that hosted code starts know whose they are: the journal goes along, so that no step in them is unrecorded.

Python's threads begin in an empty context. While hosted code runs (and only in its contexts), a thread that it starts,
and a job that it gives to a pool, run in a copy of the context in which they were started or given. While they run the
journal knows of them: it may be they who ask next.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import thread as pool_threads
from typing import Any

from perdure.runtime.attempt import ATTEMPT, JOURNAL
from perdure.runtime.hosted.unwound import Unwound

_start = threading.Thread.start
_submit: Callable[..., Any] = concurrent.futures.ThreadPoolExecutor.submit
_pool_worker: Any = getattr(pool_threads, "_worker")  # noqa: B009
_lock = threading.Lock()
_is_installed = False


def _is_hosted() -> bool:
    return JOURNAL.get() is not None and ATTEMPT.get() is None


def _start_in_context(thread: threading.Thread) -> None:
    """threading.Thread.start. A pool's own threads outlive the code that made the pool busy: their jobs bring the
    context along, they do not."""
    if _is_hosted() and getattr(thread, "_target", None) is not _pool_worker:
        thread.run = functools.partial(_run, contextvars.copy_context(), thread.run)  # type: ignore[method-assign]
        JOURNAL.get().started.add(thread)  # here and not in the thread: whoever starts it may wait at once
    _start(thread)


def _run(context: contextvars.Context, run: Callable[[], None]) -> None:
    """A thread that outlives its section ends at its next call, and that is no error to be told about."""
    with contextlib.suppress(Unwound):
        _known(context, run)


def _known(context: contextvars.Context, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """In the thread that runs it."""
    started, thread = context[JOURNAL].started, threading.current_thread()
    started.add(thread)
    try:
        return context.run(run, *args, **kwargs)
    finally:
        started.discard(thread)


def _submit_in_context(pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """concurrent.futures.ThreadPoolExecutor.submit."""
    if _is_hosted():
        return _submit(pool, _known, contextvars.copy_context(), fn, *args, **kwargs)
    return _submit(pool, fn, *args, **kwargs)


def install() -> None:
    """Have threads of hosted code inherit their context from now on. Code that is not hosted sees no difference."""
    global _is_installed
    with _lock:
        if not _is_installed:
            setattr(threading.Thread, "start", _start_in_context)  # noqa: B010
            setattr(concurrent.futures.ThreadPoolExecutor, "submit", _submit_in_context)  # noqa: B010
            _is_installed = True

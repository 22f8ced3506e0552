"""SIGINT and SIGTERM: the work is cancelled, and what is left of the process after two seconds is cut off; while
effects that were sent are seen through, not yet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from perdure.cli.exits import Stopped, complain

T = TypeVar("T")

STOP_SECONDS_MAX = 1.8
LAST_WORDS_SECONDS_MAX = 0.1
LOOK_SECONDS = 0.05
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_until_stopped(
    main: Callable[[], Coroutine[Any, Any, T]], *, hint: str = "", is_kept: Callable[[], bool] = lambda: False
) -> T:
    """`asyncio.run`, until a signal cancels it. Raises Stopped then, with the hint.

    Threads that cannot be stopped (a `def` step that blocks) and exits that hang do not keep the process for longer
    than two seconds after `is_kept()` has come to an end; a second signal ends it at once. Handlers are those of
    Python, not of the loop, so that they are called while the code of a workflow spins, too.
    """
    stop = _Stop(is_kept, hint)
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        return asyncio.run(stop.watched(main))
    except asyncio.CancelledError:
        if stop.signal is None:
            raise
        raise Stopped(stop.signal, hint) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Stop:
    """The handler of both signals."""

    def __init__(self, is_kept: Callable[[], bool], hint: str) -> None:
        self._is_kept = is_kept
        self._hint = hint
        self.signal: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    async def watched(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.signal is not None:
            raise asyncio.CancelledError
        return await main()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            _cut_off(number, f"stopped at once{self._way_on}")
        self.signal = number
        threading.Thread(target=self._cut_off_later, args=[number], daemon=True).start()
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    @property
    def _way_on(self) -> str:
        return f"; {self._hint}" if self._hint else ""

    def _cut_off_later(self, number: int) -> None:
        until = time.monotonic() + STOP_SECONDS_MAX
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            if self._is_kept():
                until = time.monotonic() + STOP_SECONDS_MAX
        _cut_off(number, f"stopped; what did not end within two seconds was cut off{self._way_on}")


def _cut_off(number: int, said: str) -> None:
    """End the process, whatever it is doing. What is still to be written may find nobody who reads it, or the stream in
    the hands of the very code that was interrupted: so it is tried for a moment, and by a thread of its own."""
    last_words = threading.Thread(target=_say, args=[said], daemon=True)
    last_words.start()
    last_words.join(LAST_WORDS_SECONDS_MAX)
    os._exit(128 + number)


def _say(said: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        complain(said)
        sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()

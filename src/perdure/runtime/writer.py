"""The one writer of a process: what all runs want to write in the same moment becomes one transaction.

Writes are collected until the event loop comes round, then committed together: at once on the loop's thread while the
store is free and commits measure well under the time of a thread switch, else on the writer's own thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from perdure.errors import StoreError
from perdure.store.protocol import Outcome, Store, Write

log = logging.getLogger("perdure")

INLINE_COMMIT_SECONDS_MAX = 0.001
INLINE_BATCH_SECONDS_MAX = 0.02
WRITES_PER_COMMIT_MAX = 500
FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 1.0

Done = Callable[[Outcome | Exception], None]
Job = tuple[Write, Done]


class Writer:
    """Commits what is submitted, and what its sources have, in groups."""

    def __init__(self, store: Store, *, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._stopwatch = stopwatch
        self._jobs: list[Job] = []
        self._sources: list[Callable[[], Iterable[Job]]] = []
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-writer")
        self._is_scheduled = False
        self._is_busy = False
        self._lone_seconds = 0.0
        self._seconds_per_write = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self.commits = 0
        self.is_closed = False

    def add_source(self, source: Callable[[], Iterable[Job]]) -> None:
        """`source` is asked for its writes when a commit begins, so that they are as complete as can be."""
        self._sources.append(source)

    def submit(self, write: Write) -> asyncio.Future[Outcome]:
        """Commit one write; the future has its outcome, or a StoreError."""
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def done(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._jobs.append((write, done))
        self.schedule()
        return future

    def schedule(self, delay: float = 0.0) -> None:
        """Let a commit begin when the loop comes round."""
        if self._is_scheduled or self._is_busy:
            return
        self._is_scheduled = True
        if delay:
            self._loop.call_later(delay, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        if self._is_busy:
            return
        jobs, self._jobs = self._jobs, []
        for source in self._sources:
            jobs.extend(source())
        if not jobs:
            return
        if self.is_closed:
            self._refuse(jobs, StoreError("this Runtime was closed before that was written"))
            return
        if len(jobs) > WRITES_PER_COMMIT_MAX:
            self._jobs = jobs[WRITES_PER_COMMIT_MAX:]
            jobs = jobs[:WRITES_PER_COMMIT_MAX]
        if self._may_be_inline(len(jobs)):
            self._finish(jobs, self._commit(jobs))
        else:
            self._is_busy = True
            commit = self._loop.run_in_executor(self._thread, self._commit, jobs)
            commit.add_done_callback(lambda done: self._finish_later(jobs, done))

    def _may_be_inline(self, writes: int) -> bool:
        takes = self._seconds_per_write * writes
        if self._lone_seconds >= INLINE_COMMIT_SECONDS_MAX or takes >= INLINE_BATCH_SECONDS_MAX:
            return False
        try:
            return self._store.is_free()
        except Exception:  # the commit itself will say what is wrong
            return False

    def _commit(self, jobs: list[Job]) -> list[Outcome | Exception] | StoreError:
        began = self._stopwatch()
        try:
            outcomes: list[Outcome | Exception] = list(self._store.commit([write for write, _ in jobs]))
        except StoreError as error:
            return error
        except Exception as error:  # a write that no store can take, which costs nobody but its writer
            return [error] if len(jobs) == 1 else self._commit_each(jobs)
        took = self._stopwatch() - began
        self.commits += 1
        if len(jobs) == 1:
            self._lone_seconds = 0.8 * self._lone_seconds + 0.2 * took
        else:
            self._lone_seconds *= 0.98
            self._seconds_per_write = 0.8 * self._seconds_per_write + 0.2 * took / len(jobs)
        return outcomes

    def _commit_each(self, jobs: list[Job]) -> list[Outcome | Exception] | StoreError:
        outcomes: list[Outcome | Exception] = []
        for job in jobs:
            outcome = self._commit([job])
            if isinstance(outcome, StoreError):
                return outcome
            outcomes += outcome
        return outcomes

    def _finish_later(self, jobs: list[Job], commit: asyncio.Future[list[Outcome | Exception] | StoreError]) -> None:
        self._is_busy = False
        self._finish(jobs, commit.result())
        self.schedule()  # whoever asked for a commit while this one was under way was not heard

    def _finish(self, jobs: list[Job], outcomes: list[Outcome | Exception] | StoreError) -> None:
        if isinstance(outcomes, StoreError):
            self._try_again(jobs, outcomes)
            return
        if self._retry_seconds > FIRST_RETRY_SECONDS:
            log.warning("the store takes writes again")
            self._retry_seconds = FIRST_RETRY_SECONDS
        self._tell(deque(zip((done for _, done in jobs), outcomes, strict=True)))
        if self._jobs:
            self.schedule()

    def _tell(self, told: deque[tuple[Done, Outcome | Exception]]) -> None:
        """Tell each writer its outcome. What one of them raises (Ctrl-C in a turn) keeps it from none of the others."""
        try:
            while told:
                done, outcome = told.popleft()
                done(outcome)
        finally:
            if told:
                self._loop.call_soon(self._tell, told)

    def _try_again(self, jobs: list[Job], error: StoreError) -> None:
        """The outcome is unknown: the same writes go first, under the same ids, until the store takes them.

        Writes that somebody waits for (a start, a message) get the error when the store stays away."""
        if self._retry_seconds == FIRST_RETRY_SECONDS:
            log.warning("the store does not take writes, trying on: %s", error)
        self._retry_seconds = min(self._retry_seconds * 2, LONGEST_RETRY_SECONDS)
        if self.is_closed:
            self._refuse(jobs, error)
            return
        self._jobs = jobs + self._jobs
        self.schedule(self._retry_seconds)

    def _refuse(self, jobs: list[Job], error: StoreError) -> None:
        for _, done in jobs:
            done(error)

    @property
    def is_idle(self) -> bool:
        return not (self._jobs or self._is_busy or self._is_scheduled)

    def close(self) -> None:
        self.is_closed = True
        self._thread.shutdown(wait=True)
        jobs, self._jobs = self._jobs, []
        self._refuse(jobs, StoreError("this Runtime was closed before that was written"))

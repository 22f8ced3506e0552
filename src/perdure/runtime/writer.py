"""The one writer of a process: what all runs want to write in the same moment becomes one transaction.

Writes are collected until the event loop comes round, then committed together: at once on the loop's thread while the
store is free and commits measure well under the time of a thread switch, else on the writer's own thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure.errors import StoreError
from perdure.store.protocol import Append, Outcome, Store, Write

log = logging.getLogger("perdure")

INLINE_COMMIT_SECONDS_MAX = 0.001
INLINE_BATCH_SECONDS_MAX = 0.02
WRITES_PER_COMMIT_MAX = 500
FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 1.0
FAILURES_IN_A_ROW_MAX = 2

Done = Callable[[Any, Outcome | Exception], None]
Job = tuple[Write, Done, Any]
"""What is to be written, who is told the outcome, and what it is about: a closure for each write would cost more."""
Told = tuple[Done, Any, Outcome | Exception]


class Writer:
    """Commits what is submitted, and what its sources have, in groups."""

    def __init__(self, store: Store, *, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._stopwatch = stopwatch
        self._jobs: list[Job] = []
        self._sources: list[Callable[[], Iterable[Job]]] = []
        self._loop = asyncio.get_running_loop()
        # not that of the step whose result asks for a commit: the timers armed there would keep it, and its run
        self._context = contextvars.copy_context()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-writer")
        self._is_scheduled = False
        self._is_busy = False
        self._working = 0
        self._lone_seconds = 0.0
        self._seconds_per_write = 0.0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._troubled: list[Job] = []
        self._is_retry_scheduled = False
        self.commits = 0
        self.is_closed = False

    def add_source(self, source: Callable[[], Iterable[Job]]) -> None:
        """`source` is asked for its writes when a commit begins, so that they are as complete as can be."""
        self._sources.append(source)

    def submit(self, write: Write, *, unheard: Callable[[], None] | None = None) -> asyncio.Future[Outcome]:
        """Commit one write; the future has its outcome, or a StoreError.

        To cancel the future keeps nothing from being written; `unheard` is then called when it is."""
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._jobs.append((write, _answer, (future, unheard)))
        self.schedule()
        return future

    def run(self, work: Callable[[], Outcome]) -> asyncio.Future[Outcome]:
        """Do something with the store on the writer's thread, between two commits."""
        if self.is_closed:
            refused: asyncio.Future[Outcome] = self._loop.create_future()
            refused.set_exception(StoreError("this Runtime was closed before that was written"))
            return refused
        self._working += 1
        working = self._loop.run_in_executor(self._thread, work)
        working.add_done_callback(self._worked)
        return working

    def _worked(self, _: asyncio.Future[Outcome]) -> None:
        self._working -= 1

    def schedule(self) -> None:
        """Let a commit begin when the loop comes round."""
        if not (self._is_scheduled or self._is_busy):
            self._is_scheduled = True
            self._loop.call_soon(self._flush, context=self._context)

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
            self._jobs = jobs[WRITES_PER_COMMIT_MAX:] + self._jobs  # to ask a source may have led to more
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
            outcomes: list[Outcome | Exception] = list(self._store.commit([write for write, _, _ in jobs]))
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
        try:
            self._finish(jobs, commit.result())
        finally:
            self.schedule()  # whoever asked for a commit while this one was under way was not heard

    def _finish(self, jobs: list[Job], outcomes: list[Outcome | Exception] | StoreError) -> None:
        try:
            if isinstance(outcomes, StoreError):
                self._set_aside(jobs, outcomes)
            else:
                self._note_success()
                self._tell(iter([(done, of, outcome) for (_, done, of), outcome in zip(jobs, outcomes, strict=True)]))
        finally:
            if self._jobs:
                self.schedule()

    def _tell(self, told: Iterator[Told]) -> None:
        """Tell each writer its outcome. What one of them raises (Ctrl-C in a turn) keeps it from none of the others."""
        try:
            for done, of, outcome in told:
                done(of, outcome)
        except BaseException:
            self._loop.call_soon(self._tell, told)  # an iterator: it goes on with the next
            raise

    def _note_success(self) -> None:
        if self._retry_seconds > FIRST_RETRY_SECONDS and not self._troubled:
            log.warning("the store takes writes again")
            self._retry_seconds = FIRST_RETRY_SECONDS

    # ── trouble ──────────────────────────────────────────────────────────────────────────────
    def _set_aside(self, jobs: list[Job], error: StoreError) -> None:
        """The outcome is unknown: the same writes are sent again, under the same ids, until the store takes them. What
        comes meanwhile need not wait for that."""
        if self.is_closed:
            self._refuse(jobs, error)
            return
        if self._retry_seconds == FIRST_RETRY_SECONDS:
            log.warning("the store does not take writes, trying on: %s", error)
        self._retry_seconds = min(self._retry_seconds * 2, LONGEST_RETRY_SECONDS)
        self._troubled += jobs
        if not self._is_retry_scheduled:
            self._is_retry_scheduled = True
            self._loop.call_later(self._retry_seconds, self._retry)

    def _retry(self) -> None:
        if self._is_busy:
            self._loop.call_later(FIRST_RETRY_SECONDS, self._retry)
            return
        self._is_retry_scheduled = False
        jobs, self._troubled = self._troubled, []
        if jobs:
            self._is_busy = True
            commit = self._loop.run_in_executor(self._thread, self._commit_apart, jobs)
            commit.add_done_callback(lambda done: self._retried(jobs, done.result()))

    def _commit_apart(self, jobs: list[Job]) -> list[Outcome | Exception]:
        """All at once; if that fails each alone, so that one which cannot be taken holds up no other. After so many
        failures in a row it is the store that is away."""
        outcomes = self._commit(jobs)
        if not isinstance(outcomes, StoreError):
            return outcomes
        error, in_a_row, each = outcomes, 0, list[Outcome | Exception]()
        for job in jobs if len(jobs) > 1 else ():
            alone = self._commit([job]) if in_a_row < FAILURES_IN_A_ROW_MAX else error
            if isinstance(alone, StoreError):
                error, in_a_row = alone, in_a_row + 1
                each.append(alone)
            else:
                in_a_row = 0
                each += alone
        return each or [error]

    def _retried(self, jobs: list[Job], outcomes: list[Outcome | Exception]) -> None:
        """Runs wait until the store takes what they write; who waits for a start or a message is told that it does
        not."""
        self._is_busy = False
        told = list[Told]()
        left, error = list[Job](), None
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, StoreError) and isinstance(job[0], Append):
                error = outcome
                left.append(job)
            else:
                told.append((job[1], job[2], outcome))
        if error is not None:  # those that were tried first are tried last the next time
            self._set_aside(left[FAILURES_IN_A_ROW_MAX:] + left[:FAILURES_IN_A_ROW_MAX], error)
        elif not any(isinstance(outcome, StoreError) for outcome in outcomes):
            self._note_success()
        try:
            self._tell(iter(told))
        finally:
            self.schedule()

    def _refuse(self, jobs: list[Job], error: StoreError) -> None:
        for _, done, of in jobs:
            done(of, error)

    @property
    def is_idle(self) -> bool:
        return not (self._jobs or self._troubled or self._is_busy or self._is_scheduled or self._working)

    def close(self) -> None:
        self.is_closed = True
        self._thread.shutdown(wait=True)
        jobs, self._jobs, self._troubled = self._troubled + self._jobs, [], []
        self._refuse(jobs, StoreError("this Runtime was closed before that was written"))


def _answer(
    asked: tuple[asyncio.Future[Outcome], Callable[[], None] | None], outcome: Outcome | Exception
) -> None:
    future, unheard = asked
    if future.done():
        if unheard is not None:
            unheard()
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

"""A store that fails at its n-th write: to crash before and after every write there is, and to see the run survive.

    for n in itertools.count(1):
        for when in ("before", "after"):
            store = CrashingStore(inner, fail_at=n, when=when)
            ...                                    # run until Crash comes through, then recover on `inner`
        if store.writes < n:
            break                                  # there was no n-th write: every one was tried

It wraps any store. Reads pass through, until it has crashed: a dead process reads nothing either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from perdure.decisions import ApprovalEntry
from perdure.errors import StoreError
from perdure.gates.budget import SharedAccount
from perdure.ledger import LedgerEntry
from perdure.store.protocol import (
    Append,
    ApprovalFilter,
    Claim,
    EffectFilter,
    Filter,
    Mail,
    Note,
    Outcome,
    Post,
    Row,
    RunInfo,
    Store,
    Stored,
    WorkerInfo,
    Write,
)

When = Literal["before", "after"]
T = TypeVar("T")

__all__ = ["Crash", "CrashingStore", "When", "failing"]


class Crash(BaseException):
    """The process died here. No `except Exception` sees it."""


def failing(message: str = "the database went away") -> Callable[[], BaseException]:
    """For `how`: a StoreError, after which the same write may be sent again.

    With `when="before"` the write was not applied, with `"after"` it was: the sender cannot tell.
    """
    return lambda: StoreError(message)


class CrashingStore:
    """A store whose write number `fail_at` fails `when` (before or after) it takes effect, by raising `how()`.

    `fail_at` counts from 1; None never fails. After a `Crash` every further call raises it too, as nothing comes from a
    dead process; any other failure happens `times` times, from that write on. `before_write` is called with the number
    of each write that is about to happen: to be slow, to look, to let something else come first. `writes` counts them.

    Writes are all methods of a store that write; `claim` and `take_posts` where they find something due.
    """

    def __init__(
        self,
        inner: Store,
        *,
        fail_at: int | None = None,
        when: When = "before",
        how: Callable[[], BaseException] = Crash,
        times: int = 1,
        before_write: Callable[[int], None] | None = None,
    ) -> None:
        self.inner = inner
        self.writes = 0
        self.has_crashed = False
        self._first = fail_at if fail_at is not None else 0
        self._failing = range(self._first, self._first + times) if fail_at is not None else range(0)
        self._when, self._how, self._before_write = when, how, before_write
        self._lock = threading.Lock()

    def _write(self, name: str, write: Callable[[], T], writes: Sequence[Write] = ()) -> T:
        """Each write comes through here. `name`: the method's; `writes`: what a commit holds."""
        number = self._count()
        if self._before_write is not None:
            self._before_write(number)
        if number not in self._failing:
            return self._living(write)
        if self._when == "after":
            self._living(write)
        raise self._failure()

    def _count(self) -> int:
        with self._lock:
            self._check_alive()
            self.writes += 1
            return self.writes

    def _failure(self) -> BaseException:
        failure = self._how()
        self.has_crashed = self.has_crashed or isinstance(failure, Crash)
        return failure

    def _check_alive(self) -> None:
        if self.has_crashed:
            raise Crash

    def _living(self, call: Callable[[], T]) -> T:
        self._check_alive()
        return call()

    @property
    def url(self) -> str:
        return self.inner.url

    def kill(self, worker: str) -> None:
        """Take a worker's proof of life away, where the inner store can do that."""
        self.inner.kill(worker)  # type: ignore[attr-defined]

    # ── writes ───────────────────────────────────────────────────────────────────────────────
    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        return self._write("commit", lambda: self.inner.commit(writes), writes)

    def transact(self, intent: Append, fill: Callable[[Any], Append]) -> Outcome:
        return self._write("transact", lambda: self.inner.transact(intent, fill))

    def enter(self, worker: str, *, lease_seconds: float, workflows: Sequence[str]) -> None:
        self._write("enter", lambda: self.inner.enter(worker, lease_seconds=lease_seconds, workflows=workflows))

    def renew(self, worker: str, *, lease_seconds: float) -> bool:
        return self._write("renew", lambda: self.inner.renew(worker, lease_seconds=lease_seconds))

    def give_back(self, worker: str, *, but: Mapping[int, int]) -> int:
        return self._write("give_back", lambda: self.inner.give_back(worker, but=but))

    def leave(self, worker: str) -> None:
        self._write("leave", lambda: self.inner.leave(worker))

    def take_over(self, dead: str, *, proven: bool, retry_after: Sequence[float]) -> int:
        return self._write("take_over", lambda: self.inner.take_over(dead, proven=proven, retry_after=retry_after))

    def claim(
        self,
        worker: str,
        *,
        now: int,
        limit: int,
        known: frozenset[tuple[str, int]],
        only: frozenset[str] | None = None,
    ) -> list[Claim]:
        due = self.next_due(known=known)
        if due is None or due > now:
            return []
        return self._write("claim", lambda: self.inner.claim(worker, now=now, limit=limit, known=known, only=only))

    def post(self, posts: Sequence[Post]) -> int:
        return self._write("post", lambda: self.inner.post(posts))

    def take_posts(self, worker: str, *, topics: Collection[str], now: int, until: int, limit: int) -> list[Post]:
        if not self.posts(status="waiting", limit=1):
            return []
        return self._write(
            "take_posts",
            lambda: self.inner.take_posts(worker, topics=topics, now=now, until=until, limit=limit),
        )

    def settle_post(self, worker: str, post: Post) -> bool:
        return self._write("settle_post", lambda: self.inner.settle_post(worker, post))

    def revive_post(self, post_id: str, *, now: int) -> bool:
        return self._write("revive_post", lambda: self.inner.revive_post(post_id, now=now))

    def posts(self, *, topic: str | None = None, status: str | None = None, limit: int = 100) -> list[Post]:
        return self._living(lambda: self.inner.posts(topic=topic, status=status, limit=limit))

    def keep(self, note: Note) -> None:
        self._write("keep", lambda: self.inner.keep(note))

    def move_note(self, kind: str, key: str, to: Note) -> bool:
        return self._write("move_note", lambda: self.inner.move_note(kind, key, to))

    def notes(self, kind: str, key: str | None = None) -> list[Note]:
        return self._living(lambda: self.inner.notes(kind, key))

    def accounts(self, account: str | None = None, since: int | None = None) -> list[SharedAccount]:
        return self._living(lambda: self.inner.accounts(account, since))

    def prune(self, *, ended_before: int, limit: int) -> int:
        return self._write("prune", lambda: self.inner.prune(ended_before=ended_before, limit=limit))

    # ── what passes through ──────────────────────────────────────────────────────────────────
    def is_free(self) -> bool:
        return self._living(self.inner.is_free)

    def hurried(self) -> AbstractContextManager[None]:
        return self.inner.hurried()

    def workers(self) -> list[WorkerInfo]:
        return self._living(self.inner.workers)

    def lost(self, me: str) -> list[tuple[str, bool]]:
        return self._living(lambda: self.inner.lost(me))

    def next_due(self, *, known: frozenset[tuple[str, int]], only: frozenset[str] | None = None) -> int | None:
        return self._living(lambda: self.inner.next_due(known=known, only=only))

    def unserved(
        self, *, served: frozenset[tuple[str, int]], due_before: int, oldest_served: bool = False
    ) -> list[RunInfo]:
        return self._living(
            lambda: self.inner.unserved(served=served, due_before=due_before, oldest_served=oldest_served)
        )

    def changed(self) -> bool:
        return self._living(self.inner.changed)

    def find(self, run_id: str) -> RunInfo | None:
        return self._living(lambda: self.inner.find(run_id))

    def load(self, rid: int, *, from_seq: int | None = None) -> Stored:
        return self._living(lambda: self.inner.load(rid, from_seq=from_seq))

    def last_row(self, rid: int) -> Row:
        return self._living(lambda: self.inner.last_row(rid))

    def blob(self, rid: int, address: bytes) -> bytes:
        return self._living(lambda: self.inner.blob(rid, address))

    def mail(self, rids: Sequence[int] | None = None, *, owner: str | None = None) -> list[Mail]:
        return self._living(lambda: self.inner.mail(rids, owner=owner))

    def runs(self, which: Filter) -> list[RunInfo]:
        return self._living(lambda: self.inner.runs(which))

    def effect(self, operation_id: str) -> LedgerEntry | None:
        return self._living(lambda: self.inner.effect(operation_id))

    def effects(self, which: EffectFilter) -> list[LedgerEntry]:
        return self._living(lambda: self.inner.effects(which))

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        return self._living(lambda: self.inner.approval(approval_id))

    def approvals(self, which: ApprovalFilter) -> list[ApprovalEntry]:
        return self._living(lambda: self.inner.approvals(which))

    def heads(self) -> Iterator[tuple[str, int, int, bytes]]:
        return self._living(self.inner.heads)

    def backup(self, target: str, progress: Callable[[int, int], None] | None = None) -> None:
        self._living(lambda: self.inner.backup(target, progress))

    def stats(self) -> Mapping[str, int | str]:
        return self._living(self.inner.stats)

    def close(self) -> None:
        """Closes the inner store, crashed or not."""
        self.inner.close()

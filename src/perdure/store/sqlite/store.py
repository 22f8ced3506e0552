"""The SQLite store: the protocol's methods, each one transaction of the writer or one read.

Nothing here interprets an event. What happens inside a transaction stands in `commit`, `workers` and `care`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

import msgspec

from perdure.clock import MICROSECONDS, Clock, SystemClock
from perdure.decisions import ApprovalEntry
from perdure.errors import ForkedError, PerdureBug, PerdureError, StoreBusyError, StoreError, StoreReadOnlyError
from perdure.gates.budget import SharedAccount
from perdure.ledger.entry import LedgerEntry
from perdure.store import rules
from perdure.store.protocol import (
    Append,
    ApprovalFilter,
    Claim,
    Done,
    EffectFilter,
    Filter,
    Mail,
    Note,
    Outcome,
    Post,
    Row,
    RunInfo,
    Stored,
    WorkerInfo,
    Write,
)
from perdure.store.sqlite import care, forks, guests, outbox, workers
from perdure.store.sqlite.commit import QUERIES, Commit, append_alone
from perdure.store.sqlite.locks import Liveness, check_disk, check_locks_hold
from perdure.store.sqlite.read_only import LookingReaders, NoWriter, check_readable
from perdure.store.sqlite.reading import Readers
from perdure.store.sqlite.rows import shared_account
from perdure.store.sqlite.schema import check_place, check_version, prepare
from perdure.store.sqlite.turns import Turns
from perdure.store.sqlite.workers import Known
from perdure.store.sqlite.writer import Writer

PRUNE_SECONDS = 0.01
PRUNE_PAUSE_SECONDS = 0.001


class SqliteStore:
    """The protocol in a SQLite file, shared by the processes of one machine."""

    def __init__(
        self, path: str, *, clock: Clock | None = None, busy_seconds: float = 10.0, read_only: bool = False
    ) -> None:
        self._path = os.path.realpath(path)
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        self._is_closed = False
        with forks.opening(self):
            if read_only:
                self._open_for_reading(busy_seconds)
            else:
                self._open(busy_seconds)

    def _open(self, busy_seconds: float) -> None:
        check_disk(self._path)
        check_place(self._path)
        check_locks_hold(f"{self._path}-turn")
        self._readers: Readers = Readers(self._path, busy_seconds=busy_seconds)
        self._liveness = Liveness(f"{self._path}-workers")
        self._writer: Writer = Writer(self._path, Turns(self._path), busy_seconds=busy_seconds)
        try:
            with self._writer.turn() as connection:
                prepare(connection, self._path)
            self._writer.changed()  # what was there before is no news
        except BaseException:
            self._writer.close()
            raise

    def _open_for_reading(self, busy_seconds: float) -> None:
        check_disk(self._path)
        check_readable(self._path)
        self._readers = LookingReaders(self._path, busy_seconds=busy_seconds)
        self._liveness = Liveness(f"{self._path}-workers")
        self._writer = NoWriter(self._path)
        with self._readers.connection() as connection:
            check_version(connection, self._path)

    @property
    def path(self) -> str:
        return self._path

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self._path}: this handle was opened before fork(); open the store anew in the child")
        if self._is_closed:
            raise StoreError(f"{self._path}: this handle is closed; open the store anew")

    # ── writing ──────────────────────────────────────────────────────────────────────────────
    def writing(self) -> Writer:
        """A transaction of one's own: `with store.writing() as connection`."""
        self._check_usable()
        return self._writer

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        self._check_usable()
        for write in writes:
            rules.check_write(write)
        try:
            return self._commit(writes)
        except (StoreBusyError, StoreReadOnlyError):
            raise
        except (StoreError, PerdureBug):
            if len(writes) < 2:
                raise
        return self._commit_each(writes)

    def _commit_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """Each write alone, all of them; then the first failure is raised."""
        outcomes, failures = list[Outcome](), list[PerdureError]()
        for write in writes:
            try:
                outcomes += self._commit([write])
            except (StoreError, PerdureBug) as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return outcomes

    def _commit(self, writes: Sequence[Write]) -> list[Outcome]:
        with self._writer as connection:
            facts = self._writer.facts
            if len(writes) == 1 and (done := append_alone(connection, facts, writes[0])) is not None:
                return [done]
            return Commit(connection, facts, self._clock.now()).apply(writes)

    def transact(self, intent: Append, fill: Callable[[sqlite3.Connection], Append]) -> Outcome:
        self._check_usable()
        try:
            with self._writer as connection:
                return self._transact(connection, intent, fill)
        except _Refused as refused:
            return refused.outcome
        except _GuestFailed as failed:  # its errors are its own, SQLite's among them
            raise failed.error from None

    def _transact(
        self, connection: sqlite3.Connection, intent: Append, fill: Callable[[sqlite3.Connection], Append]
    ) -> Outcome:
        commit = Commit(connection, self._writer.facts, self._clock.now())
        decided = commit.judge(intent)
        if decided is not None:
            return decided
        with guests.host(connection):
            append = _filled(fill, connection)
        rules.check_write(append)
        outcome = commit.apply([append])[0]
        if not isinstance(outcome, Done):
            raise _Refused(outcome)  # so that what the guest wrote is undone
        return outcome

    def is_free(self) -> bool:
        self._check_usable()
        return self._writer.is_free()

    @contextlib.contextmanager
    def hurried(self) -> Generator[None, None, None]:
        self._writer.hurry()
        try:
            yield
        finally:
            self._writer.take_time()

    # ── workers ──────────────────────────────────────────────────────────────────────────────
    def enter(self, worker: str, *, lease_seconds: float, workflows: Sequence[str]) -> None:
        self._check_usable()
        now = self._clock.now()
        lease_until = _lease_until(now, lease_seconds)
        row = (worker, socket.gethostname(), self._pid, now, lease_until, msgspec.json.encode(list(workflows)).decode())
        with self._writer as connection:
            if self._liveness.proves(worker) and workers.has_entered(connection, worker):
                raise StoreError(f"worker {worker} has entered already; give each worker a name of its own")
            self._liveness.prove(worker)
            workers.bury(connection, worker, proven=False, retry_after=(), now=now)
            connection.execute(QUERIES["enter_worker"], row)
            self._writer.facts.forget()

    def renew(self, worker: str, *, lease_seconds: float) -> bool:
        self._check_usable()
        with self._writer as connection:
            until = _lease_until(self._clock.now(), lease_seconds)
            return connection.execute(QUERIES["renew_worker"], (until, worker)).rowcount == 1

    def give_back(self, worker: str, *, but: Mapping[int, int]) -> int:
        self._check_usable()
        with self._writer as connection:
            values = {"worker": worker, "now": self._clock.now(), "but": msgspec.json.encode(dict(but)).decode()}
            self._writer.facts.forget()
            return connection.execute(QUERIES["give_back"], values).rowcount

    def leave(self, worker: str) -> None:
        self._check_usable()
        with self._writer as connection:
            connection.execute(QUERIES["leave_runs"], {"worker": worker, "now": self._clock.now()})
            connection.execute(QUERIES["free_posts"], (worker,))
            connection.execute(QUERIES["delete_worker"], (worker,))
            self._writer.facts.forget()
        self._liveness.remove(worker)

    def kill(self, worker: str) -> None:
        """Drop the worker's proof of life, as its process's death would. The worker does not notice. For tests."""
        self._liveness.drop(worker)

    def workers(self) -> list[WorkerInfo]:
        self._check_usable()
        return self._readers.workers()

    def lost(self, me: str) -> list[tuple[str, bool]]:
        self._check_usable()
        now = self._clock.now()
        leases = self._readers.all("other_leases", me)
        found = [(worker, self._liveness.is_dead(worker), lease_until < now) for worker, lease_until in leases]
        return [(worker, is_dead) for worker, is_dead, is_late in found if is_dead or is_late]

    def take_over(self, dead: str, *, proven: bool, retry_after: Sequence[float]) -> int:
        self._check_usable()
        with self._writer as connection:
            if not workers.has_entered(connection, dead) or (proven and not self._liveness.is_dead(dead)):
                return 0
            freed = workers.bury(connection, dead, proven=proven, retry_after=retry_after, now=self._clock.now())
            self._writer.facts.forget()
        if proven:
            self._liveness.remove(dead)
        return len(freed)

    def claim(
        self, worker: str, *, now: int, limit: int, known: Known, only: frozenset[str] | None = None
    ) -> list[Claim]:
        self._check_usable()
        with self._readers.snapshot() as connection:
            if not workers.due_runs(connection, now=now, limit=1, known=known, only=only):
                return []
        with self._writer as connection:
            if not workers.has_entered(connection, worker):
                return []
            due = workers.due_runs(connection, now=now, limit=limit, known=known, only=only)
            if workers.has_suspect(connection, worker):
                due = [run for run in due if run.deaths < 2]
            claims = list[Claim]()
            for run in due:
                claim, length = workers.claim_run(connection, run.rid, worker, self._clock.now())
                self._writer.facts.standing[run.rid] = (claim.info.epoch, length)
                claims.append(claim)
            return claims

    def next_due(self, *, known: Known, only: frozenset[str] | None = None) -> int | None:
        self._check_usable()
        with self._readers.snapshot() as connection:
            return workers.first_due(connection, known, only)

    # ── reading ──────────────────────────────────────────────────────────────────────────────
    def changed(self) -> bool:
        self._check_usable()
        return self._writer.changed()

    def find(self, run_id: str) -> RunInfo | None:
        self._check_usable()
        return self._readers.find(run_id)

    def load(self, rid: int, *, from_seq: int | None = None) -> Stored:
        self._check_usable()
        return self._readers.load(rid, from_seq)

    def last_row(self, rid: int) -> Row:
        self._check_usable()
        return self._readers.last_row(rid)

    def blob(self, rid: int, address: bytes) -> bytes:
        self._check_usable()
        return self._readers.blob(rid, address)

    def mail(self, rids: Sequence[int] | None = None, *, owner: str | None = None) -> list[Mail]:
        self._check_usable()
        return self._readers.mail(rids, owner)

    def unserved(self, *, served: Known, due_before: int, oldest_served: bool = False) -> list[RunInfo]:
        self._check_usable()
        return self._readers.unserved(served, due_before, oldest_served)

    def runs(self, which: Filter) -> list[RunInfo]:
        self._check_usable()
        return self._readers.runs(which)

    def effect(self, operation_id: str) -> LedgerEntry | None:
        self._check_usable()
        return self._readers.effect(operation_id)

    def effects(self, which: EffectFilter) -> list[LedgerEntry]:
        self._check_usable()
        return self._readers.effects(which)

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        self._check_usable()
        return self._readers.approval(approval_id)

    def approvals(self, which: ApprovalFilter) -> list[ApprovalEntry]:
        self._check_usable()
        return self._readers.approvals(which)

    # ── the outbox ───────────────────────────────────────────────────────────────────────────
    def post(self, posts: Sequence[Post]) -> int:
        self._check_usable()
        with self._writer as connection:
            return outbox.put(connection, posts)

    def take_posts(self, worker: str, *, topics: Collection[str], now: int, until: int, limit: int) -> list[Post]:
        self._check_usable()
        if not any(self._readers.named("due_posts", {"topic": topic, "now": now, "limit": 1}) for topic in topics):
            return []  # most looks end here, and keep nobody from writing
        with self._writer as connection:
            return outbox.take(connection, worker, topics=topics, now=now, until=until, limit=limit)

    def settle_post(self, worker: str, post: Post) -> bool:
        self._check_usable()
        with self._writer as connection:
            return outbox.settle(connection, worker, post)

    def revive_post(self, post_id: str, *, now: int) -> bool:
        self._check_usable()
        with self._writer as connection:
            return connection.execute(QUERIES["revive_post"], (now, post_id)).rowcount == 1

    def posts(self, *, topic: str | None = None, status: str | None = None, limit: int = 100) -> list[Post]:
        self._check_usable()
        values = {"topic": topic, "status": status, "limit": limit}
        return [Post._make(row) for row in self._readers.named("list_posts", values)]

    # ── notes ────────────────────────────────────────────────────────────────────────────────
    def keep(self, note: Note) -> None:
        self._check_usable()
        with self._writer as connection:
            connection.execute(QUERIES["keep_note"], note)

    def move_note(self, kind: str, key: str, to: Note) -> bool:
        self._check_usable()
        with self._writer as connection:
            if connection.execute(QUERIES["drop_note"], (kind, key)).rowcount == 0:
                return False
            connection.execute(QUERIES["keep_note"], to)
            return True

    def notes(self, kind: str, key: str | None = None) -> list[Note]:
        self._check_usable()
        return [Note._make(row) for row in self._readers.named("list_notes", {"kind": kind, "key": key})]

    # ── what many runs spend together ────────────────────────────────────────────────────────
    def accounts(self, account: str | None = None, since: int | None = None) -> list[SharedAccount]:
        self._check_usable()
        which = {"account": account, "since": since}
        return [shared_account(row) for row in self._readers.named("list_accounts", which)]

    # ── care ─────────────────────────────────────────────────────────────────────────────────
    def prune(self, *, ended_before: int, limit: int) -> int:
        """In transactions that are short and leave room for others in between."""
        self._check_usable()
        values = {"ended_before": ended_before, "limit": limit}
        with self._readers.connection() as connection:
            rids = deque(rid for (rid,) in connection.execute(QUERIES["prunable"], values))
        pruned = 0
        while rids:
            pruned += self._prune_some(rids)
            time.sleep(PRUNE_PAUSE_SECONDS)
        with self._writer as connection:
            connection.execute(QUERIES["forget_uses"], (self._clock.now(),))
        return pruned

    def _prune_some(self, rids: deque[int]) -> int:
        """As many as fit into a short transaction, at least one."""
        pruned, stop = 0, time.monotonic() + PRUNE_SECONDS
        with self._writer as connection:
            while rids:
                pruned += care.delete_run(connection, rids.popleft())
                if time.monotonic() > stop:
                    break
        return pruned

    def heads(self) -> Iterator[tuple[str, int, int, bytes]]:
        self._check_usable()
        return care.heads(self._readers)

    def backup(self, target: str, progress: Callable[[int, int], None] | None = None) -> None:
        self._check_usable()
        care.backup(self._readers, os.path.realpath(target), progress)

    def stats(self) -> Mapping[str, int | str]:
        self._check_usable()
        return care.counts(self._readers)

    def close(self) -> None:
        """Workers that entered by this handle lose their proof of life. Closing again does nothing."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        forks.closed(self)
        self._liveness.close()
        self._readers.close()
        self._writer.close()

    # ── fork ─────────────────────────────────────────────────────────────────────────────────
    def rest(self, *, until: float) -> bool:
        """Before a fork: wait until no thread uses a connection, and keep it so."""
        if not self._writer.rest(until=until):
            return False
        if self._readers.rest(until=until):
            return True
        self._writer.go_on()
        return False

    def go_on(self) -> None:
        self._readers.go_on()
        self._writer.go_on()

    def abandon(self) -> None:
        """In the child of a fork: its copies of files and connections are closed, the parent's stay as they are."""
        self._liveness.close()
        self._readers.close()
        self._writer.abandon()


def _lease_until(now: int, lease_seconds: float) -> int:
    return now + round(lease_seconds * MICROSECONDS)


class _Refused(Exception):
    """Ends a transaction that is to leave no trace."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class _GuestFailed(Exception):
    """Carries what a guest raised past our own translation of errors."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _filled(fill: Callable[[sqlite3.Connection], Append], connection: sqlite3.Connection) -> Append:
    try:
        return fill(connection)
    except BaseException as error:
        raise _GuestFailed(error) from error

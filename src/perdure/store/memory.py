"""A store in this process's memory: the whole of the protocol, nothing of it survives.

It is for tests and for trying things out. Several workers may share one; `again()` gives them handles of their own,
so that each sees the others' commits as news; `kill()` takes a worker's proof of life away, as its death would.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from perdure.clock import MICROSECONDS, Clock, SystemClock
from perdure.codec.packing import position_of, told
from perdure.decisions import ApprovalEntry
from perdure.errors import HistoryCorruptError, StoreBusyError, StoreError
from perdure.gates.budget import Awaited, Movement, SharedAccount, Waiter, with_room
from perdure.history.spending import Share
from perdure.ledger.entry import LedgerEntry
from perdure.store import rules
from perdure.store.protocol import (
    DECISION_KIND,
    QUIET_KINDS,
    Append,
    ApprovalFilter,
    Blob,
    Change,
    Claim,
    Decide,
    Done,
    EffectFilter,
    Ended,
    Exists,
    Fenced,
    Filter,
    ForkPoint,
    Held,
    Letter,
    Mail,
    Missing,
    Moved,
    NewRun,
    Note,
    Outcome,
    Overdrawn,
    OverRate,
    Post,
    Row,
    RunInfo,
    Status,
    Stored,
    Wakes,
    Watch,
    WorkerInfo,
    Write,
)
from perdure.store.rules import Death


@dataclass(slots=True)
class _Letter:
    mail: Mail
    is_taken: bool = False


@dataclass(slots=True)
class _Run:
    """A run with all that belongs to it. `applied`: the id of the append that wrote each position."""

    info: RunInfo
    create_id: bytes
    wakes: Wakes
    claimed_length: int
    rows: list[Row]
    blobs: dict[bytes, bytes]
    applied: dict[int, bytes] = field(default_factory=dict[int, bytes])
    last_rowless: bytes = b""
    letters: dict[int, _Letter] = field(default_factory=dict[int, _Letter])
    letter_ids: set[bytes] = field(default_factory=set[bytes])
    watchers: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    ending: bytes = b""
    deaths: int = 0
    lone: int = 0
    lost_owner: str | None = None
    lost_how: str | None = None

    @property
    def length(self) -> int:
        return len(self.rows)

    @property
    def is_quiet(self) -> bool:
        """Nothing but starts and takeovers since it was claimed."""
        return QUIET_KINDS.issuperset(row.kind for row in self.rows[self.claimed_length :])

    @property
    def is_candidate(self) -> bool:
        return self.info.status is Status.RUNNING and self.is_quiet

    def waiting_kinds(self) -> set[str]:
        return {letter.mail.kind for letter in self.letters.values() if not letter.is_taken}

    def keep(self, blobs: Iterable[Blob]) -> None:
        for digest, data in blobs:
            self.blobs.setdefault(digest, data)


@dataclass(slots=True)
class _Post:
    post: Post
    taken_by: str | None = None
    taken_until: int = 0


class _Used(NamedTuple):
    bucket: str
    use_id: str
    at: int
    counts_until: int


@dataclass(slots=True)
class _Worker:
    info: WorkerInfo
    is_alive: bool = True


@dataclass(slots=True)
class _Shared:
    """What all handles see."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    runs: dict[int, _Run] = field(default_factory=dict[int, _Run])
    by_id: dict[str, int] = field(default_factory=dict[str, int])
    workers: dict[str, _Worker] = field(default_factory=dict[str, _Worker])
    effects: dict[str, LedgerEntry] = field(default_factory=dict[str, LedgerEntry])
    approvals: dict[str, ApprovalEntry] = field(default_factory=dict[str, ApprovalEntry])
    accounts: dict[Share, SharedAccount] = field(default_factory=dict[Share, SharedAccount])
    account_waits: dict[Share, dict[tuple[int, str], Awaited]] = field(
        default_factory=dict[Share, dict[tuple[int, str], Awaited]]
    )
    posts: dict[str, _Post] = field(default_factory=dict[str, "_Post"])
    notes: dict[tuple[str, str], Note] = field(default_factory=dict[tuple[str, str], Note])
    uses: dict[tuple[str, str], _Used] = field(default_factory=dict[tuple[str, str], "_Used"])
    pruned: dict[int, tuple[str, int, bytes]] = field(default_factory=dict[int, tuple[str, int, bytes]])
    next_rid: int = 1
    next_mail_id: int = 1
    commits: int = 0


LOOK_SECONDS = 0.05


class _Turn:
    """The one lock, as a handle takes it: patiently, until it hurries."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.hurries = False

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            if self.hurries:
                raise StoreBusyError("memory: another thread has been writing for too long; is it stopped?")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def is_free(self) -> bool:
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return True
        return False


class MemoryStore:
    """The protocol in memory."""

    def __init__(self, clock: Clock | None = None, *, _shared: _Shared | None = None) -> None:
        self._clock = clock or SystemClock()
        self._shared = _shared or _Shared()
        self._turn = _Turn(self._shared.lock)
        self._own_commits = 0
        self._entered = set[str]()
        self._seen_commits = self._shared.commits

    def again(self) -> MemoryStore:
        """Another handle on the same data, as another process would have it."""
        return MemoryStore(self._clock, _shared=self._shared)

    def kill(self, worker: str) -> None:
        """Drop the worker's proof of life, as its process's death would: whoever writes, it waits for nobody. The
        worker does not notice."""
        there = self._shared.workers.get(worker)
        if there is not None:
            there.is_alive = False

    @property
    def url(self) -> str:
        return ":memory:"

    # ── writing ──────────────────────────────────────────────────────────────────────────────
    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        for write in writes:
            rules.check_write(write)
        with self._turn:
            self._count_commit()
            return [self._write(write) for write in writes]

    def transact(self, intent: Append, fill: Callable[[Any], Append]) -> Outcome:
        with self._turn:
            run = self._shared.runs.get(intent.rid)
            if run is not None and run.applied.get(intent.expected_length) == intent.id:
                return Done(intent.rid, intent.expected_length + 1)
            refused = Missing() if run is None else self._judge(run, intent)
            if refused is not None:
                return refused
            append = fill(None)
            rules.check_write(append)
            self._count_commit()
            return self._append(append)

    def is_free(self) -> bool:
        return self._turn.is_free()

    @contextlib.contextmanager
    def hurried(self) -> Generator[None, None, None]:
        self._turn.hurries = True
        try:
            yield
        finally:
            self._turn.hurries = False

    def _count_commit(self) -> None:
        self._shared.commits += 1
        self._own_commits += 1

    def _write(self, write: Write) -> Outcome:
        match write:
            case NewRun():
                return self._start(write)
            case Append():
                return self._append(write)
            case Letter():
                return self._send(write)
            case Decide():
                return self._decide(write)

    def _named(self, run_id: str) -> _Run | None:
        rid = self._shared.by_id.get(run_id)
        return None if rid is None else self._shared.runs[rid]

    def _start(self, new: NewRun) -> Outcome:
        there = self._named(new.run_id)
        if there is None:
            return Done(self._create(new), new.length) if self._has_point(new.forked_from) else Missing()
        if there.create_id == new.id:
            return Done(there.info.rid, new.length)
        return Exists(there.info)

    def _has_point(self, point: ForkPoint | None) -> bool:
        run = None if point is None else self._shared.runs.get(point.rid)
        return point is None or (run is not None and run.length > point.seq)

    def _create(self, new: NewRun) -> int:
        rid = self._shared.next_rid
        self._shared.next_rid += 1
        owner = new.owner if new.owner in self._shared.workers else None
        now = self._clock.now()
        info = RunInfo(
            rid=rid,
            run_id=new.run_id,
            workflow=new.workflow,
            version=new.version,
            status=Status.QUEUED if new.owner is None else Status.RUNNING,
            reason=None,
            hint=None,
            owner=owner,
            epoch=0 if new.owner is None else 1,
            input_digest=new.input_digest,
            created_at=new.created_at,
            updated_at=now,
            due_at=new.due_at if new.owner is None else (None if owner else now),
            parent_run_id=new.parent_run_id,
            tags=dict(new.tags),
            chapter_seq=new.chapter_seq,
            waiting=None,
            state=None,
            lineage=new.lineage,
            forked_from=None if new.forked_from is None else new.forked_from.run_id,
            forked_seq=None if new.forked_from is None else new.forked_from.seq,
        )
        source = None if new.forked_from is None else self._shared.runs[new.forked_from.rid]
        copied = () if source is None else source.rows[: new.first_seq]
        run = _Run(info, new.id, rules.first_wakes(new), new.length, [*copied, *new.rows], {})
        run.keep(new.blobs if source is None else [*source.blobs.items(), *new.blobs])
        self._shared.runs[rid], self._shared.by_id[new.run_id] = run, rid
        return rid

    def _append(self, append: Append) -> Outcome:
        run = self._shared.runs.get(append.rid)
        refused = Missing() if run is None else self._judge(run, append)
        if run is None or refused is not None:
            return refused or Missing()
        self._apply(run, append)
        return Done(append.rid, run.length)

    def _judge(self, run: _Run, append: Append) -> Outcome | None:
        """Why the append is not to be applied (now, or any more), or None."""
        seen = run.applied.get(append.expected_length) if append.rows else run.last_rowless
        if seen == append.id:
            return Done(append.rid, append.expected_length + len(append.rows))
        if run.info.epoch != append.epoch:
            return Fenced(run.info.epoch)
        if run.info.status.is_final:
            return Ended(run.info.status)
        if run.length != append.expected_length:
            return Moved(run.length)
        return self._judge_others(append)

    def _judge_others(self, append: Append) -> Outcome | None:
        created = set[str]()
        for new in append.new_runs:
            there = self._named(new.run_id)
            if there is not None:
                return Exists(there.info)
            created.add(new.run_id)
        if not all(watch.run_id in created or watch.run_id in self._shared.by_id for watch in append.watches):
            return Missing()
        for entry in append.effects:
            holder = self._shared.effects.get(entry.operation_id)
            if holder is not None and holder.rid != entry.rid:
                return Held(holder)
        spent = self._spend(append)
        return self._judge_uses(append) or (spent if isinstance(spent, Overdrawn) else None)

    def _judge_uses(self, append: Append) -> OverRate | None:
        now, recorded = self._clock.now(), self._shared.uses
        for use, beside in rules.uses_beside(append.uses):
            others = [used for used in recorded.values() if used.bucket == use.bucket]
            counting = sorted(u.at for u in others if u.use_id != use.use_id and u.at > now - use.period)
            counting += [now for use_id in beside if (use.bucket, use_id) not in recorded]
            if len(counting) >= use.uses_max:
                return OverRate(use, counting[-use.uses_max] + use.period)
        return None

    def _spend(self, append: Append) -> dict[Share, SharedAccount] | Overdrawn:
        accounts = self._shared.accounts
        return rules.spend(append.spending, lambda account, since: accounts.get(Share(account, since)))

    def _see_to_waiting(self, append: Append, movement: Movement) -> None:
        """Of calls that wait until there is more in an account: note this one, or tell them all."""
        at = Share(movement.account, movement.since)
        waits = self._shared.account_waits
        if movement.waits:
            for earlier in [each for each in waits if each.account == at.account and each.since < at.since]:
                del waits[earlier]
            waits.setdefault(at, {})[append.rid, rules.call_that_waits(movement)] = movement.waits
            return
        self._tell_all(append, [rid for rid, _ in sorted(waits.pop(at, {}))], movement.tells)

    def _tell_of_room(self, append: Append, now: SharedAccount) -> None:
        """Those who wait for what is free now are told, each once; who is too late says again that it waits."""
        waits = self._shared.account_waits.get(Share(now.account, now.since), {})
        others = [Waiter(*whose, awaited) for whose, awaited in sorted(waits.items()) if whose[0] != append.rid]
        found = with_room(others, now)[: rules.WAITERS_TOLD_MAX]
        for each in found:
            del waits[each.rid, each.call]
        self._tell_all(append, [each.rid for each in found], rules.ROOM)

    def _tell_all(self, append: Append, rids: Iterable[int], body: bytes) -> None:
        for rid in dict.fromkeys(rids):
            waiting = self._shared.runs.get(rid)
            if rid != append.rid and waiting is not None and not waiting.info.status.is_final:
                letter_id = rules.raise_letter_id(append.id, rid)
                self._deliver(waiting, letter_id, "unblock", "", body, self._clock.now())

    def _apply(self, run: _Run, append: Append) -> None:
        if append.rows:
            run.applied[append.expected_length] = append.id
        else:
            run.last_rowless = append.id
        run.rows.extend(append.rows)
        run.keep(append.blobs)
        for mail_id in append.taken:
            if mail_id in run.letters:
                run.letters[mail_id].is_taken = True
        for new in append.new_runs:
            self._create(new)
        for watch in append.watches:
            self._watch(watch)
        for entry in append.effects:
            there_already = self._shared.effects.get(entry.operation_id, entry)
            self._shared.effects[entry.operation_id] = entry._replace(created_at=there_already.created_at)
        for asked in append.approvals:
            self._shared.approvals[asked.approval_id] = asked
        spent = self._spend(append)
        if not isinstance(spent, Overdrawn):
            self._shared.accounts |= spent
            for at in rules.freed(append.spending):
                self._tell_of_room(append, spent[at])
        for movement in append.spending:
            if movement.waits or movement.tells:
                self._see_to_waiting(append, movement)
        self._post(append.posts)
        for use in append.uses:
            used = _Used(use.bucket, use.use_id, self._clock.now(), self._clock.now() + use.period)
            self._shared.uses.setdefault((use.bucket, use.use_id), used)
        for note in append.notes:
            self._shared.notes[note.kind, note.key] = note
        if append.change is not None:
            self._change(run, append.change)
        for sent in append.letters:
            self._send(sent)

    def _watch(self, watch: Watch) -> None:
        watched = self._shared.runs[self._shared.by_id[watch.run_id]]
        watcher = (watch.watcher_rid, watch.key)
        if watched.info.status.is_final:
            self._tell(watched, *watcher)
        elif watcher not in watched.watchers:
            watched.watchers.append(watcher)

    def _change(self, run: _Run, change: Change) -> None:
        info = run.info._replace(updated_at=self._clock.now())
        if change.status is not None:
            info = info._replace(status=change.status, reason=change.reason, hint=change.hint)
        if change.waiting is not None:
            info = info._replace(waiting=change.waiting)
        if change.state is not None:
            info = info._replace(state=change.state)
        if change.chapter_seq is not None:
            info = info._replace(chapter_seq=change.chapter_seq)
        if change.version is not None:
            info = info._replace(version=change.version)
        run.info = info
        if change.ending is not None:
            self._end(run, change.ending)
        elif change.release:
            self._release(run, change)

    def _release(self, run: _Run, change: Change) -> None:
        if run.deaths and not run.is_quiet:
            run.deaths = run.lone = 0
        run.wakes = change.wakes
        due_at = change.due_at
        if rules.is_waking(change.wakes, run.waiting_kinds()):
            due_at = rules.earlier(due_at, self._clock.now())
        run.info = run.info._replace(owner=None, due_at=due_at)

    def _end(self, run: _Run, ending: bytes) -> None:
        run.info = run.info._replace(owner=None, due_at=None)
        run.ending = ending
        run.letters.clear()
        run.letter_ids.clear()
        for watcher_rid, key in run.watchers:
            self._tell(run, watcher_rid, key)
        run.watchers.clear()

    def _tell(self, ended: _Run, watcher_rid: int, key: str) -> None:
        watcher = self._shared.runs.get(watcher_rid)
        if watcher is not None and not watcher.info.status.is_final:
            letter_id = rules.ending_letter_id(ended.info.rid, key)
            self._deliver(watcher, letter_id, "child", key, ended.ending, self._clock.now())

    def _send(self, letter: Letter) -> Outcome:
        run = self._named(letter.run_id)
        if run is None:
            return Missing()
        if run.info.status.is_final:
            return Ended(run.info.status)
        self._deliver(run, letter.id, letter.kind, letter.key, letter.body, letter.sent_at, letter.by)
        return Done(run.info.rid)

    def _decide(self, given: Decide) -> Outcome:
        run = self._named(given.run_id)
        if run is None:
            return Missing()
        if run.info.status.is_final:
            return Ended(run.info.status)
        if given.id not in run.letter_ids:
            now, entry = self._clock.now(), self._shared.approvals.get(given.approval_id)
            lying = [x.mail for x in run.letters.values() if not x.is_taken]
            about = [(m.body, m.sent_at) for m in lying if (m.kind, m.key) == (DECISION_KIND, given.approval_id)]
            own = entry if entry is not None and entry.rid == run.info.rid else None
            refusal = rules.refused(given, own, about, now)
            if refusal is not None:
                return refusal
            self._deliver(run, given.id, DECISION_KIND, given.approval_id, given.body, now)
        return Done(run.info.rid)

    def _deliver(
        self, run: _Run, letter_id: bytes, kind: str, key: str, body: bytes, sent_at: int, by: str = ""
    ) -> None:
        if letter_id in run.letter_ids:
            return
        run.letter_ids.add(letter_id)
        mail = Mail(self._shared.next_mail_id, run.info.rid, kind, key, body, sent_at, by)
        self._shared.next_mail_id += 1
        run.letters[mail.mail_id] = _Letter(mail)
        if run.info.owner is None and rules.is_waking(run.wakes, (kind,)):
            run.info = run.info._replace(due_at=rules.earlier(run.info.due_at, self._clock.now()))

    # ── workers ──────────────────────────────────────────────────────────────────────────────
    def enter(self, worker: str, *, lease_seconds: float, workflows: Sequence[str]) -> None:
        with self._turn:
            there = self._shared.workers.get(worker)
            if there is not None and there.is_alive:
                raise StoreError(f"worker {worker} has entered already; give each worker a name of its own")
            self._count_commit()
            for run in self._owned(worker):
                run.lost_owner, run.lost_how = worker, "suspicion"
                self._bury(run, None)
            now = self._clock.now()
            info = WorkerInfo(worker, "memory", 0, now, _lease_until(now, lease_seconds), tuple(workflows))
            self._shared.workers[worker] = _Worker(info)
            self._entered.add(worker)

    def renew(self, worker: str, *, lease_seconds: float) -> bool:
        with self._turn:
            there = self._shared.workers.get(worker)
            if there is None:
                return False
            self._count_commit()
            there.info = there.info._replace(lease_until=_lease_until(self._clock.now(), lease_seconds))
            return True

    def give_back(self, worker: str, *, but: Mapping[int, int]) -> int:
        with self._turn:
            self._count_commit()
            now = self._clock.now()
            lost_track_of = [run for run in self._owned(worker) if but.get(run.info.rid) != run.info.epoch]
            for run in lost_track_of:
                run.info = run.info._replace(owner=None, due_at=now, updated_at=now)
            return len(lost_track_of)

    def leave(self, worker: str) -> None:
        with self._turn:
            self.give_back(worker, but={})
            self._free_posts(worker)
            self._shared.workers.pop(worker, None)
            self._entered.discard(worker)

    def workers(self) -> list[WorkerInfo]:
        with self._turn:
            infos = [worker.info for worker in self._shared.workers.values()]
        return sorted(infos, key=lambda info: (info.started_at, info.worker))

    def lost(self, me: str) -> list[tuple[str, bool]]:
        with self._turn:
            now = self._clock.now()
            others = [worker for worker in self._shared.workers.values() if worker.info.worker != me]
            return [
                (worker.info.worker, not worker.is_alive)
                for worker in others
                if not worker.is_alive or worker.info.lease_until < now
            ]

    def take_over(self, dead: str, *, proven: bool, retry_after: Sequence[float]) -> int:
        with self._turn:
            there = self._shared.workers.get(dead)
            if there is None or (proven and there.is_alive):
                return 0
            self._count_commit()
            lost = self._owned(dead)
            suspects = [run for run in lost if run.is_candidate]
            for run in lost:
                run.lost_owner, run.lost_how = dead, "proof" if proven else "suspicion"
                self._bury(run, _death(run, suspects, retry_after) if proven else None)
            if proven:
                self._free_posts(dead)
            del self._shared.workers[dead]
            return len(lost)

    def _bury(self, run: _Run, death: Death | None) -> None:
        """Free a run of a lost worker; `death` is None on mere suspicion, which counts nothing."""
        now = self._clock.now()
        info = run.info._replace(owner=None, epoch=run.info.epoch + 1, due_at=now, updated_at=now)
        if death is not None:
            run.deaths, run.lone = death.deaths, death.lone
            info = info._replace(due_at=now + round(death.delay_seconds * MICROSECONDS))
        if death is not None and death.is_looping:
            run.wakes = Wakes.CONTROL
            info = info._replace(
                status=Status.BLOCKED, reason=rules.CRASH_LOOP, hint=rules.CRASH_LOOP_HINT, due_at=None
            )
        run.info = info

    def _owned(self, worker: str) -> list[_Run]:
        return [run for run in self._shared.runs.values() if run.info.owner == worker]

    def claim(
        self,
        worker: str,
        *,
        now: int,
        limit: int,
        known: frozenset[tuple[str, int]],
        only: frozenset[str] | None = None,
    ) -> list[Claim]:
        with self._turn:
            if worker not in self._shared.workers:
                return []
            claims = list[Claim]()
            for run in self._due(now, known, only):
                if len(claims) == limit:
                    break
                if run.deaths < 2 or not self._has_suspect(worker):
                    claims.append(self._claim(run, worker))
            if claims:
                self._count_commit()
            return claims

    def _due(self, now: int, known: frozenset[tuple[str, int]], only: frozenset[str] | None) -> list[_Run]:
        due = [
            (run.info.due_at, rid, run)
            for rid, run in self._claimable(known)
            if run.info.due_at is not None and run.info.due_at <= now and (only is None or run.info.run_id in only)
        ]
        return [run for _, _, run in sorted(due, key=lambda entry: entry[:2])]

    def _claimable(self, known: frozenset[tuple[str, int]]) -> Iterator[tuple[int, _Run]]:
        for rid, run in self._shared.runs.items():
            if run.info.owner is None and (run.info.workflow, run.info.version) in known:
                yield rid, run

    def _has_suspect(self, worker: str) -> bool:
        return any(run.deaths >= 2 and run.is_quiet for run in self._owned(worker))

    def _claim(self, run: _Run, worker: str) -> Claim:
        status = Status.RUNNING if run.info.status is Status.QUEUED else run.info.status
        run.info = run.info._replace(
            owner=worker, epoch=run.info.epoch + 1, due_at=None, status=status, updated_at=self._clock.now()
        )
        run.claimed_length = run.length
        claim = Claim(run.info, run.lost_owner, run.lost_how, run.deaths, run.lone)
        run.lost_owner = run.lost_how = None
        return claim

    def next_due(self, *, known: frozenset[tuple[str, int]], only: frozenset[str] | None = None) -> int | None:
        with self._turn:
            infos = [run.info for _, run in self._claimable(known) if only is None or run.info.run_id in only]
            return min((info.due_at for info in infos if info.due_at is not None), default=None)

    # ── reading ──────────────────────────────────────────────────────────────────────────────
    def changed(self) -> bool:
        with self._turn:
            others = self._shared.commits - self._own_commits
            news, self._seen_commits = others != self._seen_commits, others
            return news

    def find(self, run_id: str) -> RunInfo | None:
        with self._turn:
            run = self._named(run_id)
            return None if run is None else run.info

    def _run(self, rid: int) -> _Run:
        run = self._shared.runs.get(rid)
        if run is None:
            raise HistoryCorruptError(f"memory: there is no run with number {rid}")
        return run

    def load(self, rid: int, *, from_seq: int | None = None) -> Stored:
        with self._turn:
            run = self._run(rid)
            first = run.info.chapter_seq if from_seq is None else from_seq
            return Stored(run.info, run.length, run.rows[-1].hash if run.rows else b"", tuple(run.rows[first:]))

    def last_row(self, rid: int) -> Row:
        with self._turn:
            rows = self._run(rid).rows
            if not rows:
                raise HistoryCorruptError(f"memory: run number {rid} has no events")
            return rows[-1]

    def blob(self, rid: int, address: bytes) -> bytes:
        position = position_of(address)
        with self._turn:
            run = self._run(rid)
            if position is None:
                data = run.blobs.get(address)
            else:
                data = next((row.output for row in run.rows[position : position + 1]), None)
            if data is None:
                raise HistoryCorruptError(f"memory: run number {rid} has no {told(address)}")
            return data

    def mail(self, rids: Sequence[int] | None = None, *, owner: str | None = None) -> list[Mail]:
        with self._turn:
            runs = self._owned(owner) if owner is not None else self._shared.runs.values()
            chosen = [run for run in runs if rids is None or run.info.rid in rids]
            waiting = [letter.mail for run in chosen for letter in run.letters.values() if not letter.is_taken]
            return sorted(waiting)

    def unserved(
        self, *, served: frozenset[tuple[str, int]], due_before: int, oldest_served: bool = False
    ) -> list[RunInfo]:
        with self._turn:
            infos = [run.info for run in self._shared.runs.values() if run.info.owner is None]
        due = sorted(
            ((info.due_at, info.rid, info) for info in infos if info.due_at is not None and info.due_at < due_before),
            reverse=True,
        )
        oldest = {(info.workflow, info.version): info for *_, info in due}
        found = [info for *_, info in due if (info.workflow, info.version) not in served]
        return found + [info for kind, info in oldest.items() if oldest_served and kind in served]

    def runs(self, which: Filter) -> list[RunInfo]:
        with self._turn:
            newest_first = sorted(self._shared.runs, reverse=True)
            infos = (self._shared.runs[rid].info for rid in newest_first)
            return [info for info in infos if _fits(info, which)][: which.limit]

    def effect(self, operation_id: str) -> LedgerEntry | None:
        with self._turn:
            return self._shared.effects.get(operation_id)

    def effects(self, which: EffectFilter) -> list[LedgerEntry]:
        with self._turn:
            newest_first = reversed(self._shared.effects.values())
            return [entry for entry in newest_first if _is_wanted(entry, which)][: which.limit]

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        with self._turn:
            return self._shared.approvals.get(approval_id)

    def approvals(self, which: ApprovalFilter) -> list[ApprovalEntry]:
        with self._turn:
            newest_first = reversed(self._shared.approvals.values())
            return [entry for entry in newest_first if _is_wanted_approval(entry, which)][: which.limit]

    # ── the outbox ───────────────────────────────────────────────────────────────────────────
    def post(self, posts: Sequence[Post]) -> int:
        with self._turn:
            return self._post(posts)

    def _post(self, posts: Sequence[Post]) -> int:
        before = len(self._shared.posts)
        for post in posts:
            number = len(self._shared.posts) + 1
            self._shared.posts.setdefault(post.post_id, _Post(post._replace(number=number)))
        return len(self._shared.posts) - before

    def take_posts(self, worker: str, *, topics: Collection[str], now: int, until: int, limit: int) -> list[Post]:
        with self._turn:
            taken = [held for held in self._in_order() if held.post.topic in topics and self._is_due(held, now)]
            for held in taken[:limit]:
                held.taken_by, held.taken_until = worker, until
            if taken:
                self._count_commit()
            return [held.post for held in taken[:limit]]

    def _in_order(self) -> list[_Post]:
        return sorted(self._shared.posts.values(), key=lambda held: held.post.number)

    def _is_due(self, held: _Post, now: int) -> bool:
        post = held.post
        if post.status != "waiting" or post.next_at > now or (held.taken_by is not None and held.taken_until > now):
            return False
        return not any(
            (other.post.topic, other.post.key) == (post.topic, post.key)
            and other.post.number < post.number
            and other.post.status != "sent"
            for other in self._shared.posts.values()
        )

    def settle_post(self, worker: str, post: Post) -> bool:
        with self._turn:
            held = self._shared.posts.get(post.post_id)
            if held is None or held.taken_by != worker:
                return False
            held.post, held.taken_by, held.taken_until = post, None, 0
            self._count_commit()
            return True

    def revive_post(self, post_id: str, *, now: int) -> bool:
        with self._turn:
            held = self._shared.posts.get(post_id)
            if held is None or held.post.status != "dead":
                return False
            held.post = held.post._replace(status="waiting", attempts=0, next_at=now)
            held.taken_by = None
            self._count_commit()
            return True

    def posts(self, *, topic: str | None = None, status: str | None = None, limit: int = 100) -> list[Post]:
        with self._turn:
            found = [held.post for held in self._in_order()]
        return [p for p in found if topic in {None, p.topic} and status in {None, p.status}][:limit]

    def _free_posts(self, worker: str) -> None:
        for held in self._shared.posts.values():
            if held.taken_by == worker:
                held.taken_by = None

    # ── notes ────────────────────────────────────────────────────────────────────────────────
    def keep(self, note: Note) -> None:
        with self._turn:
            self._count_commit()
            self._shared.notes[note.kind, note.key] = note

    def move_note(self, kind: str, key: str, to: Note) -> bool:
        with self._turn:
            if self._shared.notes.pop((kind, key), None) is None:
                return False
            self._count_commit()
            self._shared.notes[to.kind, to.key] = to
            return True

    def notes(self, kind: str, key: str | None = None) -> list[Note]:
        with self._turn:
            found = [note for note in self._shared.notes.values() if note.kind == kind and key in {None, note.key}]
        return sorted(found, key=lambda note: (-note.at, note.key))

    # ── what many runs spend together ────────────────────────────────────────────────────────
    def accounts(self, account: str | None = None, since: int | None = None) -> list[SharedAccount]:
        with self._turn:
            every = self._shared.accounts.values()
            found = [each for each in every if account in {None, each.account} and since in {None, each.since}]
        return sorted(found, key=lambda each: (each.account, -each.since))

    # ── care ─────────────────────────────────────────────────────────────────────────────────
    def prune(self, *, ended_before: int, limit: int) -> int:
        with self._turn:
            needed = self._needed_by_forks()
            old = [
                run for run in self._shared.runs.values()
                if run.info.rid not in needed and self._is_prunable(run, ended_before)
            ]  # fmt: skip
            chosen = sorted(old, key=lambda run: (run.info.updated_at, run.info.rid))[:limit]
            for run in chosen:
                head = run.rows[-1].hash if run.rows else b""
                self._shared.pruned[run.info.rid] = (run.info.run_id, run.length, head)
                del self._shared.runs[run.info.rid], self._shared.by_id[run.info.run_id]
                self._forget_rows(run.info.rid)
            if chosen:
                self._count_commit()
            uses, now = self._shared.uses, self._clock.now()
            self._shared.uses = {key: used for key, used in uses.items() if used.counts_until > now}
            return len(chosen)

    def _needed_by_forks(self) -> set[int]:
        """What forks that still run descend from, with its children."""
        infos = [run.info for run in self._shared.runs.values()]
        needed = {rid for info in infos if not info.status.is_final for rid in info.lineage}
        left = [info.run_id for info in infos if info.rid in needed]
        while left:
            parent = left.pop()
            children = [info for info in infos if info.parent_run_id == parent and info.rid not in needed]
            needed.update(child.rid for child in children)
            left += [child.run_id for child in children]
        return needed

    def _forget_rows(self, rid: int) -> None:
        effects = self._shared.effects
        for entry in [entry for entry in effects.values() if entry.rid == rid and entry.scope == "run"]:
            del effects[entry.operation_id]
        approvals = self._shared.approvals
        for asked in [asked for asked in approvals.values() if asked.rid == rid]:
            del approvals[asked.approval_id]

    def _is_prunable(self, run: _Run, ended_before: int) -> bool:
        if not run.info.status.is_final or run.info.updated_at >= ended_before:
            return False
        posts = self._shared.posts.values()
        if any(held.post.rid == run.info.rid and held.post.status != "sent" for held in posts):
            return False
        return all(above.info.status.is_final for above in self._ancestors(run))

    def _ancestors(self, run: _Run) -> Iterator[_Run]:
        """By name: where an id was used again after pruning they may come round in a circle."""
        seen, parent_run_id = set[str](), run.info.parent_run_id
        while parent_run_id is not None and parent_run_id not in seen:
            seen.add(parent_run_id)
            parent = self._named(parent_run_id)
            if parent is None:
                return
            yield parent
            parent_run_id = parent.info.parent_run_id

    def heads(self) -> Iterator[tuple[str, int, int, bytes]]:
        with self._turn:
            heads = {rid: (run_id, rid, length, head) for rid, (run_id, length, head) in self._shared.pruned.items()}
            for rid, run in self._shared.runs.items():
                heads[rid] = (run.info.run_id, rid, run.length, run.rows[-1].hash if run.rows else b"")
        return (heads[rid] for rid in sorted(heads))

    def backup(self, target: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Write what there is to `target` as JSON lines, one per run: to look at, nothing reads it back."""
        if Path(target).exists():
            raise StoreError(f"{target}: there is something already; name another file for the backup")
        with self._turn:
            lines = [json.dumps(stored, default=str) for stored in map(self.load, sorted(self._shared.runs))]
        Path(target).write_text("".join(f"{line}\n" for line in lines))
        if progress is not None:
            progress(len(lines), len(lines))

    def stats(self) -> Mapping[str, int | str]:
        with self._turn:
            runs = list(self._shared.runs.values())
            by_status = {f"runs_{status}": sum(run.info.status is status for run in runs) for status in Status}
            return {
                **by_status,
                "runs": len(runs),
                "runs_pruned": len(self._shared.pruned),
                "events": sum(run.length for run in runs),
                "blobs": sum(len(run.blobs) for run in runs),
                "letters": sum(not letter.is_taken for run in runs for letter in run.letters.values()),
                "effects": len(self._shared.effects),
                "approvals": len(self._shared.approvals),
                "workers": len(self._shared.workers),
                "bytes": sum(_size(run) for run in runs),
                "schema_version": 0,
            }

    def close(self) -> None:
        """The workers that entered by this handle lose their proof of life, as when their process ends."""
        for worker in self._entered:
            self.kill(worker)


def _lease_until(now: int, lease_seconds: float) -> int:
    return now + round(lease_seconds * MICROSECONDS)


def _death(run: _Run, suspects: Sequence[_Run], retry_after: Sequence[float]) -> Death:
    if not run.is_candidate:
        return rules.INNOCENT
    return rules.count_death(run.deaths, run.lone, is_alone=len(suspects) == 1, retry_after=retry_after)


def _fits(info: RunInfo, which: Filter) -> bool:
    return (
        (which.workflow is None or info.workflow == which.workflow)
        and (which.status is None or info.status in which.status)
        and which.tags.items() <= info.tags.items()
        and (which.created_from is None or info.created_at >= which.created_from)
        and (which.created_until is None or info.created_at < which.created_until)
        and (which.parent_run_id is None or info.parent_run_id == which.parent_run_id)
        and (which.owner is None or info.owner == which.owner)
        and (which.before_rid is None or info.rid < which.before_rid)
    )


def _size(run: _Run) -> int:
    payloads = (len(part) for row in run.rows for part in (row.envelope, row.input, row.output) if part is not None)
    return sum(payloads) + sum(map(len, run.blobs.values()))


def _is_wanted_approval(entry: ApprovalEntry, which: ApprovalFilter) -> bool:
    return (
        which.rid in {None, entry.rid}
        and which.kind in {None, entry.kind}
        and (which.status is None or entry.status in which.status)
        and (which.before is None or entry.asked_at < which.before)
    )


def _is_wanted(entry: LedgerEntry, which: EffectFilter) -> bool:
    return (
        which.rid in {None, entry.rid}
        and which.action_name in {None, entry.action_name}
        and which.business_key in {None, entry.business_key}
        and (which.status is None or entry.status in which.status)
        and (which.before is None or entry.created_at < which.before)
    )

"""What perdure asks of a store, whichever database stands behind it.

A store keeps runs, their events, their mailboxes, their blobs and the workers that own them. Every method is one
transaction, blocks until it is durable or has failed, and may be called from any thread. No method interprets an
event: what is in a history is decided by `perdure.engine`, what it looks like by `perdure.history`.

Words. `rid`: the store's own number of a run; never used again, so that a run id used a second time gets nothing of
the old run. `length`: how many events a run has; their positions `seq` are dense from 0. `epoch`: the fencing number
of a run; it grows whenever the run gets another owner, and every append names the epoch it was made under. `due_at`:
when a run that nobody owns wants a worker (None: only when mail comes).
Times are microseconds since the epoch, UTC. Digests are 32 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from perdure.decisions import ApprovalEntry, ApprovalState
from perdure.gates.budget import Movement, SharedAccount
from perdure.history.spending import Shortfall
from perdure.ledger.entry import LedgerEntry
from perdure.ledger.states import EffectState


class Status(StrEnum):
    """Where a run stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL

    @property
    def ended(self) -> str:
        """Of a final one, how a sentence goes on that begins with the run: "was cancelled"."""
        return f"was {self}" if self is Status.CANCELLED else f"has {self}"


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
UNFINISHED = frozenset(Status) - FINAL


class Wakes(StrEnum):
    """What kind of mail makes an unowned run due: any, only control (cancel, pause, resume, unblock), or none."""

    MAIL = "mail"
    CONTROL = "control"
    NOTHING = "nothing"


class Row(msgspec.Struct, frozen=True, gc=False):
    """One event as stored. `input` and `output` are payloads kept outside the envelope, which holds their digests:
    None where there is no such payload or where it is a blob."""

    seq: int
    at: int
    kind: str
    envelope: bytes
    input: bytes | None
    output: bytes | None
    hash: bytes


NO_TAGS: Mapping[str, str] = MappingProxyType({})

Blob = tuple[bytes, bytes]
"""(digest, data). Blobs belong to one run; the same digest again is not an error and not stored twice."""


FIRST_EPOCH = 1
"""The epoch of a run that is created for a worker."""


class ForkPoint(NamedTuple):
    """A run's first events, up to `seq` and with it: what a fork of it begins with."""

    rid: int
    run_id: str
    seq: int


class NewRun(NamedTuple):
    """A run to be created with its first events.

    With `forked_from` these follow copies of another run's, with its blobs, and `Missing` is the answer if that run is
    not there or has no such event. `lineage`: the runs that this one descends from by forking, the nearest first.

    If `owner` is given it is claimed for that worker at once (epoch 1); has that worker been declared dead meanwhile,
    the run is nobody's and due at once, and its creator is fenced as soon as another claims it. Without an owner it is
    due at `due_at`: control letters hasten that, messages do not; without a `due_at` its first letter makes it due.
    Sent again under the same `id` it is created once; pruned, it is forgotten.
    """

    id: bytes
    run_id: str
    workflow: str
    version: int
    input_digest: bytes
    created_at: int
    rows: tuple[Row, ...]
    blobs: tuple[Blob, ...] = ()
    tags: Mapping[str, str] = NO_TAGS
    parent_run_id: str | None = None
    owner: str | None = None
    due_at: int | None = None
    forked_from: ForkPoint | None = None
    lineage: tuple[int, ...] = ()
    chapter_seq: int = 0

    @property
    def first_seq(self) -> int:
        """Where its own rows begin."""
        return 0 if self.forked_from is None else self.forked_from.seq + 1

    @property
    def length(self) -> int:
        """How many events it begins with."""
        return self.first_seq + len(self.rows)


class Watch(msgspec.Struct, frozen=True):
    """Tell `watcher_rid` when run `run_id` ends, by a `child` letter whose key is `key`; at once if it has ended.

    The letter's body is the `ending` of the watched run. A watcher that has ended itself is not told.
    """

    run_id: str
    watcher_rid: int
    key: str


class Change(NamedTuple):
    """What an append changes in the run's index row. None leaves a field as it is; but a `status` brings its `reason`
    and `hint` with it, None included.

    `release` gives the run up: nobody owns it, it is due at `due_at`, and at once if mail that wakes it is there.
    `ending` is the letter that watchers of the run get (its outcome); given exactly when `status` is final. A run that
    has ended is nobody's and never due; its mailbox is emptied. `version`: the run is one of that version from now on,
    and workers find it as such.
    """

    status: Status | None = None
    reason: str | None = None
    hint: str | None = None
    waiting: bytes | None = None
    state: bytes | None = None
    chapter_seq: int | None = None
    release: bool = False
    due_at: int | None = None
    wakes: Wakes = Wakes.MAIL
    ending: bytes | None = None
    version: int | None = None


class Post(NamedTuple):
    """A message of the outbox, on its way to the handler of its topic.

    `post_id` is the id of the operation that posted it, and its place among what that posted (`<operation>:0`).
    Messages of one topic and key are delivered in the order of `number`, each after the one before it was sent; a dead
    one holds up what follows. `status`: waiting (until `next_at` at least), sent, dead. Times in microseconds.
    """

    post_id: str
    rid: int
    topic: str
    key: str
    payload: bytes
    created_at: int
    status: str = "waiting"
    attempts: int = 0
    next_at: int = 0
    error: str = ""
    number: int = 0


class Use(NamedTuple):
    """That something counts against a rate: at most `uses_max` in any `period` (microseconds, by the store's clock) of
    the same `bucket`. One that has the `use_id` of another is the same use again, and counts once."""

    bucket: str
    use_id: str
    uses_max: int
    period: int


class Append(msgspec.Struct, frozen=True, gc=False):
    """Add rows to a run's history: all or nothing, if the run still has `expected_length` events and `epoch`.

    Sent again under the same `id` (after a commit whose outcome is unknown) it is applied once and answers the same.
    `taken` are ids of letters that entered the history with it. `new_runs`, `watches` and `letters` belong to the same
    transaction; if a new run's id exists already the whole append is refused with `Exists`, if there is no run to watch
    with `Missing`. A letter of an append whose addressee has ended, or does not exist, is dropped. `effects` are rows
    of the ledger, new or in place of the row of the same operation id; if one of them belongs to another run the whole
    append is refused with `Held`. `approvals` are rows of requests to people, new or in place of the row of the same
    id. `posts` are messages for the outbox; one whose id is there already changes nothing. `uses` count against rates;
    if one of those is used up the whole append is refused with `OverRate`. `notes` are kept with it. `spending` changes
    accounts that many runs share, in the order given; if one of these movements is refused by `gates.budget.moved` the
    whole append is, with `Overdrawn`. A movement that raises an account tells the runs that wait for it, once each; one
    that leaves room those for whose calls there is enough by then, in the order of `rid`, at most a hundred.

    Judged in this order: Missing, the same append again, Fenced, Ended, Moved, Exists, Held, OverRate, Overdrawn. A
    plain append (rows and blobs alone) does not touch the index row, so `updated_at` stands still.
    """

    id: bytes
    rid: int
    epoch: int
    expected_length: int
    rows: tuple[Row, ...] = ()
    blobs: tuple[Blob, ...] = ()
    change: Change | None = None
    taken: tuple[int, ...] = ()
    new_runs: tuple[NewRun, ...] = ()
    watches: tuple[Watch, ...] = ()
    letters: tuple[Letter, ...] = ()
    effects: tuple[LedgerEntry, ...] = ()
    posts: tuple[Post, ...] = ()
    approvals: tuple[ApprovalEntry, ...] = ()
    uses: tuple[Use, ...] = ()
    notes: tuple[Note, ...] = ()
    spending: tuple[Movement, ...] = ()


class Letter(NamedTuple):
    """Something sent to a run by whoever does not own it. `kind` is `message`, `child` or one of `CONTROL_KINDS`. `by`:
    who says to have sent a message; the other kinds say that in their body.

    Sent again under the same `id` while the run lives, it is delivered once. Refused with `Ended` after the run's end.
    """

    id: bytes
    run_id: str
    kind: str
    key: str
    body: bytes
    sent_at: int
    by: str = ""

    @property
    def is_control(self) -> bool:
        return self.kind in CONTROL_KINDS


CONTROL_KINDS = frozenset({"cancel", "pause", "resume", "unblock"})
DECISION_KIND = "decide"


class Decide(NamedTuple):
    """What a person decides about a request of a run: a letter of kind `decide` whose key is the request's id and whose
    `body` a `decisions.Decision`, delivered only if it counts.

    Whether it counts is judged in the same transaction by `decisions.decide`, from the request's row and from the
    decisions that lie in the mailbox already, by the store's clock: of several who decide at once, those who are too
    late are refused with `Refused`, and so is a decision about a request that the run does not have. Unless it
    `may_be_early`: then it is delivered all the same, and counts if that is asked later.
    """

    id: bytes
    run_id: str
    approval_id: str
    body: bytes
    may_be_early: bool = False


Write = NewRun | Append | Letter | Decide


class Done(msgspec.Struct, frozen=True, gc=False):
    """The write is durable. `rid` of the run it went to; `length` its length afterwards (of appends and new runs)."""

    rid: int
    length: int = 0


class Exists(msgspec.Struct, frozen=True):
    """A new run's id is taken; `run` is who has it."""

    run: RunInfo


class Held(msgspec.Struct, frozen=True):
    """The operation is another run's; `entry` is its row. So only with ids that are the same in several runs."""

    entry: LedgerEntry


class OverRate(msgspec.Struct, frozen=True):
    """The rate of `use` is used up; `free_at` is when there is room again, unless others are faster."""

    use: Use
    free_at: int


class Overdrawn(NamedTuple):
    """There is too little left in an account that many runs share: nothing of the append is written. `call`: whose
    movement it is."""

    short: Shortfall
    call: tuple[str, int]


class Moved(msgspec.Struct, frozen=True):
    """The run has another length than expected: somebody appended first, or this is a bug."""

    length: int


class Fenced(msgspec.Struct, frozen=True):
    """The run has a newer epoch: its owner is another worker now (or nobody)."""

    epoch: int


class Ended(msgspec.Struct, frozen=True):
    """The run has ended and takes nothing any more."""

    status: Status


class Missing(msgspec.Struct, frozen=True):
    """There is no such run."""


class Refused(NamedTuple):
    """The decision changes nothing; `why` and `told` are those of `decisions.Refusal`, or `unknown`."""

    why: str
    told: str


Outcome = Done | Exists | Held | OverRate | Overdrawn | Moved | Fenced | Ended | Missing | Refused


class RunInfo(NamedTuple):
    """A run's index row. `forked_from` and `forked_seq`: the run, and the event of it, where this one began."""

    rid: int
    run_id: str
    workflow: str
    version: int
    status: Status
    reason: str | None
    hint: str | None
    owner: str | None
    epoch: int
    input_digest: bytes
    created_at: int
    updated_at: int
    due_at: int | None
    parent_run_id: str | None
    tags: Mapping[str, str]
    chapter_seq: int
    waiting: bytes | None
    state: bytes | None
    lineage: tuple[int, ...] = ()
    forked_from: str | None = None
    forked_seq: int | None = None


class Claim(msgspec.Struct, frozen=True):
    """A run that this worker owns from now on. `lost_owner`, `lost_how` (`proof` or `suspicion`): who had it before,
    when it was taken over. `deaths`: how often its owner died without its making progress; `lone`: how many of those
    deaths it died alone (see `take_over`)."""

    info: RunInfo
    lost_owner: str | None
    lost_how: str | None
    deaths: int
    lone: int


class Stored(NamedTuple):
    """What `load` gives: the index row, the length, the hash of the last event, and the rows asked for."""

    info: RunInfo
    length: int
    head: bytes
    rows: Sequence[Row]


class Mail(NamedTuple):
    """A letter as it lies in the store, oldest first by `mail_id`."""

    mail_id: int
    rid: int
    kind: str
    key: str
    body: bytes
    sent_at: int
    by: str = ""


class Filter(NamedTuple):
    """Which runs `runs()` lists, newest first. Every field narrows; `before_rid` pages on."""

    workflow: str | None = None
    status: frozenset[Status] | None = None
    tags: Mapping[str, str] = NO_TAGS
    created_from: int | None = None
    created_until: int | None = None
    parent_run_id: str | None = None
    owner: str | None = None
    before_rid: int | None = None
    limit: int = 100


class EffectFilter(NamedTuple):
    """Which rows of the ledger `effects()` lists, the newest first. Every field narrows. `before`: a `created_at`."""

    rid: int | None = None
    action_name: str | None = None
    business_key: str | None = None
    status: frozenset[EffectState] | None = None
    before: int | None = None
    limit: int = 100


class Note(NamedTuple):
    """Something small that is to be known beside the runs, such as a drill that was passed. A later note of the same
    `kind` and `key` takes its place. `at`: microseconds since the epoch, by whoever wrote it."""

    kind: str
    key: str
    body: bytes
    at: int


class ApprovalFilter(NamedTuple):
    """Which requests `approvals()` lists, the newest first. Every field narrows. `before`: an `asked_at`."""

    rid: int | None = None
    kind: str | None = None
    status: frozenset[ApprovalState] | None = None
    before: int | None = None
    limit: int = 100


class WorkerInfo(NamedTuple):
    """A worker's row. `lease_until` by the store's clock."""

    worker: str
    host: str
    pid: int
    started_at: int
    lease_until: int
    workflows: tuple[str, ...]


class Store(Protocol):
    """A durable store. `StoreConformance` in `perdure.testing` is the suite that every implementation passes."""

    @property
    def url(self) -> str: ...

    # ── writing ──────────────────────────────────────────────────────────────────────────────
    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        """Commit many writes of many runs in one durable transaction; each decides for itself.

        A write that is refused (Exists, Moved, Fenced, Ended, Missing) leaves no trace and harms no other. When the
        transaction as a whole fails, each write is tried alone; what then fails raises a StoreError for all whose
        outcome is unknown, and none of them may be assumed undone: send the same writes again.
        """
        ...

    def transact(self, intent: Append, fill: Callable[[Any], Append]) -> Outcome:
        """Apply an append together with what its maker writes into the same database: both or neither.

        `fill` gets the database's own connection, inside the transaction (None where there is no database), and gives
        the append, of one event, under the id, run, epoch and expected length of `intent`. It is not called when that
        was applied already, or would be refused. What it raises comes out, and nothing is written. StoreError: the
        outcome is unknown, send it again.
        """
        ...

    def is_free(self) -> bool:
        """Whether a commit could begin at once, without queueing behind another thread or process."""
        ...

    def hurried(self) -> AbstractContextManager[None]:
        """Whoever has this handle is about to leave: while this lasts, what waits for other writers, since earlier or
        from now on, soon gives up with StoreBusyError."""
        ...

    # ── workers ──────────────────────────────────────────────────────────────────────────────
    def enter(self, worker: str, *, lease_seconds: float, workflows: Sequence[str]) -> None:
        """Register this process's worker, with a proof of life that the operating system drops when it dies.

        StoreError if a live worker has that name. Runs of a dead one that had it are freed, as on suspicion; so that
        deaths are counted, a process takes a name that was never used.
        """
        ...

    def renew(self, worker: str, *, lease_seconds: float) -> bool:
        """Extend the lease. False: the worker was declared dead; it owns nothing any more and has to `enter` anew."""
        ...

    def give_back(self, worker: str, *, but: Mapping[int, int]) -> int:
        """Free the runs that the worker owns, due at once, except those that it holds under the epoch that they have
        (`but`:
        rid to epoch); returns how many. For a worker that may own what it does not hold: a claim whose answer was lost
        is still a claim."""
        ...

    def leave(self, worker: str) -> None:
        """Give up: every run that the worker still owns is free and due at once; the worker's row is gone."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """Who has entered, the longest there first."""
        ...

    def lost(self, me: str) -> list[tuple[str, bool]]:
        """Workers other than `me` that are dead by proof (True: their lock is dropped) or by suspicion (False: their
        lease has run out). Cheap enough to be asked every few milliseconds."""
        ...

    def take_over(self, dead: str, *, proven: bool, retry_after: Sequence[float]) -> int:
        """Free all runs of a lost worker: owner none, epoch + 1, due at once; returns how many. Its row is gone. With
        `proven` nothing happens if its proof of life stands.

        Counts deaths, in the same transaction, if `proven`: a *candidate* is a run of the dead worker that is
        `running` and to whose history nothing but starts and takeovers (kinds in QUIET_KINDS) was added since it was
        claimed. A candidate's `deaths` grows by one, and so does its `lone` if it is the only candidate; it is due
        after `retry_after[min(deaths, len) - 1]` seconds. Other runs' `deaths` and `lone` go to 0. When `lone`
        reaches `len(retry_after)` the run is blocked as `crash_loop` instead of being freed for the next try.
        """
        ...

    def claim(
        self,
        worker: str,
        *,
        now: int,
        limit: int,
        known: frozenset[tuple[str, int]],
        only: frozenset[str] | None = None,
    ) -> list[Claim]:
        """Take up to `limit` due, unowned runs whose (workflow, version) is `known` (and whose id is in `only`), oldest
        due first: owner = worker, epoch + 1, claimed length noted. Status `queued` becomes `running`. A worker that has
        not entered, or was declared dead, gets none.

        Runs with deaths >= 2 are taken one at a time: a worker may own at most one such run that has made no progress
        since. A release after progress sets `deaths` and `lone` to 0.
        """
        ...

    def next_due(self, *, known: frozenset[tuple[str, int]], only: frozenset[str] | None = None) -> int | None:
        """The earliest `due_at` of an unowned run that `claim` could take, or None."""
        ...

    # ── reading (never blocked by a writer, never blocking one) ──────────────────────────────
    def changed(self) -> bool:
        """Whether anybody else (another process, another handle) committed since the last call. A cheap probe.

        What was there when the handle was opened is no news.
        """
        ...

    def find(self, run_id: str) -> RunInfo | None:
        """The newest run with this id."""
        ...

    def load(self, rid: int, *, from_seq: int | None = None) -> Stored:
        """The run's rows from `from_seq` on (default: its current chapter's first), as of one moment.

        HistoryCorruptError if they are not dense, or if there is no such run.
        """
        ...

    def last_row(self, rid: int) -> Row: ...

    def blob(self, rid: int, address: bytes) -> bytes:
        """The blob of a digest, or the output beside the event at a position (`codec.position_of`).

        HistoryCorruptError if it is not there.
        """
        ...

    def mail(self, rids: Sequence[int] | None = None, *, owner: str | None = None) -> list[Mail]:
        """Letters not yet taken: of these runs, or of all runs that `owner` owns, oldest first."""
        ...

    def runs(self, which: Filter) -> list[RunInfo]: ...

    def unserved(
        self, *, served: frozenset[tuple[str, int]], due_before: int, oldest_served: bool = False
    ) -> list[RunInfo]:
        """Runs that nobody owns although they are due since before then, of a (workflow, version) that is not `served`,
        in any order; and of each that is, if `oldest_served`, the one that is due for longest. Takes as long as there
        are such runs, however many others there are."""
        ...

    def effect(self, operation_id: str) -> LedgerEntry | None:
        """The ledger's row of an operation."""
        ...

    def effects(self, which: EffectFilter) -> list[LedgerEntry]: ...

    def approval(self, approval_id: str) -> ApprovalEntry | None:
        """The row of a request to people."""
        ...

    def approvals(self, which: ApprovalFilter) -> list[ApprovalEntry]: ...

    # ── the outbox ───────────────────────────────────────────────────────────────────────────
    def post(self, posts: Sequence[Post]) -> int:
        """Put messages into the outbox that belong to no append; returns how many are new. One whose id is there
        already changes nothing, so that several may post the same."""
        ...

    def take_posts(self, worker: str, *, topics: Collection[str], now: int, until: int, limit: int) -> list[Post]:
        """Take up to `limit` messages of these topics that are due: the first of its key that is not sent, and nobody
        else's. They are the worker's until `until`, or until it is proven dead."""
        ...

    def settle_post(self, worker: str, post: Post) -> bool:
        """Write what became of a message that the worker has taken: its status, attempts, `next_at` and error. False:
        it is not the worker's any more, and nothing changes."""
        ...

    def revive_post(self, post_id: str, *, now: int) -> bool:
        """Let a dead message be tried again, its attempts counted anew. False if there is no such dead message."""
        ...

    def posts(self, *, topic: str | None = None, status: str | None = None, limit: int = 100) -> list[Post]:
        """Messages of the outbox, oldest first."""
        ...

    # ── notes ────────────────────────────────────────────────────────────────────────────────
    def keep(self, note: Note) -> None:
        """Write a note; it stays until another one takes its place."""
        ...

    def notes(self, kind: str, key: str | None = None) -> list[Note]:
        """The notes of a kind, the newest first, of the same time in the order of their keys; or the one of a key."""
        ...

    def move_note(self, kind: str, key: str, to: Note) -> bool:
        """Put a note, of another kind perhaps, in the place of the one that is there; False, and nothing is written, if
        there is none: of two who do this at once, one does it."""
        ...

    # ── what many runs spend together ────────────────────────────────────────────────────────
    def accounts(self, account: str | None = None, since: int | None = None) -> list[SharedAccount]:
        """The accounts that many runs share, or those of one name, or of one period: by name, the newest period
        first."""
        ...

    # ── care ─────────────────────────────────────────────────────────────────────────────────
    def prune(self, *, ended_before: int, limit: int) -> int:
        """Delete up to `limit` finished runs with their events, blobs and mail, each run whole; what stays is one line
        per run: run id, rid, length, chain head, times, and its operations of scope `global`, for others still ask for
        them. What descends from a run that has not ended is kept, since that may come to owe what it did; and so is a
        run that has posted what is not sent, and what a fork that still runs descends from, with its children: their
        effects are not to be repeated. Uses that count against no rate any more are deleted too.
        """
        ...

    def heads(self) -> Iterator[tuple[str, int, int, bytes]]:
        """(run_id, rid, length, head) of every run ever, pruned ones included."""
        ...

    def backup(self, target: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the store while it is in use; the copy is consistent. `progress(done, total)` is called as it goes on.

        StoreError if there is something at `target` already.
        """
        ...

    def stats(self) -> Mapping[str, int | str]:
        """Counts (runs by status, events, blobs, letters, workers), bytes, schema version."""
        ...

    def close(self) -> None: ...


QUIET_KINDS = frozenset({
    "step.started", "effect.started", "effect.in_doubt", "run.taken_over", "run.adopted", "budget.reserved",
    "budget.spent",
})  # fmt: skip
"""Kinds of events that are no progress."""


def every_run(store: Store, which: Filter) -> Iterator[RunInfo]:
    """All runs of a kind, newest first, however many. `which.limit`: how many are read at once."""
    while True:
        page = store.runs(which)
        yield from page
        if len(page) < which.limit:
            return
        which = which._replace(before_rid=page[-1].rid)

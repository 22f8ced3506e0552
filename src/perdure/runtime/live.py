"""A run in memory: its execution, what of it is still to be written, and what of it is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.codec import hiding
from perdure.codec.packing import QUOTED_MIN
from perdure.engine.calls import Ask, Command, Key, WaitingSet
from perdure.engine.execution import Execution
from perdure.history import events as e
from perdure.history.chain import link
from perdure.store.protocol import Append, Blob, Change, Letter, NewRun, Note, Post, Row, RunInfo, Use, Watch

if TYPE_CHECKING:
    from perdure.clock import Alarm
    from perdure.codec import Packed
    from perdure.decisions import ApprovalEntry
    from perdure.gates.budget import Account, Movement
    from perdure.ledger import LedgerEntry
    from perdure.runtime.performer import Flight


CHAPTER_TO_BE_PLACED = -1
"""Where a chapter begins is known when its append is built: what else goes into that stands before it."""


NO_CALLS: frozenset[Key] = frozenset()

_SAY_WHAT_WAS_CALLED = (e.StepCompleted, e.StepFailed, e.AttemptFailed)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event on its way into the history. `raw` is what the code gets when it `delivers`; `at` is set if it was
    delivered already (a lazy result). `ledger` is the row that an effect has from then on, `undone` that of the effect
    that it takes back; `approval` the row of a request to people. `spending`: how accounts change that many runs share.
    """

    event: e.Event
    input: Packed | None = None
    output: Packed | None = None
    raw: bytes | None = None
    delivers: bool = False
    at: int | None = None
    ledger: LedgerEntry | None = None
    undone: LedgerEntry | None = None
    approval: ApprovalEntry | None = None
    spending: tuple[Movement, ...] = ()


Delivery = tuple[e.Event, int, "bytes | None"]
"""An outcome as the code gets it: the event, its time, its payload."""


class Written(msgspec.Struct, frozen=True):
    """An append under way, the entries that its rows were made of, and what follows once it is durable. `outcomes`:
    what of it the code is to get. `lazy`: how many it knows already."""

    append: Append
    entries: Sequence[Entry]
    then: tuple[Callable[[], None], ...]
    lazy: int = 0
    outcomes: Sequence[Delivery] = ()


class LiveRun:
    """Everything that a worker holds of a run that it owns. One thread at a time touches it.

    What is mostly empty is an empty tuple that grows by being replaced: thousands of runs are in memory at once, and
    the collector looks at each list that they hold.
    """

    __slots__ = (
        "account",
        "alarm",
        "alarm_at",
        "blocked",
        "blocked_calls",
        "change",
        "deferred",
        "entries",
        "epoch",
        "execution",
        "flights",
        "has_approvals",
        "has_decisions",
        "has_effects",
        "has_sections",
        "has_waiting_set",
        "head",
        "held",
        "idle_since",
        "info",
        "is_gated",
        "is_gone",
        "is_in_turn",
        "is_leaving",
        "is_paused",
        "is_slow",
        "is_suspect",
        "is_to_check",
        "is_to_reload",
        "last_at",
        "lazy",
        "length",
        "letters",
        "new_runs",
        "next_at",
        "next_head",
        "notices",
        "rid",
        "run_id",
        "state_written",
        "supplied",
        "taken",
        "then",
        "undelivered",
        "under_way",
        "unperformed",
        "uses",
        "watches",
    )  # fmt: skip

    def __init__(self, info: RunInfo, execution: Execution, *, length: int, head: bytes, last_at: int) -> None:
        self.info = info
        self.rid = info.rid
        self.run_id = info.run_id
        self.epoch = info.epoch
        self.execution = execution
        self.length = length
        self.head = head
        self.last_at = last_at
        self.next_head = head
        self.next_at = last_at
        self.entries: list[Entry] = []
        self.then: tuple[Callable[[], None], ...] = ()
        self.change: Change | None = None
        self.new_runs: tuple[NewRun, ...] = ()
        self.watches: tuple[Watch, ...] = ()
        self.letters: tuple[Letter, ...] = ()
        self.uses: tuple[Use, ...] = ()
        self.notices: tuple[Note, ...] = ()
        self.taken: tuple[int, ...] = ()
        self.under_way: Written | None = None
        self.flights: dict[Key, Flight] = {}
        self.held: tuple[Command, ...] = ()
        self.lazy = 0
        self.undelivered: tuple[Delivery, ...] = ()
        self.supplied = NO_CALLS
        self.unperformed: tuple[Sequence[Command], ...] = ()
        self.state_written: bytes | None = info.state
        self.is_suspect = False
        self.is_to_reload = False
        self.is_slow = False
        self.is_in_turn = False
        self.deferred: tuple[Callable[[], None], ...] = ()
        self.account: Account | None = None
        self.has_approvals = False
        self.has_decisions = False
        self.is_to_check = False
        self.has_effects = False
        self.has_sections = False
        self.is_paused = False
        self.is_leaving = False
        self.is_gated = False
        self.is_gone = False
        self.blocked: e.RunBlocked | None = None
        self.blocked_calls: dict[Key, e.RunBlocked] = {}
        self.has_waiting_set = bool(info.waiting)
        self.alarm: Alarm | None = None
        self.alarm_at: int | None = None
        self.idle_since: int | None = None

    @property
    def has_something_to_write(self) -> bool:
        return bool(self.entries or self.change or self.new_runs or self.watches or self.letters)

    def has_more_than_lazy(self) -> bool:  # no property, like the next: to call a method takes half as long
        """Whether something is to be written that should not wait."""
        return len(self.entries) > self.lazy or bool(self.change or self.new_runs or self.watches or self.letters)

    def has_taken(self, mail_id: int) -> bool:
        """Whether a letter is on its way into the history already."""
        return mail_id in self.taken or (self.under_way is not None and mail_id in self.under_way.append.taken)

    def has_lazy(self) -> bool:
        """Whether the code knows a lazy result that is not durable yet."""
        return self.lazy > 0 or (self.under_way is not None and self.under_way.lazy > 0)

    def waits_for_person(self, key: Key) -> bool:
        """Whether a call is stuck until somebody decides, or was decided with an outcome that is still to come."""
        return key in self.blocked_calls or key in self.supplied

    def is_to_perform(self, ask: Ask) -> bool:
        """Whether the code has asked for this, and nobody has looked at it yet: so it is in a run that was just
        loaded."""
        return any(command is ask for command in (*self.held, *chain(*self.unperformed), *self.execution.commands))

    @property
    def was_rewound(self) -> bool:
        """Whether some of its history does not count any more."""
        return self.has_decisions and self.execution.known.superseded is not None

    def note_blocked(self, event: e.RunBlocked) -> None:
        """The run, or one call of it, waits for a person."""
        if event.task is None:
            self.blocked = event
        else:
            self.blocked_calls[event.task, event.n] = event

    def note_unblocked(self, event: e.RunUnblocked) -> None:
        """A person decided."""
        if event.task is None:
            self.blocked = None
        else:
            self.blocked_calls.pop((event.task, event.n), None)

    @property
    def is_at_work(self) -> bool:
        """Whether the run would go on if it were left alone: it is not letting go, and waits for no person."""
        return not (self.is_leaving or self.blocked is not None or self.blocked_calls)

    @property
    def is_parked(self) -> bool:
        """Paused, or blocked as a whole: nothing new is performed."""
        return self.is_paused or self.blocked is not None

    def record(self, event: e.Event, *, raw: bytes | None = None, output: Packed | None = None,
               input: Packed | None = None, delivers: bool = False) -> None:  # fmt: skip
        """Put an event on its way into the history."""
        self.entries.append(Entry(event, input, output, raw, delivers))

    def build(self, append_id: bytes, now: int) -> Append:
        """Make one append of everything that is to be written."""
        entries = self.entries
        if self.flights:
            starts = self._starts_that_ride_along(entries)
            entries = _with_starts(starts, entries) if self.has_sections else starts + entries
        if self.execution.notes:
            entries = [Entry(note) for note in self.execution.notes] + entries
            self.execution.notes = ()
        if self.change is not None and self.change.chapter_seq is not None:
            self.change = self.change._replace(chapter_seq=self.length + _place_of_chapter(entries))
        if self.lazy:
            entries = _none_later_than_the_next(entries)
        if hiding.active is not None:
            entries = [_without_secrets(entry) for entry in entries]
        effects = _rows_of_ledger(entries) if self.has_effects else ()
        rows, blobs, outcomes = self._rows(entries, now)
        append = Append(
            append_id, self.rid, self.epoch, self.length, tuple(rows), tuple(blobs), self.change,
            self.taken, self.new_runs, self.watches, self.letters, effects,
            approvals=_rows_of_approvals(entries) if self.has_approvals else (), uses=self.uses, notes=self.notices,
            spending=() if self.account is None else tuple(chain.from_iterable(entry.spending for entry in entries)),
        )  # fmt: skip
        self.under_way = Written(append, entries, self.then, self.lazy, outcomes)
        self.entries, self.change, self.lazy = [], None, 0
        self.then = self.taken = self.new_runs = self.watches = self.letters = self.uses = self.notices = ()
        return append

    def alone(
        self, append_id: bytes, entry: Entry, now: int, posts: tuple[Post, ...] = (), uses: tuple[Use, ...] = ()
    ) -> Written:
        """An append of this one entry, while nothing else of the run is being written."""
        rows, blobs, outcomes = self._rows((_without_secrets(entry),), now)
        append = Append(
            append_id, self.rid, self.epoch, self.length, tuple(rows), tuple(blobs),
            effects=_rows_of_ledger((entry,)), posts=posts, approvals=_rows_of_approvals((entry,)), uses=uses,
        )  # fmt: skip
        return Written(append, (entry,), (), outcomes=outcomes)

    def _rows(self, entries: Sequence[Entry], now: int) -> tuple[list[Row], list[Blob], list[Delivery]]:
        """What the entries come to in the store, and what of them the code is to get."""
        rows: list[Row] = []
        blobs: list[Blob] = []
        outcomes: list[Delivery] = []
        seq, head, at = self.length, self.head, max(now, self.last_at)
        for entry in entries:
            event, packed_in, packed_out = entry.event, entry.input, entry.output
            envelope = e.encode(event)
            stamp = at if entry.at is None else entry.at
            if stamp > at:
                at = stamp
            head = link(head, seq, stamp, envelope)
            inline_in = inline_out = None
            if packed_in is not None:
                inline_in = packed_in.inline
                blobs += packed_in.blobs
            if packed_out is not None:
                inline_out = packed_out.inline
                blobs += packed_out.blobs
            rows.append(Row(seq, stamp, e.KINDS[type(event)], envelope, inline_in, inline_out, head))
            if entry.delivers:
                outcomes.append((event, stamp, entry.raw))
            seq += 1
        self.next_head, self.next_at = head, at
        return rows, blobs, outcomes

    def _starts_that_ride_along(self, entries: Sequence[Entry]) -> list[Entry]:
        """Steps under way whose start is nowhere recorded yet, and which this append does not end anyway."""
        ending = {
            entry.event.key  # of what says itself what the step was called with; a heartbeat does not
            for entry in entries
            if isinstance(entry.event, _SAY_WHAT_WAS_CALLED)
        }
        starts: list[Entry] = []
        for key, flight in self.flights.items():
            if flight.number and not flight.is_start_recorded and key not in ending:
                flight.is_start_recorded = True
                starts.append(flight.start_entry())
        return starts

    def committed(self, length: int) -> Written:
        """The append is durable."""
        written = self.landed()
        append = written.append
        self.length, self.head, self.last_at = length, self.next_head, self.next_at
        if append.blobs:
            self._remember_stored(written.entries)
        for row in append.rows:
            if row.output is not None and len(row.output) >= QUOTED_MIN:
                self.execution.memo.quotable(row.output, row.seq)
        return written

    def landed(self) -> Written:
        """The append is under way no longer, whether it was applied or not."""
        written, self.under_way = self.under_way, None
        if written is None:
            raise AssertionError("no append is under way")
        return written

    def go_again_without(
        self, flights: Sequence[Flight], use_id: str, is_left_out: Callable[[e.Event], bool]
    ) -> None:
        """The append under way was refused for what begins these: all else of it goes again, without what it counted
        as."""
        written = self.landed()
        uses = tuple(use for use in written.append.uses if use.use_id != use_id)
        self.take_back(
            msgspec.structs.replace(
                written,
                append=msgspec.structs.replace(written.append, uses=uses),
                entries=[entry for entry in written.entries if not is_left_out(entry.event)],
                then=tuple(then for then in written.then if not _is_about(then, flights)),
            )
        )

    def take_back(self, written: Written) -> None:
        """The append was refused for what of it is left out here; all else goes again, before what came meanwhile."""
        append = written.append
        self.entries = [*written.entries, *self.entries]
        self.lazy += written.lazy
        self.then = written.then + self.then
        self.change = self.change or append.change
        self.taken = append.taken + self.taken
        self.new_runs = append.new_runs + self.new_runs
        self.watches = append.watches + self.watches
        self.letters = append.letters + self.letters
        self.uses, self.notices = append.uses + self.uses, append.notes + self.notices

    def _remember_stored(self, entries: Sequence[Entry]) -> None:
        memo = self.execution.memo
        for entry in entries:
            for packed in (entry.input, entry.output):
                if packed is not None and packed.blobs:
                    memo.committed(packed)

    def waiting_bytes(self) -> bytes:
        """The waiting set as it is written when the run leaves memory, after the append that carries it."""
        length = self.length + len(self.entries) + len(self.execution.notes)
        return msgspec.json.encode(WaitingSet(length, self.execution.waiting_set()))

    def silence(self) -> None:
        """No alarm of this run goes off any more."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
            self.alarm_at = None


def _with_starts(starts: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """Starts go first, but for those of hosted code whose section begins with the same append."""
    begins = {
        f"{entry.event.task}:{entry.event.n}": place
        for place, entry in enumerate(entries)
        if isinstance(entry.event, e.SectionStarted)
    }
    ordered: list[Entry] = []
    late: dict[int, list[Entry]] = {}
    for start in starts:
        section = start.event.section if isinstance(start.event, e.Keyed) else ""
        if section in begins:
            late.setdefault(begins[section], []).append(start)
        else:
            ordered.append(start)
    for place, entry in enumerate(entries):
        ordered += (entry, *late.get(place, ()))
    return ordered


def _without_secrets(entry: Entry) -> Entry:
    """With an event as it may be recorded: what the code gets of it now is what it gets on replay."""
    event = e.without_secrets(entry.event)
    return entry if event is entry.event else msgspec.structs.replace(entry, event=event)


def _rows_of_ledger(entries: Sequence[Entry]) -> tuple[LedgerEntry, ...]:
    """Of each operation its last row."""
    rows = chain.from_iterable((entry.ledger, entry.undone) for entry in entries)
    return tuple({row.operation_id: row for row in rows if row is not None}.values())


def _rows_of_approvals(entries: Sequence[Entry]) -> tuple[ApprovalEntry, ...]:
    """Of each request its last row."""
    return tuple({entry.approval.approval_id: entry.approval for entry in entries if entry.approval}.values())


def _none_later_than_the_next(entries: Sequence[Entry]) -> list[Entry]:
    """A lazy result was delivered before it is written; what is written in front of it happened no later."""
    ordered: list[Entry] = []
    latest: int | None = None
    for entry in reversed(entries):
        if entry.at is None and latest is not None:
            entry = msgspec.structs.replace(entry, at=latest)
        latest = entry.at
        ordered.append(entry)
    return ordered[::-1]


def _place_of_chapter(entries: Sequence[Entry]) -> int:
    return next(place for place, entry in enumerate(entries) if isinstance(entry.event, e.ChapterStarted))


def _is_about(then: Callable[[], None], flights: Sequence[Flight]) -> bool:
    """Whether this follow-up of a commit is to begin one of these."""
    return isinstance(then, partial) and any(argument is flight for argument in then.args for flight in flights)


class OpenTurn(NamedTuple):
    """A turn that has not come back: of which run, since when in monotonic seconds, and in which thread."""

    live: LiveRun
    since: float
    thread: int


Waiter = asyncio.Future[None]

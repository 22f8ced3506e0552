"""From rows to a run in memory: decode, replay, and be ready to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec

from perdure.codec import Memo, unpack
from perdure.codec.packing import QUOTABLE_MAX, QUOTED_MIN
from perdure.engine.calls import Key, WaitingSet
from perdure.engine.chapters import Beginning
from perdure.engine.execution import Execution
from perdure.engine.known import Known
from perdure.engine.replay import Replay
from perdure.errors import HistoryCorruptError
from perdure.gates.budget import ABOUT_BUDGETS, Account, account_at
from perdure.history import events as e
from perdure.runtime.contracts import Admission, admitted, manifest
from perdure.runtime.live import LiveRun
from perdure.specs import WorkflowSpec
from perdure.store.protocol import Claim, NewRun, Row, RunInfo, Status, Store, Stored

EVENTS_READ_AT_ONCE = 500

_decode_events = msgspec.json.Decoder(list[e.AnyEvent]).decode
_decode_waiting = msgspec.json.Decoder(WaitingSet).decode
_decode_carried = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


def fresh(
    info: RunInfo,
    new: NewRun,
    input_raw: bytes,
    catalog: Mapping[tuple[str, int], WorkflowSpec],
    *,
    log: Callable[[str], None],
) -> LiveRun:
    """A run that has just been created here; nothing is to be replayed."""
    row = new.rows[0]
    started = e.decode(row.envelope)
    if not isinstance(started, e.RunStarted):
        raise HistoryCorruptError(f"run {new.run_id} begins with {row.kind}")
    beginning = Beginning(started.seed, input_raw, row.at, goal=started.goal, scope=started.scope)
    execution = Execution(catalog[info.workflow, info.version], info.run_id, beginning, log=log)
    live = LiveRun(info, execution, length=1, head=row.hash, last_at=row.at)
    live.account = account_at(started)
    return live


def next_seed(seed: int, chapter: int) -> int:
    """The seed of a run's next chapter."""
    return int.from_bytes(sha256(f"{seed}:{chapter}".encode()).digest()[:7], "big")


def next_execution(
    live: LiveRun, event: e.ChapterStarted, input_raw: bytes, carried: bytes, *, log: Callable[[str], None]
) -> Execution:
    """The same run's next chapter."""
    beginning = Beginning(
        event.seed, input_raw, live.last_at, event.number, _carried(carried), event.goal, event.scope
    )
    return Execution(live.execution.spec, live.run_id, beginning, log=log)


def _carried(raw: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, message.encode()) for name, message in _decode_carried(raw))


class Blobs(Protocol):
    """Where payloads are that do not stand beside their events."""

    def blob(self, rid: int, address: bytes) -> bytes: ...


def _events_of(rows: Sequence[Row]) -> list[e.AnyEvent]:
    """The events of these rows. Many read as one array take a fraction of what it takes to read each alone."""
    events: list[e.AnyEvent] = []
    for first in range(0, len(rows), EVENTS_READ_AT_ONCE):
        envelopes = [row.envelope for row in rows[first : first + EVENTS_READ_AT_ONCE]]
        try:
            some = _decode_events(b"[%b]" % b",".join(envelopes))
        except msgspec.MsgspecError:
            some = []
        if len(some) != len(envelopes):  # one is damaged, and says so when it is read alone
            some = [e.decode(envelope) for envelope in envelopes]
        events += some
    return events


class Past:
    """A stored history, decoded: what a run is rebuilt from. `others`: the events that are no step's result."""

    def __init__(self, stored: Stored, store: Blobs) -> None:
        self.stored = stored
        self._rid = stored.info.rid
        self._store = store
        try:
            self.events = _events_of(stored.rows)
        except msgspec.MsgspecError as error:
            raise HistoryCorruptError(f"run {stored.info.run_id}: an event cannot be read: {error}") from error
        self.others = [event for event in self.events if type(event) is not e.StepCompleted]
        if not self.events or not isinstance(self.events[0], e.RunStarted | e.ChapterStarted):
            raise HistoryCorruptError(f"run {stored.info.run_id}: its chapter does not begin with a beginning")
        self.superseded: Any = None
        if any(type(event) is e.Rewound for event in self.others):
            self._leave_out_superseded()

    def _leave_out_superseded(self) -> None:
        """The run was rewound: only what counts is replayed."""
        from perdure.runtime.rewinding import known_of_superseded

        self.superseded, effective = known_of_superseded(self)
        rows = [self.stored.rows[place] for place in effective]
        self.events = [self.events[place] for place in effective]
        self.others = [event for event in self.events if type(event) is not e.StepCompleted]
        self.stored = self.stored._replace(rows=rows)

    def _fetch(self, digest: bytes) -> bytes:
        return self._store.blob(self._rid, digest)

    def output(self, index: int) -> bytes | None:
        """The raw output of an event."""
        return self._output(self.events[index], self.stored.rows[index])

    def _output(self, event: e.Event, row: Row) -> bytes | None:
        if row.output is not None:
            return row.output
        digest = getattr(event, "output", None)
        return unpack(digest, None, self._fetch) if digest else None

    def input(self, index: int) -> bytes | None:
        """The raw input of an event."""
        row = self.stored.rows[index]
        if row.input is not None:
            return row.input
        digest = getattr(self.events[index], "input", None)
        return unpack(digest, None, self._fetch) if digest else None

    def input_of(self, key: Key) -> bytes | None:
        """The arguments of a call, if they were kept."""
        for index, event in enumerate(self.events):
            if isinstance(event, e.Keyed) and event.key == key and getattr(event, "input", None):
                return self.input(index) if getattr(event, "kept", True) else None
        return None

    def beginning(self) -> Beginning:
        first = self.events[0]
        raw = self.input(0) or b"{}"
        at = self.stored.rows[0].at
        if isinstance(first, e.ChapterStarted):
            carried = _carried(self.output(0) or b"[]")
            return Beginning(first.seed, raw, at, first.number, carried, first.goal, first.scope)
        if isinstance(first, e.RunStarted):
            return Beginning(first.seed, raw, at, goal=first.goal, scope=first.scope)
        raise HistoryCorruptError(f"run {self.stored.info.run_id} begins with {e.kind(first)}")

    def known(self) -> Known:
        known = Known()
        for event, row in known.note_completed(zip(self.events, self.stored.rows, strict=True)):
            wants = isinstance(event, e.Heartbeat | e.PersonDecided | e.PremisesRead | e.PremisesChecked) or (
                isinstance(event, e.Keyed) and ":" in event.task
            )  # fmt: skip
            known.note(event, row.at, self._output(event, row) if wants else None)
        known.superseded = self.superseded
        return known

    def is_under(self, spec: WorkflowSpec) -> bool:
        """Whether the run has been under the manifest that the code has now, and under no other."""
        first = self.events[0]
        recorded = first.manifest if isinstance(first, e.RunStarted | e.ChapterStarted) else {}
        return recorded == manifest(spec) and not any(row.kind == "run.adopted" for row in self.stored.rows)

    def under(self, spec: WorkflowSpec) -> Admission | None:
        """Whether the run may go on under this code; None if it has been under the same all along."""
        return None if self.is_under(spec) else admitted(self.events, spec, runs_as=self.stored.info.version)

    def execution(
        self, spec: WorkflowSpec, *, same_manifest: bool, compare_all: bool = False, log: Callable[[str], None]
    ) -> Execution:
        """The run's code, ready to be replayed."""
        return Execution(
            spec, self.stored.info.run_id, self.beginning(), known=self.known(), waiting=_waiting(self.stored),
            same_manifest=same_manifest, compare_all_inputs=compare_all, log=log,
        )  # fmt: skip

    def replay(self, execution: Execution) -> None:
        """Deliver every recorded outcome, in the order of the history."""
        execution.is_replaying = True
        execution.claims.input_of, without = self.input_of, execution.claims.input_of
        outcomes = [each for each in zip(self.events, self.stored.rows, strict=True) if each[0].is_outcome]
        execution.outcomes_left = len(outcomes)
        with execution.loop.entered():
            if ids := self._ids_of_code(execution):
                self._replay_fork(execution, ids)
            else:
                Replay(execution, outcomes).run(self._output)
        execution.finish_replay()
        execution.claims.input_of = without  # the past need not stay in memory
        self._teach(execution.memo)

    def _replay_fork(self, execution: Execution, ids: Mapping[int, str]) -> None:
        execution.begin()
        for index, (event, row) in enumerate(zip(self.events, self.stored.rows, strict=True)):
            if index in ids:
                execution.code_id = ids[index]
            if event.is_outcome:
                execution.deliver(event, row.at, self._output(event, row))

    def _ids_of_code(self, execution: Execution) -> dict[int, str]:
        """Of a fork: which id its code sees from which event on. An outcome that is the last of what was copied has no
        calls behind it that the original recorded: those that follow are the fork's."""
        forked_from = [of for of, _ in execution.known.origins]
        if not forked_from:
            return {}
        places = [index for index, event in enumerate(self.events) if type(event) is e.RunForked]
        begins = [index - 1 if self.events[index - 1].is_outcome or index == 1 else index for index in places]
        ids = dict(zip(begins, (*forked_from[1:], execution.run_id), strict=True))
        execution.code_id = ids.get(0, forked_from[0])
        return ids

    def _teach(self, memo: Memo) -> None:
        """What the run's next values may quote."""
        for row in self.stored.rows[-QUOTABLE_MAX:]:
            if row.output is not None and len(row.output) >= QUOTED_MIN:
                memo.quotable(row.output, row.seq)


def rebuild(
    claim: Claim,
    store: Store,
    catalog: Mapping[tuple[str, int], WorkflowSpec],
    *,
    log: Callable[[str], None],
    compare_all: bool = False,
) -> tuple[LiveRun, Callable[[], None]]:
    """A claimed run as it stands in the store, and what replays it."""
    stored = store.load(claim.info.rid)
    past = Past(stored, store)
    spec = catalog[stored.info.workflow, stored.info.version]
    admission = past.under(spec)
    execution = past.execution(spec, same_manifest=admission is None, compare_all=compare_all, log=log)
    live = LiveRun(stored.info, execution, length=stored.length, head=stored.head, last_at=stored.rows[-1].at)
    live.epoch = claim.info.epoch
    live.is_suspect = claim.deaths > 0
    live.has_approvals = bool(execution.known.requests or execution.known.early)
    if execution.known.resting is not None:
        live.has_decisions = True
        live.is_to_check = claim.lost_owner is not None or bool(execution.known.decisions.open)
    live.account = account_at(past.events[0])
    _note_budgets(live, past.others)
    live.is_paused, live.blocked, live.blocked_calls = parked(live.info, past.others)
    if admission is not None and admission.refusal:
        refusal = admission.refusal
        return live, lambda: execution.fail("incompatible_version", refusal)
    if admission is not None and admission.note is not None:
        live.record(admission.note)
    return live, partial(past.replay, execution)


def was_resumed(store: Store, rid: int, *, since: int) -> bool:
    """Whether somebody has let the run go on since then, in whichever chapter."""
    return any(row.kind == "run.resumed" and row.at >= since for row in store.load(rid, from_seq=0).rows)


def _waiting(stored: Stored) -> Iterable[Any]:
    if not stored.info.waiting:
        return ()
    waiting = _decode_waiting(stored.info.waiting)
    return waiting.entries if waiting.history_length == stored.length else ()


def _note_budgets(live: LiveRun, events: Iterable[e.Event]) -> None:
    """What the run has spent."""
    for event in events:
        if type(event) in ABOUT_BUDGETS:
            if live.account is None and type(event) is not e.RunForked:
                live.account = Account()
            if live.account is not None:
                live.account.note(event)


class Parked(NamedTuple):
    """Whether a run is paused; on what it is blocked as a whole, and which calls of it are stuck."""

    is_paused: bool
    blocked: e.RunBlocked | None
    calls: dict[Key, e.RunBlocked]


def parked(info: RunInfo, events: Iterable[e.Event]) -> Parked:
    """How a run stands, as its history tells it; where that tells nothing of a block, as the index does."""
    is_paused, blocked, calls = False, None, dict[Key, e.RunBlocked]()
    for event in events:
        match event:
            case e.RunPaused():
                is_paused = True
            case e.RunResumed():
                is_paused = False
            case e.RunForked():  # the original was paused, or blocked as a whole: the fork tries
                is_paused, blocked = False, None
            case e.RunBlocked(task=None):
                blocked = event
            case e.RunBlocked(task=str() as task):
                calls[task, event.n] = event
            case e.RunUnblocked(task=None):
                blocked = None
            case e.RunUnblocked(task=str() as task):
                calls.pop((task, event.n), None)
            case _:
                pass
    if info.status is Status.BLOCKED and blocked is None and not calls:
        blocked = e.RunBlocked(info.reason or "", info.hint or "")
    return Parked(is_paused, blocked, calls)

"""What waits for a person, and what a person can do about it.

`REASONS` is the table: for each reason, what each choice will do. Most entries are runs that somebody parked; those of
`no_worker_for_version` and `silent` are found by looking who could execute what is due, who is alive, and what workers
have noted about runs that do not move.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import msgspec

from perdure.api import requests
from perdure.api.operations import OperationSummary, summary_of
from perdure.api.reading import payload
from perdure.api.spending import BudgetSummary, budget_summary
from perdure.audit.effects import without_outcome
from perdure.audit.waits import under_way
from perdure.clock import MICROSECONDS, when
from perdure.codec import ValueCodec
from perdure.codec.canonical import canonical_bytes
from perdure.decisions import ApprovalEntry
from perdure.decisions.authority import Authority
from perdure.decisions.request import decode_request
from perdure.decisions.urgency import Place, place
from perdure.engine.calls import CONFIRM_UNDO, DONE_BY_ORIGINAL, NO_UNDO
from perdure.engine.known import Standing
from perdure.errors import DecisionRefused, HistoryCorruptError
from perdure.gates import denial
from perdure.gates.denial import DENIED
from perdure.history import events as e
from perdure.ledger import EffectState
from perdure.runtime import mail, silence
from perdure.specs import OnStale, StepSpec, WorkflowSpec
from perdure.store.protocol import CONTROL_KINDS, Filter, Mail, Note, Row, RunInfo, Status, Store, WorkerInfo, every_run

DUE_SECONDS_BEFORE_A_PERSON_HEARS = 60.0
DUE_SECONDS_ALTHOUGH_SERVED = 300.0
RUNS_PER_READ = 500
ENTRY_ID_DIGITS = 24

Choices = Mapping[str, str]
"""What `unblock` can be told, and what that will do."""


class InboxEntry(msgspec.Struct, frozen=True):
    """One thing that waits for a person.

    `hint` says what happened; `call` names the call that is stuck (`0.2/search#3`) if it is one, else the run as a
    whole is. `choices` are what `unblock` takes for this entry, and what each will do; none if the hint has the
    way out. `pending`: what was decided already (`unblock --retry by ann`) and no worker has read so far.
    `operation`: the effect in doubt, if it is one; it is settled, not unblocked. `sent`: its arguments, as plain JSON.
    `looks`: what the other side said when it was asked, with the time. `request`: what people are asked, if it is that
    (`reason` is then `approval` or `question`): it is decided with `client.approve`, `reject`, `answer` or `delegate`.
    `id` names the entry: it is the same for everyone who looks, and another one once it was decided and came up again.
    `risk`: `high` if it is about an effect that cannot be taken back, or that is declared so.
    `budget`: of which the call wants more than there is.
    """

    run_id: str
    workflow: str
    version: int
    reason: str
    since: datetime
    hint: str
    call: str | None
    choices: Choices
    pending: tuple[str, ...] = ()
    operation: OperationSummary | None = None
    sent: Any = None
    looks: tuple[tuple[datetime, str], ...] = ()
    request: requests.RequestSummary | None = None
    risk: str = ""
    id: str = ""
    budget: BudgetSummary | None = None

    @property
    def place(self) -> Place:
        """Where it stands in the inbox: smaller is first."""
        return place(self.reason, self.risk, self.since, self.run_id, self.call or "", self.id)


# ── what a person can choose ────────────────────────────────────────────────────────────────


class Reason(msgspec.Struct, frozen=True):
    """What can be chosen when one call is stuck, and when the run as a whole is."""

    of_call: Choices
    of_run: Choices


def _retry(first: str = "") -> Choices:
    return {"retry": f"{first}the run is loaded again, with the code that its worker has then, and goes on"}


TRY_CALL_AGAIN: Choices = {"retry": "the call is tried again, its attempts counted anew"}
GIVE_VALUE: Choices = {"value": "what you give stands for the call's result"}
READ_AGAIN: Choices = {"retry": "the message is read again, with the code that its worker has then"}
FAIL_CALL: Choices = {"fail": "the call fails; the workflow sees a StepError"}
FAIL_RUN: Choices = {"fail": "the run ends as failed; no more of its code runs"}

SETTLE: Choices = {
    "succeeded": "it happened: what you give is its result, with the other side's reference; the run goes on",
    "failed": "it did not happen: the call fails, the workflow sees a StepError",
    "retry": "it did not happen, and is sent again",
}

SUPPLY: Choices = {"succeeded": "what you give is its result; the run goes on"}
"""It has succeeded, and its result could not be recorded."""

OF_REQUEST: Mapping[str, Choices] = {
    "approval": {
        "approve": "exactly this call is made, once enough have approved",
        "reject": "it is not made; the workflow sees perdure.Rejected, with who and why",
        "delegate": "somebody else decides in your place",
    },
    "question": {
        "answer": "what you give is the answer; the run goes on",
        "delegate": "somebody else answers in your place",
    },
}
"""Of what people are asked."""

_ON = "undoing goes on with the rest"

EVERYTHING = Reason({**TRY_CALL_AGAIN, **GIVE_VALUE, **FAIL_CALL}, {**_retry(), **FAIL_RUN})

CHECK_AGAIN: Choices = {"retry": "the facts are read again, and the run goes on if they are as they were"}

REASONS: Mapping[str, Reason] = {
    "needs_person": EVERYTHING,
    "crash_loop": Reason({}, {**_retry("once the cause is mended: "), **FAIL_RUN}),
    DONE_BY_ORIGINAL: Reason(
        {
            "retry": "it is done all the same, a second time, under an operation id of its own",
            "reuse": "nothing is sent; the original's result stands for the call's, if it has succeeded",
            **FAIL_CALL,
        },
        {},
    ),
    "deadlocked": Reason({}, {**_retry("once the code is mended: "), **FAIL_RUN}),
    "diverged": Reason({}, {**_retry("once the old version is registered, or the change guarded: "), **FAIL_RUN}),
    "incompatible_version": Reason({}, {**_retry("once code that replays it is registered: "), **FAIL_RUN}),
    "no_worker_for_version": Reason({}, {}),
    "silent": Reason({}, {}),
    "failed_compensation": Reason(
        {
            "retry": "the undoing is tried again, under an operation id of its own",
            "value": f"it was taken back by hand; {_ON}",
            "fail": f"it is left standing; {_ON}",
        },
        {},
    ),
    "stale_decision": Reason(
        {}, {"keep": "the result stands, on the facts as they are now", **CHECK_AGAIN, **FAIL_RUN}
    ),
    "premise_unreadable": Reason(
        EVERYTHING.of_call,
        {"keep": "the result stands, and what it rests on is not read any more", **CHECK_AGAIN, **FAIL_RUN},
    ),
    "stuck_turn": Reason({}, {**_retry("once the code is mended: "), **FAIL_RUN}),
    "unknown_effect": Reason(SETTLE, {}),
    "over_budget": Reason(
        {
            "raise_budget": "the budget gets a new limit, and the call is made",
            "retry": "the call is made if there is enough by now",
            "fail": "the call is not made; the workflow sees perdure.OverBudget",
        },
        {},
    ),
    "undecodable": Reason(
        {**READ_AGAIN, "value": "what you give stands for the message", "fail": "receive() raises a StepError"},
        {**_retry("once the type hint fits what is recorded: "), **FAIL_RUN}
    ),
}
"""Reasons that are not here offer everything."""

OF_QUESTION: Mapping[str, Choices] = {
    CONFIRM_UNDO: {
        "value": '"undo": it is undone now; "undone": it was taken back by hand, nothing is sent',
        "fail": f"it is left standing; {_ON}",
    },
    OnStale.REAPPROVE: {
        "keep": "the result stands, on the facts as they are now",
        "recompute": "it does not stand: the step is made again, with the facts as they are then",
        **FAIL_RUN,
    },
    NO_UNDO: {
        "value": "all of it was taken back by hand; undoing is over, and the exception comes out",
        "fail": "all of it is left standing; undoing is over, and the exception comes out",
    },
}
"""Of questions that the code waits with, and of decisions that a person is to confirm: where the choices are other
ones than the reason has."""


# ── the entries ─────────────────────────────────────────────────────────────────────────────


def entries(store: Store, now: int) -> list[InboxEntry]:
    """Everything that waits for a person, the riskiest first, then the oldest. `now` in microseconds."""
    found = [entry for info in _runs(store, Status.BLOCKED) for entry in blocked(store, info)]
    found += (asked(store, row) for row in requests.pending(store))
    found += unmoved(store, now)
    found += (denied(store, note) for note in store.notes(DENIED))
    return sorted(found, key=lambda entry: entry.place)


def _runs(store: Store, *statuses: Status) -> Iterator[RunInfo]:
    """All runs of these statuses."""
    return every_run(store, Filter(status=frozenset(statuses), limit=RUNS_PER_READ))


def blocked(store: Store, info: RunInfo) -> list[InboxEntry]:
    """Of a run that is blocked: one entry for each thing that keeps the run."""
    try:
        rows = store.load(info.rid).rows
        standing, effects = _standing_blocks(rows) or [_parked_by_the_store(info, rows)], without_outcome(rows)
    except (HistoryCorruptError, msgspec.DecodeError, UnicodeDecodeError):  # which is why it is parked
        rows, standing, effects = (), [(e.RunBlocked(info.reason or "", info.hint or ""), info.updated_at)], {}
    letters = store.mail([info.rid])
    found: list[InboxEntry] = []
    for blocked, at in standing:
        entry, effect = _entry(info, blocked, at, letters), effects.get((blocked.task or "", blocked.n))
        if effect is not None and blocked.short is None and blocked.reason != DONE_BY_ORIGINAL:  # it is in doubt
            entry = _with_effect(store, info.rid, entry, effect, rows)
        found.append(entry)
    return found


def asked(store: Store, row: ApprovalEntry) -> InboxEntry:
    """What people are asked and have not decided."""
    it = requests.summary_of(store, row)
    letters = store.mail([row.rid])
    return InboxEntry(
        row.run_id, row.workflow, row.version, row.kind, when(row.asked_at), _asks(it), row.label,
        OF_REQUEST[row.kind], requests.told(letters, row.approval_id), request=it, risk=it.risk,
        id=entry_id(row.rid, row.kind, row.approval_id, row.asked_at),
    )  # fmt: skip


def entry_id(rid: int, reason: str, call: str, since: int) -> str:
    """What names an entry, whoever looks."""
    return sha256(canonical_bytes([rid, reason, call, since])).hexdigest()[:ENTRY_ID_DIGITS]


def _asks(it: requests.RequestSummary) -> str:
    what = it.subject if it.kind == "question" else f"may {it.subject} be called with these arguments?"
    return what + (f" ({it.note})" if it.note else "")


def _parked_by_the_store(info: RunInfo, rows: Iterable[Row]) -> tuple[e.RunBlocked, int]:
    """The store writes no events."""
    at_the_end = ", ".join(wait.call for wait in under_way(rows))
    hint = (info.hint or "") + (f". What was under way when the last one died: {at_the_end}" if at_the_end else "")
    return e.RunBlocked(info.reason or "", hint), info.updated_at


def _with_effect(store: Store, rid: int, entry: InboxEntry, standing: Standing, rows: Iterable[Row]) -> InboxEntry:
    """An entry that is about an effect, with what is known of it."""
    row = store.effect(standing.operation)
    if row is None:
        return entry
    return msgspec.structs.replace(
        entry,
        choices=SUPPLY if row.status is EffectState.SUCCEEDED else SETTLE,
        operation=summary_of(row),
        risk="high" if row.risk == "high" else "",
        sent=_sent(store, rid, standing.operation, rows),
        looks=tuple((when(look.at), look.answer.replace("_", " ")) for look in standing.looks),
    )


def _sent(store: Store, rid: int, operation: str, rows: Iterable[Row]) -> Any:
    """The recorded arguments of an effect; None if they are not kept."""
    for row in rows:
        event = e.decode(row.envelope) if row.kind == "effect.started" else None
        if isinstance(event, e.EffectStarted) and event.operation == operation:
            raw = payload(store, rid, row, "input")
            if raw is not None:
                return msgspec.json.decode(raw)
    return None


def pending(letters: Iterable[Mail], call: str | None = None) -> tuple[str, ...]:
    """Decisions that lie in a run's mailbox: those about this call, if one is named, and about the whole."""
    control = [letter for letter in letters if letter.kind in CONTROL_KINDS]
    return tuple(mail.told(letter) for letter in control if call is None or mail.call_of(letter) in {"", call})


def _standing_blocks(rows: Iterable[Row]) -> list[tuple[e.RunBlocked, int]]:
    """What blocks a run and nobody has decided yet, with its time."""
    standing: dict[tuple[str | None, int], tuple[e.RunBlocked, int]] = {}
    for row in rows:
        if row.kind == "run.forked":  # what blocked the original as a whole does not block the fork
            standing.pop((None, 0), None)
        event = e.decode(row.envelope) if row.kind in {"run.blocked", "run.unblocked"} else None
        if isinstance(event, e.RunBlocked):
            standing[event.task, event.n] = (event, row.at)
        elif isinstance(event, e.RunUnblocked):
            standing.pop((event.task, event.n), None)
    return list(standing.values())


def _entry(info: RunInfo, blocked: e.RunBlocked, since: int, letters: Iterable[Mail]) -> InboxEntry:
    reason = REASONS.get(blocked.reason, EVERYTHING)
    choices = OF_QUESTION.get(blocked.name, reason.of_run if blocked.call is None else reason.of_call)
    return InboxEntry(
        info.run_id, info.workflow, info.version, blocked.reason, when(since), blocked.hint, blocked.call, choices,
        pending(letters, blocked.call), risk=blocked.risk,
        id=entry_id(info.rid, blocked.reason, blocked.call or "", since),
        budget=None if blocked.short is None else budget_summary(blocked.short),
    )  # fmt: skip


def asked_of(spec: WorkflowSpec, call: str) -> ValueCodec | None:
    """What a value for this call (`0.2/search#3`) is read as; None if that cannot be told from the workflow."""
    name = call.rpartition("#")[0].rpartition("/")[2]
    kind, _, message = name.partition(":")
    if kind == "receive" and message:
        return (spec.receives or {}).get(message)
    module = sys.modules.get(spec.function.__module__)
    named = [getattr(each, "spec", None) for each in list(vars(module).values())] if module is not None else []
    found = {id(each): each for each in named if isinstance(each, StepSpec) and each.name == name}
    return next(iter(found.values())).result if len(found) == 1 else None


# ── calls that policies have denied ─────────────────────────────────────────────────────────

SEEN: Choices = {"acknowledge": "it is not shown any more; nothing else changes, the run has heard of it"}


def denied(store: Store, note: Note) -> InboxEntry:
    """A call that a policy has denied: nothing waits for a person, but one is to know of it."""
    it = denial.decode(note.body)
    return InboxEntry(
        it.run_id, it.workflow, it.version, DENIED, when(note.at), f"{it.name}: {it.denied.told}: {it.why}", it.call,
        SEEN, sent=_wanted(store, it), id=entry_id(it.rid, DENIED, it.call, note.at),
    )  # fmt: skip


def _wanted(store: Store, it: denial.Denial) -> Any:
    """The arguments of a call that was denied; None if they are not kept."""
    info = store.find(it.run_id)
    if info is None or info.rid != it.rid:
        return None
    raw: bytes | None = None
    for row in store.load(it.rid, from_seq=0).rows:
        event = e.decode(row.envelope)
        if isinstance(event, e.StepStarted | e.StepFailed) and event.label == it.call and event.input is not None:
            raw = payload(store, it.rid, row, "input")
        elif isinstance(event, e.PersonAsked) and event.label == it.call:
            asked_for = payload(store, it.rid, row, "input")
            raw = None if asked_for is None else bytes(decode_request(asked_for).arguments)
    return None if raw is None else msgspec.json.decode(raw)


def acknowledge(
    store: Store, run_id: str, call: str | None, *, by: str, comment: str, now: int, authority: Authority | None
) -> None:
    """Somebody has seen what was denied in a run: all of it, or one call. DecisionRefused if there is nothing of the
    kind: so of two who say so at once, one is told that."""
    about = f"what was denied in run {run_id}"
    requests.check_allowed(authority, DENIED, "acknowledge", by=by, about=about)
    is_changed = False
    for note in store.notes(DENIED):
        it = denial.decode(note.body)
        if it.run_id == run_id and call in {None, it.call}:
            body = denial.encode(msgspec.structs.replace(it, by=by, comment=comment, seen_at=now))
            is_changed |= store.move_note(DENIED, note.key, Note(denial.SEEN, f"{note.key}/{note.at}", body, note.at))
    if not is_changed:
        raise DecisionRefused(f"{about}: there is nothing that nobody has seen; nothing was changed", "", "unknown")


# ── runs that do not move ───────────────────────────────────────────────────────────────────


def unmoved(store: Store, now: int) -> Iterator[InboxEntry]:
    """Runs that are due for a while and that nobody executes, that a dead worker has, or that their worker says are
    silent for longer than their limits allow."""
    late = now - round(DUE_SECONDS_BEFORE_A_PERSON_HEARS * MICROSECONDS)
    lost = dict(store.lost(""))
    workers = {info.worker: info for info in store.workers()}
    served = _served(workers.values(), lost)
    for info in store.unserved(served=served, due_before=late, oldest_served=True):
        is_served = (info.workflow, info.version) in served
        if is_served and now - (info.due_at or late) < DUE_SECONDS_ALTHOUGH_SERVED * MICROSECONDS:
            continue  # workers are busy
        if is_served:
            blocked = e.RunBlocked("silent", _NOT_CLAIMED)
        else:
            blocked = e.RunBlocked("no_worker_for_version", _no_worker(info, served))
        yield _entry(info, blocked, info.due_at or late, store.mail([info.rid]))
    for worker in (workers[name] for name in lost if name in workers and workers[name].lease_until < late):
        for info in every_run(store, Filter(owner=worker.worker, limit=RUNS_PER_READ)):
            how = "is dead" if lost[worker.worker] else "has not been heard of"
            hint = f"its worker {worker.worker} (process {worker.pid} on {worker.host}) {how}, and {_NOBODY_LIVE}"
            yield _entry(info, e.RunBlocked("silent", hint), worker.lease_until, store.mail([info.rid]))
    yield from _noted(store)


_NOBODY_LIVE = "no live worker has taken the run over: start one"
_NOT_CLAIMED = (
    "it is the one of its kind that has been due for longest, and no worker takes it although live ones have its "
    "workflow: they are full (concurrent_runs), or continue only runs of their own (adopt)"
)


def _noted(store: Store) -> Iterator[InboxEntry]:
    """What workers have noted of their runs, if the run still stands where it stood."""
    for note in store.notes(silence.NOTE_KIND):
        noted, info = silence.decode(note.body), store.find(note.key)
        if info is None or (info.rid, info.epoch) != (noted.rid, noted.epoch) or info.owner is None:
            continue
        if info.status.is_final or store.last_row(info.rid).seq + 1 != noted.length:
            continue
        calls = f" ({', '.join(noted.calls)})" if noted.calls else ""
        hint = (
            f"its worker {info.owner} has it, and nothing was recorded for longer than its timeouts allow{calls}: code "
            "that does not come back, perhaps. Look into that process; once it has ended, another goes on with the run"
        )
        yield _entry(info, e.RunBlocked("silent", hint), noted.since, store.mail([info.rid]))


def _served(workers: Iterable[WorkerInfo], lost: Container[str]) -> frozenset[tuple[str, int]]:
    """What live workers announce: workflows and their versions."""
    announced = [name for info in workers if info.worker not in lost for name in info.workflows]
    return frozenset((name, int(version)) for name, _, version in (each.rpartition("/") for each in announced))


def _no_worker(info: RunInfo, served: frozenset[tuple[str, int]]) -> str:
    others = sorted(version for name, version in served if name == info.workflow)
    which = (
        f"live workers have version {', '.join(map(str, others))}" if others else "no live worker knows that workflow"
    )
    return (
        f"it is due, and nobody executes {info.workflow} version {info.version} ({which}). Start a worker with that "
        f"version, or with code that says replays={{{info.version}}}"
    )

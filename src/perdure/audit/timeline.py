"""What happened in a run, told for people: one moment after the other, in the order of the history.

The words for each kind of event stand here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, assert_never

from perdure.clock import MICROSECONDS, time_text
from perdure.codec import told_exception, unpack
from perdure.decisions.premises import decode_values, encode_values
from perdure.engine.rewinding import split
from perdure.gates.budget import told as _told
from perdure.history import events as e
from perdure.history.spending import UNITS, Amount
from perdure.store.protocol import Row, Store


@dataclass(frozen=True)
class Moment:
    """One event. Times are microseconds since the epoch.

    `call` is the label of the call that it is about (`0.2/search#3`), else "". `attempt` is 0 where there are none.
    `took_seconds`: from the start of the attempt, child or section to here. `value`: the result, message or arguments
    as JSON text; of an exception its class, message and place; of a block why. `is_answered`: a start, of whose
    call more is told later. `is_superseded`: the run was rewound since, and it does not count any more.
    """

    seq: int
    at: int
    kind: str
    call: str
    what: str
    attempt: int
    took_seconds: float | None
    value: str
    is_answered: bool = False
    is_superseded: bool = False


class Told(NamedTuple):
    """What an event says. `slot`: which of its payloads is worth showing, `text`: what else is. `since`: when what ends
    here began."""

    what: str
    slot: Literal["", "input", "output", "error"] = ""
    attempt: int = 0
    since: int = 0
    text: str = ""


def timeline(store: Store, rid: int) -> list[Moment]:
    """All moments of a run. HistoryCorruptError if it cannot be read."""
    teller = _Teller(partial(store.blob, rid))
    for row in store.load(rid, from_seq=0).rows:
        teller.take(row)
    return _marked(teller)


def _marked(teller: _Teller) -> list[Moment]:
    """With what does not count any more marked."""
    if not any(type(event) is e.Rewound for event in teller.events):
        return teller.moments
    superseded = set(split(teller.events, range(len(teller.events))).superseded)
    return [dataclasses.replace(each, is_superseded=each.seq in superseded) for each in teller.moments]


class _Teller:
    """Goes through a history and remembers what has begun."""

    def __init__(self, fetch: Callable[[bytes], bytes]) -> None:
        self.moments: list[Moment] = []
        self.events: list[e.Event] = []
        self._fetch = fetch
        self._passed: dict[tuple[str, int], e.Denied] = {}
        self._starts: dict[tuple[str, int], int] = {}
        """Where in `moments` the last start of a call is. Calls are numbered afresh in each chapter."""

    def take(self, row: Row) -> None:
        event = e.decode(row.envelope)
        self.events.append(event)
        told = tell(event)
        if isinstance(event, e.ChapterStarted):
            self._starts.clear()
        answered = self._answer(event)
        began = told.since or answered
        call = event.label if isinstance(event, e.Keyed) else getattr(event, "call", None) or ""
        took = (row.at - began) / MICROSECONDS if began and row.at >= began else None
        value = told.text or self._value(row, event, told.slot)
        what = told.what + self._let_pass_by(event)
        self.moments.append(Moment(row.seq, row.at, row.kind, call, what, told.attempt, took, value))
        if isinstance(event, e.StepStarted | e.ChildStarted | e.SectionStarted):
            self._starts[event.key] = row.seq

    def _let_pass_by(self, event: e.Event) -> str:
        """What had let an effect pass that is over now: its start, which says so, may not be shown beside it."""
        if isinstance(event, e.EffectStarted) and event.passed is not None:
            self._passed[event.key] = event.passed
        elif isinstance(event, e.EffectSucceeded | e.EffectFailed):
            return _passed(self._passed.pop(event.key, None))
        return ""

    def _answer(self, event: e.Event) -> int:
        """When the call began that the event is about; its start is answered now. 0 if there is none."""
        index = self._starts.get(event.key) if isinstance(event, e.Keyed) else None
        if index is None:
            return 0
        start = self.moments[index] = dataclasses.replace(self.moments[index], is_answered=True)
        return start.at if isinstance(event, e.ChildEnded | e.SectionEnded) else 0

    def _value(self, row: Row, event: e.Event, slot: str) -> str:
        if not slot:
            return ""
        inline = row.input if slot == "input" else row.output
        address: bytes | None = getattr(event, "input" if slot == "input" else "output", None)
        if inline is None and (not address or (slot == "input" and not getattr(event, "kept", True))):
            return ""
        raw = unpack(address or b"", inline, self._fetch)
        if isinstance(event, e.PremisesRead):  # how to read them again is not for people
            raw = encode_values(decode_values(raw)[0])
        return told_exception(raw) if slot == "error" else raw.decode()


KNOWN_BY = {
    "found": ", found by look-up",
    "late": ", answered after it was given up for lost",
    "settled": ", says a person",
    "reused": ", from the ledger",
}
"""How it is known that an effect happened, where the attempt's own answer does not say."""


def _by(who: str) -> str:
    return f" by {who}" if who else ""


def _passed(by: e.Denied | None) -> str:
    return f", let pass by {by.told}" if by is not None else ""


def _from(who: str) -> str:
    return f" from {who}" if who else ""


def tell(event: e.AnyEvent) -> Told:
    """What an event says, in words.

    >>> tell(e.RunPaused(by="ann")).what
    'paused by ann'
    """
    match event:
        case e.RunStarted(workflow, version):
            scope = ", ".join(f"{name} {value}" for name, value in (event.scope or {}).items())
            stated = (f" for {event.goal!r}" if event.goal else "") + (f", scope: {scope}" if scope else "")
            return Told(f"{workflow} version {version} started{stated}", "input")
        case e.ChapterStarted(number):
            return Told(f"chapter {number + 1} began", "input")
        case e.RunForked():
            why = f": {event.why}" if event.why else ""
            return Told(f"forked from run {event.of} after its event {event.seq}{_by(event.by)}{why}")
        case e.RunCompleted():
            return Told("completed", "output")
        case e.RunFailed():
            return Told("failed", "error")
        case e.RunCancelled():
            return Told("cancelled by force, without running its code" if event.forced else "cancelled")
        case e.EffectStarted():
            on = "" if event.relies_on is None else f", relying on {' and '.join(event.relies_on) or 'nothing'}"
            return Told(f"sent{_passed(event.passed)}{on}", "input", event.attempt)
        case e.EffectSucceeded():
            how = f"{KNOWN_BY.get(event.how, '')}{_passed(event.passed)}"
            return Told(f"succeeded{how}", "output", event.attempt, event.started_at)
        case e.StepFailed(denied=e.Denied() as denied):
            return Told(f"denied by {denied.told}", "error", event.attempt)
        case e.EffectFailed():
            return Told(f"failed: {event.how}", "error", event.attempt, event.started_at)
        case e.EffectNotDone():
            return Told(f"did nothing, again at {time_text(event.retry_at)}", "error", event.attempt, event.started_at)
        case e.EffectInDoubt():
            return Told(f"in doubt: {event.why}", attempt=event.attempt)
        case e.EffectLookedUp():
            said = event.answer.replace("_", " ") + (f": {event.why}" if event.why else "")
            return Told(f"looked up, {said}")
        case e.EffectNoted():
            return Told(event.note or "noted")
        case e.StepStarted():
            return Told("started", "input", event.attempt)
        case e.StepReused():
            return Told(f"completed, with the result that it had at event {event.of}", "output")
        case e.StepCompleted():
            return Told(
                "completed" if event.attempt else "given by a person", "output", event.attempt, event.started_at
            )
        case e.StepFailed():
            return Told("failed" if event.attempt else "failed by a person", "error", event.attempt, event.started_at)
        case e.AttemptFailed():
            return Told(f"failed, again at {time_text(event.retry_at)}", "error", event.attempt, event.started_at)
        case e.Heartbeat():
            return Told("heartbeat", "output", event.attempt)
        case e.CallCancelled():
            return Told("cancelled by the workflow")
        case e.ChildStarted():
            return Told(f"child {event.run_id} {'attached to' if event.attached else 'started'}", "input")
        case e.ChildDismissed():
            by = f", which child {event.parent} has started," if event.parent else ""
            return Told(f"child {event.run_id}{by} is not wanted any more: it is to stop")
        case e.ChildOwed():
            return Told(f"owes what child {event.run_id} has done", "output")
        case e.ChildEnded():
            return Told(f"child {event.run_id} {event.status}", "output" if event.status == "completed" else "error")
        case e.SectionStarted():
            return Told("section began", "input")
        case e.SectionUndoes():
            return Told("entered a saga")
        case e.SectionWait():
            return Told(f"waits until {time_text(event.deadline)}")
        case e.SectionReceived():
            return Told(f"takes message {event.message!r}")
        case e.SectionGaveBack():
            return Told(f"gives message {event.message!r} back")
        case e.SectionEnded():
            return Told("section failed", "error") if event.failed else Told("section ended", "output")
        case e.TimePassed():
            return Told("time passed")
        case e.MessageArrived():
            return Told(f"message {event.name!r} arrived{_from(event.by)}", "output")
        case e.MessageSettled():
            return Told("failed by a person", "error") if event.failed else Told("given by a person", "output")
        case e.PersonAsked():
            until = f", until {time_text(event.expires_at)}" if event.expires_at else ""
            return Told(f"asks for {event.kind} {event.id}{until}", "input")
        case e.PersonReminded():
            to = f"; {', '.join(event.to)} may decide, too" if event.to else ""
            return Told(f"{event.what} of {event.id}{to}")
        case e.PersonDecided():
            why = f": {event.why}" if event.why else ""
            how = f"refused, {event.refused}: " if event.refused else "early: " if event.is_early else ""
            to = f" to {event.to}" if event.to else ""
            return Told(f"{how}{event.id} {event.choice}{to}{_by(event.by)}{why}")
        case e.ApprovalSpent():
            return Told(f"approval {event.id} has lapsed" if event.lapsed else f"uses approval {event.id}")
        case e.PersonAnswered(choice="denied"):
            return Told("denied, and nobody was asked", "error")
        case e.PersonAnswered(choice="expired"):
            return Told("nobody decided in time")
        case e.PersonAnswered():
            why = f": {event.why}" if event.why else ""
            slot: Literal["output", ""] = "output" if event.choice in {"value", "answer"} else ""
            return Told(f"answered {event.choice}{_by(event.by)}{why}", slot)
        case e.CancelRequested():
            return Told("cancel requested" + (f": {event.reason}" if event.reason else ""))
        case e.RunPaused():
            return Told(f"paused{_by(event.by)}")
        case e.RunResumed():
            return Told(f"resumed{_by(event.by)}")
        case e.Patched():
            return Told(f"patched({event.patch!r}) is {event.answer}")
        case e.Adopted():
            version = event.manifest.get("workflow_version", "?")
            return Told(f"goes on under version {version}, {event.how}{_by(event.by)}", text=event.told)
        case e.TakenOver(how="left"):
            return Told("taken on while something may be under way from before")
        case e.TakenOver():
            return Told(f"taken over from {event.previous} (dead by {event.how})")
        case e.RunBlocked():
            return Told(f"blocked as {event.reason}", text=event.hint)
        case e.RunUnblocked(choice="succeeded" | "failed"):
            return Told(f"settled: {event.choice}{_by(event.by)}", text=event.why)
        case e.RunUnblocked():
            return Told(f"unblocked: {event.choice}{_by(event.by)}", text=event.why)
        case e.BudgetReserved():
            return Told(f"reserves {_amount(event.amount)}", attempt=event.attempt)
        case e.BudgetSpent(how="not_begun"):
            return Told("not begun, nothing used", attempt=event.attempt)
        case e.BudgetSpent():
            how = ", as reserved: nobody heard what came of it" if event.how == "interrupted" else ""
            models = ", ".join(dict.fromkeys(use.model for use in event.uses if use.model))
            return Told(f"used {_amount(event.amount)}{how}", attempt=event.attempt, text=models)
        case e.BudgetPriced():
            return Told(f"priced: {_amount(event.amount)}")
        case e.BudgetRaised():
            whose = f" of {event.budget}" if event.budget else ""
            limits = ", ".join(_told(unit, limit) for unit in (*UNITS, "wall") if (limit := event.limits.of(unit)))
            return Told(f"budget{whose} raised to {limits}{_by(event.by)}", text=event.why)
        case e.PremisesRead():
            facts = ", ".join(fact.name for fact in event.facts) or "nothing that was read"
            again = "made again, with the same result; " if event.renews else ""
            until = f", good until {time_text(event.valid_until)}" if event.valid_until else ""
            return Told(f"{again}rests on {facts}{until}", "output")
        case e.PremisesChecked():
            on = "" if event.relies_on is None else f", {' and '.join(event.relies_on)} alone"
            return Told(f"decisions checked ({event.why}{on}): {_findings(event)}", "output" if event.output else "")
        case e.Rewound():
            return Told(f"rewound to event {event.to}: {event.call} has another result now")
        case _:
            assert_never(event)


def _findings(event: e.PremisesChecked) -> str:
    if not event.findings:
        return f"{event.looked_at} stand" if event.looked_at != 1 else "it stands"
    calls: dict[str, list[str]] = {}
    for finding in event.findings:
        calls.setdefault(_finding(finding), []).append(finding.call)
    return "; ".join(f"{_some(of)} {told}" for told, of in calls.items())


def _some(calls: Sequence[str]) -> str:
    more = f" and {len(calls) - CALLS_SHOWN_MAX} more:" if len(calls) > CALLS_SHOWN_MAX else ""
    return ", ".join(calls[:CALLS_SHOWN_MAX]) + more


CALLS_SHOWN_MAX = 5


def _finding(finding: e.Finding) -> str:
    why = [f"{' and '.join(finding.changed)} changed"] if finding.changed else []
    why += ["its time is over"] if finding.is_expired else []
    return f"{', '.join(why) or 'cannot be read'}: {finding.did}"


def _amount(amount: Amount) -> str:
    return ", ".join(_told(unit, amount.of(unit)) for unit in UNITS if amount.of(unit)) or "nothing"

"""What the code of a run asks people: put, decided, expired, withdrawn, used up.

    ask ──▶ asked, durable ──▶ announced ──▶ decisions come by mail ──▶ decided ──▶ the call, which uses the approval up
                                       └──▶ its time is up, and no decision lies in the mailbox ──▶ expired

Whether a decision counts is `perdure.decisions`'; here it is taken into the history. Only the holder of a run's epoch
does that, so of a decision and an expiry, or of two decisions, the one that is recorded first has won. The row of a
request changes in the commit of its event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import time_text
from perdure.codec import dump_exception, pack
from perdure.codec.hiding import alike
from perdure.decisions import (
    ApprovalEntry,
    ApprovalState,
    Decision,
    Happening,
    Refusal,
    Request,
    decide,
    identity,
    refusal_of_state,
    request_hash,
    withdrawn_votes,
)
from perdure.decisions.deciding import decode_decision, encode_decision
from perdure.decisions.entry import BODY_IN_ROW_BYTES_MAX, What
from perdure.engine.calls import ChildAsk, Grant, Key, Overdue, RequestAsk, StepAsk
from perdure.errors import (
    ApprovalExpired,
    AuthorityUnreadableError,
    CheckTooOld,
    PerdureBug,
    PerdureError,
    PolicyDenied,
)
from perdure.history import events as e
from perdure.runtime import mail
from perdure.runtime.live import Entry, LiveRun
from perdure.specs import EffectSpec, StepSpec
from perdure.store.protocol import DECISION_KIND, Letter, Mail

if TYPE_CHECKING:
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.performer import Flight
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.inbox")

IN_THE_LOG: Mapping[What, str] = {
    "new": "", "repeat": " (asked before)", "reminder": " (a reminder)", "escalation": " (escalated)",
}  # fmt: skip

LATER: tuple[What, What] = ("reminder", "escalation")
"""Why people are told of a request once more when nobody decides."""

OUTCOMES = {ApprovalState.APPROVED: "approve", ApprovalState.REJECTED: "reject", ApprovalState.ANSWERED: "answer"}


class Approvals:
    """The requests of all runs in memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.on_announced: Callable[[ApprovalEntry, What, str], None] = lambda row, what, once: None

    def row(self, live: LiveRun, approval: str) -> ApprovalEntry | None:
        """The row of a request as it will be once what this run has on its way is durable."""
        written = live.under_way.entries if live.under_way is not None else ()
        for entry in chain(reversed(live.entries), reversed(written)):
            if entry.approval is not None and entry.approval.approval_id == approval:
                return entry.approval
        found = self._turns.store.approval(approval)
        return found if found is not None and found.rid == live.rid else None

    # ── asked ────────────────────────────────────────────────────────────────────────────────
    def ask(self, live: LiveRun, ask: RequestAsk) -> None:
        """The code asks in its own name: put it to people; or, once more, since it was asked before."""
        of = (*ask.key, ask.name, ask.use)
        self.put(live, of, ask.id, ask.request, ask.raw, ask.packed, ask.expires_at, ask.about)

    def put(
        self, live: LiveRun, of: tuple[str, int, str, int], approval: str, request: Request, raw: bytes, packed: Any,
        expires_at: int, about: StepSpec | None = None,
    ) -> None:  # fmt: skip
        """Put a request to people, announced once it is durable; one that was put before is announced as a repeat. What
        policies refuse, approved or not, is denied at once, and nobody is asked."""
        if live.is_in_turn:
            live.deferred += (partial(self.put, live, of, approval, request, raw, packed, expires_at, about),)
            return
        if live.is_gone or live.is_leaving:
            return
        if of[:2] in live.execution.known.asked:
            self._announce_again(live, approval)
            return
        info, now = live.info, self._turns.clock.now()
        call = identity(live.execution.beginning.chapter, *of[:2])
        hashed = request_hash(live.run_id, call, info.workflow, info.version, raw)
        escalates_at = now + request.escalate if request.escalate else 0
        event = e.PersonAsked(
            *of, request.kind, approval, hashed, info.version, packed.digest, expires_at,
            now + request.remind if request.remind else 0, escalates_at,
        )  # fmt: skip
        stated = live.execution.beginning
        scope = msgspec.json.encode(stated.scope, order="sorted").decode() if stated.scope else ""
        policy, refused = self._turns.gates.request(live, about, request) if self._is_gated(live, about) else ("", None)
        row = ApprovalEntry(
            approval, live.rid, live.run_id, info.workflow, info.version, request.kind, call, event.label, request.name,
            event.hash, ApprovalState.PENDING, request.approvers, request.quorum, request.recheck, request.note, now,
            now, expires_at, packed.digest, raw if len(raw) <= BODY_IN_ROW_BYTES_MAX else None, policy=policy,
            goal=stated.goal, scope=scope, escalates_at=escalates_at, escalate_to=request.escalate_to,
        )  # fmt: skip
        if refused is not None:
            self._deny(live, event, row, packed, refused)
            return
        early = live.execution.known.early.get(approval, ())
        self._record(live, event, row, input=packed)
        live.then += (lambda: self._announce(live, row, "new"),)
        for decided, value in list(early):
            try:
                self._decide(live, row, _decision_of(decided, value), decided.sent_at)
            except AuthorityUnreadableError:
                live.letters += (self._again(live, approval, decided, value),)
                live.then += (self._turns.on_letters,)
            row = self.row(live, approval) or row
        self._turns.mark(live)

    def _is_gated(self, live: LiveRun, about: StepSpec | None) -> bool:
        return live.is_gated or (isinstance(about, EffectSpec) and not about.reversible)

    def _deny(
        self, live: LiveRun, asked: e.PersonAsked, row: ApprovalEntry, packed: Any, refused: PolicyDenied
    ) -> None:
        """It is not asked: recorded, and withdrawn in the same commit."""
        self._turns.gates.note(live, asked.label, refused)
        self._record(live, asked, row, input=packed)
        raw = dump_exception(refused, ())
        output = pack(raw, live.execution.memo)
        event = e.PersonAnswered(*row.parts, "denied", why=refused.why, output=output.digest)
        live.has_sections |= event.is_in_section
        row = row.moved(Happening.WITHDRAWN, now=row.asked_at)
        self._record(live, event, row, raw=raw, output=output, delivers=True)
        self._turns.mark(live)

    def _announce_again(self, live: LiveRun, id: str) -> None:
        row, known = self.row(live, id), live.execution.known
        if row is None or row.status is not ApprovalState.PENDING:
            return
        for what in LATER:
            if (id, what) in known.reminded:  # whoever recorded that may have died before it was told
                self.on_announced(row, what, "")
        if not self._due(live):  # else it is announced as that
            self._announce(live, row, "repeat")

    def _announce(self, live: LiveRun, row: ApprovalEntry, what: What) -> None:
        """Tell of an open request: in the log, and whoever listens. A repeat is one for each time that the run came to
        a worker."""
        _told_in_the_log(row, what)
        self.on_announced(row, what, str(live.epoch) if what == "repeat" else "")

    def is_too_early(self, live: LiveRun, letter: Mail) -> bool:
        """Whether an answer has come to a question that hosted code has not asked again yet: whether it fits is not
        known so far."""
        asked = next((key for key, asked in live.execution.known.requests.items() if asked.id == letter.key), None)
        is_answer = asked is not None and ":" in asked[0] and decode_decision(letter.body).choice == "answer"
        return is_answer and asked is not None and not self._turns.sections.has_asked(live, asked)

    # ── decided ──────────────────────────────────────────────────────────────────────────────
    def take(self, live: LiveRun, letter: Mail) -> None:
        """A decision has come."""
        decision = decode_decision(letter.body)
        row = self.row(live, letter.key)
        if row is not None:
            self._decide(live, row, decision, letter.sent_at)
            return
        value = None if decision.value is None else decision.value.encode()
        output = None if value is None else pack(value, live.execution.memo)
        decided = _decided(
            decision, letter.key, letter.sent_at, is_early=True, output=output.digest if output else b""
        )
        live.has_approvals = True
        live.execution.known.note_request(decided, value)
        live.record(decided, output=output)

    def _decide(self, live: LiveRun, row: ApprovalEntry, decision: Decision, at: int) -> None:
        following = decide(row, decision, at, self._turns.authority)
        if not isinstance(following, Refusal) and decision.choice == "answer":
            problem = self._misfit(live, row, (decision.value or "null").encode())
            following = following if problem is None else Refusal("misfit", problem)
        if isinstance(following, Refusal):
            refused = f"{following.why}: {following.told}"
            self._record(live, _decided(decision, row.approval_id, at, refused=refused), None)
            log.warning("run %s: what %s decided about %s is refused: %s", live.run_id, decision.by, row.label, refused)
        elif following.status is ApprovalState.APPROVED and (withdrawn := self._withdrawn(live, row)) is not None:
            self._decide(live, withdrawn, decision, at)
        elif following.status is ApprovalState.PENDING:
            to = (decision.value or "") if decision.choice == "delegate" else ""
            self._record(live, _decided(decision, row.approval_id, at, to=to), following)
        else:
            self._answer(live, following, decision, (decision.value or "null").encode())

    def _withdrawn(self, live: LiveRun, row: ApprovalEntry) -> ApprovalEntry | None:
        """The row without the votes of those who may not give them any more; None if all may. They stand in the history
        as refused, and those who gave them may decide again if they get their role back."""
        lost = withdrawn_votes(row, self._turns.authority)
        for vote, refused in lost:
            given = Decision(vote.choice, row.request_hash.hex(), vote.by, vote.role, vote.comment)
            event = _decided(given, row.approval_id, vote.at, refused=f"{refused.why}: {refused.told}")
            self._record(live, event, None)
        gone = [vote for vote, _ in lost]
        return row._replace(said=tuple(vote for vote in row.said if vote not in gone)) if lost else None

    def _misfit(self, live: LiveRun, row: ApprovalEntry, value: bytes) -> str | None:
        """Why this cannot be the answer; None if it can, or if the code that asks has not come so far again."""
        key = row.parts[:2]
        ask = live.execution.open.get(key)
        if not isinstance(ask, RequestAsk):
            return self._turns.sections.misfit(live, key, value)
        if (no := ask.request.refuses(value)) is not None:
            return no
        try:
            ask.codec.loads(value)
        except Exception as error:  # a DecodeError, or what a class makes of its fields
            return str(error)
        return None

    def _answer(self, live: LiveRun, row: ApprovalEntry, decision: Decision, value: bytes) -> None:
        output = pack(value, live.execution.memo)
        event = e.PersonAnswered(
            *row.parts, OUTCOMES.get(row.status, "expired"), decision.by, decision.comment, output.digest, decision.role
        )
        live.has_sections |= event.is_in_section
        self._record(live, event, row, raw=value, output=output, delivers=True)

    # ── its time is up ───────────────────────────────────────────────────────────────────────
    def expire(self, live: LiveRun, id: str) -> None:
        """The time of a request is up: what was decided before lies in the mailbox, and counts. It stays there while
        the run is paused: then it is looked at when that is over."""
        if live.is_in_turn:
            live.deferred += (partial(self.expire, live, id),)
            return
        if not live.is_gone:
            self._turns.take_mail(self._turns.store.mail([live.rid]))
        row = self.row(live, id)
        if row is None or row.status is not ApprovalState.PENDING or live.is_gone or live.is_leaving:
            return
        if live.is_parked:
            ask = live.execution.open.get(row.parts[:2])
            if isinstance(ask, RequestAsk):  # hosted code waits anew by itself
                live.held += (Overdue(ask),)
            return
        now = self._turns.clock.now()
        self._answer(live, row.moved(Happening.TIMED_OUT, now=now), Decision("expired", "", ""), b"null")
        self._turns.mark(live)

    # ── nobody decides ───────────────────────────────────────────────────────────────────────
    def deadline(self, live: LiveRun) -> int | None:
        """When people are to be told once more of something that the run asks, the next time."""
        return min((at for at, *_ in self._to_come(live)), default=None)

    def _due(self, live: LiveRun) -> list[tuple[e.PersonAsked, What]]:
        """Of what people are to be told once more by now."""
        now = self._turns.clock.now()
        return [(asked, what) for at, asked, what in self._to_come(live) if at <= now]

    def _to_come(self, live: LiveRun) -> Iterator[tuple[int, e.PersonAsked, What]]:
        reminded = live.execution.known.reminded
        for asked in live.execution.known.requests.values():
            for what, at in zip(LATER, (asked.reminds_at, asked.escalates_at), strict=True):
                if at and (asked.id, what) not in reminded:
                    yield at, asked, what

    def remind(self, live: LiveRun) -> None:
        """Time has passed: tell people once more of what is open, unless it was decided, or its time is up."""
        if self._due(live):
            self._turns.take_mail(self._turns.store.mail([live.rid]))
        for asked, what in () if live.is_parked else self._due(live):  # a pause may have come with the mail
            row, now = self.row(live, asked.id), self._turns.clock.now()
            live.execution.known.reminded.add((asked.id, what))
            if row is None or row.status is not ApprovalState.PENDING or 0 < asked.expires_at <= now:
                continue
            to = row.escalate_to if what == "escalation" else ()
            self._record(live, e.PersonReminded(asked.id, what, to), None)
            live.then += (partial(self._announce, live, row, what),)
        self._turns.mark(live)

    # ── not wanted any more ──────────────────────────────────────────────────────────────────
    def withdraw(self, live: LiveRun, key: Key, cancelled: e.CallCancelled) -> None:
        """The code does not wait for this request any more."""
        asked = live.execution.known.requests.get(key)
        row = None if asked is None else self.row(live, asked.id)
        if row is not None and not row.status.is_final and row.status is not ApprovalState.USED:
            row = row.moved(Happening.WITHDRAWN, now=self._turns.clock.now())
            self._record(live, cancelled, row)
        else:
            live.record(cancelled)

    def withdraw_all(self, live: LiveRun, inside: str = "") -> None:
        """The run ends, or the hosted code whose calls begin with `inside`: nobody waits for its requests."""
        if not live.has_approvals:
            return
        for key, asked in list(live.execution.known.requests.items()):
            if key[0].startswith(inside):
                self.withdraw(live, key, e.CallCancelled(*key, asked.name, asked.use))

    def carry_early(self, live: LiveRun) -> None:
        """What was decided before it was asked may be asked in the next chapter: it comes once more."""
        if not live.has_approvals:
            return
        for approval, decided in live.execution.known.early.items():
            for event, value in decided:
                live.letters += (self._again(live, approval, event, value),)

    def _again(self, live: LiveRun, approval: str, event: e.PersonDecided, value: bytes | None) -> Letter:
        """A decision as it came: it is to come once more."""
        body = encode_decision(_decision_of(event, value))
        letter = mail.letter(live.run_id, DECISION_KIND, key=approval, body=body, now=self._turns.clock.now())
        return Letter(*letter[:5], event.sent_at)

    def lapse(self, live: LiveRun, approval: str, call: str) -> None:
        """What was approved is not done: the approval is good for nothing else."""
        if approval not in live.execution.known.spent:
            self.has_lapsed(live, e.ApprovalSpent(approval, call, lapsed=True))
            self._turns.mark(live)

    def has_lapsed(self, live: LiveRun, event: e.ApprovalSpent) -> None:
        """The code does not make the call: it is too late, or what it rests on is something else by now."""
        row = self.row(live, event.id)
        if row is None or row.status is not ApprovalState.APPROVED:
            raise PerdureBug(f"{event.call} was approved by {event.id}, which does not stand")
        self._record(live, event, row.moved(Happening.LAPSED, now=self._turns.clock.now()))

    # ── used up ──────────────────────────────────────────────────────────────────────────────
    def gate(self, flight: EffectFlight, grant: Grant) -> PerdureError | None:
        """Why an effect that was approved may not be sent now; None if it may. Then its start uses the approval up."""
        row, refused = self._judged(flight.live, flight.ask, grant, flight.entry.operation_id)
        flight.approval = row or flight.approval
        return refused

    def begin(self, live: LiveRun, ask: StepAsk | ChildAsk, grant: Grant) -> PerdureError | None:
        """Why a step or child run that was approved may not begin now; None if it may. Then its approval is used up, in
        the commit that records its start."""
        row, refused = self._judged(live, ask, grant, ask.label)
        if row is not None:
            self._record(live, e.ApprovalSpent(grant.id, ask.label, refused is not None), row)
        elif refused is None and self._began_late(live, ask, grant):  # whoever recorded it did not let it begin
            told = f"{ask.label}: its start took too long to be recorded, and it had to begin before: ask again"
            return ApprovalExpired(told, grant.id)
        return refused

    def _began_late(self, live: LiveRun, ask: StepAsk | ChildAsk, grant: Grant) -> bool:
        """Whether a start that is in the history stands there with a time at which it was too late already."""
        recorded_at = live.execution.known.spent.get(grant.id, 0)
        return grant.is_late(recorded_at) and not live.execution.attempts_at(ask.key).failed

    def _judged(
        self, live: LiveRun, ask: StepAsk | ChildAsk, grant: Grant, by: str
    ) -> tuple[ApprovalEntry | None, PerdureError | None]:
        """What an approval comes to now that its call is to begin, None if it stays as it is; and why that may not
        begin. `by`: what uses it up, an operation or a call."""
        now, label = self._turns.clock.now(), ask.label
        row = self.row(live, grant.id)
        if row is None and live.info.lineage:
            return None, ApprovalExpired(
                f"{label}: it was approved for the run that this one was forked from: ask again", grant.id
            )
        if row is None:
            raise PerdureBug(f"{label} was approved by {grant.id}, which is not there")
        if not alike(ask.input, grant.arguments):
            raise PerdureBug(f"{label}: what was approved by {grant.id} is not what is about to begin")
        if row.status is ApprovalState.USED and row.used_by == by:
            return None, None  # another attempt at the same
        if row.status is not ApprovalState.APPROVED:
            why = f"used by {row.used_by}" if row.status is ApprovalState.USED else refusal_of_state(row).told
            return None, ApprovalExpired(f"{label}: the approval {grant.id} does not stand: {why}", grant.id)
        stale = self._stale(row, grant, now)
        if stale:
            return row.moved(Happening.LAPSED, now=now), ApprovalExpired(f"{label}: {stale}", grant.id)
        if grant.is_outdated(now):
            return None, CheckTooOld(f"{label}: what its approval rests on is to be read again")
        return row.used(by, now=now), None

    def _stale(self, row: ApprovalEntry, grant: Grant, now: int) -> str:
        """Why an approval that was given does not hold any more; "" if it does."""
        if grant.is_late(now):
            return f"it was approved, and had to begin before {time_text(grant.expires_at)}: ask again"
        lost = withdrawn_votes(row, self._turns.authority) if grant.recheck else []
        if not lost or len(set(row.approved_by) - {vote.by for vote, _ in lost}) >= row.quorum:
            return ""
        told = "; ".join(refused.told for _, refused in lost)
        return f"the approval {row.approval_id} is stale, ask again: {told}"

    def too_late(self, flight: Flight, grant: Grant) -> ApprovalExpired | None:
        """Why a call whose start has used its approval up is not to begin after all: it took too long until the start
        was durable."""
        now = self._turns.clock.now()
        if flight.number or not (grant.is_late(now) or grant.is_outdated(now)):
            return None
        why = "it had to begin before" if grant.is_late(now) else "what it rests on was read too long ago"
        told = f"{flight.ask.label}: its start took too long to be recorded, and {why}: ask again"
        return ApprovalExpired(told, grant.id)

    def unused(self, live: LiveRun, grant: Grant) -> ApprovalEntry | None:
        """The row of an approval once the call that it was given for is not made: it is good for no other one."""
        row = self.row(live, grant.id)
        if row is None or row.status is not ApprovalState.APPROVED:
            return None
        return row.moved(Happening.LAPSED, now=self._turns.clock.now())

    def _record(self, live: LiveRun, event: e.Event, row: ApprovalEntry | None, **more: Any) -> None:
        """Put an event on its way, the row in the same commit."""
        live.has_approvals = True
        live.execution.known.note_request(event)
        live.entries.append(Entry(event, approval=row, **more))


def _decided(
    decision: Decision, id: str, at: int, *, to: str = "", refused: str = "", is_early: bool = False,
    output: bytes = b"",
) -> e.PersonDecided:
    return e.PersonDecided(
        id, decision.choice, decision.by, decision.request_hash, decision.role, decision.comment, to, output, at,
        is_early, refused,
    )  # fmt: skip


def _decision_of(event: e.PersonDecided, value: bytes | None) -> Decision:
    text = value.decode() if value is not None else event.to or None
    return Decision(event.choice, event.hash, event.by, event.role, event.why, text)


def _told_in_the_log(row: ApprovalEntry, what: What) -> None:
    until = f", until {time_text(row.expires_at)}" if row.expires_at else ""
    again = IN_THE_LOG[what]
    log.info(
        "run %s asks for %s %s: %s, by %s%s%s", row.run_id, row.kind, row.approval_id, row.subject,
        ", ".join(row.approvers) or "anybody", until, again,
    )  # fmt: skip


__all__ = ["Approvals"]

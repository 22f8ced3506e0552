"""What people are asked, as whoever decides sees it; and deciding it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from perdure.clock import when
from perdure.codec import codec_for, unpack
from perdure.decisions import ApprovalEntry, ApprovalState, Authority, Decision, Request, refusal_of
from perdure.decisions.deciding import decode_decision, encode_decision
from perdure.decisions.request import decode_request
from perdure.errors import DecisionRefused, DecodeError, RunFinishedError, UnknownNameError, UsageError
from perdure.specs import members, recordable
from perdure.store import rules
from perdure.store.protocol import (
    DECISION_KIND,
    NO_TAGS,
    ApprovalFilter,
    Decide,
    Ended,
    Mail,
    Missing,
    Outcome,
    Refused,
    Store,
)

HASH_DIGITS = 64
HASH_DIGITS_MIN = 8
"""Whoever decides names at least so much of the hash that they saw."""

PENDING = frozenset({ApprovalState.PENDING})
COMMENT_CHARACTERS_MAX = 100_000
_PLAIN = codec_for(Any)


class Said(msgspec.Struct, frozen=True):
    """What one person said about a request. `to`: whom they handed it on to."""

    choice: str
    by: str
    at: datetime
    role: str
    comment: str
    to: str


class RequestSummary(msgspec.Struct, frozen=True):
    """One thing that people are, or were, asked: an approval of exactly one call, or a question (`kind`).

    `hash` is what a decision has to name. `subject`: the name of the call, or the question; `arguments`: of the call,
    or what the question is about, as plain JSON; `key`: an effect's business key. `call`: the call that asks
    (`0/approve:refund#1`). `approvers`: who may decide now, everybody if nobody is named; `quorum`: how many have to
    approve. `type`: what an answer is; `answers`: all there are, where they can be listed. `facts`: what the call rests
    on, as it was when it was asked. `used_by`: the operation, or the call, that has used an approval up. `risk`: `high`
    if the call cannot be taken back, or is declared so.
    `policy`: which rules wanted the approval when it was asked for. `goal`, `scope`: what the run has stated when it
    was started.
    From `escalates_at` on those of `escalate_to` may decide, too.
    """

    id: str
    run_id: str
    workflow: str
    version: int
    kind: str
    status: str
    subject: str
    arguments: Any
    key: str
    note: str
    hash: str
    call: str
    approvers: tuple[str, ...]
    quorum: int
    recheck: bool
    type: str
    answers: tuple[Any, ...]
    facts: Mapping[str, Any]
    said: tuple[Said, ...]
    asked_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    used_by: str
    risk: str = ""
    policy: str = ""
    goal: str = ""
    scope: Mapping[str, str] = NO_TAGS
    escalates_at: datetime | None = None
    escalate_to: tuple[str, ...] = ()


def summary_of(store: Store, row: ApprovalEntry) -> RequestSummary:
    body = body_of(store, row)
    said = tuple(Said(v.choice, v.by, when(v.at), v.role, v.comment, v.to) for v in row.said)
    return RequestSummary(
        row.approval_id, row.run_id, row.workflow, row.version, row.kind, str(row.status), row.subject,
        msgspec.json.decode(body.arguments), body.key, row.note, row.request_hash.hex(), row.label, row.approvers,
        row.quorum, row.recheck, body.type, tuple(map(msgspec.json.decode, body.choices)),
        {name: msgspec.json.decode(value) for name, value in body.facts}, said, when(row.asked_at),
        when(row.updated_at), when(row.expires_at) if row.expires_at else None, row.used_by, body.risk,
        row.policy, row.goal, msgspec.json.decode(row.scope) if row.scope else NO_TAGS,
        when(row.escalates_at) if row.escalates_at else None, row.escalate_to,
    )  # fmt: skip


def body_of(store: Store, row: ApprovalEntry) -> Request:
    """All that was asked, wherever it is kept."""
    raw = row.body
    if raw is None:
        raw = unpack(row.body_digest, None, lambda wanted: store.blob(row.rid, wanted))
    return decode_request(raw)


def states(status: Any) -> frozenset[ApprovalState] | None:
    """The states that are meant. UnknownNameError for what is none."""
    return members(ApprovalState, status, call="requests", noun="state", name="state of a request")


def pending(store: Store) -> list[ApprovalEntry]:
    """All requests that nobody has decided."""
    found: list[ApprovalEntry] = []
    before = None
    while page := store.approvals(ApprovalFilter(status=PENDING, before=before, limit=500)):
        known = {row.approval_id for row in found}
        new = [row for row in page if row.approval_id not in known]
        found += new
        if not new or len(page) < 500:
            break
        before = page[-1].asked_at + 1
    return found


def told(letters: Iterable[Mail], approval_id: str) -> tuple[str, ...]:
    """Decisions about a request that lie in the mailbox: `approve by ann`."""
    said = [decode_decision(letter.body) for letter in _about(letters, approval_id)]
    return tuple(f"{each.choice} by {each.by}" for each in said)


def _about(letters: Iterable[Mail], approval_id: str) -> list[Mail]:
    return [letter for letter in letters if (letter.kind, letter.key) == (DECISION_KIND, approval_id)]


# ── deciding ────────────────────────────────────────────────────────────────────────────────


def decision(choice: str, *, hash: Any, by: Any, role: Any, comment: Any, value: str | None = None) -> Decision:
    """What is decided, checked. `hash` may be cut short."""
    person = recordable(by, what="by")
    acting = recordable(role, what="role") if role != "" else ""
    said = comment and recordable(comment, what="comment", length_max=COMMENT_CHARACTERS_MAX, is_name=False)
    if not isinstance(hash, str) or not re.fullmatch(f"[0-9a-fA-F]{{{HASH_DIGITS_MIN},{HASH_DIGITS}}}", hash):
        raise UsageError(
            f"hash={hash!r}: the hash of what you saw (the inbox shows it), at least its first {HASH_DIGITS_MIN} digits"
        )
    return Decision(choice, hash.lower(), person, acting, said, value)


def write_of(
    store: Store, id: str, run_id: str | None, given: Decision, now: int, near: Callable[[], list[str]],
    authority: Authority | None,
) -> Decide:  # fmt: skip
    """The decision as it is sent, if it would count as things stand.

    UnknownNameError for an id that there is not (in this run, if one is named); DecisionRefused for what changes
    nothing; DecodeError for an answer that does not fit."""
    row = store.approval(recordable(id, what="request id"))
    if row is None:
        check_allowed(authority, _kind_of(given), given.choice, by=given.by, role=given.role, about=f"request {id}")
        return _early(store, id, run_id, given, near)
    if run_id is not None and row.run_id != run_id:
        raise UnknownNameError(f"request of run {run_id}", id, near())
    full = row.request_hash.hex()
    if full.startswith(given.request_hash):
        given = msgspec.structs.replace(given, request_hash=full)
    sent = Decide(os.urandom(16), row.run_id, id, encode_decision(given))
    waiting = [(letter.body, letter.sent_at) for letter in _about(store.mail([row.rid]), id)]
    check_sent(rules.refused(sent, row, waiting, now, authority), sent)
    if given.choice == "answer":
        _check_answer(body_of(store, row), (given.value or "null").encode())
    return sent


def _kind_of(given: Decision) -> str:
    """Of what nobody has asked yet, as far as the decision tells."""
    return "question" if given.choice == "answer" else "approval"


def check_allowed(
    authority: Authority | None, reason: str, choice: str, *, by: str, role: str = "", about: str
) -> None:
    """DecisionRefused if this person may not make this choice."""
    refused = refusal_of(authority, reason, choice, by=by, role=role)
    if refused is not None:
        raise DecisionRefused(f"{about}: {refused.told}; nothing was changed", "", refused.why)


def _early(store: Store, id: str, run_id: str | None, given: Decision, near: Callable[[], list[str]]) -> Decide:
    """Nobody has asked that yet. Who decides it all the same says of which run, and names the whole hash."""
    if run_id is None:
        raise UnknownNameError("request", id, near())
    if len(given.request_hash) < HASH_DIGITS:
        raise UsageError(
            f"there is no request {id} yet: a decision that comes early names all {HASH_DIGITS} digits of the hash"
        )
    if store.find(run_id) is None:
        raise UnknownNameError("run", run_id)
    return Decide(os.urandom(16), run_id, id, encode_decision(given), True)


def check_sent(outcome: Outcome | None, sent: Decide) -> None:
    """What the store says about the decision: as things stand, or in the transaction in which it was delivered."""
    match outcome:
        case Refused(why, told):
            raise DecisionRefused(
                f"request {sent.approval_id} of run {sent.run_id}: {told}; nothing was changed", sent.approval_id, why
            )
        case Ended(status):
            raise RunFinishedError(f"run {sent.run_id} {status.ended}: it takes no decision any more")
        case Missing():
            raise UnknownNameError("run", sent.run_id)
        case _:
            pass


_BUILTIN_ANSWERS: dict[str, Any] = {
    kind.__name__: kind for kind in (str, int, float, bool, list, dict)
}
"""Types of answers that are known everywhere; others only where the code that asks is."""


def _check_answer(body: Request, value: bytes) -> None:
    if (no := body.refuses(value)) is not None:
        raise DecodeError("$", no)
    kind = _BUILTIN_ANSWERS.get(body.type)
    if kind is None:
        return
    try:
        codec_for(kind).loads(value)
    except DecodeError:
        raise DecodeError("$", f"{value.decode():.80} is no answer here: one of type {body.type} is wanted") from None


def plain(value: Any) -> str:
    """An answer as it is sent."""
    return _PLAIN.dumps(value).decode()


__all__ = ["RequestSummary", "Said"]

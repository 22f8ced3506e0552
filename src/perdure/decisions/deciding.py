"""Does this decision count, and what follows from it?

The same function answers in the store's transaction in which somebody decides (so that of two who decide at once one
learns that it was too late), and when the worker that has the run takes the decision into its history.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.decisions.authority import Authority, Refusal, refusal_of
from perdure.decisions.entry import ApprovalEntry, Vote
from perdure.decisions.states import ApprovalState, Happening

CHOICES: Mapping[str, tuple[str, ...]] = {
    "approval": ("approve", "reject", "delegate"),
    "question": ("answer", "delegate"),
}
"""What can be decided about each kind of request."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody decides. `request_hash`, hexadecimal: of what they saw. `by` is the person, `role` what they act
    as. `value`: an answer as JSON, or the name of whom a delegation is to."""

    choice: str
    request_hash: str
    by: str
    role: str = ""
    comment: str = ""
    value: str | None = None


encode_decision = msgspec.json.Encoder().encode
decode_decision = msgspec.json.Decoder(Decision).decode


def decide(
    entry: ApprovalEntry, decision: Decision, at: int, authority: Authority | None = None
) -> ApprovalEntry | Refusal:
    """The row after this decision, made at `at`; or why it does not count. `authority`: where it is known."""
    refused = _refusal(entry, decision, at, authority)
    if refused is not None:
        return refused
    vote = Vote(decision.choice, decision.by, at, decision.role, decision.comment)
    if decision.choice == "delegate":
        to = decision.value or ""
        approvers = tuple(dict.fromkeys((*entry.approvers, to)))
        row = entry.moved(Happening.DELEGATED, now=at)._replace(approvers=approvers)
        return row._replace(said=(*entry.said, msgspec.structs.replace(vote, to=to)))
    row = entry._replace(said=(*entry.said, vote))
    if decision.choice == "approve":
        return row.moved(Happening.APPROVED if len(set(row.approved_by)) >= entry.quorum else Happening.VOTED, now=at)
    return row.moved(Happening.REJECTED if decision.choice == "reject" else Happening.ANSWERED, now=at)


def _refusal(
    entry: ApprovalEntry, decision: Decision, at: int, authority: Authority | None
) -> Refusal | None:
    if decision.request_hash != entry.request_hash.hex():
        return Refusal(
            "wrong_hash",
            f"the decision is about {decision.request_hash[:12]}, asked is {entry.request_hash.hex()[:12]}: look again "
            "at what is asked",
        )
    if entry.status is not ApprovalState.PENDING:
        return refusal_of_state(entry)
    if entry.expires_at and at >= entry.expires_at:
        return Refusal("expired", "nobody has decided in time")
    if decision.choice not in CHOICES[entry.kind]:
        wanted = " or ".join(CHOICES[entry.kind])
        return Refusal("wrong_kind", f"it is {_with_article(entry.kind)}: {wanted} it, not {decision.choice}")
    return _refusal_of_person(entry, decision, at) or refusal_of(
        authority, entry.kind, decision.choice, by=decision.by, role=decision.role
    )


def withdrawn_votes(entry: ApprovalEntry, authority: Authority | None) -> list[tuple[Vote, Refusal]]:
    """Approvals that counted when they were given, and would not now: who gave them has lost the role, or the right."""
    found = [
        (vote, refusal_of(authority, entry.kind, vote.choice, by=vote.by, role=vote.role))
        for vote in entry.said
        if vote.choice == "approve"
    ]
    return [(vote, refused) for vote, refused in found if refused is not None]


def refusal_of_state(entry: ApprovalEntry) -> Refusal:
    """Why nothing can be decided about a request that is not pending."""
    match entry.status:
        case ApprovalState.EXPIRED:
            return Refusal("expired", "nobody has decided in time")
        case ApprovalState.WITHDRAWN:
            return Refusal("withdrawn", "whoever asked does not wait for it any more")
        case ApprovalState.LAPSED:
            return Refusal("lapsed", "it was approved, and the call could not begin in time")
        case _:
            by = ", ".join(dict.fromkeys(vote.by for vote in entry.said if vote.choice != "delegate"))
            return Refusal("decided", f"it is {entry.status} already" + (f", by {by}" if by else ""))


def _refusal_of_person(entry: ApprovalEntry, decision: Decision, at: int) -> Refusal | None:
    said = {vote.by: vote.choice for vote in entry.said}
    if said.get(decision.by) == "delegate":
        return Refusal("delegated", f"{decision.by} has handed this decision on to somebody else")
    if decision.by in said:
        others = entry.quorum - len(set(entry.approved_by))
        return Refusal("decided_already", f"{decision.by} has decided already; it takes {others} more, other persons")
    approvers = entry.who_may(at)
    if approvers and not {decision.by, decision.role or decision.by} & set(approvers):
        who = ", ".join(approvers)
        return Refusal("not_an_approver", f"{_person(decision)} may not decide this; who may: {who}")
    if decision.choice == "delegate" and not entry.approvers:
        return Refusal("wrong_kind", "everybody may decide this: there is nothing to hand on")
    return None


def _person(decision: Decision) -> str:
    return decision.by + (f" as {decision.role}" if decision.role else "")


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"

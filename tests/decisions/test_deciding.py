"""Which decisions count, against a model of its own that keeps no states: it goes through what was said each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.decisions import ApprovalEntry, ApprovalState, Decision, Refusal, Request, decide
from perdure.decisions.request import approval_id, decode_request, request_hash
from perdure.testing.conformance.approvals import HASH, asked

PERSONS = ["ann", "bo", "cy", "dee"]
ROLES = ["", "boss", "clerk"]
OTHER = b"o" * 32


@dataclass
class Model:
    """What was asked, and all that was said that counted, in order."""

    kind: str
    named: frozenset[str]
    quorum: int
    expires_at: int
    said: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])

    @property
    def standing(self) -> str:
        choices = [choice for choice, _, _ in self.said]
        if "reject" in choices:
            return "rejected"
        if "answer" in choices:
            return "answered"
        return "approved" if choices.count("approve") >= self.quorum else "pending"

    def counts(self, decision: Decision, at: int) -> bool:
        may = self.named | {to for choice, _, to in self.said if choice == "delegate"}
        is_open = self.standing == "pending" and not (self.expires_at and at >= self.expires_at)
        fits = (decision.choice == "answer") is (self.kind == "question") or decision.choice == "delegate"
        is_approver = not self.named or decision.by in may or decision.role in may
        is_new = decision.by not in [by for _, by, _ in self.said]
        is_about_this = decision.request_hash == HASH.hex()
        has_something_to_hand_on = decision.choice != "delegate" or bool(self.named)
        return all((is_open, fits, is_approver, is_new, is_about_this, has_something_to_hand_on))


DECISIONS = st.builds(
    Decision,
    choice=st.sampled_from(["approve", "approve", "reject", "answer", "delegate"]),
    request_hash=st.sampled_from([HASH.hex()] * 5 + [OTHER.hex()]),
    by=st.sampled_from(PERSONS),
    role=st.sampled_from(ROLES),
    value=st.sampled_from(PERSONS),
)


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(["approval", "question"]),
    named=st.frozensets(st.sampled_from([*PERSONS, "boss"]), max_size=3),
    quorum=st.integers(1, 3),
    expires_at=st.sampled_from([0, 20, 30]),
    decisions=st.lists(st.tuples(DECISIONS, st.integers(1, 6)), max_size=12),
)
def test_a_decision_counts_exactly_when_it_may(
    kind: str, named: frozenset[str], quorum: int, expires_at: int, decisions: list[tuple[Decision, int]]
) -> None:
    quorum = quorum if kind == "approval" else 1
    row = asked(1, kind=kind, approvers=tuple(sorted(named)), quorum=quorum, expires_at=expires_at)
    model, at = Model(kind, named, quorum, expires_at), 10
    for decision, later in decisions:
        at += later
        counts = model.counts(decision, at)
        following = decide(row, decision, at)
        assert isinstance(following, ApprovalEntry) is counts, (following, decision, at)
        if isinstance(following, Refusal):
            continue
        model.said.append((decision.choice, decision.by, decision.value or ""))
        row = following
        assert str(row.status) == model.standing
    persons = [vote.by for vote in row.said if vote.choice == "approve"]
    assert len(persons) == len(set(persons))
    if row.status is ApprovalState.APPROVED:
        assert len(persons) == quorum


def test_whatever_of_a_request_differs_its_hash_does() -> None:
    first = Request("approval", "refund", of="effect", arguments=msgspec.Raw(b'{"cents":1}'), approvers=("ann",))
    others: list[dict[str, Any]] = [
        {"name": "pay"}, {"arguments": msgspec.Raw(b'{"cents":2}')}, {"approvers": ("ann", "bo")}, {"quorum": 2},
        {"within": 5}, {"recheck": False}, {"note": "n"}, {"key": "k"}, {"of": "step"}, {"kind": "question"},
    ]  # fmt: skip
    bodies = [msgspec.structs.replace(first, **other).encoded() for other in others]
    hashes = {request_hash("r", "0:0:0", "a", 1, body) for body in [first.encoded(), *bodies]}
    places = [("s", "0:0:0", "a", 1), ("r", "0:0:1", "a", 1), ("r", "0:0:0", "b", 1), ("r", "0:0:0", "a", 2)]
    hashes |= {request_hash(*place, first.encoded()) for place in places}
    assert len(hashes) == 1 + len(others) + 4
    assert decode_request(first.encoded()) == first
    assert approval_id("r", "0:0:0") != approval_id("r", "0:0:1")


def test_a_row_knows_the_call_that_asks() -> None:
    assert asked(1, call="2:0:3/main:5", label="0:3/main/approve:a#b#2").parts == ("0:3/main", 5, "approve:a#b", 2)

"""What people are asked: a row changes in the transaction of its event; of many who decide at once, one is in time."""

from __future__ import annotations

from typing import Any

from perdure.decisions import ApprovalEntry, ApprovalState, Decision, Vote
from perdure.decisions.deciding import encode_decision
from perdure.store.protocol import (
    DECISION_KIND,
    Append,
    ApprovalFilter,
    Decide,
    Done,
    Ended,
    Fenced,
    Missing,
    Moved,
    Refused,
)
from perdure.testing.conformance.base import ENDED, StoreCase, append, fresh_id, letter, released, rows

HASH = b"h" * 32


def asked(rid: int, approval_id: str = "a" * 16, **fields: Any) -> ApprovalEntry:
    """What run `r` asks, and nobody has decided."""
    given: dict[str, Any] = {
        "run_id": "r", "workflow": "agent", "version": 1, "kind": "approval", "call": "0:0:0",
        "label": "0/approve:pay#1", "subject": "pay", "request_hash": HASH, "status": ApprovalState.PENDING,
        "approvers": ("ann", "bo", "cy"), "quorum": 1, "recheck": True, "note": "", "asked_at": 10, "updated_at": 10,
        "expires_at": 0, "body_digest": bytes(32), "body": b"{}",
    }  # fmt: skip
    return ApprovalEntry(approval_id=approval_id, rid=rid, **{**given, **fields})


def decides(choice: str = "approve", by: str = "ann", **fields: Any) -> Decide:
    """What somebody decides about what run `r` asks."""
    said = Decision(choice, HASH.hex(), by, value=fields.pop("value", None))
    given: dict[str, Any] = {"id": fresh_id(), "run_id": "r", "approval_id": "a" * 16, "body": encode_decision(said)}
    return Decide(**{**given, **fields})


class ApprovalPromises(StoreCase):
    def ask(self, rid: int, length: int = 1, **fields: Any) -> ApprovalEntry:
        row = asked(rid, **fields)
        self.done(append(rid, length, approvals=(row,)))
        return row

    def refused(self, write: Decide) -> str:
        outcome = self.write(write)
        assert isinstance(outcome, Refused), outcome
        return outcome.why

    # ── rows ─────────────────────────────────────────────────────────────────────────────────
    def test_a_request_comes_back_as_it_was(self) -> None:
        rid = self.start()
        votes = (Vote("approve", "ann", 5, role="boss", comment="\N{SNOWMAN}"), Vote("delegate", "bo", 6, to="dee"))
        given = self.ask(
            rid, kind="question", status=ApprovalState.ANSWERED, approvers=(), quorum=3, recheck=False, body=None,
            note="n\N{SNOWMAN}", said=votes, used_by="x", policy="shop version 3", goal="g",
            escalates_at=7, escalate_to=("boss",),
            scope='{"order":"42"}', expires_at=2**53, version=7,
        )  # fmt: skip
        assert self.store.approval(given.approval_id) == given
        assert self.again().approvals(ApprovalFilter()) == [given]

    def test_nobody_was_asked_what_nobody_asked(self) -> None:
        assert self.store.approval("f" * 16) is None
        assert self.store.approvals(ApprovalFilter()) == []

    def test_a_request_moves_on_and_keeps_what_was_asked(self) -> None:
        rid = self.start()
        row = self.ask(rid)
        later = row._replace(status=ApprovalState.USED, updated_at=20, used_by="op", approvers=("ann", "dee"))
        self.done(append(rid, 2, approvals=(later,)))
        assert self.store.approval(row.approval_id) == later
        assert self.store.stats()["approvals"] == 1

    def test_a_refused_append_asks_nobody(self) -> None:
        rid = self.start()
        assert isinstance(self.write(append(rid, 5, approvals=(asked(rid),))), Moved)
        assert isinstance(self.write(append(rid, 1, epoch=7, approvals=(asked(rid),))), Fenced)
        assert self.store.approvals(ApprovalFilter()) == []

    def test_requests_need_no_event_and_ride_with_any_append(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 0, approvals=(asked(rid),)))
        self.done(append(rid, 1, 1, approvals=(asked(rid, "b" * 16),), change=released()))
        assert len(self.store.approvals(ApprovalFilter())) == 2

    def test_requests_are_listed_newest_first_and_narrowed(self) -> None:
        first, second = self.start("r"), self.start("s")
        states = [ApprovalState.PENDING, ApprovalState.USED, ApprovalState.PENDING]
        made = [asked(first, f"{n:016x}", status=state, asked_at=n) for n, state in enumerate(states)]
        last = asked(second, "f" * 16, run_id="s", kind="question", asked_at=9)
        self.done(append(first, 1, approvals=tuple(made)))
        self.done(append(second, 1, approvals=(last,)))

        def listed(**narrowed: Any) -> list[ApprovalEntry]:
            return self.store.approvals(ApprovalFilter(**narrowed))

        assert listed() == [last, *reversed(made)]
        assert listed(limit=2) == [last, made[2]]
        assert listed(before=2) == [made[1], made[0]]
        assert listed(rid=first, status=frozenset({ApprovalState.PENDING})) == [made[2], made[0]]
        assert listed(status=frozenset({ApprovalState.PENDING})) == [last, made[2], made[0]]
        assert listed(kind="question") == [last]
        assert listed(status=frozenset()) == []

    def test_what_is_pruned_takes_its_requests_along(self) -> None:
        rid, other = self.start(), self.start("other")
        self.ask(rid)
        kept = asked(other, "b" * 16, run_id="other")
        self.done(append(other, 1, approvals=(kept,)))
        self.done(append(rid, 2, rows=rows(1, 2), change=ENDED))
        self.clock.advance(10)
        assert self.store.prune(ended_before=self.clock.now(), limit=10) == 1
        assert self.store.approvals(ApprovalFilter()) == [kept]

    # ── decisions ────────────────────────────────────────────────────────────────────────────
    def test_a_decision_is_delivered_and_wakes_the_run(self) -> None:
        rid = self.start()
        self.ask(rid)
        self.done(append(rid, 2, change=released(due_at=None)))
        assert self.claim() == []
        given = decides()
        assert self.write(given) == Done(rid)
        (mail,) = self.store.mail([rid])
        assert (mail.kind, mail.key, mail.body) == (DECISION_KIND, "a" * 16, given.body)
        assert mail.sent_at == self.clock.now()
        assert self.claimed() == ["r"]

    def test_the_same_decision_again_is_delivered_once(self) -> None:
        rid = self.start()
        self.ask(rid)
        given = decides()
        assert self.write(given) == self.write(given) == Done(rid)
        (mail,) = self.store.mail([rid])
        self.done(append(rid, 2, taken=(mail.mail_id,)))
        assert self.write(given) == Done(rid)
        assert self.store.mail([rid]) == []

    def test_of_several_who_decide_at_once_one_is_in_time(self) -> None:
        rid = self.start()
        self.ask(rid)
        outcomes = self.store.commit([decides(by="ann"), decides("reject", by="bo"), decides(by="cy")])
        assert outcomes[0] == Done(rid)
        assert [outcome.why for outcome in outcomes[1:] if isinstance(outcome, Refused)] == ["decided", "decided"]
        assert self.refused(decides(by="bo")) == "decided"
        assert len(self.store.mail([rid])) == 1

    def test_a_quorum_is_counted_over_what_was_taken_and_what_lies_there(self) -> None:
        rid = self.start()
        self.ask(rid, quorum=3, said=(Vote("approve", "ann", 5),))
        assert self.refused(decides(by="ann")) == "decided_already"
        self.done_decision(decides(by="bo"))
        assert self.refused(decides(by="bo")) == "decided_already"
        self.done_decision(decides(by="cy"))
        assert self.refused(decides("reject", by="dee")) == "decided"

    def done_decision(self, write: Decide) -> None:
        assert isinstance(self.write(write), Done)

    def test_a_decision_is_judged_by_the_stores_clock(self) -> None:
        rid = self.start()
        self.ask(rid, quorum=2, expires_at=self.clock.now() + 1)
        self.done_decision(decides(by="ann"))
        self.clock.advance(0.000001)
        assert self.refused(decides(by="bo")) == "expired"

    def test_others_may_decide_from_the_escalation_on(self) -> None:
        rid = self.start()
        at = self.clock.now() + 10
        self.ask(rid, escalates_at=at, escalate_to=("dee",))
        assert self.refused(decides(by="dee")) == "not_an_approver"
        self.clock.advance(0.00001)
        self.done(decides(by="dee"))

    def test_what_cannot_be_decided_is_refused_and_leaves_no_trace(self) -> None:
        rid, other = self.start(), self.start("other")
        self.ask(rid)
        self.done(append(other, 1, approvals=(asked(other, "b" * 16, run_id="other", status=ApprovalState.USED),)))
        before = self.everything()
        wrong = encode_decision(Decision("approve", "0" * 64, "ann"))
        assert self.refused(decides(body=wrong)) == "wrong_hash"
        assert self.refused(decides(by="dee")) == "not_an_approver"
        assert self.refused(decides("answer")) == "wrong_kind"
        assert self.refused(decides(approval_id="c" * 16)) == "unknown"
        assert self.refused(decides(run_id="other")) == "unknown"
        assert self.refused(decides(run_id="other", approval_id="b" * 16)) == "decided"
        assert self.write(decides(run_id="nobody")) == Missing()
        assert self.everything() == before

    def test_a_decision_may_be_early_if_it_says_so(self) -> None:
        rid = self.start()
        self.done_decision(decides(may_be_early=True))
        self.done_decision(decides(may_be_early=True))
        assert len(self.store.mail([rid])) == 2
        self.ask(rid)
        assert self.refused(decides(by="bo", may_be_early=True)) == "decided"

    def test_a_run_that_has_ended_takes_no_decision(self) -> None:
        rid = self.start()
        self.ask(rid)
        self.done(append(rid, 2, change=ENDED))
        assert self.write(decides()) == Ended(self.info().status)

    def test_other_letters_count_for_nothing(self) -> None:
        rid = self.start()
        self.ask(rid)
        self.done(letter(key="a" * 16, body=decides().body))
        self.done_decision(decides())

    def test_the_same_append_asks_once(self) -> None:
        rid = self.start()
        write: Append = append(rid, 1, approvals=(asked(rid),))
        first = self.write(write)
        later = asked(rid, status=ApprovalState.APPROVED)
        self.done(append(rid, 2, approvals=(later,)))
        assert self.write(write) in {first, Moved(3)}
        assert self.store.approval("a" * 16) == later

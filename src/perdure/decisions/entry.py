"""One row of the table of approvals."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from perdure.decisions.states import TRANSITIONS, ApprovalState, Happening
from perdure.transitions import after

BODY_IN_ROW_BYTES_MAX = 4096

What = Literal["new", "repeat", "reminder", "escalation"]
"""For what reason people are told of a request."""


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one person said. `to`: whom a delegation names. Microseconds since the epoch."""

    choice: str
    by: str
    at: int
    role: str = ""
    comment: str = ""
    to: str = ""


class ApprovalEntry(NamedTuple):
    """What is known of one request. Times in microseconds since the epoch, UTC, 0 where there is none.

    `call` is the call that asks (`chapter:task:n`); `label` the same, readable. `subject`: the name of the call to be
    approved, or the question. `body`: the request as canonical JSON if it is small; a large one is in the run's blobs
    under `body_digest`. `approvers`: who may decide now, persons and roles. `said`: what people said that counted.
    `used_by`: what used it up, an operation id or the label of a call. `policy`: which rules wanted it when it was
    asked for, in words; they are judged again when the call is made. `goal`, `scope` (a JSON object, or nothing):
    what the run has stated. From `escalates_at` on those of `escalate_to` may
    decide, too.
    """

    approval_id: str
    rid: int
    run_id: str
    workflow: str
    version: int
    kind: str
    call: str
    label: str
    subject: str
    request_hash: bytes
    status: ApprovalState
    approvers: tuple[str, ...]
    quorum: int
    recheck: bool
    note: str
    asked_at: int
    updated_at: int
    expires_at: int
    body_digest: bytes
    body: bytes | None = None
    said: tuple[Vote, ...] = ()
    used_by: str = ""
    policy: str = ""
    goal: str = ""
    scope: str = ""
    escalates_at: int = 0
    escalate_to: tuple[str, ...] = ()

    def who_may(self, at: int) -> tuple[str, ...]:
        """Who may decide at that time, persons and roles; nobody named means everybody. No worker need have noticed
        that the time has come."""
        is_escalated = self.escalates_at and at >= self.escalates_at
        return (*self.approvers, *self.escalate_to) if is_escalated and self.approvers else self.approvers

    def moved(self, happening: Happening, *, now: int) -> ApprovalEntry:
        """The row after this. PerdureBug if that cannot happen to it."""
        status = after(TRANSITIONS, self.status, happening, noun="a request")
        return self._replace(status=status, updated_at=max(now, self.updated_at))

    def used(self, by: str, *, now: int) -> ApprovalEntry:
        """The row once the call that was approved begins."""
        return self.moved(Happening.USED, now=now)._replace(used_by=by)

    @property
    def approved_by(self) -> tuple[str, ...]:
        """The persons who have approved, in the order in which they did."""
        return tuple(vote.by for vote in self.said if vote.choice == "approve")

    @property
    def parts(self) -> tuple[str, int, str, int]:
        """Of the call that asks: task, n, name, use."""
        task, _, n = self.call.partition(":")[2].rpartition(":")
        name, _, use = self.label.removeprefix(f"{task}/").rpartition("#")
        return task, int(n), name, int(use)

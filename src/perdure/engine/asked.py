"""Do a run's history and the table of approvals say the same of what people were asked, and of what they decided?

They are written in one transaction, so whatever they disagree in came from outside; see `perdure.engine.agreement`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from perdure.decisions import ApprovalEntry, ApprovalState
from perdure.engine.agreement import Disagreement
from perdure.engine.calls import Key
from perdure.history import events as e

STATES: Mapping[str, ApprovalState] = {
    "approve": ApprovalState.APPROVED,
    "reject": ApprovalState.REJECTED,
    "answer": ApprovalState.ANSWERED,
    "expired": ApprovalState.EXPIRED,
    "denied": ApprovalState.WITHDRAWN,
}
"""What a request has come to, by the choice that stands in the history."""
LOST = ("unknown_person", "role_not_held", "not_allowed")
"""How the refusal of an approval begins that had counted before: whoever gave it may not give it any more."""
OPEN = frozenset({ApprovalState.PENDING, ApprovalState.APPROVED})
"""Of these something may still follow, for people or for the call."""


class ToldOfRequest(msgspec.Struct, frozen=True):
    """What a history says of a request, after the last event about it. `at`: of that event. `approved`: who gave their
    approval, with the time of each. `may_have_lapsed`: an effect was refused before it was sent, since it was approved:
    for that reason or for another."""

    hash: bytes
    at: int
    state: ApprovalState = ApprovalState.PENDING
    approved: frozenset[tuple[str, int]] = frozenset()
    used_by: str = ""
    may_have_lapsed: bool = False

    @property
    def approved_by(self) -> set[str]:
        return {by for by, _ in self.approved}


def told_of_requests(events: Iterable[tuple[e.Event | None, int]]) -> dict[str, ToldOfRequest]:
    """What the events (with their times; None for one that cannot be read) say of each request."""
    told: dict[str, ToldOfRequest] = {}
    ids: dict[Key, str] = {}
    for event, at in events:
        if isinstance(event, e.PersonAsked):
            ids[event.key] = event.id
            told[event.id] = ToldOfRequest(event.hash, at)
        elif isinstance(event, e.EffectFailed) and event.how == "denied":
            for approval, said in told.items():
                if said.state is ApprovalState.APPROVED:
                    told[approval] = msgspec.structs.replace(said, may_have_lapsed=True)
        elif event is not None and (approval := _request_of(event, ids)) in told:
            told[approval] = _after(told[approval], event, at)
    return told


def _request_of(event: e.Event, ids: Mapping[Key, str]) -> str:
    match event:
        case e.PersonAnswered() | e.CallCancelled():
            return ids.get(event.key, "")
        case e.PersonDecided() | e.ApprovalSpent():
            return event.id
        case e.EffectStarted() | e.EffectSucceeded():
            return event.approval
        case _:
            return ""


def _after(said: ToldOfRequest, event: e.Event, at: int) -> ToldOfRequest:
    changes: dict[str, object] = {}
    match event:
        case e.PersonDecided(choice="approve", is_early=False, refused=""):
            changes["approved"] = said.approved | {(event.by, event.sent_at)}
        case e.PersonDecided(choice="approve", is_early=False) if event.refused.startswith(LOST):
            changes["approved"] = said.approved - {(event.by, event.sent_at)}
        case e.PersonAnswered():
            vote = {(event.by, at)} if event.choice == "approve" else set[tuple[str, int]]()
            changes |= {"state": STATES[event.choice], "approved": said.approved | vote}
        case e.CallCancelled() if said.state is ApprovalState.PENDING:
            changes["state"] = ApprovalState.WITHDRAWN
        case e.ApprovalSpent(lapsed=True):
            changes["state"] = ApprovalState.LAPSED
        case e.ApprovalSpent():
            changes |= {"state": ApprovalState.USED, "used_by": event.call}
        case e.EffectStarted() | e.EffectSucceeded():
            changes |= {"state": ApprovalState.USED, "used_by": event.operation}
        case _:
            return said
    return msgspec.structs.replace(said, at=at, **changes)


def disagreements_of_requests(
    rows: Iterable[ApprovalEntry], told: Mapping[str, ToldOfRequest], *, has_ended: bool, is_whole: bool = True
) -> Iterator[Disagreement]:
    """Where the rows of one run and its history part. `is_whole`: that is the whole history."""
    by_id = {row.approval_id: row for row in rows}
    for approval, row in by_id.items():
        said = told.get(approval)
        what = _of_row(row, said, has_ended=has_ended, is_whole=is_whole)
        if what:
            repaired = None if said is None else _repaired(row, said)
            yield Disagreement(approval, f"request {approval} ({row.label}) {what}", repaired)
    for approval, said in told.items():
        if approval not in by_id:
            what = f"the history has asked people for {approval} ({said.state}), and the table has no row"
            yield Disagreement(approval, what)


def _of_row(row: ApprovalEntry, said: ToldOfRequest | None, *, has_ended: bool, is_whole: bool) -> str:
    if said is None:
        return f"is {row.status} in the table, and the history does not know it" if is_whole else ""
    if row.request_hash != said.hash:
        return "asks for something else in the table than in the history"
    if not _is_same(row, said):
        return f"is {_told(row.status, row.used_by)} in the table, and {_told(said.state, said.used_by)} in the history"
    if row.status is ApprovalState.PENDING and has_ended:
        return "is pending, and its run has ended: nobody waits for it"
    if set(row.approved_by) != said.approved_by:
        ours, theirs = _names(row.approved_by), _names(said.approved_by)
        return f"was approved by {ours} in the table, and by {theirs} in the history"
    return ""


def _is_same(row: ApprovalEntry, said: ToldOfRequest) -> bool:
    if row.status is ApprovalState.LAPSED and said.state is ApprovalState.APPROVED:
        return said.may_have_lapsed
    return row.status is said.state and (row.status is not ApprovalState.USED or row.used_by == said.used_by)


def _told(state: ApprovalState, used_by: str) -> str:
    return f"{state} by {used_by}" if state is ApprovalState.USED else str(state)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "nobody"


def _repaired(row: ApprovalEntry, said: ToldOfRequest) -> ApprovalEntry | None:
    """A row in which something may still follow, although the history has the end of it."""
    if row.status not in OPEN or said.state is ApprovalState.PENDING or row.request_hash != said.hash:
        return None
    if said.state is row.status or set(row.approved_by) != said.approved_by:
        return None
    return row._replace(status=said.state, used_by=said.used_by, updated_at=max(row.updated_at, said.at))

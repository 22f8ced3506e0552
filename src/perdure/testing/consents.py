"""What people said in a simulation, and whether what happened then is what they consented to: an account of its own.

It knows what was asked, and who said what and when; nothing of states, rows or mailboxes. Nothing that needs consent
happens without it; consent is for exactly one call, and for as long as it was given; and no decision is lost: what
counts when it is made is what the run is told, and whoever cannot decide is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from perdure.decisions import Decision
from perdure.history import events as e
from perdure.store.protocol import Done, Ended, Missing, Outcome, Row, Store
from perdure.testing import programs as p

COMMIT_TAKES_MAX = 100_000
"""Microseconds between the moment at which an effect's approval is looked at and the commit that records its start. A
worker that lives on sends nothing if its time was over by then; if it dies in that commit, the start counts."""

APPROVERS = ("ann", "bo")
STANDINGS: Mapping[str, tuple[str, ...]] = {
    "": ("pending",),
    "approve": ("approved", "lapsed"),
    "reject": ("rejected",),
    "answer": ("answered",),
    "expired": ("expired",),
    "withdrawn": ("withdrawn",),
}
CHOICES: Mapping[str, tuple[str, ...]] = {"approval": ("approve", "reject"), "question": ("answer",)}


class Said(NamedTuple):
    decision: Decision
    at: int


@dataclass
class Request:
    """`call`: the node, the digest and the chapter that a call is asked to be approved with. `counted`: what people
    said that counts; `told`: what the history says that it came to; `used_by`: what was made of it; `is_late`: that was
    recorded when its time was over, and so must not leave."""

    id: str
    run_id: str
    kind: str
    hash: str
    quorum: int
    recheck: bool
    expires_at: int
    call: tuple[int, int, int] | None = None
    counted: list[Said] = field(default_factory=list[Said])
    told: str = ""
    is_withdrawn: bool = False
    used_by: str = ""
    is_late: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.told or self.is_withdrawn)

    @property
    def outcome(self) -> str:
        """What people have decided; "" while they have not."""
        said = [each.decision.choice for each in self.counted]
        final = next((choice for choice in said if choice != "approve"), "")
        return final or ("approve" if len(said) >= self.quorum else "")

    @property
    def standings(self) -> tuple[str, ...]:
        """What may stand in the table of approvals."""
        if self.used_by:
            return (f"used by {self.used_by}",)
        return STANDINGS["withdrawn" if self.is_withdrawn else self.told]

    def counts(self, decision: Decision, at: int) -> bool:
        return (
            self.is_open
            and not self.outcome
            and decision.request_hash == self.hash
            and decision.choice in CHOICES[self.kind]
            and decision.by in APPROVERS
            and decision.by not in [each.decision.by for each in self.counted]
            and not self.is_over(at)
        )

    def is_over(self, at: int) -> bool:
        return bool(self.expires_at) and at >= self.expires_at


class Consents:
    """`requests` by id. `are_clocks_even`: all workers have the store's time, so that nothing comes too late by it."""

    def __init__(self, program: p.Program, problem: Callable[[str], None]) -> None:
        self.requests: dict[str, Request] = {}
        self.are_clocks_even = True
        self._problem = problem
        self._early: dict[tuple[str, str], list[Said]] = defaultdict(list)
        self._asked_by: dict[tuple[str, tuple[str, int]], str] = {}
        gated = [node.kid for node in program.nodes if isinstance(node, p.Approve)]
        self._calls = {kid.number for kid in gated}
        self._children = {p.called(kid) for kid in gated if isinstance(kid, p.Child)}

    def pending(self, run_id: str) -> list[Request]:
        return [each for each in self.requests.values() if each.run_id == run_id and each.is_open]

    # ── what people say ──────────────────────────────────────────────────────────────────────
    def said(self, run_id: str, request_id: str, decision: Decision, at: int, outcome: Outcome) -> None:
        """A decision came to the store, which has kept or refused it."""
        if isinstance(outcome, Ended | Missing):
            return
        request, is_kept = self.requests.get(request_id), isinstance(outcome, Done)
        if request is None:
            if is_kept:
                self._early[run_id, request_id].append(Said(decision, at))
            return
        if request.counts(decision, at) is not is_kept:
            should = "counts" if not is_kept else "cannot count"
            self._problem(f"{_told(decision)} about {request_id} {should}, and the store said {outcome}")
        if is_kept:
            request.counted.append(Said(decision, at))

    # ── what is recorded ─────────────────────────────────────────────────────────────────────
    def took(self, run_id: str, row: Row, event: e.Event) -> None:
        """Something about people has become durable."""
        match event:
            case e.PersonAsked():
                self._asked(run_id, row, event)
            case e.PersonAnswered() if (request := self._of(run_id, event.key)) is not None:
                self._answered(request, event, row)
            case e.CallCancelled() if (request := self._of(run_id, event.key)) is not None:
                request.is_withdrawn |= request.is_open
            case e.ApprovalSpent(lapsed=False):
                self._used(event.id, event.call, row.at)
            case e.ApprovalSpent() if not self.requests[event.id].is_over(row.at):
                self._problem(f"the approval {event.id} has lapsed, and its time is not over")
            case e.ChildStarted():
                call = _call_of(msgspec.json.decode(row.input or b""))
                if call[0] in self._children:
                    self._made(run_id, call)
            case e.EffectStarted() | e.EffectSucceeded() if event.approval:
                self._used(event.approval, event.operation, row.at - COMMIT_TAKES_MAX)
            case _:
                pass

    def _of(self, run_id: str, key: tuple[str, int]) -> Request | None:
        return self.requests.get(self._asked_by.get((run_id, key), ""))

    def _asked(self, run_id: str, row: Row, event: e.PersonAsked) -> None:
        """What came early counts if it is about exactly this, in the order in which it came."""
        body: dict[str, Any] = msgspec.json.decode(row.input or b"")
        arguments = body["arguments"] if event.kind == "approval" else None
        request = Request(
            event.id, run_id, event.kind, event.hash.hex(), body.get("quorum", 1), body.get("recheck", True),
            event.expires_at, None if arguments is None else _call_of(arguments),
        )  # fmt: skip
        if event.id in self.requests:
            self._problem(f"{event.id} is asked twice")
        self.requests[event.id], self._asked_by[run_id, event.key] = request, event.id
        for decision, at in self._early.pop((run_id, event.id), ()):
            if request.counts(decision, at):
                request.counted.append(Said(decision, at))

    def _answered(self, request: Request, event: e.PersonAnswered, row: Row) -> None:
        if not request.is_open:
            self._problem(f"{request.id} is answered once more: {event}")
        request.told = event.choice
        if event.choice == "expired":
            if not request.is_over(row.at):
                self._problem(f"{request.id} has expired before its time")
            if request.outcome and self.are_clocks_even:
                self._problem(f"{request.id} has expired, and {_told(request.counted[-1].decision)} in time")
        elif event.choice != request.outcome:
            self._problem(f"{request.id} is said to be {event.choice}, and people said {request.counted}")
        elif event.by != request.counted[-1].decision.by:
            self._problem(f"{request.id} is said to be {event.choice} by {event.by}, not {request.counted[-1]}")
        elif event.choice == "answer" and row.output != (request.counted[-1].decision.value or "").encode():
            self._problem(f"{request.id} was answered with {request.counted[-1]}, and got {row.output!r}")

    def _used(self, request_id: str, by: str, at: int) -> None:
        request = self.requests.get(request_id)
        if request is None or request.told != "approve" or request.outcome != "approve":
            self._problem(f"{by} is made under {request_id}, which was not approved: {request}")
            return
        if request.used_by not in {"", by}:
            self._problem(f"{by} is made under {request_id}, which {request.used_by} has used up")
        elif not request.used_by and request.recheck and self.are_clocks_even:
            request.is_late = request.is_over(at)
        request.used_by = by

    # ── what is done ─────────────────────────────────────────────────────────────────────────
    def began(self, run_id: str, call: tuple[int, int, int], operation: str = "") -> None:
        """The body of a step begins, or a request of an effect arrives outside: was exactly that approved?"""
        if call[0] in self._calls:
            self._made(run_id, call, operation)

    def _made(self, run_id: str, call: tuple[int, int, int], operation: str = "") -> None:
        mine = [each for each in self.requests.values() if each.run_id == run_id and each.call == call]
        good = [each for each in mine if each.outcome == each.told == "approve"]
        if not good:
            self._problem(f"node {call[0]} of {run_id} is done, and nobody has approved that: {mine}")
        elif operation and operation not in [each.used_by for each in good]:
            self._problem(f"operation {operation} of {run_id} is sent, and has used no approval up: {good}")
        used = [each for each in good if each.used_by]
        if used and call[0] not in self._children and all(each.is_late for each in used):
            self._problem(f"node {call[0]} of {run_id} is done when the time of its approval was over: {good}")

    def wrong_in(self, store: Store) -> Iterator[str]:
        """In the end: what people decided and nobody was told, and rows that say something else than happened."""
        for request in self.requests.values():
            if request.outcome and request.is_open:
                yield f"{request.id} of {request.run_id} was decided ({request.outcome}), and nobody was told"
            row = store.approval(request.id)
            said = "nothing" if row is None else f"{row.status} by {row.used_by}".removesuffix(" by ")
            if said not in request.standings:
                happened = " or ".join(request.standings)
                yield f"{request.id} of {request.run_id} is {said} by the table, and {happened} by what happened"


def _call_of(arguments: Mapping[str, int]) -> tuple[int, int, int]:
    return arguments["node"], arguments["digest"], arguments["chapter"]


def _told(decision: Decision) -> str:
    return f"{decision.by} said {decision.choice} ({decision.request_hash[:6]})"

"""Sees everything that happens in a simulation, and keeps the account that its promises are held against."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perdure.clock import MICROSECONDS
from perdure.engine.calls import DONE_BY_ORIGINAL
from perdure.engine.execution import Execution
from perdure.history import events as e
from perdure.ledger import EffectState
from perdure.runtime.live import LiveRun
from perdure.runtime.operation import Operation
from perdure.store.protocol import Append, Change, Done, NewRun, Outcome, RunInfo, Status, Store, Write
from perdure.testing import programs as p
from perdure.testing.clock import FakeClock
from perdure.testing.consents import Consents, Request
from perdure.testing.interpreter import Trace
from perdure.testing.workflows import Body, Sight

Call = tuple[str, int, str]
"""A step in a run: the run's id, the chapter, the call's label."""


FOR_PERSONS = frozenset({"needs_person", "unknown_effect", "undecodable", DONE_BY_ORIGINAL})
"""What a run may be blocked for here."""


class Actor(Protocol):
    """Who does something: a process."""

    name: str


class Witness:
    """What was noted, what is durable, which bodies began, and what is wrong. `runs` by rid, in the order of creation;
    `ended` are those that did; `traces`: what each execution of a run's code saw; `sent`: the messages, as accepted;
    `handed`: those that hosted code has got; `consents`: what people were asked and said."""

    def __init__(self, program: p.Program, store: Store, clock: FakeClock) -> None:
        self.problems: list[str] = []
        self.traces: list[tuple[Trace, Execution]] = []
        self.runs: dict[int, str] = {}
        self.ended: set[int] = set()
        self.sent: list[tuple[str, str, int]] = []
        self.handed: set[tuple[str, int]] = set()
        self.on_blocked: Callable[[str], None] = lambda run_id: None
        self.on_asked: Callable[[Request], None] = lambda request: None
        self.consents = Consents(program, self.problem)
        self._program, self._store, self._clock = program, store, clock
        self._began_at = clock.now()
        self._lines: list[tuple[int, str]] = []
        self._lengths: dict[int, int] = {}
        self._chapters: dict[int, int] = {}
        self._recorded: dict[Call, str] = {}
        self._launched: dict[tuple[Call, int, int], set[int]] = {}
        self._digests: dict[Call, int] = {}
        self._decisions = Counter[str]()
        self._sights: dict[tuple[str, int, str, int, int], int] = {}

    # ── notes ────────────────────────────────────────────────────────────────────────────────
    def note(self, what: str, who: Actor | None = None) -> None:
        self._lines.append((self._clock.now(), f"{who.name}: {what}" if who is not None else what))

    def problem(self, what: str) -> None:
        self.note(f"PROBLEM: {what}")
        self.problems.append(what)

    def complain(self, who: Actor, context: dict[str, Any]) -> None:
        """Something went wrong on the loop of a process, in a place where nothing may."""
        error = context.get("exception")
        told = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else str(context)
        self.problem(f"{who.name}: {context.get('message')}: {told}")

    def schedule(self) -> list[str]:
        """Everything that was noted, with its time."""
        return [f"{self._ms(at):10.1f} ms  {what}" for at, what in self._lines]

    def _ms(self, at: int) -> float:
        return (at - self._began_at) * 1000 / MICROSECONDS

    def due(self, at: int | None) -> str:
        return "never" if at is None else f"at {self._ms(at):.1f} ms"

    # ── bodies ───────────────────────────────────────────────────────────────────────────────
    def step_began(self, body: Body, live: LiveRun | None, who: Actor) -> None:
        """A body begins: its call must not be recorded, and it must be the only one of its attempt under this epoch.

        What it was asked with must not rest on anything that could still be lost; lazy steps may."""
        call: Call = (body.run_id, body.chapter, body.label)
        self.consents.began(body.run_id, (body.node, body.digest, body.chapter))
        name = f"{body.label} of {body.run_id}, chapter {body.chapter}, attempt {body.number}"
        self.note(f"body of {name}", who)
        if live is None:
            self.problem(f"the body of {name} began in {who.name}, which has no such run")
            return
        if self.info(live.rid).epoch != live.epoch:
            self.problem(f"the body of {name} began in {who.name}, which had lost the run")
        if call in self._recorded:
            self.problem(f"the body of {name} began although the call is recorded as {self._recorded[call]}")
        epochs = self._launched.setdefault((call, body.number, self._decisions[body.run_id]), set())
        if live.epoch in epochs:
            self.problem(f"the body of {name} began twice under epoch {live.epoch}")
        epochs.add(live.epoch)
        node = self._program.nodes[body.node]
        is_firm = isinstance(node, p.Step) and node.which != "lazy"
        if is_firm and self._digests.setdefault(call, body.digest) != body.digest:
            self.problem(f"{name} was asked for on other grounds than before: something unrecorded reached the code")

    def sending(self, operation: Operation, live: LiveRun | None, who: Actor) -> bool:
        """A request is about to arrive outside: that it was to be sent must be durable. Whether it is a straggler's:
        its run is another worker's by now, or its attempt was given up."""
        row = self._store.effect(operation.id)
        if row is None or row.attempts < operation.attempt:
            self.problem(f"{operation} was sent by {who.name}, and that it was to be is not recorded: {row}")
            return True
        is_under_way = row.status is EffectState.STARTED and row.attempts == operation.attempt
        return live is None or self.info(live.rid).epoch != live.epoch or not is_under_way

    def seen(self, sight: Sight, value: int) -> None:
        """A branch of hosted code has an answer: the same whenever it runs again. A lazy one may have been lost."""
        if not self._program.has_lazy and self._sights.setdefault(sight.at, value) != value:
            before = self._sights[sight.at]
            self.problem(f"hosted code of {sight.run_id} saw {value} at {sight.at}, and {before} before it ran again")

    def taken(self, sight: Sight, message: int) -> None:
        """Hosted code has a message."""
        self.handed.add((sight.run_id, message))

    def is_decided(self, run_id: str) -> bool:
        """Whether a person has said that a step of this run is to be tried again."""
        return self._decisions[run_id] > 0

    # ── what is durable ──────────────────────────────────────────────────────────────────────
    def info(self, rid: int) -> RunInfo:
        return self._store.load(rid).info

    def unfinished(self) -> list[str]:
        return [run_id for rid, run_id in self.runs.items() if rid not in self.ended]

    def committed(self, who: Actor | None, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        """Something is durable; the same write may come again."""
        for write, outcome in zip(writes, outcomes, strict=True):
            if not isinstance(outcome, Done):
                self.note(f"{type(write).__name__} is refused: {type(outcome).__name__}", who)
            elif isinstance(write, NewRun):
                self.runs[outcome.rid] = write.run_id
            elif isinstance(write, Append):
                self._appended(who, write)

    def _appended(self, who: Actor | None, append: Append) -> None:
        rid = append.rid
        for new in append.new_runs:
            if (info := self._store.find(new.run_id)) is not None:
                self.runs[info.rid] = new.run_id
        if append.expected_length < self._lengths.get(rid, 1):
            return
        self._lengths[rid] = append.expected_length + len(append.rows)
        for row in append.rows:
            event = e.decode(row.envelope)
            label = event.label if isinstance(event, e.Keyed) else ""
            self.note(f"{self.runs[rid]} {row.seq} {row.kind} {label}", who)
            self._take(rid, self.runs[rid], event)
            self.consents.took(self.runs[rid], row, event)
            if isinstance(event, e.PersonAsked):
                self.on_asked(self.consents.requests[event.id])
        if append.change is not None:
            self._changed(rid, append.change, who)

    def _take(self, rid: int, run_id: str, event: e.Event) -> None:
        match event:
            case e.ChapterStarted():
                self._chapters[rid] = event.number
            case e.RunUnblocked(choice="retry"):
                self._decisions[run_id] += 1
            case e.StepCompleted() | e.StepFailed():
                self._recorded[run_id, self._chapters.get(rid, 0), event.label] = e.kind(event)
            case _:
                pass

    def _changed(self, rid: int, change: Change, who: Actor | None) -> None:
        run_id = self.runs[rid]
        if change.release:
            self.note(f"{run_id} is released, due {self.due(change.due_at)}", who)
        if change.status is not None and change.status.is_final:
            self.ended.add(rid)
        if change.status is Status.BLOCKED and change.reason in FOR_PERSONS:
            self.on_blocked(run_id)
        elif change.status is Status.BLOCKED and change.reason != "crash_loop":
            self.problem(f"{run_id} is blocked ({change.reason}): {change.hint}")

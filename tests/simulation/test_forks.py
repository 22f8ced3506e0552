"""Random programs, forked at random events while everything goes wrong: nothing that a run did is done again by a fork
of it, unless a person said so; both end as their histories say."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from perdure.api.forking import new_fork
from perdure.api.inbox import blocked
from perdure.audit.verify import verify
from perdure.engine.calls import DONE_BY_ORIGINAL
from perdure.errors import ForkPointError
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import Done, EffectFilter, Row, Status
from perdure.testing import programs as p
from perdure.testing.faults import HORIZON_MS
from perdure.testing.simulator import SimulationFailed, Simulator

SEEDS = range(250)
FORKS = 3
ALL = 1_000_000


class Forked(NamedTuple):
    """A fork that was made, and what was copied."""

    run_id: str
    of: str
    rows: tuple[Row, ...]


class ForkingSimulator(Simulator):
    """Now and then somebody forks a run: one that goes on, one that has ended, a child, a fork."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.plan = dataclasses.replace(self.plan, clock_off_ms=0)  # what came first is told by the times of events
        self.witness.consents.are_clocks_even = True
        self.forks: list[Forked] = []
        self.refusals = Counter[str]()
        self.choices = Counter[str]()
        clients: Any = self.clients
        decide = clients._decide

        def decide_about_forks_first(run_id: str) -> None:
            if not self._decide_about_fork(run_id):
                decide(run_id)

        clients._decide = decide_about_forks_first
        for _ in range(FORKS):
            self.clients.after(self._rng.random() * HORIZON_MS, self._fork)

    def _fork(self) -> None:
        runs = list(self.witness.runs.values())
        if not runs:
            return
        of = self._rng.choice(runs)
        info = self.store.find(of)
        assert info is not None
        rows = self.store.load(info.rid, from_seq=0).rows
        at = self._rng.randrange(len(rows))
        run_id = f"fork-{len(self.forks) + 1}"
        try:
            new = new_fork(self.store, info, at, run_id, by="ann", why="", now=self.clock.now())
        except ForkPointError as error:
            self.refusals[_why(error)] += 1
            return
        (outcome,) = self.store.commit([new])
        assert isinstance(outcome, Done)
        self.witness.committed(None, [new], [outcome])
        self.witness.note(f"{run_id} is forked from {of} after event {at}")
        self._tell_witness(outcome.rid, run_id, rows[: at + 1])
        self.forks.append(Forked(run_id, of, tuple(rows[: at + 1])))

    def _tell_witness(self, rid: int, run_id: str, copied: Any) -> None:
        """What is recorded in the copy is recorded in the fork: no body of it may begin again."""
        for row in copied:
            event = e.decode(row.envelope)
            self.witness._take(rid, run_id, event)  # pyright: ignore[reportPrivateUsage]
            if isinstance(event, e.MessageArrived):
                self.witness.sent.append((run_id, event.name, int(row.output or b"-1")))

    def _decide_about_fork(self, run_id: str) -> bool:
        info = self.store.find(run_id)
        if info is None or info.status is not Status.BLOCKED:
            return False
        entry = next((each for each in blocked(self.store, info) if each.reason == DONE_BY_ORIGINAL), None)
        if entry is None:
            return False
        choice = self._rng.choice(("retry", "reuse", "fail"))
        self.choices[choice] += 1
        self.clients._control(run_id, "unblock", choice=choice, call=entry.call, by="ann")  # pyright: ignore[reportPrivateUsage]
        return True


def _why(error: ForkPointError) -> str:
    told = str(error).partition(": ")[2]
    return next(word for word in ("effect", "child run", "approval", "ended", "decision") if word in told)


# ── what has to hold ────────────────────────────────────────────────────────────────────────


def check_forks(simulator: ForkingSimulator) -> None:
    """By an account of its own: who descends from whom, what arrived outside and in which order, what a person said."""
    problems = [*_copied_wrongly(simulator), *_done_again(simulator)]
    problems += [str(damage) for damage in verify(simulator.store).damage]
    if problems:
        for problem in problems:
            simulator.witness.problem(problem)
        raise SimulationFailed(simulator.seed, simulator.witness.problems, simulator.report())


def _copied_wrongly(simulator: ForkingSimulator) -> Iterator[str]:
    for fork in simulator.forks:
        for run_id in (fork.run_id, fork.of):
            info = simulator.store.find(run_id)
            if info is None or simulator.store.load(info.rid, from_seq=0).rows[: len(fork.rows)] != fork.rows:
                yield f"{run_id} has other first events than those that were forked"


def _done_again(simulator: ForkingSimulator) -> Iterator[str]:
    rows = {row.operation_id: row for row in simulator.store.effects(EffectFilter(limit=ALL))}
    sent = [rows[operation] for operation in dict.fromkeys(send.operation for send in simulator.outside.sends)]
    began = {row.operation_id: _began_at(simulator, row) for row in sent}
    for row in sent:
        originals = _originals(simulator, row.run_id)
        for other in sent:
            is_same = (other.action_name, other.business_key) == (row.action_name, row.business_key)
            is_earlier = began[other.operation_id] < began[row.operation_id]
            if row.scope == "global" or not (is_same and is_earlier) or other.status is EffectState.FAILED_FINAL:
                continue
            if _family(simulator, other.run_id) & originals and not _is_confirmed(simulator, row):
                yield f"{row.label} of {row.run_id} was sent; {other.run_id} had begun the same"


def _began_at(simulator: ForkingSimulator, row: LedgerEntry) -> int:
    """When it was recorded as about to be sent: for the first time since it was last proven that nothing happened, if
    that was before its first request arrived."""
    attempt = next(send.attempt for send in simulator.outside.sends if send.operation == row.operation_id)
    info = simulator.store.find(row.run_id)
    assert info is not None
    began = 0
    for stored in simulator.store.load(info.rid, from_seq=0).rows:
        event = e.decode(stored.envelope)
        if getattr(event, "operation", "") != row.operation_id:
            continue
        if isinstance(event, e.EffectStarted) and event.attempt <= attempt:
            began = began or stored.at
        elif isinstance(event, e.EffectNotDone) and event.attempt < attempt:
            began = 0
    return began


def _family(simulator: ForkingSimulator, run_id: str) -> set[str]:
    """The run, its parent, the parent's parent, ..."""
    family: set[str] = set()
    info = simulator.store.find(run_id)
    while info is not None:
        family.add(info.run_id)
        info = None if info.parent_run_id is None else simulator.store.find(info.parent_run_id)
    return family


def _originals(simulator: ForkingSimulator, run_id: str) -> set[str]:
    """What this run, or a run that it is a child of, was forked from; and what that was."""
    origin = {fork.run_id: fork.of for fork in simulator.forks}
    originals: set[str] = set()
    for member in _family(simulator, run_id):
        while member in origin:
            member = origin[member]
            originals.add(member)
    return originals


def _is_confirmed(simulator: ForkingSimulator, row: LedgerEntry) -> bool:
    """Whether a person said that this call is to be made: of the chapter that it belongs to."""
    info = simulator.store.find(row.run_id)
    assert info is not None
    chapter, asked, is_confirmed = 0, set[tuple[int, str | None, int]](), set[str]()
    for stored in simulator.store.load(info.rid, from_seq=0).rows:
        event = e.decode(stored.envelope)
        if isinstance(event, e.ChapterStarted):
            chapter = event.number
        elif isinstance(event, e.RunBlocked) and event.reason == DONE_BY_ORIGINAL:
            asked.add((chapter, event.task, event.n))
        elif isinstance(event, e.RunUnblocked) and event.choice == "retry" and (chapter, event.task, event.n) in asked:
            is_confirmed.add(f"{chapter}:{event.task}:{event.n}")
    return row.call in is_confirmed


# ── the tests ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", SEEDS)
def test_no_fork_does_again_what_its_original_did(seed: int) -> None:
    simulator = ForkingSimulator(seed)
    simulator.run()
    check_forks(simulator)


def test_forks_were_made_refused_and_decided_about() -> None:
    refusals, choices, made = Counter[str](), Counter[str](), 0
    for seed in [seed for seed in SEEDS if p.write_program(seed).has_effects][:80]:
        simulator = ForkingSimulator(seed)
        simulator.run()
        refusals += simulator.refusals
        choices += simulator.choices
        made += len(simulator.forks)
    assert set(refusals) >= {"effect", "child run", "ended"}
    assert set(choices) == {"retry", "reuse", "fail"}
    assert made > 40

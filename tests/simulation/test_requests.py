"""Simulated people: what they are asked and say. And what is found if something of it is broken."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.simulation.conftest import Broken

from perdure.decisions import Decision
from perdure.engine.calls import Grant
from perdure.engine.known import Known
from perdure.history import events as e
from perdure.runtime.approvals import Approvals
from perdure.runtime.live import LiveRun
from perdure.store import rules
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Mail
from perdure.testing import programs as p
from perdure.testing.consents import Consents, Request, Said
from perdure.testing.faults import Plan
from perdure.testing.simulator import SimulationFailed, Simulator


def step(ms: int = 5) -> p.Step:
    return p.Step(0, "plain", ms, 0, "value")


def pays(ms: int = 20) -> p.Effect:
    return p.Effect(0, "idempotent", "run", 1, ms, False)


def approve(kid: p.Node, *, quorum: int = 1, within_ms: int | None = None, recheck: bool = True) -> p.Approve:
    return p.Approve(0, kid, quorum, within_ms, recheck)


def test_people_say_everything_that_they_could() -> None:
    told, refused, said_early = Counter[str](), Counter[str](), 0
    for seed in range(250):
        if not p.write_program(seed).has_requests:
            continue
        simulator = Simulator(seed).run()
        requests = simulator.witness.consents.requests.values()
        told += Counter(request.told or "withdrawn" for request in requests)
        told["used"] += sum(bool(request.used_by) for request in requests)
        lines = [line for line in simulator.witness.schedule() if "Refused(why=" in line]
        refused += Counter(line.split("why='")[1].split("'")[0] for line in lines)
        events = [e.decode(row.envelope) for rid in simulator.witness.runs for row in rows_of(simulator, rid)]
        said_early += sum(isinstance(event, e.PersonDecided) and event.is_early for event in events)
    assert set(told) == {"approve", "reject", "answer", "expired", "withdrawn", "used"}
    assert {"not_an_approver", "wrong_hash", "decided", "expired", "decided_already"} <= set(refused)
    assert said_early > 5


def rows_of(simulator: Simulator, rid: int) -> Any:
    return simulator.store.load(rid, from_seq=0).rows


def child_that_fails() -> p.Child:
    return p.Child(0, p.Step(0, "plain", 0, 1, "final"), "await", 0)


# ── schedules that broke a promise once ─────────────────────────────────────────────────────

FOUND: dict[str, tuple[p.Node, Plan, int]] = {
    "an early answer, and a run that is loaded again before it is asked for": (
        p.Sequence(0, (step(150), p.Ask(0, None))), Plan(workers=2, kills=3), 2,
    ),
    "hosted code that asks while the store cannot be read": (
        p.Foreign(0, (step(), approve(step(), within_ms=100))), Plan(workers=2, kills=2, read_fails=0.2), 1,
    ),
    "hosted code whose run is paused while people decide": (
        p.Foreign(0, (step(), approve(step(), within_ms=500))), Plan(workers=1, holds=3, pauses=2), 1,
    ),
    "the store cannot be read when the time of a request is up, and the code has just asked for a step as well": (
        p.Gather(0, (*[approve(step(), within_ms=100)] * 3, p.Sequence(0, (p.Sleep(0, 100, False), step()))), False),
        Plan(workers=1, read_fails=0.4), 1,
    ),
    "the time of a request is up, and the run is to end by force, while its code cancels another one": (
        p.Gather(0, (approve(step(), within_ms=20), p.Timeout(0, 20, approve(step()), False), approve(step())), False),
        Plan(workers=1, forces=1, pauses=2), 1,
    ),
    "somebody decided in time, and the run was paused before that": (
        p.Gather(0, (*[approve(step(), within_ms=20)] * 3, p.Sleep(0, 500, True)), True),
        Plan(workers=1, holds=6, pauses=2), 1,
    ),
    "the same in hosted code": (
        p.Foreign(0, (step(), *[approve(step(), within_ms=20)] * 3)), Plan(workers=1, holds=6, pauses=2), 1,
    ),
    "a person decides about a step of hosted code that is over, and a call of the next chapter has its number": (
        p.Try(
            0, p.Foreign(0, (approve(step()), step(0), p.Step(0, "plain", 1, 0, "person"), child_that_fails())),
            approve(step()), None,
        ),
        Plan(workers=1), 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_schedule_that_broke_a_promise_once(what: str) -> None:
    root, plan, chapters = FOUND[what]
    for seed in range(80):
        Simulator(seed, program=p.program_of(root, chapters=chapters), plan=plan).run()


# ── it finds what is broken ─────────────────────────────────────────────────────────────────


def found(root: p.Node, plan: Plan, *, chapters: int = 1, seeds: int = 150) -> str:
    """What is found first."""
    for seed in range(seeds):
        try:
            Simulator(seed, program=p.program_of(root, chapters=chapters), plan=plan).run()
        except SimulationFailed as failed:
            return "\n".join(failed.problems)
    return "nothing"


def does_nothing(right: Any, *given: Any) -> None:
    pass


ROUGH = Plan(workers=2, kills=2, pauses=2, slow=0.5)


def test_it_finds_decisions_that_are_judged_when_they_are_read(broken: Broken) -> None:
    """And not when they were made, by the store's clock, in the store's transaction."""

    def take(right: Any, approvals: Approvals, live: LiveRun, letter: Mail) -> None:
        right(approvals, live, letter._replace(sent_at=approvals._turns.clock.now()))  # pyright: ignore[reportPrivateUsage]

    broken(Approvals, "take", take)
    problems = found(approve(pays(), within_ms=500, recheck=False), ROUGH)
    assert "has expired, and" in problems, problems


def test_it_finds_decisions_that_are_judged_before_they_reach_the_store(broken: Broken) -> None:
    """By the row alone: what lies in the mailbox is not looked at."""

    def refused(right: Any, given: Any, entry: Any, waiting: Any, now: int) -> Any:
        return right(given, entry, (), now)

    broken(rules, "refused", refused)
    assert "cannot count, and the store said Done" in found(approve(pays()), ROUGH)


def test_it_finds_early_decisions_that_are_lost_between_chapters(broken: Broken) -> None:
    broken(Approvals, "carry_early", does_nothing)
    problems = found(p.Sequence(0, (step(150), approve(pays()))), Plan(workers=1), chapters=2)
    assert problems != "nothing"


def test_it_finds_early_decisions_that_are_lost_when_a_run_is_loaded(broken: Broken) -> None:
    def note(right: Any, known: Known, event: e.Event, output: bytes | None = None, at: int = 0) -> None:
        if not (isinstance(event, e.PersonDecided) and event.is_early):
            right(known, event, output, at)

    broken(Known, "note_request", note)
    assert "and the store said" in found(p.Sequence(0, (step(150), approve(pays()))), Plan(workers=1))


def test_it_finds_an_approval_that_is_not_used_up(broken: Broken) -> None:
    broken(Approvals, "gate", does_nothing)
    assert "is approved by the table, and used by" in found(approve(pays()), Plan(workers=1), seeds=40)


def test_it_finds_a_call_that_nobody_approved(broken: Broken) -> None:
    """Whatever people say is taken for a yes."""

    def decide(right: Any, approvals: Approvals, live: LiveRun, row: Any, decision: Decision, at: int) -> None:
        yes = Decision("approve", decision.request_hash, decision.by) if decision.choice == "reject" else decision
        right(approvals, live, row, yes, at)

    broken(Approvals, "_decide", decide)
    assert "is said to be approve, and people said" in found(approve(step()), Plan(workers=1))


def test_it_finds_an_approval_that_never_lapses(broken: Broken) -> None:
    broken(Grant, "is_late", does_nothing)
    assert "when the time of its approval was over" in found(approve(pays(), within_ms=500), ROUGH)


# ── the account itself ──────────────────────────────────────────────────────────────────────


def test_a_request_is_decided_once_and_by_different_persons() -> None:
    request = Request("id", "run", "approval", "aa", 2, True, 100)
    ann, bo = Decision("approve", "aa", "ann"), Decision("approve", "aa", "bo")
    assert request.counts(ann, 99)
    assert not request.counts(ann, 100)
    assert not request.counts(Decision("approve", "ab", "ann"), 1)
    assert not request.counts(Decision("answer", "aa", "ann"), 1)
    assert not request.counts(Decision("approve", "aa", "eve"), 1)
    consents = Consents(p.program_of(step()), lambda problem: None)
    assert list(consents.wrong_in(MemoryStore())) == []
    request.counted += [Said(ann, 1), Said(bo, 2)]
    assert request.outcome == "approve"
    assert not request.counts(Decision("reject", "aa", "cy"), 1)

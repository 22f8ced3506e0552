"""Schedules that broke a promise once. Each is a small program under a plan that provokes it, with many seeds."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from perdure.testing import programs as p
from perdure.testing.faults import Plan
from perdure.testing.simulator import Simulator


class Found(NamedTuple):
    """`seeds`: so many schedules are tried; at least one of them failed before."""

    what: str
    root: p.Node
    plan: Plan
    seeds: int = 100
    chapters: int = 1


def step(ms: int = 20, *, which: str = "plain", fails: int = 0, ends: str = "value") -> p.Step:
    return p.Step(0, which, ms, fails, ends)  # type: ignore[arg-type]


def sleep(ms: int) -> p.Sleep:
    return p.Sleep(0, ms, True)


def sequence(*kids: p.Node) -> p.Sequence:
    return p.Sequence(0, kids)


def gather(*kids: p.Node) -> p.Gather:
    return p.Gather(0, kids, False)


def child(kid: p.Node, how: str = "await", ms: int = 0) -> p.Child:
    return p.Child(0, kid, how, ms)  # type: ignore[arg-type]


def receive(message: str = "a", within_ms: int | None = None) -> p.Receive:
    return p.Receive(0, message, within_ms)


FOUND = [
    Found(
        "a commit is asked for while another one is in the writer's thread",
        sequence(child(receive()), step()),
        Plan(workers=1, slow=0.3, messages=2, evict_after_ms=10),
    ),
    Found(
        "a claim, or the loading of what was claimed, fails and its answer is lost",
        gather(child(sequence(step(), sleep(100), step())), sequence(sleep(50), step())),
        Plan(workers=2, write_fails=0.3, read_fails=0.2, evict_after_ms=10),
    ),
    Found(
        "a release is applied and its answer lost, then the claim of the same run",
        sequence(sleep(200), step(), sleep(200), receive(), step()),
        Plan(workers=2, write_fails=0.3, messages=6, evict_after_ms=10),
        seeds=300,
    ),
    Found(
        "a start, a failed attempt or a heartbeat is written together with a lazy result that came before it",
        gather(step(5, which="lazy"), step(60, fails=1), sequence(step(1, which="lazy"), step())),
        Plan(workers=1, slow=0.5),
    ),
    Found(
        "a lazy result and a durable one are committed before the lazy one is delivered",
        sequence(
            gather(
                child(sleep(20)), p.Wait(0, (step(20, which="lazy"), step(20)), "FIRST_COMPLETED", 50, "await")
            ),
            step(0),
        ),
        Plan(workers=1, pauses=2, evict_after_ms=0),
        seeds=200,
    ),
    Found(
        "a lazy result is being written when the code that knows it asks for a step",
        gather(
            step(20, fails=1),
            sequence(step(20, which="lazy"), step(60)),
            step(20),
            sequence(sleep(20), step(20, fails=1)),
        ),
        Plan(workers=2, slow=1.0, write_kills=0.2),
        seeds=900,
    ),
    Found(
        "a commit is answered while a turn thread is still delivering",
        child(
            p.AsCompleted(
                0,
                (
                    step(0, which="lazy"),
                    gather(sleep(20), sequence(step(0), step(20, ends="final")), step(60, which="lazy")),
                ),
                50,
            )
        ),
        Plan(workers=1, slow=0.5, kills=2, write_kills=0.01),
        seeds=1_000,
    ),
    Found(
        "a message to a paused run is seen together with one sent after its resume",
        sequence(receive(), receive(), receive(), step()),
        Plan(workers=1, holds=2, messages=6, pauses=2),
        seeds=200,
    ),
    Found(
        "a turn thread held an outcome back that belongs behind the end of its run",
        p.Group(0, (step(20), receive("a", 50))),
        Plan(workers=1, slow=0.5),
    ),
    Found(
        "a lazy result ends a run while a commit is under way",
        sequence(p.Look(0, "state"), step(0, which="lazy")),
        Plan(workers=1, slow=0.5),
    ),
    Found(
        "a cancellation waits for the commit that records the starts of a suspect, and the run ends before it",
        p.Wait(0, (step(60), step(60), sequence(step(5, which="lazy"))), "FIRST_COMPLETED", None, "leave"),
        Plan(workers=2, slow=1.0, kills=2),
        seeds=200,
    ),
    Found(
        "a child is asked for and cancelled in one turn",
        gather(child(step(), how="cancel"), p.Timeout(0, 0, child(step()), True), step()),
        Plan(workers=2, evictions=2),
    ),
    Found(
        "an abandoned child of an earlier chapter ends while a call of this one has its place",
        sequence(child(step(60), how="abandon", ms=0), step(5)),
        Plan(workers=2, write_fails=0.3, slow=0.5),
        chapters=3,
    ),
    Found(
        "a guard is answered in the last turn of a chapter",
        sequence(step(), p.Look(0, "patch")),
        Plan(workers=2, kills=1, evictions=2),
        chapters=3,
    ),
    Found(
        "a guard is answered between two outcomes of one commit, and the answer is lost",
        gather(sequence(sleep(10), p.Look(0, "patch")), sleep(10), sequence(sleep(10), step())),
        Plan(workers=1, slow=1.0, write_kills=0.2, leaves=2),
        seeds=200,
    ),
    Found(
        "a person answers for a step of a run that has left memory",
        sequence(step(ends="person"), step(5, which="long", ends="person"), sleep(10)),
        Plan(workers=1, slow=0.5, evict_after_ms=0, messages=6),
        seeds=200,
    ),
    Found(
        "a run ends by force while something of it waits to be performed",
        p.Try(0, p.Timeout(0, 500, step(60, fails=1), True), None, step(20)),
        Plan(workers=1, kills=1, pauses=2, forces=1, messages=2, write_fails=0.3, slow=0.5),
        seeds=600,
    ),
    Found(
        "a worker that was frozen wakes up, and begins what another one has done meanwhile",
        sequence(*(step(60) for _ in range(6)), gather(step(0), step(0, which="threaded"))),
        Plan(workers=2, pauses=3, slow=0.5),
        seeds=400,
    ),
    Found(
        "the first that is recorded of a hosted step is a heartbeat",
        p.Foreign(0, (step(150), step(60))),
        Plan(workers=1, write_kills=0.2),
    ),
    Found(
        "an outcome comes before the hosted code, hosted anew, has asked for it",
        p.Foreign(0, (step(60, which="threaded", ends="person"), step(20), child(sleep(20)))),
        Plan(workers=2, kills=2, evictions=2, slow=0.5),
        seeds=200,
    ),
    Found(
        "a timer is left behind by a workflow whose end waits for a child",
        p.Wait(
            0,
            (p.Later(0, sequence(step(), step()), 100), child(sleep(200)), step(5)),
            "FIRST_COMPLETED",
            None,
            "cancel",
        ),
        Plan(workers=1, slow=0.5),
    ),
    Found(
        "the only place in memory is taken by a parent that waits for its child",
        child(p.Raise(0, "value"), how="cancel", ms=50),
        Plan(workers=1, write_kills=0.2, slow=0.5, runs_max=1, evict_after_ms=10_000),
    ),
    Found(
        "a run that waits for the next attempt of a suspect leaves, and another worker begins that attempt first",
        p.Try(0, p.Timeout(0, 200, p.Effect(0, "can_look_up", "run", 1, 5, False), False), step(0, fails=2), None),
        Plan(workers=2, leaves=2, runs=3, write_kills=0.2, slow=0.5, evict_after_ms=0, messages=0),
        chapters=3,
        seeds=400,
    ),
    Found(
        "a lane of hosted code has asked for nothing yet, and what another lane was told fits",
        p.Foreign(0, (step(5), sequence(sleep(50), receive(within_ms=20)), sequence(receive(), step(5)))),
        Plan(workers=1, kills=2, messages=6),
    ),
    Found(
        "the time of what hosted code asks is up before it was put to anybody: a turn takes long",
        gather(p.Foreign(0, (step(0), p.Approve(0, step(5), 1, 20, True))), sleep(20), step(), step(60)),
        Plan(workers=1, messages=6, slow=1.0, evict_after_ms=10_000),
        chapters=3,
        seeds=500,
    ),
    Found(
        "hosted code ends as a message is taken for it",
        p.Try(0, p.Foreign(0, (step(0), receive(), step(150, ends="final"))), receive(), None),
        Plan(workers=1, messages=6, slow=0.5),
    ),
    Found(
        "hosted code is cancelled as a message is taken for it",
        sequence(p.Timeout(0, 100, p.Foreign(0, (step(0), sequence(receive(), sleep(500)))), False), receive()),
        Plan(workers=1, messages=6, slow=1.0),
    ),
    Found(
        "hosted code has ended in the commit in which it is cancelled",
        sequence(p.Timeout(0, 200, p.Foreign(0, (receive(),)), False), receive(within_ms=100)),
        Plan(workers=2, kills=2, evictions=3, messages=6, slow=1.0),
    ),
]


SEEDS_MAX = 100
"""So many are tried each time, the rest when there is time."""


def try_seeds(found: Found, seeds: range) -> None:
    program = p.program_of(found.root, chapters=found.chapters)
    for seed in seeds:
        Simulator(seed, program=program, plan=found.plan).run()


@pytest.mark.parametrize("found", FOUND, ids=[found.what for found in FOUND])
def test_a_schedule_that_broke_a_promise_once(found: Found) -> None:
    try_seeds(found, range(min(found.seeds, SEEDS_MAX)))


RARE = [found for found in FOUND if found.seeds > SEEDS_MAX]


@pytest.mark.soak
@pytest.mark.parametrize("found", RARE, ids=[found.what for found in RARE])
def test_a_rare_schedule_that_broke_a_promise_once(found: Found) -> None:
    try_seeds(found, range(SEEDS_MAX, found.seeds))

"""Makes a failing program small: `python -m perdure.testing.soak --shrink 123`.

Nodes are left out and the plan is made kinder, as long as some schedule still breaks a promise in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.testing import programs as p
from perdure.testing.faults import Plan
from perdure.testing.simulator import SimulationFailed, Simulator

SEEDS_TRIED = 60


class Failing(NamedTuple):
    """A program and a plan under which the schedule of `seed` breaks a promise."""

    program: p.Program
    plan: Plan
    seed: int
    problem: str

    def __str__(self) -> str:
        return f"{self.program}\n{self.plan}\nschedule {self.seed}: {self.problem}"


def shrink(seed: int) -> Failing | None:
    """The smallest that is found for this seed; None if it does not fail."""
    simulator = Simulator(seed)
    failing = _try(simulator.program, simulator.plan, [seed], "")
    while failing is not None and (smaller := _smaller(failing)) is not None:
        failing = smaller
    return failing


def _smaller(failing: Failing) -> Failing | None:
    seeds = [failing.seed, *range(SEEDS_TRIED)]
    for program, plan in _candidates(failing):
        if (found := _try(program, plan, seeds, failing.problem)) is not None:
            return found
    return None


def _try(program: p.Program, plan: Plan, seeds: list[int], like: str) -> Failing | None:
    for seed in seeds:
        try:
            Simulator(seed, program=program, plan=plan).run()
        except SimulationFailed as failed:
            problem = failed.problems[0].splitlines()[0]
            if _kind(problem) == _kind(like) or not like:
                return Failing(program, plan, seed, problem)
    return None


def _kind(problem: str) -> str:
    """What a problem is about, without the names of runs and calls."""
    return " ".join(word for word in problem.split() if word.isalpha())[:60]


def _candidates(failing: Failing) -> Iterator[tuple[p.Program, Plan]]:
    program, plan = failing.program, failing.plan
    for root in _smaller_nodes(program.root):
        yield p.program_of(root, chapters=program.chapters), plan
    if program.chapters > 1:
        yield p.program_of(program.root, chapters=program.chapters - 1), plan
    default = Plan(1)
    for field in dataclasses.fields(Plan):
        kinder: Any = getattr(default, field.name)
        if getattr(plan, field.name) != kinder:
            yield program, dataclasses.replace(plan, **{field.name: kinder})


def _smaller_nodes(node: p.Node) -> Iterator[p.Node]:
    """The node with something left out: itself in favour of a kid, one of several kids, or something further down."""
    yield from (kid for _, kid in p.kids_of(node))
    if isinstance(node, p.Several) and len(node.kids) > 1:
        for index in range(len(node.kids)):
            yield dataclasses.replace(node, kids=node.kids[:index] + node.kids[index + 1 :])
    if isinstance(node, p.Try) and node.handler is not None and node.cleanup is not None:
        yield dataclasses.replace(node, handler=None)
        yield dataclasses.replace(node, cleanup=None)
    for name, kid in p.kids_of(node):
        for smaller in _smaller_nodes(kid):
            if name:
                changes: dict[str, Any] = {name: smaller}
                yield dataclasses.replace(node, **changes)
            elif isinstance(node, p.Several):
                yield dataclasses.replace(node, kids=tuple(smaller if each is kid else each for each in node.kids))

"""The simulator itself: it repeats itself exactly, and it finds what is broken."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
from msgspec import structs
from tests.simulation.conftest import Broken

from perdure.codec import pack
from perdure.engine.execution import Execution
from perdure.engine.randomness import Randomness
from perdure.history import events as e
from perdure.runtime.live import LiveRun
from perdure.runtime.turn import Turns
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Fenced, Moved
from perdure.testing import programs as p
from perdure.testing.faults import Plan
from perdure.testing.programs import write_program
from perdure.testing.shrink import shrink
from perdure.testing.simulator import SimulationFailed, Simulator
from perdure.testing.soak import main, soak

SEEDS = range(12)


def report(seed: int) -> str:
    return Simulator(seed).run().report()


def test_a_seed_does_the_same_again() -> None:
    for seed in SEEDS:
        assert report(seed) == report(seed)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_does_the_same_in_every_process(hash_seed: str) -> None:
    code = f"from perdure.testing.simulator import Simulator as S\nfor seed in {SEEDS}: print(S(seed).run().report())"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "".join(f"{report(seed)}\n" for seed in SEEDS)


def test_a_seed_does_the_same_wherever_in_memory_things_are() -> None:
    """Several steps of this one time out in the same moment: they do so in the order in which they began."""
    kept: list[list[bytearray]] = []
    told: set[str] = set()
    for n in range(8):
        told.add(Simulator(20372).run().report())
        kept.append([bytearray(100 + 37 * k % 900) for k in range(200 * n)])
    assert len(told) == 1


def test_programs_and_plans_use_everything_they_could() -> None:
    programs = [write_program(seed) for seed in range(500)]
    used = {type(node) for program in programs for node in program.nodes}
    kinds = {kind for kind in vars(p).values() if isinstance(kind, type) and issubclass(kind, p.Node)}
    assert used == kinds - {p.Node, p.Several}
    assert any(program.chapters > 1 for program in programs)
    plans = [Simulator(seed).plan for seed in range(300)]
    for name, kind in vars(Plan(1)).items():
        assert len({getattr(plan, name) for plan in plans}) > 1, f"{name} is always {kind}"


# ── it finds what is broken ─────────────────────────────────────────────────────────────────


def found(seeds: int = 300, *, program: p.Program | None = None, plan: Plan | None = None) -> str:
    """What is found first."""
    for seed in range(seeds):
        try:
            Simulator(seed, program=program, plan=plan).run()
        except SimulationFailed as failed:
            return failed.problems[0]
    return "nothing"


def does_nothing(right: Any, *given: Any, **named: Any) -> None:
    pass


STEPS = p.program_of(p.Sequence(0, tuple(p.Step(0, "plain", ms, 0, "value") for ms in (5, 20, 5))))


def test_it_finds_a_store_that_fences_nobody(broken: Broken) -> None:
    def lax(judge: Any, store: MemoryStore, run: Any, append: Any) -> Any:
        refused = judge(store, run, append)
        return None if isinstance(refused, Fenced | Moved) else refused

    broken(MemoryStore, "_judge", lax)
    program = p.program_of(p.Sequence(0, tuple(p.Step(0, "plain", 150, 0, "value") for _ in range(8))))
    assert found(plan=Plan(workers=2, pauses=3), program=program) != "nothing"


def test_it_finds_a_store_that_loses_a_commit(broken: Broken) -> None:
    def forgetful(apply: Any, store: MemoryStore, run: Any, append: Any) -> None:
        if len(run.rows) != 2:
            apply(store, run, append)

    broken(MemoryStore, "_apply", forgetful)
    assert found(1, plan=Plan(workers=1), program=STEPS) != "nothing"


def test_it_finds_outcomes_that_reach_the_code_before_they_are_durable(broken: Broken) -> None:
    def hasty(report: Any, turns: Turns, live: LiveRun, event: e.Event, **options: Any) -> None:
        report(turns, live, event, **{**options, "delivers": False, "is_lazy": options.get("delivers", False)})

    def at_once(right: Any, turns: Turns, live: LiveRun) -> bool:
        return True

    broken(Turns, "_may_deliver_first", at_once)
    broken(Turns, "report", hasty)
    plan = Plan(workers=1, write_kills=0.2, kills=2, slow=0.5)
    steps = [p.Wait(0, tuple(p.Step(0, "plain", ms, 0, "value") for ms in (20, 20)), "FIRST_COMPLETED", None, "await")]
    program = p.program_of(p.Sequence(0, (*steps, p.Step(0, "plain", 5, 0, "value"))))
    assert found(plan=plan, program=program) != "nothing"


def test_it_finds_a_message_that_is_taken_twice(broken: Broken) -> None:
    broken(LiveRun, "has_taken", does_nothing)
    program = p.program_of(p.Sequence(0, (p.Receive(0, "a", None), p.Receive(0, "a", None))))
    assert "were sent and arrived as" in found(plan=Plan(workers=1, messages=6, slow=1.0), program=program)


def test_it_finds_a_lost_cancellation_of_a_race(broken: Broken) -> None:
    """The model sees what the code should have seen."""
    broken(Execution, "_cancel_root", does_nothing)
    program = p.program_of(p.Try(0, p.Sleep(0, 500, True), None, p.Step(0, "plain", 1, 0, "value")))
    assert "the model" in found(20, plan=Plan(workers=1, cancels=2), program=program)


def test_it_finds_a_step_whose_result_is_not_what_is_recorded(broken: Broken) -> None:
    """The history agrees with itself, and replays; but that is not what the program gives."""

    def lie(report: Any, turns: Turns, live: LiveRun, event: e.Event, **options: Any) -> None:
        if isinstance(event, e.StepCompleted):
            packed = pack(b"7", live.execution.memo)
            event = structs.replace(event, output=packed.digest)
            options |= {"raw": b"7", "output": packed}
        report(turns, live, event, **options)

    broken(Turns, "report", lie)
    assert "and must give" in found(1, plan=Plan(workers=1), program=STEPS)


def test_it_finds_a_run_that_nobody_wakes(broken: Broken) -> None:
    broken(Turns, "take_mail", does_nothing)
    assert "does not end" in found(1, plan=Plan(workers=1), program=p.program_of(p.Receive(0, "a", None)))


def test_a_failing_program_is_made_small(broken: Broken) -> None:
    numbers = itertools.count()

    def never_the_same(right: Any, randomness: Randomness) -> bytes:
        return next(numbers).to_bytes(32, "little")

    broken(Randomness, "draw", never_the_same)
    seed = next(seed for seed in range(300) if "was seen differently" in found_in(seed))
    failing = shrink(seed)
    assert failing is not None
    assert [type(node) for node in failing.program.nodes] == [p.Look]
    assert str(failing.plan) == "plan: workers=1"


def found_in(seed: int) -> str:
    try:
        Simulator(seed).run()
    except SimulationFailed as failed:
        return failed.problems[0]
    return ""


# ── the command ─────────────────────────────────────────────────────────────────────────────


def test_one_seed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    told = capsys.readouterr().out
    assert "program 3:" in told
    assert "P1: starts" in told


def test_a_soak_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--programs", "60", "--processes", "1", "--from", "1000"]) == 0
    assert capsys.readouterr().out.startswith("60 programs in")


def test_a_soak_ends_when_its_time_is_up() -> None:
    result = soak(None, seconds=0.1, processes=1)
    assert 0 < result.programs < 10_000

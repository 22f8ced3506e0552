"""The simulator as a command: `python -m perdure.testing.soak --programs 10000`, `--minutes 60`, `--seed 123`.

With `--seed` one program is run, and told: the program, the schedule, and what is wrong, if anything; with `--shrink` a
program that fails is made as small as it gets. Otherwise seeds
are run one after the other, on several processes; it ends with exit code 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from perdure.testing.shrink import shrink
from perdure.testing.simulator import SimulationFailed, Simulator

SEEDS_AT_ONCE = 50


@dataclass
class Soak:
    """How it went: `programs` were run, those of `failures` (seed to first problem) broke a promise."""

    programs: int = 0
    seconds: float = 0.0
    failures: dict[int, str] = field(default_factory=dict[int, str])

    def __str__(self) -> str:
        rate = self.programs / self.seconds if self.seconds else 0.0
        told = f"{self.programs} programs in {self.seconds:.0f} s ({rate:.0f}/s), {len(self.failures)} failed"
        return "\n".join([told, *(f"  --seed {seed}: {problem}" for seed, problem in sorted(self.failures.items()))])


def problem_of(seed: int) -> str | None:
    """What is wrong with this seed, in a line; None if nothing is."""
    try:
        Simulator(seed).run()
    except SimulationFailed as failed:
        return failed.problems[0].splitlines()[0]
    except Exception:  # the simulator itself is at fault, or perdure is in a way that it did not expect
        return traceback.format_exc().splitlines()[-1]
    return None


def _problems_of(seeds: Sequence[int]) -> dict[int, str | None]:
    return {seed: problem_of(seed) for seed in seeds}


def soak(
    programs: int | None, *, seconds: float | None = None, first_seed: int = 0, processes: int = 2, tells: bool = False
) -> Soak:
    """Run so many programs, or for so long, whatever comes first."""
    soak, began = Soak(), time.monotonic()
    seeds = itertools.count(first_seed) if programs is None else range(first_seed, first_seed + programs)
    chunks = _chunks(seeds)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(_problems_of, chunk) for chunk in itertools.islice(chunks, 2 * processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            _count(soak, done, began)
            if tells:
                print(f"\r{str(soak).splitlines()[0]}", end="", file=sys.stderr, flush=True)
            if seconds is None or soak.seconds < seconds:
                running |= {pool.submit(_problems_of, chunk) for chunk in itertools.islice(chunks, len(done))}
    return soak


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    left = iter(seeds)
    while chunk := list(itertools.islice(left, SEEDS_AT_ONCE)):
        yield chunk


def _count(soak: Soak, done: Iterable[Future[dict[int, str | None]]], began: float) -> None:
    for future in done:
        for seed, problem in future.result().items():
            soak.programs += 1
            if problem is not None:
                soak.failures[seed] = problem
    soak.seconds = time.monotonic() - began


def tell(seed: int) -> int:
    """Run one seed and print its program, its schedule and what is wrong."""
    simulator = Simulator(seed)
    try:
        print(simulator.run().report())
    except SimulationFailed as failed:
        print(failed)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m perdure.testing.soak", description="Random programs, random faults.")
    parser.add_argument("--seed", type=int, help="run this one and tell all about it")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make the failing program of this one small")
    parser.add_argument("--programs", type=int, help="how many (default 1000, or as many as fit into --minutes)")
    parser.add_argument("--minutes", type=float, help="for how long at most")
    parser.add_argument("--from", type=int, default=0, dest="first_seed", help="the first seed (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return tell(given.seed)
    if given.shrink is not None:
        failing = shrink(given.shrink)
        print(failing or f"seed {given.shrink} does not fail")
        return 1 if failing else 0
    programs = 1_000 if given.programs is None and given.minutes is None else given.programs
    result = soak(
        programs,
        seconds=None if given.minutes is None else given.minutes * 60,
        first_seed=given.first_seed,
        processes=given.processes,
        tells=sys.stderr.isatty(),
    )
    print(result)
    return 1 if result.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())

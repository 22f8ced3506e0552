"""Crash at every write there is, before it and after it, and recover each time.

    sweep = await sweep_crashes(claims_agent.call("claim-42"))
    print(sweep)        # 14 writes, 28 crashes survived: 'refunded'

The first run is left alone; what it gives is what every other one has to give. Then it is run again and again, with a
crash before write 1, after write 1, before write 2, ...; a new worker recovers each time, until a run has fewer writes
than that. No step may begin again whose outcome was recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.api.calls import Call
from perdure.history import events as e
from perdure.runtime.performer import Flight
from perdure.specs import Budget, WorkflowSpec
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore, When
from perdure.testing.mortal import Death, Mortal, Outcome, QuietAboutCrashes, Scenario
from perdure.testing.runtime import RuntimeUnderTest

T = TypeVar("T")

RUN_ID = "swept"


class SweepFailed(AssertionError):
    """A crash made a difference. The message says where, and how the runs' histories look."""


@dataclass(frozen=True)
class Sweep(Generic[T]):
    """How it went. `result`: what each run gave, or None where each raised `error`."""

    writes: int
    crashes: int
    result: T | None
    error: BaseException | None = None

    def __str__(self) -> str:
        told = repr(self.result) if self.error is None else repr(self.error)
        return f"{self.writes} writes, {self.crashes} crashes survived: {told}"


async def sweep_crashes(
    call: Call[T] | Scenario[T],
    *,
    workflows: Iterable[Any] = (),
    provide: Mapping[type, Any] | None = None,
    budgets: Iterable[Budget] = (),
    secrets: Iterable[Any] = (),
) -> Sweep[T]:
    """Run it once undisturbed, and once for each crash. `call`: of a workflow, or a scenario with several calls to the
    runtime (messages, cancelling, ...). `workflows`: what else a recovering worker has to know. `provide`: for steps.
    `budgets`: what runs share. `secrets`: providers.

    Raises SweepFailed when a run that crashed and was recovered gives something else, or a recorded step began again.
    """
    scenario: Scenario[T] = call if callable(call) else _scenario_of(call)
    sweeper = _Sweeper(scenario, workflows, provide, budgets, secrets)
    expected, writes = await sweeper.run(None, "before")
    crashes = 0
    for n in itertools.count(1):
        furthest = 0
        for when in ("before", "after"):
            outcome, writes_now = await sweeper.run(n, when)
            furthest = max(furthest, writes_now)
            crashes += writes_now >= n
            if not outcome.is_same(expected):
                raise SweepFailed(sweeper.report(n, when, f"it gave {outcome}, not {expected}"))
        if furthest < n:
            return Sweep(writes, crashes, expected.result, expected.error)
    raise AssertionError("there is always a next write")


def _scenario_of(call: Call[T]) -> Scenario[T]:
    """A call is made once; what it is a call of can be called again."""
    of, args, kwargs = call.of, call.args, call.kwargs

    async def scenario(runtime: RuntimeUnderTest) -> T:
        run = await runtime.start(Call(of, args, kwargs), id=RUN_ID)
        return await run.result()

    return scenario


class _Sweeper(Generic[T]):
    """One scenario, run as often as it takes, each time in a store of its own."""

    def __init__(
        self, scenario: Scenario[T], workflows: Iterable[Any], provide: Mapping[type, Any] | None,
        budgets: Iterable[Budget], secrets: Iterable[Any],
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._workflows = list(workflows)
        self._provide = provide
        self._budgets, self._secrets = tuple(budgets), tuple(secrets)
        self._inner = MemoryStore(FakeClock())
        self._learnt: list[WorkflowSpec] = []

    async def run(self, fail_at: int | None, when: When) -> tuple[Outcome[T], int]:
        """What came of it, and how many writes the first process made, that of the crash included."""
        clock = FakeClock()
        self._inner = MemoryStore(clock)
        death = Death()
        store = CrashingStore(self._inner, fail_at=fail_at, when=when, how=death.come)
        with QuietAboutCrashes():
            outcome = await self._live(store, clock, death)
        writes = store.writes
        if death.has_come:
            outcome = await self._live(self._inner.again(), clock, Death())
        if outcome is None:
            raise AssertionError("nobody crashed, and nothing came of it")
        if self._repeated:
            raise SweepFailed(self.report(fail_at, when, "; ".join(self._repeated)))
        return outcome, writes

    async def _live(self, store: MemoryStore | CrashingStore, clock: FakeClock, death: Death) -> Outcome[T] | None:
        self._repeated: list[str] = []
        runtime = RuntimeUnderTest(
            store, clock=clock, workflows=self._workflows, provide=self._provide, budgets=self._budgets,
            secrets=self._secrets,
        )  # fmt: skip
        outcome = await Mortal[T](runtime, death, self._opened).live(self._scenario)
        if outcome is not None:
            self._learnt = runtime.learnt
        return outcome

    def _opened(self, runtime: RuntimeUnderTest) -> None:
        runtime.watch_steps(self._watch)
        for spec in self._learnt:
            runtime.learn(spec)

    def _watch(self, flight: Flight) -> None:
        """A step's body is about to begin: nothing may be recorded of what came of it, unless that does not stand."""
        if flight.is_anew:
            return
        outcome: tuple[int, str] | None = None
        for row in self._inner.load(flight.live.rid).rows:
            match e.decode(row.envelope):
                case e.Rewound(to=to) if outcome is not None and outcome[0] >= to:
                    outcome = None  # superseded: what the code asks for in this place now may be something else
                case e.StepCompleted() | e.StepFailed() as event if event.key == flight.ask.key:
                    outcome = (row.seq, event.label)
                case _:
                    pass
        if outcome is not None:
            told = f"{outcome[1]} of run {flight.live.run_id}"
            self._repeated.append(f"{told} began again, although event {outcome[0]} has its outcome")

    def report(self, n: int | None, when: When, what: str) -> str:
        """What is wrong, after which crash, and the histories as they are now."""
        lines = [f"after a crash {when} write {n}: {what}"]
        for run_id, rid, _, _ in self._inner.heads():
            lines.append(f"run {run_id}:")
            for row in self._inner.load(rid, from_seq=0).rows:
                event = e.decode(row.envelope)
                lines.append(f"  {row.seq} {row.kind} {event.label if isinstance(event, e.Keyed) else ''}".rstrip())
        return "\n".join(lines)


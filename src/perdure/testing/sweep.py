"""Crash at every write there is, before it and after it, and recover each time.

    sweep = await sweep_crashes(claims_agent.call("claim-42"))
    print(sweep)        # 14 writes, 28 crashes survived: 'refunded'

The first run is left alone; what it gives is what every other one has to give. Then it is run again and again, with a
crash before write 1, after write 1, before write 2, ...; a new worker recovers each time, until a run has fewer writes
than that. No step may begin again whose outcome was recorded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.api.calls import Call
from perdure.history import events as e
from perdure.runtime.performer import Flight
from perdure.specs import WorkflowSpec
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import Crash, CrashingStore, When
from perdure.testing.runtime import RuntimeUnderTest

T = TypeVar("T")

Scenario = Callable[[RuntimeUnderTest], Awaitable[T]]
"""What a client does. After a crash it does it again, with the runtime that recovers: so it starts runs by id."""

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
) -> Sweep[T]:
    """Run it once undisturbed, and once for each crash. `call`: of a workflow, or a scenario with several calls to the
    runtime (messages, cancelling, ...). `workflows`: what else a recovering worker has to know. `provide`: for steps.

    Raises SweepFailed when a run that crashed and was recovered gives something else, or a recorded step began again.
    """
    scenario: Scenario[T] = call if callable(call) else _scenario_of(call)
    sweeper = _Sweeper(scenario, workflows, provide)
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


@dataclass(frozen=True)
class _Outcome(Generic[T]):
    result: T | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        return repr(self.result) if self.error is None else repr(self.error)

    def is_same(self, other: _Outcome[T]) -> bool:
        if self.error is None or other.error is None:
            return self.error is other.error and self.result == other.result
        return type(self.error) is type(other.error) and str(self.error) == str(other.error)


class _Sweeper(Generic[T]):
    """One scenario, run as often as it takes, each time in a store of its own."""

    def __init__(self, scenario: Scenario[T], workflows: Iterable[Any], provide: Mapping[type, Any] | None) -> None:
        self._scenario = scenario
        self._workflows = list(workflows)
        self._provide = provide
        self._inner = MemoryStore(FakeClock())
        self._learnt: list[WorkflowSpec] = []

    async def run(self, fail_at: int | None, when: When) -> tuple[_Outcome[T], int]:
        """What came of it, and how many writes the first process made, that of the crash included."""
        clock = FakeClock()
        self._inner = MemoryStore(clock)
        crashed = asyncio.Event()
        store = CrashingStore(self._inner, fail_at=fail_at, when=when, how=lambda: _crash(crashed))
        with _QuietAboutCrashes():
            outcome = await self._until_crash(self._runtime(store, clock), crashed)
        writes = store.writes
        if crashed.is_set():
            again = self._runtime(self._inner.again(), clock)
            outcome = await self._until_crash(again, asyncio.Event())
        if outcome is None:
            raise AssertionError("nobody crashed, and nothing came of it")
        if self._repeated:
            raise SweepFailed(self.report(fail_at, when, "; ".join(self._repeated)))
        return outcome, writes

    def _runtime(self, store: MemoryStore | CrashingStore, clock: FakeClock) -> RuntimeUnderTest:
        self._repeated: list[str] = []
        self._is_dying = False
        return RuntimeUnderTest(store, clock=clock, workflows=self._workflows, provide=self._provide)

    async def _until_crash(self, runtime: RuntimeUnderTest, crashed: asyncio.Event) -> _Outcome[T] | None:
        """Perform the scenario, and leave in an orderly way. None if a crash comes first."""
        performing = asyncio.ensure_future(self._perform(runtime))
        crash = asyncio.ensure_future(crashed.wait())
        try:
            await asyncio.wait([performing, crash], return_when=asyncio.FIRST_COMPLETED)
            if not crashed.is_set():
                return performing.result()
            if not self._is_dying:  # it may have met the crash itself: then it is left to die
                performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
            return None
        finally:
            crash.cancel()

    async def _perform(self, runtime: RuntimeUnderTest) -> _Outcome[T]:
        await runtime.__aenter__()
        try:
            runtime.watch_steps(self._watch)
            for spec in self._learnt:
                runtime.learn(spec)
            outcome = await self._outcome(runtime)
            self._learnt = runtime.learnt
            await runtime.__aexit__()
        except (asyncio.CancelledError, Crash):
            self._is_dying = True
            await runtime.die()
            raise
        return outcome

    async def _outcome(self, runtime: RuntimeUnderTest) -> _Outcome[T]:
        try:
            return _Outcome(await self._scenario(runtime))
        except Exception as error:
            return _Outcome(None, error)

    def _watch(self, flight: Flight) -> None:
        """A step's body is about to begin: nothing may be recorded of what came of it."""
        for row in self._inner.load(flight.live.rid).rows:
            event = e.decode(row.envelope)
            if isinstance(event, e.StepCompleted | e.StepFailed) and event.key == flight.ask.key:
                told = f"{event.label} of run {flight.live.run_id}"
                self._repeated.append(f"{told} began again, although event {row.seq} has its outcome")

    def report(self, n: int | None, when: When, what: str) -> str:
        """What is wrong, after which crash, and the histories as they are now."""
        lines = [f"after a crash {when} write {n}: {what}"]
        for run_id, rid, _, _ in self._inner.heads():
            lines.append(f"run {run_id}:")
            for row in self._inner.load(rid, from_seq=0).rows:
                event = e.decode(row.envelope)
                lines.append(f"  {row.seq} {row.kind} {event.label if isinstance(event, e.Keyed) else ''}".rstrip())
        return "\n".join(lines)


def _crash(crashed: asyncio.Event) -> BaseException:
    crashed.set()
    return Crash()


class _QuietAboutCrashes:
    """The event loop does not report the crashes that are made on purpose."""

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._handle)

    def __exit__(self, *error: object) -> None:
        self._loop.set_exception_handler(self._before)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Crash):
            (self._before or type(loop).default_exception_handler)(loop, context)

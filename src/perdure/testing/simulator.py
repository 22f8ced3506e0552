"""A whole fleet in one thread: random programs on workers that are killed, paused, slowed down and cut off.

    Simulator(seed=123).run()       # raises SimulationFailed, with the program, the schedule and what is wrong

Everything follows from the seed: the program (`programs`), what goes wrong (`faults`), and who runs when. The workers
are real ones, each on a `VirtualLoop` of its own (`process`); the store is `MemoryStore`; time is a FakeClock's. Others
speak to the runs as `clients`. `witness` keeps the account; what has to hold in the end is in `oracle`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

from perdure.clock import MICROSECONDS, Clock
from perdure.engine import exact
from perdure.engine.execution import Execution
from perdure.errors import StoreError
from perdure.runtime.operation import Operation
from perdure.runtime.options import Options
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing import programs as p
from perdure.testing import workflows
from perdure.testing.clients import Clients
from perdure.testing.clock import FakeClock
from perdure.testing.consents import Request
from perdure.testing.faults import HORIZON_MS, Faults, FaultyStore, Plan, make_plan
from perdure.testing.interpreter import Trace
from perdure.testing.oracle import judge
from perdure.testing.outside import Outside, Send
from perdure.testing.people import People
from perdure.testing.process import Process, SimulatedLease
from perdure.testing.witness import Witness

LEASE_SECONDS = 1.0
SETTLE_MS = 60_000
SETTLE_SLOWLY_MS = 180_000
"""For hosted code that waits for children for which there is no room: it makes room when it was quiet for some seconds,
each time. And for clocks that are seconds apart: who goes on with a run waits until its own has caught up."""

CALLBACKS_MAX = 400_000
CALLBACKS_AT_ONCE_MAX = 6
HICCUP_SECONDS = 0.06
FROZEN_BEFORE_SENDING = 0.1


class SimulationFailed(AssertionError):
    """A promise was broken. The message has the program, the schedule and what is wrong; `problems` the latter."""

    def __init__(self, seed: int, problems: Sequence[str], report: str) -> None:
        super().__init__(report)
        self.seed, self.problems = seed, list(problems)


class Simulator:
    """One program, one schedule. `plan` and `program` replace those of the seed. `open_store`: another store than
    MemoryStore; called with the clock for each handle on it, as each process would open it. `foresees`: people know
    what will be asked of them, from a run of the same program in which nothing goes wrong."""

    def __init__(
        self,
        seed: int,
        *,
        plan: Plan | None = None,
        program: p.Program | None = None,
        open_store: Callable[[Clock], Store] | None = None,
        foresees: bool = True,
    ) -> None:
        self.seed = seed
        self.program = program or p.write_program(seed)
        self._rng = Random(f"schedule {seed}")
        of_seed = make_plan(self._rng)
        self.plan = plan or of_seed
        self.clock = FakeClock()
        self._open_store = open_store or _shared_memory(self.clock)
        self.store = self._open_store(self.clock)
        self.witness = Witness(self.program, self.store, self.clock)
        self.witness.consents.are_clocks_even = not self.plan.clock_off_ms
        self.outside = Outside(Random(f"outside {seed}"), is_kind=self.plan == Plan(self.plan.workers))
        self.clients = Clients(self.program, self.store, self.clock, self._rng, self.witness, self.outside)
        self.people = People(self.store, self.clock, self.witness, Random(f"people {seed}"))
        self._foresees = foresees and self.program.has_requests
        self.processes: list[Process] = []
        self._faults = Faults(self.plan, self._rng, self.witness.note)
        self._hiccups = 0.0
        self._callbacks = 0

    def run(self) -> Simulator:
        """Let the program run through all that is planned. Raises SimulationFailed."""
        foreseen = self._foreseen()
        workflows.enter_stage(self)
        self.people.know(foreseen)
        with _quiet_and_exact():
            try:
                self._perform()
            finally:
                self._bury()
        if self.witness.problems:
            raise SimulationFailed(self.seed, self.witness.problems, self.report())
        return self

    def _foreseen(self) -> list[Request]:
        if not self._foresees:
            return []
        kind = Simulator(self.seed, plan=Plan(1), program=self.program, foresees=False).run()
        return list(kind.witness.consents.requests.values())

    def report(self) -> str:
        """The program, the schedule and what is wrong."""
        lines = [f"seed {self.seed}", str(self.program), str(self.plan), "schedule:", *self.witness.schedule()]
        return "\n".join([*lines, "problems:", *self.witness.problems])

    def _bury(self) -> None:
        """Nothing of this simulation comes alive later, in the garbage collector."""
        for process in self._up():
            process.kill()
        for process in self.processes:
            process.close_store()
        self.store.close()
        for _, execution in self.witness.traces:
            execution.close()

    # ── what the workflow and the processes ask of their stage ───────────────────────────────
    def began(self, trace: Trace, execution: Execution) -> None:
        self.witness.traces.append((trace, execution))

    def seen(self, sight: workflows.Sight, value: int) -> None:
        self.witness.seen(sight, value)

    def taken(self, sight: workflows.Sight, message: int) -> None:
        self.witness.taken(sight, message)

    def is_decided(self, run_id: str) -> bool:
        return self.witness.is_decided(run_id)

    def heard(self, label: str, node: int, details: object) -> None:
        if details not in (None, *([node, number] for number in range(1, workflows.RETRY.max_attempts + 1))):
            self.witness.problem(f"an attempt of {label} reads {details!r} of earlier ones")

    def about_to_send(self, process: Any) -> None:
        if self._faults.are_on and self.plan.pauses and self._rng.random() < FROZEN_BEFORE_SENDING:
            self._freeze(process)

    def sent(self, operation: Operation, node: p.Effect, request: tuple[int, int, int], process: Any) -> Send:
        live = next((live for live in process.host.turns.live.values() if live.run_id == operation.run_id), None)
        is_straggler = self.witness.sending(operation, live, process)
        self.witness.consents.began(operation.run_id, request, operation.id)
        value = workflows.value_of(self.program, node.number)
        send = self.outside.arrived(
            operation.id, operation.attempt, request, node.kind, value, is_straggler=is_straggler
        )
        told = " by a straggler" if is_straggler else ""
        self.witness.note(f"outside: {operation.id[:6]} attempt {send.attempt} {send.fate}{told}", process)
        return send

    def takes(self, node: p.Step | p.Effect) -> float:
        return node.ms * self._rng.choice((0.5, 1, 1, 1, 3)) / 1000

    def step_began(self, body: workflows.Body) -> None:
        process: Any = body.process
        live = next((live for live in process.host.turns.live.values() if live.run_id == body.run_id), None)
        self.witness.step_began(body, live, process)

    def later(self, process: Process, action: Callable[[], None]) -> None:
        def act() -> None:
            if process.is_paused and process.is_up:
                self.clients.after(50, act)
            else:
                process.outside(action)

        self.clients.after(self._rng.choice((0, 0, 1, 5, 40)), act)

    def complain(self, process: Process, context: dict[str, Any]) -> None:
        self.witness.complain(process, context)

    # ── processes ────────────────────────────────────────────────────────────────────────────
    def open_process(self) -> None:
        """Start one more worker; tried again later if the store is away."""
        off = self._rng.randint(-1, 1) * self.plan.clock_off_ms * 1000
        process = Process(f"P{len(self.processes) + 1}", self, clock_off=off)
        self.processes.append(process)
        store = FaultyStore(
            process.name, self._open_store(self.clock), self._faults,
            lambda writes, outcomes: self.witness.committed(process, writes, outcomes),
        )  # fmt: skip
        options = Options(
            lease_seconds=LEASE_SECONDS,
            evict_after_seconds=self.plan.evict_after_ms / 1000,
            runs_max=1_000 if self.program.has_global_effects else self.plan.runs_max,
            steps_max=self.plan.steps_max,
            retry_after_death_seconds=self.plan.retry_after_death,
            provided={workflows.Process: process},
            compare_all_inputs=True,
            lease=SimulatedLease,
            stopwatch=self._stopwatch,
        )
        spec = workflows.simulated.spec
        self.witness.note("starts", process)
        try:
            process.open(store, {spec.key: spec}, options)
        except StoreError:
            process.is_dead = True
            self.clients.after(100, self.open_process)

    def _stopwatch(self) -> float:
        """Virtual time; now and then something takes long."""
        if self._faults.is_slow():
            self._hiccups += HICCUP_SECONDS
        return self.clock.now() / MICROSECONDS + self._hiccups

    def _up(self) -> list[Process]:
        return [process for process in self.processes if process.is_up]

    def _kill(self) -> None:
        if up := self._up():
            process = self._rng.choice(up)
            self.witness.note("is killed", process)
            process.kill()

    def _pause(self) -> None:
        if up := [process for process in self._up() if not process.is_paused]:
            self._freeze(self._rng.choice(up))

    def _freeze(self, process: Process) -> None:
        ms = self._rng.choice((30, 500, 1_500, 4_000))
        process.is_paused = True
        self.witness.note(f"is paused for {ms} ms", process)
        self.clients.after(ms, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        if process.is_paused:
            process.is_paused = False
            self.witness.note("goes on", process)

    def _leave(self) -> None:
        if up := [process for process in self._up() if not process.is_paused]:
            process = self._rng.choice(up)
            self.witness.note("shuts down", process)
            process.leave()

    def _evict(self) -> None:
        for process in self._up():
            process.do(process.host.release_idle)

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def _perform(self) -> None:
        plan, clients = self.plan, self.clients
        for _ in range(plan.workers):
            self.open_process()
        for run_id in ("run", "run-2", "run-3")[: plan.runs]:
            clients.start_later(run_id, self._up)
        self._at_random(plan.kills, self._kill)
        self._at_random(plan.pauses, self._pause)
        self._at_random(plan.leaves, self._leave)
        self._at_random(plan.evictions, self._evict)
        self._at_random(plan.cancels, clients.cancel)
        self._at_random(plan.forces, clients.force)
        self._at_random(plan.holds, clients.hold)
        self._at_random(plan.messages, clients.send)
        clients.after(50, self._keep_up)
        clients.after(HORIZON_MS, self._be_kind)
        self._drive()
        if not self.witness.problems:
            judge(self)

    def _at_random(self, times: int, action: Callable[[], None]) -> None:
        for _ in range(times):
            self.clients.after(self._rng.random() ** 2 * HORIZON_MS, action)

    def _keep_up(self) -> None:
        """There are always as many workers as planned, after a while."""
        for _ in range(self.plan.workers - len(self._up())):
            self.open_process()
        self.clients.after(self._rng.choice((20, 100, 400)), self._keep_up)

    def _be_kind(self) -> None:
        self.witness.note("from here on nothing goes wrong")
        self._faults.are_on = False
        self.outside.is_kind = True
        for process in self._up():
            self._go_on(process)
        self.clients.serve()
        self.people.serve()

    def _is_over(self) -> bool:
        witness = self.witness
        return bool(witness.problems) or (not self.clients.starting and len(witness.ended) == len(witness.runs))

    def _drive(self) -> None:
        """Let one process after the other go on for a little, in any order; when none can, let time pass."""
        is_cramped = self.plan.runs_max < Plan.runs_max and self.program.hosts_children
        settles = SETTLE_SLOWLY_MS if is_cramped or self.plan.clock_off_ms else SETTLE_MS
        until = self.clock.now() + (HORIZON_MS + settles) * 1000
        while not self._is_over():
            runnable = [process for process in self.processes if process.is_runnable]
            if runnable:
                self._go_on_with(runnable[0] if len(runnable) == 1 else self._rng.choice(runnable))
            elif not self.clock.advance_to_next():
                self.witness.problem("nothing is due any more")
            if self._callbacks > CALLBACKS_MAX:
                self.witness.problem("spinning: too many callbacks")
            if self.clock.now() > until:
                self._tell_pending()

    def _go_on_with(self, process: Process) -> None:
        rng, clock = self._rng, self.clock
        self._callbacks += process.run(rng.randint(1, CALLBACKS_AT_ONCE_MAX))
        if process.is_dead:
            self.witness.note("died", process)
        if rng.random() < 0.1:
            clock.advance_to(clock.now() + rng.choice((50, 1_000, 5_000)))

    def _tell_pending(self) -> None:
        for rid, run_id in self.witness.runs.items():
            if rid not in self.witness.ended:
                info = self.witness.info(rid)
                owner = next((process.name for process in self.processes if process.worker == info.owner), info.owner)
                told = f"{info.status} {info.reason or ''}, owner {owner}, due {self.witness.due(info.due_at)}"
                self.witness.problem(f"{run_id} does not end: {told}")


def _shared_memory(clock: FakeClock) -> Callable[[Clock], Store]:
    """Opens handles on one memory."""
    memory = MemoryStore(clock)

    def again(_: Clock) -> Store:
        return memory.again()

    return again


@contextlib.contextmanager
def _quiet_and_exact() -> Generator[None, None, None]:
    """Warnings about faults that are made on purpose concern nobody. asyncio stays exact when the last worker dies."""
    logs = [logging.getLogger("perdure"), logging.getLogger("asyncio")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL + 1)
    exact.install()
    try:
        yield
    finally:
        exact.uninstall()
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)

"""A whole fleet in one thread: random programs on workers that are killed, paused, slowed down and cut off.

    Simulator(seed=123).run()       # raises SimulationFailed, with the program, the schedule and what is wrong

Everything follows from the seed: the program (`programs`), what goes wrong (`faults`), and who runs when. The workers
are real ones, each on a `VirtualLoop` of its own; the store is `MemoryStore`; time is a FakeClock's. What has to hold
is in `oracle`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from perdure.engine import exact
from perdure.engine.execution import Execution
from perdure.errors import StoreError
from perdure.history import events as e
from perdure.runtime import load, mail
from perdure.runtime.host import Options
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Append, Done, Letter, NewRun, Outcome, RunInfo, Status, Write
from perdure.testing import programs as p
from perdure.testing import workflows
from perdure.testing.clock import FakeClock
from perdure.testing.faults import HORIZON_MS, Faults, FaultyStore, Plan, make_plan
from perdure.testing.interpreter import Trace
from perdure.testing.process import Process, SimulatedLease

LEASE_SECONDS = 1.0
SETTLE_MS = 30_000
CALLBACKS_MAX = 400_000
CALLBACKS_AT_ONCE_MAX = 6


class SimulationFailed(AssertionError):
    """A promise was broken. The message has the program, the schedule and what is wrong; `problems` the latter."""

    def __init__(self, seed: int, problems: Sequence[str], report: str) -> None:
        super().__init__(report)
        self.seed, self.problems = seed, list(problems)


class Simulator:
    """One program, one schedule. `plan` and `program` replace those of the seed."""

    def __init__(self, seed: int, *, plan: Plan | None = None, program: p.Program | None = None) -> None:
        self.seed = seed
        self.program = program or p.write_program(seed)
        self._rng = Random(f"schedule {seed}")
        of_seed = make_plan(self._rng)
        self.plan = plan or of_seed
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.processes: list[Process] = []
        self.problems: list[str] = []
        self.traces: list[tuple[Trace, Execution]] = []
        self.runs: dict[int, str] = {}
        self.ended: set[int] = set()
        self.commits = self.callbacks = self.bodies = 0
        self._lines: list[tuple[int, str]] = []
        self._began_at = self.clock.now()
        self._faults = Faults(self.plan, self._rng, self.note)
        self._lengths: dict[int, int] = {}
        self._chapters: dict[int, int] = {}
        self._recorded: dict[tuple[str, int, str], str] = {}
        self._launched: dict[tuple[str, int, str, int, int], set[int]] = {}
        self._decisions = Counter[str]()
        self._digests: dict[tuple[str, int, str], int] = {}
        self._messages = self._starting = 0
        self.sent: list[tuple[str, str, int]] = []

    # ── what the workflow and the processes ask of their stage ───────────────────────────────
    def began(self, trace: Trace, execution: Execution) -> None:
        self.traces.append((trace, execution))

    def is_decided(self, run_id: str) -> bool:
        return self._decisions[run_id] > 0

    def takes(self, node: p.Step) -> float:
        return node.ms * self._rng.choice((0.5, 1, 1, 1, 3)) / 1000

    def step_began(self, body: workflows.Body) -> None:
        """A body begins: it must not have been recorded, and be the only one of its attempt under this epoch."""
        self.bodies += 1
        process: Any = body.process
        live = next((live for live in process.host.turns.live.values() if live.run_id == body.run_id), None)
        name = f"{body.label} of {body.run_id}, chapter {body.chapter}, attempt {body.number}"
        self.note(f"body of {name}", process)
        if live is None:
            self.problem(f"the body of {name} began in {process.name}, which has no such run")
            return
        info = self._info(live.rid)
        is_zombie = info.epoch != live.epoch
        call = (body.run_id, body.chapter, body.label)
        if call in self._recorded and not is_zombie:
            self.problem(f"the body of {name} began although the call is recorded as {self._recorded[call]}")
        epochs = self._launched.setdefault((*call, body.number, self._decisions[body.run_id]), set())
        if live.epoch in epochs:
            self.problem(f"the body of {name} began twice under epoch {live.epoch}")
        epochs.add(live.epoch)
        node = self.program.nodes[body.node]
        is_firm = isinstance(node, p.Step) and node.which != "lazy"
        if is_firm and self._digests.setdefault(call, body.digest) != body.digest:
            self.problem(f"{name} was asked for on other grounds than before: something unrecorded reached the code")

    def kill_proof(self, worker: str) -> None:
        self.store.kill(worker)

    def later(self, process: Process, action: Callable[[], None]) -> None:
        def act() -> None:
            if process.is_paused and process.is_up:
                self._after(50, act)
            else:
                process.outside(action)

        self._after(self._rng.choice((0, 0, 1, 5, 40)), act)

    def complain(self, process: Process, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            import traceback

            told = "".join(traceback.format_exception(error))
        else:
            told = str(context)
        self.problem(f"{process.name}: {context.get('message')}: {told}")

    # ── notes ────────────────────────────────────────────────────────────────────────────────
    def note(self, what: str, process: Process | None = None) -> None:
        self._lines.append((self.clock.now(), f"{process.name}: {what}" if process is not None else what))

    def problem(self, what: str) -> None:
        self.note(f"PROBLEM: {what}")
        self.problems.append(what)

    def report(self) -> str:
        """The program, the schedule and what is wrong."""
        lines = [f"{(at - self._began_at) / 1000:10.1f} ms  {what}" for at, what in self._lines]
        return "\n".join(
            [f"seed {self.seed}", str(self.program), str(self.plan), "schedule:", *lines, "problems:", *self.problems]
        )

    # ── the store's side ─────────────────────────────────────────────────────────────────────
    def _info(self, rid: int) -> RunInfo:
        return self.store.load(rid).info

    def _committed(self, process: Process | None, writes: Sequence[Write], outcomes: Sequence[Outcome]) -> None:
        """Something is durable; the same write may come again."""
        self.commits += 1
        for write, outcome in zip(writes, outcomes, strict=True):
            if not isinstance(outcome, Done):
                self.note(f"{type(write).__name__} is refused: {type(outcome).__name__}", process)
            elif isinstance(write, NewRun):
                self.runs[outcome.rid] = write.run_id
            elif isinstance(write, Append):
                self._appended(process, write)

    def _appended(self, process: Process | None, append: Append) -> None:
        rid = append.rid
        for new in append.new_runs:
            info = self.store.find(new.run_id)
            if info is not None:
                self.runs[info.rid] = new.run_id
        if append.expected_length < self._lengths.get(rid, 1):
            return
        self._lengths[rid] = append.expected_length + len(append.rows)
        run_id = self.runs[rid]
        for row in append.rows:
            event = e.decode(row.envelope)
            label = event.label if isinstance(event, e.Keyed) else ""
            self.note(f"{run_id} {row.seq} {row.kind} {label}", process)
            if isinstance(event, e.ChapterStarted):
                self._chapters[rid] = event.number
            elif isinstance(event, e.RunUnblocked):
                self._decisions[run_id] += event.choice == "retry"
            elif isinstance(event, e.StepCompleted | e.StepFailed):
                self._recorded[run_id, self._chapters.get(rid, 0), event.label] = row.kind
        self._changed(run_id, append, process)

    def _changed(self, run_id: str, append: Append, process: Process | None) -> None:
        change = append.change
        if change is None:
            return
        if change.release:
            self.note(f"{run_id} is released, due {self._since(change.due_at)}", process)
        if change.status is not None and change.status.is_final:
            self.ended.add(append.rid)
        if change.status is Status.BLOCKED and change.reason == "needs_person":
            self._after(self._rng.choice((10, 100, 500)), lambda: self._decide(run_id))
        elif change.status is Status.BLOCKED and change.reason != "crash_loop":
            self.problem(f"{run_id} is blocked ({change.reason}): {change.hint}")

    def _since(self, at: int | None) -> str:
        return "never" if at is None else f"at {(at - self._began_at) / 1000:.1f} ms"

    # ── processes ────────────────────────────────────────────────────────────────────────────
    def open_process(self) -> None:
        """Start one more worker; tried again later if the store is away."""
        off = self._rng.randint(-1, 1) * self.plan.clock_off_ms * 1000
        process = Process(f"P{len(self.processes) + 1}", self, clock_off=off)
        self.processes.append(process)
        store = FaultyStore(
            process.name, self.store.again(), self._faults,
            lambda writes, outcomes: self._committed(process, writes, outcomes),
        )  # fmt: skip
        options = Options(
            lease_seconds=LEASE_SECONDS,
            evict_after_seconds=self.plan.evict_after_ms / 1000,
            runs_max=self.plan.runs_max,
            steps_max=self.plan.steps_max,
            retry_after_death_seconds=self.plan.retry_after_death,
            provided={workflows.Process: process},
            compare_all_inputs=True,
            lease=SimulatedLease,
            stopwatch=self._stopwatch,
        )
        spec = workflows.simulated.spec
        self.note("starts", process)
        try:
            process.open(store, {spec.key: spec}, options)
        except StoreError:
            process.is_dead = True
            self._after(100, self.open_process)

    def _stopwatch(self) -> float:
        """Virtual time; now and then something takes long."""
        if self._faults.is_slow():
            self._slowness += 0.06
        return self.clock.now() / 1e6 + self._slowness

    _slowness = 0.0

    def _up(self) -> list[Process]:
        return [process for process in self.processes if process.is_up]

    def _kill(self) -> None:
        if up := self._up():
            self.kill(self._rng.choice(up))

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.note("is killed", process)
        process.kill()

    def _pause(self) -> None:
        if up := [process for process in self._up() if not process.is_paused]:
            process = self._rng.choice(up)
            ms = self._rng.choice((30, 500, 1_500, 4_000))
            process.is_paused = True
            self.note(f"is paused for {ms} ms", process)
            self._after(ms, lambda: self._go_on(process))

    def _go_on(self, process: Process) -> None:
        if process.is_paused:
            process.is_paused = False
            self.note("goes on", process)

    def _leave(self) -> None:
        if up := [process for process in self._up() if not process.is_paused]:
            process = self._rng.choice(up)
            self.note("shuts down", process)
            process.leave()

    def _evict(self) -> None:
        for process in self._up():
            process.do(process.host.release_idle)

    # ── clients ──────────────────────────────────────────────────────────────────────────────
    def _start(self, run_id: str) -> None:
        """Start a run: for any worker, or for one that then takes it at once."""
        spec = workflows.simulated.spec
        raw = spec.arguments.dumps((self.program.root.number, 0), {})
        up = self._up()
        process = self._rng.choice(up) if up and self._rng.random() < 0.5 else None
        owner = process.host.worker if process is not None else None
        new = load.new_run(spec, run_id, raw, now=self.clock.now(), owner=owner)
        self._starting -= 1
        (outcome,) = self.store.commit([new])
        self._committed(None, [new], [outcome])
        info = self.store.find(run_id)
        if process is not None and info is not None:
            process.do(lambda: process.loop.call_soon(process.host.take_new, info, new, raw))

    def _start_later(self, run_id: str) -> None:
        self._starting += 1
        self._after(self._rng.choice((0, 0, 30)), lambda: self._start(run_id))

    def _unfinished(self) -> list[str]:
        return [run_id for rid, run_id in self.runs.items() if rid not in self.ended]

    def _post(self, run_id: str, kind: str, key: str, body: bytes) -> bool:
        letter = Letter(os.urandom(16), run_id, kind, key, body, self.clock.now())
        (outcome,) = self.store.commit([letter])
        return isinstance(outcome, Done)

    def _send(self, run_id: str, name: str) -> None:
        self._messages += 1
        if self._post(run_id, "message", name, str(self._messages).encode()):
            if self._faults.are_on:
                self.note(f"message {name} {self._messages} to {run_id}")
            self.sent.append((run_id, name, self._messages))

    def _send_any(self) -> None:
        if runs := self._unfinished():
            self._send(self._rng.choice(runs), self._rng.choice(p.MESSAGES))

    def _cancel(self) -> None:
        if runs := self._unfinished():
            self._control(self._rng.choice(runs), "cancel")

    def _hold(self) -> None:
        if runs := self._unfinished():
            run_id = self._rng.choice(runs)
            self._control(run_id, "pause")
            self._after(self._rng.choice((20, 300)), lambda: self._control(run_id, "resume"))

    def _force(self) -> None:
        if runs := self._unfinished():
            self._control(self._rng.choice(runs), "cancel", force=True)

    def _decide(self, run_id: str) -> None:
        """A person looks at what is blocked, and decides somehow."""
        info = self.store.find(run_id)
        if info is not None and info.status is Status.BLOCKED:
            choice = self._rng.choice(("retry", "value", "fail"))
            self._control(run_id, "unblock", choice=choice, value="7" if choice == "value" else None)

    def _control(self, run_id: str, kind: str, **body: Any) -> None:
        self.note(f"{kind} {run_id} {body or ''}")
        self._post(run_id, kind, "", msgspec.json.encode(mail.ControlLetter(**body)))

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def _after(self, ms: float, action: Callable[[], None]) -> None:
        self.clock.arm(self.clock.now() + round(ms * 1000), action, None)

    def _at_random(self, times: int, action: Callable[[], None]) -> None:
        for _ in range(times):
            self._after(self._rng.random() ** 2 * HORIZON_MS, action)

    def run(self) -> Simulator:
        """Let the program run through all that is planned. Raises SimulationFailed."""
        workflows.enter_stage(self)
        exact.install()
        levels = [(log, log.level) for log in (logging.getLogger("perdure"), logging.getLogger("asyncio"))]
        for log, _ in levels:
            log.setLevel(logging.CRITICAL + 1)
        try:
            self._perform()
        finally:
            for process in self._up():
                process.kill()
            for _, execution in self.traces:
                execution.close()  # what a killed process held must not come alive in the garbage collector
            exact.uninstall()
            for log, level in levels:
                log.setLevel(level)
        if self.problems:
            raise SimulationFailed(self.seed, self.problems, self.report())
        return self

    def _perform(self) -> None:
        for _ in range(self.plan.workers):
            self.open_process()
        plan = self.plan
        for run_id in ("run", "run-2", "run-3")[: plan.runs]:
            self._start_later(run_id)
        self._at_random(plan.kills, self._kill)
        self._at_random(plan.pauses, self._pause)
        self._at_random(plan.leaves, self._leave)
        self._at_random(plan.evictions, self._evict)
        self._at_random(plan.cancels, self._cancel)
        self._at_random(plan.forces, self._force)
        self._at_random(plan.holds, self._hold)
        self._at_random(plan.messages, self._send_any)
        self._after(50, self._keep_up)
        self._after(HORIZON_MS, self._be_kind)
        self._drive()
        if not self.problems:
            from perdure.testing.oracle import judge

            judge(self)

    def _keep_up(self) -> None:
        """There are always as many workers as planned, after a while."""
        for _ in range(self.plan.workers - len(self._up())):
            self.open_process()
        self._after(self._rng.choice((20, 100, 400)), self._keep_up)

    def _be_kind(self) -> None:
        self.note("from here on nothing goes wrong")
        self._faults.are_on = False
        for process in self._up():
            self._go_on(process)
        self._serve_all()

    def _serve_all(self) -> None:
        for run_id in self._unfinished():
            info = self.store.find(run_id)
            if info is not None and info.reason == "paused":
                self._control(run_id, "resume")
            elif info is not None and info.status is Status.BLOCKED:
                self._control(run_id, "unblock", choice="retry")
            for name in p.MESSAGES:
                self._send(run_id, name)
        self._after(300, self._serve_all)

    def _is_over(self) -> bool:
        return bool(self.problems) or (not self._starting and len(self.ended) == len(self.runs))

    def _drive(self) -> None:
        until = self.clock.now() + (HORIZON_MS + SETTLE_MS) * 1000
        rng, clock = self._rng, self.clock
        while not self._is_over():
            runnable = [process for process in self.processes if process.is_runnable]
            if runnable:
                process = runnable[0] if len(runnable) == 1 else rng.choice(runnable)
                was_up = process.is_up
                self.callbacks += process.run(rng.randint(1, CALLBACKS_AT_ONCE_MAX))
                if was_up and process.is_dead:
                    self.note("died", process)
                if rng.random() < 0.1:
                    clock.advance_to(clock.now() + rng.choice((50, 1_000, 5_000)))
            elif not clock.advance_to_next():
                self.problem("nothing is due any more")
            if self.callbacks > CALLBACKS_MAX:
                self.problem("spinning: too many callbacks")
            if clock.now() > until:
                self._tell_pending()

    def _tell_pending(self) -> None:
        for rid, run_id in self.runs.items():
            if rid not in self.ended:
                info = self._info(rid)
                owner = next((pr.name for pr in self.processes if pr.worker == info.owner), info.owner)
                told = f"{info.status} {info.reason or ''}, owner {owner}, due {self._since(info.due_at)}"
                self.problem(f"{run_id} does not end: {told}")

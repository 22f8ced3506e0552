"""Drives one run's code by hand: what a runtime does, without store, clock or performer.

    driver = Driver(agent, "question")
    driver.complete("search", "answer")        # deliver a step's result
    driver.message("reply", "yes")             # or a message, or the passing of time
    assert driver.result() == ...
    driver.check_replays()                     # every prefix of the history brings the code back to where it stood

A driver keeps the history that a runtime would keep, and after each delivery what the code asked for then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.codec import codec_for, dump_exception, load_exception, pack
from perdure.engine.calls import Ask, Cancelled, ChildAsk, Overdue, StepAsk, Waiting
from perdure.engine.chapters import Beginning, Completed, Failed, NextChapter, WasCancelled
from perdure.engine.execution import Execution
from perdure.engine.known import Known
from perdure.engine.replay import Replay
from perdure.history import events as e

START = 1_700_000_000_000_000
MILLISECOND = 1_000
SECOND = 1_000_000
_PLAIN = codec_for(Any)


class Happened(NamedTuple):
    """One event of a history, with its time and the payload that comes with it; of a step's result also the arguments,
    if it carries them."""

    event: e.Event
    at: int
    raw: bytes | None = None
    input: bytes | None = None

    @property
    def output(self) -> bytes | None:
        return self.raw


class Standing(NamedTuple):
    """What code has asked for and not got, and how it ended."""

    asked: tuple[str, ...]
    ending: Any
    blocked: str | None


class Driver:
    """One run, driven by hand. With `past` the code is first brought back to where that history ends."""

    def __init__(
        self,
        workflow: Any,
        *arguments: Any,
        past: Sequence[Happened] | None = None,
        waiting: Iterable[Waiting] = (),
        same_manifest: bool = True,
        beginning: Beginning | None = None,
        records_starts: bool = False,
        replays_plainly: bool = False,
    ) -> None:
        self.workflow = workflow
        self.spec = workflow.spec
        self.beginning = beginning or Beginning(7, self.spec.arguments.dumps(arguments, {}), START)
        self.history: list[Happened] = list(past or ())
        self.records_starts = records_starts
        self.at = self.history[-1].at if self.history else self.beginning.at
        self.logged: list[str] = []
        self.performed: list[str] = []
        self.stood: dict[int, Standing] = {}
        known = Known()
        for event, h in known.note_completed((h.event, h) for h in self.history):
            known.note(event, h.at, h.raw)
        self.execution = Execution(
            self.spec, "run", self.beginning, known=known, waiting=waiting, same_manifest=same_manifest,
            log=self.logged.append,
        )  # fmt: skip
        if past is None:
            self.execution.begin()
        else:
            self._replay(plainly=replays_plainly)
        self._look()

    def _replay(self, *, plainly: bool) -> None:
        """As a runtime does it; or plainly, each outcome delivered after the code has given way to the loop."""
        execution = self.execution
        execution.is_replaying = True
        outcomes = [(h.event, h) for h in self.history if h.event.is_outcome]
        execution.outcomes_left = len(outcomes)
        if plainly:
            execution.begin()
            for event, h in outcomes:
                execution.deliver(event, h.at, h.raw)
        else:
            Replay(execution, outcomes).run(lambda _, h: h.raw)
        execution.finish_replay()

    # ── what the code asks for ───────────────────────────────────────────────────────────────
    def _look(self) -> None:
        """See to what the code asked for: steps start, children are recorded as started, cancellations as such."""
        commands, self.execution.commands = self.execution.commands, []
        for command in commands:
            if isinstance(command, Overdue):
                continue  # nobody is asked here
            if isinstance(command, Cancelled):
                ask = command.ask
                self._record(e.CallCancelled(*ask.key, ask.name, ask.use))
            elif self.execution.open.get(command.key) is command:
                self._start(command)
        self.stood[len(self.history)] = self.standing()

    def _start(self, command: Ask) -> None:
        self.performed.append(command.label)
        if isinstance(command, ChildAsk) and not command.is_started:
            command.is_started = True
            self._record(
                e.ChildStarted(
                    *command.key,
                    command.name,
                    command.use,
                    command.run_id,
                    command.spec.version,
                    command.packed.digest,
                    command.on_cancel,
                )
            )
        if isinstance(command, StepAsk) and self.records_starts and not command.is_recorded:
            first = _input(command)
            self._record(e.StepStarted(*command.key, command.name, command.use, first["input"], first["view"]))

    def _record(self, event: e.Event, raw: bytes | None = None, given: bytes | None = None) -> None:
        notes, self.execution.notes = self.execution.notes, ()
        self.history.extend(Happened(note, self.at) for note in notes)
        self.history.append(Happened(event, self.at, raw, given))

    def standing(self) -> Standing:
        """Where the code stands now."""
        failure = self.execution.failure
        asked = tuple(sorted(f"{ask.kind} {ask.label}" for ask in self.execution.open.values()))
        ending = self.execution.ending
        return Standing(() if ending else asked, ending, failure.reason if failure else None)

    @property
    def asked(self) -> list[str]:
        """Labels of the calls without an outcome, in the order in which they were made."""
        return [ask.label for ask in self.execution.open.values()]

    def ask(self, which: str) -> Any:
        """The oldest open call with this label or name."""
        for ask in self.execution.open.values():
            if which in {ask.label, ask.name}:
                return ask
        raise AssertionError(f"the code does not ask for {which}; it asks for {self.asked}")

    def argument(self, which: str) -> Any:
        """The first argument of an open step."""
        return argument_of(self.ask(which))

    # ── what happens to it ───────────────────────────────────────────────────────────────────
    def deliver(
        self, event: e.Event, raw: bytes | None = None, *, after: float = 0.001, given: bytes | None = None
    ) -> Driver:
        """Record an event and hand it to the code, `after` seconds later than the last one."""
        self.at += round(after * SECOND)
        self._record(event, raw, given)
        self.execution.deliver(event, self.at, raw)
        self._look()
        return self

    def complete(self, which: str | StepAsk, value: Any = 0, *, after: float = 0.001) -> Driver:
        """A step returns; the code need not wait for it any more."""
        ask: StepAsk = self.ask(which) if isinstance(which, str) else which
        raw = ask.spec.result.dumps(value)
        event = e.StepCompleted(*_call(ask), **self._payloads(ask, raw))
        return self.deliver(event, raw, after=after, given=None if event.input is None else ask.input)

    def fail(self, which: str, error: BaseException, *, after: float = 0.001) -> Driver:
        """A step fails for good."""
        ask = self.ask(which)
        raw = dump_exception(error, ask.spec.raises)
        return self.deliver(e.StepFailed(*_call(ask), **self._payloads(ask, raw)), raw, after=after)

    def _payloads(self, ask: StepAsk, raw: bytes) -> dict[str, Any]:
        return {"output": pack(raw, self.execution.memo).digest, **_input(ask)}

    def end_child(self, which: str | ChildAsk, value: Any = None, *, error: BaseException | None = None) -> Driver:
        """A child run ends; the code need not wait for it any more."""
        ask: ChildAsk = self.ask(which) if isinstance(which, str) else which
        raw = ask.spec.result.dumps(value) if error is None else dump_exception(error, ask.spec.raises)
        status = "completed" if error is None else "failed"
        return self.deliver(e.ChildEnded(*_call(ask), ask.run_id, status, pack(raw, self.execution.memo).digest), raw)

    def message(self, name: str, value: Any = None) -> Driver:
        """A message arrives."""
        raw = _PLAIN.dumps(value)
        return self.deliver(e.MessageArrived(name, pack(raw, self.execution.memo).digest, self.at), raw)

    def cancel(self, reason: str = "") -> Driver:
        """Somebody asks the run to stop."""
        return self.deliver(e.CancelRequested(reason))

    def pass_time(self, seconds: float) -> Driver:
        """Nothing happens for so long, then a timer is due."""
        return self.deliver(e.TimePassed(), after=seconds)

    def wake(self) -> Driver:
        """The earliest timer is due."""
        deadline = self.execution.deadline()
        assert deadline is not None, f"the code waits for no time; it asks for {self.asked}"
        return self.pass_time(max(0, deadline - self.at) / SECOND)

    def run(self, answer: Callable[[StepAsk], Any], *, deliveries_max: int = 10_000) -> Any:
        """Answer every step, the oldest first, and let time pass when none is open; the result."""
        for _ in range(deliveries_max):
            steps = [ask for ask in self.execution.open.values() if isinstance(ask, StepAsk)]
            if self.execution.ending is not None:
                return self.result()
            if steps:
                self.complete(steps[0].label, answer(steps[0]))
            else:
                self.wake()
        raise AssertionError(f"not over after {deliveries_max} deliveries: {self.standing()}")

    # ── how it ends ──────────────────────────────────────────────────────────────────────────
    @property
    def is_over(self) -> bool:
        return self.execution.ending is not None

    def result(self) -> Any:
        """What the workflow returned; what it raised is raised."""
        ending = self.execution.ending
        match ending:
            case Completed(output):
                return self.spec.result.loads(output)
            case Failed(output):
                raise load_exception(output, self.spec.raises)
            case _:
                raise AssertionError(f"{ending!r}; blocked: {self.execution.failure}; asked: {self.asked}")

    @property
    def was_cancelled(self) -> bool:
        return isinstance(self.execution.ending, WasCancelled)

    def next_chapter(self) -> Driver:
        """The same run's next chapter, after continue_as_new."""
        ending = self.execution.ending
        assert isinstance(ending, NextChapter), f"{self.standing()}"
        carried: list[tuple[str, str]] = msgspec.json.decode(self.execution.mailbox.carried())
        beginning = Beginning(
            8, ending.input, self.at, self.beginning.chapter + 1, tuple((name, text.encode()) for name, text in carried)
        )
        return Driver(self.workflow, beginning=beginning)

    def blocked(self) -> str:
        """The reason and the hint with which the code was stopped."""
        failure = self.execution.failure
        assert failure is not None, f"the code goes on: {self.standing()}"
        return f"{failure.reason}: {failure.hint}"

    # ── once more ────────────────────────────────────────────────────────────────────────────
    def replay(self, workflow: Any = None, *, events: int | None = None, **options: Any) -> Driver:
        """The same history (or its first `events`) under this code, or under other code."""
        past = self.history[:events]
        return Driver(workflow or self.workflow, past=past, beginning=self.beginning, **options)

    def park(self, workflow: Any = None, **options: Any) -> Driver:
        """Leave memory and come back, with the waiting set that is written in between."""
        waiting = self.execution.waiting_set()
        self.execution.close()
        return self.replay(workflow, waiting=waiting, **options)

    def check_replays(self) -> None:
        """Every prefix of the history brings the code to where it stood then, and asks for the same calls."""
        assert not self.execution.failure, self.blocked()
        for length, stood in self.stood.items():
            for plainly in (False, True):
                again = self.replay(events=length, records_starts=self.records_starts, replays_plainly=plainly)
                assert again.standing() == stood, f"after {length} of {len(self.history)} events"
                assert again.history == self.history[: len(again.history)]
                again.execution.close()


def argument_of(ask: StepAsk) -> Any:
    """The first argument of a step."""
    arguments: dict[str, Any] = msgspec.json.decode(ask.input)
    return next(iter(arguments.values()))


def _call(ask: Ask) -> tuple[str, int, str, int]:
    return (*ask.key, ask.name, ask.use)


def _input(ask: StepAsk) -> dict[str, Any]:
    """The fields of the first event about a step."""
    if ask.is_recorded or ask.packed is None:
        return {}
    ask.is_recorded = True
    return {"input": ask.packed.digest, "view": ask.view}

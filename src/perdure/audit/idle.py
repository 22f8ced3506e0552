"""How long do runs only wait, and what has become old by then? Told by workflow, the longest wait first.

A run only waits while nothing of it is under way: no step, no effect. What comes meanwhile (a message, a decision, a
timer) does not end the wait: what follows from it does. A wait is told from a `Trace`, which is one run's times and
nothing else; `perdure.audit.foreign_logs` makes them from what other systems write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from perdure.clock import MICROSECONDS
from perdure.engine.calls import WaitingSet
from perdure.history import events as e
from perdure.store.protocol import Filter, Row, RunInfo, Store, every_run

HOUR, DAY = 3_600 * MICROSECONDS, 86_400 * MICROSECONDS

WAIT_MIN = MICROSECONDS
"""What follows within a second is one go."""

RUNS_PER_READ = 500


class Mark(StrEnum):
    """What a wait of that length asks for."""

    SHORT = ""
    HOUR = "over an hour"
    DAY = "over a day"


class Idle(NamedTuple):
    """A time in which a run only waited. Times are microseconds since the epoch. `waited_for`: in words, as far as it
    is known. `aged`: the steps whose results were there before, with nothing said of how long they are good for.
    `is_on`: it has not ended yet."""

    began: int
    ended: int
    waited_for: tuple[str, ...] = ()
    aged: tuple[str, ...] = ()
    is_on: bool = False

    @property
    def length(self) -> int:
        return self.ended - self.began


def mark_of(length: int) -> Mark:
    """Of a wait of so many microseconds."""
    return Mark.DAY if length > DAY else Mark.HOUR if length > HOUR else Mark.SHORT


class Trace:
    """What is known of one run: when something of it was under way, what it waited for, which results it had when."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []
        self._begun: dict[Hashable, int] = {}
        self._waits: list[tuple[int, int, str]] = []
        self._open_waits: dict[Hashable, tuple[int, str]] = {}
        self._results: dict[str, int] = {}
        self._vouched: set[Hashable] = set()
        self.last = 0

    def touch(self, at: int) -> None:
        """It did something in that moment."""
        self._note_busy(at, at)

    def begin(self, key: Hashable, at: int) -> None:
        """Something is under way from here."""
        self.touch(at)
        self._begun.setdefault(key, at)

    def end(self, key: Hashable, at: int, *, began: int = 0) -> None:
        """It has ended. `began`: where that was not told when it began."""
        started = self._begun.pop(key, None)
        self._note_busy(min(began or at, at) if started is None else started, at)

    def vouch(self, key: Hashable) -> None:
        """It is said of the result of this call what it rests on, or how long it is good for."""
        self._vouched.add(key)

    def result(self, name: str, at: int, key: Hashable = None) -> None:
        """A result is there; of those for which nobody vouches the first counts."""
        if key is None or key not in self._vouched:
            self._results.setdefault(name, at)

    def wait(self, key: Hashable, at: int, word: str) -> None:
        """It waits for this from here."""
        self._open_waits.setdefault(key, (at, word))

    def came(self, key: Hashable, at: int, word: str = "") -> None:
        """What it waited for is there; or has come without anybody having said that it is waited for."""
        self.last = max(self.last, at)
        since, said = self._open_waits.pop(key, (at, word))
        if said:
            self.waited(since, at, said)

    def waited(self, since: int, at: int, word: str) -> None:
        """It has waited for this."""
        self._waits.append((since, at, word))

    def stop(self, at: int) -> None:
        """Nothing of it is under way from here."""
        for key in list(self._begun):
            self.end(key, at)

    def end_all(self, at: int) -> None:
        """Nothing of it is under way any more, and it waits for nothing."""
        self.stop(at)
        for key in list(self._open_waits):
            self.came(key, at)

    def forget_results(self) -> None:
        """The code starts afresh."""
        self._results.clear()

    def forget_times(self) -> None:
        """What was so far was another run's."""
        for each in (self._busy, self._begun, self._waits, self._open_waits):
            each.clear()

    def _note_busy(self, start: int, end: int) -> None:
        self.last = max(self.last, end)
        if self._busy and self._busy[-1][0] <= start < self._busy[-1][1] + WAIT_MIN:
            self._busy[-1] = self._busy[-1][0], max(self._busy[-1][1], end)
        else:
            self._busy.append((start, end))

    # ── what it comes to ────────────────────────────────────────────────────────────────────

    def idles(self, until: int | None = None) -> list[Idle]:
        """The times in which it only waited, as they came. `until`: now, if it has not ended."""
        still = self.last if until is None else max(until, self.last)
        spans = sorted([*self._busy, *((began, still) for began in self._begun.values())])
        found: list[Idle] = []
        reached = spans[0][1] if spans else still
        for start, end in spans:
            if start - reached >= WAIT_MIN:
                found.append(self._idle(reached, start, still))
            reached = max(reached, end)
        if until is not None and still - reached >= WAIT_MIN:
            found.append(self._idle(reached, still, still)._replace(is_on=True))
        return found

    def _idle(self, began: int, ended: int, still: int) -> Idle:
        waits = [*self._waits, *((since, still, word) for since, word in self._open_waits.values())]
        words = [word for since, until, word in waits if _is_in(since, until, began, ended)]
        aged = [name for name, at in self._results.items() if at <= began]
        return Idle(began, ended, tuple(dict.fromkeys(words)), tuple(sorted(aged)))


def _is_in(since: int, until: int, began: int, ended: int) -> bool:
    """Whether a wait falls into that time; what has come at once only at its end, for it may be why it ended."""
    return (since < ended and until > began) or began < since == until == ended


# ── of all runs of a workflow ───────────────────────────────────────────────────────────────


class Waits(msgspec.Struct):
    """Of one workflow. `longest`, `run_id`: the longest wait, and whose it was; `over_hour`, `over_day`: how many runs
    have waited so long; `aged`: steps whose results had no validity in a wait of over a day, and in how many runs;
    `unfit`: how many runs have waited so.
    `kept`: where the state was meanwhile."""

    workflow: str
    kept: str
    runs: int = 0
    longest: Idle | None = None
    run_id: str = ""
    over_hour: int = 0
    over_day: int = 0
    unfit: int = 0
    aged: Counter[str] = msgspec.field(default_factory=Counter[str])

    @property
    def mark(self) -> Mark:
        return mark_of(0 if self.longest is None else self.longest.length)

    def add(self, run_id: str, idles: Iterable[Idle]) -> None:
        """Take in a run."""
        self.runs += 1
        longest, aged = 0, set[str]()
        for idle in idles:
            longest = max(longest, idle.length)
            if mark_of(idle.length) is Mark.DAY:
                aged.update(idle.aged)
            if self.longest is None or idle.length > self.longest.length:
                self.longest, self.run_id = idle, run_id
        self.over_hour += longest > HOUR
        self.over_day += longest > DAY
        self.unfit += bool(aged)
        self.aged.update(aged)


def by_workflow(found: Iterable[tuple[str, str, str, Iterable[Idle]]]) -> list[Waits]:
    """Waits by workflow, the longest first. What is found: workflow, where its state is kept, run, and its waits."""
    all_of_them: dict[str, Waits] = {}
    for workflow, kept, run_id, idles in found:
        waits = all_of_them.setdefault(workflow, Waits(workflow, kept))
        waits.add(run_id, idles)
        if kept not in waits.kept.split(", "):
            waits.kept += f", {kept}"
    return sorted(all_of_them.values(), key=_order)


def _order(waits: Waits) -> tuple[int, str]:
    return (-waits.longest.length if waits.longest is not None else 0, waits.workflow)


def of_store(store: Store, *, now: int, workflow: str | None = None) -> list[Waits]:
    """Of every run in a store, read one at a time. Runs that were pruned are not in it."""
    kept = f"the history in {store.url}"
    runs = every_run(store, Filter(workflow=workflow, limit=RUNS_PER_READ))
    return by_workflow((info.workflow, kept, info.run_id, idles_of(store, info, now=now)) for info in runs)


def idles_of(store: Store, info: RunInfo, *, now: int) -> list[Idle]:
    """When a run of a store only waited."""
    stored = store.load(info.rid, from_seq=0)
    trace = trace_of(stored.rows)
    if stored.info.status.is_final:
        return trace.idles()
    waiting = stored.info.waiting
    for entry in msgspec.json.decode(waiting, type=WaitingSet).entries if waiting else ():
        message = entry.name.partition(":")[2]
        trace.wait(entry, trace.last, f"message {message!r}" if entry.kind == "receive" else "a timer")
    return trace.idles(now)


# ── from a history ──────────────────────────────────────────────────────────────────────────

QUIET = frozenset(
    {
        "call.cancelled", "person.reminded", "person.decided", "run.cancel_requested", "run.adopted", "step.heartbeat",
        "approval.spent", "effect.noted", "budget.reserved", "budget.spent", "budget.priced", "budget.raised",
        "section.received", "section.gave_back", "message.settled", "premises.checked",
    }
)  # fmt: skip
"""Kinds that say nothing of whether a run waits."""


def trace_of(rows: Iterable[Row]) -> Trace:
    """The times of a history."""
    trace = Trace()
    for row in rows:
        if row.kind not in QUIET:
            _take(trace, e.decode(row.envelope), row.at)
    return trace


def _take(trace: Trace, event: e.Event, at: int) -> None:
    match event:
        case e.StepStarted():
            trace.came(("attempt", event.key), at)
            trace.begin(event.key, at)
        case e.StepCompleted() | e.StepFailed():
            trace.end(event.key, at, began=event.started_at)
            trace.came(("attempt", event.key), at)
            if type(event) is e.StepCompleted:
                trace.result(event.name, at, event.key)
        case e.PremisesRead():
            trace.vouch(event.key)
        case e.AttemptFailed():
            trace.end(event.key, at, began=event.started_at)
            trace.wait(("attempt", event.key), at, f"the next attempt of {event.name}")
        case e.EffectInDoubt():
            trace.end(event.key, at)
        case e.ChildStarted():
            trace.touch(at)
            trace.wait(event.key, at, f"child run {event.run_id}")
        case e.PersonAsked():
            trace.touch(at)
            trace.wait(event.key, at, f"people ({event.kind})")
        case e.ChildEnded() | e.PersonAnswered():
            trace.came(event.key, at)
        case _:
            _take_of_run(trace, event, at)


def _take_of_run(trace: Trace, event: e.Event, at: int) -> None:
    match event:
        case e.TimePassed():
            trace.came("timer", at, "a timer")
        case e.MessageArrived():
            trace.came(("message", event.name), at, f"message {event.name!r}")
        case e.TakenOver():
            trace.came("worker", at, "a worker: who had it is gone")
        case e.RunPaused():
            trace.wait("paused", at, "somebody who resumes it")
        case e.RunResumed():
            trace.came("paused", at)
        case e.RunBlocked():
            key = None if event.task is None else (event.task, event.n)
            trace.end(key, at) if key else trace.stop(at)
            trace.wait(("blocked", key), at, f"a person ({event.reason})")
        case e.RunUnblocked():
            trace.came(("blocked", None if event.task is None else (event.task, event.n)), at)
        case e.ChapterStarted():
            trace.end_all(at)
            trace.forget_results()
        case e.RunForked():
            trace.forget_times()
            trace.touch(at)
        case _:
            trace.touch(at)
            if isinstance(event, e.ENDINGS):
                trace.end_all(at)

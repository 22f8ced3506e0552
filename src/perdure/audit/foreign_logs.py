"""Reads the logs of other systems, so that it can be told how long their runs only wait.

Two kinds of files: lines of JSON, one event each, and the JSON in which Temporal exports a workflow's history. What of
a line is the run, the time and so on is found by the usual names (`ROLES`), or by the one that is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from perdure.audit.idle import WAIT_MIN, Trace
from perdure.clock import MICROSECONDS

ROLES: Mapping[str, tuple[str, ...]] = {
    "run": ("run_id", "run", "workflow_id", "workflowId", "session_id", "thread_id", "trace_id"),
    "time": ("timestamp", "time", "ts", "at", "@timestamp", "datetime"),
    "event": ("event", "event_type", "eventType", "kind", "message", "msg"),
    "workflow": ("workflow", "workflow_name", "workflow_type", "workflowType", "agent", "flow"),
    "call": ("step", "step_name", "call", "activity", "tool", "task", "node"),
    "state": ("state_in", "state_store", "checkpointer"),
}
"""What a line may say, and under which names that is looked for, the first first. Run and time it has to say."""

BEGINS = frozenset({"start", "started", "begin", "began", "begun", "scheduled", "running", "invoked"})
ENDS = frozenset({
    "end", "ended", "complete", "completed", "finish", "finished", "done", "succeeded", "success", "result", "returned",
})  # fmt: skip
FAILS = frozenset({"fail", "failed", "error", "cancelled", "canceled", "timeout", "timed", "aborted"})
"""Words in the name of an event with which a call begins, ends, and ends without a result."""

NOT_SAID = "(not said)"


class UnreadableLogError(Exception):
    """A file that holds no log of either kind. It says what was found in place of it."""


class Log(NamedTuple):
    """What was read. `traces`: by workflow and run, with where the state is kept. `skipped`: lines without a run or a
    time."""

    traces: dict[tuple[str, str], tuple[str, Trace]]
    skipped: int = 0


def read_log(paths: Sequence[Path], fields: Mapping[str, str]) -> Log:
    """Read logs. `fields`: the name under which lines have a role, where it is another one than in `ROLES`; a dot leads
    into an object. UnreadableLogError if there is nothing in them that can be read."""
    reader = _Lines(fields)
    traces: dict[tuple[str, str], tuple[str, Trace]] = {}
    for path in paths:
        exported = _exported(path)
        if exported is None:
            with path.open("rb") as lines:
                reader.read(lines)
        else:
            workflow, run_id, trace = _of_temporal(exported, path)
            traces[workflow, run_id] = "Temporal's history", trace
    traces |= reader.traces()
    if not traces:
        raise UnreadableLogError(
            f"there is no line with a run and a time in {', '.join(map(str, paths))}; {reader.seen()}"
        )
    return Log(traces, reader.skipped)


# ── lines of JSON ───────────────────────────────────────────────────────────────────────────


class _Run:
    """What the lines of one run have told so far."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.workflow = NOT_SAID
        self.kept = NOT_SAID
        self.latest: tuple[int, str] | None = None

    def take(self, at: int, event: str, call: str) -> None:
        words = frozenset(_words(event))
        if call and words & (ENDS | FAILS):
            self.trace.end(call, at)
            if not words & FAILS:
                self.trace.result(call, at)
        elif call and words & BEGINS:
            self.trace.begin(call, at)
        else:
            self.trace.touch(at)
        name = f"{call} {event}".strip()
        if self.latest is not None and at - self.latest[0] >= WAIT_MIN:
            self.trace.waited(self.latest[0], at, f"{self.latest[1]} … {name}")
        self.latest = at, name


class _Lines:
    """Reads lines, of any number of runs in any order."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._names = {role: (fields[role],) if role in fields else names for role, names in ROLES.items()}
        self._runs: dict[str, _Run] = {}
        self._seen: Iterable[str] = ()
        self.skipped = 0

    def read(self, lines: Iterable[bytes]) -> None:
        decode = msgspec.json.Decoder().decode
        for line in lines:
            if line.strip():
                try:
                    self._take(decode(line))
                except msgspec.DecodeError:
                    self.skipped += 1

    def _take(self, line: Any) -> None:
        run_id, at = self._of(line, "run"), moment(self._of(line, "time"))
        self._seen = self._seen or _object(line)
        if run_id is None or at is None:
            self.skipped += 1
            return
        run = self._runs.setdefault(str(run_id), _Run())
        run.workflow = str(self._of(line, "workflow") or run.workflow)
        run.kept = str(self._of(line, "state") or run.kept)
        run.take(at, str(self._of(line, "event") or ""), str(self._of(line, "call") or ""))

    def _of(self, line: Any, role: str) -> Any:
        return next((found for name in self._names[role] if (found := _at(line, name)) is not None), None)

    def traces(self) -> dict[tuple[str, str], tuple[str, Trace]]:
        return {(run.workflow, run_id): (run.kept, run.trace) for run_id, run in self._runs.items()}

    def seen(self) -> str:
        """What the lines have in place of what was looked for."""
        has = ", ".join(sorted(self._seen)) or "no objects"
        return f"the lines have {has}: say which is which, as in --field run=NAME --field time=NAME"


def _at(line: Any, path: str) -> Any:
    """What stands under a name, or under the parts of one that has dots."""
    found = _object(line).get(path)
    for part in path.split(".") if found is None else ():
        line = _object(line).get(part)
    return line if found is None else found


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; empty if it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _words(event: str) -> Iterator[str]:
    """
    >>> list(_words("ToolCall.started")), list(_words("step_timed-out"))
    (['tool', 'call', 'started'], ['step', 'timed', 'out'])
    """
    for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", event):
        yield word.lower()


SCALES = ((1e17, 1_000), (1e14, 1), (1e11, -1_000), (0.0, -MICROSECONDS))
"""From which number on a time is in nanoseconds, microseconds, milliseconds, seconds since the epoch; and by what it is
divided, or multiplied, for microseconds."""


def moment(value: Any) -> int | None:
    """A time as logs have it, in microseconds since the epoch: a number since the epoch, or ISO 8601 (UTC unless it
    says otherwise). None if it is neither.

    >>> moment("1970-01-01T00:00:01Z"), moment(1_700_000_000), moment("1700000000123"), moment("soon")
    (1000000, 1700000000000000, 1700000000123000, None)
    """
    if isinstance(value, str):
        try:
            return _of_iso(value)
        except ValueError:
            value = float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e20:
        return None
    by = next(factor for least, factor in SCALES if value >= least)
    return int(value // by) if by > 0 else round(value * -by)


def _of_iso(text: str) -> int:
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip())  # nanoseconds
    at = datetime.fromisoformat(text) if not text.isdigit() else None
    if at is None:
        raise ValueError(text)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * MICROSECONDS)


# ── Temporal ────────────────────────────────────────────────────────────────────────────────

Exported = Sequence[Mapping[str, Any]]


def _exported(path: Path) -> Exported | None:
    """The events of an exported history; None if the file is something else."""
    with path.open("rb") as file:
        first = file.readline().strip()
        if not first.startswith((b"{", b"[")):
            return None
        try:
            whole = msgspec.json.decode(first)
        except msgspec.DecodeError:
            whole = None
        if whole is None or not file.read(1):
            file.seek(0)
            try:
                whole = msgspec.json.decode(file.read())
            except msgspec.DecodeError:
                return None
    try:
        events = msgspec.convert(_at(whole, "events") or _at(whole, "history.events") or whole, list[dict[str, Any]])
    except msgspec.ValidationError:
        return None
    return events if events and all(isinstance(each.get("eventType"), str) for each in events) else None


def _of_temporal(events: Exported, path: Path) -> tuple[str, str, Trace]:
    """Workflow, run, and its times. An activity is under way from when it is scheduled: the history does not have its
    attempts."""
    trace = Trace()
    began = _attributes(events[0])
    names: dict[str, str] = {}
    for event in events:
        at = moment(event.get("eventTime"))
        if at is None:
            raise UnreadableLogError(f"{path}: event {event.get('eventId')} has no eventTime")
        _take_of_temporal(trace, event, at, names)
    workflow = str(_at(began, "workflowType.name") or NOT_SAID)
    run_id = str(began.get("workflowId") or began.get("originalExecutionRunId") or path.stem)
    return workflow, run_id, trace


def _take_of_temporal(trace: Trace, event: Mapping[str, Any], at: int, names: dict[str, str]) -> None:
    kind, number, about = _kind(event), str(event.get("eventId")), _attributes(event)
    match kind.split("_"):
        case ["ACTIVITY", "TASK", "SCHEDULED"]:
            names[number] = str(_at(about, "activityType.name") or "an activity")
            trace.begin(number, at)
        case ["ACTIVITY", "TASK", "COMPLETED" | "FAILED" | "TIMED" | "CANCELED", *_]:
            scheduled = str(about.get("scheduledEventId"))
            trace.end(scheduled, at)
            if kind.endswith("COMPLETED"):
                trace.result(names.get(scheduled, "an activity"), at)
        case ["TIMER", "STARTED"]:
            trace.touch(at)
            trace.wait(number, at, "a timer")
        case ["TIMER", "FIRED" | "CANCELED"]:
            trace.came(str(about.get("startedEventId")), at)
        case ["START", "CHILD", "WORKFLOW", "EXECUTION", "INITIATED"]:
            trace.touch(at)
            trace.wait(number, at, f"child run {about.get('workflowId', '')}".strip())
        case ["CHILD", "WORKFLOW", "EXECUTION", "COMPLETED" | "FAILED" | "CANCELED" | "TIMED" | "TERMINATED", *_]:
            trace.came(str(about.get("initiatedEventId")), at)
        case ["WORKFLOW", "EXECUTION", "SIGNALED"]:
            trace.came(number, at, f"message {about.get('signalName')!r}")
        case ["WORKFLOW", "TASK", *_] | ["ACTIVITY", *_] | ["CHILD", *_] | ["WORKFLOW", "EXECUTION", "UPDATE", *_]:
            pass
        case _:
            trace.touch(at)


def _kind(event: Mapping[str, Any]) -> str:
    """`ACTIVITY_TASK_SCHEDULED`, in either spelling."""
    kind = str(event["eventType"])
    if kind.isupper():
        return kind.removeprefix("EVENT_TYPE_")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).upper()


def _attributes(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((_object(value) for name, value in event.items() if name.endswith("EventAttributes")), _object(None))

"""There are words for every kind of event, and for what a run waits for."""

from __future__ import annotations

import os
from typing import Any, get_args

import msgspec
import pytest

from perdure.audit.timeline import tell, timeline
from perdure.audit.waits import waits
from perdure.codec import dump_exception
from perdure.engine.calls import Waiting, WaitingSet
from perdure.history import events as e
from perdure.history.chain import GENESIS, link
from perdure.history.spending import Amount, Use
from perdure.store import Store, open_store
from perdure.store.protocol import Append, Change, NewRun, Row, RunInfo, Status

KINDS: tuple[Any, ...] = get_args(e.AnyEvent)
DUMMIES: dict[Any, Any] = {
    str: "x", int: 1, bytes: b"d" * 32, bool: True, dict[str, Any]: {},
    Amount: Amount(5), tuple[Use, ...]: (),
}  # fmt: skip


def example(kind: Any) -> Any:
    """An event of a kind, with something in each field that has to be given."""
    return kind(*[DUMMIES[field.type] for field in msgspec.structs.fields(kind) if field.required])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_there_are_words_for_every_event(kind: Any) -> None:
    told = tell(example(kind))
    assert told.what
    assert told.slot in {"", "input", "output", "error"}
    if told.slot:
        assert ("output" if told.slot == "error" else told.slot) in kind.__struct_fields__


# ── from a store ────────────────────────────────────────────────────────────────────────────

START = 1_000_000_000_000_000


def stored(*events: tuple[float, e.Event, bytes | None], **change: Any) -> tuple[Store, RunInfo]:
    """A store with one run: its events, each with its second and its output; and how its index row stands."""
    store = open_store(":memory:")
    rows: list[Row] = []
    head = GENESIS
    first = (0, e.RunStarted("agent", 1, 1, {}, b"d" * 32), None)
    for seq, (second, event, output) in enumerate([first, *events]):
        envelope, at = e.encode(event), START + round(second * 1_000_000)
        head = link(head, seq, at, envelope)
        rows.append(Row(seq, at, e.kind(event), envelope, b"{}" if seq == 0 else None, output, head))
    store.commit([NewRun(os.urandom(16), "r", "agent", 1, b"d" * 32, START, tuple(rows[:1]), owner=None, due_at=START)])
    found = store.find("r")
    assert found is not None
    change = {"status": Status.RUNNING, "release": True, **change}
    store.commit([Append(os.urandom(16), found.rid, 0, 1, tuple(rows[1:]), change=Change(**change))])
    info = store.find("r")
    assert info is not None
    return store, info


def test_times_attempts_and_values() -> None:
    failed = dump_exception(ValueError("bad\nluck"))
    store, info = stored(
        (1, e.StepStarted("0", 0, "plan", 1, attempt=1), None),
        (2, e.AttemptFailed("0", 0, "plan", 1, b"d", attempt=1, started_at=START + 500_000, retry_at=START), failed),
        (5, e.StepCompleted("0", 0, "plan", 1, b"d", attempt=2, started_at=START + 4_000_000), b'{"a":1}'),
        (6, e.StepStarted("0", 1, "send", 1), None),
    )
    _, started, attempt, completed, last = timeline(store, info.rid)
    assert (started.call, started.is_answered, last.is_answered) == ("0/plan#1", True, False)
    assert (attempt.attempt, attempt.took_seconds, attempt.value) == (1, 1.5, "ValueError: bad\nluck")
    assert attempt.what.startswith("failed, again at 2001-09-09")
    assert (completed.attempt, completed.took_seconds, completed.value) == (2, 1.0, '{"a":1}')


def test_a_new_chapter_numbers_its_calls_afresh() -> None:
    store, info = stored(
        (1, e.StepStarted("0", 0, "plan", 1), None),
        (2, e.ChapterStarted(1, 1, {}, b"", b""), None),
        (3, e.StepCompleted("0", 0, "plan", 1, b"d", attempt=1), b"1"),
    )
    assert [moment.is_answered for moment in timeline(store, info.rid)] == [False] * 4


def test_what_a_person_gave_is_told_as_that() -> None:
    assert tell(e.StepCompleted("0", 0, "plan", 1, b"d", attempt=0)).what == "given by a person"
    assert tell(e.StepFailed("0", 0, "plan", 1, b"d", attempt=0)).what == "failed by a person"
    assert tell(e.RunUnblocked("value", "ann")).what == "unblocked: value by ann"


# ── what it waits for ───────────────────────────────────────────────────────────────────────


def waited_for(*events: tuple[float, e.Event, bytes | None], **change: Any) -> list[str]:
    store, info = stored(*events, **change)
    return [f"{wait.call}: {wait.what}" + ("" if wait.until is None else " until") for wait in waits(store, info)]


def test_steps_children_and_sections_that_have_begun() -> None:
    assert waited_for(
        (1, e.StepStarted("0.1", 0, "plan", 1, attempt=1), None),
        (1, e.StepStarted("0.2", 0, "plan", 1, attempt=1), None),
        (1, e.StepStarted("0.3", 0, "plan", 1, attempt=1), None),
        (2, e.StepCompleted("0.1", 0, "plan", 1, b"d", attempt=1), b"1"),
        (2, e.AttemptFailed("0.2", 0, "plan", 1, b"d", attempt=1, retry_at=START), b"{}"),
        (2, e.Heartbeat("0.3", 0, "plan", 1, b"d"), b"1"),
        (3, e.ChildStarted("0", 0, "part", 1, "r/part"), None),
        (3, e.SectionStarted("0", 1, "crew", 1), None),
    ) == [
        ": a worker",
        "0.2/plan#1: attempt 2 until",
        "0.3/plan#1: attempt 1",
        "0/part#1: child r/part",
        "0/crew#1: hosted code",
    ]


def test_timers_and_messages_of_a_run_that_is_not_in_memory() -> None:
    waiting = WaitingSet(
        1, (Waiting("0", 0, "sleep", "sleep", 5, START), Waiting("0.1", 0, "receive", "receive:reply"))
    )
    assert waited_for(status=Status.WAITING, reason="timer", waiting=msgspec.json.encode(waiting)) == [
        "0/sleep: a timer until",
        "0.1/receive:reply: message 'reply'",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": Status.BLOCKED, "reason": "diverged", "hint": "why"}, [": a person (diverged): why"]),
        ({"status": Status.QUEUED, "due_at": START}, [": a worker until"]),
        ({"status": Status.WAITING, "reason": "paused"}, [": somebody who resumes it"]),
        ({"status": Status.RUNNING}, [": a worker"]),
        ({"status": Status.COMPLETED, "ending": b"{}"}, []),
    ],
)
def test_how_the_index_row_stands(change: dict[str, Any], told: list[str]) -> None:
    assert waited_for(**change) == told

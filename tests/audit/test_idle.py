"""How long runs only wait: from traces against a model, from histories that real runs left, from foreign logs."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

import perdure
from perdure import effect, step, workflow
from perdure.audit.foreign_logs import UnreadableLogError, read_log
from perdure.audit.idle import DAY, HOUR, Idle, Mark, Trace, Waits, by_workflow, idles_of, mark_of, of_store
from perdure.clock import MICROSECONDS
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SECONDS = 40

spans = st.tuples(st.integers(1, SECONDS), st.integers(0, 8), st.sampled_from(["told", "at its end"]))


@given(st.lists(spans, min_size=1, max_size=8))
def test_what_is_left_between_all_that_was_under_way_is_waiting(given_spans: list[tuple[int, int, str]]) -> None:
    """Against a model that looks at every second."""
    trace = Trace()
    told: list[tuple[int, int, int, str]] = []
    for number, (start, took, how) in enumerate(given_spans):
        if how == "told":
            told.append((start, 0, number, "begin"))
        told.append((start + took, 1, number, how))
    for at, _, number, what in sorted(told):
        if what == "begin":
            trace.begin(number, at * MICROSECONDS)
        else:
            began = given_spans[number][0] * MICROSECONDS
            trace.end(number, at * MICROSECONDS, began=0 if what == "told" else began)
    found = [(idle.began // MICROSECONDS, idle.ended // MICROSECONDS) for idle in trace.idles()]
    assert found == waited(given_spans)


def waited(given_spans: list[tuple[int, int, str]]) -> list[tuple[int, int]]:
    marks = {at for start, took, _ in given_spans for at in (start, start + took)}
    first, last = min(marks), max(marks)
    is_busy = [any(start <= at < start + took for start, took, _ in given_spans) for at in range(last + 1)]
    found: list[tuple[int, int]] = []
    for at in range(first, last):
        if is_busy[at]:
            continue
        if found and found[-1][1] == at and at not in marks:
            found[-1] = found[-1][0], at + 1
        else:
            found.append((at, at + 1))
    return found


def test_marks() -> None:
    assert [mark_of(length) for length in (HOUR, HOUR + 1, DAY, DAY + 1)] == [
        Mark.SHORT,
        Mark.HOUR,
        Mark.HOUR,
        Mark.DAY,
    ]


# ── histories ───────────────────────────────────────────────────────────────────────────────


@step
async def price(item: str) -> int:
    return len(item)


@step(valid_for=timedelta(days=30))
async def quote(item: str) -> int:
    return len(item)


@effect(downstream=perdure.Idempotent())
async def pay(item: str) -> str:
    return "paid"


@pay.key
def _(item: str) -> str:
    return item


@workflow
async def buys(item: str) -> str:
    await price(item)
    await quote(item)
    await perdure.receive("order")
    await perdure.with_approval(pay.call(item), by={"ann"}, within=timedelta(days=9))
    await perdure.sleep(hours=3)
    return item


@workflow
async def naps() -> None:
    await perdure.sleep(hours=2)
    await perdure.sleep(minutes=5)


@workflow
async def chapters(number: int) -> None:
    await price("x")
    if number:
        perdure.continue_as_new(number - 1)
    await perdure.sleep(days=3)


@step
async def thinks() -> str:
    raise perdure.NeedsPerson("how much?")


@workflow
async def asks() -> str:
    return await thinks()


async def buy(runtime: RuntimeUnderTest, clock: FakeClock) -> None:
    """A message after 2 hours, while of another nobody knows; a yes after two days."""
    run = await runtime.start(buys.call("tea"), id="buys")
    await runtime.drain()
    clock.advance(3_600)
    await run.send("other")
    await runtime.drain()
    clock.advance(3_600)
    await run.send("order")
    await runtime.drain()
    clock.advance(2 * 86_400)
    (asked,) = await runtime.requests(run=run)
    await runtime.approve(asked.id, hash=asked.hash, by="ann")
    await runtime.drain()


def test_waits_of_runs() -> None:
    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with RuntimeUnderTest(store, workflows=[buys, naps, chapters, asks], clock=clock) as runtime:
            await buy(runtime, clock)
            await runtime.start(naps.call(), id="naps")
            await runtime.start(chapters.call(1), id="chapters")
            await runtime.start(asks.call(), id="asks")
            await runtime.drain()
            clock.advance(2 * 3_600)
            await runtime.drain()
        opened = store.again()
        now = clock.now()
        found = {
            info.run_id: [_shown(idle) for idle in idles_of(opened, info, now=now)] for info in opened.runs(Filter())
        }
        assert found == {
            "buys": [
                (2 * 3_600, "message 'other', message 'order'", ("price",), False),
                (48 * 3_600, "people (approval)", ("price",), False),
                (2 * 3_600, "a timer", ("price",), True),
            ],
            "naps": [(2 * 3_600, "a timer", (), True)],
            "chapters": [(2 * 3_600, "a timer", ("price",), True)],
            "asks": [(2 * 3_600, "a person (needs_person)", (), True)],
        }
        first, *others = of_store(opened, now=now)
        assert (first.workflow, first.run_id, first.mark, first.aged) == ("buys", "buys", Mark.DAY, {"price": 1})
        assert [(each.workflow, each.mark, each.over_hour, each.over_day) for each in others] == [
            (name, Mark.HOUR, 1, 0) for name in ("asks", "chapters", "naps")
        ]
        assert [each.workflow for each in of_store(opened, now=now, workflow="naps")] == ["naps"]

    asyncio.run(main())


def _shown(idle: Idle) -> tuple[int, str, tuple[str, ...], bool]:
    return idle.length // MICROSECONDS, ", ".join(idle.waited_for), idle.aged, idle.is_on


def test_by_workflow_the_longest_first() -> None:
    a, b = Idle(0, HOUR), Idle(0, 2 * DAY, aged=("price",))
    found = by_workflow(
        [("w", "here", "1", [a]), ("w", "there", "2", [b, a]), ("v", "here", "3", []), ("u", "x", "4", [a])]
    )
    assert found == [
        Waits("w", "here, there", 2, b, "2", 1, 1, 1, found[0].aged), Waits("u", "x", 1, a, "4"), Waits("v", "here", 1),
    ]  # fmt: skip
    assert found[0].aged == {"price": 1}


# ── logs of others ──────────────────────────────────────────────────────────────────────────

LINES = [
    {"run_id": 1, "ts": "2026-03-02T10:00:00Z", "event": "run_started", "workflow": "claims", "state_in": "redis"},
    {"run_id": 1, "ts": "2026-03-02T10:00:00.5Z", "event": "step_started", "step": "plan"},
    {"run_id": 2, "ts": 1772445602, "event": "run_started", "workflow": "claims"},
    {"run_id": 1, "ts": 1772445660000, "event": "StepCompleted", "step": "plan"},
    {"run_id": 1, "ts": "2026-03-04 11:00:00", "event": "approved"},
    {"hello": "world"},
]


def test_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)) + "\nno json\n\n")
    log = read_log([file], {})
    assert log.skipped == 2
    kept, trace = log.traces["claims", "1"]
    (idle,) = trace.idles()
    assert (kept, idle.waited_for, idle.aged) == ("redis", ("plan StepCompleted … approved",), ("plan",))
    assert idle.length // MICROSECONDS == (2 * 24 * 60 + 59) * 60
    assert log.traces["claims", "2"][1].idles() == []


def test_names_of_fields_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(json.dumps({"meta": {"id": "r", "at": at}, "ts": 1}) for at in (100, 5_000)))
    with pytest.raises(UnreadableLogError, match="the lines have meta, ts: say which is which"):
        read_log([file], {})
    ((key, (_, trace)),) = read_log([file], {"run": "meta.id", "time": "meta.at"}).traces.items()
    assert (key, trace.idles()[0].length) == (("(not said)", "r"), 4_900 * MICROSECONDS)


TEMPORAL: list[tuple[str, str, dict[str, object]]] = [
    ("WorkflowExecutionStarted", "2026-03-02T10:00:00Z", {"workflowType": {"name": "Claims"}, "workflowId": "c-1"}),
    ("WorkflowTaskScheduled", "2026-03-02T10:00:00Z", {}),
    ("ActivityTaskScheduled", "2026-03-02T10:00:00.123456789Z", {"activityType": {"name": "plan"}}),
    ("ActivityTaskStarted", "2026-03-02T10:50:00Z", {"scheduledEventId": "3"}),
    ("ActivityTaskCompleted", "2026-03-02T11:00:00Z", {"scheduledEventId": "3"}),
    ("TimerStarted", "2026-03-02T11:00:00Z", {}),
    ("WorkflowExecutionSignaled", "2026-03-02T12:00:00Z", {"signalName": "hurry"}),
    ("TimerFired", "2026-03-04T11:00:00Z", {"startedEventId": "6"}),
    ("WorkflowTaskCompleted", "2026-03-04T11:00:00Z", {}),
    ("WorkflowExecutionCompleted", "2026-03-04T11:00:01Z", {}),
]


@pytest.mark.parametrize("is_upper", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_what_temporal_exports(tmp_path: Path, is_upper: bool, indent: int | None) -> None:
    events = [
        {
            "eventId": str(number),
            "eventTime": at,
            "eventType": _upper(kind) if is_upper else kind,
            f"{kind[0].lower()}{kind[1:]}EventAttributes": about,
        }
        for number, (kind, at, about) in enumerate(TEMPORAL, 1)
    ]
    file = tmp_path / "history.json"
    file.write_text(json.dumps({"events": events}, indent=indent))
    (((workflow, run_id), (kept, trace)),) = read_log([file], {}).traces.items()
    assert (workflow, run_id, kept) == ("Claims", "c-1", "Temporal's history")
    (idle,) = trace.idles()
    assert (idle.length, idle.aged) == (2 * DAY + MICROSECONDS, ("plan",))
    assert set(idle.waited_for) == {"a timer", "message 'hurry'"}


def _upper(kind: str) -> str:
    return "EVENT_TYPE_" + "".join(f"_{c}" if c.isupper() else c for c in kind).upper()[1:]


@pytest.mark.parametrize("text", ["", "[]", "{}", "3\n4\n", "not json", '{"events": [{"eventType": "X"}]}'])
def test_a_file_without_a_log_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(UnreadableLogError):
        read_log([file], {})

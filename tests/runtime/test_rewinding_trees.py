"""Random programs with children, and children of those, whose decisions rest on facts that change, with crashes.

The model knows nothing of how runs go back. It looks at what stands outside, at what the program returned, and at the
histories of all runs, and asks: is everything that was done part of the result, or taken back; is nobody left over who
goes on with what nobody wants; was everything that was started read in time; was anything paid for twice?
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async
from tests.runtime.lives import lives
from tests.runtime.test_rewinding_programs import (
    CRASHES,
    DONE,
    FACTS,
    STOOD,
    UNDONE,
    VALUES,
    WORLD,
    act,
    assert_all_is_accounted_for,
    assert_paid_once,
    assert_read_in_time,
    decide,
    decide_other,
    say,
    think,
)

import perdure
from perdure import workflow
from perdure.audit.verify import verify
from perdure.errors import RunFinishedError
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import When
from perdure.testing.runtime import RuntimeUnderTest

Acts = list[tuple[int, int, str]]
"""What a program has done, in the end: which act, with which value, under which operation id."""


@workflow
async def tree(ops: list[Any], value: int) -> Acts:
    """`value`: what it was started with. An op is [kind, number, fact, ops of a child]."""
    decided = [value] * FACTS
    done: Acts = []
    started: list[perdure.Child[Acts]] = []
    for op in ops:
        kind, number, fact, inner = cast("tuple[str, int, int, list[Any]]", tuple(op))
        value = decided[fact]
        match kind:
            case "decide":
                decided[fact] = await (decide, decide_other)[fact](number)
            case "think":
                await think(number, value)
            case "act":
                done.append((number, value, await act(number, value)))
            case "if" if value % 2:
                started.append(await perdure.start(tree.call(inner, value)))
            case "call":
                done += await tree(inner, value)
            case "both":
                mine, theirs = await asyncio.gather(act(number, value), tree(inner, value))
                done += [(number, value, mine), *theirs]
            case "start":
                started.append(await perdure.start(tree.call(inner, value), on_cancel="abandon"))
            case "named":
                started.append(await perdure.start(tree.call(inner, value), id=f"{perdure.current_run().id}~{number}"))
            case "wait":
                await perdure.receive("go")
            case _:
                pass
    for child in started:
        done += await child.result()
    return done


LEAVES = ["decide", "think", "act", "act", "wait", "wait"]
FACT = st.integers(0, FACTS - 1)


def ops_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    nothing: st.SearchStrategy[Any] = st.just([])
    leaf = st.tuples(st.sampled_from(LEAVES), FACT, nothing)
    child = st.tuples(st.sampled_from(["call", "both", "start", "named", "if"]), FACT, inner)
    return st.lists(st.one_of(leaf, child), min_size=1, max_size=5)


OPS = ops_of(ops_of(ops_of(st.just([]))))
CHANGES = st.lists(st.tuples(FACT, st.integers(0, VALUES - 1)), max_size=5)
SAID = st.lists(st.sampled_from(["undo", "stands", ""]), max_size=3)


def numbered(ops: list[Any], numbers: list[int]) -> list[Any]:
    """Every op with a number of its own; and every program begins with a decision, so that there is one to be made
    anew."""
    found: list[Any] = [["decide", numbers.pop(), 0, []]]
    for kind, fact, inner in ops:
        found.append([kind, numbers.pop(), fact, numbered(inner, numbers) if kind not in LEAVES else []])
    return found


@example(
    ops=[
        ("decide", 1, []), ("decide", 1, []),
        ("call", 0, [("think", 0, []), ("think", 0, []), ("both", 1, [("wait", 0, [])])]),
    ],
    changes=[(0, 1)], said=[], crashes=[(13, "before")],
)
@example(
    ops=[("wait", 0, []), ("if", 0, [("decide", 0, [])]), ("think", 1, []), ("act", 0, [])], changes=[(0, 1)], said=[],
    crashes=[],
)
@example(ops=[("wait", 0, []), ("both", 1, [("decide", 0, [])])], changes=[(0, 1)], said=[], crashes=[])
@example(ops=[("start", 0, [("act", 0, []), ("wait", 0, [])]), ("wait", 0, [])], changes=[(0, 1)], said=[], crashes=[])
@given(ops=OPS, changes=CHANGES, said=SAID, crashes=CRASHES)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_whatever_changes_and_whatever_dies(
    ops: list[Any], changes: list[tuple[int, int]], said: list[str], crashes: list[tuple[int, When]]
) -> None:
    WORLD[:] = [0] * FACTS
    for each in (DONE, UNDONE, STOOD):
        each.clear()
    run_async(main(numbered(ops, list(range(1000, 0, -1))), changes, said, crashes))


async def main(
    ops: list[Any], changes: list[tuple[int, int]], said: list[str], crashes: list[tuple[int, When]]
) -> None:
    clock, left, to_say = FakeClock(), list(changes), list(said)
    inner = MemoryStore(clock)

    async def scenario(runtime: RuntimeUnderTest) -> Acts:
        return await goes_on(runtime, ops, left, to_say)

    outcome, _ = await lives(scenario, [tree], inner, clock, crashes)
    assert outcome.error is None, outcome.error
    assert_all_is_accounted_for(outcome.result or [])
    for info in inner.runs(Filter(limit=1000)):
        events: list[tuple[e.Event, int, int]] = [
            (e.decode(row.envelope), row.at, row.seq) for row in inner.load(info.rid, from_seq=0).rows
        ]
        assert info.status.is_final, f"{info.run_id} is left over"
        assert_read_in_time(events)
        assert_paid_once(events)
        assert_dismissed_for_good([event for event, _, _ in events])
    assert not verify(inner.again()).damage


async def goes_on(
    runtime: RuntimeUnderTest, ops: list[Any], changes: list[tuple[int, int]], said: list[str]
) -> Acts:
    """What people and the world do: a fact changes, a minute passes, messages come, something is said of what is
    owed."""
    run = await runtime.start(tree.call(ops, 0), id="r")
    for _ in range(80):
        await runtime.run_dry()
        if (await run.status()).is_final:
            return await run.result()
        if changes:
            fact, value = changes.pop()
            WORLD[fact] = value
        await runtime.advance(60)
        for it in await runtime.requests(status="pending"):
            if said:
                await say(runtime, it, said.pop())
        for each in await runtime.list(limit=1000):
            if not each.status.is_final:
                try:
                    await (await runtime.get(each.id)).send("go")
                except RunFinishedError:
                    pass
    raise AssertionError(f"it does not end: {await run.status()}, {await runtime.inbox()}")


def assert_dismissed_for_good(events: list[e.Event]) -> None:
    """Whatever was dismissed has ended, and its debts were taken over; nobody was attached to it again."""
    dismissed = [event.run_id for event in events if isinstance(event, e.ChildDismissed)]
    owed = [event.run_id for event in events if isinstance(event, e.ChildOwed)]
    assert sorted(dismissed) == sorted(owed)
    assert len(set(owed)) == len(owed)

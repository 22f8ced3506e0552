"""Random programs, whose decisions rest on facts that change at random, with crashes: what holds whatever happens.

A program is workflow code, or hosted: a coroutine in a section, or a function in one that has threads.

The model knows nothing of how a run goes back. It looks at what stands outside, at what the program returned, and at
the history, and asks: was everything that was started read in time; is everything that was done either part of the
result or taken back; was anything paid for twice?
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import Counter
from typing import Any, Literal

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async
from tests.runtime.lives import lives

import perdure
from perdure import Idempotent, effect, step, workflow
from perdure.audit.verify import verify
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import When
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
FACTS = 2
VALUES = 3
WORLD: list[int] = []
DONE: dict[str, tuple[int, int]] = {}
"""What was done outside, by idempotency key: which act, with which value."""
UNDONE: set[str] = set()
STOOD: set[str] = set()
"""What a person has said of: it stands."""

Key = tuple[str, int]
Op = tuple[str, int, int]
"""What to do, which one of its kind it is, and the decision that it goes by."""


@step
async def decide(number: int) -> int:
    return WORLD[0]


@decide.premise("first")
async def _(number: int) -> int:
    return WORLD[0]


@step
async def decide_other(number: int) -> int:
    return WORLD[1]


@decide_other.premise("second")
async def _(number: int) -> int:
    return WORLD[1]


@step
async def think(number: int, value: int) -> str:
    return f"thought {number} {value}"


@effect(downstream=Idempotent())
async def act(number: int, value: int) -> str:
    DONE[perdure.operation().id] = (number, value)
    return perdure.operation().id


@act.key
def _(number: int, value: int) -> str:
    return f"{number}:{value}"


@act.undo
async def _(done: str, number: int, value: int) -> None:
    UNDONE.add(done)


@effect(downstream=Idempotent(), relies_on=[decide])
async def act_alone(number: int, value: int) -> str:
    DONE[perdure.operation().id] = (number, value)
    return perdure.operation().id


@act_alone.key
def _(number: int, value: int) -> str:
    return f"{number}:{value}"


@act_alone.undo
async def _(done: str, number: int, value: int) -> None:
    UNDONE.add(done)


Results = list[tuple[int, int, str]]
"""What was done: which act, with which value, under which operation."""


async def follow(ops: list[Op]) -> Results:
    decided = [0] * FACTS
    results: Results = []
    for kind, number, fact in ops:
        value = decided[fact]
        match kind:
            case "decide":
                decided[fact] = await (decide, decide_other)[fact](number)
            case "alone":
                results.append((number, decided[0], await act_alone(number, decided[0])))
            case "think":
                await think(number, value)
            case "act":
                results.append((number, value, await act(number, value)))
            case "both":
                _, done = await asyncio.gather(think(number, value), act(number, value))
                results.append((number, value, done))
            case "approved":
                done = await perdure.with_approval(act.call(number, value), by="ann")
                results.append((number, value, done))
            case "sleep":
                await perdure.sleep(30)
            case _:
                await perdure.receive("go")
    return results


def follow_in_threads(ops: list[Op]) -> Results:
    """The same, by plain calls; what is done at once is done in two threads."""
    decided = [0] * FACTS
    results: Results = []
    wait = perdure.sync.wait
    for kind, number, fact in ops:
        value = decided[fact]
        match kind:
            case "decide":
                decided[fact] = wait((decide, decide_other)[fact].call(number))
            case "alone":
                results.append((number, decided[0], wait(act_alone.call(number, decided[0]))))
            case "think":
                wait(think.call(number, value))
            case "act":
                results.append((number, value, wait(act.call(number, value))))
            case "both":
                thinks = beside(think, number, value)
                results.append((number, value, wait(act.call(number, value))))
                thinks.join()
            case "approved":
                results.append((number, value, perdure.sync.with_approval(act.call(number, value), by="ann")))
            case "sleep":
                perdure.sync.sleep(30)
            case _:
                perdure.sync.receive("go")
    return results


def beside(what: Any, *args: Any) -> threading.Thread:
    def in_lane() -> None:
        with perdure.lane("beside"):
            perdure.sync.wait(what.call(*args))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(in_lane,))
    thread.start()
    return thread


Where = Literal["loop", "coroutine", "threads"]


@workflow
async def program(ops: list[tuple[str, int, int]], where: Where) -> Results:
    if where == "loop":
        return await follow(ops)
    hosted: Any = follow if where == "coroutine" else follow_in_threads
    results: Results = await perdure.section("hosted").run(hosted, ops)
    return results


PLACES: list[Where] = ["loop", "coroutine", "threads"]
KINDS = ["decide", "think", "act", "alone", "both", "approved", "sleep", "wait"]
OPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, FACTS - 1)), min_size=2, max_size=8)
CHANGES = st.lists(st.tuples(st.integers(0, FACTS - 1), st.integers(0, VALUES - 1)), max_size=4)
WHEN: list[When] = ["before", "after"]
SAID = st.lists(st.sampled_from(["undo", "stands", ""]), max_size=3)
CRASHES = st.lists(st.tuples(st.integers(1, 25), st.sampled_from(WHEN)), max_size=2)


@example(where="loop", ops=[("think", 0), ("approved", 0)], changes=[(0, 0), (0, 1)], said=[], crashes=[])  # and back
@given(where=st.sampled_from(PLACES), ops=OPS, changes=CHANGES, said=SAID, crashes=CRASHES)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_whatever_changes_and_whatever_dies(
    where: Where,
    ops: list[tuple[str, int]],
    changes: list[tuple[int, int]],
    said: list[str],
    crashes: list[tuple[int, When]],
) -> None:
    WORLD[:] = [0] * FACTS
    for each in (DONE, UNDONE, STOOD):
        each.clear()
    numbered = [("decide", 100, 0), *((kind, n, fact) for n, (kind, fact) in enumerate(ops))]
    run_async(main(program.call(numbered, where), changes, said, crashes))


async def main(
    call: Any, changes: list[tuple[int, int]], said: list[str], crashes: list[tuple[int, When]]
) -> None:
    clock, left, to_say = FakeClock(), list(changes), list(said)
    inner = MemoryStore(clock)

    async def scenario(runtime: RuntimeUnderTest) -> Results:
        return await goes_on(runtime, program.call(*call.args), left, to_say)

    outcome, _ = await lives(scenario, [program], inner, clock, crashes)
    assert outcome.error is None, outcome.error
    assert_all_is_accounted_for(outcome.result or [])
    info = inner.find("r")
    assert info is not None
    events: list[tuple[e.Event, int, int]] = [
        (e.decode(row.envelope), row.at, row.seq) for row in inner.load(info.rid, from_seq=0).rows
    ]
    assert_read_in_time(events)
    assert_paid_once(events)
    assert not verify(inner.again()).damage


async def goes_on(
    runtime: RuntimeUnderTest, call: Any, changes: list[tuple[int, int]], said: list[str]
) -> Results:
    """What people and the world do: a fact changes, a minute passes, a message comes, what is asked is approved, and
    something is said of what is owed."""
    run = await runtime.start(call, id="r")
    for _ in range(60):
        await runtime.run_dry()
        if (await run.status()).is_final:
            result: Results = await run.result()
            return result
        if changes:
            fact, value = changes.pop()
            WORLD[fact] = value
        await runtime.advance(60)
        for it in await runtime.requests(status="pending"):
            if it.kind == "approval":
                await runtime.approve(it.id, hash=it.hash, by="ann")
            elif said:
                await say(runtime, it, said.pop())
        if not (await run.status()).is_final:
            await run.send("go")
    raise AssertionError(f"it does not end: {await run.status()}, {await runtime.inbox()}")


async def say(runtime: RuntimeUnderTest, it: Any, what: str) -> None:
    """About a debt; or nothing, and it is undone in the end."""
    if what == "stands":
        STOOD.add(it.arguments["operation"])
    if what:
        await runtime.answer(it.id, what, hash=it.hash, by="ann")


def assert_all_is_accounted_for(result: Results) -> None:
    """What was done is part of the result, or taken back, or stands since a person said so; nothing of the result is
    taken back."""
    wanted = {done: (number, value) for number, value, done in result}
    left = {done: what for done, what in DONE.items() if done not in UNDONE}
    assert wanted.items() <= left.items()
    assert {done: what for done, what in left.items() if done not in STOOD} == {
        done: what for done, what in wanted.items() if done not in STOOD
    }


def assert_read_in_time(events: list[tuple[e.Event, int, int]]) -> None:
    """Whatever a start of an effect relies on was read a few seconds before at most; the start names the last check."""
    read: dict[Key, tuple[int, int]] = {}
    step_of: dict[Key, str] = {}
    checks = 0
    sent: set[str] = set()
    for event, at, seq in events:
        match event:
            case e.PremisesRead():
                read[event.key] = (event.read_at, read.get(event.key, (0, seq))[1] if event.renews else seq)
                step_of[event.key] = event.name
            case e.PremisesChecked(relies_on=on):
                assert event.number == checks + 1
                checks = event.number
                for key, (read_at, since) in read.items():
                    if on is None or step_of[key] in on:
                        read[key] = (max(read_at, event.read_at), since)
            case e.Rewound():
                read = {key: (read_at, since) for key, (read_at, since) in read.items() if since < event.to}
            case e.EffectStarted():
                assert event.check == checks
                if event.operation not in sent and not event.name.endswith(".undo"):
                    on = event.relies_on
                    assert on == (("decide",) if event.name == "act_alone" else None)
                    relied = [read_at for key, (read_at, _) in read.items() if on is None or step_of[key] in on]
                    assert all(at - read_at <= 5 * SECOND for read_at in relied), (seq, at, read)
                sent.add(event.operation)
            case e.EffectNotDone():
                sent.discard(event.operation)
            case _:
                pass


def assert_paid_once(events: list[tuple[e.Event, int, int]]) -> None:
    """No result that rests on nothing was recorded twice for one call and the same arguments."""
    thoughts = [event for event, _, _ in events if type(event) is e.StepCompleted and event.name == "think"]
    made = Counter((event.key, event.output) for event in thoughts)  # in another place it is another call
    assert not [each for each, times in made.items() if times > 1]

"""Workflows as users write them, with a crash before and after every write that there is."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import Idempotent, Retry, effect, step, workflow
from perdure.engine.calls import StepAsk
from perdure.runtime.turn import Turns
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import Sweep, SweepFailed, sweep_crashes

# ── steps ───────────────────────────────────────────────────────────────────────────────────


@step
async def add(a: int, b: int) -> int:
    return a + b


@step(record="lazy")
async def guess(n: int) -> int:
    return n


@step(retry=Retry(max_attempts=3, first_delay=30, jitter=0))
async def stumble(times: int) -> int:
    if perdure.attempt().number <= times:
        raise ConnectionError("not this time")
    return perdure.attempt().number


@step
async def refuse(why: str) -> int:
    raise perdure.Final(why)


@step
def in_thread(n: int) -> int:
    return n * 2


# ── workflows ───────────────────────────────────────────────────────────────────────────────


@workflow
async def in_sequence(n: int) -> int:
    total = 0
    for i in range(n):
        total = await add(total, i)
    return total


@workflow
async def at_once(n: int) -> list[int]:
    return list(await asyncio.gather(*(add(i, i) for i in range(n))))


@workflow
async def race() -> str:
    winner, loser = asyncio.create_task(in_order("a", 1)), asyncio.create_task(in_order("b", 60))
    done, pending = await asyncio.wait({winner, loser}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return "".join(task.result() for task in done)


async def in_order(name: str, days: int) -> str:
    await perdure.sleep(days=days)
    await add(days, days)
    return name


@workflow
async def patient() -> int:
    before = perdure.now()
    await perdure.sleep(days=2)
    await add(1, 1)
    await asyncio.sleep(3600)
    return (perdure.now() - before) // timedelta(days=1)


@workflow
async def parent(n: int) -> int:
    first = await perdure.start(in_sequence.call(n))
    return await in_sequence(n + 1) + await first.result()


@workflow
async def guessing() -> int:
    return await add(await guess(1) + await guess(2), await guess(3))


@workflow
async def stumbling() -> int:
    return await stumble(2) + await add(1, 1)


@workflow
async def failing() -> int:
    try:
        return await refuse("no")
    finally:
        await add(0, 0)


@workflow
async def in_time() -> str:
    try:
        async with asyncio.timeout(60):
            await perdure.receive("never")
    except TimeoutError:
        return f"late {await add(1, 2)}"
    return "in time"


@workflow
async def chapters(n: int, left: int) -> int:
    n = await add(n, left)
    if left:
        perdure.continue_as_new(n, left - 1)
    return n


@workflow
async def grouped() -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(add(i, 1)) for i in range(3)]
        group.create_task(perdure.sleep(30))
    return sum(task.result() for task in tasks)


@workflow
async def told() -> list[int]:
    perdure.set_state("waiting")
    first: int = await perdure.receive("number")
    return [first, await add(first, 1), await in_thread.call(first)]


@workflow
async def cleaning() -> str:
    try:
        await perdure.receive("never")
    finally:
        await add(1, 1)
        await perdure.sleep(60)
    return "not reached"


@workflow
def plain(n: int) -> int:
    perdure.sync.sleep(3600)
    return in_thread(n) + in_thread(n + 1)


async def tells(runtime: RuntimeUnderTest) -> list[int]:
    run = await runtime.start(told.call(), id="told")
    with contextlib.suppress(perdure.RunFinishedError):
        await run.send("number", 7)
    return await run.result()


async def cancels(runtime: RuntimeUnderTest) -> str:
    run = await runtime.start(cleaning.call(), id="cleaning")
    await run.cancel("enough")
    with contextlib.suppress(perdure.RunCancelledError):
        return await run.result()
    return "cancelled"


SWEPT: list[tuple[Any, Any]] = [
    (in_sequence.call(4), 6),
    (at_once.call(5), [0, 2, 4, 6, 8]),
    (race.call(), "a"),
    (patient.call(), 2),
    (parent.call(3), 9),
    (guessing.call(), 6),
    (stumbling.call(), 5),
    (in_time.call(), "late 3"),
    (chapters.call(0, 2), 3),
    (grouped.call(), 6),
    (plain.call(3), 14),
    (tells, [7, 8, 14]),
    (cancels, "cancelled"),
]


def name_of(swept: Any) -> str:
    return str(getattr(swept, "__name__", None) or swept.of.name)


@pytest.mark.parametrize(("swept", "expected"), SWEPT, ids=[name_of(swept) for swept, _ in SWEPT])
def test_a_crash_at_any_write_makes_no_difference(swept: Any, expected: Any) -> None:
    sweep: Sweep[Any] = asyncio.run(sweep_crashes(swept))
    assert sweep.result == expected
    assert sweep.crashes >= 2 * (sweep.writes - 1)


def test_what_fails_fails_in_the_same_way() -> None:
    sweep = asyncio.run(sweep_crashes(failing.call()))
    assert isinstance(sweep.error, perdure.Final)
    assert str(sweep) == f"{sweep.writes} writes, {sweep.crashes} crashes survived: Final('no')"


# ── a world that changes while nobody runs ──────────────────────────────────────────────────


class Office:
    """Its limit is another one from the second look on; and what was paid, less what was taken back."""

    def __init__(self) -> None:
        self.looks = 0
        self.paid = set[int]()


@step
async def decide() -> int:
    return min(perdure.use(Office).looks, 2)


@decide.premise("limit")
async def _() -> int:
    office = perdure.use(Office)
    office.looks += 1
    return min(office.looks, 2)


@effect(downstream=Idempotent())
async def pay(amount: int) -> None:
    perdure.use(Office).paid.add(amount)


@pay.key
def _(amount: int) -> str:
    return f"pay {amount}"


@pay.undo
async def _(_result: None, amount: int) -> None:
    perdure.use(Office).paid.discard(amount)


@workflow
async def pays() -> None:
    await pay(await decide())


def test_a_run_that_went_back_may_make_another_request_in_the_same_place() -> None:
    offices = weakref.WeakKeyDictionary[FakeClock, Office]()
    went_back = list[bool]()

    async def scenario(runtime: RuntimeUnderTest) -> int:
        office = offices.setdefault(runtime.clock, Office())
        runtime.provide(Office, office)
        run = await runtime.start(pays.call(), id="paid")
        await run.result()
        went_back.append("run.rewound" in [event.kind for event in await run.history()])
        return len(office.paid)

    sweep = asyncio.run(sweep_crashes(scenario))
    assert sweep.result == 1
    assert went_back.count(True) >= 4


# ── what a sweep finds ──────────────────────────────────────────────────────────────────────


class Shop:
    """Something outside, which a crash does not undo."""

    def __init__(self) -> None:
        self.sold = 0


@step
async def sell() -> int:
    shop = perdure.use(Shop)
    shop.sold += 1
    return shop.sold


@workflow
async def sells() -> int:
    return await sell()


def test_a_result_that_depends_on_how_often_a_step_was_tried_is_found() -> None:
    shops = weakref.WeakKeyDictionary[FakeClock, Shop]()

    async def scenario(runtime: RuntimeUnderTest) -> int:
        """Each run that is swept has a clock of its own, and a shop of its own."""
        runtime.provide(Shop, shops.setdefault(runtime.clock, Shop()))
        run = await runtime.start(sells.call(), id="sold")
        return await run.result()

    with pytest.raises(SweepFailed, match=r"a crash before write 3: it gave 2, not 1\nrun sold:\n  0 run.started"):
        asyncio.run(sweep_crashes(scenario))


def test_a_recorded_step_that_begins_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "perform", perform_twice(vars(Turns)["perform"]))
    with pytest.raises(SweepFailed, match=r"0/add#1 of run swept began again, although event 1 has its outcome"):
        asyncio.run(sweep_crashes(in_sequence.call(2)))


def perform_twice(perform: Any) -> Any:
    """A runtime that does not believe its own records."""

    def distrusting(self: Turns, live: Any, command: Any) -> None:
        perform(self, live, command)
        flight = live.flights.get(command.key) if isinstance(command, StepAsk) else None
        if flight is not None:
            live.then += (lambda: self.performer.start(live, command),)

    return distrusting

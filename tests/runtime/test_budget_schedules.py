"""Random programs with random uses, failures and crashes, and two workers that share a budget, against an account of
what the bodies of their steps did.

The account knows what each attempt was expected to use and has used, and reads histories as what they are, sums; it
knows nothing of `perdure.gates`. No limit is exceeded by more than attempts went beyond their reservations; what each
attempt used counts exactly once; what is raised goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async

import perdure
from perdure import (
    Budget,
    HistoryEvent,
    Retry,
    RunBlockedError,
    RunFinishedError,
    UnknownNameError,
    Usage,
    UsageError,
    step,
    workflow,
)
from perdure.api.calls import Call
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore, When
from perdure.testing.mortal import Death, Mortal, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest

TAGS = {"team": "x"}
SHARED = "tag team=x"


@dataclass(frozen=True)
class Work:
    """One step: what each attempt is expected to use (None: it does not say), and what its attempts use in turn (None:
    they do not say), of which all but the last fail."""

    expected: int | None
    uses: tuple[int | None, ...]

    def counts(self, number: int) -> int:
        """What attempt `number` counts as, if somebody hears of it."""
        used = self.uses[number - 1]
        return (self.expected or 0) if used is None else used


works = st.builds(
    Work, st.none() | st.integers(0, 30), st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=3).map(tuple)
)
lanes = st.lists(st.lists(works, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
Program = tuple[tuple[Work, ...], ...]

PROGRAMS: dict[str, Program] = {}
BODIES: Counter[tuple[str, str, int]] = Counter()
"""How often the body of each attempt began: run, call, number."""


def work_of(lane: int, place: int) -> Work:
    return PROGRAMS[perdure.attempt().run_id][lane][place]


@step(retry=Retry(max_attempts=3, first_delay=0.001, jitter=0))
async def works_once(run: str, lane: int, place: int) -> int:
    attempt = perdure.attempt()
    BODIES[attempt.run_id, attempt.label, attempt.number] += 1
    work = work_of(lane, place)
    used = work.uses[attempt.number - 1]
    if used is not None:
        perdure.used(tokens=used // 2)
        await asyncio.sleep(0)
        perdure.used(tokens=used - used // 2)
    if attempt.number < len(work.uses):
        raise RuntimeError("not yet")
    return attempt.number


@works_once.estimate
def _(run: str, lane: int, place: int) -> Usage:
    return Usage(tokens=PROGRAMS[run][lane][place].expected)


@workflow
async def program(run: str, shape: list[int]) -> int:
    async def in_turn(lane: int, length: int) -> int:
        return sum([await works_once(run, lane, place) for place in range(length)])

    return sum(await asyncio.gather(*(in_turn(lane, length) for lane, length in enumerate(shape))))


# ── the account ─────────────────────────────────────────────────────────────────────────────


class Books:
    """What a run's history says, added up. `beyond`: by how much attempts went beyond what was reserved for them."""

    def __init__(self, run: str, events: Sequence[HistoryEvent], limit: int | None) -> None:
        self.used = self.beyond = 0
        held: dict[tuple[str, int], int] = {}
        told, lost = Counter[tuple[str, str, int]](), Counter[tuple[str, str, int]]()
        for event in (each.event for each in events):
            match event:
                case e.BudgetRaised(budget=""):
                    limit = max(limit or 0, event.limits.tokens or 0)  # a late letter lowers none
                case e.BudgetReserved():
                    assert event.key not in held
                    taken = self.used + sum(held.values())
                    if limit is not None and event.amount.tokens:
                        assert taken + event.amount.tokens <= limit
                    elif limit is not None and "tokens" in event.unsaid:
                        assert taken < limit
                    held[event.key] = event.amount.tokens
                case e.BudgetSpent():
                    reserved, amount = held.pop(event.key), event.amount.tokens  # each exactly once
                    work = self._work(run, events, event)
                    at = (run, event.call, event.attempt)
                    if event.how == "told":
                        told[at] += 1
                        assert amount == work.counts(event.attempt)
                    elif event.how == "interrupted":
                        lost[at] += 1
                        assert amount == reserved
                    else:
                        assert (event.how, amount) == ("not_begun", 0)
                    self.used += amount
                    self.beyond += max(0, amount - reserved)
                case _:
                    pass
        assert not held
        begun = Counter({at: times for at, times in BODIES.items() if at[0] == run})
        assert all(at in begun for at in told)
        assert all(times == 1 for times in told.values()), "an attempt that somebody heard of counts once"
        for at, times in begun.items():
            assert told[at] <= times <= told[at] + lost[at], (at, times, told[at], lost[at])

    def _work(self, run: str, events: Sequence[HistoryEvent], spent: e.BudgetSpent) -> Work:
        for each in events:
            event = each.event
            if isinstance(event, e.StepStarted) and (event.task, event.n) == spent.key and each.input is not None:
                lane, place = int(each.input["lane"]), int(each.input["place"])
                return PROGRAMS[run][lane][place]
        raise AssertionError("a reservation without a start")


async def see_through(runtime: RuntimeUnderTest, run_ids: Sequence[str], more: int) -> None:
    """Wait for these runs; whoever is stuck gets a little more."""
    for run_id in run_ids:
        run = await runtime.get(run_id)
        while True:
            try:
                assert await run.result() == sum(len(work.uses) for lane in PROGRAMS[run_id] for work in lane)
                break
            except RunBlockedError as stuck:
                if stuck.reason == "crash_loop":  # each death came before any progress
                    await run.unblock("retry")
                    continue
                if stuck.reason != "over_budget":
                    raise
            for entry in await runtime.inbox():
                if entry.budget is None:
                    continue
                it = entry.budget
                needed = int(max(it.limit, it.used + it.reserved + (it.wanted or 1))) + more
                with contextlib.suppress(UsageError, UnknownNameError, RunFinishedError):  # raised for another
                    await runtime.raise_budget(entry.run_id, tokens=needed, by="ann", budget=it.account)
                if entry.pending:
                    continue
                with contextlib.suppress(RunFinishedError):  # what was raised for another one was enough for it
                    await (await runtime.get(entry.run_id)).unblock("retry", call=entry.call, by="ann")
            await runtime.run_dry()


def call_of(run_id: str) -> Call[int]:
    return program.call(run_id, [len(lane) for lane in PROGRAMS[run_id]])


def check(store: Store, histories: dict[str, list[HistoryEvent]], limit: int | None, shared: int | None) -> None:
    books = {run_id: Books(run_id, events, limit) for run_id, events in histories.items()}
    if shared is None:
        return
    used, beyond = sum(book.used for book in books.values()), sum(book.beyond for book in books.values())
    if not store.accounts(SHARED):
        assert not used
        return
    (account,) = store.accounts(SHARED)
    assert (account.used.tokens, account.held.tokens) == (used, 0)
    assert account.used.tokens <= max(shared, account.raised.tokens or 0) + beyond


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


async def with_crashes(deaths: Sequence[int], limit: int | None, shared: int | None, more: int) -> None:
    clock = FakeClock()
    inner = MemoryStore(clock)
    budgets = [] if shared is None else [Budget(tokens=shared, tag="team")]
    histories: dict[str, list[HistoryEvent]] = {}

    async def scenario(runtime: RuntimeUnderTest) -> None:
        for run_id in PROGRAMS:
            await runtime.start(
                call_of(run_id), id=run_id, tags=TAGS, budget=None if limit is None else Budget(tokens=limit)
            )
        await see_through(runtime, list(PROGRAMS), more)
        for run_id in PROGRAMS:
            histories[run_id] = await (await runtime.get(run_id)).history()

    with QuietAboutCrashes():
        for fail_at in (*deaths, None):
            death = Death()
            when: When = "after" if fail_at is not None and fail_at % 2 else "before"
            store = CrashingStore(
                inner.again(), fail_at=None if fail_at is None else fail_at // 2 + 1, when=when, how=death.come
            )
            runtime = RuntimeUnderTest(store, clock=clock, workflows=[program], budgets=budgets)
            outcome = await Mortal[None](runtime, death).live(scenario)
            if outcome is not None and not death.has_come:
                assert outcome.error is None, outcome.error
                break
    check(inner, histories, limit, shared)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    programs=st.lists(lanes, min_size=1, max_size=2), deaths=st.lists(st.integers(0, 40), max_size=3),
    limit=st.none() | st.integers(0, 120), shared=st.none() | st.integers(0, 150), more=st.sampled_from([0, 40, 1000]),
)  # fmt: skip
def test_whatever_dies_everything_counts_once_and_no_limit_is_exceeded(
    programs: list[Program], deaths: list[int], limit: int | None, shared: int | None, more: int
) -> None:
    PROGRAMS.clear()
    BODIES.clear()
    PROGRAMS.update({f"run-{number}": each for number, each in enumerate(programs)})
    if limit is None and shared is None:
        limit = 50
    run_async(with_crashes(deaths, limit, shared, more))


# ── two workers ─────────────────────────────────────────────────────────────────────────────


async def with_two_workers(shared: int, more: int) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    budgets = [Budget(tokens=shared, tag="team")]
    async with contextlib.AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                RuntimeUnderTest(store.again(), clock=clock, workflows=[program], budgets=budgets)
            )
            for _ in range(2)
        ]
        for number, run_id in enumerate(PROGRAMS):
            await workers[number % 2].start(call_of(run_id), id=run_id, tags=TAGS)
        for number, run_id in enumerate(PROGRAMS):
            await see_through(workers[number % 2], [run_id], more)
        histories = {run_id: await (await workers[0].get(run_id)).history() for run_id in PROGRAMS}
    check(store, histories, None, shared)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    programs=st.lists(lanes, min_size=2, max_size=4), shared=st.integers(0, 150), more=st.sampled_from([0, 40, 1000])
)
def test_two_workers_share_a_budget(programs: list[Program], shared: int, more: int) -> None:
    PROGRAMS.clear()
    BODIES.clear()
    PROGRAMS.update({f"run-{number}": each for number, each in enumerate(programs)})
    run_async(with_two_workers(shared, more))

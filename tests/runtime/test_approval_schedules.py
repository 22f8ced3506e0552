"""Random interleavings of requests, decisions, expiries, withdrawals, crashes and pauses, against a model of its own.

The model knows what was decided, by whom and when, and nothing of states, histories or stores. No gated action without
a matching, unexpired, unused approval of exactly its request; no decision lost; whoever cannot decide is told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async

import perdure
from perdure import ApprovalExpired, Client, DecisionRefused, Idempotent, Rejected, UnknownNameError, effect, workflow
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
PERSONS = ("ann", "bo", "cy")
SENT: list[tuple[str, int, int]] = []
"""What reached the other side: which order, how much, when."""
CLOCKS: list[FakeClock] = []


@dataclass(frozen=True)
class Item:
    """One thing that is asked for. `within` in seconds, 0: for ever."""

    cents: int
    quorum: int = 1
    within: int = 0
    recheck: bool = True


@effect(downstream=Idempotent())
async def pay(order: str, cents: int) -> int:
    SENT.append((order, cents, CLOCKS[-1].now()))
    return cents


@pay.key
def _(order: str, cents: int) -> str:
    return order


@workflow
async def gates(items: list[Item]) -> list[str]:
    """All are asked for when told to begin, each in a task of its own; one can be given up."""
    await perdure.receive("begin")
    tasks = [asyncio.ensure_future(one(f"o-{n}", item)) for n, item in enumerate(items)]
    canceller = asyncio.ensure_future(cancels(tasks))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    canceller.cancel()
    return [result if isinstance(result, str) else "given up" for result in results]


async def one(order: str, item: Item) -> str:
    try:
        paid = await perdure.with_approval(
            pay.call(order, item.cents), by=PERSONS[:2], quorum=item.quorum, within=item.within or None,
            recheck=item.recheck,
        )  # fmt: skip
    except Rejected as no:
        return f"rejected by {no.by}"
    except ApprovalExpired:
        return "expired"
    return f"paid {paid}"


async def cancels(tasks: list[asyncio.Task[str]]) -> None:
    while True:
        tasks[await perdure.receive("give up", int)].cancel()


# ── the model ───────────────────────────────────────────────────────────────────────────────


@dataclass
class Told:
    """What is known of one item: who has approved, and what it has come to."""

    item: Item
    approved: list[str] = field(default_factory=list[str])
    fate: str = ""
    granted_at: int | None = None
    used_at: int | None = None


@dataclass
class Model:
    """`up`: somebody executes the run, and it is not paused."""

    told: list[Told]
    begun_at: int | None = None
    is_open: bool = True
    is_paused: bool = False
    early: list[tuple[int, str, str, bool]] = field(default_factory=list[tuple[int, str, str, bool]])

    @property
    def up(self) -> bool:
        return self.is_open and not self.is_paused

    def expires_at(self, it: Told) -> int | None:
        return self.begun_at + it.item.within * SECOND if self.begun_at is not None and it.item.within else None

    def is_over(self, it: Told, now: int) -> bool:
        until = self.expires_at(it)
        return until is not None and now >= until

    def begin(self, now: int) -> None:
        """The run asks. What was decided before counts, in the order in which it came."""
        self.begun_at = now
        for n, by, choice, is_right in self.early:
            if is_right:
                self.decide(n, by, choice, now)
        self.see(now)

    def may(self, n: int, by: str, now: int) -> bool:
        it = self.told[n]
        is_open = not (it.fate or it.granted_at is not None or self.is_over(it, now))
        return is_open and by in PERSONS[:2] and by not in it.approved

    def decide(self, n: int, by: str, choice: str, now: int) -> bool:
        """Whether it counts."""
        if not self.may(n, by, now):
            return False
        it = self.told[n]
        if choice == "reject":
            it.fate = f"rejected by {by}"
            return True
        it.approved.append(by)
        if len(it.approved) >= it.item.quorum:
            it.granted_at = now
        return True

    def see(self, now: int) -> None:
        """Somebody executes the run now, if anybody does."""
        if not self.up or self.begun_at is None:
            return
        for it in self.told:
            until = self.expires_at(it)
            if it.granted_at is not None and not it.fate:
                if it.item.recheck and until is not None and now >= until:
                    it.fate = "expired"
                else:
                    it.fate, it.used_at = f"paid {it.item.cents}", now
            elif not it.fate and self.is_over(it, now):
                it.fate = "expired"

    def give_up(self, n: int) -> None:
        if not self.told[n].fate:
            self.told[n].fate = "given up"


# ── what happens ────────────────────────────────────────────────────────────────────────────

ITEMS = st.lists(
    st.builds(
        Item, cents=st.integers(1, 99), quorum=st.integers(1, 2), within=st.sampled_from([0, 0, 5, 10]),
        recheck=st.booleans(),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
WHICH = st.integers(0, 2)
DECISIONS = st.tuples(
    st.just("decide"), WHICH, st.sampled_from(PERSONS), st.sampled_from(["approve", "approve", "reject"]),
    st.sampled_from(["right", "right", "right", "wrong", "another's"]),
)  # fmt: skip
PASSING = st.tuples(st.just("pass"), st.sampled_from([1, 4, 5, 6]))
AWAY = st.tuples(st.sampled_from([("crash",), ("leave",), ("pause",)]), DECISIONS, DECISIONS, PASSING)
"""Decided while nobody executes the run, which goes on some time later."""
ACTIONS = st.lists(
    st.one_of(
        DECISIONS,
        PASSING,
        st.tuples(st.just("several"), AWAY),
        st.tuples(st.sampled_from(["crash", "crash", "leave", "enter", "evict", "pause", "resume", "begin"])),
        st.tuples(st.just("give up"), WHICH),
    ),
    max_size=25,
)  # fmt: skip


class World:
    """A store, whoever executes its runs just now, and the model beside it."""

    def __init__(self, items: list[Item]) -> None:
        self.clock = FakeClock()
        CLOCKS[:] = [self.clock]
        SENT.clear()
        self.items = items
        self.store = MemoryStore(self.clock)
        self.model = Model([Told(item) for item in items])
        self.runtime: RuntimeUnderTest | None = None
        self.outside = Client(self.store.again(), clock=self.clock)

    @property
    def client(self) -> Client:
        """Through which people decide: the worker's own hears of it at once."""
        return self.runtime or self.outside

    async def open(self) -> None:
        if self.runtime is None:
            self.runtime = await RuntimeUnderTest(
                self.store.again(), clock=self.clock, workflows=[gates], replays=False
            ).__aenter__()
            self.model.is_open = True
        await self.settle()

    async def close(self, how: str) -> None:
        if self.runtime is not None:
            await (self.runtime.die() if how == "crash" else self.runtime.__aexit__(None, None, None))
        self.runtime, self.model.is_open = None, False

    async def settle(self) -> None:
        if self.runtime is not None:
            await self.runtime.run_dry()
            self.model.see(self.clock.now())

    def id_and_hash(self, n: int) -> tuple[str, str]:
        """Of what the n-th item asks, worked out by hand."""
        item = self.items[n]
        body: dict[str, Any] = {
            "approvers": ["ann", "bo"], "arguments": {"cents": item.cents, "order": f"o-{n}"}, "key": f"o-{n}",
            "kind": "approval", "name": "pay", "of": "effect",
        }  # fmt: skip
        if item.quorum != 1:
            body["quorum"] = item.quorum
        if not item.recheck:
            body["recheck"] = False
        if item.within:
            body["within"] = item.within * SECOND
        call = f"0:0.{n + 1}:0"
        head = json.dumps(["r", call, "gates", 1], separators=(",", ":"))
        text = head + "\n" + json.dumps(body, separators=(",", ":"), sort_keys=True)
        return (
            sha256(json.dumps(["r", call], separators=(",", ":")).encode()).hexdigest()[:16],
            sha256(text.encode()).hexdigest(),
        )

    async def decide(self, n: int, by: str, choice: str, how: str) -> None:
        model, client, now = self.model, self.client, self.clock.now()
        approval, right = self.id_and_hash(n)
        other = self.id_and_hash((n + 1) % len(self.items))[1]
        seen = {"right": right, "wrong": "0" * 64, "another's": other}[how]
        is_right = seen == right
        is_asked = bool(await client.requests(run="r"))
        counts = True
        try:
            decide: Callable[..., Any] = client.approve if choice == "approve" else client.reject
            await decide(approval, hash=seen, by=by, run=None if is_asked else "r")
        except DecisionRefused:
            counts = False
        except UnknownNameError:
            raise AssertionError("the run is there") from None
        if is_asked:
            assert counts is (is_right and model.decide(n, by, choice, now)), (n, by, choice, how)
        else:
            assert counts, "what comes early is kept"
            model.early.append((n, by, choice, is_right))

    async def act(self, action: tuple[Any, ...]) -> None:
        run, model = await self.client.get("r"), self.model
        if (await run.status()).is_final:
            return
        match action:
            case "decide", n, by, choice, how if n < len(self.items):
                await self.decide(n, by, choice, how)
            case "several", actions:
                for each in actions:
                    await self.act(each)
            case "pass", seconds:
                if self.runtime is not None:
                    await self.runtime.advance(seconds)
                else:
                    self.clock.advance_to(self.clock.now() + seconds * SECOND)
            case "crash" | "leave" as how,:
                await self.close(how)
            case "enter",:
                await self.open()
            case "evict",:
                if self.runtime is not None:
                    self.runtime._host.release_idle()  # pyright: ignore[reportPrivateUsage]
            case ("pause" | "resume" | "begin") as what,:
                await self.tell(run, what)
            case "give up", n if n < len(self.items) and self.runtime is not None and model.begun_at is not None:
                if not model.is_paused:
                    await run.send("give up", n)
                    model.give_up(n)
            case _:
                pass
        await self.settle()

    async def tell(self, run: Any, what: str) -> None:
        """Only while somebody is there to hear it: when it is heard is then known."""
        model = self.model
        if self.runtime is None:
            return
        if what == "pause":
            await run.pause()
            await self.runtime.run_dry()
            model.is_paused = True
        elif what == "resume":
            await run.resume()
            await self.runtime.run_dry()
            model.is_paused = False
        elif model.begun_at is None and not model.is_paused:
            await run.send("begin")
            await self.runtime.run_dry()
            model.begin(self.clock.now())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(items=ITEMS, actions=ACTIONS, begins=st.integers(0, 3))
def test_any_order_of_things(items: list[Item], actions: list[tuple[Any, ...]], begins: int) -> None:
    actions.insert(min(begins, len(actions)), ("begin",))

    async def main() -> None:
        world = World(items)
        try:
            async with world.outside:
                await play(world, actions)
        finally:
            await world.close("leave")

    run_async(main())


async def play(world: World, actions: list[tuple[Any, ...]]) -> None:
    await world.open()
    assert world.runtime is not None
    await world.runtime.start(gates.call(world.items), id="r")
    await world.settle()
    for action in actions:
        await world.act(action)
    await world.open()
    for last in [("resume",), ("begin",), ("pass", 20)]:
        await world.act(last)
    await finish(world)


async def finish(world: World) -> None:
    """What nobody has decided is given up; then all is as the model has it."""
    for n, it in enumerate(world.model.told):
        if not it.fate:
            await world.act(("give up", n))
    run = await world.client.get("r")
    fates = [it.fate for it in world.model.told]
    assert await run.result(timeout=10) == fates
    sent = [(f"o-{n}", it.item.cents, it.used_at) for n, it in enumerate(world.model.told) if it.used_at is not None]
    assert sorted(SENT) == sent
    rows = {row.arguments["order"]: row for row in await world.client.requests(run="r")}
    assert len(rows) == len(fates)
    for n, it in enumerate(world.model.told):
        row = rows[f"o-{n}"]
        states = {"paid": "used", "rejected": "rejected", "given": "withdrawn", "expired": "expired"}
        expected = states[it.fate.split()[0]]
        assert row.status == ("lapsed" if expected == "expired" and it.granted_at is not None else expected)
        assert (row.id, row.hash) == world.id_and_hash(n)
        assert [said.by for said in row.said if said.choice == "approve"] == it.approved
    decided = [e.event for e in await run.history() if e.kind in {"person.decided", "person.answered"}]
    said = [(getattr(event, "by", ""), getattr(event, "choice", "")) for event in decided]
    for n, by, choice, _ in world.model.early:
        assert (by, choice) in said, f"the early decision about {n} is lost"



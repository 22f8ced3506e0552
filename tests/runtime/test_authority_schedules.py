"""Random interleavings of decisions, roles that come and go, reminders, pauses, time and crashes, against a model.

The model knows who has which role when, what was sent and when somebody executed the run; it knows nothing of states,
histories or stores. Nothing is paid for, by an effect or a step, without enough persons who may approve it at that
moment; no decision is lost; people are told once more exactly when nobody has decided.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async

import perdure
from perdure import ApprovalExpired, Client, DecisionRefused, Idempotent, Rejected, effect, step, workflow
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
SENT: list[str] = []


@dataclass(frozen=True)
class Item:
    """One thing that is asked for. Seconds; 0: never."""

    is_effect: bool = True
    quorum: int = 1
    within: int = 0
    remind: int = 0
    escalate: int = 0


@effect(downstream=Idempotent())
async def pay(order: str) -> str:
    SENT.append(order)
    return "paid"


pay.key(lambda order: order)


@step
async def note(order: str) -> str:
    SENT.append(order)
    return "noted"


@workflow
async def gates(items: list[Item]) -> list[str]:
    return list(await asyncio.gather(*(one(f"o-{n}", item) for n, item in enumerate(items))))


async def one(order: str, item: Item) -> str:
    try:
        call: Any = pay.call(order) if item.is_effect else note.call(order)
        return await perdure.with_approval(
            call, by={"ann", "boss"}, quorum=item.quorum, within=item.within or None,
            remind_after=item.remind or None, escalate_after=item.escalate or None,
            escalate_to={"cy"} if item.escalate else (),
        )  # fmt: skip
    except Rejected as no:
        return f"rejected by {no.by}"
    except ApprovalExpired:
        return "expired"


# ── the model ───────────────────────────────────────────────────────────────────────────────


class Letter(NamedTuple):
    by: str
    role: str
    choice: str
    at: int


@dataclass
class Told:
    """What is known of one item. `votes` counted; `mailbox` was sent, and nobody has read it. `is_granted`: enough have
    approved, and it did not begin so far."""

    item: Item
    began: int
    votes: list[Letter] = field(default_factory=list[Letter])
    mailbox: list[Letter] = field(default_factory=list[Letter])
    fate: str = ""
    is_granted: bool = False
    reminded: list[str] = field(default_factory=list[str])

    def is_over(self, now: int) -> bool:
        return bool(self.item.within) and now >= self.began + self.item.within * SECOND

    def counts(self, votes: list[Letter], sent: Letter) -> bool:
        """Whether it counts after these votes, whoever has which role."""
        if self.fate or self.is_granted or self.is_over(sent.at) or is_decided(votes, self.item.quorum):
            return False
        escalated = bool(self.item.escalate) and sent.at >= self.began + self.item.escalate * SECOND
        named = {"ann", "boss", "cy"} if escalated else {"ann", "boss"}
        return bool({sent.by, sent.role or sent.by} & named) and sent.by not in [vote.by for vote in votes]


def is_decided(votes: list[Letter], quorum: int) -> bool:
    return any(vote.choice == "reject" for vote in votes) or len(votes) >= quorum


@dataclass
class Model:
    roles: dict[str, set[str]]
    told: list[Told]
    is_paused: bool = False

    @property
    def is_over(self) -> bool:
        return all(it.fate for it in self.told)

    def may(self, sent: Letter) -> bool:
        held = self.roles.get(sent.by)
        return held is not None and (not sent.role or sent.role in held)

    def accepts(self, n: int, sent: Letter, knows: bool) -> bool:
        """Whether whoever sends it is told that it counts: by the store, which knows no roles, and before that by the
        client, if that does."""
        it = self.told[n]
        for_store = it.counts([*it.votes, *it.mailbox], sent)
        if not knows:
            return for_store
        heard = [*it.votes]
        for letter in it.mailbox:
            if self.may(letter) and it.counts(heard, letter):
                heard.append(letter)
        return for_store and it.counts(heard, sent) and self.may(sent)

    def see(self, now: int, *, pauses: bool = False) -> None:
        """Somebody executes the run. `pauses`: what is decided is heard together with that the run is to be paused."""
        for it in () if self.is_paused else self.told:
            letters, it.mailbox = it.mailbox, []
            for letter in letters:
                self.take(it, letter)
            if it.is_granted and not it.fate and not pauses:
                self.begin(it, now)
            if not (it.fate or it.is_granted or pauses):
                self.tell(it, now)
            if not (it.fate or it.is_granted or pauses) and it.is_over(now):
                it.fate = "expired"
        self.is_paused |= pauses

    def begin(self, it: Told, now: int) -> None:
        holds = sum(map(self.may, it.votes)) >= it.item.quorum and not it.is_over(now)
        it.fate = "paid" if holds else "expired"

    def take(self, it: Told, sent: Letter) -> None:
        if not self.may(sent) or not it.counts(it.votes, sent):
            return
        if sent.choice == "reject":
            it.fate = f"rejected by {sent.by}"
            return
        if len(it.votes) + 1 >= it.item.quorum:
            it.votes = [vote for vote in it.votes if self.may(vote)]
        it.votes.append(sent)
        it.is_granted = len(it.votes) >= it.item.quorum

    def tell(self, it: Told, now: int) -> None:
        for what, after in (("reminder", it.item.remind), ("escalation", it.item.escalate)):
            if after and now >= it.began + after * SECOND and not it.is_over(now) and what not in it.reminded:
                it.reminded.append(what)


# ── what happens ────────────────────────────────────────────────────────────────────────────

ITEMS = st.lists(
    st.builds(
        Item, is_effect=st.booleans(), quorum=st.integers(1, 2), within=st.sampled_from([0, 0, 10]),
        remind=st.sampled_from([0, 2, 5]), escalate=st.sampled_from([0, 3, 6]),
    ),
    min_size=1, max_size=2,
)  # fmt: skip
WHO = st.sampled_from(
    [("ann", ""), ("bo", "boss"), ("bo", ""), ("cy", ""), ("cy", "boss"), ("eve", "boss"), ("eve", "")]
)
CHOICE = st.sampled_from(["approve", "approve", "approve", "reject"])
DECISION = st.tuples(st.just("decide"), st.integers(0, 1), WHO, CHOICE, st.booleans())
RACE = st.tuples(st.just("race"), st.integers(0, 1), WHO, WHO, CHOICE, CHOICE)
PASSING = st.tuples(st.just("pass"), st.sampled_from([1, 2, 3, 5]))
ROLE = st.tuples(st.just("role"), st.sampled_from(["ann", "bo", "cy"]), st.booleans())
LIFE = st.tuples(st.sampled_from(["crash", "leave", "enter", "evict", "resume"]))
PAUSE = st.tuples(st.just("pause"), st.integers(0, 1), WHO)


@st.composite
def held(draw: st.DrawFn) -> tuple[Any, ...]:
    """Paused between a decision and what is to begin by it; the role may be gone by then, or the time over."""
    who = draw(st.sampled_from([("ann", ""), ("bo", "boss")]))
    pause = ("pause", draw(st.integers(0, 1)), who)
    return "several", (pause, ("role", who[0], draw(st.booleans())), draw(PASSING), ("resume",))


ACTIONS = st.lists(st.one_of(DECISION, DECISION, RACE, PASSING, ROLE, ROLE, LIFE, PAUSE, held()), max_size=20)
ROLES = {"ann": set[str](), "bo": {"boss"}, "cy": set[str]()}


class World:
    def __init__(self, items: list[Item]) -> None:
        SENT.clear()
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.items = items
        self.model = Model({person: set(roles) for person, roles in ROLES.items()}, [])
        self.knowing = Client(self.store.again(), clock=self.clock, authority=self.roles_of)
        self.plain = Client(self.store.again(), clock=self.clock)
        self.runtime: RuntimeUnderTest | None = None

    def roles_of(self, person: str) -> set[str] | None:
        return self.model.roles.get(person)

    async def enter(self, *, pauses: bool = False) -> None:
        if self.runtime is None:
            self.runtime = await RuntimeUnderTest(
                self.store.again(), clock=self.clock, workflows=[gates], replays=False, authority=self.roles_of
            ).__aenter__()
        await self.settle(pauses=pauses)

    async def leave(self, how: str) -> None:
        if self.runtime is not None:
            await (self.runtime.die() if how == "crash" else self.runtime.__aexit__(None, None, None))
        self.runtime = None

    async def settle(self, *, pauses: bool = False) -> None:
        if self.runtime is not None:
            await self.runtime.advance(0.2)  # letters from elsewhere are seen when the store is looked at
            self.runtime._host.kick()  # pyright: ignore[reportPrivateUsage]
            await self.runtime.run_dry()
            self.model.see(self.clock.now(), pauses=pauses)

    async def send(self, n: int, sent: Letter, knows: bool) -> bool:
        client = self.knowing if knows else self.plain
        (it,) = [row for row in await client.requests(run="r") if row.arguments["order"] == f"o-{n}"]
        decide: Any = client.approve if sent.choice == "approve" else client.reject
        try:
            await decide(it.id, hash=it.hash, by=sent.by, role=sent.role)
        except DecisionRefused:
            return False
        return True

    async def act(self, action: tuple[Any, ...]) -> None:
        now = self.clock.now()
        match action:
            case "decide", n, (by, role), choice, knows if n < len(self.items):
                sent = Letter(by, role, choice, now)
                expected = self.model.accepts(n, sent, knows)
                assert await self.send(n, sent, knows) is expected, (n, sent, knows)
                if expected:
                    self.model.told[int(n)].mailbox.append(sent)
            case "race", n, first, second, one_says, other_says if n < len(self.items):
                one, other = Letter(first[0], first[1], one_says, now), Letter(second[0], second[1], other_says, now)
                await self.race(n, one, other)
            case "pass", seconds:
                for _ in range(seconds):
                    if self.runtime is not None:
                        await self.settle()
                    self.clock.advance_to(self.clock.now() + SECOND)
            case "role", person, has:
                self.model.roles[person] = {"boss"} if has else set()
                if not has and person == "ann":
                    del self.model.roles[person]
            case "several", actions:
                for each in actions:
                    await self.act(each)
            case "pause", n, (by, role) if n < len(self.items):
                await self.pause(n, Letter(by, role, "approve", now))
            case "resume",:
                await self.resume()
            case ("crash" | "leave") as how,:
                await self.leave(how)
            case "enter",:
                await self.enter()
            case "evict",:
                if self.runtime is not None:
                    self.runtime._host.release_idle()  # pyright: ignore[reportPrivateUsage]
            case _:
                pass
        await self.settle()

    async def pause(self, n: int, sent: Letter) -> None:
        """A decision and a pause have come when somebody executes the run again."""
        await self.leave("leave")
        if self.model.is_paused:
            return
        if self.model.accepts(n, sent, knows=False):
            self.model.told[n].mailbox.append(sent)
        await self.send(n, sent, knows=False)
        await (await self.plain.get("r")).pause()
        await self.enter(pauses=True)

    async def resume(self) -> None:
        if self.runtime is not None and self.model.is_paused and not self.model.is_over:
            await (await self.runtime.get("r")).resume()
            await self.runtime.run_dry()
            self.model.is_paused = False
            self.model.see(self.clock.now())

    async def race(self, n: int, first: Letter, second: Letter) -> None:
        """Two decide at once, while nobody executes the run: what they are told is what they would be one after the
        other, in some order."""
        await self.leave("leave")
        it, orders = self.model.told[n], list[tuple[tuple[bool, bool], list[Letter]]]()
        before = [*it.mailbox]
        for order in ((first, second), (second, first)):
            it.mailbox, heard = [*before], dict[int, bool]()
            for sent in order:
                heard[id(sent)] = self.model.accepts(n, sent, knows=False)
                it.mailbox += [sent] if heard[id(sent)] else []
            orders.append(((heard[id(first)], heard[id(second)]), it.mailbox))
        found = await asyncio.gather(self.send(n, first, False), self.send(n, second, False))
        fitting = [mailbox for told, mailbox in orders if told == tuple(found)]
        assert fitting, (first, second, found)
        it.mailbox = fitting[0]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(items=ITEMS, actions=ACTIONS)
def test_any_order_of_things(items: list[Item], actions: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        world = World(items)
        async with world.knowing, world.plain:
            try:
                await play(world, actions)
            finally:
                await world.leave("leave")

    run_async(main())


async def play(world: World, actions: list[tuple[Any, ...]]) -> None:
    await world.enter()
    assert world.runtime is not None
    await world.runtime.start(gates.call(world.items), id="r")
    await world.runtime.run_dry()
    began = world.clock.now()
    world.model.told = [Told(item, began) for item in world.items]
    for action in actions:
        if world.model.is_over:
            break
        await world.act(action)
    await world.enter()
    await world.resume()
    await world.settle()
    rows = {row.arguments["order"]: row for row in await world.plain.requests(run="r")}
    for n, it in enumerate(world.model.told):
        states = {"paid": {"used"}, "expired": {"expired", "lapsed"}, "": {"pending"}}
        assert rows[f"o-{n}"].status in states.get(it.fate, {"rejected"}), (n, it)
        approved = [said.by for said in rows[f"o-{n}"].said if said.choice == "approve"]
        assert sorted(approved) == sorted(vote.by for vote in it.votes), "of two at once either may have been first"
    assert sorted(SENT) == [f"o-{n}" for n, it in enumerate(world.model.told) if it.fate == "paid"]
    events: list[Any] = [each.event for each in await (await world.plain.get("r")).history()]
    told = sorted((event.id, event.what) for event in events if type(event).__name__ == "PersonReminded")
    assert told == sorted((rows[f"o-{n}"].id, what) for n, it in enumerate(world.model.told) for what in it.reminded)

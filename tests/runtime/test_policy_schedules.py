"""Random interleavings of requests, decisions, time, crashes and changes of policy, judged by an account of its own.

No gated action without a matching, unexpired, unused approval of exactly its request, and a policy that allowed it when
it was sent. The account knows who approved what, when, and which policy was in force; nothing of rules, states or
stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async

import perdure
from perdure import (
    ApprovalExpired,
    Client,
    DecisionRefused,
    Idempotent,
    Policy,
    PolicyDenied,
    Rejected,
    Rule,
    effect,
    workflow,
)
from perdure.audit.verify import verify
from perdure.store.memory import MemoryStore
from perdure.store.protocol import EffectFilter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

SECOND = 1_000_000
RATE_SECONDS = 10
BUSY_SECONDS = 3

POLICIES: Mapping[str, Policy | None] = {
    "nothing": None,
    "bounds": Policy(
        "bounds", 1,
        [
            Rule("small ones", "pay", when={"cents": {"<=": 50}}, then="allow"),
            Rule("none above", "pay", must={"cents": {"<=": 80}}),
        ],
    ),
    "bo": Policy("bo", 1, [Rule("by bo", "pay", then="approve", by="bo")]),
    "no": Policy("no", 1, [Rule("never", "pay", then="refuse")]),
    "rate": Policy("rate", 1, [Rule("one", "pay", rate={"count": 1, "per": RATE_SECONDS}, then="allow")]),
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One payment. `asks`: under an approval; `within` seconds, 0: for ever. `refusals`: how often the other side is
    busy before it takes it; each time it is tried again `BUSY_SECONDS` later."""

    cents: int
    asks: bool
    within: int = 0
    refusals: int = 0


@dataclass
class Account:
    """What has happened: who approved which order, until when that counts, which policy is in force, what was sent."""

    clock: FakeClock
    items: list[Item]
    policy: str = "nothing"
    approved: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    until: dict[str, int] = field(default_factory=dict[str, int])
    sent: dict[str, int] = field(default_factory=dict[str, int])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    rated: dict[str, int] = field(default_factory=dict[str, int])

    def may(self, order: str, cents: int) -> bool:
        now, by = self.clock.now(), self.approved.get(order, set())
        is_approved = bool(by) and not 0 < self.until.get(order, 0) <= now
        match self.policy:
            case "bounds":
                return cents <= 50 or (cents <= 80 and is_approved)
            case "bo":
                return is_approved and "bo" in by
            case "rate":
                return order in self.rated or not any(now - at < RATE_SECONDS * SECOND for at in self.rated.values())
            case "no":
                return False
            case _:
                return is_approved

    def send(self, order: str, cents: int) -> None:
        item = self.items[int(order)]
        assert cents == item.cents
        assert order not in self.sent, f"{order} was sent twice"
        assert self.may(order, cents), f"{order} was sent under {self.policy}, approved by {self.approved.get(order)}"
        if item.asks and self.approved.get(order) is not None:
            assert not 0 < self.until.get(order, 0) <= self.clock.now(), f"{order} was sent too late"
        if self.policy == "rate":
            self.rated.setdefault(order, self.clock.now())  # one operation counts once, however often it is tried
        if self.refused.get(order, 0) < item.refusals:
            self.refused[order] = self.refused.get(order, 0) + 1
            self.until[order] = 0  # it has begun in time, and is seen through
            raise perdure.Retryable("busy", after=BUSY_SECONDS)
        self.sent[order] = self.clock.now()


ACCOUNT: list[Account] = []
WRONG: list[AssertionError] = []


@effect(downstream=Idempotent(), reversible=False)
async def pay(order: str, cents: int) -> int:
    try:
        ACCOUNT[-1].send(order, cents)
    except AssertionError as error:
        WRONG.append(error)
    return cents


@pay.key
def _(order: str, cents: int) -> str:
    return order


@workflow
async def pays(items: list[Item]) -> list[str]:
    return await asyncio.gather(*(one(str(n), item) for n, item in enumerate(items)))


async def one(order: str, item: Item) -> str:
    """Tried until it is paid, or refused by a person; each time when told to."""
    while True:
        await perdure.receive(f"go-{order}")
        call = pay.call(order, item.cents)
        try:
            if item.asks:
                await perdure.with_approval(call, by={"ann", "bo"}, within=item.within or None)
            else:
                await call
        except (PolicyDenied, ApprovalExpired):
            continue
        except Rejected:
            return "rejected"
        return "paid"


ITEMS = st.lists(
    st.builds(
        Item, cents=st.sampled_from([10, 60, 90]), asks=st.booleans(), within=st.sampled_from([0, 0, 5]),
        refusals=st.sampled_from([0, 0, 1, 2]),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
WHICH = st.integers(0, 2)
NAMES, HOW = st.sampled_from([*POLICIES]), st.sampled_from(["crash", "leave"])


def asked_and_decided(n: int, by: str, before: str, between: str, how: str) -> tuple[Any, ...]:
    """One payment from beginning to end: asked under a policy, decided while nobody runs, sent under another."""
    steps = (("policy", before, how), ("go", n), ("away", how), ("approve", n, by), ("policy", between, how))
    return ("several", steps)


def tried_again(n: int, by: str, before: str, between: str, how: str) -> tuple[Any, ...]:
    """One payment that may find the other side busy: begun under a policy, tried again under another."""
    begun = (("policy", before, how), ("go", n), ("approve", n, by))
    return ("several", (*begun, ("policy", between, how), ("pass", BUSY_SECONDS + 1)))


ACTIONS = st.lists(
    st.one_of(
        st.builds(tried_again, WHICH, st.sampled_from(["ann", "bo"]), NAMES, NAMES, HOW),
        st.builds(asked_and_decided, WHICH, st.sampled_from(["ann", "bo"]), NAMES, NAMES, HOW),
        st.tuples(st.just("go"), WHICH),
        st.tuples(st.just("approve"), WHICH, st.sampled_from(["ann", "bo", "eve"])),
        st.tuples(st.just("pass"), st.sampled_from([1, 4, 6])),
        st.tuples(st.just("policy"), NAMES, HOW),
        st.tuples(st.just("away"), HOW),
    ),
    min_size=2, max_size=12,
)  # fmt: skip


class World:
    def __init__(self, items: list[Item]) -> None:
        self.clock = FakeClock()
        self.account = Account(self.clock, items)
        ACCOUNT[:], WRONG[:] = [self.account], []
        self.items = items
        self.store = MemoryStore(self.clock)
        self.runtime: RuntimeUnderTest | None = None
        self.outside = Client(self.store.again(), clock=self.clock)

    @property
    def client(self) -> Client:
        """Who is asked and told: the runtime if there is one, for what another process wrote is seen when its time has
        come, which may be in the middle of a death."""
        return self.runtime or self.outside

    async def open(self) -> RuntimeUnderTest:
        if self.runtime is None:
            self.runtime = await RuntimeUnderTest(
                self.store.again(), clock=self.clock, workflows=[pays], replays=False,
                policy=POLICIES[self.account.policy],
            ).__aenter__()  # fmt: skip
        await self.runtime.run_dry()
        return self.runtime

    async def close(self, how: str) -> None:
        if self.runtime is not None:
            await (self.runtime.die() if how == "crash" else self.runtime.__aexit__(None, None, None))
        self.runtime = None

    async def act(self, action: tuple[Any, ...]) -> None:
        if (await (await self.client.get("r")).status()).is_final:
            return
        match action:
            case "several", actions:
                for each in actions:
                    await self.act(each)
            case "go", n if n < len(self.items):
                await (await self.client.get("r")).send(f"go-{n}")
            case "approve", n, by:
                await self.approve(str(n), by)
            case "pass", seconds:
                if self.runtime is None:
                    self.clock.advance_to(self.clock.now() + seconds * SECOND)
                else:
                    await self.runtime.advance(seconds)
            case "policy", name, how:
                await self.close(how)
                self.account.policy = name
                await self.open()
            case "away", how:
                await self.close(how)
            case _:
                pass
        if self.runtime is not None:
            await self.runtime.run_dry()

    async def approve(self, order: str, by: str) -> None:
        """What is asked about this order just now. Each request is approved for itself."""
        client = self.client
        pending = [it for it in await client.requests(run="r", status="pending") if it.key == order]
        if not pending:
            return
        (it,) = pending
        before, until = self.account.approved.get(order), self.account.until.get(order, 0)
        self.account.approved[order] = {by}
        self.account.until[order] = 0 if it.expires_at is None else round(it.expires_at.timestamp() * SECOND)
        try:
            await client.approve(it.id, hash=it.hash, by=by)
        except DecisionRefused as no:
            self.account.until[order] = until
            if before is None:
                del self.account.approved[order]
            else:
                self.account.approved[order] = before
            is_decided = no.why.startswith("decided") and before is not None  # and nobody has read it so far
            assert is_decided or by == "eve" or it.expires_at is not None, "who may decide was refused"
        else:
            assert by != "eve"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(items=ITEMS, actions=ACTIONS)
def test_nothing_passes_but_what_was_approved_and_allowed_at_that_moment(
    items: list[Item], actions: list[tuple[Any, ...]]
) -> None:
    async def main() -> None:
        world = World(items)
        async with world.outside:
            try:
                await (await world.open()).start(pays.call(items), id="r")
                for action in actions:
                    await world.act(action)
                    assert not WRONG, WRONG
                await world.close("leave")
            finally:
                await world.close("leave")
        assert not WRONG, WRONG
        assert verify(world.store).damage == ()
        rows = {row.business_key: row for row in world.store.effects(EffectFilter())}
        assert {key for key, row in rows.items() if str(row.status) == "succeeded"} == set(world.account.sent)

    run_async(main())

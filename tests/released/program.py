"""Runs of every kind, as a version writes them: `tests.released.write` keeps their store, and this file beside it.

A copy of this file is the code that those runs go on under. It is never edited there; what is to be recorded besides is
added here, for the next version.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import perdure
from perdure import Budget, CanLookUp, Idempotent, NoGuarantee, Retry, Runtime, Usage, effect, step, workflow
from perdure.testing.clock import FakeClock

STARTED = datetime(2026, 11, 30, tzinfo=UTC)
HOUR = 3_600
PATIENCE_SECONDS = 0.3
LEASE_SECONDS = 100
WORLD = {"policy": 1, "limit": 1}

# ── steps ───────────────────────────────────────────────────────────────────────────────────


@step
async def plan(topic: str) -> list[str]:
    return [f"{topic} {n}" for n in range(3)]


@step
async def search(query: str) -> dict[str, str]:
    return {"query": query, "text": query * 300}


@step(retry=Retry(max_attempts=3, first_delay=60))
async def unsteady() -> int:
    number = perdure.attempt().number
    perdure.heartbeat({"attempt": number})
    if number < 3:
        raise perdure.Retryable("not yet")
    return number


@step(record="lazy")
async def lazily(number: int) -> int:
    return number


@step
async def breaks() -> None:
    raise perdure.Final("on purpose")


@step
async def asks_somebody() -> str:
    raise perdure.NeedsPerson("which one?")


@step(uses=Usage(tokens=60))
async def thinks() -> str:
    perdure.used(model="small", tokens=50, cost="0.25")
    return "thought"


@step(valid_for=30 * 86_400)
async def decides() -> int:
    return 40 + WORLD["policy"]


@decides.premise("policy")
async def _() -> int:
    return WORLD["policy"]


@step
async def limits() -> int:
    return 10 * WORLD["limit"]


@limits.premise("limit")
async def _() -> int:
    return WORLD["limit"]


@step
def adds(one: int, other: int) -> int:
    return one + other


@step
async def asks_model(question: str) -> str:
    perdure.used(model="new", input_tokens=1_000, output_tokens=100)
    return question.upper()


# ── effects ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), retry=Retry(max_attempts=2, first_delay=60))
async def pays(order: str, cents: int) -> str:
    perdure.operation().reference = f"ref-{order}"
    if order == "refused once" and perdure.attempt().number == 1:
        raise perdure.Retryable("come back")
    return f"paid {cents}"


@pays.key
def _(order: str, cents: int) -> str:
    return order


@pays.undo
async def _(result: str, order: str, cents: int) -> None: ...


@effect(downstream=CanLookUp(settle_after=0))
async def mails(to: str) -> str:
    raise perdure.InDoubt("no answer")


@mails.key
def _(to: str) -> str:
    return to


@mails.lookup
async def _(op: perdure.Operation) -> perdure.Found[str] | perdure.NotFound | perdure.Unsure:
    return perdure.Found("sent")


@effect(downstream=Idempotent())
async def charges(card: str) -> str:
    perdure.operation().external_request_id = f"request-{card}"
    if card == "empty":
        raise perdure.Final("declined")
    return "charged"


@charges.key
def _(card: str) -> str:
    return card


@charges.undo
async def _(result: str, card: str) -> None: ...


@effect(downstream=NoGuarantee())
async def prints(page: str) -> str:
    raise perdure.InDoubt("the printer is silent")


@prints.key
def _(page: str) -> str:
    return page


@effect(downstream=Idempotent(), relies_on=["model", decides])
async def tells(text: str) -> str:
    return f"told {text}"


@tells.key
def _(text: str) -> str:
    return text


@effect(downstream=Idempotent())
async def signs(contract: str) -> Any:
    return object()  # which cannot be recorded


@signs.key
def _(contract: str) -> str:
    return contract


@effect(transactional=True)
def books(order: str) -> None:
    database: sqlite3.Connection = perdure.transaction()
    database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT)")
    database.execute("INSERT INTO orders VALUES (?)", (order,))


@books.key
def _(order: str) -> str:
    return order


# ── workflows ───────────────────────────────────────────────────────────────────────────────


@workflow(version=2, tools=[search], prompt_release="May")
async def researches(topic: str) -> int:
    queries = await plan(topic)
    found = await asyncio.gather(*(search(query) for query in queries))
    if perdure.patched("ask twice"):
        found.append(await search("twice"))
    await perdure.sleep(hours=1)
    perdure.set_state({"found": len(found)})
    await perdure.receive("go")
    return len(found) + await unsteady() + await lazily(1)


@workflow
async def trades(order: str) -> str:
    async with perdure.saga():
        await pays(order, 100)
        await pays("refused once", 5)
        await mails("ann")
        if order == "regretted":
            raise ValueError("no")
    await books.call(order)
    return await perdure.with_approval(
        pays.call(f"{order} more", 200), by={"ann", "bob"}, within=timedelta(days=30), remind_after=timedelta(hours=2),
        escalate_after=timedelta(hours=4), escalate_to={"eve"},
    )  # fmt: skip


@workflow
async def doubts() -> str:
    return await prints("page")


@workflow
async def wonders() -> str:
    answer = await perdure.ask("how many?", type=int, by={"ann"})
    return f"{answer} and {await asks_somebody()}"


@workflow(budget=Budget(tokens=100))
async def spends() -> str:
    return await thinks() + await thinks()


@workflow
async def relies() -> str:
    cents = await decides()
    await perdure.receive("go")
    return await pays("relied", cents)


@workflow
async def relies_on_some(model: str) -> str:
    text = await asks_model.with_premises({"model": model, "tools": ["search"]})("who")
    await limits()
    await decides()
    await perdure.receive("go")
    return await tells(text)


@workflow
async def signs_contract() -> str:
    return str(await signs("lease"))


@workflow(budget=Budget(cost="1"))
async def buys() -> str:
    return await asks_model("what") + await asks_model("when")


async def asks_number() -> int:
    number = await adds.call(1, 2)
    return number + await perdure.receive("number", int)


adopts = workflow(version=2, replays={1}, prompt_release="June", name="adopts")(asks_number)


@workflow
async def goes_back(order: str) -> str:
    cents = await limits()
    await plan("tea")
    await charges(f"{order} {cents}")
    await perdure.receive("go")
    await charges(f"{order} {cents} more")
    return str(cents + await perdure.receive("number", int))


@workflow
async def charges_for(order: str, cents: int) -> str:
    return await charges(f"{order} {cents}")


@workflow
async def hands_on(order: str) -> str:
    cents = await limits()
    await charges_for(order, cents)
    await perdure.receive("go")
    await charges(f"{order} {cents} more")
    return str(cents + await perdure.receive("number", int))


@workflow
async def charges_cards() -> str:
    told = await charges("full")
    try:
        await charges("empty")
    except perdure.Final:
        told += ", and declined"
    return told


@workflow
async def agrees() -> int:
    return await perdure.with_approval(adds.call(1, 2), by={"ann", "bob"}, quorum=2)


@workflow
async def reads() -> int:
    return await perdure.receive("number", int)


@workflow
async def child(number: int) -> int:
    if number:
        return number
    return await perdure.receive("number", int)


@workflow
async def parent() -> int:
    first = await child(1)
    return first + await child(0)


@workflow
async def chapters(number: int) -> int:
    await adds.call(number, 1)
    if number < 2:
        perdure.continue_as_new(number + 1)
    await perdure.receive("go")
    return number


@workflow
def hosted() -> int:
    total = adds(1, 2)
    perdure.sync.sleep(60)
    return total + int(perdure.sync.receive("number", int))


@workflow
def hosted_trip() -> str:
    try:
        with perdure.saga():
            perdure.sync.wait(charges.call("trip"))
            perdure.sync.receive("number", int)
            raise ValueError("full")
    except ValueError as error:
        return error.__notes__[0]


async def listens() -> None:
    """It is over before somebody has said what to do about a message that it cannot read."""
    number = asyncio.ensure_future(perdure.receive("number", int))
    try:
        await perdure.receive("go")
        raise ValueError("told to stop")
    finally:
        number.cancel()


@workflow
async def passes_on() -> str:
    with contextlib.suppress(ValueError):
        await perdure.section("listens").run(listens)
    return await perdure.receive("number", str)


@workflow
async def fails() -> None:
    await breaks()


@workflow
async def drops_child() -> str:
    try:
        async with asyncio.timeout(60):
            return str(await child(0))
    except TimeoutError:
        return "it took too long"


@workflow
async def gives_up() -> str:
    try:
        async with asyncio.timeout(60):
            await perdure.receive("never")
    except TimeoutError:
        return "nobody came"
    return "somebody came"


WORKFLOWS: list[Any] = [
    researches, trades, doubts, wonders, spends, relies, goes_back, charges_cards, agrees, reads, child, parent,
    chapters, hosted, hosted_trip, fails, drops_child, gives_up, relies_on_some, signs_contract, buys, adopts,
    charges_for, hands_on, passes_on,
]  # fmt: skip

PRICES = '''
currency = "USD"
[[price]]
model = "new"
as_of = 2026-11-01
input = 1.00
output = 2.00
'''


# ── what is recorded ────────────────────────────────────────────────────────────────────────


async def record(path: str) -> None:
    """Leave a store in which runs have ended, and others stand at every kind of place."""
    clock = FakeClock(STARTED)
    await begin_and_die(path, clock)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as prices:
        prices.write(PRICES)
        prices.flush()
        await record_all(path, clock, Path(prices.name))


async def begin_and_die(path: str, clock: FakeClock) -> None:
    """Runs of an older version, under which no model had a price; their worker dies."""
    older = workflow(version=1, prompt_release="May", name="adopts")(asks_number)
    async with Runtime(path, workflows=[older, buys], clock=clock, lease=LEASE_SECONDS) as runtime:
        for run_id in ("adopted", "adopted on"):
            await runtime.start(older.call(), id=run_id)
        for run_id in ("buys", "bought"):
            await runtime.start(buys.call(), id=run_id)
        while {str(await (await runtime.get(run_id)).status()) for run_id in ("buys", "bought")} != {"blocked"}:
            await asyncio.sleep(0.005)
        await runtime._host.abandon()  # pyright: ignore[reportPrivateUsage]


async def record_all(path: str, clock: FakeClock, prices: Path) -> None:
    options: dict[str, Any] = {"clock": clock, "lease": LEASE_SECONDS, "prices": prices}
    async with Runtime(path, workflows=WORKFLOWS, **options) as runtime, ticking(clock):
        await begin_all(runtime)
        await passed(runtime, clock, HOUR)
        await decide(runtime)
        await (await runtime.get("resumed")).pause(by="ann")
        WORLD["limit"] = 2
        await passed(runtime, clock, 5 * HOUR)
        await (await runtime.get("resumed")).resume()
        for run_id in ("goes back", "went back", "hands on", "handed on"):
            await (await runtime.get(run_id)).send("go")
        for run_id in ("went back", "handed on"):
            await (await runtime.get(run_id)).send("number", 7)
        await (await runtime.get("paused")).pause()
        await (await runtime.get("cancelled")).cancel("not wanted")
        await passed(runtime, clock, 60)
        forked = await (await runtime.get("researches")).fork(2, id="forked", by="ann", reason="another way")
        assert forked.id == "forked"
        await passed(runtime, clock, 60)


async def begin_all(runtime: Runtime) -> None:
    calls: dict[str, Any] = {
        "researches": researches.call("tea"), "paused": researches.call("coffee"), "cancelled": researches.call("mate"),
        "finished": researches.call("water"), "trades": trades.call("o-1"), "trades on": trades.call("o-2"),
        "regretted": trades.call("regretted"), "doubts": doubts.call(), "settled": doubts.call(),
        "wonders": wonders.call(), "answered": wonders.call(), "spends": spends.call(), "raised": spends.call(),
        "relies": relies.call(), "relied": relies.call(), "parent": parent.call(), "chapters": chapters.call(0),
        "hosted": hosted.call(), "hosted on": hosted.call(), "trip": hosted_trip.call(),
        "travelled": hosted_trip.call(),
        "fails": fails.call(), "gives up": gives_up.call(), "drops": drops_child.call(), "cards": charges_cards.call(),
        "agrees": agrees.call(), "agreed": agrees.call(), "reads": reads.call(), "read": reads.call(),
        "goes back": goes_back.call("g-1"), "went back": goes_back.call("g-2"), "resumed": researches.call("cocoa"),
        "relies on some": relies_on_some.call("small"), "relied on some": relies_on_some.call("small"),
        "signs": signs_contract.call(), "signed": signs_contract.call(), "hands on": hands_on.call("h-1"),
        "handed on": hands_on.call("h-2"), "passes on": passes_on.call(), "passed on": passes_on.call(),
    }  # fmt: skip
    for run_id, call in calls.items():
        await runtime.start(call, id=run_id, tags={"kind": run_id}, goal="to be kept", scope={"customer": "ada"})


async def passed(runtime: Runtime, clock: FakeClock, seconds: float) -> None:
    """So much time passes, in pieces, and what is due then is done."""
    for _ in range(10):
        await runtime.drain(max_seconds=PATIENCE_SECONDS)  # what waits for its next attempt is not drained
        clock.advance(seconds / 10)
    await runtime.drain(max_seconds=PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def ticking(clock: FakeClock) -> AsyncGenerator[None, None]:
    """Time passes by itself, so that what people said is looked for."""

    async def tick() -> None:
        while True:
            clock.advance(0.1)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()


async def decide(runtime: Runtime) -> None:
    """What people do."""
    for run_id in ("trades on", "answered"):
        for asked in await runtime.requests(run=await runtime.get(run_id), status="pending"):
            if asked.kind == "approval":
                await runtime.approve(asked.id, hash=asked.hash, by="ann")
            else:
                await runtime.answer(asked.id, 3, hash=asked.hash, by="ann")
    await runtime.settle("settled", "succeeded", value="printed", by="ann")
    await runtime.raise_budget("raised", tokens=1_000, by="ann")
    for run_id in ("agrees", "agreed"):
        (asked,) = await runtime.requests(run=await runtime.get(run_id), status="pending")
        for by in ("ann", "bob")[: 1 if run_id == "agrees" else 2]:
            await runtime.approve(asked.id, hash=asked.hash, by=by)
    await runtime.settle("signed", "succeeded", value="in ink", by="ann")
    await (await runtime.get("bought")).unblock("retry", by="ann")
    for run_id in ("hosted on", "travelled", "adopted on"):
        await (await runtime.get(run_id)).send("number", 7)
    for run_id in ("reads", "read", "passes on", "passed on"):
        await (await runtime.get(run_id)).send("number", "seven")
    for run_id in ("finished", "relied", "relied on some"):
        await (await runtime.get(run_id)).send("go", by="ann")
    await runtime.drain()
    await (await runtime.get("passed on")).send("go")
    await (await runtime.get("answered")).unblock("value", value="this one", by="ann", reason="known")
    await (await runtime.get("read")).unblock("value", value=7, by="ann")


# ── how it goes on ──────────────────────────────────────────────────────────────────────────

Act = Callable[[Runtime, Any], Awaitable[object]]


async def say_go(runtime: Runtime, run: Any) -> None:
    await run.send("go")


async def say_number(runtime: Runtime, run: Any) -> None:
    await run.send("number", 7)


async def say_yes(runtime: Runtime, run: Any) -> None:
    (asked,) = await runtime.requests(run=run, status="pending")
    await runtime.approve(asked.id, hash=asked.hash, by="eve")


async def say_page(runtime: Runtime, run: Any) -> None:
    await runtime.settle(run, "succeeded", value="printed", by="ann")


async def say_it_is_signed(runtime: Runtime, run: Any) -> None:
    await runtime.settle(run, "succeeded", value="in blue", by="ann")


async def say_how_many(runtime: Runtime, run: Any) -> None:
    (asked,) = await runtime.requests(run=run, status="pending")
    await runtime.answer(asked.id, 4, hash=asked.hash, by="ann")
    await runtime.drain()
    await run.unblock("value", value="that one", by="ann")


async def agree(runtime: Runtime, run: Any) -> None:
    (asked,) = await runtime.requests(run=run, status="pending")
    await runtime.approve(asked.id, hash=asked.hash, by="bob")


async def give_number(runtime: Runtime, run: Any) -> None:
    await run.unblock("value", value=7, by="ann")


async def raise_it(runtime: Runtime, run: Any) -> None:
    await runtime.raise_budget(run, tokens=1_000, by="ann")


async def unblock(runtime: Runtime, run: Any) -> None:
    await run.unblock("retry", by="ann")


async def resume(runtime: Runtime, run: Any) -> None:
    await run.resume()
    await run.send("go")


async def to_child(runtime: Runtime, run: Any) -> None:
    for each in await runtime.list():
        if each.parent == run.id and not each.status.is_final:
            await (await runtime.get(each.id)).send("number", 7)


GOES_ON: dict[str, tuple[Act, Any]] = {
    "researches": (say_go, 8), "paused": (resume, 8), "forked": (say_go, 8), "trades": (say_yes, "paid 200"),
    "doubts": (say_page, "printed"), "wonders": (say_how_many, "4 and that one"),
    "spends": (raise_it, "thoughtthought"), "relies": (say_go, "paid 41"), "parent": (to_child, 8),
    "chapters": (say_go, 2), "hosted": (say_number, 10), "trip": (say_number, "saga: undone: charges 'trip'"),
    "agrees": (agree, 3), "reads": (give_number, 7), "goes back": (say_number, "27"), "resumed": (say_go, 8),
    "relies on some": (say_go, "told WHO"), "signs": (say_it_is_signed, "in blue"), "adopted": (say_number, 10),
    "buys": (unblock, "WHATWHEN"), "hands on": (say_number, "27"),
    "passes on": (say_go, "seven"),
}  # fmt: skip
"""Of each run that has not ended: what people do, and what comes of it then."""

ENDED: dict[str, Any] = {
    "finished": 8, "trades on": "paid 200", "settled": "printed", "answered": "3 and this one",
    "raised": "thoughtthought", "relied": "paid 41", "gives up": "nobody came", "hosted on": 10,
    "travelled": "saga: undone: charges 'trip'", "drops": "it took too long", "cards": "charged, and declined",
    "agreed": 3, "read": 7, "went back": "27", "relied on some": "told WHO", "signed": "in ink", "adopted on": 10,
    "bought": "WHATWHEN", "handed on": "27", "passed on": "seven",
}  # fmt: skip
"""What became of those that have ended well."""


async def go_on(path: str, at: datetime) -> dict[str, Any]:
    """Let every run of the store go on to its end; gives their results."""
    WORLD["limit"] = 2
    clock = FakeClock(at)
    results: dict[str, Any] = {}
    prices = Path(path).with_name("prices.toml")
    prices.write_text(PRICES, encoding="utf-8")
    options: dict[str, Any] = {"clock": clock, "lease": LEASE_SECONDS, "prices": prices}
    async with Runtime(path, workflows=WORKFLOWS, **options) as runtime, ticking(clock):
        await passed(runtime, clock, 60)
        for run_id, (act, _) in GOES_ON.items():
            run = await runtime.get(run_id)
            await act(runtime, run)
            while not (await run.status()).is_final:
                await passed(runtime, clock, HOUR)
            results[run_id] = await run.result()
        for run_id in ENDED:
            results[run_id] = await (await runtime.get(run_id)).result()
    return results

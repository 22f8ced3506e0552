"""What the worker processes of these tests execute: `python -m tests.schedules.program ROLE`."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

import perdure
from perdure import (
    CanLookUp,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Operation,
    Retry,
    Runtime,
    StepError,
    effect,
    step,
    workflow,
)
from perdure.runtime import host

QUICK = Retry(max_attempts=4, first_delay=0.001, max_delay=0.01)
DEATHS_FORGIVEN_AFTER = (0.0, 0.05, 0.1)
MANY_DEATHS_FORGIVEN_AFTER = (0.0,) * 100


def did(what: str) -> None:
    """Something was done outside."""
    with open(os.environ["WORLD"], "a") as world:
        world.write(f"{os.environ.get('LIFE', '1')} {what}\n")


def has_been_done(what: str) -> int:
    with open(os.environ["WORLD"]) as world:
        return sum(line.rstrip("\n").partition(" ")[2] == what for line in world)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


# ── a step that kills whoever performs it, and innocents beside it ──────────────────────────


@step
async def kills() -> int:
    did("kills")
    die()
    return 1


@workflow
async def killer() -> int:
    return await kills()


@step
async def harmless(item: int) -> int:
    did(f"harmless {perdure.attempt().run_id} {item}")
    await asyncio.sleep(0.1)
    return item


@workflow
async def innocent(items: int) -> int:
    return sum([await harmless(item) for item in range(items)])


# ── attempts, heartbeats ────────────────────────────────────────────────────────────────────


@step(retry=QUICK)
async def always_fails() -> int:
    number = perdure.attempt().number
    did(f"attempt {number}")
    if number == 3 and os.environ["LIFE"] == "1":
        die()
    raise ConnectionError(f"attempt {number} failed")


@workflow
async def failing() -> int:
    return await always_fails()


@step(retry=QUICK)
async def counts_on() -> list[int]:
    begin = perdure.last_heartbeat(int) or 0
    for item in range(begin, 6):
        did(f"item {item}")
        perdure.heartbeat(item + 1)
        await asyncio.sleep(0.05)
        if item == 3 and os.environ["LIFE"] == "1":
            die()
    return [begin]


@workflow
async def counting() -> list[int]:
    return await counts_on()


# ── a step that can be held ─────────────────────────────────────────────────────────────────


@step(timeout=60)
async def held(name: str) -> str:
    did(f"begun {name}")
    while not os.path.exists(f"{os.environ['WORLD']}.{name}"):
        await asyncio.sleep(0.005)
    did(f"ended {name}")
    return f"{name} in life {os.environ['LIFE']}"


@workflow
async def holds(name: str) -> str:
    return await held(name)


@step
def blocked_in_a_thread() -> int:
    did("blocked")
    threading.Event().wait(50)
    return 1


@workflow
async def blocks() -> int:
    return await blocked_in_a_thread.call()


@workflow
async def sleeps() -> None:
    await perdure.sleep(300)


@workflow
async def waits() -> str:
    return await perdure.receive("go", str)


# ── code that hangs, forks, or dies while it gets on ────────────────────────────────────────


@workflow
async def hangs_in_its_turn() -> None:
    did("hangs")
    time.sleep(1000)


@step(timeout=0.6)
async def hangs_on_the_loop() -> None:
    did("hangs")
    time.sleep(1000)


@workflow
async def hangs_in_a_step() -> None:
    await hangs_on_the_loop()


@step
async def gets_on_and_dies() -> int:
    begin = perdure.last_heartbeat(int) or 0
    did(f"item {begin}")
    if begin < 5:
        perdure.heartbeat(begin + 1)
        await asyncio.sleep(0.1)
        die()
    return begin


@workflow
async def dying_on_its_way() -> int:
    return await gets_on_and_dies()


# ── a bit of everything ─────────────────────────────────────────────────────────────────────


@step(retry=QUICK)
async def work(name: str) -> str:
    did(f"work {name}")
    await asyncio.sleep(0.005)
    return name


@step
def plain(name: str) -> str:
    did(f"work {name}")
    return name


@step(retry=QUICK)
async def shaky(name: str) -> str:
    did(f"try {name} {perdure.attempt().number}")
    if perdure.attempt().number < 3:
        raise ConnectionError(name)
    return name


@step
async def hopeless(name: str) -> str:
    did(f"work {name}")
    raise perdure.Final(name)


@step(record="lazy")
async def guess(name: str) -> str:
    did(f"guess {name}")
    return name


@workflow
async def helper(name: str) -> list[str]:
    return [await work(f"{name}.{n}") for n in range(3)]


@workflow
async def everything(chapter: int, seen: list[str]) -> list[str]:
    seen += await asyncio.gather(*(work(f"{chapter}.gather.{n}") for n in range(4)))
    seen.append(await plain.call(f"{chapter}.plain"))
    seen.append(await shaky(f"{chapter}.shaky"))
    seen.append(await guess(f"{chapter}.guess"))
    try:
        await hopeless(f"{chapter}.hopeless")
    except perdure.Final as no:
        seen.append(f"no {no}")
    await perdure.sleep(0.05)
    seen += await helper(f"{chapter}.helper")
    seen += sorted([await soonest for soonest in asyncio.as_completed([work(f"{chapter}.soon.{n}") for n in range(3)])])
    try:
        async with asyncio.timeout(0.02):
            await perdure.receive("never")
    except TimeoutError:
        seen.append(await work(f"{chapter}.late"))
    if perdure.patched("always"):
        seen.append(f"{perdure.random():.3f}"[:2])
    if chapter < 2:
        perdure.continue_as_new(chapter + 1, seen)
    return seen


# ── effects: a payments service in a process of its own ─────────────────────────────────────

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask_payments(method: str, path: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    raw = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(os.environ["PAYMENTS"] + path, method=method, data=raw)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    with DIRECT.open(request, timeout=30) as response:
        answer: dict[str, Any] = msgspec.json.decode(response.read())
    return answer


def send_payment(path: str, body: dict[str, Any], **headers: str) -> int:
    did(f"sends {path} attempt {perdure.operation().attempt}")
    if os.environ.get("DIES") == "before" and os.environ["LIFE"] == "1":
        die()
    number: int = ask_payments("POST", path, body, **headers)["id"]
    if os.environ.get("DIES") == "after":
        die()
    perdure.operation().reference = f"payment {number}"
    return number


@effect(downstream=Idempotent(), timeout=60)
def charge(claim: str, cents: int) -> int:
    key = perdure.operation().id
    return send_payment("/charges", {"claim": claim, "cents": cents}, Idempotency_Key=key)


@effect(downstream=CanLookUp(settle_after=0.2), timeout=60)
def transfer(claim: str, cents: int) -> int:
    return send_payment("/transfers", {"claim": claim, "cents": cents, "reference": perdure.operation().id})


@effect(downstream=NoGuarantee(), timeout=60)
def payout(claim: str, cents: int) -> int:
    return send_payment("/payouts", {"claim": claim, "cents": cents})


@charge.key
@transfer.key
@payout.key
def _(claim: str, cents: int) -> str:
    return claim


@transfer.lookup
def _(op: Operation) -> Found[int] | NotFound:
    did("looks up")
    found = ask_payments("GET", f"/transfers?reference={op.id}")["payments"]
    return Found(found[0]["id"], f"payment {found[0]['id']}") if found else NotFound()


PAYING = {"charges": charge, "transfers": transfer, "payouts": payout}


@workflow
async def pays(route: str) -> int:
    return await PAYING[route].call("claim-7", 1250)


# ── what people have to approve ─────────────────────────────────────────────────────────────


def pay_out(order: str, cents: int) -> str:
    did(f"paid {order} {cents}")
    if os.environ.get("DIES") == "after paying":
        die()
    return f"paid {cents}"


@effect(downstream=CanLookUp(), timeout=1)
async def found_again(order: str, cents: int) -> str:
    return pay_out(order, cents)


@found_again.key
def _(order: str, cents: int) -> str:
    return order


@found_again.lookup
async def _(op: Operation) -> Found[str] | NotFound:
    order, cents = op.arguments["order"], op.arguments["cents"]
    return Found(f"paid {cents}") if has_been_done(f"paid {order} {cents}") else NotFound()


@effect(downstream=NoGuarantee(), timeout=1)
async def never_known(order: str, cents: int) -> str:
    return pay_out(order, cents)


@never_known.key
def _(order: str, cents: int) -> str:
    return order


@workflow
async def asks_first(how: str) -> str:
    call = found_again.call("o-1", 5) if how == "found" else never_known.call("o-1", 5)
    return await perdure.with_approval(call, by={"ann"}, note="killed in the middle")


# ── roles ───────────────────────────────────────────────────────────────────────────────────

WORKFLOWS = [
    hangs_in_its_turn,
    hangs_in_a_step,
    dying_on_its_way,
    killer,
    innocent,
    failing,
    counting,
    holds,
    blocks,
    sleeps,
    waits,
    helper,
    everything,
    pays,
    asks_first,
]


def runtime() -> Runtime:
    url = os.environ.get("WEBHOOK")
    opened = Runtime(
        os.environ["STORE"], workflows=WORKFLOWS, lease=float(os.environ.get("LEASE", "10")),
        inbox_webhook=perdure.Webhook(url, secret=os.environ["SECRET"]) if url else None,
    )  # fmt: skip
    forgiven = MANY_DEATHS_FORGIVEN_AFTER if "PATIENT" in os.environ else DEATHS_FORGIVEN_AFTER
    opened._options = msgspec.structs.replace(opened._options, retry_after_death_seconds=forgiven)
    host.SILENCE_AFTER_LEASE_SECONDS = float(os.environ.get("SILENCE", host.SILENCE_AFTER_LEASE_SECONDS))
    return opened


def said(what: str) -> None:
    print(what, flush=True)


async def serve(opened: Runtime) -> None:
    """Execute whatever there is, until stopped."""
    await asyncio.Event().wait()


async def finish(opened: Runtime) -> None:
    """Execute until every run has ended or is blocked."""
    while await opened.list(status=["queued", "running", "waiting"], limit=1):
        await asyncio.sleep(0.01)


async def start_killer(opened: Runtime) -> None:
    await opened.start(killer.call(), id="killer")
    await finish(opened)


async def start_killer_and_innocents(opened: Runtime) -> None:
    for n in range(int(os.environ["INNOCENTS"])):
        await opened.start(innocent.call(3), id=f"innocent-{n}")
    await opened.start(killer.call(), id="killer")
    await finish(opened)


async def start_innocents(opened: Runtime) -> None:
    runs = [await opened.start(innocent.call(4), id=f"{os.environ['LIFE']}-{n}") for n in range(25)]
    for run in runs:
        assert await run.result() == 6


async def start_failing(opened: Runtime) -> None:
    run = await opened.start(failing.call(), id="failing")
    try:
        await run.result()
    except (ConnectionError, StepError) as error:
        said(str(error))


async def start_counting(opened: Runtime) -> None:
    run = await opened.start(counting.call(), id="counting")
    said(str(await run.result()))


async def start_everything(opened: Runtime) -> None:
    run = await opened.start(everything.call(0, []), id="everything")
    said(repr(await run.result()))


async def start_paying(opened: Runtime) -> None:
    await opened.start(pays.call(os.environ["ROUTE"]), id="pays")
    await finish(opened)


async def start_asking(opened: Runtime) -> None:
    await opened.start(asks_first.call(os.environ["HOW"]), id="asks")
    await asyncio.Event().wait()


async def hang(opened: Runtime) -> None:
    await begin_to_hang(opened)
    await opened.start(hangs_in_its_turn.call(), id="hung")
    await asyncio.Event().wait()


async def hang_in_a_step(opened: Runtime) -> None:
    await begin_to_hang(opened)
    await opened.start(hangs_in_a_step.call(), id="hung")
    await asyncio.Event().wait()


async def hang_itself(opened: Runtime) -> None:
    await begin_to_hang(opened)
    did("hangs")
    time.sleep(1000)


async def begin_to_hang(opened: Runtime) -> None:
    from perdure.runtime import lease

    lease.LOOP_BLOCKED_SECONDS_MAX = 0.5
    await opened.start(waits.call(), id="beside")


async def start_dying(opened: Runtime) -> None:
    run = await opened.start(dying_on_its_way.call(), id="dying")
    said(str(await run.result()))


async def fork(opened: Runtime) -> None:
    """A child made by fork() may not use what its parent has open, and can open the store for itself."""
    run = await opened.start(waits.call(), id="parents")
    child = os.fork()
    if child == 0:
        os._exit(in_the_child(opened))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    said(f"child: {os.waitstatus_to_exitcode(status)}")
    await run.send("go", "on")
    said(await run.result())


def in_the_child(opened: Runtime) -> int:
    store = opened._store
    try:
        store.find("parents")
    except perdure.StoreError as error:
        said(type(error).__name__)
    else:
        return 1
    asyncio.events._set_running_loop(None)
    said(asyncio.run(start_in_the_child()))
    return 0


async def start_in_the_child() -> str:
    async with Runtime(os.environ["STORE"], workflows=[helper], adopt="none") as own:
        return str(await (await own.start(helper.call("child"), id="childs")).result())


async def hold(opened: Runtime) -> None:
    await opened.start(holds.call("one"), id="held")
    await asyncio.Event().wait()


async def park_and_block(opened: Runtime) -> None:
    await opened.start(sleeps.call(), id="sleeper")
    await opened.start(waits.call(), id="waiter")
    await opened.start(blocks.call(), id="blocker")
    await asyncio.Event().wait()


ROLES: dict[str, Callable[[Runtime], Awaitable[None]]] = {
    role.__name__: role
    for role in (
        hang,
        hang_in_a_step,
        hang_itself,
        start_dying,
        fork,
        serve,
        finish,
        start_killer,
        start_killer_and_innocents,
        start_innocents,
        start_failing,
        start_counting,
        start_everything,
        start_paying,
        start_asking,
        hold,
        park_and_block,
    )
}


async def main(role: str) -> None:
    async with runtime() as opened:
        said("open")
        await ROLES[role](opened)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except KeyboardInterrupt:
        said("interrupted")

"""Code as users write it. It is not run: mypy --strict and pyright strict read it, and both have to agree with it.

`assert_type` says what a type is. A line with `type: ignore` has to be refused by both, any other has to pass.
"""
# mypy: disable-error-code=unused-awaitable
# pyright: reportUnnecessaryTypeIgnoreComment=true, reportUnusedVariable=false

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import perdure
from perdure import Child, Client, Retry, Run, Runtime, Worker, effect, step, workflow
from perdure.api.calls import Call


@dataclass
class Claim:
    order_id: str


@dataclass
class Plan:
    queries: list[str]


class Declined(Exception):
    pass


class Payments:
    async def refund(self, order_id: str) -> str:
        return order_id


# ── declarations: with and without parentheses, async and plain ─────────────────────────────


@step
async def plan(claim: Claim) -> Plan:
    return Plan([claim.order_id])


@step(retry=Retry(max_attempts=5, first_delay=timedelta(seconds=1)), timeout=60, raises=[Declined])
async def search(query: str, *, limit: int = 10) -> list[str]:
    return [query] * limit


@step
def add(one: int, other: int = 1) -> int:
    return one + other


@step(record="lazy", timeout=timedelta(minutes=1))
def measure(text: str) -> float:
    return float(len(text))


@step
async def notify(claim: Claim) -> None:
    payments = perdure.use(Payments)
    assert_type(payments, Payments)
    assert_type(await payments.refund(claim.order_id), str)
    perdure.heartbeat({"page": 1})
    assert_type(perdure.last_heartbeat(int), int | None)
    assert_type(perdure.last_heartbeat(), Any)
    assert_type(perdure.attempt().number, int)


@step(recovery="verify")
async def decide(claim: Claim) -> bool:
    return bool(claim)


@effect(downstream=perdure.Idempotent())
async def charge(claim: Claim, cents: int) -> Plan:
    return Plan([str(cents)])


@charge.key
def _(claim: Claim, cents: int) -> str:
    return claim.order_id


@charge.undo
async def undo_charge(done: Plan, claim: Claim, cents: int) -> None:
    assert_type(done, Plan)


@effect(downstream=perdure.NoGuarantee(), relies_on=[decide, "policy"])
def post(claim: Claim) -> int:
    return 1


@post.undo(downstream=perdure.Idempotent(), retry=Retry(max_attempts=3), timeout=5)
def undo_post(done: int, claim: Claim) -> None: ...


@charge.undo  # type: ignore[arg-type]
async def undo_another(done: int, claim: Claim) -> None: ...


@workflow
async def takes_back(claim: Claim) -> str:
    async with perdure.saga():
        assert_type(await charge(claim, 5), Plan)
        perdure.pivot()
        await post.call(claim)
    return "done"


@workflow
async def summarize(text: str) -> int:
    return len(text)


@workflow(version=7, receives={"approved": bool}, raises=[Declined], replays={6})
async def agent(claim: Claim, limit: int = 3) -> list[str]:
    the_plan = await plan(claim)
    assert_type(the_plan, Plan)
    assert_type(await search("a", limit=limit), list[str])
    assert_type(await add.call(1, 2), int)
    assert_type(await plan.with_premises({"model": "small"}, on_stale="block")(claim), Plan)
    assert_type(await add.with_premises({"model": lambda: 3}).call(1, 2), int)
    plan.with_premises({"model": "small"}, on_stale="forget")  # type: ignore[arg-type]
    await plan.with_premises({"model": "small"})(3)  # type: ignore[arg-type]
    assert_type(await measure.call("text"), float)
    assert_type(await notify(claim), None)

    first, second = await asyncio.gather(search("a"), summarize("b"))
    assert_type(first, list[str])
    assert_type(second, int)
    assert_type(await asyncio.create_task(search("a")), list[str])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(plan(claim))
    assert_type(task.result(), Plan)
    assert_type(await asyncio.wait_for(plan(claim), 10), Plan)

    assert_type(await summarize("text"), int)
    child = await perdure.start(summarize.call("text"), id="child", on_cancel="abandon")
    assert_type(child, Child[int])
    assert_type(await child.result(), int)
    assert_type(child.id, str)

    assert_type(await perdure.receive("approved", bool), bool)
    assert_type(await perdure.receive("approved", bool, within=timedelta(days=1)), bool)
    assert_type(await perdure.receive("anything"), Any)
    assert_type(await perdure.with_approval(plan.call(Claim("o")), by={"ann"}, quorum=2, within=timedelta(1)), Plan)
    assert_type(await perdure.with_approval(add.call(1), by="ann", within=60, note="n", recheck=False), int)
    assert_type(await perdure.ask("Which?", type=Plan, by=["ann"], subject={"a": 1}), Plan)
    assert_type(await perdure.ask("Which?"), Any)
    await perdure.sleep(days=2)
    await perdure.sleep(timedelta(hours=1))
    assert_type(perdure.random(), float)
    assert_type(perdure.patched("a change"), bool)
    perdure.set_state({"done": 1})
    if len(first) > second:
        perdure.continue_as_new(claim, limit - 1)
    return first


@workflow
def plain_agent(claim: Claim) -> int:
    assert_type(add(1, 2), int)
    assert_type(perdure.sync.wait(plan.call(claim)), Plan)
    assert_type(perdure.sync.wait(summarize.call("text")), int)
    child = perdure.sync.start(summarize.call("text"), id="child", on_cancel="abandon")
    assert_type(child, perdure.sync.Child[int])
    assert_type(child.result(), int)
    assert_type(child.id, str)
    assert_type(perdure.sync.with_approval(add.call(1), by="ann"), int)
    assert_type(perdure.sync.ask("Which?", type=str), str)
    assert_type(perdure.sync.receive("approved", bool, within=timedelta(days=1)), bool)
    if perdure.patched("a change"):
        perdure.set_state(perdure.current_run().chapter)
        perdure.continue_as_new(claim)
    perdure.sync.wait(plan)  # type: ignore[arg-type]
    perdure.sync.start(claim)  # type: ignore[arg-type]
    return add(1)


# ── calls as values ─────────────────────────────────────────────────────────────────────────


def calls(claim: Claim) -> None:
    assert_type(plan.call(claim), Call[Plan])
    assert_type(plan(claim), Call[Plan])
    assert_type(add.call(1), Call[int])
    assert_type(add(1, other=2), int)
    assert_type(agent.call(claim), Call[list[str]])
    assert_type(agent(claim, limit=2), Call[list[str]])
    assert_type(plain_agent.call(claim), Call[int])
    assert_type(plain_agent(claim), int)
    coroutine: Coroutine[Any, Any, Plan] = plan(claim)
    coroutine.close()


# ── outside ─────────────────────────────────────────────────────────────────────────────────


async def outside(claim: Claim) -> None:
    async with Runtime("runs.db", workflows=[agent, plain_agent, summarize], provide={Payments: Payments()}) as runtime:
        assert_type(runtime, Runtime)
        run = await runtime.start(agent.call(claim), id="claim-42", tags={"kind": "claim"}, delay=timedelta(hours=1))
        assert_type(run, Run[list[str]])
        anything: Run[object] = run  # whoever takes any result takes this one
        assert_type(anything.id, str)
        assert_type(await run.result(), list[str])
        assert_type(await run.result(timeout=10, wait_blocked=True), list[str])
        assert_type(await (await runtime.start(plain_agent.call(claim))).result(), int)
        assert_type(await run.status(), perdure.Status)
        assert_type(await runtime.drain(max_seconds=5), int)
        await run.send("approved", True)
    async with Client("runs.db") as client:
        assert_type(client, Client)
        assert_type(await client.start(summarize.call("text")), Run[int])
        assert_type(await client.get("claim-42"), Run[Any])
        assert_type(await client.list(status="failed"), list[perdure.RunSummary])
    await Worker(workflows=[agent]).serve()


def in_a_script(claim: Claim) -> None:
    assert_type(perdure.run(agent.call(claim)), list[str])
    assert_type(perdure.run(plain_agent.call(claim), id="claim-42"), int)


# ── what both have to refuse ────────────────────────────────────────────────────────────────


async def wrong(claim: Claim, runtime: Runtime) -> None:
    await plan("claim-42")  # type: ignore[arg-type]
    await plan()  # type: ignore[call-arg]
    await plan(claim, 1)  # type: ignore[call-arg]
    await search("a", limit="ten")  # type: ignore[arg-type]
    await search("a", limits=1)  # type: ignore[call-arg]
    _ = plan.call(claim.order_id)  # type: ignore[arg-type]
    add("one")  # type: ignore[arg-type]
    _ = add.call(1, 2, 3)  # type: ignore[call-arg]
    await add(1)  # type: ignore[misc]
    _ = agent.call(claim, limit="ten")  # type: ignore[arg-type]
    await runtime.start(agent)  # type: ignore[arg-type]
    await runtime.start(agent.spec.function)  # type: ignore[arg-type]
    text: str = await summarize("text")  # type: ignore[assignment]
    number: int = await (await runtime.start(agent.call(claim))).result()  # type: ignore[assignment]
    await perdure.start(summarize.call("text"), on_cancel="forget")  # type: ignore[arg-type]
    await perdure.receive("approved", bool, within="soon")  # type: ignore[call-overload]
    await perdure.with_approval(add, by="ann")  # type: ignore[arg-type]
    await perdure.with_approval(add.call(1))  # type: ignore[call-arg]
    await perdure.sleep("a day")  # type: ignore[arg-type]
    Runtime("runs.db", adopt="some")  # type: ignore[arg-type]
    Retry(max_attempts="three")  # type: ignore[arg-type]
    print(text, number)


@step(retry=5)  # type: ignore[call-overload,untyped-decorator]
async def wrong_retry() -> None: ...


@step(record="sometimes")  # type: ignore[call-overload,untyped-decorator]
async def wrong_record() -> None: ...


@workflow(version="seven")  # type: ignore[call-overload,untyped-decorator]
async def wrong_version() -> None: ...

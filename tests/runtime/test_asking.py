"""Questions to people, and all that is asked in `def` workflows and other hosted code."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

import pytest
from tests.runtime.hosting import eventually, host_of, let_go, on_one_store, run_async
from tests.runtime.test_approvals import asked, in_a_loop, refusal

import perdure
from perdure import (
    ApprovalExpired,
    DecisionRefused,
    DecodeError,
    Idempotent,
    Rejected,
    Runtime,
    UsageError,
    effect,
    step,
    workflow,
)
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

PAID: list[tuple[str, int]] = []
RAN: list[str] = []
GOT: list[Any] = []


@pytest.fixture(autouse=True)
def fresh_other_side() -> None:
    PAID.clear()
    RAN.clear()
    GOT.clear()


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Account:
    number: str
    is_open: bool


# ── questions ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (str, "4711", "4711"), (str, "", ""), (int, 0, 0), (bool, False, False), (list, [], []), (dict, {}, {}),
        (None, None, None), (Any, {"a": [0]}, {"a": [0]}),
        (Size, "LARGE", Size.LARGE), (Literal["a", "b"], "b", "b"), (int | None, None, None),
        (Account, {"number": "1", "is_open": False}, Account("1", False)),
    ],
)  # fmt: skip
def test_an_answer_has_the_type_that_was_asked_for_also_a_falsy_one(type: Any, value: Any, expected: Any) -> None:
    make = on_one_store()

    @workflow
    async def asks() -> bool:
        GOT.append(await perdure.ask("Which?", subject={"of": "Ada"}, type=type))
        return True

    async def main() -> None:
        async with make(asks) as runtime:
            run = await runtime.start(asks.call(), id="r")
            (it,) = await asked(runtime)
            assert (it.kind, it.subject, it.arguments, it.approvers) == ("question", "Which?", {"of": "Ada"}, ())
            await runtime.answer(it.id, value, hash=it.hash, by="anybody")
            await run.result(timeout=20)
            (it,) = await runtime.requests()
            assert it.status == "answered"

    run_async(main())
    assert [expected] == GOT
    assert isinstance(GOT[0], expected.__class__)


@pytest.mark.parametrize(("type", "value"), [(str, 1), (int, "1"), (bool, "yes"), (Size, "m"), (Literal["a"], "b")])
def test_an_answer_that_is_none_is_refused_where_that_can_be_told(type: Any, value: Any) -> None:
    make = on_one_store()

    @workflow
    async def asks() -> Any:
        await perdure.ask("Which?", type=type)

    async def main() -> None:
        async with make(asks) as runtime:
            await runtime.start(asks.call(), id="r")
            (it,) = await asked(runtime)
            with pytest.raises(DecodeError):
                await runtime.answer(it.id, value, hash=it.hash, by="ann")
            assert [each.status for each in await runtime.requests()] == ["pending"]

    run_async(main())


def test_an_answer_that_only_the_worker_can_read_is_refused_by_it_and_the_question_stands() -> None:
    make = on_one_store()

    @workflow
    async def asks() -> str:
        return (await perdure.ask("Which?", type=Account)).number

    async def main() -> None:
        async with make(asks) as runtime:
            run = await runtime.start(asks.call(), id="r")
            (it,) = await asked(runtime)
            await runtime.answer(it.id, {"number": 1}, hash=it.hash, by="ann")
            await eventually(lambda: _is_refused(run))
            (entry,) = await runtime.inbox()
            assert entry.pending == ()
            await runtime.answer(it.id, {"number": "1", "is_open": True}, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == "1"

    async def _is_refused(run: Any) -> bool:
        return any("misfit" in getattr(each.event, "refused", "") for each in await run.history())

    run_async(main())


async def test_a_question_that_nobody_answers(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    async def asks() -> str:
        try:
            return await perdure.ask("Which?", type=str, by="ann", within=60)
        except TimeoutError as late:
            return str(late)

    run = await perdure_runtime.start(asks.call())
    assert "nobody has answered within 0:01:00: Which?" in await run.result()


def test_who_may_answer_and_what_cannot_be_asked() -> None:
    make = on_one_store()

    @workflow
    async def asks(how: str) -> Any:
        match how:
            case "nothing":
                return await perdure.ask("")
            case "too short":
                return await perdure.ask("Which?", within=0)
            case "nobody":
                return await perdure.with_approval(refund.call("o", 1), by=())
            case "no call":
                return await perdure.with_approval(refund, by="ann")  # type: ignore[arg-type]
            case "no quorum":
                return await perdure.with_approval(refund.call("o", 1), by="ann", quorum=0)
            case "again":
                call = refund.call("o", 1)
                call.take()
                return await perdure.with_approval(call, by="ann")
            case _:
                return await perdure.ask("Which?", type=str, by={"ann"})

    async def main() -> None:
        async with make(asks) as runtime:
            for how in ("nothing", "too short", "nobody", "no call", "no quorum", "again"):
                with pytest.raises(UsageError):
                    await (await runtime.start(asks.call(how))).result(timeout=20)
            run = await runtime.start(asks.call("ann"))
            (it,) = await asked(runtime)
            with pytest.raises(DecisionRefused) as no:
                await runtime.answer(it.id, "x", hash=it.hash, by="bo")
            assert no.value.why == "not_an_approver"
            with pytest.raises(DecisionRefused, match="it is a question: answer or delegate it, not approve") as no:
                await runtime.approve(it.id, hash=it.hash, by="ann")
            await runtime.answer(it.id, "x", hash=it.hash, by="ann")
            assert await run.result(timeout=20) == "x"

    run_async(main())


def test_people_decide_and_never_the_code() -> None:
    make = on_one_store()

    @step
    async def helps_itself(id: str, hash: str) -> None:
        async with make() as client:
            await client.approve(id, hash=hash, by="ann")

    @workflow
    async def cheats() -> str:
        asking = asyncio.ensure_future(perdure.with_approval(refund.call("o", 1), by="ann"))
        seen = await perdure.receive("id", list[str])
        try:
            await helps_itself(*seen)
        except UsageError as no:
            asking.cancel()
            return str(no)
        return await asking

    async def main() -> None:
        async with make(cheats) as runtime:
            run = await runtime.start(cheats.call())
            (it,) = await asked(runtime)
            await run.send("id", [it.id, it.hash])
            assert "a person's to say" in await run.result(timeout=20)

    run_async(main())


@in_a_loop
async def test_outside_of_a_run_nobody_is_asked() -> None:
    with pytest.raises(UsageError):
        await perdure.with_approval(refund.call("o", 1), by="ann")
    with pytest.raises(UsageError):
        await perdure.ask("Which?")
    with pytest.raises(UsageError):
        perdure.sync.ask("Which?")
    with pytest.raises(UsageError):
        perdure.sync.with_approval(refund.call("o", 1), by="ann")


# ── asked again, by whoever has the run now ─────────────────────────────────────────────────


def test_a_request_is_announced_once_and_again_when_the_run_is_moved(caplog: pytest.LogCaptureFixture) -> None:
    make = on_one_store(lease=1)
    caplog.set_level(logging.INFO, logger="perdure.inbox")

    @workflow
    async def asks() -> str:
        return await perdure.ask("Which?", type=str)

    def told() -> list[bool]:
        return ["asked before" in record.getMessage() for record in caplog.records if "Which?" in record.getMessage()]

    async def main() -> None:
        async with make(asks) as first:
            await first.start(asks.call(), id="r")
            (it,) = await asked(first)
            await eventually(lambda: told() == [False])
            async with make(asks) as second:
                await host_of(first).abandon()
                await eventually(lambda: told() == [False, True])
                run = await second.get("r")
                assert [each.kind for each in await run.history()].count("person.asked") == 1
                await second.answer(it.id, "x", hash=it.hash, by="ann")
                assert await run.result(timeout=20) == "x"

    run_async(main())


# ── def workflows and hosted code ───────────────────────────────────────────────────────────


@effect(downstream=Idempotent())
def refund(order: str, cents: int) -> str:
    PAID.append((order, cents))
    return f"refunded {cents}"


@refund.key
def _(order: str, cents: int) -> str:
    return order


@step
def note_down(text: str) -> str:
    RAN.append(text)
    return text


@workflow
def child(text: str) -> str:
    RAN.append(f"child {text}")
    return text


@workflow
def plain_agent(order: str) -> list[Any]:
    said: list[Any] = [perdure.sync.ask("How much?", type=int, by={"ann"})]
    said.append(perdure.sync.with_approval(refund.call(order, said[0]), by={"ann"}, note="sync"))
    said.append(perdure.sync.with_approval(note_down.call("noted"), by={"ann"}))
    said.append(perdure.sync.with_approval(child.call("c"), by={"ann"}))
    try:
        perdure.sync.with_approval(refund.call(order + "b", 1), by={"ann"})
    except Rejected as no:
        said.append(no.comment)
    return said


async def play(runtime: Runtime, run: Any, restart: bool = False) -> Any:
    """Decide what comes, one after the other."""
    coming = asyncio.ensure_future(run.result())
    try:
        while not coming.done():
            for it in await runtime.requests(status="pending"):
                if it.kind == "question":
                    said = runtime.answer(it.id, 0, hash=it.hash, by="ann")
                elif it.key.endswith("b"):
                    said = runtime.reject(it.id, hash=it.hash, by="ann", comment="no")
                else:
                    said = runtime.approve(it.id, hash=it.hash, by="ann")
                assert await refusal(said) in {None, "decided"}
            await asyncio.wait([coming], timeout=0.002)
        return coming.result()
    finally:
        coming.cancel()


def test_a_def_workflow_asks_like_any_other() -> None:
    make = on_one_store()

    async def main() -> None:
        async with make(plain_agent, child) as runtime:
            run = await runtime.start(plain_agent.call("o-1"), id="r")
            assert await play(runtime, run) == [0, "refunded 0", "noted", "c", "no"]
            rows = {(it.subject, it.key): it.status for it in await runtime.requests(run=run)}
            assert rows == {
                ("How much?", ""): "answered", ("refund", "o-1"): "used", ("note_down", ""): "used",
                ("child", ""): "used", ("refund", "o-1b"): "rejected",
            }  # fmt: skip
            assert (PAID, RAN) == ([("o-1", 0)], ["noted", "child c"])

    run_async(main())


def test_a_def_workflow_gives_its_thread_back_while_it_waits_for_people() -> None:
    make = on_one_store()

    @workflow
    def two() -> list[str]:
        return [
            perdure.sync.with_approval(refund.call("o-1", 1), by="ann"),
            perdure.sync.with_approval(refund.call("o-2", 2), by="ann"),
        ]

    async def main() -> None:
        async with make(two) as runtime:
            run = await runtime.start(two.call(), id="r")
            (first,) = await asked(runtime)
            await let_go(runtime, "r")
            assert (await run.summary()).reason == "approval"
            await eventually(lambda: not [t for t in threading.enumerate() if t.name == "perdure-section-r"])
        async with make() as client:
            await client.approve(first.id, hash=first.hash, by="ann")
        async with make(two) as runtime:
            run = await runtime.get("r")
            await eventually(lambda: _is_used(runtime, first.id))
            (second,) = await asked(runtime)
            assert second.arguments["order"] == "o-2"
            await runtime.approve(second.id, hash=second.hash, by="ann")
            assert await run.result(timeout=20) == ["refunded 1", "refunded 2"]
            assert PAID == [("o-1", 1), ("o-2", 2)]
            asks = [each.event for each in await run.history() if each.kind == "person.asked"]
            assert len(asks) == 2

    async def _is_used(runtime: Runtime, id: str) -> bool:
        return any(it.id == id and it.status == "used" for it in await runtime.requests())

    run_async(main())


async def test_what_a_def_workflow_asks_expires(perdure_runtime: RuntimeUnderTest) -> None:
    @workflow
    def in_time() -> str:
        try:
            return perdure.sync.with_approval(refund.call("o-1", 1), by="ann", within=timedelta(days=1))
        except ApprovalExpired as late:
            return late.approval_id

    run = await perdure_runtime.start(in_time.call(), id="r")
    (it,) = await asked(perdure_runtime)
    assert await run.result() == it.id
    (it,) = await perdure_runtime.requests()
    assert (it.status, PAID) == ("expired", [])


async def test_what_a_def_workflow_asks_expires_once_it_goes_on(perdure_runtime: RuntimeUnderTest) -> None:
    """It was paused when the time was up: nothing of it moves then, and it is not forgotten."""

    @workflow
    def in_time() -> str:
        try:
            return perdure.sync.with_approval(refund.call("o-1", 1), by="ann", within=60)
        except ApprovalExpired:
            return "expired"

    run = await perdure_runtime.start(in_time.call(), id="r")
    (it,) = await asked(perdure_runtime)
    await run.pause()
    await perdure_runtime.advance(120)
    assert [each.status for each in await perdure_runtime.requests()] == ["pending"]
    with pytest.raises(DecisionRefused) as no:
        await perdure_runtime.approve(it.id, hash=it.hash, by="ann")
    assert no.value.why == "expired"
    await run.resume()
    assert await run.result() == "expired"


def test_hosted_async_code_asks_too() -> None:
    make = on_one_store()

    async def crew() -> list[str]:
        return list(
            await asyncio.gather(
                perdure.with_approval(refund.call("o-1", 1), by="ann"), perdure.ask("Which?", type=str)
            )
        )

    @workflow
    async def hosts() -> list[str]:
        result: list[str] = await perdure.section("crew").run(crew)
        return result

    async def main() -> None:
        async with make(hosts) as runtime:
            run = await runtime.start(hosts.call(), id="r")
            for it in await asked(runtime, count=2):
                if it.kind == "question":
                    await runtime.answer(it.id, "this", hash=it.hash, by="ann")
                else:
                    await runtime.approve(it.id, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == ["refunded 1", "this"]

    run_async(main())


def test_a_section_that_is_cancelled_withdraws_what_it_asks() -> None:
    make = on_one_store()

    async def crew() -> str:
        return await perdure.ask("Which?", type=str)

    @workflow
    async def hosts() -> str:
        hosted = asyncio.ensure_future(perdure.section("crew").run(crew))
        await perdure.receive("stop")
        hosted.cancel()
        await asyncio.wait([hosted])
        await perdure.receive("end")
        return "stopped"

    async def main() -> None:
        async with make(hosts) as runtime:
            run = await runtime.start(hosts.call(), id="r")
            (it,) = await asked(runtime)
            await run.send("stop")
            await eventually(lambda: _is_withdrawn(runtime))
            with pytest.raises(DecisionRefused):
                await runtime.answer(it.id, "x", hash=it.hash, by="ann")
            await run.send("end")
            assert await run.result(timeout=20) == "stopped"

    async def _is_withdrawn(runtime: Runtime) -> bool:
        (it,) = await runtime.requests()
        return it.status == "withdrawn"

    run_async(main())


def test_crashes_of_a_def_workflow_that_asks_change_nothing() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> Any:
        if not await runtime.list():
            PAID.clear()
        run = await runtime.start(plain_agent.call("o-1"), id="r")
        result = await play(runtime, run)
        assert {it.status for it in await runtime.requests(run=run)} == {"used", "answered", "rejected"}
        return result

    sweep = run_async(sweep_crashes(scenario, workflows=[plain_agent, child]))
    assert sweep.result == [0, "refunded 0", "noted", "c", "no"]

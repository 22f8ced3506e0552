"""Messages that do not fit what the code receives them as: nobody who sends them need know its types.

The receive waits for a person, the message is kept, everything else goes on; and the record decides, whatever the code
makes of the message later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import Client, EncodeError, Run, RunBlockedError, Runtime, Status, StepError, step, sync, workflow
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


@dataclass
class Reply:
    yes: bool
    why: str = ""


@dataclass
class Laxer:
    yes: bool | str
    why: str = ""


@step
async def note(what: str) -> str:
    CALLS.append(what)
    return what


async def _answers(kind: Any) -> list[Any]:
    async def beside() -> str:
        return await note(await perdure.receive("beside", str))

    other = asyncio.ensure_future(beside())
    try:
        reply: Any = await perdure.receive("reply", kind)
    except StepError as error:
        reply = str(error)
    told = await note(str(getattr(reply, "yes", reply)))
    return [told, await other, await perdure.receive("reply", str)]


@workflow(name="answers")
async def answers() -> list[Any]:
    return await _answers(Reply)


@workflow(name="answers")
async def answers_laxer() -> list[Any]:
    return await _answers(Laxer)


def _body(kind: Any) -> list[Any]:
    try:
        reply: Any = sync.receive("reply", kind)
    except StepError as error:
        reply = str(error)
    told = sync_note(str(getattr(reply, "yes", reply)))
    return [told, sync.receive("beside", str), sync.receive("reply", str)]


@step
def sync_note(what: str) -> str:
    CALLS.append(what)
    return what


@workflow(name="hosted")
def hosted() -> list[Any]:
    return _body(Reply)


@workflow(name="hosted")
def hosted_laxer() -> list[Any]:
    return _body(Laxer)


KINDS = [(answers, answers_laxer), (hosted, hosted_laxer)]


async def blocked(runtime: Runtime, run_id: str) -> Any:
    async def is_there() -> bool:
        return any(entry.run_id == run_id for entry in await runtime.inbox())

    await eventually(is_there, f"{run_id} is in the inbox")
    return next(entry for entry in await runtime.inbox() if entry.run_id == run_id)


@pytest.mark.parametrize("flow", [answers, hosted])
@pytest.mark.parametrize("choice", ["value", "fail", "retry"])
@pytest.mark.parametrize("is_parked", [False, True])
def test_a_message_that_does_not_fit_waits_for_a_person(flow: Any, choice: str, is_parked: bool) -> None:
    """It is in the inbox, with its name, time and text, and what was expected. What else comes is taken in. A value
    takes its place, `fail` raises at the receive; `retry` with the same code asks again, and says so."""

    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(flow) as runtime:
            run: Run[Any] = await runtime.start(flow.call(), id="r")
            async with Client(host_of_store(make), clock=clock) as outside:
                at_the_door = await outside.get("r")
                await at_the_door.send("reply", {"yes": "perhaps"}, by="ann")
                await at_the_door.send("reply", "later")
                await at_the_door.send("beside", "meanwhile")
            entry = await blocked(runtime, "r")
            assert entry.reason == "undecodable"
            assert "'reply', sent 20" in entry.hint
            assert " UTC by ann, which says" in entry.hint
            assert '{"yes":"perhaps"}' in entry.hint
            assert "$.yes" in entry.hint
            assert "receive:reply#1" in entry.call
            assert set(entry.choices) == {"retry", "value", "fail"}
            with pytest.raises(RunBlockedError):
                await run.result(timeout=20)
            if flow is answers:
                await eventually(lambda: CALLS == ["meanwhile"])
            if is_parked and flow is answers:
                await let_go(runtime, "r")
        async with make(flow) as runtime:
            run = await runtime.get("r")
            if choice == "retry":
                await run.unblock("retry", by="ann")
                await eventually(lambda: _is_refused(runtime, "it does not fit now either"))
                await run.unblock("value", value={"yes": 7}, by="bob")
                await eventually(lambda: _is_refused(runtime, "the value that bob supplied does not fit"))
                (entry,) = await runtime.inbox()
                assert '{"yes":"perhaps"}' in entry.hint
                assert entry.hint.count("refused") == 1
                await run.unblock("value", value={"yes": True})
                told: Any = "True"
            elif choice == "value":
                await run.unblock("value", value={"yes": True})
                told = "True"
            else:
                await run.unblock("fail", by="ann", reason="no")
                told = "failed by ann: no"
            assert await run.result(wait_blocked=True, timeout=20) == [told, "meanwhile", "later"]
        assert sorted(CALLS) == sorted({told, "meanwhile"} if flow is answers else {told})
        async with make(flow) as runtime:
            assert await (await runtime.get("r")).result() == [told, "meanwhile", "later"]

    run_async(main())


async def _is_refused(runtime: Runtime, why: str) -> bool:
    return any(why in entry.hint for entry in await runtime.inbox())


@pytest.mark.parametrize(("flow", "laxer"), KINDS)
def test_with_code_that_reads_it_the_message_itself_is_received(flow: Any, laxer: Any) -> None:
    """Only when a person says so: until then the record stands, and what came after the message was done without it."""

    async def main() -> None:
        make = on_one_store()
        async with make(flow) as runtime:
            run: Run[Any] = await runtime.start(flow.call(), id="r")
            async with Client(host_of_store(make)) as outside:
                at_the_door = await outside.get("r")
                await at_the_door.send("reply", {"yes": "perhaps"})
                await at_the_door.send("beside", "meanwhile")
                await at_the_door.send("reply", "later")
            await blocked(runtime, "r")
        async with make(laxer) as runtime:
            run = await runtime.get("r")
            await asyncio.sleep(0.1)
            assert await run.status() is Status.BLOCKED
            await run.unblock("retry")
            assert await run.result(wait_blocked=True, timeout=20) == ["perhaps", "meanwhile", "later"]
        async with make(laxer) as runtime:
            assert await kinds(await runtime.get("r"))

    run_async(main())


# ── a receive that gives up ─────────────────────────────────────────────────────────────────


@workflow
async def patient() -> list[Any]:
    try:
        got: Any = await perdure.receive("reply", Reply, within=60)
    except TimeoutError:
        got = "late"
    return [str(got), await perdure.receive("reply"), await perdure.receive("end", str)]


def test_a_receive_that_gives_up_leaves_the_message_to_the_next() -> None:
    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(patient) as runtime:
            run: Run[Any] = await runtime.start(patient.call(), id="r")
            await run.send("reply", {"no": 1})
            await blocked(runtime, "r")
            await let_go(runtime, "r")
            clock.advance(61)

            async def is_over() -> bool:
                return not await runtime.inbox()

            await eventually(is_over, "nobody waits for a person any more")
            await let_go(runtime, "r")
            await run.send("end", "now")
            assert await run.result(timeout=20) == ["late", {"no": 1}, "now"]

    run_async(main())


def test_a_decision_that_comes_with_the_timeout_changes_nothing() -> None:
    """Recorded after the receive has given up, it is nobody's; also for every later replay."""

    async def main() -> None:
        clock = FakeClock()
        make = on_one_store(clock=clock)
        async with make(patient) as runtime:
            run: Run[Any] = await runtime.start(patient.call(), id="r")
            await run.send("reply", {"no": 1})
            await blocked(runtime, "r")
            clock.advance(61)
            await run.unblock("value", value={"yes": True})
            await eventually(lambda: not is_waiting_for_person(runtime))
            await let_go(runtime, "r")
            await run.send("end", "now")
            result = await run.result(timeout=20)
            assert result in (["late", {"no": 1}, "now"], ["Reply(yes=True, why='')", {"no": 1}, "now"])

    run_async(main())


def is_waiting_for_person(runtime: Runtime) -> bool:
    info = host_of(runtime).store.find("r")
    return info is not None and info.status is Status.BLOCKED


@workflow
async def chapters(n: int = 0) -> list[Any]:
    if n:
        return [n, await perdure.receive("reply")]
    waiting = asyncio.ensure_future(perdure.receive("reply", Reply))
    await perdure.receive("on", str)
    waiting.cancel()
    await asyncio.sleep(0)
    raise perdure.continue_as_new(1)


def test_an_unread_message_is_carried_over_into_the_next_chapter() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(chapters) as runtime:
            run: Run[Any] = await runtime.start(chapters.call(), id="r")
            await run.send("reply", 7)
            await blocked(runtime, "r")
            await run.send("on", "x")
            assert await run.result(wait_blocked=True, timeout=20) == [1, 7]
            assert not is_in_memory(runtime, "r")
            assert (await run.summary()).status is Status.COMPLETED

    run_async(main())


def test_an_unread_message_does_not_keep_a_run_from_being_cancelled() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(answers) as runtime:
            run: Run[Any] = await runtime.start(answers.call(), id="r")
            async with Client(host_of_store(make)) as outside:
                await (await outside.get("r")).send("reply", 7)
            await blocked(runtime, "r")
            await run.cancel()
            with pytest.raises(perdure.RunCancelledError):
                await run.result(wait_blocked=True, timeout=20)

    run_async(main())


# ── where the type is known ─────────────────────────────────────────────────────────────────


@workflow(receives={"reply": Reply})
async def declares() -> bool:
    return (await perdure.receive("reply", Reply)).yes


@pytest.mark.parametrize("value", [{"yes": "perhaps"}, 7, None, {"no": True}])
def test_a_sender_who_knows_the_type_is_told_at_once(value: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Client(store, workflows=[declares]) as client:
            run = await client.start(declares.call(), id="r")
            with pytest.raises(EncodeError):
                await run.send("reply", value)
            assert not store.mail()

    run_async(main())


def test_a_value_for_a_message_of_a_declared_type_is_checked_at_once() -> None:
    async def main() -> None:
        make = on_one_store()
        async with make(declares) as runtime:
            run = await runtime.start(declares.call(), id="r")
            async with Client(host_of_store(make)) as outside:
                await (await outside.get("r")).send("reply", 7)
            entry = await blocked(runtime, "r")
            with pytest.raises(perdure.DecodeError):
                await run.unblock("value", value={"yes": "perhaps"}, call=entry.call)
            await run.unblock("value", value={"yes": True})
            assert await run.result(wait_blocked=True, timeout=20) is True

    run_async(main())


# ── a value for a step ──────────────────────────────────────────────────────────────────────


@step
async def asks() -> int:
    raise perdure.NeedsPerson("how many?")


@step
def asks_plainly() -> int:
    raise perdure.NeedsPerson("how many?")


@workflow
async def counts() -> int:
    return await asks()


@workflow
def counts_plainly() -> int:
    return asks_plainly()


@pytest.mark.parametrize("flow", [counts, counts_plainly])
@pytest.mark.parametrize("again", [False, True])
def test_a_value_that_does_not_fit_is_refused_and_the_question_stands(flow: Any, again: bool) -> None:
    """Also when it came before hosted code has asked for the call again."""

    async def main() -> None:
        make = on_one_store()
        async with make(flow) as runtime:
            run: Run[Any] = await runtime.start(flow.call(), id="r")
            await blocked(runtime, "r")
            with pytest.raises(perdure.DecodeError):  # where the step is known it is refused at once
                await run.unblock("value", value="many", by="ann")
            if not again:
                async with Client(host_of_store(make)) as client:
                    await (await client.get("r")).unblock("value", value="many", by="ann")
                await eventually(lambda: _is_refused(runtime, "the value that ann supplied does not fit"))
        if again:
            async with Client(host_of_store(make)) as client:
                await (await client.get("r")).unblock("value", value="many", by="ann")
        async with make(flow) as runtime:
            await eventually(lambda: _is_refused(runtime, "the value that ann supplied does not fit"))
            (entry,) = await runtime.inbox()
            assert "how many?" in entry.hint
            run = await runtime.get("r")
            await run.unblock("value", value=3)
            assert await run.result(wait_blocked=True, timeout=20) == 3
            unblocked = [each.event for each in await run.history() if each.kind == "run.unblocked"]
            assert [event.call for event in unblocked] == [entry.call]  # type: ignore[attr-defined]

    run_async(main())


def host_of_store(make: Any) -> Any:
    return make()._given

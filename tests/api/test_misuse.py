"""Options and arguments that cannot be meant get one error, which names the user's function and what to write."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import Client, DeclarationError, EncodeError, Retry, Run, Runtime, UsageError, Worker, step, workflow

anything: Any = object()


async def plan(question: str) -> str:
    return question


async def agent() -> None: ...


STEP_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none": ({"bogus": 1}, r"step\(bogus=\.\.\.\): there is no such option; there are name, retry, "),
    "a typo": ({"retries": Retry()}, r"step\(retries=\.\.\.\): there is no such option; did you mean retry=\?"),
    "an empty name": ({"name": ""}, r"step\(name=\) '': a text of 1 to 500 characters"),
    "a name of another type": ({"name": 7}, r"step\(name=\) 7: a text of 1 to 500"),
    "a number of attempts": ({"retry": 3}, r"step\(retry=3\): a Retry is wanted, as in retry=perdure\.Retry"),
    "no time at all": ({"timeout": 0}, r"step\(timeout=0\): more than 0 seconds"),
    "a time in words": ({"timeout": "60"}, r"timeout='60' is no duration: give a timedelta"),
    "no heartbeat ever": ({"heartbeat_timeout": 0}, r"step\(heartbeat_timeout=0\): more than 0 seconds"),
    "a class that is no exception": ({"raises": int}, r"raises=<class 'int'>\): a list of exception classes, as in"),
    "one class alone": ({"raises": KeyError}, r"a list of exception classes, as in raises=\[KeyError\]"),
    "names of classes": ({"raises": ["KeyError"]}, r"raises=\['KeyError'\]\): a list of exception classes"),
    "one path alone": ({"ignore": "$.id"}, r"step\(ignore='\$\.id'\): a list of texts, as in ignore=\["),
    "what is no path": ({"ignore": ["id"]}, r"'id' is no path: it begins with \$"),
    "a path to nothing": ({"ignore": ["$.qestion"]}, r"\(ignore=\[.\$\.qestion.\]\): a path begins at a parameter"),
    "a path into a list": ({"ignore": ["$[0]"]}, r"a path begins at a parameter"),
    "a digest": ({"digest": "$.id"}, r"step\(digest='\$\.id'\): a function of the arguments"),
    "how to record": ({"record": "never"}, r"step\(record='never'\): 'durable' or 'lazy'"),
}

WORKFLOW_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an option of steps": ({"retry": Retry()}, r"workflow\(retry=\.\.\.\): there is no such option"),
    "an empty name": ({"name": " "}, r"workflow\(name=\) ' ': a text"),
    "a version in words": ({"version": "2"}, r"workflow\(version='2'\): a whole number from 1 on"),
    "messages without types": ({"receives": ["reply"]}, r"workflow\(receives=\['reply'\]\): a dict of names and types"),
    "a message without a name": ({"receives": {"": str}}, r"workflow\(receives=\): message name '': a text"),
    "a number for a type": ({"receives": {"x": 5}}, r"message 'x': 5 is not a type: write one, as in \{"),
    "a list for a type": ({"receives": {"x": [int]}}, r"message 'x': \[<class 'int'>\] is not a type"),
    "the name of a type": ({"receives": {"x": "int"}}, r"message 'x': 'int' is not a type: write one"),
    "what is no data": ({"receives": {"x": int, "y": threading.Thread}}, r"message 'y': .*Thread\. Make it a"),
    "one version alone": ({"replays": 7}, r"workflow\(replays=7\): a set of versions, as in replays=\{7\}"),
    "a version that cannot be": ({"replays": {0}}, r"workflow\(replays=\{0\}\): a set of versions"),
    "a class that is no exception": ({"raises": [int]}, r"workflow\(raises=\[<class 'int'>\]\): a list of exception"),
}


@pytest.mark.parametrize(("options", "says"), STEP_OPTIONS.values(), ids=STEP_OPTIONS)
def test_options_of_a_step(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        step(**options)(plan)
    assert re.search(r"\(plan, .*test_misuse\.py:\d+\)$", str(refused.value))


@pytest.mark.parametrize(("options", "says"), WORKFLOW_OPTIONS.values(), ids=WORKFLOW_OPTIONS)
def test_options_of_a_workflow(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        workflow(**options)(agent)
    assert re.search(r"\(agent, .*test_misuse\.py:\d+\)$", str(refused.value))


RETRIES: dict[str, tuple[dict[str, Any], str]] = {
    "attempts in words": ({"max_attempts": "3"}, r"Retry\(max_attempts='3'\): a whole number"),
    "half an attempt": ({"max_attempts": 2.5}, r"Retry\(max_attempts=2\.5\): a whole number"),
    "a factor that is none": ({"factor": float("nan")}, r"Retry\(factor=nan\): a number, 1 or more"),
    "a factor without end": ({"factor": float("inf")}, r"Retry\(factor=inf\): a number, 1 or more"),
    "a factor in words": ({"factor": "2"}, r"Retry\(factor='2'\): a number"),
    "a jitter that is none": ({"jitter": float("nan")}, r"Retry\(jitter=nan\): a share of the wait"),
    "a limit that is past": ({"max_elapsed": -1}, r"Retry: max_elapsed=-1: a duration is"),
    "a limit in words": ({"max_elapsed": "1h"}, r"Retry: max_elapsed='1h' is no duration"),
    "a delay in words": ({"first_delay": "1s"}, r"Retry: first_delay='1s' is no duration"),
    "an answer for a question": ({"on": True}, r"Retry\(on=True\): a function that is given the exception"),
}


@pytest.mark.parametrize(("options", "says"), RETRIES.values(), ids=RETRIES)
def test_options_of_a_retry(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        Retry(**options)


RUNTIMES: dict[str, tuple[dict[str, Any], str]] = {
    "clients without types": ({"provide": [1]}, r"provide=\[1\]: a dict of types and their clients"),
    "clients by name": ({"provide": {"mail": 1}}, r"provide=\{'mail': 1\}: a dict of types and their clients"),
    "no room": ({"concurrent_runs": 0}, r"Runtime\(concurrent_runs=0\): a whole number from 1 on"),
    "room in words": ({"threads": "8"}, r"Runtime\(threads='8'\): a whole number from 1 on"),
    "a lease without end": ({"lease": 1e300}, r"Runtime\(lease=1e\+300\): from 0\.1 s to 100 years"),
}


@pytest.mark.parametrize(("options", "says"), RUNTIMES.values(), ids=RUNTIMES)
def test_options_of_a_runtime(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Runtime(":memory:", **options)


@pytest.mark.parametrize("kind", [Client, Runtime, Worker])
def test_with_alone_names_what_to_write(kind: type[Client]) -> None:
    name = kind.__name__
    with pytest.raises(UsageError, match=rf"`async with {name}\(\.\.\.\) as .*`with {name}\(\.\.\.\)\.sync\(\) as"):
        with kind(":memory:"):
            pass


waits = workflow(name="waits")(agent)

CALLS: dict[str, tuple[Callable[[Client], Any], str]] = {
    "tags in a list": (lambda c: c.start(waits.call(), tags=anything_else(["x"])), r"tags=\['x'\]: a dict of texts"),
    "a number as a tag": (lambda c: c.start(waits.call(), tags=anything_else({"n": 1})), r"tags=\{'n': 1\}: a dict"),
    "a tag without a name": (lambda c: c.start(waits.call(), tags={"": "x"}), r"tag name '': a text of"),
    "a list of less than none": (lambda c: c.list(limit=-1), r"list\(limit=-1\): a whole number from 1 on"),
    "a list of a number": (lambda c: c.list(status=anything_else(5)), r"list\(status=5\): a status, or a list"),
    "a moment in words": (lambda c: c.list(started_after=anything_else("x")), r"'x' is no moment: a datetime with"),
    "a number as an id": (lambda c: c.get(anything_else(3)), r"get\(3\): the run's id is wanted, a text"),
    "a list of tags": (lambda c: c.list(tags=anything_else(["x"])), r"tags=\['x'\]: a dict of texts"),
}


def anything_else(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS)
def test_arguments_of_a_client(call: Callable[[Client], Any], says: str) -> None:
    async def main() -> None:
        async with Client(":memory:") as client:
            with pytest.raises(UsageError, match=says):
                await call(client)
            assert await client.list(limit=10**30) == []

    asyncio.run(main())


LETTERS: dict[str, tuple[Callable[[Run[Any]], Any], str]] = {
    "a reason": (lambda run: run.cancel(anything_else(3)), r"reason 3: a text of"),
    "who pauses": (lambda run: run.pause(anything_else(None)), r"by None: a text of"),
    "who resumes": (lambda run: run.resume(anything_else(3)), r"by 3: a text of"),
    "who decides": (lambda run: run.unblock("retry", by=anything_else(3)), r"by 3: a text of"),
    "which call": (lambda run: run.unblock("retry", call=anything_else(3)), r"call 3: a text of"),
}


@pytest.mark.parametrize(("send", "says"), LETTERS.values(), ids=LETTERS)
def test_letters_that_nobody_could_read_are_not_sent(send: Callable[[Run[Any]], Any], says: str) -> None:
    async def main() -> None:
        async with Client(":memory:") as client:
            run = await client.start(waits.call())
            with pytest.raises(UsageError, match=says):
                await send(run)

    asyncio.run(main())


# ── what cannot be recorded says whose it is ────────────────────────────────────────────────


@step
async def asks(question: Any) -> Any:
    return question


@step
async def gives_a_lock() -> Any:
    return object()


@workflow
async def forgets_to_await() -> Any:
    return await asks(asks("a"))


@workflow
async def forgets_deep_inside() -> Any:
    return await asks({"all": [agent()]})


@workflow
async def returns_a_call() -> Any:
    return asks("a")


@workflow
async def has_a_bad_step() -> Any:
    return await gives_a_lock()


REFUSED = {
    "an argument": (
        forgets_to_await,
        r"the arguments of asks\(\): \$\.question: a value of type .*Call, .*It was not awaited: put `await` before",
    ),
    "inside an argument": (
        forgets_deep_inside,
        r"the arguments of asks\(\): \$\.question\.all\[0\]: a value of type coroutine, .*It was not awaited",
    ),
    "a workflow's result": (returns_a_call, r"the result of returns_a_call\(\): \$: .*Call, .*It was not awaited"),
    "a step's result": (has_a_bad_step, r"the result of gives_a_lock\(\): \$: a value of type object, which is not"),
}


@pytest.mark.parametrize(("flow", "says"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_what_cannot_be_recorded(flow: Any, says: str) -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[flow]) as runtime:
            with pytest.raises(EncodeError, match=says) as refused:
                await (await runtime.start(flow.call())).result()
            assert refused.value.of.startswith("the ")

    asyncio.run(main())


@workflow(receives={"reply": int})
async def listener() -> int:
    return await perdure.receive("reply", int)


def test_a_message_that_does_not_fit_is_named_to_its_sender() -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[listener]) as runtime:
            run = await runtime.start(listener.call())
            with pytest.raises(EncodeError, match=r"^the message 'reply': \$: a value of type str where int"):
                await run.send("reply", "five")
            await run.send("reply", 5)
            assert await run.result() == 5

    asyncio.run(main())


@workflow
async def waits_wrongly(how: str) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "sleep": lambda: perdure.sleep(-1),
        "within": lambda: perdure.receive("word", within=-1),
        "ask": lambda: perdure.ask("well?", within=an_hour),
        "start": lambda: perdure.start(agent_alone),
        "start a number": lambda: perdure.start(an_hour),
    }
    await ways[how]()


@workflow
def waits_wrongly_too(how: str) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "sleep": lambda: perdure.sync.sleep(-1),
        "within": lambda: perdure.sync.receive("word", within=-1),  # pyright: ignore[reportUnknownLambdaType]
        "start": lambda: perdure.sync.start(agent_alone),
        "wait": lambda: perdure.sync.wait(agent_alone),
    }
    ways[how]()


@workflow
async def listens_alone() -> None: ...


agent_alone: Any = listens_alone
an_hour: Any = "1h"

MEANT_OTHERWISE = {
    "a wait that is past": (waits_wrongly.call("sleep"), r"perdure\.sleep\(\) length=-1: a duration is a"),
    "a limit that is past": (waits_wrongly.call("within"), r"within=-1: a duration is a finite number"),
    "a limit in words": (waits_wrongly.call("ask"), r"within='1h' is no duration: give a timedelta"),
    "a child that is not called": (waits_wrongly.call("start"), r"start\(<workflow listens_alone>\): a call is wanted"),
    "a child that is none": (waits_wrongly.call("start a number"), r"perdure\.start\('1h'\): a call is wanted, as in "),
    "a blocking wait that is past": (waits_wrongly_too.call("sleep"), r"length=-1: a duration is a finite number"),
    "a blocking limit that is past": (waits_wrongly_too.call("within"), r"within=-1: a duration is a finite number"),
    "a blocking start": (waits_wrongly_too.call("start"), r"start\(listens_alone\.call\(\.\.\.\)\)"),
    "a blocking wait for no call": (waits_wrongly_too.call("wait"), r"sync\.wait\(listens_alone\.call\(\.\.\.\)\)"),
}


@pytest.mark.parametrize(("call", "says"), MEANT_OTHERWISE.values(), ids=MEANT_OTHERWISE)
def test_what_workflow_code_cannot_mean(call: Any, says: str) -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[waits_wrongly, waits_wrongly_too]) as runtime:
            with pytest.raises(UsageError, match=says):
                await (await runtime.start(call)).result(timeout=10)

    asyncio.run(main())


def test_durations_that_cannot_be_meant() -> None:
    async def main() -> None:
        async with Runtime(":memory:", workflows=[listener]) as runtime:
            with pytest.raises(UsageError, match=r"delay=-1: a duration is"):
                await runtime.start(listener.call(), delay=-1)
            run = await runtime.start(listener.call())
            with pytest.raises(UsageError, match=r"timeout='1h' is no duration"):
                await run.result(timeout=an_hour)
            with pytest.raises(UsageError, match=r"max_seconds=-1: a duration is"):
                await runtime.drain(max_seconds=-1)
        with pytest.raises(UsageError, match=r"Runtime: grace=-1: a duration is"):
            Runtime(":memory:", grace=-1)

    asyncio.run(main())


def test_a_verdict_and_a_script_say_what_they_take() -> None:
    with pytest.raises(UsageError, match=r"Retryable\(after='1h'\): a timedelta, or seconds as a number"):
        perdure.Retryable("later", after=anything_else("1h"))
    with pytest.raises(UsageError, match=r"perdure\.run\(workflows=.*: a list is wanted, as in workflows=\[agent\]"):
        perdure.run(waits.call(), workflows=anything_else(waits), store=":memory:")


def test_how_long_was_waited() -> None:
    @workflow
    async def sleeps() -> None:
        await perdure.sleep(3600)

    async def main() -> None:
        async with Runtime(":memory:", workflows=[sleeps]) as runtime:
            run = await runtime.start(sleeps.call(), id="long")
            with pytest.raises(TimeoutError, match=r"run long has not ended within 0 s; it goes on"):
                await run.result(timeout=0)

    asyncio.run(main())

"""What a model call rests on, given where it is made: on the workflow's loop, and in threads through the journal."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.hosting import run_async

import perdure
from perdure import Idempotent, RunBlockedError, effect, step, workflow
from perdure.audit.timeline import timeline
from perdure.history import events as e
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

WORLD: dict[str, Any] = {}
ASKED: list[str] = []
SENT: list[str] = []


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    WORLD.clear()
    WORLD.update(model="small-1", prompt_release="May", on_stale=None)
    ASKED.clear()
    SENT.clear()


def answer_of(question: str) -> str:
    ASKED.append(question)
    return f"{WORLD['model']} on {question}"


def premises() -> dict[str, Any]:
    """As an adapter knows them: one that may change while it runs, and two of its own code."""
    return {"model": lambda: WORLD["model"], "prompt_release": WORLD["prompt_release"], "tools": ["search", "pay"]}


@step
async def ask_model(question: str) -> str:
    return answer_of(question)


@effect(downstream=Idempotent())
async def publish(text: str) -> str:
    SENT.append(text)
    return f"published {text}"


publish.key(lambda text: text)


@workflow
async def on_the_loop() -> str:
    ask = ask_model.with_premises(premises(), on_stale=WORLD["on_stale"])
    text = f"{await ask('tea')}; {await ask('milk')}"
    await perdure.receive("go")
    return await publish(text)


def crew() -> str:
    """A framework that makes its model calls in threads of its own."""
    answers: dict[str, str] = {}

    def agent(question: str) -> None:
        with perdure.lane(question):
            answers[question] = perdure.journal().call(
                "llm", {"question": question}, lambda: answer_of(question), premises=premises(),
                on_stale=WORLD["on_stale"],
            )  # fmt: skip

    for question in ("tea", "milk"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(agent, question))
        thread.start()
        thread.join()
    perdure.sync.receive("go")
    text = f"{answers['tea']}; {answers['milk']}"
    return perdure.sync.wait(publish.call(text))


@workflow
async def in_threads() -> str:
    return str(await perdure.section("crew").run(crew))


BOTH = pytest.mark.parametrize("agent", [on_the_loop, in_threads], ids=lambda agent: agent.name)
OLD = "small-1 on tea; small-1 on milk"


class Store:
    """A store that one worker after the other opens."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)

    def opened(self) -> RuntimeUnderTest:
        return RuntimeUnderTest(self.store.again(), clock=self.clock, workflows=[on_the_loop, in_threads])

    def events(self) -> list[e.Event]:
        info = self.store.find("r")
        assert info is not None
        return [e.decode(row.envelope) for row in self.store.load(info.rid).rows]

    def shown(self) -> str:
        info = self.store.find("r")
        assert info is not None
        return "\n".join(moment.what for moment in timeline(self.store, info.rid))

    def checks(self) -> list[e.PremisesChecked]:
        return [event for event in self.events() if isinstance(event, e.PremisesChecked)]


async def wait_for_message(store: Store, agent: Any) -> None:
    """The run has asked the model twice, and waits; then its worker is gone."""
    async with store.opened() as runtime:
        await runtime.start(agent.call(), id="r")
        await runtime.run_dry()
        assert len(ASKED) == 2
    store.clock.advance(60)


async def go(runtime: RuntimeUnderTest) -> Any:
    run = await runtime.get("r")
    await run.send("go", None)
    return await run.result()


@BOTH
def test_what_a_model_call_rests_on_is_recorded_beside_its_answer(agent: Any) -> None:
    async def main() -> None:
        store = Store()
        await wait_for_message(store, agent)
        read = [event for event in store.events() if isinstance(event, e.PremisesRead)]
        assert [[fact.name for fact in event.facts] for event in read] == [["model", "prompt_release", "tools"]] * 2
        async with store.opened() as runtime:
            assert await go(runtime) == f"published {OLD}"
            (standing, _) = await (await runtime.get("r")).stands() if agent is on_the_loop else (None, None)
            assert standing is None or (standing.stands, standing.on_stale) == (True, "note")
        (check,) = store.checks()
        assert (check.looked_at, check.findings, len(ASKED)) == (2, (), 2)

    run_async(main())


def by_run(before: str, after: str) -> Callable[[], None]:
    def change() -> None:
        WORLD[before] = after

    return change


@BOTH
@pytest.mark.parametrize("change", [by_run("model", "large-2"), by_run("prompt_release", "June")])
def test_another_model_is_noted_and_changes_nothing(agent: Any, change: Callable[[], None]) -> None:
    """Whether a function reads it, or the code gives it anew when it is run again."""

    async def main() -> None:
        store = Store()
        await wait_for_message(store, agent)
        change()
        async with store.opened() as runtime:
            assert await go(runtime) == f"published {OLD}"
            assert len(ASKED) == 2
        (check,) = store.checks()
        name = "model" if WORLD["model"] == "large-2" else "prompt_release"
        assert [(finding.changed, finding.did) for finding in check.findings] == [((name,), "note")] * 2
        calls = ", ".join(finding.call for finding in check.findings)
        assert f"{calls} {name} changed: note" in store.shown()

    run_async(main())


@BOTH
def test_it_is_noted_before_anything_goes_on_when_its_worker_has_died(agent: Any) -> None:
    """Hosted code is asked for nothing new before it has come as far as it was; then it is known what to read."""

    async def main() -> None:
        store = Store()
        async with store.opened() as runtime:
            await runtime.start(agent.call(), id="r")
            await runtime.run_dry()
            await runtime.die()
        store.clock.advance(60)
        WORLD["model"] = "large-2"
        async with store.opened() as runtime:
            assert await go(runtime) == f"published {OLD}"
            (check,) = store.checks()
            assert (check.why, check.looked_at, len(check.findings)) == ("resumed", 2, 2)

    run_async(main())


@BOTH
def test_it_can_be_put_to_a_person(agent: Any) -> None:
    async def main() -> None:
        store = Store()
        WORLD["on_stale"] = "block"
        await wait_for_message(store, agent)
        WORLD["model"] = "large-2"
        async with store.opened() as runtime:
            with pytest.raises(RunBlockedError, match='rests on model "small-1", which is "large-2" now'):
                await go(runtime)
            assert SENT == []
            run = await runtime.get("r")
            await run.unblock("keep", by="ann")
            assert await run.result() == f"published {OLD}"

    run_async(main())


@BOTH
def test_it_can_be_asked_again(agent: Any) -> None:
    """The answers of another model are other ones, and the run goes by these."""

    async def main() -> None:
        store = Store()
        WORLD["on_stale"] = "recompute"
        await wait_for_message(store, agent)
        WORLD["model"] = "large-2"
        async with store.opened() as runtime:
            assert await go(runtime) == "published large-2 on tea; large-2 on milk"
        assert SENT == ["large-2 on tea; large-2 on milk"]
        assert sum(isinstance(event, e.Rewound) for event in store.events()) >= 1

    run_async(main())


def test_what_cannot_be_given_is_refused() -> None:
    @step(record="lazy")
    async def lazy() -> None: ...

    for bad in ({}, None, "model", {"": 1}):
        with pytest.raises(perdure.UsageError, match="premise"):
            ask_model.with_premises(bad)  # type: ignore[arg-type]
    with pytest.raises(perdure.EncodeError, match="premise 'model' of ask_model"):
        ask_model.with_premises({"model": object()})
    with pytest.raises(perdure.UsageError, match="on_stale='forget'"):
        ask_model.with_premises({"model": 1}, on_stale="forget")  # type: ignore[arg-type]
    with pytest.raises(perdure.UsageError, match="one of that name itself"):
        ask_model.with_premises({"model": 1}).with_premises({"model": 2})
    with pytest.raises(perdure.UsageError, match="lazy"):
        lazy.with_premises({"model": 1})

"""What adapters perform through the journal passes the same gates as steps: policies, budgets, retries, people."""

from __future__ import annotations

import pytest
from tests.runtime.hosting import run_async

import perdure
from perdure import Budget, NeedsPerson, Policy, PolicyDenied, Retry, Rule, RunBlockedError, Usage, workflow
from perdure.gates.budget import Account
from perdure.history import events as e
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

ASKED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()


def model(question: str, model: str = "small-1", failures: int = 0) -> str:
    """A framework's own model call."""

    def perform() -> str:
        ASKED.append(question)
        perdure.used(tokens=30)
        perdure.heartbeat("asked")
        if perdure.attempt().number <= failures:
            raise RuntimeError("the model stumbled")
        return question.upper()

    return str(
        perdure.journal().call(
            f"llm:{model}", {"model": model, "question": question}, perform, uses=Usage(tokens=40),
            retry=Retry(max_attempts=3, first_delay=60, jitter=0),
        )
    )  # fmt: skip


@workflow
def crew(questions: list[str]) -> list[str]:
    return [model(question) for question in questions]


def spent(history: list[perdure.HistoryEvent]) -> Account:
    account = Account()
    for each in history:
        account.note(each.event)
    return account


def test_it_counts_as_a_step_and_what_it_used_counts() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(crew.call(["a", "b", "c"]), budget=Budget(tokens=100, steps=3))
            assert await run.result() == ["A", "B", "C"]
            account = spent(await run.history())
            assert (account.spent.tokens, account.spent.steps, account.open) == (90, 3, {})

    run_async(main())


def test_over_budget_it_waits_and_goes_on_when_the_budget_was_raised() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(crew.call(["a", "b", "c"]), id="r", budget=Budget(tokens=99))
            with pytest.raises(RunBlockedError) as stuck:
                await run.result()
            assert stuck.value.reason == "over_budget"
            assert ASKED == ["a", "b"]
            await runtime.raise_budget("r", tokens=100, by="ann")
            assert await run.result() == ["A", "B", "C"]
            assert ASKED == ["a", "b", "c"]

    run_async(main())


def test_what_is_used_is_recorded_without_any_budget() -> None:
    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(crew.call(["a"]))
            await run.result()
            history = [each.event for each in await run.history()]
            assert [event.amount.tokens for event in history if isinstance(event, e.BudgetSpent)] == [30]

    run_async(main())


def test_a_policy_sees_the_request_and_what_it_denies_is_raised_and_recorded() -> None:
    policy = Policy("models", 1, [Rule("small ones", "llm:*", must={"model": ["small-1"]})])

    @workflow(policy=policy)
    def picks(*models: str) -> list[str]:
        answers: list[str] = []
        for name in models:
            try:
                answers.append(model("q", name))
            except PolicyDenied as no:
                answers.append(f"{no.call}: {no.policy}")
        return answers

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(picks.call("small-1", "large-9", "small-1"))
            assert await run.result() == ["Q", "llm:large-9: models", "Q"]
            assert ASKED == ["q", "q"]
            (denied,) = [each.event for each in await run.history() if isinstance(each.event, e.StepFailed)]
            assert denied.denied is not None
            assert [entry.reason for entry in await runtime.inbox()] == ["denied"]

    run_async(main())


def test_its_next_attempt_is_waited_for_as_a_steps_is() -> None:
    @workflow
    def stumbles() -> str:
        return model("q", failures=2)

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(stumbles.call(), budget=Budget(tokens=1000, steps=1))
            assert await run.result() == "Q"  # two waits of a minute pass at once
            assert ASKED == ["q"] * 3
            assert spent(await run.history()).spent.tokens == 90

    run_async(main())


def test_a_person_is_asked_once_and_may_have_it_tried_again() -> None:
    def perform() -> str:
        ASKED.append("asked")
        if len(ASKED) == 1:
            raise NeedsPerson("which of the two?")
        return "done"

    @workflow
    def unsure() -> str:
        return str(perdure.journal().call("tool", {}, perform))

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(unsure.call())
            with pytest.raises(RunBlockedError, match="which of the two"):
                await run.result()
            await run.unblock("retry", by="ann")
            assert await run.result() == "done"

    run_async(main())


def test_on_the_loop_that_would_answer_it_it_is_refused() -> None:
    async def waits_for_itself() -> None:
        perdure.journal().call("tool", {}, lambda: None)

    @workflow
    async def hosted() -> None:
        await perdure.section("crew").run(waits_for_itself)

    async def main() -> None:
        async with RuntimeUnderTest() as runtime:
            run = await runtime.start(hosted.call())
            with pytest.raises(perdure.UsageError, match="make it a step"):
                await run.result()

    run_async(main())


def test_a_crash_at_any_write_counts_everything_once() -> None:
    async def scenario(runtime: RuntimeUnderTest) -> list[str]:
        run = await runtime.start(crew.call(["a", "b"]), id="swept", budget=Budget(tokens=1000))
        result = await run.result()
        account = spent(await run.history())
        assert not account.open
        assert account.spent.steps == 2
        assert 60 <= account.spent.tokens <= 60 + 40  # and what one crash has interrupted
        return result

    async def main() -> None:
        assert (await sweep_crashes(scenario)).result == ["A", "B"]

    run_async(main())

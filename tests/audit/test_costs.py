"""Costs are added up from histories: by run, step and model, and what takeovers found recorded."""

from __future__ import annotations

import asyncio

import perdure
from perdure import Retry, Usage, step, workflow
from perdure.audit.costs import Cost, costs
from perdure.history.spending import Amount
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore
from perdure.testing.mortal import Death, Mortal, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest


@step(uses=Usage(tokens=9), retry=Retry(first_delay=0.1))
async def ask(model: str, fails: int = 0) -> str:
    perdure.used(model=model, input_tokens=4, output_tokens=2, cost="0.5")
    perdure.used(tokens=1)
    if perdure.attempt().number <= fails:
        raise RuntimeError("again")
    return model


@step(uses=Usage(tokens=5))
async def silent() -> None: ...


@workflow(budget=perdure.Budget(tokens=1_000))
async def asks() -> None:
    await ask("small", 1)
    await ask("large")
    await silent()


def by(store: MemoryStore, what: str, **narrowed: object) -> dict[str, tuple[int, int, int, int]]:
    """Calls, attempts, tokens and cost, by name."""
    found: list[Cost] = costs(store, by=what, **narrowed)  # type: ignore[arg-type]
    return {each.name: (each.calls, each.attempts, each.used.tokens, each.used.cost) for each in found}


def test_by_run_step_and_model() -> None:
    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        async with RuntimeUnderTest(store, clock=clock) as runtime:
            await (await runtime.start(asks.call(), id="r")).result()
        assert by(store, "run") == {"r": (3, 4, 26, 1_500_000_000)}
        assert by(store, "step") == {"ask": (2, 3, 21, 1_500_000_000), "silent": (1, 1, 5, 0)}
        assert by(store, "model") == {
            "small": (1, 2, 12, 1_000_000_000), "large": (1, 1, 6, 500_000_000), "(not said)": (3, 4, 8, 0),
        }  # fmt: skip
        assert by(store, "run", workflow="other") == by(store, "run", run_id="q") == {}
        assert by(store, "run", since=clock.now() + 1) == {}

    asyncio.run(main())


def test_what_a_takeover_finds_recorded_was_saved() -> None:
    async def main() -> None:
        clock = FakeClock()
        inner = MemoryStore(clock)

        async def scenario(runtime: RuntimeUnderTest) -> None:
            await (await runtime.start(asks.call(), id="r")).result()

        death = Death()
        with QuietAboutCrashes():
            dying = RuntimeUnderTest(CrashingStore(inner.again(), fail_at=7, how=death.come), clock=clock)
            await Mortal[None](dying, death).live(scenario)
        assert death.has_come
        async with RuntimeUnderTest(inner, clock=clock, workflows=[asks]) as runtime:
            await scenario(runtime)
        (cost,) = costs(inner, by="run")
        assert cost.saved_calls == 1
        assert cost.saved == Amount(14, 1_000_000_000, 0, 1)

    asyncio.run(main())

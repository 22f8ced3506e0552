"""One process after the other, each killed at a write, and a last one that lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore, When
from perdure.testing.mortal import Death, Mortal, Outcome, QuietAboutCrashes, Scenario
from perdure.testing.runtime import RuntimeUnderTest

T = TypeVar("T")


async def lives(
    scenario: Scenario[T], workflows: Sequence[Any], inner: MemoryStore, clock: FakeClock,
    crashes: Sequence[tuple[int, When]],
) -> tuple[Outcome[T], int]:  # fmt: skip
    """What came of the scenario in the end, and how many processes have died: as many as there are crashes, unless one
    of them had fewer writes."""
    planned: list[tuple[int | None, When]] = [*crashes, (None, "before")]
    deaths = 0
    outcome = None
    for fail_at, when in planned:
        death = Death()
        store = CrashingStore(inner.again(), fail_at=fail_at, when=when, how=death.come)
        with QuietAboutCrashes():
            runtime = RuntimeUnderTest(store, clock=clock, workflows=workflows)
            outcome = await Mortal[T](runtime, death).live(scenario)
        if not death.has_come:
            break
        deaths += 1
    assert isinstance(outcome, Outcome)
    return outcome, deaths

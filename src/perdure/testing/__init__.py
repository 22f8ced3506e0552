"""Instruments for tests, shipped: of perdure itself, and of what is built on it.

    runtime, plugin   a Runtime in memory that skips time, and the pytest fixture `perdure_runtime` with one
    clock             FakeClock
    drilling          drill(): everything that can go wrong, on your own workflow and fakes, before it goes live
    crashing, sweep   a store that crashes on purpose; sweep_crashes(): at every write, before and after
    conformance       the suite that every store passes
    simulator, soak   random programs on workers that are killed, paused and cut off; the same for hours

Each stands in its own module, so that nothing is imported that is not asked for. `perdure.testing.drill`, and what it
gives, are here by name as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.drilling import Aftermath, DrillFailed, DrillReport, PointResult, UnfitForDrill, drill

__all__ = ["Aftermath", "DrillFailed", "DrillReport", "PointResult", "UnfitForDrill", "drill"]


def __getattr__(name: str) -> Any:
    """The drill, when it is asked for: every run of pytest imports this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.testing import drilling

    return getattr(drilling, name)

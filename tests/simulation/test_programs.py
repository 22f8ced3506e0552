"""Ten thousand random programs, on workers that are killed, paused and cut off: every promise holds in each of them.

What a seed does, and what is wrong with it if it fails, is told by `python -m perdure.testing.soak --seed N`.
"""

from __future__ import annotations

from perdure.testing.soak import soak

PROGRAMS = 10_000
SECONDS_MAX = 240.0
PROGRAMS_IN_ANY_CASE = 2_000
"""A machine that is too slow for all of them in that time must at least run so many."""


def test_ten_thousand_programs() -> None:
    result = soak(PROGRAMS, seconds=SECONDS_MAX, processes=2)
    assert not result.failures, str(result)
    assert result.programs >= PROGRAMS_IN_ANY_CASE, str(result)

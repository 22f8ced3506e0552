"""What a run's history says of what the run may spend, and has spent: amounts, limits, and what was said of each call.

Everything is whole numbers, so that sums are exact: a cost is kept in billionths of the currency unit, a time in
microseconds.
"""

# No `from __future__ import annotations`: see events.py.
from typing import NamedTuple

import msgspec

UNITS = ("tokens", "cost", "effects", "steps")
"""What is spent by calls. Time is not: it passes."""


class Amount(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """So much of each unit. `cost` in billionths of the currency unit."""

    tokens: int = 0
    cost: int = 0
    effects: int = 0
    steps: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.tokens + other.tokens, self.cost + other.cost, self.effects + other.effects, self.steps + other.steps
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            self.tokens - other.tokens, self.cost - other.cost, self.effects - other.effects, self.steps - other.steps
        )

    def of(self, unit: str) -> int:
        """How much of one unit."""
        return int(getattr(self, unit))


NOTHING = Amount()


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How much of each unit may be spent; None: as much as there is. `wall`: microseconds since the run was started."""

    tokens: int | None = None
    cost: int | None = None
    effects: int | None = None
    steps: int | None = None
    wall: int | None = None

    def of(self, unit: str) -> int | None:
        """The limit of one unit, if it has one."""
        found: int | None = getattr(self, unit)
        return found

    def __bool__(self) -> bool:
        return any(getattr(self, unit) is not None for unit in (*UNITS, "wall"))


NO_LIMITS = Limits()


class Use(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What an attempt said that it used, of one model. `cached`: those of the `input` tokens that the other side had.

    `cost` is None if it is not known. `prices`: the date and digest of the prices that it was reckoned with.
    `is_owed`: there is a limit on costs and no price for this, so it still has to be reckoned."""

    model: str = ""
    tokens: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cost: int | None = None
    prices: str = ""
    is_owed: bool = False


class Share(NamedTuple):
    """An account that many runs share, in one period (`since`, microseconds; 0: for ever)."""

    account: str
    since: int


class Owed(msgspec.Struct, frozen=True, gc=False):
    """A use whose cost is not known yet, and the shared accounts that it belongs to."""

    use: Use
    shares: tuple[Share, ...] = ()


class Carried(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a run takes along into its next chapter."""

    limits: Limits = NO_LIMITS
    spent: Amount = NOTHING
    owed: tuple[Owed, ...] = ()


class Shortfall(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why a call may not begin. `budget`: the shared account, or "" for the run's own budget. `unit`: which limit, or
    `price`: the cost of what was used is not known. `held`: reserved by calls under way. `wanted`: by this call; None
    if it does not say. `until`: when the next period begins, in which the call is tried again by itself; 0: never."""

    budget: str
    unit: str
    limit: int
    used: int
    held: int = 0
    wanted: int | None = None
    since: int = 0
    until: int = 0

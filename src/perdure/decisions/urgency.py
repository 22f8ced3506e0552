"""What stands first in the inbox: the riskiest, then the oldest. A total order, the same for everyone who looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

HIGH_RISK = 0
OUTSIDE = 1
WAITS = 2
SILENT = 3
NOTICE = 4

MEANS: Mapping[int, str] = {
    HIGH_RISK: "an effect that is irreversible or declared `risk=\"high\"`: it may have happened, is to be approved, "
    "or a fork would do it again",
    OUTSIDE: "something outside may stand wrong",
    WAITS: "a run, or one call of it, waits for a person",
    SILENT: "a run does not move, and perdure does not know why",
    NOTICE: "nothing waits: it is to be known",
}

RANKS: Mapping[str, int] = {
    "unknown_effect": OUTSIDE,
    "failed_compensation": OUTSIDE,
    "store_rolled_back": OUTSIDE,
    "silent": SILENT,
    "no_worker_for_version": SILENT,
    "denied": NOTICE,
}
"""By reason; whatever is not here waits."""


class Place(NamedTuple):
    """Where an entry stands: smaller is first."""

    rank: int
    since: Any
    run_id: str
    call: str
    id: str


def place(reason: str, risk: str, since: Any, run_id: str, call: str, id: str) -> Place:
    """`since`: when it began, in whatever can be compared. Two entries never stand in one place: their ids differ.

    >>> place("approval", "high", 9, "r", "0/approve:refund#1", "b") < place("diverged", "", 1, "q", "", "a")
    True
    """
    return Place(HIGH_RISK if risk == "high" else RANKS.get(reason, WAITS), since, run_id, call, id)

"""How a worker behaves, and which workflows it knows. What it takes to be one is not imported here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from perdure.decisions import Authority
from perdure.runtime.outbox import Handler
from perdure.specs import Budget, WorkflowSpec
from perdure.store.rules import RETRY_AFTER_DEATH_SECONDS

if TYPE_CHECKING:
    from perdure.gates.policy import Policy
    from perdure.gates.prices import Prices
    from perdure.runtime.lease import Lease
    from perdure.runtime.live import LiveRun
    from perdure.runtime.vault import Vault


class Rules(NamedTuple):
    """The budgets that runs share here, and what tokens cost."""

    shared: tuple[Budget, ...] = ()
    prices: Prices | None = None


NO_RULES = Rules()


class Options(msgspec.Struct, frozen=True):
    """How a worker behaves. Seconds are real time. `lease` and `stopwatch` are the machine's; a simulation has its own.

    `drive`, if given, drives each turn: it calls what it is given."""

    lease_seconds: float = 10.0
    evict_after_seconds: float = 1.0
    grace_seconds: float = 30.0
    runs_max: int = 1_000
    steps_max: int = 1_000
    threads_max: int = 32
    retry_after_death_seconds: tuple[float, ...] = RETRY_AFTER_DEATH_SECONDS
    adopt: Literal["all", "own", "none"] = "all"
    outbox: Mapping[str, Handler] = msgspec.field(default_factory=dict[str, Handler])
    provided: Mapping[type, Any] = msgspec.field(default_factory=dict[type, Any])
    authority: Authority | None = None
    spending: Rules = NO_RULES
    compare_all_inputs: bool = False
    guard: bool = False
    paused: bool = False
    policy: Policy | None = None
    vault: Vault | None = None
    drive: Callable[[LiveRun, Callable[[], None]], None] | None = None
    lease: Callable[..., Lease] | None = None
    stopwatch: Callable[[], float] = time.monotonic


def catalog_of(workflows: Mapping[tuple[str, int], WorkflowSpec]) -> dict[tuple[str, int], WorkflowSpec]:
    """The workflows by name and version, with the older versions that a newer one claims to replay."""
    catalog = dict(workflows)
    for spec in workflows.values():
        for version in spec.replays:
            catalog.setdefault((spec.name, version), spec)
    return catalog

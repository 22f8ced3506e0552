"""Budgets, as programs and people give them: the rules of a Runtime, and the letter that raises a limit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import MICROSECONDS, when
from perdure.errors import RunFinishedError, UnknownNameError, UsageError
from perdure.gates.budget import Account, account_at, raised, told
from perdure.history import events as e
from perdure.history.spending import NO_LIMITS, UNITS, Limits, Share, Shortfall
from perdure.runtime.mail import ControlLetter
from perdure.runtime.options import Rules
from perdure.specs import NANOS, Budget, nanos, recordable, seconds_given, several
from perdure.store.protocol import RunInfo, Store

if TYPE_CHECKING:
    from perdure.gates.prices import Prices


def rules_from(budgets: Any, prices: Any) -> Rules:
    """What `Runtime(budgets=, prices=)` was given. UsageError for what it cannot be."""
    shared = several(budgets)
    if shared is None or not all(isinstance(each, Budget) for each in shared):
        raise UsageError(
            f"Runtime(budgets={budgets!r}): a list of Budgets, as in budgets=[perdure.Budget(tokens=10**6)]"
        )
    for budget in shared:
        if budget.wall is not None:
            raise UsageError(f"Runtime(budgets=[{budget!r}]): wall= belongs to the budget of one run")
    return Rules(tuple(shared), None if prices is None else _prices(prices))


def _prices(path: str | os.PathLike[str]) -> Prices:
    from perdure.gates.prices import read_prices  # who has none needs no date and no decimal of it

    try:
        where = os.fspath(path)
        with open(where, "rb") as file:
            return read_prices(file.read(), where=where)
    except (OSError, TypeError) as error:
        raise UsageError(f"Runtime(prices={path!r}): it cannot be read: {error}") from None


# ── what a call wants more of ───────────────────────────────────────────────────────────────


class BudgetSummary(msgspec.Struct, frozen=True):
    """A budget of which a call wants more than there is left. `account`: what many runs share, "" for the run's own
    budget. `unit`: tokens, cost, effects, steps, wall; or price, if what was used before has none. Costs are in the
    currency's units, wall in seconds. `wanted` is None if the call does not say. `since`: when the period began."""

    account: str
    unit: str
    limit: Decimal
    used: Decimal
    reserved: Decimal
    wanted: Decimal | None
    since: datetime | None


def budget_summary(short: Shortfall) -> BudgetSummary:
    """The same for people and programs."""
    scale = {"cost": NANOS, "wall": MICROSECONDS}.get(short.unit, 1)
    limit, used, held = (Decimal(each) / scale for each in (short.limit, short.used, short.held))
    wanted = None if short.wanted is None else Decimal(short.wanted) / scale
    since = when(short.since) if short.since else None
    return BudgetSummary(short.budget, short.unit, limit, used, held, wanted, since)


# ── a person raises a limit ─────────────────────────────────────────────────────────────────


def raise_letter(
    store: Store, info: RunInfo, budget: str | None, *, by: str, reason: str, wall: timedelta | float | None = None,
    cost: Any = None, **counts: Any,
) -> ControlLetter:  # fmt: skip
    """The letter that sets new limits. Whatever is wrong with them is said here, and nothing is sent."""
    if info.status.is_final:
        raise RunFinishedError(f"run {info.run_id} {info.status.ended}: it spends nothing any more")
    recordable(by, what="raise_budget(by=)")
    limits = _limits(wall=wall, cost=cost, **counts)
    account, stuck = _account_of(store, info)
    at = _meant(store, info, budget, stuck)
    known = _limits_of(store, account, stuck, at)
    if at.account and limits.wall is not None:
        raise UsageError("raise_budget(wall=): time is limited by a run's own budget alone")
    _check_higher(limits, known, f"the budget of {at.account}" if at.account else f"the budget of run {info.run_id}")
    return ControlLetter(reason, by, False, "raise_budget", limits=limits, budget=at.account, since=at.since)


def _limits(*, wall: Any, cost: Any, tokens: Any, effects: Any, steps: Any) -> Limits:
    counts = {"tokens": tokens, "effects": effects, "steps": steps}
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 < count < 2**53):
            raise UsageError(f"raise_budget({name}={count!r}): a whole number from 1 on, the new limit")
    found = Limits(
        tokens, None if cost is None else nanos(cost, what="raise_budget(cost"), effects, steps,
        None if wall is None else round(seconds_given(wall, what="raise_budget: wall") * MICROSECONDS),
    )  # fmt: skip
    if not found:
        raise UsageError("raise_budget(): give a new limit: tokens=, cost=, effects=, steps= or wall=")
    return found


def _account_of(store: Store, info: RunInfo) -> tuple[Account, list[Shortfall]]:
    """What the run may spend, and of which budgets its stuck calls want more, the oldest first."""
    rows = store.load(info.rid).rows
    account = account_at(e.decode(rows[0].envelope)) or Account()
    stuck: dict[tuple[str | None, int], Shortfall] = {}
    for row in rows:
        if row.kind.startswith(("budget.", "run.")):
            event = e.decode(row.envelope)
            account.note(event)
            if isinstance(event, e.RunBlocked) and event.short is not None:
                stuck[event.task, event.n] = event.short
            elif isinstance(event, e.RunUnblocked):
                stuck.pop((event.task, event.n), None)
    return account, list(stuck.values())


def _meant(store: Store, info: RunInfo, budget: str | None, stuck: Iterable[Shortfall]) -> Share:
    """Which budget is to be raised, and in which period."""
    wanted = [short for short in stuck if budget in {None, short.budget}]
    if wanted:
        return Share(wanted[0].budget, wanted[0].since)
    if not budget:
        return Share("", 0)
    raise UnknownNameError("budget of which it wants more", budget, [short.budget for short in stuck])


def _limits_of(store: Store, account: Account, stuck: Iterable[Shortfall], at: Share) -> Limits:
    """The limits that there are, as far as they are known here."""
    if not at.account:
        return account.limits
    declared = {short.unit: short.limit for short in stuck if (short.budget, short.since) == at and short.unit in UNITS}
    ever = [each.raised for each in store.accounts(at.account) if each.since == at.since]
    return raised(Limits(**declared), ever[0] if ever else NO_LIMITS)


def _check_higher(limits: Limits, known: Limits, whose: str) -> None:
    for unit in (*UNITS, "wall"):
        new, old = limits.of(unit), known.of(unit)
        if new is None:
            continue
        if old is None:
            has = ", ".join(told(each, limit) for each, limit in _set(known)) or "nothing"
            raise UsageError(f"{whose} does not limit {unit}; it limits {has}")
        if new <= old:
            raise UsageError(f"{whose} is {told(unit, old)} already: say the new limit, which is a higher one")


def _set(limits: Limits) -> Iterator[tuple[str, int]]:
    for unit in (*UNITS, "wall"):
        if (limit := limits.of(unit)) is not None:
            yield unit, limit

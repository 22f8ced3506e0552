"""May this call begin, by what it is expected to use and by what was spent so far?

An account is what a history says: of a run that is read, and of what is recorded now. Many runs share one that the
store keeps. Both are judged by the same rule, `shortfall`: what was used, what is reserved, and what is wanted
together stay within the limit; of what a call does not say, something has to be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from perdure.clock import MICROSECONDS
from perdure.errors import DeclarationError, UsageError
from perdure.history import events as e
from perdure.history.spending import NO_LIMITS, NOTHING, UNITS, Amount, Carried, Limits, Owed, Share, Shortfall, Use
from perdure.specs import NANOS, Budget, Usage, is_whole, nanos, seconds

Key = tuple[str, int]

PRICE = "price"
"""The unit of a shortfall that is about a cost which is not known."""


class Wanted(NamedTuple):
    """What a call is expected to use. `unsaid`: units of which it does not say."""

    amount: Amount
    unsaid: tuple[str, ...] = ()


def limits_of(budget: Budget) -> Limits:
    """The limits as they are recorded."""
    return Limits(
        budget.tokens,
        None if budget.cost is None else nanos(budget.cost, what="Budget(cost"),
        budget.effects,
        budget.steps,
        None if budget.wall is None else round(seconds(budget.wall, what="Budget: wall") * MICROSECONDS),
    )


def wanted(usage: Usage | None, *, is_effect: bool, is_counted: bool) -> Wanted:
    """What an attempt wants. A call that is counted already counts as no further step or effect. An effect that says
    nothing uses no tokens; a step may be a call of a model.

    >>> wanted(Usage(tokens=400), is_effect=False, is_counted=False)
    Wanted(amount=Amount(tokens=400, cost=0, effects=0, steps=1), unsaid=('cost',))
    """
    usage = usage or (Usage(0, 0) if is_effect else Usage())
    cost = None if usage.cost is None else nanos(usage.cost, what="Usage(cost")
    said = {"tokens": usage.tokens, "cost": cost}
    once = 0 if is_counted else 1
    amount = Amount(usage.tokens or 0, cost or 0, once if is_effect else 0, 0 if is_effect else once)
    return Wanted(amount, tuple(unit for unit, value in said.items() if value is None))


def raised(limits: Limits, by: Limits) -> Limits:
    """The limits once a person has set new ones. That lowers none, and makes none where there was none.

    >>> raised(Limits(tokens=5, steps=5), Limits(tokens=9, cost=1, steps=3))
    Limits(tokens=9, cost=None, effects=None, steps=5, wall=None)
    """
    units = (*UNITS, "wall")
    return Limits(*(None if (limit := limits.of(unit)) is None else max(limit, by.of(unit) or 0) for unit in units))


def tighter(one: Limits, other: Limits) -> Limits:
    """Both limits at once: of each unit the lower one."""
    pairs = [(one.of(unit), other.of(unit)) for unit in (*UNITS, "wall")]
    return Limits(*(min((limit for limit in pair if limit is not None), default=None) for pair in pairs))


def _highest(one: Limits, other: Limits) -> Limits:
    """Of each unit the higher of two limits that people have set."""
    pairs = [(one.of(unit), other.of(unit)) for unit in UNITS]
    return Limits(*(max(filter(None, pair), default=None) for pair in pairs))


def shortfall(
    limits: Limits, used: Amount, held: Amount, wants: Wanted, *, budget: str = "", since: int = 0
) -> Shortfall | None:
    """Of which unit the call wants more than there is left, or None.

    >>> shortfall(Limits(tokens=10), Amount(4), Amount(5), Wanted(Amount(2))).unit
    'tokens'
    """
    for unit in UNITS:
        limit = limits.of(unit)
        if limit is None:
            continue
        taken, more, is_unsaid = used.of(unit) + held.of(unit), wants.amount.of(unit), unit in wants.unsaid
        if (more and taken + more > limit) or (is_unsaid and taken >= limit):
            return Shortfall(budget, unit, limit, used.of(unit), held.of(unit), None if is_unsaid else more, since)
    return None


# ── one run's account ───────────────────────────────────────────────────────────────────────


class Account:
    """What a run may spend, and has spent, by its history.

    `open`: what is reserved for attempts under way. `counted`: calls that count as a step or effect already. `owed`:
    what was used and has no price yet. `said`: what attempts under way have said so far; nowhere recorded."""

    __slots__ = ("counted", "limits", "open", "owed", "said", "spent")

    def __init__(self, limits: Limits | None = None, spent: Amount = NOTHING, owed: Iterable[Owed] = ()) -> None:
        self.limits = limits or NO_LIMITS
        self.spent = spent
        self.owed: tuple[Owed, ...] = tuple(owed)
        self.open: dict[Key, e.BudgetReserved] = {}
        self.counted: set[Key] = set()
        self.said: dict[Key, tuple[Use, ...]] = {}

    @property
    def held(self) -> Amount:
        """What is reserved for attempts under way."""
        return sum((reserved.amount for reserved in self.open.values()), NOTHING)

    def shortfall(self, wants: Wanted, *, elapsed: int) -> Shortfall | None:
        """Why a call may not begin now, `elapsed` microseconds after the run was started; None if it may."""
        wall = self.limits.wall
        if wall is not None and elapsed > wall:
            return Shortfall("", "wall", wall, elapsed)
        return shortfall(self.limits, self.spent, self.held, wants)

    def note(self, event: e.Event) -> None:
        """Take one event in."""
        match event:
            case e.BudgetReserved():
                self.open[event.key] = event
            case e.BudgetSpent():
                reserved = self.open.pop(event.key, None)
                self.spent += event.amount
                if event.amount.steps or event.amount.effects:
                    self.counted.add(event.key)
                shares = () if reserved is None else reserved.shares
                self.owed += tuple(Owed(use, shares) for use in event.uses if use.is_owed)
            case e.BudgetPriced():
                self.spent += event.amount
                self.owed = ()
            case e.RunForked():  # what was under way, and what others share, is the run's that this one comes from
                self.open.clear()
                self.owed = tuple(Owed(owed.use) for owed in self.owed)
            case e.BudgetRaised(budget=""):
                self.limits = raised(self.limits, event.limits)
            case _:
                pass

    def carried(self) -> Carried:
        """What goes along into the next chapter."""
        return Carried(self.limits, self.spent, self.owed)

    def next_chapter(self) -> None:
        """Calls are numbered afresh."""
        self.counted.clear()


def account_at(beginning: e.Event) -> Account | None:
    """The account of a history that begins like this; None if nothing is limited or counted so far."""
    match beginning:
        case e.RunStarted(budget=Limits() as limits):
            return Account(limits)
        case e.ChapterStarted(account=Carried() as carried):
            return Account(carried.limits, carried.spent, carried.owed)
        case _:
            return None


ABOUT_BUDGETS = frozenset({e.BudgetReserved, e.BudgetSpent, e.BudgetPriced, e.BudgetRaised, e.RunForked})


def spent_of(reserved: e.BudgetReserved | None, said: tuple[Use, ...], *, is_proven_unused: bool = False) -> Amount:
    """What an attempt that has begun counts with: as far as it said what it used, that; else what was reserved for it,
    unless it is proven that it did nothing.

    >>> spent_of(None, (Use(tokens=7),)).tokens
    7
    """
    before = NOTHING if reserved is None else reserved.amount
    tokens, cost = (0, 0) if is_proven_unused else (before.tokens, before.cost)
    if said:
        tokens = sum(use.tokens for use in said)
        if any(use.cost is not None or use.is_owed for use in said):
            cost = sum(use.cost or 0 for use in said)
    return Amount(tokens, cost, before.effects, before.steps)


def use_said(*, tokens: Any, cost: Any, model: Any, **counts: Any) -> Use:
    """What an attempt says that it used, checked. UsageError for what is no amount."""
    for name, count in {"tokens": tokens or 0, **counts}.items():
        if not is_whole(count) or not 0 <= count < 2**53:
            raise UsageError(f"used({name}={count!r}): a whole number from 0 on")
    if not isinstance(model, str):
        raise UsageError(f"used(model={model!r}): the name of the model is wanted")
    try:
        found = None if cost is None else nanos(cost, what="used(cost")
    except DeclarationError as error:
        raise UsageError(str(error)) from None
    came, went, cached = counts["input_tokens"], counts["output_tokens"], counts["cached_tokens"]
    if cached > came:
        raise UsageError(f"used(cached_tokens={cached}): they are among the input_tokens, which are {came}")
    return Use(model, came + went if tokens is None else tokens, came, went, cached, found)


def merged(uses: Iterable[Use]) -> tuple[Use, ...]:
    """One use of each model (and price list): what an attempt said in several parts."""
    found: dict[tuple[str, str, bool], Use] = {}
    for use in uses:
        at = (use.model, use.prices, use.cost is None)
        before = found.get(at)
        found[at] = use if before is None else _both(before, use)
    return tuple(found.values())


def _both(one: Use, other: Use) -> Use:
    cost = None if one.cost is None or other.cost is None else one.cost + other.cost
    return Use(
        one.model, one.tokens + other.tokens, one.input + other.input, one.output + other.output,
        one.cached + other.cached, cost, one.prices, one.is_owed or other.is_owed,
    )  # fmt: skip


# ── accounts that many runs share ───────────────────────────────────────────────────────────


class SharedAccount(NamedTuple):
    """What is used and reserved in an account of many runs, in one period; `raised`: the limits that people set."""

    account: str
    since: int
    used: Amount = NOTHING
    held: Amount = NOTHING
    raised: Limits = NO_LIMITS

    def taken(self, unit: str) -> int:
        """What is used or reserved of a unit."""
        return self.used.of(unit) + self.held.of(unit) if unit else 0


class Awaited(NamedTuple):
    """What a call waits for: so much of a unit (0: anything), under this limit. No unit: that is not known."""

    unit: str = ""
    wanted: int = 0
    limit: int = 0

    def fits(self, taken: int) -> bool:
        """Whether there is room for it, with so much used and reserved."""
        return not self.unit or taken + max(self.wanted, 1) <= self.limit


class Waiter(NamedTuple):
    """A call of a run that waits for a shared account. `call`: `task/n`."""

    rid: int
    call: str
    awaited: Awaited


def with_room(waiting: Iterable[Waiter], now: SharedAccount) -> list[Waiter]:
    """For whom there is room, in the order given, each beside those before it.

    >>> waiting = [Waiter(rid, "0/0", Awaited("tokens", wanted, 10)) for rid, wanted in enumerate((9, 4, 3, 2))]
    >>> [each.rid for each in with_room(waiting, SharedAccount("a", 0, Amount(3)))]
    [1, 2]
    """
    found: list[Waiter] = []
    given: dict[str, int] = {}
    for each in waiting:
        unit, wanted, _ = each.awaited
        taken = now.taken(unit) + given.get(unit, 0)
        if each.awaited.fits(taken):
            given[unit] = given.get(unit, 0) + wanted
            found.append(each)
    return found


class Movement(NamedTuple):
    """How one event changes a shared account: so much more is used, and held (or less).

    `limits`: it is judged by these, and refused if too little is left; None: it changes the account in any case.
    `wants`: what is judged then. `call`: whose it is. `raised`: limits that a person has set; each other run that waits
    gets `tells` then, the body of an `unblock` letter. `waits`: the call waits for that, or for room, from now on."""

    account: str
    since: int
    call: Key
    used: Amount = NOTHING
    held: Amount = NOTHING
    limits: Limits | None = None
    unsaid: tuple[str, ...] = ()
    raised: Limits | None = None
    tells: bytes = b""
    waits: Awaited | None = None

    @property
    def frees(self) -> bool:
        """Whether it leaves more room than there was before."""
        return any(self.used.of(unit) + self.held.of(unit) < 0 for unit in UNITS)


def moved(before: SharedAccount, movement: Movement) -> SharedAccount | Shortfall:
    """The account after a movement, or why that is refused."""
    if movement.limits is not None:
        limits, wants = raised(movement.limits, before.raised), Wanted(movement.held, movement.unsaid)
        short = shortfall(limits, before.used, before.held, wants, budget=before.account, since=before.since)
        if short is not None:
            return short
    new_limits = before.raised if movement.raised is None else _highest(before.raised, movement.raised)
    return before._replace(used=before.used + movement.used, held=before.held + movement.held, raised=new_limits)


def account_name(budget: Budget, workflow: str, tags: Mapping[str, str]) -> str | None:
    """The account that a run uses of this budget; None if the budget is not about it.

    >>> account_name(Budget(tokens=5, tag="customer", per=60), "agent", {"customer": "ada"})
    'tag customer=ada per 60s'
    """
    if budget.workflow is not None and budget.workflow != workflow:
        return None
    name, _, value = (budget.tag or "").partition("=")
    if budget.tag is not None and (name not in tags or (value and tags[name] != value)):
        return None
    parts = [f"workflow {budget.workflow}"] if budget.workflow else []
    parts += [f"tag {name}={tags[name]}"] if budget.tag else []
    parts += [f"per {seconds(budget.per, what='per'):g}s"] if budget.per is not None else []
    return " ".join(parts)


def period_of(budget: Budget, now: int) -> int:
    """When the period began that it is now, in microseconds; 0 if the budget has none."""
    length = _length_of(budget)
    return now - now % length if length else 0


def period_after(budget: Budget, now: int) -> int:
    """When the next period begins; 0 if the budget has none."""
    length = _length_of(budget)
    return period_of(budget, now) + length if length else 0


def _length_of(budget: Budget) -> int:
    return 0 if budget.per is None else round(seconds(budget.per, what="per") * MICROSECONDS)


def wanted_again(short: Shortfall) -> Wanted:
    """What a call wanted when it was stuck, of that which it got too little of.

    >>> wanted_again(Shortfall("", "tokens", limit=10, used=9, wanted=4)).amount.tokens
    4
    """
    if short.wanted is None:
        return Wanted(NOTHING, (short.unit,))
    return Wanted(Amount(**{short.unit: short.wanted}))


# ── in words ────────────────────────────────────────────────────────────────────────────────


def money(amount: int) -> str:
    """A cost for people.

    >>> money(250_000_000)
    '0.25'
    """
    return f"{(Decimal(amount) / NANOS).normalize():f}"


def told(unit: str, amount: int) -> str:
    """An amount of a unit, for people.

    >>> told("wall", 90_000_000), told("tokens", 1200)
    ('90 s', '1,200 tokens')
    """
    if unit == "cost":
        return f"a cost of {money(amount)}"
    if unit == "wall":
        return f"{amount / MICROSECONDS:g} s"
    return f"{amount:,} {unit if amount != 1 else unit.removesuffix('s')}"


def explained(short: Shortfall) -> str:
    """Why a call may not begin, for people."""
    whose = f"the budget of {short.budget}" if short.budget else "the run's budget"
    if short.unit == PRICE:
        return "what was used before has no price, so what it cost is not known"
    if short.unit == "wall":
        return f"{whose} is {told('wall', short.limit)}, and the run was started {told('wall', short.used)} ago"
    wants = "does not say what it uses" if short.wanted is None else f"wants {told(short.unit, short.wanted)}"
    held = f", {told(short.unit, short.held)} reserved" if short.held else ""
    return (
        f"{whose} is {told(short.unit, short.limit)}: {told(short.unit, short.used)} used{held}, and this call {wants}"
    )


__all__ = [
    "ABOUT_BUDGETS", "Account", "Awaited", "Movement", "Share", "SharedAccount", "Waiter", "Wanted", "account_at",
    "account_name", "explained", "limits_of", "merged", "money", "moved", "period_after", "period_of", "raised",
    "shortfall", "spent_of", "tighter", "told", "use_said", "wanted", "wanted_again", "with_room",
]  # fmt: skip

"""What runs may spend: reserved before a call begins, and settled when it is known what it used.

    the call asks ──▶ judged ──▶ reserved, durable ──▶ the attempt ──▶ what it used, in the commit of its outcome
                         └──▶ too little is left: the call is stuck until a person decides

Only the holder of a run's epoch spends for it, and all that it spends is in the run's history: so it counts once,
whatever dies in between, and what was reserved for an attempt of which nobody heard again counts as used. An account
that many runs share changes in the same commits; the store refuses a reservation for which too little is left there.
The rules are `perdure.gates.budget`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import time_text, when
from perdure.codec import dump_exception, pack
from perdure.engine.calls import NO_ATTEMPTS, EffectAsk, Key
from perdure.errors import OverBudget, StoreError, UsageError
from perdure.gates.budget import (
    PRICE,
    Account,
    Awaited,
    Movement,
    SharedAccount,
    Wanted,
    account_name,
    explained,
    limits_of,
    merged,
    period_after,
    period_of,
    raised,
    shortfall,
    spent_of,
    tighter,
    wanted,
    wanted_again,
)
from perdure.history import events as e
from perdure.history.spending import NO_LIMITS, NOTHING, Amount, Carried, Limits, Share, Shortfall, Use
from perdure.http.classify import Sent, classify
from perdure.ledger import Happening
from perdure.runtime import mail
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.options import Rules
from perdure.runtime.performer import UNREADABLE_MICROSECONDS, Flight
from perdure.specs import Usage

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

Then = Callable[[Any], None]

Of = tuple[str, int, str, int, int]
"""Which attempt: task, n, name, use, its number."""


class Budgets:
    """What the runs in memory spend."""

    def __init__(self, turns: Turns, rules: Rules) -> None:
        self._turns = turns
        self._rules = rules
        performer = turns.performer
        performer.is_reserved, performer.settle, performer.on_use = self.is_reserved, self.settle, self.note_use

    def admit(self, live: LiveRun) -> None:
        """A run has come into memory. One that nobody limits and that counts nothing has no account."""
        if live.account is None and self._rules.shared and self._shares(live):
            live.account = Account()

    def _shares(self, live: LiveRun) -> dict[Share, Limits]:
        """The shared accounts in which the run's calls count just now, with their limits."""
        info, now = live.info, self._turns.clock.now()
        shares: dict[Share, Limits] = {}
        for budget in self._rules.shared:
            name = account_name(budget, info.workflow, info.tags)
            if name is not None:
                at = Share(name, period_of(budget, now))
                shares[at] = tighter(shares.get(at, NO_LIMITS), limits_of(budget))
        return shares

    # ── before an attempt ────────────────────────────────────────────────────────────────────
    def is_reserved(self, flight: Any, then: Then) -> bool:
        """Whether the next attempt of a flight may begin now. If not, `then(flight)` follows once it may, or it is for
        a person to decide."""
        live, account = flight.live, flight.live.account
        if account is None or flight.ask.key in account.open:
            return True
        if live.is_in_turn:
            live.deferred += (partial(self._go_on, flight, then),)
            return False
        shares = self._shares(live)
        if not account.limits and not shares:
            return True
        wants = self._wanted(flight, account)
        if wants is None:
            return False
        is_undoing = flight.is_anew or (isinstance(flight.ask, EffectAsk) and bool(flight.ask.undoes))
        if not is_undoing:  # what was done is taken back, and what does not stand is made again, whatever is left
            elapsed = self._turns.clock.now() - live.info.created_at
            short = self._owed(live, account) or account.shortfall(wants, elapsed=elapsed)
            if short is not None:
                self.block(flight, short)
                return False
        limits = dict.fromkeys(shares) if is_undoing else shares
        return self._reserve(flight, wants, limits, then)

    def _wanted(self, flight: Any, account: Account) -> Wanted | None:
        """What the next attempt is expected to use; None if that cannot be found out, which fails the call."""
        ask = flight.ask
        is_effect = isinstance(ask, EffectAsk)
        try:
            usage = _estimated(ask)
        except Exception as error:
            error.add_note(f"raised by the estimate of {ask.name}")
            if is_effect:
                self._turns.effects.fail(flight, dump_exception(error, ()), "denied", None)
            else:
                self._turns.performer.give_up(flight, error)
            return None
        return wanted(usage, is_effect=is_effect, is_counted=ask.key in account.counted)

    def _reserve(self, flight: Any, wants: Wanted, shares: dict[Share, Any], then: Then) -> bool:
        live, ask = flight.live, flight.ask
        is_effect = isinstance(ask, EffectAsk)
        if not is_effect and not flight.is_start_recorded:
            flight.is_start_recorded = ask.is_recorded = True
            live.entries.append(flight.start_entry(flight.number + 1))
        attempt = (flight.entry.attempts if is_effect else flight.number) + 1
        of: Of = (*ask.key, ask.name, ask.use, attempt)
        event = e.BudgetReserved(*of, wants.amount, wants.unsaid, tuple(shares), is_effect)
        spending = tuple(
            Movement(*at, ask.key, held=wants.amount, limits=limits, unsaid=wants.unsaid)
            for at, limits in shares.items()
        )
        live.entries.append(Entry(event, spending=spending))
        live.account.note(event)
        if is_effect and not shares:  # its own start, which is durable before it is sent, goes along
            return True
        live.then += (partial(self._go_on, flight, then),)
        self._turns.mark(live)
        return False

    def _go_on(self, flight: Any, then: Then) -> None:
        live, ask = flight.live, flight.ask
        if flight.is_over or live.is_gone or live.is_leaving:
            return
        if self._turns.is_stopping and not isinstance(ask, EffectAsk):  # whoever has the run next begins it
            self.settle(flight, None)
            live.flights.pop(ask.key, None)
            live.held += (ask,)
            return
        then(flight)

    # ── too little is left ───────────────────────────────────────────────────────────────────
    def block(self, flight: Any, short: Shortfall) -> None:
        """The call is stuck until a person decides; what else is under way goes on."""
        live, ask = flight.live, flight.ask
        attempts = live.execution.known.attempts
        if isinstance(ask, EffectAsk):
            flight.is_start_recorded |= ":" not in ask.key[0]  # a start means that it left
        elif flight.number:  # when it goes on, it is with the attempt after the last one
            before = attempts.get(ask.key, NO_ATTEMPTS)
            attempts[ask.key] = before._replace(failed=flight.number, first_at=flight.first_at)
        self._turns.performer.end(flight)
        if not short.budget:
            hint = f"{ask.label}: {self._unpriced(live) if short.unit == PRICE else explained(short)}"
            self._turns.parking.block_call(live, "over_budget", hint, flight, short)
            return
        short = msgspec.structs.replace(short, until=self._until(live, short))
        hint = _hint(ask.label, short)
        self._turns.parking.block_call(live, "over_budget", hint, flight, short, (_waits(short, ask.key),))
        live.then += (partial(self.look_again, live),)  # there may be enough since before this one was known to wait

    def wait_too(self, live: LiveRun) -> None:
        """A fork begins where calls wait for what many share: it is told of a raise as its original is."""
        live.account = live.account or Account()
        for key, blocked in list(live.blocked_calls.items()):
            if blocked.short is not None and blocked.short.budget:
                self._turns.parking.block(live, blocked, (_waits(blocked.short, key),))

    # ── others share it: there may be enough again ───────────────────────────────────────────
    def deadline(self, live: LiveRun) -> int | None:
        """When the next period begins of a budget for which a call of the run waits."""
        shorts = [blocked.short for blocked in live.blocked_calls.values() if blocked.short is not None]
        return min((short.until for short in shorts if short.until), default=None)

    def look_again(self, live: LiveRun, *, is_told: bool = False) -> None:
        """Let calls go on that wait for a budget, where there is enough by now: others raised what they share, or used
        less of it than they had reserved; a period began; or calls of this run have used less. Of those that wait on
        something is recorded only if they were told (`is_told`), which the store does once; or in another period."""
        if live.is_in_turn:
            live.deferred += (partial(self.look_again, live, is_told=is_told),)
            return
        if live.is_gone or live.is_leaving:
            return
        for key, blocked in list(live.blocked_calls.items()):
            if blocked.short is None:
                continue
            look = self._shared_now if blocked.short.budget else self._own_now
            short = look(live, blocked.short)
            if short is None:
                again = mail.ControlLetter("there is enough in it again", choice="retry")
                mail.try_again(self._turns, live, again, key)
                self._turns.mark(live)
            elif short.budget and (is_told or short.since != blocked.short.since):
                self._wait_on(live, blocked, key, short)
            else:
                short = msgspec.structs.replace(blocked.short, until=short.until)
                live.blocked_calls[key] = msgspec.structs.replace(blocked, short=short)

    def _wait_on(self, live: LiveRun, blocked: e.RunBlocked, key: Key, short: Shortfall) -> None:
        """Others were faster, or it is still too little: whoever makes room next is to tell this one again."""
        again = msgspec.structs.replace(blocked, short=short, hint=_hint(blocked.call or "", short))
        self._turns.parking.block(live, again, (_waits(short, key),))
        live.then += (partial(self.look_again, live),)

    def _own_now(self, live: LiveRun, short: Shortfall) -> Shortfall | None:
        """None if there is enough of what was reserved by other calls when this one was stuck; else it is for a person
        to bring that about."""
        if live.account is None or not short.held:
            return msgspec.structs.replace(short, until=0)
        is_enough = live.account.shortfall(wanted_again(short), elapsed=0) is None
        return None if is_enough else msgspec.structs.replace(short, until=0)

    def _shared_now(self, live: LiveRun, short: Shortfall) -> Shortfall | None:
        """How much is missing by now, None if nothing is. `until`: when to look again; 0 if that is for a person to
        bring about."""
        shares = self._shares(live)
        at = next((share for share in shares if share.account == short.budget), None)
        if at is None:  # nobody limits it any more
            return None
        try:
            found = self._turns.store.accounts(*at)
        except StoreError:
            self._turns.on_trouble()
            return msgspec.structs.replace(short, until=self._turns.clock.now() + UNREADABLE_MICROSECONDS)
        now = found[0] if found else SharedAccount(*at)
        limits, wants = raised(shares[at], now.raised), wanted_again(short)
        missing = shortfall(limits, now.used, now.held, wants, budget=at.account, since=at.since)
        return None if missing is None else msgspec.structs.replace(missing, until=self._until(live, short))

    def _until(self, live: LiveRun, short: Shortfall) -> int:
        """When the next period begins; 0 if there is none, or if the call wants more than any period has."""
        limits = next((limits for share, limits in self._shares(live).items() if share.account == short.budget), None)
        if limits is None or shortfall(limits, NOTHING, NOTHING, wanted_again(short)) is not None:
            return 0
        info, now = live.info, self._turns.clock.now()
        is_it = (each for each in self._rules.shared if account_name(each, info.workflow, info.tags) == short.budget)
        return max(period_after(each, now) for each in is_it)

    def overdrawn(self, live: LiveRun, outcome: Any) -> None:
        """Others have spent what this call wants: nothing of this append is written. All of it goes again, without that
        reservation."""
        written, key = live.landed(), outcome.call
        place = next(n for n, entry in enumerate(written.entries) if _reserves(entry.event, key))
        entries = [*written.entries[:place], *_but_settling(written.entries[place + 1 :], key)]
        live.entries = _but_settling(live.entries, key)
        waiting = [_waiting(then, self._go_on, key) for then in written.then]
        then = tuple(then for then, flight in zip(written.then, waiting, strict=True) if flight is None)
        live.take_back(msgspec.structs.replace(written, entries=entries, then=then))
        if live.account is not None:
            live.account.open.pop(key, None)
        for flight in waiting:
            if flight is not None and not flight.is_over:
                self.block(flight, outcome.short)
        self._turns.mark(live)

    # ── after an attempt ─────────────────────────────────────────────────────────────────────
    def note_use(self, flight: Flight, use: Use) -> None:
        """The body of an attempt says what it has used."""
        live = flight.live
        account = live.account = live.account or Account()
        account.said[flight.ask.key] = (*account.said.get(flight.ask.key, ()), use)

    def settle(self, flight: Any, error: BaseException | None, *, has_begun: bool | None = None) -> None:
        """An attempt is over, or does not begin: what it has used counts in place of what was reserved for it. It is
        recorded with what is recorded next, which says what came of the attempt."""
        live = flight.live
        has_begun = flight.airborne != 0 if has_begun is None else has_begun
        if live.account is None or live.is_gone or live.is_leaving:
            return
        if live.is_in_turn:
            live.deferred += (partial(self.settle, flight, error, has_begun=has_begun),)
            return
        ask = flight.ask
        said, reserved = live.account.said.pop(ask.key, ()), live.account.open.get(ask.key)
        if reserved is None and not said:
            return
        of: Of = (*ask.key, ask.name, ask.use, flight.number if reserved is None else reserved.attempt)
        if not has_begun:
            self._spend(live, e.BudgetSpent(*of, how="not_begun"), reserved)
            return
        uses = merged(map(partial(self._with_cost, live, reserved), said))
        is_unused = error is not None and classify(error, now=self._turns.clock.now()).sent is not Sent.UNKNOWN
        amount = spent_of(reserved, uses, is_proven_unused=is_unused)
        self._spend(live, e.BudgetSpent(*of, amount, uses), reserved)

    def settle_open(self, live: LiveRun) -> None:
        """Nobody will hear of these attempts: the process that made them is gone, or the run ends."""
        account = live.account
        if account is None:
            return
        for reserved in list(account.open.values()):
            if reserved.key in live.flights:
                continue
            entry = settled(reserved, has_begun=self._has_begun(live, reserved))
            account.note(entry.event)
            live.entries.append(entry)
            self._turns.mark(live)

    def _has_begun(self, live: LiveRun, reserved: e.BudgetReserved) -> bool:
        if not reserved.is_effect:
            return True
        known = live.execution.known
        standing = known.effects.get(reserved.key)
        return reserved.key in known.ended_effects or (standing is not None and standing.attempt >= reserved.attempt)

    def close_chapter(self, live: LiveRun) -> Carried | None:
        """What the run takes along into its next chapter."""
        self.settle_open(live)
        if live.account is None:
            return None
        live.account.next_chapter()
        return live.account.carried()

    def _spend(self, live: LiveRun, event: e.BudgetSpent, reserved: e.BudgetReserved | None) -> None:
        live.entries.append(Entry(event, spending=_movements(event, reserved)))
        if live.account is not None:
            live.account.note(event)
        if live.blocked_calls:
            live.then += (partial(self.look_again, live),)
        self._turns.mark(live)

    # ── what it cost ─────────────────────────────────────────────────────────────────────────
    def _with_cost(self, live: LiveRun, reserved: e.BudgetReserved | None, use: Use) -> Use:
        """With its cost, if that can be told; what is limited and cannot be told is owed."""
        if use.cost is not None:
            return use
        priced = self._priced(use)
        if priced is not None or not use.model or reserved is None:
            return priced or use
        limits = [live.account.limits if live.account else NO_LIMITS, *self._shares(live).values()]
        return msgspec.structs.replace(use, is_owed=any(each.cost is not None for each in limits))

    def _priced(self, use: Use) -> Use | None:
        prices = self._rules.prices
        return None if prices is None else prices.priced(use, when(self._turns.clock.now()).date())

    def _owed(self, live: LiveRun, account: Account) -> Shortfall | None:
        """What was used before there was a price for it is reckoned now, if there is one; else nothing begins."""
        if not account.owed:
            return None
        priced = [(self._priced(owed.use), owed.shares) for owed in account.owed]
        found = [(use, shares) for use, shares in priced if use is not None]
        if len(found) < len(priced):
            return Shortfall("", PRICE, 0, 0)
        spending = tuple(
            Movement(*at, ("", 0), used=Amount(cost=use.cost or 0)) for use, shares in found for at in shares
        )
        uses = tuple(use for use, _ in found)
        event = e.BudgetPriced(uses, Amount(cost=sum(use.cost or 0 for use in uses)))
        live.entries.append(Entry(event, spending=spending))
        account.note(event)
        self._turns.mark(live)
        return None

    def _unpriced(self, live: LiveRun) -> str:
        """What has no price, for people."""
        uses = [owed.use for owed in (live.account.owed if live.account else ()) if self._priced(owed.use) is None]
        which = ", ".join(
            f"{use.model} ({use.input:,} tokens in, {use.output:,} out)" if use.input or use.output
            else f"{use.model} ({use.tokens:,} tokens, not said how many in and out)" for use in uses
        )  # fmt: skip
        return (
            f"there is a limit on costs, and no price for {which}. Add it to the price list that the Runtime is given "
            "(prices=), start the worker anew, and let the call be tried again"
        )

    # ── a person decides ─────────────────────────────────────────────────────────────────────
    def take_raise(self, live: LiveRun, limits: Limits, by: str, why: str, at: Share) -> list[Key]:
        """A person sets new limits: of what others share, in the period that it is by now. What is given are the calls
        that were stuck for that budget."""
        at = next((share for share in self._shares(live) if share.account == at.account), at)
        event = e.BudgetRaised(limits, by, why, *at)
        told = msgspec.json.encode(mail.ControlLetter(why, by, choice=mail.RAISED))
        spending = (Movement(*at, ("", 0), raised=limits, tells=told),) if at.account else ()
        live.account = live.account or Account()
        live.account.note(event)
        live.entries.append(Entry(event, spending=spending))
        if spending:  # others are told in this commit, and some of them may be here
            live.then += (self._turns.on_letters,)
        stuck = [(key, blocked.short) for key, blocked in live.blocked_calls.items() if blocked.short is not None]
        return [key for key, short in stuck if short.budget == at.account and short.unit != PRICE]

    def fail(self, live: LiveRun, blocked: e.RunBlocked) -> None:
        """A person lets the call fail that is stuck for lack of budget."""
        short = blocked.short or Shortfall("", "", 0, 0)
        ask = live.execution.open.get((blocked.task or "", blocked.n))
        error = OverBudget(
            f"{blocked.call}: {explained(short)}; it was not begun", short.budget, short.unit, short.limit, short.used
        )
        raw = dump_exception(error, ())
        output = pack(raw, live.execution.memo)
        of: tuple[str, int, str, int] = (blocked.task or "", blocked.n, blocked.name, blocked.use)
        live.supplied |= {of[:2]}
        live.has_sections |= ":" in of[0]
        standing = live.execution.known.effects.get(of[:2])
        if standing is None and not isinstance(ask, EffectAsk):
            live.record(e.StepFailed(*of, output=output.digest, attempt=0), raw=raw, output=output, delivers=True)
            return
        row = None if standing is None else self._turns.effects.row(live, standing.operation)
        key = ask.business_key if isinstance(ask, EffectAsk) else "" if row is None else row.business_key
        now = self._turns.clock.now()
        event = e.EffectFailed(
            *of, output=output.digest, attempt=0, operation="" if standing is None else standing.operation,
            business_key=key, how="denied",
        )  # fmt: skip
        row = row and row.moved(Happening.GIVEN_UP, now=now, note="over budget, and given up by a person")
        self._turns.effects.record(live, event, row, raw=raw, output=output, delivers=True)


def _waits(short: Shortfall, call: Key) -> Movement:
    """From now on the run is told when somebody raises this, or leaves room for this call."""
    awaited = Awaited(short.unit, short.wanted or 0, short.limit)
    return Movement(short.budget, short.since, call, waits=awaited)


def _hint(call: str, short: Shortfall) -> str:
    """What people read about a call that waits for what many share."""
    soon = f"; it is tried again by itself at {time_text(short.until)}" if short.until else ""
    return f"{call}: {explained(short)}{soon}"


def settled(reserved: e.BudgetReserved, *, has_begun: bool) -> Entry:
    """What is recorded of an attempt of which nobody will hear: it counts as reserved, if it has begun."""
    of = (*reserved.key, reserved.name, reserved.use, reserved.attempt)
    amount, how = (spent_of(reserved, ()), "interrupted") if has_begun else (NOTHING, "not_begun")
    event = e.BudgetSpent(*of, amount, how=how)
    return Entry(event, spending=_movements(event, reserved))


def _movements(event: e.BudgetSpent, reserved: e.BudgetReserved | None) -> tuple[Movement, ...]:
    """How the accounts that runs share change when an attempt is settled."""
    if reserved is None:
        return ()
    back = NOTHING - reserved.amount
    return tuple(Movement(*at, event.key, used=event.amount, held=back) for at in reserved.shares)


def _estimated(ask: Any) -> Usage | None:
    """What the author says that this call will use."""
    spec = ask.spec
    if spec.estimate is None:
        found: Usage | None = spec.uses
        return found
    args, kwargs = spec.arguments.loads(ask.input)
    usage = spec.estimate(*args, **kwargs)
    if not isinstance(usage, Usage):
        raise UsageError(f"the estimate of {spec.name} gave {usage!r}: a perdure.Usage is wanted")
    return usage


def _reserves(event: e.Event, key: Key) -> bool:
    return isinstance(event, e.BudgetReserved) and event.key == key


def _but_settling(entries: Iterable[Entry], key: Key) -> list[Entry]:
    """Without what takes back a reservation of this call that was not made."""
    return [entry for entry in entries if not (isinstance(entry.event, e.BudgetSpent) and entry.event.key == key)]


def _waiting(then: Any, go_on: Any, key: Key) -> Any:
    """The flight of this call that goes on then; None if it is something else that follows."""
    is_it = isinstance(then, partial) and then.func == go_on and then.args[0].ask.key == key
    return then.args[0] if is_it else None


__all__ = ["Budgets", "settled"]

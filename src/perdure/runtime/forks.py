"""What a fork may not do again: its original has done it.

A fork and its original are two runs, with operations of their own. So that what the original did outside is not done a
second time, an effect of a fork is held before it is sent if the run that it was forked from (or one that that one was
forked from, or a child run of theirs) has an operation of the same name and key that may have happened; and an undoing,
if what it takes back is not the fork's own. A person decides then. The children of forks are held to the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.clock import time_text
from perdure.codec import pack, unpack
from perdure.engine.calls import DONE_BY_ORIGINAL, Key
from perdure.errors import StepError, StoreError
from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.runtime import mail
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import PUT_OFF_MICROSECONDS
from perdure.store.protocol import EffectFilter

if TYPE_CHECKING:
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.turn import Turns

CHOICES = ("retry", "reuse", "fail")
ROWS_MAX = 2**31 - 1
"""More than any ledger has."""


class Met(NamedTuple):
    """What the original has done: the same, or what is now to be taken back."""

    entry: LedgerEntry
    is_same: bool = True


class Forks:
    """Keeps the forks in memory, and their children, from doing again what was done."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    # ── before an effect of a fork is sent ───────────────────────────────────────────────────
    def holds(self, flight: EffectFlight) -> bool:
        """Whether this is not to be sent now: a person has to decide, or has decided otherwise, or it was put off."""
        if flight.entry.status is EffectState.STARTED:  # it may have left already: sending it again is how to find out
            return False
        decided = flight.live.execution.known.decided.get(flight.ask.key)
        if decided == "retry":
            return False
        try:
            if decided == "fail":
                self._fail(flight)
                return True
            met = self.met(flight)
            if met is None:
                return False
            if decided == "reuse" and _may_stand(met, flight.entry):
                self._reuse(flight, met.entry)
            else:
                self._ask(flight, met, decided)
        except StoreError as error:
            effects = self._turns.effects
            effects.later(flight, PUT_OFF_MICROSECONDS, effects.send, error)
        return True

    def met(self, flight: EffectFlight) -> Met | None:
        """What the original has done of this. An operation of scope `global` is the same in both runs."""
        spec, ask, live = flight.spec, flight.ask, flight.live
        if spec.scope == "global":
            return None
        for name in (spec.name, *spec.aliases):
            which = EffectFilter(action_name=name, business_key=ask.business_key, limit=ROWS_MAX)
            for entry in self._turns.store.effects(which):
                if entry.status is not EffectState.FAILED_FINAL and self._is_of_original(live, entry):
                    return Met(entry)
        undone = self._turns.effects.row(live, ask.undoes) if ask.undoes else None
        return None if undone is None or undone.rid == live.rid else Met(undone, is_same=False)

    def is_met_after_start(self, flight: EffectFlight) -> bool:
        """Whether the original has started the same while the start of this was recorded. Whoever looks after its own
        start is durable sees the other's, or was first."""
        return not (self.is_confirmed(flight) or flight.standing.is_resent) and self.met(flight) is not None

    def is_confirmed(self, flight: EffectFlight) -> bool:
        """Whether a person wants it done again."""
        return flight.live.execution.known.decided.get(flight.ask.key) == "retry"

    def _is_of_original(self, live: LiveRun, entry: LedgerEntry) -> bool:
        """Whether a run did it that this one descends from by forking, or a child of one."""
        lineage = live.info.lineage
        if entry.rid in lineage:
            return True
        info = self._turns.store.find(entry.run_id)
        if info is None or info.rid != entry.rid:
            return False
        while info is not None and info.parent_run_id is not None:
            info = self._turns.store.find(info.parent_run_id)
            if info is not None and info.rid in lineage:
                return True
        return False

    # ── what a person decides ────────────────────────────────────────────────────────────────
    def _ask(self, flight: EffectFlight, met: Met, decided: str | None) -> None:
        live, ask = flight.live, flight.ask
        hint = _told(flight, met)
        if decided == "reuse":
            hint += mail.REFUSED + "the original has no result for it, or an attempt of its own is recorded"
        live.execution.known.decided[ask.key] = ""
        self._turns.effects.release(flight)
        self._turns.performer.end(flight)
        risk = "high" if "high" in {flight.spec.stakes, met.entry.risk} else ""
        self._turns.parking.block(live, e.RunBlocked(DONE_BY_ORIGINAL, hint, *ask.key, ask.name, ask.use, risk=risk))

    def decide(self, live: LiveRun, letter: mail.ControlLetter, blocked: e.RunBlocked, key: Key) -> None:
        """A person has decided: the call goes on, and does what was decided when it comes to be sent."""
        if letter.choice not in CHOICES:
            problem = f"{letter.choice!r} does not decide this; one of {', '.join(CHOICES)} does"
            hint = blocked.hint.partition(mail.REFUSED)[0] + mail.REFUSED + problem
            self._turns.parking.block(live, msgspec.structs.replace(blocked, hint=hint))
            return
        self._turns.parking.unblock(live, key, letter.choice, letter.by, letter.reason)
        live.execution.known.decided[key] = letter.choice
        ask = live.execution.open.get(key)
        has_come = self._turns.sections.has_asked(live, key) if ask is None else not live.is_to_perform(ask)
        if has_come:
            live.then += (partial(self._turns.perform_again, live, key),)

    def withdraw(self, live: LiveRun, key: Key) -> None:
        """The code does not want this call any more: nobody has to decide about it."""
        blocked = live.blocked_calls.get(key)
        if blocked is not None and blocked.reason == DONE_BY_ORIGINAL:
            self._turns.parking.unblock(live, key, "cancelled")

    def _fail(self, flight: EffectFlight) -> None:
        why = f"{flight.ask.label} was not made: the run that this one was forked from has done it"
        effects = self._turns.effects
        effects.deny(flight, StepError(why), "denied", effects.given_up(flight, why))

    def _reuse(self, flight: EffectFlight, entry: LedgerEntry) -> None:
        """The original's result stands for this one's."""
        raw = entry.result
        if raw is None and entry.response_hash is not None:
            raw = unpack(entry.response_hash, None, partial(self._turns.store.blob, entry.rid))
        if raw is None:
            self._ask(flight, Met(entry), "reuse")
            return
        flight.entry = entry
        self._turns.effects.succeed(flight, raw, "reused", None)

    # ── what the fork has from its original ──────────────────────────────────────────────────
    def taken_along(self, flight: EffectFlight, name: str, revision: int) -> LedgerEntry | None:
        """The row of an operation whose outcome is among the events that the fork began with: it counts as its own."""
        live = flight.live
        which = EffectFilter(action_name=name, business_key=flight.ask.business_key, limit=ROWS_MAX)
        for entry in self._turns.store.effects(which):
            is_wanted = entry.rid in live.info.lineage and entry.revision == revision
            if is_wanted and entry.operation_id in self._copied(live):
                return entry
        return None

    def _copied(self, live: LiveRun) -> frozenset[str]:
        """The operations whose outcomes stand in what was copied. Read once, of all chapters."""
        known, until = live.execution.known, live.info.forked_seq
        if known.copied is None:
            rows: Any = () if until is None else self._turns.store.load(live.rid, from_seq=0).rows[: until + 1]
            events = (e.decode(row.envelope) for row in rows if row.kind in {"effect.succeeded", "effect.failed"})
            known.copied = frozenset(getattr(event, "operation", "") for event in events)
        return known.copied


def _may_stand(met: Met, own: LedgerEntry) -> bool:
    """Whether the original's result may stand for this one's. Not once an attempt of its own is recorded."""
    return met.is_same and met.entry.status is EffectState.SUCCEEDED and own.status is EffectState.PENDING


def _told(flight: EffectFlight, met: Met) -> str:
    """What a person has to know."""
    entry, ask = met.entry, flight.ask
    when = f", {time_text(entry.started_at)}" if entry.started_at else ""
    reference = f", reference {entry.external_ref}" if entry.external_ref else ""
    undone = f", undone since by operation {entry.compensated_by}" if entry.compensated_by else ""
    state = f"{entry.status}{when}{reference}{undone}"
    what = f"{entry.label}, key {entry.business_key!r}, operation {entry.operation_id} ({state})"
    if not met.is_same:
        return f"{ask.label} takes back what the original did, run {entry.run_id}: {what}. Nothing was sent"
    request = ask.view or (ask.packed or pack(ask.input, flight.live.execution.memo)).digest
    arguments = "the same arguments" if entry.request_hash == request else "other arguments"
    return f"{ask.label} was done by the original, run {entry.run_id}, with {arguments}: {what}. Nothing was sent"

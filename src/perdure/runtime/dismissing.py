"""The child runs that a run has left behind by going back: had again, or dismissed, and what those have done is owed.

    not wanted any more ──▶ recorded, and told to stop in the same commit ──▶ it has ended, and what it has started, too
                        ──▶ what it did is recorded, and owed ──▶ a new one of the same id is started

Which of them is wanted is `perdure.engine.leftovers`' to say. All that is known of one stands in the run's history: so
a crash anywhere in between needs no case of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from perdure.codec import pack, unpack
from perdure.engine.calls import DEBT, ChildAsk
from perdure.engine.leftovers import Ended, Leftover, Leftovers
from perdure.engine.owing import OfChild, order_of
from perdure.errors import StoreError
from perdure.history import events as e
from perdure.ledger import EffectState
from perdure.runtime import mail
from perdure.runtime.live import LiveRun
from perdure.store.protocol import EffectFilter, Filter, RunInfo, Store, Watch, every_run

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

ROWS_MAX = 2**31 - 1
LOOK_SECONDS = 0.05
RUNS_PER_READ = 100


class Dismissing:
    """Sees to the leftovers of the runs in memory."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[LiveRun, list[ChildAsk]] = {}

    # ── wanted again ─────────────────────────────────────────────────────────────────────────
    def attaches(self, live: LiveRun, ask: ChildAsk) -> bool:
        """Whether a call has a run that is left."""
        child = _leftovers(live).get(ask.run_id)
        if child is not None:
            self._turns.children.attach(live, ask, child.ended)
            child.attached[ask.key] = ask.use
        return child is not None

    def waits(self, live: LiveRun, ask: ChildAsk) -> bool:
        """Whether a call starts no run now, since an earlier child in its place is still there."""
        left = _leftovers(live)
        if left.get(ask.run_id) is not None or not left.open_of(ask):
            return False
        self._waiting = {each: asks for each, asks in self._waiting.items() if not each.is_gone}
        waiting = self._waiting.setdefault(live, [])
        if ask not in waiting:
            waiting.append(ask)
        self._turns.loop.call_soon(self._look_again, live)
        return True

    def takes(self, live: LiveRun, key: mail.ChildKey, status: str, raw: bytes) -> bool:
        """Whether a letter is about the end of a leftover: recorded for all calls that wait for it; under `~`, if there
        are none."""
        child = _leftovers(live).get(key.run_id)
        if child is None:
            return False
        if child.ended is not None:  # it was told before, to another of its calls
            return True
        child.ended = Ended(status, raw)
        output = pack(raw, live.execution.memo)
        for of in self._calls_of(live, child) or [(DEBT, 0, key.name, key.use)]:
            event = e.ChildEnded(*of, key.run_id, status, output.digest)
            live.has_sections |= event.is_in_section
            live.record(event, raw=raw, output=output, delivers=True)
        return True

    def _calls_of(self, live: LiveRun, child: Leftover) -> list[tuple[str, int, str, int]]:
        """The calls of the way that counts which wait for this child. One that is asked for and not attached yet hears
        of its end when it is."""
        known = live.execution.known.children.items()
        uses = {at: each.use for at, each in known if each.run_id == child.run_id} | child.attached
        return [(*at, child.name, use) for at, use in uses.items()]

    # ── not wanted any more ──────────────────────────────────────────────────────────────────
    def look(self, live: LiveRun) -> None:
        """Dismiss what nobody will ask for any more; take over what those that have ended owe; start what has waited
        for that."""
        if live.is_parked or live.is_leaving or live.is_in_turn:
            return
        left, execution = _leftovers(live), live.execution
        has_ended = execution.debts is not None and execution.debts.has_ended
        for child in left.unwanted(execution.loop.live_tasks(), has_ended=has_ended):
            self._dismiss(live, child)
        try:
            for child in left.dismissed():
                self._take_over(live, left, child)
        except StoreError as error:
            log.warning("run %s: what a child owes cannot be read, trying again: %s", live.run_id, error)
            self._turns.loop.call_later(LOOK_SECONDS, self._look_again, live)
        self._start_waiting(live)

    def _look_again(self, live: LiveRun) -> None:
        if not (live.is_gone or live.is_in_turn):
            self._turns.advance(live)

    def _start_waiting(self, live: LiveRun) -> None:
        waiting = self._waiting.get(live)
        if not waiting:
            return
        left = _leftovers(live)
        self._waiting[live] = [ask for ask in waiting if left.open_of(ask)]
        for ask in waiting:
            if left.open_of(ask):
                continue
            if ":" in ask.key[0]:
                self._turns.sections.perform_again(live, ask.key)
            elif live.execution.open.get(ask.key) is ask:
                self._turns.children.start(live, ask)
        if not self._waiting[live]:
            del self._waiting[live]

    def _dismiss(self, live: LiveRun, child: Leftover) -> None:
        child.is_dismissed = True
        live.record(e.ChildDismissed(*child.key, child.name, child.use, child.run_id, child.parent))
        if child.ended is None and not child.is_told:
            self._turns.children.tell(live, [child.run_id])
        log.warning("run %s: its child %s is not wanted any more", live.run_id, child.run_id)
        self._turns.mark(live)

    def _take_over(self, live: LiveRun, left: Leftovers, child: Leftover) -> None:
        """What a child that has ended did is owed. What it has started is dismissed in its place."""
        store = self._turns.store
        info = store.find(child.run_id)
        if info is None or not info.status.is_final:
            return
        debts = list(done_by(store, info))
        for started in every_run(store, Filter(parent_run_id=child.run_id, limit=RUNS_PER_READ)):
            if left.get(started.run_id) is None:
                self._dismiss_descendant(live, left, child, started)
        raw = msgspec.json.encode(debts)
        output = pack(raw, live.execution.memo)
        event = e.ChildOwed(*child.key, child.name, child.use, child.run_id, output.digest)
        live.record(event, raw=raw, output=output, delivers=True)
        child.is_owed = True
        self._turns.mark(live)

    def _dismiss_descendant(self, live: LiveRun, left: Leftovers, child: Leftover, started: RunInfo) -> None:
        descendant = Leftover(
            child.key, child.name, child.use, started.run_id, child.base, parent=child.run_id,
            is_told=started.status.is_final,
        )  # fmt: skip
        left.add(descendant)
        if not started.status.is_final:
            key = mail.ChildKey(*child.key, child.name, child.use, started.run_id)
            live.watches += (Watch(started.run_id, live.rid, msgspec.json.encode(key).decode()),)
        self._dismiss(live, descendant)


def _leftovers(live: LiveRun) -> Leftovers:
    left = live.execution.leftovers
    if left is None:
        raise AssertionError("the run has never gone back")
    return left


def done_by(store: Store, info: RunInfo) -> Iterator[OfChild]:
    """What a run has done outside, and what was not taken back."""
    stand = {
        row.operation_id for row in store.effects(EffectFilter(rid=info.rid, limit=ROWS_MAX))
        if row.status is EffectState.SUCCEEDED and row.compensated_by is None
    }  # fmt: skip
    if not stand:
        return
    inputs: dict[str, tuple[msgspec.Raw, ...]] = {}
    fetch = partial(store.blob, info.rid)
    for row in store.load(info.rid, from_seq=0).rows:
        event = e.decode(row.envelope)
        operation = getattr(event, "operation", "")
        if operation in stand and isinstance(event, e.StepStarted | e.StepCompleted | e.AttemptFailed):
            if event.input is not None and event.kept:
                inputs[operation] = (_payload(row.input, event.input, fetch),)
            if isinstance(event, e.EffectSucceeded) and event.how != "reused" and not event.undoes:
                output = _payload(row.output, event.output, fetch)
                order = order_of(row.at, row.seq)
                yield OfChild(event.name, event.business_key, operation, order, output, inputs.get(operation, ()))


def _payload(inline: bytes | None, digest: bytes, fetch: Callable[[bytes], bytes]) -> msgspec.Raw:
    return msgspec.Raw(inline if inline is not None else unpack(digest, None, fetch))


__all__ = ["Dismissing", "done_by"]

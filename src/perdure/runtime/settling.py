"""A person says what became of an effect. The run goes on by itself; who said it, when and why is in its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from perdure.codec import dump_exception, pack
from perdure.engine.calls import EffectAsk, Key
from perdure.errors import StepError
from perdure.history import events as e
from perdure.ledger import EffectState, Happening, LedgerEntry
from perdure.runtime.live import LiveRun

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

SETTLED = {
    "succeeded": Happening.SETTLED_SUCCEEDED,
    "failed": Happening.SETTLED_FAILED,
    "retry": Happening.SETTLED_TRY_AGAIN,
}


class Settling:
    """Takes in what people decide about effects."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def settle(self, live: LiveRun, blocked: e.RunBlocked, key: Key, letter: Any, value: bytes) -> str | None:
        """A person says what became of an effect, or what its result was. None, or why that cannot be."""
        standing = live.execution.known.effects.get(key)
        entry = None if standing is None else self._turns.effects.row(live, standing.operation)
        if standing is None or entry is None:
            return "this call is no effect in doubt"
        if letter.attempt not in {0, entry.attempts}:
            return f"the decision was about attempt {letter.attempt}; attempt {entry.attempts} was sent meanwhile"
        now = max(self._turns.clock.now(), live.last_at)
        told = f"settled by {letter.by or 'a person'}" + (f": {letter.reason}" if letter.reason else "")
        happening = SETTLED.get(letter.choice)
        if entry.status is EffectState.SUCCEEDED:
            if letter.choice not in {"succeeded", "value"}:
                return "it has succeeded: only its result can be supplied"
        elif happening is None:
            return f"an effect in doubt is settled, not unblocked with {letter.choice!r}"
        else:
            entry = entry.moved(happening, now=now, note=told)
        is_unwanted = letter.choice == "retry" and key in live.execution.holding
        if is_unwanted:  # the workflow has cancelled the call: nobody wants another attempt
            entry = entry.moved(Happening.GIVEN_UP, now=now, note=told)
        entry = entry._replace(external_ref=letter.reference or entry.external_ref)
        unblocked = e.RunUnblocked(letter.choice, letter.by, *key, letter.reason, blocked.name, blocked.use)
        live.note_unblocked(unblocked)
        self._turns.effects.record(live, unblocked, entry)
        live.change = self._turns.parking.change(live)
        if letter.choice == "retry" and not is_unwanted:
            return None
        self._supply(live, blocked, entry, letter, value)
        return None

    def _supply(self, live: LiveRun, blocked: e.RunBlocked, entry: LedgerEntry, letter: Any, value: bytes) -> None:
        is_success = entry.status is EffectState.SUCCEEDED
        key = (blocked.task or "", blocked.n)
        ask = live.execution.open.get(key)
        undoes = ask.undoes if isinstance(ask, EffectAsk) else self._turns.sections.undoes(live, key)
        undoes = undoes if is_success else ""
        undone = self._turns.effects.own_row(live, undoes) if undoes else None
        raw = value if is_success else dump_exception(StepError(entry.note), ())
        output = pack(raw, live.execution.memo)
        kind: Any = e.EffectSucceeded if is_success else e.EffectFailed
        event = kind(
            blocked.task, blocked.n, blocked.name, blocked.use, output=output.digest, attempt=0,
            operation=entry.operation_id, business_key=entry.business_key, how="settled",
        )  # fmt: skip
        if is_success:
            entry = entry.answered(raw, output.digest)
            event = msgspec.structs.replace(event, undoes=undoes)
            undone = undone and undone.undone_by(entry.operation_id, now=entry.updated_at)
        live.supplied |= {event.key}
        live.has_sections |= event.is_in_section
        self._turns.effects.record(live, event, entry, raw=raw, output=output, delivers=True, undone=undone)

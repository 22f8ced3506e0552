"""What would a policy say: about calls that are written down, and about the effects that a store has recorded?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from perdure.clock import MICROSECONDS
from perdure.codec import codec_for, unpack
from perdure.errors import DecodeError, HistoryCorruptError, UsageError
from perdure.gates.policy import Asked, Policy, Verdict
from perdure.gates.ruling import Ruling, Use, judge
from perdure.history import events as e
from perdure.ledger import LedgerEntry
from perdure.store.protocol import EffectFilter, Store

ROWS_PER_READ = 500
_PLAIN = codec_for(Any)
_CALL = re.compile(r"\s*([^\s({]+)\s*\((.*)\)\s*", re.DOTALL)


class Said(msgspec.Struct, frozen=True):
    """What a policy says about one call. `verdict`: allow, approve or refuse, or `unreadable` if its arguments are not
    kept. `needs`: the approvals that it needs, `rates`: what it counts against, in words. `run`, `operation`: of an
    effect that is recorded. `at`: when it is made, in seconds, of one call among others."""

    call: str
    verdict: str
    rule: str = ""
    why: str = ""
    needs: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    run: str = ""
    operation: str = ""
    at: float | None = None


def written_call(text: str) -> tuple[str, dict[str, Any]]:
    """A call as it is written down: its name and its arguments, by parameter. UsageError for what is none.

    >>> written_call('refund({"amount": 50})')
    ('refund', {'amount': 50})
    """
    found = _CALL.fullmatch(text)
    try:
        arguments: Any = _PLAIN.loads((found[2].strip() or "{}").encode()) if found else None
    except DecodeError:
        arguments = None
    if found is None or not isinstance(arguments, dict):
        raise UsageError(f"{text!r} is no call: a name, and its arguments as JSON, as in refund({{\"amount\": 50}})")
    return found[1], cast("dict[str, Any]", arguments)


class InTurn:
    """What a policy says about calls that are made one after the other: the rates that each counts against are counted.

    One that needs an approval is taken to have it, and counts; one that is refused does not."""

    def __init__(self, policy: Policy, *, scope: Mapping[str, str], is_reversible: bool) -> None:
        self._policy, self._scope, self._is_reversible = policy, scope, is_reversible
        self._counted: dict[str, list[float]] = {}
        self._now = 0.0

    def said_of(self, at: float, name: str, arguments: Mapping[str, Any]) -> Said:
        """What it says about the next one, made at that time (seconds). UsageError for a time before the last one."""
        if at < self._now:
            raise UsageError(f"{name} at {at:g} s: it comes after a call at {self._now:g} s; write them in their order")
        self._now = at
        asked = Asked((name,), arguments, "effect", self._is_reversible, self._scope)
        ruling = judge([self._policy], asked)
        said = _said(name, ruling, at=at)
        if ruling.verdict is Verdict.REFUSE:
            return said
        for use in ruling.uses:
            free_at = self._free_at(use)
            if free_at is not None:
                why = f"its rate of {use.told} is used up until {free_at:g} s"
                return Said(name, str(Verdict.REFUSE), use.source.told, why, at=at)
        for use in ruling.uses:
            self._counted.setdefault(use.bucket, []).append(at)
        return said

    def _free_at(self, use: Use) -> float | None:
        """When there is room again under a rate that is used up; None if there is room now."""
        period = use.microseconds / MICROSECONDS
        within = [at for at in self._counted.get(use.bucket, ()) if at > self._now - period]
        return within[-use.calls_max] + period if len(within) >= use.calls_max else None


def said_of(
    policy: Policy, name: str, arguments: Mapping[str, Any], *, scope: Mapping[str, str], is_reversible: bool,
    goal: str = "", run: str = "", operation: str = "", workflow: str = "",
) -> Said:  # fmt: skip
    """What the policy says about an effect with these arguments."""
    ruling = judge([policy], Asked((name,), arguments, "effect", is_reversible, scope, goal, workflow, run))
    return _said(name, ruling, run=run, operation=operation)


def _said(name: str, ruling: Ruling, *, run: str = "", operation: str = "", at: float | None = None) -> Said:
    rule = "" if ruling.source is None else ruling.source.told
    return Said(
        name, str(ruling.verdict), rule, ruling.why, tuple(f"{n.source.told}: {n.told}" for n in ruling.needs),
        tuple(use.told for use in ruling.uses), run, operation, at,
    )  # fmt: skip


def said_of_recorded(policy: Policy, store: Store) -> Iterator[Said]:
    """What the policy says about every effect in the store's ledger, the newest first; each for itself, rates are not
    counted. Arguments are those that were recorded: defaults are not filled in."""
    before = None
    seen = set[str]()
    while page := store.effects(EffectFilter(before=before, limit=ROWS_PER_READ)):
        rows = [row for row in page if row.operation_id not in seen]
        if not rows:
            return
        seen = {row.operation_id for row in page}
        for row in rows:
            yield _said_of_row(policy, store, row)
        before = page[-1].created_at + 1


def _said_of_row(policy: Policy, store: Store, row: LedgerEntry) -> Said:
    found = _recorded(store, row)
    if found is None:
        why = "its arguments are not kept, or its run is pruned"
        return Said(row.action_name, "unreadable", "", why, run=row.run_id, operation=row.operation_id)
    started, arguments = found
    return said_of(
        policy, row.action_name, arguments, scope=started.scope or {}, goal=started.goal, run=row.run_id,
        operation=row.operation_id, workflow=started.workflow, is_reversible=row.risk != "high",
    )  # fmt: skip


def _recorded(store: Store, row: LedgerEntry) -> tuple[e.RunStarted, dict[str, Any]] | None:
    try:
        rows = store.load(row.rid, from_seq=0).rows
        started = e.decode(rows[0].envelope)
        for each in rows:
            event = e.decode(each.envelope) if each.kind.startswith("effect.") else None
            operation = getattr(event, "operation", "")
            if operation == row.operation_id and isinstance(event, e.StepStarted | e.StepCompleted | e.StepFailed):
                if event.input is None or not event.kept:
                    continue
                raw = each.input or unpack(event.input, None, lambda wanted: store.blob(row.rid, wanted))
                arguments = _PLAIN.loads(raw)
                return (started, arguments) if isinstance(started, e.RunStarted) else None
    except (HistoryCorruptError, LookupError, msgspec.MsgspecError):
        return None
    return None

"""What has to hold of effects after every simulation: the world's books, the ledger and the histories agree.

No operation is carried out twice, none is resent blindly, and none is left in doubt. A request that was frozen between
the check of the lease and its sending may still arrive once (a straggler): with a downstream that honours keys that is
harmless; with the others a person was asked before anything was sent again, and cannot have known.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from perdure.history import events as e
from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import EffectFilter, Store
from perdure.testing.outside import REFUSALS, Books, Send

ALL = 1_000_000


class Happened(NamedTuple):
    """An event about an operation. A decision of a person comes with the operation that it was about."""

    at: int
    event: e.Event


def check_accounts(store: Store, outside: Books, runs: Sequence[int], problem: Callable[[str], None]) -> None:
    """Tell what is wrong."""
    of = defaultdict[str, list[Happened]](list)
    for rid in runs:
        _collect(store, rid, of)
    rows = {entry.operation_id: entry for entry in store.effects(EffectFilter(limit=ALL))}
    for send in outside.sends:
        if send.operation not in rows:
            problem(f"the world got {send}, which the ledger does not know")
    for operation, entry in rows.items():
        for wrong in _wrong_with(entry, outside.of(operation), outside.done[operation], of[operation]):
            problem(f"{entry.action_name} {operation[:6]} of {entry.run_id} ({entry.label}): {wrong}")


def _collect(store: Store, rid: int, of: dict[str, list[Happened]]) -> None:
    """What a run's history says about each operation."""
    operations: dict[tuple[str, int], str] = {}
    stored = store.load(rid, from_seq=0)
    copied = -1 if stored.info.forked_seq is None else stored.info.forked_seq
    for row in stored.rows[copied + 1 :]:
        event = e.decode(row.envelope)
        if isinstance(event, e.ChapterStarted):
            operations = {}
        if isinstance(event, e.RunUnblocked):
            operation = operations.get((event.task or "", event.n), "")
        else:
            operation = getattr(event, "operation", "")
        if isinstance(event, e.EffectStarted):
            operations[event.key] = operation
        if isinstance(event, e.EffectSucceeded) and event.how == "returned":  # in a transaction it has no start
            operations.setdefault(event.key, operation)
        is_anothers = isinstance(event, e.EffectFailed | e.EffectSucceeded) and operations.get(event.key) != operation
        if operation and not is_anothers:  # what was never begun here is only an answer to one more call
            of[operation].append(Happened(row.at, event))


def _wrong_with(entry: LedgerEntry, sends: Sequence[Send], done: int, happened: Sequence[Happened]) -> list[str]:
    events = [each.event for each in happened]
    if entry.downstream == "same_database":  # what it does is committed with its record: nothing is sent
        return _not_settled(entry, events)
    return [
        *_not_settled(entry, events),
        *_other_than_recorded(entry, sends, events),
        *_carried_out_wrongly(entry, sends, done),
        *_sent_blindly(entry, sends, events),
    ]


def _not_settled(entry: LedgerEntry, events: Sequence[e.Event]) -> list[str]:
    """Every doubt ends in a proof or with a person, and the row says what the history says."""
    wrong = list[str]()
    if not entry.status.is_final:
        wrong.append(f"its run has ended, and it is {entry.status}: {entry.note}")
    own = [event for event in events if isinstance(event, e.EffectSucceeded | e.EffectFailed)]
    expected = e.EffectSucceeded if entry.status is EffectState.SUCCEEDED else e.EffectFailed
    if [type(event) for event in own] != [expected]:
        wrong.append(f"the ledger says {entry.status}, the history {[e.kind(event) for event in own]}")
    return wrong


def _other_than_recorded(entry: LedgerEntry, sends: Sequence[Send], events: Sequence[e.Event]) -> list[str]:
    wrong = list[str]()
    starts = [event.attempt for event in events if isinstance(event, e.EffectStarted)]
    if starts != list(range(1, entry.attempts + 1)):
        wrong.append(f"{entry.attempts} attempts in the ledger, {starts} in the history")
    if len({send.request for send in sends}) > 1:
        wrong.append(f"different requests under one id: {_told(sends)}")
    if twice := [attempt for attempt, times in Counter(send.attempt for send in sends).items() if times > 1]:
        wrong.append(f"attempts {twice} were sent more than once")
    return wrong


def _carried_out_wrongly(entry: LedgerEntry, sends: Sequence[Send], done: int) -> list[str]:
    carried_out = [send for send in sends if send.is_carried_out]
    firm = [send for send in carried_out if not send.is_straggler]
    if entry.status is EffectState.SUCCEEDED and not done:
        return ["it is called a success, and the world did nothing"]
    if entry.status is EffectState.FAILED_FINAL and firm:
        return [f"it is called failed, and the world did it: {_told(sends)}"]
    if entry.downstream != "idempotent" and len(firm) > 1:
        return [f"it was carried out {len(firm)} times: {_told(sends)}"]
    return []


def _told(sends: Sequence[Send]) -> str:
    return ", ".join(f"attempt {send.attempt} ({send.fate})" for send in sends)


def _sent_blindly(entry: LedgerEntry, sends: Sequence[Send], events: Sequence[e.Event]) -> list[str]:
    """Between one attempt and the next there is a proof that the first did nothing, or a person's word."""
    if entry.downstream == "idempotent":
        return []
    fates = {send.attempt: send.fate for send in sends}
    starts = [index for index, event in enumerate(events) if isinstance(event, e.EffectStarted)]
    wrong = list[str]()
    for attempt, (first, last) in enumerate(itertools.pairwise(starts), start=1):
        between = events[first + 1 : last]
        told = f"attempt {attempt + 1} followed on {[e.kind(event) for event in between]}"
        if any(isinstance(event, e.RunUnblocked) and event.choice == "retry" for event in between):
            continue
        doubts = [event for event in between if isinstance(event, e.EffectInDoubt)]
        not_found = [event for event in between if isinstance(event, e.EffectLookedUp) and event.answer == "not_found"]
        if not any(isinstance(event, e.EffectNotDone) for event in between):
            wrong.append(f"{told}: blindly")
        elif not doubts and fates.get(attempt) not in REFUSALS:
            wrong.append(f"{told}, as if refused; it met with {fates.get(attempt)}")
        elif doubts and (len(not_found) < 2 or doubts[-1].by_suspicion or entry.downstream == "no_guarantee"):
            wrong.append(f"{told}: {len(not_found)} look-ups, by suspicion {doubts[-1].by_suspicion}")
    return wrong

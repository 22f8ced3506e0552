"""What is done to a run that nobody holds, from its history alone: none of its code runs, nobody need know it.

By compare-and-set on the epoch: a worker that claims the run in the same moment wins, and finds the letter.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from perdure.codec import Memo
from perdure.decisions import Happening
from perdure.engine.calls import Key
from perdure.engine.known import ABOUT_REQUESTS, MOVES_EFFECTS, Known, Standing, standings
from perdure.errors import OperationOpen
from perdure.gates.budget import Account
from perdure.history import events as e
from perdure.history.chain import link
from perdure.ledger import EffectState
from perdure.runtime import mail
from perdure.runtime.budgets import settled
from perdure.runtime.effects import given_up_entry
from perdure.runtime.live import Entry
from perdure.store.protocol import Append, Change, Done, Moved, Outcome, Row, RunInfo, Status, Store

TRIES = 5


def end_by_force(store: Store, run_id: str, *, retry_after: tuple[float, ...], now: int) -> bool:
    """End a run as cancelled, if no living worker has it. False: one has, or it is at its end already.

    HistoryCorruptError if its history cannot be read: which children it leaves behind is then not known.
    OperationOpen if an effect of it may have happened."""
    for _ in range(TRIES):
        info = store.find(run_id)
        if info is None or info.status.is_final:
            return False
        if info.owner is None:
            outcome = _end(store, info, now)
            if isinstance(outcome, Done):
                return True
            if not isinstance(outcome, Moved):
                return False
        elif (info.owner, True) in store.lost(""):
            store.take_over(info.owner, proven=True, retry_after=retry_after)
        else:
            return False
    return False


def _end(store: Store, info: RunInfo, now: int) -> Outcome:
    rows = store.load(info.rid).rows
    entries = [
        *_given_up(store, info, rows, now), *_withdrawn(store, rows, now), *_settled(rows),
        Entry(e.RunCancelled(forced=True)),
    ]  # fmt: skip
    change = Change(
        status=Status.CANCELLED, reason="", hint="", waiting=b"", release=True,
        ending=mail.ending(Status.CANCELLED, mail.CANCELLED),
    )  # fmt: skip
    letters = tuple(mail.from_parent(child, now=now) for child in _children_left(rows))
    append = Append(
        os.urandom(16), info.rid, info.epoch, rows[-1].seq + 1, tuple(rows_after(rows[-1], entries, now)),
        change=change, letters=letters, effects=tuple(entry.ledger for entry in entries if entry.ledger is not None),
        approvals=tuple(entry.approval for entry in entries if entry.approval is not None),
        spending=tuple(movement for entry in entries for movement in entry.spending),
    )  # fmt: skip
    return store.commit([append])[0]


def rows_after(last: Row, entries: Iterable[Entry], now: int) -> Iterator[Row]:
    """The rows of what is added to a history that ends with `last`."""
    for seq, entry in enumerate(entries, last.seq + 1):
        at, envelope = max(now, last.at), e.encode(entry.event)
        output = None if entry.output is None else entry.output.inline
        last = Row(seq, at, e.kind(entry.event), envelope, None, output, link(last.hash, seq, at, envelope))
        yield last


def _given_up(store: Store, info: RunInfo, rows: Iterable[Row], now: int) -> Iterator[Entry]:
    """The ends of effects of which another attempt would follow. OperationOpen if one may have happened."""
    memo = Memo()
    for key, standing in _refuse_while_open(info, rows).items():
        row = store.effect(standing.operation)
        if standing.state is EffectState.FAILED_RETRYABLE and row is not None and row.status is standing.state:
            yield given_up_entry(key, standing, row, memo, now=now)


def refuse_with_open_effects(store: Store, info: RunInfo) -> None:
    """OperationOpen if the run has an effect that may have happened: whoever ended the run would leave it in doubt for
    good."""
    if not info.status.is_final:
        _refuse_while_open(info, store.load(info.rid).rows)


def _refuse_while_open(info: RunInfo, rows: Iterable[Row]) -> dict[Key, Standing]:
    """How far its other effects got that have no outcome."""
    about_effects = (row for row in rows if row.kind.startswith("effect.") or row.kind in MOVES_EFFECTS)
    found = standings((e.decode(row.envelope), row.at) for row in about_effects)
    for standing in found.values():
        if standing.state.is_open:
            raise OperationOpen(
                f"run {info.run_id} cannot be ended by force: operation {standing.operation} ({standing.name}) may "
                f"have happened, or be happening. Wait for it, or find out and say so: perdure inbox settle "
                f"{info.run_id} --operation {standing.operation} --succeeded | --failed | --retry",
                standing.operation, str(standing.state),
            )  # fmt: skip
    return found


def _withdrawn(store: Store, rows: Iterable[Row], now: int) -> Iterator[Entry]:
    """The ends of what people were asked and have not decided."""
    known = Known()
    for row in rows:
        if row.kind in ABOUT_REQUESTS:
            known.note_request(e.decode(row.envelope))
    for asked in known.requests.values():
        found = store.approval(asked.id)
        withdrawn = None if found is None else found.moved(Happening.WITHDRAWN, now=now)
        yield Entry(e.CallCancelled(*asked.key, asked.name, asked.use), approval=withdrawn)


def _settled(rows: Iterable[Row]) -> Iterator[Entry]:
    """What was reserved for attempts of which nobody heard again: it may have been used. No effect is among them that
    may have been sent; what is reserved for others was for attempts that never began."""
    account = Account()
    for row in rows:
        if row.kind.startswith("budget.") or row.kind == "run.forked":
            account.note(e.decode(row.envelope))
    for reserved in list(account.open.values()):
        yield settled(reserved, has_begun=not reserved.is_effect)


def _children_left(rows: Iterable[Row]) -> list[str]:
    """Ids of child runs that are not to outlive this one."""
    left: dict[str, None] = {}
    for row in rows:
        if row.kind in {"child.started", "child.ended"}:
            event = e.decode(row.envelope)
            if isinstance(event, e.ChildStarted) and event.on_cancel == "wait":
                left[event.run_id] = None
            elif isinstance(event, e.ChildEnded):
                left.pop(event.run_id, None)
    return list(left)

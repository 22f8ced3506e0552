"""May this call be sent, or what is its answer already? Asked before anything leaves, with the ledger's row in hand."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.ledger.entry import LedgerEntry
from perdure.ledger.operations import REVISIONS_MAX
from perdure.ledger.states import EffectState


class Call(NamedTuple):
    """Who asks. `call` is the identity of the call in its run, `request_hash` the digest of its arguments.
    `reuses`: declared with `on_repeat="reuse"`."""

    rid: int
    call: str
    request_hash: bytes
    reuses: bool = False


class Perform(msgspec.Struct, frozen=True):
    """Nobody has asked for this operation: send it."""


class NextRevision(msgspec.Struct, frozen=True):
    """Another request, and the last one was provably refused: look at the id of the next revision."""


class GoOn(msgspec.Struct, frozen=True):
    """This call asked before and has no answer yet: go on where it stands."""

    entry: LedgerEntry


class Answered(msgspec.Struct, frozen=True):
    """The operation has its answer; nothing is sent."""

    entry: LedgerEntry


class Held(msgspec.Struct, frozen=True):
    """Another call, or another run, has this operation under way: its answer is waited for."""

    entry: LedgerEntry


class Duplicate(msgspec.Struct, frozen=True):
    """Another call has asked for exactly this operation: nothing is sent."""

    entry: LedgerEntry


class Conflict(msgspec.Struct, frozen=True):
    """Another request under the id of an operation that may have happened: nothing is sent."""

    entry: LedgerEntry


Decision = Perform | NextRevision | GoOn | Answered | Held | Duplicate | Conflict


def prepare(call: Call, entry: LedgerEntry | None) -> Decision:
    """What to do about a call whose operation has this row (None: has none).

    The same call again (replay, recovery, a rewind) gets what is recorded. Another request is a conflict, unless the
    earlier one was proven not to have happened: then it is a corrected one, with an id of its own. Another call with
    the same request gets the recorded answer only where that was declared; an operation that another live run has under
    way is waited for, for its answer decides.
    """
    if entry is None:
        return Perform()
    is_same_request = entry.request_hash == call.request_hash
    if entry.rid == call.rid and entry.call == call.call and is_same_request:
        return Answered(entry) if entry.status.is_final else GoOn(entry)
    if not is_same_request:
        may_correct = entry.status is EffectState.FAILED_FINAL and entry.revision + 1 < REVISIONS_MAX
        return NextRevision() if may_correct else Conflict(entry)
    if entry.compensated_by is not None:
        return Duplicate(entry)  # undone since: its answer does not stand
    if not entry.status.is_final and (call.reuses or entry.rid != call.rid):
        return Held(entry)
    return Answered(entry) if call.reuses else Duplicate(entry)

"""The ledger of effects: what may be sent, what became of it. Pure: no I/O, clock, randomness or threads.

    states.py       the states of an effect, and what leads from one to another: a table
    operations.py   the identity of an effect: operation ids, request hashes
    entry.py        one row of the ledger
    prepare.py      may this call be sent, or what is its answer already?
    doubt.py        an effect whose outcome nobody knows: what is to be done next?
"""

from perdure.ledger.doubt import (
    AskPerson,
    Doubt,
    Look,
    LookUpNow,
    NothingHappened,
    SendAgain,
    WaitUntil,
    next_move,
    quiet_until,
)
from perdure.ledger.entry import LedgerEntry
from perdure.ledger.operations import operation_id
from perdure.ledger.prepare import Answered, Call, Conflict, Duplicate, GoOn, Held, NextRevision, Perform, prepare
from perdure.ledger.states import EffectState, Happening

__all__ = [
    "Answered",
    "AskPerson",
    "Call",
    "Conflict",
    "Doubt",
    "Duplicate",
    "EffectState",
    "GoOn",
    "Happening",
    "Held",
    "LedgerEntry",
    "Look",
    "LookUpNow",
    "NextRevision",
    "NothingHappened",
    "Perform",
    "SendAgain",
    "WaitUntil",
    "next_move",
    "operation_id",
    "prepare",
    "quiet_until",
]

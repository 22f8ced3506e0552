"""The states of a request to people, and what leads from one to another.

A request is an approval (of exactly one call) or a question. Both are decided at most once. An approval that was given
is good for one call, which uses it up; what was not used in time has lapsed.
"""

from __future__ import annotations

from enum import StrEnum

from perdure.transitions import Transitions


class ApprovalState(StrEnum):
    """Where a request stands."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    USED = "used"
    LAPSED = "lapsed"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows any more."""
        return not TRANSITIONS[self]


class Happening(StrEnum):
    """What happens to a request."""

    VOTED = "voted"
    """One of several who have to approve has done so."""
    DELEGATED = "delegated"
    """Somebody who may decide has named another one for it."""
    APPROVED = "approved"
    REJECTED = "rejected"
    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    """Nobody has decided in time."""
    WITHDRAWN = "withdrawn"
    """Whoever asked does not wait for it any more."""
    USED = "used"
    """The call that was approved begins: recorded before it does."""
    LAPSED = "lapsed"
    """Approved in time, but the call would begin too late."""


_S, _H = ApprovalState, Happening

TRANSITIONS: Transitions[ApprovalState, Happening] = {
    _S.PENDING: {
        _H.VOTED: _S.PENDING,
        _H.DELEGATED: _S.PENDING,
        _H.APPROVED: _S.APPROVED,
        _H.REJECTED: _S.REJECTED,
        _H.ANSWERED: _S.ANSWERED,
        _H.TIMED_OUT: _S.EXPIRED,
        _H.WITHDRAWN: _S.WITHDRAWN,
    },
    _S.APPROVED: {_H.USED: _S.USED, _H.LAPSED: _S.LAPSED, _H.WITHDRAWN: _S.WITHDRAWN},
    _S.REJECTED: {},
    _S.ANSWERED: {},
    _S.EXPIRED: {},
    _S.WITHDRAWN: {},
    _S.USED: {},
    _S.LAPSED: {},
}
"""What may follow on what. Whatever is not here does not happen."""

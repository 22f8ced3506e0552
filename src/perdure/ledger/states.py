"""The states of an effect, and what leads from one to another.

`SUCCEEDED` and `FAILED_FINAL` are proofs: the first that it happened, the second that it did not. `FAILED_RETRYABLE` is
a proof as well, of one attempt: nothing happened, another may follow. `STARTED` and `UNKNOWN` are none: the request may
have left, so nothing is sent blindly, and nothing is called failed.
"""

from __future__ import annotations

from enum import StrEnum

from perdure.transitions import Transitions


class EffectState(StrEnum):
    """Where an effect stands."""

    PENDING = "pending"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_FINAL = "failed_final"
    UNKNOWN = "unknown"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows any more."""
        return not TRANSITIONS[self]

    @property
    def is_open(self) -> bool:
        """Whether the request may have left and nothing proves what became of it."""
        return self in {EffectState.STARTED, EffectState.UNKNOWN}


class Happening(StrEnum):
    """What happens to an effect."""

    SENT = "sent"
    """It is about to leave: recorded before it does."""
    DENIED = "denied"
    """Refused in Prepare: nothing was sent."""
    RETURNED = "returned"
    REFUSED = "refused"
    """Answered, or never sent: proven that nothing happened, and no attempt follows."""
    NOT_DONE = "not_done"
    """Proven that nothing happened; another attempt follows."""
    SENT_AGAIN = "sent_again"
    """In doubt, and the other side honours our key: the same request under the same key."""
    LOST = "lost"
    """Nothing proves what happened."""
    FOUND = "found"
    NOT_FOUND = "not_found"
    ANSWERED_LATE = "answered_late"
    """The attempt that was given up for lost has returned after all: whatever was believed meanwhile, it happened."""
    SETTLED_SUCCEEDED = "settled_succeeded"
    SETTLED_FAILED = "settled_failed"
    SETTLED_TRY_AGAIN = "settled_try_again"
    GIVEN_UP = "given_up"
    """Nobody wants another attempt."""


_S, _H = EffectState, Happening

TRANSITIONS: Transitions[EffectState, Happening] = {
    _S.PENDING: {_H.SENT: _S.STARTED, _H.DENIED: _S.FAILED_FINAL},
    _S.STARTED: {
        _H.RETURNED: _S.SUCCEEDED,
        _H.FOUND: _S.SUCCEEDED,
        _H.ANSWERED_LATE: _S.SUCCEEDED,
        _H.REFUSED: _S.FAILED_FINAL,
        _H.NOT_DONE: _S.FAILED_RETRYABLE,
        _H.SENT_AGAIN: _S.STARTED,
        _H.LOST: _S.UNKNOWN,
    },
    _S.UNKNOWN: {
        _H.FOUND: _S.SUCCEEDED,
        _H.ANSWERED_LATE: _S.SUCCEEDED,
        _H.NOT_FOUND: _S.FAILED_RETRYABLE,
        _H.SETTLED_SUCCEEDED: _S.SUCCEEDED,
        _H.SETTLED_FAILED: _S.FAILED_FINAL,
        _H.SETTLED_TRY_AGAIN: _S.FAILED_RETRYABLE,
    },
    _S.FAILED_RETRYABLE: {
        _H.SENT: _S.STARTED,
        _H.ANSWERED_LATE: _S.SUCCEEDED,
        _H.GIVEN_UP: _S.FAILED_FINAL,
    },
    _S.SUCCEEDED: {},
    _S.FAILED_FINAL: {},
}
"""What may follow on what. Whatever is not here does not happen."""

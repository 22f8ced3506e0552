"""An effect whose outcome nobody knows: what is to be done next?

In doubt is an attempt whose request may have left while no answer proves what happened: a timeout, a lost connection,
an answer that is none, a crash. What follows is the author's declaration, never a guess:

    Idempotent      send the same request again, under the same key
    CanLookUp       ask the other side; believe "not found" only when it was said twice, the second time after
                    `settle_after`, and never when a process that was taken for dead may still send
    NoGuarantee     a person decides
"""

from __future__ import annotations

import msgspec

LOOKS_WITHOUT_ANSWER_MAX = 6
FIRST_LOOK_AGAIN_SECONDS = 1.0
LOOK_AGAIN_FACTOR = 3.0
LOOK_AGAIN_SECONDS_MAX = 300.0
MICROSECONDS = 1_000_000


class Look(msgspec.Struct, frozen=True):
    """One look-up. `answer`: found, not_found or unsure (the other side could not say, or could not be asked)."""

    answer: str
    at: int


class Doubt(msgspec.Struct, frozen=True):
    """What is known of an effect in doubt.

    `since`: when the doubt arose, or the last of our own threads ended that was sending it. `is_suspicion`: another
    process sent it, and may be alive. `may_send_again`:
    there is an attempt left. `wants_person`: the effect said itself that only a person can tell. Microseconds since
    the epoch.
    """

    downstream: str
    has_lookup: bool
    since: int
    settle_after: int = 0
    is_suspicion: bool = False
    may_send_again: bool = True
    wants_person: bool = False
    looks: tuple[Look, ...] = ()


class SendAgain(msgspec.Struct, frozen=True):
    """The same request under the same key."""


class LookUpNow(msgspec.Struct, frozen=True):
    """Ask the other side."""


class NothingHappened(msgspec.Struct, frozen=True):
    """Proven by look-ups: the request has done nothing, and will not."""


class WaitUntil(msgspec.Struct, frozen=True):
    """Come back then."""

    at: int


class AskPerson(msgspec.Struct, frozen=True):
    """No machine can tell. `why` is a sentence for the person."""

    why: str


Move = SendAgain | LookUpNow | NothingHappened | WaitUntil | AskPerson


def next_move(doubt: Doubt, now: int) -> Move:
    """What to do about a doubt, at `now`."""
    if doubt.wants_person:
        return AskPerson("the effect says that only a person can tell")
    if doubt.downstream == "no_guarantee":
        return AskPerson("it was declared with NoGuarantee(): the other side can neither be asked nor be sent it again")
    if doubt.downstream == "idempotent" and doubt.may_send_again:
        return SendAgain()
    if not doubt.has_lookup:
        return AskPerson("no attempt is left, and the last one may have happened")
    return _look(doubt, now)


def _look(doubt: Doubt, now: int) -> Move:
    looks = doubt.looks
    if not looks:
        return LookUpNow()
    not_found = [look for look in looks if look.answer == "not_found"]
    without_answer = len(looks) - len(not_found)
    if not_found and looks[-1].answer == "not_found":
        settled_at = max(doubt.since + doubt.settle_after, not_found[0].at + seconds(FIRST_LOOK_AGAIN_SECONDS))
        if len(not_found) > 1 and looks[-1].at >= settled_at:
            return _believe(doubt)
        return LookUpNow() if now >= settled_at else WaitUntil(settled_at)
    if without_answer >= LOOKS_WITHOUT_ANSWER_MAX:
        return AskPerson(f"the other side could not say, asked {len(looks)} times")
    next_at = looks[-1].at + seconds(wait_after_look_seconds(without_answer))
    return LookUpNow() if now >= next_at else WaitUntil(next_at)


def _believe(doubt: Doubt) -> Move:
    if doubt.is_suspicion:
        return AskPerson(
            "the other side does not know it; but the process that sent it is not proven dead, and may still send"
        )
    return NothingHappened()


def quiet_until(*, started_at: int, suspected_at: int, is_proven_dead: bool, timeout: int) -> int:
    """Until when an attempt that somebody else began is left alone: nothing is asked, sent or declared before.

    Whoever is proven dead sends nothing any more. Whoever was only taken for dead may be in the middle of it: one full
    timeout from the moment at which it was taken for dead, for its own clock may have stood still before. Whoever left
    of its own will (a thread that would not end) has the timeout that its attempt had.
    """
    if suspected_at:
        return suspected_at + timeout
    return 0 if is_proven_dead else started_at + timeout


def wait_after_look_seconds(without_answer: int) -> float:
    """How long to wait after the n-th look-up without an answer.

    >>> [wait_after_look_seconds(n) for n in (1, 2, 3, 9)]
    [1.0, 3.0, 9.0, 300.0]
    """
    return min(FIRST_LOOK_AGAIN_SECONDS * LOOK_AGAIN_FACTOR ** (without_answer - 1), LOOK_AGAIN_SECONDS_MAX)


def seconds(length: float) -> int:
    """Seconds in microseconds."""
    return round(length * MICROSECONDS)

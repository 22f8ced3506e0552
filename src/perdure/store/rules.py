"""What every store decides in the same way, whichever database it has: pure functions, no I/O, no clock.

A store asks here whether a write is well formed, whether a letter wakes a run, and what a death costs the runs of the
dead worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from perdure.decisions import ApprovalEntry, Authority, Refusal, decide
from perdure.decisions.deciding import decode_decision
from perdure.errors import PerdureBug
from perdure.gates.budget import Movement, SharedAccount, moved
from perdure.history.spending import Share, Shortfall
from perdure.store.protocol import (
    CONTROL_KINDS,
    Append,
    Change,
    Decide,
    NewRun,
    Overdrawn,
    Refused,
    Row,
    Use,
    Wakes,
    Write,
)

RETRY_AFTER_DEATH_SECONDS = (0.0, 10.0, 60.0)
"""How long a run waits after a death of its worker without progress: the first, the second, the last."""

CRASH_LOOP = "crash_loop"
CRASH_LOOP_HINT = "each process that worked on it alone died without progress; fix the cause, then unblock the run"


def check_write(write: Write) -> None:
    """Refuse what no correct caller sends. PerdureBug, before anything is written."""
    if isinstance(write, Append):
        check_dense(write.rows, write.expected_length, write.rid)
        for run in write.new_runs:
            check_dense(run.rows, 0, run.run_id)
        if write.change is not None:
            check_ending(write.change, write.rid)
    elif isinstance(write, NewRun):
        check_dense(write.rows, write.first_seq, write.run_id)


def check_dense(rows: Sequence[Row], start: int, run: int | str) -> None:
    """Positions of rows follow each other from `start` on."""
    for seq, row in enumerate(rows, start):
        if row.seq != seq:
            raise PerdureBug(f"run {run}: a row for position {row.seq} was given where {seq} is next")


def check_ending(change: Change, run: int) -> None:
    """The letter to watchers is there exactly when the run ends."""
    if (change.status is not None and change.status.is_final) != (change.ending is not None):
        raise PerdureBug(f"run {run}: `ending` is given exactly when the status is final, not with {change.status}")


def first_wakes(run: NewRun) -> Wakes:
    """A run that waits for its start is not hastened by messages; one without a start time waits for them."""
    return Wakes.MAIL if run.due_at is None else Wakes.CONTROL


def is_waking(wakes: Wakes | str, kinds: Collection[str]) -> bool:
    """Whether a letter of one of these kinds makes an unowned run due."""
    if wakes == Wakes.CONTROL:
        return not CONTROL_KINDS.isdisjoint(kinds)
    return bool(kinds) and wakes == Wakes.MAIL


def earlier(due_at: int | None, now: int) -> int:
    """When a run is due that has just been woken."""
    return now if due_at is None else min(due_at, now)


def ending_letter_id(ended_rid: int, key: str) -> bytes:
    """The id of the letter that tells a watcher of an end: the same however often it is sent."""
    return hashlib.blake2b(f"{ended_rid}/{key}".encode(), digest_size=16).digest()


def refused(
    given: Decide, entry: ApprovalEntry | None, waiting: Iterable[tuple[bytes, int]], now: int,
    authority: Authority | None = None,
) -> Refused | None:  # fmt: skip
    """Why a decision does not count, or None. `entry`: the row of its request, if its run has one; `waiting`: the
    decisions about it that lie in the mailbox, oldest first, with the times at which they were sent. Who has which role
    no store knows: the `authority` is that of whoever asks before it sends."""
    if entry is None:
        unknown = Refused("unknown", f"there is no request {given.approval_id}")
        return None if given.may_be_early else unknown
    for body, at in waiting:
        following = decide(entry, decode_decision(body), at, authority)
        entry = entry if isinstance(following, Refusal) else following
    following = decide(entry, decode_decision(given.body), now, authority)
    return Refused(*following) if isinstance(following, Refusal) else None


ROOM = b'{"choice":"freed"}'
"""What a run is told that waits for an account in which there is room again: the body of an `unblock` letter."""
WAITERS_TOLD_MAX = 100
"""So many at a time: each that begins and uses less than it reserved makes room for others."""


def call_that_waits(movement: Movement) -> str:
    """How a waiting call stands in the store."""
    task, n = movement.call
    return f"{task}/{n}"


def freed(spending: Iterable[Movement]) -> set[Share]:
    """The accounts in which these movements may leave more room than there was."""
    return {Share(each.account, each.since) for each in spending if each.frees}


def raise_letter_id(append_id: bytes, rid: int) -> bytes:
    """The id of the letter that tells a run that there may be enough in an account for which it waits."""
    return hashlib.blake2b(b"%b/%d" % (append_id, rid), digest_size=16).digest()


def spend(
    movements: Iterable[Movement], find: Callable[[str, int], SharedAccount | None]
) -> dict[Share, SharedAccount] | Overdrawn:
    """The shared accounts after these movements, one after the other; or which of them is refused. `find`: an account
    as it stands, if there is one."""
    after: dict[Share, SharedAccount] = {}
    for movement in movements:
        at = Share(movement.account, movement.since)
        before = after.get(at) or find(*at) or SharedAccount(*at)
        following = moved(before, movement)
        if isinstance(following, Shortfall):
            return Overdrawn(following, movement.call)
        after[at] = following
    return after


class Death(msgspec.Struct, frozen=True):
    """What a proven death of its owner makes of a run. `is_looping`: it is parked as `crash_loop`."""

    deaths: int
    lone: int
    delay_seconds: float
    is_looping: bool


INNOCENT = Death(0, 0, 0.0, False)


def uses_beside(uses: Sequence[Use]) -> Iterator[tuple[Use, set[str]]]:
    """Of each use the ids of those that stand before it in the same append, of the same bucket: they count, too."""
    for place, use in enumerate(uses):
        yield use, {each.use_id for each in uses[:place] if each.bucket == use.bucket} - {use.use_id}


def count_death(deaths: int, lone: int, *, is_alone: bool, retry_after: Sequence[float]) -> Death:
    """One more death without progress. Only a death alone counts towards `crash_loop`."""
    deaths, lone = deaths + 1, lone + is_alone
    if not retry_after:
        return Death(deaths, lone, 0.0, False)
    delay = retry_after[min(deaths, len(retry_after)) - 1]
    return Death(deaths, lone, delay, lone >= len(retry_after))

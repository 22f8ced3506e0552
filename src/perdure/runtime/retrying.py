"""Is a failed step tried again, and when? Pure: the time and the random number are given.

The step is the only one who retries; so the number of requests that leave is the number of attempts that are counted.
"""

from __future__ import annotations

import msgspec

from perdure.clock import MICROSECONDS
from perdure.http.classify import Failure, Kind
from perdure.specs import Retry

LONGEST_WAIT_SECONDS = 366 * 24 * 3600.0
"""A year: whoever asks us to wait for longer (a header with too many digits) gets this."""


class Again(msgspec.Struct, frozen=True):
    """The next attempt begins at `at` (microseconds since the epoch), not before."""

    at: int


class GiveUp(msgspec.Struct, frozen=True):
    """There is no further attempt; `why` is a sentence for a person. `needs_person`: the run is parked, not failed."""

    why: str
    needs_person: bool = False


def next_attempt(
    retry: Retry, *, attempt: int, first_at: int, now: int, failure: Failure, random: float
) -> Again | GiveUp:
    """What follows after `attempt` (the first is 1) ended at `now` with `failure`.

    `first_at` is when the first attempt began. `random`, from 0 up to 1, places the wait between the shortest and the
    longest that `Retry.jitter` and `Retry.max_delay` allow. What the other side asked for is a lower bound, also above
    `Retry.max_delay`; but no attempt begins later than `Retry.max_elapsed` after the first: if the wait would end after
    that, we give up now.

    Raises what `Retry.on` raises.
    """
    if failure.kind is Kind.PERSON:
        return GiveUp(failure.reason, needs_person=True)
    if not _worth_another(retry, failure):
        return GiveUp(f"not worth another attempt: {failure.reason}")
    if attempt >= retry.max_attempts:
        return GiveUp(f"attempt {attempt} of {retry.max_attempts} failed: {failure.reason}")
    at = now + round(_wait_seconds(retry, attempt, failure, random) * MICROSECONDS)
    longest = retry.max_elapsed_seconds
    if longest is not None and at - first_at > longest * MICROSECONDS:
        return GiveUp(f"the next attempt would begin later than {longest:g} s after the first: {failure.reason}")
    return Again(at)


def _worth_another(retry: Retry, failure: Failure) -> bool:
    """`Retry.on` is asked only where no evidence decided, and outranks the guess by the exception's class."""
    if failure.undecided is not None and retry.on is not None:
        return bool(retry.on(failure.undecided))
    return failure.kind is Kind.RETRYABLE


def _wait_seconds(retry: Retry, attempt: int, failure: Failure, random: float) -> float:
    plain = backoff_seconds(retry, attempt)
    shortest = plain * (1 - retry.jitter)
    longest = min(plain * (1 + retry.jitter), retry.max_delay_seconds)
    own = shortest + random * (longest - shortest)
    return min(max(own, failure.after_seconds or 0.0), LONGEST_WAIT_SECONDS)


def backoff_seconds(retry: Retry, attempt: int) -> float:
    """The wait after `attempt`, without jitter.

    >>> [backoff_seconds(Retry(first_delay=1, factor=3, max_delay=20), attempt) for attempt in (1, 2, 3, 4, 10**6)]
    [1.0, 3.0, 9.0, 20.0, 20.0]
    """
    try:
        return min(retry.first_delay_seconds * float(retry.factor) ** (attempt - 1), retry.max_delay_seconds)
    except OverflowError:
        return retry.max_delay_seconds if retry.first_delay_seconds else 0.0

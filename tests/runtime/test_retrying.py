"""When a step is tried again: every combination of omitted fields, then properties over all of them."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import MICROSECONDS
from perdure.errors import DeclarationError, Final, NeedsPerson, Retryable
from perdure.http.classify import Failure, Kind, Sent, classify
from perdure.runtime.retrying import LONGEST_WAIT_SECONDS, Again, GiveUp, backoff_seconds, next_attempt
from perdure.specs import Retry

START = 1_700_000_000 * MICROSECONDS
FAILURE = Failure(Kind.RETRYABLE, Sent.UNKNOWN, "no answer in time")
FINAL = Failure(Kind.FINAL, Sent.REFUSED, "refused")


def after(
    retry: Retry, attempt: int = 1, *, failure: Failure = FAILURE, elapsed: float = 0.0, random: float = 0.5
) -> Any:
    """The seconds until the next attempt, or the GiveUp."""
    now = START + round(elapsed * MICROSECONDS)
    move = next_attempt(retry, attempt=attempt, first_at=START, now=now, failure=failure, random=random)
    return move if isinstance(move, GiveUp) else (move.at - now) / MICROSECONDS


def rounded(seconds: float) -> float:
    return round(seconds * MICROSECONDS) / MICROSECONDS


# ── omitted means the documented default ────────────────────────────────────────────────────

GIVEN: dict[str, Any] = {
    "max_attempts": 4,
    "first_delay": timedelta(seconds=2),
    "factor": 3.0,
    "max_delay": 10.0,
    "jitter": 0.0,
    "max_elapsed": 20.0,
}
DEFAULTS: dict[str, Any] = {
    "max_attempts": 3,
    "first_delay": timedelta(seconds=1),
    "factor": 2.0,
    "max_delay": 60.0,
    "jitter": 0.1,
    "max_elapsed": None,
}
SUBSETS = [names for size in range(len(GIVEN) + 1) for names in itertools.combinations(GIVEN, size)]


@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "+".join(names) or "nothing")
def test_all_combinations_of_omitted_fields(names: tuple[str, ...]) -> None:
    means = DEFAULTS | {name: GIVEN[name] for name in names}
    retry = Retry(**{name: GIVEN[name] for name in names})
    for attempt in range(1, means["max_attempts"]):
        wait = min(means["first_delay"].total_seconds() * means["factor"] ** (attempt - 1), means["max_delay"])
        assert after(retry, attempt, random=0.0) == rounded(wait * (1 - means["jitter"]))
        assert after(retry, attempt, random=1.0) == rounded(min(wait * (1 + means["jitter"]), means["max_delay"]))
    last = after(retry, means["max_attempts"])
    assert isinstance(last, GiveUp)
    assert last.why == f"attempt {means['max_attempts']} of {means['max_attempts']} failed: no answer in time"
    assert isinstance(after(retry, 1, elapsed=19.5), GiveUp) is (means["max_elapsed"] is not None)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"factor": 0.5},
        {"jitter": 1.5},
        {"first_delay": -1},
        {"first_delay": 61},
        {"first_delay": 5, "max_delay": 4},
        {"max_delay": float("inf")},
        {"max_elapsed": -1},
    ],
)
def test_impossible_combinations_are_refused_at_declaration(fields: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        assert Retry(**fields).max_elapsed_seconds


# ── the rules one by one ────────────────────────────────────────────────────────────────────


def test_no_wait_after_the_last_attempt() -> None:
    retry = Retry(max_attempts=2, first_delay=3, jitter=0)
    assert after(retry, 1) == 3.0
    assert isinstance(after(retry, 2), GiveUp)


def test_one_attempt_means_one() -> None:
    assert isinstance(after(Retry(max_attempts=1)), GiveUp)


def test_a_final_failure_ends_it_at_once() -> None:
    move = after(Retry(max_attempts=5), failure=FINAL)
    assert move == GiveUp("not worth another attempt: refused")


def test_a_person_is_asked_whatever_attempts_are_left() -> None:
    failure = classify(NeedsPerson("which account?"), now=START)
    for attempt in (1, 9):
        move = after(Retry(), attempt, failure=failure)
        assert move == GiveUp("the step said: a person must decide (which account?)", needs_person=True)


@pytest.mark.parametrize(("asked", "wait"), [(0.0, 1.0), (0.5, 1.0), (5.0, 5.0), (900.0, 900.0)])
def test_what_the_other_side_asked_for_is_a_lower_bound(asked: float, wait: float) -> None:
    failure = Failure(Kind.RETRYABLE, Sent.REFUSED, "busy", after_seconds=asked)
    assert after(Retry(jitter=0, max_delay=60), failure=failure) == wait


def test_what_the_other_side_asked_for_never_passes_max_elapsed() -> None:
    failure = Failure(Kind.RETRYABLE, Sent.REFUSED, "busy", after_seconds=900)
    assert after(Retry(max_elapsed=901), failure=failure) == 900.0
    move = after(Retry(max_elapsed=600), failure=failure)
    assert move == GiveUp("the next attempt would begin later than 600 s after the first: busy")


def test_max_elapsed_counts_from_the_beginning_of_the_first_attempt() -> None:
    retry = Retry(first_delay=10, jitter=0, max_elapsed=60)
    assert after(retry, elapsed=50) == 10.0
    assert isinstance(after(retry, elapsed=50.001), GiveUp)
    assert isinstance(after(Retry(max_elapsed=0)), GiveUp)


def test_an_absurd_wait_is_cut_to_a_year() -> None:
    for asked in (1e23, float("inf")):
        failure = Failure(Kind.RETRYABLE, Sent.REFUSED, "busy", after_seconds=asked)
        assert after(Retry(), failure=failure) == LONGEST_WAIT_SECONDS


@pytest.mark.parametrize("attempt", [1_024, 10**6, 10**18])
def test_huge_attempts_do_not_overflow(attempt: int) -> None:
    assert after(Retry(max_attempts=10**19, jitter=0), attempt) == 60.0
    assert after(Retry(max_attempts=10**19, first_delay=0), attempt) == 0.0
    assert after(Retry(max_attempts=10**19, factor=1, jitter=0), attempt) == 1.0


def test_waits_without_jitter() -> None:
    retry = Retry(max_attempts=9, first_delay=0.5, factor=2, max_delay=5, jitter=0)
    assert [after(retry, attempt) for attempt in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert [backoff_seconds(retry, attempt) for attempt in range(1, 4)] == [0.5, 1.0, 2.0]


def test_waits_at_the_cap_are_still_spread() -> None:
    retry = Retry(max_attempts=99, jitter=0.5, max_delay=10)
    assert {after(retry, 50, random=random) for random in (0.0, 0.5, 0.9999)} == {5.0, 7.5, 9.9995}


# ── Retry.on ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (RuntimeError("unknown"), True),
        (ValueError("a guess by class"), True),
        (Final("a verdict"), False),
        (Retryable("a verdict"), False),
        (TimeoutError(), False),
        (ConnectionRefusedError(), False),
    ],
)
def test_on_is_asked_about_what_nothing_else_decides(error: Exception, asked: bool) -> None:
    failure = classify(error, now=START)
    for verdict in (True, False):
        seen: list[BaseException] = []

        def on(error: BaseException, seen: list[BaseException] = seen, verdict: bool = verdict) -> bool:
            seen.append(error)
            return verdict

        move = after(Retry(on=on), failure=failure)
        assert seen == ([error] if asked else [])
        if asked:
            assert isinstance(move, GiveUp) is not verdict


# ── properties ──────────────────────────────────────────────────────────────────────────────

delays = st.floats(0, 1e7)


@st.composite
def declared(draw: st.DrawFn) -> Retry:
    first = draw(delays)
    return Retry(
        max_attempts=draw(st.integers(1, 10**9)),
        first_delay=first,
        factor=draw(st.floats(1, 1e9)),
        max_delay=first + draw(delays),
        jitter=draw(st.floats(0, 1)),
        max_elapsed=draw(st.none() | delays),
    )


failures = st.builds(
    Failure,
    kind=st.sampled_from(Kind),
    sent=st.sampled_from(Sent),
    reason=st.just("why"),
    after_seconds=st.none() | st.floats(0, allow_nan=False),
)
MICROSECOND = 1 / MICROSECONDS


@given(declared(), st.integers(1, 10**9), failures, delays, st.floats(0, 1, exclude_max=True))
def test_whatever_is_declared(retry: Retry, attempt: int, failure: Failure, elapsed: float, random: float) -> None:
    now = START + round(elapsed * MICROSECONDS)
    move = next_attempt(retry, attempt=attempt, first_at=START, now=now, failure=failure, random=random)
    if isinstance(move, GiveUp):
        assert move.needs_person is (failure.kind is Kind.PERSON)
        return
    assert isinstance(move, Again)
    assert failure.kind is Kind.RETRYABLE
    assert attempt < retry.max_attempts
    wait, asked = (move.at - now) / MICROSECONDS, failure.after_seconds or 0.0
    assert min(asked, LONGEST_WAIT_SECONDS) - MICROSECOND <= wait <= max(retry.max_delay_seconds, asked) + MICROSECOND
    if retry.max_elapsed_seconds is not None:
        assert move.at - START <= retry.max_elapsed_seconds * MICROSECONDS


@given(declared(), st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
def test_waits_never_shrink_and_grow_with_the_random_number(retry: Retry, attempt: int, a: float, b: float) -> None:
    assert backoff_seconds(retry, attempt) <= backoff_seconds(retry, attempt + 1)
    shorter, longer = after(retry, attempt, random=min(a, b)), after(retry, attempt, random=max(a, b))
    if not isinstance(longer, GiveUp):
        assert not isinstance(shorter, GiveUp)
        assert shorter <= longer

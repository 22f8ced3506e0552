"""What becomes of a doubt: never a blind resend, and an end of it in a bounded number of looks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger import (
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
from perdure.ledger.doubt import LOOKS_WITHOUT_ANSWER_MAX, seconds, wait_after_look_seconds

BEGAN = seconds(1_000_000)
LOOKS_MAX = LOOKS_WITHOUT_ANSWER_MAX + 2

DOUBTS = st.builds(
    Doubt,
    downstream=st.sampled_from(["idempotent", "can_look_up", "no_guarantee"]),
    has_lookup=st.booleans(),
    since=st.just(BEGAN),
    settle_after=st.integers(0, seconds(100)),
    is_suspicion=st.booleans(),
    may_send_again=st.booleans(),
    wants_person=st.booleans(),
    looks=st.just(()),
).map(lambda doubt: msgspec.structs.replace(doubt, has_lookup=doubt.downstream == "can_look_up" or doubt.has_lookup))
ANSWERS = st.lists(st.sampled_from(["not_found", "unsure"]), min_size=LOOKS_MAX, max_size=LOOKS_MAX)


def followed(doubt: Doubt, answers: list[str], late_by: list[int]) -> tuple[Any, Doubt, int]:
    """Do what is to be done about a doubt until there is an end of it: what it was, the looks, and when."""
    now = doubt.since
    for step in range(300):
        move = next_move(doubt, now)
        match move:
            case WaitUntil(at):
                assert at > now, "a wait that is over is no wait"
                now = at + late_by[step % len(late_by)]
            case LookUpNow():
                doubt = msgspec.structs.replace(doubt, looks=(*doubt.looks, Look(answers[len(doubt.looks)], now)))
            case _:
                return move, doubt, now
    raise AssertionError(f"no end: {doubt}")


@given(DOUBTS, ANSWERS, st.lists(st.integers(0, seconds(50)), min_size=1, max_size=5))
def test_every_doubt_ends_in_a_proof_or_with_a_person(doubt: Doubt, answers: list[str], late_by: list[int]) -> None:
    move, ended, now = followed(doubt, answers, late_by)
    assert len(ended.looks) <= LOOKS_MAX
    match move:
        case SendAgain():
            assert doubt.downstream == "idempotent"
            assert doubt.may_send_again
            assert not doubt.wants_person
        case NothingHappened():
            not_found = [look for look in ended.looks if look.answer == "not_found"]
            assert not doubt.is_suspicion, "never when a process that was taken for dead may still send"
            assert not doubt.wants_person
            assert doubt.downstream != "no_guarantee"
            assert len(not_found) >= 2
            assert ended.looks[-1].answer == "not_found"
            assert not_found[-1].at >= doubt.since + doubt.settle_after, "the second look is after that wait"
            assert not_found[-1].at >= not_found[0].at + seconds(1)
            assert now >= not_found[-1].at
        case AskPerson(why):
            assert why
        case _:
            raise AssertionError(move)


@given(DOUBTS, ANSWERS)
def test_who_asks_a_person_has_a_reason(doubt: Doubt, answers: list[str]) -> None:
    """An account of its own of when a machine can tell."""
    move, ended, _ = followed(doubt, answers, [0])
    if doubt.wants_person or doubt.downstream == "no_guarantee":
        assert isinstance(move, AskPerson)
        assert not ended.looks, "nobody is asked who cannot answer"
    elif doubt.downstream == "idempotent" and doubt.may_send_again:
        assert isinstance(move, SendAgain)
    elif not doubt.has_lookup:
        assert isinstance(move, AskPerson)
    elif isinstance(move, AskPerson):
        unsure = [look for look in ended.looks if look.answer == "unsure"]
        assert doubt.is_suspicion or len(unsure) >= LOOKS_WITHOUT_ANSWER_MAX
    else:
        assert isinstance(move, NothingHappened)


@pytest.mark.parametrize("downstream", ["idempotent", "can_look_up", "no_guarantee"])
@given(answers=ANSWERS, is_suspicion=st.booleans(), has_lookup=st.booleans())
def test_only_idempotent_is_ever_sent_again_without_a_proof(
    downstream: str, answers: list[str], is_suspicion: bool, has_lookup: bool
) -> None:
    move, _, _ = followed(Doubt(downstream, has_lookup, BEGAN, is_suspicion=is_suspicion), answers, [0])
    assert isinstance(move, SendAgain) == (downstream == "idempotent")


def test_a_look_that_says_found_needs_no_move() -> None:
    """One that was found is a success at once; what is decided here is only what follows on the other answers."""
    assert isinstance(next_move(Doubt("can_look_up", True, BEGAN), BEGAN), LookUpNow)


def test_unsure_in_between_does_not_make_not_found_count_less_or_more() -> None:
    looks = (Look("not_found", BEGAN), Look("unsure", BEGAN + seconds(5)))
    doubt = Doubt("can_look_up", True, BEGAN, settle_after=seconds(2), looks=looks)
    move = next_move(doubt, BEGAN + seconds(100))
    assert isinstance(move, LookUpNow)
    again = msgspec.structs.replace(doubt, looks=(*looks, Look("not_found", BEGAN + seconds(100))))
    assert isinstance(next_move(again, BEGAN + seconds(100)), NothingHappened)


def test_how_long_an_attempt_of_others_is_left_alone() -> None:
    timeout = seconds(60)

    def until(suspected_at: int, is_proven_dead: bool) -> int:
        return quiet_until(
            started_at=BEGAN, suspected_at=suspected_at, is_proven_dead=is_proven_dead, timeout=timeout
        )

    suspected = BEGAN + seconds(500)
    assert until(0, is_proven_dead=True) == 0
    assert until(0, is_proven_dead=False) == BEGAN + timeout
    assert until(suspected, is_proven_dead=False) == suspected + timeout
    assert until(suspected, is_proven_dead=True) == suspected + timeout, "once only suspected, that stays so"


@given(st.integers(1, 20))
def test_waits_between_looks_grow_and_are_bounded(n: int) -> None:
    assert 1.0 <= wait_after_look_seconds(n) <= wait_after_look_seconds(n + 1) <= 300.0

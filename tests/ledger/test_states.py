"""The states of an effect: the table is total and closed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import PerdureBug
from perdure.ledger import EffectState, Happening, LedgerEntry
from perdure.ledger.states import TRANSITIONS

EVERY = list(itertools.product(EffectState, Happening))
PROOFS = {EffectState.SUCCEEDED, EffectState.FAILED_FINAL}
SENDS = {Happening.SENT, Happening.SENT_AGAIN}

HAPPENED = {Happening.RETURNED, Happening.FOUND, Happening.ANSWERED_LATE, Happening.SETTLED_SUCCEEDED}
"""What says that it happened. Nothing else may make it a success."""


def entry(state: EffectState = EffectState.PENDING) -> LedgerEntry:
    return LedgerEntry("id", 1, "r", "0:0:0", "0/pay#1", "pay", "run", "o", 0, b"h", state, "no_guarantee", "low", 5, 5)


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(EffectState)


@pytest.mark.parametrize(("state", "happening"), EVERY)
def test_what_is_not_in_the_table_is_a_bug_of_ours(state: EffectState, happening: Happening) -> None:
    if happening in TRANSITIONS[state]:
        assert entry(state).moved(happening, now=9).status is TRANSITIONS[state][happening]
        return
    with pytest.raises(PerdureBug, match=f"an effect that is {state} cannot be {happening}"):
        entry(state).moved(happening, now=9)


def test_every_happening_happens_somewhere_and_every_state_is_reached() -> None:
    assert {happening for row in TRANSITIONS.values() for happening in row} == set(Happening)
    reached, rim = {EffectState.PENDING}, [EffectState.PENDING]
    while rim:
        rim = [*set(TRANSITIONS[rim.pop()].values()) - reached, *rim]
        reached |= set(rim)
    assert reached == set(EffectState)


def test_proofs_are_final_and_nothing_else_is() -> None:
    assert {state for state in EffectState if state.is_final} == PROOFS
    assert {state for state in EffectState if state.is_open} == {EffectState.STARTED, EffectState.UNKNOWN}


def test_only_what_says_that_it_happened_makes_a_success() -> None:
    assert {h for s, h in EVERY if TRANSITIONS[s].get(h) is EffectState.SUCCEEDED} == HAPPENED
    leads_to = {TRANSITIONS[state].get(happening) for state, happening in EVERY if happening in HAPPENED}
    assert leads_to == {None, EffectState.SUCCEEDED}


def test_an_unknown_outcome_is_never_sent_nor_failed_without_a_proof_or_a_person() -> None:
    ways_out = set(TRANSITIONS[EffectState.UNKNOWN])
    assert not ways_out & (SENDS | {Happening.REFUSED, Happening.NOT_DONE, Happening.GIVEN_UP, Happening.DENIED})


@given(st.lists(st.sampled_from(list(Happening)), max_size=40))
def test_a_walk_counts_what_leaves_and_ends_where_nothing_follows(walk: list[Happening]) -> None:
    row, sent, times = entry(), 0, 10
    for happening in walk:
        times += 1
        if happening not in TRANSITIONS[row.status]:
            continue
        was_final = row.status.is_final
        row = row.moved(happening, now=times)
        sent += happening in SENDS
        assert not was_final
        assert (row.attempts, row.updated_at) == (sent, times)
        assert bool(row.committed_at) == row.status.is_final
        assert row.status in PROOFS or sent
    assert row.created_at == 5


def test_time_never_goes_back_in_a_row() -> None:
    row = entry().moved(Happening.SENT, now=100).moved(Happening.LOST, now=50)
    assert (row.updated_at, row.started_at) == (100, 100)

"""The states of a request: the table is total, and nothing leads out of an end."""

from __future__ import annotations

import pytest

from perdure.decisions import ApprovalState, Happening
from perdure.decisions.states import TRANSITIONS
from perdure.errors import PerdureBug
from perdure.transitions import after


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(ApprovalState)


def test_every_happening_leads_somewhere() -> None:
    assert {happening for row in TRANSITIONS.values() for happening in row} == set(Happening)


@pytest.mark.parametrize("state", ApprovalState)
@pytest.mark.parametrize("happening", Happening)
def test_what_is_not_in_the_table_does_not_happen(state: ApprovalState, happening: Happening) -> None:
    if happening in TRANSITIONS[state]:
        assert after(TRANSITIONS, state, happening, noun="a request") is TRANSITIONS[state][happening]
    else:
        with pytest.raises(PerdureBug, match=f"a request that is {state} cannot be {happening}"):
            after(TRANSITIONS, state, happening, noun="a request")


def test_only_what_was_approved_is_ever_used() -> None:
    leads_to_used = [state for state, row in TRANSITIONS.items() if ApprovalState.USED in row.values()]
    assert leads_to_used == [ApprovalState.APPROVED]
    leads_to_approved = [state for state, row in TRANSITIONS.items() if ApprovalState.APPROVED in row.values()]
    assert leads_to_approved == [ApprovalState.PENDING]


def test_an_end_is_an_end() -> None:
    ends = {state for state in ApprovalState if state.is_final}
    assert ends == set(ApprovalState) - {ApprovalState.PENDING, ApprovalState.APPROVED}

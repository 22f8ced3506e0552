"""The order of the inbox: total, the riskiest first, then the oldest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.decisions.authority import BLOCKS, REQUESTS
from perdure.decisions.urgency import MEANS, RANKS, WAITS, Place, place

PLACES = st.builds(
    place, reason=st.sampled_from([*BLOCKS, *REQUESTS]), risk=st.sampled_from(["", "high"]), since=st.integers(0, 3),
    run_id=st.sampled_from("ab"), call=st.sampled_from("xy"), id=st.uuids().map(str),
)  # fmt: skip


@given(places=st.lists(PLACES, unique_by=lambda it: it.id), seed=st.randoms())
def test_everyone_sees_the_same_order(places: list[Place], seed: object) -> None:
    shuffled = places[:]
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sorted(shuffled) == sorted(places)


@given(first=PLACES, second=PLACES)
def test_risk_goes_before_age(first: Place, second: Place) -> None:
    if first.rank < second.rank or (first.rank == second.rank and first.since < second.since):
        assert first < second


def test_every_rank_is_explained_and_every_reason_known() -> None:
    assert set(RANKS) <= {*BLOCKS, *REQUESTS}
    assert {0, WAITS, *RANKS.values()} == set(MEANS)

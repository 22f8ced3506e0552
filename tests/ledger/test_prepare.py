"""May a call be sent? Held against an independent account of the same rules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger import (
    Answered,
    Call,
    Conflict,
    Duplicate,
    EffectState,
    GoOn,
    Held,
    LedgerEntry,
    NextRevision,
    Perform,
    prepare,
)
from perdure.ledger.operations import REVISIONS_MAX

ME = Call(rid=1, call="0:0:0", request_hash=b"a")
DONE = {EffectState.SUCCEEDED, EffectState.FAILED_FINAL}


def row(*, rid: int, call: str, request: bytes, status: EffectState, revision: int = 0) -> LedgerEntry:
    return LedgerEntry(
        "id", rid, f"run {rid}", call, "0/pay#1", "pay", "global", "o", revision, request, status, "idempotent", "low",
        1, 1,
    )  # fmt: skip


def test_nobody_asked_before() -> None:
    assert isinstance(prepare(ME, None), Perform)


ROWS = [
    row(rid=rid, call=call, request=request, status=status, revision=revision)
    for rid, call, request, status, revision in itertools.product(
        (1, 2), ("0:0:0", "0:0:1"), (b"a", b"b"), EffectState, (0, REVISIONS_MAX - 1)
    )
]


@pytest.mark.parametrize("reuses", [False, True])
def test_every_case_as_the_words_say(reuses: bool) -> None:
    """An account of its own, sentence by sentence."""
    for entry in ROWS:
        decision = prepare(ME._replace(reuses=reuses), entry)
        is_mine = (entry.rid, entry.call) == (1, "0:0:0")
        if entry.request_hash == b"b":  # another request
            is_refused = entry.status is EffectState.FAILED_FINAL
            expected: object = NextRevision() if is_refused and entry.revision < REVISIONS_MAX - 1 else Conflict(entry)
        elif is_mine:
            expected = Answered(entry) if entry.status in DONE else GoOn(entry)
        elif entry.status in DONE:
            expected = Answered(entry) if reuses else Duplicate(entry)
        elif entry.rid == 1:  # another call of this run is at it
            expected = Held(entry) if reuses else Duplicate(entry)
        else:  # another run is at it
            expected = Held(entry)
        assert (type(decision), decision) == (type(expected), expected), entry


@given(st.sampled_from(ROWS), st.booleans())
def test_only_what_nobody_asked_for_is_sent(entry: LedgerEntry, reuses: bool) -> None:
    decision = prepare(ME._replace(reuses=reuses), entry)
    assert not isinstance(decision, Perform)
    if isinstance(decision, GoOn):
        assert (entry.rid, entry.call, entry.request_hash) == (ME.rid, ME.call, ME.request_hash)
    if isinstance(decision, NextRevision):
        assert entry.status is EffectState.FAILED_FINAL, "only a proven refusal may be corrected"


def test_corrections_are_bounded() -> None:
    revision, sent = 0, 0
    while True:
        refused = row(rid=1, call="x", request=b"b", status=EffectState.FAILED_FINAL, revision=revision)
        if not isinstance(prepare(ME, refused), NextRevision):
            break
        revision, sent = revision + 1, sent + 1
    assert sent == REVISIONS_MAX - 1

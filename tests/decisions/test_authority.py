"""Who may make which choice: the table of reasons is that of the inbox, and the function against a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.api.inbox import OF_QUESTION, OF_REQUEST, REASONS, SETTLE
from perdure.decisions.authority import BLOCKS, CHOICES, REQUESTS, Authority, authority_of, refusal_of
from perdure.errors import AuthorityUnreadableError, UsageError

PERSONS = ["ann", "bo", "cy", ""]
ROLES = ["boss", "clerk"]


def test_whatever_can_stand_in_the_inbox_can_have_a_rule() -> None:
    assert set(REASONS) <= set(BLOCKS)
    assert set(OF_REQUEST) == set(REQUESTS)
    offered = [*OF_REQUEST.values(), *OF_QUESTION.values(), SETTLE]
    offered += [choices for reason in REASONS.values() for choices in (reason.of_call, reason.of_run)]
    assert {choice for choices in offered for choice in choices} <= set(CHOICES)


RULES = st.dictionaries(
    st.sampled_from(["*", "approval", "approval.reject", "unknown_effect", "unknown_effect.retry", "diverged"]),
    st.sets(st.sampled_from([*PERSONS[:2], *ROLES]), max_size=2),
    max_size=4,
)
HELD = st.dictionaries(st.sampled_from(PERSONS[:3]), st.sets(st.sampled_from(ROLES)))
REASON = st.sampled_from(["approval", "unknown_effect", "diverged", "deadlocked"])


@given(held=HELD, may=RULES, reason=REASON, choice=st.sampled_from(CHOICES), by=st.sampled_from(PERSONS),
       role=st.sampled_from(["", *ROLES]), is_function=st.booleans())  # fmt: skip
def test_who_may(
    held: dict[str, set[str]], may: dict[str, set[str]], reason: str, choice: str, by: str, role: str, is_function: bool
) -> None:
    named = [may[name] for name in (f"{reason}.{choice}", reason, "*") if name in may]
    is_allowed = by in held and (not role or role in held[by]) and (not named or bool(named[0] & {by, *held[by]}))
    refused = refusal_of(Authority(held.get if is_function else held, may), reason, choice, by=by, role=role)
    assert (refused is None) is is_allowed
    assert refusal_of(None, reason, choice, by=by, role=role) is None


def test_a_function_that_fails_decides_nothing() -> None:
    def away(person: str) -> set[str]:
        raise ConnectionError("the directory is away")

    def odd(person: str) -> Any:
        return 7

    wrong: list[Callable[[str], Any]] = [away, odd]
    for roles in wrong:
        with pytest.raises(AuthorityUnreadableError, match="roles"):
            refusal_of(authority_of(roles), "approval", "approve", by="ann")


@pytest.mark.parametrize(
    ("roles", "may", "told"),
    [
        (7, {}, "a dict of persons"),
        ({"ann": 7}, {}, "a dict of persons"),
        ({}, {"aproval": {"boss"}}, "a reason"),
        ({}, {"approval.aprove": {"boss"}}, "a reason and a choice"),
        ({}, {"approval": 7}, "names of persons and roles"),
        ({}, 7, "a dict of reasons"),
    ],
)
def test_what_is_no_authority_is_refused(roles: Any, may: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Authority(roles, may)

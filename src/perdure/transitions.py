"""What may follow on what: states of something that is stored, and what leads from one to the next, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from perdure.errors import PerdureBug

S = TypeVar("S", bound=StrEnum)
H = TypeVar("H", bound=StrEnum)

Transitions = Mapping[S, Mapping[H, S]]


def after(transitions: Transitions[S, H], state: S, happening: H, *, noun: str) -> S:
    """The state that follows. PerdureBug if that cannot happen in `state`."""
    following = transitions[state].get(happening)
    if following is None:
        raise PerdureBug(f"{noun} that is {state} cannot be {happening}")
    return following

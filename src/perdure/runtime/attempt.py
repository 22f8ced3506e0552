"""What a step's body can ask about itself while it runs: `attempt()`, `heartbeat()`, `last_heartbeat()`, `use()`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol

import msgspec

from perdure.clock import MICROSECONDS
from perdure.errors import UsageError
from perdure.history.spending import Use
from perdure.http.sender import SENDER, Requests


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at a step. `number` counts from 1 and is durable: an attempt that died keeps its number."""

    run_id: str
    workflow: str
    step: str
    label: str
    number: int
    max_attempts: int
    started_at: datetime
    beat: Callable[[Any], None]
    last_details: Callable[[Any], Any]
    provided: Mapping[type, Any]
    note_use: Callable[[Use], None]
    note_premise: Callable[[str, bytes, Any], None]

    def attempt(self) -> Attempt:
        return self

    def operation_id(self) -> str | None:
        return None


class HasAttempt(Protocol):
    """What runs a body and can tell about it."""

    def attempt(self) -> Attempt: ...


class Sends(HasAttempt, Protocol):
    """Whose body may send requests: it knows the id that they carry, if they carry one."""

    def operation_id(self) -> str | None: ...


class Outgoing(msgspec.Struct):
    """In whose name the requests of one attempt leave: a `perdure.http.sender.Sender`.

    It keeps the attempt's own number and end: the body of an attempt that timed out may run on in its thread while the
    flight is at the next one.
    """

    of: Sends
    number: int
    started_at: int
    until: int | None
    now: Callable[[], int]
    requests: Requests | None = None

    @property
    def run_id(self) -> str:
        return self.of.attempt().run_id

    @property
    def label(self) -> str:
        return self.of.attempt().label

    def seconds_left(self) -> float:
        return math.inf if self.until is None else (self.until - self.now()) / MICROSECONDS

    def operation_id(self) -> str | None:
        return self.of.operation_id()


ATTEMPT: ContextVar[HasAttempt | None] = ContextVar("perdure_attempt", default=None)
"""Set in the context of a step's body, and nowhere else."""

JOURNAL: ContextVar[Any] = ContextVar("perdure_journal", default=None)
"""Set in the context of hosted foreign code: the journal that answers its calls."""

class Unlocked(msgspec.Struct, frozen=True):
    """The secrets that the body of one attempt may have: values by name. `kept`: those that were not fetched for this
    attempt, and who gave them."""

    values: Mapping[str, str]
    kept: Mapping[str, Any]


UNLOCKED: ContextVar[Unlocked | None] = ContextVar("perdure_unlocked", default=None)
"""Set in the context of the body of a step that declares secrets."""

LANE: ContextVar[str] = ContextVar("perdure_lane", default="main")
"""Which lane of its section foreign code is in, where an adapter says so."""


def attempt_here(of: Sends) -> Outgoing | None:
    """Which attempt the running body is, if it is one of these; None elsewhere. A thread that was given up for lost
    runs on beside the next attempt."""
    sender = SENDER.get()
    return sender if isinstance(sender, Outgoing) and sender.of is of else None


def current_attempt(asked: str) -> Attempt:
    """The attempt whose body is running. UsageError elsewhere, which names what was asked."""
    running = ATTEMPT.get()
    if running is None:
        raise UsageError(f"perdure.{asked}() belongs inside the body of a step")
    return running.attempt()

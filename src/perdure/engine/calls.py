"""Durable calls as the engine sees them: who asked for what, and the future that will carry the answer.

A call is identified by its task's path and its ordinal in that task, taken when it first runs. Everything else that is
kept with it (name, use, digest of the arguments) is there to notice that the code has changed, and to tell a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.decisions import Request
from perdure.engine.loop import LoopFuture
from perdure.specs import StepSpec, WorkflowSpec

if TYPE_CHECKING:
    from perdure.codec import Packed, ValueCodec
    from perdure.engine.execution import Execution

Key = tuple[str, int]


def section_of(key: Key) -> str:
    """Under which name the calls of a section stand in the history.

    >>> section_of(("0", 3))
    '0:3'
    """
    return f"{key[0]}:{key[1]}"


class CallFuture(LoopFuture):
    """The future of a durable call. Cancelling it is itself something that the engine has to know."""

    __slots__ = ("ask", "execution")
    ask: Ask | None
    execution: Execution

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        if self.ask is not None:
            self.execution.call_was_cancelled(self.ask)
        return True


class Ask:
    """A durable call whose outcome is not delivered yet."""

    __slots__ = ("future", "key", "name", "use")
    kind = "call"

    def __init__(self, key: Key, name: str, use: int, future: CallFuture) -> None:
        self.key, self.name, self.use, self.future = key, name, use, future
        future.ask = self

    @property
    def label(self) -> str:
        return f"{self.key[0]}/{self.name}#{self.use}"


class StepAsk(Ask):
    """A step to be performed. `input` are its arguments, canonical; `packed` the same as it is to be stored. `grant`:
    the approval that it is made under; a plain step has none unless it was approved."""

    __slots__ = ("grant", "input", "is_recorded", "packed", "spec", "view")
    kind = "step"
    is_recorded: bool
    spec: StepSpec
    input: bytes
    packed: Packed | None
    view: bytes | None
    grant: Grant | None


class EffectAsk(StepAsk):
    """An effect to be performed. Once it may have left, a cancelled one is held until its outcome is known."""

    __slots__ = ("business_key", "revision", "undoes")
    kind = "effect"
    business_key: str
    revision: int
    """The first that it may have."""
    undoes: str
    """The operation that it takes back, if it is the undoing of another effect."""

    def __init__(self, key: Key, name: str, use: int, future: CallFuture) -> None:
        super().__init__(key, name, use, future)
        self.revision, self.undoes, self.grant = 0, "", None


class ChildAsk(Ask):
    """A child run to be started and waited for. `is_started`: its start is recorded, or about to be."""

    __slots__ = ("input", "is_started", "on_cancel", "packed", "run_id", "spec")
    kind = "child"
    is_started: bool
    spec: WorkflowSpec
    input: bytes
    packed: Packed
    run_id: str
    on_cancel: str


class ChildCall(msgspec.Struct, frozen=True):
    """A child run to be started."""

    spec: WorkflowSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run_id: str | None
    on_cancel: str


class SectionAsk(Ask):
    """Foreign code to be hosted outside the workflow's loop, its calls answered by a journal."""

    __slots__ = ("args", "function", "is_async", "is_recorded", "kwargs", "result")
    kind = "section"
    is_recorded: bool
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_async: bool
    result: ValueCodec


class SleepAsk(Ask):
    """A durable timer."""

    __slots__ = ("deadline", "handle", "length")
    kind = "sleep"
    length: int
    deadline: int
    handle: Any


class ReceiveAsk(Ask):
    """Code that waits for a message, at most for `length` if it has one."""

    __slots__ = ("length", "message")
    kind = "receive"
    message: str
    length: int


class UnreadAsk(ReceiveAsk):
    """A receive that got a message which it cannot read under `codec`: a person decides what it is to have."""

    __slots__ = ("codec", "unread")
    codec: ValueCodec
    unread: bytes


class QuestionAsk(Ask):
    """Code that waits for a person's decision. Its name says which question it is."""

    __slots__ = ()
    kind = "question"


class RequestAsk(QuestionAsk):
    """Code that waits until people have decided about a request. `raw`: the body, canonical; `packed` the same as it is
    stored. `codec`: how an answer is read. From `expires_at` on (microseconds; 0: never) no decision counts. `about`:
    the step or effect that is to be approved."""

    __slots__ = ("about", "codec", "expires_at", "handle", "id", "packed", "raw", "request")
    request: Request
    codec: ValueCodec
    id: str
    raw: bytes
    packed: Packed
    expires_at: int
    handle: Any
    about: StepSpec | None

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.request.kind


class Overdue(NamedTuple):
    """A command: the time of this request is up."""

    ask: RequestAsk


CHECK_AGE_MAX_MICROSECONDS = 5_000_000
"""What a check has found is good for so long: what begins later is checked again."""


class Grant(NamedTuple):
    """An approval that a call is made under. `arguments`: what was approved, canonical. If `recheck`, the call has to
    begin before `expires_at`. `checked_at`: when the facts that it rests on were read last; 0: it rests on none."""

    id: str
    arguments: bytes
    expires_at: int = 0
    recheck: bool = True
    checked_at: int = 0

    def is_late(self, now: int) -> bool:
        """Whether the call may not begin any more."""
        return self.recheck and 0 < self.expires_at <= now

    def is_outdated(self, now: int) -> bool:
        """Whether the facts have to be read once more before an effect is sent."""
        return 0 < self.checked_at < now - CHECK_AGE_MAX_MICROSECONDS


DONE_BY_ORIGINAL = "done_by_original"
"""Why a call of a fork waits for a person: the run that it was forked from has done the same."""

CONFIRM_UNDO, UNDO_FAILED, NO_UNDO = "saga:confirm", "saga:failed", "saga:stands"
QUESTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    CONFIRM_UNDO: {"value": ("undo", "undone"), "fail": ()},
    UNDO_FAILED: {"retry": (), "value": (), "fail": ()},
    NO_UNDO: {"value": (), "fail": ()},
}
"""What a person can be asked: the choices of each question, and the values among which one has to be chosen, if it is
not all the same."""


class Cancelled(msgspec.Struct, frozen=True):
    """A command: the code cancelled this call, which is under way."""

    ask: Ask


Command = StepAsk | ChildAsk | SectionAsk | RequestAsk | Cancelled | Overdue


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a parked run's waiting set: written before the run leaves memory, claimed again on rebuild.
    `length` and `deadline` in microseconds."""

    task: str
    n: int
    kind: str
    name: str
    length: int = 0
    deadline: int = 0


class WaitingSet(msgspec.Struct, frozen=True):
    """What a parked run waits for. Counts only for a history of exactly `history_length` events."""

    history_length: int
    entries: tuple[Waiting, ...]


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """What the history says about a call that the code has not made again yet. `digest` is what its arguments are
    compared by; `stored` their address, if they are kept. `business_key`: of an effect. `input`: the arguments
    of a step themselves, where they stand beside the event; equal ones need no digest."""

    name: str
    kind: str
    digest: bytes | None
    stored: bytes | None = None
    business_key: str | None = None
    input: bytes | None = None


class Attempts(NamedTuple):
    """What the history says about attempts at a step that has no outcome yet."""

    failed: int = 0
    retry_at: int = 0
    first_at: int = 0
    details: bytes | None = None


NO_ATTEMPTS = Attempts()

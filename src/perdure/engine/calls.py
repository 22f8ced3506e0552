"""Durable calls as the engine sees them: who asked for what, and the future that will carry the answer.

A call is identified by its task's path and its ordinal in that task, taken when it first runs. Everything else that is
kept with it (name, use, digest of the arguments) is there to notice that the code has changed, and to tell a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

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


DEBT = "~"
"""How the paths of tasks begin that are none of the code's, but about what its run owes."""


def is_debt(key: Key) -> bool:
    """Whether a call is none of the code's, but people are asked about what its run owes."""
    return key[0].startswith(DEBT)


def derived_id(run_id: str, chapter: int, key: Key, name: str) -> str:
    """The id of a child run to which its code gives none.

    >>> derived_id("r", 1, ("0.2", 3), "pays")
    'r/1:0.2.pays.3'
    """
    return f"{run_id}/{f'{chapter}:' if chapter else ''}{place_in_id(key, name)}"


def place_in_id(key: Key, name: str) -> str:
    """How such an id ends: with the place of the call in the code."""
    return f"{key[0].replace('/', '.')}.{name}.{key[1]}"


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


class Ask(msgspec.Struct, eq=False):
    """A durable call whose outcome is not delivered yet. A struct: one is made for each call that the code makes."""

    key: Key
    name: str
    use: int
    future: CallFuture

    kind: ClassVar[str] = "call"

    @property
    def label(self) -> str:
        return f"{self.key[0]}/{self.name}#{self.use}"

    @property
    def is_about_debt(self) -> bool:
        return is_debt(self.key)


AnyAsk = TypeVar("AnyAsk", bound=Ask)


def linked(ask: AnyAsk) -> AnyAsk:
    """The call, when its future knows it: to cancel the one is to cancel the other."""
    ask.future.ask = ask
    return ask


class StepAsk(Ask, eq=False):
    """A step to be performed. `input` are its arguments, canonical; `packed` the same as it is to be stored. `grant`:
    the approval that it is made under; a plain step has none unless it was approved."""

    spec: StepSpec
    input: bytes
    view: bytes | None = None
    packed: Packed | None = None
    is_recorded: bool = False
    grant: Grant | None = None

    kind: ClassVar[str] = "step"


class EffectAsk(StepAsk, eq=False):
    """An effect to be performed. Once it may have left, a cancelled one is held until its outcome is known."""

    business_key: str = ""
    revision: int = 0
    """The first that it may have."""
    undoes: str = ""
    """The operation that it takes back, if it is the undoing of another effect."""

    kind: ClassVar[str] = "effect"


class ChildAsk(Ask, eq=False):
    """A child run to be started and waited for. `is_started`: its start is recorded, or about to be. `grant`: the
    approval that it is made under, if it was approved. `base`, `again`: its id, and what tells it from an earlier one
    of the same, if the run has gone back since."""

    spec: WorkflowSpec
    input: bytes
    packed: Packed
    on_cancel: str
    run_id: str = ""
    is_started: bool = False
    grant: Grant | None = None
    base: str = ""
    again: int = 0

    kind: ClassVar[str] = "child"


class ChildCall(msgspec.Struct, frozen=True):
    """A child run to be started."""

    spec: WorkflowSpec
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    run_id: str | None
    on_cancel: str


class SectionAsk(Ask, eq=False):
    """Foreign code to be hosted outside the workflow's loop, its calls answered by a journal."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_async: bool
    result: ValueCodec
    is_recorded: bool

    kind: ClassVar[str] = "section"


class SleepAsk(Ask, eq=False):
    """A durable timer."""

    length: int
    deadline: int
    handle: Any = None

    kind: ClassVar[str] = "sleep"


class ReceiveAsk(Ask, eq=False):
    """Code that waits for a message, at most for `length` if it has one."""

    message: str
    length: int

    kind: ClassVar[str] = "receive"


class UnreadAsk(ReceiveAsk, eq=False):
    """A receive that got a message which it cannot read under `codec`: a person decides what it is to have."""

    codec: ValueCodec
    unread: bytes


class QuestionAsk(Ask, eq=False):
    """Code that waits for a person's decision. Its name says which question it is."""

    kind: ClassVar[str] = "question"


class RequestAsk(QuestionAsk, eq=False):
    """Code that waits until people have decided about a request. `raw`: the body, canonical; `packed` the same as it is
    stored. `codec`: how an answer is read. From `expires_at` on (microseconds; 0: never) no decision counts. `about`:
    the step or effect that is to be approved."""

    request: Request
    codec: ValueCodec
    raw: bytes
    packed: Packed
    about: StepSpec | None
    id: str = ""
    expires_at: int = 0
    handle: Any = None

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
        """Whether the facts have to be read once more before the call begins."""
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

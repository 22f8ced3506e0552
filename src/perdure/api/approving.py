"""People decide: `with_approval` and `ask`, as workflow code calls them."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast, overload

import msgspec

from perdure.api.calls import Call
from perdure.api.inside import _execution, _journal  # pyright: ignore[reportPrivateUsage]
from perdure.clock import MICROSECONDS
from perdure.codec import ValueCodec, codec_for, describe
from perdure.decisions import Request, approval_id, identity
from perdure.engine.calls import Grant
from perdure.engine.execution import SECONDS_MAX, Execution
from perdure.errors import ApprovalExpired, Rejected, UsageError
from perdure.history import events as e
from perdure.ledger.operations import business_key_of
from perdure.specs import EffectSpec, StepSpec, is_whole, recordable, several
from perdure.specs import seconds as _seconds

R = TypeVar("R")
T = TypeVar("T")

Approvers = str | Iterable[str]

QUESTION_CHARACTERS_MAX = 10_000
QUORUM_MAX = 1_000
_PLAIN = codec_for(Any)


async def with_approval(
    call: Call[R],
    *,
    by: Approvers,
    quorum: int = 1,
    within: timedelta | float | None = None,
    note: str = "",
    recheck: bool = True,
) -> R:
    """Ask people for exactly this call, wait for their decision, make the call, and give its result.

    What is asked is the call as it is now: an effect, a step or a child run, with its arguments. It stands in the inbox
    with all of it and with a hash, which a decision has to name. The wait is durable and costs nothing: the run leaves
    memory. An approval is good for this one call; other arguments are another request.

    `by`: who may decide, names of persons or roles. `quorum`: how many different persons have to approve; one who
    rejects is enough. `within`: for how long it can be decided (default: for ever), and, with `recheck`, by when the
    call has to begin. `recheck=False`: once approved in time, the call may begin late. `note`: for whoever decides.

    Rejected (with who, and their comment) and ApprovalExpired are raised here; nothing has happened then. Cancelling
    the wait withdraws the request. UsageError outside a workflow, and for a call that was made already.

    >>> async def pay(order: str, cents: int) -> str:  # doctest: +SKIP
    ...     return await perdure.with_approval(refund.call(order, cents), by={"supervisor"}, within=timedelta(days=3))
    """
    asked = approval_of(call, by=by, quorum=quorum, within=within, note=note, recheck=recheck)
    journal = _journal()
    if journal is not None:
        said = Said(*await journal.wait_async(journal.people.ask(asked.request, _PLAIN)))
        return cast(R, await journal.wait_async(approved_call(journal, asked, said)))
    execution = _execution("with_approval")
    people = execution.ask_request(asked.request, _PLAIN)
    event, value = await people.future
    return cast(R, await _make(execution, asked, asked.grant(Said(event, value, people.expires_at), execution)))


async def _make(execution: Execution, asked: Asked, grant: Grant) -> Any:
    """Make the call that was approved, under its approval."""
    spec, (args, kwargs) = asked.spec, asked.arguments()
    if isinstance(spec, EffectSpec):
        return await execution.ask_effect(spec, args, kwargs, asked.request.key, grant=grant)
    if grant.is_late(execution.now_us):
        execution.spend(grant, spec.name, lapsed=True)
        raise too_late(grant, spec.name)
    if isinstance(spec, StepSpec):
        future = execution.ask_step(spec, args, kwargs)
    else:
        future = execution.ask_child(spec, args, kwargs).future
    if future.ask is not None:
        execution.spend(grant, future.ask.label)
    return await future


@overload
async def ask(
    question: str, *, subject: Any = None, type: type[T], by: Approvers = (), within: timedelta | float | None = None,
    note: str = "",
) -> T: ...  # fmt: skip
@overload
async def ask(
    question: str, *, subject: Any = None, type: None = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "",
) -> Any: ...  # fmt: skip
async def ask(
    question: str, *, subject: Any = None, type: Any = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "",
) -> Any:  # fmt: skip
    """Ask people something, wait for the answer, and give it.

    `type`: what the answer is, and how it is read (default: plain JSON). `subject`: what the question is about, plain
    JSON, shown with it. `by`: who may answer, persons or roles (default: everybody). The first answer is the answer,
    also when it is false, empty or nothing.

    TimeoutError if nobody has answered `within` that time. Cancelling the wait withdraws the question. UsageError
    outside a workflow.

    >>> async def choose(customer: str) -> str:  # doctest: +SKIP
    ...     return await perdure.ask("Which account?", subject={"customer": customer}, type=str, by={"support"})
    """
    codec = codec_for(Any if type is None else type)
    request = question_of(question, subject=subject, type=type, by=by, within=within, note=note)
    journal = _journal()
    if journal is not None:
        said = Said(*await journal.wait_async(journal.people.ask(request, codec)))
    else:
        event, value = await _execution("ask").ask_request(request, codec).future
        said = Said(event, value, 0)
    return answer_of(said, request, codec)


# ── what is asked ───────────────────────────────────────────────────────────────────────────


class Said(NamedTuple):
    """What became of a request: the event that says so, and the value that came with it. `expires_at`: of the
    request."""

    event: e.PersonAnswered
    value: bytes
    expires_at: int


class Asked(NamedTuple):
    """A call that is to be approved. Its arguments are kept as they were when it was asked for."""

    request: Request
    spec: Any
    raw: bytes

    @property
    def name(self) -> str:
        return self.request.name

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What was approved, and nothing that came of it meanwhile."""
        loaded: tuple[tuple[Any, ...], dict[str, Any]] = self.spec.arguments.loads(self.raw)
        return loaded

    def grant(self, said: Said, execution: Execution) -> Grant:
        """What the call is made under. Rejected or ApprovalExpired if it is not to be made."""
        event, request = said.event, self.request
        approval = approval_id(execution.run_id, identity(execution.beginning.chapter, event.task, event.n))
        if event.choice == "reject":
            by = f"{event.by} as {event.role}" if event.role else event.by
            why = f": {event.why}" if event.why else ""
            raise Rejected(f"{self.name} was rejected by {by}{why}", event.by, event.why, event.role, approval)
        if event.choice != "approve":
            raise ApprovalExpired(f"nobody has approved {self.name} within {_told(request.within)}", approval)
        return Grant(approval, self.raw, said.expires_at, request.recheck)


def approval_of(
    call: Any, *, by: Approvers, quorum: int, within: timedelta | float | None, note: str, recheck: bool
) -> Asked:
    """What `with_approval` asks. UsageError for what cannot be asked, EncodeError for arguments that cannot be kept."""
    if not isinstance(call, Call):
        name = getattr(call, "name", "refund")
        raise UsageError(f"with_approval({call!r}): a call is wanted, as in with_approval({name}.call(...), by=...)")
    return _approval_of(cast("Any", call), by, quorum, _within(within), _note(note), recheck)


def _approval_of(call: Call[Any], by: Approvers, quorum: int, within: int, note: str, recheck: bool) -> Asked:
    if not is_whole(quorum) or not 1 <= quorum <= QUORUM_MAX:
        raise UsageError(f"with_approval(quorum={quorum!r}): how many persons have to approve, from 1 on")
    approvers = _approvers(by)
    if not approvers:
        raise UsageError("with_approval(by=...): say who may decide, persons or roles, as in by={'supervisor'}")
    spec, (args, kwargs) = call.of.spec, call.take()
    raw = spec.arguments.dumps(args, kwargs)
    key = business_key_of(spec, *spec.arguments.loads(raw)) if isinstance(spec, EffectSpec) else ""
    of = "effect" if isinstance(spec, EffectSpec) else "step" if isinstance(spec, StepSpec) else "workflow"
    request = Request(
        "approval", spec.name, of=of, arguments=msgspec.Raw(raw), key=key, approvers=approvers, quorum=quorum,
        within=within, recheck=recheck, note=note,
        risk="high" if isinstance(spec, EffectSpec) and spec.stakes == "high" else "",
    )  # fmt: skip
    return Asked(request, spec, raw)


def question_of(
    question: str, *, subject: Any, type: Any, by: Approvers, within: timedelta | float | None, note: str
) -> Request:
    """What `ask` asks."""
    hint = Any if type is None else type
    text = recordable(question, what="ask(): the question", length_max=QUESTION_CHARACTERS_MAX)
    return Request(
        "question", text, arguments=msgspec.Raw(_PLAIN.dumps(subject)), type=describe(hint),
        choices=tuple(map(msgspec.Raw, _choices(hint))), approvers=_approvers(by), within=_within(within),
        note=_note(note),
    )  # fmt: skip


def answer_of(said: Said, request: Request, codec: ValueCodec) -> Any:
    """The answer, or TimeoutError."""
    if said.event.choice != "answer":
        raise TimeoutError(f"nobody has answered within {_told(request.within)}: {request.name}")
    return codec.loads(said.value)


def approved_call(journal: Any, asked: Asked, said: Said) -> Any:
    """For hosted code: the call that was approved, to be waited for. Its time is that of the answer."""
    grant = asked.grant(said, journal.live.execution)
    if not isinstance(asked.spec, EffectSpec) and grant.is_late(journal.now_us()):
        journal.steps.has_lapsed(grant, asked.name)
        raise too_late(grant, asked.name)
    return journal.call_of(asked.spec, *asked.arguments(), grant)


def too_late(grant: Grant, name: str) -> ApprovalExpired:
    return ApprovalExpired(f"the approval of {name} was given in time, and it is too late to begin", grant.id)


def _choices(hint: Any) -> list[bytes]:
    """All answers there are, where they can be listed."""
    if hint is bool:
        values: list[Any] = [True, False]
    elif typing.get_origin(hint) is typing.Literal:
        values = list(typing.get_args(hint))
    elif inspect.isclass(hint) and issubclass(hint, enum.Enum):
        values = list(hint)
    else:
        return []
    return [codec_for(hint).dumps(value) for value in values]


def _approvers(by: Any) -> tuple[str, ...]:
    names = [by] if isinstance(by, str) else several(by)
    if names is None:
        raise UsageError(f"by={by!r}: names of persons or roles, as in by={{'supervisor'}}")
    return tuple(sorted({recordable(name, what="by") for name in names}))


def _within(within: Any) -> int:
    if within is None:
        return 0
    limit = _seconds(within, what="within")
    if not 0 < limit <= SECONDS_MAX:
        raise UsageError(f"within={within!r}: more than nothing, and at most 100 years")
    return round(limit * MICROSECONDS)


def _note(note: Any) -> str:
    return recordable(note, what="note", length_max=QUESTION_CHARACTERS_MAX) if note != "" else ""


def _told(within: int) -> str:
    return str(timedelta(microseconds=within))


__all__ = ["Approvers", "ask", "with_approval"]

"""People decide: `with_approval` and `ask`, as workflow code calls them."""

from __future__ import annotations

import contextlib
import enum
import inspect
import typing
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast, overload

import msgspec

from perdure.api.calls import Call
from perdure.api.inside import _execution, _journal, to_be_awaited  # pyright: ignore[reportPrivateUsage]
from perdure.clock import MICROSECONDS
from perdure.codec import ValueCodec, arguments_codec_for, codec_for, describe, load_exception
from perdure.decisions import Request
from perdure.errors import ApprovalExpired, CheckTooOld, PerdureBug, Rejected, UsageError
from perdure.ledger.operations import business_key_of
from perdure.specs import SECONDS_MAX, EffectSpec, StepSpec, is_whole, mapping, recordable, several
from perdure.specs import seconds_given as _seconds

if TYPE_CHECKING:
    from perdure.engine.calls import Grant
    from perdure.engine.execution import Execution
    from perdure.history import events as e

R = TypeVar("R")
T = TypeVar("T")

Approvers = str | Iterable[str]

QUESTION_CHARACTERS_MAX = 10_000
QUORUM_MAX = 1_000
READING = "premises:"
"""How the names of steps begin that read what an approval rests on."""
_PLAIN = codec_for(Any)


@to_be_awaited
async def with_approval(
    call: Call[R],
    *,
    by: Approvers,
    quorum: int = 1,
    within: timedelta | float | None = None,
    note: str = "",
    premises: Mapping[str, Call[Any]] | None = None,
    recheck: bool = True,
    remind_after: timedelta | float | None = None,
    escalate_after: timedelta | float | None = None,
    escalate_to: Approvers = (),
) -> R:
    """Ask people for exactly this call, wait for their decision, make the call, and give its result.

    What is asked is the call as it is now: an effect, a step or a child run, with its arguments. It stands in the inbox
    with all of it and with a hash, which a decision has to name. The wait is durable and costs nothing: the run leaves
    memory. An approval is good for this one call; other arguments are another request.

    `by`: who may decide, names of persons or roles. `quorum`: how many different persons have to approve; one who
    rejects is enough. `within`: for how long it can be decided (default: for ever), and, with `recheck`, by when the
    call has to begin. `note`: for whoever decides.

    `premises`: facts that the decision rests on, each by a name and the call of a step that reads it. They are read
    before people are asked, who see them; and, with `recheck`, again before the call is made. If one has another value
    by then the approval counts for nothing, and people are asked again, with the facts as they are. `recheck=False`:
    once approved in time, the call may begin late, whatever has become of the facts.

    `remind_after`: if nobody has decided by then, it is announced once more. `escalate_after`, `escalate_to`: from then
    on these, persons or roles, may decide, too, and it is announced once more.

    Rejected (with who, and their comment) and ApprovalExpired are raised here; nothing has happened then. PolicyDenied
    if a policy refuses the call, approved or not: nobody is asked then. Cancelling the wait withdraws the request.
    UsageError outside a workflow, and for a call that was made already.

    >>> async def pay(order: str, cents: int) -> str:  # doctest: +SKIP
    ...     return await perdure.with_approval(
    ...         refund.call(order, cents), by={"supervisor"}, premises={"order": order_status.call(order)}
    ...     )
    """
    asked = approval_of(call, by=by, quorum=quorum, within=within, note=note, premises=premises, recheck=recheck)
    asked = asked.patiently(remind_after, escalate_after, escalate_to)
    journal = _journal()
    if journal is None:
        return cast(R, await _approved(asked, _OnLoop(_execution("with_approval"))))
    return cast(R, await _approved(asked, _Hosted(journal)))


def approved_here(journal: Any, asked: Asked) -> Any:
    """The same for a thread of hosted code, which waits where it is."""
    waiting = _approved(asked, _Blocking(journal))
    try:
        waiting.send(None)
    except StopIteration as done:
        return done.value
    raise PerdureBug("an approval was suspended in a thread")


async def _approved(asked: Asked, code: Asks) -> Any:
    """Ask, as often as the facts are other ones when the call is to be made; then make it."""
    facts = await _read(asked, code)
    while True:
        said = await code.ask(asked.on(facts), asked.step)
        grant = asked.grant(said, code.execution)
        while asked.facts and asked.request.recheck:
            found = await _read(asked, code)
            if found != facts:
                code.lapse(grant.id, asked.name)
                facts = found
                break
            with contextlib.suppress(CheckTooOld):
                return await code.make(asked, grant._replace(checked_at=code.now_us()))
        else:
            return await code.make(asked, grant)


async def _read(asked: Asked, code: Asks) -> Facts:
    """What the decision rests on, as it is now. All of it is read in one step: were each a step of its own, a crash
    between two of them would leave one that is as old as the crash beside one that is new."""
    if not asked.facts:
        return ()
    found: dict[str, str] = await code.call(_reading(asked))
    return tuple((name, text.encode()) for name, text in found.items())


def _reading(asked: Asked) -> Made:
    """The step that reads all facts, at the same time. It gives their names, and the values as canonical JSON."""

    async def read(facts: Any) -> dict[str, str]:
        from asyncio import gather  # whoever awaits has it; `import perdure` does without

        names, calls = zip(*asked.facts, strict=True)
        return dict(zip(names, await gather(*(call.read() for call in calls)), strict=True))

    spec = StepSpec(
        name=f"{READING}{asked.name}", function=read, is_async=True, arguments=arguments_codec_for(read),
        result=codec_for(dict[str, str]), reuse=False,
    )  # fmt: skip
    facts = {name: {"step": fact.spec.name, "arguments": fact.raw.decode()} for name, fact in asked.facts}
    return Made(spec, spec.arguments.dumps((facts,), {}))


def is_reading(name: str) -> bool:
    """Whether a step of that name reads what an approval rests on."""
    return name.startswith(READING)


class Asks(Protocol):
    """Code of a run that asks: on the workflow's loop, in a coroutine elsewhere, or in a thread."""

    execution: Execution

    async def ask(self, request: Request, about: StepSpec | None) -> Said:
        """Put this to people, and wait for what they say. `about`: the step or effect that is to be approved."""
        ...

    async def call(self, made: Made) -> Any:
        """Call a step."""
        ...

    async def make(self, asked: Asked, grant: Grant) -> Any:
        """Make the call that was approved, under its approval."""
        ...

    def lapse(self, approval: str, call: str) -> None:
        """The call is not made: the approval is good for nothing else."""
        ...

    def now_us(self) -> int:
        """The time of the last thing that the code was told, in microseconds since the epoch."""
        ...


class _OnLoop:
    """Code of an async workflow."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.lapse = execution.lapse

    async def ask(self, request: Request, about: StepSpec | None) -> Said:
        people = self.execution.ask_request(request, _PLAIN, about)
        event, value = await people.future
        return Said(event, value, people.expires_at)

    async def call(self, made: Made) -> Any:
        return await self.execution.ask_step(made.spec, *made.arguments())

    async def make(self, asked: Asked, grant: Grant) -> Any:
        from perdure.engine.calls import ChildAsk, StepAsk

        execution, spec, (args, kwargs) = self.execution, asked.call.spec, asked.call.arguments()
        if isinstance(spec, EffectSpec):
            return await execution.ask_effect(spec, args, kwargs, asked.request.key, grant=grant)
        if grant.is_late(execution.now_us):
            self.lapse(grant.id, spec.name)
            raise _too_late(grant, spec.name)
        if isinstance(spec, StepSpec):
            future = execution.ask_step(spec, args, kwargs)
        else:
            future = execution.ask_child(spec, args, kwargs).future
        if isinstance(future.ask, StepAsk | ChildAsk):
            future.ask.grant = grant
        return await future

    def now_us(self) -> int:
        return self.execution.now_us


class _Hosted:
    """A coroutine of hosted code."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.execution = journal.live.execution

    async def _wait(self, request: Any) -> Any:
        return await self._journal.wait_async(request)

    async def ask(self, request: Request, about: StepSpec | None) -> Said:
        return Said(*await self._wait(self._journal.people.ask(request, _PLAIN, about)))

    async def call(self, made: Made) -> Any:
        return await self._wait(self._journal.call_of(made.spec, *made.arguments()))

    async def make(self, asked: Asked, grant: Grant) -> Any:
        """Its time is that of the answer."""
        if not isinstance(asked.call.spec, EffectSpec) and grant.is_late(self.now_us()):
            self.lapse(grant.id, asked.name)
            raise _too_late(grant, asked.name)
        return await self._wait(self._journal.call_of(asked.call.spec, *asked.call.arguments(), grant))

    def lapse(self, approval: str, call: str) -> None:
        self._journal.steps.lapse(approval, call)

    def now_us(self) -> int:
        return self._journal.now_us()  # type: ignore[no-any-return]


class _Blocking(_Hosted):
    """A thread of hosted code."""

    async def _wait(self, request: Any) -> Any:
        return self._journal.wait(request)


@overload
async def ask(
    question: str, *, subject: Any = None, type: type[T], by: Approvers = (), within: timedelta | float | None = None,
    note: str = "", remind_after: timedelta | float | None = None, escalate_after: timedelta | float | None = None,
    escalate_to: Approvers = (),
) -> T: ...  # fmt: skip
@overload
async def ask(
    question: str, *, subject: Any = None, type: None = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "", remind_after: timedelta | float | None = None,
    escalate_after: timedelta | float | None = None, escalate_to: Approvers = (),
) -> Any: ...  # fmt: skip
@to_be_awaited
async def ask(
    question: str, *, subject: Any = None, type: Any = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "", remind_after: timedelta | float | None = None,
    escalate_after: timedelta | float | None = None, escalate_to: Approvers = (),
) -> Any:  # fmt: skip
    """Ask people something, wait for the answer, and give it.

    `type`: what the answer is, and how it is read (default: plain JSON). `subject`: what the question is about, plain
    JSON, shown with it. `by`: who may answer, persons or roles (default: everybody). The first answer is the answer,
    also when it is false, empty or nothing. `remind_after`, `escalate_after`, `escalate_to`: see `with_approval`.

    TimeoutError if nobody has answered `within` that time. Cancelling the wait withdraws the question. UsageError
    outside a workflow.

    >>> async def choose(customer: str) -> str:  # doctest: +SKIP
    ...     return await perdure.ask("Which account?", subject={"customer": customer}, type=str, by={"support"})
    """
    codec = codec_for(Any if type is None else type)
    request = question_of(question, subject=subject, type=type, by=by, within=within, note=note)
    request = patient(request, remind_after, escalate_after, escalate_to)
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


class Made(NamedTuple):
    """A call with its arguments, kept as they were when it was given: it can be made any number of times."""

    spec: Any
    raw: bytes

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As they were, and nothing that came of them meanwhile."""
        loaded: tuple[tuple[Any, ...], dict[str, Any]] = self.spec.arguments.loads(self.raw)
        return loaded

    async def read(self) -> str:
        """What a step gives, as canonical JSON; within the body of another one."""
        args, kwargs = self.arguments()
        if self.spec.is_async:
            value = await self.spec.function(*args, **kwargs)
        else:
            from asyncio import to_thread

            value = await to_thread(self.spec.function, *args, **kwargs)
        text: bytes = self.spec.result.dumps(value)
        return text.decode()


Facts = tuple[tuple[str, bytes], ...]
"""What a decision rests on: names, and values as canonical JSON."""


class Asked(NamedTuple):
    """A call that is to be approved, and the calls of steps that read what that rests on."""

    request: Request
    call: Made
    facts: tuple[tuple[str, Made], ...] = ()

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def step(self) -> StepSpec | None:
        """The step or effect, if it is one."""
        return self.call.spec if isinstance(self.call.spec, StepSpec) else None

    def patiently(self, remind_after: Any, escalate_after: Any, escalate_to: Any) -> Asked:
        """The same, and what happens when nobody decides."""
        return self._replace(request=patient(self.request, remind_after, escalate_after, escalate_to))

    def on(self, facts: Facts) -> Request:
        """What is asked, given these facts."""
        if not facts:
            return self.request
        return msgspec.structs.replace(self.request, facts=tuple((name, msgspec.Raw(value)) for name, value in facts))

    def grant(self, said: Said, execution: Execution) -> Grant:
        """What the call is made under. Rejected or ApprovalExpired if it is not to be made."""
        event, request = said.event, self.request
        approval = execution.approval_at(event.key)
        if event.choice == "reject":
            by = f"{event.by} as {event.role}" if event.role else event.by
            why = f": {event.why}" if event.why else ""
            raise Rejected(f"{self.name} was rejected by {by}{why}", event.by, event.why, event.role, approval)
        if event.choice == "denied":
            raise load_exception(said.value, ())
        if event.choice != "approve":
            raise ApprovalExpired(f"nobody has approved {self.name} within {_told(request.within)}", approval)
        from perdure.engine.calls import Grant

        return Grant(approval, self.call.raw, said.expires_at, request.recheck)


def approval_of(
    call: Any, *, by: Approvers, quorum: int, within: timedelta | float | None, note: str, recheck: bool,
    premises: Mapping[str, Call[Any]] | None = None,
) -> Asked:  # fmt: skip
    """What `with_approval` asks. UsageError for what cannot be asked, EncodeError for arguments that cannot be kept."""
    if not isinstance(call, Call):
        name = getattr(call, "name", "refund")
        raise UsageError(f"with_approval({call!r}): a call is wanted, as in with_approval({name}.call(...), by=...)")
    asked = _approval_of(cast("Any", call), by, quorum, _within(within), _note(note), recheck)
    return asked._replace(facts=_premises(premises))


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
    return Asked(request, Made(spec, raw))


def _premises(given: Any) -> tuple[tuple[str, Made], ...]:
    by_name = mapping(given)
    if by_name is None:
        raise UsageError(f"premises={given!r}: names and calls of steps, as in {{'order': order_status.call(order)}}")
    return tuple((recordable(name, what="premises"), _premise(name, call)) for name, call in by_name.items())


def _premise(name: str, call: Any) -> Made:
    made: Any = call
    spec = made.of.spec if isinstance(call, Call) else None
    if not isinstance(spec, StepSpec) or isinstance(spec, EffectSpec):
        raise UsageError(f"premises: {name!r} is {call!r}, and has to be a call of a step that reads it")
    args, kwargs = made.take()
    return Made(spec, spec.arguments.dumps(args, kwargs))


def question_of(
    question: str, *, subject: Any, type: Any, by: Approvers, within: timedelta | float | None, note: str
) -> Request:
    """What `ask` asks."""
    hint = Any if type is None else type
    text = recordable(question, what="ask(): the question", length_max=QUESTION_CHARACTERS_MAX, is_name=False)
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


def _too_late(grant: Grant, name: str) -> ApprovalExpired:
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


def _within(within: Any, what: str = "within") -> int:
    if within is None:
        return 0
    limit = _seconds(within, what=what)
    if not 0 < limit <= SECONDS_MAX:
        raise UsageError(f"{what}={within!r}: more than nothing, and at most 100 years")
    return round(limit * MICROSECONDS)


def patient(request: Request, remind_after: Any, escalate_after: Any, escalate_to: Any) -> Request:
    """A request with what happens when nobody decides. UsageError for what could never happen, or changes nothing."""
    remind, escalate = _within(remind_after, "remind_after"), _within(escalate_after, "escalate_after")
    others = _approvers(escalate_to)
    if bool(escalate) is not bool(others):
        raise UsageError(
            "escalate_after= and escalate_to= belong together: after which time, and who may decide from then on"
        )
    for name, after in (("remind_after", remind), ("escalate_after", escalate)):
        if request.within and after >= request.within:
            raise UsageError(f"{name}: {_told(after)} is no earlier than within: {_told(request.within)}")
    if others and not request.approvers:
        raise UsageError("escalate_to=...: everybody may answer already; say by= whom it is to be answered first")
    return msgspec.structs.replace(request, remind=remind, escalate=escalate, escalate_to=others)


def _note(note: Any) -> str:
    return recordable(note, what="note", length_max=QUESTION_CHARACTERS_MAX, is_name=False) if note != "" else ""


def _told(within: int) -> str:
    return str(timedelta(microseconds=within))


__all__ = ["Approvers", "ask", "patient", "with_approval"]

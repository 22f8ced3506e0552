"""What workflow code and step bodies call: time, randomness, waiting, messages; attempts and heartbeats.

Without a runtime steps and workflows are plain functions, and so `now`, `sleep`, `random` and `uuid4` are the real ones
there; what has no meaning outside a run raises UsageError.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import uuid as _uuid
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast, overload

from msgspec import Raw

from perdure.api.calls import Call, check_call, execution_here, nobody_can_await
from perdure.codec import arguments_codec_for, codec_for
from perdure.errors import EncodeError, SecretNotAllowed, UsageError
from perdure.gates.budget import use_said
from perdure.runtime.attempt import ATTEMPT, JOURNAL, LANE, UNLOCKED, Attempt, current_attempt
from perdure.runtime.logs import hide_secrets
from perdure.specs import Money, OnCancel, StepSpec, WorkflowSpec, recordable, seconds_given

if TYPE_CHECKING:
    from perdure.engine.calls import ChildCall
    from perdure.engine.execution import Execution
    from perdure.engine.sagas import Saga

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def _execution(what: str) -> Execution:
    execution = execution_here()
    if execution is None:
        raise UsageError(f"perdure.{what}() was called {_where()}; it belongs into workflow code")
    return execution


def _where() -> str:
    """Where code stands that no journal answers."""
    if ATTEMPT.get() is not None:
        return IN_A_STEP
    return OUTSIDE if execution_here() is None else IN_AN_ASYNC_WORKFLOW


IN_A_STEP, IN_AN_ASYNC_WORKFLOW, OUTSIDE = "inside the body of a step", "in an async workflow", "outside a run"


def to_be_awaited(function: Callable[P, R]) -> Callable[P, R]:
    """An `async def` of ours that is refused when it is called where nobody can await it: nothing would come of it, and
    code behind a wait of days would run at once."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        if (_where() == IN_A_STEP or _journal() is not None) and nobody_can_await():
            what = f"perdure.{function.__name__}()"
            if _where() == IN_A_STEP:
                raise UsageError(f"{what} was called {IN_A_STEP}; it belongs into workflow code")
            raise UsageError(
                f"{what} is to be awaited: in a `def` workflow, or hosted code without an event loop, write "
                f"perdure.sync.{function.__name__}(...)"
            )
        return function(*args, **kwargs)

    return called


# ── time and randomness ─────────────────────────────────────────────────────────────────────


def now() -> datetime:
    """The time, UTC and aware. In a workflow: of the event being delivered, so the same on replay; it never goes
    back."""
    execution = execution_here()
    if execution is not None:
        return execution.now()
    journal = _journal()
    return journal.now() if journal is not None else datetime.now(UTC)


def random() -> float:
    """A number from 0 up to 1; in a workflow the same on replay."""
    drawn = _drawn()
    if drawn is None:
        import random as stock  # here alone: its import seeds two generators

        return stock.random()
    from perdure.engine.randomness import as_number

    return as_number(drawn)


def uuid4() -> _uuid.UUID:
    """A random UUID; in a workflow the same on replay."""
    drawn = _drawn()
    if drawn is None:
        return _uuid.uuid4()
    from perdure.engine.randomness import as_uuid

    return as_uuid(drawn)


def _drawn() -> bytes | None:
    """Random bytes of the run; None outside."""
    execution = execution_here()
    if execution is not None:
        return execution.randomness.draw()
    journal = _journal()
    return None if journal is None else journal.random_bytes()


@to_be_awaited
async def sleep(
    duration: timedelta | float | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> None:
    """Wait: `sleep(30)`, `sleep(days=2)`. In a workflow a durable timer, not a process that waits; its deadline is
    absolute and survives restarts.

    UsageError inside a step's body, for a negative length, and when no length is given."""
    length = _length(duration, timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    execution, journal = execution_here(), _journal()
    if execution is not None:
        await execution.sleep(length)
    elif journal is not None:
        await journal.wait_async(journal.waits.sleep(length))
    elif ATTEMPT.get() is not None:
        raise UsageError(
            "perdure.sleep() inside the body of a step: use asyncio.sleep() there, a step is not durable within"
        )
    else:
        from asyncio import sleep as stock

        await stock(length)


def _length(duration: timedelta | float | None, named: timedelta) -> float:
    if duration is not None and named:
        raise UsageError("perdure.sleep(): give one length, not two")
    if duration is None and not named:
        raise UsageError("perdure.sleep(): give a length, as in sleep(30) or sleep(days=2)")
    return seconds_given(named if duration is None else duration, what="perdure.sleep() length")


# ── messages, children, chapters ────────────────────────────────────────────────────────────


@overload
async def receive(name: str, type: type[T], *, within: timedelta | float | None = None) -> T: ...
@overload
async def receive(name: str, type: None = None, *, within: timedelta | float | None = None) -> Any: ...
@to_be_awaited
async def receive(name: str, type: Any = None, *, within: timedelta | float | None = None) -> Any:
    """The next message called `name`; waits for one. A message that came earlier is taken at once; a cancelled receive
    loses none. `type` is how it is read (default: as declared with `receives=`, else plain JSON).

    TimeoutError if none came `within` that time. UnknownNameError for a name that the workflow does not declare.
    UsageError outside a workflow."""
    journal = _journal()
    execution: Execution = _execution("receive") if journal is None else journal.live.execution
    declared = (execution.spec.receives or {}).get(name)
    codec = declared if type is None and declared is not None else codec_for(Any if type is None else type)
    limit = None if within is None else seconds_given(within, what="within")
    if journal is not None:
        return await journal.wait_async(journal.waits.receive(name, codec, limit))
    if limit is None:
        return await execution.receive(name, codec)
    from asyncio import timeout

    async with timeout(limit):
        return await execution.receive(name, codec, within_seconds=limit)


class Child(Generic[R]):
    """A child run that was started: `await child.result()`."""

    def __init__(self, id: str, wait: Callable[[], Awaitable[Any]], cancel: Callable[[], Any]) -> None:
        self.id = id
        self._wait = wait
        self._cancel = cancel

    async def result(self) -> R:
        """The child's result, or what it raised. Cancelling the wait does not cancel the child."""
        return cast(R, await self._wait())

    def cancel(self) -> None:
        """Ask the child to stop."""
        self._cancel()


@to_be_awaited
async def start(call: Call[R], *, id: str | None = None, on_cancel: OnCancel = "wait") -> Child[R]:
    """Start a child run and go on. Its id is derived from the call unless given.

    When this run ends or is cancelled, a child that is still running is cancelled and waited for (`on_cancel="wait"`),
    or left to itself (`"abandon"`). A given id that belongs to other work makes `result()` raise RunConflictError.
    """
    journal = _journal()
    child = child_call(call, id, on_cancel)
    if journal is not None:
        children = journal.children
        request = await children.start_async(child)
        return Child(
            children.child_id(request), lambda: children.result_async(request), lambda: children.cancel(request)
        )
    from asyncio import shield

    ask = _execution("start").ask_child(
        child.spec, child.args, child.kwargs, run_id=child.run_id, on_cancel=child.on_cancel
    )
    return Child(ask.run_id, lambda: shield(ask.future), ask.future.cancel)


def child_call(call: Call[Any], run_id: str | None, on_cancel: Any) -> ChildCall:
    """What `start` is given, checked."""
    check_call(call, "perdure.start")
    spec = call.of.spec
    if not isinstance(spec, WorkflowSpec):
        raise UsageError(
            f"perdure.start({call.of.name}.call(...)): {call.of.name} is a step; await it, or make a task of it"
        )
    if on_cancel not in {"wait", "abandon"}:
        raise UsageError(f"perdure.start(on_cancel={on_cancel!r}): 'wait' or 'abandon'")
    from perdure.engine.calls import ChildCall

    return ChildCall(spec, call.args, call.kwargs, run_id, on_cancel)


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:
    """End this chapter of the run and begin the workflow anew with other arguments, under the same run id.

    Messages not taken yet are carried over. Keeps histories short for runs that live for ever. UsageError while calls
    are in flight, and in a task other than the workflow's own."""
    journal = _journal()
    raise (journal or _execution("continue_as_new")).continue_as_new(args, kwargs)


def saga() -> Saga:
    """A block whose effects are taken back when it is left by an exception, the last one first, each by its `.undo`.

    What cannot be undone is put to a person; the exception comes out when all is settled, with notes that say what was
    undone and what stands. Effects of tasks and threads that are started inside belong to it, those of child runs do
    not. Left without an exception, it hands what was done to the saga around it, if there is one.

    >>> async def book(trip: Trip) -> None:  # doctest: +SKIP
    ...     async with perdure.saga():
    ...         await book_flight(trip)
    ...         await book_hotel(trip)

    In a `def` workflow it is `with perdure.saga():`. UsageError outside a run."""
    journal = _journal()
    if journal is not None:
        from perdure.runtime.hosted.undoing import HostedSaga

        return HostedSaga(journal)
    from perdure.engine.sagas import WorkflowSaga

    return WorkflowSaga(_execution("saga"))


def pivot() -> None:
    """The point of no return: nothing that was done before it in this saga, or in those around it, is undone any more.

    UsageError outside a saga."""
    from perdure.engine.sagas import open_here

    if _journal() is None:
        _execution("pivot")
    here = open_here("perdure.pivot()")
    if here is None:
        raise UsageError("perdure.pivot() was called outside every saga: it belongs into `async with perdure.saga():`")
    here.pivot()


def patched(patch: str) -> bool:
    """Guard a change of a workflow that runs under way may have: True for runs that have not passed this place yet.

    >>> async def agent() -> None:  # doctest: +SKIP
    ...     if perdure.patched("check the risk first"):
    ...         await check_risk()
    ...     await pay()
    """
    journal = _journal()
    return journal.patched(patch) if journal is not None else _execution("patched").patched(patch)


def deprecate_patch(patch: str) -> None:
    """What is left of `patched` when the old way is gone from the code: a run that still takes it is parked as
    `diverged`, with the name of the guard. Nothing is recorded; `perdure code check` says whether there are such runs.

    >>> async def agent() -> None:  # doctest: +SKIP
    ...     perdure.deprecate_patch("check the risk first")
    ...     await check_risk()
    ...     await pay()
    """
    journal = _journal()
    (journal if journal is not None else _execution("deprecate_patch")).deprecate_patch(patch)


def set_state(state: Any) -> None:
    """What `await run.state()` shows to whoever asks: plain JSON. Written with the run's next commit.

    UsageError in a section, whose code is not run again once it has ended."""
    try:
        raw, journal = codec_for(Any).dumps(state), _journal()
    except EncodeError as error:
        raise error.about("the state") from None
    if journal is not None:
        journal.set_state(raw)
    else:
        _execution("set_state").set_state(raw)


class CurrentRun(NamedTuple):
    """What a run knows about itself. `is_replaying`: whether the code is only being brought back to where it stood."""

    id: str
    workflow: str
    version: int
    chapter: int
    started_at: datetime
    is_replaying: bool


def current_run() -> CurrentRun:
    """The run whose code is executing. UsageError outside workflow code."""
    journal = _journal()
    execution: Execution = _execution("current_run") if journal is None else journal.live.execution
    is_replaying = execution.is_replaying if journal is None else journal.is_replaying
    started = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=execution.beginning.at)
    spec, run_id = execution.spec, execution.code_id if journal is None else journal.code_id
    return CurrentRun(run_id, spec.name, spec.version, execution.beginning.chapter, started, is_replaying)


# ── foreign code ────────────────────────────────────────────────────────────────────────────


class Section:
    """A place for code that needs threads or sockets of its own. See `section`."""

    def __init__(self, name: str) -> None:
        self.name = recordable(name, what="perdure.section()")

    def __await__(self) -> Generator[Any, Any, Any]:
        raise UsageError(
            f"perdure.section({self.name!r}): write `await perdure.section({self.name!r}).run(function, ...)`"
        )

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Host `function(*args)`: a `def` in a thread of its own, an `async def` on the program's loop. After a crash
        it runs again from its start, with every step it made answered from the record."""
        if _journal() is not None:
            raise UsageError(f"perdure.section({self.name!r}) in hosted code, which is in one already: just call it")
        execution = _execution("section")
        is_async = inspect.iscoroutinefunction(function)
        result = arguments_codec_for(function).result
        return await execution.ask_section(self.name, function, args, kwargs, result, is_async=is_async)


def section(name: str) -> Section:
    """Foreign code inside a run, hosted outside the workflow's loop.

    >>> async def agent(topic: str) -> str:
    ...     return await perdure.section("crew").run(kickoff, topic)  # doctest: +SKIP

    Every model and tool call in it has to be a step (or go through `perdure.journal()`); those are recorded, the rest
    is run again after a crash."""
    return Section(name)


def _journal() -> Any:
    return JOURNAL.get() if ATTEMPT.get() is None else None


def journal() -> Any:
    """The journal of the hosted code that is running: for adapters, whose calls are no steps of their own.

    `journal().call(name, request, perform)` answers the request from the record, or performs and records it.
    UsageError outside of hosted code."""
    here = _journal()
    if here is None:
        raise UsageError(
            "perdure.journal() belongs into hosted code: perdure.section(...).run(function), or a `def` workflow"
        )
    return here


@contextlib.contextmanager
def lane(name: str) -> Generator[None, None, None]:
    """Say which lane of its section hosted code is in: adapters name their threads or agents so that a call is found
    again under the same name."""
    token = LANE.set(name)
    try:
        yield
    finally:
        LANE.reset(token)


# ── inside a step ───────────────────────────────────────────────────────────────────────────


def attempt() -> Attempt:
    """The attempt that is running: its number, when it began, whose it is. UsageError outside a step's body."""
    return current_attempt("attempt")


def heartbeat(details: Any = None) -> None:
    """Say that the step is alive, and how far it is (plain JSON): the next attempt can read it with
    `last_heartbeat()`. New details are recorded and count as progress."""
    current_attempt("heartbeat").beat(details)


@overload
def last_heartbeat() -> Any: ...
@overload
def last_heartbeat(type: type[T]) -> T | None: ...
def last_heartbeat(type: Any = Any) -> Any:
    """The details of the last recorded heartbeat of this step, of an earlier attempt perhaps; None if there is none."""
    return current_attempt("last_heartbeat").last_details(type)


def used(
    *,
    tokens: int | None = None,
    cost: Money | None = None,
    model: str = "",
    input_tokens: int = 0,
    output_tokens: int = 0,
    cached_tokens: int = 0,
) -> None:
    """Say what this attempt has used, once or several times: it adds up, and counts also if the attempt fails then.

    `tokens`: default `input_tokens + output_tokens`. `cached_tokens`: those of the input that the other side had.
    `cost` in units of your currency; without it, the cost is reckoned from the price list of the Runtime, for which
    `model`, `input_tokens` and `output_tokens` are wanted. What is not said counts as it was estimated.

    >>> perdure.used(model="small-1", input_tokens=812, output_tokens=95)         # doctest: +SKIP

    UsageError outside a step's body, and for what is no amount."""
    current_attempt("used").note_use(
        use_said(
            tokens=tokens, cost=cost, model=model, input_tokens=input_tokens, output_tokens=output_tokens,
            cached_tokens=cached_tokens,
        )
    )  # fmt: skip


def premise(name: str, value: T, *, read: Call[T]) -> T:
    """Say, in the body of a step, that its result rests on a fact that was found there; gives the value back.

    `read`: the call of a step that reads it again, before the run relies on the result once more. The step that says
    so is declared with `recovery="verify"` (or has a `.premise`, or `valid_for=`). See `.premise` for what is known
    before the body begins.

    >>> @step(recovery="verify")                                                  # doctest: +SKIP
    ... async def offer(item: str) -> int:
    ...     return perdure.premise("price", await price_of(item), read=price_of.call(item)) * 2

    UsageError outside a step's body, and for what is no call of a step."""
    attempt = current_attempt("premise")
    given: Any = read
    spec: Any = given.of.spec if isinstance(given, Call) else None  # pyright: ignore[reportUnknownMemberType]
    if type(spec) is not StepSpec:
        raise UsageError(f"perdure.premise({name!r}): read={read!r}; the call of a step is wanted that reads it again")
    from perdure.decisions.premises import Reader  # only for those who have some

    args, kwargs = read.take()
    reader = Reader(spec.name, Raw(spec.arguments.dumps(args, kwargs)))
    attempt.note_premise(recordable(name, what="perdure.premise()"), spec.result.dumps(value), reader)
    return value


def use(type: type[T]) -> T:
    """The client of this type that the program provided: `Runtime(provide={Payments: client})`.

    UsageError outside a step's body, and for a type that was not provided (the message lists those that were)."""
    provided = current_attempt("use").provided
    try:
        return cast(T, provided[type])
    except KeyError:
        names = ", ".join(sorted(t.__name__ for t in provided)) or "nothing"
        raise UsageError(f"perdure.use({type.__name__}): Runtime(provide={{...}}) has {names}") from None


def secret(name: str) -> str:
    """The value of a secret that this step declares, `@step(secrets={"stripe"})`: it was fetched before the body began.

    Give it to whoever needs it, and return nothing of it: what is recorded, or written to perdure's log, has a mark in
    its place, and what stands in your own logs is yours. SecretNotAllowed for a secret that the step does not declare;
    UsageError outside a step's body.

    >>> @step(secrets={"stripe"})                                                 # doctest: +SKIP
    ... async def charge(order: str) -> str:
    ...     return await payments.charge(order, key=secret("stripe"))
    """
    step = current_attempt("secret").step
    unlocked = UNLOCKED.get()
    if unlocked is None or name not in unlocked.values:
        declared = ", ".join(map(repr, unlocked.values)) if unlocked is not None else "none"
        raise SecretNotAllowed(
            f"{step} declares {declared}, and asks for secret {name!r}: add it to secrets={{...}} of the step", name
        )
    return unlocked.values[name]


# ── logging ─────────────────────────────────────────────────────────────────────────────────


class _ReplayAware(logging.LoggerAdapter[logging.Logger]):
    """Silent while a workflow's code is only being brought back to where it stood."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        execution, journal = execution_here(), _journal()
        if execution is not None and (execution.is_replaying or execution.is_closing):
            return False
        if journal is not None and (journal.is_replaying or journal.is_over):
            return False
        return super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        journal = _journal()
        execution = execution_here() if journal is None else journal.live.execution
        if execution is not None:
            kwargs["extra"] = {**(kwargs.get("extra") or {}), "run_id": execution.run_id}
        return msg, kwargs


def logger(name: str = "perdure.workflow") -> logging.LoggerAdapter[logging.Logger]:
    """A logger for workflow code: each line once, however often the code is replayed."""
    own = logging.getLogger(name)
    hide_secrets(own)
    return _ReplayAware(own, {})

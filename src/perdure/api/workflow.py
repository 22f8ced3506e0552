"""The decorators: `@step` and `@workflow`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from perdure.api.calls import Call, DurableFunction, same_signature
from perdure.api.declaration import (
    check_step,
    check_workflow,
    checked_name,
    exception_classes,
    options_of,
    paths_of,
    rests_of,
    secrets_of,
    with_estimate,
    with_premise,
)
from perdure.api.surroundings import Tools, surroundings
from perdure.codec import ValueCodec, arguments_codec_for, codec_for, is_no_type
from perdure.errors import DeclarationError
from perdure.runtime.attempt import JOURNAL
from perdure.specs import (
    DEFAULT_TIMEOUT_SECONDS,
    Budget,
    Drift,
    OnStale,
    Retry,
    StepSpec,
    Usage,
    WorkflowSpec,
    budget_of_run,
    is_whole,
    recordable,
    seconds,
    several,
    usage_from,
)

if TYPE_CHECKING:
    from perdure.engine.execution import Execution
    from perdure.gates.policy import Policy

P = ParamSpec("P")
R = TypeVar("R")

OnStaleChoice = Literal["recompute", "reapprove", "block", "note", "keep"]
OnStaleFunction = Callable[[Mapping[str, Any], Mapping[str, Any]], OnStaleChoice]
"""What to do about a result that does not stand, given the premises by name as they were then and as they are now."""


class _Annotated(Generic[P]):
    """A step on which functions can hang: what a call is expected to use, and what its result rests on."""

    spec: StepSpec

    def estimate(self, function: Callable[P, Usage], /) -> Callable[P, Usage]:
        """Declare what a call is expected to use, from its own arguments: a plain function that gives a `Usage`.

        So much is reserved of a budget before an attempt begins. See `uses=` for what is the same for all calls.

        >>> @plan.estimate                                                        # doctest: +SKIP
        ... def _(question: str) -> Usage: return Usage(tokens=len(question) // 3 + 1_000)
        """
        self.spec = with_estimate(self.spec, function)
        return function

    def premise(
        self, name: str, *, same: Callable[[Any, Any], bool] | None = None
    ) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
        """Declare a fact outside that the result rests on, and how to read it, from the step's own arguments.

        It is read before the body begins, recorded with the result, and read again before the run relies on the result
        once more: when the run is resumed, and before each effect. `same(then, now)`: whether the result stands
        although the value is another one (default: only equal values are the same).

        >>> @decide.premise("policy")                                             # doctest: +SKIP
        ... async def _(claim: str) -> int: return await policies.version()
        """

        def declare(function: Callable[P, Any]) -> Callable[P, Any]:
            self.spec = with_premise(self.spec, name, function, same)
            return function

        return declare


    def with_premises(
        self, premises: Mapping[str, Any], *, on_stale: OnStaleChoice | OnStaleFunction | None = None
    ) -> Self:
        """The same step, whose results rest on these facts besides: for adapters, which know model, prompt release and
        tools only where they make the call.

        A premise is a value, which the code gives anew when it makes the call again in another process; or a function
        without arguments that reads it. `on_stale`: as the step declares it; where it declares nothing, `"note"`: a
        change is recorded, and changes nothing.

        >>> await ask.with_premises({"model": agent.model, "prompt_release": "May"})(question)    # doctest: +SKIP

        UsageError for what cannot be a premise."""
        from perdure.decisions.given import resting_on  # only for those who have some

        step = copy.copy(self)
        step.spec = resting_on(self.spec, premises, on_stale)
        return step


class Step(_Annotated[P], DurableFunction[P, R], Generic[P, R]):
    """An `async def` step. Awaited in a workflow it is recorded; elsewhere it is the plain function."""

    spec: StepSpec

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        same_signature(self, spec.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        if JOURNAL.get() is not None:
            self._refuse_where_nobody_can_await()
        return Call(self, args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value, not made yet."""
        return Call(self, args, kwargs)

    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return execution.ask_step(self.spec, args, kwargs)

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return journal.step(self.spec, args, kwargs)  # type: ignore[no-any-return]


class SyncStep(_Annotated[P], DurableFunction[P, R], Generic[P, R]):
    """A `def` step. In a `def` workflow it is called as usual; in an async one awaited as `await add.call(1, 2)`."""

    spec: StepSpec

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        same_signature(self, spec.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call_plain_function(args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value, not made yet."""
        return Call(self, args, kwargs)

    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return execution.ask_step(self.spec, args, kwargs)

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return journal.step(self.spec, args, kwargs)  # type: ignore[no-any-return]


class Workflow(DurableFunction[P, R], Generic[P, R]):
    """An `async def` workflow. Awaited in another workflow it is a child run; outside of any run the plain function."""

    spec: WorkflowSpec

    def __init__(self, spec: WorkflowSpec) -> None:
        self.spec = spec
        same_signature(self, spec.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        if JOURNAL.get() is not None:
            self._refuse_where_nobody_can_await()
        return Call(self, args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value: to be started, awaited, or both never."""
        return Call(self, args, kwargs)

    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return execution.ask_child(self.spec, args, kwargs).future

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return journal.child(self.spec, args, kwargs)  # type: ignore[no-any-return]


class SyncWorkflow(DurableFunction[P, R], Generic[P, R]):
    """A `def` workflow: it runs in a thread, its calls answered from a journal."""

    spec: WorkflowSpec

    def __init__(self, spec: WorkflowSpec) -> None:
        self.spec = spec
        same_signature(self, spec.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call_plain_function(args, kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value: to be started, awaited, or both never."""
        return Call(self, args, kwargs)

    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return execution.ask_child(self.spec, args, kwargs).future

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return journal.child(self.spec, args, kwargs)  # type: ignore[no-any-return]


AnyWorkflow = Workflow[Any, Any] | SyncWorkflow[Any, Any]


class _StepDecorator:
    """What `step(...)` with options gives."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncStep[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return _make_step(function, self._options)


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...  # type: ignore[overload-overlap]
@overload
def step(function: Callable[P, R], /) -> SyncStep[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float = DEFAULT_TIMEOUT_SECONDS,
    heartbeat_timeout: timedelta | float | None = None,
    record: Literal["durable", "lazy"] = "durable",
    record_input: bool = True,
    ignore: Iterable[str] = (),
    digest: Callable[..., Any] | None = None,
    raises: Iterable[type[BaseException]] = (),
    on_input_drift: Literal["block", "accept"] = "block",
    uses: Usage | None = None,
    secrets: Iterable[str] | Mapping[str, str] = (),
    valid_for: timedelta | float | None = None,
    recovery: Literal["replay", "verify"] | None = None,
    on_stale: OnStaleChoice | OnStaleFunction = "recompute",
) -> _StepDecorator: ...
def step(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a step: a call that is recorded. Once its result reached the workflow it is on disk and never runs again.

    `name`: what stands in histories (default: the function's name; keep it when the function is renamed).
    `retry`: see `Retry` (default: 3 attempts). `timeout`: of one attempt (default 5 minutes); `heartbeat_timeout`: the
    longest silence between two `heartbeat()`. `record="lazy"`: the result is written a little later, together with
    whatever needs to be durable next; after a crash it may be computed again. `record_input=False` keeps only the
    digest of the arguments. `ignore`: paths that do not count when arguments are compared on replay
    (`"$.messages[*].id"`), or `digest`: a function of the arguments that gives what counts. `raises`: exception classes
    that are rebuilt as such. `on_input_drift`: what to do when new code gives other arguments than the history has.
    `uses`: what an attempt is expected to use of a budget; if that depends on the arguments, `@plan.estimate` says it.
    `secrets`: names of those that its body may have by `perdure.secret(name)`; or names and what each is for.

    `valid_for`: how long the result is good for. `recovery`: `"replay"`, it stands for ever; `"verify"`, whether it
    still stands is checked before the run relies on it again (default, where there is something to check: `valid_for`,
    or a `.premise`). `on_stale`: what is done if it does not: the step is made again, and if it gives
    something else the run goes back to that point (`"recompute"`); a person says whether it stands, and else it is
    made again (`"reapprove"`); a person decides (`"block"`); it stands and that is
    recorded each time (`"note"`), or it stands for good (`"keep"`); or a function of the premises then and now that
    gives one of these.

    Raises DeclarationError for what cannot be a step.

    >>> @step(retry=Retry(max_attempts=5), timeout=60)
    ... async def plan(question: str) -> str: ...
    """
    return _StepDecorator(options) if function is None else _make_step(function, options)


def _make_step(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    check_step(function)
    with options_of(function, "step", options, STEP_OPTIONS):
        return _step_with(function, **options)


def _step_with(
    function: Any,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float = DEFAULT_TIMEOUT_SECONDS,
    heartbeat_timeout: timedelta | float | None = None,
    record: str = "durable",
    record_input: bool = True,
    ignore: Iterable[str] = (),
    digest: Callable[..., Any] | None = None,
    raises: Iterable[type[BaseException]] = (),
    on_input_drift: str = "block",
    uses: Usage | None = None,
    secrets: Iterable[str] | Mapping[str, str] = (),
    valid_for: timedelta | float | None = None,
    recovery: str | None = None,
    on_stale: Any = OnStale.RECOMPUTE,
) -> Any:
    if record not in {"durable", "lazy"}:
        raise DeclarationError(f"step(record={record!r}): 'durable' or 'lazy'")
    if retry is not None and not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeclarationError(f"step(retry={retry!r}): a Retry is wanted, as in retry=perdure.Retry(max_attempts=3)")
    if on_input_drift not in set(Drift):
        raise DeclarationError(f"step(on_input_drift={on_input_drift!r}): 'block' or 'accept'")
    if digest is not None and not callable(digest):
        raise DeclarationError(f"step(digest={digest!r}): a function of the arguments that gives what of them counts")
    is_async = inspect.iscoroutinefunction(function)
    arguments = arguments_codec_for(function)
    spec = StepSpec(
        name=checked_name(name, "step", function), function=function, is_async=is_async, arguments=arguments,
        result=arguments.result, retry=retry or Retry(), timeout_seconds=_limit(timeout, "timeout"),
        heartbeat_timeout_seconds=None if heartbeat_timeout is None else _limit(heartbeat_timeout, "heartbeat_timeout"),
        lazy=record == "lazy", record_input=record_input, digest_view=digest,
        ignore=paths_of(ignore, function),
        raises=exception_classes(raises, "step"), on_input_drift=Drift(on_input_drift),
        uses=usage_from(uses, what="step"),
        secrets=secrets_of(secrets, "step"), rests=rests_of(valid_for, recovery, on_stale, is_lazy=record == "lazy"),
    )  # fmt: skip
    return cast(Any, Step if is_async else SyncStep)(spec)


STEP_OPTIONS = tuple(inspect.signature(_step_with).parameters)[1:]


def _limit(duration: timedelta | float, option: str) -> float:
    """A time that an attempt may take; none at all would let every one fail."""
    limit = seconds(duration, what=option)
    if not limit:
        raise DeclarationError(f"step({option}={duration!r}): more than 0 seconds")
    return limit


class _WorkflowDecorator:
    """What `workflow(...)` with options gives."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncWorkflow[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return _make_workflow(function, self._options)


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...  # type: ignore[overload-overlap]
@overload
def workflow(function: Callable[P, R], /) -> SyncWorkflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: int = 1,
    receives: Mapping[str, Any] | None = None,
    raises: Iterable[type[BaseException]] = (),
    replays: Iterable[int] = (),
    policy: Policy | None = None,
    budget: Budget | None = None,
    tools: Tools | None = None,
    tool_catalog_version: str | None = None,
    prompt_release: str | None = None,
    model_policy_version: str | None = None,
    frameworks: Iterable[str] = (),
    on_contract_drift: str | Mapping[str, str] = "block",
) -> _WorkflowDecorator: ...
def workflow(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a workflow: the deterministic function that orchestrates steps.

    `name` (default: the function's), `version` (from 1 on). `receives={"reply": Reply}` declares names and types of
    messages; without it any name is taken, with plain JSON. `raises`: exception classes that are rebuilt as such for
    whoever waits for the result. `replays={7}`: this code also continues runs of version 7. `policy`: what its calls
    are held to, beside the policy of the runtime that executes it. `budget`: what each run
    may spend, unless it is started with another budget; a run keeps the one that it was started with.

    What else a run leans on: `tools` (functions, or names and JSON schemas; `tool_catalog_version` counts instead of
    their schemas), `prompt_release`, `model_policy_version`. A run under way that began under another one is parked,
    unless its version is claimed, or `on_contract_drift="accept"` (or for some: `{"prompt_release": "accept"}`).
    `frameworks`: packages whose versions are recorded.

    Raises DeclarationError for what cannot be a workflow, and says how to mend it.

    >>> @workflow(version=2)
    ... async def claims_agent(claim_id: str) -> str: ...
    """
    return _WorkflowDecorator(options) if function is None else _make_workflow(function, options)


def _make_workflow(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    check_workflow(function, lambda value: isinstance(value, DurableFunction))
    with options_of(function, "workflow", options, WORKFLOW_OPTIONS):
        return _workflow_with(function, **options)


def _workflow_with(
    function: Any,
    *,
    name: str | None = None,
    version: Any = 1,
    receives: Mapping[str, Any] | None = None,
    raises: Iterable[type[BaseException]] = (),
    replays: Iterable[int] = (),
    policy: Policy | None = None,
    budget: Budget | None = None,
    **leans_on: Any,
) -> Any:
    if not is_whole(version) or version < 1:
        raise DeclarationError(f"workflow(version={version!r}): a whole number from 1 on")
    if receives is not None and not isinstance(receives, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeclarationError(f'workflow(receives={receives!r}): a dict of names and types, as in {{"reply": str}}')
    is_async = inspect.iscoroutinefunction(function)
    arguments = arguments_codec_for(function)
    spec = WorkflowSpec(
        name=checked_name(name, "workflow", function), version=version, function=function, is_async=is_async,
        arguments=arguments, result=arguments.result,
        raises=exception_classes(raises, "workflow"), replays=_versions(replays),
        budget=budget_of_run(budget, what="workflow(budget="),
        surroundings=surroundings("workflow", **leans_on),
        receives=None if receives is None else dict(starmap(_declared_message, receives.items())),
        policy=None if policy is None else _checked_policy(policy),
    )  # fmt: skip
    return cast(Any, Workflow if is_async else SyncWorkflow)(spec)


def _declared_message(name: Any, hint: Any) -> tuple[str, ValueCodec]:
    """A message that a workflow declares. DeclarationError for a type of which no value could ever be sent."""
    recordable(name, what="workflow(receives=): message name")
    where = f"workflow(receives=): message {name!r}"
    if isinstance(hint, str) or is_no_type(hint):
        raise DeclarationError(f'{where}: {hint!r} is not a type: write one, as in {{"{name}": str}}')
    codec = codec_for(hint)
    if refusal := codec.refusal():
        raise DeclarationError(f"{where}: {refusal}")
    return name, codec


def _checked_policy(policy: Any) -> Any:
    from perdure.api.policies import checked_policy  # only for those who have one

    return checked_policy(policy, "workflow")


WORKFLOW_OPTIONS = (
    *tuple(inspect.signature(_workflow_with).parameters)[1:-1],
    *tuple(inspect.signature(surroundings).parameters)[1:],
)


def _versions(given: Any) -> frozenset[int]:
    versions = several(given)
    if versions is None or not all(is_whole(version) and version >= 1 for version in versions):
        raise DeclarationError(f"workflow(replays={given!r}): a set of versions, as in replays={{7}}")
    return frozenset(versions)

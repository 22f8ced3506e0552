"""What a team brings to a drill: its workflow with an input, its fakes, the messages that come, and its own check."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from perdure.api.calls import Call
from perdure.api.inputs import message_body
from perdure.api.script import with_children
from perdure.api.workflow import AnyWorkflow, SyncWorkflow, Workflow
from perdure.errors import UsageError
from perdure.specs import WorkflowSpec, mapping, recordable, several

T = TypeVar("T")

Provide = Mapping[type, Any] | Callable[[], Any]
"""Clients for `perdure.use`: a dict; or a function that gives one, or a context manager around one (either may be
async), and is called anew for each thing that is tried: so that the fakes know nothing of what was tried before."""

Check = Callable[["Aftermath"], Any]
"""The team's own look at its fakes, after each thing that was tried. What it raises is what is wrong. May be async."""


class UnfitForDrill(UsageError):
    """There is nothing to be drilled like this. The message says what is missing, and how to give it."""


@dataclass(frozen=True)
class Aftermath:
    """What a team's own check is given: the name of what was tried, how the run ended, and the clients as they are."""

    point: str
    result: Any
    error: BaseException | None
    clients: Mapping[type, Any]

    def use(self, kind: type[T]) -> T:
        """The client of this type that was provided. UsageError if there is none."""
        try:
            return cast(T, self.clients[kind])
        except KeyError:
            raise UsageError(f"use({kind.__name__}): it was not provided") from None


@dataclass
class Team:
    """See above. `learnt`: the workflows that the run has come to, in the course of the drill."""

    workflow: AnyWorkflow
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    provide: Provide | None = None
    messages: Sequence[tuple[str, Any]] = ()
    answers: Sequence[Any] = ()
    check: Check | None = None
    workflows: Sequence[AnyWorkflow] = ()
    learnt: list[WorkflowSpec] = field(default_factory=list[WorkflowSpec])

    def __post_init__(self) -> None:
        self.learnt = [known.spec for known in with_children([self.workflow, *self.workflows])]

    def call(self) -> Call[Any]:
        """A call is made once."""
        return Call(cast(Any, self.workflow), self.args, self.kwargs)

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncGenerator[Mapping[type, Any]]:
        """What is provided, for as long as the block takes."""
        async with contextlib.AsyncExitStack() as stack:
            given: Any = self.provide
            if given is not None and not isinstance(given, Mapping):
                given = await _entered(given(), stack)
            clients = mapping(given)
            if clients is None or not all(isinstance(kind, type) for kind in clients):
                raise UsageError(f"provide gives {given!r}: a dict of types and their clients, {{Payments: client}}")
            yield clients

    async def look(self, aftermath: Aftermath) -> str:
        """What the team's check says is wrong; "" if nothing is."""
        if self.check is None:
            return ""
        try:
            said = self.check(aftermath)
            if inspect.isawaitable(said):
                said = await said
        except Exception as error:
            return f"your check: {type(error).__name__}: {error}".rstrip(": ")
        return "your check returned False" if said is False else ""


async def _entered(made: Any, stack: contextlib.AsyncExitStack) -> Any:
    if hasattr(made, "__aenter__"):
        return await stack.enter_async_context(made)
    if hasattr(made, "__enter__"):
        return stack.enter_context(made)
    return await made if inspect.isawaitable(made) else made


def team_of(
    what: Any, args: tuple[Any, ...], *, provide: Provide | None, messages: Any, answers: Any, check: Check | None,
    workflows: Iterable[Any],
) -> Team:  # fmt: skip
    """Whoever `drill` was called with. UsageError for what is neither a workflow nor a call of one."""
    kwargs: dict[str, Any] = {}
    if isinstance(what, Call):
        if args:
            raise UsageError("drill(workflow.call(...), ...): the call has its arguments already")
        what, args, kwargs = what.of, what.args, what.kwargs  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(what, Workflow | SyncWorkflow):
        raise UsageError(f"drill({what!r}): give it a workflow and its input, or workflow.call(...)")
    workflow = cast(Any, what)
    _check_fits(workflow, args, kwargs)
    said = several(answers)
    if said is None:
        raise UsageError(f"answers={answers!r}: a list, the answers to the run's questions in the order of these")
    team = Team(workflow, args, kwargs, provide, _messages(messages), said, check, list(workflows))
    for name, value in team.messages:
        _check_message(team, name, value)
    return team


def _check_fits(workflow: AnyWorkflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        inspect.signature(workflow.spec.function).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"drill({workflow.name}): {error}") from None
    workflow.spec.arguments.dumps(args, kwargs)


def _check_message(team: Team, name: str, value: Any) -> None:
    """Somebody takes messages of that name: the workflow, or one that it starts."""
    specs = [taker.spec for taker in with_children([team.workflow, *team.workflows])]
    takers = [spec for spec in specs if spec.receives is None or name in spec.receives]
    message_body(takers[0] if takers else team.workflow.spec, name, value)


def _messages(given: Any) -> list[tuple[str, Any]]:
    """UsageError for what is no list of names and values."""
    by_name = mapping(given) if given is not None else {}
    try:
        pairs = by_name.items() if by_name is not None else several(given) or ()
        return [(recordable(name, what="message name"), value) for name, value in pairs]
    except (TypeError, ValueError, UsageError):
        raise UsageError(f'messages={given!r}: a list of names and values, as in [("approval", True)]') from None


__all__ = ["Aftermath", "Check", "Provide", "Team", "UnfitForDrill", "team_of"]

"""How a chapter of a run begins, and how it can end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.codec import about_result, dump_exception
from perdure.errors import EncodeError, PerdureError, UsageError
from perdure.specs import WorkflowSpec


class Parting(NamedTuple):
    """Where code and history part: the call that the history has there, and the one that the code asks for, each by
    what it is and its name (`step search`); empty if there is none. The same on both sides: its arguments differ."""

    recorded: str
    asked: str
    where: str


class Blocked(msgspec.Struct, frozen=True):
    """Why the run cannot go on by itself: one of the documented reasons, and what unblocks it."""

    reason: str
    hint: str
    parting: Parting | None = None


class ContinueAsNew(BaseException):
    """Ends a chapter: the workflow begins anew with other arguments. Not an Exception: user code must not swallow
    it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments, self.keywords = args, kwargs


class Completed(msgspec.Struct, frozen=True):
    """The workflow returned; `output` is its result, canonical."""

    output: bytes


class Failed(msgspec.Struct, frozen=True):
    """The workflow raised; `output` is the exception, canonical."""

    output: bytes


class WasCancelled(msgspec.Struct, frozen=True):
    """The workflow ended by being cancelled."""


class NextChapter(msgspec.Struct, frozen=True):
    """The workflow asked to begin anew. Messages that it did not take, and those that still come, are carried over."""

    input: bytes


Ending = Completed | Failed | WasCancelled | NextChapter


class Beginning(msgspec.Struct, frozen=True):
    """What a chapter begins with. `goal`, `scope`: what the run has stated when it was started."""

    seed: int
    input: bytes
    at: int
    chapter: int = 0
    carried: tuple[tuple[str, bytes], ...] = ()
    goal: str = ""
    scope: Mapping[str, str] | None = None


def next_chapter(
    spec: WorkflowSpec, args: tuple[Any, ...], kwargs: dict[str, Any], in_flight: Sequence[str]
) -> ContinueAsNew:
    """What ends a chapter, to be raised. UsageError while calls are in flight, EncodeError for the arguments."""
    if in_flight:
        raise UsageError(
            f"continue_as_new() while {', '.join(in_flight[:5])} is in flight: await or cancel it first, so that no "
            "outcome is lost"
        )
    spec.arguments.dumps(args, kwargs)
    return ContinueAsNew(args, kwargs)


def ending_of(spec: WorkflowSpec, workflow: asyncio.Task[Any]) -> Ending:
    """What a workflow's task, which is done, has come to."""
    if workflow.cancelled():
        return WasCancelled()
    error = workflow.exception()
    if error is None:
        return _completed(spec, workflow.result())
    if isinstance(error, ContinueAsNew):
        return _next_chapter(spec, error)
    return Failed(dump_exception(error, spec.raises))


def _completed(spec: WorkflowSpec, result: Any) -> Ending:
    if not spec.is_async:
        return Completed(spec.result.dumps(result))
    try:
        return Completed(spec.result.dumps(result))
    except EncodeError as error:
        return Failed(dump_exception(about_result(error, spec.name), ()))


def _next_chapter(spec: WorkflowSpec, error: ContinueAsNew) -> Ending:
    try:
        arguments = spec.arguments.dumps(error.arguments, error.keywords)
    except (PerdureError, TypeError) as problem:
        return Failed(dump_exception(problem, ()))
    return NextChapter(arguments)

"""What programs hand to a Client or a Run, checked: ids, tags, limits, moments, messages, workflows; and who may call.

Each check gives the value as it is kept, or raises a UsageError that says what is wanted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure.api.calls import execution_here
from perdure.codec import codec_for
from perdure.errors import DeclarationError, EncodeError, UnknownNameError, UsageError
from perdure.runtime import mail
from perdure.runtime.attempt import ATTEMPT, JOURNAL
from perdure.specs import SECONDS_MAX, Budget, WorkflowSpec, budget_of_run, is_whole, mapping, recordable, seconds_given

PLAIN = codec_for(Any)
"""Plain JSON, for what has no declared type."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

REASON_CHARACTERS_MAX = 100_000
GOAL_CHARACTERS_MAX = 10_000
ROWS_MAX = 2**31 - 1
"""More than any store has."""


def micros(at: datetime) -> int:
    """An aware datetime as microseconds since the epoch. UsageError for a naive one: it does not say which moment."""
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{at!r} is no moment: a datetime with a time zone is wanted")
    if at.tzinfo is None:
        raise UsageError(f"{at!r} has no time zone: which moment is meant? Use datetime.now(timezone.utc) or the like")
    return round((at - _EPOCH) / timedelta(microseconds=1))


def checked_id(id: Any) -> str:
    if id is None:
        return str(uuid.uuid4())
    return recordable(id, what="run id")


def checked_tags(tags: Any) -> dict[str, str]:
    """Tags as they are kept: names and values are texts."""
    given = mapping(tags)
    if given is None or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise UsageError(f'tags={tags!r}: a dict of texts, as in tags={{"customer": "Ada"}}')
    for name, value in given.items():
        recordable(name, what="tag name")
        recordable(value or "-", what=f"tag {name}")
    return given


def checked_goal(goal: Any) -> str:
    """A goal as it is kept."""
    if goal == "":
        return ""
    return recordable(goal, what="goal", length_max=GOAL_CHARACTERS_MAX, is_name=False)


def checked_scope(scope: Any) -> dict[str, str]:
    """A scope as it is kept: names and values are texts."""
    given = mapping(scope)
    if given is None or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise UsageError(f'scope={scope!r}: a dict of texts, as in scope={{"order": "42"}}')
    return {recordable(name, what="scope"): recordable(value, what=f"scope {name}") for name, value in given.items()}


def checked_limit(limit: Any, what: str) -> int:
    if not is_whole(limit) or limit < 1:
        raise UsageError(f"{what}(limit={limit!r}): a whole number from 1 on")
    return int(min(limit, ROWS_MAX))


def delay_seconds(delay: timedelta | float) -> float:
    wait = seconds_given(delay, what="delay")
    if wait > SECONDS_MAX:
        raise UsageError(f"start(delay={delay!r}): at most 100 years")
    return wait


def checked_budget(budget: Any) -> Budget | None:
    try:
        return budget_of_run(budget, what="start(budget=")
    except DeclarationError as error:
        raise UsageError(str(error)) from None


def by_key(workflows: Iterable[Any]) -> dict[tuple[str, int], WorkflowSpec]:
    """The workflows by name and version. UsageError when two of them claim the same."""
    known: dict[tuple[str, int], WorkflowSpec] = {}
    if not isinstance(workflows, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"workflows={workflows!r}: a list is wanted, as in workflows=[agent]")
    for workflow in workflows:
        spec = getattr(workflow, "spec", None)
        if not isinstance(spec, WorkflowSpec):
            raise UsageError(f"workflows=[{workflow!r}]: not a workflow; decorate it with @perdure.workflow")
        other = known.setdefault(spec.key, spec)
        if other.function is not spec.function:
            raise namesakes(other, spec)
    return known


def namesakes(one: WorkflowSpec, other: WorkflowSpec) -> UsageError:
    """What is said of two workflows of one name and version."""
    first, second = one.function, other.function
    return UsageError(
        f"two workflows are called {one.label}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}: give one another name= or version="
    )


def message_body(spec: WorkflowSpec | None, name: str, value: Any) -> bytes:
    """A message as it lies in the mailbox of a run of this workflow. UnknownNameError for a name that the workflow does
    not declare, EncodeError if the value cannot be recorded."""
    codec = PLAIN
    if spec is not None and spec.receives is not None:
        if name not in spec.receives:
            raise UnknownNameError("declared message", name, spec.receives)
        codec = spec.receives[name]
    recordable(name, what="message name")
    try:
        return codec.dumps(value)
    except EncodeError as error:
        raise error.about(f"the message {name!r}") from None


def control_body(letter: mail.ControlLetter) -> bytes:
    """The letter as it is sent. UsageError for what is no text: whoever takes it could not read it."""
    for name in ("reason", "by", "call", "reference"):
        given = getattr(letter, name)
        if given != "" and not (name == "reference" and given is None):
            recordable(given, what=name, length_max=REASON_CHARACTERS_MAX, is_name=name == "call")
    return msgspec.json.encode(letter)


def refuse_in_workflow_code(what: str) -> None:
    """What is done through a Client is no part of a run's history."""
    if execution_here() is not None:
        raise UsageError(
            f"a {what} was used in workflow code: what it does there is not recorded, and a replay would do it again. "
            "Use perdure.start() and the like, or do it in a step"
        )


def refuse_inside(what: str) -> None:
    """For what people decide: no code of a run may, wherever it stands."""
    if ATTEMPT.get() is not None or JOURNAL.get() is not None or execution_here() is not None:
        raise UsageError(
            f"{what}() was called by a workflow or step: that is a person's to say, never the code's (or the agent's) "
            "that asks, or is in doubt"
        )

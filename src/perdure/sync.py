"""Blocking waits for `def` workflows and hosted code: `perdure.sync.sleep(days=2)`, `perdure.sync.receive("reply")`,
`perdure.sync.with_approval(...)`, `perdure.sync.ask(...)`.

A wait of more than ten seconds gives its thread back: the function is unwound by a BaseException (`finally` blocks run;
durable calls in them are refused) and runs again from its start when the wait is over, answered from the record.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar, cast, overload

from perdure.api.approving import Approvers, Said, answer_of, approval_of, approved_here, patient, question_of
from perdure.api.calls import Call, check_call, nobody_can_await
from perdure.api.inside import (
    IN_A_STEP,
    IN_AN_ASYNC_WORKFLOW,
    OUTSIDE,
    _journal,
    _length,
    _where,
    child_call,
)
from perdure.codec import codec_for
from perdure.errors import UsageError
from perdure.specs import OnCancel
from perdure.specs import seconds_given as _seconds

T = TypeVar("T")


def _here(what: str, *, instead: str = "", in_a_step: str = "") -> Any:
    """The journal of the code that waits. UsageError where there is none, with what to write in an async workflow
    (`instead`) or in the body of a step."""
    journal = _journal()
    if journal is not None:
        return journal
    where, there = _where(), "it belongs into a `def` workflow or hosted code"
    if where == IN_AN_ASYNC_WORKFLOW:
        there = f"{instead or f'await perdure.{what}()'} there"
    elif where == IN_A_STEP and in_a_step:
        there = f"{in_a_step} there"
    raise UsageError(f"perdure.sync.{what}() was called {where}; {there}")


def _is_outside() -> bool:
    """Whether no run and no step is there: what is called is the plain function that it is."""
    return _journal() is None and _where() == OUTSIDE


def wait(call: Call[T]) -> T:
    """Make a call and wait for its result: what `await` is elsewhere. For `async def` steps and workflows; those that
    are plain functions are called as usual. Outside of a run the plain function is awaited.

    >>> the_plan = perdure.sync.wait(plan.call(claim))  # doctest: +SKIP
    """
    check_call(call, "perdure.sync.wait")
    if _is_outside():
        return _awaited(call)
    return cast(T, _here("wait", instead="await the call").call_blocking(call.of, *call.take()))


def _awaited(call: Call[T]) -> T:
    import asyncio  # only here: `import perdure` does without

    async def result() -> T:
        return await call

    if not nobody_can_await():
        raise UsageError("perdure.sync.wait() inside a running event loop: await the call there")
    return asyncio.run(result())


class Child(Generic[T]):
    """A child run that was started: `child.result()`."""

    def __init__(self, id: str, wait: Callable[[], Any], cancel: Callable[[], None]) -> None:
        self.id = id
        self._wait = wait
        self._cancel = cancel

    def result(self) -> T:
        """The child's result, or what it raised; RunCancelledError after `cancel()`."""
        return cast(T, self._wait())

    def cancel(self) -> None:
        """Ask the child to stop."""
        self._cancel()


def start(call: Call[T], *, id: str | None = None, on_cancel: OnCancel = "wait") -> Child[T]:
    """Start a child run and go on, once that is recorded; see `perdure.start`.

    >>> child = perdure.sync.start(review.call(file))  # doctest: +SKIP
    """
    children = _here("start").children
    request = children.start(child_call(call, id, on_cancel))
    return Child(children.child_id(request), lambda: children.result(request), lambda: children.cancel(request))


def sleep(
    duration: timedelta | float | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> None:
    """Wait; see `perdure.sleep`. Outside of a run it is `time.sleep`."""
    length = _length(duration, timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    if _is_outside():
        time.sleep(length)
        return
    journal = _here("sleep", in_a_step="use time.sleep()")
    journal.wait(journal.waits.sleep(length))


def with_approval(
    call: Call[T],
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
) -> T:
    """Ask people for exactly this call, wait, make it, and give its result; see `perdure.with_approval`.

    >>> receipt = perdure.sync.with_approval(refund.call(order, 4200), by={"supervisor"})  # doctest: +SKIP
    """
    journal = _here("with_approval")
    asked = approval_of(call, by=by, quorum=quorum, within=within, note=note, premises=premises, recheck=recheck)
    return cast(T, approved_here(journal, asked.patiently(remind_after, escalate_after, escalate_to)))


@overload
def ask(
    question: str, *, subject: Any = None, type: type[T], by: Approvers = (), within: timedelta | float | None = None,
    note: str = "", remind_after: timedelta | float | None = None, escalate_after: timedelta | float | None = None,
    escalate_to: Approvers = (),
) -> T: ...  # fmt: skip
@overload
def ask(
    question: str, *, subject: Any = None, type: None = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "", remind_after: timedelta | float | None = None,
    escalate_after: timedelta | float | None = None, escalate_to: Approvers = (),
) -> Any: ...  # fmt: skip
def ask(
    question: str, *, subject: Any = None, type: Any = None, by: Approvers = (),
    within: timedelta | float | None = None, note: str = "", remind_after: timedelta | float | None = None,
    escalate_after: timedelta | float | None = None, escalate_to: Approvers = (),
) -> Any:  # fmt: skip
    """Ask people something, wait for the answer, and give it; see `perdure.ask`."""
    journal, codec = _here("ask"), codec_for(Any if type is None else type)
    request = question_of(question, subject=subject, type=type, by=by, within=within, note=note)
    request = patient(request, remind_after, escalate_after, escalate_to)
    return answer_of(Said(*journal.wait(journal.people.ask(request, codec))), request, codec)


def receive(name: str, type: type[T] | None = None, *, within: timedelta | float | None = None) -> T:
    """The next message called `name`; see `perdure.receive`."""
    journal = _here("receive")
    limit = None if within is None else _seconds(within, what="within")
    declared: Any = dict(journal.live.execution.spec.receives or {}).get(name)
    codec = declared if type is None and declared is not None else codec_for(Any if type is None else type)
    return cast(T, journal.wait(journal.waits.receive(name, codec, limit)))

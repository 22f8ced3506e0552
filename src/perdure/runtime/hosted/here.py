"""What an adapter performs in the calling thread: a step like any other, but for where its body runs.

    the thread: submit ──────────────▶ wait ◀─ go ─┐      perform() ──▶ wait ... the answer
    the loop:            the performer ──▶ its body ┘ ◀── what came of it ┘

So policies, budgets, retries and the record are those of steps.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.codec import arguments_codec_for, codec_for
from perdure.errors import UsageError
from perdure.http.sender import SENDER
from perdure.runtime.attempt import ATTEMPT, LANE, HasAttempt, Outgoing
from perdure.runtime.hosted.request import Request, load_with, running_loop
from perdure.specs import CallSpec, Retry, Usage

if TYPE_CHECKING:
    from perdure.http.sender import Sender
    from perdure.runtime.hosted.journal import Journal


NO_LIMIT_SECONDS = 366 * 86_400.0
"""A thread cannot be stopped, and a second attempt would have to wait for it: so there is no timeout."""

Performed = tuple[Any, BaseException | None]
"""What `perform()` gave, or what it raised."""

Go = tuple["HasAttempt | None", "Sender | None", "asyncio.Future[Performed]"]
"""Perform it now: in whose name, and where to say what came of it."""


class PerformedHere:
    """The calls of one section that are performed where they are made."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def call(
        self, name: str, request: Any, perform: Callable[[], Any], retry: Retry, hint: Any, uses: Usage | None,
        rests: tuple[Mapping[str, Any] | None, Any] = (None, None),
    ) -> Any:  # fmt: skip
        """What is recorded for this request, or what `perform()` gives: see `Journal.call`."""
        if running_loop() is self._journal.loop:
            raise UsageError(
                f"journal().call({name!r}, ...) waits in its thread, and this is that of the loop that answers it: "
                "make it a step and await that, or call it from a thread"
            )
        go: queue.SimpleQueue[Go | None] = queue.SimpleQueue()
        spec = CallSpec(
            name=name, function=partial(_performed_elsewhere, go), is_async=True, arguments=_NO_ARGUMENTS,
            result=codec_for(hint), retry=retry, timeout_seconds=NO_LIMIT_SECONDS, uses=uses,
            request=codec_for(Any).dumps(request),
        )  # fmt: skip
        if rests != (None, None):
            from perdure.decisions.given import resting_on  # only for those who have some

            spec = resting_on(spec, *rests)
        steps = self._journal.steps
        wanted = Request(LANE.get(), name, spec.request, lambda wanted: steps.perform(wanted, spec, _NO_INPUT))
        wanted.load = load_with(spec.result, spec.raises)
        if spec.rests is not None:
            wanted.rests = (msgspec.structs.replace(spec, function=perform, is_async=False), _NO_INPUT)
        wanted.future.add_done_callback(lambda done: go.put(None))
        self._journal.submit(wanted)
        while (turn := go.get()) is not None:  # once for each attempt
            self._journal.call_soon(partial(_hand_over, turn[-1], _perform(perform, turn)))
        return wanted.future.result()


async def _performed_elsewhere(go: queue.SimpleQueue[Go | None]) -> Any:
    """The body: let the thread that made the call perform it, and wait for that."""
    done: asyncio.Future[Performed] = asyncio.get_running_loop().create_future()
    sender = SENDER.get()
    go.put((ATTEMPT.get(), sender, done))
    value, error = await done
    if error is not None:
        raise error
    return value


def _perform(perform: Callable[[], Any], turn: Go) -> Performed:
    """One attempt, in the calling thread."""
    attempt, sender, _ = turn
    if isinstance(sender, Outgoing):
        sender = msgspec.structs.replace(sender, until=None)
    here, sending = ATTEMPT.set(attempt), SENDER.set(sender)
    try:
        return perform(), None
    except BaseException as error:
        return None, error
    finally:
        ATTEMPT.reset(here)
        SENDER.reset(sending)


def _hand_over(done: asyncio.Future[Performed], performed: Performed) -> None:
    if not done.done():  # else the run has left this process, or the call is cancelled
        done.set_result(performed)


def _nothing() -> None:
    """The signature of a call without arguments."""


_NO_ARGUMENTS = arguments_codec_for(_nothing)
_NO_INPUT = _NO_ARGUMENTS.dumps((), {})

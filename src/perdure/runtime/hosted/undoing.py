"""Sagas of hosted code: `def` workflows and sections. They undo through the journal, wherever the code runs.

Code that is cancelled is unwound at its next durable call; a saga that is left by that goes on all the same, with calls
that are its own. After a crash in the middle the code runs again as far as it had come when it was cancelled: what was
answered later than that is answered to its sagas alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.engine.sagas import Answer, Done, Saga, Stage, Undoing, refuse_when_undone
from perdure.errors import PerdureBug, UsageError
from perdure.history import events as e
from perdure.runtime.hosted.request import Hears, Request
from perdure.runtime.hosted.unwound import Unwound
from perdure.specs import EffectSpec

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal

_lock = threading.Lock()
"""Between the threads of hosted code, and the loop that answers them."""


class HostedSaga(Saga):
    """One block of hosted code: `with` in a thread, `async with` in a coroutine."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self._is_blocking = False
        self._known: concurrent.futures.Future[None] | None = None
        self._pending: set[Request] = set()

    # ── what belongs to it ───────────────────────────────────────────────────────────────────
    def join(self, request: Request, spec: EffectSpec, raw: bytes) -> Hears:
        """An effect is asked for inside, with these arguments."""
        with _lock:
            refuse_when_undone(self, f"effect {spec.name}")
            self._pending.add(request)
        return partial(self._heard, request, spec, raw)

    def _heard(self, request: Request, spec: EffectSpec, raw: bytes, event: e.Keyed | None, output: bytes) -> None:
        with _lock:
            saga = self._heir
            saga._pending.discard(request)
            if isinstance(event, e.EffectSucceeded) and event.how != "reused":
                saga.done.append(Done(0, event.name, event.business_key, event.operation, spec, raw, output))
            known = None if saga._pending else saga._known
        if known is not None:
            self._journal.no_longer_expects(known)

    @property
    def _heir(self) -> HostedSaga:
        """Whose it is what was done in here."""
        saga = self
        while saga.stage is Stage.LEFT and isinstance(saga.parent, HostedSaga):
            saga = saga.parent
        return saga

    def pivot(self) -> None:
        with _lock:
            super().pivot()

    def _hand_over(self) -> None:
        with _lock:
            super()._hand_over()
            if isinstance(self.parent, HostedSaga):
                self.parent._pending |= self._pending

    # ── entered and left ─────────────────────────────────────────────────────────────────────
    def __enter__(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise UsageError("with perdure.saga(): where an event loop runs, write `async with perdure.saga():`")
        self._is_blocking = True
        self._journal.enter_saga()
        self._enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _run_blocking(self._leave(error))

    async def __aenter__(self) -> None:
        self._journal.enter_saga()
        self._enter()

    def _is_gone(self) -> bool:
        return self._journal.is_over

    def _pass_cancellation_on(self, error: BaseException) -> None:
        """The code was cancelled while it undid: it is unwound then."""
        super()._pass_cancellation_on(error)
        if self._journal.is_past_cancellation and not isinstance(error, Unwound | asyncio.CancelledError):
            raise Unwound("cancelled while a saga was undone") from error

    # ── undoing ──────────────────────────────────────────────────────────────────────────────
    async def _all_known(self) -> None:
        while True:
            with _lock:
                if not self._pending:
                    return
                known = self._known = concurrent.futures.Future()
            self._journal.expect(known)
            if self._is_blocking:
                known.result()
            else:
                await self._outlast(asyncio.wrap_future(known))

    def _put_in_order(self) -> None:
        places = self._journal.places_of_outcomes()
        self.done = [done._replace(order=places.get(done.operation, 0)) for done in self.done]
        super()._put_in_order()

    async def _send(
        self, undo: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str, undoing: Undoing
    ) -> None:
        await self._answered(self._journal.steps.undo(undo, args, kwargs, business_key, undoing))

    async def _question(self, question: str, reason: str, hint: str, about: list[Done]) -> Answer:
        asked = self._journal.people.question(question, reason, hint, [done.operation for done in about])
        answer: Answer = await self._answered(asked)
        return answer

    async def _answered(self, request: Request) -> Any:
        if self._is_blocking:
            return self._journal.wait(request)
        waiting: Awaitable[Any] = self._journal.wait_async(request)
        return await self._outlast(waiting)


def _run_blocking(leaving: Coroutine[Any, Any, None]) -> None:
    """What is left with `with` waits in its thread, and so never suspends."""
    try:
        leaving.send(None)
    except StopIteration:
        return
    raise PerdureBug("a saga of blocking code was suspended")

"""Child runs of hosted code: called, started and joined later, told that they are cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from typing import TYPE_CHECKING, Any

from perdure.engine.calls import ChildAsk, ChildCall, Grant, Key, derived_id, linked
from perdure.errors import RunCancelledError
from perdure.history import events as e
from perdure.runtime.attempt import LANE
from perdure.runtime.hosted.records import running_children, told_children
from perdure.runtime.hosted.request import Request, load_with, unused_future, who_waits
from perdure.runtime.hosted.unwound import Unwound
from perdure.specs import WorkflowSpec

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal


class HostedChildren:
    """The child runs of one section. `told`: those that were told to stop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._live, self._turns = journal.live, journal.turns
        self.told = told_children(journal.history)
        self.starting: set[Key] = set()

    def call(
        self,
        spec: WorkflowSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        run_id: str | None = None,
        on_cancel: str = "wait",
        grant: Grant | None = None,
    ) -> Request:
        """A child run, made under an approval if there is a `grant`."""
        self._live.execution.check_child_id(run_id)
        raw = spec.arguments.dumps(args, kwargs)

        def perform(request: Request) -> None:
            future = unused_future(self._live)
            ask = ChildAsk(request.key, spec.name, request.key[1] + 1, future, spec, raw, request.packed, on_cancel)
            linked(ask)
            ask.is_started, ask.grant = request.record is not None, grant
            self._live.execution.place_child(ask, run_id, run_id or self._derived_id(request))
            request.child_id = ask.run_id
            request.is_wait = True
            is_new = not ask.is_started
            self._turns.children.start(self._live, ask)
            if is_new and ask.is_started:
                self.starting.add(request.key)

        request = Request(LANE.get(), spec.name, raw, perform)
        request.load = load_with(spec.result, spec.raises)
        request.child_id, request.is_abandoned = run_id, on_cancel == "abandon"
        return request

    def child_id(self, request: Request) -> str:
        """The id of a child run: as given, else derived from the call."""
        return request.child_id or self._derived_id(request)

    def _derived_id(self, request: Request) -> str:
        chapter = self._live.execution.beginning.chapter
        return derived_id(self._live.run_id, chapter, request.key, request.name)

    def start(self, child: ChildCall) -> Request:
        """Start a child run, from a thread: it is recorded when this returns."""
        request, started = self._to_start(child)
        self._journal.submit(request)
        started.result()
        return request

    async def start_async(self, child: ChildCall) -> Request:
        """Start a child run, from a coroutine."""
        request, started = self._to_start(child)
        self._journal.submit(request)
        await asyncio.wrap_future(started)
        return request

    def _to_start(self, child: ChildCall) -> tuple[Request, concurrent.futures.Future[None]]:
        request = self.call(child.spec, child.args, child.kwargs, run_id=child.run_id, on_cancel=child.on_cancel)
        started = request.started = concurrent.futures.Future()

        def is_over(done: concurrent.futures.Future[Any]) -> None:
            error = done.exception()
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was started long ago
                if isinstance(error, Unwound):
                    started.set_exception(error)
                else:
                    started.set_result(None)

        request.future.add_done_callback(is_over)
        return request, started

    def has_started(self, request: Request) -> None:
        """Whoever started a child goes on; from now on nobody waits for it, until somebody asks for its result."""
        if request.started is not None and not request.started.done():
            self._journal.no_longer_waits(request)
            request.started.set_result(None)

    def result(self, child: Request) -> Any:
        """A child's result, from a thread."""
        who = who_waits()
        self._journal.at_once(lambda: self._join(child, who))
        try:
            return child.future.result()
        finally:
            self._has_come(child)

    async def result_async(self, child: Request) -> Any:
        """A child's result, from a coroutine. Cancelling the wait does not cancel the child."""
        who = who_waits()
        self._journal.at_once(lambda: self._join(child, who))
        try:
            return await asyncio.shield(asyncio.wrap_future(child.future))
        finally:
            self._has_come(child)
            if not self._journal.is_over:
                self._journal.at_once(lambda: self._leave(child, who))

    def _join(self, child: Request, who: object) -> None:
        if not child.future.done():
            child.waiting.append(who)
            self._journal.participants[who] = self._journal.participants.get(who, 0) + 1
            self._journal.last_activity = child.asked_at = self._journal.loop.time()

    def _leave(self, child: Request, who: object) -> None:
        if who in child.waiting:
            child.waiting.remove(who)
            self._journal.participants[who] -= 1

    def _has_come(self, child: Request) -> None:
        lane = LANE.get()
        self._journal.lane_now[lane] = max(self._journal.lane_now.get(lane, self._journal.began_at), child.ended_at)

    def cancel(self, child: Request) -> None:
        """Ask a child to stop; its result is RunCancelledError from now on, whatever becomes of it."""
        self._journal.at_once(lambda: self._cancel(child))

    def _cancel(self, child: Request) -> None:
        if child.future.done():
            return
        self._tell(child.key, child.name, self.child_id(child))
        self._journal.requests.pop(child.key, None)
        self._journal.no_longer_waits(child)
        child.future.set_exception(RunCancelledError(f"child run {self.child_id(child)} was cancelled by its parent"))

    def _tell(self, key: Key, name: str, run_id: str) -> None:
        """Have a child run cancelled, in the commit that says so: a second time would disturb its cleaning up."""
        if key not in self.told:
            self.told.add(key)
            self._turns.children.tell(self._live, [run_id])
            self._turns.report(self._live, e.CallCancelled(*key, name, key[1] + 1))

    def tell_all(self) -> bool:
        """The code has ended: its children are cancelled. True as long as some have not ended."""
        running = running_children(self._journal.history)
        for key, child in running.items():
            self._tell(key, child.name, child.run_id)
        return bool(running or self.starting)

"""The blocking face of a Client or Runtime: the same calls without `await`, for Django, scripts and notebooks.

    caller's threads ──▶ SyncClient ──▶ one thread of its own ──▶ an asyncio loop ──▶ the Client

The client lives on that loop, and so do the steps if it is a Runtime. Under a running loop the calls work too, and
block that loop while they wait. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from perdure.api.calls import Call, execution_here
from perdure.errors import ForkedError, UsageError
from perdure.specs import Budget, Money
from perdure.store.protocol import Status

if TYPE_CHECKING:
    from perdure.api.client import Client
    from perdure.api.inbox import InboxEntry
    from perdure.api.operations import OperationSummary
    from perdure.api.reading import HistoryEvent, RunSummary
    from perdure.api.requests import RequestSummary
    from perdure.api.run import Run
    from perdure.api.standing import DecisionStanding

R = TypeVar("R")
T = TypeVar("T")


class SyncRun(Generic[R]):
    """A handle on a run whose methods block. See `Run`; it means the same."""

    def __init__(self, run: Run[R], door: _Door) -> None:
        self._run = run
        self._door = door

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def how(self) -> str:
        """What `start` did: `"started"`, `"attached"`, or found that it `"finished earlier"`."""
        return self._run.how

    def __repr__(self) -> str:
        return repr(self._run)

    def status(self) -> Status:
        """Where the run stands now."""
        return self._door.wait(self._run.status(), "status")

    def summary(self) -> RunSummary:
        """Where the run stands, since when, and why."""
        return self._door.wait(self._run.summary(), "summary")

    def state(self) -> Any:
        """What the workflow last gave to `set_state`, as plain JSON; None if it never did."""
        return self._door.wait(self._run.state(), "state")

    def result(self, *, wait_blocked: bool = False, timeout: timedelta | float | None = None) -> R:
        """Wait for the run's end and give its result, or raise what the workflow raised; see `Run.result`."""
        return self._door.wait(self._run.result(wait_blocked=wait_blocked, timeout=timeout), "result")

    def send(self, name: str, value: Any = None, *, by: str = "") -> None:
        """Send the run a message; see `Run.send`."""
        self._door.wait(self._run.send(name, value, by=by), "send")

    def cancel(
        self, reason: str = "", *, force: bool = False
    ) -> Literal["requested", "cancelled", "completed", "failed"]:
        """Ask the run to stop, and say what became of that; see `Run.cancel`."""
        return self._door.wait(self._run.cancel(reason, force=force), "cancel")

    def pause(self, by: str = "") -> None:
        """Start nothing new in this run until `resume()`."""
        self._door.wait(self._run.pause(by), "pause")

    def move(self, version: int, *, by: str = "") -> int:
        """Have the run go on under another version of its workflow; see `Run.move`."""
        return self._door.wait(self._run.move(version, by=by), "move")

    def resume(self, by: str = "") -> None:
        """Go on with a paused run."""
        self._door.wait(self._run.resume(by), "resume")

    def unblock(
        self,
        choice: Literal["retry", "value", "fail", "reuse", "keep", "recompute"] = "retry",
        *,
        value: Any = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Decide for a blocked run; see `Run.unblock`."""
        self._door.wait(self._run.unblock(choice, value=value, call=call, by=by, reason=reason), "unblock")

    def settle(
        self,
        outcome: Literal["succeeded", "failed", "retry"],
        *,
        value: Any = None,
        reference: str | None = None,
        operation: str | None = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of an effect in doubt; see `Run.settle`."""
        self._door.wait(
            self._run.settle(
                outcome, value=value, reference=reference, operation=operation, call=call, by=by, reason=reason
            ),
            "settle",
        )

    def fork(
        self, at: int | Literal["last"] = "last", *, id: str | None = None, by: str = "", reason: str = ""
    ) -> SyncRun[R]:
        """A new run that begins with this one's events up to `at`; see `Run.fork`."""
        return SyncRun(self._door.wait(self._run.fork(at, id=id, by=by, reason=reason), "fork"), self._door)

    def stands(self, *, provide: Mapping[type, Any] | None = None) -> list[DecisionStanding]:
        """Whether each recorded result that rests on something would stand today; see `Run.stands`."""
        return self._door.wait(self._run.stands(provide=provide), "stands")

    def history(self) -> list[HistoryEvent]:
        """The run's whole history, readable."""
        return self._door.wait(self._run.history(), "history")


class SyncClient:
    """A Client or Runtime whose calls block. Any thread may use it, at the same time as others.

    It is open inside `with`, or from `open()` to `close()`; closed, it can be opened again. Waiting ends early, with
    UsageError, when another thread closes it. ForkedError in a process that was forked after it was opened.

    >>> with Client("shop.db").sync() as client:  # doctest: +SKIP
    ...     run = client.start(claims_agent.call("claim-42"), id="claim-42")
    ...     print(run.result())
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._door = _Door(client)

    # ── open and close ───────────────────────────────────────────────────────────────────────
    def open(self) -> Self:
        """Start the thread and open the client on it. UsageError if it, or the client itself, is open already."""
        self._door.open()
        return self

    def close(self) -> None:
        """Close the client and end the thread. Closing again does nothing."""
        self._door.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    # ── what users call ──────────────────────────────────────────────────────────────────────
    def start(
        self,
        call: Call[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        delay: timedelta | float = 0,
        goal: str = "",
        scope: Mapping[str, str] | None = None,
        budget: Budget | None = None,
    ) -> SyncRun[R]:
        """Start a run, durable when this returns; see `Client.start`."""
        starting = self._client.start(
            call, id=id, tags=tags, delay=delay, goal=goal, scope=scope, budget=budget
        )
        return SyncRun(self._door.wait(starting, "start"), self._door)

    def get(self, id: str) -> SyncRun[Any]:
        """A handle on a run. UnknownNameError, with near ids, if there is none."""
        return SyncRun(self._door.wait(self._client.get(id), "get"), self._door)

    def list(
        self,
        *,
        workflow: str | None = None,
        status: Status | str | Iterable[Status | str] | None = None,
        tags: Mapping[str, str] | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        limit: int = 100,
    ) -> builtins.list[RunSummary]:
        """Runs, newest first; see `Client.list`."""
        return self._door.wait(
            self._client.list(
                workflow=workflow, status=status, tags=tags, started_after=started_after,
                started_before=started_before, limit=limit,
            ),
            "list",
        )  # fmt: skip

    def inbox(self) -> builtins.list[InboxEntry]:
        """Everything that waits for a person, the riskiest first, then the oldest."""
        return self._door.wait(self._client.inbox(), "inbox")

    def settle(
        self,
        run: str | SyncRun[Any],
        outcome: Literal["succeeded", "failed", "retry"],
        *,
        value: Any = None,
        reference: str | None = None,
        operation: str | None = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of an effect in doubt; see `Run.settle`."""
        handle = run if isinstance(run, SyncRun) else self.get(run)
        handle.settle(outcome, value=value, reference=reference, operation=operation, call=call, by=by, reason=reason)

    def raise_budget(
        self,
        run: str | SyncRun[Any],
        *,
        tokens: int | None = None,
        cost: Money | None = None,
        effects: int | None = None,
        steps: int | None = None,
        wall: timedelta | float | None = None,
        by: str,
        reason: str = "",
        budget: str | None = None,
    ) -> None:
        """Set new, higher limits for a run; see `Client.raise_budget`."""
        raising = self._client.raise_budget(
            run if isinstance(run, str) else run.id, tokens=tokens, cost=cost, effects=effects, steps=steps, wall=wall,
            by=by, reason=reason, budget=budget,
        )  # fmt: skip
        self._door.wait(raising, "raise_budget")

    def effects(
        self,
        *,
        run: str | SyncRun[Any] | None = None,
        action: str | None = None,
        key: str | None = None,
        status: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> builtins.list[OperationSummary]:
        """What the ledger has, the newest first; see `Client.effects`."""
        which = run._run if isinstance(run, SyncRun) else run  # pyright: ignore[reportPrivateUsage]
        found = self._client.effects(run=which, action=action, key=key, status=status, limit=limit)
        return self._door.wait(found, "effects")

    def approve(
        self, id: str, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Approve what is asked under this id; see `Client.approve`."""
        self._door.wait(self._client.approve(id, hash=hash, by=by, role=role, comment=comment, run=run), "approve")

    def reject(
        self, id: str, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Reject what is asked under this id; see `Client.reject`."""
        self._door.wait(self._client.reject(id, hash=hash, by=by, role=role, comment=comment, run=run), "reject")

    def answer(
        self, id: str, value: Any, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Answer a question, with plain JSON; see `Client.answer`."""
        answered = self._client.answer(id, value, hash=hash, by=by, role=role, comment=comment, run=run)
        self._door.wait(answered, "answer")

    def delegate(
        self, id: str, *, to: str, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Hand a decision that is yours on to somebody else; see `Client.delegate`."""
        handed = self._client.delegate(id, to=to, hash=hash, by=by, role=role, comment=comment, run=run)
        self._door.wait(handed, "delegate")

    def acknowledge(self, run: str, *, call: str | None = None, by: str, comment: str = "") -> None:
        """Say that you have seen what policies denied in a run; see `Client.acknowledge`."""
        self._door.wait(self._client.acknowledge(run, call=call, by=by, comment=comment), "acknowledge")

    def requests(
        self,
        *,
        run: str | SyncRun[Any] | None = None,
        kind: Literal["approval", "question"] | None = None,
        status: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> builtins.list[RequestSummary]:
        """What people are, or were, asked, the newest first; see `Client.requests`."""
        which = run._run if isinstance(run, SyncRun) else run  # pyright: ignore[reportPrivateUsage]
        return self._door.wait(self._client.requests(run=which, kind=kind, status=status, limit=limit), "requests")


class _Door:
    """Where blocking calls go through: open or closed, and closed to callers that would wait for themselves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = type(client).__name__
        self._thread: _LoopThread | None = None

    def open(self) -> None:
        if self._thread is not None:
            self._thread.check_process(self._name)
            raise UsageError(f"this {self._name} is open already: use the one that open() or `with` gave")
        if self._client.is_open:
            raise UsageError(
                f"this {self._name} is open on an event loop: await its methods there, or give sync() one of its own"
            )
        thread = _LoopThread(self._client)
        thread.open()
        self._thread = thread

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_of_this_process:
            thread.close()

    def wait(self, call: Coroutine[Any, Any, T], name: str) -> T:
        """What `call` gives, from whichever thread. It is not made where waiting for it could never end."""
        try:
            thread = self._usable_thread(name)
        except BaseException:
            call.close()
            raise
        return thread.wait(call)

    def _usable_thread(self, name: str) -> _LoopThread:
        if self._thread is None:
            raise UsageError(f"this {self._name} is not open: use it as `with {self._name}(...).sync() as client:`")
        self._thread.check_process(self._name)
        if execution_here() is not None:
            raise UsageError(f"client.sync().{name}() in workflow code: move it into a step, whose result is recorded")
        if self._thread.is_current:
            raise UsageError(
                f"client.sync().{name}() on the very loop that has to answer it: `await client.{name}(...)` there"
            )
        return self._thread


class _LoopThread:
    """A thread with an asyncio loop on which a client is open, from `open()` to `close()`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closing = False
        self._opened = concurrent.futures.Future[None]()
        self._closed = concurrent.futures.Future[None]()
        self._thread = threading.Thread(target=self._run, name="perdure-sync", daemon=True)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def is_of_this_process(self) -> bool:
        return os.getpid() == self._pid

    def check_process(self, name: str) -> None:
        if not self.is_of_this_process:
            raise ForkedError(
                f"this {name}.sync() was opened before fork(), and its thread is not in this child process: make a new "
                f"{name} here, and close the parent's before forking"
            )

    def open(self) -> None:
        """Returns when the client is open; raises what opening it raised."""
        self._thread.start()
        self._opened.result()

    def close(self) -> None:
        """Returns when the client is closed; raises what closing it raised. Calls that wait are cancelled."""
        with self._lock:
            self._is_closing = True
            self._loop.call_soon_threadsafe(self._stop.set)
        self._closed.result()
        self._thread.join()

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Run the call on the loop and wait for it. Interrupted, the call is cancelled."""
        with self._lock:  # what is given to the loop before it is told to stop becomes a task, and is cancelled as one
            if self._is_closing:
                call.close()
                raise UsageError("it was closed by another thread; open it again, or use one of your own")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UsageError("it was closed by another thread while this call waited; the run is unharmed") from None
        except BaseException:
            future.cancel()
            raise

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            waited_for = self._closed if self._opened.done() else self._opened
            waited_for.set_exception(error)
        else:
            self._closed.set_result(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with self._client:
            self._opened.set_result(None)
            await self._stop.wait()

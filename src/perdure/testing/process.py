"""A simulated process: an event loop in virtual time with a worker on it. It can be paused, and killed.

`VirtualLoop` is what asyncio asks of a loop, run a few callbacks at a time by the simulation. Nothing in here waits for
real time or starts a thread: what the worker gives to an executor is done by the simulation, when it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from perdure.clock import MICROSECONDS
from perdure.runtime.host import Host
from perdure.runtime.lease import Lease
from perdure.runtime.options import Options
from perdure.specs import WorkflowSpec
from perdure.store.protocol import Store
from perdure.testing.clock import FakeAlarm, FakeClock
from perdure.testing.crashing import Crash, CrashingStore

_get_running_loop = asyncio_events._get_running_loop  # pyright: ignore[reportPrivateUsage]
_set_running_loop = asyncio_events._set_running_loop  # pyright: ignore[reportPrivateUsage]

Executor = Callable[[Callable[[], None]], None]
"""Does something outside the loop, at a time of its own."""


class Ready:
    """A callback that is ready to run; what `call_soon` gives back."""

    __slots__ = ("args", "callback", "context", "is_off")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback, self.args, self.is_off = callback, args, False
        self.context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        self.is_off = True

    def cancelled(self) -> bool:
        return self.is_off


_AbstractLoop: Any = asyncio.AbstractEventLoop  # whose methods say NotImplementedError where we define none


class VirtualLoop(_AbstractLoop):  # type: ignore[misc]
    """An event loop whose time is a FakeClock's, and which runs only as far as it is told to."""

    def __init__(self, clock: FakeClock, executor: Executor, complain: Callable[[dict[str, Any]], None]) -> None:
        self.clock = clock
        self.ready: deque[Ready] = deque()
        self.is_dead = False
        self.is_paused = False
        self._tasks = weakref.WeakSet[asyncio.Task[Any]]()
        self.outside = executor
        self._complain = complain

    def run(self, callbacks_max: int) -> int:
        """Run up to so many callbacks; returns how many there were. A Crash comes through, and nothing else."""
        ran, ready = 0, self.ready
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            while ready and ran < callbacks_max and not (self.is_dead or self.is_paused):
                handle = ready.popleft()
                ran += 1
                if not handle.is_off:
                    self._call(handle)
        finally:
            _set_running_loop(outer)
        return ran

    def _call(self, handle: Ready) -> None:
        try:
            handle.context.run(handle.callback, *handle.args)
        except (Crash, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._complain({"message": f"exception in {handle.callback}", "exception": error})

    # ── what asyncio asks of a loop ──────────────────────────────────────────────────────────
    def time(self) -> float:
        return self.clock.now() / MICROSECONDS

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Ready(callback, args, context)
        if not self.is_dead:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self._arm(self.clock.now() + max(0, -int(-delay * MICROSECONDS // 1)), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self._arm(-int(-when * MICROSECONDS // 1), callback, args, context)

    def _arm(
        self, at: int, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> FakeAlarm:
        return self.clock.arm(at, lambda: callback(*args), self, context or contextvars.copy_context())

    def create_future(self) -> Any:
        return asyncio.Future[Any](loop=self)

    def create_task(
        self, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], *, name: str | None = None, **options: Any
    ) -> Any:
        task = asyncio.Task[Any](coro, loop=self, name=name, **options)
        self._tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def answer(value: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def work() -> None:
            if future.cancelled():
                return
            try:
                value, error = func(*args), None
            except Crash:
                raise
            except BaseException as problem:
                value, error = None, problem
            self.outside(lambda: self.call_soon(answer, value, error))

        self.outside(work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._complain(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def close(self) -> None:
        """Nothing runs here any more. What is suspended ends now, quietly, not when the collector comes by."""
        self.is_dead = True
        tasks = list(self._tasks)
        self.ready.clear()
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # whatever its cleanup raises, or that it would not end
                    coroutine: Any = task.get_coro()
                    coroutine.close()


class ProcessClock:
    """One machine's clock: off by a fixed time."""

    def __init__(self, clock: FakeClock, off: int) -> None:
        self._clock, self._off = clock, off

    def now(self) -> int:
        return self._clock.now() + self._off

    def wake_at(self, at: int, callback: Callable[[], None]) -> FakeAlarm:
        return self._clock.wake_at(at - self._off, callback)


class SimulatedLease(Lease):
    """The real lease, kept outside the loop as by a thread: it may lag behind."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop: VirtualLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        super().__init__(*arguments, **(options | {"monotonic": self._loop.time}))

    def _begin(self) -> None:
        clock = self._loop.clock
        at = clock.now() + round(self.pause_seconds * MICROSECONDS)
        self._alarm = clock.arm(at, lambda: self._loop.outside(self._on_time), None)

    def _on_time(self) -> None:
        if not self._alarm.is_off and self.tick():
            self._begin()

    def close(self) -> None:
        self._alarm.cancel()


class Surroundings(Protocol):
    """What a process needs to know of the simulation."""

    clock: FakeClock

    def later(self, process: Process, action: Callable[[], None]) -> None:
        """Do this outside the loop of that process, some time later."""
        ...

    def complain(self, process: Process, context: dict[str, Any]) -> None:
        """Something went wrong on the loop of that process, in a place where nothing may."""
        ...


class Process:
    """One simulated process. Its store handle is its own; the data behind it is shared with the others."""

    def __init__(self, name: str, world: Surroundings, *, clock_off: int = 0) -> None:
        self.name = name
        self.world = world
        self.clock = ProcessClock(world.clock, clock_off)
        self.loop = VirtualLoop(
            world.clock, lambda action: world.later(self, action), lambda context: world.complain(self, context)
        )
        self.is_dead = False
        self.has_left = False
        self._is_leaving = False
        self._host: Host | None = None
        self._store: CrashingStore | None = None

    @property
    def host(self) -> Host:
        if self._host is None:
            raise RuntimeError(f"process {self.name} has no worker yet")
        return self._host

    @property
    def is_paused(self) -> bool:
        """Whether it stands still, in the middle of whatever."""
        return self.loop.is_paused

    @is_paused.setter
    def is_paused(self, is_paused: bool) -> None:
        self.loop.is_paused = is_paused

    @property
    def worker(self) -> str | None:
        return None if self._host is None else self._host.worker

    @property
    def is_up(self) -> bool:
        return not (self.is_dead or self.has_left)

    @property
    def is_runnable(self) -> bool:
        return bool(self.loop.ready) and not self.is_paused

    def open(self, store: CrashingStore, workflows: dict[tuple[str, int], WorkflowSpec], options: Options) -> None:
        """Start the worker. A Crash in its first write kills the process, a StoreError is the caller's."""
        self._store = store
        self._entered(lambda: self._open(store, workflows, options))

    def _open(self, store: Store, workflows: dict[tuple[str, int], WorkflowSpec], options: Options) -> None:
        self._host = Host(store, self.clock, workflows, options)
        self._host.kick()

    def _entered(self, action: Callable[[], None]) -> None:
        outer = _get_running_loop()
        _set_running_loop(self.loop)
        try:
            action()
        except Crash:
            self.kill()
        finally:
            _set_running_loop(outer)

    def run(self, callbacks_max: int) -> int:
        """Let it go on for so many callbacks."""
        try:
            return self.loop.run(callbacks_max)
        except Crash:
            self.kill()
            return 1

    def do(self, action: Callable[[], Any]) -> None:
        """Do something on the process's loop, now."""
        if self.is_up:
            self._entered(action)

    def outside(self, action: Callable[[], None]) -> None:
        """Do something of this process outside its loop, as in another thread."""
        if self.is_up:
            try:
                action()
            except Crash:
                self.kill()

    def leave(self) -> None:
        """Shut down in an orderly way."""
        if self.is_up and not self._is_leaving:
            self._is_leaving = True
            self.loop.create_task(self._close())

    async def _close(self) -> None:
        try:
            await self.host.close()
        except Crash:
            self.kill()
        else:
            self.has_left = True
            self.loop.close()

    def kill(self) -> None:
        """SIGKILL: nothing is written, nothing released, nothing runs any more. Others see the proof of it."""
        if not self.is_up:
            return
        self.is_dead = True
        if self._host is not None:
            self._kill_proof(self._host.worker)
            self._host.give_up_exactness()
            self._bury(self._host)
        self.loop.close()

    def _kill_proof(self, worker: str) -> None:
        if self._store is not None:
            self._store.kill(worker)

    def close_store(self) -> None:
        """Give the handle back, once the simulation is over."""
        if self._store is not None:
            self._store.close()

    def _bury(self, host: Host) -> None:
        """What a dead process held must not come alive in the garbage collector: tear it down, with no effect."""
        for live in list(host.turns.live.values()):
            live.is_gone = True
            for flight in live.flights.values():
                flight.airborne = 0
            if not live.is_in_turn:
                live.execution.close()

"""The event loop that a workflow runs on: a ready queue and virtual time, nothing else.

It has no selector, no sockets, no subprocesses and no clock. It is driven synchronously: `run_dry` executes callbacks
until none is ready. Time moves only when the driver says so. What it must not know: histories, steps, stores.

Tasks and futures hash to the ordinal of their creation, so that a set of them iterates alike in every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import sys
import threading
from asyncio import events as asyncio_events
from asyncio import tasks as asyncio_tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from perdure.engine.here import HERE

CALLBACKS_WITHOUT_A_COMMAND_MAX = 100_000
UNWINDING_ROUNDS_MAX = 50
ASYNCGENS_BEFORE_SWEEP = 64
NEVER_SECONDS = 253_402_300_800.0
"""The first moment of the year 10,000, which no date can say: a timer for later than that fires as little as one for
`math.inf`, by which some wait for ever (`anyio.sleep_forever()`)."""

LOCAL_TIMERS: contextvars.ContextVar[bool] = contextvars.ContextVar("perdure_local_timers", default=False)
"""True inside an adapter's scope: timers of under a second armed there are polls of a framework, not waits of a run."""

current_task: Callable[[Any], asyncio.Task[Any] | None] = (
    asyncio.current_task
    if sys.version_info >= (3, 12)
    else getattr(asyncio_tasks, "_current_tasks").get  # noqa: B009  (typeshed has none)
)
"""asyncio's own, which before Python 3.12 takes four times as long as to look where it looks."""

running_loop = asyncio_events._get_running_loop  # pyright: ignore[reportPrivateUsage]
_set_running_loop = asyncio_events._set_running_loop  # pyright: ignore[reportPrivateUsage]


def inline(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What workflow code handed to an executor is called here: so it can be seen that it is that code's call."""
    return function(*args)


_unlike_any = itertools.count(1 << 32)


class LoopFuture(asyncio.Future[Any]):
    """A future whose hash is its ordinal on its loop."""

    __slots__ = ("ordinal",)
    ordinal: int

    def __hash__(self) -> int:
        return self.ordinal


class LoopTask(asyncio.Task[Any]):
    """A task that knows its path: "0" is the workflow, "0.2" its second child. Set before the coroutine can run, since
    an eager task runs while it is being constructed."""

    __slots__ = ("calls", "children", "ordinal", "path", "randoms", "uses")

    def __init__(self, coro: Any, *, path: str, ordinal: int, eager_start: bool = False, **options: Any) -> None:
        """Until it is made it hashes unlike any other task: asyncio puts it in a set of all tasks of the process, where
        the first tasks of a thousand runs, of the same ordinal, would each be compared with all the others."""
        self.path = path
        self.ordinal = ordinal if eager_start else next(_unlike_any)
        self.calls = 0
        self.children = 0
        self.randoms = 0
        self.uses: dict[str, int] = {}
        if eager_start:
            options["eager_start"] = True
        super().__init__(coro, **options)
        self.ordinal = ordinal

    def __hash__(self) -> int:
        return self.ordinal


class LoopHandle(msgspec.Struct, eq=False):
    """A callback that is ready. Quacks like asyncio.Handle."""

    callback: Callable[..., Any] | None
    args: tuple[Any, ...]
    context: contextvars.Context

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def get_context(self) -> contextvars.Context:
        return self.context


class LoopTimer(LoopHandle, eq=False):
    """A callback whose time will come. Quacks like asyncio.TimerHandle."""

    at: float
    ordinal: int
    is_local: bool = False

    def when(self) -> float:
        return self.at

    def __lt__(self, other: LoopTimer) -> bool:
        return (self.at, self.ordinal) < (other.at, other.ordinal)


class StuckTurn(BaseException):
    """So many callbacks ran without one durable call that the code must be spinning."""


class Owner(Protocol):
    """Whose loop it is."""

    def complain(self, context: Mapping[str, Any]) -> None:
        """Something went wrong on the loop that nobody awaits."""
        ...

    def foreign_callback(self, who: str) -> None:
        """Another thread called into the loop. Called in that thread."""
        ...


_AbstractLoop: Any = asyncio.AbstractEventLoop


class DeterministicLoop(_AbstractLoop):  # type: ignore[misc]
    """One run's loop. Everything that happens on it is a function of what is delivered to it, and in which order."""

    __slots__ = (
        "_asyncgens", "_exception_handler", "_is_closed", "_roots",
        "_task_factory", "_tasks", "_tasks_before_sweep", "_thread_id", "execution",
        "idle_callbacks", "now_seconds", "ordinal", "ready", "stop_now", "timers",
    )  # fmt: skip

    def __init__(self, execution: Owner) -> None:
        self.ready: deque[LoopHandle] = deque()
        self.timers: list[LoopTimer] = []  # a heap, cancelled ones among them
        self.ordinal = 0  # of the task, future or timer made last
        self._roots = 0
        self.now_seconds = 0.0  # set by whoever drives it; never goes back
        self._exception_handler: Callable[..., Any] | None = None
        self._task_factory: Any = None
        self._tasks: dict[int, LoopTask] = {}
        self._tasks_before_sweep = 64
        self._asyncgens: list[AsyncGenerator[Any, Any]] = []
        self._thread_id = 0
        self._is_closed = False
        self.idle_callbacks = 0
        self.stop_now = False
        self.execution: Any = execution  # an Owner; None once the loop is closed

    # ── driving ──────────────────────────────────────────────────────────────────────────────
    def run_dry(self) -> None:
        """Run ready callbacks until none is left, or `stop_now` is set.

        Called from a plain callback of the outer loop, never from inside one of its tasks: the outer loop's notion of
        a current task must not leak into the workflow. Raises StuckTurn; passes KeyboardInterrupt on.
        """
        if not self._thread_id:
            if self.ready:
                outer, hooks = running_loop(), sys.get_asyncgen_hooks()
                self._enter()
                try:
                    self.run_dry()
                finally:
                    self._leave(outer, hooks)
            return
        ready = self.ready
        while ready and not self.stop_now:
            handle = ready.popleft()
            callback, args = handle.callback, handle.args
            if callback is None:
                continue
            self.idle_callbacks = idle = self.idle_callbacks + 1
            if idle > CALLBACKS_WITHOUT_A_COMMAND_MAX:
                ready.appendleft(handle)  # else nothing would ever wake its task again, not even to end it
                raise StuckTurn
            try:
                if len(args) == 1:  # a task that is woken, mostly
                    handle.context.run(callback, args[0])
                else:
                    handle.context.run(callback, *args)
            except (KeyboardInterrupt, StuckTurn):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": "exception in a callback", "exception": error})

    @property
    def is_dry(self) -> bool:
        """Whether nothing is ready to run."""
        return not self.ready

    @contextlib.contextmanager
    def entered(self) -> Generator[None, None, None]:
        """While it lasts this thread's running loop and generator hooks are this loop's; `run_dry` then need not swap
        them each time."""
        outer, hooks = running_loop(), sys.get_asyncgen_hooks()
        self._enter()
        try:
            yield
        finally:
            self._leave(outer, hooks)

    def _enter(self) -> None:
        _set_running_loop(self)
        HERE.loop = self
        sys.set_asyncgen_hooks(self._asyncgens_append, _no_finalizer)
        self._thread_id = threading.get_ident()

    def _leave(self, outer: asyncio.AbstractEventLoop | None, hooks: Any) -> None:
        self._thread_id = 0
        sys.set_asyncgen_hooks(*hooks)
        HERE.loop = outer if type(outer) is DeterministicLoop else None
        _set_running_loop(outer)

    def next_ordinal(self) -> int:
        self.ordinal += 1
        return self.ordinal

    def pop_due(self) -> list[LoopTimer]:
        """Take off the timers whose time has come, earliest first. Those armed while they fire wait for their turn."""
        due: list[LoopTimer] = []
        while (handle := self._next_timer()) is not None and handle.when() <= self.now_seconds:
            due.append(heapq.heappop(self.timers))
        return due

    def fire(self, timer: LoopTimer) -> None:
        """Make a timer's callback ready, unless it was cancelled meanwhile."""
        if not timer.cancelled():
            self.ready.append(timer)

    def drop_timers(self) -> None:
        """No timer that is armed now fires any more."""
        self.timers.clear()

    def next_deadline(self) -> float | None:
        """When the earliest timer is due that may fire by itself; None if there is none.

        Local timers do not fire by themselves: they move only with other events.
        """
        first = self._next_timer()
        if first is None or not first.is_local:
            return None if first is None else first.when()
        own = [t for t in self.timers if not t.cancelled() and not t.is_local]
        return min(own).when() if own else None

    def next_deadline_of_any(self) -> float | None:
        """When the earliest timer of any kind is due."""
        first = self._next_timer()
        return None if first is None else first.when()

    def _next_timer(self) -> LoopTimer | None:
        timers = self.timers
        while timers and timers[0].cancelled():
            heapq.heappop(timers)
        return timers[0] if timers else None

    def _asyncgens_append(self, generator: AsyncGenerator[Any, Any]) -> None:
        if len(self._asyncgens) >= ASYNCGENS_BEFORE_SWEEP:
            self._asyncgens = [g for g in self._asyncgens if getattr(g, "ag_frame", None) is not None]
        self._asyncgens.append(generator)

    def live_tasks(self) -> list[LoopTask]:
        """Tasks that are not done, in order of creation. They are kept alive here: the collector's timing must not
        decide when a forgotten task is torn down."""
        if not self._tasks:
            return []
        self._tasks = {o: t for o, t in self._tasks.items() if not t.done()}
        return list(self._tasks.values())

    def unwind(self) -> list[LoopTask]:
        """Cancel everything and run dry, at most UNWINDING_ROUNDS_MAX times; then close generators in order of their
        first use. Returns the tasks that would not end."""
        for _ in range(UNWINDING_ROUNDS_MAX):
            tasks = self.live_tasks()
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.stop_now = False
            self.idle_callbacks = 0
            self.run_dry()
        self._close_asyncgens()
        return self.live_tasks()

    def close_generators(self, context: contextvars.Context) -> bool:
        """Make a task that closes the generators still open, in the order of their first use. False: there are none."""
        left = [g for g in self._asyncgens if getattr(g, "ag_frame", None) is not None]
        self._asyncgens = []
        if left:
            _ = self.new_task(_close_each(left), context=context)
        return bool(left)

    def _close_asyncgens(self) -> None:
        for generator in self._asyncgens:
            if getattr(generator, "ag_frame", None) is not None:
                self.create_task(_close_quietly(generator))
                self.stop_now = False
                self.run_dry()
        self._asyncgens.clear()

    # ── what asyncio asks of a loop ──────────────────────────────────────────────────────────
    def time(self) -> float:
        return self.now_seconds

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = LoopHandle(callback, args, contextvars.copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = self._arm(self.now_seconds + delay, callback, args, context)
        handle.is_local = LOCAL_TIMERS.get() and delay < 1
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = self._arm(when, callback, args, context)
        handle.is_local = LOCAL_TIMERS.get() and when - self.now_seconds < 1
        return handle

    def _arm(
        self, when: float, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> LoopTimer:
        self.ordinal += 1
        handle = LoopTimer(callback, args, _context(context), when, self.ordinal)
        if when < NEVER_SECONDS:  # nor is nan, which has no place in an order
            heapq.heappush(self.timers, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        if threading.get_ident() == self._thread_id:
            return self.call_soon(callback, *args, context=context)
        name = getattr(callback, "__qualname__", repr(callback))
        if self.execution is not None:
            self.execution.foreign_callback(f"{name} from thread {threading.current_thread().name!r}")
        return LoopHandle(callback, args, _context(context))

    def create_future(self) -> Any:
        future = LoopFuture(loop=self)
        self.ordinal += 1
        future.ordinal = self.ordinal
        return future

    def create_task(
        self, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], *, name: str | None = None, **options: Any
    ) -> Any:
        if self._task_factory is None:
            task: Any = self.new_task(coro, **options)
        elif self._task_factory is getattr(asyncio, "eager_task_factory", None):
            task = self.new_task(coro, eager_start=True, **options)
        else:
            task = self._task_factory(self, coro, **options)
        if name is not None:
            task.set_name(name)
        return task

    def new_task(self, coro: Any, *, path: str = "", **options: Any) -> LoopTask:
        """`path`: of a task that none of the code's own has started."""
        path = path or self._new_path()
        self.ordinal += 1
        ordinal = self.ordinal
        options.pop("loop", None)
        options.setdefault("name", f"task {path}")
        task = LoopTask(coro, path=path, ordinal=ordinal, loop=self, **options)
        if len(self._tasks) >= self._tasks_before_sweep:
            self._tasks_before_sweep = max(64, 2 * len(self.live_tasks()))
        self._tasks[ordinal] = task
        return task

    def _new_path(self) -> str:
        """A child of the current task; a root of its own for what a callback starts."""
        parent = current_task(self)
        if isinstance(parent, LoopTask):
            parent.children += 1
            return f"{parent.path}.{parent.children}"
        self._roots += 1
        return "0" if self._roots == 1 else f"c{self._roots - 1}"

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Executed at once, in this thread: deterministic, and what agent frameworks need for their sync functions."""
        future = self.create_future()
        try:
            result = inline(func, args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            future.set_exception(error if not isinstance(error, StopIteration) else RuntimeError("StopIteration"))
        else:
            future.set_result(result)
        return future

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def set_exception_handler(self, handler: Callable[..., Any] | None) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Callable[..., Any] | None:
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        if self.execution is not None:  # whoever still calls a closed loop is not heard
            self.execution.complain(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception as error:
            self.default_exception_handler({"message": "exception in the exception handler", "exception": error})

    async def shutdown_asyncgens(self) -> None:
        for generator in self._asyncgens:
            await _close_quietly(generator)
        self._asyncgens.clear()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return None

    get_debug: Any = staticmethod(bool)
    """False, from a function of C: each future that is made asks."""

    def set_debug(self, enabled: bool) -> None:
        self.__dict__["get_debug"] = partial(bool, enabled)

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Let go of the run, too: nothing circular is left for the collector."""
        self._is_closed = True
        self.ready.clear()
        self.timers.clear()
        self._tasks.clear()
        self.execution = None

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """asyncio tells its loop when a timer is cancelled; ours are skipped when their time comes."""


def _outside(name: str) -> Any:
    def refuse(*_: object, **__: object) -> Any:
        raise NotImplementedError(
            f"workflow code used the event loop's {name}(): a workflow has no sockets, files, processes or signals. "
            "Do it in a step, or host the code with perdure.section()"
        )

    return refuse


for _name in (
    "add_reader add_signal_handler add_writer connect_accepted_socket connect_read_pipe connect_write_pipe "
    "create_connection create_datagram_endpoint create_server create_unix_connection create_unix_server getaddrinfo "
    "getnameinfo remove_reader remove_signal_handler remove_writer sendfile set_default_executor "
    "sock_accept sock_connect "
    "sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendfile sock_sendto start_tls "
    "subprocess_exec subprocess_shell"
).split():
    setattr(DeterministicLoop, _name, _outside(_name))


def _context(given: contextvars.Context | None) -> contextvars.Context:
    """An empty context is a context: only its truth value is false."""
    return contextvars.copy_context() if given is None else given


def _no_finalizer(generator: AsyncGenerator[Any, Any]) -> None:
    """Generators are kept and closed by their loop, in order of first use; the collector has no say."""


async def _close_each(generators: Sequence[AsyncGenerator[Any, Any]]) -> None:
    for generator in generators:
        await _close_quietly(generator)


async def _close_quietly(generator: AsyncGenerator[Any, Any]) -> None:
    try:
        await generator.aclose()
    except KeyboardInterrupt:
        raise
    except BaseException:  # what a generator's cleanup raises at the end of a run concerns nobody any more
        return

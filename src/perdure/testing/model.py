"""What a run's code should have seen: the same program on stock asyncio, given the outcomes of a history.

An independent account of how a workflow's loop behaves: stock tasks and futures, a mailbox of `asyncio.Queue`s, one
outcome delivered at a time, the loop run dry after each, then the timers that are due, once. It knows neither task
paths nor replay; calls are recognised by what they were asked with.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from perdure.clock import MICROSECONDS
from perdure.codec import load_exception
from perdure.engine.calls import section_of
from perdure.engine.loop import UNWINDING_ROUNDS_MAX
from perdure.errors import ApprovalExpired, Rejected
from perdure.history import events as e
from perdure.runtime.load import Past
from perdure.testing import programs as p
from perdure.testing.clock import FakeClock
from perdure.testing.interpreter import ChildHandle, Trace, evaluate
from perdure.testing.process import VirtualLoop


class Timer:
    """A callback that is due some time."""

    def __init__(self, when: float, ordinal: int, ring: Callable[[], None]) -> None:
        self._when, self.ordinal, self.ring, self.is_off = when, ordinal, ring, False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_off = True

    def cancelled(self) -> bool:
        return self.is_off


class ModelLoop(VirtualLoop):
    """Stock tasks; time stands still, and timers fire when they are told to."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), lambda action: None, lambda context: None)
        self.seconds = 0.0
        self.timers: list[Timer] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.generators: list[AsyncGenerator[Any, Any]] = []
        self._timers_ever = 0

    def time(self) -> float:
        return self.seconds

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.seconds + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        self._timers_ever += 1
        timer = Timer(when, self._timers_ever, lambda: self.call_soon(callback, *args, context=context))
        self.timers.append(timer)
        return timer

    def create_task(self, coro: Any, **options: Any) -> Any:
        task = super().create_task(coro, **options)
        self.tasks.append(task)
        return task

    @property
    def live_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]

    def run_dry(self) -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self.generators.append, finalizer=lambda generator: None)
        try:
            self.run(sys.maxsize)
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def close_generators(self) -> bool:
        """Begin to close those still open, in the order of their first use. False if there are none."""
        left = [generator for generator in self.generators if getattr(generator, "ag_frame", None) is not None]
        self.generators = []
        if left:
            self.create_task(_close_each(left))
        return bool(left)

    def settle(self) -> None:
        """Run dry; then fire what is due, once."""
        self.run_dry()
        due = [timer for timer in self.timers if timer.when() <= self.seconds]
        self.timers = [timer for timer in self.timers if timer.when() > self.seconds]
        for timer in sorted(due, key=lambda timer: (timer.when(), timer.ordinal)):
            if not timer.is_off:
                timer.ring()
                self.run_dry()


async def _close_each(generators: Sequence[AsyncGenerator[Any, Any]]) -> None:
    for generator in generators:
        await generator.aclose()


class Asked(NamedTuple):
    """What a call was asked with: the node, and the digest of what the code had seen. `of`: whether that is the call
    itself, or what people are asked."""

    node: int
    digest: int
    of: str = "call"


class ModelChild:
    """A started child run."""

    def __init__(self, future: asyncio.Future[int]) -> None:
        self._future = future

    async def result(self) -> int:
        return await asyncio.shield(self._future)

    def cancel(self) -> None:
        self._future.cancel()


class OrderedGroup(asyncio.TaskGroup):
    """A TaskGroup that says when it cancels several tasks: in which order is a matter of their hashes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def _abort(self) -> None:
        if sum(not task.done() for task in self._tasks) > 1:
            self._model.is_open_ended = True
            self._model.known_sights = min(self._model.known_sights, len(self._model.trace.seen))
        super()._abort()  # type: ignore[misc]


class Model:
    """One chapter of a run. `trace` is what its code sees; if it `is_open_ended`, the first `known_sights` are sure.
    `handed`: the messages that hosted code had when it was over."""

    def __init__(self, program: p.Program, past: Past, run_id: str) -> None:
        self.loop = ModelLoop()
        self.past = past
        self.is_closing = False
        self.is_open_ended = False
        self.known_sights = sys.maxsize
        self.problem: str | None = None
        self._calls: dict[Asked, asyncio.Future[Any]] = {}
        self._asked: dict[tuple[str, int], Asked] = {}
        self._expires_at: dict[tuple[str, int], int] = {}
        self._mailbox: dict[str, asyncio.Queue[int]] = {}
        self._in_flight: list[asyncio.Future[Any]] = []
        self.handed: list[int] = []
        self._handed: dict[str, dict[tuple[str, int], int]] = {}
        self._gone_on: set[str] = set()
        beginning = past.beginning()
        self._begin_at(beginning.at)
        self.trace = Trace(program, self, run_id, beginning.chapter)
        for name, message in beginning.carried:
            self._queue(name).put_nowait(int(message))
        node: int = msgspec.json.decode(beginning.input)["node"]
        self.root: asyncio.Task[int] = self.loop.create_task(self._run(program.nodes[node]))

    def _begin_at(self, at: int) -> None:
        self._now = at
        self.loop.seconds = at / MICROSECONDS

    async def _run(self, node: p.Node) -> int:
        value = await evaluate(node, self.trace)
        program = self.trace.program
        is_last = node != program.root or self.trace.chapter + 1 == program.chapters
        if not is_last and not all(future.done() for future in self._in_flight):
            self.trace.see(program.root, "UsageError")
        return value

    # ── driving ──────────────────────────────────────────────────────────────────────────────
    def play(self) -> Trace:
        """Deliver everything that the history has."""
        self._settle_all()
        for index, event in enumerate(self.past.events):
            self._note(index, event)
            if event.is_outcome and not self.is_over:
                at = self.past.stored.rows[index].at
                if at > self._now:
                    self._begin_at(at)
                self._deliver(event, self.past.output(index))
                self._settle_all()
            elif isinstance(event, e.SectionGaveBack):  # the code is over, and with it what it had begun
                self._handed.get(event.section, {}).pop(event.key, None)
        self._close()
        return self.trace

    def _close(self) -> None:
        """End whatever is suspended; nothing of it is seen, or called, any more."""
        self.is_closing = True
        for _ in range(UNWINDING_ROUNDS_MAX):
            if not self.loop.live_tasks:
                break
            for task in self.loop.live_tasks:
                task.cancel()
            self.loop.run_dry()
        self.loop.close()

    @property
    def is_over(self) -> bool:
        return self.is_open_ended or not self.loop.live_tasks

    def _settle_all(self) -> None:
        """Run dry; when the root has ended, the others are cancelled, once, and then the generators closed."""
        self.loop.settle()
        if self.root.done() and not self._is_unwinding:
            self._is_unwinding = True
            for task in self.loop.live_tasks:
                task.cancel()
            self.loop.run_dry()
        while self.root.done() and not self.loop.live_tasks and self.loop.close_generators():
            self.loop.run_dry()

    _is_unwinding = False

    def _note(self, index: int, event: e.Event) -> None:
        """The first event about a call says what it was asked with. What hosted code has taken when it is over it
        keeps."""
        if isinstance(event, e.SectionEnded | e.CallCancelled):
            taken = self._handed.pop(section_of(event.key), {})
            self.handed += [message for (lane, _), message in taken.items() if lane not in self._gone_on]
        elif isinstance(event, e.Keyed) and event.is_in_section:  # whoever is in this lane has what was told before
            (self._gone_on.discard if isinstance(event, e.SectionReceived) else self._gone_on.add)(event.task)
        if isinstance(event, e.SectionStarted | e.SectionEnded):
            node, digest = event.name.split()
            self._asked[event.key] = Asked(int(node), int(digest))
        elif isinstance(event, e.PersonAsked):
            self._expires_at[event.key] = event.expires_at
            self._asked[event.key] = _request(msgspec.json.decode(self.past.input(index) or b""))
        elif isinstance(event, e.Keyed) and event.key not in self._asked and not event.is_in_section:
            if not getattr(event, "input", None):
                return
            arguments = msgspec.json.decode(self.past.input(index) or b"{}")
            self._asked[event.key] = Asked(arguments["node"], arguments["digest"])

    def _deliver(self, event: e.Event, output: bytes | None) -> None:
        match event:
            case e.SectionReceived():
                queue = self._queue(event.message)
                if not queue.empty():
                    self._handed.setdefault(event.section, {})[event.key] = queue.get_nowait()
            case e.SectionGaveBack():
                message = self._handed.get(event.section, {}).pop(event.key, None)
                if message is not None:
                    self._put_back(self._queue(event.message), message)
            case e.Keyed() if event.is_in_section:
                pass
            case e.StepCompleted():
                self._settle(event, lambda future: future.set_result(msgspec.json.decode(output or b"null")))
            case e.StepFailed():
                self._settle(event, lambda future: future.set_exception(load_exception(output or b"", ())))
            case e.ChildEnded(status="completed"):
                self._settle(event, lambda future: future.set_result(msgspec.json.decode(output or b"null")))
            case e.ChildEnded():
                self._settle(event, lambda future: future.set_exception(load_exception(output or b"", ())))
            case e.SectionEnded():
                if event.failed:
                    self._settle(event, lambda future: future.set_exception(load_exception(output or b"", ())))
                else:
                    self._settle(event, lambda future: future.set_result(int(output or b"")))
            case e.PersonAnswered():
                told = event, output, self._expires_at[event.key]
                self._settle(event, lambda future: future.set_result(told))
            case e.MessageArrived():
                self._queue(event.name).put_nowait(int(output or b""))
            case e.CancelRequested():
                self.root.cancel()
            case _:
                pass

    def _settle(self, event: e.Keyed, end: Callable[[asyncio.Future[Any]], None]) -> None:
        asked = self._asked.get(event.key)
        future = self._calls.get(asked) if asked is not None else None
        if future is None:
            self.problem = self.problem or f"nobody asked for {event.label} ({asked})"
        elif not future.done():
            end(future)

    # ── what a program is offered ────────────────────────────────────────────────────────────
    def _refuse_when_closing(self) -> None:
        if self.is_closing:
            raise asyncio.CancelledError

    def _call(self, asked: Asked, *, holds: bool = True) -> asyncio.Future[Any]:
        self._refuse_when_closing()
        future: asyncio.Future[Any] = self.loop.create_future()
        if asked in self._calls:
            self.problem = self.problem or f"{asked} is asked for twice"
        self._calls[asked] = future
        if holds:
            self._in_flight.append(future)
        return future

    def _queue(self, name: str) -> asyncio.Queue[int]:
        return self._mailbox.setdefault(name, asyncio.Queue())

    def _put_back(self, queue: asyncio.Queue[int], message: int) -> None:
        """Among those that are left it has its old place: they are numbered as they were sent."""
        left = [message, *(queue.get_nowait() for _ in range(queue.qsize()))]
        for each in sorted(left):
            queue.put_nowait(each)

    def step(self, node: p.Step, digest: int, chapter: int) -> Awaitable[int]:
        return self._call(Asked(node.number, digest))

    def long_step(self, node: p.Step, digest: int, chapter: int, talk: list[str]) -> Awaitable[list[str]]:
        return self._call(Asked(node.number, digest))

    def effect(self, node: p.Effect, digest: int, chapter: int) -> Awaitable[int]:
        return self._call(Asked(node.number, digest))

    async def ask(self, node: p.Ask, digest: int, chapter: int) -> int:
        event, output, _ = await self._call(Asked(node.number, digest, "question"))
        if event.choice != "answer":
            raise TimeoutError
        return int(output)

    async def approve(self, node: p.Approve, digest: int, chapter: int) -> int:
        event, _, expires_at = await self._call(Asked(p.called(node.kid), digest, "approval"))
        if event.choice == "reject":
            raise Rejected("", event.by)
        is_late = node.recheck and bool(expires_at) and self._now >= expires_at
        if event.choice != "approve" or (is_late and not isinstance(node.kid, p.Effect)):
            raise ApprovalExpired("")
        value: int = await self._call(Asked(p.called(node.kid), digest))
        return value

    async def sleep(self, seconds: float) -> None:
        self._refuse_when_closing()
        future: asyncio.Future[None] = self.loop.create_future()
        self._in_flight.append(future)
        at = self._now + round(seconds * MICROSECONDS)
        timer = self.loop.call_at(at / MICROSECONDS, lambda: _wake(future))
        try:
            await future
        finally:
            timer.cancel()

    async def receive(self, message: str, within: float | None) -> int:
        self._refuse_when_closing()
        async with asyncio.timeout(within):
            return await self._queue(message).get()

    def child(self, node: p.Node, digest: int) -> Awaitable[int]:
        return self._call(Asked(node.number, digest))

    async def start_child(self, node: p.Node, digest: int, *, abandons: bool) -> ChildHandle:
        return ModelChild(self._call(Asked(node.number, digest), holds=not abandons))

    def foreign(self, node: p.Foreign, digest: int, chapter: int) -> Awaitable[int]:
        return self._call(Asked(node.number, digest))

    def look(self, node: p.Look) -> object:
        return node.number if node.at == "state" else ...

    def as_completed(self, kids: Sequence[Coroutine[Any, Any, int]], timeout: float | None) -> Iterable[Awaitable[int]]:
        return asyncio.as_completed([self.loop.create_task(kid) for kid in kids], timeout=timeout)

    async def wait_for(self, kid: Coroutine[Any, Any, int], timeout: float) -> int:
        if timeout > 0:
            async with asyncio.timeout(timeout):
                return await kid
        task: asyncio.Task[int] = self.loop.create_task(kid)
        task.cancel()
        await asyncio.wait([task])
        try:
            return task.result()
        except asyncio.CancelledError as error:
            raise TimeoutError from error

    def task_group(self) -> asyncio.TaskGroup:
        return OrderedGroup(self)


def _request(body: dict[str, Any]) -> Asked:
    """What people were asked."""
    if body["kind"] == "approval":
        return Asked(body["arguments"]["node"], body["arguments"]["digest"], "approval")
    node, digest = body["name"].split()
    return Asked(int(node), int(digest), "question")


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

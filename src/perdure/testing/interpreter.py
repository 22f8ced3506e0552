"""Evaluates a program's nodes with asyncio and perdure, and notes what it sees, in order.

The same evaluation runs as a workflow (`perdure.testing.workflows`) and on the model of one (`perdure.testing.model`):
what they offer to a program is `Offer`, and everything else is asyncio itself.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from perdure.errors import ApprovalExpired, Rejected
from perdure.testing import programs as p


class ChildHandle(Protocol):
    """A child run that was started."""

    async def result(self) -> int: ...
    def cancel(self) -> None: ...


class Offer(Protocol):
    """What a program has besides asyncio."""

    @property
    def is_closing(self) -> bool:
        """Whether the run is only being torn down: what it sees now counts no more."""
        ...

    def step(self, node: p.Step, digest: int, chapter: int) -> Awaitable[int]: ...
    def long_step(self, node: p.Step, digest: int, chapter: int, talk: list[str]) -> Awaitable[list[str]]: ...
    def effect(self, node: p.Effect, digest: int, chapter: int) -> Awaitable[int]: ...
    def sleep(self, seconds: float) -> Awaitable[None]: ...
    def receive(self, message: str, within: float | None) -> Awaitable[int]: ...
    def ask(self, node: p.Ask, digest: int, chapter: int) -> Awaitable[int]: ...
    def approve(self, node: p.Approve, digest: int, chapter: int) -> Awaitable[int]: ...
    def child(self, node: p.Node, digest: int) -> Awaitable[int]: ...
    def start_child(self, node: p.Node, digest: int, *, abandons: bool) -> Awaitable[ChildHandle]: ...
    def look(self, node: p.Look) -> object: ...
    def foreign(self, node: p.Foreign, digest: int, chapter: int) -> Awaitable[int]: ...

    # what of asyncio is not the same everywhere
    def as_completed(
        self, kids: Sequence[Coroutine[Any, Any, int]], timeout: float | None
    ) -> Iterable[Awaitable[int]]: ...
    def wait_for(self, kid: Coroutine[Any, Any, int], timeout: float) -> Awaitable[int]: ...
    def task_group(self) -> asyncio.TaskGroup: ...


class Seen(NamedTuple):
    """One thing that a program saw. `is_opaque`: it differs between runs of one program, never between replays."""

    node: int
    what: object
    is_opaque: bool = False

    def __str__(self) -> str:
        return f"{self.node}:{self.what}"


class Trace:
    """What one execution of a run's code saw, in order."""

    def __init__(self, program: p.Program, offer: Offer, run_id: str, chapter: int) -> None:
        self.program, self.offer, self.run_id, self.chapter = program, offer, run_id, chapter
        self.seen: list[Seen] = []
        self.talk: list[str] = []
        self.digest = 0

    def see(self, node: p.Node, what: object, *, is_opaque: bool = False) -> None:
        """Note something, unless the run is being torn down."""
        if not self.offer.is_closing:
            self.seen.append(Seen(node.number, what, is_opaque))
            if not is_opaque:
                self.digest = zlib.crc32(f"{node.number}:{what}".encode(), self.digest)

    @property
    def comparable(self) -> list[Seen]:
        """Without what differs from run to run."""
        return [seen if not seen.is_opaque else Seen(seen.node, "...", True) for seen in self.seen]


class OddError(Exception):
    """A class that nobody declared: it comes back as a StepError."""


def fold(values: Iterable[object]) -> int:
    """One number for several."""
    return zlib.crc32(repr(list(values)).encode())


def told(error: BaseException) -> str:
    """An exception, shortly: its class and, of a group, the members' classes. One that was not rebuilt by class tells
    which it was."""
    name: str = getattr(error, "type_name", "") or type(error).__name__
    members: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return f"{name}[{', '.join(map(told, members))}]" if members else name


def outcome(task: asyncio.Future[int]) -> object:
    """What became of a task that is done."""
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return task.result() if error is None else told(error)


async def evaluate(node: p.Node, trace: Trace) -> int:
    """The node's number."""
    value = await _EVALUATE[type(node)](node, trace)
    trace.see(node, value)
    return value


def _task(node: p.Node, trace: Trace) -> asyncio.Task[int]:
    return asyncio.get_running_loop().create_task(evaluate(node, trace))


# ── leaves ──────────────────────────────────────────────────────────────────────────────────


async def _step(node: p.Step, trace: Trace) -> int:
    trace.see(node, "asks")
    if node.which != "long":
        return await trace.offer.step(node, trace.digest, trace.chapter)
    trace.talk = await trace.offer.long_step(node, trace.digest, trace.chapter, trace.talk)
    return fold(trace.talk)


async def _effect(node: p.Effect, trace: Trace) -> int:
    trace.see(node, "asks")
    return await trace.offer.effect(node, trace.digest, trace.chapter)


async def _sleep(node: p.Sleep, trace: Trace) -> int:
    await (trace.offer.sleep if node.is_durable else asyncio.sleep)(node.ms / 1000)
    return 0


async def _receive(node: p.Receive, trace: Trace) -> int:
    return await trace.offer.receive(node.message, None if node.within_ms is None else node.within_ms / 1000)


async def _ask(node: p.Ask, trace: Trace) -> int:
    trace.see(node, "asks")
    return await trace.offer.ask(node, trace.digest, trace.chapter)


async def _look(node: p.Look, trace: Trace) -> int:
    trace.see(node, trace.offer.look(node), is_opaque=node.at != "state")
    return 0


async def _raise(node: p.Raise, trace: Trace) -> int:
    raise ValueError(node.number) if node.what == "value" else OddError(node.number)


# ── one kid ─────────────────────────────────────────────────────────────────────────────────


async def _timeout(node: p.Timeout, trace: Trace) -> int:
    try:
        if node.is_wait_for:
            return await trace.offer.wait_for(evaluate(node.kid, trace), node.ms / 1000)
        async with asyncio.timeout(node.ms / 1000):
            return await evaluate(node.kid, trace)
    except TimeoutError as error:
        trace.see(node, told(error))
        return -1


async def _shield(node: p.Shield, trace: Trace) -> int:
    task = _task(node.kid, trace)
    try:
        async with asyncio.timeout(node.ms / 1000):
            return await asyncio.shield(task)
    except TimeoutError as error:
        trace.see(node, told(error))
        return await task if node.waits_on else -1


async def _try(node: p.Try, trace: Trace) -> int:
    try:
        return await evaluate(node.kid, trace)
    except Exception as error:
        trace.see(node, told(error))
        if node.handler is None:
            raise
        return await evaluate(node.handler, trace)
    finally:
        if node.cleanup is not None:
            trace.see(node, "cleanup")
            await evaluate(node.cleanup, trace)


async def _stubborn(node: p.Stubborn, trace: Trace) -> int:
    for _ in range(node.times):
        try:
            return await evaluate(node.kid, trace)
        except asyncio.CancelledError:
            trace.see(node, "goes on")
    return await evaluate(node.kid, trace)


async def _cancel(node: p.Cancel, trace: Trace) -> int:
    task = _task(node.kid, trace)
    try:
        await evaluate(node.other, trace)
    finally:
        task.cancel()
    await asyncio.wait([task])
    trace.see(node, outcome(task))
    return 0


async def _child(node: p.Child, trace: Trace) -> int:
    trace.see(node, "asks")
    if node.how == "await":
        return await trace.offer.child(node.kid, trace.digest)
    child = await trace.offer.start_child(node.kid, trace.digest, abandons=node.how == "abandon")
    await trace.offer.sleep(node.ms / 1000)
    if node.how in {"abandon", "leave"}:
        return 0
    if node.how == "cancel":
        child.cancel()
    try:
        return await child.result()
    except asyncio.CancelledError:
        trace.see(node, "cancelled")
        if node.how != "cancel":
            raise
        return -1


async def _approve(node: p.Approve, trace: Trace) -> int:
    trace.see(node, "asks")
    try:
        return await trace.offer.approve(node, trace.digest, trace.chapter)
    except (Rejected, ApprovalExpired) as error:
        trace.see(node, told(error))
        return -1


async def _repeat(node: p.Repeat, trace: Trace) -> int:
    return fold([await evaluate(node.kid, trace) for _ in range(node.times)])


async def _later(node: p.Later, trace: Trace) -> int:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def end(task: asyncio.Task[int]) -> None:
        if not done.done():
            done.set_result(outcome(task))

    loop.call_later(node.ms / 1000, lambda: _task(node.kid, trace).add_done_callback(end))
    trace.see(node, await done)
    return 0


# ── several kids ────────────────────────────────────────────────────────────────────────────


async def _sequence(node: p.Sequence, trace: Trace) -> int:
    return fold([await evaluate(kid, trace) for kid in node.kids])


async def _gather(node: p.Gather, trace: Trace) -> int:
    kids = [evaluate(kid, trace) for kid in node.kids]
    values = await asyncio.gather(*kids, return_exceptions=node.keeps_errors)
    return fold(told(value) if isinstance(value, BaseException) else value for value in values)


async def _as_completed(node: p.AsCompleted, trace: Trace) -> int:
    kids = [evaluate(kid, trace) for kid in node.kids]
    for earliest in trace.offer.as_completed(kids, None if node.ms is None else node.ms / 1000):
        try:
            trace.see(node, await earliest)
        except Exception as error:
            trace.see(node, told(error))
    return 0


async def _wait(node: p.Wait, trace: Trace) -> int:
    tasks = [_task(kid, trace) for kid in node.kids]
    seconds = None if node.ms is None else node.ms / 1000
    done, pending = await asyncio.wait(tasks, timeout=seconds, return_when=node.until)
    trace.see(node, [tasks.index(task) for task in (*done, *pending)], is_opaque=True)
    _see_outcomes(node, trace, tasks, done)
    if node.losers == "cancel":
        for task in sorted(pending, key=tasks.index):
            task.cancel()
    if pending and node.losers != "leave":
        await asyncio.wait(pending)
        _see_outcomes(node, trace, tasks, pending)
    return len(done)


def _see_outcomes(node: p.Node, trace: Trace, tasks: list[asyncio.Task[int]], done: set[asyncio.Task[int]]) -> None:
    for index, task in enumerate(tasks):
        if task in done:
            trace.see(node, f"{index} {outcome(task)}")


async def _group(node: p.Group, trace: Trace) -> int:
    async with trace.offer.task_group() as group:
        tasks = [group.create_task(evaluate(kid, trace)) for kid in node.kids]
    return fold(task.result() for task in tasks)


async def _locked(node: p.Locked, trace: Trace) -> int:
    lock = asyncio.Lock() if node.at_once == 1 else asyncio.Semaphore(node.at_once)

    async def kid(kid: p.Node) -> int:
        async with lock:
            return await evaluate(kid, trace)

    return fold(await asyncio.gather(*(kid(each) for each in node.kids)))


async def _signal(node: p.Signal, trace: Trace) -> int:
    event = asyncio.Event()

    async def waits(kid: p.Node) -> int:
        await event.wait()
        return await evaluate(kid, trace)

    async def sets(kid: p.Node) -> int:
        try:
            return await evaluate(kid, trace)
        finally:
            event.set()

    return fold(await asyncio.gather(*(waits(kid) for kid in node.kids[:-1]), sets(node.kids[-1])))


async def _queue(node: p.Queue, trace: Trace) -> int:
    queue = asyncio.Queue[int](maxsize=len(node.kids))

    async def puts() -> int:
        left = len(node.kids) - 1
        try:
            while left:
                queue.put_nowait(await evaluate(node.kids[0], trace))
                left -= 1
        finally:
            for _ in range(left):
                queue.put_nowait(-1)
        return 0

    async def takes(kid: p.Node) -> int:
        trace.see(node, await queue.get())
        return await evaluate(kid, trace)

    return fold(await asyncio.gather(puts(), *(takes(kid) for kid in node.kids[1:])))


async def _foreign(node: p.Foreign, trace: Trace) -> int:
    trace.see(node, "asks")
    return await trace.offer.foreign(node, trace.digest, trace.chapter)


async def _generator(node: p.Generator, trace: Trace) -> int:
    async def generate() -> AsyncGenerator[int, None]:
        try:
            for kid in node.kids:
                yield await evaluate(kid, trace)
        finally:
            trace.see(node, "left")

    values: list[int] = []
    generator = generate()
    async for value in generator:
        values.append(value)
        if len(values) == node.leaves_after:
            break
    if node.is_closed:
        await generator.aclose()
    return fold(values)


_EVALUATE: dict[type[p.Node], Callable[[Any, Trace], Awaitable[int]]] = {
    p.Step: _step,
    p.Effect: _effect,
    p.Sleep: _sleep,
    p.Receive: _receive,
    p.Ask: _ask,
    p.Look: _look,
    p.Raise: _raise,
    p.Timeout: _timeout,
    p.Shield: _shield,
    p.Try: _try,
    p.Stubborn: _stubborn,
    p.Cancel: _cancel,
    p.Child: _child,
    p.Approve: _approve,
    p.Repeat: _repeat,
    p.Later: _later,
    p.Sequence: _sequence,
    p.Gather: _gather,
    p.AsCompleted: _as_completed,
    p.Wait: _wait,
    p.Group: _group,
    p.Locked: _locked,
    p.Signal: _signal,
    p.Queue: _queue,
    p.Generator: _generator,
    p.Foreign: _foreign,
}

"""What hosted code asks for, whatever it is, and what the code itself has come to."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.clock import Alarm
from perdure.codec import ValueCodec, load_exception
from perdure.engine.calls import CallFuture, Key, StepAsk
from perdure.history import events as e
from perdure.runtime.hosted.records import RECEIVE, Happened, Record
from perdure.runtime.live import LiveRun
from perdure.specs import StepSpec

Hears = Callable[[e.Keyed | None, bytes], None]
"""Who is told the outcome of an effect; None of one that is not, and will not be, under way."""

Load = Callable[[e.Keyed, "bytes | None"], Any]
"""Makes a value of what was recorded, or raises it."""

running_loop = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]


class Outcome(NamedTuple):
    """What hosted code has come to: its result, what it raised, or the arguments of the next chapter."""

    raw: bytes
    failed: bool = False
    continues: bool = False


class Request:
    """What foreign code asks for. `future` is answered on the host loop and waited for wherever the code runs.

    `waiting`: the threads or tasks that wait for the answer. `started`: of a child run that is not waited for at once.
    `is_reported`: an outcome is on its way into the history, so no other may follow. `is_held_back`: the run is paused
    or blocked; it is performed when that is over. Of effects: `as_ask` makes what is sent, `hears` is told what came of
    it. `is_undoing`: a saga asks for it, which goes on when the section is cancelled. `rests`: the step, if its result
    rests on something, with its arguments. `view`: the digest of what of the arguments counts, if not all of it does.
    `kind`: of what people are asked, approval or question. `is_here`: who waits is a coroutine of the host loop.
    `alarm`: when its time is up, if it has a time."""

    def __init__(self, lane: str, name: str, arguments: bytes | None, perform: Callable[[Request], None]) -> None:
        self.lane, self.name, self.arguments, self.perform = lane, name, arguments, perform
        self.digest: bytes | None = None
        self.view: bytes | None = None
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.key: Key = ("", 0)
        self.record: Record | None = None
        self.load: Load = lambda event, raw: None
        self.waiting: list[object] = []
        self.is_wait = False
        self.is_reported = False
        self.is_held_back = False
        self.deadline: int | None = None
        self.asked_at = 0.0
        self.packed: Any = None
        self.started: concurrent.futures.Future[None] | None = None
        self.child_id: str | None = None
        self.is_abandoned = False
        self.ended_at = 0
        self.unread: bytes | None = None
        self.as_ask: Callable[[], StepAsk] | None = None
        self.hears: Hears = nobody_hears
        self.is_undoing = False
        self.rests: tuple[StepSpec, bytes] | None = None
        self.kind = ""
        self.received: Happened | None = None
        self.is_here = False
        self.alarm: Alarm | None = None

    def silence(self) -> None:
        """No alarm goes off for this any more: it would keep the run in memory until then."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None

    @property
    def digests(self) -> tuple[bytes | None, ...]:
        """By which of its arguments a record may be known: only what of them counts, or all."""
        return (self.digest,) if self.view is None else (self.view, self.digest)

    @property
    def is_receive(self) -> bool:
        return self.name.startswith(RECEIVE)


def load_with(codec: ValueCodec, raises: tuple[type[BaseException], ...]) -> Load:
    """Reads what a step or child has come to."""

    def load(event: e.Keyed, raw: bytes | None) -> Any:
        if isinstance(event, e.StepCompleted) or (isinstance(event, e.ChildEnded) and event.status == "completed"):
            return codec.loads(raw or b"null")
        raise load_exception(raw or b"null", raises)

    return load


def unused_future(live: LiveRun) -> CallFuture:
    """In the place of the future that workflow code would wait for."""
    future = CallFuture(loop=live.execution.loop)
    future.ordinal = 0
    future.execution = live.execution
    return future


def nobody_hears(event: e.Keyed | None, raw: bytes) -> None:
    """It belongs to no saga."""


def who_waits() -> object:
    """Who waits: the task, if it is one, else the thread."""
    return (asyncio.current_task() if running_loop() is not None else None) or threading.get_ident()

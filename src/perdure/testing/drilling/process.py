"""One process of a trial: a worker whose writes and outside calls are watched, and which dies or hangs where it is to.

Bodies that are under way when it dies go on outside, as requests do that have left; nobody hears their answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.api.inputs import message_body
from perdure.errors import StoreError
from perdure.history import events as e
from perdure.runtime import mail
from perdure.runtime.attempt import ATTEMPT
from perdure.runtime.effects import EffectFlight
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import Flight, Function
from perdure.specs import EffectSpec, Unsure
from perdure.store.protocol import (
    Append,
    Decide,
    Ended,
    Fenced,
    Letter,
    Mail,
    Moved,
    NewRun,
    Outcome,
    Row,
    Store,
    Write,
)
from perdure.testing.clock import FakeAlarm, FakeClock
from perdure.testing.crashing import Crash, CrashingStore
from perdure.testing.drilling import words
from perdure.testing.drilling.traces import traces
from perdure.testing.drilling.words import Named, Reached
from perdure.testing.mortal import Death, Mortal
from perdure.testing.mortal import Outcome as Ending
from perdure.testing.runtime import RuntimeUnderTest

if TYPE_CHECKING:
    from perdure.testing.drilling.trial import Trial

T = TypeVar("T")

ANSWER_SECONDS_MAX = 1.0
"""How long (real time) a dead process's requests are waited for: the outside world goes on without it."""


class OwnClock(FakeClock):
    """One process's face of a clock that several share. While it hangs, nothing wakes it."""

    def __init__(self, shared: FakeClock) -> None:
        super().__init__()
        self._shared = shared
        self.is_hung = False
        self._withheld: list[Callable[[], None]] = []

    def now(self) -> int:
        return self._shared.now()

    @property
    def time(self) -> datetime:
        return self._shared.time

    def wake_at(self, at: int, callback: Callable[[], None]) -> FakeAlarm:
        return self._shared.wake_at(at, partial(self._ring, callback))

    def _ring(self, callback: Callable[[], None]) -> None:
        if self.is_hung:
            self._withheld.append(callback)
        else:
            callback()

    def thaw(self) -> None:
        """What should have woken it does so now."""
        self.is_hung = False
        for callback in self._withheld:
            asyncio.get_running_loop().call_soon(callback)

    def next_alarm_at(self) -> int | None:
        return self._shared.next_alarm_at()

    def advance_to(self, at: int) -> None:
        self._shared.advance_to(at)


class WatchedStore(CrashingStore):
    """A process's handle on the store: it tells of each write before and after it, and is of no use to the hung."""

    def __init__(self, inner: Store, process: Process) -> None:
        super().__init__(inner)
        self._process = process
        self.is_hung = False

    def _write(self, name: str, write: Callable[[], T], writes: Sequence[Write] = ()) -> T:
        self._check_alive()
        named = self._named(name, writes)
        self._process.reach("before", named, is_write=True)
        done = self._living(write)
        if self._process.trial.is_twice(writes):
            self._living(write)
        self._process.reach("after", named, is_write=True)
        return done

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        outcomes = super().commit(writes)
        if self._process.hung.has_come:
            self._process.refused += sum(isinstance(outcome, Fenced | Moved | Ended) for outcome in outcomes)
        return outcomes

    def _check_alive(self) -> None:
        if self.is_hung and not self.has_crashed:
            raise StoreError("the process hangs")
        super()._check_alive()

    def _named(self, name: str, writes: Sequence[Write]) -> list[Named]:
        if name != "commit":
            return [Named(words.OF_METHOD.get(name, name), words.OF_METHOD.get(name, name))]
        return [named for write in writes for named in words.of_write(write, self._run_of(write), self._process.root)]

    def _run_of(self, write: Write) -> str:
        if isinstance(write, NewRun | Letter | Decide):
            return write.run_id
        return next((run_id for run_id, rid, _, _ in self.inner.heads() if rid == write.rid), "?")

    def transact(self, intent: Append, fill: Callable[[Any], Append]) -> Outcome:
        """What is written is known only when the body has run."""
        self._check_alive()
        filled: list[Named] = []

        def told(connection: Any) -> Append:
            append = fill(connection)
            filled[:] = self._named("commit", [append])
            self._process.reach("before", filled, is_write=True)
            return append

        outcome = self._living(lambda: self.inner.transact(intent, told))
        self._process.reach("after", filled, is_write=True)
        return outcome

    def mail(self, rids: Sequence[int] | None = None, *, owner: str | None = None) -> list[Mail]:
        letters = super().mail(rids, owner=owner)
        return [again for letter in letters for again in self._process.trial.delivered(letter)]


class DrillRuntime(RuntimeUnderTest):
    """The runtime of one process of a trial. `still` is asked when nothing happens any more in it, `left_behind` told
    which values outside of it the workflow's code has changed."""

    still: Callable[[], Awaitable[bool]]

    async def on_still(self) -> bool:
        return await self.still()

    def replayed(self, live: LiveRun) -> str | None:
        """What the code leaves behind when it is replayed, it leaves behind whenever the run is taken up."""
        if any(not flight.ask.spec.is_async for flight in self._host.turns.performer.running):
            return super().replayed(live)  # a thread may change whatever it likes at the same time
        told, found = traces(live.execution.spec.function, lambda: super(DrillRuntime, self).replayed(live))
        for name in found:
            self.left_behind(name)
        return told

    left_behind: Callable[[str], None]

    def letter_to(self, run_id: str, name: str, value: Any) -> Letter:
        """A message, to be delivered as often as one likes: it arrives once."""
        info = self._store.find(run_id)
        spec = None if info is None else self._spec_of(info)
        return mail.letter(run_id, "message", key=name, body=message_body(spec, name, value), now=self.clock.now())

    async def deliver(self, letter: Letter) -> None:
        await self._write(letter)
        self._mailed()


class Process:
    """See above. `number`: how many processes of this trial were there before."""

    def __init__(self, trial: Trial, number: int, inner: Store, clock: FakeClock) -> None:
        self.trial, self.number, self.root = trial, number, trial.run_id
        self.death = Death()
        self.store = WatchedStore(inner, self)
        self.clock = OwnClock(clock)
        self.hung = Death()
        """Comes when it hangs."""
        self.is_thawed = asyncio.Event()
        self.refused = 0
        """How many of its writes were refused after it had hung."""
        self._thread_is_thawed = threading.Event()
        self._loop = asyncio.get_running_loop()
        crashes = trial.point.fault.crashes
        self._dies_at = crashes[number] if number < len(crashes) else ""
        self._hangs_at = trial.point.fault.hangs_at if number == 0 else ""
        self._reached = Counter[str]()
        self._lock = threading.Lock()
        self._requests: set[asyncio.Task[Any]] = set()
        self._in_threads = 0
        self.runtime = self.trial.runtime(self)
        self.mortal = Mortal[Any](self.runtime, self.death, self._opened)

    def _opened(self, runtime: RuntimeUnderTest) -> None:
        runtime.watch_steps(self._watch)
        runtime.stand_around(self._around)
        for spec in self.trial.team.learnt:
            runtime.learn(spec)

    async def live(self) -> Ending[Any] | None:
        """Go on with the run until it ends. None if the process dies before."""
        ending = await self.mortal.live(lambda _: self.trial.attend(self))
        if ending is None:
            await self._outlived()
        else:
            self.trial.team.learnt = self.runtime.learnt
        return ending

    async def _outlived(self) -> None:
        """What it had sent is carried out all the same."""
        await asyncio.sleep(0)
        if self._requests:
            await asyncio.wait(self._requests, timeout=ANSWER_SECONDS_MAX)
        for request in list(self._requests):
            request.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                while self._in_threads:
                    await asyncio.sleep(0.001)

    # ── moments ──────────────────────────────────────────────────────────────────────────────
    def reach(self, when: str, named: Sequence[Named], *, is_write: bool) -> bool:
        """Something is about to happen, or has. Raises Crash where the process is to die; True: it is to hang here."""
        names = list[str]()
        with self._lock:
            for moment in words.moments(when, named):
                self._reached[moment] += 1
                times = self._reached[moment]
                names.append(moment if times == 1 else f"{moment} ({times})")
        self.trial.moments.append(Reached(self.number, is_write, tuple(names), tuple(each.call for each in named)))
        if self._dies_at in names:
            raise self._die()
        return self._hangs_at in names

    def _die(self) -> Crash:
        self.trial.happened = True
        self.store.has_crashed = True
        return self.death.come()

    def hang(self) -> None:
        """Nothing of this process moves from here on, and others take it for dead."""
        self.trial.happened = True
        self.store.is_hung = self.clock.is_hung = True
        self.hung.come()

    async def thaw(self) -> None:
        """It goes on as if no time had passed: first with what it was in the middle of, then with what is overdue."""
        self._thread_is_thawed.set()
        self.is_thawed.set()
        await asyncio.sleep(0)
        await self._outlived()
        self.store.is_hung = False
        self.clock.thaw()
        await self.runtime.run_dry()

    # ── calls ────────────────────────────────────────────────────────────────────────────────
    def _watch(self, flight: Flight) -> None:
        """A body is about to begin: nothing may be recorded of what came of it."""
        rows: Sequence[Row] = self.store.inner.load(flight.live.rid).rows
        for row in rows:
            event = e.decode(row.envelope)
            if isinstance(event, e.StepCompleted | e.StepFailed) and event.key == flight.ask.key:
                told = words.readable(event.label, flight.live.run_id, self.root)
                self.trial.problem(f"{told} began again, although event {row.seq} has its outcome")

    def _around(self, flight: Flight, function: Function) -> Function:
        request = Request(self, flight, is_look_up=function is getattr(flight.ask.spec, "lookup", None))
        return request.around(function)

    def check_alive(self) -> None:
        """Nothing begins in a dead process."""
        if self.death.has_come:
            raise Crash

    async def outside(self, call: Awaitable[T]) -> T:
        """Something happens outside, whatever becomes of this process; what else cancels it is passed on."""
        task = asyncio.ensure_future(call)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not (self.death.has_come or self.hung.has_come or task.done()):
                task.cancel()
                await asyncio.wait([task])
            raise

    @contextlib.contextmanager
    def in_thread(self) -> Any:
        with self._lock:
            self._in_threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_threads -= 1

    async def stand_still(self) -> None:
        self.hang()
        await self.is_thawed.wait()

    def release(self) -> None:
        """The trial is over: whatever stood still in a thread ends."""
        self.death.has_come = True
        self._thread_is_thawed.set()

    def block(self) -> None:
        self._loop.call_soon_threadsafe(self.hang)
        self._thread_is_thawed.wait()
        self.check_alive()


class Request:
    """One call of what an author gave: of the body of a step or an effect, or of a look-up."""

    def __init__(self, process: Process, flight: Flight, *, is_look_up: bool) -> None:
        self._process, self._flight, self._is_look_up = process, flight, is_look_up
        self.call = words.readable(flight.ask.label, flight.live.run_id, process.root)
        self.is_effect = isinstance(flight.ask.spec, EffectSpec)
        self.number = flight.number
        self.named = [self._words()]

    def _words(self) -> Named:
        if self._is_look_up:
            return words.look_up(self.call)
        return words.execute(self.call, self.number) if self.is_effect else words.body(self.call)

    @property
    def spec(self) -> EffectSpec:
        spec = self._flight.ask.spec
        if not isinstance(spec, EffectSpec):
            raise AssertionError(f"{self.call} is no effect")
        return spec

    @property
    def function_name(self) -> str:
        """Where what is called stands, as `perdure.api.source.Source` has it."""
        function = self._flight.ask.spec.function
        return f"{function.__module__}:{function.__qualname__}"

    @property
    def operation(self) -> str:
        return self._flight.operation_id() or ""

    @property
    def request_hash(self) -> str:
        flight = self._flight
        return flight.entry.request_hash.hex() if isinstance(flight, EffectFlight) else ""

    @property
    def reference(self) -> str | None:
        """What the body said the other side calls it."""
        flight = self._flight
        operation = flight.operations.get(self.number) if isinstance(flight, EffectFlight) else None
        return None if operation is None else operation.reference

    @property
    def is_straggler(self) -> bool:
        return self._process.hung.has_come

    async def look_up(self) -> Any:
        """Ask the other side, as a person does who wants to know. None if there is nobody to ask."""
        flight, lookup = self._flight, self.spec.lookup
        if lookup is None or not isinstance(flight, EffectFlight):
            return None
        ATTEMPT.set(flight)
        return await flight.performer.call(lookup, flight.operation_of(None, self.number))

    def result(self, value: Any) -> bytes | None:
        """The value as it would be recorded; None if it cannot be."""
        try:
            return self._flight.ask.spec.result.dumps(value)
        except Exception:  # the effect will be told so, and the trial sees what comes of that
            return None

    def around(self, function: Function) -> Function:
        """What is called in its place."""
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return await self._awaited(function, args, kwargs)

            return awaited

        def called(*args: Any, **kwargs: Any) -> Any:
            with self._process.in_thread():
                return self._called(function, args, kwargs)

        return called

    async def _awaited(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        process, unsure = self._process, self._unsure()
        process.check_alive()
        if process.reach("before", self.named, is_write=False):
            await process.stand_still()
        self._begins()
        try:
            return unsure or await process.outside(self._carried_out(function, args, kwargs))
        except asyncio.CancelledError:
            process.check_alive()
            raise
        finally:
            process.check_alive()
            if process.reach("after", self.named, is_write=False):
                await process.stand_still()

    async def _carried_out(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            value = await function(*args, **kwargs)
        except BaseException as error:
            self._raised(error)
            raise
        self._returned(value)
        return value

    def _called(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        process, unsure = self._process, self._unsure()
        process.check_alive()
        if process.reach("before", self.named, is_write=False):
            process.block()
        self._begins()
        try:
            value = unsure or function(*args, **kwargs)
        except BaseException as error:
            self._raised(error)
            raise
        else:
            self._returned(value)
            return value
        finally:
            process.check_alive()
            if process.reach("after", self.named, is_write=False):
                process.block()

    def _unsure(self) -> Unsure | None:
        return self._process.trial.unsure(self.call) if self._is_look_up else None

    def _begins(self) -> None:
        if not self._is_look_up:
            self._process.trial.begins(self)

    def _raised(self, error: BaseException) -> None:
        if not self._is_look_up:
            self._process.trial.raised(self, error)

    def _returned(self, value: Any) -> None:
        if not self._is_look_up:
            self._process.trial.returned(self, value)


__all__ = ["Process", "Request"]

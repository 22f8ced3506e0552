"""A Runtime for tests: everything in memory, a clock that skips what nobody wants to wait for, and distrust.

    async with RuntimeUnderTest() as runtime:
        run = await runtime.start(claims_agent.call("claim-42"))
        assert await run.result() == "refunded"         # three days of waiting pass at once

Workflow code is guarded, and after each turn it is replayed from its start: code that asks for something else then
parks the run as `diverged`. Before time is skipped, a run that waits leaves memory, and comes back from its history.
The pytest fixture `perdure_runtime` is one of these, open on the test's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Self, TypeVar, cast

from msgspec.structs import replace

from perdure.api.calls import Call
from perdure.api.endings import Endings
from perdure.api.run import Run
from perdure.api.runtime import Runtime
from perdure.audit.waits import waits
from perdure.clock import MICROSECONDS
from perdure.engine.calls import ChildAsk, ReceiveAsk, UnreadAsk
from perdure.gates.policy import Policy
from perdure.runtime.checked import drive_checked
from perdure.runtime.host import Host
from perdure.runtime.lease import Lease
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import Flight, Function
from perdure.specs import Budget, WorkflowSpec, seconds
from perdure.store.guarded import unguarded
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter, Status, Store, every_run
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore
from perdure.testing.replaying import difference

R = TypeVar("R")
T = TypeVar("T")

LEASE = timedelta(days=36_500)
SKIPPED_AT_ONCE_MAX = timedelta(days=3_660)
"""How much time may pass while one result is waited for: a run that goes on for ever has none."""

STANDSTILL_SECONDS_MAX = 10.0
"""How long (in real time) a result is waited for while nothing happens and no timer is armed."""

ROUNDS_UNTIL_DRY = 4

_on_one_clock: weakref.WeakKeyDictionary[FakeClock, list[RuntimeUnderTest]] = weakref.WeakKeyDictionary()
"""Those that are open. One that lets time pass lets it pass for the others, too."""


def _waits_for_others(host: Host) -> bool:
    """Whether something is under way that does not get on by itself on this loop: bodies of steps, threads."""
    return bool(host.turns.performer.running) or any(live.has_sections for live in host.turns.live.values())


class StillLease(Lease):
    """A lease that nobody has to keep: there is no thread."""

    def _begin(self) -> None:
        pass

    def close(self) -> None:
        pass


class SkippingEndings(Endings):
    """Whoever waits for a run lets time pass."""

    passing: Callable[[], contextlib.AbstractAsyncContextManager[None]]

    async def wait(self, *arguments: Any, **options: Any) -> Any:
        async with self.passing():
            return await super().wait(*arguments, **options)


class RuntimeUnderTest(Runtime):
    """See above. `store`: by default a new MemoryStore. `clock`: by default a new FakeClock; the store has to share it.
    `guard=False` lets workflow code reach for the outside world, `replays=False` leaves out the replay of each turn."""

    __test__ = False
    clock: FakeClock

    def __init__(
        self,
        store: Store | None = None,
        *,
        clock: FakeClock | None = None,
        workflows: Iterable[Any] = (),
        provide: Mapping[type, Any] | None = None,
        authority: Any = None,
        on_inbox: Any = None,
        inbox_webhook: Any = None,
        policy: Policy | None = None,
        budgets: Iterable[Budget] = (),
        prices: str | os.PathLike[str] | None = None,
        secrets: Iterable[Any] = (),
        scrub: Iterable[Any] | Mapping[str, Any] | None = None,
        guard: bool = True,
        replays: bool = True,
    ) -> None:
        self.clock = clock or FakeClock()
        super().__init__(
            store or MemoryStore(self.clock), workflows=workflows, provide=provide, clock=self.clock, lease=LEASE,
            authority=authority, on_inbox=on_inbox, inbox_webhook=inbox_webhook, policy=policy, budgets=budgets,
            prices=prices, secrets=secrets, scrub=scrub,
        )  # fmt: skip
        self._options = replace(self._options, drive=self._drive, lease=StillLease, compare_all_inputs=True)
        self._guards, self._replays = guard, replays
        self._waiters: list[asyncio.Task[Any]] = []
        self._skipping: asyncio.Future[None] | None = None
        self._problem: BaseException | None = None

    # ── what tests call ──────────────────────────────────────────────────────────────────────
    async def start(self, call: Call[R], **options: Any) -> Run[R]:
        """As `Runtime.start`; the workflow needs not be registered."""
        spec = call.of.spec
        if isinstance(spec, WorkflowSpec):
            self.learn(spec)
        return await super().start(call, **options)

    def provide(self, kind: type[T], client: T) -> None:
        """What `perdure.use(kind)` gives to steps from now on."""
        cast("dict[type, Any]", self._options.provided)[kind] = client

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        _on_one_clock.setdefault(self.clock, []).append(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leave_the_clock()
        await super().__aexit__(*error)

    def _leave_the_clock(self) -> None:
        with contextlib.suppress(ValueError):
            _on_one_clock.get(self.clock, []).remove(self)

    async def run_dry(self) -> None:
        """Let everything happen that needs no time to pass, here and in others on this clock."""
        rounds = 0
        while rounds < ROUNDS_UNTIL_DRY:
            hosts = [self._host, *(other._host for other in _on_one_clock.get(self.clock, ()) if other is not self)]
            rounds = rounds + 1 if all(host.is_still for host in hosts) else 0
            await asyncio.sleep(0 if rounds or not any(map(_waits_for_others, hosts)) else 0.0005)

    async def advance(self, duration: timedelta | float) -> None:
        """Let a time pass, and everything happen in it: timer by timer, each run as far as it gets."""
        until = self.clock.now() + round(seconds(duration, what="duration") * MICROSECONDS)
        await self.run_dry()
        while (due := self.clock.next_alarm_at()) is not None and due <= until:
            self.clock.advance_to_next()
            await self.run_dry()
        self.clock.advance_to(until)
        await self.run_dry()

    def learn(self, spec: WorkflowSpec) -> None:
        """Execute this workflow, too. Whatever is started here, or asked for by a workflow, is learnt by itself."""
        if self._catalog.get(spec.key) is not spec:
            self._workflows[spec.key] = self._catalog[spec.key] = spec
            self._host.learn(spec)

    @property
    def learnt(self) -> list[WorkflowSpec]:
        """The workflows that are executed here."""
        return list(self._workflows.values())

    def watch_steps(self, watch: Callable[[Flight], None]) -> None:
        """Have `watch` called whenever the body of a step is about to begin."""
        self._host.turns.performer.on_launch = watch

    def stand_around(self, around: Callable[[Flight, Function], Function]) -> None:
        """Have what `around` gives called in place of each function that an author gave: bodies of steps and effects,
        look-ups."""
        self._host.turns.performer.around = around

    @property
    def worker(self) -> str:
        """The name under which this runtime has entered its store."""
        return self._host.worker

    def awaited_messages(self) -> list[tuple[str, str, int | None]]:
        """Which run waits for which message, and until when (microseconds since the epoch)."""
        found: dict[tuple[str, str], int | None] = {}
        for live in self._host.turns.live.values():
            for ask in live.execution.open.values():
                if isinstance(ask, ReceiveAsk) and not isinstance(ask, UnreadAsk):
                    found[live.run_id, ask.message] = live.execution.deadline()
        for info in every_run(self._store, Filter(status=frozenset({Status.WAITING}))):
            for wait in waits(self._store, info):
                if wait.message:
                    found.setdefault((info.run_id, wait.message), info.due_at)
        return [(*which, until) for which, until in found.items()]

    async def die(self) -> None:
        """Stop as if the process had been killed: nothing is written or given back, and others see the proof of it.
        What a live process cannot be spared: step bodies under way see a CancelledError."""
        self._leave_the_clock()
        host, self._host_open = self._host, None
        self._endings.close()
        if self._announcer is not None:
            self._announcer.stop()
            self._announcer = None
        await host.abandon()
        if self._vault is not None:  # what it knew of secrets has died with it
            self._vault.close()
        store = unguarded(self._store)
        if isinstance(store, MemoryStore | CrashingStore):
            store.kill(host.worker)

    async def on_still(self) -> bool:
        """Asked when nothing happens any more, before time is skipped. True: something happens again, look anew."""
        return False

    # ── turns ────────────────────────────────────────────────────────────────────────────────
    def _drive(self, live: LiveRun, turn: Callable[[], None]) -> None:
        if self._guards:
            drive_checked(live, turn)
        else:
            turn()
        for command in live.execution.commands:
            if isinstance(command, ChildAsk):
                self.learn(command.spec)
        if self._replays and (told := self.replayed(live)) is not None:
            live.execution.fail(
                "diverged",
                f"replayed from its start, the workflow does not do the same again. {told}. It may depend on something "
                "that is not recorded: a global, the clock, an order that varies.",
            )

    def replayed(self, live: LiveRun) -> str | None:
        """Replay a run as it stands after a turn; what is different then, or None."""
        return difference(live, self._store)

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def _make_endings(self, store: Store) -> Endings:
        endings = SkippingEndings(store, polls=False)
        endings.passing = self._letting_time_pass
        return endings

    @contextlib.asynccontextmanager
    async def _letting_time_pass(self) -> AsyncGenerator[None, None]:
        """Skip time while somebody waits in here, whenever nothing else happens; they are told what goes wrong."""
        waiter = asyncio.current_task()
        if self._skipping is None or self._skipping.done():
            self._skipping, self._problem = asyncio.ensure_future(self._skip()), None
            self._skipping.add_done_callback(self._skipping_ended)
        if waiter is not None:
            self._waiters.append(waiter)
        try:
            yield
        except asyncio.CancelledError:
            if self._problem is None or waiter is None:
                raise
            waiter.uncancel()
            raise self._problem from None
        finally:
            if waiter is not None:
                self._waiters.remove(waiter)
            if not self._waiters:
                self._skipping.cancel()
                self._skipping = None  # whoever waits next, in this moment even, has time skipped again

    def _skipping_ended(self, skipping: asyncio.Future[None]) -> None:
        if not skipping.cancelled() and (problem := skipping.exception()) is not None:
            self._problem = problem
            for waiter in self._waiters:
                waiter.cancel()

    async def _skip(self) -> None:
        began, loop = self.clock.now(), asyncio.get_running_loop()
        moved_at = loop.time()
        while True:
            await self.run_dry()
            self._host.release_idle()
            await self.run_dry()
            if await self.on_still() or self.clock.advance_to_next():
                moved_at = loop.time()
            elif loop.time() - moved_at > STANDSTILL_SECONDS_MAX:
                raise AssertionError(f"nothing happens any more, and no timer is armed: {self._standing()}")
            else:
                await asyncio.sleep(0.001)
            if self.clock.now() - began > SKIPPED_AT_ONCE_MAX / timedelta(microseconds=1):
                raise AssertionError(f"{SKIPPED_AT_ONCE_MAX.days} days passed without a result: {self._standing()}")

    def _standing(self) -> str:
        runs = [info for info in self._store.runs(Filter(limit=20)) if not info.status.is_final]
        told = [f"run {info.run_id} is {info.status}" + (f" ({info.reason})" if info.reason else "") for info in runs]
        return ", ".join(told) or "no run is left"

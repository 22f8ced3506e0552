"""A worker: takes runs from the store, keeps them in memory while there is something to do, lets go of them.

Nobody calls resume. Whatever is due and not owned by a living worker is claimed, by this worker or by another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from perdure.clock import MICROSECONDS, Alarm, Clock
from perdure.engine import exact
from perdure.engine.here import HERE
from perdure.errors import StoreBusyError, StoreError
from perdure.runtime.blocking import body_on
from perdure.runtime.lease import Lease
from perdure.runtime.live import LiveRun
from perdure.runtime.options import Options, catalog_of
from perdure.runtime.relay import Relay
from perdure.runtime.silence import Silence
from perdure.runtime.turn import Turns
from perdure.runtime.writer import Writer
from perdure.specs import WorkflowSpec
from perdure.store.protocol import UNFINISHED, Filter, NewRun, RunInfo, Store, every_run

log = logging.getLogger("perdure")

T = TypeVar("T")

POLL_SECONDS = 0.04
POLLS_BETWEEN_FULL_LOOKS = 25
CLAIMS_AT_ONCE_MAX = 100
SILENCE_AFTER_LEASE_SECONDS = 0.5
OWN_BEFORE_SWEEP = 100
SHUTDOWN_SECONDS_MAX = 1.5
LOOK_SECONDS = 0.005
NAMED_MAX = 10


class Idle(Protocol):
    """Something that works beside the runs, now and then."""

    @property
    def is_idle(self) -> bool: ...


class Host:
    """One worker in one process, on the loop that it was opened on."""

    def __init__(
        self, store: Store, clock: Clock, workflows: Mapping[tuple[str, int], WorkflowSpec], options: Options
    ) -> None:
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.store = store
        self.clock = clock
        self.options = options
        self.catalog = catalog_of(workflows)
        self.known = frozenset(self.catalog)
        self.own: set[str] = set()
        self._own_max = OWN_BEFORE_SWEEP
        self._loop = asyncio.get_running_loop()
        self._kick_is_scheduled = False
        self._alarm: Alarm | None = None
        self._poll_handle: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.grace_until: float | None = None
        self._polls = 0
        self.on_change: Callable[[], None] = lambda: None
        self._failing: set[Callable[[], None]] = set()
        self._busy: set[Callable[[], None]] = set()
        self._silent_since: dict[str, float] = {}
        self._is_unsure = False
        self._has_given_back = False
        self._enter()
        exact.install()
        self._is_exact = True
        self.writer = Writer(store, stopwatch=options.stopwatch)
        self.turns = Turns(
            self.worker, store, clock, self.writer, self.catalog, steps_max=options.steps_max,
            threads_max=options.threads_max, provided=options.provided, spending=options.spending,
            compare_all_inputs=options.compare_all_inputs,
            guard=options.drive or (_guard() if options.guard else None), stopwatch=options.stopwatch,
            authority=options.authority, policy=options.policy,
        )  # fmt: skip
        if options.paused:
            self.turns.pauses_from = clock.now()
        self.silence = Silence(self.turns)
        self.turns.performer.vault = options.vault
        self.turns.on_letters = self.kick
        self.turns.on_trouble = self.be_unsure
        if options.adopt != "all":
            self.turns.on_child = self._own_child
        make_lease: Callable[..., Lease] = options.lease or Lease
        self.lease = make_lease(
            self.worker, store, options.lease_seconds, driving=lambda: self.turns.driving,
            on_lost=lambda: self._loop.call_soon_threadsafe(self._lost_everything),
            body=lambda: body_on(self._loop, self.turns), now=clock.now,
            monotonic=options.stopwatch,
        )  # fmt: skip
        self.turns.performer.may_begin = self.lease.is_valid
        self.relay = Relay(store, clock, self.worker, options.outbox, self.turns.performer)
        self.turns.on_posts = self.relay.look
        self.announcer: Idle | None = None
        self._loop.call_soon(self._poll)

    # ── taking runs ──────────────────────────────────────────────────────────────────────────
    def kick(self) -> None:
        """Look for work when the loop comes round."""
        if not self._kick_is_scheduled and not self._is_closed:
            self._kick_is_scheduled = True
            self._loop.call_soon(self._look)

    def own_family(self, run_id: str) -> None:
        """Continue this run, and the runs below it: a parked parent would not be loaded to name its children."""
        self.own.add(run_id)
        for child in list(every_run(self.store, Filter(parent_run_id=run_id, status=UNFINISHED))):
            if child.run_id not in self.own:
                self.own_family(child.run_id)
        self.kick()

    def _own_child(self, run_id: str) -> None:
        """Whose run is continued here, its children are; one may be due that was nobody's until now."""
        if run_id not in self.own:
            self.own.add(run_id)
            self.kick()

    def _look(self) -> None:
        self._kick_is_scheduled = False
        if not self._is_closed:
            self._guarded(self._claim)

    def _guarded(self, action: Callable[[], None]) -> None:
        """A store that is away for a while stops nobody, and neither does a bug: the next poll tries again. Where
        others were waited for in vain (one of them may hang in the middle of a write), it does once nobody has to be:
        the program's own loop stands still meanwhile."""
        try:
            if action in self._busy and not self.store.is_free():
                return self.be_unsure()
            self._busy.discard(action)
            action()
        except StoreError as error:
            if action not in self._failing:
                log.warning("the store cannot be read, trying on: %s", error)
            self._failing.add(action)
            self.be_unsure()
            if isinstance(error, StoreBusyError):
                self._busy.add(action)
        except Exception:
            if action not in self._failing:
                log.exception("worker %s: %s failed, trying on", self.worker, action.__name__)
            self._failing.add(action)
            self.be_unsure()
        else:
            self._failing.discard(action)

    def be_unsure(self) -> None:
        """Something did not go through, or its answer was lost. This worker may own runs that it does not hold (a
        claim, a child just started), and news may have passed it by: see to both at the next poll."""
        self._is_unsure = True

    def _make_sure(self) -> None:
        held = {live.rid: live.epoch for live in self.turns.live.values()}
        if freed := self.store.give_back(self.worker, but=held):
            self._has_given_back = True
            log.info("%d run(s) that this worker had lost track of are free", freed)
        self._is_unsure = False
        self.kick()

    def _room(self) -> int:
        """How many more runs may come into memory. When it is full, hosted code that only waits does not count: it
        cannot leave, and what it waits for may be a run that has to come in."""
        room = self.options.runs_max - len(self.turns.live)
        return room if room > 0 else room + sum(map(self.turns.parking.is_kept_by_a_wait, self.turns.live.values()))

    def _claim(self) -> None:
        room = min(CLAIMS_AT_ONCE_MAX, self._room())
        claims = []
        if room > 0 and not self.turns.is_stopping:
            claims = self.store.claim(
                self.worker, now=self.clock.now(), limit=room, known=self.known, only=self._only()
            )
        for claim in claims:
            self.turns.admit(claim)
        self.turns.take_mail(self.store.mail(owner=self.worker))
        if claims:
            self.kick()
        self._set_alarm()

    def _only(self) -> frozenset[str] | None:
        """The ids of the runs that are continued here; None for all. Those that have ended are forgotten when as many
        again have come."""
        if self.options.adopt == "all":
            return None
        if len(self.own) >= self._own_max:
            found = [self.store.find(run_id) for run_id in self.own]
            self.own = {info.run_id for info in found if info is not None and not info.status.is_final}
            self._own_max = max(OWN_BEFORE_SWEEP, 2 * len(self.own))
        return frozenset(self.own)

    def _set_alarm(self) -> None:
        due = self.store.next_due(known=self.known, only=self._only())
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due is not None and not self.turns.is_stopping and self._room() > 0:
            soonest = self.clock.now() + round(POLL_SECONDS * MICROSECONDS)
            self._alarm = self.clock.wake_at(max(due, soonest) if due <= self.clock.now() else due, self.kick)

    def _poll(self) -> None:
        if self._is_closed:
            return
        self._poll_handle = self._loop.call_later(POLL_SECONDS, self._poll)  # first: whatever fails below
        self.lease.saw_loop()
        self._guarded(self._poll_store)
        self._guarded(self.turns.flush_lazy)
        self._guarded(self._evict_idle)

    def _poll_store(self) -> None:
        if self._is_unsure:
            self._make_sure()
        lost = self._surely_lost()
        for worker, proven in lost:
            freed = self.store.take_over(worker, proven=proven, retry_after=self.options.retry_after_death_seconds)
            log.info("worker %s is %s: %d run(s) free", worker, "dead" if proven else "silent", freed)
        is_news = self.store.changed()
        if lost or is_news:
            self.kick()
        self._polls += 1
        if is_news or self._polls % POLLS_BETWEEN_FULL_LOOKS == 0:
            self.on_change()
        if self._polls % POLLS_BETWEEN_FULL_LOOKS == 0:
            self.silence.look()

    def _surely_lost(self) -> list[tuple[str, bool]]:
        """Workers that are dead, and those that stay silent although they had time to speak up: when the machine has
        slept, every lease has run out."""
        lost, now = self.store.lost(self.worker), self.options.stopwatch()
        self._silent_since = {worker: self._silent_since.get(worker, now) for worker, proven in lost if not proven}
        return [
            (worker, proven)
            for worker, proven in lost
            if proven or now - self._silent_since[worker] >= SILENCE_AFTER_LEASE_SECONDS
        ]

    def _lost_everything(self) -> None:
        """Somebody declared this worker dead (its lease had run out): what it held belongs to others now."""
        if self._is_closed:
            return
        log.warning(
            "worker %s was declared dead by another one; its %d run(s) are dropped", self.worker, len(self.turns.live)
        )
        self._has_given_back = True
        for live in list(self.turns.live.values()):
            self.turns.forget(live)
        self._guarded(self._enter)
        self.kick()

    def _enter(self) -> None:
        names = sorted(f"{name}/{version}" for name, version in self.known)
        self.store.enter(self.worker, lease_seconds=self.options.lease_seconds, workflows=names)

    def take_new(self, info: RunInfo, new: NewRun, raw: bytes) -> None:
        """Go on at once with a run that was created here, for this worker. It may have been given back between its
        commit and now: then it is whoever's claims it."""
        if self._is_closed or info.rid in self.turns.live:
            return
        if self._has_given_back and not self._is_ours(info):
            self.be_unsure()
            self.kick()
        else:
            self.turns.admit_new(info, new, raw)

    def _is_ours(self, info: RunInfo) -> bool:
        """Asked on the loop, on which alone runs are given back: what it says holds until the loop comes round."""
        try:
            now = self.store.find(info.run_id)
        except StoreError:
            return False
        return now is not None and (now.rid, now.owner, now.epoch) == (info.rid, self.worker, info.epoch)

    # ── letting go ───────────────────────────────────────────────────────────────────────────
    def _evict_idle(self) -> None:
        now = self.clock.now()
        patience = round(self.options.evict_after_seconds * MICROSECONDS)
        if len(self.turns.live) >= self.options.runs_max:
            patience = 0  # what only waits makes room for what is due
        for live in list(self.turns.live.values()):
            attempt_at = self.turns.parking.next_attempt_of_suspect(live)
            if attempt_at is None and not self.turns.parking.may_leave(live):
                live.idle_since = None
            elif live.idle_since is None:
                live.idle_since = now
            elif now - live.idle_since >= patience and all(
                at is None or at - now > patience for at in (live.alarm_at, attempt_at)
            ):
                self.turns.parking.release(live)

    def release_idle(self) -> None:
        """Let every run leave memory that only waits."""
        for live in list(self.turns.live.values()):
            if self.turns.parking.is_kept_by_a_wait(live):
                self.turns.sections.give_back(live)
            if self.turns.parking.may_leave(live):
                self.turns.parking.release(live)

    @property
    def is_still(self) -> bool:
        """Whether nothing happens until time passes or something comes from outside."""
        turns = self.turns
        is_idle = self.writer.is_idle and not self._kick_is_scheduled and not turns.performer.running
        return is_idle and self._beside_is_idle and all(map(turns.parking.is_still, turns.live.values()))

    @property
    def _beside_is_idle(self) -> bool:
        """Whether what works beside the runs has nothing to do just now."""
        return self.relay.is_idle and (self.announcer is None or self.announcer.is_idle)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way: what is left only waits."""
        return (
            self.writer.is_idle
            and self._beside_is_idle
            and not self._kick_is_scheduled
            and all(map(self._only_waits, self.turns.live.values()))
        )

    @property
    def is_kept_by_waits(self) -> bool:
        """Whether all runs in memory are there for hosted code that waits and cannot be given back: several threads or
        tasks of it do."""
        parking, lives = self.turns.parking, self.turns.live.values()
        kept = all(parking.is_kept_by_a_wait(live) and not parking.may_leave(live) for live in lives)
        return bool(lives) and kept and self.is_quiet

    def _only_waits(self, live: LiveRun) -> bool:
        return self.turns.parking.may_leave(live) or self.turns.parking.is_kept_by_a_wait(live)

    async def close(self) -> list[str]:
        """Stop: started effects are seen through, plain steps under way are cancelled (they run again elsewhere), what
        came in is written, every run is free for others. Returns the ids of the runs that are not finished.

        Cancelled while it waits for effects, it waits no longer, and does the rest, however often it is cancelled: a
        worker that was left half way would keep its lease, and so its runs from everybody else."""
        if self._is_closed:  # abandoned
            return []
        self.turns.is_stopping = True
        try:
            await self._see_effects_through()
        except GeneratorExit:  # the loop is gone, and everything with it
            raise
        except BaseException:
            await done_in_spite(self._close())
            raise
        return await done_in_spite(self._close())

    async def _see_effects_through(self) -> None:
        """An answer that is recorded is a doubt less."""
        until = time.monotonic() + self.options.grace_seconds
        if self.turns.effects.under_way:
            log.warning(
                "leaving waits up to %g s for what is being sent: %s", self.options.grace_seconds, self._being_sent()
            )
        try:
            while self.turns.effects.under_way and time.monotonic() < until:
                self.grace_until = until
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.grace_until = None
        if self.turns.effects.under_way:
            log.error("leaving, although this may be happening: %s; whoever goes on finds out", self._being_sent())

    def _being_sent(self) -> str:
        flights = self.turns.effects.under_way
        shown = [f"{flight.ask.label} of run {flight.live.run_id}" for flight in flights[:NAMED_MAX]]
        return ", ".join(shown) + (f" and {len(flights) - NAMED_MAX} more" if len(flights) > NAMED_MAX else "")

    async def _close(self) -> list[str]:
        unfinished = sorted(live.run_id for live in self.turns.live.values() if live.is_at_work)
        until = self._loop.time() + SHUTDOWN_SECONDS_MAX
        self.release_idle()
        while not self.writer.is_idle and self._loop.time() < until:
            await asyncio.sleep(0.001)
        await self._drop_everything()
        self._guarded(self._leave)
        self.give_up_exactness()
        return unfinished

    async def _drop_everything(self) -> None:
        self._is_closed = True
        for handle in (self._poll_handle, self._alarm):
            if handle is not None:
                handle.cancel()
        await self.relay.close()
        self.turns.performer.close()
        for live in list(self.turns.live.values()):
            self.turns.forget(live)
        await asyncio.sleep(0)
        self.turns.close()
        self.lease.close()
        self.writer.close()

    def _leave(self) -> None:
        self.store.leave(self.worker)

    async def abandon(self) -> None:
        """Stop dead, as near as a live process comes to being killed: nothing is written, nothing given back. For
        tests."""
        self.turns.is_stopping = True
        await self._drop_everything()
        self.give_up_exactness()

    def give_up_exactness(self) -> None:
        """Once, although it may be abandoned while it leaves: others on this loop count on it."""
        if self._is_exact:
            self._is_exact = False
            exact.uninstall()

    def learn(self, spec: WorkflowSpec) -> None:
        """From now on take runs of this workflow, too."""
        self.catalog.update(catalog_of({spec.key: spec}))
        self.known = frozenset(self.catalog)
        self.kick()


async def done_in_spite(work: Coroutine[Any, Any, T]) -> T:
    """What this work comes to, whoever cancels us meanwhile: that goes on its way when it is done. A cancelled scope of
    anyio cancels again at every `await`."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def _guard() -> Any:
    from perdure.runtime.checked import drive_checked

    return drive_checked


def _in_no_run() -> None:
    HERE.loop = None


os.register_at_fork(after_in_child=_in_no_run)  # as for asyncio: where code forks, the child is on no loop

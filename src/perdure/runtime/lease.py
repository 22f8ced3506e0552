"""Keeps the worker's lease alive from a thread of its own, and watches the loop that turns are driven on.

A blocked loop (a long turn, a blocking call in the program) does not cost the lease for LOOP_BLOCKED_SECONDS_MAX; then
the run whose turn is open is parked as `stuck_turn`, under its epoch, so that no other worker hangs on it too, and the
lease is let go until the loop comes round again: others go on with everything else. A body that blocks the loop has as
long as it may take by its own declaration, for its timeout cannot fire; meanwhile the log says where it hangs. A turn
that hangs in a thread of its own blocks no loop: its run is parked, the lease is kept.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from perdure.errors import StoreError
from perdure.history import events as e
from perdure.history.chain import link
from perdure.runtime.blocking import Body
from perdure.runtime.live import LiveRun, OpenTurn
from perdure.store.protocol import Append, Change, Done, Moved, Outcome, Row, Status, Store, Wakes

log = logging.getLogger("perdure")

TURN_LOGGED_SECONDS = 2.0
LOOP_BLOCKED_SECONDS_MAX = 30.0
TRIES_TO_PARK = 5


class Lease:
    """One worker's lease, renewed every third of its length."""

    def __init__(
        self,
        worker: str,
        store: Store,
        lease_seconds: float,
        *,
        driving: Callable[[], OpenTurn | None],
        on_lost: Callable[[], object],
        body: Callable[[], Body | None],
        now: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._store = store
        self._seconds = lease_seconds
        self._driving = driving
        self._on_lost = on_lost
        self._body = body
        self._now = now
        self._monotonic = monotonic
        self._logged: float | None = None
        self._parked: tuple[int, float] | None = None
        self._told: float | None = None
        self.pause_seconds = min(1.0, lease_seconds / 3)
        self.loop_seen = self._renewed = monotonic()
        self.valid_until = monotonic() + lease_seconds
        self._loop_thread = threading.get_ident()
        self._begin()

    def _begin(self) -> None:
        """Have `tick` called every `pause_seconds`, until it says no or `close` is called."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="perdure-lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2)

    def _keep(self) -> None:
        while not self._stop.wait(self.seconds_to_next_look()):
            try:
                if not self.tick():
                    return
            except Exception:  # a lease that nobody renews costs everything that this worker holds
                log.exception("worker %s: its lease was not seen to, trying on", self._worker)

    def seconds_to_next_look(self) -> float:
        """No later than when the turn that is open now is to be logged: it may be over soon after."""
        turn = self._driving()
        if turn is None or turn.since == self._logged:
            return self.pause_seconds
        return min(self.pause_seconds, max(0.0, turn.since + TURN_LOGGED_SECONDS - self._monotonic()))

    def tick(self) -> bool:
        """Look at the turn and at the loop, renew if it is time. False: not to be called any more."""
        self._watch_turn()
        now = self._monotonic()
        if self._is_stuck(now):
            return True
        if now - self._renewed >= self._seconds / 3:
            self._renewed = now
            self._renew(now)
        return True

    def _is_stuck(self, now: float) -> bool:
        """Whether the loop is blocked for too long; a run that hangs in its turn is parked, once."""
        turn = self._driving()
        is_blocked = now - self.loop_seen > LOOP_BLOCKED_SECONDS_MAX
        if turn is None:
            return is_blocked and self._is_hanging(now)
        if now - turn.since > LOOP_BLOCKED_SECONDS_MAX:
            self._park_once(turn.live, turn.since, "its turn", LOOP_BLOCKED_SECONDS_MAX, "the workflow's code")
        return is_blocked

    def _is_hanging(self, now: float) -> bool:
        """No turn is open: whether what blocks the loop instead has had its time. The program's own code has had it: on
        that nobody else would hang."""
        self._tell_of_block()
        body = self._body()
        if body is None:
            return True
        if now - self.loop_seen <= body.seconds_max:
            return False
        self._park_once(body.live, self.loop_seen, body.label, body.seconds_max, "its code, on the event loop,")
        return True

    def _tell_of_block(self) -> None:
        if self._told != self.loop_seen:
            self._told = self.loop_seen
            log.warning(
                "the event loop is blocked for %g s, and no step or run on it gets on:\n%s",
                LOOP_BLOCKED_SECONDS_MAX, _stack_of(self._loop_thread),
            )  # fmt: skip

    def _park_once(self, live: LiveRun, since: float, what: str, seconds: float, whose: str) -> None:
        if self._parked != (live.rid, since):
            self._parked = (live.rid, since)
            self._park(live, f"{what} did not come back within {seconds:g} s: {whose} blocks or spins")

    def is_valid(self) -> bool:
        """Whether nobody can have taken this worker for dead. Asked right before something is begun."""
        return self._monotonic() < self.valid_until

    def saw_loop(self) -> None:
        """The loop that turns are driven on comes round."""
        self.loop_seen = self._monotonic()

    def _renew(self, asked_at: float) -> None:
        """The lease counts from before the request, by our own clock."""
        try:
            if self._store.renew(self._worker, lease_seconds=self._seconds):
                self.valid_until = asked_at + self._seconds
            else:
                self._on_lost()
        except StoreError as error:
            log.warning("the lease could not be renewed, trying on: %s", error)

    def _watch_turn(self) -> None:
        turn = self._driving()
        if turn is None or turn.since == self._logged or self._monotonic() - turn.since < TURN_LOGGED_SECONDS:
            return
        self._logged = turn.since
        log.warning(
            "a turn of run %s takes longer than %g s:\n%s",
            turn.live.run_id, TURN_LOGGED_SECONDS, _stack_of(turn.thread),
        )  # fmt: skip

    def _park(self, live: LiveRun, hint: str) -> None:
        """Park the run that hangs, so that no other worker hangs on it too."""
        envelope = e.encode(e.RunBlocked("stuck_turn", hint))
        change = Change(status=Status.BLOCKED, reason="stuck_turn", hint=hint, release=True, wakes=Wakes.CONTROL)
        outcome: Outcome | StoreError | None = None
        try:
            for _ in range(TRIES_TO_PARK):  # an append that was under way may have come first
                last = self._store.last_row(live.rid)
                length, at = last.seq + 1, max(self._now(), last.at)
                row = Row(length, at, "run.blocked", envelope, None, None, link(last.hash, length, at, envelope))
                (outcome,) = self._store.commit(
                    [Append(os.urandom(16), live.rid, live.epoch, length, (row,), change=change)]
                )
                if not isinstance(outcome, Moved):
                    break
        except StoreError as error:
            outcome = error
        if isinstance(outcome, Done):
            log.error("run %s hangs and is parked as stuck_turn: %s", live.run_id, hint)
        else:
            log.error("run %s hangs and could not be parked: %s", live.run_id, outcome)


def _stack_of(thread: int) -> str:
    """What a thread is doing."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    return "".join(traceback.format_stack(frame)) if frame is not None else "no stack"

"""Has a run in memory been silent for longer than its own limits allow?

Every attempt ends within its timeout, every wait for the next one at a known time, and what an attempt came to is an
event. So a run at work whose newest event is older than all of these is stuck in a way that nobody foresaw: hosted code
that does not come back, mostly. The worker that has it is the only one who knows these limits; it says so in a note
beside the run, which counts for as long as the run stands where it stood.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from perdure.clock import MICROSECONDS
from perdure.specs import DEFAULT_TIMEOUT_SECONDS
from perdure.store.protocol import Note

if TYPE_CHECKING:
    from perdure.runtime.live import LiveRun
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

NOTE_KIND = "silent"
GRACE_SECONDS = 60.0
CODE_SECONDS = DEFAULT_TIMEOUT_SECONDS
"""How long code without a limit of its own may be at work between two events: as long as an attempt."""


class Silent(msgspec.Struct, frozen=True):
    """Since when a run has been silent, and what of it is under way. It counts while the run has this length and
    epoch."""

    rid: int
    epoch: int
    length: int
    since: int
    calls: tuple[str, ...]


class Silence:
    """Watches the runs that this worker holds."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._noted: dict[int, int] = {}

    def look(self) -> None:
        """Note which runs have become silent since the last look."""
        now, turns = self._turns.clock.now(), self._turns
        for live in turns.live.values():
            if now - live.last_at < GRACE_SECONDS * MICROSECONDS or self._noted.get(live.rid) == live.length:
                continue
            until = None if self._is_waiting(live) else allowed_until(turns, live)
            if until is not None and now >= until:
                self._note(live, now)
        if len(self._noted) > len(turns.live):
            self._noted = {rid: length for rid, length in self._noted.items() if rid in turns.live}

    def _is_waiting(self, live: LiveRun) -> bool:
        """Whether it is not at work at all: nobody's limits are running."""
        parking = self._turns.parking
        return live.is_parked or live.is_leaving or parking.may_leave(live) or parking.is_kept_by_a_wait(live)

    def _note(self, live: LiveRun, now: int) -> None:
        calls = tuple(flight.ask.label for flight in live.flights.values())
        silent = Silent(live.rid, live.epoch, live.length, live.last_at, calls)
        self._turns.store.keep(Note(NOTE_KIND, live.run_id, msgspec.json.encode(silent), now))
        self._noted[live.rid] = live.length
        log.warning("run %s has been silent for longer than its limits allow (%s)", live.run_id, ", ".join(calls))


def allowed_until(turns: Turns, live: LiveRun) -> int | None:
    """Until when the run may be silent, in microseconds since the epoch; None while one of its steps waits for its next
    attempt, or for room."""
    if any(flight.task is None for flight in live.flights.values()):
        return None
    until = [flight.deadline for flight in live.flights.values()]
    if live.is_in_turn or not live.flights or turns.sections.is_busy(live):
        until.append(live.last_at + round(CODE_SECONDS * MICROSECONDS))
    return max(until) + round(GRACE_SECONDS * MICROSECONDS)


decode = msgspec.json.Decoder(Silent).decode

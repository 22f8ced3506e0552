"""In which order hosted coroutines, run again, hear of what is recorded: as it happened.

Whoever was first is first again: code that goes on with the first answer of several, or gives the others up, goes the
same way. After each answer that others wait behind, the code gets some turns of the loop to make something of it.
Threads come to their calls in no order, and hear at once; so does code that was cancelled and takes back what it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.engine.calls import Key
from perdure.history import events as e
from perdure.runtime.hosted.records import Record
from perdure.runtime.hosted.request import Request

if TYPE_CHECKING:
    from perdure.runtime.hosted.journal import Journal

Telling = tuple[Request, e.Keyed, int, "bytes | None"]
"""Whom to tell of what, which happened when, with which payload."""

TURNS_TO_REACT = 20
"""So many turns of the loop it takes until whoever waits for tasks that wait for others has made the next call."""


class Order:
    """What is recorded and has not been told yet, and who waits to be told: an outcome, or that a time is up."""

    def __init__(self, journal: Journal, records: Sequence[Record]) -> None:
        self._journal = journal
        outcomes = sorted((r for r in records if r.outcome is not None), key=lambda record: record.place)
        self._to_come = {record.key: record.at for record in outcomes}
        self._waiting: dict[Key, Telling] = {}
        self._asleep: dict[Key, Request] = {}
        self._woken: list[Request] = []
        self._turns_left = 0
        self._is_counting = False
        if records:
            self._count_turns()

    def __bool__(self) -> bool:
        asked = self._journal.requests
        return bool(self._waiting) or any(asked.get(sleeper.key) is sleeper for sleeper in self._woken)

    def expect(self, key: Key, at: int) -> None:
        """Something has happened that nobody has asked for yet."""
        self._to_come.setdefault(key, at)

    def tell(self, request: Request, event: e.Keyed, at: int, raw: bytes | None) -> None:
        """What came of a request is known: tell it when its turn comes."""
        if not request.is_here or self._journal.cancelled is not None:
            self.leave_out(request.key)
            self._journal.answer(request, event, at, raw)
            return
        self._to_come.setdefault(request.key, at)
        self._waiting[request.key] = (request, event, at, raw)
        self.go_on()

    def sleeps(self, request: Request) -> None:
        """It is known until when this one sleeps, or waits for a message at most."""
        if request.is_here:
            self._asleep[request.key] = request

    def wake(self, request: Request) -> None:
        """Its time is up: not before what happened earlier."""
        self._woken.append(request)
        self.go_on()

    def leave_out(self, key: Key) -> None:
        """Nobody is told of this one."""
        if self._to_come.pop(key, None) is not None:
            self.go_on()

    def let_go(self) -> list[Telling]:
        """All who wait to be told what; they wait here no longer."""
        waiting = [*self._waiting.values()]
        self._waiting, self._woken = {}, []
        return waiting

    def skip(self) -> None:
        """Nobody asks for what comes first, and everybody waits."""
        while self._to_come and (first := next(iter(self._to_come))) not in self._waiting:
            del self._to_come[first]
        self.go_on()

    def go_on(self) -> None:
        """Tell what is to be told next, if it is time for that."""
        while self and not self._is_counting:
            first = next(iter(self._to_come), None)
            now = self._journal.turns.clock.now()
            sleeper = self._first_sleeper(now if first is None else self._to_come[first])
            if sleeper is not None:
                is_about_to_wake = sleeper not in self._woken and (sleeper.deadline or 0) <= now
                if is_about_to_wake or self._is_more_coming():
                    return
                del self._asleep[sleeper.key]
                self._count_turns()
                self._journal.waits.has_slept(sleeper)
            elif first is None or first not in self._waiting:
                self._journal.look_later()
                return
            else:
                waiting = self._waiting.pop(first)
                del self._to_come[first]
                self._count_turns()
                self._journal.answer(*waiting)

    def _is_more_coming(self) -> bool:
        """Whether something is being written, or told to the workflow's code, that happened before a sleep was over,
        perhaps. It is told to hosted code next."""
        live = self._journal.live
        if live.is_in_turn:
            live.deferred += (self.go_on,)
        return live.is_in_turn or live.under_way is not None

    def _first_sleeper(self, by: int) -> Request | None:
        """Whose time was up first, of those who sleep still: by then, whatever this machine's clock says."""
        asked = self._journal.requests
        for key in [key for key, request in self._asleep.items() if asked.get(key) is not request]:
            del self._asleep[key]
        self._woken = [sleeper for sleeper in self._woken if sleeper.key in self._asleep]
        due = (each for each in self._asleep.values() if (each.deadline or 0) <= by and not each.is_reported)
        return min(due, key=lambda request: request.deadline or 0, default=None)

    def _count_turns(self) -> None:
        """Somebody is told, or is about to be the first: the next one waits. Code that is not run again, and of which
        nothing else waits, has nobody who would."""
        if self._to_come or self._journal.unused or len(self._journal.participants) > 1:
            self._is_counting, self._turns_left = True, TURNS_TO_REACT
            self._journal.loop.call_soon(self._pass_turn)

    def _pass_turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left:
            self._journal.loop.call_soon(self._pass_turn)
            return
        self._is_counting = False
        if not self._journal.is_over:
            self.go_on()

"""A process that performs something until that is over, or the process: what it leaves behind is another one's to go
on with.

It is a `RuntimeUnderTest` on a store that can fail; "dying" is `RuntimeUnderTest.die`: nothing more is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.testing.crashing import Crash
from perdure.testing.runtime import RuntimeUnderTest

T = TypeVar("T")

Scenario = Callable[[RuntimeUnderTest], Awaitable[T]]
"""What a client does. After a crash it does it again, with the runtime that recovers: so it starts runs by id."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of a scenario: it gave `result`, or raised `error`."""

    result: T | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        return repr(self.result) if self.error is None else repr(self.error)

    def is_same(self, other: Outcome[T]) -> bool:
        if self.error is None or other.error is None:
            return self.error is other.error and self.result == other.result
        return type(self.error) is type(other.error) and str(self.error) == str(other.error)


class Death:
    """The end of one process, wherever in it it comes: on its loop, or in a thread."""

    def __init__(self) -> None:
        self.has_come = False
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def come(self) -> Crash:
        """The process dies here: raise what this gives."""
        self.has_come = True
        self._loop.call_soon_threadsafe(self._event.set)
        return Crash()

    async def wait(self) -> None:
        await self._event.wait()


class Mortal(Generic[T]):
    """One process. `opened` is called when its runtime is open, before anything happens in it."""

    def __init__(
        self, runtime: RuntimeUnderTest, death: Death, opened: Callable[[RuntimeUnderTest], None] = lambda _: None
    ) -> None:
        self.runtime, self.death = runtime, death
        self._opened = opened
        self._is_dying = False

    async def live(self, scenario: Scenario[T]) -> Outcome[T] | None:
        """Perform the scenario, and leave in an orderly way. None if death comes first."""
        performing = asyncio.ensure_future(self._perform(scenario))
        dying = asyncio.ensure_future(self.death.wait())
        try:
            await asyncio.wait([performing, dying], return_when=asyncio.FIRST_COMPLETED)
            if not self.death.has_come:
                return performing.result()
            if not self._is_dying:  # it may have met the crash itself: then it is left to die
                performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
            return None
        finally:
            dying.cancel()

    async def _perform(self, scenario: Scenario[T]) -> Outcome[T]:
        await self.runtime.__aenter__()
        try:
            self._opened(self.runtime)
            outcome = await self._outcome(scenario)
            await self.runtime.__aexit__()
        except (asyncio.CancelledError, Crash):
            self._is_dying = True
            await self.runtime.die()
            raise
        return outcome

    async def _outcome(self, scenario: Scenario[T]) -> Outcome[T]:
        try:
            return Outcome(await scenario(self.runtime))
        except Exception as error:
            return Outcome(None, error)


class QuietAboutCrashes:
    """The event loop does not report the crashes that are made on purpose."""

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.get_exception_handler()
        self._loop.set_exception_handler(self._handle)

    def __exit__(self, *error: object) -> None:
        self._loop.set_exception_handler(self._before)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Crash):
            (self._before or type(loop).default_exception_handler)(loop, context)

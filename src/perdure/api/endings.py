"""Waiting for runs to end, however many, in however many processes they execute."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from perdure.errors import StoreError
from perdure.runtime.standstill import Standstill
from perdure.store.protocol import Status, Store

log = logging.getLogger("perdure")

POLL_SECONDS = 0.04
POLLS_BETWEEN_FULL_LOOKS = 25
ENDINGS_KEPT_MAX = 1_000
RESULT_KEPT_BYTES_MAX = 4_096


class Endings:
    """Futures of runs that are awaited. `polls`: look at the store as long as there are any; otherwise somebody who
    watches the store anyway calls `look`."""

    def __init__(self, store: Store, *, polls: bool) -> None:
        self._store = store
        self._polls = polls
        self.changed: Callable[[], bool] = store.changed
        """Whether anybody committed since the last call. A store tells each piece of news once, so one alone may ask
        it."""
        self.is_here: Callable[[int], bool] = lambda rid: False
        """Whether this process executes the run, and will tell of its end: then the store need not be asked."""
        self._awaited: dict[int, tuple[str, list[asyncio.Future[Standstill | None]]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._recent: OrderedDict[int, Standstill] = OrderedDict()

    def notify(self, rid: int, how: Standstill | None = None) -> None:
        """The run ended or was parked. `how` is known if that happened in this process; the latest endings are kept,
        for whoever asks a little later."""
        if how is not None and how.status.is_final and len(how.raw or b"") <= RESULT_KEPT_BYTES_MAX:
            self._recent[rid] = how
            if len(self._recent) > ENDINGS_KEPT_MAX:
                self._recent.popitem(last=False)
        _, futures = self._awaited.pop(rid, ("", []))
        for future in futures:
            if not future.done():
                future.set_result(how)

    async def wait(
        self, rid: int, run_id: str, look: Callable[[], Standstill | None], *, wait_blocked: bool, is_here: bool
    ) -> Standstill:
        """How the run came to a stop: it ended, or is blocked (unless `wait_blocked`). `is_here`: this process executes
        it, so that there is no need to look before waiting."""
        how = self._recent.get(rid) or (None if is_here else look())
        while how is None or (how.status is Status.BLOCKED and wait_blocked):
            future: asyncio.Future[Standstill | None] = asyncio.get_running_loop().create_future()
            _, futures = self._awaited.setdefault(rid, (run_id, []))
            futures.append(future)
            self._look_around()
            try:
                how = await future
            finally:
                if future in futures:
                    futures.remove(future)
            how = how or look()
        return how

    def _look_around(self) -> None:
        if self._polls and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        polls = 0
        while self._awaited:
            polls += 1
            await asyncio.sleep(POLL_SECONDS)
            try:
                if self.changed() or polls % POLLS_BETWEEN_FULL_LOOKS == 0:
                    self.look()
            except StoreError:
                pass  # away for a while
            except Exception:  # whoever waits goes on waiting
                log.exception("a look for runs that have ended failed, trying on")

    def look(self) -> None:
        """See which of the awaited runs have come to a stop."""
        for rid, (run_id, _) in list(self._awaited.items()):
            if self.is_here(rid):
                continue
            info = self._store.find(run_id)
            if info is None or info.rid != rid or info.status.is_final or info.status is Status.BLOCKED:
                self.notify(rid)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

"""Waiting for runs to end, however many, in however many processes they execute."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from perdure.errors import StoreError
from perdure.store.protocol import RunInfo, Status, Store

POLL_SECONDS = 0.04
POLLS_BETWEEN_FULL_LOOKS = 25


class Endings:
    """Futures of runs that are awaited, and one task that looks at the store as long as there are any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._awaited: dict[int, tuple[str, list[asyncio.Future[None]]]] = {}
        self._task: asyncio.Task[None] | None = None

    def notify(self, rid: int) -> None:
        """The run ended or was parked, in this process."""
        _, futures = self._awaited.pop(rid, ("", []))
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def wait(self, find: Callable[[], RunInfo], *, wait_blocked: bool) -> RunInfo:
        """The run's index row once it has ended (or is blocked, unless `wait_blocked`)."""
        info = find()
        while not _stands_still(info, wait_blocked=wait_blocked):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _, futures = self._awaited.setdefault(info.rid, (info.run_id, []))
            futures.append(future)
            self._look_around()
            try:
                await future
            finally:
                if future in futures:
                    futures.remove(future)
            info = find()
        return info

    def _look_around(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        polls = 0
        while self._awaited:
            polls += 1
            await asyncio.sleep(POLL_SECONDS)
            with contextlib.suppress(StoreError):
                if self._store.changed() or polls % POLLS_BETWEEN_FULL_LOOKS == 0:
                    self._look()

    def _look(self) -> None:
        for rid, (run_id, _) in list(self._awaited.items()):
            info = self._store.find(run_id)
            if info is None or info.rid != rid or _stands_still(info, wait_blocked=False):
                self.notify(rid)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _stands_still(info: RunInfo, *, wait_blocked: bool) -> bool:
    return info.status.is_final or (info.status is Status.BLOCKED and not wait_blocked)

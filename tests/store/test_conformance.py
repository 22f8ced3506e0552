"""Every store of ours passes the suite that we ship."""

from __future__ import annotations

from pathlib import Path

from perdure.store import Store
from perdure.store.memory import MemoryStore
from perdure.store.sqlite import SqliteStore
from perdure.testing.conformance import StillClock, StoreConformance


class TestMemory(StoreConformance):
    def open(self, place: Path, clock: StillClock) -> Store:
        """The handles of a test share one memory, for as long as one of them is open."""
        for handle in self._handles:
            if isinstance(handle, MemoryStore):
                return handle.again()
        return MemoryStore(clock)


class TestSqlite(StoreConformance):
    def open(self, place: Path, clock: StillClock) -> Store:
        return SqliteStore(str(place / "perdure.db"), clock=clock)

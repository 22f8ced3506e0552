"""What every part of the suite starts from: an empty store on a clock that stands still, and values to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.clock import MICROSECONDS, Alarm
from perdure.store.protocol import (
    Append,
    Change,
    Claim,
    Done,
    Letter,
    NewRun,
    Outcome,
    Row,
    RunInfo,
    Status,
    Store,
    Write,
)

KNOWN = frozenset({("agent", 1)})
ENDED = Change(status=Status.COMPLETED, ending=b"the end")


class StillClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.at = 1_700_000_000 * MICROSECONDS

    def now(self) -> int:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += round(seconds * MICROSECONDS)

    def wake_at(self, at: int, callback: Callable[[], None]) -> Alarm:
        raise NotImplementedError("a store never asks to be woken")


def fresh_id() -> bytes:
    return os.urandom(16)


def row(seq: int, kind: str = "step.done", **fields: Any) -> Row:
    given: dict[str, Any] = {
        "at": 1000 + seq,
        "envelope": b"e%d" % seq,
        "input": None,
        "output": b"o",
        "hash": b"%032d" % seq,
    }
    return Row(seq, kind=kind, **{**given, **fields})


def rows(count: int, start: int = 0, kind: str = "step.done") -> tuple[Row, ...]:
    return tuple(row(seq, kind) for seq in range(start, start + count))


def new_run(run_id: str = "r", **fields: Any) -> NewRun:
    """A run of `agent` version 1 with one event, due at once; or owned, if an owner is given."""
    given: dict[str, Any] = {
        "id": fresh_id(),
        "workflow": "agent",
        "version": 1,
        "input_digest": b"d" * 32,
        "created_at": 1000,
        "rows": rows(1, kind="run.started"),
        "due_at": None if "owner" in fields else 0,
    }
    return NewRun(run_id=run_id, **{**given, **fields})


def append(rid: int, length: int, count: int = 1, *, epoch: int = 1, kind: str = "step.done", **fields: Any) -> Append:
    """`count` events after the first `length`."""
    given: dict[str, Any] = {"id": fresh_id(), "rows": rows(count, length, kind)}
    return Append(rid=rid, epoch=epoch, expected_length=length, **{**given, **fields})


def letter(run_id: str = "r", kind: str = "message", **fields: Any) -> Letter:
    given: dict[str, Any] = {"id": fresh_id(), "key": "k", "body": b"body", "sent_at": 5000}
    return Letter(run_id=run_id, kind=kind, **{**given, **fields})


def released(**fields: Any) -> Change:
    given: dict[str, Any] = {"status": Status.WAITING, "reason": "timer", "release": True}
    return Change(**{**given, **fields})


class StoreCase:
    """Each test gets an empty store, `self.store`, on `self.clock`, in which worker `w` has entered."""

    store: Store
    clock: StillClock
    _place: Path
    _handles: list[Store]

    def open(self, place: Path, clock: StillClock) -> Store:
        """Open the store at `place`, new if nothing is there yet; once more: another handle on the same data."""
        raise NotImplementedError

    def kill(self, store: Store, worker: str) -> None:
        """Take away the worker's proof of life, as its process's death would."""
        store.kill(worker)  # type: ignore[attr-defined]

    @pytest.fixture(autouse=True)
    def _with_a_store(self, tmp_path: Path) -> Iterator[None]:
        self.clock, self._place, self._handles = StillClock(), tmp_path, []
        self.store = self.again()
        self.enter("w")
        yield
        for handle in self._handles:
            handle.close()

    def again(self) -> Store:
        """Another handle, as another process would have it."""
        handle = self.open(self._place, self.clock)
        self._handles.append(handle)
        return handle

    def reopen(self) -> None:
        """Everything is closed and opened again, as after a restart. Workers have to enter anew."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()
        self.store = self.again()

    def enter(self, *workers: str) -> None:
        for worker in workers:
            self.store.enter(worker, lease_seconds=10, workflows=["agent"])

    def write(self, write: Write) -> Outcome:
        (outcome,) = self.store.commit([write])
        return outcome

    def done(self, write: Write) -> Done:
        outcome = self.write(write)
        assert isinstance(outcome, Done), outcome
        return outcome

    def start(self, run_id: str = "r", **fields: Any) -> int:
        """A run owned by `w` under epoch 1, with one event; gives its rid."""
        fields.setdefault("owner", "w")
        return self.done(new_run(run_id, **fields)).rid

    def claim(
        self,
        worker: str = "w",
        limit: int = 1000,
        known: frozenset[tuple[str, int]] = KNOWN,
        only: frozenset[str] | None = None,
    ) -> list[Claim]:
        return self.store.claim(worker, now=self.clock.now(), limit=limit, known=known, only=only)

    def claimed(self, worker: str = "w", **fields: Any) -> list[str]:
        return [claim.info.run_id for claim in self.claim(worker, **fields)]

    def epoch(self, run_id: str = "r") -> int:
        return self.info(run_id).epoch

    def info(self, run_id: str = "r") -> RunInfo:
        found = self.store.find(run_id)
        assert found is not None, run_id
        return found

    def bodies(self, run_id: str = "r") -> list[bytes]:
        return [mail.body for mail in self.store.mail([self.info(run_id).rid])]

    def everything(self) -> list[Any]:
        """All that can be read of all runs: equal before and after whatever leaves no trace."""
        stored = [self.store.load(rid, from_seq=0) for _, rid, _, _ in self.store.heads()]
        return [(one.info, one.length, one.head, list(one.rows)) for one in stored] + list(self.store.mail())

"""What goes wrong in a simulation: when, how often, and the store handle that passes it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from perdure.errors import StoreError
from perdure.store.protocol import Outcome, Store, Write
from perdure.testing.crashing import Crash, CrashingStore

T = TypeVar("T")

HORIZON_MS = 2_000
"""Faults come in this time; then the world is kind, and every run has to end."""


@dataclass(frozen=True)
class Plan:
    """How unkind the world is. Shares are probabilities of single calls; times are in milliseconds."""

    workers: int
    kills: int = 0
    pauses: int = 0
    leaves: int = 0
    evictions: int = 0
    runs: int = 1
    cancels: int = 0
    forces: int = 0
    holds: int = 0
    messages: int = 4
    write_fails: float = 0.0
    read_fails: float = 0.0
    write_kills: float = 0.0
    slow: float = 0.0
    clock_off_ms: int = 0
    evict_after_ms: int = 200
    runs_max: int = 1_000
    steps_max: int = 1_000
    retry_after_death: tuple[float, ...] = (0.0,) * 100

    def __str__(self) -> str:
        default = Plan(1)
        parts = [
            f"{name}={value}"
            for name, value in vars(self).items()
            if name == "workers" or (value != getattr(default, name) and name != "retry_after_death")
        ]
        return "plan: " + ", ".join(parts)


def make_plan(rng: Random) -> Plan:
    """One in eight is kind; the others are unkind in some ways, rarely in all."""
    if rng.random() < 0.125:
        return Plan(rng.choice((1, 2)))

    def some(share: float, *choices: Any) -> Any:
        return rng.choice(choices) if rng.random() < share else type(choices[0])()

    return Plan(
        workers=rng.choice((1, 1, 2, 2, 3)),
        kills=some(0.5, 1, 1, 2, 3),
        pauses=some(0.3, 1, 2),
        leaves=some(0.2, 1, 2),
        evictions=some(0.4, 2, 6),
        runs=some(0.15, 2, 3) or 1,
        cancels=some(0.2, 1, 2),
        forces=some(0.05, 1),
        holds=some(0.1, 1),
        messages=rng.choice((0, 2, 6)),
        write_fails=some(0.3, 0.05, 0.3),
        read_fails=some(0.15, 0.02, 0.2),
        write_kills=some(0.4, 0.01, 0.05, 0.2),
        slow=some(0.5, 0.1, 0.5, 1.0),
        clock_off_ms=some(0.2, 50, 3_000),
        evict_after_ms=rng.choice((0, 10, 200, 10_000)),
        runs_max=some(0.1, 1, 2) or 1_000,
        steps_max=some(0.1, 1, 2) or 1_000,
        retry_after_death=(0.0, 0.05, 0.3) if rng.random() < 0.1 else (0.0,) * 100,
    )


class FaultyStore(CrashingStore):
    """One process's handle on the store: its calls fail, or kill it, as `Faults` says."""

    def __init__(
        self, who: str, inner: Store, faults: Faults, committed: Callable[[Sequence[Write], list[Outcome]], None]
    ) -> None:
        super().__init__(inner)
        self._who = who
        self._faults = faults
        self._committed = committed

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        def commit() -> list[Outcome]:
            outcomes = self.inner.commit(writes)
            self._committed(writes, outcomes)
            return outcomes

        return self._write("commit", commit, writes)

    def _write(self, name: str, write: Callable[[], T], writes: Sequence[Write] = ()) -> T:
        self._check_alive()
        self.writes += 1
        fault = self._faults.of_write(f"{self._who}: write {self.writes} ({name})")
        if fault is None:
            return write()
        kind, is_applied = fault
        if is_applied:
            write()
        if kind is Crash:
            self.has_crashed = True
            raise Crash
        raise StoreError("the store does not answer")

    def _living(self, call: Callable[[], T]) -> T:
        self._check_alive()
        if self._faults.is_read_failing():
            raise StoreError("the store does not answer")
        return call()

    def is_free(self) -> bool:
        self._check_alive()
        return not self._faults.is_slow()

    def heads(self) -> Iterator[tuple[str, int, int, bytes]]:
        return self.inner.heads()


class Faults:
    """Decides which calls fail. `are_on` is turned off when the world becomes kind."""

    def __init__(self, plan: Plan, rng: Random, note: Callable[[str], None]) -> None:
        self._plan, self._rng, self._note = plan, rng, note
        self.are_on = True

    def of_write(self, what: str) -> tuple[type[BaseException], bool] | None:
        """What becomes of a write: nothing unusual, or an exception, with the write applied or not."""
        plan = self._plan
        if not self.are_on or not (plan.write_kills or plan.write_fails):
            return None
        luck = self._rng.random()
        if luck < plan.write_kills:
            return self._told(Crash, what)
        if luck < plan.write_kills + plan.write_fails:
            return self._told(StoreError, what)
        return None

    def _told(self, kind: type[BaseException], what: str) -> tuple[type[BaseException], bool]:
        is_applied = self._rng.random() < 0.5
        word = "kills" if kind is Crash else "fails"
        self._note(f"{what} {word} {'after' if is_applied else 'before'} it is applied")
        return kind, is_applied

    def is_read_failing(self) -> bool:
        return self.are_on and self._plan.read_fails > 0 and self._rng.random() < self._plan.read_fails

    def is_slow(self) -> bool:
        return self._plan.slow > 0 and self._rng.random() < self._plan.slow

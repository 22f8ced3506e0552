"""The same simulations on the store that is kept in a file: what its SQL decides is held against the same promises."""

from __future__ import annotations

from pathlib import Path

from perdure.store.sqlite import SqliteStore
from perdure.testing.simulator import Simulator

PROGRAMS = 100


def test_random_programs_on_sqlite(tmp_path: Path) -> None:
    for seed in range(PROGRAMS):
        path = str(tmp_path / f"{seed}.db")
        Simulator(seed, open_store=lambda clock, path=path: SqliteStore(path, clock=clock)).run()  # type: ignore[misc]

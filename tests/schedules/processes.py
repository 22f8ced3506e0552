"""Worker processes that tests start, watch, stop and kill.

The world outside is a file to which the bodies of steps append a line for each thing that they do: it is what was done,
whatever the store says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import perdure
from perdure.store.sqlite.locks import lock, open_lock_file

ROOT = Path(__file__).parents[2]
SOURCE = Path(perdure.__file__).parents[1]
PATIENCE_SECONDS = 120.0


class Done(NamedTuple):
    """One thing that was done outside: in which life of the worker, and what."""

    life: str
    what: str


def environment(**more: str) -> dict[str, str]:
    """That of the tests, in which processes find perdure and the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, ROOT))), **more}


class World:
    """What steps did, in order."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "world.txt"
        self.store = str(folder / "runs.db")
        self.path.touch()

    def done(self) -> list[Done]:
        lines = self.path.read_text().splitlines()
        return [Done(*line.split(" ", 1)) for line in lines]

    def what(self) -> list[str]:
        return [done.what for done in self.done()]

    @contextlib.contextmanager
    def worker(self, role: str, *, life: str = "1", **options: object) -> Generator[subprocess.Popen[str]]:
        """A process of `tests.schedules.program`; killed at the end if it is still there."""
        settings = environment(
            WORLD=str(self.path),
            STORE=self.store,
            LIFE=life,
            **{name.upper(): str(value) for name, value in options.items()},
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.schedules.program", role],
            env=settings, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()

    def serve(self, role: str, *, life: str = "1", **options: object) -> str:
        """A process that ends by itself; what it printed. AssertionError if it did not end well."""
        with self.worker(role, life=life, **options) as process:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
            assert process.returncode == 0, f"{process.returncode}: {out}\n{err}"
            return out


def stop(process: subprocess.Popen[str], store: str) -> None:
    """Stop a worker between two of its writes. One that is stopped within a write, a renewal of its lease perhaps, or
    while it is the next to write, keeps everybody else from writing: no lock can be taken from a process that lives."""
    with contextlib.ExitStack() as held:
        for which in ("next", "turn"):
            file = open_lock_file(f"{store}-{which}")
            held.callback(os.close, file)
            lock(file)
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status


def wait_until(fact: Callable[[], bool], what: str) -> None:
    """Come back when `fact()` holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not fact():
        assert time.monotonic() < until, f"not within {PATIENCE_SECONDS:g} s: {what}"
        time.sleep(0.002)


def wait_for_death(process: subprocess.Popen[str]) -> None:
    """Come back when the process has died, of whatever."""
    process.wait(timeout=PATIENCE_SECONDS)

"""The work that every peer does, and what a peer has to be able to do.

All peers run the same step bodies, in workflows of the same shape; only the decorators around them differ.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS_OF_A_CRASH_RUN = 50
CRASH_IN_STEP = 47
STEP_SECONDS = 0.02
TURN_TEXT = "The customer says that the parcel came back twice, and asks what we mean to do about it this time. "

FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
"""Of this repetition: the store, logs, and who did which step when."""

DONE_AT: list[float] = []
"""When each step body of this process ran, in order, on the monotonic clock."""

CHECKPOINT = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
"""In a process of its own: closing a SQLite file that this process also holds would drop its locks."""

PARKED = {"runs": 0}
"""How many workflows of this process reached their wait."""


def answer(number: int) -> dict[str, Any]:
    """About 200 bytes of JSON, like the record of a short model call."""
    return {
        "id": f"call-{number}",
        "role": "assistant",
        "model": "none-1",
        "content": "lorem ipsum dolor sit amet " * 4,
        "usage": {"prompt_tokens": 100 + number, "completion_tokens": 27},
    }


async def quick(number: int) -> dict[str, Any]:
    """A step that costs nothing, so that what is measured is the runtime around it."""
    DONE_AT.append(time.monotonic())
    return answer(number)


async def slow(number: int) -> dict[str, Any]:
    """A step of 20 ms that signs the log, and that kills its process the first time it is step 47."""
    sign(number)
    if number == CRASH_IN_STEP:
        await asyncio.sleep(STEP_SECONDS / 2)
        die_once()
    await asyncio.sleep(STEP_SECONDS)
    return answer(number)


async def last(number: int) -> dict[str, Any]:
    """The last step of a long run: kills its process the first time."""
    sign(number)
    die_once()
    return answer(number)


def reply(turn: int) -> str:
    return f"Turn {turn}. " + TURN_TEXT * 8


def question(turn: int) -> str:
    return f"Question {turn}. " + TURN_TEXT * 2


def conversation_bytes(turns: int) -> int:
    """What the text of a conversation weighs, each message once."""
    return sum(len(question(turn)) + len(reply(turn)) for turn in range(turns))


# ── who did what, across processes that die ─────────────────────────────────────────────────


def sign(number: int) -> None:
    with (FOLDER / "steps.log").open("a") as log:
        log.write(f"{number} {os.getpid()} {time.time()}\n")


def signed(folder: Path) -> list[tuple[int, int, float]]:
    """(step, process, time) of every slow step that began, in that order."""
    log = folder / "steps.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(number), int(pid), float(at)) for number, pid, at in map(str.split, lines)]


def die_once() -> None:
    """SIGKILL for this process, unless one died here before in this folder."""
    try:
        with (FOLDER / "died").open("x") as note:
            note.write(str(time.time()))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


# ── what a peer has to be able to do ────────────────────────────────────────────────────────


class Peer:
    """One durable runtime. `start_server` and what is beside it run in the runner's process, the rest in a worker's.

    A peer knows these workflows, each called with a number n:

        seq     n quick steps, one after the other
        gather  n quick steps at once
        slow    n slow steps, one after the other
        long    n quick steps, then one last step
        park    one quick step, then PARKED["runs"] += 1, then a wait of an hour
        chat    n turns: a step gets the whole conversation and returns a reply, both are appended to it
        thread  n turns: a step gets the whole conversation and returns the whole, longer one
    """

    packages: tuple[str, ...] = ()
    """The distributions whose versions the results name."""
    imports = ""
    """What a user's program imports first."""
    durability = ""
    sizes: dict[str, int] = {}  # noqa: RUF012
    """Case → n, where the usual n is out of reach. The tables show it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)

    def start_server(self) -> None: ...

    def stop_server(self) -> None: ...

    def server_pid(self) -> int | None:
        return None

    def bytes_stored(self) -> int:
        """Of all files of the store, after SQLite's write-ahead logs were taken into their databases."""
        for file in self.store.rglob("*-wal"):
            subprocess.run([sys.executable, "-c", CHECKPOINT, str(file).removesuffix("-wal")], check=True)
        return sum(file.stat().st_size for file in self.store.rglob("*") if file.is_file())

    async def open(self) -> None:
        """Begin to work: from here on this process runs what is in the store."""

    async def start(self, workflow: str, run_id: str, n: int) -> Any:
        raise NotImplementedError

    async def attach(self, workflow: str, run_id: str, n: int) -> Any:
        """A handle of a run that another process started. Peers that need to be told to go on do that here."""
        raise NotImplementedError

    async def wait(self, handle: Any) -> None:
        raise NotImplementedError

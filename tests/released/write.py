"""Keeps what this version writes: `python -m tests.released.write`, once for each version that is released.

It lies in a folder that is called like the version: the store, and the program whose runs are in it. What is there
already stays, unless `--again` says that this version is not released yet.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.released import program

import perdure
from perdure.store import open_store

HERE = Path(__file__).parent
PROGRAM, STORE = "program.txt", "store.db"
"""The program is kept as a text, for it is no code of this version's."""


def write(folder: Path) -> None:
    """Record the runs of today's program, and keep them in a folder."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        recorded = str(Path(place) / STORE)
        asyncio.run(program.record(recorded))
        (folder / STORE).unlink(missing_ok=True)
        store = open_store(recorded)
        try:
            store.backup(str(folder / STORE), lambda _done, _total: None)
        finally:
            store.close()
    (folder / PROGRAM).write_text(Path(program.__file__).read_text(encoding="utf-8"), encoding="utf-8")


def main() -> None:
    folder = HERE / perdure.__version__
    if folder.exists() and "--again" not in sys.argv:
        sys.exit(f"{folder} is there: what a released version wrote is never written again")
    write(folder)


if __name__ == "__main__":
    main()

"""How many processor instructions a step, a run or a replayed event costs: unlike seconds, the same on a busy machine.

    scripts/bench --help                                   once, which makes .venv-bench
    .venv-bench/bin/python bench/instructions.py           needs valgrind; about two minutes

Counted by cachegrind for two sizes of the same work; the difference leaves out all that is done once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COUNT = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
CASES = {  # name: (part, small n, large n, how many of what one n is), after a first life under no valgrind
    "step of fan": ("fan", 50, 150, 20),
    "run of start": ("start", 100, 300, 1),
    "replayed event of long": ("long_second_life", 1_000, 5_000, 1),
}


def work(part: str, n: int, folder: str, *, under: tuple[str, ...] = ()) -> str:
    environment = {
        **os.environ, "BENCH_FOLDER": folder, "BENCH_STARTED_AT": "0", "PYTHONHASHSEED": "0", "BENCH_POLL_SECONDS": "5",
    }  # fmt: skip
    command = [*under, sys.executable, str(HERE / "worker.py"), "perdure_sqlite", part, str(n)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr


def instructions(part: str, n: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        if part == "long_second_life":
            work("long_first_life", n, folder)  # ends by SIGKILL in its last step
        said = work(part, n, folder, under=COUNT)
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    if found is None:
        sys.exit(f"valgrind counted nothing:\n{said}")
    return int(found[1].replace(",", ""))


for name, (part, small, large, each) in CASES.items():
    spent = instructions(part, large) - instructions(part, small)
    print(f"{spent / (large - small) / each / 1000:8.1f} thousand instructions per {name}", flush=True)

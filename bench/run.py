"""perdure and its peers, the same work, one sitting.

    scripts/bench                                          every peer, every case, three times each
    scripts/bench --peers floor perdure-sqlite --cases seq fan --reps 5 --name before

Each repetition has a fresh store and fresh processes. Results go to bench/results/NAME.json, all repetitions, and to
NAME.md, the tables of their medians; a NAME that exists is added to. bench/README.md says what the cases are.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import tables
import work
import worker

HERE = Path(__file__).resolve().parent
PEERS = ["floor", "perdure-sqlite", "dbos-sqlite", "temporal-dev"]
Measured = dict[str, Any]


class Repetition:
    """One case, once: a folder, a peer with its server, and the processes that work in it."""

    def __init__(self, peer_name: str, case: str, n: int, seconds_max: float, folder: Path) -> None:
        self.peer_name, self.case, self.n, self.seconds_max, self.folder = peer_name, case, n, seconds_max, folder
        self.peer: work.Peer = worker.peer_class(peer_name)(folder)
        self.processes: list[subprocess.Popen[str]] = []

    def spawn(self, part: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "BENCH_FOLDER": str(self.folder), "BENCH_STARTED_AT": str(time.time())}
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), self.peer_name, part, str(self.n)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{part}.log").open("a"),
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, part: str) -> Measured:
        return self.said(self.spawn(part))

    def said(self, process: subprocess.Popen[str]) -> Measured:
        """What a process measured. What went wrong is a measurement too, under `error`."""
        try:
            output, _ = process.communicate(timeout=self.seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"error": f"not done after {self.seconds_max:.0f} s"}
        lines = [line for line in output.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"error": f"ended with {process.returncode}: {self.last_log_line()}"}

    def last_log_line(self) -> str:
        logs = sorted(self.folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        lines = [
            line for log in logs if log.name != "steps.log" for line in log.read_text().splitlines() if line.strip()
        ]
        return lines[-1][:300] if lines else ""

    def wait_until(self, true: Callable[[], bool]) -> bool:
        end = time.monotonic() + self.seconds_max
        while time.monotonic() < end:
            if true():
                return True
            time.sleep(0.005)
        return False

    def clean_up(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


# ── the cases ───────────────────────────────────────────────────────────────────────────────


def in_one_process(this: Repetition) -> Measured:
    return this.run(this.case)


def resume(this: Repetition) -> Measured:
    """Killed in step 47 of 50; a new process is started at once."""
    dead = this.spawn("first_life")
    dead.wait(this.seconds_max)
    spawned_at = time.time()
    measured = this.run("second_life")
    return measured | after_the_kill(this, dead.pid, spawned_at, "new_process_to_step_47_s")


def takeover(this: Repetition) -> Measured:
    """Killed in step 47 of 50, while a second worker is alive; nobody starts anything."""
    survivor = this.spawn("bystander")
    assert survivor.stdout
    survivor.stdout.readline()
    time.sleep(1)
    dead = this.spawn("first_life")
    dead.wait(this.seconds_max)
    killed_at = float((this.folder / "died").read_text())
    done = this.wait_until(
        lambda: any(number == work.STEPS_OF_A_CRASH_RUN - 1 for number, _, _ in work.signed(this.folder))
    )
    if not done:
        return {"error": f"nobody took over within {this.seconds_max:.0f} s"}
    return after_the_kill(this, dead.pid, killed_at, "kill_to_step_47_s")


def after_the_kill(this: Repetition, dead: int, since: float, name: str) -> Measured:
    log, killed_at = work.signed(this.folder), float((this.folder / "died").read_text())
    again = [at for number, _, at in log if number == work.CRASH_IN_STEP and at > killed_at]
    done_before = {number for number, _, at in log if at < killed_at} - {work.CRASH_IN_STEP}
    return {
        name: again[0] - since if again else None,
        "recorded_steps_run_again": sum(number in done_before and at > killed_at for number, _, at in log),
    }


def second(this: Repetition) -> Measured:
    """Nobody dies: a second worker starts beside one that is in the middle of a run."""
    (this.folder / "died").write_text("0")
    first = this.spawn("first_life")
    this.wait_until(lambda: len(work.signed(this.folder)) >= 5)
    other = this.spawn("bystander")
    measured = this.said(first)
    time.sleep(2)
    log = work.signed(this.folder)
    return measured | {
        "steps_run_twice": len(log) - len({number for number, _, _ in log}),
        "steps_run_by_the_second": sum(pid == other.pid for _, pid, _ in log),
    }


def long(this: Repetition) -> Measured:
    """Killed in the last of many steps; a new process replays the rest."""
    this.spawn("long_first_life").wait(this.seconds_max)
    if not (this.folder / "died").exists():
        return {"error": "the first life did not reach the end"}
    return this.run("long_second_life")


def import_(this: Repetition) -> Measured:
    """What `import` adds to the start of Python."""

    def milliseconds(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - began) * 1000

    pairs = [(milliseconds("pass"), milliseconds(this.peer.imports)) for _ in range(this.n)]
    bare, whole = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"ms": whole - bare, "with_python_ms": whole}


def sleepers(this: Repetition) -> Measured:
    pid = this.peer.server_pid()
    before = psutil.Process(pid).memory_info().rss if pid else 0
    measured = this.run("sleepers")  # twice n runs
    if pid:
        measured["server_kb_per_run"] = (psutil.Process(pid).memory_info().rss - before) / (2 * this.n) / 1e3
    return measured


CASES: dict[str, tuple[Callable[[Repetition], Measured], int]] = {
    # name: how it goes, and n
    "seq": (in_one_process, 500),
    "fan": (in_one_process, 200),
    "gather": (in_one_process, 200),
    "start": (in_one_process, 1000),
    "resume": (resume, 0),
    "takeover": (takeover, 0),
    "second": (second, 0),
    "long": (long, 5000),
    "late": (in_one_process, 100_000),
    "sleepers": (sleepers, 5000),
    "conversation": (in_one_process, 1000),
    "import": (import_, 15),
}


# ── one after the other ─────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def repetition(peer_name: str, case: str, n: int, seconds_max: float, keep: bool) -> Iterator[Repetition]:
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{peer_name}-{case}-"))
    this = Repetition(peer_name, case, n, seconds_max, folder)
    try:
        this.peer.start_server()
        yield this
    finally:
        this.clean_up()
        this.peer.stop_server()
        if keep:
            print(f"kept {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def measure(peer_name: str, case: str, given: argparse.Namespace) -> Measured:
    """One repetition."""
    how, _ = CASES[case]
    with repetition(peer_name, case, size(peer_name, case, given), given.limit, given.keep) as this:
        return how(this)


def size(peer_name: str, case: str, given: argparse.Namespace) -> int:
    _, usual = CASES[case]
    return given.n or worker.peer_class(peer_name).sizes.get(case, usual)


def line_of(peer_name: str, case: str, n: int, found: list[Measured]) -> Measured:
    peer = worker.peer_class(peer_name)
    return {
        "peer": peer_name,
        "case": case,
        "n": n,
        "durability": peer.durability,
        "versions": {name: importlib.metadata.version(name) for name in peer.packages},
        "median": medians(found),
        "repetitions": found,
    }


def medians(found: list[Measured]) -> Measured:
    """Of each figure that was measured; a figure that is no number in one repetition is shown as it is there."""
    median: Measured = {}
    for name in {name: None for each in found for name in each}:
        values = [each[name] for each in found if each.get(name) is not None]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        median[name] = statistics.median(numbers) if numbers and len(numbers) == len(values) else (values or [None])[0]
    return median


def machine() -> Measured:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def compiled_as_after_pip() -> None:
    """pip compiles what it installs; the source of perdure, installed in place, may never have been."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(Path(importlib.util.find_spec("perdure").origin).parent, quiet=1)
    compileall.compile_dir(HERE, quiet=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--reps", type=int, default=3, help="repetitions of each case")
    parser.add_argument("--n", type=int, default=0, help="steps, runs or turns, instead of the usual number")
    parser.add_argument("--limit", type=float, default=180, help="seconds that one process may take")
    parser.add_argument("--name", default=datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S"), help="of the files of results")
    parser.add_argument("--keep", action="store_true", help="keep stores and logs, and say where")
    given = parser.parse_args()
    compiled_as_after_pip()
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    file = folder / f"{given.name}.json"
    results: Measured = json.loads(file.read_text()) if file.exists() else {"machine": machine(), "results": []}
    for case in given.cases:
        peers = [peer for peer in given.peers if case not in getattr(worker.peer_class(peer), "leaves_out", ())]
        found: dict[str, list[Measured]] = {peer: [] for peer in peers}
        for _ in range(given.reps):
            for peer in peers:  # taking turns, so that a busy minute of the machine spoils one repetition of each
                found[peer].append(measure(peer, case, given))
        lines = [line_of(peer, case, size(peer, case, given), found[peer]) for peer in peers]
        for line in lines:
            print(json.dumps({name: line[name] for name in ("peer", "case", "n", "median")}), flush=True)
        others = [each for each in results["results"] if each["case"] != case or each["peer"] not in peers]
        results["results"] = sorted([*others, *lines], key=lambda each: PEERS.index(each["peer"]))
        file.write_text(json.dumps(results, indent=1) + "\n")
    file.with_suffix(".md").write_text(tables.markdown(results))
    print(f"\n{tables.markdown(results)}\nwritten to {file} and {file.stem}.md")


if __name__ == "__main__":
    main()

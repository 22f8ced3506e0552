"""Do jobs, so many at a time, in the order in which they are given: `jobs.py 2 <list`.

A line of the input is a job: a command in the shell's words. What a job said is printed when it is over, in one piece.
Exits with 1 if one of them failed; the rest goes on.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple


class Done(NamedTuple):
    job: str
    code: int
    said: str
    seconds: float
    processor_seconds: float


def do(job: str) -> Done:
    began = time.monotonic()
    with subprocess.Popen(
        job, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        said = process.stdout.read() if process.stdout else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds, processor_seconds = time.monotonic() - began, used.ru_utime + used.ru_stime
    return Done(job, process.returncode, said.decode(errors="replace"), seconds, processor_seconds)


def do_all(jobs: list[str], at_a_time: int) -> Iterator[Done]:
    """One after the other as they end."""
    threads = ThreadPoolExecutor(at_a_time)
    try:
        for ended in as_completed([threads.submit(do, job) for job in jobs]):
            yield ended.result()
    finally:
        threads.shutdown(cancel_futures=True)  # Ctrl-C ends what is under way, and nothing more begins


def main(at_a_time: str) -> int:
    began, failed = time.monotonic(), list[str]()
    for done in do_all([line.strip() for line in sys.stdin if line.strip()], int(at_a_time)):
        until = time.monotonic() - began
        took = f"{done.seconds:.0f} s, {done.processor_seconds:.0f} s of a processor, until {until:.0f} s"
        print(f"\n== {done.job} ({took})\n{done.said}", end="", flush=True)
        if done.code:
            failed.append(done.job)
    for job in failed:
        print(f"\n== failed: {job}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Threads for plain functions: capped, reused, and none that keeps the program from ending."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perdure.runtime.threads import DaemonThreads

BLOCKS = """
import asyncio, time, perdure

@perdure.step
def nap() -> int:
    print("napping", flush=True)
    time.sleep(60)
    return 1

@perdure.workflow
async def agent() -> int:
    return await nap.call()

async def main() -> None:
    async with perdure.Runtime("runs.db", workflows=[agent]) as runtime:
        await runtime.start(agent.call(), id="a")
        while not (await (await runtime.get("a")).history()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)

asyncio.run(main())
"""


def test_all_threads_work_at_once_up_to_the_cap() -> None:
    pool = DaemonThreads(3, "test")
    together = threading.Barrier(3, timeout=5)
    futures = [pool.submit(together.wait) for _ in range(6)]
    assert sorted(future.result(timeout=10) for future in futures) == [0, 0, 1, 1, 2, 2]
    pool.shutdown()


def test_errors_belong_to_whoever_waits() -> None:
    pool = DaemonThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(timeout=5)
    assert pool.submit(lambda: 5).result(timeout=5) == 5
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)


def test_what_was_still_to_be_begun_is_cancelled_for_whoever_waits() -> None:
    pool, began, gate = DaemonThreads(1, "test"), threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return gate.wait(10)

    busy, queued = pool.submit(work), pool.submit(print)
    assert began.wait(10)
    pool.shutdown(cancel_futures=True)
    assert queued.cancelled()
    gate.set()
    assert busy.result(timeout=10)


def test_where_no_thread_can_be_had_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, called = DaemonThreads(1, "test"), list[str]()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(called.append, "first")
    pool.submit(called.append, "second").result(timeout=10)
    assert called == ["second"]
    pool.shutdown()


def test_a_step_that_blocks_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", BLOCKS], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    assert "unfinished" in done.stderr

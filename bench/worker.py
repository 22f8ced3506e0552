"""One process of a benchmark: opens a peer, does one part of one case, prints one JSON line. Started by run.py."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

STARTED_AT = float(os.environ.get("BENCH_STARTED_AT", time.time()))

import work  # noqa: E402

Measured = dict[str, Any]
FAN_STEPS = 20
WINDOW = 0.1
"""A late step is compared with an early one by the medians of the last and the first tenth of the run."""


async def seq(peer: work.Peer, n: int) -> Measured:
    seconds = await timed(peer, "seq", n)
    return {"steps_per_s": n / seconds, "ms_per_step": seconds / n * 1000}


async def fan(peer: work.Peer, n: int) -> Measured:
    seconds = await timed_many(peer, n, FAN_STEPS)
    return {"steps_per_s": n * FAN_STEPS / seconds, "runs_per_s": n / seconds}


async def gather(peer: work.Peer, n: int) -> Measured:
    return {"ms": await timed(peer, "gather", n) * 1000}


async def start(peer: work.Peer, n: int) -> Measured:
    return {"runs_per_s": n / await timed_many(peer, n, 1)}


async def late(peer: work.Peer, n: int) -> Measured:
    work.DONE_AT.clear()
    before = peer.bytes_stored()
    seconds = await timed(peer, "seq", n)
    gaps = [after - before for before, after in zip(work.DONE_AT, work.DONE_AT[1:], strict=False)]
    tenth = max(1, int(len(gaps) * WINDOW))
    early, end = statistics.median(gaps[:tenth]), statistics.median(gaps[-tenth:])
    return {
        "late_to_early": end / early,
        "early_ms": early * 1000,
        "late_ms": end * 1000,
        "steps_per_s": n / seconds,
        "bytes_per_step": (peer.bytes_stored() - before) / n,
        "peak_rss_mb": peak_rss_mb(),
    }


async def conversation(peer: work.Peer, n: int) -> Measured:
    measured: Measured = {"text_kb": work.conversation_bytes(n) / 1e3}
    for workflow, what in (("chat", "argument"), ("thread", "result")):
        before = peer.bytes_stored()
        seconds = await timed(peer, workflow, n)
        measured[f"times_text_as_{what}"] = (peer.bytes_stored() - before) / work.conversation_bytes(n)
        measured[f"ms_per_turn_as_{what}"] = seconds / n * 1000
    return measured


async def sleepers(peer: work.Peer, n: int) -> Measured:
    """n runs park, then n more. What the process keeps of the first n is mostly what it needed to start them, and needs
    no second time; a run that waits costs what the second n add."""
    import psutil

    process = psutil.Process()
    rss = [process.memory_info().rss]
    began = time.perf_counter()
    seconds = 0.0
    for first in (0, n):
        for lowest in range(first, first + n, 50):
            several = range(lowest, min(lowest + 50, first + n))
            await asyncio.gather(*[peer.start("park", f"park-{k}", 0) for k in several])
        while work.PARKED["runs"] < first + n:
            await asyncio.sleep(0.05)
        seconds = seconds or time.perf_counter() - began
        await asyncio.sleep(3)
        rss.append(process.memory_info().rss)
    cpu_before, window = sum(os.times()[:2]), 5.0
    await asyncio.sleep(window)
    return {
        "kb_per_run": (rss[2] - rss[1]) / n / 1e3,
        "first_kb_per_run": (rss[1] - rss[0]) / n / 1e3,
        "idle_cores": (sum(os.times()[:2]) - cpu_before) / window,
        "parked_per_s": n / seconds,
    }


async def first_life(peer: work.Peer, n: int) -> Measured:
    """The worker that is meant to die in step 47; in the case `second` it is not."""
    await peer.wait(await peer.start("slow", "crash", work.STEPS_OF_A_CRASH_RUN))
    return {"finished": True}


async def second_life(peer: work.Peer, n: int) -> Measured:
    opened = time.time() - STARTED_AT
    await peer.wait(await peer.attach("slow", "crash", work.STEPS_OF_A_CRASH_RUN))
    return {"opened_s": opened, "finished_s": time.time() - STARTED_AT}


async def bystander(peer: work.Peer, n: int) -> Measured:
    print(json.dumps({"ready": True}), flush=True)
    await asyncio.sleep(3600)
    return {}


async def long_first_life(peer: work.Peer, n: int) -> Measured:
    await peer.wait(await peer.start("long", "long", n))
    return {"finished": True}


async def long_second_life(peer: work.Peer, n: int) -> Measured:
    opened, rss_opened = time.time() - STARTED_AT, peak_rss_mb()
    await peer.wait(await peer.attach("long", "long", n))
    return {
        "replay_s": time.time() - STARTED_AT - opened,
        "opened_s": opened,
        "steps_run_again": len(work.DONE_AT),
        "rss_opened_mb": rss_opened,
        "peak_rss_mb": peak_rss_mb(),
    }


async def timed(peer: work.Peer, workflow: str, n: int) -> float:
    began = time.perf_counter()
    await peer.wait(await peer.start(workflow, f"one-{workflow}", n))
    return time.perf_counter() - began


async def timed_many(peer: work.Peer, runs: int, steps: int) -> float:
    began = time.perf_counter()
    handles = await asyncio.gather(*[peer.start("seq", f"run-{k}", steps) for k in range(runs)])
    await asyncio.gather(*[peer.wait(handle) for handle in handles])
    return time.perf_counter() - began


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


WARM = {seq, fan, gather, start, late, conversation, sleepers, long_first_life}
"""Parts before which three steps are run, so that imports, pools and caches are not measured."""

PARTS: dict[str, Callable[[work.Peer, int], Awaitable[Measured]]] = {
    part.__name__: part
    for part in (*sorted(WARM, key=lambda part: part.__name__), first_life, second_life, bystander, long_second_life)
}


def peer_class(name: str) -> Any:
    return importlib.import_module(f"peers.{name.replace('-', '_')}").Peer


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("part")
    parser.add_argument("n", type=int)
    given = parser.parse_args()
    peer = peer_class(given.peer)(Path(os.environ["BENCH_FOLDER"]))
    if measure := getattr(peer, "measure", None):
        print(json.dumps(measure(given.part, given.n)), flush=True)
        return
    await peer.open()
    part = PARTS[given.part]
    if part in WARM:
        await peer.wait(await peer.start("seq", "warm", 3))
    print(json.dumps(await part(peer, given.n)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # each repetition has a store of its own: nothing is left to shut down


if __name__ == "__main__":
    asyncio.run(main())

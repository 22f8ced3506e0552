"""The demo as it happens: services up, two workers on one store, SIGKILL in step 47, and the other worker goes on.

Everything here is a process, a signal or an HTTP request; what comes of it is told by the services' records.
"""

from __future__ import annotations

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perdure.cli.demo.figures import Figure, Kill, Sending, figures, table
from perdure.cli.demo.processes import Service, Worker, service, worker
from perdure.cli.demo.timeline import draw

STEPS = 50
KILL_IN_STEP = 47
HELD_MODEL_REQUEST = 24
"""Step 47 is the 24th question to the model: a plan, seven claims of three questions, then assess and decide."""

THINK_SECONDS = 0.03
SECONDS_MAX = 30.0
SECONDS_MAX_WITH_A_REAL_MODEL = 900.0
POLL_SECONDS = 0.01

T = TypeVar("T")


class DemoFailedError(Exception):
    """The story took another turn; the message says where, and what the processes said."""


@dataclass(frozen=True)
class Story:
    """What happened, from outside."""

    sendings: list[Sending]
    kill: Kill
    first_plan: str
    other_plan: str | None


def demo(directory: Path | None = None, *, environment: Mapping[str, str] = os.environ) -> int:
    """Run the demo and print what the services saw. 0 if every figure is as promised, 1 if one is not, 2 for bad use.

    `directory` keeps the store, the services' databases, the logs and the timeline: a new temporary one by default.
    With OPENAI_BASE_URL and OPENAI_API_KEY in the environment that model answers instead of the scripted one.
    """
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    elif directory.exists() and any(directory.iterdir()):
        print(f"perdure demo: {directory} is not empty; name a new folder")
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    try:
        story = happen(directory, environment)
    except DemoFailedError as error:
        print(f"perdure demo: {error}\nlogs and databases are in {directory}")
        return 1
    rows = figures(story.sendings, story.kill, steps_promised=STEPS, other_plan=story.other_plan)
    tell(story, rows, directory)
    return 0 if all(row.kept for row in rows) else 1


def happen(directory: Path, environment: Mapping[str, str]) -> Story:
    """Start everything, kill the worker that is in step 47, and wait for the other one to finish."""
    keyed = bool(environment.get("OPENAI_API_KEY"))
    upstream = environment.get("OPENAI_BASE_URL", "") if keyed else ""
    seconds_max = SECONDS_MAX_WITH_A_REAL_MODEL if upstream else SECONDS_MAX
    start = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - start:6.2f} s  {what}", flush=True)

    say(f"an agent of {STEPS} steps; one of its two workers will be killed in step {KILL_IN_STEP}")
    with ExitStack() as stack:
        options = ["--hold", str(HELD_MODEL_REQUEST), "--think-seconds", str(THINK_SECONDS), "--upstream", upstream]
        model = stack.enter_context(service("model", directory, *options))
        tickets = stack.enter_context(service("tickets", directory))
        say(f"services   model ({upstream or 'scripted'}) on port {model.port}, tickets on port {tickets.port}")
        settings = worker_environment(environment, model, tickets)
        workers = [stack.enter_context(worker(number, directory, settings)) for number in (1, 2)]
        say(f"workers    {workers[0].pid} and {workers[1].pid}, on one store")

        held = wait_for(lambda: held_step(model, tickets), f"step {KILL_IN_STEP}", seconds_max, workers)
        wait_for(lambda: all(each.is_ready() for each in workers), "both workers", seconds_max, workers)
        victim, survivor = sorted(workers, key=lambda each: each.pid != held.pid)
        kill = Kill(victim.pid, time.time(), KILL_IN_STEP)
        os.kill(victim.pid, signal.SIGKILL)
        say(f"step {KILL_IN_STEP}    is in flight in worker {victim.pid}: kill -9 {victim.pid}")

        wait_for(survivor.has_ended, f"worker {survivor.pid} to finish the run", seconds_max, [])
        if survivor.process.returncode:
            raise DemoFailedError(f"worker {survivor.pid} failed:\n{survivor.said()}")
        say(f"step {STEPS}    worker {survivor.pid} has finished the run: {survivor.said().splitlines()[-1]}")
        sendings = [*model.records(), *tickets.records()]
        first = min(sendings, key=lambda sending: sending.received_at)
        return Story(sendings, kill, first.text, None if upstream else model.answer_to(first))


def tell(story: Story, rows: Sequence[Figure], directory: Path) -> None:
    picture = directory / "timeline.svg"
    picture.write_text(draw(story.sendings, story.kill), encoding="utf-8")
    print(f"\nFrom the records of the two services:\n\n{table(rows)}\n")
    print(f"first plan   {story.first_plan}")
    if story.other_plan is not None:
        print(f"asked again  {story.other_plan}")
    print(f"timeline     {picture}")
    print(f"history      perdure runs show claims-1 --store {shlex.quote(str(directory / 'perdure.db'))}")


def worker_environment(environment: Mapping[str, str], model: Service, tickets: Service) -> dict[str, str]:
    """The workers know their model and their ticket service by the usual variables, and reach them by no proxy."""
    return {
        **environment,
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": environment.get("OPENAI_API_KEY") or "scripted",
        "TICKETS_URL": tickets.url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def held_step(model: Service, tickets: Service) -> Sending | None:
    """The request of step 47, once it waits for its answer and all before it are answered."""
    waiting = model.records(only_unanswered=True)
    if not waiting or len(model.records()) < HELD_MODEL_REQUEST or tickets.records(only_unanswered=True):
        return None
    return waiting[-1]


def wait_for(look: Callable[[], T | None], what: str, seconds_max: float, workers: Sequence[Worker]) -> T:
    """What `look` finds, as soon as it finds something. DemoFailedError if a worker ends, or time runs out."""
    end = time.monotonic() + seconds_max
    while time.monotonic() < end:
        if found := look():
            return found
        for each in workers:
            if each.has_ended():
                raise DemoFailedError(f"worker {each.pid} ended before its time:\n{each.said()}")
        time.sleep(POLL_SECONDS)
    raise DemoFailedError(f"waited {seconds_max:.0f} s for {what}")

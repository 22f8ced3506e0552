"""`perdure worker`: executes whatever is due, until it is stopped."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from perdure.api.runtime import Worker
from perdure.cli.exits import ExitCode, Stopped, complain
from perdure.cli.options import StoreOption, any_store, seconds_from
from perdure.cli.stopping import run_until_stopped
from perdure.cli.target import workflows_at

TargetsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TARGET...", help="app.py, package.module, or app.py:workflow.", show_default=False),
]


def worker(
    targets: TargetsArgument,
    lease: Annotated[str, typer.Option(help="How long it may be silent before others take over.")] = "10s",
    runs: Annotated[int, typer.Option(min=1, help="How many runs it holds in memory at most.")] = 1_000,
    steps: Annotated[int, typer.Option(min=1, help="How many steps it performs at once at most.")] = 1_000,
    threads: Annotated[int, typer.Option(min=1, help="How many of them in threads (`def` steps).")] = 32,
    guard: Annotated[bool, typer.Option("--guard", help="Checked mode: workflow code that reaches out fails.")] = False,
    store: StoreOption = None,
) -> ExitCode:
    """Execute the runs of all workflows in these modules: whatever is due now, and whatever comes.

    SIGTERM or Ctrl-C stops it within two seconds; runs that are not finished are named, and any worker goes on with
    them. So does every other worker on the store when this one is killed.
    """
    workflows = workflows_at(targets)
    with any_store(store) as opened:
        worker = Worker(
            opened, workflows=workflows, lease=seconds_from(lease, option="--lease"), concurrent_runs=runs,
            concurrent_steps=steps, threads=threads, guard=guard,
        )  # fmt: skip
        names = ", ".join(sorted(f"{workflow.name}/{workflow.spec.version}" for workflow in workflows))
        try:
            run_until_stopped(lambda: _serve(worker, f"worker serves {names} on {opened.url}"))
        except Stopped:
            complain("worker stopped" if worker.unfinished else "worker stopped; no run was in its hands")
    return ExitCode.OK


async def _serve(worker: Worker, greeting: str) -> None:
    async with worker:
        complain(greeting)
        await asyncio.Event().wait()

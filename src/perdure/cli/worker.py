"""`perdure worker`: executes whatever is due, until it is stopped."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from perdure.api.runtime import Worker
from perdure.cli.exits import ExitCode, Stopped, complain
from perdure.cli.options import (
    AuthorityOption,
    ModelPolicyOption,
    PolicyOption,
    PromptReleaseOption,
    ProvideOption,
    SecretsOption,
    StoreOption,
    any_store,
    policy_from,
    seconds_from,
)
from perdure.cli.stopping import run_until_stopped
from perdure.cli.target import authority_at, provided, providers, warn_of, workflows_at
from perdure.store import Store

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
    grace: Annotated[str, typer.Option(help="How long leaving waits for effects that were sent.")] = "30s",
    provide: ProvideOption = None,
    secrets: SecretsOption = None,
    prompt_release: PromptReleaseOption = None,
    model_policy_version: ModelPolicyOption = None,
    policy: PolicyOption = None,
    authority: AuthorityOption = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Whatever it takes up is paused until `perdure runs resume`.")
    ] = False,
    guard: Annotated[bool, typer.Option("--guard", help="Checked mode: workflow code that reaches out fails.")] = False,
    store: StoreOption = None,
) -> ExitCode:
    """Execute the runs of all workflows in these modules: whatever is due now, and whatever comes.

    SIGTERM or Ctrl-C stops it within two seconds, or when the effects that were sent have answered, within --grace; a
    second one at once. It ends with 0 then, or with 130 or 143 if something had to be cut off. Runs that are not
    finished are named, and any worker goes on with them. So does every other worker on the store when this one is
    killed. What `perdure code lint` finds in their source is said first.
    """
    workflows = workflows_at(targets)
    if not guard:  # checked mode does that itself
        warn_of(workflows)
    with any_store(store) as opened:
        options = {
            "workflows": workflows, "lease": seconds_from(lease, option="--lease"), "concurrent_runs": runs,
            "concurrent_steps": steps, "threads": threads, "guard": guard, "paused": paused,
            "grace": seconds_from(grace, option="--grace"), "prompt_release": prompt_release,
            "model_policy_version": model_policy_version, "secrets": providers(secrets),
            "policy": policy_from(policy), "authority": authority_at(authority),
        }  # fmt: skip
        names = ", ".join(sorted(f"{workflow.name}/{workflow.spec.version}" for workflow in workflows))
        greeting = f"worker serves {names} on {opened.url}"
        open_ones: list[Worker] = []
        try:
            run_until_stopped(
                lambda: _serve(opened, options, provide, greeting, open_ones),
                is_kept=lambda: any(worker.sees_effects_through for worker in open_ones),
            )
        except Stopped:
            is_left = any(worker.unfinished for worker in open_ones)
            complain("worker stopped" if is_left else "worker stopped; no run was in its hands")
    return ExitCode.OK


async def _serve(
    store: Store, options: dict[str, Any], provide: str | None, greeting: str, open_ones: list[Worker]
) -> None:
    """Until it is cancelled. `open_ones` gets the worker, for what is asked of it meanwhile and afterwards."""
    async with provided(provide) as clients:
        worker = Worker(store, provide=clients, **options)
        open_ones.append(worker)
        async with worker:
            complain(greeting)
            await asyncio.Event().wait()

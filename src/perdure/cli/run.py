"""`perdure run` executes a workflow here, to its end; `perdure start` leaves it to the workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence
from typing import Annotated, Any

import typer

from perdure.api.calls import Call
from perdure.api.client import Client
from perdure.api.runtime import Runtime
from perdure.api.script import finished, start_or_attach, with_children
from perdure.api.workflow import AnyWorkflow
from perdure.cli.arguments import call_of
from perdure.cli.exits import ExitCode, complain
from perdure.cli.options import (
    GoalOption,
    JsonOption,
    PolicyOption,
    ProvideOption,
    ScopeOption,
    SecretsOption,
    StoreOption,
    TagOption,
    any_store,
    policy_from,
    scope_from,
    seconds_from,
    tags_from,
)
from perdure.cli.outcome import outcome
from perdure.cli.show import print_json, say
from perdure.cli.stopping import run_until_stopped
from perdure.cli.target import authority_at, provided, providers, warn_of, workflow_at
from perdure.store import Store

TargetArgument = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="app.py:workflow, app.py, or package.module:workflow.", show_default=False),
]
ArgsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARGS]...",
        help="Its arguments: JSON, plain text for a str, @file.json, or - for stdin.",
        show_default=False,
    ),
]
ArgOption = Annotated[
    list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="An argument by name; may be repeated.")
]
IdOption = Annotated[str | None, typer.Option("--id", help="The run's id.", show_default=False)]


def run(
    target: TargetArgument,
    args: ArgsArgument = None,
    arg: ArgOption = None,
    id: IdOption = None,
    tag: TagOption = None,
    goal: GoalOption = "",
    scope: ScopeOption = None,
    policy: PolicyOption = None,
    provide: ProvideOption = None,
    secrets: SecretsOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Execute a workflow here, to its end, and print its result.

    Without --id it goes on with the unfinished run of the same workflow and arguments, if there is one. Stopped or
    killed, the same command goes on where it was. What `perdure code lint` finds in its source is said first.
    """
    workflow, known = workflow_at(target)
    call = call_of(workflow, args or (), arg or ())
    warn_of(with_children([workflow]))
    tags, stated, held_to = tags_from(tag), scope_from(scope), policy_from(policy)
    with any_store(store) as opened:
        open_ones: list[Runtime] = []
        return run_until_stopped(
            lambda: _run(
                opened, call, known, id, tags, goal, stated, held_to, provide, providers(secrets), open_ones,
                as_json=json,
            ),
            hint="the same command, or any worker, goes on",
            is_kept=lambda: any(runtime.sees_effects_through for runtime in open_ones),
        )


async def _run(
    store: Store, call: Call[Any], known: Sequence[AnyWorkflow], id: str | None, tags: dict[str, str], goal: str,
    scope: dict[str, str], policy: Any, provide: str | None, secrets: Sequence[Any],
    open_ones: list[Runtime], *, as_json: bool,
) -> ExitCode:  # fmt: skip
    async with (
        provided(provide) as clients,
        Runtime(
            store, workflows=known, adopt="own", provide=clients, policy=policy, secrets=secrets,
            authority=authority_at(None),
        ) as runtime,
    ):
        open_ones.append(runtime)
        run = await start_or_attach(runtime, store, call, id, tags=tags, goal=goal, scope=scope)
        if run.how != "started":
            complain(f"run {run.id} {'goes on' if run.how == 'attached' else await finished(run)}")
        with _silent_about(run.id):
            return await outcome(run, store, call.of.spec.result, as_json=as_json)


@contextlib.contextmanager
def _silent_about(run_id: str) -> Generator[None, None, None]:
    """What becomes of this run is told once, and not in the log as well."""

    def is_about_others(record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and record.args[:1] == (run_id,))

    log = logging.getLogger("perdure.runs")
    log.addFilter(is_about_others)
    try:
        yield
    finally:
        log.removeFilter(is_about_others)


def start(
    target: TargetArgument,
    args: ArgsArgument = None,
    arg: ArgOption = None,
    id: IdOption = None,
    tag: TagOption = None,
    goal: GoalOption = "",
    scope: ScopeOption = None,
    delay: Annotated[str, typer.Option(help="How long to wait before it begins: 30s, 10m, 12h, 7d.")] = "0",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Start a workflow, durably, and leave it to the workers. Prints the run's id.

    The same --id, workflow, arguments and --scope once more is the same run.
    """
    workflow, _ = workflow_at(target)
    call = call_of(workflow, args or (), arg or ())
    tags, seconds = tags_from(tag), seconds_from(delay, option="--delay")
    stated: dict[str, Any] = {"goal": goal, "scope": scope_from(scope)}
    with any_store(store) as opened:
        run = asyncio.run(_start(opened, call, id, tags, seconds, **stated))
    if json:
        print_json({name: run[name] for name in ("id", "how")})
    else:
        if run["how"] != "started":
            complain(f"run {run['id']} {'was started before' if run['how'] == 'attached' else run['finished']}")
        say(run["id"])
    return ExitCode.OK


async def _start(
    store: Store, call: Call[Any], id: str | None, tags: dict[str, str], delay: float, **stated: Any
) -> dict[str, str]:
    async with Client(store) as client:
        run = await client.start(call, id=id, tags=tags, delay=delay, **stated)
        return {"id": run.id, "how": run.how, "finished": await finished(run) if run.how == "finished earlier" else ""}

"""All commands, joined: `perdure --help` is the map."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from perdure import __version__, hide_secrets
from perdure.cli import code, inbox, runs, store
from perdure.cli.exits import MEANINGS, Commands, ExitCode
from perdure.cli.run import run, start
from perdure.cli.worker import worker

EPILOG = "\b\nExit codes:\n" + "\n".join(f"{which.value:>5}  {meaning}" for which, meaning in MEANINGS.items())

app = typer.Typer(
    name="perdure",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog=EPILOG,
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"perdure {__version__}")
        raise typer.Exit


@app.callback()
def perdure(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, wherever it stands.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Durable execution for AI agents: what was killed at step 47 goes on from step 47."""
    if context.invoked_subcommand == "worker":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    else:
        logging.basicConfig(level=logging.WARNING, format="perdure: %(message)s")
    for handler in logging.getLogger().handlers:
        hide_secrets(handler)


def demo(
    directory: Annotated[
        Path | None, typer.Argument(help="A new folder for stores, logs and the timeline.", show_default=False)
    ] = None,
) -> ExitCode:
    """Kill an agent in step 47 and after three payments, watch it go on, and show what the services it calls saw.

    With OPENAI_BASE_URL and OPENAI_API_KEY in the environment, and OPENAI_MODEL if you like, it asks that model.
    """
    from perdure.cli.demo import demo as happen

    return ExitCode(happen(directory))


for command in (run, start, worker, demo):
    app.command()(command)
app.add_typer(runs.app, name="runs")
app.add_typer(inbox.app, name="inbox")
app.add_typer(code.app, name="code")
app.add_typer(store.app, name="store")

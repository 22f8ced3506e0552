"""All commands, by their places: `perdure --help` is the map.

A command's module is loaded when the command is asked for: to load all of them takes longer than most commands do.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from perdure import __version__, hide_secrets
from perdure.cli.exits import MEANINGS, Commands, ExitCode

PLACES: Mapping[str, str] = {
    "run": "perdure.cli.run:run",
    "start": "perdure.cli.run:start",
    "worker": "perdure.cli.worker:worker",
    "demo": "perdure.cli.app:demo",
    "runs": "perdure.cli.runs:app",
    "inbox": "perdure.cli.inbox:app",
    "code": "perdure.cli.code:app",
    "store": "perdure.cli.store:app",
}
"""Where each command stands, or group of commands."""

EPILOG = "\b\nExit codes:\n" + "\n".join(f"{which.value:>5}  {meaning}" for which, meaning in MEANINGS.items())


class CommandsByPlace(Mapping[str, Any]):
    """What stands in `PLACES`, by its name, each made for typer when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(name, PLACES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


@functools.cache
def _command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    alone = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
        group: Any = typer.main.get_command(alone)
        return _folding(group.commands[name])
    alone.command(name)(found)
    return _folding(typer.main.get_command(alone))


def _folding(command: Any) -> Any:
    """The same, its help without the line breaks of the source: where lines end is for the terminal to say."""
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n"))
    for inner in getattr(command, "commands", {}).values():
        _folding(inner)
    return command


class AllCommands(Commands):
    """Those of `PLACES`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = CommandsByPlace()


app = typer.Typer(
    name="perdure",
    cls=AllCommands,
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


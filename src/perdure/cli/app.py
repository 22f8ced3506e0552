"""All commands, joined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perdure.cli import demo as demo_package

app = typer.Typer(name="perdure", no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def perdure() -> None:
    """Durable execution for AI agents."""


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Argument(help="a new folder for stores, logs and the timeline")] = None,
) -> None:
    """Kill an agent in step 47, watch it go on from step 47, and show what the services it calls saw of it."""
    raise typer.Exit(demo_package.demo(directory))

"""The command line: `perdure`. One module per group of commands; `app` joins them."""

from __future__ import annotations

import sys


def main() -> None:
    """What the `perdure` command runs. The core does not need typer and rich, so they may be missing."""
    try:
        from perdure.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.exit(f'the command line needs {error.name}: pip install "perdure[cli]"')
    app(prog_name="perdure")

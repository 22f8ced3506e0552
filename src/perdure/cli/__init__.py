"""The command line: `perdure`. One module per group of commands; `app` joins them."""

from __future__ import annotations

import sys


def main() -> None:
    """What the `perdure` command runs. The core does not need typer and rich, so they may be missing."""
    try:
        from perdure.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {"typer", "rich"}:
            raise
        sys.exit(f'perdure: the command line needs {missing}: pip install "perdure[cli]"')
    app(prog_name="perdure")

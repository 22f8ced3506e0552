"""The command line: `perdure`. One module per group of commands; `app` joins them.

app        all commands, by their places      exits      exit codes, and errors in one line
run        run, start                          options    what many commands have
worker     worker                              target     app.py:workflow → a workflow
runs       runs list|show|wait|send|...        arguments  words → arguments, by the type hints
inbox      inbox list|unblock                  outcome    waiting for a run, and telling how it ended
code       code lint, check (parts), diff      show       tables, times, JSON
store      store stats|prune|backup|verify     stopping   SIGINT and SIGTERM
demo/      demo
"""

from __future__ import annotations

import importlib.util
import signal
import sys


def main() -> None:
    """What the `perdure` command runs. The core does not need typer and rich, so they may be missing."""
    for package in ("typer", "rich"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f'perdure: the command line needs {package}: pip install "perdure[cli]"')
    try:
        from perdure.cli.app import app
    except KeyboardInterrupt:  # the commands take some time to be loaded, and say so themselves later
        sys.exit(128 + signal.SIGINT)
    app(prog_name="perdure")

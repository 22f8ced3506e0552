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
import os
import signal
import sys


def main() -> None:
    """What the `perdure` command runs. The core does not need typer and rich, so they may be missing."""
    _open_what_is_closed()
    for package in ("typer", "rich"):
        if importlib.util.find_spec(package) is None:
            sys.exit(f'perdure: the command line needs {package}: pip install "perdure[cli]"')
    try:
        from perdure.cli.app import app
    except KeyboardInterrupt:  # the commands take some time to be loaded, and say so themselves later
        sys.exit(128 + signal.SIGINT)
    app(prog_name="perdure")


def _open_what_is_closed() -> None:
    """Whoever starts us may have closed what we read from or write to (`>&-`): then there is nothing, and nobody."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # as long as the process lives

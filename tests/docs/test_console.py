"""What the pages type into a shell, in blocks marked ```console run: it prints what stands there.

The commands are those of `perdure`, run in this process: a shell would spend its time on starting Python.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.conftest import PAGES, Block, blocks, matches

from perdure.cli import main

VARIES = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?|\+?\b\d+(?:\.\d+)? m?s\b|sqlite:\S+"
    r"|(?<=from )\S+|(?<=INFO perdure: worker )\S+"
)
"""Times, durations, and names of workers."""

CONSOLES = [page for page in PAGES if any(block.is_run and block.language == "console" for block in blocks(page))]


def plain(text: str) -> str:
    """The text without what is another one each time, and without the widths of columns."""
    return "\n".join(" ".join(line.split()) for line in VARIES.sub("…", text).splitlines())


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to type in; what the commands change of this process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules, handlers = set(sys.modules), [*logging.root.handlers]
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    logging.root.handlers[:] = handlers


@pytest.mark.parametrize("page", CONSOLES, ids=lambda page: page.name)
def test_prints_what_the_page_says(page: Path, at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(page):
        if block.file is not None:
            (at_home / block.file).write_text(block.body, encoding="utf-8")
        elif block.language == "console" and block.is_run:
            for command, expected in commands(block):
                printed = run(command, monkeypatch)
                assert matches(plain(expected), plain(printed)), f"$ {command}\n{printed}"


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main()
    return said.getvalue()

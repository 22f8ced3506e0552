"""The tutorial, typed by a test: its files and commands in an empty directory, in one shell, from top to bottom.

It types faster than a person.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, blocks, matches
from tests.docs.test_console import commands, plain

PAGE = ROOT / "docs" / "tutorial.md"
MARK = "@@@ command"
INSTALLING = ("python -m venv", "pip install")
HASTE = (
    # how long a step takes stands in a file; and where the page sleeps, this waits for what it sleeps for
    ("asyncio.sleep(1)", "asyncio.sleep(float(open('pace').read()))"),
    ("perdure run agent.py coffee --id coffee &", "echo 1.5 > pace; perdure run agent.py coffee --id coffee &"),
    ("sleep 3; kill -9 $!", "until_found 'count(*) > 5 FROM events' \"kind = 'step.completed'\"; kill -9 $!; FAST"),
    ("sleep 2; perdure runs", "until_found 'count(*) > 0 FROM runs' \"status = 'waiting'\"; perdure runs"),
    ("perdure worker survey.py &> first.log &", "echo 1.5 > pace; perdure worker survey.py &> first.log &"),
    ("sleep 2; perdure worker", "until_said asking first.log; perdure worker"),
    ("sleep 4; kill -9 $first", "until_said serves second.log; kill -9 $first; FAST"),
    ("FAST", "echo 0.1 > pace"),
)
WAITING = """
for_a_while() { for _ in $(seq 300); do "$@" && return; sleep 0.05; done; }
until_said() { for_a_while grep -qs "$@"; }
until_found() { for_a_while python until.py "SELECT $1 WHERE $2" 2> until.log; }
"""
LOOK = """import sqlite3, sys
(is_so,) = sqlite3.connect("perdure.db").execute(sys.argv[1]).fetchone()
sys.exit(not is_so)
"""
NOISE = re.compile(r"^.*: line \d+: +\d+ (?:Killed|Terminated).*\n|^\[\d+\].*\n", re.MULTILINE)
def tidy(text: str) -> str:
    """What was printed, without what the shell says of jobs."""
    return plain(NOISE.sub("", text))


def hastened(text: str) -> str:
    for slow, fast in HASTE:
        text = text.replace(slow, fast)
    return text


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `perdure` and `python` are those of the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("perdure", "-m perdure"), ("python", "")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE")}
    return {**kept, "PATH": path, "PYTHONPATH": os.fspath(ROOT / "src"), "COLUMNS": "200", "TERM": "dumb"}


def test_every_command_of_the_tutorial_works(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "until.py").write_text(LOOK)
    (folder / "pace").write_text("0.1")
    steps: list[tuple[str, str]] = []
    for block in blocks(PAGE):
        if block.file is not None:
            (folder / block.file).write_text(hastened(block.body), encoding="utf-8")
        elif block.language == "console":
            steps += [step for step in commands(block) if not step[0].startswith(INSTALLING)]
    script = WAITING + "\n".join(f"echo '{MARK}'\n{hastened(command)}" for command, _ in steps)
    said = run(script, folder, environment)
    printed = said.split(f"{MARK}\n")[1:]
    assert len(printed) == len(steps), said
    for (command, expected), output in zip(steps, printed, strict=True):
        assert matches(plain(expected), tidy(output)), f"$ {command}\n{output}"
    assert_little_is_asked_twice("coffee", printed)
    first, second = ((folder / name).read_text() for name in ("first.log", "second.log"))
    assert_little_is_asked_twice("cups", [first, second])


def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    """What the shell prints; whatever it leaves running is ended."""
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=200)
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return said


def assert_little_is_asked_twice(topic: str, outputs: list[str]) -> None:
    """Of five questions each was asked; the one in flight at the kill perhaps twice."""
    asked = re.findall(rf"^asking the model: (the \w+ of {topic})$", "".join(outputs), re.MULTILINE)
    assert len(set(asked)) == 5
    assert len(asked) <= 6

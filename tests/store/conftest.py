"""Processes for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"

Child = subprocess.Popen[str]
Spawn = Callable[..., Child]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """`spawn("task", *arguments)` starts a task of child.py; whatever still lives at the end is killed."""
    children = list[Child]()

    def start(task: str, *arguments: object) -> Child:
        command = [sys.executable, "-W", "error", str(HERE / "child.py"), task, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def line(child: Child) -> str:
    """The next line that the child says."""
    assert child.stdout is not None
    said = child.stdout.readline().strip()
    if not said:
        child.kill()
        pytest.fail(f"the child said nothing more: {child.communicate()[1]}")
    return said


def rest(child: Child) -> str:
    """All that it said before it was killed; the last line may be half a line."""
    assert child.stdout is not None
    said = child.stdout.read()
    child.wait()
    return said


def tell(child: Child) -> None:
    """Let the child go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def finished(child: Child) -> list[str]:
    """What it said until it ended, without an error."""
    said, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert errors == ""
    return said.split("\n")[:-1]

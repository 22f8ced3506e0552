"""What type checkers make of user code: the types that it has, and the mistakes that they have to find in it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import perdure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = Path(perdure.__file__).parents[1]
CODE = HERE.joinpath("user_code.py").read_text()
IGNORED = re.compile(r"  # type: ignore\[[\w,-]+\]$")
SETTINGS = re.compile(r"^# (mypy|pyright): .*\n", re.MULTILINE)

WRONG = {number for number, line in enumerate(SETTINGS.sub("", CODE).splitlines(), 1) if IGNORED.search(line)}
"""Lines that have to be refused, and no others."""


@pytest.fixture
def laid_bare(tmp_path: Path) -> Path:
    """The code without its ignoring comments."""
    lines = [IGNORED.sub("", line) for line in SETTINGS.sub("", CODE).splitlines()]
    path = tmp_path / "user_code.py"
    path.write_text("\n".join(lines) + "\n")
    return path


def checked(*program: str | Path, folder: Path) -> str:
    environment = {**os.environ, "MYPYPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, program)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in {0, 1}, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_are_mistakes_to_find() -> None:
    assert len(WRONG) > 15


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_strict_refuses_exactly_the_mistakes(laid_bare: Path) -> None:
    """With --strict and nothing else, as users have it."""
    cache = ROOT / ".mypy_cache" / "user_code"
    out = checked("mypy", "--strict", "--config-file=", f"--cache-dir={cache}", laid_bare, folder=laid_bare.parent)
    found = re.findall(r"^[^:]*user_code\.py:(\d+): error: (.*)$", out, re.MULTILINE)
    assert {int(line) for line, _ in found} == WRONG, out


@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_strict_refuses_exactly_the_mistakes(laid_bare: Path) -> None:
    settings = {
        "typeCheckingMode": "strict", "extraPaths": [str(SOURCE)], "reportUnusedVariable": False, "include": ["."],
    }  # fmt: skip
    laid_bare.with_name("pyrightconfig.json").write_text(json.dumps(settings))
    of_this_venv = ("--pythonpath", sys.executable)  # where msgspec is, on which some of our classes stand
    out = checked("pyright", "--outputjson", *of_this_venv, "-p", laid_bare.parent, folder=laid_bare.parent)
    found = {
        problem["range"]["start"]["line"] + 1: problem["message"] for problem in json.loads(out)["generalDiagnostics"]
    }
    assert set(found) == WRONG, found

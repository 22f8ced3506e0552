"""The scripts for people who have just cloned the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.mark.parametrize("script", ["demo", "test", "test-all", "bench", "soak"])
def test_without_a_python_it_says_what_is_needed_and_nothing_else(script: str, tmp_path: Path) -> None:
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "cat", "cksum", "tr", "rm", "touch"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run(
        [tools / "bash", tmp_path / "scripts" / script],
        env={"PATH": os.fspath(tools), "HOME": os.fspath(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line == "perdure needs Python 3.11 or newer and found none on PATH; set PYTHON=/path/to/python3.11"


def test_an_environment_that_was_left_half_made_is_made_anew(tmp_path: Path) -> None:
    """As it is left on Debian where python3-venv is missing: it has a Python, and no pip."""
    half = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", half], check=True)
    assert not list(half.glob("**/site-packages/pip"))
    use = f"set -euo pipefail; . {SCRIPTS}/lib/venv.sh; use_venv {half} {sys.executable} tried {__file__} -- pip"
    done = subprocess.run(["bash", "-c", use], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(half.glob(".installed-tried-*"))

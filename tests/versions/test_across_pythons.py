"""A history that was written under one Python is replayed under every later one.

Takes the Python that runs the tests and those that PERDURE_PYTHONS names (scripts/test makes virtual environments with
the others that it finds); without others it proves that much less.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")


def pythons() -> dict[tuple[int, int], str]:
    """Minor version → interpreter."""
    found = {sys.version_info[:2]: sys.executable}
    for interpreter in filter(None, os.environ.get("PERDURE_PYTHONS", "").split(os.pathsep)):
        said = subprocess.run(
            [interpreter, "-c", "import msgspec, sys; print(*sys.version_info[:2])"], capture_output=True, text=True
        )
        if said.returncode == 0:
            major, minor = said.stdout.split()
            found.setdefault((int(major), int(minor)), interpreter)
    return dict(sorted(found.items()))


PYTHONS = pythons()
PAIRS = [(older, newer) for older, newer in itertools.product(PYTHONS, PYTHONS) if older <= newer]


def run(version: tuple[int, int], part: str, store: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src")}
    done = subprocess.run(
        [PYTHONS[version], PROGRAM, part, store], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    trace: list[str] = json.loads(done.stdout)
    return trace


@pytest.mark.parametrize(("older", "newer"), PAIRS, ids=[f"{a[0]}.{a[1]} to {b[0]}.{b[1]}" for a, b in PAIRS])
def test_a_history_replays_under_every_later_python(
    tmp_path: Path, older: tuple[int, int], newer: tuple[int, int]
) -> None:
    recorded = run(older, "record", tmp_path / "perdure.db")
    assert len(recorded) >= 40
    assert run(newer, "go_on", tmp_path / "perdure.db") == recorded

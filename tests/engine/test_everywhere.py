"""Hash seeds, addresses and Python versions decide nothing: the same history everywhere, and it replays everywhere."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engine import everywhere
from tests.engine.driving import Driver

import perdure

ROOT = Path(everywhere.__file__).parents[2]
SOURCE = Path(perdure.__file__).parents[1]
HASH_SEEDS = 20


def differs(history: str) -> str:
    """The first line in which a history differs from the recorded one."""
    recorded = everywhere.RECORDED.read_text().splitlines()
    pairs = itertools.zip_longest(history.splitlines(), recorded)
    return next((f"line {n}: {one} != {other}" for n, (one, other) in enumerate(pairs, 1) if one != other), "")


@pytest.mark.parametrize("order", range(8))
def test_every_prefix_of_a_history_of_everything_replays(order: int) -> None:
    everywhere.record(order).check_replays()


def test_the_recorded_history_is_what_this_python_records() -> None:
    assert differs(everywhere.dump(everywhere.record(1))) == ""


def test_the_recorded_history_replays_on_this_python() -> None:
    history, result = everywhere.load(everywhere.RECORDED.read_text())
    assert Driver(everywhere.everything, past=history).result() == result


def record_elsewhere(python: str, seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, ROOT)))}
    program = [python, "-c", "from tests.engine.everywhere import main; main()"]
    done = subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_twenty_hash_seeds_give_one_history() -> None:
    with ThreadPoolExecutor(4) as threads:
        recordings = threads.map(record_elsewhere, [sys.executable] * HASH_SEEDS, range(1, HASH_SEEDS + 1))
        assert {differs(recording) for recording in recordings} == {""}


def other_pythons() -> list[str]:
    """Interpreters of other supported versions that have what perdure needs. `PERDURE_PYTHONS` names more of them."""
    named = os.environ.get("PERDURE_PYTHONS", "").split(os.pathsep)
    found = [*filter(None, named), *filter(None, (shutil.which(f"python3.{minor}") for minor in (11, 12, 13, 14)))]
    return [python for python in found if python != sys.executable and has_msgspec(python)]


def has_msgspec(python: str) -> bool:
    return subprocess.run([python, "-c", "import msgspec"], capture_output=True, timeout=60).returncode == 0


def test_every_python_found_gives_the_same_history() -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other Python with msgspec on PATH or in PERDURE_PYTHONS")
    for python in pythons:
        assert differs(record_elsewhere(python, 1)) == "", python

"""The tests that pages show, run by pytest as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.conftest import ROOT, blocks

PLUGIN = "perdure.testing.plugin"


@pytest.mark.parametrize(("page", "tests"), [("testing.md", 5), ("drill.md", 2)])
def test_the_tests_of_the_page_pass(page: str, tests: int, tmp_path: Path) -> None:
    for block in blocks(ROOT / "docs" / page):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.body, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", PLUGIN, "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith(f"{tests} passed in"), done.stdout + done.stderr

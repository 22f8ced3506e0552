"""Every runnable block of the docs prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
from pathlib import Path

import pytest
from tests.docs.conftest import PAGES, ROOT, Block, blocks, matches, programs

PROGRAMS = [pytest.param(block, shown, id=block.name) for page in PAGES for block, shown in programs(page)]
OTHERS = [
    pytest.param(block, id=block.name)
    for page in PAGES
    for block in blocks(page)
    if block.language == "python" and page.name != "lint.md"  # which shows what is wrong
]


@pytest.mark.parametrize(("block", "shown"), PROGRAMS)
def test_prints_what_the_page_says(block: Block, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run(block, tmp_path, monkeypatch)
    assert matches(shown, printed), f"{block.name} prints:\n{printed}\nand not:\n{shown}"


def run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the program prints, run as `python app.py` in an empty folder."""
    program = folder / "app.py"
    program.write_text(block.body, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.fspath(ROOT / "src"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(os.fspath(program), run_name="__main__")
    return said.getvalue()


@pytest.mark.parametrize("block", OTHERS)
def test_is_python(block: Block) -> None:
    compile(block.body, block.name, "exec", flags=_TOP_LEVEL_AWAIT)


_TOP_LEVEL_AWAIT = 0x2000


@pytest.mark.parametrize(
    ("expected", "printed", "is_so"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a … c", "a 17 c\n", True),
        ("a …", "b\n", False),
        ("a\n…\nd", "a\nb\nc\nd\n", True),
        ("a\n…\nd", "a\nd\n", True),
        ("a\n…\nd", "a\nd\ne\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_what_stands_for_anything(expected: str, printed: str, is_so: bool) -> None:
    assert matches(expected, printed) is is_so

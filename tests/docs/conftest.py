"""Reading the pages: their fenced blocks, and programs run as a reader would run them.

What stands behind a fence's language says what a test does with the block:

    ```python run        a whole program: it is run, and the ```text block that follows is what it prints
    ```python file=NAME  a file of this page; `console` blocks find it there
    ```python            read by people; it has to compile, and the names of perdure in it have to exist
    ```console run       commands after `$ `, in the folder of the page's files; other lines are what they print

In what is printed, `…` stands for anything within a line, and a line with nothing but `…` for any lines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<rest>[^\n`]*)\n(?P<body>.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page. `line` is where its fence stands."""

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    body: str

    @property
    def file(self) -> str | None:
        """The name of the file that it shows."""
        return next((mark.removeprefix("file=") for mark in self.marks if mark.startswith("file=")), None)

    @property
    def is_run(self) -> bool:
        return "run" in self.marks

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        body = textwrap.dedent(match["body"])
        yield Block(page, line, match["language"], tuple(match["rest"].split()), body)


def programs(page: Path) -> Iterator[tuple[Block, str]]:
    """The runnable blocks of a page, each with what it is said to print."""
    found = list(blocks(page))
    for block, after in zip(found, [*found[1:], None], strict=False):
        if block.is_run and block.language == "python":
            yield block, after.body if after is not None and after.language == "text" else ""


def matches(expected: str, printed: str) -> bool:
    """Whether this was printed, `…` standing for anything."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.rstrip().split("…"))) + r"[ ]*\n"
        for line in expected.strip("\n").splitlines()
    ]
    return re.fullmatch("".join(lines), printed.strip("\n") + "\n" if printed.strip() else "") is not None

"""How things are printed: tables for people on a terminal, the same as plain text in pipes, JSON for programs.

Whatever comes from a store may have been written by anybody: control characters never reach the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

VALUE_CHARACTERS_MAX = 200
PARAGRAPH_WIDTH_MAX = 100

FOLDED = {"what", "what happened", "value", "tags", "count", "known", "question", "evidence"}
"""Columns that take several lines where a terminal is narrow."""
FOLDED_WIDTH_MIN = 10


def print_json(value: Any) -> None:
    """JSON on stdout: indented for people, one line in pipes."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, ensure_ascii=False, indent=indent, default=str))


def json_text(value: Any) -> str:
    """A value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows under their columns. In pipes nothing is folded or cut, and there are no colours."""
    if not rows:
        print(empty, file=sys.stderr)
    elif sys.stdout.isatty():
        _print_rich(columns, rows)
    else:
        _print_plain(columns, rows)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # takes a while to import, and pipes do not need it
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column not in FOLDED, overflow="fold")
    for row in rows:
        table.add_row(*[Text(safe(cell)) for cell in row])
    Console(width=max(Console().width, _width_min(columns, rows))).print(table)


def _width_min(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide a table has to be, so that nothing of it is cut off: ids are to be copied. What is wider than the
    terminal, that breaks by itself."""
    widths = [max(len(safe(row[number])) for row in [columns, *rows]) for number in range(len(columns))]
    kept = [
        min(width, FOLDED_WIDTH_MIN) if column in FOLDED else width
        for column, width in zip(columns, widths, strict=True)
    ]
    return sum(kept) + 2 * (len(columns) - 1)


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[column.upper() for column in columns], *[[safe(cell) for cell in row] for row in rows]]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def tell(sentence: str, value: Mapping[str, Any], *, as_json: bool) -> None:
    """What was done: a sentence for people, or an object for programs."""
    if as_json:
        print_json(value)
    else:
        say(sentence)


def say(text: str) -> None:
    """A line for people on stdout."""
    print(safe(text))


def safe(text: str) -> str:
    """The text without line breaks and what a terminal would obey.

    >>> safe("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    text = " ".join(text.split())
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def paragraph(text: str, indent: str, first_indent: str | None = None) -> str:
    """A text in lines that fit the terminal."""
    width = min(shutil.get_terminal_size().columns, PARAGRAPH_WIDTH_MAX)
    first = indent if first_indent is None else first_indent
    return textwrap.fill(
        safe(text), width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def short(text: str) -> str:
    """A value in as much of a line as it may take."""
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"


# ── times ───────────────────────────────────────────────────────────────────────────────────


def moment(at: datetime) -> str:
    """A time as people read it, UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def instant(at: datetime) -> str:
    """A time of day to the millisecond, UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


def length(seconds: float) -> str:
    """A duration as people read it.

    >>> [length(s) for s in (0.0042, 3.14159, 75, 7300, 200000)]
    ['4 ms', '3.1 s', '1 m 15 s', '2 h 1 m', '2 d 7 h']
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, next_unit, size, next_size in (("m", "s", 60, 1), ("h", "m", 3_600, 60)):
        if seconds < size * (60 if unit == "m" else 24):
            return f"{seconds // size:.0f} {unit} {seconds % size // next_size:.0f} {next_unit}"
    return f"{seconds // 86_400:.0f} d {seconds % 86_400 // 3_600:.0f} h"

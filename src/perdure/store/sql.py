"""SQL from .sql files: named queries and numbered migrations, for every database alike.

A query file holds blocks that begin with `-- name: some_query`; a folder's query names are unique.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perdure.errors import PerdureBug

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(folder: Path) -> Mapping[str, str]:
    """Every named query in the folder's .sql files."""
    queries = dict[str, str]()
    for file in sorted(folder.glob("*.sql")):
        for name, text in _named(file.read_text(encoding="utf-8")):
            if name in queries:
                raise PerdureBug(f"{file.name}: a query named {name} is there already")
            queries[name] = text
    return queries


def _named(text: str) -> list[tuple[str, str]]:
    _, *parts = _NAME.split(text)
    return [(name, _squeeze(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def _squeeze(query: str) -> str:
    """On one line, without comments: the text is the key of the driver's statement cache."""
    lines = (line.partition("--")[0] for line in query.splitlines())
    return " ".join(" ".join(lines).split()).rstrip(";")


def load_migrations(folder: Path) -> list[str]:
    """The migration scripts in order; the n-th (from 1) leads to schema version n."""
    files = sorted(folder.glob("*.sql"))
    numbers = [int(file.name.partition("_")[0]) for file in files]
    if numbers != list(range(1, len(files) + 1)):
        raise PerdureBug(f"{folder}: the migrations are numbered {numbers}, not from 1 on without gaps")
    return [file.read_text(encoding="utf-8") for file in files]

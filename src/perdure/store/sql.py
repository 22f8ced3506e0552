"""SQL from .sql files: named queries and numbered migrations, for every database alike.

A query file holds blocks that begin with `-- name: some_query`; a folder's query names are unique.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from perdure.errors import PerdureBug

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(folder: str) -> Mapping[str, str]:
    """Every named query in the folder's .sql files."""
    queries = dict[str, str]()
    for file, content in _sql_files(folder):
        for name, text in _named(content):
            if name in queries:
                raise PerdureBug(f"{file}: a query named {name} is there already")
            queries[name] = text
    return queries


def _sql_files(folder: str) -> Iterator[tuple[str, str]]:
    """(name, content) of each, by name."""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".sql"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                yield name, file.read()


def _named(text: str) -> list[tuple[str, str]]:
    _, *parts = _NAME.split(text)
    return [(name, _squeeze(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def _squeeze(query: str) -> str:
    """On one line, without comments: the text is the key of the driver's statement cache."""
    lines = (line.partition("--")[0] for line in query.splitlines())
    return " ".join(" ".join(lines).split()).rstrip(";")


def load_migrations(folder: str) -> list[str]:
    """The migration scripts in order; the n-th (from 1) leads to schema version n."""
    files = list(_sql_files(folder))
    numbers = [int(name.partition("_")[0]) for name, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise PerdureBug(f"{folder}: the migrations are numbered {numbers}, not from 1 on without gaps")
    return [script for _, script in files]

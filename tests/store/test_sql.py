"""Queries and migrations come from .sql files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import PerdureBug
from perdure.store.sql import load_migrations, load_queries


def test_queries_are_named_blocks_on_one_line_without_comments(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "-- About a.\n\n-- name: one\nSELECT 1 -- the first\n  FROM t;\n\n-- name: two\nSELECT 2;\n"
    )
    (tmp_path / "b.sql").write_text("-- name: three\nSELECT 3\n")
    assert load_queries(str(tmp_path)) == {"one": "SELECT 1 FROM t", "two": "SELECT 2", "three": "SELECT 3"}


def test_a_name_is_used_once(tmp_path: Path) -> None:
    for name in ("a.sql", "b.sql"):
        (tmp_path / name).write_text("-- name: one\nSELECT 1;\n")
    with pytest.raises(PerdureBug, match=r"b\.sql: a query named one"):
        load_queries(str(tmp_path))


def test_migrations_come_in_order(tmp_path: Path) -> None:
    for number in (2, 1, 10, *range(3, 10)):
        (tmp_path / f"{number:04}_step.sql").write_text(f"SELECT {number};")
    assert load_migrations(str(tmp_path)) == [f"SELECT {number};" for number in range(1, 11)]


def test_a_missing_migration_is_noticed(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / f"{number:04}_step.sql").write_text("SELECT 1;")
    with pytest.raises(PerdureBug, match=r"\[1, 3\]"):
        load_migrations(str(tmp_path))

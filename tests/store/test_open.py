"""URLs of stores, and what opening one imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import StoreUnsupportedError
from perdure.store import open_store
from perdure.store.memory import MemoryStore

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("url", [":memory:", "memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory(url: str) -> None:
    assert isinstance(open_store(url), MemoryStore)


def test_a_path_and_its_urls_name_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    urls = set[str]()
    for url in ("./perdure.db", "perdure.db", "sqlite:///perdure.db", f"sqlite:///{tmp_path}/perdure.db"):
        store = open_store(url)
        urls.add(store.url)
        store.close()
    assert urls == {f"sqlite:///{tmp_path}/perdure.db"}
    again = open_store(urls.pop())
    again.close()


@pytest.mark.parametrize("url", ["postgresql://localhost/x", "postgres://localhost/x"])
def test_postgresql_is_not_there_yet(url: str) -> None:
    with pytest.raises(StoreUnsupportedError, match="PostgreSQL store is not part of this version"):
        open_store(url)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite://x", "file://x"])
def test_other_urls_are_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(StoreUnsupportedError, match=r"perdure\.db|relative/path"):
        open_store(url)


def test_importing_the_package_loads_no_driver() -> None:
    drivers = {"sqlite3", "perdure.store.memory", "perdure.store.sqlite"}
    code = f"import sys, perdure.store; print(*{drivers} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == []

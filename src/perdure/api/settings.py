"""Which store is meant when none is named: `PERDURE_STORE`, else `[tool.perdure] store`, else `./perdure.db`."""

from __future__ import annotations

import os
from typing import Any

from perdure.clock import Clock
from perdure.errors import UsageError
from perdure.specs import mapping
from perdure.store import open_store
from perdure.store.protocol import Store

DEFAULT_STORE = "./perdure.db"


def store_url() -> str:
    """The configured store."""
    return os.environ.get("PERDURE_STORE") or _from_pyproject() or DEFAULT_STORE


def _from_pyproject() -> str | None:
    path = os.path.abspath("pyproject.toml")
    if not os.path.isfile(path):
        return None
    import tomllib

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read, so [tool.perdure] store is unknown: {error}") from error
    return _store_of(table.get("tool", {}).get("perdure", {}), path)


def _store_of(section: Any, path: str) -> str | None:
    """The store that `[tool.perdure]` names. UsageError for what else stands there: it would have no effect."""
    table = mapping(section)
    others = ["perdure = ..."] if table is None else sorted(set(table) - {"store"})
    store = None if table is None or others else table.get("store", DEFAULT_STORE)
    if not isinstance(store, str) or not store:
        wrong = f"has {', '.join(others)}" if others else f"has store = {store!r}"
        raise UsageError(f'{path}: [tool.perdure] {wrong}; it takes one key, as in store = "shop.db"')
    return store


def store_from(given: str | os.PathLike[str] | Store | None, clock: Clock) -> Store:
    """An open store from what a user may give."""
    if given is None:
        return open_store(store_url(), clock=clock)
    if isinstance(given, str | os.PathLike):
        return open_store(os.fspath(given), clock=clock)
    if not hasattr(given, "commit"):
        raise UsageError(f"store={given!r}: a path, a URL or an open store is wanted")
    return given

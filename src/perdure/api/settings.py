"""Which store is meant when none is named (`PERDURE_STORE`, else `[tool.perdure] store`, else `./perdure.db`); which
authority on the command line (`PERDURE_AUTHORITY`, else `[tool.perdure] authority`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from perdure.clock import Clock
from perdure.errors import UsageError
from perdure.specs import mapping
from perdure.store import open_store
from perdure.store.protocol import Store

DEFAULT_STORE = "./perdure.db"
KEYS = ("store", "authority")


def store_url() -> str:
    """The configured store."""
    return os.environ.get("PERDURE_STORE") or _from_pyproject("store") or DEFAULT_STORE


def authority_target() -> str | None:
    """Where the authority is that the command line asks, as `app.py:NAME`; None if none is configured."""
    return os.environ.get("PERDURE_AUTHORITY") or _from_pyproject("authority")


def _from_pyproject(key: str) -> str | None:
    path = os.path.abspath("pyproject.toml")
    if not os.path.isfile(path):
        return None
    import tomllib

    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read, so [tool.perdure] {key} is unknown: {error}") from error
    return _named_in(table.get("tool", {}).get("perdure", {}), path).get(key)


def _named_in(section: Any, path: str) -> Mapping[str, str]:
    """What `[tool.perdure]` names. UsageError for what else stands there: it would have no effect."""
    table = mapping(section)
    others = ["perdure = ..."] if table is None else sorted(set(table) - set(KEYS))
    named = {} if table is None or others else table
    empty = [f"{key} = {value!r}" for key, value in named.items() if not isinstance(value, str) or not value]
    if others or empty:
        told = 'store = "shop.db", or authority = "app.py:AUTHORITY"'
        raise UsageError(f"{path}: [tool.perdure] has {', '.join(others or empty)}; it takes {told}")
    return cast("Mapping[str, str]", named)


def store_from(given: str | os.PathLike[str] | Store | None, clock: Clock) -> Store:
    """An open store from what a user may give."""
    if given is None:
        return open_store(store_url(), clock=clock)
    if isinstance(given, str | os.PathLike):
        return open_store(os.fspath(given), clock=clock)
    if not hasattr(given, "commit"):
        raise UsageError(f"store={given!r}: a path, a URL or an open store is wanted")
    return given

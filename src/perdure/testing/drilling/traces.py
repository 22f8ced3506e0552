"""What workflow code leaves behind in objects outside of it: in module globals, closures, fakes that it can reach.

Such a trace is a side effect outside of any step: it comes again whenever the run is taken up by another process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

from perdure.api.declaration import CANNOT_CHANGE
from perdure.api.source import values_named_in

T = TypeVar("T")

DEPTH_MAX = 5
NODES_MAX = 20_000


def traces(function: Callable[..., Any], doing: Callable[[], T]) -> tuple[T, list[str]]:
    """Do something, and tell which of the values that the function can reach by name are other ones afterwards."""
    reached = values_named_in(function)
    before = {name: _told(value) for name, value in reached.items()}
    done = doing()
    return done, [name for name, value in reached.items() if _told(value) != before[name]]


def _told(value: Any) -> str:
    """A value as text, as deep as one can see without calling any code of it."""
    parts: list[str] = []
    _tell(value, parts, DEPTH_MAX, set())
    return " ".join(parts)


def _tell(value: Any, parts: list[str], depth: int, around: set[int]) -> None:
    if isinstance(value, str | bytes | int | float | bool | None):
        parts.append(repr(value))
        return
    parts.append(f"{type(value).__name__}@{id(value):x}")
    if isinstance(value, CANNOT_CHANGE) or depth == 0 or id(value) in around or len(parts) > NODES_MAX:
        return
    inside = around | {id(value)}
    for part in _parts(value):
        _tell(part, parts, depth - 1, inside)


def _parts(value: Any) -> Collection[Any]:
    if isinstance(value, dict):
        members = cast("Mapping[Any, Any]", value)
        return [part for pair in members.items() for part in pair] + _attributes(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [*cast("Collection[Any]", value), *_attributes(value)]
    return _attributes(value)


def _attributes(value: Any) -> list[Any]:
    try:
        return list(cast("dict[str, Any]", vars(value)).values())
    except TypeError:
        return []

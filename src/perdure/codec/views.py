"""What of a recorded value counts, when some of it is noise?

`without(raw, ["$.messages[*].id"])` removes what changes from call to call, before a digest is taken.

    $.name  $["any name"]  one key          $.*  every key
    $[2]    one element                     $[*] every element
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable

import msgspec

from perdure.errors import DeclarationError

_STEP = (
    r"""\.(?P<name>[^.\[\]*]+)|\.(?P<every>\*)|\[(?P<all>\*)\]|\[(?P<index>\d+)\]|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]"""
)


class Every(enum.Enum):
    """A step that stands for many."""

    KEY = enum.auto()
    ELEMENT = enum.auto()


Step = str | int | Every
Route = tuple[Step, ...]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


def without(raw: bytes, paths: Iterable[str]) -> bytes:
    """The canonical text without what the paths name. Paths that lead nowhere remove nothing.

    Raises DeclarationError for a path that is none.
    """
    routes = [_parsed(path) for path in paths]
    return _pruned(raw, routes) if routes else raw


def begins_at(path: str) -> Step:
    """A path's first step. Raises DeclarationError for a path that is none.

    >>> begins_at("$.messages[*].id")
    'messages'
    """
    return _parsed(path)[0]


@functools.lru_cache(maxsize=1024)
def _parsed(path: str) -> Route:
    steps: list[Step] = []
    position = 1
    if not path.startswith("$"):
        raise DeclarationError(f"{path!r} is no path: it begins with $, like $.messages[*].id")
    while position < len(path):
        match = re.compile(_STEP).match(path, position)
        if match is None:
            raise DeclarationError(
                f"{path!r} is no path: not understood from {path[position:]!r} on (like $.messages[*].id)"
            )
        steps.append(_step(match))
        position = match.end()
    if not steps:
        raise DeclarationError("the path '$' would remove everything")
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["name"] is not None:
        return match["name"]
    if match["index"] is not None:
        return int(match["index"])
    if match["quoted"] is not None:
        name: str = msgspec.json.decode(f'"{match["quoted"]}"')
        return name
    return Every.KEY if match["every"] else Every.ELEMENT


def _pruned(raw: bytes, routes: list[Route]) -> bytes:
    """The text without the routes' ends; parts that no route enters are copied as they stand."""
    try:
        if raw[:1] == b"{":
            parts = [(key, _kept(key, item, routes)) for key, item in _object(raw).items()]
            return _encode({key: item for key, item in parts if item is not None})
        if raw[:1] == b"[":
            elements = [_kept(index, item, routes) for index, item in enumerate(_array(raw))]
            return _encode([item for item in elements if item is not None])
    except msgspec.DecodeError:
        pass
    return raw


def _kept(at: str | int, item: msgspec.Raw, routes: list[Route]) -> msgspec.Raw | None:
    """What is left of the child at a key or index; None if it is removed."""
    every = Every.KEY if isinstance(at, str) else Every.ELEMENT
    here = [route[1:] for route in routes if route[0] == at or route[0] is every]
    if () in here:
        return None
    return msgspec.Raw(_pruned(bytes(item), here)) if here else item

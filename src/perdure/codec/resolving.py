"""What do the annotations of a class or function say, once strings, type variables and aliases are resolved?"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from perdure.codec.shape import type_of

_ALIAS: type | None = getattr(typing, "TypeAliasType", None)
"""What `type X = ...` makes, from Python 3.12 on."""


class Unresolved:
    """A string annotation whose names could not be found, and why."""

    def __init__(self, hint: str, reason: str) -> None:
        self.hint, self.reason = hint, reason


def resolved_hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class or function, strings evaluated; what cannot be is an Unresolved."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except Exception:  # evaluating annotations runs foreign code; what fails is found below, one by one
        return _hints_one_by_one(owner)


def _hints_one_by_one(owner: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    holders = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    for holder in holders:
        names, inner = _names_of_class(holder) if isinstance(holder, type) else _names_of_function(holder)
        for name, hint in inspect.get_annotations(holder).items():
            hints[name] = _evaluated(hint, names, inner)
    return hints


def _names_of_class(cls: type) -> tuple[Mapping[str, Any], dict[str, Any]]:
    module = sys.modules.get(cls.__module__)
    return vars(module) if module else {}, {**vars(cls), cls.__name__: cls}


def _names_of_function(function: Any) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Its module's names, and those that it takes from a function around it."""
    function = inspect.unwrap(function)
    inner: dict[str, Any] = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            inner[name] = cell.cell_contents
    return getattr(function, "__globals__", {}), inner


def _evaluated(hint: Any, names: Mapping[str, Any], inner: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": hint})
    try:
        return typing.get_type_hints(holder, dict(names), inner, include_extras=True)["it"]
    except Exception as no:  # as above
        return Unresolved(hint if isinstance(hint, str) else repr(hint), str(no))


def is_no_type(hint: Any) -> bool:
    """Whether a value was written where a type is wanted: `5`, or `[int]` for `list[int]`."""
    return isinstance(hint, _VALUES)


_VALUES = (int, float, complex, bytes, list, tuple, set, frozenset, dict)


def annotated_part(fn: Any) -> Any:
    """What carries the annotations of something that can be called."""
    while isinstance(fn, functools.partial):
        fn = fn.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(fn, type):
        return vars(fn).get("__init__", fn)
    return fn if inspect.isroutine(fn) else type_of(fn).__call__


# ── type variables and aliases ──────────────────────────────────────────────────────────────


def is_alias(hint: Any) -> bool:
    """Whether it was made by a `type` statement."""
    return _ALIAS is not None and isinstance(hint, _ALIAS)


def alias_value(hint: Any) -> Any:
    """What an alias stands for: after `type Pair[T] = tuple[T, T]`, Pair[int] gives tuple[int, int]. Otherwise None."""
    if is_alias(hint):
        return hint.__value__
    origin: Any = typing.get_origin(hint)
    if is_alias(origin):
        return bound(origin.__value__, dict(zip(origin.__type_params__, typing.get_args(hint), strict=False)))
    return None


def variables_of(cls: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    """What the type variables of a class and of its generic bases stand for."""
    variables: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if origin is not None and origin is not typing.Generic:
            inherited = variables_of(origin, tuple([bound(each, variables) for each in typing.get_args(base)]))
            variables = {**inherited, **variables}
    return variables


def bound(hint: Any, variables: dict[Any, Any]) -> Any:
    """The hint with its type variables replaced; unknown ones stay."""
    if isinstance(hint, typing.TypeVar):
        return variables.get(hint, hint)
    parameters = () if is_class(hint) else getattr(hint, "__parameters__", ())
    if not variables or not parameters:
        return hint
    return hint[tuple([variables.get(each, each) for each in parameters])]


def with_self(hint: Any, cls: Any) -> Any:
    """The hint with `Self` replaced by the class that it stands in."""
    if hint is _SELF:
        return cls
    args = typing.get_args(hint)
    replaced = tuple([with_self(each, cls) for each in args])
    if all(one is other for one, other in zip(args, replaced, strict=True)):
        return hint
    origin: Any = typing.get_origin(hint)
    if origin not in UNIONS:
        return origin[replaced]
    union: Any = replaced[0]
    for each in replaced[1:]:
        union = union | each
    return union


_SELF: Any = typing.Self
UNIONS = (typing.Union, types.UnionType)


def members_of(hint: Any, opened: tuple[Any, ...] = ()) -> list[Any]:
    """The members of a union in the order written, aliases, NewTypes and the like opened; of anything else, itself."""
    origin = typing.get_origin(hint)
    if origin in UNIONS:
        inner: list[Any] = list(typing.get_args(hint))
    elif origin is typing.Annotated:
        inner = [typing.get_args(hint)[0]]
    elif origin is typing.Literal:
        return [type_of(value) for value in typing.get_args(hint)]
    elif isinstance(hint, typing.NewType):
        inner = [hint.__supertype__]
    elif isinstance(hint, typing.TypeVar):
        inner = list(hint.__constraints__) or [Any if hint.__bound__ is None else hint.__bound__]
    elif alias_value(hint) is not None and hint not in opened:
        inner, opened = [alias_value(hint)], (*opened, hint)
    else:
        return [hint]
    return [member for each in inner for member in members_of(each, opened)]


# ── words ───────────────────────────────────────────────────────────────────────────────────


def is_class(hint: Any) -> bool:
    """Whether it is a class and not, like list[int], made from one."""
    return isinstance(hint, type) and typing.get_origin(hint) is None


def words_of(hint: Any) -> str:
    """A hint as a person would write it, without the modules: `list[Claim] | None`."""
    if hint is Any:
        return "anything"
    if is_class(hint):
        return "None" if hint is types.NoneType else hint.__name__
    return _MODULES.sub("", repr(hint).replace("<locals>.", ""))


_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")

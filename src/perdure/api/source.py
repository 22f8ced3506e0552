"""What a workflow's code names: other workflows, steps, functions; and the digest of the source of all of it.

Names are followed as Python finds them: by a global, a closure, or an attribute of a module. What is found otherwise
(by getattr, say) is not seen.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import msgspec

from perdure.api.calls import DurableFunction
from perdure.api.workflow import AnyWorkflow
from perdure.specs import EffectSpec, StepSpec

Code = types.FunctionType | type
"""What has a source text of its own."""


class Source(msgspec.Struct, frozen=True):
    """`digest`: hexadecimal, of the source text of all that the workflow's code leads to; another one after any edit of
    one of them. `functions`: where they stand (`module:qualified.name`), classes among them. `unreadable`: those of
    which there is no text to be had (typed into a console, say)."""

    digest: str
    functions: tuple[str, ...]
    unreadable: tuple[str, ...]


def source_of(workflow: AnyWorkflow) -> Source:
    """The source of a workflow, and of all that it leads to: workflows, steps, effects (with their keys, look-ups and
    undoings), and the plain functions and classes of its own package or folder.

    What lies elsewhere (installed libraries) and the values of module globals are not part of it."""
    texts: dict[str, str] = {}
    unreadable: list[str] = []
    for code in _codes_of(workflow):
        name = f"{code.__module__}:{code.__qualname__}"
        try:
            text = textwrap.dedent(inspect.getsource(code))
        except (OSError, TypeError):
            unreadable.append(name)
            text = code.__code__.co_code.hex() if isinstance(code, types.FunctionType) else ""
        texts[name] = texts.get(name, "") + "\n".join(line.rstrip() for line in text.splitlines())
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\0{texts[name]}\0".encode())
    return Source(digest.hexdigest(), tuple(sorted(texts)), tuple(sorted(unreadable)))


def _codes_of(workflow: AnyWorkflow) -> Iterator[Code]:
    """Each once, in the order in which they are come to."""
    seen: dict[int, Code] = {}
    pending: list[Any] = list(_written_for(workflow.spec))
    while pending:
        code = pending.pop(0)
        if id(code) in seen or not isinstance(code, Code):
            continue
        seen[id(code)] = code
        for function in _functions_in(code):
            for value in reached_from(function).values():
                for each in (value, *_members(value)):
                    pending += _written_for(each.spec) if isinstance(each, DurableFunction) else [each]
    yield from seen.values()


def _written_for(spec: Any) -> Iterator[Callable[..., Any]]:
    """The functions that an author wrote for a workflow, a step or an effect."""
    yield spec.function
    if isinstance(spec, StepSpec) and spec.digest_view is not None:
        yield spec.digest_view
    if isinstance(spec, EffectSpec):
        yield from (each for each in (spec.key, spec.lookup) if each is not None)
        if spec.undo is not None:
            yield from _written_for(spec.undo)


def _functions_in(code: Code) -> Iterator[types.FunctionType]:
    if isinstance(code, types.FunctionType):
        yield code
        return
    for value in vars(code).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            yield function


def _members(value: Any) -> list[Any]:
    """Durable functions in a table of them: `PAY_BY = {"card": charge, ...}`."""
    if isinstance(value, dict):
        inside = list(cast("Mapping[Any, Any]", value).values())
    elif isinstance(value, list | tuple):
        inside = list(cast("list[Any]", value))
    else:
        return []
    return [each for each in inside if isinstance(each, DurableFunction)]


def functions_of(function: Any) -> list[types.FunctionType]:
    """A function, and the plain ones of its own package or folder that it leads to, methods of classes among them."""
    found: list[types.FunctionType] = [function]
    for value in reached_from(function).values():
        if isinstance(value, types.FunctionType | type):
            found += _functions_in(value)
    return found


def durable_in(function: Any) -> Iterator[Any]:
    """The durable functions that a function names, also in a table of them."""
    for value in reached_from(function).values():
        yield from (each for each in (value, *_members(value)) if isinstance(each, DurableFunction))


# ── names ───────────────────────────────────────────────────────────────────────────────────


def named_in(function: Any) -> Iterator[Any]:
    """The durable functions that a function names, and those that plain functions beside it name which it leads to."""
    yield from (value for value in reached_from(function).values() if isinstance(value, DurableFunction))


def values_named_in(function: Any) -> dict[str, Any]:
    """What else it names: values, by where they are found."""
    code = (DurableFunction, types.FunctionType, types.ModuleType, type)
    return {name: value for name, value in reached_from(function).items() if not isinstance(value, code)}


def reached_from(function: types.FunctionType) -> dict[str, Any]:
    """All that a function names, by where it is found, and what the plain functions name that it leads to: of code,
    only what is of its own package or folder, or durable."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    pending = [function]
    while pending:
        current = pending.pop(0)
        seen.add(id(current))
        for name, value in _named_values(current):
            if isinstance(value, types.FunctionType):
                if not _is_beside(value, current):
                    continue
                if id(value) not in seen:
                    pending.append(value)
            elif isinstance(value, type) and not _is_beside(value, current):
                continue
            found.setdefault(name, value)
    return found


def _is_beside(value: Code, function: Code) -> bool:
    """Of the same package, or in a file of the same folder."""
    return _package(value) == _package(function) or _folder(value) == _folder(function) != ""


def _folder(code: Code) -> str:
    if isinstance(code, types.FunctionType):
        return os.path.dirname(code.__code__.co_filename)
    return os.path.dirname(getattr(sys.modules.get(code.__module__), "__file__", None) or "")


def _package(code: Code) -> str:
    return str(code.__module__).partition(".")[0]


def _named_values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What the function's names stand for, and the attributes that it may take of modules."""
    names = list(dict.fromkeys(name for code in _codes(function.__code__) for name in code.co_names))
    found = [(f"{function.__module__}.{name}", function.__globals__.get(name)) for name in names]
    for place, value in [*found, *_closed_over(function)]:
        yield place, value
        if isinstance(value, types.ModuleType):
            yield from ((f"{value.__name__}.{name}", vars(value).get(name)) for name in names)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not bound yet
            yield f"{name} of {function.__qualname__}", cell.cell_contents


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)

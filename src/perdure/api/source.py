"""What a workflow's code names: other workflows, steps, functions; and the digest of the source of all of it.

Names are followed as Python finds them: by a global, a closure, or an attribute of a module. What is found otherwise
(in a dict, by getattr) is not seen.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perdure.api.calls import DurableFunction
from perdure.api.workflow import AnyWorkflow
from perdure.specs import EffectSpec, StepSpec


@dataclass(frozen=True)
class Source:
    """`digest`: hexadecimal, of the source text of all functions that the workflow's code leads to; another one after
    any edit of one of them. `functions`: where they stand (`module:qualified.name`). `unreadable`: those of which there
    is no text to be had (typed into a console, written in C)."""

    digest: str
    functions: tuple[str, ...]
    unreadable: tuple[str, ...]


def source_of(workflow: AnyWorkflow) -> Source:
    """The source of a workflow, and of the workflows, steps, effects (with their keys, look-ups and undoings) and plain
    functions of the same package that it leads to.

    What lies in other packages (your own libraries among them) and values in module globals are not part of it."""
    texts: dict[str, str] = {}
    unreadable: list[str] = []
    for function in _functions_of(workflow):
        name = f"{function.__module__}:{function.__qualname__}"
        try:
            text = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            unreadable.append(name)
            text = repr(function.__code__.co_code) if hasattr(function, "__code__") else ""
        texts[name] = texts.get(name, "") + "\n".join(line.rstrip() for line in text.splitlines())
    digest = hashlib.sha256()
    for name in sorted(texts):
        digest.update(f"{name}\0{texts[name]}\0".encode())
    return Source(digest.hexdigest(), tuple(sorted(texts)), tuple(sorted(unreadable)))


def _functions_of(workflow: AnyWorkflow) -> Iterator[types.FunctionType]:
    """Each once, in the order in which they are come to."""
    seen: dict[int, types.FunctionType] = {}
    pending = list(_written_for(workflow.spec))
    while pending:
        function = pending.pop(0)
        if id(function) in seen or not isinstance(function, types.FunctionType):
            continue
        seen[id(function)] = function
        for value in named_in(function):
            pending += _written_for(value.spec) if isinstance(value, DurableFunction) else [value]
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


# ── names ───────────────────────────────────────────────────────────────────────────────────


def named_in(function: Any) -> Iterator[Any]:
    """What a function names, as far as it is of interest: durable functions, and plain functions of the same package
    with all that those name."""
    yield from _named_in(function, set())


def _named_in(function: Any, seen: set[int]) -> Iterator[Any]:
    seen.add(id(function))
    for value in _named_values(function):
        if isinstance(value, DurableFunction):
            yield value
        elif isinstance(value, types.FunctionType) and id(value) not in seen and _package(value) == _package(function):
            yield value
            yield from _named_in(value, seen)


def _package(function: types.FunctionType) -> str:
    return function.__module__.partition(".")[0]


def _named_values(function: types.FunctionType) -> Iterator[Any]:
    """What the function's names stand for, and the attributes that it may take of modules."""
    names = list(dict.fromkeys(name for code in _codes(function.__code__) for name in code.co_names))
    for value in [*map(function.__globals__.get, names), *_closed_over(function)]:
        yield value
        if isinstance(value, types.ModuleType):
            yield from map(vars(value).get, names)


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not bound yet
            yield cell.cell_contents


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)

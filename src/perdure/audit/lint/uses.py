"""Every call in a source file: what is called, in whose body, and whether something limits how long it takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from perdure.audit.lint.names import Declared, Function, Meaning, Member, Scope, scope_of_function, scope_of_module

TIMEOUTS = frozenset({"asyncio.timeout", "asyncio.timeout_at", "anyio.fail_after", "anyio.move_on_after"})


class Use(NamedTuple):
    """A call. `inside`: the functions around it, the outermost first."""

    filename: str
    node: ast.Call
    meaning: Meaning
    inside: tuple[Function, ...]
    is_limited: bool
    """In a block with a timeout, or in the argument of `asyncio.wait_for`."""
    is_final: bool
    """In a `finally` block of the innermost function."""
    scope: Scope

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def name(self) -> str:
        """The full name of what is called, "" if the source does not tell."""
        return self.meaning if isinstance(self.meaning, str) else ""

    @property
    def durable(self) -> Declared | None:
        """The step, effect or workflow of this file that is called."""
        declared = self.meaning.of if isinstance(self.meaning, Member) else self.meaning
        return declared if isinstance(declared, Declared) and declared.kind is not None else None

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """What is given by that name, or in that place (from 0)."""
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        given = self.node.args
        return given[position] if position is not None and position < len(given) else None

    @property
    def hides_arguments(self) -> bool:
        """Stars hide what is given."""
        starred = any(isinstance(argument, ast.Starred) for argument in self.node.args)
        return starred or any(keyword.arg is None for keyword in self.node.keywords)


class Item(NamedTuple):
    """`of[...]`, anywhere, or in a function."""

    node: ast.Subscript
    of: Meaning
    is_inside: bool


@dataclass(frozen=True)
class _Place:
    scope: Scope
    inside: tuple[Function, ...] = ()
    is_limited: bool = False
    is_final: bool = False


@dataclass
class Uses:
    """All calls of a module, and its functions by the line at which their code begins, each with the scope inside."""

    tree: ast.Module
    filename: str
    calls: list[Use] = field(default_factory=list[Use])
    functions: dict[int, tuple[Function, Scope]] = field(default_factory=dict[int, tuple[Function, Scope]])
    scope: Scope = field(init=False)
    """Of the module."""
    items: list[Item] = field(default_factory=list["Item"])

    def __post_init__(self) -> None:
        """RecursionError for an expression of thousands of terms."""
        self.scope = scope_of_module(self.tree)
        self._read(self.tree.body, _Place(self.scope))

    def _read(self, nodes: Iterable[ast.AST], place: _Place) -> None:
        for node in nodes:
            self._read_node(node, place)

    def _read_node(self, node: ast.AST, place: _Place) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                inner = scope_of_function(node, place.scope)
                self.functions[first] = node, inner
                self._read([*node.decorator_list, *_defaults(node.args)], place)
                self._read(node.body, _Place(inner, (*place.inside, node)))
            case ast.Lambda():
                self._read([node.body], replace(place, scope=scope_of_function(node, place.scope)))
            case ast.Try() | ast.TryStar():
                self._read([*node.body, *node.handlers, *node.orelse], place)
                self._read(node.finalbody, replace(place, is_final=True))
            case ast.With() | ast.AsyncWith():
                self._read(node.items, place)
                is_limited = place.is_limited or any(_is_timeout(item, place.scope) for item in node.items)
                self._read(node.body, replace(place, is_limited=is_limited))
            case ast.Call():
                self._read_call(node, place)
            case _:
                if isinstance(node, ast.Subscript):
                    self.items.append(Item(node, place.scope.meaning(node.value), bool(place.inside)))
                self._read(ast.iter_child_nodes(node), place)

    def _read_call(self, node: ast.Call, place: _Place) -> None:
        meaning = place.scope.meaning(node.func)
        where = place.inside, place.is_limited, place.is_final, place.scope
        self.calls.append(Use(self.filename, node, meaning, *where))
        if meaning == "asyncio.wait_for":
            place = replace(place, is_limited=True)
        self._read(ast.iter_child_nodes(node), place)


def _defaults(arguments: ast.arguments) -> Iterator[ast.expr]:
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default is not None)


def _is_timeout(item: ast.withitem, scope: Scope) -> bool:
    called = item.context_expr
    return isinstance(called, ast.Call) and scope.meaning(called.func) in TIMEOUTS

"""What does a name in a source file mean? Scopes, import aliases, and the functions declared in the same file.

Everything is read from the syntax; nothing is imported. A name with two meanings has none.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Kind: TypeAlias = Literal["step", "effect", "workflow"]
KINDS: dict[str, Kind] = {"step": "step", "effect": "effect", "workflow": "workflow"}
TRANSPARENT = frozenset({"perdure.use", "perdure.single_retry_owner"})
"""Functions of ours whose result is what they are given, or one of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A step, effect or workflow that is declared in the file; or a function that is called as it is (`kind` None)."""

    function: Function
    scope: Scope
    """Where it stands."""
    kind: Kind | None

    @property
    def is_async(self) -> bool:
        return isinstance(self.function, ast.AsyncFunctionDef)

    @property
    def first_line(self) -> int:
        """That of the first decorator, if any: as in the code object."""
        return min([self.function.lineno, *(decorator.lineno for decorator in self.function.decorator_list)])


@dataclass(frozen=True, slots=True)
class Member:
    """An attribute of something declared: `search.call`."""

    of: Declared
    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """A variable that is assigned once: what is assigned."""

    expression: ast.expr


@dataclass(frozen=True, slots=True)
class Hinted:
    """A parameter with a type hint."""

    hint: ast.expr


Binding: TypeAlias = str | Declared | Value | Hinted | None
Meaning: TypeAlias = str | Declared | Member | None


@dataclass(slots=True, eq=False)
class Scope:
    """The names bound in a module or function, and where the others are looked for."""

    outer: Scope | None = None
    names: dict[str, Binding] = field(default_factory=dict[str, "Binding"])
    resolving: set[str] = field(default_factory=set[str])

    def bind(self, name: str, binding: Binding) -> None:
        """What is imported stays so: `try: import x` / `except ImportError: x = None`."""
        if not isinstance(self.names.get(name), str) or isinstance(binding, str):
            self.names[name] = binding

    def find(self, name: str) -> tuple[Scope, Binding] | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and name not in scope.resolving:
                return scope, scope.names[name]
            scope = scope.outer
        return None

    @property
    def is_module(self) -> bool:
        return self.outer is None

    # ── what an expression means ────────────────────────────────────────────────────────────

    def meaning(self, node: ast.expr) -> Meaning:
        """The full name of what the expression denotes (`datetime.datetime.now`), or the function declared here."""
        match node:
            case ast.Name(id=name):
                return self._meaning_of_name(name)
            case ast.Attribute(value=value, attr=attribute):
                owner = self.meaning(value)
                if isinstance(owner, Declared):
                    return Member(owner, attribute)
                return f"{owner}.{attribute}" if isinstance(owner, str) else None
            case ast.Call(func=function, args=arguments):
                called = self.meaning(function)
                if called in TRANSPARENT and len(arguments) == 1:
                    return self._meaning_through(str(called), arguments[0])
                return f"{called}()" if isinstance(called, str) else None
            case ast.BinOp(left=left, op=ast.Div()):  # Path("a") / "b"
                return self.meaning(left)
            case _:
                return None

    def _meaning_of_name(self, name: str) -> Meaning:
        found = self.find(name)
        if found is None:
            return f"builtins.{name}" if hasattr(builtins, name) else None
        scope, binding = found
        if not isinstance(binding, Value):
            return binding if isinstance(binding, (str, Declared)) else None
        with scope.aside(name):
            return scope.meaning(binding.expression)

    def _meaning_through(self, called: str, argument: ast.expr) -> Meaning:
        """`use(Client)` is a Client, `single_retry_owner(client)` is the client."""
        meaning = self.meaning(argument)
        if called != "perdure.use":
            return meaning
        return f"{meaning}()" if isinstance(meaning, str) else None

    @contextmanager
    def aside(self, name: str) -> Generator[None]:
        """Not to find a name while its own value is looked at: `x = x or y`."""
        self.resolving.add(name)
        yield
        self.resolving.discard(name)

    def kind_of_decorator(self, node: ast.expr) -> Kind | None:
        """`@step`, `@perdure.step(...)`, `@retried` after `retried = perdure.step(...)`."""
        meaning = self.meaning(node)
        if not isinstance(meaning, str) or not meaning.startswith("perdure."):
            return None
        return KINDS.get(meaning.removesuffix("()").rpartition(".")[2])


# ── reading a scope ─────────────────────────────────────────────────────────────────────────


def scope_of_module(tree: ast.Module) -> Scope:
    scope = Scope()
    _bind_all(scope, tree.body)
    return scope


def scope_of_function(function: Function | ast.Lambda, outer: Scope) -> Scope:
    scope = Scope(outer)
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        scope.bind(argument.arg, Hinted(argument.annotation) if argument.annotation else None)
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            scope.bind(star.arg, None)
    if not isinstance(function, ast.Lambda):
        _bind_all(scope, function.body)
    return scope


def _bind_all(scope: Scope, body: Sequence[ast.stmt]) -> None:
    """Imports and values first: they say what the decorators mean."""
    nodes = list(nodes_here(body))
    stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    for name in stores:
        scope.bind(name, None)
    for node in nodes:
        _bind_node(scope, node, stores)
    for node in nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            for name in node.names:
                scope.names.pop(name, None)
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            scope.bind(node.name, Declared(node, scope, _kind(scope, node)))


def _bind_node(scope: Scope, node: ast.AST, stores: Counter[str]) -> None:
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                root = alias.name.partition(".")[0]
                scope.bind(alias.asname or root, alias.name if alias.asname else root)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            for alias in aliases:
                scope.bind(alias.asname or alias.name, None if level else f"{module}.{alias.name}")
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ) if stores[name] == 1:
            scope.bind(name, Value(value))
        case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)) if stores[name] == 1:
            scope.bind(name, Value(value))
        case (
            ast.ClassDef(name=name)
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
        ):
            scope.bind(name, None)
        case _:
            pass


def _kind(scope: Scope, function: Function) -> Kind | None:
    kinds = map(scope.kind_of_decorator, function.decorator_list)
    return next((kind for kind in kinds if kind is not None), None)


INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def nodes_here(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes in the order of the source, without what is inside of nested functions and classes."""
    waiting = list(reversed(body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, INNER):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))

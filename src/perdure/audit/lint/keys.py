"""The keys of effects: is there one, and is it the same next time?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from perdure.audit.lint import rules
from perdure.audit.lint.hits import Hit
from perdure.audit.lint.names import Declared, Function, Member, Scope, scope_of_function

UNSTABLE = frozenset({"clock", "randomness", "io", "environment"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read(tree: ast.Module, scope: Scope) -> Iterator[Hit]:
    """All hits in functions that stand under `@charge.key`."""
    if "key" in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}:
        for effect, function, around in _keys(tree.body, scope):
            yield from _read_key(effect, function, around)


def effects_with_key(tree: ast.Module, scope: Scope) -> set[str] | None:
    """The names of which a `.key` is spoken of. None if one is given to something else: it may be any effect."""
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "key" and isinstance(node.value, ast.Name):
            named.add(node.value.id)
        if any(_is_key_of_a_variable(function, scope) for function in _called(node)):
            return None
    return named


def _called(node: ast.AST) -> list[ast.expr]:
    """What the node calls, as an expression or as a decorator."""
    if isinstance(node, ast.Call):
        return [node.func]
    return node.decorator_list if isinstance(node, FUNCTIONS) else []


def _is_key_of_a_variable(function: ast.expr, scope: Scope) -> bool:
    """`each.key(...)` or `@each.key`, where `each` is no function of the module."""
    if not isinstance(function, ast.Attribute) or function.attr != "key" or not isinstance(function.value, ast.Name):
        return False
    _, binding = scope.find(function.value.id) or (None, None)
    return not isinstance(binding, Declared)


def _keys(body: Sequence[ast.AST], scope: Scope) -> Iterator[tuple[Declared, Function, Scope]]:
    for node in body:
        if isinstance(node, FUNCTIONS):
            for decorator in node.decorator_list:
                match scope.meaning(decorator):
                    case Member(of=Declared(kind="effect") as effect, name="key"):
                        yield effect, node, scope
                    case _:
                        pass
            yield from _keys(node.body, scope_of_function(node, scope))
        elif isinstance(node, ast.stmt):
            yield from _keys(list(ast.iter_child_nodes(node)), scope)


def _read_key(effect: Declared, function: Function, around: Scope) -> Iterator[Hit]:
    name = effect.function.name
    if isinstance(function, ast.AsyncFunctionDef):
        instead = "Write `def`: it has only the arguments to look at."
        yield Hit("undeclarable", function, effect, {"it": "An async function", "kind": "key", "instead": instead})
    scope = scope_of_function(function, around)
    for node in ast.walk(function):
        meaning = scope.meaning(node.func) if isinstance(node, ast.Call) else None
        if isinstance(meaning, str) and rules.CALLS.get(meaning) in UNSTABLE:
            yield Hit("unstable-key", node, effect, {"it": f"{meaning.removeprefix('builtins.')}()", "effect": name})

"""Does an effect go by the result of a step that does not say for how long, or on what grounds, it is good?

Results are followed through the variables of one function: `verdict = await decide(claim)`, `cents = verdict.cents`,
`await refund(claim, cents)`. What is handed on otherwise is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perdure.audit.lint.hits import Hit
from perdure.audit.lint.names import Declared, Member, Scope, nodes_here, scope_of_function

SAYS = frozenset({"valid_for", "recovery", "on_stale"})
"""Options of a step that say so."""


def read(tree: ast.Module, workflow: Declared, vouched: frozenset[str]) -> Iterator[Hit]:
    """One hit for each step whose result reaches an effect in this workflow. `vouched`: names that have premises."""
    scope = scope_of_function(workflow.function, workflow.scope)
    nodes = list(nodes_here(workflow.function.body))
    results = _results(nodes, scope)
    told: set[str] = set()
    for node in nodes:
        effect = _effect(node, scope)
        if effect is None or not isinstance(node, ast.Call):
            continue
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            for step in _steps_in(given, scope, results):
                name = step.function.name
                if name not in told and name not in vouched and not _says(step, scope):
                    told.add(name)
                    yield Hit("unchecked-decision", node, None, {"it": name, "effect": effect.function.name})


def with_premises(tree: ast.Module) -> frozenset[str]:
    """Names of which a `.premise` is spoken of."""
    return frozenset(
        node.value.id for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "premise" and isinstance(node.value, ast.Name)
    )  # fmt: skip


def _results(nodes: list[ast.AST], scope: Scope) -> dict[str, list[Declared]]:
    """Variables, and the steps whose results are in them; also through other variables."""
    assigned = [
        (target.id, node.value)
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    results: dict[str, list[Declared]] = {}
    for _ in assigned:  # as often as a result can be handed on
        for name, value in assigned:
            found = results.setdefault(name, [])
            found += [step for step in _steps_in(value, scope, results) if step not in found]
    return results


def _steps_in(node: ast.expr, scope: Scope, results: dict[str, list[Declared]]) -> list[Declared]:
    """The steps whose results an expression is made of. What a step or an effect makes of them is its own."""
    if isinstance(node, ast.Call) and (called := _declared(node, scope)) is not None and called.kind is not None:
        return [called] if called.kind == "step" else []
    found = list(results.get(node.id, ())) if isinstance(node, ast.Name) else []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.keyword):
            inner = child.value if isinstance(child, ast.keyword) else child
            found += [step for step in _steps_in(inner, scope, results) if step not in found]
    return found


def _declared(node: ast.Call, scope: Scope) -> Declared | None:
    meaning = scope.meaning(node.func)
    if isinstance(meaning, Member):
        return meaning.of if meaning.name == "call" else None
    return meaning if isinstance(meaning, Declared) else None


def _effect(node: ast.AST, scope: Scope) -> Declared | None:
    called = _declared(node, scope) if isinstance(node, ast.Call) else None
    return called if called is not None and called.kind == "effect" else None


def _says(step: Declared, scope: Scope) -> bool:
    """Whether its decorator says for how long its result is good, or what is done about it."""
    calls = [each for each in step.function.decorator_list if isinstance(each, ast.Call)]
    return any(keyword.arg is None or keyword.arg in SAYS for call in calls for keyword in call.keywords)

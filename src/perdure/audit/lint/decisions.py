"""Does an effect go by the result of a step that does not say for how long, or on what grounds, it is good?

Results are followed through the variables of one function: `verdict = await decide(claim)`, `cents = verdict.cents`,
`await refund(claim, cents)`. What is handed on otherwise is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from perdure.audit.lint.hits import Hit
from perdure.audit.lint.names import Declared, Member, Scope, nodes_here, scope_of_function

SAYS = frozenset({"valid_for", "recovery", "on_stale"})
"""Options of a step that say so."""


def read(tree: ast.Module, workflow: Declared, vouched: Mapping[str, frozenset[str]]) -> Iterator[Hit]:
    """One hit for each step whose result reaches an effect in this workflow. `vouched`: names that have premises, and
    what those are called."""
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
                name, words = step.function.name, {"it": step.function.name, "effect": effect.function.name}
                is_vouched = name in vouched or _says(step, scope)
                if name not in told and not is_vouched:
                    told.add(name)
                    yield Hit("unchecked-decision", node, None, words)
                elif is_vouched and _leaves_out(effect, step, vouched.get(name, frozenset())):
                    yield Hit("decision-left-out", node, None, words)


def with_premises(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Names of which a `.premise` is spoken of, and the names of those premises, as far as they can be read."""
    found: dict[str, frozenset[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="premise", value=ast.Name(id=of)):
                found.setdefault(of, frozenset())
            case ast.Call(ast.Attribute(ast.Name(id=of), "premise"), [ast.Constant(str(name)), *_]):
                found[of] = found.get(of, frozenset()) | {name}
            case _:
                pass
    return found


def _leaves_out(effect: Declared, step: Declared, premises: frozenset[str]) -> bool:
    """Whether the effect says what it relies on, and that is neither this step nor one of its premises."""
    said = [keyword.value for call in _decorators(effect) for keyword in call.keywords if keyword.arg == "relies_on"]
    if not said or not isinstance(said[0], ast.List | ast.Tuple | ast.Set):
        return False
    names = [each.id if isinstance(each, ast.Name) else getattr(each, "value", None) for each in said[0].elts]
    options = {keyword.arg: keyword.value for call in _decorators(step) for keyword in call.keywords}
    if getattr(options.get("recovery"), "value", None) == "replay":  # there is nothing to check
        return False
    called = getattr(options.get("name"), "value", None)
    return not {step.function.name, called, *premises} & set(names)


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
    said = (keyword.arg for call in _decorators(step) for keyword in call.keywords)
    return any(option is None or option in SAYS for option in said)


def _decorators(it: Declared) -> list[ast.Call]:
    return [each for each in it.function.decorator_list if isinstance(each, ast.Call)]

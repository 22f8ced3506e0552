"""Reads the code of workflows and steps and says what in it is against a rule.

A function that a workflow calls and that stands in the same file is workflow code too. Code that is handed on by name
(to a step, to `perdure.section().run`) is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perdure.audit.lint import decisions, keys, rules
from perdure.audit.lint.calls import misfit
from perdure.audit.lint.hits import Hit
from perdure.audit.lint.names import (
    Declared,
    Function,
    Hinted,
    Member,
    Scope,
    Value,
    nodes_here,
    scope_of_function,
    scope_of_module,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read(tree: ast.Module) -> Iterator[Hit]:
    """All hits in a module."""
    scope = scope_of_module(tree)
    yield from _lambdas(tree, scope)
    decorated = [node.lineno for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.decorator_list]
    yield from keys.read(tree, scope)
    keyed, vouched = keys.effects_with_key(tree, scope), decisions.with_premises(tree)
    for declared in _all_declared(tree.body, scope, decorated):
        if declared.kind == "effect" and keyed is not None and declared.function.name not in keyed:
            yield Hit("no-key", declared.function, declared, {"it": declared.function.name})
        if declared.kind == "workflow":
            yield from decisions.read(tree, declared, vouched)
        if declared.kind is not None:
            yield from _generator(declared, declared.kind)
            reader = Reader(declared)
            reader.read(declared)
            yield from reader.hits


def _lambdas(tree: ast.Module, scope: Scope) -> Iterator[Hit]:
    """`step(lambda ...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Lambda):
            kind = scope.kind_of_decorator(node.func)
            if kind is not None:
                yield _undeclarable(node, None, "A lambda", kind, "Write `def name(...)`.")


def _generator(declared: Declared, kind: str) -> Iterator[Hit]:
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes_here(declared.function.body)):
        instead = f"Return a list, or call one {kind} per item."
        yield _undeclarable(declared.function, declared, "A generator", kind, instead)


def _undeclarable(node: ast.AST, declared: Declared | None, it: str, kind: str, instead: str) -> Hit:
    return Hit("undeclarable", node, declared, {"it": it, "kind": kind, "instead": instead})


def _all_declared(body: Sequence[ast.AST], scope: Scope, decorated: Sequence[int]) -> Iterator[Declared]:
    """The functions of a module, also those inside of functions and classes. `decorated`: lines worth looking for."""
    for node in body:
        last_line = getattr(node, "end_lineno", None) or 0
        if isinstance(node, FUNCTIONS):
            _, binding = scope.find(node.name) or (None, None)
            if isinstance(binding, Declared) and binding.function is node:
                yield binding
            if any(node.lineno < line <= last_line for line in decorated):
                yield from _all_declared(node.body, scope_of_function(node, scope), decorated)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _all_declared(list(ast.iter_child_nodes(node)), scope, decorated)


@dataclass
class Reader(ast.NodeVisitor):
    """Reads one workflow or step, and what it calls in the same file."""

    root: Declared
    hits: list[Hit] = field(default_factory=list[Hit])
    seen: set[Function] = field(default_factory=set[Function])
    scope: Scope = field(init=False)
    loops: int = 0
    """How many loops of the present function are around us."""
    returns: set[ast.AST] = field(default_factory=set[ast.AST])
    """Where the workflow itself returns."""
    hosted: set[Function] = field(default_factory=set[Function])
    """Functions that run elsewhere: given to perdure.section().run."""
    awaited: set[ast.expr] = field(default_factory=set[ast.expr])

    def __post_init__(self) -> None:
        self.scope = self.root.scope
        self.returns = {node for node in nodes_here(self.root.function.body) if isinstance(node, ast.Return)}

    @property
    def in_workflow(self) -> bool:
        return self.root.kind == "workflow"

    def hit(self, rule: str, node: ast.AST, it: str = "", **found: str) -> None:
        self.hits.append(Hit(rule, node, self.root, {"it": it, **found}))

    # ── functions ───────────────────────────────────────────────────────────────────────────

    def read(self, declared: Declared) -> None:
        if declared.function not in self.seen:
            self.seen.add(declared.function)
            self._read_body(declared.function.body, scope_of_function(declared.function, declared.scope))

    def _read_body(self, body: Sequence[ast.AST], scope: Scope) -> None:
        before = self.scope, self.loops
        self.scope, self.loops = scope, 0
        self.hosted |= set(_hosted(body, scope))
        for node in body:
            self.visit(node)
        self.scope, self.loops = before

    def _visit_function(self, node: Function) -> None:
        """One that is defined inside: read it here, unless it is a step of its own or runs elsewhere."""
        _, binding = self.scope.find(node.name) or (None, None)
        is_here = not any(isinstance(self.scope.meaning(each), Member) for each in node.decorator_list)
        if isinstance(binding, Declared) and binding.kind is None and node not in self.hosted and is_here:
            self.read(binding)

    visit_FunctionDef = _visit_function  # noqa: N815
    visit_AsyncFunctionDef = _visit_function  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._read_body([node.body], scope_of_function(node, self.scope))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Its methods are not called here, as far as can be seen."""

    # ── calls ───────────────────────────────────────────────────────────────────────────────

    def visit_Await(self, node: ast.Await) -> None:
        self.awaited.add(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match self.scope.meaning(node.func):
            case str(name):
                self._check_name(node, name)
            case Declared(kind=None) as helper:
                self.read(helper)
            case Declared() as declared:
                self._check_bare_call(node, declared)
            case Member(of=Declared(kind=str()) as declared, name="call" | "plain" as how):
                self._check_durable(node, declared, is_plain=how == "plain")
            case _:
                pass
        if isinstance(node.func, ast.Attribute) and node.func.attr in rules.MUTATORS:
            self._check_change(node, node.func.value)
        self.generic_visit(node)

    def _check_name(self, node: ast.Call, name: str) -> None:
        if name in (rules.STEP_ONLY if self.in_workflow else rules.WORKFLOW_ONLY):
            self._misplaced(node, f"{name}()")
        if not self.in_workflow:
            return
        if self.root.is_async and name.startswith(rules.BLOCKING):
            self.hit("misplaced", node, f"{name}()", place="an async workflow", other="`def` workflow")
        if name in rules.AWAITED:
            self._check_async_call(node, name, name.replace("perdure.", rules.BLOCKING, 1) + "(...)")
        rule = rule_of(node, name)
        if rule is not None and (self.root.is_async or rule not in rules.ASYNC_ONLY):
            self.hit(rule, node, name.removeprefix("builtins."))
        if name in rules.GATHERERS:
            self._check_gathered(node)

    def _check_async_call(self, node: ast.Call, it: str, instead: str) -> None:
        if self.in_workflow and not self.root.is_async and node not in self.awaited:
            self.hit("async-call", node, it, instead=instead)

    def _check_bare_call(self, node: ast.Call, declared: Declared) -> None:
        if declared.is_async:
            name = declared.function.name
            self._check_async_call(node, name, f"{rules.BLOCKING}wait({name}.call(...))")
        if self.in_workflow and self.root.is_async and not declared.is_async:
            self.hit("sync-step-call", node, declared.function.name)
        self._check_durable(node, declared, is_plain=False)

    def _check_durable(self, node: ast.Call, declared: Declared, *, is_plain: bool) -> None:
        if self.in_workflow:
            if declared.kind == "effect" and is_plain:
                self.hit("plain-effect", node, declared.function.name)
            if why := misfit(node, declared.function):
                self.hit("wrong-arguments", node, why)
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                self._check_recorded(given)
        elif declared.kind == "effect" and not is_plain:
            self._misplaced(node, f"{declared.function.name}(), an effect,")

    def _misplaced(self, node: ast.Call, it: str) -> None:
        place, other = ("workflow code", "step") if self.in_workflow else ("a step's body", "workflow")
        self.hit("misplaced", node, it, place=place, other=other)

    # ── what is dropped ─────────────────────────────────────────────────────────────────────

    def visit_Expr(self, node: ast.Expr) -> None:
        self._check_awaited(node, node.value)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node in self.returns and node.value is not None:
            self._check_recorded(node.value)
        self.generic_visit(node)

    def _check_recorded(self, node: ast.expr) -> None:
        """An argument or a result: a value, and not a call that somebody still has to await."""
        _, binding = (self.scope.find(node.id) or (None, None)) if isinstance(node, ast.Name) else (None, None)
        self._check_awaited(node, binding.expression if isinstance(binding, Value) else node)

    def _check_awaited(self, node: ast.AST, value: ast.expr) -> None:
        if not (self.in_workflow and self.root.is_async and isinstance(value, ast.Call)):
            return
        meaning = self.scope.meaning(value.func)
        if isinstance(meaning, Member) and meaning.of.kind is not None and meaning.name == "call":
            self.hit("not-awaited", node, f"{meaning.of.function.name}.call(...)")
        elif isinstance(meaning, Declared) and meaning.kind is not None and meaning.is_async:
            self.hit("not-awaited", node, f"{meaning.function.name}(...)")
        elif isinstance(meaning, str) and meaning in rules.AWAITED:
            self.hit("not-awaited", node, f"{meaning}(...)")

    # ── names and attributes ────────────────────────────────────────────────────────────────

    def visit_Name(self, node: ast.Name) -> None:
        if self.in_workflow and isinstance(node.ctx, ast.Load):
            meaning = self.scope.meaning(node)
            if isinstance(meaning, str) and meaning in rules.STOCK_WAITS:
                self.hit("stock-wait", node, meaning)
            self._check_read(node, meaning)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        meaning = self.scope.meaning(node)
        if self.in_workflow and isinstance(meaning, str) and meaning in rules.READS:
            self._check_read(node, meaning)
        else:
            self.generic_visit(node)

    def _check_read(self, node: ast.expr, meaning: object) -> None:
        if isinstance(meaning, str) and meaning in rules.READS:
            self.hit(rules.READS[meaning], node, meaning)

    # ── state of others ─────────────────────────────────────────────────────────────────────

    def visit_Global(self, node: ast.Global) -> None:
        if self.in_workflow:
            self.hit("global-state", node, f"The module's variable {node.names[0]!r}")

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names if self.in_workflow else ():
            found = self.scope.find(name)
            if found is not None and self._is_outside(found[0]):
                self.hit("global-state", node, f"The outer variable {name!r}")

    def _is_outside(self, scope: Scope) -> bool:
        """Does it belong to what is around the workflow?"""
        around: Scope | None = self.root.scope
        while around is not None:
            if around is scope:
                return True
            around = around.outer
        return False

    def _check_change(self, node: ast.AST, target: ast.expr) -> None:
        """`CACHE[key] = value`, `SEEN.append(x)`: changing a container of the module's."""
        if not self.in_workflow or not isinstance(target, ast.Name):
            return
        found = self.scope.find(target.id)
        if (
            found is not None
            and found[0].is_module
            and isinstance(found[1], Value)
            and _is_container(found[1].expression)
        ):
            self.hit("global-state", node, f"The module's variable {target.id!r}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            self._check_change(node, node.value)
        self.generic_visit(node)

    # ── loops ───────────────────────────────────────────────────────────────────────────────

    def _visit_loop(self, node: ast.For | ast.AsyncFor) -> None:
        if self.in_workflow and self._is_unordered(node.iter) and any(map(self._calls_durable, node.body)):
            self.hit("set-order", node.iter)
        self.visit(node.target)
        self.visit(node.iter)
        self._visit_repeated(node.body)
        for statement in node.orelse:
            self.visit(statement)

    visit_For = _visit_loop  # noqa: N815
    visit_AsyncFor = _visit_loop  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._visit_repeated(node.body)
        for statement in node.orelse:
            self.visit(statement)

    def _visit_repeated(self, body: Sequence[ast.stmt]) -> None:
        self.loops += 1
        for statement in body:
            self.visit(statement)
        self.loops -= 1

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        if self.in_workflow and self._calls_durable(node.elt):
            for generator in node.generators:
                if self._is_unordered(generator.iter):
                    self.hit("set-order", generator.iter)
        self.generic_visit(node)

    visit_ListComp = _visit_comprehension  # noqa: N815
    visit_SetComp = _visit_comprehension  # noqa: N815
    visit_GeneratorExp = _visit_comprehension  # noqa: N815

    def _check_gathered(self, node: ast.Call) -> None:
        """`gather(*(search(q) for q in words))`, where `search` is declared in another file."""
        for argument in node.args:
            given = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(given, (ast.ListComp, ast.GeneratorExp)) and not self._calls_durable(given.elt):
                for generator in given.generators:
                    if isinstance(given.elt, ast.Call) and self._is_unordered(generator.iter):
                        self.hit("set-order", generator.iter)

    def _calls_durable(self, node: ast.AST) -> bool:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Await):
                return True
            if isinstance(inner, ast.Call):
                meaning = self.scope.meaning(inner.func)
                declared = meaning.of if isinstance(meaning, Member) else meaning
                if isinstance(declared, Declared) and declared.kind is not None:
                    return True
        return False

    def _is_unordered(self, node: ast.expr) -> bool:
        """Is it a set of other things than tasks (or whole numbers)?"""
        match node:
            case ast.Set(elts=elements):
                return not all(self._is_ordered_element(element) for element in elements)
            case ast.SetComp(elt=element):
                return not self._is_ordered_element(element)
            case ast.BinOp(left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
                return self._is_unordered(left) or self._is_unordered(right)
            case ast.Call(func=function, args=[_, *_]):
                return self.scope.meaning(function) in rules.SETS
            case ast.Name(id=name):
                return self._is_unordered_name(name)
            case _:
                return False

    def _is_unordered_name(self, name: str) -> bool:
        scope, binding = self.scope.find(name) or (self.scope, None)
        if isinstance(binding, Hinted):
            hint = binding.hint.value if isinstance(binding.hint, ast.Subscript) else binding.hint
            return self.scope.meaning(hint) in rules.SETS
        with scope.aside(name):
            return isinstance(binding, Value) and self._is_unordered(binding.expression)

    def _is_ordered_element(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int)
        return isinstance(node, ast.Call) and _is_task_maker(self.scope, node.func)

    # ── exceptions ──────────────────────────────────────────────────────────────────────────

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if self.in_workflow and self.loops and not _leaves(node.body):
            caught = "everything" if node.type is None else self._base_exception(node.type)
            if caught:
                self.hit("swallowed-exit", node, caught)
        self.generic_visit(node)

    def _base_exception(self, node: ast.expr) -> str | None:
        members = node.elts if isinstance(node, ast.Tuple) else [node]
        return "BaseException" if any(self.scope.meaning(one) == "builtins.BaseException" for one in members) else None


# ── small questions ─────────────────────────────────────────────────────────────────────────


def _hosted(body: Sequence[ast.AST], scope: Scope) -> Iterator[Function]:
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.Call) and node.args and scope.meaning(node.func) == "perdure.section().run":
            function = scope.meaning(node.args[0])
            if isinstance(function, Declared):
                yield function.function


def rule_of(node: ast.Call, name: str) -> str | None:
    """The rule that a call of this function is against in workflow code."""
    known = rules.CALLS.get(name) or _rule_of_package(node, name) or _rule_of_clock(node, name)
    return known or _rule_of_client(name)


def _rule_of_package(node: ast.Call, name: str) -> str | None:
    given = bool(node.args or node.keywords)
    if "()" in name or name in rules.HARMLESS or (name in rules.SEEDED and given):
        return None
    return next((rule for prefix, rule in rules.PACKAGES if name.startswith(prefix)), None)


def _rule_of_client(name: str) -> str | None:
    """`openai.OpenAI().chat.completions.create`, of a client that was made here or for the whole module."""
    maker, is_called, _ = name.partition("()")
    is_client = maker in rules.CLIENTS and (is_called or maker not in rules.CALLS)
    return "io" if is_client or name.startswith(rules.CLIENT_MODULES) else None


def _rule_of_clock(node: ast.Call, name: str) -> str | None:
    return "clock" if len(node.args) < rules.CLOCKS_UNLESS_GIVEN.get(name, 0) else None


def _is_task_maker(scope: Scope, function: ast.expr) -> bool:
    """`asyncio.create_task`, or the method of a TaskGroup or a loop."""
    return scope.meaning(function) in rules.TASK_MAKERS or (
        isinstance(function, ast.Attribute) and function.attr in {"create_task", "ensure_future"}
    )


def _is_container(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in {"dict", "list", "set", "defaultdict", "deque", "Counter", "OrderedDict"}
    return isinstance(node, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def _leaves(body: Sequence[ast.AST]) -> bool:
    """Does it end the loop anywhere?"""
    return any(isinstance(node, (ast.Raise, ast.Return, ast.Break)) for part in body for node in ast.walk(part))

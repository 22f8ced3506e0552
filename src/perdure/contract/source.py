"""Which durable calls does a workflow's source make? Read from the syntax; names mean what they mean in the module.

Plain functions of the same module that the workflow calls are followed, as is what it defines inside. What is found
otherwise (in a table of functions, by getattr) is not seen: the outline explains, it decides nothing.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from perdure.contract.outline import Place, outline
from perdure.specs import EffectSpec, StepSpec, WorkflowSpec

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
TextOf = Callable[[types.FunctionType], str]
"""The text of the module that a function stands in; empty if there is none to be had."""

WAITS: Mapping[str, str] = {
    "sleep": "sleep", "receive": "receive", "ask": "question", "with_approval": "approval", "patched": "patched",
    "section": "section", "continue_as_new": "continue_as_new", "pivot": "pivot",
}  # fmt: skip
"""What perdure's own functions are in an outline."""

SAYS_ITS_ARGUMENTS = frozenset({"sleep", "receive", "section", "patched"})
"""What is asked for is in the arguments, if they are constants."""

PARALLEL = frozenset({"gather", "create_task", "ensure_future", "wait", "as_completed", "start_soon"})

DEPTH_MAX = 20
"""Of functions that call one another."""


def outline_of(function: types.FunctionType, text_of: TextOf) -> str:
    """The outline of a workflow's durable calls; empty if its source is not to be had."""
    return outline(places_of(function, text_of))


def places_of(function: types.FunctionType, text_of: TextOf) -> list[Place]:
    """The durable calls of a workflow; none if its source is not to be had, or is not what was loaded."""
    reader = _Reader(text_of)
    reader.read(function)
    return reader.places


class _Reader:
    """Goes through code in the order in which it would run, and notes what it asks for."""

    def __init__(self, text_of: TextOf) -> None:
        self.places: list[Place] = []
        self._text_of = text_of
        self._inside: list[str] = []
        self._reading: list[object] = []
        self._function: types.FunctionType | None = None
        self._local: dict[str, Function | None] = {}

    def read(self, function: types.FunctionType) -> None:
        """Read a function of a module."""
        definition = _definition(function, self._text_of(function))
        before = self._function, self._local
        if definition is not None and function not in self._reading and len(self._reading) < DEPTH_MAX:
            self._reading.append(function)
            self._function, self._local = function, {}
            self._read_body(definition)
            self._reading.pop()
        self._function, self._local = before

    def _read_body(self, definition: Function) -> None:
        self._local = self._local | _names_bound_in(definition)
        self._all(definition.body)

    def _all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._read(node)

    def _within(self, name: str, nodes: Sequence[ast.AST | None]) -> None:
        self._inside.append(name)
        self._all(nodes)
        self._inside.pop()

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass  # read where it is called
            case ast.Call():
                self._call(node)
            case ast.If() | ast.IfExp():
                self._read(node.test)
                self._within("if", _listed(node.body))
                self._within("else", _listed(node.orelse))
            case ast.For() | ast.AsyncFor():
                self._read(node.iter)
                self._within("loop", node.body)
                self._all(node.orelse)
            case ast.While():
                self._within("loop", [node.test, *node.body])
                self._all(node.orelse)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node)
            case ast.Try() | ast.TryStar():
                self._all(node.body)
                for handler in node.handlers:
                    self._within("except", handler.body)
                self._all(node.orelse)
                self._within("finally", node.finalbody)
            case ast.With() | ast.AsyncWith():
                self._with(node)
            case ast.Match():
                self._read(node.subject)
                for case in node.cases:
                    self._within("case", [case.guard, *case.body])
            case _:
                self._all(list(ast.iter_child_nodes(node)))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        self._read(node.generators[0].iter)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        others = [each for generator in node.generators[1:] for each in (generator.iter, *generator.ifs)]
        self._within("loop", [*node.generators[0].ifs, *others, *parts])

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        is_saga = any(
            isinstance(item.context_expr, ast.Call) and self._own(self._meaning(item.context_expr.func)) == "saga"
            for item in node.items
        )
        self._all([item.context_expr for item in node.items])
        if is_saga:
            self._within("saga", node.body)
        else:
            self._all(node.body)

    # ── calls ───────────────────────────────────────────────────────────────────────────────

    def _call(self, node: ast.Call) -> None:
        called = self._meaning(node.func)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if _is_parallel(node.func):
            self._within("parallel", arguments)
            return
        self._all(arguments)
        spec = getattr(called, "spec", None)
        own = self._own(called)
        if isinstance(spec, StepSpec | WorkflowSpec):
            self._note(_kind(spec), spec.name, schema_of(spec.function))
        elif own in WAITS:
            self._note(WAITS[own], _constants(node) if own in SAYS_ITS_ARGUMENTS else "")
        elif isinstance(called, ast.FunctionDef | ast.AsyncFunctionDef):
            self._follow(called)
        elif isinstance(called, types.FunctionType) and self._is_beside(called):
            self.read(called)
        else:
            self._read(node.func)

    def _note(self, kind: str, name: str, schema: str = "") -> None:
        self.places.append(Place(kind, name, schema, tuple(self._inside)))

    def _follow(self, inner: Function) -> None:
        """A function that is defined inside."""
        if inner not in self._reading and len(self._reading) < DEPTH_MAX:
            before = self._local
            self._reading.append(inner)
            self._read_body(inner)
            self._reading.pop()
            self._local = before

    def _is_beside(self, called: types.FunctionType) -> bool:
        return self._function is not None and called.__module__ == self._function.__module__

    def _own(self, called: object) -> str:
        """The name of a function of perdure's; empty for others."""
        module: object = getattr(called, "__module__", "")
        is_ours = isinstance(called, types.FunctionType) and str(module).startswith("perdure.")
        return str(getattr(called, "__name__", "")) if is_ours else ""

    # ── names ───────────────────────────────────────────────────────────────────────────────

    def _meaning(self, node: ast.expr) -> object:
        """What an expression stands for in the module; None if that is not known before it runs."""
        match node:
            case ast.Name(id=name) if name in self._local:
                return self._local[name]
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=value, attr=attribute):
                of = self._meaning(value)
                if isinstance(of, types.ModuleType | type):
                    return vars(of).get(attribute)
                return of if attribute in {"call", "plain"} and hasattr(of, "spec") else None
            case _:
                return None

    def _named(self, name: str) -> object:
        function = self._function
        if function is None:
            return None
        for bound, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            if bound == name:
                return _content(cell)
        return function.__globals__.get(name)


def _kind(spec: StepSpec | WorkflowSpec) -> str:
    if isinstance(spec, WorkflowSpec):
        return "child"
    return "effect" if isinstance(spec, EffectSpec) else "step"


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _listed(part: ast.expr | list[ast.stmt]) -> Sequence[ast.AST]:
    return part if isinstance(part, list) else [part]


def _is_parallel(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in PARALLEL


def _constants(node: ast.Call) -> str:
    """What is waited for as it is written, if that is constant: the length of a sleep, the name of a message."""
    named = [(f"{keyword.arg}=", keyword.value) for keyword in node.keywords]
    given = [*(("", each) for each in node.args[:1]), *named]
    return " ".join(f"{name}{ast.literal_eval(each)!s}" for name, each in given if _is_short(each))


def _is_short(node: ast.expr) -> bool:
    """A number, or a text that can stand in a line of an outline."""
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) or (isinstance(value, str) and value.isprintable() and "(" not in value)


def _names_bound_in(definition: Function) -> dict[str, Function | None]:
    """The names that are the function's own: what is defined inside, and what nobody knows before it runs."""
    arguments = definition.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names: dict[str, Function | None] = {each.arg: None for each in given if each is not None}
    pending: list[ast.AST] = list(definition.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names[node.name] = node
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.setdefault(node.id, None)
        if not isinstance(node, ast.ClassDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))
    return names


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module | None:
    """Of a module; parsed once, however many of its functions are looked at."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _definition(function: types.FunctionType, text: str) -> Function | None:
    """Where in the text the function is defined: at its line, under its name."""
    tree = _tree(text) if text else None
    code = function.__code__
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


# ── schemas ─────────────────────────────────────────────────────────────────────────────────


def schema_of(function: Callable[..., Any]) -> str:
    """A function's parameters and result, as the author hinted them; what is default and how it is written is no part.

    >>> def pay(claim: "str",  amount: int = 3) -> None: ...
    >>> schema_of(pay)
    '(claim: str, amount: int = ...) -> None'
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    parameters = ", ".join(map(_parameter, signature.parameters.values()))
    result = signature.return_annotation
    return f"({parameters})" + ("" if result is inspect.Signature.empty else f" -> {_hint(result)}")


_STARS: Mapping[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _parameter(parameter: inspect.Parameter) -> str:
    stars = _STARS.get(parameter.kind, "")
    hint = "" if parameter.annotation is inspect.Parameter.empty else f": {_hint(parameter.annotation)}"
    default = "" if parameter.default is inspect.Parameter.empty else " = ..."
    return f"{stars}{parameter.name}{hint}{default}"


def _hint(hint: object) -> str:
    if isinstance(hint, str):
        try:
            text = ast.unparse(ast.parse(hint.strip(), mode="eval"))
        except (SyntaxError, ValueError):
            text = hint
    elif type(hint) is type or (isinstance(hint, type) and not typing.get_args(hint)):
        text = hint.__qualname__
    else:
        text = "None" if hint is None else repr(hint).replace("typing.", "")
    return " ".join(text.split())

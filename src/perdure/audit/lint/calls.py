"""Do these arguments fit that declaration? Read from the syntax of both."""

from __future__ import annotations

import ast
import difflib

from perdure.audit.lint.names import Function


def misfit(call: ast.Call, function: Function) -> str | None:
    """In words, why the call cannot be made; None if it can, or if stars hide what is given."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords):
        return None
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if len(call.args) > len(positional) and arguments.vararg is None:
        given, takes = len(call.args), len(positional)
        return f"{function.name}() takes {takes} argument{'s' * (takes != 1)} by position, {given} are given"
    by_position = set(positional[: len(call.args)])
    by_name = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    return (
        _unknown(by_name, function)
        or _twice(by_name & by_position, function)
        or _missing(by_name | by_position, positional, function)
    )


def _unknown(by_name: set[str], function: Function) -> str | None:
    arguments = function.args
    known = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
    for name in sorted(by_name.difference(known)):
        if arguments.kwarg is None:
            near = difflib.get_close_matches(name, known, n=1)
            return f"{function.name}() has no parameter {name!r}" + (f", but {near[0]!r}" if near else "")
    return None


def _twice(names: set[str], function: Function) -> str | None:
    return f"{function.name}() gets {min(names)!r} twice" if names else None


def _missing(given: set[str], positional: list[str], function: Function) -> str | None:
    arguments = function.args
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if not default
    ]
    missing = [repr(name) for name in required if name not in given]
    return f"{function.name}() is called without {', '.join(missing)}" if missing else None

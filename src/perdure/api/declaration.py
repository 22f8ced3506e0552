"""Can this function be declared as a step or a workflow? If not, the message says what to write instead.

A step has to be found again by its name and called with recorded arguments; a workflow, besides, has to do the same
again in another process: so it may not lean on what its surroundings happened to hold when it was declared.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import logging
import re
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from perdure.codec import Every, arguments_codec_for, begins_at
from perdure.errors import DeclarationError, UsageError
from perdure.specs import SECONDS_MAX, OnStale, Premise, Rests, StepSpec, recordable, seconds, several


def check_step(declared: object) -> None:
    """Refuse what cannot be a step. Closing over things is fine for a step: its body is never replayed.

    >>> check_step(lambda q: q)
    Traceback (most recent call last):
    perdure.errors.DeclarationError: a lambda cannot be a step: it has no name to be found by. Write `def name(...)`.
    """
    _check_kind(declared, "step")


def check_workflow(declared: object, is_durable: Callable[[object], bool]) -> None:
    """Refuse what cannot be a workflow. `is_durable` knows our own declared objects: steps, effects, workflows.

    Besides what `check_step` refuses: a function that closes over state, and one that uses the stock `wait_for` or
    `as_completed` by a name of its own. Closing over these is fine: what `is_durable` accepts, modules, classes,
    functions that close over nothing else themselves, and values that cannot change (numbers, text, enums, dates,
    tuples and frozen dataclasses of such, ...). A name that is bound only after the declaration is not looked at.
    """
    if is_durable(declared):
        raise DeclarationError(f"{_label(declared)} is declared already: a function is a step or a workflow, not both.")
    function = _check_kind(declared, "workflow")
    _check_closure(function, is_durable)
    _check_waits(function)


# ── its options ─────────────────────────────────────────────────────────────────────────────


@contextmanager
def options_of(function: object, kind: str, given: Iterable[str], known: Iterable[str]) -> Generator[None, None, None]:
    """In the block the options of a declaration are read; whatever is wrong with them is told with the place.

    DeclarationError for names that are no options of a `kind`."""
    try:
        for name in given:
            if name not in known:
                raise DeclarationError(f"{kind}({name}=...): there is no such option{_near(name, known)}")
        yield
    except (DeclarationError, UsageError) as error:
        raise DeclarationError(f"{error}{_at(function)}") from None


def _near(name: str, known: Iterable[str]) -> str:
    import difflib  # only when something is wrong

    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}=?" if near else f"; there are {', '.join(known)}"


def checked_name(name: Any, kind: str, function: types.FunctionType) -> str:
    """What stands in histories: the name that is given, else the function's."""
    return function.__name__ if name is None else recordable(name, what=f"{kind}(name=)")


def exception_classes(given: Any, kind: str) -> tuple[type[BaseException], ...]:
    """The `raises=` of a declaration.

    >>> exception_classes(ValueError, "step")
    Traceback (most recent call last):
    perdure.errors.DeclarationError: step(raises=<class 'ValueError'>): a list of exception classes, as in \
raises=[ValueError]
    """
    classes = several(given)
    if classes is None or not all(map(_is_exception_class, classes)):
        example = given.__name__ if _is_exception_class(given) else "NotFound"
        raise DeclarationError(f"{kind}(raises={given!r}): a list of exception classes, as in raises=[{example}]")
    return tuple(classes)


SPEC = TypeVar("SPEC", bound=StepSpec)


def with_estimate(spec: SPEC, function: Callable[..., Any]) -> SPEC:
    """The spec with what says how much a call is expected to use. DeclarationError for what cannot say that."""
    if spec.estimate is not None or spec.uses is not None:
        raise DeclarationError(f"{spec.name} says already what it uses: uses=, or one estimate")
    if inspect.iscoroutinefunction(function):
        raise DeclarationError(f"the estimate of {spec.name} is a plain function: it may depend on the arguments alone")
    takes_same(spec.name, spec.function, function, "estimate")
    return msgspec.structs.replace(spec, estimate=function)


def rests_of(valid_for: Any, recovery: Any, on_stale: Any, *, is_lazy: bool) -> Rests | None:
    """What a step declares about how long its result stands; None if it declares nothing."""
    if recovery not in {None, "replay", "verify"}:
        of_effects = "; a promise that was made is an effect: @effect(recovery='compensate')"
        raise DeclarationError(
            f"step(recovery={recovery!r}): 'replay' or 'verify'{of_effects if recovery == 'compensate' else ''}"
        )
    if not (callable(on_stale) or on_stale in set(OnStale)):
        shown = ", ".join(repr(str(each)) for each in OnStale)
        way = _COMPENSATE if on_stale == "compensate" else ""
        raise DeclarationError(
            f"step(on_stale={on_stale!r}): one of {shown}, or a function that gives one of these{way}"
        )
    if valid_for is None and recovery is None and on_stale == OnStale.RECOMPUTE:
        return None
    if is_lazy:
        raise DeclarationError(f'step(record="lazy"): {_NOT_LAZY}')
    limit = None if valid_for is None else seconds(valid_for, what="step(valid_for")
    if limit is not None and not 0 < limit <= SECONDS_MAX:
        raise DeclarationError(f"step(valid_for={valid_for!r}): more than 0 seconds, and at most 100 years")
    if recovery == "replay" and (limit is not None or on_stale != OnStale.RECOMPUTE):
        raise DeclarationError(
            'step(recovery="replay"): its result stands for ever; leave out valid_for= and on_stale='
        )
    what: Any = OnStale(on_stale) if isinstance(on_stale, str) else on_stale
    return Rests((), limit, recovery != "replay", what)


def relied_on(given: Any, effect: str) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The `relies_on=` of an effect: names, and those of them that were given as texts. DeclarationError for what is
    neither a name nor a step.

    >>> relied_on(["policy"], "pay")
    (('policy',), ('policy',))
    """
    if given is None:
        return None, ()
    what, names = f"effect {effect}: relies_on={given!r}", several(given)
    if names is None:
        raise DeclarationError(f"{what}; a list is wanted, as in relies_on=[decide, 'policy']")
    specs = [getattr(each, "spec", None) for each in names]
    for each, spec in zip(names, specs, strict=True):
        if isinstance(each, str):
            recordable(each, what=f"{what}:")
        elif type(spec) is not StepSpec:
            raise DeclarationError(f"{what}: {each!r} is neither a step nor the name of a premise or of a step")
        elif spec.rests is None or not spec.rests.is_verified:
            raise DeclarationError(f"{what}: nothing of {spec.name} is checked: it has neither premises nor validity")
    found = (each if spec is None else spec.name for each, spec in zip(names, specs, strict=True))
    return tuple(dict.fromkeys(found)), tuple(each for each in names if isinstance(each, str))


_COMPENSATE = (
    ". 'recompute' undoes what was done on a decision that comes to something else; a promise, which is undone only "
    "after a person has confirmed, is an effect: @effect(recovery='compensate')"
)
_NOT_LAZY = "what is checked again has to be durable when the code gets it; leave out record= for this step"


def with_premise(spec: SPEC, name: Any, function: Callable[..., Any], same: Any) -> SPEC:
    """The spec with one more fact that its result rests on. DeclarationError for what cannot be one."""
    rests, what = spec.rests or Rests(), f"{spec.name}.premise({name!r})"
    if not isinstance(name, str) or not name.strip():
        raise DeclarationError(f'{what}: a name is wanted, as in @{spec.name}.premise("policy")')
    if any(premise.name == name for premise in rests.premises):
        raise DeclarationError(f"{what}: there is one of that name already")
    if spec.lazy:
        raise DeclarationError(f"{what}: {_NOT_LAZY}")
    if same is not None and (not callable(same) or inspect.iscoroutinefunction(same)):
        raise DeclarationError(f"{what}: same={same!r}; a plain function of the value then and the value now")
    takes_same(spec.name, spec.function, function, f"premise {name!r}")
    allows: Any = same
    premise = Premise(
        recordable(name, what=what), function, inspect.iscoroutinefunction(function),
        arguments_codec_for(function).result, allows,
    )  # fmt: skip
    return msgspec.structs.replace(spec, rests=msgspec.structs.replace(rests, premises=(*rests.premises, premise)))


def takes_same(name: str, of: Callable[..., Any], function: Callable[..., Any], what: str, *, skip: int = 0) -> None:
    """A function about another one has its parameters, after `skip` others. DeclarationError if not."""
    wanted = [p.name for p in inspect.signature(of).parameters.values()]
    given = [p.name for p in inspect.signature(function).parameters.values()]
    if given[skip:] != wanted or len(given) < skip:
        shown = ", ".join([*["result"][:skip], *wanted])
        raise DeclarationError(f"the {what} of {name} takes ({shown}), not ({', '.join(given)})")


def _is_exception_class(it: Any) -> bool:
    return inspect.isclass(it) and issubclass(it, BaseException)


def texts(given: Any, option: str, example: str) -> tuple[str, ...]:
    """An option that takes several texts; one alone is a text, and would be taken for its letters."""
    found = several(given)
    if found is None or not all(isinstance(each, str) for each in found):
        raise DeclarationError(f"{option}={given!r}): a list of texts, as in {example}")
    return tuple(found)


def paths_of(given: Any, function: Any) -> tuple[str, ...]:
    """The `ignore=` of a step. A path that begins at no parameter would leave nothing out, and nobody would notice
    before a run is parked for what it was to leave out."""
    paths = texts(given, "step(ignore", 'ignore=["$.messages[*].id"]')
    parameters = inspect.signature(function).parameters.values() if paths else ()
    names = [each.name for each in parameters]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    for path in paths:
        first = begins_at(path)
        if not takes_any and first is not Every.KEY and first not in names:
            raise DeclarationError(
                f"step(ignore=[{path!r}]): a path begins at a parameter: {', '.join(f'$.{name}' for name in names)}"
            )
    return paths


_SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def secrets_of(given: Any, what: str) -> dict[str, str]:
    """The `secrets=` of a declaration: names, or names and what each is for.

    >>> secrets_of({"stripe"}, "step")
    {'stripe': ''}
    """
    named = given if isinstance(given, Mapping) else dict.fromkeys(several(given) or (), "")  # pyright: ignore[reportUnknownVariableType]
    if (not named and given) or given is None or isinstance(given, str):
        raise DeclarationError(f"{what}(secrets={given!r}): a set of names is wanted, as in secrets={{'stripe'}}")
    for name, scope in named.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(name, str) or not _SECRET_NAME.fullmatch(name) or not isinstance(scope, str):
            raise DeclarationError(
                f"{what}(secrets=): {name!r} is no name of a secret; letters, digits, '.', '_', '-' and '/' make one"
            )
    return dict(sorted(named.items()))  # pyright: ignore[reportUnknownArgumentType]


# ── what kind of thing it is ────────────────────────────────────────────────────────────────

_TAKE_IT_AS_ARGUMENT = "Write a function that takes what it needs as arguments."


def _is_lambda(it: Any) -> bool:
    return inspect.isfunction(it) and it.__name__ == "<lambda>"


def _is_method(it: Any) -> bool:
    """Also one that is not bound yet, because its class is being defined."""
    if not inspect.isfunction(it):
        return False
    outer, _, _ = it.__qualname__.rpartition(".")
    names = it.__code__.co_varnames[:1] if it.__code__.co_argcount else ()
    return bool(outer) and not outer.endswith("<locals>") and names in {("self",), ("cls",)}


def _is_bound_to_a_class(it: Any) -> bool:
    return inspect.ismethod(it) and inspect.isclass(it.__self__)


def _has_no_signature(it: Any) -> bool:
    try:
        inspect.signature(it)
    except (ValueError, TypeError):
        return True
    return False


REFUSED: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    # is it one of these; what to call it; why it cannot be, and what to write instead
    (_is_lambda, "a lambda", "it has no name to be found by. Write `def name(...)`."),
    (
        lambda it: isinstance(it, classmethod) or _is_bound_to_a_class(it),
        "a classmethod",
        f"the class is not part of what is recorded. {_TAKE_IT_AS_ARGUMENT}",
    ),
    (
        lambda it: isinstance(it, staticmethod),
        "a staticmethod object",
        "it is not the function yet. Put @staticmethod above this decorator.",
    ),
    (
        lambda it: inspect.ismethod(it) or _is_method(it),
        "a method",
        f"its object is not there any more after a crash. {_TAKE_IT_AS_ARGUMENT} Steps get clients by perdure.use().",
    ),
    (
        inspect.isasyncgenfunction,
        "an async generator",
        "it has many results, a durable call has one. Return a list, or call one {kind} per item.",
    ),
    (
        inspect.isgeneratorfunction,
        "a generator",
        "it has many results, a durable call has one. Return a list, or call one {kind} per item.",
    ),
    (inspect.isclass, "a class", "calling it makes an object, not a record. Write a function that returns its data."),
    (
        lambda it: isinstance(it, functools.partial),
        "a functools.partial",
        "what it was given is not recorded. Write a function that passes it on.",
    ),
    (inspect.iscoroutine, "a coroutine", "it was called already. Leave out the parentheses behind the function."),
    (
        lambda it: not callable(it),
        "{type} object",
        "it cannot be called. Options have names: @{kind}(name=...).",
    ),
    (_has_no_signature, "{type} object", "it does not tell its parameters. Write a `def` that calls it."),
    (
        lambda it: not inspect.isfunction(it),
        "{type} object",
        "only functions can be found again by their name. Write a `def` that calls it.",
    ),
)


def _check_kind(it: Any, kind: str) -> types.FunctionType:
    for matches, noun, why in REFUSED:
        if matches(it):
            noun = noun.format(type=f"{'an' if type(it).__name__[0] in 'aeiou' else 'a'} {type(it).__name__}")
            raise DeclarationError(f"{noun} cannot be a {kind}: {why.format(kind=kind)}{_at(it)}")
    return cast("types.FunctionType", it)


def _label(it: Any) -> str:
    return str(getattr(it, "__qualname__", None) or getattr(it, "name", None) or repr(it))


def _at(it: Any) -> str:
    """Where it was written, if it has a name that helps to find it."""
    function = getattr(it, "__func__", it)
    if not inspect.isfunction(function) or _is_lambda(function):
        return ""
    return f" ({function.__qualname__}, {function.__code__.co_filename}:{function.__code__.co_firstlineno})"


# ── what it closes over ─────────────────────────────────────────────────────────────────────


def _check_closure(function: types.FunctionType, is_durable: Callable[[object], bool]) -> None:
    held = {name: _kind_of(value) for name, value in _held(function, is_durable, set())}
    held |= dict.fromkeys(_rebound(function.__code__), "assigned to from inside")
    if held:
        names = ", ".join(f"{name!r} ({kind})" for name, kind in sorted(held.items()))
        raise DeclarationError(
            f"the workflow {function.__name__!r} closes over {names}. A run may go on in another process, where these "
            "are not as they were: pass them as arguments, keep state in the workflow's own variables, and give "
            f"clients to steps by perdure.use().{_at(function)}"
        )


def _held(
    function: types.FunctionType, is_durable: Callable[[object], bool], seen: set[int]
) -> Iterator[tuple[str, object]]:
    """The names and values in the function's closure that may be different elsewhere."""
    seen.add(id(function))
    for name, value in _closed_over(function):
        if is_durable(value) or _is_fixed(value):
            continue
        if not inspect.isfunction(value):
            yield name, value
        elif id(value) not in seen:
            yield from ((f"{name}: {inner}", what) for inner, what in _held(value, is_durable, seen))


CANNOT_CHANGE: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, range, type(...), type(NotImplemented),
    datetime, date, time, timedelta, timezone, Decimal, UUID, Enum, re.Pattern,
    types.ModuleType, type, types.GenericAlias, types.UnionType, typing.TypeVar, typing.ParamSpec, typing.NewType,
    logging.Logger, logging.LoggerAdapter, ContextVar,
)  # fmt: skip
"""Loggers and context variables can, but they are found by name, and each run has a context of its own."""

CANNOT_CHANGE_EITHER = {"fractions": "Fraction", "pathlib": "PurePath", "zoneinfo": "ZoneInfo"}
"""Module → class. Nobody has a value of it who has not imported the module, and it takes long to import."""


def _is_fixed(value: object) -> bool:
    if isinstance(value, CANNOT_CHANGE) or type(value) is object or typing.get_origin(value) is not None:
        return True
    if any(_is_of(value, module, name) for module, name in CANNOT_CHANGE_EITHER.items()):
        return True
    if isinstance(value, types.BuiltinFunctionType):  # `calls.append` is one too, and brings its list along
        return value.__self__ is None or isinstance(value.__self__, (types.ModuleType, type))
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_fixed, cast("tuple[object, ...]", value)))
    return _is_frozen(value) and all(_is_fixed(getattr(value, name, None)) for name in _fields(value))


def _is_of(value: object, module: str, name: str) -> bool:
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def _is_frozen(value: object) -> bool:
    """A frozen dataclass or msgspec.Struct."""
    parameters = getattr(value, "__dataclass_params__", None) or getattr(value, "__struct_config__", None)
    return bool(getattr(parameters, "frozen", False))


def _fields(value: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return cast("tuple[str, ...]", getattr(value, "__struct_fields__", ()))


def _kind_of(value: object) -> str:
    return type(value).__qualname__


# ── what its code does ──────────────────────────────────────────────────────────────────────


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of all that is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names_used(code: types.CodeType, operations: frozenset[str]) -> set[str]:
    return {
        str(instruction.argval)
        for inner in _codes(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in operations
    }


def _rebound(code: types.CodeType) -> set[str]:
    """The outer variables that it assigns to (`nonlocal`)."""
    return _names_used(code, frozenset({"STORE_DEREF", "DELETE_DEREF"})) & set(code.co_freevars)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The names and values in a function's closure, but those that are bound only after the declaration, as the
    workflow's own is."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            yield name, cell.cell_contents


def _check_waits(function: types.FunctionType) -> None:
    if "asyncio" not in sys.modules:
        return  # nobody can have bound what nobody has imported
    from perdure.engine.exact import INEXACT

    names = _names_used(function.__code__, frozenset({"LOAD_GLOBAL", "LOAD_NAME"}))
    known = {name: function.__globals__.get(name) for name in names}
    known |= dict(_closed_over(function))
    for name, value in sorted(known.items()):
        for stock, exact in INEXACT.items():
            if value is stock:
                raise DeclarationError(
                    f"the workflow {function.__name__!r} uses {name!r}, which is {exact} as it was before a Runtime "
                    f"could make it replay exactly: call {exact}(...) instead.{_at(function)}"
                )

"""Conditions on the arguments of a call: `{"amount": {"<=": 5000}, "currency": ["EUR", "USD"]}`.

A condition holds, or does not, or cannot be judged: the argument is missing, or is no number where numbers are
compared. What cannot be judged is never taken for fulfilled.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, cast

from perdure.errors import DeclarationError
from perdure.specs import mapping

Scalar = str | int | float | bool


class CannotJudge(Exception):
    """Whether a condition holds cannot be said. The text says why."""


class Condition(NamedTuple):
    """One comparison: of what stands at `path` (`claim.amount`), with `bound`."""

    path: str
    word: str
    bound: Any

    @property
    def told(self) -> str:
        """The condition as people read it."""
        if self.word == "given":
            return f"{self.path} {'is' if self.bound else 'is not'} given"
        return f"{self.path} {self.word} {_told(self.bound)}"

    def holds(self, arguments: Mapping[str, Any]) -> bool:
        """Whether it holds for these arguments, plain JSON. CannotJudge if that cannot be said."""
        value = value_at(arguments, self.path)
        if self.word == "given":
            return (value is not None) is self.bound
        if value is None:
            raise CannotJudge(f"there is no argument {self.path}, and the rule wants {self.told}")
        if isinstance(value, (dict, list)):
            raise CannotJudge(f"{self.path} is no single value, and the rule wants {self.told}")
        return COMPARISONS[self.word](value, self.bound, self)


def value_at(arguments: Mapping[str, Any], path: str) -> Any:
    """What stands at a path; None if nothing does."""
    here: Any = arguments
    for name in path.split("."):
        if not isinstance(here, Mapping):
            return None
        here = cast("Mapping[str, Any]", here).get(name)
    return here


# ── comparing ───────────────────────────────────────────────────────────────────────────────

_NUMBER = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{1,100})?([eE][+-]?[0-9]{1,4})?")


def number(value: Any) -> Decimal | None:
    """A number exactly as it is written; also one that is recorded as a text, as decimals are. None if it is none.

    >>> number("12.50") == number(12.5)
    True
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return Decimal(value) if _NUMBER.fullmatch(value) else None
    if isinstance(value, int):
        return Decimal(value)
    return Decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else None


def is_same(value: Any, bound: Any) -> bool:
    """Whether two values are the same: numbers by what they amount to, all else also by kind."""
    if isinstance(bound, (int, float)) and not isinstance(bound, bool):
        return number(value) is not None and number(value) == number(bound)
    return type(value) is type(bound) and value == bound


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any, Condition], bool]:
    def holds(value: Any, bound: Any, condition: Condition) -> bool:
        found = number(value)
        if found is None:
            raise CannotJudge(f"{condition.path} is no number, and the rule wants {condition.told}")
        return compare(found, number(bound))

    return holds


COMPARISONS: Mapping[str, Callable[[Any, Any, Condition], bool]] = {
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "==": lambda value, bound, _: is_same(value, bound),
    "!=": lambda value, bound, _: not is_same(value, bound),
    "in": lambda value, bound, _: any(is_same(value, each) for each in bound),
    "not in": lambda value, bound, _: not any(is_same(value, each) for each in bound),
}
"""What is compared with what, by its word. `given` stands beside these: it asks whether there is a value at all."""

WORDS = (*COMPARISONS, "given")


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def conditions_of(given: Any, what: str) -> tuple[Condition, ...]:
    """Conditions as a rule gives them: by path a value, a list of values, or words and bounds. DeclarationError names
    what is wrong with which."""
    table = mapping(given)
    if table is None:
        raise DeclarationError(f'{what}={given!r}: paths and conditions are wanted, as in {{"amount": {{"<=": 5000}}}}')
    found: list[Condition] = []
    for path, wanted in table.items():
        if not isinstance(path, str) or not all(path.split(".")):
            raise DeclarationError(f'{what}: {path!r} is no path of an argument, such as "amount" or "claim.amount"')
        for word, bound in _words_of(wanted, path, what).items():
            found.append(Condition(path, word, _checked(word, bound, f"{what}: {path}")))
    return tuple(found)


def _words_of(wanted: Any, path: str, what: str) -> dict[Any, Any]:
    words = mapping(wanted) if isinstance(wanted, Mapping) else None
    if words is None:
        return {"==": wanted} if isinstance(wanted, (str, int, float)) else {"in": wanted}
    unknown = [word for word in words if word not in WORDS]
    if unknown or not words:
        hint = f' (write a path in one piece: "{path}.{unknown[0]}")' if unknown and str(unknown[0]).isalnum() else ""
        got = repr(unknown[0]) if unknown else "nothing"
        raise DeclarationError(f"{what}: {path}: {got} is no comparison; there are {', '.join(WORDS)}{hint}")
    return words


def _checked(word: str, bound: Any, what: str) -> Any:
    if word == "given":
        if not isinstance(bound, bool):
            raise DeclarationError(f"{what} given {bound!r}: true or false")
        return bound
    if word in {"in", "not in"}:
        several = () if isinstance(bound, (str, bytes, Mapping)) or not isinstance(bound, Iterable) else tuple(bound)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if not several or not all(map(_is_scalar, several)):  # pyright: ignore[reportUnknownArgumentType]
            raise DeclarationError(f"{what} {word} {bound!r}: a list of texts, numbers, true or false")
        return tuple(sorted(several, key=repr))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    is_fine = _is_scalar(bound) if word in {"==", "!="} else number(bound) is not None and not isinstance(bound, str)
    if not is_fine:
        kind = "a text, a number, true or false" if word in {"==", "!="} else "a number"
        raise DeclarationError(f"{what} {word} {bound!r}: compared with {kind}")
    return bound


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool, int)) or number(value) is not None


def _told(bound: Any) -> str:
    if isinstance(bound, tuple):
        return "{" + ", ".join(map(_told, bound)) + "}"  # pyright: ignore[reportUnknownArgumentType]
    return str(bound).lower() if isinstance(bound, bool) else str(bound)

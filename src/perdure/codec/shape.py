"""What does a compiled type hint look like?

A `Shape` turns a value into its *wire* (a tree of None, bool, int, float, str, list and dict that JSON carries exactly)
and back. Shapes are built once per hint (`hints.py`) and know nothing of bytes (`canonical.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from perdure.codec.hiding import hidden_text

type_of: Callable[[Any], type] = type
"""`type(x)`, without the type checker's narrowing of Any to a dict or list of unknowns."""

DEPTH_MAX = 128
"""Levels of nesting that a value may have. More is refused, whatever the caller's stack has left."""

NO_TYPE: type = type("NoType", (), {})
"""The `own` type of shapes whose values are never their own wire: no value is of this type."""


class Unfit(Exception):
    """A value that has no wire, or a wire that has no value, under a shape. Collects its path while it rises.

    Internal to the codec: callers see EncodeError or DecodeError.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint
        self.steps: list[str] = []

    def under(self, step: str) -> Unfit:
        """The same refusal, seen from one level further out."""
        self.steps.append(step)
        return self

    def path(self) -> str:
        """Where it is, from the outside in; the middle of a very long path is left out."""
        steps = self.steps[::-1]
        if len(steps) > 24:
            steps = [*steps[:10], "…", *steps[-10:]]
        return "".join(steps)


class Shape(msgspec.Struct, eq=False):
    """One compiled hint: how its values become a wire and come back."""

    words: str
    """The hint as a person would write it."""

    to_wire: Callable[[Any, int], Any]
    """(value, depth) → wire. Raises Unfit."""

    from_wire: Callable[[Any, bool], Any]
    """(wire, tagged) → value. `tagged` is False when the whole text is known to hold no tags. Raises Unfit."""

    types: frozenset[type]
    """The exact types of the values it takes."""

    kinds: frozenset[str]
    """The JSON kinds that its wire can have: null, boolean, number, string, array, object."""

    own: type = NO_TYPE
    """A value of exactly this type is its own wire; callers may skip the call."""

    own_wire: type = NO_TYPE
    """A wire of exactly this type is its own value; callers may skip the call."""

    native: Any = None
    """The msgspec type that reads an untagged wire straight into the value, if there is one."""

    def fill(self, built: Shape) -> None:
        """Become `built`: closes the circle of a recursive hint."""
        self.words, self.types, self.kinds = built.words, built.types, built.kinds
        self.to_wire, self.from_wire = built.to_wire, built.from_wire


def hollow_shape() -> Shape:
    """A stand-in for a shape that is being built: what recursive hints refer to until `fill`."""

    def to_wire(value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise too_deep()
        return built.to_wire(value, depth)

    def from_wire(wire: Any, tagged: bool) -> Any:
        return built.from_wire(wire, tagged)

    built = Shape("…", _unfilled, _unfilled, frozenset(), frozenset())
    return _Hollow(built.words, to_wire, from_wire, built.types, built.kinds, inside=built)


class _Hollow(Shape, eq=False, kw_only=True):
    """Calls go through the stand-in, so that whoever captured its functions early reaches the finished shape."""

    inside: Shape

    def fill(self, built: Shape) -> None:
        self.inside.fill(built)
        self.words, self.types, self.kinds = built.words, built.types, built.kinds


def _unfilled(*_: Any) -> Any:
    raise Unfit("a hint that refers to itself and to nothing else")


def too_deep() -> Unfit:
    return Unfit(
        f"more than {DEPTH_MAX} levels of nesting", "Does the value contain itself? Record an id instead of the object"
    )


def kind_of(wire: Any) -> str:
    """The JSON kind of a wire."""
    return _KINDS.get(type_of(wire), "object")


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}

WIRE_WORDS = {
    "null": "null",
    "boolean": "true or false",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}


def not_this(value: Any, words: str) -> Unfit:
    """The refusal of a value whose exact type is not the hint's."""
    found: type = type_of(value)
    if value is None:
        return Unfit(f"None where {words} is declared", f"Annotate it as {words} | None")
    if words == PLAIN_WORDS:
        what = f"a value of type {full_name(found)}, which is not plain JSON"
    else:
        what = f"a value of type {full_name(found)} where {words} is declared"
    return Unfit(what, _advice(found, words))


def _advice(found: type, words: str) -> str:
    if is_secret(found):
        return SECRET_ADVICE
    if hasattr(found, "__await__"):
        return "It was not awaited: put `await` before the call that made it"
    if words == PLAIN_WORDS:
        return UNDECLARED
    if found in PLAIN_TYPES:
        return "Change the value or the annotation"
    return f"It would not come back as {found.__qualname__}: declare that type, or convert it first"


def full_name(cls: type) -> str:
    """The class's name for messages, with its module unless that says nothing."""
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


PLAIN_WORDS = "plain JSON"
UNDECLARED = "Annotate the parameter, field or return value that holds it with its type"
SECRET_ADVICE = "Secrets are never recorded: pass its name, and fetch it with perdure.secret() in the step"  # noqa: S105


def is_secret(cls: type) -> bool:
    """Whether it is one of pydantic's secret types, told by name so that pydantic need not be imported."""
    return any(base.__module__ == "pydantic.types" and base.__name__ in _SECRETS for base in cls.__mro__)


_SECRETS = frozenset({"Secret", "SecretStr", "SecretBytes", "_SecretBase"})

PLAIN_TYPES: frozenset[type] = frozenset({type(None), bool, int, float, str, list, dict})


def not_wire(wire: Any, words: str) -> Unfit:
    """The refusal of a wire of the wrong kind."""
    found = repr(wire) if isinstance(wire, (str, int, float)) and len(repr(wire)) < 60 else WIRE_WORDS[kind_of(wire)]
    return Unfit(f"{found} was recorded where {words} is declared")


def key_step(key: Any) -> str:
    """One step of a path into an object."""
    key = hidden_text(key) if isinstance(key, str) else key
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!a}]"


def union_words(words: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(words))


def refusing_shape(words: str, what: str, hint: str) -> Shape:
    """A shape without values: a hint that cannot be recorded is refused when a value arrives, with its path."""

    def to_wire(value: Any, depth: int) -> Any:
        raise Unfit(what, hint)

    def from_wire(wire: Any, tagged: bool) -> Any:
        raise Unfit(what, hint)

    return Shape(words, to_wire, from_wire, frozenset(), frozenset())

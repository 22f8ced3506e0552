"""Where secrets come from: `Runtime(secrets=[...])` takes these, and asks them in their order.

    Environment(prefix="SHOP_")     environment variables                 read anew each time
    File("/run/secrets")            a folder with a file for each          read anew each time
    File("secrets.toml")            a TOML file of names and texts         read anew each time
    Provider(ask)                   a function: value, or (value, expiry)  kept until shortly before it expires
    Minted(["stripe"], mint)        a function that makes one for a step   never kept

A step declares which ones it may have, `@step(secrets={"stripe"})`; they are fetched before its body begins, and
`perdure.secret("stripe")` in the body gives the value. Values never reach the store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from perdure.errors import UsageError

Answer = str | tuple[str, datetime] | None
"""A value; a value and when it expires; or None for a name that this provider does not have."""


class SecretRequest(msgspec.Struct, frozen=True):
    """What a secret is wanted for: all of it is known before the step's body begins.

    `scope` is what the step declares of it (`@step(secrets={"stripe": "refunds"})`), `operation_id` the effect's, ""
    for a plain step. `life_seconds`: how long the attempt may take; no credential has to live longer.
    """

    name: str
    scope: str
    step: str
    workflow: str
    run_id: str
    operation_id: str
    attempt: int
    life_seconds: float


class Environment:
    """Environment variables: `secret("stripe-key")` is `$STRIPE_KEY`, with `prefix="SHOP_"` it is `$SHOP_STRIPE_KEY`.

    With a prefix all variables that begin so are hidden from the start, also before a step has asked for them."""

    def __init__(self, prefix: str = "") -> None:
        if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Environment(prefix={prefix!r}): a text is wanted, as in prefix='SHOP_'")
        self._prefix = prefix

    def __call__(self, request: SecretRequest) -> Answer:
        return os.environ.get(self._prefix + re.sub(r"\W", "_", request.name).upper())

    def known(self) -> Iterator[tuple[str, str]]:
        """(name, value) of all that can be listed."""
        for variable, value in os.environ.items() if self._prefix else ():
            if variable.startswith(self._prefix):
                yield variable.removeprefix(self._prefix).lower(), value

    def __repr__(self) -> str:
        return f"Environment(prefix={self._prefix!r})"


class File:
    """A folder in which each file is a secret, as container platforms mount them; or one TOML file of names and texts,
    which nobody but its owner may read. A line feed at the end of a file does not belong to the value."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def __call__(self, request: SecretRequest) -> Answer:
        if os.path.isdir(self._path):
            return _text(os.path.join(self._path, request.name)) if request.name in self._files() else None
        value = self._table().get(request.name)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{self._path}: {request.name} is no text")
        return value

    def known(self) -> Iterator[tuple[str, str]]:
        """(name, value) of all that can be listed."""
        if os.path.isdir(self._path):
            yield from ((name, _text(os.path.join(self._path, name))) for name in self._files())
        elif os.path.exists(self._path):
            yield from ((name, value) for name, value in self._table().items() if isinstance(value, str))

    def _files(self) -> list[str]:
        return [name for name in sorted(os.listdir(self._path)) if os.path.isfile(os.path.join(self._path, name))]

    def _table(self) -> dict[str, Any]:
        import tomllib

        with open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_mode & OTHERS:
                raise UsageError(f"{self._path} can be read by others than its owner: chmod 600 {self._path}")
            try:
                return tomllib.load(file)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError):  # whose messages may quote what stands there
                raise UsageError(f"{self._path} is no TOML file of names and texts") from None

    def __repr__(self) -> str:
        return f"File({self._path!r})"


OTHERS = 0o077
"""The rights to a file of those who do not own it."""


def _text(path: str) -> str:
    with open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


class Provider:
    """A function that is asked for a value by name, `async def` or `def` (in a thread); its answer is kept.

    It returns the value, or `(value, expires_at)` with an aware datetime, or None for a name that it does not have. A
    value is asked for again less than a minute before it expires; without an expiry, after five minutes. What it raises
    is classified as a step's failure is: a lost connection is tried again, a 403 is final. `again_on`: HTTP statuses
    with which a step's failure says that the value is not good any more; it is asked for anew then, and a step whose
    value had been kept is tried again.

    >>> Provider(lambda name: {"stripe": "sk_live_..."}.get(name))
    Provider(<lambda>)
    """

    def __init__(self, ask: Callable[[str], Answer | Awaitable[Answer]], *, again_on: Iterable[int] = (401,)) -> None:
        self.ask = _function(ask, "Provider(ask)")
        self.again_on = frozenset(again_on)

    def __repr__(self) -> str:
        return f"Provider({_name(self.ask)})"


class Minted:
    """A function that makes a credential for one attempt at one step, from a `SecretRequest`; nothing of it is kept.

    It returns the value, or `(value, expires_at)`, or None. `names`: those that it makes."""

    def __init__(self, names: Iterable[str], mint: Callable[[SecretRequest], Answer | Awaitable[Answer]]) -> None:
        if isinstance(names, str):
            raise UsageError(f"Minted({names!r}, ...): a list of names is wanted, as in Minted([{names!r}], mint)")
        self.names = frozenset(names)
        self.mint = _function(mint, "Minted(names, mint)")

    def __repr__(self) -> str:
        return f"Minted({_name(self.mint)})"


AnyProvider = Environment | File | Provider | Minted


def _function(given: Any, what: str) -> Any:
    if not callable(given):
        raise UsageError(f"{what}: {given!r} is no function")
    return given


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


__all__ = ["Environment", "File", "Minted", "Provider", "SecretRequest"]

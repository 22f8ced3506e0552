"""What a result rests on, given with the call: by adapters, which know the model, the prompt release and the tools only
where they make it.

Such a fact is a value, given anew by the code that makes the call once more, in whichever process; or a function
without arguments that reads it. A change is noted, and nothing else, unless whoever gives it says otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from perdure.codec import codec_for
from perdure.errors import EncodeError, UsageError
from perdure.specs import OnStale, Premise, Rests, StepSpec, recordable

SPEC = TypeVar("SPEC", bound=StepSpec)

READERS_KEPT = 256


def resting_on(spec: SPEC, given: Any, on_stale: Any) -> SPEC:
    """The step, whose result rests on these facts besides those that it declares. `on_stale`: None, as the step says
    itself, else "note". UsageError for what cannot be meant."""
    if not isinstance(given, Mapping) or not given:
        raise UsageError(f"premises of {spec.name}: {given!r}; names and values, as in {{'model': 'small-1'}}")
    if spec.lazy:
        raise UsageError(f"premises of {spec.name}: what is checked again has to be durable; it is record='lazy'")
    own = spec.rests or Rests(on_stale=OnStale.NOTE)
    names = {premise.name for premise in own.premises}
    facts = tuple(_premise(spec, name, value, names) for name, value in given.items())  # pyright: ignore[reportUnknownVariableType]
    chosen = own.on_stale if on_stale is None else _disposition(spec, on_stale)
    rests = msgspec.structs.replace(own, premises=(*own.premises, *facts), on_stale=chosen)
    return msgspec.structs.replace(spec, rests=rests)


def _disposition(spec: StepSpec, given: Any) -> Any:
    if callable(given):
        return given
    if given not in set(OnStale):
        shown = ", ".join(repr(str(each)) for each in OnStale)
        raise UsageError(f"premises of {spec.name}: on_stale={given!r}; one of {shown}, or a function that gives one")
    return OnStale(given)


def _premise(spec: StepSpec, name: Any, value: Any, names: set[str]) -> Premise:
    what = f"premise {name!r} of {spec.name}"
    if not isinstance(name, str) or not name.strip() or name in names:
        raise UsageError(f"{what}: " + ("it declares one of that name itself" if name in names else "no name"))
    codec = codec_for(Any)
    if callable(value):
        return Premise(recordable(name, what=what), value, inspect.iscoroutinefunction(value), codec, is_given=True)
    try:
        reader = _gives(codec.dumps(value))
    except EncodeError as error:
        raise error.about(what) from None
    return Premise(recordable(name, what=what), reader, True, codec, is_given=True)


@functools.lru_cache(READERS_KEPT)
def _gives(raw: bytes) -> Callable[[], Awaitable[Any]]:
    """Reads a fact that is a value: the same reader for equal ones, so that all calls which rest on it share it."""

    async def read() -> Any:
        return msgspec.json.decode(raw)

    return read

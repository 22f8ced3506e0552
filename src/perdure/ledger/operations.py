"""The identity of an effect: one id for one intention, the same in every attempt, replay, process and deploy."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from perdure.codec.canonical import canonical_bytes
from perdure.errors import PerdureError, UsageError
from perdure.specs import EffectSpec, recordable

OPERATION_ID_DIGITS = 32
REVISIONS_MAX = 10
"""How often one intention may be corrected after proven refusals."""


def operation_id(*, scope: str, run_id: str, name: str, business_key: str, revision: int = 0) -> str:
    """The first 32 hex digits of SHA-256 over the canonical JSON of [scope, run id or null, name, key, revision].

    In scope `global` the run's id is left out: one intention has one id, whichever run asks for it. 128 bits of a
    SHA-256: two intentions share an id with a chance of 2**-64 after 2**32 of them (birthday bound).

    >>> operation_id(scope="run", run_id="claim-42", name="refund", business_key="order-7")
    '88258fdf8222356ceb5b782598c10f7e'
    """
    parts = [scope, None if scope == "global" else run_id, name, business_key, revision]
    return sha256(canonical_bytes(parts)).hexdigest()[:OPERATION_ID_DIGITS]


def business_key_of(spec: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What the author says makes this effect one and the same. UsageError, before anything is sent, if that is
    nothing."""
    function = spec.function.__name__
    if spec.key is None:
        raise UsageError(
            f"effect {spec.name} has no key, and without one a repeat cannot be told from a new one: add\n"
            f"@{function}.key\ndef _(...) -> str: return ...  # e.g. the order's id"
        )
    if spec.lookup is None and spec.downstream.kind == "can_look_up":
        raise UsageError(
            f"effect {spec.name} is declared with CanLookUp(), and nothing says how to ask the other side: add\n"
            f"@{function}.lookup\nasync def _(op: Operation) -> ...: return Found(...)  # or NotFound(), Unsure(why)\n"
            "or declare NoGuarantee(), so that a person finds out"
        )
    try:
        key = spec.key(*args, **kwargs)
    except PerdureError:
        raise
    except Exception as error:
        raise UsageError(f"the key function of {spec.name} raised {type(error).__name__}: {error}") from error
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise UsageError(f"the key function of {spec.name} returned {key!r}: a text or a whole number is wanted")
    return recordable(str(key), what=f"the key of {spec.name}")

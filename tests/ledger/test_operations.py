"""The identity of an effect."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import CanLookUp, DeclarationError, Idempotent, NotFound, UsageError, effect
from perdure.ledger.operations import OPERATION_ID_DIGITS, business_key_of, operation_id

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def independently(parts: list[Any]) -> str:
    """Of a list of texts, whole numbers and nulls, canonical JSON is what `json` writes without spaces."""
    written = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(written.encode()).hexdigest()[:32]


KNOWN = {
    ("run", "claim-42", "refund", "order-7", 0): "88258fdf8222356ceb5b782598c10f7e",
    ("run", "claim-42", "refund", "order-7", 1): None,
    ("global", "claim-42", "refund", "order-7", 0): None,
    ("run", "Ünïcode", "löschen", "€ \"quoted\" \\ \n", 3): None,
}


@pytest.mark.parametrize(("parts", "known"), KNOWN.items())
def test_known_ids(parts: tuple[Any, ...], known: str | None) -> None:
    scope, run_id, name, key, revision = parts
    own = operation_id(scope=scope, run_id=run_id, name=name, business_key=key, revision=revision)
    assert own == independently([scope, None if scope == "global" else run_id, name, key, revision])
    assert own == (known or own)
    assert len(own) == OPERATION_ID_DIGITS == 32


@given(TEXTS, TEXTS, TEXTS, st.integers(0, 9), st.sampled_from(["run", "global"]))
def test_ids_as_computed_independently(run_id: str, name: str, key: str, revision: int, scope: str) -> None:
    own = operation_id(scope=scope, run_id=run_id, name=name, business_key=key, revision=revision)
    assert own == independently([scope, None if scope == "global" else run_id, name, key, revision])


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_a_global_id_is_the_same_in_every_run(one: str, other: str, name: str, key: str) -> None:
    def of(scope: str, run_id: str) -> str:
        return operation_id(scope=scope, run_id=run_id, name=name, business_key=key)

    assert of("global", one) == of("global", other)
    assert (of("run", one) == of("run", other)) == (one == other)
    assert of("global", one) != of("run", one)


def test_each_revision_has_an_id_of_its_own() -> None:
    ids = {operation_id(scope="run", run_id="r", name="pay", business_key="o", revision=n) for n in range(10)}
    assert len(ids) == 10


# ── keys ────────────────────────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent())
async def pay(order: Any) -> None: ...


@pay.key
def _(order: Any) -> Any:
    if order == "raise":
        raise KeyError("no such order")
    return order


@pytest.mark.parametrize("key", ["o", 7, 0, -3])
def test_a_key_is_a_text_or_a_whole_number(key: Any) -> None:
    assert business_key_of(pay.spec, (key,), {}) == str(key)
    assert business_key_of(pay.spec, (), {"order": key}) == str(key)


@pytest.mark.parametrize("key", [None, True, 1.5, b"o", ["o"], ""])
def test_anything_else_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match=r"the key (function )?of pay"):
        business_key_of(pay.spec, (key,), {})


def test_a_key_that_raises_is_refused_and_one_that_is_missing() -> None:
    with pytest.raises(UsageError, match="key function of pay raised KeyError"):
        business_key_of(pay.spec, ("raise",), {})

    @effect(downstream=Idempotent())
    async def keyless(order: str) -> None: ...

    with pytest.raises(UsageError, match=r"add\n@keyless\.key"):
        business_key_of(keyless.spec, ("o",), {})


def test_who_says_that_it_can_be_asked_says_how() -> None:
    """Else nobody finds out, and that would be seen only after something was sent."""

    @effect(downstream=CanLookUp(), name="wire-money")
    async def wire(order: str) -> str:
        return order

    wire.key(lambda order: order)
    with pytest.raises(UsageError, match=r"effect wire-money is declared with CanLookUp\(\).*\n@wire\.lookup"):
        business_key_of(wire.spec, ("o",), {})
    wire.lookup(lambda op: NotFound())
    assert business_key_of(wire.spec, ("o",), {}) == "o"


def test_an_effect_without_a_word_about_the_other_side_is_refused_at_declaration() -> None:
    async def pays(order: str) -> str:
        return order

    bare: Any = effect
    for declare in (bare, bare(), bare(downstream=Idempotent)):
        with pytest.raises(DeclarationError, match=r"effect pays: .*; say what the other side guarantees: @effect\("):
            declare(pays)

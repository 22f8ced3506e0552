"""What tokens cost: a list that the user keeps, with the date of each price.

    currency = "USD"

    [[price]]
    model = "small-1"
    as_of = 2026-11-01
    input = 0.25        # for a million tokens
    output = 2.00
    cached = 0.03       # input that the other side had; default: as input

A model may stand there mapping, several times: the newest price counts whose date has come.
"""

from __future__ import annotations

import hashlib
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.history.spending import Use
from perdure.specs import NANOS, mapping, several

TOKENS_OF_PRICE = 1_000_000

_KNOWN = {"model", "as_of", "input", "output", "cached"}


class Price(NamedTuple):
    """What a million tokens of a model cost, from a day on."""

    model: str
    as_of: date
    input: Decimal
    output: Decimal
    cached: Decimal


class Prices(NamedTuple):
    """A price list, as one file has it. `digest` says which file it was."""

    currency: str
    digest: str
    prices: tuple[Price, ...]

    def of(self, model: str, on: date) -> Price | None:
        """The newest price of a model whose date has come."""
        there = [price for price in self.prices if price.model == model and price.as_of <= on]
        return max(there, key=lambda price: price.as_of, default=None)

    def priced(self, use: Use, on: date) -> Use | None:
        """The use with its cost; None if there is no price, or it is not said which tokens came in, which went out."""
        price = self.of(use.model, on) if use.model and (use.input or use.output) else None
        if price is None:
            return None
        fresh = max(use.input - use.cached, 0)
        cost = price.input * fresh + price.cached * use.cached + price.output * use.output
        found = int((cost * NANOS / TOKENS_OF_PRICE).to_integral_value())
        return Use(
            use.model, use.tokens, use.input, use.output, use.cached, found, f"{price.as_of.isoformat()} {self.digest}"
        )


def read_prices(raw: bytes, *, where: str) -> Prices:
    """The price list that a file has. UsageError for what is none, naming the place and what is wanted there."""
    import tomllib  # only who has a price list needs it

    try:
        found = tomllib.loads(raw.decode(), parse_float=Decimal)
    except ValueError as error:
        raise UsageError(f"prices: {where} is no TOML: {error}") from None
    unknown = found.keys() - {"currency", "price"}
    given = several(found.get("price"))
    if unknown or not isinstance(found.get("currency"), str) or given is None:
        raise UsageError(f"prices: {where}: a `currency`, and a [[price]] for each model, are wanted{_odd(unknown)}")
    prices = tuple(_price(each, f"{where}: price {n}") for n, each in enumerate(given, 1))
    twice = {(price.model, price.as_of) for price in prices}
    if len(twice) < len(prices):
        raise UsageError(f"prices: {where}: a model has two prices of the same date")
    return Prices(found["currency"], hashlib.sha256(raw).hexdigest()[:12], prices)


def _price(found: Any, where: str) -> Price:
    given = mapping(found) or {}
    if not isinstance(given.get("model"), str):
        raise UsageError(f"prices: {where}: the name of a `model` is wanted")
    where = f"{where} ({given['model']})"
    if unknown := given.keys() - _KNOWN:
        raise UsageError(f"prices: {where}: {', '.join(sorted(_KNOWN))} are wanted{_odd(unknown)}")
    if type(given.get("as_of")) is not date:
        raise UsageError(f"prices: {where}: `as_of` is the day from which it counts, as in as_of = 2026-11-01")
    amounts: dict[str, Any] = {name: given.get(name, given.get("input")) for name in ("input", "output", "cached")}
    for name, amount in amounts.items():
        if type(amount) not in {int, Decimal} or amount < 0 or (name == "output" and "output" not in given):
            raise UsageError(f"prices: {where}: `{name}` is what a million tokens cost, a number from 0 on")
    return Price(given["model"], given["as_of"], *(Decimal(amount) for amount in amounts.values()))


def _odd(unknown: set[str]) -> str:
    return f", not {', '.join(sorted(unknown))}" if unknown else ""

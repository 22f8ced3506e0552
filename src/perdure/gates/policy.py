"""What calls are allowed: a policy is named, numbered data, made of rules.

A rule is about calls of some names. What it gives for a call:

| the rule's `when` | its `must`, `scope`, `check`, `rate` | its `then` | it gives |
| --- | --- | --- | --- |
| does not hold | | | nothing |
| cannot be judged | | | refuse |
| holds | not all are kept, or cannot be judged | | refuse |
| holds | all are kept | `refuse` | refuse |
| holds | all are kept | `approve` | approve: only under an approval by these people |
| holds | all are kept | `allow` | allow: also what cannot be taken back |
| holds | all are kept | (none) | nothing |

Of all that is given, by the rules of all policies that apply, the strictest counts: refuse before approve before
allow; so the order of rules means nothing, and one more rule that limits never loosens. Where the rules of a policy
give nothing, its `others` speaks: `refuse`, or nothing. Where nobody says anything, an effect that cannot be taken back
needs an approval, and all else is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, Self

import msgspec

from perdure.clock import MICROSECONDS
from perdure.errors import DeclarationError, UsageError
from perdure.gates.conditions import Condition, conditions_of
from perdure.specs import is_whole, mapping, recordable, seconds, several

PERIODS: Mapping[str, float] = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
PERIOD_SECONDS_MAX = 366 * 86400.0
QUORUM_MAX = 1_000


class Verdict(StrEnum):
    """What a policy says about a call, the mildest first."""

    ALLOW = "allow"
    APPROVE = "approve"
    REFUSE = "refuse"


class Asked(msgspec.Struct, frozen=True):
    """A call that is to pass: what policies are asked about, and what a rule's `check` gets.

    `names`: the call's name, then the names that it had before. `arguments`: by parameter, plain JSON, defaults filled
    in. `kind`: `step` or `effect`. `scope`, `goal`: what its run has stated.
    """

    names: tuple[str, ...]
    arguments: Mapping[str, Any]
    kind: str = "effect"
    is_reversible: bool = True
    scope: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    goal: str = ""
    workflow: str = ""
    run_id: str = ""

    @property
    def name(self) -> str:
        return self.names[0]


Check = Callable[[Asked], "bool | str | None"]
"""A rule's own function. True and None: it may pass; False, or a text that says why: it may not."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` in any `seconds`, across all runs; for each value of the argument at `each`, if one is named."""

    count: int
    seconds: float
    each: str = ""

    @property
    def microseconds(self) -> int:
        return round(self.seconds * MICROSECONDS)

    @property
    def told(self) -> str:
        per = next((f"per {name}" for name, length in PERIODS.items() if length == self.seconds), "")
        return f"{self.count} {per or f'in {self.seconds:g} s'}" + (f" for each {self.each}" if self.each else "")


@dataclass(frozen=True)
class Rule:
    """What a policy says about some calls. See the table in the module, or the page on policies.

    `calls`: names of effects and steps, as declared; one that ends with `*` means all that begin so. `when`: for which
    arguments the rule is meant (default: all). `must`: what the arguments have to keep; `scope`: by a name in the run's
    scope, the argument that has to be the same; `rate`: how often, `"10 per hour"`, or `{"count": 10, "per": 3600,
    "each": "customer"}`; `check`: a function of an `Asked`. `then`: `"allow"`, `"approve"` (with `by`: who may approve,
    default anybody, and `quorum`), `"refuse"`.

    >>> Rule("bounds", "refund", must={"amount": {"<=": 5000}}).must[0].told
    'amount <= 5000'

    DeclarationError for what cannot be meant.
    """

    name: str
    calls: Any
    when: Any = ()
    must: Any = ()
    scope: Any = ()
    rate: Any = None
    check: Check | None = None
    then: Any = None
    by: Any = ()
    quorum: int = 1

    def __post_init__(self) -> None:
        name = _named(self.name, "rule")
        what = f"rule {name!r}: "
        put = object.__setattr__
        put(self, "calls", _names(self.calls, f"{what}calls"))
        put(self, "when", _conditions(self.when, f"{what}when"))
        put(self, "must", _conditions(self.must, f"{what}must"))
        put(self, "scope", _scope(self.scope, f"{what}scope"))
        put(self, "rate", _rate(self.rate, f"{what}rate"))
        put(self, "by", tuple(sorted(set(_names(self.by, f"{what}by") if self.by != () else ()))))
        if self.then is not None:
            put(self, "then", _verdict(self.then, f"{what}then"))
        self._check_together(what)

    def _check_together(self, what: str) -> None:
        if self.check is not None and not callable(self.check):  # pyright: ignore[reportUnnecessaryComparison]
            raise DeclarationError(f"{what}check={self.check!r}: a function of the call that is asked for")
        if not is_whole(self.quorum) or not 1 <= self.quorum <= QUORUM_MAX:
            raise DeclarationError(f"{what}quorum={self.quorum!r}: how many different persons, from 1 on")
        if self.then is not Verdict.APPROVE and (self.by or self.quorum != 1):
            raise DeclarationError(f"{what}by= and quorum= belong to then='approve'")
        limits = self.must or self.scope or self.rate or self.check
        if self.then is None and not limits:
            raise DeclarationError(f"{what}it says nothing: give then=, or must=, scope=, rate=, check=")
        if self.then is Verdict.REFUSE and limits:
            raise DeclarationError(f"{what}then='refuse' refuses all: for which arguments, is said by when=")

    def is_about(self, names: Iterable[str]) -> bool:
        """Whether a call of one of these names is meant."""
        return any(matches(pattern, name) for pattern in self.calls for name in names)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is meant: by itself, or by how it begins (`refund*`)."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


@dataclass(frozen=True)
class Policy:
    """Named and numbered rules about calls. `others`: what is said about calls for which no rule gives anything:
    `"refuse"`, or `"default"` (nothing). `secrets`: by name of a secret which steps may have it; without any, all may.

    >>> Policy("shop", 3, [Rule("small refunds", "refund", when={"amount": {"<=": 100}}, then="allow")]).label
    'shop version 3'

    DeclarationError for what cannot be meant.
    """

    name: str
    version: int | str
    rules: Any = ()
    others: Literal["default", "refuse"] = "default"
    secrets: Any = field(default=None)

    def __post_init__(self) -> None:
        name = _named(self.name, "policy")
        what = f"policy {name!r}: "
        put = object.__setattr__
        if not (is_whole(self.version) and int(self.version) >= 1):
            put(self, "version", _named(self.version, f"{what}version"))
        rules = several(self.rules)
        if rules is None or not all(isinstance(rule, Rule) for rule in rules):
            raise DeclarationError(f"{what}rules={self.rules!r}: a list of Rule")
        names = [rule.name for rule in rules]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DeclarationError(f"{what}two rules are called {twice!r}: a refusal names its rule")
        if self.others not in {"default", "refuse"}:
            raise DeclarationError(f"{what}others={self.others!r}: 'default' or 'refuse'")
        put(self, "rules", tuple(rules))
        put(self, "secrets", _secrets(self.secrets, f"{what}secrets"))

    @property
    def label(self) -> str:
        return f"{self.name} version {self.version}"

    @classmethod
    def from_toml(cls, text: str, source: str = "policy") -> Self:
        """A policy as TOML says it. DeclarationError names `source`, rule and field.

        >>> text = '''
        ... name = "shop"
        ... version = 3
        ... [[rule]]
        ... name = "bounds"
        ... calls = ["refund"]
        ... must = { amount = { "<=" = 5000 }, currency = ["EUR", "USD"] }
        ... '''
        >>> [condition.told for condition in Policy.from_toml(text).rules[0].must]
        ['amount <= 5000', 'currency in {EUR, USD}']
        """
        import tomllib  # only for those who write their policies so

        try:
            given = tomllib.loads(text)
            tables = given.pop("rule", [])
            if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):  # pyright: ignore[reportUnknownVariableType]
                raise DeclarationError("rule: rules are tables, each under [[rule]]")
            rules = [_rule_of(table) for table in tables]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
            _check_fields(given, ("name", "version", "others", "secrets"), ("name", "version"), "the policy")
            return cls(**given, rules=rules)
        except (DeclarationError, tomllib.TOMLDecodeError) as error:
            raise DeclarationError(f"{source}: {error}") from None


def allows_secret(policy: Policy, step: str, secret: str) -> bool:
    """Whether a step of this name may have this secret."""
    if policy.secrets is None:
        return True
    return any(matches(pattern, step) for pattern in policy.secrets.get(secret, ()))


# ── what is wrong with it ───────────────────────────────────────────────────────────────────


def _rule_of(table: dict[str, Any]) -> Rule:
    what = f"rule {table['name']!r}" if "name" in table else "a rule"
    known = ("name", "calls", "when", "must", "scope", "rate", "then", "by", "quorum")
    _check_fields(table, known, ("name", "calls"), what)
    return Rule(**table)


def _check_fields(table: Mapping[str, Any], known: tuple[str, ...], needed: tuple[str, ...], what: str) -> None:
    unknown = next((name for name in table if name not in known), None)
    if unknown is not None:
        raise DeclarationError(f"{what}: there is no field {unknown!r}; there are {', '.join(known)}")
    missing = next((name for name in needed if name not in table), None)
    if missing is not None:
        raise DeclarationError(f"{what}: it needs a {missing}")


def _named(given: Any, what: str) -> str:
    try:
        return recordable(given, what=what)
    except UsageError as error:
        raise DeclarationError(str(error)) from None


def _names(given: Any, what: str) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else several(given)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise DeclarationError(f'{what}={given!r}: a name, or a list of names, as in ["refund"]')
    return tuple(names)


def _conditions(given: Any, what: str) -> tuple[Condition, ...]:
    return () if given == () else conditions_of(given, what)


def _scope(given: Any, what: str) -> tuple[tuple[str, str], ...]:
    table = {} if given == () else mapping(given)
    if table is None or not all(isinstance(each, str) and each for pair in table.items() for each in pair):
        raise DeclarationError(f'{what}={given!r}: names in a scope and arguments, as in {{"order": "order_id"}}')
    return tuple(table.items())


def _rate(given: Any, what: str) -> Rate | None:
    if given is None or isinstance(given, Rate):
        return given
    example = f'{what}={given!r}: as in "10 per hour", or {{"count": 10, "per": 3600, "each": "customer"}}'
    if isinstance(given, str):
        count, _, period = given.partition(" per ")
        if not count.isdecimal() or period not in PERIODS:
            raise DeclarationError(f"{example}; periods are {', '.join(PERIODS)}")
        given = {"count": int(count), "per": period}
    table = mapping(given) if isinstance(given, Mapping) else None
    if table is None or not {"count", "per"} <= set(table) <= {"count", "per", "each"}:
        raise DeclarationError(example)
    count, per, each = table["count"], table["per"], table.get("each", "")
    if not is_whole(count) or count < 1 or not isinstance(each, str):
        raise DeclarationError(f"{example}; count is a whole number from 1 on")
    length = PERIODS.get(per) if isinstance(per, str) else _period(per, what)
    if length is None or not 0 < length <= PERIOD_SECONDS_MAX:
        raise DeclarationError(f"{example}; a period is up to 366 days, or one of {', '.join(PERIODS)}")
    return Rate(count, length, each)


def _period(per: timedelta | float, what: str) -> float:
    return seconds(per, what=f"{what}: per")


def _verdict(given: Any, what: str) -> Verdict:
    if given not in set(Verdict):
        raise DeclarationError(f"{what}={given!r}: 'allow', 'approve' or 'refuse'")
    return Verdict(given)


def _secrets(given: Any, what: str) -> dict[str, tuple[str, ...]] | None:
    if given is None:
        return None
    table = mapping(given)
    if table is None or not all(isinstance(name, str) for name in table):
        raise DeclarationError(f'{what}={given!r}: names of secrets and steps, as in {{"payments_key": ["refund"]}}')
    return {name: _names(steps, f"{what}.{name}") for name, steps in table.items()}

"""What policies say about calls, held against an independent account of the same table."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.decisions import Vote
from perdure.errors import DeclarationError
from perdure.gates.policy import Asked, Policy, Rule, Verdict, allows_secret
from perdure.gates.ruling import DEFAULT, Need, judge, lacking

SHOP = """
name = "shop"
version = 3
others = "refuse"

[[rule]]
name = "bounds"
calls = "refund"
must = { amount = { "<=" = 5000 }, currency = ["EUR", "USD"] }
scope = { order = "order_id" }
rate = "10 per hour"

[[rule]]
name = "large refunds"
calls = "refund"
when = { amount = { ">" = 500 } }
then = "approve"
by = ["supervisor"]
quorum = 2

[[rule]]
name = "refunds"
calls = "refund"
then = "allow"

[[rule]]
name = "reads"
calls = ["find_*", "look"]
then = "allow"

[secrets]
payments_key = ["refund"]
"""


def asked(name: str = "refund", *, scope: dict[str, str] | None = None, **arguments: Any) -> Asked:
    arguments = {"order_id": "42", "currency": "EUR", "amount": 5} | arguments
    return Asked((name,), arguments, is_reversible=False, scope={"order": "42"} if scope is None else scope)


def said(policy: Policy, call: Asked) -> tuple[str, str]:
    ruling = judge([policy], call)
    return str(ruling.verdict), "" if ruling.source is None else ruling.source.rule


@pytest.mark.parametrize(
    ("call", "verdict", "rule"),
    [
        (asked(), "allow", "refunds"),
        (asked(amount=500), "allow", "refunds"),
        (asked(amount=500.01), "approve", "large refunds"),
        (asked(amount="500.01"), "approve", "large refunds"),  # a Decimal, as it is recorded
        (asked(amount=5001), "refuse", "bounds"),
        (asked(amount=True), "refuse", "bounds"),
        (asked(amount="much"), "refuse", "bounds"),
        (asked(amount="NaN"), "refuse", "bounds"),
        (asked(amount=None), "refuse", "bounds"),
        (asked(amount=[1]), "refuse", "bounds"),
        (asked(currency="BTC"), "refuse", "bounds"),
        (asked(order_id="43"), "refuse", "bounds"),
        (asked(scope={}), "refuse", "bounds"),
        (asked("find_order"), "allow", "reads"),
        (asked("look"), "allow", "reads"),
        (asked("look_at"), "refuse", "others"),
        (asked("wire"), "refuse", "others"),
    ],
)
def test_a_policy_as_toml_says_it(call: Asked, verdict: str, rule: str) -> None:
    assert said(Policy.from_toml(SHOP), call) == (verdict, rule)


def test_a_refusal_says_which_rule_and_why() -> None:
    ruling = judge([Policy.from_toml(SHOP)], asked(amount=9000))
    assert ruling.source is not None
    assert ruling.source.told == "policy shop version 3, rule 'bounds'"
    assert ruling.why == "it must keep amount <= 5000, and has amount 9000"


def test_without_a_word_what_cannot_be_taken_back_needs_an_approval() -> None:
    ruling = judge([], asked())
    assert (ruling.verdict, ruling.source) == (Verdict.APPROVE, DEFAULT)
    assert lacking(ruling, None) is not None
    assert lacking(ruling, [Vote("approve", "ann", 1)]) is None
    assert judge([], Asked(("refund",), {}, is_reversible=True)).verdict is Verdict.ALLOW
    assert judge([], Asked(("plan",), {}, kind="step", is_reversible=False)).verdict is Verdict.ALLOW


def test_of_two_policies_the_stricter_wins() -> None:
    allows = Policy("a", 1, [Rule("all", "*", then="allow")])
    asks = Policy("b", 1, [Rule("refunds", "refund", then="approve", by="ann")])
    refuses = Policy("c", 1, [Rule("none", "refund", then="refuse")])
    for both in ([allows, asks], [asks, allows]):
        assert judge(both, asked()).verdict is Verdict.APPROVE
    for both in ([allows, asks, refuses], [refuses, allows, asks]):
        ruling = judge(both, asked())
        assert ruling.verdict is Verdict.REFUSE
        assert ruling.source is not None
        assert ruling.source.policy == "c"


def test_a_renamed_effect_is_meant_by_its_old_name_too() -> None:
    policy = Policy("a", 1, [Rule("no", "refund", then="refuse")])
    assert judge([policy], Asked(("pay_back", "refund"), {})).verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, None), (True, None), ("", None), (False, "its check says False"), ("no", "no"), (1, "its check says 1")],
)
def test_a_function_decides(answer: Any, why: str | None) -> None:
    policy = Policy("a", 1, [Rule("mine", "refund", check=lambda _: answer)])
    ruling = judge([policy], Asked(("refund",), {}))
    assert (ruling.why or None, ruling.verdict) == (why, Verdict.ALLOW if why is None else Verdict.REFUSE)


def test_a_function_that_fails_lets_nothing_pass() -> None:
    def check(call: Asked) -> bool:
        return bool(call.arguments["no such"])

    ruling = judge([Policy("a", 1, [Rule("mine", "refund", check=check)])], asked())
    assert (ruling.verdict, ruling.why) == (Verdict.REFUSE, "its check failed: KeyError: 'no such'")


def test_an_argument_that_may_be_left_out() -> None:
    policy = Policy("a", 1, [Rule("tips", "pay", when={"tip": {"given": True, ">": 10}}, then="refuse")])
    assert judge([policy], Asked(("pay",), {})).verdict is Verdict.ALLOW
    assert judge([policy], Asked(("pay",), {"tip": 11})).verdict is Verdict.REFUSE
    assert judge([policy], Asked(("pay",), {"tip": "a lot"})).verdict is Verdict.REFUSE


def test_rates_are_counted_for_what_passes() -> None:
    policy = Policy("a", 1, [Rule("few", "refund", rate={"count": 2, "per": 60, "each": "order_id"})])
    (first,), (second,) = judge([policy], asked()).uses, judge([policy], asked(order_id="43")).uses
    assert first.bucket != second.bucket
    assert (first.calls_max, first.microseconds, first.told) == (2, 60_000_000, "2 per minute for each order_id")
    assert judge([Policy("a", 2, policy.rules)], asked()).uses[0].bucket == first.bucket  # a new version counts on
    assert judge([policy], asked(order_id=None)).verdict is Verdict.REFUSE


@pytest.mark.parametrize(
    ("votes", "is_enough"),
    [
        ([("approve", "ann", "boss"), ("approve", "bob", "boss")], True),
        ([("approve", "ann", "boss"), ("approve", "ann", "boss")], False),
        ([("approve", "ann", "boss"), ("approve", "bob", "")], False),
        ([("approve", "eve", ""), ("approve", "bob", "boss")], True),
        ([("approve", "mel", "clerk"), ("approve", "bob", "boss")], False),
    ],
)
def test_an_approval_has_to_be_by_whom_the_policy_names(votes: list[tuple[str, str, str]], is_enough: bool) -> None:
    need = Need(DEFAULT, ("boss", "eve"), 2)
    assert (need.lacks([Vote(choice, by, 1, role) for choice, by, role in votes]) is None) is is_enough


def test_who_was_handed_a_decision_on_stands_for_who_did() -> None:
    need = Need(DEFAULT, ("eve",))
    handed, approved = Vote("delegate", "eve", 1, to="mel"), Vote("approve", "mel", 2)
    assert need.lacks([handed, approved]) is None
    assert need.lacks([Vote("delegate", "joe", 1, to="mel"), approved]) is not None


def test_secrets_are_for_the_steps_that_are_named() -> None:
    policy = Policy.from_toml(SHOP)
    assert allows_secret(policy, "refund", "payments_key")
    assert not allows_secret(policy, "find_order", "payments_key")
    assert not allows_secret(policy, "refund", "other_key")
    assert allows_secret(Policy("a", 1), "refund", "other_key")


# ── what is wrong with it ───────────────────────────────────────────────────────────────────

RULE = 'name = "shop"\nversion = 1\n[[rule]]\nname = "r"\ncalls = "refund"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nme = 1", "p.toml: the policy: there is no field 'nme'"),
        ('name = "a"', "p.toml: the policy: it needs a version"),
        ('name = "a"\nversion = 0', "p.toml: policy 'a': version 0: a text"),
        ('name = "a"\nversion = 1\nothers = "allow"', "p.toml: policy 'a': others='allow': 'default' or 'refuse'"),
        ('name = "a"\nversion = 1\n[rule]\nname = "x"', "p.toml: rule: rules are tables, each under [[rule]]"),
        (RULE, "p.toml: rule 'r': it says nothing"),
        (RULE + 'then = "maybe"', "p.toml: rule 'r': then='maybe': 'allow', 'approve' or 'refuse'"),
        (RULE + 'thn = "allow"', "p.toml: rule 'r': there is no field 'thn'"),
        (RULE + "must = { amount = { less = 3 } }", 'p.toml: rule \'r\': must: amount: \'less\' is no comparison'),
        (RULE + "must = { claim.amount = 3 }", '(write a path in one piece: "claim.amount")'),
        (RULE + 'must = { amount = { "<" = "3" } }', "p.toml: rule 'r': must: amount < '3': compared with a number"),
        (RULE + "must = { amount = [] }", "p.toml: rule 'r': must: amount in []: a list of"),
        (RULE + "must = { amount = {} }", "p.toml: rule 'r': must: amount: nothing is no comparison"),
        (RULE + 'must = { "" = 3 }', "p.toml: rule 'r': must: '' is no path"),
        (RULE + 'rate = "ten per hour"', "p.toml: rule 'r': rate='ten per hour': as in"),
        (RULE + 'rate = "0 per hour"', "count is a whole number from 1 on"),
        (RULE + 'rate = { count = 1, per = "year" }', "a period is up to 366 days"),
        (RULE + "rate = { count = 1, per = -1 }", "not below 0"),
        (RULE + 'then = "allow"\nby = ["ann"]', "p.toml: rule 'r': by= and quorum= belong to then='approve'"),
        (RULE + 'then = "approve"\nquorum = 0', "p.toml: rule 'r': quorum=0"),
        (RULE + 'then = "refuse"\nrate = "1 per day"', "then='refuse' refuses all"),
        (RULE + 'then = "allow"\n[[rule]]\nname = "r"\ncalls = "x"\nthen = "allow"', "two rules are called 'r'"),
        (RULE + 'scope = { order = 3 }', "p.toml: rule 'r': scope={'order': 3}"),
        ("[", "p.toml: "),
    ],
)  # fmt: skip
def test_one_clear_error_says_where(text: str, told: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        Policy.from_toml(text, "p.toml")
    assert told in str(raised.value)
    assert str(raised.value).startswith("p.toml: ")


def test_what_is_wrong_in_python() -> None:
    for wrong in (
        lambda: Rule("", "refund", then="allow"),
        lambda: Rule("r", [], then="allow"),
        lambda: Rule("r", "refund", check=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: Policy("p", 1, ["rule"]),
        lambda: Policy("p", 1, secrets={"key": 3}),
        lambda: Rule("r", "refund", must={"amount": {"<": float("nan")}}),
        lambda: Rule("r", "refund", must={"amount": {"given": 1}}),
    ):
        with pytest.raises(DeclarationError):
            wrong()


# ── an independent account ──────────────────────────────────────────────────────────────────

VALUES = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 1.0, 2.5, "1", "2.50", "x", "y", "", True, False, None]), st.just([1])
)  # fmt: skip
SCALARS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 2.5, "x", "y", True, False]))
CONDITIONS = st.dictionaries(
    st.sampled_from(["a", "b", "c.d"]),
    st.one_of(
        st.dictionaries(st.sampled_from(["<", "<=", ">", ">="]), st.sampled_from([-1, 0, 0.5, 2]), min_size=1),
        st.dictionaries(st.sampled_from(["==", "!="]), SCALARS, min_size=1),
        st.dictionaries(st.sampled_from(["in", "not in"]), st.lists(SCALARS, min_size=1, max_size=3), min_size=1),
        st.fixed_dictionaries({"given": st.booleans()}),
    ),
    max_size=2,
)
RULES = st.fixed_dictionaries(
    {
        "calls": st.sampled_from(["refund", "ref*", "*", "plan"]),
        "when": CONDITIONS,
        "must": CONDITIONS,
        "scope": st.sampled_from([{}, {"order": "a"}]),
        "then": st.sampled_from(["allow", "approve", "refuse", None]),
    }
)
POLICIES = st.lists(st.tuples(st.lists(RULES, max_size=3), st.sampled_from(["default", "refuse"])), max_size=2)


def exact(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return Fraction(Decimal(str(value)))
    except ArithmeticError:
        return None


def account_of_condition(word: str, value: Any, bound: Any) -> str:
    """yes, no, or unclear."""
    if word == "given":
        return "yes" if (value is not None) == bound else "no"
    if value is None or isinstance(value, list):
        return "unclear"

    def same(one: Any) -> bool:
        if isinstance(one, (bool, str)):
            return type(one) is type(value) and one == value
        return exact(value) == exact(one)

    if word in {"==", "!=", "in", "not in"}:
        found = any(map(same, bound if word.endswith("in") else [bound]))
        return "yes" if found == (word in {"==", "in"}) else "no"
    left, right = exact(value), exact(bound)
    if left is None or right is None:
        return "unclear"
    return "yes" if {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[word] else "no"


def account_of_conditions(given: dict[str, Any], arguments: dict[str, Any]) -> str:
    for path, words in given.items():
        value = arguments.get("c", {}).get("d") if path == "c.d" else arguments.get(path)
        for word, bound in words.items():
            found = account_of_condition(word, value, bound)
            if found != "yes":
                return found
    return "yes"


def account_of_rule(rule: dict[str, Any], name: str, arguments: dict[str, Any], scope: dict[str, str]) -> str:
    pattern = rule["calls"]
    if not (pattern == "*" or pattern == name or (pattern == "ref*" and name[:3] == "ref")):
        return "nothing"
    when = account_of_conditions(rule["when"], arguments)
    if when == "no":
        return "nothing"
    if when == "unclear" or account_of_conditions(rule["must"], arguments) != "yes":
        return "refuse"
    if rule["scope"]:
        stated, value = scope.get("order"), arguments.get("a")
        if stated is None or isinstance(value, (bool, float, list)) or value is None or str(value) != stated:
            return "refuse"
    return rule["then"] or "nothing"


def account(
    policies: list[tuple[list[dict[str, Any]], str]], name: str, arguments: dict[str, Any], scope: dict[str, str],
    is_reversible: bool,
) -> str:  # fmt: skip
    said: set[str] = set()
    for rules, others in policies:
        mine = {account_of_rule(rule, name, arguments, scope) for rule in rules} - {"nothing"}
        said |= mine or ({"refuse"} if others == "refuse" else set[str]())
    for strict in ("refuse", "approve"):
        if strict in said:
            return strict
    return "allow" if said or is_reversible else "approve"


def is_meant(rule: dict[str, Any]) -> bool:
    limits = rule["must"] or rule["scope"]
    return not limits if rule["then"] == "refuse" else bool(limits) or rule["then"] is not None


@given(
    POLICIES, st.sampled_from(["refund", "ref", "plan", "look"]),
    st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES, "c": st.fixed_dictionaries({"d": VALUES})}),
    st.sampled_from([{}, {"order": "1"}, {"order": "x"}]), st.booleans(),
)  # fmt: skip
def test_any_policies_and_any_call_as_an_independent_account_has_it(
    policies: list[tuple[list[dict[str, Any]], str]], name: str, arguments: dict[str, Any], scope: dict[str, str],
    is_reversible: bool,
) -> None:  # fmt: skip
    meant = [([rule for rule in rules if is_meant(rule)], others) for rules, others in policies]
    built = [
        Policy(f"p{which}", 1, [Rule(f"r{n}", **rule) for n, rule in enumerate(rules)], others=others)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        for which, (rules, others) in enumerate(meant)
    ]
    call = Asked((name,), arguments, is_reversible=is_reversible, scope=scope)
    ruling = judge(built, call)
    assert str(ruling.verdict) == account(meant, name, arguments, scope, is_reversible)
    if ruling.verdict is not Verdict.ALLOW:
        assert ruling.source is not None
        assert ruling.why
    turned = [Policy(p.name, 1, p.rules[::-1], others=p.others) for p in built[::-1]]
    assert judge(turned, call).verdict is ruling.verdict

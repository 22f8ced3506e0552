"""What do the policies that apply say about a call? The rules of it are the table in `policy.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from perdure.codec.canonical import canonical_bytes
from perdure.decisions import Vote
from perdure.gates.conditions import CannotJudge, value_at
from perdure.gates.policy import Asked, Policy, Rate, Rule, Verdict
from perdure.history.events import Denied

BUCKET_DIGITS = 32


Source = Denied
"""Which rule of which policy says something, as it stands in a history where it denies a call."""

DEFAULT = Source("default", "1", "what cannot be taken back")
"""Who speaks where no policy says anything about an effect that is not reversible."""

OTHERS = "others"
"""The rule that a policy's `others` is called in a refusal."""


class Need(msgspec.Struct, frozen=True):
    """An approval that is needed: by so many different persons, each of them one of `by` or acting as one of `by`."""

    source: Source
    by: tuple[str, ...] = ()
    quorum: int = 1

    def lacks(self, said: Sequence[Vote]) -> str | None:
        """What an approval with these votes lacks; None if it is enough.

        Who was handed a decision on by one of `by` stands for them."""
        may = set(self.by)
        for vote in said:
            if vote.choice == "delegate" and {vote.by, vote.role} & may:
                may.add(vote.to)
        counted = {v.by for v in said if v.choice == "approve" and (not self.by or {v.by, v.role} & may)}
        if len(counted) >= self.quorum:
            return None
        return f"{self.told}; approved so by {', '.join(sorted(counted)) or 'nobody'}"

    @property
    def told(self) -> str:
        """What is needed, in words."""
        who = ", ".join(self.by) or "anybody"
        return f"it needs an approval by {who}" + (f" ({self.quorum} persons)" if self.quorum > 1 else "")


class Use(NamedTuple):
    """That a call counts against a rate: at most `calls_max` in any `microseconds` under the same `bucket`."""

    bucket: str
    calls_max: int
    microseconds: int
    source: Source
    told: str


class Ruling(msgspec.Struct, frozen=True):
    """What is said about a call. `source` and `why`: who says so, of a refusal or an approval that is needed. `needs`:
    all approvals that are needed; `uses`: the rates that it counts against, if it passes."""

    verdict: Verdict
    source: Source | None = None
    why: str = ""
    needs: tuple[Need, ...] = ()
    uses: tuple[Use, ...] = ()


def judge(policies: Iterable[Policy], asked: Asked) -> Ruling:
    """What these policies say about the call together: the strictest that is said."""
    allowed: Source | None = None
    needs: list[Need] = []
    uses: list[Use] = []
    for policy in policies:
        found = _said_by(policy, asked, uses)
        if isinstance(found, Ruling):
            return found
        said, wanted = found
        needs += wanted
        allowed = allowed or said
    if needs:
        return Ruling(Verdict.APPROVE, needs[0].source, needs[0].told, tuple(needs), tuple(uses))
    if asked.kind == "effect" and not asked.is_reversible and allowed is None:
        need = Need(DEFAULT)
        return Ruling(Verdict.APPROVE, DEFAULT, f"it cannot be taken back: {need.told}", (need,), tuple(uses))
    return Ruling(Verdict.ALLOW, allowed, uses=tuple(uses))


def _said_by(policy: Policy, asked: Asked, uses: list[Use]) -> Ruling | tuple[Source | None, list[Need]]:
    """What one policy says: a refusal; or the rule that allows the call, and the approvals that it needs."""
    allowed: Source | None = None
    needs: list[Need] = []
    for rule in policy.rules:
        if not rule.is_about(asked.names):
            continue
        source = Source(policy.name, str(policy.version), rule.name)
        try:
            if not all(condition.holds(asked.arguments) for condition in rule.when):
                continue
            broken = _broken(rule, asked)
        except CannotJudge as why:
            broken = str(why)
        if broken is None and rule.then is Verdict.REFUSE:
            broken = _told_when(rule)
        if broken is not None:
            return Ruling(Verdict.REFUSE, source, broken)
        if rule.rate is not None:
            uses.append(_use(source, rule.rate, asked))
        if rule.then is Verdict.APPROVE:
            needs.append(Need(source, rule.by, rule.quorum))
        elif rule.then is Verdict.ALLOW:
            allowed = allowed or source
    if policy.others == "refuse" and allowed is None and not needs:
        source = Source(policy.name, str(policy.version), OTHERS)
        return Ruling(Verdict.REFUSE, source, "no rule allows it")
    return allowed, needs


def _broken(rule: Rule, asked: Asked) -> str | None:
    """What of a rule's limits the call does not keep; None if it keeps all. CannotJudge if that cannot be said."""
    for condition in rule.must:
        if not condition.holds(asked.arguments):
            found = value_at(asked.arguments, condition.path)
            return f"it must keep {condition.told}, and has {condition.path} {found!r}"
    for stated, path in rule.scope:
        value = value_at(asked.arguments, path)
        if stated not in asked.scope:
            return f"{path} has to be the {stated} in the run's scope, and the run states none"
        if not _is_in_scope(value, asked.scope[stated]):
            return f"{path} {value!r} is outside the run's scope: its {stated} is {asked.scope[stated]!r}"
    if rule.rate is not None and rule.rate.each and _scalar(asked, rule.rate.each) is None:
        return f"its rate counts for each {rule.rate.each}, and there is no such argument"
    return _objection(rule, asked)


def _is_in_scope(value: object, stated: str) -> bool:
    is_text_or_whole = isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    return is_text_or_whole and str(value) == stated


def _objection(rule: Rule, asked: Asked) -> str | None:
    """What the rule's own function says against the call."""
    if rule.check is None:
        return None
    try:
        said = rule.check(asked)
    except Exception as error:  # whatever it is: the call was not found to be in order
        return f"its check failed: {type(error).__name__}: {error}"
    if said is None or said is True or said == "":
        return None
    return said if isinstance(said, str) else f"its check says {said!r}"


def _told_when(rule: Rule) -> str:
    conditions = " and ".join(condition.told for condition in rule.when)
    return f"it is refused where {conditions}" if conditions else "it is refused"


def _scalar(asked: Asked, path: str) -> str | None:
    value = value_at(asked.arguments, path)
    return str(value) if isinstance(value, (str, int, float)) else None


def _use(source: Source, rate: Rate, asked: Asked) -> Use:
    each = _scalar(asked, rate.each) if rate.each else None
    named = [source.policy, source.rule, each]
    bucket = sha256(canonical_bytes(named)).hexdigest()[:BUCKET_DIGITS]
    return Use(bucket, rate.count, rate.microseconds, source, rate.told)


def lacking(ruling: Ruling, said: Sequence[Vote] | None) -> tuple[Need, str] | None:
    """Which approval that is needed is not there, and what it lacks; None if nothing is. `said`: the votes of the
    approval that the call is made under, None if it is made under none."""
    for need in ruling.needs:
        lacks = need.told if said is None else need.lacks(said)
        if lacks is not None:
            return need, lacks
    return None

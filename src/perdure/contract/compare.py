"""May a run go on under the code that is here? What each part of the manifest has to say about that is a table.

same ──▶ go          explained ──▶ go, replay decides          claimed ──▶ go, recorded          incompatible ──▶ parked
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from perdure.contract.manifest import CHECKPOINT_SCHEMA_VERSION, Manifest
from perdure.contract.outline import told_changes

DIGEST = "sha256:"
"""How a catalogue version begins that nobody has chosen: it follows from the tools, which are compared one by one."""


class Verdict(StrEnum):
    """What a run may do, the least first."""

    SAME = "same"
    EXPLAINED = "explained"
    CLAIMED = "claimed"
    INCOMPATIBLE = "incompatible"


_ORDER = list(Verdict)


class Difference(NamedTuple):
    """One part of the manifest that is another one now, in words."""

    field: str
    verdict: Verdict
    told: str


class Comparison(NamedTuple):
    """What comes of all differences together."""

    differences: Sequence[Difference] = ()

    @property
    def verdict(self) -> Verdict:
        return max((each.verdict for each in self.differences), key=_ORDER.index, default=Verdict.SAME)

    def told(self, *verdicts: Verdict) -> str:
        """The differences that come to one of these, in one line."""
        return "; ".join(each.told for each in self.differences if each.verdict in verdicts)


class Given(NamedTuple):
    """What is compared. `before`: every manifest that the run was ever to go on under, the latest last; a worker with
    the code of one of them may have it back. `runs_as`: the version by which workers find the run. `claims`: the
    versions that the code says it replays; `accepts`: fields in which it takes a difference; `used`: names of the calls
    that the run has made."""

    before: Sequence[Manifest]
    now: Manifest
    runs_as: int = 0
    claims: Collection[int] = ()
    accepts: Collection[str] = ()
    used: Collection[str] = ()

    @property
    def latest(self) -> Manifest:
        return self.before[-1]

    @property
    def is_another_version(self) -> bool:
        return self.now.workflow_version not in {self.runs_as, *(each.workflow_version for each in self.before)}


Judge = Callable[[Given, str], "tuple[Verdict, str] | None"]


class Rule(NamedTuple):
    """What a difference in this field comes to. `means`: in words, for the docs."""

    judge: Judge
    means: str


def _name(given: Given, field: str) -> tuple[Verdict, str]:
    return Verdict.INCOMPATIBLE, f"it is a run of {given.latest.workflow_name}, this is {given.now.workflow_name}"


def _version(given: Given, field: str) -> tuple[Verdict, str]:
    then, now = given.latest.workflow_version, given.now.workflow_version
    if now == given.runs_as:
        return Verdict.EXPLAINED, f"version {then} has gone on with it; this is version {now}"
    if given.claims and not {given.runs_as, *(each.workflow_version for each in given.before)}.isdisjoint(given.claims):
        return Verdict.CLAIMED, f"version {now} claims to replay version {then}"
    return Verdict.INCOMPATIBLE, f"it runs under version {then}; this is version {now}, without replays={{{then}}}"


def _schema(given: Given, field: str) -> tuple[Verdict, str]:
    then = given.latest.checkpoint_schema_version
    if then > CHECKPOINT_SCHEMA_VERSION:
        told = f"its history is of schema {then}, and this perdure reads up to {CHECKPOINT_SCHEMA_VERSION}"
        return Verdict.INCOMPATIBLE, told
    return Verdict.EXPLAINED, f"its history is of schema {then}, which is read as {CHECKPOINT_SCHEMA_VERSION}"


def _declared(given: Given, field: str) -> tuple[Verdict, str] | None:
    then, now = str(getattr(given.latest, field)), str(getattr(given.now, field))
    if field == "tool_catalog_version" and (then.startswith(DIGEST) or now.startswith(DIGEST)):
        return None  # the tools are judged one by one
    noun = _NOUNS[field]
    if not then or not now:
        return Verdict.EXPLAINED, f"the {noun} was {then or 'not declared'}, and is {now or 'not declared'}"
    return _by_choice(given, field), f"the {noun} was {then}, and is {now}"


_NOUNS = {
    "tool_catalog_version": "tool catalogue",
    "prompt_release": "prompt release",
    "model_policy_version": "model policy",
}


def _by_choice(given: Given, field: str) -> Verdict:
    """What is declared is the contract: another one is for another version, unless the code takes it."""
    if field in given.accepts or (given.is_another_version and _version(given, "")[0] is Verdict.CLAIMED):
        return Verdict.CLAIMED
    return Verdict.INCOMPATIBLE


def _tools(given: Given, field: str) -> tuple[Verdict, str] | None:
    then, now = given.latest.tools, given.now.tools
    gone = [name for name in then if name not in now]
    used = [name for name in gone if name in given.used]
    if not now:
        return Verdict.EXPLAINED, "its tools are not declared any more"
    if used:
        return _by_choice(given, field), f"the run has used {_names(used)}, which is no tool any more"
    parts = [
        (gone, "gone and never used"),
        ([name for name in now if name not in then], "new"),
        ([name for name in now if name in then and then[name] != now[name]], "with another schema"),
    ]
    told = ", ".join(f"{_names(names)} {what}" for names, what in parts if names)
    return (Verdict.EXPLAINED, f"tools: {told}") if told else None


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _explains(given: Given, field: str) -> tuple[Verdict, str]:
    then, now = getattr(given.latest, field) or "not known", getattr(given.now, field) or "not known"
    return Verdict.EXPLAINED, f"{field} {then} then, {now} now"


def _frameworks(given: Given, field: str) -> tuple[Verdict, str]:
    then, now = given.latest.frameworks, given.now.frameworks
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    told = ", ".join(f"{name} {then.get(name, 'none')} then, {now.get(name, 'none')} now" for name in names)
    return Verdict.EXPLAINED, told


def _topology(given: Given, field: str) -> tuple[Verdict, str]:
    return Verdict.EXPLAINED, told_changes(given.latest.topology, given.now.topology)


_PARKS = "another one parks the run, unless the version is claimed or `on_contract_drift` accepts it"

RULES: Mapping[str, Rule] = {
    "workflow_name": Rule(_name, "parks the run"),
    "workflow_version": Rule(_version, "claimed by `replays=`, else the run is parked"),
    "checkpoint_schema_version": Rule(_schema, "an older one is read; a newer one parks the run"),
    "tool_catalog_version": Rule(_declared, f"own number: {_PARKS}; without one the tools count"),
    "prompt_release": Rule(_declared, _PARKS),
    "model_policy_version": Rule(_declared, _PARKS),
    "tools": Rule(_tools, "new ones, other schemas and unused ones that are gone: none; a used one that is gone parks"),
    "perdure": Rule(_explains, "explains, replay decides"),
    "python": Rule(_explains, "explains, replay decides"),
    "frameworks": Rule(_frameworks, "explains, replay decides"),
    "topology": Rule(_topology, "explains, replay decides"),
}
"""Every field of a manifest."""


def compare(given: Given) -> Comparison:
    """What a run may do under this code."""
    found: list[Difference] = []
    for field, rule in RULES.items():
        now = getattr(given.now, field)
        if any(getattr(each, field) == now for each in given.before):
            continue
        judged = rule.judge(given, field)
        if judged is not None:
            found.append(Difference(field, *judged))
    return Comparison(tuple(found))

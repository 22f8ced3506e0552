"""People: who hears of an unknown outcome, on what an approval rests, and until when."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from perdure.audit.doctor.application import Application
from perdure.audit.doctor.checklist import Answer
from perdure.audit.lint.uses import Use
from perdure.specs import EffectSpec, SameDatabase, StepSpec

TELLS_PEOPLE = frozenset({"on_inbox", "inbox_webhook"})
"""Options of a Runtime that tell somebody of new entries of the inbox."""
LOOKS = frozenset({"inbox", "settle"})
"""What a program calls on a client to see, or settle, what is unknown."""
APPROVALS = ("perdure.with_approval", "perdure.sync.with_approval")


def unknown_to_person(app: Application, answer: Answer) -> None:
    declared = [effect for effect in app.effects if not app.is_undoing(effect)]
    doubtful = [effect for effect in declared if not isinstance(effect.downstream, SameDatabase)]
    paths = list(_paths(app))
    answer.seen += paths
    for effect in doubtful if not paths else ():
        if effect.risk == "high" or _says_risk(app, effect):
            answer.seen.append(f"{effect.name}: risk={effect.risk!r} is said; it is in `perdure inbox list`")
        else:
            answer.fault(
                app.where(effect.function),
                f"what became of {effect.name} may be unknown, and nothing tells a person or says the risk",
                "have the inbox looked at by a program (client.inbox()) or tell somebody of new entries; or say risk=",
            )  # fmt: skip
    if not doubtful:
        answer.seen.append("no effect can be in doubt")


def _paths(app: Application) -> Iterator[str]:
    for use in app.uses:
        where = f"{use.filename}:{use.line}"
        for keyword in use.node.keywords:
            if keyword.arg in TELLS_PEOPLE:
                yield f"{where}: {keyword.arg}= tells of new entries"
        called = use.node.func
        if isinstance(called, ast.Attribute) and called.attr in LOOKS:
            yield f"{where}: the program calls {called.attr}()"


def _says_risk(app: Application, effect: EffectSpec) -> bool:
    body = app.body_of(effect.function)
    decorators = () if body is None else body.function.decorator_list
    calls = [each for each in decorators if isinstance(each, ast.Call)]
    return any(keyword.arg == "risk" for call in calls for keyword in call.keywords)


def approvals_recheck(app: Application, answer: Answer) -> None:
    resting = _resting(app)
    for use in app.named(*APPROVALS):
        found = resting.get(use.node, [])
        answer.seen += [f"{_where(use)}: {told}, looked at again before the call" for told in found]
        recheck = use.argument("recheck")
        if isinstance(recheck, ast.Constant) and recheck.value is False:
            answer.fault(
                _where(use), "recheck=False: the call may begin long after it was approved",
                "leave it out, so that it is looked at again right before the call",
            )  # fmt: skip
        elif recheck is not None and not isinstance(recheck, ast.Constant):
            answer.unchecked.append(f"{_where(use)}: recheck= is computed")
        elif use.argument("premises") is None and not use.hides_arguments:
            answer.seen.append(f"{_where(use)}: time limit and roles are looked at again right before the call")
            if not found:
                facts = "it names none (premises=), and no step before it does (@step.premise, valid_for=)"
                answer.unchecked.append(f"{_where(use)}: whether it rests on facts; {facts}")
        else:
            answer.seen.append(f"{_where(use)}: its facts, time limit and roles are looked at again before the call")
    if not app.named(*APPROVALS):
        answer.seen.append("nothing is put to people for approval")


def _resting(app: Application) -> dict[ast.Call, list[str]]:
    """Of each approval in a workflow: the steps of that workflow whose results are checked before a call relies on
    them, in words."""
    found: dict[ast.Call, list[str]] = {}
    for workflow in app.workflows:
        told = [_told(step) for step in app.reached.get(workflow.key, ()) if isinstance(step, StepSpec)]
        for use in app.uses_in(workflow.function):
            if use.name in APPROVALS:
                found.setdefault(use.node, []).extend(filter(None, told))
    return found


def _told(step: StepSpec) -> str:
    """What its result rests on; empty if nobody looks at that again."""
    rests = step.rests
    if rests is None or not rests.is_verified:
        return ""
    names = ", ".join(premise.name for premise in rests.premises)
    length = "" if rests.valid_for_seconds is None else f"is good for {rests.valid_for_seconds:g} s"
    return f"{step.name} " + " and ".join(filter(None, [f"rests on {names}" if names else "", length]))


def approvals_expire(app: Application, answer: Answer) -> None:
    for use in app.named(*APPROVALS):
        within = use.argument("within")
        is_missing = within is None or (isinstance(within, ast.Constant) and within.value is None)
        if is_missing and not use.is_limited and not use.hides_arguments:
            answer.fault(
                _where(use), "this approval can be given for ever", "say for how long: within=timedelta(days=3)"
            )
        else:
            answer.seen.append(f"{_where(use)}: it can be given for a limited time")
    if not app.named(*APPROVALS):
        answer.seen.append("nothing is put to people for approval")


def _where(use: Use) -> str:
    return f"{use.filename}:{use.line}"

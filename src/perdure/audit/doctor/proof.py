"""What was tried: old histories on this code, and the fault drill of this code."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.audit.doctor.application import Application, Key
from perdure.audit.doctor.checklist import Answer
from perdure.audit.drills import Covered, DrillPass, drill_passes, passed_drill
from perdure.specs import EffectSpec, WorkflowSpec
from perdure.store.protocol import Store

UNREPEATABLE = ("clock", "randomness", "environment", "set-order", "stock-wait")
"""The linter's rules about what another process does not do in the same way."""
NAMED_MAX = 5
DRILL = "try it with your fakes: perdure code drill app.py:WORKFLOW ..."


def replays(app: Application, answer: Answer) -> None:
    for finding in app.findings(*UNREPEATABLE):
        answer.fault(f"{finding.filename}:{finding.line}", f"{finding.function}: {finding.message}", finding.fix)
    if app.replayed is None:
        answer.unchecked.append("no store was looked in: name one with --store, and its unfinished runs are replayed")
        return
    for run in app.replayed:
        if run.problem:
            mend = f"add {run.patch}, or " if run.patch else ""
            answer.fault(f"run {run.run_id}", run.problem, f"{mend}have the old version here too")
        elif run.is_in_part:
            answer.unchecked.append(f"run {run.run_id}: its hosted code was not replayed")
    good = [run.run_id for run in app.replayed if not run.problem and not run.is_in_part]
    more = f" and {len(good) - NAMED_MAX} more" if len(good) > NAMED_MAX else ""
    answer.seen.append(f"replayed: {', '.join(good[:NAMED_MAX])}{more}" if good else "no unfinished run to replay")


def drilled(app: Application, answer: Answer) -> None:
    if app.store is None:
        answer.unchecked.append("no store was looked in: passes of `perdure code drill` are kept in one (--store)")
        return
    passes = {workflow.key: _pass_of(app, app.store, workflow) for workflow in app.workflows}
    for workflow in app.workflows:
        passed = passes[workflow.key]
        through = _tried_through(app, workflow, passes)
        if passed is None and through:
            answer.seen.append(f"{workflow.label}: tried in the drill of {through}")
        elif passed is None:
            answer.fault(app.where(workflow.function), f"{workflow.label}: {_why_none(app.store, workflow)}", DRILL)
        elif not passed.covers(Covered.OUTSIDE_SUCCESS) and _has_effects(app, workflow):
            what = f"{workflow.label}: its drill did not cover {str(Covered.OUTSIDE_SUCCESS)!r}"
            answer.fault(app.where(workflow.function), what, "drill it with an input on which it calls its effects")
        else:
            answer.seen.append(str(passed))


def _pass_of(app: Application, store: Store, workflow: WorkflowSpec) -> DrillPass | None:
    return passed_drill(store, workflow.name, workflow.version, app.sources[workflow.key])


def _tried_through(app: Application, child: WorkflowSpec, passes: Mapping[Key, DrillPass | None]) -> str:
    """The workflow that leads to this one, and of which a drill has passed."""
    above = (each for each in app.workflows if each is not child and child in app.reached[each.key])
    return next((each.label for each in above if passes[each.key] is not None), "")


def _why_none(store: Store, workflow: WorkflowSpec) -> str:
    earlier = drill_passes(store, workflow.name)
    return f"the last pass was of another source ({earlier[0]})" if earlier else "no drill of it has passed"


def _has_effects(app: Application, workflow: WorkflowSpec) -> bool:
    return any(isinstance(each, EffectSpec) for each in app.reached[workflow.key])

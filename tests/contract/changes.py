"""The table of changes: each kind of edit, at each place where a run may stand, and what becomes of the run.

`tests.contract.test_changes` holds it against what `perdure code check` says, and that against what a worker does; the
page on changing code is made from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BEFORE = """\
PROMPT = "Plan it."

@step
async def plan(claim: str) -> list[str]:
    return [claim]

@step
async def lookup(claim: str) -> str:
    return claim.upper()

@step
async def check_risk(claim: str) -> str:
    return "low"

@effect(downstream=perdure.Idempotent())
async def pay(claim: str, amount: int) -> str:
    return "paid"

@pay.key
def _(claim: str, amount: int) -> str:
    return claim

@step
async def notify(claim: str) -> None:
    pass

@workflow(OPTIONS)
async def agent(claim: str) -> str:
    the_plan = await plan(claim)
    facts = await lookup(claim)
    await perdure.receive("details")
    receipt = await perdure.with_approval(pay.call(claim, 10), by={"ann"})
    await perdure.sleep(days=2)
    await notify(claim)
    await perdure.receive("closed")
    return receipt
"""
"""The workflow that is changed: planner, lookup, approval, payment, notify."""

PLACES: Sequence[str] = (
    "not begun", "waits for a message", "waits at the approval", "sleeps after the payment", "waits at the end",
)  # fmt: skip

LETTERS = {"R": "replays", "P": "needs patch", "B": "breaks"}


class Edit(NamedTuple):
    """A change: what is replaced by what, in the source or in the options of the workflow, and the letter of the
    verdict at each place. `instead`: what to do about it, for the page. `then`: options that it had before."""

    name: str
    verdicts: str
    edits: Sequence[tuple[str, str]] = ()
    instead: str = ""
    then: str = ""
    now: str = ""


PLAN = "    the_plan = await plan(claim)\n"
LOOKUP = "    facts = await lookup(claim)\n"
APPROVAL = '    receipt = await perdure.with_approval(pay.call(claim, 10), by={"ann"})\n'
NOTIFY = "    await notify(claim)\n"
RISK = "    await check_risk(claim)\n"
CLOSED = '    await perdure.receive("closed")\n'
GUARD, VERSION = "guard it: `patched`", "keep the old version registered beside it"

EDITS: Sequence[Edit] = (
    Edit("an unrelated edit: comments, a log line, a helper", "RRRRR", [
        (PLAN, '    # what is to be done\n    perdure.logger(__name__).info("planning")\n' + PLAN),
        ("@workflow", "def helper() -> int:\n    return 3\n\n@workflow"),
    ]),
    Edit("a renamed local variable", "RRRRR", [("the_plan", "steps_to_take"), ("receipt", "answer")]),
    Edit("a formatter", "RRRRR", [("pay.call(claim, 10)", "pay.call(\n        claim,\n        10,\n    )")]),
    Edit("another prompt in the body of a step", "RRRRR", [('"Plan it."', '"Plan it well."')]),
    Edit("the body of an effect", "RRRRR", [('return "paid"', 'return "paid at once"')]),
    Edit("another prompt in the arguments of a step", "RBBBB", [
        ("async def plan(claim: str)", "async def plan(claim: str, prompt: str = PROMPT)"),
        (PLAN, "    the_plan = await plan(claim, PROMPT)\n"),
    ], f"{GUARD} with both calls, or {VERSION}"),
    Edit("a call added at the end", "RRRRR", [("    return receipt", RISK + "    return receipt")]),
    Edit("a risk check gained before the payment", "RRPPP", [(APPROVAL, RISK + APPROVAL)], GUARD),
    Edit("a call added in the middle", "RPPPP", [(LOOKUP, LOOKUP + RISK)], GUARD),
    Edit("a call removed", "RPPPP", [(LOOKUP, "")], "keep it for the others: `if not patched(...)`"),
    Edit("the last step removed", "RRRRP", [(NOTIFY, "")], "keep it for the others: `if not patched(...)`"),
    Edit("two calls in another order", "RPPPP", [(PLAN + LOOKUP, LOOKUP + PLAN)], f"{GUARD} with both orders"),
    Edit("a step swapped for another", "RPPPP", [(LOOKUP, "    facts = await check_risk(claim)\n")], GUARD),
    Edit("a step renamed, its old name kept", "RRRRR", [
        ("@step\nasync def lookup", '@step(name="lookup")\nasync def find'), ("await lookup", "await find"),
    ]),
    Edit("a step renamed", "RPPPP", [("async def lookup", "async def find"), ("await lookup", "await find")],
         '`@step(name="the old one")`'),
    Edit("a result retyped to what fits what is recorded", "RRRRR", [("-> list[str]", "-> list[str] | None")]),
    Edit("a result retyped to what does not fit", "RBBBB", [
        ("-> list[str]:\n    return [claim]", "-> dict[str, int]:\n    return {claim: 1}"),
    ],
         f"a new step under a new name, guarded; or {VERSION}"),
    Edit("an argument retyped to what fits what is recorded", "RRRRR", [
        ("async def lookup(claim: str)", "async def lookup(claim: str | None)"),
    ]),
    Edit("two calls made parallel", "RPPPP", [
        (PLAN + LOOKUP, "    the_plan, facts = await asyncio.gather(plan(claim), lookup(claim))\n"),
    ], GUARD),
    Edit("a new branch that it does not take", "RRRRR", [(LOOKUP, LOOKUP + '    if claim == "huge":\n    ' + RISK)]),
    Edit("a new branch that it takes", "RPPPP", [(LOOKUP, LOOKUP + '    if claim != "huge":\n    ' + RISK)], GUARD),
    Edit("another length of a sleep", "RRRPP", [("days=2", "days=3")], GUARD),
    Edit("another amount to be approved", "RRBBB", [("pay.call(claim, 10)", "pay.call(claim, 11)")],
         f"{GUARD} with both calls, or {VERSION}"),
    Edit("another business key", "RRBBB", [("    return claim\n\n@step", "    return claim + '!'\n\n@step")], VERSION),
    Edit("a new tool", "RRRRR", then="tools=[plan]", now="tools=[plan, lookup]"),
    Edit("a tool less that the run has not used", "RRRRR", then="tools=[plan, check_risk]", now="tools=[plan]"),
    Edit("a tool less that it has used", "RBBBB", then="tools=[plan, lookup]", now="tools=[lookup]",
         instead="keep it until no run needs it, or a new version"),
    Edit("another prompt release", "BBBBB", then='prompt_release="May"', now='prompt_release="June"',
         instead='a new version; `replays=`, or `on_contract_drift="accept"`'),
    Edit("another prompt release that is accepted", "RRRRR", then='prompt_release="May"',
         now='prompt_release="June", on_contract_drift="accept"'),
    Edit("another model policy", "BBBBB", then='model_policy_version="1"', now='model_policy_version="2"',
         instead='a new version; `replays=`, or `on_contract_drift="accept"`'),
    Edit("a new version that claims the old one", "RRRRR", then="version=7", now="version=8, replays={7}"),
    Edit("a new version alone", "BBBBB", then="version=7", now="version=8", instead=f"{VERSION}, or say `replays=`"),
    Edit("a new Python", "RRRRR", then="PYTHON"),
    Edit("a new version of a framework", "RRRRR", then="FRAMEWORK", now='frameworks=["msgspec"]'),
)  # fmt: skip


def source(edit: Edit, *, is_after: bool) -> str:
    """The workflow before the edit, or after it."""
    text = BEFORE
    for before, after in edit.edits if is_after else ():
        if before not in text:
            raise AssertionError(f"{edit.name}: {before!r} is not in the source")
        text = text.replace(before, after)
    options = edit.now if is_after else edit.then
    return text.replace("OPTIONS", {"PYTHON": "", "FRAMEWORK": 'frameworks=["msgspec"]'}.get(options, options))


def rows() -> list[tuple[str, ...]]:
    """The table for the page: a change, what becomes of a run at each place, and what to do instead."""
    return [(edit.name, *(LETTERS[letter] for letter in edit.verdicts), edit.instead) for edit in EDITS]

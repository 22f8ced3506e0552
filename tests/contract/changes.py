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

@workflow
async def ship(claim: str) -> str:
    return await perdure.receive("shipped", str)

@step(retry=perdure.Retry(first_delay=3_600, max_delay=3_600))
async def weigh(claim: str) -> int:
    if perdure.attempt().number == 1:
        raise perdure.Retryable("the scales are busy")
    return 3

@step
def ask_carrier(claim: str) -> str:
    return claim

def crew(claim: str) -> str:
    return ask_carrier(claim) + perdure.sync.receive("picked up", str)

@effect(downstream=perdure.NoGuarantee())
async def print_label(claim: str) -> str:
    raise perdure.InDoubt("the printer is silent")

@print_label.key
def _(claim: str) -> str:
    return claim

@step(uses=perdure.Usage(tokens=20))
async def summarise(claim: str) -> str:
    return claim

WORLD = {"policy": 1}

@step
async def decide(claim: str) -> int:
    return WORLD["policy"]

@decide.premise("policy")
async def _(claim: str) -> int:
    return WORLD["policy"]

@effect(downstream=perdure.Idempotent())
async def book(claim: str, cents: int) -> str:
    return "booked"

@book.key
def _(claim: str, cents: int) -> str:
    return f"{claim} {cents}"

@workflow(budget=perdure.Budget(tokens=10), OPTIONS)
async def agent(claim: str) -> str:
    the_plan = await plan(claim)
    facts = await lookup(claim)
    await perdure.receive("details")
    receipt = await perdure.with_approval(pay.call(claim, 10), by={"ann"})
    await perdure.sleep(days=2)
    await notify(claim)
    await perdure.receive("closed")
    await perdure.ask("how many?", type=int, by={"ann"})
    await ship(claim)
    await weigh(claim)
    await perdure.section("crew").run(crew, claim)
    await print_label(claim)
    await summarise(claim)
    cents = await decide(claim)
    await book(claim, cents)
    await perdure.receive("go")
    await book(claim, cents + 10)
    await perdure.receive("archived")
    return receipt
"""
"""The workflow that is changed: planner, lookup, approval, payment, notify; and then it comes to stand at places of
every other kind."""

PLACES: Sequence[str] = (
    "not begun", "waits for a message", "waits at the approval", "sleeps after the payment", "waits at the end",
)  # fmt: skip

LATER: Sequence[str] = (
    "waits for an answer", "waits for a child", "waits for its next attempt", "waits in hosted code",
    "waits for word about an effect", "waits for a budget", "has gone back, and owes an effect",
)  # fmt: skip
"""Behind all that the edits below touch: there becomes of a run what becomes of one that waits at the end."""

HOSTED = len(PLACES) + LATER.index("waits in hosted code")

LETTERS = {"R": "replays", "P": "needs patch", "B": "breaks", "N": "not checked"}


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


ASK = '    await perdure.ask("how many?", type=int, by={"ann"})\n'
SHIP, WEIGH = "    await ship(claim)\n", "    await weigh(claim)\n"
CREW = '    await perdure.section("crew").run(crew, claim)\n'
LABEL, SUMMARISE = "    await print_label(claim)\n", "    await summarise(claim)\n"
DECIDE, BOOK = "    cents = await decide(claim)\n", "    await book(claim, cents)\n"

OF_THE_CALL: dict[str, Sequence[Edit]] = {
    "waits at the approval": (
        Edit("removed", "P", [(APPROVAL, '    receipt = ""\n')]),
        Edit("made without approval", "P", [(APPROVAL, "    receipt = await pay(claim, 10)\n")]),
        Edit("others may approve", "B", [(APPROVAL, APPROVAL.replace("ann", "bob"))]),
        Edit("another call before it", "P", [(APPROVAL, RISK + APPROVAL)]),
    ),
    "sleeps after the payment": (
        Edit("removed", "P", [("    await perdure.sleep(days=2)\n", "")]),
        Edit("swapped", "P", [("perdure.sleep(days=2)", "check_risk(claim)")]),
    ),
    "waits at the end": (
        Edit("removed", "P", [(CLOSED, "")]),
        Edit("another message", "P", [('"closed"', '"done"')]),
    ),
    "waits for an answer": (
        Edit("removed", "P", [(ASK, "")]),
        Edit("another question", "B", [("how many?", "how much?")]),
        Edit("another type", "B", [("type=int", "type=str")]),
        Edit("another call before it", "P", [(ASK, RISK + ASK)]),
    ),
    "waits for a child": (
        Edit("removed", "P", [(SHIP, "")]),
        Edit("other arguments", "B", [("ship(claim)\n", "ship(claim + '!')\n")]),
        Edit("made a step", "P", [("@workflow\nasync def ship", "@step\nasync def ship")]),
        Edit("its own code", "R", [('return await perdure.receive("shipped", str)', 'return "shipped"')]),
    ),
    "waits for its next attempt": (
        Edit("removed", "P", [(WEIGH, "")]),
        Edit("other arguments", "B", [("weigh(claim)\n", "weigh(claim + '!')\n")]),
        Edit("other attempts", "R", [("retry=perdure.Retry(first_delay=3_600, max_delay=3_600)", "")]),
        Edit("another body", "R", [('raise perdure.Retryable("the scales are busy")', "return 4")]),
    ),
    "waits in hosted code": (
        Edit("removed", "P", [(CREW, "")]),
        Edit("another name", "P", [('section("crew")', 'section("others")')]),
        Edit("other calls in it", "N", [("ask_carrier(claim) +", "ask_carrier(claim + '!') +")]),
    ),
    "waits for word about an effect": (
        Edit("removed", "P", [(LABEL, "")]),
        Edit("other arguments", "B", [("print_label(claim)\n", "print_label(claim + '!')\n")]),
        Edit("another promise", "R", [("NoGuarantee()", "Idempotent()")]),
    ),
    "waits for a budget": (
        Edit("removed", "P", [(SUMMARISE, "")]),
        Edit("another estimate", "R", [("tokens=20", "tokens=5")]),
        Edit("another budget", "R", [("Budget(tokens=10)", "Budget(tokens=100)")]),
    ),
    "has gone back, and owes an effect": (
        Edit("the decision removed", "P", [(DECIDE, "    cents = 2\n")]),
        Edit("the decision without premises", "R", [('@decide.premise("policy")\n', "")]),
        Edit("the owed effect removed", "P", [(BOOK, "")]),
        Edit("the owed effect for another amount", "B", [("book(claim, cents)\n", "book(claim, cents + 1)\n")]),
    ),
}
"""Edits of the very call at which a run stands, and what becomes of it."""


def everywhere(verdicts: str) -> str:
    """The letters at all places. Hosted code that could go on is not looked at."""
    letters = verdicts + verdicts[-1] * len(LATER)
    return letters[:HOSTED] + letters[HOSTED].replace("R", "N") + letters[HOSTED + 1 :]


def source(edit: Edit, *, is_after: bool) -> str:
    """The workflow before the edit, or after it."""
    text = BEFORE
    for before, after in edit.edits if is_after else ():
        if before not in text:
            raise AssertionError(f"{edit.name}: {before!r} is not in the source")
        text = text.replace(before, after)
    options = edit.now if is_after else edit.then
    return text.replace("OPTIONS", {"PYTHON": "", "FRAMEWORK": 'frameworks=["msgspec"]'}.get(options, options))


def rows_of_the_call() -> list[tuple[str, ...]]:
    """For the page: the place, the change of the call at which a run stands there, and what becomes of it."""
    return [(place, edit.name, LETTERS[edit.verdicts]) for place, edits in OF_THE_CALL.items() for edit in edits]


def rows() -> list[tuple[str, ...]]:
    """The table for the page: a change, what becomes of a run at each place, and what to do instead."""
    return [(edit.name, *(LETTERS[letter] for letter in edit.verdicts), edit.instead) for edit in EDITS]

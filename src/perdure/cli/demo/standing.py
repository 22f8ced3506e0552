"""The third act: what was decided is checked before it is acted upon. Three refunds are approved, and the worker is
killed when it looks at the policy once more before it pays. While nobody runs, the policy changes for the first, the
limit of the second is raised, and a colleague pays the third by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perdure.api.client import Client
from perdure.api.requests import RequestSummary
from perdure.api.sync import SyncClient
from perdure.cli.demo.figures import AGENT, PERSON, Figure, Payment, Sending, equal
from perdure.cli.demo.processes import examples
from perdure.cli.demo.stage import Stage

DESK = "returns_desk.py"
CHANGED, RAISED, SETTLED = ORDERS = ("O-3", "O-4", "O-5")
PERCENT, PERCENT_LATER = 50, 80
LIMIT, LIMIT_LATER = 100_000, 200_000
BY_HAND_CENTS = 40_000

Asked = Mapping[str, Sequence[int]]
"""Of each order, in order: the percentages that people were shown when they were asked."""


def standing(stage: Stage, agent: Path | None = None) -> list[Figure]:
    """Play it, and give its figures: from the records of the services, and what people were asked."""
    stage.agent = agent or examples() / DESK
    for order in ORDERS:
        rule(stage, order)
    with Client(str(stage.directory / "perdure.db")).sync() as desk:
        play(stage, desk)
        asked = asked_of(desk.requests())
    payments, tickets = stage.services.payments, stage.services.tickets
    return figures_of([*payments.records(), *tickets.records()], payments.books(who=PERSON), asked)


def play(stage: Stage, desk: SyncClient) -> None:
    worker = stage.start_worker()
    stage.say(f"of {', '.join(ORDERS)} a supervisor approves; worker {worker.pid}", "returns")
    first = stage.wait_for(lambda: pending(desk, *ORDERS), "three requests to a person")
    stage.services.policies.post("/hold", {"reads": len(ORDERS)}, who=PERSON)
    for request in first:
        approve(desk, request)
    stage.say(f"approves {', '.join(map(told, first))}", "a person")
    stage.wait_for(lambda: len(held(stage)) == len(ORDERS), "three looks at the policy")
    stage.kill(worker)
    stage.say(f"looks at the policy once more before it pays: kill -9 {worker.pid}", "the worker")
    change(stage)
    again = stage.start_worker()
    stage.say(f"{again.pid} checks what was decided", "worker")
    earlier = [each.id for each in first]
    (request,) = stage.wait_for(lambda: pending(desk, CHANGED, but=earlier), "a second request")
    stage.say(f"asks for {told(request)} now, and shows {request.facts['percent']} percent", CHANGED)
    approve(desk, request)
    stage.end()
    for line in again.said().splitlines():
        if line.startswith(ORDERS):
            order, _, what = line.partition(": ")
            stage.say(what, order)


def change(stage: Stage) -> None:
    """What becomes of the world while nobody runs."""
    rule(stage, CHANGED, percent=PERCENT_LATER)
    stage.say(f"the policy pays back {PERCENT_LATER} percent instead of {PERCENT}, and nobody runs", CHANGED)
    rule(stage, RAISED, limit=LIMIT_LATER)
    stage.say(f"its limit is {LIMIT_LATER // 100} EUR instead of {LIMIT // 100}", RAISED)
    body = {"claim": SETTLED, "cents": BY_HAND_CENTS, "reference": "by hand"}
    paid = stage.services.payments.post("/payouts", body, who=PERSON)
    stage.say(f"a colleague pays {BY_HAND_CENTS // 100} EUR by hand, payment {paid['id']}", SETTLED)


def rule(stage: Stage, order: str, *, percent: int = PERCENT, limit: int = LIMIT) -> None:
    stage.services.policies.post("/policies", {"order": order, "percent": percent, "limit": limit}, who=PERSON)


def held(stage: Stage) -> list[Sending]:
    return [each for each in stage.services.policies.records(only_unanswered=True) if each.held]


# ── people ──────────────────────────────────────────────────────────────────────────────────


def pending(desk: SyncClient, *orders: str, but: Sequence[str] = ()) -> list[RequestSummary] | None:
    """What people are asked just now about these orders, once it is all of them."""
    found = {each.key: each for each in desk.requests(status="pending") if each.key in orders and each.id not in but}
    return [found[order] for order in orders] if len(found) == len(orders) else None


def approve(desk: SyncClient, request: RequestSummary) -> None:
    desk.approve(request.id, hash=request.hash, by="ann", role="supervisor")


def told(request: RequestSummary) -> str:
    return f"{request.arguments['cents'] / 100:.0f} EUR"


def asked_of(requests: Sequence[RequestSummary]) -> Asked:
    found: dict[str, list[int]] = {order: [] for order in ORDERS}
    for each in sorted(requests, key=lambda each: each.asked_at):
        if each.key in found:
            found[each.key].append(each.facts["percent"])
    return found


# ── the figures ─────────────────────────────────────────────────────────────────────────────


def figures_of(sendings: Sequence[Sending], books: Sequence[Payment], asked: Asked) -> list[Figure]:
    """What people were asked and what was paid; and of what was settled by hand, who paid and what was said of it."""
    return [
        equal("approved, then the policy changed: asked and paid", "50%, 80%: 640 EUR", _paid(CHANGED, books, asked)),
        equal("approved, then its limit was raised: the same", "50%: 400 EUR", _paid(RAISED, books, asked)),
        equal("approved, then settled by hand", "paid 1x by a person, told", _by_hand(sendings, books)),
    ]


def _paid(order: str, books: Sequence[Payment], asked: Asked) -> str:
    percents = ", ".join(f"{percent}%" for percent in asked.get(order, ()))
    amounts = ", ".join(f"{each.cents / 100:.0f} EUR" for each in books if each.claim == order)
    return f"{percents or 'not asked'}: {amounts or 'nothing'}"


def _by_hand(sendings: Sequence[Sending], books: Sequence[Payment]) -> str:
    """The agent has to name the payment that is in the books."""
    paid = [each for each in books if each.claim == SETTLED]
    sent = [each for each in sendings if each.method == "POST" and each.who == AGENT]
    by_agent = any(each.service == "payments" and each.claim == SETTLED for each in sent)
    notes = [each.body for each in sent if each.path == "/tickets" and each.claim == SETTLED]
    is_told = any(f'settled by hand, payment {payment.id}"' in body for payment in paid for body in notes)
    return f"paid {len(paid)}x by {'the agent' if by_agent else 'a person'}, {'told' if is_told else 'not told'}"

"""A desk that pays back orders: what it has decided rests on facts that other people change, and is checked when it
goes on after a crash.

Its model, tickets and payments are found as those of claims_agent.py, the policies at POLICIES_URL. `perdure demo`
kills it when three refunds are approved and none is sent. While nobody runs, the policy changes for the first, the
limit of the second is raised, and the third is paid by hand.

    python examples/returns_desk.py perdure.db
"""

import asyncio
import json
import os
import re
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

import perdure
from perdure import Idempotent, Retry, effect, step, workflow

ORDERS = {"O-3": 80_000, "O-4": 80_000, "O-5": 80_000}  # what each has cost, in cents
OURS = "returns desk"  # the reference by which our payments are told from those of others

patient = Retry(max_attempts=5, first_delay=0.2)


def send(method: str, url: str, body: object = None, headers: Mapping[str, str] = {}) -> Any:
    """One HTTP request, sent once."""
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    given = {"Content-Type": "application/json", "User-Agent": f"claims-agent/{os.getpid()}", **headers}
    for name, value in given.items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=100) as response:
        return json.load(response)


def policy(order: str) -> dict[str, Any]:
    found: dict[str, Any] = send("GET", f"{os.environ['POLICIES_URL']}/policies?order={order}")
    return found


@step(retry=patient, timeout=120)
def decide(order: str, price: int) -> int:
    """How much is paid back, in cents: 0 if others have done it."""
    if paid_by_others(order):
        return 0
    rule = policy(order)
    allowed = min(price * rule["percent"] // 100, rule["limit"]) / 100
    question = f"Task: decide. What do we pay back for {order}? The policy allows {allowed:.2f} EUR."
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), "messages": [{"role": "user", "content": question}]}
    key = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    answer = send("POST", os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    found = re.search(r"([\d.]+) EUR", answer["choices"][0]["message"]["content"])
    return round(100 * float(found[1])) if found else 0


@decide.premise("percent")
def _(order: str, price: int) -> int:
    return int(policy(order)["percent"])


@decide.premise("limit", same=lambda then, now: now >= then)  # a higher one changes nothing
def _(order: str, price: int) -> int:
    return int(policy(order)["limit"])


@decide.premise("paid by others")
def _(order: str, price: int) -> list[int]:
    return paid_by_others(order)


def paid_by_others(order: str) -> list[int]:
    """Payments for the order that are none of ours, by their numbers."""
    payments = send("GET", f"{os.environ['PAYMENTS_URL']}/payments?claim={order}")["payments"]
    return [payment["id"] for payment in payments if payment["reference"] != OURS]


@step(retry=patient, timeout=20)
def percent(order: str) -> int:
    """What whoever approves is shown, and what is read once more before the refund is sent."""
    return int(policy(order)["percent"])


@step(retry=patient, timeout=20)
def others(order: str) -> list[int]:
    return paid_by_others(order)


@effect(downstream=Idempotent(), reversible=False, retry=patient, timeout=20)
def refund(order: str, cents: int) -> int:
    body = {"claim": order, "cents": cents, "reference": OURS}
    return int(send("POST", f"{os.environ['PAYMENTS_URL']}/charges", body, perdure.operation().headers)["id"])


@refund.key
def _(order: str, cents: int) -> str:
    return order


@effect(downstream=Idempotent(), retry=patient, timeout=20)
def note(order: str, what: str) -> str:
    body = {"customer": OURS, "claim": order, "title": what}
    send("POST", f"{os.environ['TICKETS_URL']}/tickets", body, perdure.operation().headers)
    return what


@note.key
def _(order: str, what: str) -> str:
    return order


@workflow
async def pay_back(order: str, price: int) -> str:
    cents = await decide.call(order, price)
    if not cents:
        paid = ", ".join(map(str, await others.call(order)))
        return await note.call(order, f"nothing is sent: it was settled by hand, payment {paid}")
    facts = {"percent": percent.call(order)}
    number = await perdure.with_approval(refund.call(order, cents), by={"supervisor"}, premises=facts)
    return f"{cents / 100:.0f} EUR, payment {number}"


async def main(store: str) -> None:
    async with perdure.Runtime(workflows=[pay_back], store=store) as runtime:
        runs = {o: await runtime.start(pay_back.call(o, price), id=f"return-{o}") for o, price in ORDERS.items()}
        print("ready", flush=True)
        for order, run in runs.items():
            print(f"{order}: {await run.result(wait_blocked=True)}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [store, *_]:  # `perdure demo` gives the claims to each of its agents
            asyncio.run(main(store))
        case _:
            sys.exit(__doc__)

"""A desk that refunds orders: a model reads the customers' letters, a policy says what may come of that, and people
approve what is large.

Its model, tickets and payments are found as those of claims_agent.py. `perdure demo` kills it while it waits for a
person, lets that person answer while nobody runs, changes a letter meanwhile, and has a letter ask for ten times what
the order cost.

    python examples/refund_desk.py perdure.db
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
from perdure import Idempotent, Policy, PolicyDenied, Retry, Rule, effect, step, workflow

DESK = Policy(
    "refund desk", 1,
    [
        Rule("what an order can cost", "refund", must={"cents": {"<=": 100_000}}),
        Rule("large ones", "refund", when={"cents": {">": 20_000}}, then="approve", by="supervisor"),
        Rule("small ones", "refund", then="allow"),
    ],
)  # fmt: skip


patient = Retry(max_attempts=5, first_delay=0.2)


def send(method: str, url: str, body: object = None, headers: Mapping[str, str] = {}) -> Any:
    """One HTTP request, sent once."""
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    given = {"Content-Type": "application/json", "User-Agent": f"claims-agent/{os.getpid()}", **headers}
    for name, value in given.items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=100) as response:
        return json.load(response)


@step(retry=patient, timeout=120)
def ask(question: str) -> str:
    """What the model says."""
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), "messages": [{"role": "user", "content": question}]}
    key = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    answer = send("POST", os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    return str(answer["choices"][0]["message"]["content"])


@step(retry=patient, timeout=20)
def last_letter(customer: str) -> str:
    tickets = send("GET", f"{os.environ['TICKETS_URL']}/tickets?customer={customer}")["tickets"]
    return str(tickets[-1]["title"])


@effect(downstream=Idempotent(), reversible=False, retry=patient, timeout=20)
def refund(order: str, cents: int) -> int:
    body = {"claim": order, "cents": cents}
    return int(send("POST", f"{os.environ['PAYMENTS_URL']}/charges", body, perdure.operation().headers)["id"])


@refund.key
def _(order: str, cents: int) -> str:
    return order


@workflow(policy=DESK)
async def refund_desk(orders: dict[str, str]) -> dict[str, str]:
    return {order: await handle(order, customer) for order, customer in orders.items()}


async def handle(order: str, customer: str) -> str:
    """Decided anew when a person says that things have changed."""
    while True:
        letter = await last_letter.call(customer)
        decision = await ask.call(f"Task: decide. How much do we refund for order {order}?\n{letter}")
        found = re.search(r"([\d.]+) EUR", decision)
        cents = round(100 * float(found[1])) if found else 0
        try:
            if cents <= 20_000:
                return f"payment {await refund.call(order, cents)}"
            number = await perdure.with_approval(
                refund.call(order, cents), by={"supervisor"}, premises={"letter": last_letter.call(customer)}
            )
        except perdure.Rejected:
            continue
        except PolicyDenied as no:
            return f"denied by {no.policy}: {no.rule}"
        return f"payment {number}"


async def main(store: str) -> None:
    async with perdure.Runtime(workflows=[refund_desk], store=store) as runtime:
        orders = {"O-1": "Ada", "O-2": "Mallory"}
        run = await runtime.start(refund_desk.call(orders), id="refunds-1", goal="answer the letters of today")
        print("ready", flush=True)
        print(await run.result(wait_blocked=True), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [store, *_]:  # `perdure demo` gives the claims to each of its agents
            asyncio.run(main(store))
        case _:
            sys.exit(__doc__)

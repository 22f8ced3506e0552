"""An agent that handles insurance claims and pays them, 50 steps long, that may be killed at any of them.

Its model is whatever OPENAI_BASE_URL and OPENAI_API_KEY name, its ticket service whatever TICKETS_URL names, its
payments service whatever PAYMENTS_URL names. Start it twice with the same store: the second process attaches to the run
of the first, and goes on with it when the first dies.

    python examples/claims_agent.py perdure.db examples/claims.json

`perdure demo` does just that, and shoots whoever works: once in step 47, and once on each way of paying, when the money
has moved and nothing here says so yet.
"""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import perdure
from perdure import CanLookUp, Found, Idempotent, NoGuarantee, NotFound, Operation, Retry, effect, step, workflow


@dataclass(frozen=True)
class Claim:
    id: str
    customer: str
    item: str
    story: str
    amount: int
    pay_by: Literal["charge", "transfer", "payout"]

    def __str__(self) -> str:
        return f"{self.id}, {self.customer}, {self.item}, {self.amount} EUR: {self.story}"


@dataclass(frozen=True)
class Outcome:
    plan: str
    decisions: dict[str, str]
    payments: dict[str, int]
    summary: str


patient = Retry(max_attempts=5, first_delay=0.2)


# ── steps: what only asks; once recorded, it is never asked again ───────────────────────────


@step(retry=patient, timeout=120)
def ask(question: str, plan: str = "") -> str:
    """One answer of the model: once recorded, it is never paid for again."""
    messages = [{"role": "system", "content": plan}] if plan else []
    messages.append({"role": "user", "content": question})
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), "messages": messages}
    key = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    answer = send("POST", os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    return str(answer["choices"][0]["message"]["content"])


@step(retry=patient, timeout=20)
def earlier_tickets(customer: str) -> list[str]:
    answer = send("GET", f"{os.environ['TICKETS_URL']}/tickets?customer={quote(customer)}")
    return [ticket["title"] for ticket in answer["tickets"]]


# ── effects: what changes the world; each says what the other side guarantees ───────────────


@effect(downstream=Idempotent(), retry=patient, timeout=20)
def open_ticket(claim: Claim) -> int:
    body = {"customer": claim.customer, "claim": claim.id, "title": f"{claim.item}: {claim.story}"}
    return int(send("POST", f"{os.environ['TICKETS_URL']}/tickets", body, perdure.operation().headers)["id"])


@open_ticket.key
def _(claim: Claim) -> str:
    return claim.id


@effect(downstream=Idempotent(), retry=patient, timeout=20)
def comment(ticket: int, text: str) -> None:
    url = f"{os.environ['TICKETS_URL']}/tickets/{ticket}/comments"
    send("POST", url, {"text": text}, perdure.operation().headers)


@comment.key
def _(ticket: int, text: str) -> int:
    return ticket


@effect(downstream=Idempotent(), retry=patient, timeout=20)
def charge(claim: Claim, cents: int) -> int:
    """This route honours keys. After a crash the same request is sent again under the same key."""
    return pay("charges", {"claim": claim.id, "cents": cents}, perdure.operation().headers)


@effect(downstream=CanLookUp(settle_after=2), timeout=20)
def transfer(claim: Claim, cents: int) -> int:
    """This route knows no keys, but finds a transfer by the reference that it was given: after a crash it is asked."""
    return pay("transfers", {"claim": claim.id, "cents": cents, "reference": perdure.operation().id})


@transfer.lookup
def _(operation: Operation) -> Found[int] | NotFound:
    found = send("GET", f"{os.environ['PAYMENTS_URL']}/transfers?reference={operation.id}")["payments"]
    return Found(found[0]["id"], f"payment {found[0]['id']}") if found else NotFound()


@effect(downstream=NoGuarantee(), timeout=20)
def payout(claim: Claim, cents: int) -> int:
    """This route has neither. After a crash no program can know, so a person finds out and says."""
    return pay("payouts", {"claim": claim.id, "cents": cents})


@charge.key
@transfer.key
@payout.key
def _(claim: Claim, cents: int) -> str:
    return claim.id


PAY_BY = {"charge": charge, "transfer": transfer, "payout": payout}


def pay(route: str, body: Mapping[str, object], headers: Mapping[str, str] = {}) -> int:
    """The number of the payment in the service's books."""
    payment = send("POST", f"{os.environ['PAYMENTS_URL']}/{route}", body, headers)
    perdure.operation().reference = f"payment {payment['id']}"
    return int(payment["id"])


def send(method: str, url: str, body: object = None, headers: Mapping[str, str] = {}) -> Any:
    """One HTTP request, sent once. What fails is raised as it is: perdure reads from it whether trying again can help,
    and whether it may have worked."""
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    for name, value in {"Content-Type": "application/json", "User-Agent": f"claims-agent/{os.getpid()}"}.items():
        request.add_header(name, value)
    for name, value in headers.items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=100) as response:
        return json.load(response)


# ── the workflow: plain asyncio, the same again whenever it is replayed ─────────────────────


@workflow
async def claims_agent(claims: list[Claim]) -> Outcome:
    listed = "\n".join(f"- {claim}" for claim in claims)
    plan = await ask.call(f"Task: plan. How do we handle these claims?\n{listed}")
    decisions: dict[str, str] = {}
    payments: dict[str, int] = {}
    for claim in claims:
        earlier = await earlier_tickets.call(claim.customer)
        known = f"{claim}\nEarlier tickets: {', '.join(earlier) or 'none'}"
        ticket = await open_ticket.call(claim)
        assessment = await ask.call(f"Task: assess. Does the damage fit the story?\n{known}", plan)
        decision = await ask.call(f"Task: decide. Begin with approve or refer.\n{known}\n{assessment}", plan)
        decisions[claim.id] = decision.split(":")[0]
        cents = claim.amount * (100 if decisions[claim.id] == "approve" else 50)  # half at once where a person looks on
        payments[claim.id] = await PAY_BY[claim.pay_by].call(claim, cents)
        await comment.call(ticket, f"{decision} Paid so far: {cents / 100:.2f} EUR.")
    verdicts = "\n".join(f"{claim} {decision}" for claim, decision in decisions.items())
    summary = await ask.call(f"Task: summarize.\n{verdicts}", plan)
    return Outcome(plan, decisions, payments, summary)


async def main(store: str, claims: list[Claim]) -> None:
    async with perdure.Runtime(workflows=[claims_agent], store=store) as runtime:
        run = await runtime.start(claims_agent.call(claims), id="claims-1")
        print("ready", flush=True)
        outcome = await run.result(wait_blocked=True)  # where a person is needed, it waits for that person
        print(outcome.summary, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [store, claims_file]:
            asyncio.run(main(store, [Claim(**claim) for claim in json.loads(Path(claims_file).read_text())]))
        case _:
            sys.exit(__doc__)

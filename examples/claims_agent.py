"""An agent that handles insurance claims, 50 steps long, that may be killed at any of them.

Its model is whatever OPENAI_BASE_URL and OPENAI_API_KEY name, its ticket service whatever TICKETS_URL names. Start it
twice with the same store: the second process attaches to the run of the first, and goes on with it when the first dies.

    python examples/claims_agent.py perdure.db examples/claims.json

`perdure demo` does just that, and shoots the one that works in step 47.
"""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import perdure
from perdure import Retry, step, workflow


@dataclass(frozen=True)
class Claim:
    id: str
    customer: str
    item: str
    story: str
    amount: int

    def __str__(self) -> str:
        return f"{self.id}, {self.customer}, {self.item}, {self.amount} EUR: {self.story}"


@dataclass(frozen=True)
class Outcome:
    plan: str
    decisions: dict[str, str]
    summary: str


# ── steps: what is recorded, once it is done ────────────────────────────────────────────────

patient = Retry(max_attempts=5, first_delay=0.2)


@step(retry=patient, timeout=120)
def ask(question: str, plan: str = "") -> str:
    """One answer of the model: once recorded, it is never paid for again."""
    messages = [{"role": "system", "content": plan}] if plan else []
    messages.append({"role": "user", "content": question})
    body = {"model": os.environ.get("OPENAI_MODEL", "gpt-4o-mini"), "messages": messages}
    answer = call("POST", os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"])


@step(retry=patient, timeout=20)
def earlier_tickets(customer: str) -> list[str]:
    answer = call("GET", f"{os.environ['TICKETS_URL']}/tickets?customer={quote(customer)}")
    return [ticket["title"] for ticket in answer["tickets"]]


@step(retry=patient, timeout=20)
def open_ticket(claim: Claim) -> int:
    body = {"customer": claim.customer, "claim": claim.id, "title": f"{claim.item}: {claim.story}"}
    return int(call("POST", f"{os.environ['TICKETS_URL']}/tickets", body, key=f"{claim.id}/ticket")["id"])


@step(retry=patient, timeout=20)
def comment(ticket: int, claim: Claim, text: str) -> None:
    call("POST", f"{os.environ['TICKETS_URL']}/tickets/{ticket}/comments", {"text": text}, key=f"{claim.id}/letter")


def call(method: str, url: str, body: object = None, *, key: str = "") -> Any:
    """One HTTP request. Says of a refusal whether trying again can help."""
    request = urllib.request.Request(url, method=method, data=None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    request.add_header("User-Agent", f"claims-agent/{os.getpid()}")
    request.add_header("Authorization", f"Bearer {os.environ.get('OPENAI_API_KEY', '')}")
    if key:
        request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request, timeout=100) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            said = f"{method} {url} was answered with {error.code}: {error.read(500).decode('utf-8', 'replace')}"
            if error.code not in {408, 429} and error.code < 500:
                raise perdure.Final(said) from error
            raise perdure.Retryable(said) from error


# ── the workflow: plain asyncio, the same again whenever it is replayed ─────────────────────


@workflow
async def claims_agent(claims: list[Claim]) -> Outcome:
    listed = "\n".join(f"- {claim}" for claim in claims)
    plan = await ask.call(f"Task: plan. How do we handle these claims?\n{listed}")
    decisions: dict[str, str] = {}
    for claim in claims:
        earlier = await earlier_tickets.call(claim.customer)
        known = f"{claim}\nEarlier tickets: {', '.join(earlier) or 'none'}"
        assessment = await ask.call(f"Task: assess. Does the damage fit the story?\n{known}", plan)
        ticket = await open_ticket.call(claim)
        decision = await ask.call(f"Task: decide. Begin with approve or refer.\n{known}\n{assessment}", plan)
        letter = await ask.call(f"Task: letter. {decision}\nWrite to {claim.customer}, in three sentences.", plan)
        await comment.call(ticket, claim, letter)
        decisions[claim.id] = decision.split(":")[0]
    verdicts = "\n".join(f"{claim} {decision}" for claim, decision in decisions.items())
    summary = await ask.call(f"Task: summarize.\n{verdicts}", plan)
    return Outcome(plan, decisions, summary)


async def main(store: str, claims: list[Claim]) -> None:
    async with perdure.Runtime(workflows=[claims_agent], store=store) as runtime:
        run = await runtime.start(claims_agent.call(claims), id="claims-1")
        print("ready", flush=True)
        outcome = await run.result()
        print(outcome.summary, flush=True)


if __name__ == "__main__":
    store, claims_file = sys.argv[1:]
    asyncio.run(main(store, [Claim(**claim) for claim in json.loads(Path(claims_file).read_text())]))

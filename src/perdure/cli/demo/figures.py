"""What the services wrote down, as figures: how often was each step asked for, by whom, when, and what was paid.

A step, seen from outside, is a distinct request (method, path and body): the agent sends no step numbers, and the
services count what arrives. The agent goes through its steps one after another, so the n-th distinct request is step n.
A look into the books of the payments service is no step: it only asks what became of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

AGENT, PERSON = "claims-agent", "person"
"""How they call themselves in their User-Agent, before their process's number."""


@dataclass(frozen=True)
class Sending:
    """One request as a service wrote it down. Times are in seconds since the epoch; unanswered, it has no answer.

    `held`: 1 if its answer was kept back, so that its sender could be killed.
    """

    service: str
    digest: str
    key: str | None
    caller: str
    received_at: float
    answered_at: float | None
    held: int
    status: int | None
    method: str
    path: str
    body: str
    answer: str | None

    @classmethod
    def read(cls, service: str, record: dict[str, Any]) -> Sending:
        return cls(service, **{name: record[name] for name in cls.__dataclass_fields__ if name != "service"})

    @property
    def who(self) -> str:
        return self.caller.rpartition("/")[0]

    @property
    def is_agents(self) -> bool:
        return self.who == AGENT

    @property
    def pid(self) -> int:
        """The process that sent it: its User-Agent says so."""
        return int(self.caller.rpartition("/")[2])

    @property
    def is_look(self) -> bool:
        """Whether it asks the payments service what was paid."""
        return self.service == "payments" and self.method == "GET"

    @property
    def claim(self) -> str:
        """Which claim it pays for."""
        return str(json.loads(self.body)["claim"])

    @property
    def found(self) -> list[Payment]:
        """What a look into the books was answered with."""
        return [Payment.read(row) for row in json.loads(self.answer or "{}").get("payments", ())]

    @property
    def text(self) -> str:
        """What the model said, or an empty text."""
        try:
            return str(json.loads(self.answer or "")["choices"][0]["message"]["content"])
        except (ValueError, LookupError, TypeError):
            return ""

    @property
    def system(self) -> str:
        """The system message that a model request carried: in the demo, the plan."""
        asked: dict[str, Any] = json.loads(self.body or "{}")
        return "".join(message["content"] for message in asked.get("messages", ()) if message["role"] == "system")


class Payment(NamedTuple):
    """One row in the books of the payments service."""

    id: int
    route: str
    claim: str
    cents: int

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Payment:
        return cls(*(row[name] for name in cls._fields))


class Step(NamedTuple):
    number: int
    sendings: tuple[Sending, ...]

    @property
    def first(self) -> Sending:
        return self.sendings[0]

    def times_done(self, books: Sequence[Payment]) -> int:
        """Of a payment: how often it is in the books. Of anything else: how often it was answered."""
        if self.first.service == "payments":
            return sum(payment.claim == self.first.claim for payment in books)
        return sum(sending.answered_at is not None for sending in self.sendings)


def steps_of(sendings: Iterable[Sending]) -> list[Step]:
    """The steps in the order in which each was first asked for. What was refused (429, 503) was no answer."""
    found: dict[str, list[Sending]] = {}
    heard = [each for each in sendings if not each.is_look and (each.status is None or each.status < 400)]
    for sending in sorted(heard, key=lambda sending: sending.received_at):
        found.setdefault(sending.digest, []).append(sending)
    return [Step(number, tuple(same)) for number, same in enumerate(found.values(), 1)]


class Figure(NamedTuple):
    """One line of the table. `found` and `promised` are what is shown, `kept` is whether they agree."""

    what: str
    promised: str
    found: str
    kept: bool


@dataclass(frozen=True)
class Kill:
    """Who was killed, when, and in which step that process was."""

    pid: int
    at: float
    in_step: int


@dataclass(frozen=True)
class Story:
    """What happened, from outside.

    `kills`: in order, the last one in a step that changes nothing. `books`: what the payments service has paid.
    `other_plan`: what the model answered when it was asked for a plan once more, None if it was not.
    """

    sendings: Sequence[Sending]
    kills: Sequence[Kill]
    books: Sequence[Payment]
    other_plan: str | None


SECONDS_TO_TAKE_OVER_MAX = 3.0


def figures(story: Story, *, steps_promised: int, claims_promised: int) -> list[Figure]:
    """The table: first of the steps and the kill in one of them, then of the payments and the kills in some of them."""
    steps, kill = steps_of(story.sendings), story.kills[-1]
    again = [step.number for step in steps if _was_sent_on_both_sides_of(kill, step)]
    once = sum(step.times_done(story.books) == 1 for step in steps)
    recorded = steps[: kill.in_step - 1]
    called_again = sum(_was_sent_on_both_sides_of(kill, step) for step in recorded)
    return [
        all_of("steps done and recorded, each once", steps_promised, once, len(steps)),
        equal("sent again, because in flight at the kill", f"1 (step {kill.in_step})", listed(again)),
        equal(f"of the {len(recorded)} recorded before, called again after it", "0", str(called_again)),
        seconds_to_take_over(steps, kill),
        *plan_kept(steps, story.other_plan),
        *payments_kept(steps, story, claims_promised),
    ]


def equal(what: str, promised: str, found: str) -> Figure:
    return Figure(what, promised, found, promised == found)


def all_of(what: str, promised: int, good: int, whole: int) -> Figure:
    """There are as many as promised, and all of them are good."""
    return equal(what, f"{promised} of {promised}", f"{good} of {whole}")


def _was_sent_on_both_sides_of(kill: Kill, step: Step) -> bool:
    return {sending.received_at > kill.at for sending in step.sendings} == {True, False}


def seconds_to_take_over(steps: list[Step], kill: Kill) -> Figure:
    step = steps[kill.in_step - 1] if len(steps) >= kill.in_step else None
    later = [sending for sending in step.sendings if sending.received_at > kill.at] if step else []
    what, promised = f"seconds from the kill to step {kill.in_step} again", f"under {SECONDS_TO_TAKE_OVER_MAX:.0f}"
    if not later:
        return Figure(what, promised, "never", False)
    seconds = later[0].received_at - kill.at
    return Figure(what, promised, f"{seconds:.2f}", seconds < SECONDS_TO_TAKE_OVER_MAX)


def plan_kept(steps: list[Step], other_plan: str | None) -> list[Figure]:
    """The first plan is the one that every later model request rests on."""
    plan = steps[0].first.text if steps else ""
    later = [step.first for step in steps[1:] if step.first.service == "model"]
    resting = sum(sending.system == plan for sending in later)
    rows = [
        Figure(
            "model calls that rest on the first plan",
            f"{len(later)} of {len(later)}",
            f"{resting} of {len(later)}",
            bool(plan) and resting == len(later) > 0,
        )
    ]
    if other_plan is not None:
        differs = bool(other_plan) and other_plan != plan
        rows.append(Figure("a plan asked for a second time", "another", "another" if differs else "the same", differs))
    return rows


# ── the payments ────────────────────────────────────────────────────────────────────────────


def payments_kept(steps: Sequence[Step], story: Story, claims_promised: int) -> list[Figure]:
    """Every claim is in the books once; and how it came to that where a worker was killed after the payment."""
    claims = [payment.claim for payment in story.books]
    once = sum(claims.count(claim) == 1 for claim in set(claims))
    killed = story.kills[:-1]
    payments = {step.number: step for step in steps if step.first.service == "payments"}
    others = [payments[number] for number in payments.keys() - {kill.in_step for kill in killed}]
    sent_once = sum(len(step.sendings) == 1 for step in others)
    return [
        all_of("claims in the books of the payments service, each once", claims_promised, once, len(set(claims))),
        *(_after_the_kill(payments.get(kill.in_step), kill, story) for kill in killed),
        all_of("other payments, each sent once", claims_promised - len(killed), sent_once, len(others)),
    ]


def _after_the_kill(step: Step | None, kill: Kill, story: Story) -> Figure:
    """How often a payment was sent whose answer was lost, and how it was found out that it had been made."""
    if step is None:
        return equal(f"step {kill.in_step}", "a payment", "none")
    route = step.first.path.removeprefix("/")
    promised, how = ROUTES[route]
    found = f"sent {len(step.sendings)}x, {how(step, kill, story)}"
    return equal(f"step {step.number}, {route[:-1]} for {step.first.claim}", promised, found)


def _keys(step: Step, kill: Kill, story: Story) -> str:
    keys = {sending.key for sending in step.sendings}
    return "one key" if len(keys) == 1 and None not in keys else f"{len(keys)} keys"


def _looks(who: str, words: str) -> Callable[[Step, Kill, Story], str]:
    """Whether `who` looked into the books after the kill and found the one payment."""

    def looked(step: Step, kill: Kill, story: Story) -> str:
        looks = [each for each in story.sendings if each.is_look and each.who == who and each.received_at > kill.at]
        found = any([payment.claim for payment in look.found] == [step.first.claim] for look in looks)
        return words if found else "never found"

    return looked


ROUTES: dict[str, tuple[str, Callable[[Step, Kill, Story], str]]] = {
    "charges": ("sent 2x, one key", _keys),
    "transfers": ("sent 1x, found by look-up", _looks(AGENT, "found by look-up")),
    "payouts": ("sent 1x, found by a person", _looks(PERSON, "found by a person")),
}
"""What is promised of each, and what tells how it went."""


# ── as text ─────────────────────────────────────────────────────────────────────────────────


def listed(numbers: list[int]) -> str:
    if not numbers:
        return "0"
    return f"{len(numbers)} ({'step' if len(numbers) == 1 else 'steps'} {', '.join(map(str, numbers))})"


def table(rows: Sequence[Figure]) -> str:
    """The figures as text, in columns."""
    head = ("", "promised", "found", "")
    lines = [head, *((row.what, row.promised, row.found, "ok" if row.kept else "NOT KEPT") for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    drawn = [
        f"{what:<{widths[0]}}  {promised:>{widths[1]}}  {found:>{widths[2]}}  {kept}".rstrip()
        for what, promised, found, kept in lines
    ]
    return "\n".join([drawn[0], "─" * (sum(widths) + 4), *drawn[1:]])

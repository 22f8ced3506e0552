"""What the services wrote down, as figures: how often was each step asked for, by whom, and when.

A step, seen from outside, is a distinct request (method, path and body): the agent sends no step numbers, and the
services count what arrives. The agent goes through its steps one after another, so the n-th distinct request is step n.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Sending:
    """One request as a service wrote it down. Times are in seconds since the epoch; unanswered, it has no answer."""

    service: str
    digest: str
    caller: str
    received_at: float
    answered_at: float | None
    status: int | None
    method: str
    path: str
    body: str
    answer: str | None

    @classmethod
    def read(cls, service: str, record: dict[str, Any]) -> Sending:
        return cls(service, **{name: record[name] for name in cls.__dataclass_fields__ if name != "service"})

    @property
    def pid(self) -> int:
        """The process that sent it: the agent says so in its User-Agent."""
        return int(self.caller.rpartition("/")[2])

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


class Step(NamedTuple):
    number: int
    sendings: tuple[Sending, ...]

    @property
    def first(self) -> Sending:
        return self.sendings[0]

    @property
    def answers(self) -> int:
        return sum(sending.answered_at is not None for sending in self.sendings)


def steps_of(sendings: Iterable[Sending]) -> list[Step]:
    """The steps in the order in which each was first asked for. What was refused (429, 503) was no answer."""
    found: dict[str, list[Sending]] = {}
    heard = [sending for sending in sendings if sending.status is None or sending.status < 400]
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


SECONDS_TO_TAKE_OVER_MAX = 3.0


def figures(sendings: Iterable[Sending], kill: Kill, *, steps_promised: int, other_plan: str | None) -> list[Figure]:
    """The table. `other_plan`: what the model answered when it was asked for a plan once more, None if it was not."""
    steps = steps_of(sendings)
    before, again = steps[: kill.in_step - 1], [step.number for step in steps if len(step.sendings) > 1]
    once = sum(step.answers == 1 for step in steps)
    called_again = sum(len(step.sendings) > 1 for step in before)
    return [
        Figure(
            "steps answered and recorded, each once",
            f"{steps_promised} of {steps_promised}",
            f"{once} of {len(steps)}",
            once == len(steps) == steps_promised,
        ),
        Figure(
            "sent again, because in flight at the kill",
            f"1 (step {kill.in_step})",
            listed(again),
            again == [kill.in_step],
        ),
        Figure(f"of the {len(before)} recorded before, called again", "0", str(called_again), called_again == 0),
        seconds_to_take_over(steps, kill),
        *plan_kept(steps, other_plan),
    ]


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

"""The go-live checklist, and what an answer to one of its questions is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from perdure.audit.doctor.application import Application


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    NOT_CHECKED = "not checked"


class Fault(NamedTuple):
    """Something that has to be mended before going live. `where`: `app.py:12`, or a name."""

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class Answer:
    """The answer to one question, as it comes together."""

    seen: list[str] = field(default_factory=list[str])
    """What was looked at, and is as it should be."""
    faults: list[Fault] = field(default_factory=list[Fault])
    unchecked: list[str] = field(default_factory=list[str])
    """What could not be looked at, and why."""

    @property
    def verdict(self) -> Verdict:
        if self.faults:
            return Verdict.FAIL
        return Verdict.NOT_CHECKED if self.unchecked and not self.seen else Verdict.PASS

    @property
    def has_passed(self) -> bool:
        """In what was looked at: something of it may be unchecked."""
        return self.verdict is Verdict.PASS

    def fault(self, where: str, what: str, fix: str) -> None:
        self.faults.append(Fault(where, what, fix))


class Question(NamedTuple):
    """`id` is what silences it on a line: `# perdure: ignore[retry-owner]`. `fails`: what is found wrong."""

    id: str
    text: str
    why: str
    fails: str
    check: Callable[[Application, Answer], None]


class Answered(NamedTuple):
    number: int
    question: Question
    answer: Answer


@dataclass(frozen=True)
class Report:
    """All answers, in the order of the checklist."""

    answers: Sequence[Answered]
    files: Sequence[str]

    @property
    def failed(self) -> list[Answered]:
        return [each for each in self.answers if each.answer.verdict is Verdict.FAIL]

    @property
    def unchecked(self) -> list[Answered]:
        """Those of which something was not looked at."""
        return [each for each in self.answers if each.answer.unchecked]

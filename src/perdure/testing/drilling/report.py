"""What came of a drill, for people and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.testing.drilling.points import Point

REPRODUCE = "again, alone: {}"


class DrillFailed(AssertionError):
    """A drill found something. The message is the report of what it found."""


@dataclass(frozen=True)
class PointResult:
    """What came of one thing that was tried. `problems`: what is wrong, nothing if it was passed; `evidence`: what
    became of the effect that it was about, or of the run; `ended`: the run's result as JSON, or how it failed."""

    point: Point
    problems: tuple[str, ...]
    evidence: str
    ended: str

    @property
    def name(self) -> str:
        return self.point.name

    @property
    def has_passed(self) -> bool:
        return not self.problems


def _points(number: int) -> str:
    return f"{number} point{'' if number == 1 else 's'}"


def _told(name: str) -> str:
    return f"only={name!r}"


@dataclass(frozen=True)
class DrillReport:
    """What came of a drill.

    `results`: each thing that was tried, in order. `effects`: the effects that the run calls, and what the other side
    of each guarantees. `notes`: what is good to know, and no fault. `source`: the digest of the workflow's source and
    of all that it calls. `was_kept`: the pass is in the store. `how_again`: what is typed to try one thing alone.

    `bool(report)`, `report.has_passed`: everything was passed. `str(report)` is readable. So in a test:

    >>> assert report, report                                                      # doctest: +SKIP
    """

    workflow: str
    version: int
    source: str
    ended: str
    results: tuple[PointResult, ...]
    effects: dict[str, str]
    notes: tuple[str, ...] = ()
    was_kept: bool = False
    how_again: Callable[[str], str] = field(default=_told, compare=False, repr=False)

    @property
    def has_passed(self) -> bool:
        return bool(self.results) and not self.failed

    def __bool__(self) -> bool:
        return self.has_passed

    @property
    def failed(self) -> list[PointResult]:
        return [result for result in self.results if not result.has_passed]

    @property
    def covered(self) -> tuple[str, ...]:
        """What was tried and passed, in the words of `perdure.audit.drills.Covered`: of each kind all of it."""
        tried = dict.fromkeys(result.point.covers for result in self.results)
        failed = {result.point.covers for result in self.failed}
        return tuple(str(what) for what in tried if what is not None and what not in failed)

    def __getitem__(self, name: str) -> PointResult:
        """The result of one thing, by its name. KeyError if that was not tried."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def check(self) -> None:
        """DrillFailed if something was not passed."""
        if not self.has_passed:
            raise DrillFailed(str(self))

    def summary(self) -> str:
        """One line."""
        what = f"{self.workflow} version {self.version}"
        if self.has_passed:
            return f"{what}: {_points(len(self.results))} passed"
        return f"{what}: {len(self.failed)} of {_points(len(self.results))} failed"

    def __str__(self) -> str:
        """The points that failed, each with what is wrong and how to try it alone; and the summary."""
        lines = [line for result in self.failed for line in self._lines(result)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes), self.summary()])

    def _lines(self, result: PointResult) -> Iterator[str]:
        yield f"FAILED  {result.name}"
        for problem in result.problems:
            yield textwrap.indent(problem, "    ")
        if result.evidence:
            yield f"    afterwards: {result.evidence}"
        yield f"    {REPRODUCE.format(self.how_again(result.name))}"

    def json(self) -> dict[str, Any]:
        """The whole report as plain JSON."""
        return {
            "workflow": self.workflow, "version": self.version, "source": self.source, "passed": self.has_passed,
            "result": self.ended, "effects": self.effects, "covered": list(self.covered), "kept": self.was_kept,
            "notes": list(self.notes),
            "points": [self._json(result) for result in self.results],
        }  # fmt: skip

    def _json(self, result: PointResult) -> dict[str, Any]:
        return {
            "name": result.name, "passed": result.has_passed, "problems": list(result.problems),
            "evidence": result.evidence, "result": result.ended, "again": self.how_again(result.name),
            "covers": None if result.point.covers is None else str(result.point.covers),
        }  # fmt: skip


__all__ = ["DrillFailed", "DrillReport", "PointResult"]

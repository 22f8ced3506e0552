"""The fault drill: a team's own workflow, on its own fakes, with everything going wrong that can, before it goes live.

    report = await drill(handle.call("C-1"), provide=fakes, check=money_moved_once)
    assert report, report

The run is left alone first, to learn its result, its writes and its calls to the outside. Then it is done again for
each of them with a process that dies before it, and one that dies after it; with a worker that hangs and goes on after
the takeover; with look-ups that cannot say, deliveries that come twice, clocks that jump. Each time it has to end in
the same way, with at most one committed result per operation, no recorded step begun again, and nothing resent blindly.

    team      what the team brings             process   one worker: watched, dies or hangs where it is to
    points    what is tried, by name           trial     one run with one fault, and what is wrong then
    words     what each place is called        report    what came of it
    plan      which of them are tried
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import logging
import platform
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from datetime import timedelta
from typing import Any

from perdure import __version__
from perdure.api.calls import Call
from perdure.api.settings import store_from
from perdure.api.source import Source, source_of
from perdure.api.workflow import AnyWorkflow
from perdure.audit.drills import DrillPass, keep_pass
from perdure.audit.lint import Severity, lint_function
from perdure.clock import SystemClock
from perdure.errors import UnknownNameError
from perdure.store.protocol import Store
from perdure.testing.clock import NEW_YEAR
from perdure.testing.drilling import plan, words
from perdure.testing.drilling.points import UNTOUCHED, Point
from perdure.testing.drilling.report import DrillFailed, DrillReport, PointResult
from perdure.testing.drilling.team import Aftermath, Check, Provide, Team, UnfitForDrill, team_of
from perdure.testing.drilling.trial import Trial
from perdure.testing.mortal import QuietAboutCrashes

__all__ = ["Aftermath", "DrillFailed", "DrillReport", "PointResult", "UnfitForDrill", "drill"]

SHOWN_MAX = 200


async def drill(
    what: AnyWorkflow | Call[Any],
    /,
    *args: Any,
    provide: Provide | None = None,
    messages: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    answers: Iterable[Any] = (),
    check: Check | None = None,
    only: str | None = None,
    workflows: Iterable[Any] = (),
    store: str | Store | None = None,
    how_again: Callable[[str], str] | None = None,
    on_result: Callable[[PointResult], None] = lambda _: None,
) -> DrillReport:
    """Drill a workflow with this input (or a call of it), and say what came of it.

    `provide`: the fakes, `{Type: client}`; better a function that makes them, since it is called anew for each thing
    that is tried. `messages`: names and values, each sent when the run waits for one of that name. `answers`: what is
    answered to the run's questions, in their order; approvals that it asks for are given. `check`: called with
    an `Aftermath` each time the run has ended; what it raises is a fault. `only`: try one thing alone, by its name.
    `workflows`: what else is started by name. `store`: where a pass is kept (nowhere, if none is given).

    Raises UnfitForDrill, a UsageError, when there is nothing to drill: the run calls nothing outside, waits for a
    message that nobody sends, is blocked although nothing went wrong, gives another result each time, or lacks a
    client. Its message says which. UnknownNameError if there is no such thing as `only` says. What the drill finds is
    in the report.
    """
    team = team_of(
        what, args, provide=provide, messages=messages, answers=answers, check=check, workflows=workflows
    )
    driller = _Drill(team, on_result)
    with _quiet():
        await driller.run(None if only is None else words.usual(only))
    report = driller.report(how_again)
    if store is not None and report.has_passed and only is None:
        report = _kept(report, store)
    return report


class _Drill:
    """One drill, from the untouched run to the last point."""

    def __init__(self, team: Team, on_result: Callable[[PointResult], None]) -> None:
        self._team, self._on_result = team, on_result
        self._source: Source = source_of(team.workflow)
        self._results: list[PointResult] = []
        self._notes: list[str] = []
        self._in_file = False
        self._depends_on_time = ""
        self._deepened: set[str] = set()

    async def run(self, only: str | None) -> None:
        self._untouched = await self._learn()
        if self._results[0].problems and only is None:
            return
        names = {UNTOUCHED.name}
        async with contextlib.aclosing(self._points(only)) as found:
            async for point in found:
                names.add(point.name)
                if only is None or point.name == only:
                    self._tell(point, await self._try(point))
        if only is not None and only not in names:
            raise UnknownNameError("point of this drill", only, _near(only, names))
        if only is not None and only != UNTOUCHED.name:
            del self._results[0]

    async def _points(self, only: str | None) -> AsyncGenerator[Point]:
        """Everything that there is to try. Whoever wants one thing only need not try what leads nowhere near it."""
        for point in plan.first_points(self._untouched, self._team.messages):
            yield point
            is_wanted = only is None or only.startswith(f"{point.name}, then ")
            if is_wanted and plan.is_deepened(point, set() if only else self._deepened):
                self._deepened.add(plan.name_of(point.call))
                seen = set[str]()
                for further in plan.further_points(point, await self._try(point)):
                    if further.name not in seen:
                        seen.add(further.name)
                        yield further

    # ── the untouched run ────────────────────────────────────────────────────────────────────
    async def _learn(self) -> Trial:
        """Leave it alone, twice: what it gives, what it writes and calls, and that it does so again."""
        untouched = await self._alone()
        if untouched.touches_database:
            self._in_file = True
            untouched = await self._alone()
        name = self._team.workflow.name
        if untouched.missing_client:
            how = "give it with provide= (--provide on the command line)"
            raise UnfitForDrill(f"{name}: {untouched.missing_client}; {how}")
        if untouched.ended is None:
            raise UnfitForDrill(f"{name}: left alone, it does not end: {'; '.join(untouched.problems)}")
        if not untouched.calls:
            raise UnfitForDrill(f"{name} calls nothing outside with this input, no step and no effect: no drill")
        await self._see_whether_repeatable(untouched)
        await self._see_whether_timeless(untouched)
        self._read_source(untouched.functions)
        for message in sorted(untouched.unanswered):
            self._notes.append(f"it waits for message {message!r}, which nobody sends: what is drilled is its deadline")
        self._tell(UNTOUCHED, untouched)
        return untouched

    async def _alone(self) -> Trial:
        return await Trial(self._team, UNTOUCHED, in_file=self._in_file, is_distrustful=True).run()

    async def _see_whether_repeatable(self, untouched: Trial) -> None:
        again = await self._alone()
        values = [call for call in untouched.values if again.values.get(call) != untouched.values[call]]
        first = values[0] if values else ""
        if again.ended != untouched.ended:
            told = f"it gave {_short(str(untouched.ended))}, and then {_short(str(again.ended))}"
            because = f"; the first call that gave something else is {first}" if first else ""
            of_call = _difference(untouched, again, first) if first else ""
            raise UnfitForDrill(
                f"{self._team.workflow.name} is not repeatable: left alone twice, {told}{because}{of_call}. Let its "
                "fakes give the same each time: a function for provide= makes them anew for each run"
            )
        if first:
            self._notes.append(
                f"{first} gives something else each time{_difference(untouched, again, first)}; the result is the same"
            )

    async def _see_whether_timeless(self, untouched: Trial) -> None:
        later = Trial(
            self._team, UNTOUCHED, in_file=self._in_file, begins_at=NEW_YEAR + timedelta(days=45), seconds_per_call=1.0
        )
        await later.run()
        if later.ended != untouched.ended and later.ended is not None:
            self._depends_on_time = f"{_short(str(untouched.ended))} or, later, {_short(str(later.ended))}"
            self._notes.append(
                f"its result depends on the time at which it runs ({self._depends_on_time}): that it ends in the same "
                "way was compared, its result was not"
            )

    def _read_source(self, called: set[str]) -> None:
        """What the linter says of the workflow, which no run may show."""
        for finding in lint_function(self._team.workflow.spec.function):
            if finding.severity is not Severity.INFO:
                self._notes.append(str(finding))
        for function in sorted(called - {*self._source.functions}):
            self._notes.append(
                f"{function} is called, and no code of the workflow names it: an edit there makes no pass stale"
            )
        if self._source.unreadable:
            self._notes.append(f"the source of {', '.join(self._source.unreadable)} cannot be read")

    # ── points ───────────────────────────────────────────────────────────────────────────────
    async def _try(self, point: Point) -> Trial:
        return await Trial(self._team, point, in_file=self._in_file).run()

    def _tell(self, point: Point, trial: Trial) -> None:
        problems = [*trial.problems, *self._other_ending(point, trial)]
        evidence = trial.evidence
        if trial.ended is not None and point is not UNTOUCHED and not trial.problems:
            evidence = "; ".join(filter(None, [evidence, self._told_ending(trial)]))
        if point.fault.settles_failed and trial.ended is not None and trial.ended == self._untouched.ended:
            self._notes.append(
                f"it gives the same result ({_short(str(trial.ended))}) although {point.call} was settled as failed: "
                "is that failure swallowed?"
            )
        result = PointResult(point, tuple(problems), evidence, str(trial.ended))
        self._results.append(result)
        self._on_result(result)

    def _told_ending(self, trial: Trial) -> str:
        if trial.ended == self._untouched.ended:
            return "the same result"
        return f"ended with {_short(str(trial.ended))}"

    def _other_ending(self, point: Point, trial: Trial) -> list[str]:
        """What is wrong with how the run ended."""
        ended = trial.ended
        if point is UNTOUCHED or ended is None or point.may_differ or ended == self._untouched.ended:
            return []
        expected = self._untouched.ended
        if self._depends_on_time and expected is not None and ended.status == expected.status:
            return []
        first = next((call for call, value in trial.values.items() if self._is_other(call, value)), "")
        where = f"; the first call that gave something else is {first}" if first else ""
        of_call = _difference(self._untouched, trial, first) if first else ""
        return [f"it ended with {_short(str(ended))}, not with {_short(str(expected))}{where}{of_call}"]

    def _is_other(self, call: str, value: bytes | None) -> bool:
        return call in self._untouched.values and self._untouched.values[call] != value

    def report(self, how_again: Callable[[str], str] | None) -> DrillReport:
        spec = self._team.workflow.spec
        more: dict[str, Any] = {} if how_again is None else {"how_again": how_again}
        return DrillReport(
            spec.name, spec.version, self._source.digest, str(self._untouched.ended), tuple(self._results),
            dict(self._untouched.effects), tuple(self._notes), **more,
        )  # fmt: skip


def _difference(first: Trial, second: Trial, call: str) -> str:
    before, after = first.values.get(call), second.values.get(call)
    shown = [_short("nothing" if value is None else value.decode()) for value in (before, after)]
    return f" ({shown[0]}, then {shown[1]})"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


def _near(wanted: str, names: Iterable[str]) -> list[str]:
    near = difflib.get_close_matches(wanted, list(names), n=5, cutoff=0.3)
    return near or sorted(names)[:5]


def _kept(report: DrillReport, given: str | Store) -> DrillReport:
    """Note the pass in the store."""
    clock = SystemClock()
    store = store_from(given, clock)
    try:
        passed = DrillPass(
            workflow=report.workflow, version=report.version, source=report.source, perdure=__version__,
            python=platform.python_version(), at=clock.now(), points=len(report.results), covered=report.covered,
            effects=report.effects,
        )  # fmt: skip
        keep_pass(store, passed)
    finally:
        if store is not given:
            store.close()
    return dataclasses.replace(report, was_kept=True)


@contextlib.contextmanager
def _quiet() -> Generator[None, None, None]:
    """What perdure says of faults that are made on purpose concerns nobody."""
    logs = [logging.getLogger("perdure"), logging.getLogger("perdure.runs")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL + 1)
    try:
        with QuietAboutCrashes():
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)



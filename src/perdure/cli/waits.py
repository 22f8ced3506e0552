"""`perdure store waits`: how long runs only wait, by workflow, and what was not fit to wait so long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import JsonOption, StoreOption, existing_store
from perdure.cli.show import counted, length, moment, print_json, print_table, say
from perdure.clock import MICROSECONDS, when

if TYPE_CHECKING:
    from perdure.audit.idle import Waits


def waits(
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.", show_default=False)] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another system's log, in place of a store; may be repeated."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME", help="What its lines call the run, time, ...; may be repeated."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Tell how long runs only wait, by workflow, the longest first; and what had no validity in a wait of over a day.

    The exit code is 1 if some run waited for over a day with results of which nothing says how long they are good for.
    """
    found = _of_logs(log, field or ()) if log else _of_store(store, workflow)
    found = [each for each in found if workflow in {None, each.workflow}]
    if json:
        print_json([_json(each) for each in found])
    else:
        _tell(found)
    return ExitCode.FAILED if any(each.aged for each in found) else ExitCode.OK


def _of_store(store: str | None, workflow: str | None) -> list[Waits]:
    from perdure.audit.idle import of_store

    with existing_store(store) as opened:
        return of_store(opened, now=time.time_ns() // 1_000, workflow=workflow)


def _of_logs(paths: Sequence[Path], fields: Sequence[str]) -> list[Waits]:
    from perdure.audit.foreign_logs import UnreadableLogError, read_log
    from perdure.audit.idle import by_workflow

    for path in paths:
        if not path.is_file():
            raise CommandError(f"--log {path}: there is no such file")
    try:
        log = read_log(paths, _roles(fields))
    except UnreadableLogError as error:
        raise CommandError(str(error)) from None
    if log.skipped:
        complain(f"{counted(log.skipped, 'line')} without a run or a time left out")
    traces = log.traces.items()
    return by_workflow((workflow, kept, run_id, trace.idles()) for (workflow, run_id), (kept, trace) in traces)


def _roles(fields: Sequence[str]) -> dict[str, str]:
    from perdure.audit.foreign_logs import ROLES

    named: dict[str, str] = {}
    for each in fields:
        role, _, name = each.partition("=")
        if role not in ROLES or not name:
            raise CommandError(f"--field {each}: write it as ROLE=NAME, ROLE one of {', '.join(ROLES)}")
        named[role] = name
    return named


# ── how it is told ──────────────────────────────────────────────────────────────────────────

COLUMNS = ("workflow", "runs", "longest wait", "", "of run", "from", "to", "waited for", "state kept in")


def _tell(found: Sequence[Waits]) -> None:
    print_table(COLUMNS, [_row(each) for each in found], empty="no runs")
    for each in found:
        if each.aged:
            say(_finding(each))


def _row(each: Waits) -> Sequence[str]:
    idle = each.longest
    if idle is None:
        return (each.workflow, str(each.runs), "none", "", "", "", "", "", each.kept)
    return (
        each.workflow, str(each.runs), length(idle.length / MICROSECONDS), each.mark, each.run_id,
        moment(when(idle.began)), "now" if idle.is_on else moment(when(idle.ended)), ", ".join(idle.waited_for),
        each.kept,
    )  # fmt: skip


def _finding(each: Waits) -> str:
    steps = ", ".join(f"{name} (in {counted(runs, 'run')})" for name, runs in sorted(each.aged.items()))
    waited = f"{each.workflow}: {counted(each.unfit, 'run')} waited for over a day with results that nobody said the"
    return f"{waited} validity of: {steps}. Such things change in a day"


def _json(each: Waits) -> dict[str, Any]:
    idle = each.longest
    longest: dict[str, Any] | None = None
    if idle is not None:
        longest = {
            "seconds": idle.length / MICROSECONDS, "mark": str(each.mark), "run": each.run_id,
            "from": when(idle.began).isoformat(), "to": when(idle.ended).isoformat(), "is_on": idle.is_on,
            "waited_for": list(idle.waited_for),
        }  # fmt: skip
    return {
        "workflow": each.workflow, "runs": each.runs, "longest": longest, "state_kept_in": each.kept,
        "runs_over_an_hour": each.over_hour, "runs_over_a_day": each.over_day,
        "without_validity": dict(sorted(each.aged.items())),
    }  # fmt: skip

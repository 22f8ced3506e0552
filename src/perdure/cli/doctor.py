"""`perdure code doctor`: the go-live checklist, answered."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.api.settings import store_url
from perdure.cli.exits import ExitCode, complain
from perdure.cli.options import JsonOption, StoreOption, existing_store
from perdure.cli.show import counted, print_json, print_table, safe, say
from perdure.cli.target import workflows_at
from perdure.store import Store

if TYPE_CHECKING:
    from perdure.audit.doctor.checklist import Answered, Report

SHOWN_MAX = 2
"""Pieces of evidence in a cell of the table."""


def doctor(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="app.py, app.py:workflow, or package.module.", show_default=False),
    ],
    all: Annotated[
        bool, typer.Option("--all", help="Print all that was looked at, also where nothing is wrong.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="What could not be checked counts like a failure.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Answer the go-live checklist: what is as it should be, what is not and what to do, what could not be looked at.

    The module is loaded, as `perdure run` does, and its source read; nothing is performed. With a store (if there is
    one) its unfinished runs are replayed on this code, and passes of `perdure code drill` are looked for.
    """
    from perdure.api.application import application_of
    from perdure.audit.doctor import examine

    workflows = workflows_at(targets)
    with _store_if_any(store) as opened:
        report = examine(application_of(workflows, opened))
    if json:
        print_json(_json(report))
    else:
        _print(report, is_all_wanted=all)
    has_failed = bool(report.failed) or (strict and bool(report.unchecked))
    return ExitCode.FAILED if has_failed else ExitCode.OK


@contextlib.contextmanager
def _store_if_any(given: str | None) -> Generator[Store | None]:
    """The store that is named has to be there; the usual one is looked in if it is."""
    url = given or store_url()
    if given is None and ("://" not in url and not Path(url).exists()):
        yield None
        return
    with existing_store(url) as opened:
        yield opened


def _json(report: Report) -> dict[str, Any]:
    return {
        "passed": not report.failed,
        "files": list(report.files),
        "checklist": [
            {
                "number": number, "id": question.id, "question": question.text, "verdict": str(answer.verdict),
                "seen": answer.seen, "not_checked": answer.unchecked,
                "faults": [fault._asdict() for fault in answer.faults],
            }
            for number, question, answer in report.answers
        ],
    }  # fmt: skip


def _print(report: Report, *, is_all_wanted: bool) -> None:
    rows = [(str(each.number), _verdict(each), each.question.text, _evidence(each)) for each in report.answers]
    print_table(("no", "verdict", "question", "evidence"), rows, empty="")
    for each in report.answers:
        number, question, answer = each
        if answer.faults or answer.unchecked or is_all_wanted:
            say(f"{number}. {question.text}: {_verdict(each)}. {question.why}")
        for fault in answer.faults:
            print(f"  {safe(str(fault))}\n    {safe(fault.fix)}")
        for what in answer.unchecked:
            print(f"  not checked: {safe(what)}")
        for what in answer.seen if is_all_wanted else ():
            print(f"  {safe(what)}")
    passed = sum(each.answer.has_passed for each in report.answers)
    failed = counted(len(report.failed), "question")
    complain(f"{passed} of {counted(len(report.answers), 'question')} passed, {failed} failed")


def _verdict(answered: Answered) -> str:
    answer = answered.answer
    shown = answer.verdict.upper() if answer.faults else str(answer.verdict)
    return f"{shown} (in part)" if answer.has_passed and answer.unchecked else shown


def _evidence(answered: Answered) -> str:
    """The first of what there is; what is wrong before what is right."""
    answer = answered.answer
    found = [str(fault) for fault in answer.faults] or answer.seen or answer.unchecked
    more = f"; and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    return "; ".join(found[:SHOWN_MAX]) + more

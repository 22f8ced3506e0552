"""`perdure code drill`: everything that can go wrong, tried on the team's own workflow with its own fakes.

This module alone reaches for `perdure.testing`, and only when the command runs: the drill is a test instrument that
people also want without a test runner. Nothing that executes runs in earnest imports it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.api.settings import store_url
from perdure.api.workflow import AnyWorkflow
from perdure.cli.arguments import call_of, parsed, plain_value
from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import JsonOption, ProvideOption, StoreOption
from perdure.cli.run import ArgOption, ArgsArgument, TargetArgument
from perdure.cli.show import print_json, print_table, safe, say
from perdure.cli.target import function_at, provider, workflow_at
from perdure.codec import codec_for

if TYPE_CHECKING:
    from perdure.testing import DrillReport, PointResult

_CHECK = "--check names one that is given what came of the run"


def drill(
    target: TargetArgument,
    args: ArgsArgument = None,
    arg: ArgOption = None,
    provide: ProvideOption = None,
    send: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A message, sent when the run waits for it; may be repeated."),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="To a question of the run, in their order; may be repeated."),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="app.py:FUNCTION",
            help="Your own look at the fakes when the run has ended; what it raises is a fault.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Try one point alone, by its name as the report has it.", show_default=False)
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Try everything that can go wrong with a workflow, before it goes live: on your fakes, in memory, in no time.

    The run is done again with a crash before and after each write and each outside call, with hung workers, unsure
    look-ups, deliveries that come twice, clocks that jump. --provide is called anew each time. A pass is kept in the
    store.
    """
    from perdure.testing.drilling import drill

    workflow, _ = workflow_at(target)
    call = call_of(workflow, args or (), arg or ())
    messages = [_message(workflow, each) for each in send or ()]
    answers = [plain_value(each, at="--answer") for each in answer or ()]
    looks = None if check is None else function_at(check, "check", _CHECK)
    lists = {"--arg": arg, "--send": send, "--answer": answer}
    again = _again(target, args or (), lists, {"--provide": provide, "--check": check})
    drilling = drill(
        call, provide=provider(provide), messages=messages, answers=answers, check=looks, only=only,
        store=store or store_url(), how_again=again, on_result=_progress(),
    )  # fmt: skip
    report = asyncio.run(drilling)
    if json:
        print_json(report.json())
    else:
        _print(report)
    return ExitCode.OK if report.has_passed else ExitCode.FAILED


def _message(workflow: AnyWorkflow, given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    if not equals or not name:
        raise CommandError(f"--send {given}: write it as NAME=VALUE")
    declared = workflow.spec.receives or {}
    return name, parsed(text, declared.get(name) or codec_for(Any), at=name)


def _again(
    target: str, args: Sequence[str], lists: dict[str, list[str] | None], single: dict[str, str | None]
) -> Callable[[str], str]:
    """The command that tries one point alone."""
    words = ["perdure", "code", "drill", target]
    for option, values in lists.items():
        words += [word for value in values or () for word in (option, value)]
    for option, value in single.items():
        words += [option, value] if value is not None else []
    given = ["--", *args] if any(each.startswith("-") for each in args) else list(args)
    return lambda name: shlex.join([*words, "--only", name, *given])


def _progress() -> Callable[[PointResult], None]:
    """A line on the terminal that says how far it is."""
    done = 0

    def tell(result: PointResult) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r\x1b[K{done}: {result.name[:60]}\r", end="", file=sys.stderr, flush=True)

    return tell


def _print(report: DrillReport) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    rows = [(each.name, "passed" if each.has_passed else "FAILED", each.evidence) for each in report.results]
    print_table(("point", "result", "what happened"), rows, empty="nothing was tried")
    for result in report.failed:
        say(f"FAILED {result.name}")
        lines = [line for problem in result.problems for line in problem.splitlines()]
        for line in (*lines, f"again, alone: {report.how_again(result.name)}"):
            print(f"  {safe(line)}")
    for note in report.notes:
        complain(f"note: {note}")
    kept = "; the pass is kept in the store" if report.was_kept else ""
    complain(f"{report.summary()}{kept}")

"""`perdure code`: what can be said about code before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.check import check, diff
from perdure.cli.doctor import doctor
from perdure.cli.drill import drill
from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import JsonOption
from perdure.cli.policy import policy
from perdure.cli.show import counted, print_json, say

if TYPE_CHECKING:
    from perdure.audit.lint import Finding

app = typer.Typer(no_args_is_help=True, help="Look at code before it runs, and try it before it goes live.")
app.command()(doctor)
app.command()(drill)
app.command()(check)
app.command()(diff)
app.command()(policy)


@app.command()
def lint(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, or folders.", show_default=False)],
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count like errors.")] = False,
    json: JsonOption = False,
) -> ExitCode:
    """Find what a replay cannot repeat, by reading the source. Nothing is imported, nothing is run."""
    from perdure.audit.lint import Severity, lint_path

    for path in paths:
        if not Path(path).exists():
            raise CommandError(f"there is no file or folder {path}")
    findings = [finding for path in paths for finding in lint_path(path)]
    if json:
        print_json([_json(finding) for finding in findings])
    else:
        for finding in findings:
            say(str(finding))
        complain(_count(findings))
    counting = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return ExitCode.FAILED if any(finding.severity in counting for finding in findings) else ExitCode.OK


def _json(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.filename, "line": finding.line, "column": finding.column, "rule": finding.rule,
        "severity": str(finding.severity), "function": finding.function, "message": finding.message, "fix": finding.fix,
    }  # fmt: skip


def _count(findings: Sequence[Finding]) -> str:
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(counted(number, severity) for severity, number in numbers.items()) or "nothing found"

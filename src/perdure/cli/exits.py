"""How a command ends: its exit code, and what went wrong in one line on stderr.

`MEANINGS` is the table that `perdure --help` prints, `CODES` says which error means which.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, cast

import typer
from typer.core import TyperGroup

from perdure.errors import (
    AuthorityUnreadableError,
    DecisionRefused,
    ForkPointError,
    HistoryError,
    MoveRefused,
    OperationError,
    PerdureBug,
    PerdureError,
    RunBlockedError,
    RunCancelledError,
    RunConflictError,
    RunFinishedError,
    StoreError,
    UnknownNameError,
    UserCodeError,
)


class ExitCode(IntEnum):
    """What scripts can go by."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BLOCKED = 3
    STORE = 4
    NOT_FOUND = 5
    CONFLICT = 6
    CANCELLED = 7
    BUG = 70
    TIMED_OUT = 124
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done as asked; of a run: it completed",
    ExitCode.FAILED: "the run failed; of a check: it found something",
    ExitCode.USAGE: "bad input: an option, an argument, a file, or the code in it",
    ExitCode.BLOCKED: "the run is blocked and waits for a person",
    ExitCode.STORE: "the store cannot be used, or is damaged",
    ExitCode.NOT_FOUND: "no such run, workflow, version or message",
    ExitCode.CONFLICT: "the run does not stand as it would have to: it has ended, is not blocked, or is other work",
    ExitCode.CANCELLED: "the run was cancelled",
    ExitCode.BUG: "perdure itself is wrong",
    ExitCode.TIMED_OUT: "it took longer than --timeout; the run goes on",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C; the run goes on when somebody executes it",
    ExitCode.TERMINATED: "stopped by SIGTERM; likewise",
}

CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (UnknownNameError, ExitCode.NOT_FOUND),
    (RunBlockedError, ExitCode.BLOCKED),
    (RunCancelledError, ExitCode.CANCELLED),
    (RunConflictError, ExitCode.CONFLICT),
    (RunFinishedError, ExitCode.CONFLICT),
    (ForkPointError, ExitCode.CONFLICT),
    (MoveRefused, ExitCode.CONFLICT),
    (OperationError, ExitCode.CONFLICT),
    (DecisionRefused, ExitCode.CONFLICT),
    (AuthorityUnreadableError, ExitCode.USAGE),
    (UserCodeError, ExitCode.USAGE),
    (StoreError, ExitCode.STORE),
    (HistoryError, ExitCode.STORE),
    (PerdureBug, ExitCode.BUG),
    (TimeoutError, ExitCode.TIMED_OUT),
)
"""The first that fits; what fits none is a bug of ours."""


class CommandError(Exception):
    """A command cannot do what it was asked. The message says what, where, and the way out."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


class Stopped(Exception):
    """The process was asked to stop, by this signal."""

    def __init__(self, signal: int, hint: str = "") -> None:
        super().__init__("stopped" + (f"; {hint}" if hint else ""))
        self.code = ExitCode(128 + signal)


def complain(message: str) -> None:
    """One line on stderr."""
    print(f"perdure: {' '.join(message.split())}", file=sys.stderr)


# ── errors to codes ─────────────────────────────────────────────────────────────────────────

FRAMEWORKS_ERROR: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)
"""What typer raises for a wrong option or argument."""


def ended_by(error: Exception) -> ExitCode:
    """Say what went wrong, and with which code to end."""
    if isinstance(error, FRAMEWORKS_ERROR):
        return _ended_by_framework(error)
    if isinstance(error, CommandError | Stopped):
        complain(str(error))
        return error.code
    for kind, code in CODES:
        if isinstance(error, kind):
            complain(str(error) or type(error).__name__)
            return code
    if isinstance(error, PerdureError | OSError):
        complain(str(error))
        return ExitCode.USAGE
    complain(f"{type(error).__name__}: {error} (unexpected; the same with --debug shows where, please report it)")
    return ExitCode.BUG


def _ended_by_framework(error: Any) -> ExitCode:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return ExitCode.USAGE
    context = getattr(error, "ctx", None)
    command = "perdure" if context is None else context.command_path
    hint = '; a text or number that begins with "-" goes after "--"' if "such option" in str(error) else ""
    complain(f"{error.format_message().rstrip('.')}; see {command} --help{hint}")
    return ExitCode.USAGE


class Commands(TyperGroup):
    """All commands; whatever one of them raises becomes one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        given, is_debugging = without_debug(given)
        if isinstance(shown := cast(object, sys.stdout), io.TextIOWrapper):
            shown.reconfigure(errors="backslashreplace")  # as stderr has it: a terminal may know fewer characters
        options["standalone_mode"] = False
        run = super().main
        try:
            code = guarded(lambda: run(_texts(given), *more, **options), is_debugging=is_debugging)
        except SystemExit as error:  # so rich says that nobody reads a page of help to its end
            if not isinstance(error.__context__, BrokenPipeError):
                raise
            code = _ended_by_reader()
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            return _ended_by_reader()
        return code


def _texts(args: list[str]) -> list[str]:
    """The words that were typed. CommandError for what is no text."""
    for arg in args:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise CommandError(f"{arg!a} is no UTF-8, so no text: type it in UTF-8, or as JSON in a file") from None
    return args


def without_debug(args: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere before `--`."""
    end = args.index("--") if "--" in args else len(args)
    kept = [arg for arg in args[:end] if arg != "--debug"]
    return kept + args[end:], len(kept) < end


def guarded(command: Callable[[], Any], *, is_debugging: bool) -> int:
    """The exit code of a command, which gives it, or raises."""
    try:
        code = command()
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as error:
        if is_debugging:
            traceback.print_exc()
        return ended_by(error)
    return int(code) if isinstance(code, int) else ExitCode.OK


def _ended_by_reader() -> ExitCode:
    """Who read our output wants no more of it, as `head` does."""
    sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - for what the interpreter still flushes
    return ExitCode.OK

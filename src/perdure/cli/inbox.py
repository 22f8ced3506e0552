"""`perdure inbox`: what waits for a person, and deciding it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

from perdure.api.client import Client
from perdure.api.inbox import InboxEntry
from perdure.cli.arguments import plain_value
from perdure.cli.exits import CommandError, ExitCode
from perdure.cli.options import JsonOption, RunArgument, StoreOption, existing_store
from perdure.cli.show import moment, paragraph, print_json, say, tell
from perdure.store import Store

Choice = Literal["retry", "value", "fail"]

app = typer.Typer(no_args_is_help=True, help="What waits for a person.")


@app.command("list")
def list_entries(store: StoreOption = None, json: JsonOption = False) -> ExitCode:
    """List what waits for a person, oldest first, with what can be decided and what that will do."""
    with existing_store(store) as opened:
        entries = asyncio.run(_entries(opened))
    if json:
        print_json([_json(entry) for entry in entries])
    else:
        print_entries(entries)
        if entries:
            print("decide with: perdure inbox unblock RUN, and one of the choices")
        else:
            print("nothing waits for a person", file=sys.stderr)
    return ExitCode.OK


async def _entries(store: Store) -> list[InboxEntry]:
    async with Client(store) as client:
        return await client.inbox()


def print_entries(entries: Iterable[InboxEntry]) -> None:
    """Each entry with what happened, and what every choice will do."""
    for entry in entries:
        where = f" in {entry.call}" if entry.call else ""
        say(f"{entry.run_id}: {entry.reason}{where}, since {moment(entry.since)} UTC")
        print(paragraph(entry.hint.removeprefix(f"{entry.call}: "), "    "))
        for choice, what in entry.choices.items():
            option = "--value JSON" if choice == "value" else f"--{choice}"
            print(paragraph(what, " " * 18, f"    {option:<14}"))
        for what in entry.pending:
            print(paragraph(f"decided, and not read by a worker yet: {what}", "    "))
        print()


def _json(entry: InboxEntry) -> dict[str, Any]:
    return {
        "run": entry.run_id, "workflow": entry.workflow, "version": entry.version, "reason": entry.reason,
        "since": entry.since.isoformat(), "hint": entry.hint, "call": entry.call, "choices": dict(entry.choices),
        "pending": list(entry.pending),
    }  # fmt: skip


@app.command()
def unblock(
    run: RunArgument,
    retry: Annotated[bool, typer.Option("--retry", help="Try again.")] = False,
    value: Annotated[
        str | None,
        typer.Option("--value", help="This stands for the call's result: JSON, @file.json, or -.", show_default=False),
    ] = None,
    fail: Annotated[bool, typer.Option("--fail", help="Let the call, or the run, fail.")] = False,
    call: Annotated[
        str | None, typer.Option("--call", help="Which call, as the list names it; default: the oldest.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who decides; it stands in the history.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Decide for a run that is blocked: exactly one of --retry, --value and --fail."""
    choice = _one_choice(retry=retry, value=value is not None, fail=fail)
    given = None if value is None else plain_value(value, at="--value")
    with existing_store(store) as opened:
        entry = asyncio.run(_decide(opened, run, choice, given, call, by, reason))
    what = f"told run {run}{f', {entry.call}' if entry.call else ''}: {choice}; {entry.choices[choice]}"
    tell(what, {"run": run, "call": entry.call, "choice": choice}, as_json=json)
    return ExitCode.OK


def _one_choice(*, retry: bool, value: bool, fail: bool) -> Choice:
    given: list[tuple[Choice, bool]] = [("retry", retry), ("value", value), ("fail", fail)]
    chosen: list[Choice] = [choice for choice, is_chosen in given if is_chosen]
    if len(chosen) != 1:
        raise CommandError(
            "decide one thing: --retry, --value VALUE or --fail; `perdure inbox list` says what each does"
        )
    return chosen[0]


async def _decide(
    store: Store, run_id: str, choice: Choice, value: Any, call: str | None, by: str, reason: str
) -> InboxEntry:
    """The entry that was decided."""
    async with Client(store) as client:
        run = await client.get(run_id)
        entry = _entry_of(run_id, await client.inbox(), call, str(await run.status()))
        if choice not in entry.choices:
            offered = ", ".join(f"--{each} ({what})" for each, what in entry.choices.items()) or entry.hint
            raise CommandError(
                f"--{choice} cannot help run {run_id}, which is {entry.reason}: {offered}", ExitCode.CONFLICT
            )
        await run.unblock(choice, value=value, call=entry.call, by=by, reason=reason)
        return entry


def _entry_of(run_id: str, entries: Sequence[InboxEntry], call: str | None, status: str) -> InboxEntry:
    """The entry that is decided."""
    of_run = [entry for entry in entries if entry.run_id == run_id]
    if not of_run:
        raise CommandError(f"run {run_id} is {status}: nothing in it waits for a person", ExitCode.CONFLICT)
    for entry in of_run:
        if call in {None, entry.call}:
            return entry
    stuck = ", ".join(entry.call or "the run as a whole" for entry in of_run)
    raise CommandError(f"{call} of run {run_id} does not wait for a person; what does: {stuck}", ExitCode.CONFLICT)

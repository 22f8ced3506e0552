"""`perdure runs`: what there is, what happened in a run, and what can be told to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from perdure.api.client import Client
from perdure.api.inbox import blocked, pending
from perdure.api.reading import HistoryEvent, RunSummary
from perdure.api.run import Run
from perdure.api.standing import DecisionStanding
from perdure.api.workflow import AnyWorkflow
from perdure.audit.costs import money
from perdure.audit.effects import Phases, phases
from perdure.audit.timeline import Moment, timeline
from perdure.audit.waits import is_held, waits
from perdure.cli.arguments import message_value
from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.inbox import print_entries
from perdure.cli.options import (
    AppOption,
    JsonOption,
    RunArgument,
    StoreOption,
    TagOption,
    existing_store,
    seconds_from,
    tags_from,
)
from perdure.cli.outcome import outcome, waits_line
from perdure.cli.show import counted, instant, length, moment, print_json, print_table, say, short, tell
from perdure.cli.stopping import run_until_stopped
from perdure.cli.target import spec_among, workflows_at
from perdure.clock import when
from perdure.codec import codec_for
from perdure.errors import UnknownNameError
from perdure.store import Store
from perdure.store.protocol import Filter, RunInfo, Status, every_run

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Look at runs, and tell them something.")

ByOption = Annotated[str, typer.Option("--by", help="Who says so; it stands in the history.")]


async def act_on(
    store: Store, run_id: str, action: Callable[[Run[Any]], Awaitable[T]], workflows: Iterable[AnyWorkflow] = ()
) -> T:
    """What an action on the run of that id gives."""
    async with Client(store, workflows=workflows) as client:
        return await action(await client.get(run_id))


# ── looking ─────────────────────────────────────────────────────────────────────────────────


@app.command("list")
def list_runs(
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    status: Annotated[list[Status] | None, typer.Option(help="Only runs that stand so; may be repeated.")] = None,
    tag: TagOption = None,
    since: Annotated[str | None, typer.Option(help="Only runs started in the last 30m, 12h, 7d.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """List runs, newest first."""

    async def find() -> list[RunSummary]:
        async with Client(opened) as client:
            return await client.list(
                workflow=workflow, status=status or None, tags=tags, started_after=began, limit=limit + 1
            )

    tags = tags_from(tag)
    began = None if since is None else datetime.now(UTC) - timedelta(seconds=seconds_from(since, option="--since"))
    with existing_store(store) as opened:
        found = asyncio.run(find())
        lost = dict(opened.lost(""))
        if not found and workflow is not None:
            _tell_near(opened, workflow)
    if len(found) > limit:
        found = found[:limit]
        complain(f"only the newest {limit} are listed; more with a greater --limit")
    if json:
        print_json([summary_json(summary) for summary in found])
    else:
        columns: Sequence[str] = ("run", "workflow", "status", "started", "changed", "tags")
        rows = [_row_of(summary, lost) for summary in found]
        if any(summary.forked_from for summary in found):
            columns = (*columns, "forked from")
            rows = [(*row, _forked_from(summary)) for row, summary in zip(rows, found, strict=True)]
        print_table(columns, rows, empty="no runs")
    return ExitCode.OK


def _tell_near(store: Store, workflow: str) -> None:
    """Nothing is listed: because of a slip of the pen, perhaps."""
    names = {info.workflow for info in store.runs(Filter(limit=500))}
    if workflow not in names:
        complain(str(UnknownNameError("run of a workflow", workflow, names)))


def _row_of(summary: RunSummary, lost: Collection[str]) -> Sequence[str]:
    tags = " ".join(f"{name}={value}" for name, value in summary.tags.items())
    return (
        summary.id, f"{summary.workflow}/{summary.version}",
        _status(summary, lost), moment(summary.created_at), moment(summary.updated_at), tags,
    )  # fmt: skip


def _forked_from(summary: RunSummary) -> str:
    return "" if summary.forked_from is None else f"{summary.forked_from} after event {summary.forked_at}"


def _status(summary: RunSummary, lost: Collection[str]) -> str:
    if not is_held(summary.status, summary.owner, lost):
        return "running (no live worker)"
    return f"{summary.status} ({summary.reason})" if summary.reason else str(summary.status)


def summary_json(summary: RunSummary) -> dict[str, Any]:
    """A run as a JSON object; times in ISO 8601."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in _fields(summary)}


def _fields(summary: RunSummary) -> Sequence[tuple[str, Any]]:
    return list({**msgspec.structs.asdict(summary), "status": str(summary.status), "tags": dict(summary.tags)}.items())


@app.command()
def show(
    run: RunArgument,
    all: Annotated[
        bool, typer.Option("--all", help="Also starts of which more is told later; with the numbers of events.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Show what happened in a run, and what it waits for."""
    with existing_store(store) as opened:
        summary, history = asyncio.run(_look(opened, run, with_history=json))
        info = opened.find(run)
        if info is None:
            raise UnknownNameError("run", run)
        if json:
            waiting = [
                {"call": w.call, "what": w.what, "until": w.until and when(w.until).isoformat()}
                for w in waits(opened, info)
            ]
            print_json(
                {
                    "run": summary_json(summary), "waits": waiting, "pending": list(pending(opened.mail([info.rid]))),
                    "effects": [_phases_json(each) for each in phases(opened, info.rid)],
                    "events": [event_json(event) for event in history],
                }
            )  # fmt: skip
        else:
            say(f"run {run}: {summary.workflow} version {summary.version}, {_status(summary, dict(opened.lost('')))}")
            if summary.forked_from is not None:
                say(f"forked from run {_forked_from(summary)}")
            _print_timeline(timeline(opened, info.rid), all_moments=all, hint=info.hint or "")
            _print_phases(phases(opened, info.rid))
            _print_waits(opened, info)
    return ExitCode.OK


PHASES = ("prepare", "execute", "commit", "checkpoint")


def _print_phases(found: Sequence[Phases]) -> None:
    """When each effect went through its phases, UTC."""
    if found:
        print()
        columns = ("effect", "operation", "state", *PHASES, "attempts", "reference")
        print_table(columns, [_row_of_phases(each) for each in found], empty="")


def _row_of_phases(each: Phases) -> Sequence[str]:
    times = [instant(when(at)) if at else "" for at in _times(each)]
    return (each.call, each.operation, each.state, *times, str(each.attempts or ""), each.reference or "")


def _times(each: Phases) -> Sequence[int]:
    return (each.prepared_at, each.executed_at, each.committed_at, each.checkpoint_at)


def _phases_json(each: Phases) -> dict[str, Any]:
    times = {name: when(at).isoformat() if at else None for name, at in zip(PHASES, _times(each), strict=True)}
    return {
        "call": each.call, "operation": each.operation, "status": each.state, **times, "attempts": each.attempts,
        "reference": each.reference,
    }  # fmt: skip


def _print_waits(store: Store, info: RunInfo) -> None:
    """What the run waits for; if it is a person, with what can be decided."""
    if info.status is Status.BLOCKED:
        print()
        print_entries(blocked(store, info))
        return
    for what in pending(store.mail([info.rid])):
        say(f"sent, and not read by a worker yet: {what}")
    waiting_for = waits_line(store, info.run_id)
    if waiting_for:
        say(f"waits for {waiting_for}")


async def _look(store: Store, run_id: str, *, with_history: bool) -> tuple[RunSummary, list[HistoryEvent]]:
    async with Client(store) as client:
        run = await client.get(run_id)
        return await run.summary(), await run.history() if with_history else []


def _print_timeline(moments: Sequence[Moment], *, all_moments: bool, hint: str) -> None:
    """`hint`: what is told below the table, and so not in it."""
    shown = [each for each in moments if all_moments or not each.is_answered]
    first = moments[0].at
    columns: Sequence[str] = ("time", "offset", "call", "what", "attempt", "took", "value")
    rows = [_row_of_moment(each, first, hint) for each in shown]
    if all_moments:
        columns, rows = ("event", *columns), [(str(each.seq), *row) for each, row in zip(shown, rows, strict=True)]
    print_table(columns, rows, empty="no events")


def _row_of_moment(each: Moment, first: int, hint: str) -> Sequence[str]:
    took = "" if each.took_seconds is None else length(each.took_seconds)
    return (
        moment(when(each.at)), f"+{length((each.at - first) / 1_000_000)}", each.call,
        f"superseded: {each.what}" if each.is_superseded else each.what,
        str(each.attempt or ""), took, short(each.value) if each.value != hint else "",
    )  # fmt: skip


def event_json(event: HistoryEvent) -> dict[str, Any]:
    """An event as a JSON object: the fields of its envelope, digests in hex, with its payloads beside them."""
    shown: dict[str, Any] = {"seq": event.seq, "at": event.at.isoformat(), "kind": event.kind}
    for name in type(event.event).__struct_fields__:
        value = getattr(event.event, name)
        shown[f"{name}_digest" if name in {"input", "output"} else name] = (
            value.hex() if isinstance(value, bytes) else value
        )
    return {**shown, "input": event.input, "output": event.output, "hash": event.hash}


@app.command()
def wait(
    run: RunArgument,
    timeout: Annotated[str | None, typer.Option(help="How long at most: 30s, 10m, 12h.", show_default=False)] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Wait for a run's end, and print its result. Other workers execute it; the exit code says how it ended."""

    async def wait_for() -> ExitCode:
        async with Client(opened) as client:
            return await outcome(await client.get(run), opened, codec_for(Any), as_json=json, timeout=seconds)

    seconds = None if timeout is None else seconds_from(timeout, option="--timeout")
    with existing_store(store) as opened:
        return run_until_stopped(wait_for, hint="the run is not touched by that")


# ── telling ─────────────────────────────────────────────────────────────────────────────────


@app.command()
def send(
    run: RunArgument,
    name: Annotated[str, typer.Argument(help="The message's name.", show_default=False)],
    value: Annotated[
        str, typer.Argument(help="JSON, plain text, @file.json, or - for stdin.", show_default=False)
    ] = "null",
    by: ByOption = "",
    app: AppOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Send a message to a run; it is kept until the run receives it."""

    async def tell_it(handle: Run[Any]) -> None:
        summary = await handle.summary()
        spec = spec_among(known, summary.workflow, summary.version)
        await handle.send(name, message_value(value, spec, name, at="VALUE"), by=by)

    known = [] if app is None else workflows_at([app])
    with existing_store(store) as opened:
        asyncio.run(act_on(opened, run, tell_it, known))
        others = _other_messages(opened, run, name)
    tell(f"sent {name} to run {run}", {"run": run, "sent": name}, as_json=json)
    if others:
        complain(f"run {run} does not wait for {name!r} now, but for {others}")
    return ExitCode.OK


def _other_messages(store: Store, run_id: str, name: str) -> str:
    """The messages that the run waits for, if this one is not among them."""
    info = store.find(run_id)
    names = [] if info is None else [wait.message for wait in waits(store, info) if wait.message]
    return "" if name in names else ", ".join(map(repr, names))


@app.command()
def cancel(
    run: RunArgument,
    force: Annotated[bool, typer.Option("--force", help="End it without running any more of its code.")] = False,
    reason: Annotated[str, typer.Option(help="Why; the workflow's CancelledError says it.")] = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Ask a run to stop. It may clean up; see how it went with `perdure runs wait`."""
    with existing_store(store) as opened:
        how = asyncio.run(act_on(opened, run, lambda handle: handle.cancel(reason, force=force)))
    sentence = f"asked run {run} to stop" if how == "requested" else f"run {run} had {_ended(how)} before"
    if force and how == "cancelled":
        sentence = f"run {run} is cancelled"
    tell(sentence, {"run": run, "cancel": how}, as_json=json)
    return ExitCode.OK if how in {"requested", "cancelled"} else ExitCode.CONFLICT


def _ended(how: str) -> str:
    return "been cancelled" if how == "cancelled" else how


@app.command()
def stands(
    run: RunArgument, app: AppOption = None, store: StoreOption = None, json: JsonOption = False
) -> ExitCode:
    """Say of each recorded decision whether it would stand today, and what making it again would mean.

    What the decisions rest on is read by the program's own code (--app); nothing is changed or recorded.
    """
    if app is None:
        raise CommandError("what a decision rests on is read by the program's own code: --app app.py:workflow")
    with existing_store(store) as opened:
        found = asyncio.run(act_on(opened, run, lambda handle: handle.stands(), workflows_at([app])))
    if json:
        print_json([msgspec.to_builtins(each) for each in found])
        return ExitCode.OK
    rows = [_row_of_decision(each) for each in found]
    columns = ("decision", "stands", "why", "if not", "made again", "saved so far", "after it")
    print_table(columns, rows, empty="no recorded result of this run rests on anything")
    return ExitCode.OK


def _row_of_decision(each: DecisionStanding) -> Sequence[str]:
    cost = [length(each.took_seconds)]
    cost += [f"{each.tokens:,} tokens"] if each.tokens else []
    cost += [f"a cost of {money(each.cost)}"] if each.cost else []
    after = [f"{counted(each.reused, 'result')} had again"] if each.reused else []
    after += [f"relied on by {', '.join(each.relied_on_by)}"] if each.relied_on_by else []
    after += [f"owed: {', '.join(each.owed)}"] if each.owed else []
    stands = "cannot be told" if each.stands is None else "yes" if each.stands else "no"
    saved = f"{each.came_back} times that" if each.came_back else ""
    return each.call, stands, each.why, each.on_stale, ", ".join(cost), saved, "; ".join(after)


@app.command()
def fork(
    run: RunArgument,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", min=0,
            help="The number of an event, as `runs show --all` has it; default: the last one where it can be.",
            show_default=False,
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The fork's own id; default: a new one.", show_default=False)
    ] = None,
    by: ByOption = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the history.")] = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Make a new run that begins with this one's first events, and goes on by itself from there. Workers execute it.

    What this run has done outside is not done again by the fork before a person confirmed it: `perdure inbox list`.
    """

    async def make(handle: Run[Any]) -> RunSummary:
        forked = await handle.fork("last" if at is None else at, id=id, by=by, reason=reason)
        return await forked.summary()

    with existing_store(store) as opened:
        made = asyncio.run(act_on(opened, run, make))
    said = {"run": made.id, "forked_from": made.forked_from, "forked_at": made.forked_at}
    tell(f"run {made.id} is forked from run {_forked_from(made)}", said, as_json=json)
    return ExitCode.OK


@app.command()
def pause(run: RunArgument, by: ByOption = "", store: StoreOption = None, json: JsonOption = False) -> ExitCode:
    """Let a run start nothing new until it is resumed."""
    with existing_store(store) as opened:
        asyncio.run(act_on(opened, run, lambda handle: handle.pause(by)))
    tell(f"asked run {run} to pause", {"run": run, "asked": "pause"}, as_json=json)
    return ExitCode.OK


@app.command()
def move(
    run: RunArgument,
    to: Annotated[int, typer.Option("--to", help="The version that it is to go on under.", show_default=False)],
    app: Annotated[str, typer.Option("--app", metavar="app.py", help="Where that version is.", show_default=False)],
    by: ByOption = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Have a run go on under another version of its workflow, if its history replays there. Performs nothing."""
    with existing_store(store) as opened:
        before = asyncio.run(act_on(opened, run, lambda handle: handle.move(to, by=by), workflows_at([app])))
    sentence = f"run {run} goes on under version {to}; it was of version {before}"
    tell(sentence, {"run": run, "version": to, "before": before}, as_json=json)
    return ExitCode.OK


@app.command()
def resume(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's id.", show_default=False)] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Every run that is paused.")] = False,
    by: ByOption = "",
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Let a paused run go on, or all of them."""
    if (run is None) != all_runs:
        raise CommandError("name a run, or say --all: one of both")
    with existing_store(store) as opened:
        runs = [run] if run is not None else paused_runs(opened)
        for each in runs:
            asyncio.run(act_on(opened, each, lambda handle: handle.resume(by)))
    if run is not None:
        tell(f"asked run {run} to go on", {"run": run, "asked": "resume"}, as_json=json)
    else:
        tell(f"asked {counted(len(runs), 'run')} to go on", {"runs": runs, "asked": "resume"}, as_json=json)
    return ExitCode.OK


def paused_runs(store: Store) -> list[str]:
    """The ids of all runs that are paused, the oldest first."""
    waiting = every_run(store, Filter(status=frozenset({Status.WAITING}), limit=1_000))
    return [info.run_id for info in waiting if info.reason == "paused"][::-1]

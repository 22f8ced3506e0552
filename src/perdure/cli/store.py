"""`perdure store`: care for the store itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perdure.api.client import Client
from perdure.api.operations import EffectState, OperationSummary
from perdure.audit.costs import costs, money
from perdure.audit.verify import verify as verify_store
from perdure.cli.exits import ExitCode
from perdure.cli.inbox import operation_json
from perdure.cli.options import JsonOption, StoreOption, existing_store, seconds_from
from perdure.cli.show import counted, moment, print_json, print_table, say, short
from perdure.cli.waits import waits
from perdure.clock import when
from perdure.errors import UnknownNameError
from perdure.store.protocol import Filter, Post


class PostStatus(StrEnum):
    """How a message of the outbox stands."""

    WAITING = "waiting"
    SENT = "sent"
    DEAD = "dead"


class CostBy(StrEnum):
    """What costs are added up by."""

    RUN = "run"
    STEP = "step"
    MODEL = "model"


app = typer.Typer(no_args_is_help=True, help="Care for the store.")

MICROSECONDS = 1_000_000
RUNS_AT_ONCE = 1_000


@app.command()
def stats(store: StoreOption = None, json: JsonOption = False) -> ExitCode:
    """Count what is in the store."""
    with existing_store(store) as opened:
        counts = {"url": opened.url, **opened.stats()}
    if json:
        print_json(counts)
    else:
        print_table(("what", "count"), [(name, str(count)) for name, count in counts.items()], empty="")
    return ExitCode.OK


@app.command()
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="How long ago they ended: 12h, 30d, 0 for all.", show_default=False)
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most.", show_default=False)] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Delete runs that ended long enough ago, each whole. The heads of their hash chains stay."""
    ago = round(seconds_from(older_than, option="--older-than") * MICROSECONDS)
    ended_before = max(0, time.time_ns() // 1_000 - ago)
    tell = _progress("pruned")
    pruned = 0
    with existing_store(store) as opened:
        while limit is None or pruned < limit:
            at_once = RUNS_AT_ONCE if limit is None else min(RUNS_AT_ONCE, limit - pruned)
            some = opened.prune(ended_before=ended_before, limit=at_once)
            pruned += some
            if some < at_once:
                break
            tell(pruned)
    if json:
        print_json({"pruned": pruned})
    else:
        say(f"pruned {counted(pruned, 'run')}")
    return ExitCode.OK


@app.command()
def backup(
    target: Annotated[str, typer.Argument(help="The file to write; there must be none yet.", show_default=False)],
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Copy the store to a file while it is in use; the copy is consistent."""
    tell = _progress("copied, in percent:")
    with existing_store(store) as opened:
        opened.backup(target, lambda done, total: tell(100 * done // max(total, 1)))
        url = opened.url
    if json:
        print_json({"from": url, "to": target})
    else:
        say(f"copied {url} to {target}")
    return ExitCode.OK


@app.command()
def effects(
    run: Annotated[str | None, typer.Option(help="Only those of this run.", show_default=False)] = None,
    action: Annotated[str | None, typer.Option(help="Only this effect, by its name.", show_default=False)] = None,
    key: Annotated[str | None, typer.Option(help="Only this business key.", show_default=False)] = None,
    status: Annotated[
        list[EffectState] | None, typer.Option(help="Only those that stand so; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """List the ledger: every effect, what became of it, and what the other side calls it. The newest first."""

    async def find() -> list[OperationSummary]:
        async with Client(opened) as client:
            return await client.effects(run=run, action=action, key=key, status=status or None, limit=limit)

    with existing_store(store) as opened:
        found = asyncio.run(find())
    if json:
        print_json([operation_json(each) for each in found])
    else:
        columns = ("operation", "state", "effect", "key", "run", "call", "attempts", "changed", "reference", "known")
        print_table(columns, [_row_of(each) for each in found], empty="no effects")
    return ExitCode.OK


def _row_of(each: OperationSummary) -> Sequence[str]:
    revision = f" (revision {each.revision})" if each.revision else ""
    return (
        each.id, each.status, each.action + revision, each.key, each.run_id, each.call, str(each.attempts),
        moment(each.updated_at), " ".join([each.reference or "", *each.references]).strip(), short(each.note),
    )  # fmt: skip


@app.command()
def outbox(
    topic: Annotated[str | None, typer.Option(help="Only messages of this topic.", show_default=False)] = None,
    status: Annotated[PostStatus | None, typer.Option(help="Only those that stand so.", show_default=False)] = None,
    revive: Annotated[
        str | None, typer.Option(metavar="ID", help="Have a dead message tried again.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """List the messages of the outbox, oldest first; or have a dead one tried again."""
    with existing_store(store) as opened:
        if revive is not None and not opened.revive_post(revive, now=time.time_ns() // 1_000):
            raise UnknownNameError("dead message", revive, [post.post_id for post in opened.posts(status="dead")])
        posts = opened.posts(topic=topic, status=None if status is None else str(status), limit=limit)
    if json:
        print_json([_json_of_post(post) for post in posts])
    elif revive is not None:
        say(f"{revive} is tried again")
    else:
        columns = ("message", "topic", "key", "state", "attempts", "posted", "payload", "last error")
        print_table(columns, [_row_of_post(post) for post in posts], empty="no messages")
    return ExitCode.OK


def _json_of_post(post: Post) -> dict[str, object]:
    """Times in ISO 8601; null where nobody waits for the next attempt."""
    return {
        "id": post.post_id, "topic": post.topic, "key": post.key, "status": post.status, "attempts": post.attempts,
        "posted_at": when(post.created_at).isoformat(),
        "next_at": when(post.next_at).isoformat() if post.next_at else None,
        "payload": msgspec.json.decode(post.payload), "error": post.error,
    }  # fmt: skip


def _row_of_post(post: Post) -> Sequence[str]:
    return (
        post.post_id, post.topic, post.key, post.status, str(post.attempts), moment(when(post.created_at)),
        short(post.payload.decode()), short(post.error),
    )  # fmt: skip


@app.command()
def histories(
    folder: Annotated[str, typer.Argument(help="Where the files are written.", show_default=False)],
    workflow: Annotated[list[str] | None, typer.Option(help="Only runs of this one; may be repeated.")] = None,
    finished: Annotated[int, typer.Option(min=0, help="How many runs that have ended are written besides.")] = 0,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Write the histories of all runs under way into a folder, a file each, for `perdure code check --histories`.

    Arguments and results are in them as they are: whoever may not read the store may not read the files.
    """
    from perdure.api.histories import export

    with existing_store(store) as opened:
        written = [str(path) for path in export(opened, Path(folder), workflows=workflow or (), finished_max=finished)]
    tell = f"wrote {counted(len(written), 'history').replace('historys', 'histories')} to {folder}"
    if json:
        print_json({"folder": folder, "files": written})
    else:
        say(tell)
    return ExitCode.OK


@app.command()
def cost(
    by: Annotated[CostBy, typer.Option(help="What is added up.")] = CostBy.RUN,
    run: Annotated[str | None, typer.Option(help="Only this run.", show_default=False)] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.", show_default=False)] = None,
    since: Annotated[
        str | None, typer.Option(help="Only what was used since then: 12h, 30d.", show_default=False)
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Add up what steps and effects said that they used, by run, step or model; and what was not paid again.

    `saved`: what takeovers and restarts found recorded, and delivered instead of paying it again. It is reckoned from
    histories: of each takeover what the run had used before it, in its chapter. That a run was loaded without one is
    not in a history, and does not count.
    """
    ago = 0.0 if since is None else seconds_from(since, option="--since")
    since_at = 0 if since is None else time.time_ns() // 1_000 - round(ago * MICROSECONDS)
    with existing_store(store) as opened:
        if run is not None and opened.find(run) is None:
            raise UnknownNameError("run", run, [info.run_id for info in opened.runs(Filter(limit=500))])
        found = costs(opened, by=by, run_id=run, workflow=workflow, since=since_at)
    if json:
        print_json([
            {"name": each.name, "calls": each.calls, "attempts": each.attempts, "tokens": each.used.tokens,
             "cost": money(each.used.cost), "saved_calls": each.saved_calls, "saved_tokens": each.saved.tokens,
             "saved_cost": money(each.saved.cost)} for each in found
        ])  # fmt: skip
    else:
        columns = (str(by), "calls", "attempts", "tokens", "cost", "saved calls", "saved tokens", "saved cost")
        rows = [
            (each.name, str(each.calls), str(each.attempts), f"{each.used.tokens:,}", money(each.used.cost),
             str(each.saved_calls), f"{each.saved.tokens:,}", money(each.saved.cost)) for each in found
        ]  # fmt: skip
        print_table(columns, rows, empty="nobody said that anything was used")
    return ExitCode.OK


app.command()(waits)


@app.command()
def verify(store: StoreOption = None, json: JsonOption = False) -> ExitCode:
    """Check that nothing in the store was altered or lost: hash chains, payloads, gaps. Changes nothing."""
    with existing_store(store) as opened:
        report = verify_store(opened, progress=_progress("checked"))
    if json:
        damage = [{"run": each.run_id or None, "event": each.seq, "what": each.what} for each in report.damage]
        print_json({"runs": report.runs, "events": report.events, "pruned": report.pruned, "damage": damage})
    else:
        for each in report.damage:
            say(str(each))
        found = f"{counted(len(report.damage), 'place')} not as written" if report.damage else "all as it was written"
        seen = f"{counted(report.runs, 'run')}, {counted(report.events, 'event')}, {report.pruned} pruned"
        say(f"{seen}: {found}")
    return ExitCode.OK if report.is_sound else ExitCode.FAILED


def _progress(what: str) -> Callable[[int], None]:
    """Tells how far it is on a terminal, now and then, in place."""
    if not sys.stderr.isatty():
        return lambda _: None
    told_at = time.monotonic()

    def tell(done: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at > 0.5:
            told_at = time.monotonic()
            print(f"\rperdure: {what} {done}", end="", file=sys.stderr, flush=True)

    return tell

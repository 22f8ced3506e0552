"""`perdure inbox`: what waits for a person, and deciding it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
import typer

from perdure.api.client import Client
from perdure.api.inbox import SETTLE, InboxEntry, asked_of
from perdure.api.operations import OperationSummary
from perdure.api.requests import RequestSummary
from perdure.api.spending import BudgetSummary
from perdure.api.workflow import AnyWorkflow
from perdure.cli.arguments import fitting_value, plain_value
from perdure.cli.exits import CommandError, ExitCode, complain
from perdure.cli.options import (
    AppOption,
    AuthorityOption,
    JsonOption,
    RunArgument,
    StoreOption,
    existing_store,
    seconds_from,
)
from perdure.cli.show import json_text, moment, paragraph, print_json, say, short, tell
from perdure.cli.target import authority_at, spec_among, workflows_at
from perdure.store import Store
from perdure.store.protocol import Status

T = TypeVar("T")

Choice = Literal["retry", "value", "fail", "reuse", "keep", "recompute"]

app = typer.Typer(no_args_is_help=True, help="What waits for a person.")


@app.command("list")
def list_entries(store: StoreOption = None, json: JsonOption = False) -> ExitCode:
    """List what waits for a person, the riskiest and oldest first, with what can be decided and what that will do."""
    with existing_store(store) as opened:
        entries = asyncio.run(_entries(opened))
    if json:
        print_json([_json(entry) for entry in entries])
    else:
        print_entries(entries)
        if any(entry.reason == "denied" for entry in entries):
            print("of what was denied say that you have seen it: perdure inbox acknowledge RUN --by NAME")
        if any(_is_unblocked(entry) for entry in entries):
            print("decide with: perdure inbox unblock RUN, and one of the choices")
        if any(entry.operation is not None for entry in entries):
            print("of an effect say what became of it: perdure inbox settle RUN, and one of the choices")
        if any(entry.request is not None for entry in entries):
            print("what is asked: perdure inbox approve | reject | answer | delegate ID --hash HASH --by NAME")
        if not entries:
            print("nothing waits for a person", file=sys.stderr)
    return ExitCode.OK


def _is_unblocked(entry: InboxEntry) -> bool:
    """Whether `perdure inbox unblock` is what decides. For some there is nothing to decide: a worker has to come, or
    to go."""
    return bool(entry.choices) and entry.operation is None and entry.request is None and entry.reason != "denied"


async def _entries(store: Store) -> list[InboxEntry]:
    async with Client(store) as client:
        return await client.inbox()


def print_entries(entries: Iterable[InboxEntry]) -> None:
    """Each entry with what happened, and what every choice will do."""
    for entry in entries:
        where = f" in {entry.call}" if entry.call else ""
        say(f"{entry.run_id}: {entry.reason}{where}, since {moment(entry.since)} UTC")
        print(paragraph(entry.hint.removeprefix(f"{entry.call}: "), "    "))
        for name, what in _known(entry):
            print(paragraph(what, " " * 18, f"    {name:<14}"))
        for choice, what in entry.choices.items():
            is_command = entry.request is not None or entry.reason == "denied"
            option = choice if is_command else _OPTIONS.get(choice, f"--{choice}")
            print(paragraph(what, " " * 18, f"    {option:<14}"))
        for what in entry.pending:
            print(paragraph(f"decided, and not read by a worker yet: {what}", "    "))
        print()


_OPTIONS = {"value": "--value JSON", "raise_budget": "raise-budget"}


def _known(entry: InboxEntry) -> Iterator[tuple[str, str]]:
    """What is asked, or was sent, when and to whom, and what is known of it."""
    if entry.request is not None:
        yield from _asked(entry.request)
    if entry.budget is not None and entry.budget.account:
        since = f", in the period since {moment(entry.budget.since)} UTC" if entry.budget.since else ""
        yield "budget", entry.budget.account + since
    it = entry.operation
    if it is None:
        if entry.sent is not None:
            yield "arguments", short(json_text(entry.sent))
        if entry.risk and entry.request is None:
            yield "risk", entry.risk
        return
    yield "operation", it.id
    yield "effect", f"{it.action}, key {it.key!r} ({it.downstream.replace('_', ' ')}, risk {it.risk})"
    if entry.sent is not None:
        yield "sent", short(json_text(entry.sent))
    if it.started_at is not None:
        yield "when", f"{moment(it.started_at)} UTC, attempt {it.attempts}"
    if it.request_id:
        yield "request id", it.request_id
    if it.reference:
        yield "reference", " ".join([it.reference, *it.references])
    for at, answer in entry.looks:
        yield "looked up", f"{moment(at)} UTC: {answer}"


def _asked(it: RequestSummary) -> Iterator[tuple[str, str]]:
    yield "id", it.id
    yield "hash", it.hash
    if it.kind == "approval":
        yield "call", it.subject + (f", key {it.key!r}" if it.key else "")
        yield "arguments", short(json_text(it.arguments))
        if it.risk:
            yield "risk", it.risk
    else:
        yield "about", short(json_text(it.arguments))
        yield "answer", it.type + (f", one of {', '.join(map(json_text, it.answers))}" if it.answers else "")
    if it.goal or it.scope:
        scope = ", ".join(f"{name} {value}" for name, value in it.scope.items())
        yield "its run", f"{it.goal}{' ' if it.goal and scope else ''}{f'(scope: {scope})' if scope else ''}"
    if it.policy:
        yield "wanted by", it.policy
    for name, value in it.facts.items():
        yield "rests on", f"{name}: {short(json_text(value))}"
    yield "decided by", (", ".join(it.approvers) or "anybody") + (f"; {it.quorum} persons" if it.quorum > 1 else "")
    for said in it.said:
        to, why = f" to {said.to}" if said.to else "", f": {said.comment}" if said.comment else ""
        yield "said", f"{moment(said.at)} UTC: {said.choice}{to} by {said.by}{why}"
    if it.escalates_at is not None:
        yield "escalates", f"{moment(it.escalates_at)} UTC, then also to {', '.join(it.escalate_to)}"
    if it.expires_at is not None:
        yield "expires", f"{moment(it.expires_at)} UTC"


def _json(entry: InboxEntry) -> dict[str, Any]:
    return {
        "id": entry.id, "risk": entry.risk, "run": entry.run_id, "workflow": entry.workflow, "version": entry.version,
        "reason": entry.reason,
        "since": entry.since.isoformat(), "hint": entry.hint, "call": entry.call, "choices": dict(entry.choices),
        "pending": list(entry.pending), "operation": entry.operation and operation_json(entry.operation),
        "sent": entry.sent, "looks": [{"at": at.isoformat(), "answer": answer} for at, answer in entry.looks],
        "request": entry.request and request_json(entry.request),
        "budget": entry.budget and _budget_json(entry.budget),
    }  # fmt: skip


def _budget_json(budget: BudgetSummary) -> dict[str, Any]:
    found = {name: str(it) if isinstance(it, Decimal) else it for name, it in msgspec.structs.asdict(budget).items()}
    return cast("dict[str, Any]", _with_times(found))


def operation_json(operation: OperationSummary) -> dict[str, Any]:
    """An effect as a JSON object; times in ISO 8601."""
    found = msgspec.structs.asdict(operation)
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in found.items()}


def request_json(request: RequestSummary) -> dict[str, Any]:
    """A request as a JSON object; times in ISO 8601."""
    said = [msgspec.structs.asdict(each) for each in request.said]
    return cast("dict[str, Any]", _with_times({**msgspec.structs.asdict(request), "said": said}))


def _with_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_times(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_with_times(each) for each in cast("list[Any]", value)]
    return value.isoformat() if isinstance(value, datetime) else value


@app.command()
def unblock(
    run: RunArgument,
    retry: Annotated[bool, typer.Option("--retry", help="Try again.")] = False,
    value: Annotated[
        str | None,
        typer.Option("--value", help="This stands for the call's result: JSON, @file.json, or -.", show_default=False),
    ] = None,
    fail: Annotated[bool, typer.Option("--fail", help="Let the call, or the run, fail.")] = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Of a fork: take the result of the run that it was forked from.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Of a decision that does not stand any more: let it stand.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Of a decision that you are to confirm: have it made again.")
    ] = False,
    call: Annotated[
        str | None, typer.Option("--call", help="Which call, as the list names it; default: the oldest.")
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who decides; it stands in the history.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    app: AppOption = None,
    authority: AuthorityOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Decide for a run that is blocked: exactly one of --retry, --value, --fail, --reuse, --keep and --recompute."""
    choice = _one_choice(
        retry=retry, value=value is not None, fail=fail, reuse=reuse, keep=keep, recompute=recompute
    )
    known = [] if app is None else workflows_at([app])

    async def decide(client: Client) -> InboxEntry:
        return await _decide(client, known, run, choice, value, call, by, reason)

    entry = _judged(store, authority, decide, by=by)
    what = f"told run {run}{f', {entry.call}' if entry.call else ''}: {choice}; {entry.choices[choice]}"
    tell(what, {"run": run, "call": entry.call, "choice": choice}, as_json=json)
    return ExitCode.OK


def _one_choice(**given: bool) -> Choice:
    chosen = [choice for choice, is_chosen in given.items() if is_chosen]
    if len(chosen) != 1:
        raise CommandError(
            "decide one thing: --retry, --value VALUE, --fail, --reuse, --keep or --recompute; `perdure inbox list` "
            "says what each does"
        )
    return cast("Choice", chosen[0])


async def _decide(
    client: Client, known: Iterable[AnyWorkflow], run_id: str, choice: Choice, value: str | None, call: str | None,
    by: str, reason: str,
) -> InboxEntry:  # fmt: skip
    """The entry that was decided."""
    run = await client.get(run_id)
    entries = [entry for entry in await client.inbox() if entry.request is None]
    entry = _entry_of(run_id, entries, call, await run.status())
    if entry.operation is not None:
        raise CommandError(
            f"{entry.call} of run {run_id} is an effect that may have happened: find out, then decide with perdure "
            f"inbox settle {run_id} and {', '.join(f'--{each}' for each in entry.choices)}",
            ExitCode.CONFLICT,
        )
    if choice not in entry.choices:
        offered = ", ".join(f"--{each} ({what})" for each, what in entry.choices.items()) or entry.hint
        raise CommandError(
            f"--{choice} cannot help run {run_id}, which is {entry.reason}: {offered}", ExitCode.CONFLICT
        )
    spec = spec_among(known, entry.workflow, entry.version)
    codec = asked_of(spec, entry.call) if spec is not None and entry.call else None
    given = None if value is None else fitting_value(value, codec, at="--value")
    await run.unblock(choice, value=given, call=entry.call, by=by, reason=reason)
    return entry


def _entry_of(run_id: str, entries: Sequence[InboxEntry], call: str | None, status: Status) -> InboxEntry:
    """The entry that is decided."""
    of_run = [entry for entry in entries if entry.run_id == run_id]
    if not of_run:
        told = status.ended if status.is_final else f"is {status}"
        raise CommandError(f"run {run_id} {told}: nothing in it waits for a person", ExitCode.CONFLICT)
    for entry in of_run:
        if call in {None, entry.call}:
            return entry
    stuck = ", ".join(entry.call or "the run as a whole" for entry in of_run)
    raise CommandError(f"{call} of run {run_id} does not wait for a person; what does: {stuck}", ExitCode.CONFLICT)


# ── budgets ─────────────────────────────────────────────────────────────────────────────────


@app.command("raise-budget")
def raise_budget(
    run: RunArgument,
    tokens: Annotated[int | None, typer.Option(help="The new limit.", show_default=False)] = None,
    cost: Annotated[str | None, typer.Option(help="The new limit, as in 2.50.", show_default=False)] = None,
    effects: Annotated[int | None, typer.Option(help="The new limit.", show_default=False)] = None,
    steps: Annotated[int | None, typer.Option(help="The new limit.", show_default=False)] = None,
    wall: Annotated[
        str | None, typer.Option(help="The new limit, since the run was started: 90m, 2h, 3d.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Which budget, as the list names it; default: what the oldest stuck call wants more of.",
                     show_default=False),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who decides; it stands in the history.", show_default=False)] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    authority: AuthorityOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Set new, higher limits of what a run may spend. What was stuck for that goes on by itself."""
    if not by.strip():
        raise CommandError("say who decides: --by NAME")
    given = {"tokens": tokens, "cost": cost, "effects": effects, "steps": steps, "wall": wall}
    seconds = None if wall is None else seconds_from(wall, option="--wall")

    async def decide(client: Client) -> None:
        await client.raise_budget(
            run, tokens=tokens, cost=cost, effects=effects, steps=steps, wall=seconds, by=by, reason=reason,
            budget=budget,
        )  # fmt: skip

    _judged(store, authority, decide, by=by)
    limits = {unit: limit for unit, limit in given.items() if limit is not None}
    shown = ", ".join(f"{unit} {limit}" for unit, limit in limits.items())
    tell(f"told run {run}: budget raised to {shown}, by {by}", {"run": run, "limits": limits, "by": by}, as_json=json)
    return ExitCode.OK


def _judged(
    url: str | None, authority: str | None, decide: Callable[[Client], Awaitable[T]], *, by: str,
    workflows: Iterable[AnyWorkflow] = (),
) -> T:  # fmt: skip
    """Decide by a client that knows who may. Where nobody could judge it here, a decision that was sent need not count,
    which is said."""

    async def decided() -> T:
        async with Client(opened, workflows=workflows, authority=judges) as client:
            return await decide(client)

    with existing_store(url) as opened:
        judges = authority_at(authority)
        found = asyncio.run(decided())
    if judges is None:
        who = by or "whoever says so"
        complain(f"whether {who} may decide that is judged by the worker of the run; to know it here: --authority")
    return found


# ── effects ─────────────────────────────────────────────────────────────────────────────────

Outcome = Literal["succeeded", "failed", "retry"]


@app.command()
def settle(
    run: RunArgument,
    succeeded: Annotated[bool, typer.Option("--succeeded", help="It happened.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="It did not happen, and shall not.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="It did not happen: send it again.")] = False,
    value: Annotated[
        str | None,
        typer.Option("--value", help="Its result, if it happened: JSON, @file.json, or -.", show_default=False),
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="What the other side calls it.", show_default=False)
    ] = None,
    operation: Annotated[
        str | None, typer.Option("--operation", help="Which effect, by its id.", show_default=False)
    ] = None,
    call: Annotated[
        str | None, typer.Option("--call", help="Which effect, as the list names its call.", show_default=False)
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who says so; it stands in the history.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="How it was found out.")] = "",
    app: AppOption = None,
    authority: AuthorityOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Say what became of an effect in doubt: exactly one of --succeeded, --failed and --retry. The run goes on.

    Find out first: `perdure inbox list` shows what was sent, when, and under which key.
    """
    outcome = _one_outcome(succeeded=succeeded, failed=failed, retry=retry)
    given = None if value is None else plain_value(value, at="--value")
    known = [] if app is None else workflows_at([app])

    async def decide(client: Client) -> None:
        await client.settle(
            run, outcome, value=given, reference=reference, operation=operation, call=call, by=by, reason=reason
        )

    _judged(store, authority, decide, by=by, workflows=known)
    told = {"run": run, "operation": operation, "call": call, "outcome": outcome}
    tell(f"told run {run}: {outcome}; {SETTLE[outcome]}", told, as_json=json)
    return ExitCode.OK


def _one_outcome(**given: bool) -> Outcome:
    chosen = [name for name, is_chosen in given.items() if is_chosen]
    if len(chosen) != 1:
        raise CommandError("say one thing: --succeeded (with --value, its result), --failed or --retry")
    return cast(Outcome, chosen[0])


# ── what people are asked ───────────────────────────────────────────────────────────────────

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The request's id, as the list shows it.", show_default=False)
]
HashOption = Annotated[
    str,
    typer.Option("--hash", help="The hash of what you saw, or its first digits, at least 8.", show_default=False),
]
ByOption = Annotated[str, typer.Option("--by", help="Who decides; it stands in the history.", show_default=False)]
RoleOption = Annotated[str, typer.Option("--as", help="The role that you act in, where a role may decide.")]
CommentOption = Annotated[str, typer.Option("--comment", help="Why; the workflow sees it, too.")]
OfRunOption = Annotated[
    str | None,
    typer.Option(
        "--run", help="The run that asks; with it and the whole --hash you can decide before it does.",
        show_default=False,
    ),
]  # fmt: skip


@app.command()
def approve(
    id: IdArgument, hash: HashOption, by: ByOption, role: RoleOption = "", comment: CommentOption = "",
    run: OfRunOption = None, authority: AuthorityOption = None, store: StoreOption = None, json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Approve exactly what is asked under this id. The run goes on by itself."""
    return _said(store, authority, json, "approve", id, hash=hash, by=by, role=role, comment=comment, run=run)


@app.command()
def reject(
    id: IdArgument, hash: HashOption, by: ByOption, role: RoleOption = "", comment: CommentOption = "",
    run: OfRunOption = None, authority: AuthorityOption = None, store: StoreOption = None, json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Reject what is asked under this id: nothing of it is done, and the workflow hears who and why."""
    return _said(store, authority, json, "reject", id, hash=hash, by=by, role=role, comment=comment, run=run)


@app.command()
def answer(
    id: IdArgument,
    value: Annotated[str, typer.Argument(help="The answer: JSON, @file.json, or -.", show_default=False)],
    hash: HashOption, by: ByOption, role: RoleOption = "", comment: CommentOption = "", run: OfRunOption = None,
    authority: AuthorityOption = None, store: StoreOption = None, json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Answer a question. The run goes on by itself."""
    given = plain_value(value, at="the answer")
    said = {"hash": hash, "by": by, "role": role, "comment": comment, "run": run}
    return _said(store, authority, json, "answer", id, value=given, **said)


@app.command()
def delegate(
    id: IdArgument,
    to: Annotated[str, typer.Option("--to", help="Who is to decide instead, a person or a role.", show_default=False)],
    hash: HashOption, by: ByOption, role: RoleOption = "", comment: CommentOption = "", run: OfRunOption = None,
    authority: AuthorityOption = None, store: StoreOption = None, json: JsonOption = False,
) -> ExitCode:  # fmt: skip
    """Hand a decision that is yours on to somebody else."""
    return _said(store, authority, json, "delegate", id, to=to, hash=hash, by=by, role=role, comment=comment, run=run)


@app.command()
def acknowledge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)],
    by: Annotated[str, typer.Option("--by", help="Who has seen it; it is kept.", show_default=False)],
    call: Annotated[
        str | None, typer.Option("--call", help="Which call, as the list names it; default: all.", show_default=False)
    ] = None,
    comment: Annotated[str, typer.Option("--comment", help="What is said about it; it is kept.")] = "",
    authority: AuthorityOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> ExitCode:
    """Say that you have seen what policies denied in a run. It leaves the list; nothing else changes."""

    async def say_so() -> None:
        async with Client(opened, authority=judges) as client:
            await client.acknowledge(run, call=call, by=by, comment=comment)

    with existing_store(store) as opened:
        judges = authority_at(authority)
        asyncio.run(say_so())
    told = {"run": run, "call": call, "choice": "acknowledge", "by": by}
    tell(f"what was denied in run {run} has been seen by {by}", told, as_json=json)
    return ExitCode.OK


def _said(url: str | None, authority: str | None, json: bool, choice: str, id: str, **given: Any) -> ExitCode:
    async def decide(client: Client) -> None:
        await getattr(client, choice)(id, **given)

    who = given["by"]
    _judged(url, authority, decide, by=who)
    tell(f"told request {id}: {choice}, by {who}", {"id": id, "choice": choice, "by": who}, as_json=json)
    return ExitCode.OK

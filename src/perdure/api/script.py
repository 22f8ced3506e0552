"""`perdure.run(call)`: one call, to its end, from a script. Killed and started again, it goes on where it stopped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.api.calls import Call, nobody_can_await
from perdure.api.inputs import checked_scope
from perdure.api.run import Run
from perdure.api.runtime import Runtime
from perdure.api.settings import store_from
from perdure.api.source import named_in
from perdure.api.workflow import AnyWorkflow, SyncWorkflow, Workflow
from perdure.clock import SystemClock
from perdure.codec import digest
from perdure.errors import RunConflictError, UsageError
from perdure.history.events import identity_of
from perdure.specs import WorkflowSpec, several
from perdure.store.protocol import UNFINISHED, Filter, RunInfo, Status, Store, every_run

if TYPE_CHECKING:
    from perdure.gates.policy import Policy

R = TypeVar("R")

RUNS_PER_READ = 500


def run(
    call: Call[R],
    id: str | None = None,
    *,
    store: str | Store | None = None,
    workflows: Iterable[Any] = (),
    provide: Mapping[type, Any] | None = None,
    wait_blocked: bool = False,
    goal: str = "",
    scope: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    secrets: Iterable[Any] = (),
    scrub: Iterable[Any] | Mapping[str, Any] | None = None,
) -> R:
    """Execute a workflow here, to its end, and give its result, or raise what it raised.

    Without an id it goes on with the unfinished run of the same workflow and input, and says so on stderr; only if
    there is none, a new one is started. With an id it is that run, finished or not. Ctrl-C leaves the run as it is: it
    goes on the next time. Runs of others in the store are let be.

    `goal`, `scope`: see `Client.start`; another scope is another run. `policy`, `secrets`,
    `scrub`: see `Runtime`.

    Known to it are the call's workflow and those that its code names, besides `workflows`. RunBlockedError when the run
    is parked, unless `wait_blocked`. UsageError under a running event loop: `await runtime.start(...)` there.

    >>> run(greet.call("you"), store=":memory:")  # doctest: +SKIP
    'hello you'
    """
    more = several(workflows)
    if more is None:
        raise UsageError(f"perdure.run(workflows={workflows!r}): a list is wanted, as in workflows=[agent]")
    known = dict.fromkeys([*with_children([_workflow_of(call)]), *more])
    clock = SystemClock()
    opened = store_from(store, clock)
    try:
        runtime = Runtime(
            opened, workflows=known, adopt="own", provide=provide, policy=policy, secrets=secrets, scrub=scrub,
            clock=clock,
        )  # fmt: skip
        start = partial(start_or_attach, runtime, opened, call, id, goal=goal, scope=scope)
        return asyncio.run(_run(runtime, start, wait_blocked=wait_blocked))
    finally:
        if opened is not store:
            opened.close()


def _workflow_of(call: Call[Any]) -> AnyWorkflow:
    """The workflow that is called. UsageError for other things, and where nobody could wait for it."""
    if not nobody_can_await():
        name = getattr(getattr(call, "of", None), "name", "agent")
        raise UsageError(
            f"perdure.run() cannot wait inside a running event loop: `run = await runtime.start({name}.call(...))` and "
            "`await run.result()` there, in `async with perdure.Runtime(...) as runtime:`"
        )
    if not isinstance(call, Call):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"perdure.run({call!r}): give it a call that is not made yet, as in perdure.run(agent.call(x))"
        )
    if not isinstance(call.of, Workflow | SyncWorkflow):
        raise UsageError(
            f"perdure.run({call.of.name}.call(...)): {call.of.name} is no workflow; decorate it with @workflow"
        )
    return call.of


async def _run(runtime: Runtime, start: Callable[[], Awaitable[Run[R]]], *, wait_blocked: bool) -> R:
    async with runtime:
        run = await start()
        if run.how != "started":
            _say(f"run {run.id} {'goes on' if run.how == 'attached' else await finished(run)}")
        try:
            return await run.result(wait_blocked=wait_blocked)
        except asyncio.CancelledError:
            _say(f"stopped; run {run.id} goes on the next time")
            raise


async def finished(run: Run[Any]) -> str:
    """What is said of a run that is started once more after its end."""
    status = await run.status()
    if status is Status.COMPLETED:
        return "finished earlier"
    how = "was cancelled" if status is Status.CANCELLED else status
    return f"{how} earlier, and is not begun again: give another id for a new run"


def _say(what: str) -> None:
    print(f"perdure: {what}", file=sys.stderr)  # noqa: T201


# ── which run ───────────────────────────────────────────────────────────────────────────────


async def start_or_attach(
    runtime: Runtime, store: Store, call: Call[R], id: str | None = None, *, tags: Mapping[str, str] | None = None,
    goal: str = "", scope: Mapping[str, str] | None = None,
) -> Run[R]:  # fmt: skip
    """The run of that id in the runtime's store; without one, the unfinished run of the same workflow, input and scope,
    else a new one.

    Its id follows from workflow and input, so that of several scripts at the same time one starts it and the others
    attach. RunConflictError if the unfinished run is of a version that is not executed here."""
    if id is None:
        spec = cast(WorkflowSpec, call.of.spec)
        identity = identity_of(digest(spec.arguments.dumps(call.args, call.kwargs)), checked_scope(scope))
        found = _id_for(runtime, store, spec, identity)
        return await runtime.start(call, id=found, tags=tags, goal=goal, scope=scope)
    return await runtime.start(call, id=id, tags=tags, goal=goal, scope=scope)


def _id_for(runtime: Runtime, store: Store, spec: WorkflowSpec, identity: bytes) -> str:
    info = _unfinished(store, spec.name, identity)
    if info is None:
        return _next_id(store, f"{spec.name}-{identity.hex()[:8]}")
    if not runtime.executes(info.workflow, info.version):
        raise RunConflictError(
            f"run {info.run_id} has the same input and is unfinished, but is of version {info.version}, which is not "
            f"executed here (this is version {spec.version}): add that version to workflows=[...], cancel that run, or "
            "give an id= to start another"
        )
    return info.run_id


def _unfinished(store: Store, workflow: str, identity: bytes) -> RunInfo | None:
    """The newest unfinished run of this workflow, input and scope that is nobody's child."""
    unfinished = every_run(store, Filter(workflow, UNFINISHED, limit=RUNS_PER_READ))
    return next((info for info in unfinished if info.input_digest == identity and info.parent_run_id is None), None)


def _next_id(store: Store, stem: str) -> str:
    """A free `stem-number`, the same for all who look at the same time; found in few looks, however many there are."""
    free, taken = 1, 0
    while store.find(f"{stem}-{free}") is not None:
        free, taken = free * 2, free
    while free - taken > 1:
        middle = (free + taken) // 2
        free, taken = (free, middle) if store.find(f"{stem}-{middle}") is not None else (middle, taken)
    return f"{stem}-{free}"


# ── which workflows ─────────────────────────────────────────────────────────────────────────


def with_children(workflows: Iterable[AnyWorkflow]) -> list[AnyWorkflow]:
    """These workflows, and those that their code names: by a global, a closure, or an attribute of a module.

    What is found otherwise (in a dict, by getattr) has to be registered by hand."""
    found: list[AnyWorkflow] = []
    pending = list(workflows)
    while pending:
        workflow = pending.pop(0)
        if workflow not in found:
            found.append(workflow)
            named = named_in(workflow.spec.function)
            pending += (value for value in named if isinstance(value, Workflow | SyncWorkflow))
    return found

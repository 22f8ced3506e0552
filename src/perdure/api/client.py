"""Control from outside: start runs, send to them, look at them, wait for them. Executes nothing.

`Client` only needs the store; the workers may live in other processes. `Runtime` is a Client that also executes.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar

from perdure.api.calls import Call, check_call
from perdure.api.endings import Endings
from perdure.api.inputs import (
    by_key,
    checked_budget,
    checked_goal,
    checked_id,
    checked_limit,
    checked_scope,
    checked_tags,
    control_body,
    delay_seconds,
    micros,
    refuse_in_workflow_code,
    refuse_inside,
)
from perdure.api.reading import RunSummary, info_of, summary_of
from perdure.api.run import Run
from perdure.api.settings import store_from
from perdure.clock import Clock, SystemClock
from perdure.decisions import Authority
from perdure.decisions.authority import Roles, authority_of
from perdure.errors import ForkedError, PerdureBug, RunConflictError, UnknownNameError, UsageError
from perdure.runtime.beginnings import new_run
from perdure.specs import Budget, Money, WorkflowSpec, members, recordable
from perdure.store.protocol import (
    ApprovalFilter,
    Done,
    EffectFilter,
    Exists,
    Filter,
    NewRun,
    Outcome,
    RunInfo,
    Status,
    Store,
    Write,
)

if TYPE_CHECKING:
    from perdure.api.inbox import InboxEntry
    from perdure.api.operations import OperationSummary
    from perdure.api.requests import RequestSummary
    from perdure.api.sync import SyncClient
    from perdure.runtime.vault import Vault

R = TypeVar("R")


class Client:
    """Controls runs in a store, without executing any.

    `store`: a path, a URL, or an open store; default `PERDURE_STORE`, else `[tool.perdure] store` of pyproject.toml,
    else `./perdure.db`. `workflows`: known here, so that results and messages are checked and typed. `authority`: who
    has which role, `{"ann": ["supervisor"]}`, a function of a person's name, or an `Authority`; without it everybody
    may decide everything. A decision is judged by it before it is sent, and by that of the worker that takes it in.
    `secrets`: the providers (`perdure.secrets`) of what is never to be recorded, `scrub`: regular expressions for what
    else is not, or a dict of such with a name for each; with either, well-known forms of keys are not recorded either.

    >>> async def refunds() -> None:
    ...     async with Client("shop.db") as client:
    ...         run = await client.start(claims_agent.call("claim-42"), id="claim-42")  # doctest: +SKIP
    """

    _polls = True

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        workflows: Iterable[Any] = (),
        authority: Authority | Roles | None = None,
        secrets: Iterable[Any] = (),
        scrub: Iterable[Any] | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = store
        self._authority = authority_of(authority)
        self._clock: Clock = clock or SystemClock()
        self._vault = None if scrub is None and secrets in ((), []) else _vault_of(secrets, scrub, self._clock.now)
        self._workflows = by_key(workflows)
        self._open: Store | None = None
        self._loop: asyncio.AbstractEventLoop
        self._endings_open: Endings | None = None

    async def __aenter__(self) -> Self:
        name = type(self).__name__
        if self._open is not None and not self._loop.is_closed():
            raise UsageError(f"this {name} is open already: share it, or make another {name} for the other place")
        try:
            self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
        except RuntimeError:
            raise UsageError(f"a {name} is opened on asyncio's loop, and here runs another one, or none") from None
        self._open = self._opened()
        self._endings_open = self._make_endings(self._open)
        return self

    def _opened(self) -> Store:
        if self._vault is None:
            return store_from(self._given, self._clock)
        self._vault.open()
        try:
            return self._vault.guard(store_from(self._given, self._clock))
        except BaseException:
            self._vault.close()
            raise

    def _make_endings(self, store: Store) -> Endings:
        return Endings(store, polls=self._polls)

    @property
    def _owns_store(self) -> bool:
        """Whether the store was opened here, and not given."""
        return not hasattr(self._given, "commit")

    def __enter__(self) -> NoReturn:
        name = type(self).__name__
        raise UsageError(
            f"`with {name}(...)` cannot work: write `async with {name}(...) as ...:`, or, outside of any event loop, "
            f"`with {name}(...).sync() as ...:`"
        )

    def __exit__(self, *error: object) -> None: ...

    async def __aexit__(self, *error: object) -> None:
        if self._endings_open is not None:
            self._endings_open.close()
        if self._open is not None and self._owns_store:
            self._open.close()
        if self._vault is not None:
            self._vault.close()
        self._open = self._endings_open = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    # ── what users call ──────────────────────────────────────────────────────────────────────
    async def start(
        self,
        call: Call[R],
        *,
        id: str | None = None,
        tags: Mapping[str, str] | None = None,
        delay: timedelta | float = 0,
        goal: str = "",
        scope: Mapping[str, str] | None = None,
        budget: Budget | None = None,
    ) -> Run[R]:
        """Start a run, durable when this returns. `budget`: what it may spend, in place of what the workflow declares.

        The same id with the same workflow, input and scope attaches to that run, also when it has finished; with
        anything else it raises RunConflictError and the first run is unharmed. Without an id a new one is made up.
        EncodeError when the arguments cannot be recorded; nothing is written then.

        `goal`: what the run is for, in words, for whoever looks at it. `scope`: what it is about, by names
        (`{"order": "42"}`); policies can hold its calls to that, and its child runs have the same. Both are recorded
        with its beginning and never change.
        """
        check_call(call, "start")
        spec = call.of.spec
        if not isinstance(spec, WorkflowSpec):
            raise UsageError(f"start({call.of.name}.call(...)): {call.of.name} is a step, not a workflow")
        spec = self._declared(spec)
        raw = spec.arguments.dumps(call.args, call.kwargs)
        now = self._clock.now()
        due = now + round(delay_seconds(delay) * 1_000_000)
        new = new_run(
            spec, checked_id(id), raw, now=now, tags=checked_tags(tags), budget=checked_budget(budget),
            owner=None if delay else self._owner(spec), due_at=due, goal=checked_goal(goal), scope=checked_scope(scope),
        )  # fmt: skip
        outcome = await self._write(new)
        if isinstance(outcome, Exists):
            return await self._attach(outcome.run, new, spec)
        if not isinstance(outcome, Done):
            raise PerdureBug(f"starting run {new.run_id} came out as {outcome}")
        info = info_of(new, outcome.rid)
        self._started(info, new, raw)
        return Run(self, info, spec, "started")

    def _declared(self, spec: WorkflowSpec) -> WorkflowSpec:
        """The workflow, with what is declared for all of them here."""
        return spec

    async def _attach(self, info: RunInfo, new: NewRun, spec: WorkflowSpec) -> Run[Any]:
        if (info.workflow, info.input_digest) != (new.workflow, new.input_digest):
            other = f"{info.workflow} version {info.version}" + (
                " with another input or scope" if info.workflow == new.workflow else ""
            )
            raise RunConflictError(
                f"run id {info.run_id!r} belongs to {other}: choose another id; that run is unharmed"
            )
        return Run(self, info, spec, "finished earlier" if info.status.is_final else "attached")

    async def get(self, id: str) -> Run[Any]:
        """A handle on a run. UnknownNameError, with near ids, if there is none."""
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"get({id!r}): the run's id is wanted, a text")
        info = await self._read(lambda: self._store.find(id))
        if info is None:
            raise UnknownNameError("run", id, await self._read(lambda: self._near(id)))
        return Run(self, info, self._spec_of(info))

    async def list(
        self,
        *,
        workflow: str | None = None,
        status: Status | str | Iterable[Status | str] | None = None,
        tags: Mapping[str, str] | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        limit: int = 100,
    ) -> builtins.list[RunSummary]:
        """Runs, newest first."""
        which = Filter(
            workflow=workflow, status=members(Status, status, call="list", noun="status", name="status"),
            tags=checked_tags(tags), limit=checked_limit(limit, "list"),
            created_from=None if started_after is None else micros(started_after),
            created_until=None if started_before is None else micros(started_before),
        )  # fmt: skip
        return [summary_of(info) for info in await self._read(lambda: self._store.runs(which))]

    async def inbox(self) -> builtins.list[InboxEntry]:
        """Everything that waits for a person, the riskiest first, then the oldest."""
        from perdure.api.inbox import entries

        return await self._read(lambda: entries(self._store, self._clock.now()))

    async def settle(
        self,
        run: str | Run[Any],
        outcome: Literal["succeeded", "failed", "retry"],
        *,
        value: Any = None,
        reference: str | None = None,
        operation: str | None = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of an effect in doubt; see `Run.settle`."""
        refuse_inside("settle")
        handle = run if isinstance(run, Run) else await self.get(run)
        await handle.settle(
            outcome, value=value, reference=reference, operation=operation, call=call, by=by, reason=reason
        )

    async def raise_budget(
        self,
        run: str | Run[Any],
        *,
        tokens: int | None = None,
        cost: Money | None = None,
        effects: int | None = None,
        steps: int | None = None,
        wall: timedelta | float | None = None,
        by: str,
        reason: str = "",
        budget: str | None = None,
    ) -> None:
        """Set new limits for a run, higher than those that it has; what was stuck for that goes on by itself. Who did
        so, when, why and how far is in the run's history.

        `budget` names an account that many runs share, as the inbox does, and "" the run's own budget; default: what
        the oldest stuck call of the run wants more of, else its own.

        DecisionRefused if this person may not. UsageError for limits that raise nothing, and in workflows and steps: a
        person decides. UnknownNameError for a budget that the run has not. RunFinishedError if the run has ended."""
        from perdure.api.requests import check_allowed
        from perdure.api.spending import raise_letter

        refuse_inside("raise_budget")
        handle = run if isinstance(run, Run) else await self.get(run)
        check_allowed(self._authority, "over_budget", "raise_budget", by=by, about=f"the budget of run {handle.id}")
        letter = await self._read(
            lambda: raise_letter(
                self._store, handle._find(), budget, by=by, reason=reason,
                tokens=tokens, cost=cost, effects=effects, steps=steps, wall=wall,
            )
        )  # fmt: skip
        await handle._post("unblock", "", control_body(letter))

    async def effects(
        self,
        *,
        run: str | Run[Any] | None = None,
        action: str | None = None,
        key: str | None = None,
        status: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> builtins.list[OperationSummary]:
        """What the ledger has, the newest first: of a run, of an effect (by its name), of a business key, in a state
        (`"unknown"`, or several)."""
        from perdure.api.operations import states, summary_of

        handle = await self.get(run) if isinstance(run, str) else run
        which = EffectFilter(
            rid=None if handle is None else handle._info.rid, action_name=action, business_key=key,
            status=states(status), limit=checked_limit(limit, "effects"),
        )  # fmt: skip
        return [summary_of(entry) for entry in await self._read(lambda: self._store.effects(which))]

    # ── what people are asked ────────────────────────────────────────────────────────────────
    async def approve(
        self, id: str, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Approve what is asked under this id; the run goes on by itself. Who, when and why are in its history.

        `hash`: of what you saw, whole or its first digits, at least 8. `by` is you, `role` what you act as, if a role
        may decide. perdure keeps what it is told: that you are you is for whoever calls this to make sure. `run`: that
        the request belongs to; with it and the whole hash a decision can also come before the request, and counts if
        exactly that is asked then.

        UnknownNameError for an id that there is not; DecisionRefused, with `why`, if the hash is another one, it is
        decided already (of two who decide at once one learns that), its time is up, it was withdrawn, or you may not
        decide it. UsageError in workflows and steps: a person decides."""
        await self._decide("approve", id, hash, by, role, comment, run)

    async def reject(
        self, id: str, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Reject what is asked under this id: the workflow sees `perdure.Rejected`. See `approve`."""
        await self._decide("reject", id, hash, by, role, comment, run)

    async def answer(
        self, id: str, value: Any, *, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Answer a question, with plain JSON. See `approve`.

        DecodeError for an answer that is none: where its type is one of JSON's own, or its values can be listed, at
        once; else the run's worker refuses it, the question stands, and the history says why."""
        await self._decide("answer", id, hash, by, role, comment, run, value=value)

    async def delegate(
        self, id: str, *, to: str, hash: str, by: str, role: str = "", comment: str = "", run: str | None = None
    ) -> None:
        """Hand a decision that is yours on to somebody else, a person or a role: `to` may decide it then, you may not
        any more. See `approve`."""
        await self._decide("delegate", id, hash, by, role, comment, run, to=to)

    async def _decide(
        self, choice: str, id: str, hash: str, by: str, role: str, comment: str, run: str | None, *, value: Any = None,
        to: str | None = None,
    ) -> None:  # fmt: skip
        from perdure.api import requests

        refuse_inside(choice)
        if to is not None and recordable(to, what="to") == by:
            raise UsageError(f"delegate(to={to!r}): to somebody else")
        text = requests.plain(value) if choice == "answer" else to
        given = requests.decision(choice, hash=hash, by=by, role=role, comment=comment, value=text)
        now = self._clock.now()
        sent = await self._read(
            lambda: requests.write_of(self._store, id, run, given, now, self._near_requests, self._authority)
        )
        requests.check_sent(await self._write(sent), sent)
        self._mailed()

    async def acknowledge(self, run: str, *, call: str | None = None, by: str, comment: str = "") -> None:
        """Say that you have seen what policies denied in a run, or one such call (as the inbox names it): it leaves the
        inbox. Who, when and the comment are kept. DecisionRefused if there is nothing that nobody has seen, or if you
        may not."""
        from perdure.api.inbox import acknowledge

        refuse_inside("acknowledge")
        person, now, store, authority = recordable(by, what="by"), self._clock.now(), self._store, self._authority
        await self._read(
            lambda: acknowledge(store, run, call, by=person, comment=comment, now=now, authority=authority)
        )

    def _near_requests(self) -> builtins.list[str]:
        from perdure.api import requests

        return [row.approval_id for row in requests.pending(self._store)]

    async def requests(
        self,
        *,
        run: str | Run[Any] | None = None,
        kind: Literal["approval", "question"] | None = None,
        status: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> builtins.list[RequestSummary]:
        """What people are, or were, asked, the newest first: by a run, of a kind, in a state (`"pending"`, `"used"`, or
        several)."""
        from perdure.api import requests

        if kind not in {None, "approval", "question"}:
            raise UnknownNameError("kind of request", str(kind), ["approval", "question"])
        handle = await self.get(run) if isinstance(run, str) else run
        which = ApprovalFilter(
            rid=None if handle is None else handle._info.rid, kind=kind, status=requests.states(status),
            limit=checked_limit(limit, "requests"),
        )  # fmt: skip
        return await self._read(lambda: [requests.summary_of(self._store, row) for row in self._store.approvals(which)])

    def sync(self) -> SyncClient:
        """A thin blocking face of this client, on a thread of its own: for Django, scripts, notebooks.

        It opens the client itself: `with Client("shop.db").sync() as client:`. Called under a running event loop it
        works too, and blocks that loop while it waits; code that has a loop awaits the client's own methods instead."""
        from perdure.api.sync import SyncClient

        return SyncClient(self)

    # ── what the handles use ─────────────────────────────────────────────────────────────────
    @property
    def _store(self) -> Store:
        refuse_in_workflow_code(type(self).__name__)
        if self._open is None:
            raise UsageError(
                f"this {type(self).__name__} is not open: use it as `async with {type(self).__name__}(...) as ...:`"
            )
        return self._open

    @property
    def _endings(self) -> Endings:
        if self._endings_open is None:
            raise UsageError(
                f"this {type(self).__name__} is not open: use it as `async with {type(self).__name__}(...) as ...:`"
            )
        self._refuse_other_loops()
        return self._endings_open

    def _refuse_other_loops(self) -> None:
        """What waits here is woken on the loop on which this was opened: on another one it would wait for ever."""
        loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
        if loop is None or loop is self._loop:
            return
        name = type(self).__name__
        if os.getpid() != self._pid:
            raise ForkedError(
                f"this {name} was opened before fork(), and its loop is not in this child: open another one here"
            )
        raise UsageError(
            f"this {name} was opened on another event loop: hand the call over by asyncio.run_coroutine_threadsafe(), "
            f"or open a Client on this loop; for threads there is {name}(...).sync()"
        )

    async def _read(self, function: Callable[[], R]) -> R:
        self._store  # noqa: B018  (not open: say so here, not in a thread)
        return await asyncio.to_thread(function)

    async def _write(self, write: Write) -> Outcome:
        store = self._store
        return (await asyncio.to_thread(store.commit, [write]))[0]

    def _owner(self, spec: WorkflowSpec) -> str | None:
        return None

    def _started(self, info: RunInfo, new: NewRun, raw: bytes) -> None:
        """A run was created; a Runtime takes it up at once."""

    def _holds(self, rid: int) -> bool:
        """Whether this process executes the run."""
        return False

    def _mailed(self) -> None:
        """A letter was written; a Runtime looks for it at once."""

    def _spec_of(self, info: RunInfo) -> WorkflowSpec | None:
        return self._workflows.get((info.workflow, info.version))

    def _near(self, run_id: str) -> builtins.list[str]:
        return [info.run_id for info in self._store.runs(Filter(limit=500))]


def _vault_of(secrets: Any, scrub: Any, now: Callable[[], int]) -> Vault:
    from perdure.runtime.vault import Vault, patterns_of, providers_of

    return Vault(providers_of(secrets), patterns_of(scrub), now)


__all__ = ["Authority", "Client"]

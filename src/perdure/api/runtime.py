"""`Runtime` executes and controls; `Worker` is one that serves until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from perdure.api.calls import Call
from perdure.api.client import Client
from perdure.api.inputs import namesakes, refuse_in_workflow_code
from perdure.api.run import Run
from perdure.api.spending import rules_from
from perdure.api.surroundings import Tools, surroundings, within
from perdure.clock import Clock
from perdure.decisions import Authority
from perdure.decisions.authority import Roles
from perdure.errors import StoreError, UsageError
from perdure.http.webhook import Webhook
from perdure.runtime.options import Options, catalog_of
from perdure.runtime.outbox import OWN_TOPICS
from perdure.specs import SECONDS_MAX, Budget, WorkflowSpec, is_whole, mapping, seconds_given
from perdure.store.protocol import NewRun, Outcome, RunInfo, Status, Store, Write

if TYPE_CHECKING:
    from perdure.api.announcing import Announcer, Hook
    from perdure.gates.policy import Policy
    from perdure.runtime.host import Host
    from perdure.runtime.outbox import Handler
    from perdure.runtime.standstill import Standstill

log = logging.getLogger("perdure")

R = TypeVar("R")

LEASE_SECONDS_MIN = 0.1

Adopt = Literal["all", "own", "none"]


class Runtime(Client):
    """Executes runs in this process, and controls them. What waits in the store is continued by itself.

    `store`, `workflows`, `authority`, `secrets`, `scrub`: see `Client`. `adopt`: which runs it continues: `"all"`,
    `"own"` (those started or attached to through it), `"none"` (those it started itself). `provide`: clients for
    `perdure.use(Type)` in steps.
    `budgets`: what many runs may spend together, see `Budget`. `prices`: a file that says what tokens cost.
    `outbox`: for each topic what delivers its messages (`perdure.outbox()`), a function of an `OutboxMessage`.
    `on_inbox`: a function, plain or async, that is told of what is new in the inbox (an `InboxNotice`);
    `inbox_webhook`: a `Webhook` that gets the same, signed. Both at least once, tried again when they fail.
    `lease`: how long a worker may be silent before others take over (default 10 s). `concurrent_runs`,
    `concurrent_steps`, `threads`: caps. `evict_after`: how long a waiting run stays in memory (default 1 s). `grace`:
    how long leaving waits for effects that were sent (default 30 s). `paused`: whatever it takes up from the store is
    paused, and nothing of it performed, until somebody resumes it. `guard`: checked mode (see the docs on
    determinism). `policy`: what the calls of all runs executed here are held to, beside their workflow's own policy.
    `tools`, `prompt_release`, `model_policy_version`: for all workflows that declare none (see
    `workflow`).

    Leaving it (`async with`) waits for effects that were sent, up to `grace`, writes what came in, cancels plain steps
    under way (they run again in the next process), and names in the log what is unfinished. Nothing is marked as
    failed.
    """

    _polls = False

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        workflows: Iterable[Any] = (),
        authority: Authority | Roles | None = None,
        adopt: Adopt = "all",
        provide: Mapping[type, Any] | None = None,
        outbox: Mapping[str, Handler] | None = None,
        on_inbox: Hook | None = None,
        inbox_webhook: Webhook | None = None,
        budgets: Iterable[Budget] = (),
        prices: str | os.PathLike[str] | None = None,
        lease: timedelta | float = 10.0,
        evict_after: timedelta | float = 1.0,
        concurrent_runs: int = 1_000,
        concurrent_steps: int = 1_000,
        threads: int = 32,
        grace: timedelta | float = 30.0,
        guard: bool = False,
        paused: bool = False,
        policy: Policy | None = None,
        tools: Tools | None = None,
        prompt_release: str | None = None,
        model_policy_version: str | None = None,
        secrets: Iterable[Any] = (),
        scrub: Iterable[Any] | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            store, workflows=workflows, authority=authority, secrets=secrets, scrub=scrub, clock=clock
        )
        self._around = surroundings(
            type(self).__name__, tools=tools, prompt_release=prompt_release, model_policy_version=model_policy_version
        )
        self._workflows = {key: within(spec, self._around) for key, spec in self._workflows.items()}
        if adopt not in {"all", "own", "none"}:
            raise UsageError(f"Runtime(adopt={adopt!r}): 'all', 'own' or 'none'")
        if not LEASE_SECONDS_MIN <= seconds_given(lease, what="Runtime: lease") <= SECONDS_MAX:
            raise UsageError(f"Runtime(lease={lease!r}): from {LEASE_SECONDS_MIN:g} s to 100 years")
        caps = {"concurrent_runs": concurrent_runs, "concurrent_steps": concurrent_steps, "threads": threads}
        for name, cap in caps.items():
            if not is_whole(cap) or cap < 1:
                raise UsageError(f"Runtime({name}={cap!r}): a whole number from 1 on")
        self._told = _told(on_inbox, inbox_webhook, self._clock)
        self._options = Options(
            lease_seconds=seconds_given(lease, what="Runtime: lease"),
            evict_after_seconds=seconds_given(evict_after, what="Runtime: evict_after"),
            grace_seconds=seconds_given(grace, what="Runtime: grace"),
            runs_max=concurrent_runs, steps_max=concurrent_steps, threads_max=threads, adopt=adopt,
            provided=_provided(provide), outbox={**_handlers(outbox), **self._told}, guard=guard,
            authority=self._authority, vault=self._vault,
            paused=paused,
            policy=None if policy is None else _checked_policy(policy),
            spending=rules_from(budgets, prices),
        )  # fmt: skip
        self._catalog = catalog_of(self._workflows)
        self._refuse_namesakes()
        self._host_open: Host | None = None
        self._announcer: Announcer | None = None
        self._starting = 0
        self.unfinished: list[str] = []

    async def __aenter__(self) -> Self:
        from perdure.runtime.agreeing import look_at_ledger
        from perdure.runtime.host import Host  # half of perdure, for those who execute

        await super().__aenter__()
        if self._options.guard:
            self._lint()
        try:
            self._host_open = Host(self._store, self._clock, self._workflows, self._options)
        except BaseException:
            await super().__aexit__()
            raise
        look_at_ledger(self._store)
        self._host_open.turns.on_standstill = self._endings.notify
        self._endings.is_here = self._holds
        self._host_open.on_change = self._endings.look
        if self._told:
            self._announce(self._host_open)
        self._host_open.kick()
        return self

    def _announce(self, host: Host) -> None:
        """Have whoever wants to hear of it told what is new in the inbox."""
        from perdure.api.announcing import Announcer

        announcer = self._announcer = host.announcer = Announcer(self._store, self._clock, self._told, host.relay.look)
        notify = host.turns.on_standstill

        def on_standstill(rid: int, how: Standstill) -> None:
            notify(rid, how)
            if how.status is Status.BLOCKED:
                announcer.kick()

        host.turns.on_standstill = on_standstill
        host.turns.approvals.on_announced = (
            lambda row, what, once: announcer.kick() if what == "new" else announcer.tell(row, what, once)
        )

    def _lint(self) -> None:
        """Checked mode reads the workflows' source, too, and says what it finds."""
        from perdure.audit.lint import lint_function

        for spec in self._workflows.values():
            for finding in lint_function(spec.function):
                log.warning("%s", finding)

    async def __aexit__(self, *error: object) -> None:
        cancelled: asyncio.CancelledError | None = None
        for part in (self._stop_announcing, self._leave):
            try:
                await part()
            except asyncio.CancelledError as again:  # the rest is done all the same
                cancelled = again
        await super().__aexit__(*error)
        if cancelled is not None:
            raise cancelled

    async def _stop_announcing(self) -> None:
        if self._announcer is not None:
            from perdure.runtime.host import done_in_spite

            announcer, self._announcer = self._announcer, None
            await done_in_spite(announcer.close())

    async def _leave(self) -> None:
        if self._host_open is None:
            return
        try:
            with self._store.hurried():
                self.unfinished = await self._host_open.close()
        except asyncio.CancelledError:  # it is closed nevertheless
            self._host_open = None
            raise
        self._host_open = None
        if self.unfinished:
            shown = ", ".join(self.unfinished[:10]) + (", ..." if len(self.unfinished) > 10 else "")
            log.warning(
                "leaving with %d unfinished run(s): %s; any worker goes on with them", len(self.unfinished), shown
            )

    async def drain(self, *, max_seconds: timedelta | float | None = None) -> int:
        """Do all that is due and come back when what is left only waits, and is written so, or after `max_seconds`.
        Returns how many runs are still in memory then: something of them is under way, or several threads or tasks of
        their hosted code wait. For serverless functions, cron and tests."""
        host = self._host
        limit = None if max_seconds is None else seconds_given(max_seconds, what="max_seconds")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                host.kick()
                await asyncio.sleep(0)
                while (host.turns.live or not host.is_quiet) and not host.is_kept_by_waits:
                    if host.is_quiet:
                        host.release_idle()
                    await asyncio.sleep(0.001)
        return len(host.turns.live)

    @property
    def sees_effects_through(self) -> bool:
        """Whether it is being left, and waits for effects that were sent. Any thread may ask."""
        until = None if self._host_open is None else self._host_open.grace_until
        return until is not None and time.monotonic() < until

    def executes(self, workflow: str, version: int) -> bool:
        """Whether runs of this workflow and version are executed here."""
        return (workflow, version) in self._catalog

    @property
    def _host(self) -> Host:
        refuse_in_workflow_code(type(self).__name__)
        if self._host_open is None:
            raise UsageError("this Runtime is not open: use it as `async with Runtime(...) as runtime:`")
        self._refuse_other_loops()
        return self._host_open

    # ── how a Runtime does what a Client does ────────────────────────────────────────────────
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
        """Start a run, durable when this returns; see `Client.start`. It is executed here at once, unless
        `concurrent_runs` are in memory."""
        self._starting += 1  # itself included, until the run is in memory
        try:
            return await super().start(call, id=id, tags=tags, delay=delay, goal=goal, scope=scope, budget=budget)
        finally:
            asyncio.get_running_loop().call_soon(self._has_started)

    def _has_started(self) -> None:
        self._starting -= 1

    async def _read(self, function: Callable[[], R]) -> R:
        return function()

    async def _write(self, write: Write) -> Outcome:
        host = self._host
        answer = host.writer.submit(write, unheard=self._doubt)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled():  # it came in the same moment
                answer.exception()
                self._doubt()
            raise
        except StoreError:
            host.be_unsure()  # it may have been written nevertheless, a start for this worker
            raise

    def _doubt(self) -> None:
        """Whoever asked for a write was cancelled. It happens all the same: a run that was created is this worker's,
        and nobody takes it in."""
        if self._host_open is not None:
            self._host_open.be_unsure()

    def _refuse_namesakes(self) -> None:
        """A child that is another workflow than the one of its name and version here would be mistaken for it."""
        from perdure.api.source import durable_in

        for workflow in self._workflows.values():
            for child in durable_in(workflow.function):
                if isinstance(child.spec, WorkflowSpec):
                    self._refuse_namesake(child.spec)

    def _refuse_namesake(self, spec: WorkflowSpec) -> None:
        known = self._workflows.get(spec.key)
        if known is not None and not _is_same_code(known, spec):
            raise namesakes(known, spec)

    def _declared(self, spec: WorkflowSpec) -> WorkflowSpec:
        self._refuse_namesake(spec)
        known = self._workflows.get(spec.key)
        return known if known is not None and known.function is spec.function else spec

    def _owner(self, spec: WorkflowSpec) -> str | None:
        if self._catalog.get(spec.key) is None:
            known = ", ".join(sorted(s.label for s in self._workflows.values())) or "none"
            raise UsageError(
                f"this Runtime does not execute {spec.label}: add it to Runtime(workflows=[...]) (has: {known})"
            )
        host = self._host
        return host.worker if len(host.turns.live) + self._starting <= self._options.runs_max else None

    def _started(self, info: RunInfo, new: NewRun, raw: bytes) -> None:
        host = self._host
        if self._options.adopt != "all":
            host.own.add(info.run_id)
        if info.owner is not None:
            asyncio.get_running_loop().call_soon(host.take_new, info, new, raw)
        else:
            host.kick()  # it waits, for its time or for room: let the alarm be set

    async def _attach(self, info: RunInfo, new: NewRun, spec: WorkflowSpec) -> Any:
        if self._options.adopt == "own":
            self._host.own_family(info.run_id)
        return await super()._attach(info, new, spec)

    def _holds(self, rid: int) -> bool:
        live = self._host.turns.live.get(rid)
        return live is not None and live.blocked is None and not live.blocked_calls

    def _mailed(self) -> None:
        self._host.kick()

    def _spec_of(self, info: RunInfo) -> WorkflowSpec | None:
        return self._catalog.get((info.workflow, info.version))


def _is_same_code(one: WorkflowSpec, other: WorkflowSpec) -> bool:
    """Whether they are one function that was loaded twice: again, or as a program and as a module."""
    first, second = one.function, other.function
    return (first.__code__.co_filename, first.__qualname__) == (second.__code__.co_filename, second.__qualname__)


def _handlers(given: Mapping[str, Handler] | None) -> Mapping[str, Handler]:
    handlers = mapping(given) if given is not None else {}
    if handlers is None or not all(isinstance(topic, str) and callable(handler) for topic, handler in handlers.items()):
        raise UsageError(f"outbox={given!r}: a dict of topics and what delivers them, as in outbox={{'emails': send}}")
    own = sorted(topic for topic in handlers if topic.startswith(OWN_TOPICS))
    if own:
        raise UsageError(f"outbox={{{own[0]!r}: ...}}: topics that begin with {OWN_TOPICS!r} are perdure's own")
    return handlers


def _told(hook: Hook | None, webhook: Webhook | None, clock: Clock) -> Mapping[str, Handler]:
    """What is told of the inbox, by topic of the outbox."""
    if hook is not None and not callable(hook):
        raise UsageError(f"on_inbox={hook!r}: a function of an InboxNotice")
    if webhook is not None and not isinstance(webhook, Webhook):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"inbox_webhook={webhook!r}: a Webhook, as in perdure.Webhook('https://...', secret=...)")
    if hook is None and webhook is None:
        return {}
    from perdure.api.announcing import handlers_of

    return handlers_of(hook, webhook, clock)


def _checked_policy(policy: Any) -> Any:
    from perdure.api.policies import checked_policy  # only for those who have one

    return checked_policy(policy, "Runtime")


def _provided(given: Any) -> dict[type, Any]:
    provided = mapping(given)
    if provided is None or not all(isinstance(each, type) for each in provided):
        raise UsageError(f"provide={given!r}: a dict of types and their clients, as in provide={{Payments: client}}")
    return provided


class Worker(Runtime):
    """A Runtime that serves until it is stopped: `await Worker(workflows=[...]).serve()`."""

    async def serve(self) -> None:
        """Execute whatever is due, until cancelled."""
        if self._host_open is not None:
            await asyncio.Event().wait()
        async with self:
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _open(runtime: Runtime, app: Any) -> AsyncGenerator[dict[str, Any]]:
    async with runtime:
        yield {"runtime": runtime}


def lifespan(runtime: Runtime) -> Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]:
    """For FastAPI and Starlette: `FastAPI(lifespan=perdure.lifespan(runtime))`; handlers find it as
    `request.state.runtime`."""
    return lambda app: _open(runtime, app)

"""Control from outside: start runs, send to them, look at them, wait for them. Executes nothing.

`Client` only needs the store; the workers may live in other processes. `Runtime` is a Client that also executes.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
import builtins
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, cast

import msgspec

from perdure.api.calls import Call, execution_here
from perdure.api.endings import Endings
from perdure.api.settings import store_from
from perdure.clock import Clock, SystemClock, when
from perdure.codec import ValueCodec, codec_for, load_exception, unpack
from perdure.decisions import Authority
from perdure.decisions.authority import Roles, authority_of
from perdure.errors import (
    DeclarationError,
    ForkedError,
    OperationNotInDoubt,
    PerdureBug,
    RunBlockedError,
    RunCancelledError,
    RunConflictError,
    RunFinishedError,
    UnknownNameError,
    UsageError,
)
from perdure.history import events as e
from perdure.runtime import mail
from perdure.runtime.attempt import ATTEMPT, JOURNAL
from perdure.runtime.beginnings import new_run
from perdure.runtime.standstill import Standstill
from perdure.specs import (
    SECONDS_MAX,
    Budget,
    Money,
    WorkflowSpec,
    budget_of_run,
    is_whole,
    mapping,
    members,
    recordable,
    seconds,
)
from perdure.store.protocol import (
    ApprovalFilter,
    Done,
    EffectFilter,
    Ended,
    Exists,
    Filter,
    Missing,
    NewRun,
    Outcome,
    Row,
    RunInfo,
    Status,
    Store,
    Write,
)
from perdure.store.rules import RETRY_AFTER_DEATH_SECONDS

if TYPE_CHECKING:
    from perdure.api.inbox import InboxEntry
    from perdure.api.operations import OperationSummary
    from perdure.api.requests import RequestSummary
    from perdure.api.standing import DecisionStanding
    from perdure.api.sync import SyncClient
    from perdure.runtime.vault import Vault

R = TypeVar("R")
RESULT = TypeVar("RESULT", covariant=True)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = codec_for(Any)

REASON_CHARACTERS_MAX = 100_000
GOAL_CHARACTERS_MAX = 10_000
ROWS_MAX = 2**31 - 1
"""More than any store has."""


def micros(at: datetime) -> int:
    """An aware datetime as microseconds since the epoch. UsageError for a naive one: it does not say which moment."""
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{at!r} is no moment: a datetime with a time zone is wanted")
    if at.tzinfo is None:
        raise UsageError(f"{at!r} has no time zone: which moment is meant? Use datetime.now(timezone.utc) or the like")
    return round((at - _EPOCH) / timedelta(microseconds=1))


class HistoryEvent(msgspec.Struct, frozen=True):
    """One event of a run, for people and programs that read it. `input` and `output` are plain JSON values."""

    seq: int
    at: datetime
    kind: str
    event: e.Event
    input: Any
    output: Any
    hash: str


class RunSummary(msgspec.Struct, frozen=True):
    """One run in a list. `forked_from`: the run that it was forked from, after its event `forked_at`."""

    id: str
    workflow: str
    version: int
    status: Status
    reason: str
    hint: str
    created_at: datetime
    updated_at: datetime
    due_at: datetime | None
    tags: Mapping[str, str]
    parent: str | None
    owner: str | None
    forked_from: str | None = None
    forked_at: int | None = None


class Run(Generic[RESULT]):
    """A handle on a run. It owns nothing: to drop it, or to stop waiting, changes nothing about the run.

    `how` says what `start` did: `"started"`, `"attached"` to a run under way, or found that it `"finished earlier"`.
    """

    def __init__(self, client: Client, info: RunInfo, spec: WorkflowSpec | None, how: str = "attached") -> None:
        self._client = client
        self._info = info
        self._codec: ValueCodec = spec.result if spec is not None else _PLAIN
        self._raises = spec.raises if spec is not None else ()
        self.how = how

    @property
    def id(self) -> str:
        return self._info.run_id

    def __repr__(self) -> str:
        return f"<run {self.id!r} of {self._info.workflow}>"

    async def status(self) -> Status:
        """Where the run stands now."""
        return (await self.summary()).status

    async def summary(self) -> RunSummary:
        """Where the run stands, since when, and why."""
        return _summary(await self._client._read(self._find))

    async def state(self) -> Any:
        """What the workflow last gave to `set_state`, as plain JSON; None if it never did."""
        raw = (await self._client._read(self._find)).state
        return None if not raw else _PLAIN.loads(raw)

    async def result(self, *, wait_blocked: bool = False, timeout: timedelta | float | None = None) -> RESULT:
        """Wait for the run's end and give its result, or raise what the workflow raised.

        RunBlockedError when the run is (or gets) parked, unless `wait_blocked`. RunCancelledError when it was
        cancelled. TimeoutError when it takes longer than `timeout`; the run goes on.
        """
        limit = None if timeout is None else seconds(timeout, what="timeout")
        if limit is None:
            return self._outcome(await self._standstill(wait_blocked))
        try:
            async with asyncio.timeout(limit):
                how = await self._standstill(wait_blocked)
        except TimeoutError:
            raise TimeoutError(f"run {self.id} has not ended within {limit:g} s; it goes on") from None
        return self._outcome(how)

    async def _standstill(self, wait_blocked: bool) -> Standstill:
        client, rid = self._client, self._info.rid
        return await client._endings.wait(
            rid, self.id, self._look, wait_blocked=wait_blocked, is_here=client._holds(rid)
        )

    def _look(self) -> Standstill | None:
        """How the run stands, if it stands still."""
        info, store = self._find(), self._client._store
        if info.status is Status.BLOCKED:
            return None if self._is_decided(info) else Standstill(info.status, info.reason or "", info.hint or "")
        if not info.status.is_final:
            return None
        raw = None if info.status is Status.CANCELLED else payload(store, info.rid, store.last_row(info.rid), "output")
        return Standstill(info.status, raw=raw)

    def _is_decided(self, info: RunInfo) -> bool:
        """Whether somebody unblocked or cancelled the run, and its worker has not read that yet."""
        return any(letter.kind in {"unblock", "cancel"} for letter in self._client._store.mail([info.rid]))

    def _outcome(self, how: Standstill) -> RESULT:
        if how.status is Status.BLOCKED:
            raise RunBlockedError(self.id, how.reason, how.hint)
        if how.status is Status.CANCELLED:
            raise RunCancelledError(f"run {self.id} was cancelled")
        if how.status is Status.FAILED:
            raise load_exception(how.raw or b"null", self._raises)
        return cast(RESULT, self._codec.loads(how.raw or b"null"))

    async def send(self, name: str, value: Any = None, *, by: str = "") -> None:
        """Send the run a message; it is kept until the run receives it. `by`: who sends it; it stands in the history.

        RunFinishedError if the run has ended, UnknownNameError for a name that the workflow does not declare (where the
        workflow is known here), EncodeError if the value cannot be recorded."""
        if by != "":
            recordable(by, what="by")
        await self._post("message", name, message_body(self._client._spec_of(self._info), name, value), by)

    async def cancel(
        self, reason: str = "", *, force: bool = False
    ) -> Literal["requested", "cancelled", "completed", "failed"]:
        """Ask the run to stop, and say what became of that: it has ended as ..., or the request is recorded.

        The workflow sees asyncio.CancelledError at its next await and may clean up. `force` ends it without running any
        more of its code: at once if no worker has it just now, also where no worker knows its workflow. OperationOpen,
        and nothing is ended, while an effect of it may have happened: settle that first."""
        from perdure.runtime.unattended import refuse_with_open_effects

        try:
            if force:
                await self._client._read(lambda: refuse_with_open_effects(self._client._store, self._find()))
            await self._post("cancel", "", _control(mail.ControlLetter(reason=reason, force=force)))
        except RunFinishedError:
            return cast('Literal["cancelled", "completed", "failed"]', str(await self.status()))
        if force and await self._client._read(self._end_by_force):
            self._client._endings.notify(self._info.rid)
            self._client._mailed()
            return "cancelled"
        return "requested"

    def _end_by_force(self) -> bool:
        from perdure.runtime.unattended import end_by_force

        now = self._client._clock.now()
        return end_by_force(self._client._store, self.id, retry_after=RETRY_AFTER_DEATH_SECONDS, now=now)

    async def pause(self, by: str = "") -> None:
        """Start nothing new in this run until `resume()`; what is under way ends and is recorded."""
        await self._post("pause", "", _control(mail.ControlLetter(by=by)))

    async def move(self, version: int, *, by: str = "") -> int:
        """Have the run go on under another version of its workflow; gives the version that it had.

        The version has to be known here (`Client(workflows=)`). It is checked first: the history is replayed there, and
        nothing performed. MoveRefused, and nothing is changed, if it does not replay, or if a worker has the run in
        hands just now: try again, or pause it first. RunFinishedError if it has ended."""
        from perdure.api.moving import move

        spec = self._client._workflows.get((self._info.workflow, version))
        if spec is None:
            known = [str(of) for name, of in self._client._workflows if name == self._info.workflow]
            raise UnknownNameError(f"version of {self._info.workflow}", str(version), known)
        now = self._client._clock.now()
        before = await self._client._read(lambda: move(self._client._store, self._find(), spec, by=by, now=now))
        self._client._mailed()
        return before

    async def resume(self, by: str = "") -> None:
        """Go on with a paused run."""
        await self._post("resume", "", _control(mail.ControlLetter(by=by)))

    async def unblock(
        self,
        choice: Literal["retry", "value", "fail", "reuse", "keep", "recompute"] = "retry",
        *,
        value: Any = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Decide for a blocked run: try again, supply the stuck call's result, or let the call (or run) fail. Of a fork
        whose original has done the same effect: do it again, `"reuse"` the original's result, or let the call fail. Of
        a decision that does not stand any more: `"keep"` it; or, where you are to confirm it, have it made again
        (`"recompute"`).

        `call`: which one is meant (as the inbox names it), where several may be stuck; default: the oldest. A decision
        about what is not stuck any more changes nothing. DecodeError for a value that does not fit what is asked for,
        where that is known here; elsewhere the run's worker refuses it, and the inbox says so."""
        if choice not in {"retry", "value", "fail", "reuse", "keep", "recompute"}:
            raise UsageError(f"unblock({choice!r}): 'retry', 'value', 'fail', 'reuse', 'keep' or 'recompute'")
        raw = _PLAIN.dumps(value).decode() if choice == "value" else None
        await self._client._read(lambda: self._check_unblocks(raw, call, choice, by))
        await self._post("unblock", "", _control(mail.ControlLetter(reason, by, False, choice, raw, call or "")))

    def _check_unblocks(self, raw: str | None, call: str | None, choice: str, by: str) -> None:
        from perdure.api.inbox import blocked

        info = self._find()
        if info.status is not Status.BLOCKED:
            return
        stuck = next((entry for entry in blocked(self._client._store, info) if call in {None, entry.call}), None)
        if stuck is not None and stuck.operation is not None:
            raise UsageError(
                f"{stuck.call} of run {self.id} is an effect, and whether it happened is not to be guessed: find out, "
                f"then settle('succeeded', value=..., reference=...), settle('failed') or settle('retry')"
            )
        if stuck is not None:
            self._check_allowed(stuck, choice, by)
        if stuck is not None and raw is not None:
            self._check_fits(raw.encode(), stuck.call)

    def _check_allowed(self, entry: InboxEntry, choice: str, by: str) -> None:
        from perdure.api.requests import check_allowed

        about = f"{entry.call or 'the whole'} of run {self.id}"
        check_allowed(self._client._authority, entry.reason, choice, by=by, about=about)

    def _check_fits(self, raw: bytes, call: str | None) -> None:
        from perdure.api.inbox import asked_of

        spec = self._client._spec_of(self._info)
        codec = asked_of(spec, call) if spec is not None and call else None
        if codec is not None:
            codec.loads(raw)

    async def settle(
        self,
        outcome: Literal["succeeded", "failed", "retry"],
        *,
        value: Any = None,
        reference: str | None = None,
        operation: str | None = None,
        call: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> None:
        """Say what became of an effect in doubt; the run goes on by itself. Who said it, when and why are kept.

        `succeeded`: `value` is its result, plain JSON, and `reference` what the other side calls it. `failed`: it did
        not happen, and the workflow sees a StepError. `retry`: it did not happen, and is sent again. `operation` (its
        id) or `call` say which effect is meant, where several are in doubt.

        UnknownNameError for an operation that the run does not have; OperationNotInDoubt for one that needs no decision
        or has one; DecodeError for a value that does not fit the effect's result, where its type is known here (else
        the run's worker refuses it, and the inbox says so). UsageError in workflows and steps: a person decides, never
        the code in doubt."""
        _refuse_inside("settle")
        if outcome not in {"succeeded", "failed", "retry"}:
            raise UsageError(f"settle({outcome!r}): 'succeeded', 'failed' or 'retry'")
        if outcome != "succeeded" and (value is not None or reference is not None):
            raise UsageError(f"settle({outcome!r}): value= and reference= belong to what has succeeded")
        raw = _PLAIN.dumps(value).decode() if outcome == "succeeded" else None
        found = await self._client._read(lambda: self._settled(outcome, raw, operation, call, by))
        letter = mail.ControlLetter(reason, by, False, outcome, raw, found[0], reference, found[1])
        await self._post("unblock", "", _control(letter))

    def _settled(
        self, outcome: str, raw: str | None, operation: str | None, call: str | None, by: str
    ) -> tuple[str, int]:
        """The label of the effect that is decided, and its last attempt."""
        from perdure.api.operations import in_doubt

        entry = in_doubt(self._client._store, self._find(), operation=operation, call=call)
        self._check_allowed(entry, outcome, by)
        if raw is None and "retry" not in entry.choices:
            raise OperationNotInDoubt(
                f"{entry.call} of run {self.id} has succeeded: only its result can be supplied, with "
                "settle('succeeded', value=...)",
                "" if entry.operation is None else entry.operation.id, "succeeded",
            )  # fmt: skip
        if raw is not None:
            self._check_fits(raw.encode(), entry.call)
        return entry.call or "", 0 if entry.operation is None else entry.operation.attempts

    async def stands(self, *, provide: Mapping[type, Any] | None = None) -> list[DecisionStanding]:
        """Whether each recorded result that rests on something would stand today, and what making it again would mean.
        What they rest on is read here and now, by the run's own code; nothing is changed or recorded.

        `provide`: clients for `perdure.use` in what reads. UsageError where the run's workflow is not known here."""
        from perdure.api.standing import decisions_of

        client, info = self._client, self._find()
        now, spec = client._clock.now(), client._spec_of(info)
        return await decisions_of(client._store, info, spec, now=now, provide=dict(provide or {}))

    async def fork(
        self, at: int | Literal["last"] = "last", *, id: str | None = None, by: str = "", reason: str = ""
    ) -> Run[RESULT]:
        """A new run that begins with this one's events up to `at`, and goes on by itself from there. Nothing of what is
        recorded there is done again; this run is not touched.

        `at`: the number of an event, as the history has them; default: the last one at which it can be forked. The fork
        has an id of its own, and so have its effects. One that this run has done as well (after `at`, or since) is not
        sent before a person confirmed it: the fork is in the inbox then. `by` and `reason` stand in its history.

        With an `id` it is made once: the same fork again attaches. ForkPointError if something is under way at `at`
        that two runs cannot share, or if there is no such event; RunConflictError if the id is another run's."""
        from perdure.api.forking import check_attaches, checked_at, new_fork

        checked_at(at)
        client, run_id = self._client, _checked_id(id)
        for name, text in (("by", by), ("reason", reason)):
            if text != "":
                recordable(text, what=name, length_max=REASON_CHARACTERS_MAX)

        def made() -> NewRun | RunInfo:
            there = client._store.find(run_id)
            if there is None:
                return new_fork(client._store, self._find(), at, run_id, by=by, why=reason, now=client._clock.now())
            check_attaches(there, client._store.find(self.id) or self._info, at)
            return there

        made_or_there = await client._read(made)
        if isinstance(made_or_there, RunInfo):
            how = "finished earlier" if made_or_there.status.is_final else "attached"
            return Run(client, made_or_there, client._spec_of(made_or_there), how)
        outcome = await client._write(made_or_there)
        if isinstance(outcome, Exists):  # somebody was faster
            return await self.fork(at, id=run_id, by=by, reason=reason)
        if isinstance(outcome, Missing):
            raise UnknownNameError("run", self.id, await client._read(lambda: client._near(self.id)))
        if not isinstance(outcome, Done):
            raise PerdureBug(f"forking run {self.id} came out as {outcome}")
        info = _info_of(made_or_there, outcome.rid)
        client._started(info, made_or_there, b"")
        return Run(client, info, client._spec_of(info), "started")

    async def history(self) -> list[HistoryEvent]:
        """The run's whole history, readable."""
        return await self._client._read(self._history)

    def _history(self) -> list[HistoryEvent]:
        store, rid = self._client._store, self._info.rid
        return [_readable(store, rid, row) for row in store.load(rid, from_seq=0).rows]

    async def _post(self, kind: str, key: str, body: bytes, by: str = "") -> None:
        outcome = await self._client._write(
            mail.letter(self.id, kind, key=key, body=body, now=self._client._clock.now(), by=by)
        )
        self._client._mailed()
        if isinstance(outcome, Ended):
            raise RunFinishedError(f"run {self.id} {outcome.status.ended}: it takes no {kind} any more")
        if isinstance(outcome, Missing):
            raise UnknownNameError("run", self.id, self._client._near(self.id))

    def _find(self) -> RunInfo:
        info = self._client._store.find(self.id)
        if info is None or info.rid < self._info.rid:
            raise UnknownNameError("run", self.id, self._client._near(self.id))
        return info


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
        self._workflows = _by_key(workflows)
        self._open: Store | None = None
        self._loop: asyncio.AbstractEventLoop
        self._endings_open: Endings | None = None

    async def __aenter__(self) -> Self:
        if self._open is not None and not self._loop.is_closed():
            name = type(self).__name__
            raise UsageError(f"this {name} is open already: share it, or make another {name} for the other place")
        self._loop, self._pid = asyncio.get_running_loop(), os.getpid()
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
        _check_call(call)
        spec = call.of.spec
        if not isinstance(spec, WorkflowSpec):
            raise UsageError(f"start({call.of.name}.call(...)): {call.of.name} is a step, not a workflow")
        spec = self._declared(spec)
        raw = spec.arguments.dumps(call.args, call.kwargs)
        now = self._clock.now()
        due = now + round(_delay_seconds(delay) * 1_000_000)
        new = new_run(
            spec, _checked_id(id), raw, now=now, tags=checked_tags(tags), budget=_checked_budget(budget),
            owner=None if delay else self._owner(spec), due_at=due, goal=checked_goal(goal), scope=checked_scope(scope),
        )  # fmt: skip
        outcome = await self._write(new)
        if isinstance(outcome, Exists):
            return await self._attach(outcome.run, new, spec)
        if not isinstance(outcome, Done):
            raise PerdureBug(f"starting run {new.run_id} came out as {outcome}")
        info = _info_of(new, outcome.rid)
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
            tags=checked_tags(tags), limit=_checked_limit(limit, "list"),
            created_from=None if started_after is None else micros(started_after),
            created_until=None if started_before is None else micros(started_before),
        )  # fmt: skip
        return [_summary(info) for info in await self._read(lambda: self._store.runs(which))]

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
        _refuse_inside("settle")
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

        _refuse_inside("raise_budget")
        handle = run if isinstance(run, Run) else await self.get(run)
        check_allowed(self._authority, "over_budget", "raise_budget", by=by, about=f"the budget of run {handle.id}")
        letter = await self._read(
            lambda: raise_letter(
                self._store, handle._find(), budget, by=by, reason=reason,
                tokens=tokens, cost=cost, effects=effects, steps=steps, wall=wall,
            )
        )  # fmt: skip
        await handle._post("unblock", "", _control(letter))

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
            status=states(status), limit=_checked_limit(limit, "effects"),
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

        _refuse_inside(choice)
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

        _refuse_inside("acknowledge")
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
            limit=_checked_limit(limit, "requests"),
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


def refuse_in_workflow_code(what: str) -> None:
    """What is done through a Client is no part of a run's history."""
    if execution_here() is not None:
        raise UsageError(
            f"a {what} was used in workflow code: what it does there is not recorded, and a replay would do it again. "
            "Use perdure.start() and the like, or do it in a step"
        )


def _refuse_inside(what: str) -> None:
    """For what people decide: no code of a run may, wherever it stands."""
    if ATTEMPT.get() is not None or JOURNAL.get() is not None or execution_here() is not None:
        raise UsageError(
            f"{what}() was called by a workflow or step: that is a person's to say, never the code's (or the agent's) "
            "that asks, or is in doubt"
        )


def _vault_of(secrets: Any, scrub: Any, now: Callable[[], int]) -> Vault:
    from perdure.runtime.vault import Vault, patterns_of, providers_of

    return Vault(providers_of(secrets), patterns_of(scrub), now)


def _by_key(workflows: Iterable[Any]) -> dict[tuple[str, int], WorkflowSpec]:
    """The workflows by name and version. UsageError when two of them claim the same."""
    known: dict[tuple[str, int], WorkflowSpec] = {}
    if not isinstance(workflows, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"workflows={workflows!r}: a list is wanted, as in workflows=[agent]")
    for workflow in workflows:
        spec = getattr(workflow, "spec", None)
        if not isinstance(spec, WorkflowSpec):
            raise UsageError(f"workflows=[{workflow!r}]: not a workflow; decorate it with @perdure.workflow")
        other = known.setdefault(spec.key, spec)
        if other.function is not spec.function:
            raise namesakes(other, spec)
    return known


def namesakes(one: WorkflowSpec, other: WorkflowSpec) -> UsageError:
    """What is said of two workflows of one name and version."""
    first, second = one.function, other.function
    return UsageError(
        f"two workflows are called {one.label}: {first.__module__}.{first.__qualname__} and "
        f"{second.__module__}.{second.__qualname__}: give one another name= or version="
    )


def _delay_seconds(delay: timedelta | float) -> float:
    wait = seconds(delay, what="delay")
    if wait > SECONDS_MAX:
        raise UsageError(f"start(delay={delay!r}): at most 100 years")
    return wait


def _check_call(call: Any) -> None:
    if not isinstance(call, Call):
        name = getattr(call, "name", "workflow")
        raise UsageError(f"start({call!r}): a call is wanted, as in start({name}.call(...))")


def _checked_id(id: Any) -> str:
    if id is None:
        return str(uuid.uuid4())
    return recordable(id, what="run id")


def _control(letter: mail.ControlLetter) -> bytes:
    """The letter as it is sent. UsageError for what is no text: whoever takes it could not read it."""
    for name in ("reason", "by", "call", "reference"):
        given = getattr(letter, name)
        if given != "" and not (name == "reference" and given is None):
            recordable(given, what=name, length_max=REASON_CHARACTERS_MAX, is_name=name == "call")
    return msgspec.json.encode(letter)


def _checked_budget(budget: Any) -> Budget | None:
    try:
        return budget_of_run(budget, what="start(budget=")
    except DeclarationError as error:
        raise UsageError(str(error)) from None


def checked_tags(tags: Any) -> dict[str, str]:
    """Tags as they are kept: names and values are texts."""
    given = mapping(tags)
    if given is None or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise UsageError(f'tags={tags!r}: a dict of texts, as in tags={{"customer": "Ada"}}')
    for name, value in given.items():
        recordable(name, what="tag name")
        recordable(value or "-", what=f"tag {name}")
    return given


def checked_goal(goal: Any) -> str:
    """A goal as it is kept."""
    if goal == "":
        return ""
    return recordable(goal, what="goal", length_max=GOAL_CHARACTERS_MAX, is_name=False)


def checked_scope(scope: Any) -> dict[str, str]:
    """A scope as it is kept: names and values are texts."""
    given = mapping(scope)
    if given is None or not all(isinstance(each, str) for pair in given.items() for each in pair):
        raise UsageError(f'scope={scope!r}: a dict of texts, as in scope={{"order": "42"}}')
    return {recordable(name, what="scope"): recordable(value, what=f"scope {name}") for name, value in given.items()}


def _checked_limit(limit: Any, what: str) -> int:
    if not is_whole(limit) or limit < 1:
        raise UsageError(f"{what}(limit={limit!r}): a whole number from 1 on")
    return int(min(limit, ROWS_MAX))


def _info_of(new: NewRun, rid: int) -> RunInfo:
    status = Status.RUNNING if new.owner else Status.QUEUED
    return RunInfo(
        rid, new.run_id, new.workflow, new.version, status, None, None, new.owner, 1 if new.owner else 0,
        new.input_digest,
        new.created_at, new.created_at, new.due_at, new.parent_run_id, new.tags, new.chapter_seq, None, None,
        new.lineage, new.forked_from and new.forked_from.run_id, new.forked_from and new.forked_from.seq,
    )  # fmt: skip


def _summary(info: RunInfo) -> RunSummary:
    return RunSummary(
        info.run_id, info.workflow, info.version, info.status, info.reason or "", info.hint or "",
        when(info.created_at),
        when(info.updated_at), None if info.due_at is None else when(info.due_at), info.tags, info.parent_run_id,
        info.owner, info.forked_from, info.forked_seq,
    )  # fmt: skip


def message_body(spec: WorkflowSpec | None, name: str, value: Any) -> bytes:
    """A message as it lies in the mailbox of a run of this workflow. UnknownNameError for a name that the workflow does
    not declare, EncodeError if the value cannot be recorded."""
    codec = _PLAIN
    if spec is not None and spec.receives is not None:
        if name not in spec.receives:
            raise UnknownNameError("declared message", name, spec.receives)
        codec = spec.receives[name]
    recordable(name, what="message name")
    return codec.dumps(value)


def payload(store: Store, rid: int, row: Row, slot: Literal["input", "output"]) -> bytes | None:
    """A payload beside an event, wherever it is kept; None if there is none."""
    inline = row.input if slot == "input" else row.output
    if inline is not None:
        return inline
    event = e.decode(row.envelope)
    address = getattr(event, slot, None)
    if not address or (slot == "input" and not getattr(event, "kept", True)):
        return None
    return unpack(address, None, lambda wanted: store.blob(rid, wanted))


def _readable(store: Store, rid: int, row: Row) -> HistoryEvent:
    event = e.decode(row.envelope)
    raw_in, raw_out = payload(store, rid, row, "input"), payload(store, rid, row, "output")
    return HistoryEvent(row.seq, when(row.at), row.kind, event, _plain(raw_in), _plain(raw_out), row.hash.hex())


def _plain(raw: bytes | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)


__all__ = ["Authority", "Client", "HistoryEvent", "Run", "RunSummary"]

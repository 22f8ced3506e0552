"""A handle on one run: look at it, wait for it, send to it, decide about it. It owns nothing.

Made by `Client.start`, `Client.get` and `Runtime.start`; all that it does goes through its client.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from perdure.api.inputs import PLAIN, REASON_CHARACTERS_MAX, checked_id, control_body, message_body, refuse_inside
from perdure.api.reading import HistoryEvent, RunSummary, info_of, payload, readable, summary_of
from perdure.codec import ValueCodec, load_exception
from perdure.errors import (
    OperationNotInDoubt,
    PerdureBug,
    RunBlockedError,
    RunCancelledError,
    RunFinishedError,
    UnknownNameError,
    UsageError,
)
from perdure.runtime import mail
from perdure.runtime.standstill import Standstill
from perdure.specs import WorkflowSpec, recordable, seconds_given
from perdure.store.protocol import Done, Ended, Exists, Missing, NewRun, RunInfo, Status
from perdure.store.rules import RETRY_AFTER_DEATH_SECONDS

if TYPE_CHECKING:
    from perdure.api.client import Client
    from perdure.api.inbox import InboxEntry
    from perdure.api.standing import DecisionStanding

RESULT = TypeVar("RESULT", covariant=True)


class Run(Generic[RESULT]):
    """A handle on a run. It owns nothing: to drop it, or to stop waiting, changes nothing about the run.

    `how` says what `start` did: `"started"`, `"attached"` to a run under way, or found that it `"finished earlier"`.
    """

    def __init__(self, client: Client, info: RunInfo, spec: WorkflowSpec | None, how: str = "attached") -> None:
        self._client = client
        self._info = info
        self._codec: ValueCodec = spec.result if spec is not None else PLAIN
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
        return summary_of(await self._client._read(self._find))

    async def state(self) -> Any:
        """What the workflow last gave to `set_state`, as plain JSON; None if it never did."""
        raw = (await self._client._read(self._find)).state
        return None if not raw else PLAIN.loads(raw)

    async def result(self, *, wait_blocked: bool = False, timeout: timedelta | float | None = None) -> RESULT:
        """Wait for the run's end and give its result, or raise what the workflow raised.

        RunBlockedError when the run is (or gets) parked, unless `wait_blocked`. RunCancelledError when it was
        cancelled. TimeoutError when it takes longer than `timeout`; the run goes on.
        """
        limit = None if timeout is None else seconds_given(timeout, what="timeout")
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
            await self._post("cancel", "", control_body(mail.ControlLetter(reason=reason, force=force)))
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
        await self._post("pause", "", control_body(mail.ControlLetter(by=by)))

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
        await self._post("resume", "", control_body(mail.ControlLetter(by=by)))

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

        `call`: which one is meant (as the inbox names it), where several may be stuck; default: the oldest when it is
        asked. A decision about what is not stuck any more changes nothing. DecodeError for a value that does not fit
        what is asked for, where that is known here; elsewhere the run's worker refuses it, and the inbox says so."""
        if choice not in {"retry", "value", "fail", "reuse", "keep", "recompute"}:
            raise UsageError(f"unblock({choice!r}): 'retry', 'value', 'fail', 'reuse', 'keep' or 'recompute'")
        raw = PLAIN.dumps(value).decode() if choice == "value" else None
        about = await self._client._read(lambda: self._unblocked(raw, call, choice, by))
        await self._post("unblock", "", control_body(mail.ControlLetter(reason, by, False, choice, raw, about)))

    def _unblocked(self, raw: str | None, call: str | None, choice: str, by: str) -> str:
        """The label of the call that is decided; empty for the run as a whole."""
        from perdure.api.inbox import blocked

        info = self._find()
        if info.status is not Status.BLOCKED:
            return call or ""
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
        return (stuck.call if call is None and stuck is not None else call) or ""

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
        refuse_inside("settle")
        if outcome not in {"succeeded", "failed", "retry"}:
            raise UsageError(f"settle({outcome!r}): 'succeeded', 'failed' or 'retry'")
        if outcome != "succeeded" and (value is not None or reference is not None):
            raise UsageError(f"settle({outcome!r}): value= and reference= belong to what has succeeded")
        raw = PLAIN.dumps(value).decode() if outcome == "succeeded" else None
        found = await self._client._read(lambda: self._settled(outcome, raw, operation, call, by))
        letter = mail.ControlLetter(reason, by, False, outcome, raw, found[0], reference, found[1])
        await self._post("unblock", "", control_body(letter))

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
        client, run_id = self._client, checked_id(id)
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
        info = info_of(made_or_there, outcome.rid)
        client._started(info, made_or_there, b"")
        return Run(client, info, client._spec_of(info), "started")

    async def history(self) -> list[HistoryEvent]:
        """The run's whole history, readable."""
        return await self._client._read(self._history)

    def _history(self) -> list[HistoryEvent]:
        store, rid = self._client._store, self._info.rid
        return [readable(store, rid, row) for row in store.load(rid, from_seq=0).rows]

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

"""Every error that perdure raises, on one tree, sorted by whose fault it is.

    PerdureError
    ├── UserCodeError            the program that uses perdure has to change
    │   ├── DeclarationError         a workflow or step that cannot be declared like this
    │   ├── UsageError               a call in a place where it cannot work
    │   │   ├── NotDurableError          an effect outside a run
    │   │   └── SecretNotAllowed         a secret that the step does not declare, or may not have
    │   ├── EncodeError              a value that cannot be recorded exactly, with its path
    │   ├── DecodeError              a recorded value that does not fit the type hint
    │   └── GuardError               workflow code reached for the outside world
    ├── RunError                 about one run
    │   ├── UnknownNameError         no such run, workflow, version or message name (lists near names)
    │   ├── RunConflictError         the id is taken by another workflow or input
    │   ├── RunBlockedError          the run is parked; says why and what unblocks it
    │   ├── RunCancelledError        the run was cancelled
    │   ├── MoveRefused              the run cannot go on under that version, or not now; nothing was changed
    │   ├── RunFinishedError         the run ended; nothing can be sent to it
    │   ├── ForkPointError           the run cannot be forked at that event; says where it can
    │   ├── DuplicateOperation       another call has asked for exactly this effect; nothing was sent
    │   ├── OperationConflict        another request under the id of an effect that may have happened
    │   ├── OperationOpen            an effect may have happened, so the run cannot be ended by force
    │   ├── OperationNotInDoubt      a decision about an effect that needs none
    │   ├── DecisionRefused          a decision that changes nothing, and why
    │   ├── AuthorityUnreadableError who may decide cannot be read just now; nothing was decided
    │   ├── Rejected                 a person has rejected what was to be approved
    │   ├── ApprovalExpired          nobody has approved in time, or it was too late to begin
    │   ├── CheckTooOld              what an approval rests on was read too long ago; it is read again
    │   ├── PremiseUnreadableError   what the result of a step rests on cannot be read
    │   ├── PolicyDenied             a policy did not let a call pass; nothing of it happened
    │   ├── OverBudget               a call that was not begun: too little was left, and a person let it fail
    │   ├── SecretUnavailable        no provider could give a secret that a step declares; its body was not called
    │   └── StepError                a step failed with an exception that is not rebuilt by class
    │       └── StepTimeoutError         an attempt took longer than its timeout
    ├── HistoryError             what was recorded and what happens now do not agree
    │   ├── HistoryMovedError        another worker appended first
    │   ├── FencedError              this worker lost the run (a newer epoch exists)
    │   └── HistoryCorruptError      the stored history is damaged
    ├── StoreError               the database
    │   ├── StoreBusyError           locked for longer than the busy limit
    │   ├── StoreFullError           no space left
    │   ├── StoreReadOnlyError       cannot be written
    │   ├── StoreFormatError         not a perdure store, or newer than this perdure
    │   ├── StoreUnsupportedError    this place cannot hold a store (no working file locks, Windows)
    │   └── ForkedError              a handle that was opened before fork() and used after it
    ├── WebhookError             a webhook that is unsigned, altered, or too old
    ├── Verdict                  what a step says about its own failure (raised by user code, on purpose)
    │   ├── Final                    do not try again
    │   ├── InDoubt                  an effect may have happened, or not
    │   ├── Retryable                try again, perhaps after a given time
    │   └── NeedsPerson              nobody but a person can say how to go on
    └── PerdureBug               perdure itself is wrong; please report it

Errors carry their data as attributes and survive `pickle` and `copy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any


class PerdureError(Exception):
    """The root of all errors that perdure raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[PerdureError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PerdureError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


# ── whose fault: the program that uses perdure ──────────────────────────────────────────────


class UserCodeError(PerdureError):
    """The program that uses perdure has to change."""


class DeclarationError(UserCodeError):
    """A workflow, step or option that cannot be declared like this. The message names the fix."""


class UsageError(UserCodeError):
    """A call in a place, or in an order, in which it cannot work. The message names the call to use instead."""


class NotDurableError(UsageError):
    """An effect was called outside a run, where nothing could account for it."""


class SecretNotAllowed(UsageError):
    """A secret that the step does not declare (`@step(secrets={...})`), or that a policy keeps from it. `secret` is its
    name; `policy` that of the policy, whose refusal comes before the body: nothing was sent."""

    def __init__(self, message: str, secret: str = "", policy: str = "") -> None:
        super().__init__(message)
        self.secret, self.policy = secret, policy


class EncodeError(UserCodeError):
    """A value that cannot be recorded so that it comes back equal. Nothing was written.

    `path` says where in the value (`$.items[2].lock`), `what` what was found there, `hint` what to do, `of` whose value
    it is: the arguments of a step, its result.
    """

    def __init__(self, path: str, what: str, hint: str = "", of: str = "") -> None:
        super().__init__((f"{of}: " if of else "") + f"{path}: {what}" + (f". {hint}" if hint else ""))
        self.path, self.what, self.hint, self.of = path, what, hint, of

    def about(self, of: str) -> EncodeError:
        """The same error, which says whose value it is."""
        return EncodeError(self.path, self.what, self.hint, of)


class DecodeError(UserCodeError):
    """A recorded value that does not fit the type hint under which it is read."""

    def __init__(self, path: str, what: str, hint: str = "") -> None:
        super().__init__(f"{path}: {what}" + (f". {hint}" if hint else ""))
        self.path, self.what, self.hint = path, what, hint


class GuardError(UserCodeError):
    """Workflow code reached for the outside world (clock, randomness, files, sockets, threads)."""


# ── about one run ───────────────────────────────────────────────────────────────────────────


class RunError(PerdureError):
    """Something about one run."""


class UnknownNameError(RunError):
    """No such run, workflow, version or message name. `near` lists names that are close."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = ()) -> None:
        import difflib  # only when something is wrong

        known = sorted(set(known))
        self.kind, self.name = kind, name
        self.near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:5]
        tail = f"; near: {', '.join(self.near)}" if self.near else ""
        super().__init__(f"there is no {kind} {name!r}{tail}")


class RunConflictError(RunError):
    """The run id is in use by another workflow or with another input. The first run is unharmed."""


class MoveRefused(RunError):
    """A run cannot be moved to a version of its workflow; nothing was changed. `why`: what its history has and the code
    there does not, or who has the run in hands."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id} is not moved: {why}")
        self.run_id, self.why = run_id, why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.run_id, self.why)


class RunBlockedError(RunError):
    """The run is parked until somebody acts. `reason` is one of the documented reasons, `hint` says what unblocks
    it."""

    def __init__(self, run_id: str, reason: str, hint: str) -> None:
        super().__init__(f"run {run_id} is blocked ({reason}): {hint}")
        self.run_id, self.reason, self.hint = run_id, reason, hint


class RunCancelledError(RunError):
    """The run was cancelled."""


class RunFinishedError(RunError):
    """The run has ended: it takes no messages, no cancel, no decision."""


class ForkPointError(RunError):
    """The run cannot be forked at that event: something is under way there that two runs cannot share, or there is no
    such event. `before` and `after` are the nearest events at which it can be; None where there is none."""

    def __init__(self, message: str, before: int | None = None, after: int | None = None) -> None:
        super().__init__(message)
        self.before, self.after = before, after


class OperationError(RunError):
    """Something that was refused because of where an effect stands. `operation_id` is that effect, `state` where it
    stands."""

    def __init__(self, message: str, operation_id: str = "", state: str = "") -> None:
        super().__init__(message)
        self.operation_id, self.state = operation_id, state


class DuplicateOperation(OperationError):
    """Another call has asked for exactly this effect. Nothing was sent. With `on_repeat="reuse"` it gets its answer."""


class OperationConflict(OperationError):
    """Another request under the id of an effect that may have happened. Nothing was sent. Give the effect a key that
    tells the two apart."""


class OperationOpen(OperationError):
    """An effect of the run may have happened, and nothing proves what became of it. Nothing was ended: settle it
    first."""


class OperationNotInDoubt(OperationError):
    """A person decided about an effect that is not in doubt: it never was, or its outcome is known, or somebody decided
    already. Nothing was changed."""


class DecisionRefused(RunError):
    """A decision that changes nothing. `approval_id` names the request, if it is about one; `why` is one of wrong_hash,
    decided, expired, withdrawn, lapsed, wrong_kind, not_an_approver, decided_already, delegated, unknown_person,
    role_not_held, not_allowed."""

    def __init__(self, message: str, approval_id: str = "", why: str = "") -> None:
        super().__init__(message)
        self.approval_id, self.why = approval_id, why


class AuthorityUnreadableError(RunError):
    """The function that says who has which role has failed: nothing is decided until it answers. The decision may be
    sent again; one that a worker has got waits."""


class Rejected(RunError):
    """A person has rejected what was to be approved: nothing of it happened. `by` is who, `role` what they acted as,
    `comment` what they said."""

    def __init__(self, message: str, by: str = "", comment: str = "", role: str = "", approval_id: str = "") -> None:
        super().__init__(message)
        self.by, self.comment, self.role, self.approval_id = by, comment, role, approval_id


class ApprovalExpired(RunError, TimeoutError):
    """Nobody has decided in time; or the approval was given in time, and it was too late to begin. Nothing of what was
    to be approved happened. Ask again if it is still wanted."""

    def __init__(self, message: str, approval_id: str = "") -> None:
        super().__init__(message)
        self.approval_id = approval_id


class CheckTooOld(RunError):
    """What an approval rests on was read again too long ago. Nothing was sent; `with_approval` reads it once more, so
    that a program does not see this."""


class PremiseUnreadableError(RunError):
    """What the result of a step rests on cannot be read: tried again, and then for a person. `premise`: its name. A
    program does not see this."""

    def __init__(self, message: str, premise: str = "") -> None:
        super().__init__(message)
        self.premise = premise


class PolicyDenied(RunError):
    """A policy did not let a call pass, or it needs an approval that it does not have: nothing of it happened.

    `call` is its name; `policy`, `version` and `rule` say who denied it, `why` for what reason. `free_at`: if its rate
    is used up, when there is room again (ISO 8601)."""

    def __init__(
        self, message: str, call: str = "", policy: str = "", version: str = "", rule: str = "", why: str = "",
        free_at: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.call, self.policy, self.version, self.rule = call, policy, version, rule
        self.why, self.free_at = why, free_at


class OverBudget(RunError):
    """A call was not begun: too little was left of a budget, and a person let the call fail.

    `budget` names the account that many runs share, and is empty for the run's own budget. `unit` is tokens, cost,
    effects, steps, wall or price; `limit` and `used` are in that unit, costs in billionths, wall in microseconds."""

    def __init__(self, message: str, budget: str = "", unit: str = "", limit: int = 0, used: int = 0) -> None:
        super().__init__(message)
        self.budget, self.unit, self.limit, self.used = budget, unit, limit, used


class SecretUnavailable(RunError):
    """A secret that a step declares could not be had, so its body was not called and nothing was sent.

    `secret` is its name, `providers` those that were asked, `kind` what follows: `retryable`, `final`, or `person` (it
    is missing or unusable; the step of a run waits for somebody to mend that)."""

    def __init__(self, message: str, secret: str = "", providers: str = "", kind: str = "final") -> None:
        super().__init__(message)
        self.secret, self.providers, self.kind = secret, providers, kind


class StepError(RunError):
    """A step failed with an exception whose class is neither a builtin, ours, nor declared with `raises=`.

    `type_name` is the class's name as it was, `attributes` what of it could be recorded.
    """

    def __init__(self, message: str, type_name: str = "", attributes: dict[str, Any] | None = None) -> None:
        super().__init__(f"{type_name}: {message}" if type_name else message)
        self.message, self.type_name, self.attributes = message, type_name, attributes or {}


class StepTimeoutError(StepError, TimeoutError):
    """An attempt of a step took longer than its `timeout`, or was silent for longer than its `heartbeat_timeout`."""


# ── what was recorded and what happens now do not agree ─────────────────────────────────────


class HistoryError(PerdureError):
    """The history and what happens now do not agree."""


class HistoryMovedError(HistoryError):
    """Another append came first: load and advance again, never retry with a new length."""


class FencedError(HistoryError):
    """This worker lost the run: a newer epoch exists. Nothing was appended."""


class HistoryCorruptError(HistoryError):
    """The stored history is damaged: a gap, a missing blob, a digest that does not match."""


# ── the database ────────────────────────────────────────────────────────────────────────────


class StoreError(PerdureError):
    """The database could not do what it was asked. The run goes on when the cause is gone."""


class StoreBusyError(StoreError):
    """The database was locked for longer than the busy limit."""


class StoreFullError(StoreError):
    """The database cannot grow: the disk, or its page limit, is full. Nothing was lost or half-done."""


class StoreReadOnlyError(StoreError):
    """The database cannot be written."""


class StoreFormatError(StoreError):
    """The file is not a perdure store, or it was written by a newer perdure."""


class StoreUnsupportedError(StoreError):
    """This place cannot hold a store: its file locks do not hold (network file systems, Windows)."""


class ForkedError(StoreError):
    """A handle that was opened before fork() was used after it, in the child."""


# ── about what others send ──────────────────────────────────────────────────────────────────


class WebhookError(PerdureError):
    """A webhook that is not to be believed: unsigned, signed with another secret, altered on its way, or too old."""


# ── what a step says about its own failure ──────────────────────────────────────────────────


class Verdict(PerdureError):
    """A step's own word on its failure; it outranks every classification."""


class Final(Verdict):
    """Raised in a step: this will not get better by trying again."""


class Retryable(Verdict):
    """Raised in a step: try again, after `after` (timedelta or seconds) if given.

    >>> raise Retryable("the queue is full", after=30)
    Traceback (most recent call last):
    perdure.errors.Retryable: the queue is full
    """

    def __init__(self, message: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if not isinstance(self.after_seconds, (int, float, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"Retryable(after={after!r}): a timedelta, or seconds as a number")


class InDoubt(Verdict):
    """Raised in an effect: it may have been carried out, or not. What follows is what `downstream=` declares."""


class NeedsPerson(Verdict):
    """Raised in a step: only a person can say how to go on. The run is parked as `needs_person`."""


class PerdureBug(PerdureError):
    """perdure itself is wrong. Please report it, with the message."""

"""What can stand in a run's history: one frozen class per kind of event.

An event is an envelope: small, readable JSON, hashed into the run's chain. Payloads (arguments, results, messages,
exceptions) are kept beside it, at most two per event, and enter the envelope by their digest alone: so a payload can
be erased later and the chain still holds. `input` and `output` are those digests.

A call is named by `task` (the path of the task that made it: "0" is the workflow itself, "0.2" its second child task)
and `n` (the how-many-eth call of that task). `name` and `use` (the n-th use of that name in that task) make it
readable: `0.2/search#3`. Calls of foreign code belong to a lane of their section: `0:3/main` is the main lane of the
section that is call 3 of task 0; they are no outcomes for the workflow's code. `view` is the digest of what
of the arguments counts, where a step declares that; `kept` is False where only the digest of the arguments is recorded.
"""

# No `from __future__ import annotations`: to read them again from text, for the decoder, takes msgspec a twentieth of
# `import perdure`.
import functools
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, ClassVar, cast, get_args

import msgspec

from perdure.codec.canonical import canonical_bytes
from perdure.codec.hiding import hidden_text
from perdure.history.spending import NO_LIMITS, NOTHING, Amount, Carried, Limits, Share, Shortfall, Use


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag_field="event"):
    """The base of all events."""

    is_outcome: ClassVar[bool] = False
    """Whether it is delivered to the workflow's code, in the order of the history."""


class Keyed(Event, frozen=True, omit_defaults=True, gc=False, tag_field="event"):
    """An event about one durable call."""

    task: str
    n: int
    name: str
    use: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.n)

    @property
    def is_in_section(self) -> bool:
        """Whether foreign code made this call."""
        return ":" in self.task

    @property
    def section(self) -> str:
        """Of a call of foreign code: which section it belongs to (`0:3`)."""
        return self.task.partition("/")[0]

    @property
    def label(self) -> str:
        return f"{self.task}/{self.name}#{self.use}"


# ── a run's beginning, chapters and end ─────────────────────────────────────────────────────


class RunStarted(Event, frozen=True, omit_defaults=True, gc=False, tag="run.started"):
    """The first event. `input` are the workflow's arguments; `seed` feeds its randomness. `goal`: what the run is for,
    in words; `scope`: what it is about, by names, which policies hold its calls to. `budget`: what the run
    may spend."""

    workflow: str
    version: int
    seed: int
    manifest: dict[str, Any]
    input: bytes
    parent: str | None = None
    goal: str = ""
    scope: dict[str, str] | None = None
    budget: Limits | None = None

    @property
    def identity(self) -> bytes:
        """What has to be the same for the same id to mean the same run: input and scope. A goal is words."""
        return identity_of(self.input, self.scope)


class ChapterStarted(Event, frozen=True, omit_defaults=True, gc=False, tag="run.continued"):
    """continue_as_new: the code starts afresh with new arguments. `output` are the messages that were not taken.
    `account`: what the run may spend, and has spent so far, if that is counted."""

    number: int
    seed: int
    manifest: dict[str, Any]
    input: bytes
    output: bytes
    goal: str = ""
    scope: dict[str, str] | None = None
    account: Carried | None = None


class RunForked(Event, frozen=True, omit_defaults=True, gc=False, tag="run.forked"):
    """The run goes its own way from here: what stands before are the events of run `of`, up to its event `seq`, whose
    hash is `head`."""

    of: str
    of_rid: int
    seq: int
    head: str
    by: str = ""
    why: str = ""


class RunCompleted(Event, frozen=True, omit_defaults=True, gc=False, tag="run.completed"):
    output: bytes


class RunFailed(Event, frozen=True, omit_defaults=True, gc=False, tag="run.failed"):
    output: bytes


class RunCancelled(Event, frozen=True, omit_defaults=True, gc=False, tag="run.cancelled"):
    forced: bool = False


def identity_of(input_digest: bytes, scope: Mapping[str, str] | None) -> bytes:
    """What a run is compared by when its id is used again: its input's digest, and with a scope one of both. 32 bytes.
    """
    return sha256(input_digest + canonical_bytes(dict(scope))).digest() if scope else input_digest


# ── steps ───────────────────────────────────────────────────────────────────────────────────


class Denied(msgspec.Struct, frozen=True, gc=False):
    """Which rule of which policy let a call not pass; of an effect that was sent, which one let it pass (no rule: none
    of the policy said anything about it)."""

    policy: str
    version: str
    rule: str

    @property
    def told(self) -> str:
        """In words."""
        return f"policy {self.policy} version {self.version}" + (f", rule {self.rule!r}" if self.rule else "")


class StepStarted(Keyed, frozen=True, omit_defaults=True, gc=False, tag="step.started"):
    """Rides along with another commit while the step is under way, or goes first if the run is a suspect."""

    input: bytes | None = None
    view: bytes | None = None
    kept: bool = True
    attempt: int = 1


class StepCompleted(Keyed, frozen=True, omit_defaults=True, gc=False, tag="step.completed"):
    """`input` is None if a StepStarted has it."""

    is_outcome: ClassVar[bool] = True
    output: bytes = b""
    input: bytes | None = None
    view: bytes | None = None
    kept: bool = True
    attempt: int = 1
    started_at: int = 0


class StepFailed(Keyed, frozen=True, omit_defaults=True, gc=False, tag="step.failed"):
    """No further attempt. `output` is the exception. `denied`: it was not performed, since a policy did not let it
    pass."""

    is_outcome: ClassVar[bool] = True
    output: bytes = b""
    input: bytes | None = None
    view: bytes | None = None
    kept: bool = True
    attempt: int = 1
    started_at: int = 0
    denied: Denied | None = None


class StepReused(StepCompleted, frozen=True, omit_defaults=True, gc=False, tag="step.reused"):
    """The result that the same call had before the run was rewound, at event `of`; the step was not made again."""

    of: int = 0


class AttemptFailed(Keyed, frozen=True, omit_defaults=True, gc=False, tag="step.attempt_failed"):
    """An attempt failed and another one follows at `retry_at`. `first_at`: when the first attempt began."""

    output: bytes = b""
    input: bytes | None = None
    view: bytes | None = None
    kept: bool = True
    attempt: int = 1
    started_at: int = 0
    retry_at: int = 0
    first_at: int = 0


class Heartbeat(Keyed, frozen=True, omit_defaults=True, gc=False, tag="step.heartbeat"):
    """A step reported how far it is; the next attempt can read `output`."""

    output: bytes = b""
    attempt: int = 1


class CallCancelled(Keyed, frozen=True, omit_defaults=True, gc=False, tag="call.cancelled"):
    """The code cancelled a call under way; what comes of it is recorded and not delivered."""


# ── effects: steps with an entry in the ledger ──────────────────────────────────────────────


class EffectStarted(StepStarted, frozen=True, omit_defaults=True, gc=False, tag="effect.started"):
    """An attempt is about to be sent; durable before it is. `operation` is its id in the ledger, `approval` that of
    the approval which it uses up, `check` the number of the last check of what the run's decisions rest on. `passed`:
    what let it pass, where a policy is set. `relies_on`: the premises and steps that were checked for it, if the effect
    names some; None: all."""

    operation: str = ""
    business_key: str = ""
    revision: int = 0
    approval: str = ""
    check: int = 0
    passed: Denied | None = None
    relies_on: tuple[str, ...] | None = None


class EffectSucceeded(StepCompleted, frozen=True, omit_defaults=True, gc=False, tag="effect.succeeded"):
    """`how` it is known: returned, found (by look-up), late (the attempt answered after it was given up for lost),
    settled (by a person) or reused (from the ledger). `reference`: what the other side calls it. `undoes`: the
    operation that it took back, if it is the undoing of another effect. `approval`: used up by it, and `passed`: what
    let it pass, where the effect has no start of its own."""

    operation: str = ""
    business_key: str = ""
    reference: str | None = None
    how: str = "returned"
    undoes: str = ""
    approval: str = ""
    passed: Denied | None = None


class EffectFailed(StepFailed, frozen=True, omit_defaults=True, gc=False, tag="effect.failed"):
    """Proven that it did not happen. `how`: refused, gave_up, denied (a gate did not let it pass: nothing was sent),
    settled, cancelled, or what Prepare found: conflict, duplicate, reused."""

    operation: str = ""
    business_key: str = ""
    how: str = "refused"


class EffectNotDone(AttemptFailed, frozen=True, omit_defaults=True, gc=False, tag="effect.not_done"):
    """An attempt of which it is proven that it did nothing; another one follows at `retry_at`. `attempt_counted`: how
    many attempts count against the limit; what a crash interrupted does not."""

    operation: str = ""
    business_key: str = ""
    attempt_counted: int = 1


class EffectInDoubt(Keyed, frozen=True, omit_defaults=True, gc=False, tag="effect.in_doubt"):
    """Nothing proves what became of an attempt.

    `retry_at`: when it is sent again, where the other side honours our key. `first_at`: when the first attempt began.
    `counts`: whether it is one of the attempts that are limited; what a crash interrupted is not. `by_suspicion`: it
    was taken over from a process that may be alive. `wants_person`: the effect said itself that only a person can tell.
    """

    operation: str = ""
    attempt: int = 1
    why: str = ""
    retry_at: int = 0
    first_at: int = 0
    counts: bool = True
    by_suspicion: bool = False
    wants_person: bool = False


class EffectLookedUp(Keyed, frozen=True, omit_defaults=True, gc=False, tag="effect.looked_up"):
    """The other side was asked. `answer`: found, not_found, or unsure (`why`)."""

    operation: str = ""
    answer: str = ""
    why: str = ""
    reference: str | None = None


class EffectNoted(Keyed, frozen=True, omit_defaults=True, gc=False, tag="effect.noted"):
    """Something about an effect that changes no state: an id of the request, noted before it was sent, or a second
    reference under which the other side answered success."""

    operation: str = ""
    request_id: str | None = None
    reference: str | None = None
    note: str = ""


# ── children ────────────────────────────────────────────────────────────────────────────────


class ChildStarted(Keyed, frozen=True, omit_defaults=True, gc=False, tag="child.started"):
    """`again`: the run has gone back since another child of the same id was started, and so its id ends with this
    number."""

    run_id: str = ""
    version: int = 0
    input: bytes | None = None
    on_cancel: str = "wait"
    attached: bool = False
    again: int = 0


class ChildEnded(Keyed, frozen=True, omit_defaults=True, gc=False, tag="child.ended"):
    """`output` is the child's result if `status` is completed, else the exception. One that no call waits for, since
    the run has gone back, stands under the task `~`."""

    is_outcome: ClassVar[bool] = True
    run_id: str = ""
    status: str = ""
    output: bytes = b""


# ── foreign code ────────────────────────────────────────────────────────────────────────────


class SectionStarted(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.started"):
    input: bytes | None = None


class SectionUndoes(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.undoes"):
    """Foreign code has entered a saga: should its section be cancelled, what was done in there is undone."""


class SectionWait(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.waits"):
    """Foreign code waits (for time, or for a message with a limit) until `deadline`."""

    deadline: int = 0


class SectionReceived(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.received"):
    """Foreign code takes the first message called `message` from the mailbox as it stands here, if there is one."""

    is_outcome: ClassVar[bool] = True
    message: str = ""


class SectionGaveBack(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.gave_back"):
    """Foreign code is over before it got the message called `message` that was taken for this call of its: it is in the
    mailbox again, in its old place."""

    is_outcome: ClassVar[bool] = True
    message: str = ""


class SectionEnded(Keyed, frozen=True, omit_defaults=True, gc=False, tag="section.ended"):
    """`unused`: recorded calls that the last execution of the section did not ask for. `continues`: it was a workflow's
    own code and asked to begin anew; `output` are the arguments then."""

    is_outcome: ClassVar[bool] = True
    failed: bool = False
    output: bytes = b""
    unused: tuple[str, ...] = ()
    continues: bool = False


# ── what comes from outside ─────────────────────────────────────────────────────────────────


class TimePassed(Event, frozen=True, omit_defaults=True, gc=False, tag="time.passed"):
    """A timer is due and nothing else came."""

    is_outcome: ClassVar[bool] = True


class MessageArrived(Event, frozen=True, omit_defaults=True, gc=False, tag="message.arrived"):
    """`by`: who says to have sent it."""

    is_outcome: ClassVar[bool] = True
    name: str
    output: bytes
    sent_at: int = 0
    by: str = ""


class MessageSettled(Keyed, frozen=True, omit_defaults=True, gc=False, tag="message.settled"):
    """What a receive gets in place of a message that it could not read, by a person's decision: a value, the message
    itself (read with other code), or, if `failed`, an exception."""

    is_outcome: ClassVar[bool] = True
    failed: bool = False
    output: bytes = b""


class PersonAsked(Keyed, frozen=True, omit_defaults=True, gc=False, tag="person.asked"):
    """The code waits for people to decide: about one exact call (`kind` approval) or a question.

    `input` is the request's body, `hash` what a decision about it has to name. `expires_at`: nobody's decision counts
    from then on. `reminds_at`, `escalates_at`: when people are told of it once more if it is open then."""

    kind: str = ""
    id: str = ""
    hash: bytes = b""
    version: int = 0
    input: bytes = b""
    expires_at: int = 0
    reminds_at: int = 0
    escalates_at: int = 0


class PersonReminded(Event, frozen=True, omit_defaults=True, gc=False, tag="person.reminded"):
    """Nobody has decided about the request `id` for so long that people are told of it once more (`what` reminder), or
    that others may decide, too (`what` escalation, `to` those)."""

    id: str
    what: str
    to: tuple[str, ...] = ()


class PersonDecided(Event, frozen=True, omit_defaults=True, gc=False, tag="person.decided"):
    """A decision that has come and decides nothing yet, or nothing at all.

    It is one of several that are needed; or hands the decision on (`to`); or came before anybody asked (`is_early`: it
    counts if exactly this is asked later); or changes nothing, for the reason `refused`. `output`: an early answer."""

    id: str
    choice: str
    by: str
    hash: str = ""
    role: str = ""
    why: str = ""
    to: str = ""
    output: bytes = b""
    sent_at: int = 0
    is_early: bool = False
    refused: str = ""


class ApprovalSpent(Event, frozen=True, omit_defaults=True, gc=False, tag="approval.spent"):
    """A step or child run that was approved begins: the approval is good for nothing else. `call`: its label. Or it has
    `lapsed`: it was given in time, and the call would have begun too late."""

    id: str
    call: str = ""
    lapsed: bool = False


class PersonAnswered(Keyed, frozen=True, omit_defaults=True, gc=False, tag="person.answered"):
    """What became of a question that the code waits with: a person's decision (`choice`, by whom, `output`: the value
    that came with it), or `expired`: there was none in time. `role`: what the person acted as."""

    is_outcome: ClassVar[bool] = True
    choice: str = ""
    by: str = ""
    why: str = ""
    output: bytes = b""
    role: str = ""


class CancelRequested(Event, frozen=True, omit_defaults=True, gc=False, tag="run.cancel_requested"):
    is_outcome: ClassVar[bool] = True
    reason: str = ""


class RunPaused(Event, frozen=True, omit_defaults=True, gc=False, tag="run.paused"):
    by: str = ""


class RunResumed(Event, frozen=True, omit_defaults=True, gc=False, tag="run.resumed"):
    by: str = ""


# ── what perdure notes about the run ────────────────────────────────────────────────────────


class Patched(Event, frozen=True, omit_defaults=True, gc=False, tag="run.patched"):
    patch: str
    answer: bool


class Adopted(Event, frozen=True, omit_defaults=True, gc=False, tag="run.adopted"):
    """The run goes on under another manifest than before. `how`: `claimed` (the code says that it may), or `moved`
    (`by` somebody, to the version that the manifest has). `told`: what is another one, in words."""

    manifest: dict[str, Any]
    how: str
    told: str = ""
    by: str = ""


class TakenOver(Event, frozen=True, omit_defaults=True, gc=False, tag="run.taken_over"):
    """Another worker goes on. `how`: `proof` (the old worker's lock is dropped) or `suspicion` (its lease ran out), or
    `left`: nobody died; who had it before has let go of it while something may be under way (`previous` is empty)."""

    previous: str
    how: str
    epoch: int


class RunBlocked(Event, frozen=True, omit_defaults=True, gc=False, tag="run.blocked"):
    """Nobody but a person, or new code, gets the run on. `task`, `n`: the call that is stuck, if it is one call.
    `short`: of what budget it wants more than there is. `risk`: `high` if a fork would do such an effect again."""

    reason: str
    hint: str
    task: str | None = None
    n: int = 0
    name: str = ""
    use: int = 0
    short: Shortfall | None = None
    risk: str = ""

    @property
    def call(self) -> str | None:
        """The label of the call that is stuck; None if the run as a whole is."""
        return None if self.task is None else f"{self.task}/{self.name}#{self.use}"


class RunUnblocked(Event, frozen=True, omit_defaults=True, gc=False, tag="run.unblocked"):
    """A person decided. `choice`: retry, value or fail; with a value or failure for the call `task`, `n`. Or the code
    did, by cancelling that call. Of a call that was over budget: raise_budget, or go_on, with its next attempt."""

    choice: str
    by: str = ""
    task: str | None = None
    n: int = 0
    why: str = ""
    name: str = ""
    use: int = 0

    @property
    def call(self) -> str | None:
        """The label of the call that was stuck; None if the run as a whole was, or if it is not known."""
        return None if self.task is None or not self.name else f"{self.task}/{self.name}#{self.use}"


# ── what a run spends ───────────────────────────────────────────────────────────────────────


class AboutCall(Event, frozen=True, omit_defaults=True, gc=False, tag_field="event"):
    """An event about a call that is none of the call itself: no part of what its code, run again, asks for."""

    task: str
    n: int
    name: str
    use: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.n)

    @property
    def call(self) -> str:
        return f"{self.task}/{self.name}#{self.use}"


class OfBudget(AboutCall, frozen=True, omit_defaults=True, gc=False, tag_field="event"):
    """An event about what one attempt at a call spends."""

    attempt: int
    amount: Amount = NOTHING


class BudgetReserved(OfBudget, frozen=True, omit_defaults=True, gc=False, tag="budget.reserved"):
    """An attempt is about to begin, and may use so much; durable before it does. From then on it counts.

    `unsaid`: units of which the call does not say what it will use. `shares`: the accounts of many runs in which it
    counts, too. `is_effect`: it only begins with its own start, which comes later."""

    unsaid: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    is_effect: bool = False


class BudgetSpent(OfBudget, frozen=True, omit_defaults=True, gc=False, tag="budget.spent"):
    """What an attempt has used, in place of what was reserved for it. `uses`: what it said itself. `how`: told (as far
    as it said), interrupted (nobody heard what came of it, so what was reserved counts), not_begun."""

    uses: tuple[Use, ...] = ()
    how: str = "told"


class BudgetPriced(Event, frozen=True, omit_defaults=True, gc=False, tag="budget.priced"):
    """The cost of all that was used before there was a price for it."""

    uses: tuple[Use, ...]
    amount: Amount


class BudgetRaised(Event, frozen=True, omit_defaults=True, gc=False, tag="budget.raised"):
    """A person has set new limits. `budget`, `since`: the shared account, if it is not the run's own budget."""

    limits: Limits = NO_LIMITS
    by: str = ""
    why: str = ""
    budget: str = ""
    since: int = 0


# ── what decisions rest on ──────────────────────────────────────────────────────────────────


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One premise as it was read: its name, and the digest of its value."""

    name: str
    digest: bytes


class PremisesRead(AboutCall, frozen=True, omit_defaults=True, gc=False, tag="premises.read"):
    """What the result of a step rests on, as it was read before the step's body began, at `read_at`; in the commit of
    that result, in front of it. `output`: the values by name. `valid_until`: how long the result is good for (0: no
    limit). `result`: its digest. `renews`: the step was made again and gave the same; there is no result of its own."""

    facts: tuple[Fact, ...] = ()
    output: bytes = b""
    result: bytes = b""
    read_at: int = 0
    valid_until: int = 0
    renews: bool = False


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a check has found out about the result of one step that does not simply stand: which of its premises have
    changed, whether its time is over, and what was done about it."""

    task: str
    n: int
    call: str
    changed: tuple[str, ...] = ()
    is_expired: bool = False
    did: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.n)


class PremisesChecked(Event, frozen=True, omit_defaults=True, gc=False, tag="premises.checked"):
    """Everything that the run's decisions rest on was read again, from `read_at` on; or what `relies_on` names of it,
    premises and steps. `number`: the check's, which the start of an effect names. `why`: resumed, waited, effect.
    `looked_at`: how many decisions. `findings`: those that do not simply stand. `output`: the values of what has
    changed, by call and name."""

    number: int
    why: str
    read_at: int
    looked_at: int = 0
    findings: tuple[Finding, ...] = ()
    output: bytes = b""
    relies_on: tuple[str, ...] | None = None


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A durable timer as it was armed. Microseconds."""

    task: str
    n: int
    length: int
    deadline: int


class ChildDismissed(AboutCall, frozen=True, omit_defaults=True, gc=False, tag="child.dismissed"):
    """A child run that was started before the run went back, and that its new way does not want, is told to stop, if it
    has not ended. The call is the one that had started it. Or it was started by such a child, `parent`."""

    run_id: str = ""
    parent: str = ""


class ChildOwed(AboutCall, frozen=True, omit_defaults=True, gc=False, tag="child.owed"):
    """A child run that was dismissed has ended: what it has done outside is owed from here on. `output`: which effects,
    with their arguments and results."""

    is_outcome: ClassVar[bool] = True
    run_id: str = ""
    output: bytes = b""


class Rewound(Event, frozen=True, omit_defaults=True, gc=False, tag="run.rewound"):
    """The result of the step `task`, `n` did not stand, and the step, made again, has given another one, which follows.
    What stands from event `to` on is superseded: the run goes on as if that had not come yet.

    Arrivals, people's decisions and checks are never superseded, nor what became of a call that was made before. What
    was done outside stays done, and owed. `stale`: other steps whose results do not stand either. `timers`: those that
    keep their deadlines."""

    is_outcome: ClassVar[bool] = True
    to: int
    task: str
    n: int
    name: str
    use: int
    stale: tuple[tuple[str, int], ...] = ()
    timers: tuple[Timer, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.n)

    @property
    def call(self) -> str:
        return f"{self.task}/{self.name}#{self.use}"


ENDINGS = (RunCompleted, RunFailed, RunCancelled)

AnyEvent = (
    RunStarted
    | ChapterStarted
    | RunForked
    | RunCompleted
    | RunFailed
    | RunCancelled
    | StepStarted
    | StepCompleted
    | StepReused
    | StepFailed
    | AttemptFailed
    | Heartbeat
    | CallCancelled
    | EffectStarted
    | EffectSucceeded
    | EffectFailed
    | EffectNotDone
    | EffectInDoubt
    | EffectLookedUp
    | EffectNoted
    | ChildStarted
    | ChildEnded
    | SectionStarted
    | SectionUndoes
    | SectionWait
    | SectionReceived
    | SectionGaveBack
    | SectionEnded
    | TimePassed
    | MessageArrived
    | MessageSettled
    | PersonAsked
    | PersonReminded
    | PersonDecided
    | PersonAnswered
    | ApprovalSpent
    | CancelRequested
    | RunPaused
    | RunResumed
    | Patched
    | Adopted
    | TakenOver
    | RunBlocked
    | RunUnblocked
    | BudgetReserved
    | BudgetSpent
    | BudgetPriced
    | BudgetRaised
    | PremisesRead
    | PremisesChecked
    | Rewound
    | ChildDismissed
    | ChildOwed
)

KINDS: dict[type[Event], str] = {cls: str(cls.__struct_config__.tag) for cls in get_args(AnyEvent)}

encode = msgspec.json.Encoder().encode


@functools.cache
def _decoder() -> msgspec.json.Decoder[AnyEvent]:
    """Made when the first event is read: it takes as long as all else here."""
    return msgspec.json.Decoder(AnyEvent)


def decode(raw: bytes) -> AnyEvent:
    """The event that this envelope is of, whichever version wrote it. MsgspecError, or UnicodeDecodeError, if it is of
    none."""
    try:
        return _decoder().decode(raw)
    except msgspec.ValidationError:
        from perdure.history.upcasting import upcast

        fields = upcast(raw)
        if fields is None:
            raise
        event: AnyEvent = msgspec.convert(fields, AnyEvent)
        return event


NAMES = frozenset(
    {
        "workflow", "parent", "task", "name", "operation", "business_key", "approval", "how", "undoes", "answer",
        "run_id", "on_cancel", "status", "message", "kind", "id", "hash", "choice", "refused", "call", "patch",
        "previous", "account", "budget", "unit", "prices", "unused",
    }
)  # fmt: skip
"""What of an event tells which call, run, effect or kind it is about. Such are made of what everybody may read (the
codec refuses them where they are made); any other text may hold what is never recorded, and gets a mark then."""


def without_secrets(event: Event) -> Event:
    """The event as it may be recorded; itself where nothing of it is to be hidden."""
    return cast("Event", _without_secrets(event))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return hidden_text(value)
    if isinstance(value, tuple):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        hidden = [_without_secrets(item) for item in items]
        return value if hidden == items else tuple(hidden)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, msgspec.Struct):
        return value
    given = {name: getattr(value, name) for name in value.__struct_fields__ if name not in NAMES}
    changes = {name: hidden for name, item in given.items() if (hidden := _without_secrets(item)) != item}
    return msgspec.structs.replace(value, **changes) if changes else value


def readable(envelope: bytes, kind: str) -> Event | None:
    """An event as it stands beside its kind in a row; None if it is damaged: not to be read, or of another kind.

    >>> readable(b'{"event":"time.passed"}', "run.completed")
    """
    try:
        event: Event = decode(envelope)
    except ValueError:  # msgspec's errors and Unicode's are such
        return None
    if KINDS[type(event)] == kind:
        return event
    from perdure.history.upcasting import kind_today

    return event if KINDS[type(event)] == kind_today(kind, envelope) else None


def kind(event: Event) -> str:
    """The event's kind as it stands in histories and tables (`step.completed`).

    >>> kind(TimePassed())
    'time.passed'
    """
    return KINDS[type(event)]

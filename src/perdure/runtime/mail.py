"""Letters: how everybody but its owner speaks to a run, and how each kind enters the history."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.codec import dump_exception, pack
from perdure.codec.hiding import hidden
from perdure.decisions import refusal_of
from perdure.engine.calls import DONE_BY_ORIGINAL, QUESTIONS, Ask, Key, StepAsk, UnreadAsk, section_of
from perdure.errors import RunCancelledError, StepError
from perdure.history import events as e
from perdure.history.spending import Limits, Share
from perdure.specs import OnStale
from perdure.store.protocol import Letter, Mail, Status

if TYPE_CHECKING:
    from perdure.runtime.live import LiveRun
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.inbox")

REFUSED = "; refused: "
RAISED = "raised"
FREED = "freed"
"""The choice of a letter that no person writes: the store sends it to whoever waits for an account that was raised."""

NO_VALUE = "no value can unblock this: "
CANCELLED = dump_exception(RunCancelledError("the run was cancelled"), ())


class EndingLetter(msgspec.Struct, frozen=True):
    """How a child ended."""

    status: str
    output: msgspec.Raw


class ControlLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of cancel, pause, resume and unblock. `call`: the label of the call that an unblock is about. `attempt`:
    the last one of the effect when whoever settles it looked; a later one is another doubt. 0: did not look. `limits`:
    new ones, of the run's budget or of what many share (`budget`, `since`)."""

    reason: str = ""
    by: str = ""
    force: bool = False
    choice: str = ""
    value: str | None = None
    call: str = ""
    reference: str | None = None
    attempt: int = 0
    limits: Limits | None = None
    budget: str = ""
    since: int = 0


class ChildKey(msgspec.Struct, frozen=True, array_like=True):
    """Which call of the parent a child's ending belongs to."""

    task: str
    n: int
    name: str
    use: int
    run_id: str


def letter(run_id: str, kind: str, *, key: str = "", body: bytes = b"{}", now: int, by: str = "") -> Letter:
    """A letter with an id of its own."""
    return Letter(os.urandom(16), run_id, kind, key, body, now, by)


def from_parent(run_id: str, *, now: int) -> Letter:
    """A child is told that its parent does not want it any more."""
    return letter(run_id, "cancel", body=b'{"reason":"the parent cancelled it"}', now=now)


def told(mail: Mail) -> str:
    """What a control letter asks for, in words: `unblock --retry by ann`."""
    body = msgspec.json.decode(mail.body, type=ControlLetter)
    if body.choice == RAISED:
        return f"the budget was raised by {body.by}"
    if body.choice == FREED:
        return "there is room in the budget again"
    kind = "settle" if body.choice in {"succeeded", "failed"} else mail.kind
    what = kind + (" --force" if body.force else "") + (f" --{body.choice}" if body.choice else "")
    return what + (f" of {body.call}" if body.call else "") + (f" by {body.by}" if body.by else "")


def call_of(mail: Mail) -> str:
    """The label of the call that a control letter is about; empty if it does not say."""
    return msgspec.json.decode(mail.body, type=ControlLetter).call


def ending(status: Status, raw: bytes) -> bytes:
    """What a run's watchers get when it ends."""
    return msgspec.json.encode(EndingLetter(str(status), msgspec.Raw(raw)))


def child_key(ask: Any) -> str:
    """The key under which a child's ending comes back."""
    task, n = ask.key
    return msgspec.json.encode(ChildKey(task, n, ask.name, ask.use, ask.run_id)).decode()


def is_too_early(turns: Turns, live: LiveRun, mail: Mail) -> bool:
    """Whether something was given for a call that hosted code has not made again yet (a value, or once more the message
    that it could not read): whether it fits is not known so far."""
    if mail.kind == "decide":
        return turns.approvals.is_too_early(live, mail)
    if mail.kind != "unblock":
        return False
    letter = msgspec.json.decode(mail.body, type=ControlLetter)
    stuck = _stuck(live, letter)
    if not stuck or ":" not in stuck[0][0] or turns.sections.has_asked(live, stuck[0]):
        return False
    is_about_message = letter.choice == "retry" and live.blocked_calls[stuck[0]].reason == "undecodable"
    is_about_result = letter.choice == "succeeded" and _is_hosted(live, stuck[0])
    return letter.choice == "value" or is_about_message or is_about_result


def _is_hosted(live: LiveRun, key: Key) -> bool:
    """Whether the hosted code that made a call is about to make it again: it is not over with it."""
    section = key[0].partition("/")[0]
    return any(section == section_of(at) for at in (*live.execution.open, *live.execution.holding))


def take(turns: Turns, live: LiveRun, mail: Mail) -> None:
    """Let a letter enter the run's history."""
    match mail.kind:
        case "message":
            packed = pack(mail.body, live.execution.memo)
            arrived = e.MessageArrived(mail.key, packed.digest, mail.sent_at, mail.by)
            live.record(arrived, raw=mail.body, output=packed, delivers=True)
        case "child":
            _take_child(turns, live, mail)
        case "decide":
            turns.approvals.take(live, mail)
        case "cancel":
            _take_cancel(turns, live, msgspec.json.decode(mail.body, type=ControlLetter))
        case "pause" | "resume":
            _take_pause(turns, live, mail.kind, msgspec.json.decode(mail.body, type=ControlLetter))
        case _:
            _take_unblock(turns, live, msgspec.json.decode(mail.body, type=ControlLetter))
            turns.parking.decided(live)


def without_secrets(mail: Mail) -> Mail:
    """The letter as it may be recorded: whoever sent it may not know what is secret here."""
    return mail._replace(body=hidden(mail.body))


def _take_child(turns: Turns, live: LiveRun, mail: Mail) -> None:
    key = msgspec.json.decode(mail.key, type=ChildKey)
    body = msgspec.json.decode(mail.body, type=EndingLetter)
    raw = bytes(body.output)
    if live.execution.leftovers is not None and turns.dismissing.takes(live, key, body.status, raw):
        return
    packed = pack(raw, live.execution.memo)
    event = e.ChildEnded(key.task, key.n, key.name, key.use, key.run_id, body.status, packed.digest)
    started = live.execution.known.children.get(event.key)
    if key.run_id not in {live.execution.children.get(event.key), started and started.run_id}:
        return  # a child of an earlier chapter, abandoned there; a call of this one may have the same key
    live.has_sections |= event.is_in_section
    live.record(event, raw=raw, output=packed, delivers=True)


def _take_cancel(turns: Turns, live: LiveRun, letter: ControlLetter) -> None:
    if letter.force:
        turns.ends.by_force(live)
        return
    live.record(e.CancelRequested(letter.reason), delivers=True)
    if live.is_paused:
        turns.parking.resume(live, "cancel")


def _take_pause(turns: Turns, live: LiveRun, kind: str, letter: ControlLetter) -> None:
    if kind == "pause" and not live.is_paused:
        turns.parking.pause(live, letter.by)
    elif kind == "resume" and live.is_paused:
        turns.parking.resume(live, letter.by)


def _take_unblock(turns: Turns, live: LiveRun, letter: ControlLetter) -> None:
    """A decision about a call that nobody waits for any more, or that was decided meanwhile, changes nothing."""
    if letter.choice in {RAISED, FREED}:
        turns.budgets.look_again(live, is_told=True)
        return
    if letter.limits is not None:
        if _is_refused(turns, live, letter, e.RunBlocked("over_budget", "")):
            return
        stuck = turns.budgets.take_raise(
            live, letter.limits, letter.by, letter.reason, Share(letter.budget, letter.since)
        )
        for key in stuck:
            try_again(turns, live, letter, key)
        return
    stuck = _stuck(live, letter)
    blocked = live.blocked_calls[stuck[0]] if stuck else None if letter.call else live.blocked
    if blocked is None or _is_refused(turns, live, letter, blocked):
        return
    if stuck:
        _unblock_call(turns, live, letter, stuck[0])
    else:
        _unblock_run(turns, live, letter)


def _is_refused(turns: Turns, live: LiveRun, letter: ControlLetter, blocked: e.RunBlocked) -> bool:
    """Whether this person may not decide that. It stands in the history, and changes nothing."""
    refused = refusal_of(turns.authority, blocked.reason, letter.choice, by=letter.by)
    if refused is None:
        return False
    told = f"{refused.why}: {refused.told}"
    log.warning("run %s: %s --%s is refused: %s", live.run_id, blocked.call or "unblock", letter.choice, told)
    live.record(e.PersonDecided(blocked.call or "", letter.choice, letter.by, why=letter.reason, refused=told))
    return True


def _stuck(live: LiveRun, letter: ControlLetter) -> list[Key]:
    """The stuck calls that a decision may be about; it is about the first. Who settles an effect names it: what may
    have come into doubt since somebody looked is nothing that a decision about the run speaks of."""
    stuck = [key for key, blocked in live.blocked_calls.items() if letter.call in {"", blocked.call}]
    effects = live.execution.known.effects
    return [key for key in stuck if letter.call or key not in effects or _is_undone(live.blocked_calls[key])]


def _is_undone(blocked: e.RunBlocked) -> bool:
    """Whether nothing of an effect is in doubt: it waits for a budget, or for a word about its original."""
    return blocked.short is not None or blocked.reason == DONE_BY_ORIGINAL


def _unblock_call(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key) -> None:
    blocked = live.blocked_calls[key]
    ask = live.execution.open.get(key)
    if blocked.name in QUESTIONS:
        _answer(turns, live, letter, blocked)
        return
    if blocked.short is not None:
        _decide_about_budget(turns, live, letter, key)
        return
    if blocked.reason == DONE_BY_ORIGINAL:
        turns.forks.decide(live, letter, blocked, key)
        return
    if key in live.execution.known.effects:
        _settle(turns, live, letter, key)
        return
    message = bytes(ask.unread) if isinstance(ask, UnreadAsk) else turns.sections.unread(live, key)
    value = message if message is not None and letter.choice == "retry" else (letter.value or "null").encode()
    if letter.choice == "value" or (letter.choice == "retry" and message is not None):
        problem = turns.sections.misfit(live, key, value) if ask is None else _misfit(ask, value)
        if problem:
            hint = blocked.hint.partition(REFUSED)[0] + REFUSED + _refusal(letter) + problem
            turns.parking.block(live, msgspec.structs.replace(blocked, hint=hint))
            return
    _unblocked(turns, live, letter, key)
    if letter.choice == "retry" and message is None:
        live.execution.known.attempts.pop(key, None)  # they count anew
        if turns.sections.has_asked(live, key) if ask is None else not live.is_to_perform(ask):
            live.then += (lambda: turns.perform_again(live, key),)
    else:
        _supply(live, blocked, letter, value)


def _decide_about_budget(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key) -> None:
    """A person has the call tried again (there may be more now), or lets it fail."""
    blocked = live.blocked_calls[key]
    if letter.choice == "retry":
        try_again(turns, live, letter, key)
    elif letter.choice == "fail":
        _unblocked(turns, live, letter, key)
        turns.budgets.fail(live, blocked)
    else:
        hint = (
            blocked.hint.partition(REFUSED)[0] + REFUSED + f"{letter.choice!r} does not help a call that is over budget"
        )
        turns.parking.block(live, msgspec.structs.replace(blocked, hint=hint))


def try_again(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key) -> None:
    """A call that was stuck is made, where it has not been made again anyway since the run was loaded."""
    ask = live.execution.open.get(key)
    _unblocked(turns, live, letter, key, "go_on" if letter.choice == "retry" else letter.choice)
    if turns.sections.has_asked(live, key) if ask is None else not live.is_to_perform(ask):
        live.then += (partial(turns.perform_again, live, key),)


def _unblocked(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key, choice: str = "") -> None:
    turns.parking.unblock(live, key, choice or letter.choice, letter.by, letter.reason)


def _answer(turns: Turns, live: LiveRun, letter: ControlLetter, blocked: e.RunBlocked) -> None:
    """A person answers a question that the code waits with."""
    choices, value = QUESTIONS[blocked.name], (letter.value or "null").encode()
    allowed, problem = choices.get(letter.choice), None
    if allowed is None:
        problem = f"{letter.choice!r} does not answer it; one of {', '.join(choices)} does"
    elif allowed and msgspec.json.decode(value) not in allowed:
        problem = f"{value.decode()} does not answer it; one of {', '.join(map(repr, allowed))} does"
    if problem:
        hint = blocked.hint.partition(REFUSED)[0] + REFUSED + problem
        turns.parking.block(live, msgspec.structs.replace(blocked, hint=hint))
        return
    of = (blocked.task or "", blocked.n, blocked.name, blocked.use)
    unblocked = e.RunUnblocked(letter.choice, letter.by, *of[:2], letter.reason, *of[2:])
    live.note_unblocked(unblocked)
    live.record(unblocked)
    live.change = turns.parking.change(live)
    packed = pack(value, live.execution.memo)
    answer = e.PersonAnswered(*of, letter.choice, letter.by, letter.reason, packed.digest)
    live.record(answer, raw=value, output=packed, delivers=True)


def _settle(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key) -> None:
    """A person says what became of an effect."""
    blocked, ask = live.blocked_calls[key], live.execution.open.get(key)
    value, problem = (letter.value or "null").encode(), None
    if letter.choice in {"succeeded", "value"}:
        problem = turns.sections.misfit(live, key, value) if ask is None else _misfit(ask, value)
        problem = problem and f"the value that {letter.by or 'a person'} supplied does not fit: {problem}"
    problem = problem or turns.settling.settle(live, blocked, key, letter, value)
    if problem:
        hint = blocked.hint.partition(REFUSED)[0] + REFUSED + problem
        turns.parking.block(live, msgspec.structs.replace(blocked, hint=hint))
    elif letter.choice == "retry":
        live.then += (lambda: turns.perform_again(live, key),)


def _refusal(letter: ControlLetter) -> str:
    if letter.choice == "retry":
        return "it does not fit now either: "
    return f"the value that {letter.by or 'a person'} supplied does not fit: "


def _misfit(ask: Ask, value: bytes) -> str | None:
    codec = ask.codec if isinstance(ask, UnreadAsk) else ask.spec.result if isinstance(ask, StepAsk) else None
    try:
        if codec is not None:
            codec.loads(value)
    except Exception as error:  # a DecodeError, or what a class makes of its fields
        return str(error)
    return None


def _supply(live: LiveRun, blocked: e.RunBlocked, letter: ControlLetter, value: bytes) -> None:
    """A person's value, or failure, stands for the outcome of the step, or for the message."""
    is_failed = letter.choice == "fail"
    if is_failed:
        value = dump_exception(StepError(_told(letter)), ())
    packed = pack(value, live.execution.memo)
    of = (blocked.task or "", blocked.n, blocked.name, blocked.use)
    event: e.Keyed
    if isinstance(live.execution.open.get(of[:2]), UnreadAsk):
        event = e.MessageSettled(*of, is_failed, packed.digest)
    else:
        event = (e.StepFailed if is_failed else e.StepCompleted)(*of, output=packed.digest, attempt=0)
    live.supplied |= {event.key}  # a run that was just loaded is about to perform it
    live.has_sections |= event.is_in_section
    live.record(event, raw=value, output=packed, delivers=True)


def _told(letter: ControlLetter) -> str:
    return f"failed by {letter.by or 'a person'}" + (f": {letter.reason}" if letter.reason else "")


def _unblock_run(turns: Turns, live: LiveRun, letter: ControlLetter) -> None:
    unblocked = e.RunUnblocked(letter.choice, letter.by, why=letter.reason)
    if letter.choice == "fail":
        live.record(unblocked)
        turns.ends.fail(live, dump_exception(StepError(_told(letter)), ()))
    elif letter.choice == "retry" or _is_decided(live, letter.choice):
        live.note_unblocked(unblocked)
        live.record(unblocked)
        live.change = turns.parking.change(live)
        live.is_to_reload = True
    elif live.blocked is not None:
        hint = live.blocked.hint.removeprefix(NO_VALUE)
        turns.parking.block(live, msgspec.structs.replace(live.blocked, hint=NO_VALUE + hint))


def _is_decided(live: LiveRun, choice: str) -> bool:
    """Whether what blocks the run is a decision that a person may let stand, or have made again."""
    blocked = live.blocked
    if blocked is None:
        return False
    is_kept = choice == "keep" and blocked.reason in {"stale_decision", "premise_unreadable"}
    return is_kept or (choice == "recompute" and blocked.name == OnStale.REAPPROVE)

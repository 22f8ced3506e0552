"""Letters: how everybody but its owner speaks to a run, and how each kind enters the history."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.codec import dump_exception, pack
from perdure.engine.calls import Ask, Key, StepAsk
from perdure.errors import DecodeError, RunCancelledError, StepError
from perdure.history import events as e
from perdure.store.protocol import Letter, Mail, Status

if TYPE_CHECKING:
    from perdure.runtime.live import LiveRun
    from perdure.runtime.turn import Turns

NO_VALUE = "no value can unblock this: "
CANCELLED = dump_exception(RunCancelledError("the run was cancelled"), ())


class EndingLetter(msgspec.Struct, frozen=True):
    """How a child ended."""

    status: str
    output: msgspec.Raw


class ControlLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of cancel, pause, resume and unblock. `call`: the label of the call that an unblock is about."""

    reason: str = ""
    by: str = ""
    force: bool = False
    choice: str = ""
    value: str | None = None
    call: str = ""


class ChildKey(msgspec.Struct, frozen=True, array_like=True):
    """Which call of the parent a child's ending belongs to."""

    task: str
    n: int
    name: str
    use: int
    run_id: str


def letter(run_id: str, kind: str, *, key: str = "", body: bytes = b"{}", now: int) -> Letter:
    """A letter with an id of its own."""
    return Letter(os.urandom(16), run_id, kind, key, body, now)


def ending(status: Status, raw: bytes) -> bytes:
    """What a run's watchers get when it ends."""
    return msgspec.json.encode(EndingLetter(str(status), msgspec.Raw(raw)))


def child_key(ask: Any) -> str:
    """The key under which a child's ending comes back."""
    task, n = ask.key
    return msgspec.json.encode(ChildKey(task, n, ask.name, ask.use, ask.run_id)).decode()


def take(turns: Turns, live: LiveRun, mail: Mail) -> None:
    """Let a letter enter the run's history."""
    match mail.kind:
        case "message":
            packed = pack(mail.body, live.execution.memo)
            live.record(
                e.MessageArrived(mail.key, packed.digest, mail.sent_at), raw=mail.body, output=packed, delivers=True
            )
        case "child":
            _take_child(live, mail)
        case "cancel":
            _take_cancel(turns, live, msgspec.json.decode(mail.body, type=ControlLetter))
        case "pause" | "resume":
            _take_pause(turns, live, mail.kind, msgspec.json.decode(mail.body, type=ControlLetter))
        case _:
            _take_unblock(turns, live, msgspec.json.decode(mail.body, type=ControlLetter))


def _take_child(live: LiveRun, mail: Mail) -> None:
    key = msgspec.json.decode(mail.key, type=ChildKey)
    body = msgspec.json.decode(mail.body, type=EndingLetter)
    raw = bytes(body.output)
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
        live.is_paused = True
        live.record(e.RunPaused(letter.by))
        live.change = turns.parking.change(live)
        live.silence()
    elif kind == "resume" and live.is_paused:
        turns.parking.resume(live, letter.by)


def _take_unblock(turns: Turns, live: LiveRun, letter: ControlLetter) -> None:
    """A decision about a call that nobody waits for any more, or that was decided meanwhile, changes nothing."""
    stuck = [key for key, blocked in live.blocked_calls.items() if letter.call in {"", blocked.call}]
    if stuck:
        _unblock_call(turns, live, letter, stuck[0])
    elif live.blocked is not None and not letter.call:
        _unblock_run(turns, live, letter)


def _unblock_call(turns: Turns, live: LiveRun, letter: ControlLetter, key: Key) -> None:
    blocked = live.blocked_calls[key]
    ask = live.execution.open.get(key)
    value = (letter.value or "null").encode()
    if letter.choice == "value" and (problem := _misfit(ask, value)):
        blocked = msgspec.structs.replace(blocked, hint=f"the value that was supplied does not fit: {problem}")
        turns.parking.block(live, blocked)
        return
    unblocked = e.RunUnblocked(letter.choice, letter.by, *key, letter.reason)
    live.note_unblocked(unblocked)
    live.record(unblocked)
    live.change = turns.parking.change(live)
    if letter.choice == "retry":
        live.execution.known.attempts.pop(key, None)  # they count anew
        if turns.sections.has_asked(live, key) if ask is None else not live.is_to_perform(ask):
            live.then.append(lambda: turns.perform_again(live, key))
    else:
        _supply(live, blocked, letter, value)


def _misfit(ask: Ask | None, value: bytes) -> str | None:
    if not isinstance(ask, StepAsk):
        return None
    try:
        ask.spec.result.loads(value)
    except DecodeError as error:
        return str(error)
    return None


def _supply(live: LiveRun, blocked: e.RunBlocked, letter: ControlLetter, value: bytes) -> None:
    """A person's value, or failure, stands for the step's outcome."""
    kind: Any = e.StepCompleted
    if letter.choice == "fail":
        kind, value = e.StepFailed, dump_exception(StepError(_told(letter)), ())
    packed = pack(value, live.execution.memo)
    event = kind(blocked.task, blocked.n, blocked.name, blocked.use, output=packed.digest, attempt=0)
    live.supplied.add(event.key)  # a run that was just loaded is about to perform it
    live.has_sections |= event.is_in_section
    live.record(event, raw=value, output=packed, delivers=True)


def _told(letter: ControlLetter) -> str:
    return f"failed by {letter.by or 'a person'}" + (f": {letter.reason}" if letter.reason else "")


def _unblock_run(turns: Turns, live: LiveRun, letter: ControlLetter) -> None:
    unblocked = e.RunUnblocked(letter.choice, letter.by, why=letter.reason)
    if letter.choice == "fail":
        live.record(unblocked)
        turns.ends.fail(live, dump_exception(StepError(_told(letter)), ()))
    elif letter.choice == "retry":
        live.note_unblocked(unblocked)
        live.record(unblocked)
        turns.parking.load_again(live)
    elif live.blocked is not None:
        hint = live.blocked.hint.removeprefix(NO_VALUE)
        turns.parking.block(live, msgspec.structs.replace(live.blocked, hint=NO_VALUE + hint))

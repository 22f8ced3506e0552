"""What the places are called at which a drill lets a process die: every write to the store, every call to the outside.

    before Prepare of refund#1      the ledger's row and the event that say that it is about to be sent, durable
    before Execute of refund#1      its body
    before Commit of refund#1       the ledger's row and the run's event, in one transaction: there is nothing between
    after Checkpoint of refund#1    the two, so its beginning is called Commit, its end Checkpoint
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.history import events as e
from perdure.store.protocol import Append, Decide, Letter, NewRun, Write


class Named(NamedTuple):
    """One thing that happens: what it is called before it, and after. `call`: the effect that it is a phase of."""

    before: str
    after: str
    call: str = ""


class Reached(NamedTuple):
    """A process came to a moment. `names`: what happens in it, each with `before` or `after` in front."""

    process: int
    is_write: bool
    names: tuple[str, ...]
    calls: tuple[str, ...]
    """Of each name the effect that it is a phase of, or ""."""


def readable(label: str, run_id: str, root: str) -> str:
    """A call as people name it: `refund#1`; of another task than the workflow's own with its path, of another run with
    that run's id.

    >>> readable("0/refund#1", "drill", "drill"), readable("0.2/search#3", "drill/0.sub.1", "drill")
    ('refund#1', '0.2/search#3 in drill/0.sub.1')
    """
    return label.removeprefix("0/") + in_run(run_id, root)


def in_run(run_id: str, root: str) -> str:
    """Nothing for the run that is drilled; which one, for its children."""
    return "" if run_id == root else f" in {run_id}"


OF_METHOD = {
    "enter": "the worker's entering",
    "leave": "the worker's leaving",
    "claim": "the claim of the run",
    "take_over": "the takeover",
    "give_back": "the giving back",
    "renew": "the renewal of the lease",
}


def of_write(write: Write, run_id: str, root: str) -> list[Named]:
    """What a write does, the phases of effects first."""
    where = in_run(run_id, root)
    match write:
        case NewRun():
            return [_same(f"the start of the run{where}")]
        case Letter(kind="message"):
            return [_same(f"the sending of message {write.key!r}{where}")]
        case Letter() | Decide():
            return [_same(f"the sending of a decision{where}")]
        case Append():
            named = [of_event(e.decode(row.envelope), run_id, root) for row in write.rows]
            return sorted(named, key=lambda each: not each.call) or [_same(_of_change(write) + where)]


def _same(what: str, call: str = "") -> Named:
    return Named(what, what, call)


def _of_change(append: Append) -> str:
    return "letting go of the run" if append.change is not None and append.change.release else "a note on the run"


def of_event(event: e.Event, run_id: str, root: str) -> Named:
    """What an event records."""
    if not isinstance(event, e.Keyed):
        return _same(OF_EVENT.get(type(event), e.kind(event)) + in_run(run_id, root))
    call = readable(event.label, run_id, root)
    match event:
        case e.EffectStarted():
            return _same(f"Prepare of {call}{attempt(event.attempt)}", call)
        case e.EffectSucceeded() | e.EffectFailed():
            return Named(f"Commit of {call}", f"Checkpoint of {call}", call)
        case e.EffectNotDone():
            return _same(f"the proof that {call} did nothing", call)
        case e.EffectInDoubt():
            return _same(f"the doubt about {call}", call)
        case e.EffectLookedUp():
            return _same(f"the record of the look-up of {call}", call)
        case e.EffectNoted():
            return _same(f"a note about {call}", call)
        case e.StepCompleted() | e.StepFailed():
            return _same(f"the record of {call}")
        case e.AttemptFailed():
            return _same(f"the record of a failed attempt of {call}")
        case e.StepStarted():
            return _same(f"the record that {call} has started")
        case e.PersonAsked():
            return _same(f"the asking of {call}")
        case e.PersonAnswered():
            return _same(f"the taking in of what was said to {call}")
        case e.ChildStarted():
            return _same(f"the start of child {call}")
        case e.ChildEnded():
            return _same(f"the end of child {call}")
        case _:
            return _same(f"{e.kind(event)} of {call}")


OF_EVENT: dict[type[e.Event], str] = {
    e.RunCompleted: "the end of the run",
    e.RunFailed: "the end of the run",
    e.RunCancelled: "the end of the run",
    e.ChapterStarted: "the next chapter",
    e.TimePassed: "the passing of time",
    e.MessageArrived: "the arrival of a message",
    e.TakenOver: "the record of the takeover",
    e.RunForked: "the fork",
    e.RunBlocked: "the parking of the run",
    e.RunUnblocked: "the taking in of a decision",
    e.PersonDecided: "the taking in of a decision",
    e.ApprovalSpent: "the using up of an approval",
}


def attempt(number: int) -> str:
    """Said of every attempt but the first."""
    return "" if number < 2 else f", attempt {number}"


def execute(call: str, number: int) -> Named:
    """The body of an effect."""
    return _same(f"Execute of {call}{attempt(number)}", call)


def body(call: str) -> Named:
    """The body of a step."""
    return _same(f"step {call}")


def look_up(call: str) -> Named:
    """An effect's look-up."""
    return _same(f"the look-up of {call}", call)


def usual(name: str) -> str:
    """The name of a point: what is committed and what is checkpointed is one transaction, whichever end is meant.

    >>> usual("after Commit of refund#1")
    'after Checkpoint of refund#1'
    """
    return name.replace("after Commit of", "after Checkpoint of").replace("before Checkpoint of", "before Commit of")


def moments(when: str, named: Sequence[Named]) -> list[str]:
    """With `before` or `after` in front."""
    return [f"{when} {each.before if when == 'before' else each.after}" for each in named]

"""What is known of a stretch of a run that does not count any more, read from its stored history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.engine.calls import Key, is_debt
from perdure.engine.leftovers import Ended, Leftover, base_of
from perdure.engine.owing import order_of
from perdure.engine.rewinding import Owed, Reusable, Split, Superseded, split
from perdure.history import events as e

if TYPE_CHECKING:
    from perdure.runtime.load import Past


def known_of_superseded(past: Past) -> tuple[Superseded, list[int]]:
    """What is not forgotten of what does not count, and the places of the events that do."""
    found = split(past.events, [row.seq for row in past.stored.rows])
    rewindings = [place for place, event in enumerate(past.events) if isinstance(event, e.Rewound)]
    superseded = Superseded()
    inputs = _Inputs(past)
    read: dict[Key, int] = {}
    for place, by in found.superseded.items():
        event = past.events[place]
        match event:
            case e.PremisesRead():
                read[event.key] = place
                if event.renews:
                    _renew(superseded, event, past.output(place) or b"")
            case e.EffectSucceeded(undoes=str(undone)) if undone:
                superseded.owed.pop(undone, None)
                superseded.struck.add(undone)
            case e.EffectSucceeded():
                at, output = inputs.effects.get(event.operation), past.output(place) or b"null"
                raw = None if at is None else past.input(at)
                before = superseded.owed.get(event.operation)
                since = rewindings.index(by) + 1 if before is None else before.since
                order = order_of(past.stored.rows[place].at, place)
                superseded.owed[event.operation] = Owed(
                    order, event.name, event.business_key, event.operation, raw, output, since
                )  # fmt: skip
            case e.PersonAnswered() if is_debt(event.key):
                superseded.said[event.key] = past.output(place) or b"null"
            case e.EffectFailed(how="cancelled"):
                superseded.struck.add(event.operation)
            case e.StepCompleted():
                given = inputs.of_steps.get(place)
                if given is not None:
                    found_again = _reusable(past, place, event, read.get(event.key))
                    superseded.reusable.setdefault(event.key, {})[given] = found_again
            case _:
                pass
    superseded.children = _children(past, found)
    for place in found.effective:
        event = past.events[place]
        if isinstance(event, e.StepReused):
            superseded.had_again.add(event.of)
        if isinstance(event, e.Rewound):
            for key in (event.key, *event.stale):
                _forget(superseded, past, key, before=place)
    return superseded, found.effective


def _children(past: Past, found: Split) -> dict[str, Leftover]:
    """Child runs that were started in what does not count any more, and what has become of each."""
    own_from = max((place for place, event in enumerate(past.events) if isinstance(event, e.RunForked)), default=-1)
    children: dict[str, Leftover] = {}
    started: dict[tuple[Key, int], Leftover] = {}
    own = {
        event.run_id for place, event in enumerate(past.events)
        if isinstance(event, e.ChildStarted) and not event.attached and place > own_from
    }  # fmt: skip
    ends = {event.run_id: place for place, event in enumerate(past.events) if isinstance(event, e.ChildEnded)}
    for place, event in enumerate(past.events):
        by = found.superseded.get(place, -1)
        match event:
            case e.ChildStarted() if by >= 0:
                started[event.key, by] = children[event.run_id] = Leftover(
                    event.key, event.name, event.use, event.run_id, base_of(event), event.version, event.input,
                    is_own=event.run_id in own,
                )  # fmt: skip
            case e.CallCancelled() if (event.key, by) in started:
                started[event.key, by].is_told = True
            case e.ChildDismissed():
                _note_dismissed(children, event)
            case e.ChildOwed() if event.run_id in children:
                children[event.run_id].is_owed = True
            case _:
                pass
    for place in found.effective:
        event = past.events[place]
        if isinstance(event, e.ChildStarted) and event.run_id in children:
            children[event.run_id].is_wanted = True
    for run_id in ends.keys() & children.keys():
        ended = past.events[ends[run_id]]
        if isinstance(ended, e.ChildEnded):
            children[run_id].ended = Ended(ended.status, past.output(ends[run_id]) or b"null")
    return children


def _note_dismissed(children: dict[str, Leftover], event: e.ChildDismissed) -> None:
    if event.run_id not in children:  # a dismissed one has started it
        base = children[event.parent].base
        children[event.run_id] = Leftover(event.key, event.name, event.use, event.run_id, base, parent=event.parent)
    children[event.run_id].is_dismissed = True


def _forget(superseded: Superseded, past: Past, key: Key, *, before: int) -> None:
    """A result that did not stand when the run was rewound is not had again; one that came later may be."""
    results = superseded.reusable.get(key, {})
    for given in [given for given, found in results.items() if found.seq < past.stored.rows[before].seq]:
        del results[given]


def _renew(superseded: Superseded, read: e.PremisesRead, values: bytes) -> None:
    """The last result of this call rests on other facts than at first."""
    results = superseded.reusable.get(read.key, {})
    if results:
        given = max(results, key=lambda digest: results[digest].seq)
        results[given] = results[given]._replace(read=read, values=values)


def _reusable(past: Past, place: int, event: e.StepCompleted, read: int | None) -> Reusable:
    row = past.stored.rows[place]
    rests = None if read is None else past.events[read]
    seq = event.of if isinstance(event, e.StepReused) else row.seq
    return Reusable(
        event.name, past.output(place) or b"null",
        seq, rests if isinstance(rests, e.PremisesRead) else None,
        b"" if read is None else past.output(read) or b"",
    )  # fmt: skip


class _Inputs:
    """With which arguments calls were made: of each result what counts of them; of operations where they stand."""

    def __init__(self, past: Past) -> None:
        self.of_steps: dict[int, bytes] = {}
        self.effects: dict[str, int] = {}
        last: dict[Key, bytes] = {}
        for place, event in enumerate(past.events):
            if isinstance(event, e.StepStarted | e.StepCompleted | e.AttemptFailed):
                if event.input is not None:
                    last[event.key] = event.view or event.input
                    operation = getattr(event, "operation", "")
                    if operation and event.kept:
                        self.effects[operation] = place
                if event.key in last:
                    self.of_steps[place] = last[event.key]

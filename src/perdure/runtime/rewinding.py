"""What is known of a stretch of a run that does not count any more, read from its stored history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.engine.calls import Key
from perdure.engine.owing import STANDS, UNDONE, is_debt, key_of, order_of
from perdure.engine.rewinding import Owed, Reusable, Superseded, split
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
                _note_said(superseded, event.key, past.output(place) or b"null")
            case e.EffectFailed(how="cancelled"):
                superseded.struck.add(event.operation)
            case e.StepCompleted():
                given = inputs.of_steps.get(place)
                if given is not None:
                    found_again = _reusable(past, place, event, read.get(event.key))
                    superseded.reusable.setdefault(event.key, {})[given] = found_again
            case _:
                pass
    for place in found.effective:
        event = past.events[place]
        if isinstance(event, e.StepReused):
            superseded.had_again.add(event.of)
        if isinstance(event, e.Rewound):
            for key in (event.key, *event.stale):
                _forget(superseded, past, key, before=place)
    return superseded, found.effective


def _note_said(superseded: Superseded, key: Key, said: bytes) -> None:
    """What a person has decided about a debt stands, however often the run goes back."""
    about = next((each for each in superseded.owed.values() if key_of(each) == key), None)
    if about is not None and said in {STANDS, UNDONE}:
        del superseded.owed[about.operation]
        if said == UNDONE:
            superseded.struck.add(about.operation)


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

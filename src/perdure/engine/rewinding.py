"""Which events of a history count, once the run was rewound? And what of the others is not forgotten.

    0 started   1 rests on policy 1   2 decided: 41   3 paid 41   4 rewound to 1   5 rests on policy 2   6 decided: 42

The history itself is never shortened. Events 1 to 3 are superseded: the code is run as if they had not come. What was
done outside is owed; a result that was paid for is had again by the same call; and the same goes for a history that was
rewound several times, for `to` names an event that counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from perdure.engine.calls import Key
from perdure.engine.leftovers import Leftover
from perdure.history import events as e
from perdure.specs import EffectSpec, StepSpec, WorkflowSpec

SURVIVE = (
    e.MessageArrived, e.CancelRequested, e.PersonDecided, e.RunPaused, e.RunResumed, e.Patched, e.Adopted, e.TakenOver,
    e.RunForked, e.OfBudget, e.BudgetPriced, e.BudgetRaised, e.PremisesChecked, e.Rewound, e.ApprovalSpent,
    e.ChildDismissed, e.ChildOwed,
)  # fmt: skip
"""What is never superseded: what came from outside, and what is known about the run, not about its calls."""

BEGINS = (e.EffectStarted, e.ChildStarted, e.SectionStarted, e.PersonAsked)
"""Calls of which something goes on outside the run: what became of one that was made before is not superseded, nor
that a result which counts was renewed."""


class Reusable(NamedTuple):
    """A result that the same call may have again. `seq`: of its event."""

    name: str
    output: bytes
    seq: int
    read: e.PremisesRead | None = None
    values: bytes = b""


class Owed(NamedTuple):
    """An effect that happened in what is superseded now. `input` is None where it is not kept. `order`: when. `since`:
    the how-many-eth rewinding of the chapter has superseded it."""

    order: int
    name: str
    business_key: str
    operation: str
    input: bytes | None
    output: bytes
    since: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.business_key!r}"


class Superseded(msgspec.Struct):
    """What is known of that which does not count any more. `reusable`: by call, and by the digest of what counts of its
    arguments. `struck`: operations that were given up with it, or taken back: asked for again, they are done under an
    id of their own. `had_again`: results that were, by where they stand. `said`: what people have said of debts, by the
    calls that have asked them. `children`: those that were started in it."""

    reusable: dict[Key, dict[bytes, Reusable]] = {}
    owed: dict[str, Owed] = {}
    struck: set[str] = set()
    had_again: set[int] = set()
    said: dict[Key, bytes] = {}
    children: dict[str, Leftover] = {}

    def found(self, key: Key, name: str, given: bytes) -> Reusable | None:
        """The result of the same call with the same arguments. Hosted code has no order: there it is any of its lane
        that nobody had again yet."""
        if ":" not in key[0]:
            found = self.reusable.get(key, {}).get(given)
            return found if found is not None and found.name == name else None
        same = (results.get(given) for of, results in self.reusable.items() if of[0] == key[0])
        left = [found for found in same if found and found.name == name and found.seq not in self.had_again]
        if left:
            self.had_again.add(left[0].seq)
        return left[0] if left else None


class Split(NamedTuple):
    """Places of events: those that count, and those that do not, each in the order of the history; of these also the
    place of the rewinding that superseded them."""

    effective: list[int]
    superseded: dict[int, int]


def split(events: Sequence[e.Event], seqs: Sequence[int]) -> Split:
    """Which of these count. `seqs`: where each stands in its history.

    >>> split([e.TimePassed(), e.TimePassed(), e.Rewound(1, "0", 0, "decide", 1)], [0, 1, 2])
    Split(effective=[0, 2], superseded={1: 2})
    """
    effective: list[int] = []
    superseded: dict[int, int] = {}
    for place, event in enumerate(events):
        if type(event) is e.Rewound:
            cut = bisect_left(effective, event.to, key=lambda at: seqs[at])
            begun = _begun([events[at] for at in effective[:cut]], event)
            stretch = effective[cut:]
            effective[cut:] = [at for at in stretch if _survives(events[at], begun)]
            superseded |= {at: place for at in stretch if not _survives(events[at], begun)}
        effective.append(place)
    return Split(effective, dict(sorted(superseded.items())))


def _begun(before: Sequence[e.Event], rewound: e.Rewound) -> set[Key]:
    """Calls that were made before, without the section in which the step itself was called."""
    begun = {event.key for event in before if isinstance(event, (*BEGINS, e.PremisesRead))}
    task, _, n = rewound.task.partition("/")[0].rpartition(":")
    return begun - {(task, int(n))} if task else begun


def _survives(event: e.Event, begun: set[Key]) -> bool:
    if isinstance(event, SURVIVE):
        return True
    if isinstance(event, e.RunBlocked | e.RunUnblocked):
        return event.task is None
    if _renews(event):
        return isinstance(event, e.PremisesRead) and event.key in begun
    if not isinstance(event, e.Keyed):
        return False
    if event.key in begun:
        return True
    task, _, n = event.section.rpartition(":")
    return bool(task) and (task, int(n)) in begun


def _renews(event: e.Event) -> bool:
    return isinstance(event, e.PremisesRead) and event.renews


def effect_named(function: Any, name: str) -> EffectSpec | None:
    """The effect of that name among what the code names, or that of the workflows which it names; None if it cannot be
    found there."""
    functions: list[Any] = [function]
    for each in functions:
        for spec in declared(each):
            if isinstance(spec, EffectSpec) and name in (spec.name, *spec.aliases):
                return spec
            if isinstance(spec, WorkflowSpec) and spec.function not in functions:
                functions.append(spec.function)
    return None


def step_named(function: Any, name: str) -> StepSpec | None:
    """The step of that name among what the code names, no effect; None if it cannot be found there."""
    found = (spec for spec in declared(function) if type(spec) is StepSpec and spec.name == name)
    return next(found, None)


def declared(function: Any) -> Iterator[Any]:
    """What the steps and workflows declare that a function's code can name, by a global, a closure, or a module."""
    globals_: Mapping[str, Any] = getattr(function, "__globals__", {})
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    for value in [*globals_.values(), *held]:
        for each in (value, *_of_module(value)):
            spec = _spec_of(each)
            if spec is not None:
                yield spec


def _spec_of(value: Any) -> Any:
    """What it declares, if it is one of ours: others are asked nothing, whatever they would make of it."""
    return getattr(value, "spec", None) if type(value).__module__.startswith("perdure.") else None


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _of_module(value: Any) -> Sequence[Any]:
    return list(vars(value).values()) if isinstance(value, ModuleType) else ()

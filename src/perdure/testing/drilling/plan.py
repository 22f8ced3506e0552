"""Which things are tried, given what was seen in the run when it was left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.audit.drills import Covered
from perdure.testing.drilling import points as p
from perdure.testing.drilling.points import Point
from perdure.testing.drilling.trial import Trial
from perdure.testing.drilling.words import Reached


def first_points(untouched: Trial, messages: Sequence[tuple[str, object]]) -> list[Point]:
    """All that is tried with one fault, in the order in which the run comes to it."""
    seen: dict[str, Point] = {}
    for reached in untouched.moments:
        for point in _crashes(reached):
            seen.setdefault(point.name, point)
    for point in (*_people(untouched), *_hangs(untouched), *_look_ups(untouched), *_twice(messages)):
        seen.setdefault(point.name, point)
    for wait in untouched.waited:
        seen.setdefault(p.jump(wait).name, p.jump(wait))
    return list(seen.values())


def _crashes(reached: Reached) -> Iterator[Point]:
    """Each phase of an effect has a point of its own; of what else one write does, the first thing names it."""
    covers = Covered.CRASH_AT_WRITE if reached.is_write else Covered.CRASH_AT_CALL
    named = list(zip(reached.names, reached.calls, strict=True))
    of_effects = [(name, call) for name, call in named if call]
    for name, call in of_effects or named[:1]:
        is_success = not reached.is_write and name.startswith("after Execute")
        yield p.crash(name, call=call, covers=Covered.OUTSIDE_SUCCESS if is_success else covers)


def _executed(untouched: Trial) -> Iterator[tuple[str, str]]:
    """The first attempt of each effect's call: the name of its phase, and the call."""
    for reached in untouched.moments:
        if not reached.is_write and reached.calls[0] and reached.names[0].startswith("before Execute"):
            yield reached.names[0].removeprefix("before "), reached.calls[0]


def _kind(untouched: Trial, call: str) -> str:
    return untouched.effects.get(name_of(call), "")


def name_of(call: str) -> str:
    """The effect's name, of a readable call.

    >>> name_of("0.2/refund#1 in drill/0.sub.1")
    'refund'
    """
    return call.partition("#")[0].rpartition("/")[2]


def _people(untouched: Trial) -> Iterator[Point]:
    """What nobody can tell may also be called off."""
    for phase, call in _executed(untouched):
        if _kind(untouched, call) == "no_guarantee":
            yield p.settled_as_failed(f"before {phase}", call)


def _hangs(untouched: Trial) -> Iterator[Point]:
    """At every call, before it and after it; a transaction hangs nobody but itself, and is over when it is timed."""
    for reached in untouched.moments:
        call = reached.calls[0] if reached.calls else ""
        if not reached.is_write and _kind(untouched, call) != "same_database":
            yield p.hang(reached.names[0], call)


def _look_ups(untouched: Trial) -> Iterator[Point]:
    for phase, call in _executed(untouched):
        if _kind(untouched, call) == "can_look_up":
            yield p.unsure(f"after {phase}", call, 1)
            yield p.unsure(f"after {phase}", call, 0)


def _twice(messages: Sequence[tuple[str, object]]) -> Iterator[Point]:
    yield p.twice("start", "the start of the run, delivered twice")
    for name in dict.fromkeys(name for name, _ in messages):
        yield p.twice(f"message {name}", f"message {name!r}, delivered twice")
    yield p.twice("writes", "every write, sent twice")


def is_deepened(point: Point, done: set[str]) -> bool:
    """Whether it is to be tried what happens if the process that recovers dies, too: once per effect."""
    is_first = bool(point.call) and name_of(point.call) not in done
    return is_first and point.covers is Covered.OUTSIDE_SUCCESS and len(point.fault.crashes) == 1


def further_points(point: Point, recovered: Trial) -> Iterator[Point]:
    """The process that recovers from it dies as well: wherever what it does is about the same effect."""
    for reached in recovered.moments:
        if reached.process != 1:
            continue
        for name, call in zip(reached.names, reached.calls, strict=True):
            is_about = call == point.call or "takeover" in name or "decision" in name or "parking" in name
            if is_about:
                yield p.crash(*point.fault.crashes, name, call=point.call, covers=Covered.CRASH_AGAIN)

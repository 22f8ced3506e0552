"""The topology of a workflow: an outline of the durable calls in its source, one per line, and how two of them differ.

    step plan(claim: Claim) -> Plan
    parallel
     loop
      step search(query: str) -> str
    approval
    effect pay(claim: Claim) -> str

A line is a call, or what calls stand in, with what stands in it further to the right. Comments, formatting, names of
local variables, and what is computed between calls are not in it. It is a text: that is how a manifest keeps it.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

CHARACTERS_MAX = 4_000
"""What a history keeps of an outline: every run pays for it."""

CUT = "..."


class Place(NamedTuple):
    """A durable call in the source. `inside`: what it stands in, the outermost first (`loop`, `if`, ...). `schema`: its
    parameters and result, where they are known."""

    kind: str
    name: str = ""
    schema: str = ""
    inside: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


def outline(places: Iterable[Place]) -> str:
    """The places as a text, in the order of the source.

    >>> print(outline([Place("step", "plan"), Place("step", "search", "(q: str)", ("loop",))]))
    step plan
    loop
     step search(q: str)
    """
    lines: list[str] = []
    around: tuple[str, ...] = ()
    size = 0
    for place in places:
        shared = _shared(around, place.inside)
        new = [" " * depth + place.inside[depth] for depth in range(shared, len(place.inside))]
        new.append(" " * len(place.inside) + place.label + place.schema)
        around, size = place.inside, size + sum(len(line) + 1 for line in new)
        if size > CHARACTERS_MAX:
            return "\n".join([*lines, CUT])
        lines += new
    return "\n".join(lines)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((depth for depth, (a, b) in pairs if a != b), min(len(one), len(other)))


def places(text: str) -> list[Place]:
    """The places of an outline.

    >>> places("loop\\n step search(q: str)")
    [Place(kind='step', name='search', schema='(q: str)', inside=('loop',))]
    """
    found: list[Place] = []
    around: list[str] = []
    for line in text.split("\n") if text else ():
        bare = line.lstrip(" ")
        depth = len(line) - len(bare)
        del around[depth:]
        if _is_around(bare):
            around.append(bare)
        else:
            head, bracket, rest = bare.partition("(")
            kind, _, name = head.partition(" ")
            found.append(Place(kind, name, bracket + rest, tuple(around)))
    return found


AROUND = ("loop", "if", "else", "except", "finally", "parallel", "saga", "case")
"""What calls stand in."""


def _is_around(line: str) -> bool:
    return line.partition(" ")[0] in AROUND


# ── two of them ─────────────────────────────────────────────────────────────────────────────

What = Literal["appeared", "vanished", "moved", "changed"]


class Change(NamedTuple):
    """A call that one outline has and the other has not, has elsewhere, or with another schema. `told`: in words."""

    what: What
    place: Place
    told: str


def changes(then: str, now: str) -> list[Change]:
    """What happened to the calls of an outline, in the order of the new one."""
    old, new = places(then), places(now)
    gone: list[tuple[int, Place]] = []
    come: list[tuple[int, Place]] = []
    found: list[tuple[int, Change]] = []
    matcher = difflib.SequenceMatcher(None, [_key(each) for each in old], [_key(each) for each in new], autojunk=False)
    for _, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        if [_key(each) for each in old[a_from:a_to]] == [_key(each) for each in new[b_from:b_to]]:
            pairs = zip(old[a_from:a_to], new[b_from:b_to], strict=True)
            found += [(b_from + n, each) for n, (a, b) in enumerate(pairs) for each in _rewritten(a, b)]
        else:
            gone += [(b_from, each) for each in old[a_from:a_to]]
            come += list(enumerate(new[b_from:b_to], b_from))
    found += _moved_and_others(gone, come, old, new)
    return [change for _, change in sorted(found, key=lambda each: each[0])]


def _key(place: Place) -> tuple[str, str, tuple[str, ...]]:
    return place.kind, place.name, place.inside


def _rewritten(then: Place, now: Place) -> Iterator[Change]:
    if then.schema != now.schema:
        yield Change("changed", now, f"{now.label} has another schema: {then.schema} then, {now.schema} now")


def _moved_and_others(
    gone: list[tuple[int, Place]], come: list[tuple[int, Place]], old: list[Place], new: list[Place]
) -> Iterator[tuple[int, Change]]:
    """The same call on both sides has moved; what is left on one side has appeared, or vanished."""
    left = Counter(place.label for _, place in gone)
    for at, place in come:
        if left[place.label] > 0:
            left[place.label] -= 1
            before = next(each for _, each in gone if each.label == place.label)
            yield (
                at,
                Change("moved", place, f"{place.label} moved: {_where(before, old)} then, {_where(place, new)} now"),
            )
        else:
            yield at, Change("appeared", place, f"{place.label} appeared, {_where(place, new)}")
    for at, place in gone:
        if left[place.label] > 0:
            left[place.label] -= 1
            yield at, Change("vanished", place, f"{place.label} vanished; it stood {_where(place, old)}")


def _where(place: Place, among: Sequence[Place]) -> str:
    index = next(n for n, each in enumerate(among) if each is place)
    after = f"after {among[index - 1].label}" if index else "first"
    return f"{after}, in {' > '.join(place.inside)}" if place.inside else after


def told(found: Sequence[Change], changes_shown_max: int = 5) -> str:
    """Changes in one line; empty if there are none."""
    shown = [each.told for each in found[:changes_shown_max]]
    more = len(found) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def told_changes(then: str, now: str) -> str:
    """In words, what happened to the durable calls in the source."""
    if not then or not now:
        return f"the durable calls in the source {'then' if not then else 'now'} are not known"
    return told(changes(then, now)) or "the durable calls in the source stand in other blocks now"

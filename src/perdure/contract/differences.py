"""Two outlines side by side, and what each difference between them means for a run, by where it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from perdure.contract.outline import Place, changes, places

MEANS: Mapping[str, str] = {
    "appeared": (
        "Runs that have not come so far make the call. Runs that are past it have no record of it and need a guard: "
        "perdure.patched()."
    ),
    "vanished": (
        "Runs that have not come so far never make the call. Runs that have made it need it put back behind a guard: "
        "if not perdure.patched()."
    ),
    "moved": (
        "Runs that stand before both places are not concerned. All others need a guard with both orders: "
        "perdure.patched()."
    ),
    "changed": (
        "Runs that have made the call replay if they give it the same arguments as before and the recorded result fits "
        "the new type; else they break. Runs that have not come so far are not concerned."
    ),
}
"""By what happened to a call."""


class Beside(NamedTuple):
    """A line of both outlines. `what`, `told`, `means`: empty where the call stands on both sides alike."""

    old: str
    new: str
    what: str = ""
    told: str = ""
    means: str = ""


def differences(then: str, now: str) -> list[Beside]:
    """All calls of both outlines, in the order of the new one."""
    old, new, found = places(then), places(now), changes(then, now)
    told: dict[object, str] = {(each.what, each.place): each.told for each in found}
    matcher = difflib.SequenceMatcher(None, list(map(_key, old)), list(map(_key, new)), autojunk=False)
    rows: list[Beside] = []
    for operation, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        if operation == "equal":
            rows += _alike(old[a_from:a_to], new[b_from:b_to], told)
        else:
            rows += [_gone(place, told) for place in old[a_from:a_to]]
            rows += [_come(place, told) for place in new[b_from:b_to]]
    return rows


def _key(place: Place) -> tuple[str, str, tuple[str, ...]]:
    return place.kind, place.name, place.inside


def _alike(old: Sequence[Place], new: Sequence[Place], told: Mapping[object, str]) -> Iterator[Beside]:
    for one, other in zip(old, new, strict=True):
        sentence = told.get(("changed", other), "")
        what = "changed" if sentence else ""
        yield Beside(_line(one), _line(other), what, sentence, MEANS.get(what, ""))


def _gone(place: Place, told: Mapping[object, str]) -> Beside:
    """It has vanished, or stands elsewhere, where it is told."""
    sentence = told.get(("vanished", place), "")
    what = "vanished" if sentence else "moved"
    return Beside(_line(place), "", what, sentence, MEANS[what] if sentence else "")


def _come(place: Place, told: Mapping[object, str]) -> Beside:
    what = next(each for each in ("moved", "appeared") if (each, place) in told)
    return Beside("", _line(place), what, told[what, place], MEANS[what])


def _line(place: Place) -> str:
    around = " > ".join(place.inside)
    return f"{place.label}{place.schema}" + (f"  [{around}]" if around else "")

"""Where code and history part: what changed in the source there, and the line that guards the change.

A guard helps where a call came, went or moved: runs that have passed the place keep the old way. It is no help where
the same call is made with other arguments, for nobody can say which of the two the recorded result answers.
"""

from __future__ import annotations

from perdure.contract.outline import Change, changes, told


def explained(then: str, now: str) -> str:
    """What happened to the calls in the source, as a sentence; empty if nothing did, or nothing is known."""
    found = changes(then, now) if then and now else []
    return f" In the source since the run began: {told(found)}." if found else ""


def patch_for(parting: tuple[str, str, str], then: str, now: str) -> str:
    """The line to add, and where; empty where a guard is no help."""
    recorded, asked, where = parting
    if (recorded == asked and not recorded.startswith("sleep")) or not (recorded or asked):
        return ""
    found = changes(then, now) if then and now else []
    came, went = _has("appeared", asked, found), _has("vanished", recorded, found)
    if found and not came and not went and not any(_is(each, call) for each in found for call in (recorded, asked)):
        return _guard(f"{found[0].what}: {found[0].place.label}", f"around what changed: {found[0].told}", "")
    if recorded == asked:
        return _guard("another length of sleep", "... else: the old length", where)
    if came and went:
        return _guard(f"{asked} instead of {recorded}", "... else: the old call", where)
    if came or (asked and not recorded):
        return _guard(f"add {asked}", f"around the call of {_name(asked)}", where)
    if went or (recorded and not asked):
        around = f"around the call of {_name(recorded)}, put back where it stood"
        return _guard(f"remove {recorded}", around, "", which="if not")
    return _guard(f"{asked} before {recorded}", "... else: the old order", where)


def _guard(text: str, what: str, where: str, *, which: str = "if") -> str:
    quoted = text.replace('"', "'")
    return f'{which} perdure.patched("{quoted}"): {what}' + (f", at {where}" if where else "")


def _has(what: str, call: str, found: list[Change]) -> bool:
    return bool(call) and any(each.what == what and _is(each, call) for each in found)


def _is(change: Change, call: str) -> bool:
    """An outline names a sleep with its length and an approval without its call."""
    return change.place.label == call or change.place.label.partition(" ")[0] == call.partition(" ")[0] in _BY_KIND


_BY_KIND = {"sleep", "approval", "question", "section"}


def _name(call: str) -> str:
    return call.partition(" ")[2] or call

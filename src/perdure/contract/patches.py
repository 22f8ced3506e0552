"""Where code and history part: what is known of why, what to do, and the line that guards the change.

A guard helps where a call came, went or moved: runs that have passed the place keep the old way. It is no help where
the same call is made with other arguments, for nobody can say which of the two the recorded result answers; nor where
nothing changed in the source, and what a condition rests on came from outside.
"""

from __future__ import annotations

from perdure.contract.outline import CUT, Change, changes, places, told

WAYS = "Register the old version too, or guard the change with perdure.patched()."
CHANGED = "The code changed under a running workflow."
UNCHANGED = "The durable calls in the source are what they were when the run began."
OTHER_ARGUMENTS = (
    "What this call is given is something else now: it comes from a variable of the module, a default, the "
    "environment, or code between the calls. Give the run what it had, or register the old version too; what comes "
    "from outside belongs in a step, which records it."
)
OTHER_WAY = (
    "A condition between them came out otherwise: one that was edited, or that rests on a variable of the module, the "
    "environment, or what else is not recorded. If it was edited, guard it with perdure.patched(), or register the old "
    "version too; what comes from outside belongs in a step, which records it."
)


def explained(parting: tuple[str, str, str], then: str, now: str) -> str:
    """What is known of why code and history part, and what to do, in sentences."""
    recorded, asked, _ = parting
    if not _is_told(recorded, asked, then, now):
        return f"{CHANGED} {WAYS}"
    found = changes(then, now)
    if found:
        return f"In the source since the run began: {told(found)}. {WAYS}"
    return f"{UNCHANGED} {OTHER_ARGUMENTS if recorded and recorded == asked else OTHER_WAY}"


def _is_told(recorded: str, asked: str, then: str, now: str) -> bool:
    """Whether the outlines say whether anything has changed: both are known, and have the calls, or differ."""
    if not then or not now or CUT in then or CUT in now:
        return False
    return then != now or (_is_seen(recorded, then) and _is_seen(asked, now))


def _is_seen(call: str, text: str) -> bool:
    """Whether an outline has a call; it has none that the code finds in a table, say."""
    return not call or any(_is(place.label, call) for place in places(text))


def patch_for(parting: tuple[str, str, str], then: str, now: str) -> str:
    """The line to add, and where; empty where a guard is no help."""
    recorded, asked, where = parting
    if (recorded == asked and not recorded.startswith("sleep")) or not (recorded or asked):
        return ""
    found = changes(then, now) if then and now else []
    if not found and _is_told(recorded, asked, then, now):
        return ""
    came, went = _has("appeared", asked, found), _has("vanished", recorded, found)
    is_concerned = any(_is(each.place.label, call) for each in found for call in (recorded, asked))
    if found and not came and not went and not is_concerned:
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
    return bool(call) and any(each.what == what and _is(each.place.label, call) for each in found)


def _is(label: str, call: str) -> bool:
    """An outline names a sleep with its length and an approval without its call."""
    return label == call or label.partition(" ")[0] == call.partition(" ")[0] in _BY_KIND


_BY_KIND = {"sleep", "approval", "question", "section"}


def _name(call: str) -> str:
    return call.partition(" ")[2] or call

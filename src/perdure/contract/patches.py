"""Where code and history part: what is known of why, what to do, and the line that guards the change.

A guard helps where a call came, went or moved: runs that have passed the place keep the old way. It is no help where
the same call is made with other arguments, for nobody can say which of the two the recorded result answers; nor where
nothing changed in the source, and what a condition rests on came from outside. Where the calls in the source are the
same, the history does not say whether a condition between them was edited: it is told where it stands, and what helps
if it was.
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
    "A condition between them came out otherwise{around}: one that was edited, or that rests on a variable of the "
    "module, the environment, or what else is not recorded. If it was edited, keep the old one for runs under way, "
    '(the new one) if perdure.patched("{text}") else (the old one), or register the old version too. If not, no guard '
    "helps: what comes from outside belongs in a step, which records it."
)


def explained(parting: tuple[str, str, str], then: str, now: str) -> str:
    """What is known of why code and history part, and what to do, in sentences."""
    recorded, asked, _ = parting
    if not _is_told(recorded, asked, then, now):
        return f"{CHANGED} {WAYS}"
    found = changes(then, now)
    if found:
        return f"In the source since the run began: {told(found)}. {WAYS}"
    return f"{UNCHANGED} {OTHER_ARGUMENTS if recorded and recorded == asked else _other_way(recorded, asked, now)}"


def _other_way(recorded: str, asked: str, text: str) -> str:
    """With the block that one of the two stands in and the other does not, if there is one."""
    calls = places(text)
    for call, other in ((asked, recorded), (recorded, asked)):
        outside = [place.inside for place in calls if _is(place.label, other)]
        inside = [place.inside for place in calls if _is(place.label, call) and place.inside]
        own = [blocks for blocks in inside if not any(each[: len(blocks)] == blocks for each in outside)]
        if own:
            which = f", probably that of the `{own[0][-1]}` around {_name(call)}"
            return OTHER_WAY.format(around=which, text=_quoted(f"condition of {_name(call)}"))
    return OTHER_WAY.format(around="", text=_quoted(f"condition before {_name(asked or recorded)}"))


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
    return f'{which} perdure.patched("{_quoted(text)}"): {what}' + (f", at {where}" if where else "")


def _quoted(text: str) -> str:
    return text.replace('"', "'")


def _has(what: str, call: str, found: list[Change]) -> bool:
    return bool(call) and any(each.what == what and _is(each.place.label, call) for each in found)


def _is(label: str, call: str) -> bool:
    """An outline names a sleep with its length and an approval without its call."""
    return label == call or label.partition(" ")[0] == call.partition(" ")[0] in _BY_KIND


_BY_KIND = {"sleep", "approval", "question", "section"}


def _name(call: str) -> str:
    return call.partition(" ")[2] or call

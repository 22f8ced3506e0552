"""Child runs that were started in a stretch which does not count any more: what becomes of each?

    left ──▶ the new way asks for it, with the same input: had again, running or ended
         ├─▶ the new way asks for it with another input ─▶ dismissed: told to stop, and waited for; what it did is owed.
         │                                                 Only then the new one is started, under an id of its own
         └─▶ the new way has passed its place, or ended ─▶ dismissed as well

A child is the same if its workflow, version and input are, and its place in the code or the id that the code gave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.engine.calls import ChildAsk, Key, place_in_id
from perdure.history import events as e

if TYPE_CHECKING:
    from perdure.engine.loop import LoopTask


class Ended(NamedTuple):
    """How a child ended: its status, and its result or exception."""

    status: str
    output: bytes


class Leftover(msgspec.Struct):
    """One of them. `base`: its id without what tells it from an earlier one. `is_own`: this run has started it, and
    nobody else. `is_told`: it is cancelled already. `is_refused`: something else is asked for under its id.
    `is_dismissed`, `is_owed`: recorded that it is not wanted; and, once it had ended, what it has done. `parent`: the
    dismissed one that has started it. `attached`: the calls that have it again, with their use of its name."""

    key: Key
    name: str
    use: int
    run_id: str
    base: str
    version: int = 0
    input: bytes | None = None
    parent: str = ""
    is_own: bool = True
    is_wanted: bool = False
    is_told: bool = False
    is_refused: bool = False
    is_dismissed: bool = False
    is_owed: bool = False
    ended: Ended | None = None
    attached: dict[Key, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether it is still to be dismissed, or to be waited for."""
        return self.is_own and not (self.is_wanted or self.is_owed)

    @property
    def is_named(self) -> bool:
        """Whether the code has given the id, and may do so in any place; else it is derived from the place."""
        return not self.base.endswith(place_in_id(self.key, self.name))


def base_of(started: e.ChildStarted) -> str:
    """The id of a child without what tells it from an earlier one of the same."""
    return started.run_id.removesuffix(f".{started.again}") if started.again else started.run_id


class Leftovers:
    """All of a run, by their ids."""

    def __init__(self, children: dict[str, Leftover]) -> None:
        self._children = children
        self._placed: dict[tuple[Any, ...], tuple[str, int]] = {}

    def get(self, run_id: str) -> Leftover | None:
        """The one with this id."""
        return self._children.get(run_id)

    def add(self, child: Leftover) -> None:
        """A dismissed one has started another."""
        self._children[child.run_id] = child

    def place(self, ask: ChildAsk, *, is_named: bool, taken: Collection[str]) -> None:
        """Which run a call is for that is not recorded: one that is left, or a new one, whose id nobody has. `ask.base`
        is the id that it would have else; `is_named`: the code has given it, and may give it again."""
        if is_named and (placed := self._placed.get(_signature(ask))) is not None:
            ask.run_id, ask.again = placed
            return
        self._place(ask, taken, is_named=is_named)
        self.note_placed(ask)

    def note_placed(self, ask: ChildAsk) -> None:
        """Another call that gives the same id with the same input is for the same run."""
        self._placed[_signature(ask)] = (ask.run_id, ask.again)

    def _place(self, ask: ChildAsk, taken: Collection[str], *, is_named: bool) -> None:
        known = [each for each in self._children.values() if not each.parent]
        same = [each for each in known if _is_about(each, ask, is_named=is_named)]
        others = [] if is_named else [each for each in known if _is_of_lane(each, ask)]
        for each in [*same, *others]:
            if _is_equal(each, ask) and not (each.is_told or each.is_dismissed or each.is_refused):
                ask.run_id, ask.again = each.run_id, _again(each)
                each.is_wanted = True
                return
        for each in same:
            each.is_refused = not each.is_wanted
        used, ask.run_id = {*taken, *self._children}, ask.base
        while ask.run_id in used:
            ask.again = max(ask.again, 1) + 1
            ask.run_id = f"{ask.base}.{ask.again}"

    def let_go(self, ask: ChildAsk) -> None:
        """A call was cancelled before it was recorded."""
        child = self._children.get(ask.run_id)
        if child is not None:
            child.is_wanted, child.is_refused = False, True

    def open_of(self, ask: ChildAsk) -> bool:
        """Whether a call has to wait, since an earlier child of the same id is still there."""
        refused = (each for each in self._children.values() if each.is_open and (each.is_refused or each.parent))
        return any(each.base == ask.base or each.key == ask.key for each in refused)

    def unwanted(self, live: Collection[LoopTask], *, has_ended: bool) -> list[Leftover]:
        """Those that nobody will ask for any more, and that are not dismissed so far. `live`: the tasks of the code;
        `has_ended`: it has come to its end."""
        tasks = {task.path: task for task in live}
        return [
            each for each in self._children.values()
            if each.is_open and not each.is_dismissed and (has_ended or each.is_refused or is_passed(each, tasks))
        ]  # fmt: skip

    def dismissed(self) -> Iterator[Leftover]:
        """Those whose end is waited for."""
        return (each for each in list(self._children.values()) if each.is_dismissed and not each.is_owed)

    def to_be_dismissed(self) -> list[Leftover]:
        """Those that nobody wants, told or not, ended or not."""
        return [each for each in self._children.values() if each.is_own and not each.is_wanted]

    def to_be_told(self) -> list[Leftover]:
        """Those that are not to outlive a run which ends without its code."""
        return [each for each in self._children.values() if each.is_open and not (each.is_told or each.is_dismissed)]


def _signature(ask: ChildAsk) -> tuple[Any, ...]:
    return (ask.base, ask.name, ask.spec.version, ask.packed.digest)


def _again(child: Leftover) -> int:
    return int(child.run_id[len(child.base) + 1 :]) if child.run_id != child.base else 0


def _is_about(child: Leftover, ask: ChildAsk, *, is_named: bool) -> bool:
    """Whether a call asks for this one, whatever its input."""
    return child.base == ask.base or (not is_named and child.key == ask.key and child.name == ask.name)


def _is_of_lane(child: Leftover, ask: ChildAsk) -> bool:
    """Whether hosted code, whose calls have no order, may ask for it: in the lane that has started it, and once."""
    return ":" in ask.key[0] and child.key[0] == ask.key[0] and not (child.is_wanted or child.is_named)


def _is_equal(child: Leftover, ask: ChildAsk) -> bool:
    return (child.name, child.version, child.input) == (ask.name, ask.spec.version, ask.packed.digest)


def is_passed(child: Leftover, tasks: dict[str, LoopTask]) -> bool:
    """Whether the code has made another call in the place of this one, or its task has ended. Of one that has an id of
    its own, and of hosted code, whose calls have no order, nobody can tell."""
    path, n = child.key
    if child.is_named:
        return False
    if path in tasks:
        return tasks[path].calls > n
    parent, _, index = path.rpartition(".")
    while parent and parent not in tasks:
        parent, _, index = parent.rpartition(".")
    return bool(parent) and ":" not in path and tasks[parent].children >= int(index)

"""Where can a history be forked?

A fork begins with a copy of a run's first events, and does nothing again of what they record. What is under way at its
last event would be in two runs at once, so there a history cannot be forked: an effect that may have left, a child run
that has not ended, an approval that was given and is not used up, a step that uses one up. All else can be left where
it stands: steps are made again, timers keep their deadlines, and people are asked again what they had not decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.engine.calls import Key
from perdure.errors import ForkPointError
from perdure.history import events as e


class UnderWay(NamedTuple):
    """What keeps a history from being forked. `since`: the event that it began with."""

    what: str
    since: int


class ForkPoints:
    """Of each event of a run's history: what keeps the run from being forked there, or None."""

    def __init__(self, run_id: str, events: Sequence[e.Event]) -> None:
        self.run_id = run_id
        self.obstacles: list[UnderWay | None] = []
        self._open: dict[Key, UnderWay] = {}
        self._children: dict[str, UnderWay] = {}
        self._asked: dict[Key, str] = {}
        self._approved: dict[str, tuple[Key, UnderWay]] = {}
        self._made: dict[str, UnderWay] = {}
        """Steps that use an approval up, by their labels."""
        for seq, event in enumerate(events):
            self._note(event, seq)
            self.obstacles.append(self._obstacle(event, events[seq + 1] if seq + 1 < len(events) else None, seq))

    def _note(self, event: e.Event, seq: int) -> None:
        match event:
            case e.ChapterStarted():
                self._open.clear()  # of what an earlier chapter left to itself the run hears nothing
                self._children.clear()
                self._approved.clear()
                self._made.clear()
            case e.EffectStarted():
                self._open.setdefault(event.key, UnderWay(f"effect {event.label} is under way", seq))
                self._approved.pop(event.approval, None)
            case e.ChildStarted():
                self._children[event.run_id] = UnderWay(f"child run {event.run_id} is under way", seq)
            case e.ChildDismissed():
                self._children[event.run_id] = UnderWay(f"child run {event.run_id} is being stopped", seq)
            case e.ChildOwed():
                self._children.pop(event.run_id, None)
            case e.ChildEnded():
                self._children.pop(event.run_id, None)
                self._note_made(event)
            case e.EffectSucceeded() | e.EffectFailed():
                self._open.pop(event.key, None)
                self._note_made(event)
            case _:
                self._note_approval(event, seq)

    def _note_made(self, event: e.EffectSucceeded | e.EffectFailed | e.ChildEnded) -> None:
        """The call that was approved is the next effect or child of the task that asked; denied, it leaves no other
        trace."""
        made = [approval for approval, ((task, n), _) in self._approved.items() if event.task == task and event.n > n]
        for approval in made:
            del self._approved[approval]
        self._made.pop(event.label, None)

    def _note_approval(self, event: e.Event, seq: int) -> None:
        match event:
            case e.PersonAsked(kind="approval"):
                self._asked[event.key] = event.id
            case e.PersonAnswered(choice="approve") if event.key in self._asked:
                approval = self._asked[event.key]
                self._approved[approval] = event.key, UnderWay(f"approval {approval} is given and not used yet", seq)
            case e.ApprovalSpent():
                self._approved.pop(event.id, None)
                if not event.lapsed:
                    self._made[event.call] = UnderWay(f"{event.call}, under an approval, is under way", seq)
            case e.StepCompleted() | e.StepFailed() | e.CallCancelled():
                self._made.pop(event.label, None)
            case _:
                pass

    def _obstacle(self, event: e.Event, following: e.Event | None, seq: int) -> UnderWay | None:
        if isinstance(event, e.ENDINGS):
            return UnderWay("the run has ended there, and nothing is left to do", seq)
        if isinstance(following, e.Keyed) and following.is_outcome:
            if isinstance(event, e.RunUnblocked) and following.key == (event.task, event.n):
                return UnderWay("a decision and what it gave belong together", seq)
            if isinstance(event, e.PremisesRead) and following.key == event.key and not event.renews:
                return UnderWay("a result and what it rests on belong together", seq)
        approved = (under_way for _, under_way in self._approved.values())
        all_of_it = (*self._open.values(), *self._children.values(), *self._made.values(), *approved)
        return min(all_of_it, key=lambda under_way: under_way.since, default=None)

    def last(self) -> int | None:
        """The last event at which the run can be forked."""
        return self._nearest(range(len(self.obstacles) - 1, -1, -1))

    def check(self, at: int) -> None:
        """ForkPointError if the run cannot be forked at that event."""
        length = len(self.obstacles)
        if at >= length:
            raise ForkPointError(f"run {self.run_id} has no event {at}: it has 0 to {length - 1}", self.last())
        obstacle = self.obstacles[at]
        if obstacle is None:
            return
        before, after = self._nearest(range(at - 1, -1, -1)), self._nearest(range(at + 1, length))
        near = [f"{seq} ({side})" for seq, side in ((before, "before it"), (after, "after it")) if seq is not None]
        where = f"the nearest events where it can: {', '.join(near)}" if near else "there is no event where it can"
        since = f" (since event {obstacle.since})" if obstacle.since < at else ""
        raise ForkPointError(
            f"run {self.run_id} cannot be forked at event {at}: {obstacle.what}{since}; {where}", before, after
        )

    def _nearest(self, seqs: range) -> int | None:
        return next((seq for seq in seqs if self.obstacles[seq] is None), None)

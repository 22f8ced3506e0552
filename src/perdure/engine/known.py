"""What a history that is about to be replayed says ahead of time: which calls are recorded, how far each one got."""

from __future__ import annotations

import msgspec

from perdure.engine.calls import Attempts, Key, Recorded
from perdure.history import events as e


class Known(msgspec.Struct):
    """What a history that is about to be replayed says ahead of time."""

    recorded: dict[Key, Recorded] = {}
    attempts: dict[Key, Attempts] = {}
    patches: dict[str, bool] = {}
    journals: dict[str, list[tuple[e.Keyed, int, bytes | None]]] = {}
    children: dict[Key, e.ChildStarted] = {}
    cancelled: set[Key] = set()
    unread: set[Key] = set()
    """Receives that got a message which they could not read, and waited for a person."""

    def note(self, event: e.Event, at: int, output: bytes | None = None) -> None:
        """Take one event in. `output` is needed of heartbeats, and of what foreign code did."""
        if isinstance(event, e.Keyed) and ":" in event.task:
            self.journals.setdefault(event.section, []).append((event, at, output))
            if not isinstance(event, e.AttemptFailed | e.Heartbeat | e.ChildStarted):
                return
            if isinstance(event, e.ChildStarted):
                self.children[event.key] = event
                return
        match event:
            case e.StepCompleted() | e.StepFailed() | e.StepStarted():
                self.note_step(event)
            case e.AttemptFailed():
                if not event.is_in_section:
                    self.recorded.setdefault(event.key, _recorded_step(event))
                self.attempts[event.key] = _failed_once_more(self.attempts.get(event.key, Attempts()), event)
            case e.Heartbeat():
                self.attempts[event.key] = self.attempts.get(event.key, Attempts())._replace(details=output)
            case e.ChildStarted():
                self.recorded[event.key] = Recorded(event.name, "child", event.input)
                self.children[event.key] = event
            case e.SectionStarted():
                self.recorded.setdefault(event.key, Recorded(event.name, "section", event.input))
            case e.CallCancelled():
                self.cancelled.add(event.key)
            case e.RunBlocked(task=str() as task, n=n, reason="undecodable"):
                self.unread.add((task, n))
            case e.RunUnblocked(task=str() as task, n=n, choice="cancelled"):
                self.cancelled.add((task, n))
            case e.RunUnblocked(task=str() as task, n=n, choice="retry"):
                self.attempts.pop((task, n), None)
            case e.Patched():
                self.patches[event.patch] = event.answer
            case _:
                pass


    def note_step(self, event: e.StepCompleted | e.StepFailed | e.StepStarted) -> None:
        """Take in that a step of the workflow's own is recorded, which is most of what a history holds."""
        key = (event.task, event.n)
        if key not in self.recorded:
            self.recorded[key] = _recorded_step(event)


def _recorded_step(event: e.StepStarted | e.StepCompleted | e.StepFailed | e.AttemptFailed) -> Recorded:
    return Recorded(event.name, "step", event.view or event.input, event.input if event.kept else None)


def _failed_once_more(before: Attempts, event: e.AttemptFailed) -> Attempts:
    return before._replace(failed=event.attempt, retry_at=event.retry_at, first_at=event.first_at)

"""What a history that is about to be replayed says ahead of time: which calls are recorded, how far each one got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from perdure.engine.calls import DONE_BY_ORIGINAL, QUESTIONS, Attempts, Key, Recorded, section_of
from perdure.history import events as e
from perdure.ledger import EffectState, Look

if TYPE_CHECKING:
    from perdure.decisions.premises import Decisions
    from perdure.engine.rewinding import Superseded
    from perdure.specs import StepSpec


class Stored(Protocol):
    """What stands beside an event. `input` and `output`: its payloads, unless they have to be fetched."""

    @property
    def at(self) -> int: ...
    @property
    def input(self) -> bytes | None: ...
    @property
    def output(self) -> bytes | None: ...


AnyStored = TypeVar("AnyStored", bound=Stored)


class Standing(NamedTuple):
    """How far an effect got that has no outcome yet. Times in microseconds since the epoch.

    `attempt`: of the last one sent. `is_resent`: an earlier one may have happened, and the same request was sent again
    under the same key; only what answers to that key proves anything then. `failed`: how many attempts count against
    the limit. `suspected_at`: when whoever sent it was taken for dead; `is_proven_dead`: it is; `was_left`: it left,
    and may still be sending: no death of those who have the run after it proves anything. `doubt_at`, `doubt`: since
    when nobody knows, and why.
    """

    operation: str
    state: EffectState
    attempt: int = 0
    started_at: int = 0
    first_at: int = 0
    failed: int = 0
    retry_at: int = 0
    suspected_at: int = 0
    is_proven_dead: bool = False
    was_left: bool = False
    doubt_at: int = 0
    doubt: e.EffectInDoubt | None = None
    looks: tuple[Look, ...] = ()
    request_id: str | None = None
    reference: str | None = None
    name: str = ""
    is_resent: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether whoever sent the last attempt has not said what came of it, and has not left since either."""
        return self.state is EffectState.STARTED and self.doubt is None and not self.was_left


class Known(msgspec.Struct, gc=False):
    """What a history that is about to be replayed says ahead of time."""

    recorded: dict[Key, Recorded] = {}
    attempts: dict[Key, Attempts] = {}
    patches: dict[str, bool] = {}
    journals: dict[str, list[tuple[e.Keyed, int, bytes | None]]] = {}
    children: dict[Key, e.ChildStarted] = {}
    cancelled: set[Key] = set()
    unread: set[Key] = set()
    """Receives that got a message which they could not read, and waited for a person."""
    effects: dict[Key, Standing] = {}
    ended_effects: set[Key] = set()
    """Effects whose outcome is recorded, or on its way: no other may follow."""
    asked: set[Key] = set()
    """Questions that were put to people, decided or not."""
    undoing: set[Key] = set()
    """Sections whose code has entered a saga."""
    cancelled_sections: dict[str, tuple[int, int]] = {}
    """Of those, where in their journal and when they were cancelled."""
    ended_sections: set[Key] = set()
    """Sections whose code has come to its end, whether anybody waits for that or not."""
    requests: dict[Key, e.PersonAsked] = {}
    """Requests that nobody has decided yet."""
    asked_as: dict[Key, str] = {}
    """The ids of requests, decided or not."""
    early: dict[str, list[tuple[e.PersonDecided, bytes | None]]] = {}
    """Decisions about what nobody has asked yet, by the id of the request."""
    reminded: set[tuple[str, str]] = set()
    """Requests of which people were told once more, and why."""
    spent: dict[str, int] = {}
    """Approvals that a step or child has used up, or that have lapsed, and when that was recorded; 0 if just now."""

    decided: dict[Key, str] = {}
    """Effects that the original of this fork has done as well, and what a person decided about them; "" so far."""
    origins: list[tuple[str, dict[str, int]]] = []
    """Of a fork: the runs that made the calls before it, and how many events of each section are theirs."""
    copied: frozenset[str] | None = None
    """Of a fork: the operations whose outcomes it has from its original, once somebody wanted to know."""
    resting: Any = None
    """What the history says of results that rest on something; most have none."""

    superseded: Any = None
    """Of a run that was rewound: what is known of that which does not count any more."""

    @property
    def before(self) -> Superseded | None:
        """The same."""
        superseded: Superseded | None = self.superseded
        return superseded

    @property
    def decisions(self) -> Decisions:
        """The same, made when there is something to say."""
        if self.resting is None:
            from perdure.decisions.premises import Decisions

            self.resting = Decisions()
        decisions: Decisions = self.resting
        return decisions

    def rely(self, key: Key, spec: StepSpec, raw: bytes) -> None:
        """The code calls a step whose result rests on something."""
        from perdure.decisions.premises import Asked

        self.decisions.asked[key] = Asked(spec, raw)

    def note(self, event: e.Event, at: int, output: bytes | None = None) -> None:
        """Take one event in. `output` is needed of heartbeats, of what foreign code did, of what decisions rest on."""
        if type(event) in _ABOUT_EFFECTS:
            self.note_effect(event, at)
        elif type(event) in _ABOUT_REQUESTS:
            self.note_request(event, output, at)
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
            case e.PersonAsked():
                self.recorded[event.key] = Recorded(event.name, event.kind, event.input, event.input)
            case e.SectionStarted():
                self.recorded.setdefault(event.key, Recorded(event.name, "section", event.input))
            case e.SectionEnded():
                self.ended_sections.add(event.key)
            case e.SectionUndoes():
                self.undoing.add(event.key)
            case e.CallCancelled():
                self.cancelled.add(event.key)
                self._note_cancelled_section(event.key, at)
            case e.RunBlocked(task=str() as task, n=n, reason="undecodable"):
                self.unread.add((task, n))
            case e.RunBlocked(task=str() as task, n=n, name=name) if name in QUESTIONS:
                self.asked.add((task, n))
            case e.RunBlocked(task=str() as task, n=n) if event.reason == DONE_BY_ORIGINAL:
                self.decided[task, n] = ""
            case e.RunUnblocked(task=str() as task, n=n):
                self._note_unblocked((task, n), event.choice)
            case e.Patched():
                self.patches[event.patch] = event.answer
            case e.PremisesRead() | e.PremisesChecked() | e.Rewound():
                self.decisions.note(event, output)
            case e.RunUnblocked() if self.resting is not None:
                self.decisions.note(event)
            case _:
                pass

    def _note_unblocked(self, key: Key, choice: str) -> None:
        if choice == "cancelled":
            self.cancelled.add(key)
        elif choice == "retry":
            self.attempts.pop(key, None)
        if key in self.decided:
            self.decided[key] = choice

    def _note_forked(self, of: str) -> None:
        """What people were asked so far, the original asked: what they have not decided is asked anew."""
        self.origins.append((of, {section: len(journal) for section, journal in self.journals.items()}))
        self.asked.difference_update(self.requests)
        for key in self.requests:
            del self.asked_as[key]
        self.requests.clear()
        self.early.clear()

    def _note_cancelled_section(self, key: Key, at: int) -> None:
        if key in self.undoing:
            section = section_of(key)
            self.cancelled_sections.setdefault(section, (len(self.journals.get(section, ())), at))

    def note_step(self, event: e.StepCompleted | e.StepFailed | e.StepStarted) -> None:
        """Take in that a step of the workflow's own is recorded."""
        key = (event.task, event.n)
        if key not in self.recorded:
            self.recorded[key] = _recorded_step(event)

    def note_completed(self, history: Iterable[tuple[e.Event, AnyStored]]) -> Iterator[tuple[e.Event, AnyStored]]:
        """Take in the results of plain steps, which are most of what a history holds, and give everything else, each in
        its place. Arguments that stand beside the event are kept: equal ones need no digest."""
        recorded = self.recorded
        for event, stored in history:
            if type(event) is not e.StepCompleted or ":" in event.task:
                yield event, stored
                continue
            key = (event.task, event.n)
            if key not in recorded:
                given = event.input
                recorded[key] = Recorded(
                    event.name, "step", event.view or given, given if event.kept else None, None, stored.input
                )

    def note_request(self, event: e.Event, output: bytes | None = None, at: int = 0) -> None:
        """Take in what an event says about what people are asked: of a history that is read, and of what is recorded
        now."""
        match event:
            case e.PersonAsked():
                self.asked.add(event.key)
                self.requests[event.key] = event
                self.asked_as[event.key] = event.id
                self.early.pop(event.id, None)
            case e.PersonAnswered() | e.CallCancelled():
                self.requests.pop(event.key, None)
            case e.PersonDecided(is_early=True):
                self.early.setdefault(event.id, []).append((event, output))
            case e.PersonReminded():
                self.reminded.add((event.id, event.what))
            case e.ApprovalSpent():
                self.spent[event.id] = at
            case e.RunForked():
                self._note_forked(event.of)
            case _:
                pass

    def open_effects_of(self, section: Key) -> list[Key]:
        """What a section has begun outside, and nobody knows what became of it."""
        prefix = section_of(section) + "/"
        return [key for key, standing in self.effects.items() if standing.state.is_open and key[0].startswith(prefix)]

    # ── effects ──────────────────────────────────────────────────────────────────────────────
    def note_effect(self, event: e.Event, at: int) -> None:
        """Take in what an event says about effects: of a history that is read, and of what is recorded now."""
        match event:
            case e.TakenOver():
                for key, standing in self.effects.items():
                    self.effects[key] = _abandoned(standing, event.how, at)
            case e.EffectSucceeded() | e.EffectFailed():
                self.effects.pop(event.key, None)
                self.ended_effects.add(event.key)
            case e.EffectStarted():
                fresh = Standing(event.operation, EffectState.PENDING, first_at=at, name=event.name)
                before = self.effects.get(event.key, fresh)
                self.effects[event.key] = before._replace(
                    operation=event.operation, state=EffectState.STARTED, attempt=event.attempt, started_at=at,
                    suspected_at=0, is_proven_dead=False, was_left=False, doubt=None, looks=(),
                    is_resent=before.state is EffectState.STARTED,
                )  # fmt: skip
            case e.RunUnblocked(task=str() as task, n=n, choice="retry") if (task, n) in self.effects:
                before = self.effects[task, n]
                self.effects[task, n] = Standing(
                    before.operation, EffectState.FAILED_RETRYABLE, before.attempt, first_at=at, retry_at=at,
                    name=before.name,
                )
            case e.Keyed() if event.key in self.effects:
                self.effects[event.key] = _further(self.effects[event.key], event, at)
            case _:
                pass


MOVES_EFFECTS = frozenset({"run.taken_over", "run.unblocked"})
"""Kinds of events that are about effects, besides those called `effect.…`."""


ABOUT_REQUESTS = frozenset({"person.asked", "person.answered", "call.cancelled", "run.forked"})
"""Kinds of events that say which requests nobody has decided yet."""


def standings(events: Iterable[tuple[e.Event, int]]) -> dict[Key, Standing]:
    """How far the effects got that have no outcome in these events (with their times)."""
    known = Known()
    for event, at in events:
        known.note_effect(event, at)
    return known.effects


def _further(standing: Standing, event: e.Keyed, at: int) -> Standing:
    match event:
        case e.EffectNotDone():
            return standing._replace(
                state=EffectState.FAILED_RETRYABLE, failed=event.attempt_counted, retry_at=event.retry_at, doubt=None
            )
        case e.EffectInDoubt():
            return standing._replace(
                state=EffectState.STARTED if event.retry_at else EffectState.UNKNOWN, doubt=event, doubt_at=at,
                failed=standing.failed + event.counts, retry_at=event.retry_at,
            )  # fmt: skip
        case e.EffectLookedUp():
            return standing._replace(looks=(*standing.looks, Look(event.answer, at)))
        case e.EffectNoted():
            return standing._replace(
                request_id=event.request_id or standing.request_id, reference=standing.reference or event.reference
            )
        case _:
            return standing


def _abandoned(standing: Standing, how: str, at: int) -> Standing:
    """Whoever had it under way is gone; once only suspected, or still alive, that stays so."""
    if how == "suspicion":
        return standing._replace(suspected_at=at)
    if how == "left":
        return standing._replace(was_left=True)
    return standing._replace(is_proven_dead=not standing.was_left)


_ABOUT_EFFECTS = frozenset(
    {
        e.EffectStarted, e.EffectSucceeded, e.EffectFailed, e.EffectNotDone, e.EffectInDoubt, e.EffectLookedUp,
        e.EffectNoted, e.TakenOver, e.RunUnblocked,
    }
)  # fmt: skip


_ABOUT_REQUESTS = frozenset(
    {
        e.PersonAsked, e.PersonReminded, e.PersonDecided, e.PersonAnswered, e.CallCancelled, e.ApprovalSpent,
        e.RunForked,
    }
)  # fmt: skip


def _recorded_step(event: e.StepStarted | e.StepCompleted | e.StepFailed | e.AttemptFailed) -> Recorded:
    business_key = getattr(event, "business_key", None)
    kind = "step" if business_key is None else "effect"
    return Recorded(event.name, kind, event.view or event.input, event.input if event.kept else None, business_key)


def _failed_once_more(before: Attempts, event: e.AttemptFailed) -> Attempts:
    return before._replace(failed=event.attempt, retry_at=event.retry_at, first_at=event.first_at)

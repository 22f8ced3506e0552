"""The world outside in a simulation: what effects ask of it, what it really did, and what it says when asked.

It keeps books of its own: `sends`, every request as it arrived, and `done`, how often each operation was carried out.
What a request meets with is decided by the simulation: an answer, an answer that is lost, a refusal, or no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

Downstream = Literal["idempotent", "can_look_up", "no_guarantee"]

FATES: dict[str, int] = {
    "done": 60,
    "lost": 12,
    "dropped": 8,
    "refused": 6,
    "busy": 8,
    "late": 6,
    "doubt": 3,
    "person": 2,
    "odd": 2,
}
"""What a request meets with, and how often: done; done, the answer lost; not done, the answer lost; refused for good;
refused for now; done, the answer after the time limit; the effect itself says that it cannot tell, or only a person;
done, with a result that cannot be recorded."""

NOT_CARRIED_OUT = frozenset({"dropped", "refused", "busy", "doubt"})
REFUSALS = frozenset({"refused", "busy"})


class Send(NamedTuple):
    """One request that arrived. `is_straggler`: its run was another worker's by then, or the attempt was given up."""

    operation: str
    attempt: int
    request: object
    fate: str
    is_straggler: bool

    @property
    def is_carried_out(self) -> bool:
        return self.fate not in NOT_CARRIED_OUT


class Books:
    """What really happened outside: `sends`, the requests as they arrived, and `done`, how often each operation was
    carried out."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.done = Counter[str]()

    def of(self, operation: str) -> Sequence[Send]:
        """The requests under this id, in the order of their arrival."""
        return [send for send in self.sends if send.operation == operation]


class Outside(Books):
    """See above. `is_kind`: from now on every request is carried out and answered, every look-up says what is so."""

    def __init__(self, rng: Random, *, is_kind: bool) -> None:
        super().__init__()
        self._rng = rng
        self.is_kind = is_kind
        self.results: dict[str, int] = {}

    def arrived(
        self, operation: str, attempt: int, request: tuple[int, int, int], kind: Downstream, value: int,
        *, is_straggler: bool,
    ) -> Send:  # fmt: skip
        """A request is here: decide what it meets with, and do it."""
        fate = "done" if self.is_kind else self._rng.choices(list(FATES), list(FATES.values()))[0]
        if kind == "idempotent" and self.done[operation] and fate == "refused":
            fate = "done"  # whoever honours keys gives the answer to the first one again
        send = Send(operation, attempt, request, fate, is_straggler)
        self.sends.append(send)
        if send.is_carried_out and not (kind == "idempotent" and self.done[operation]):
            self.done[operation] += 1
            self.results[operation] = value
        return send

    def look_up(self, operation: str) -> Literal["found", "not_found", "unsure", "raises"]:
        """What is answered to whoever asks about an operation."""
        luck = 1.0 if self.is_kind else self._rng.random()
        if luck < 0.15:
            return "unsure"
        if luck < 0.25:
            return "raises"
        return "found" if self.done[operation] else "not_found"

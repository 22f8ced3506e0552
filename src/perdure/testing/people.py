"""The people in a simulation: they decide what they are asked, rightly, wrongly, twice, late, or before it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random

from perdure.decisions import Decision
from perdure.decisions.deciding import encode_decision
from perdure.store.protocol import Decide, Store
from perdure.testing.clock import FakeClock
from perdure.testing.consents import APPROVERS, CHOICES, Request
from perdure.testing.witness import Witness

PERSONS = (*APPROVERS, *APPROVERS, "eve")
"""Eve has no say."""
DELAYS_MS = (1, 10, 50, 100, 400, 1_000, 3_000)
EARLY = 0.3
ASKED_EVERY_MS = 300


class People:
    """Their luck is their own, so that what else happens does not depend on whether anybody is asked."""

    def __init__(self, store: Store, clock: FakeClock, witness: Witness, rng: Random) -> None:
        self._store, self._clock, self._witness, self._rng = store, clock, witness, rng
        witness.on_asked = self._asked

    def _after(self, ms: float, action: Callable[[], None]) -> None:
        self._clock.arm(self._clock.now() + round(ms * 1000), action, None)

    def know(self, foreseen: Iterable[Request]) -> None:
        """What will probably be asked: some of it is decided before."""
        for request in foreseen:
            if self._rng.random() < EARLY:
                self._after(self._rng.choice(DELAYS_MS), lambda request=request: self._decide(request))  # type: ignore[misc]

    def _asked(self, request: Request) -> None:
        for _ in range(self._rng.choice((0, 1, 1, 2, 3))):
            self._after(self._rng.choice(DELAYS_MS), lambda: self._decide(request))

    def _decide(self, request: Request) -> None:
        rng = self._rng
        choice = rng.choices(("approve", "reject"), (8, 2))[0] if request.kind == "approval" else "answer"
        if rng.random() < 0.05:
            choice = rng.choice((*CHOICES["approval"], *CHOICES["question"]))
        asked = request.hash if rng.random() < 0.9 else f"{int(request.hash, 16) ^ 1:064x}"
        self._say(request, Decision(choice, asked, rng.choice(PERSONS), value=self._value(choice)))

    def _value(self, choice: str) -> str | None:
        return str(self._rng.randrange(1000)) if choice == "answer" else None

    def serve(self) -> None:
        """From now on everything that is asked is granted."""
        for run_id in self._witness.unfinished():
            for request in self._witness.consents.pending(run_id):
                choice = CHOICES[request.kind][0]
                for by in APPROVERS:
                    self._say(request, Decision(choice, request.hash, by, value=self._value(choice)))
        self._after(ASKED_EVERY_MS, self.serve)

    def _say(self, request: Request, decision: Decision) -> None:
        body = encode_decision(decision)
        write = Decide(os.urandom(16), request.run_id, request.id, body, may_be_early=True)
        (outcome,) = self._store.commit([write])
        self._witness.note(f"{decision.by}: {decision.choice} {request.id} of {request.run_id}: {outcome}")
        self._witness.consents.said(request.run_id, request.id, decision, self._clock.now(), outcome)

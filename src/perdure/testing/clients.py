"""What comes from outside in a simulation: starts, messages, cancelling, pausing, and what persons decide."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from perdure.ledger import EffectState, LedgerEntry
from perdure.runtime import mail
from perdure.runtime.beginnings import new_run
from perdure.store.protocol import Done, EffectFilter, Letter, Status, Store
from perdure.testing import programs as p
from perdure.testing import workflows
from perdure.testing.clock import FakeClock
from perdure.testing.outside import Outside
from perdure.testing.process import Process
from perdure.testing.witness import Witness

SERVED_EVERY_MS = 300
UNSETTLED = frozenset({EffectState.UNKNOWN, EffectState.SUCCEEDED})


class Clients:
    """Everybody who speaks to the runs. Their own calls to the store never fail."""

    def __init__(
        self, program: p.Program, store: Store, clock: FakeClock, rng: Random, witness: Witness,
        outside: Outside,
    ) -> None:  # fmt: skip
        self._program, self._store, self._clock = program, store, clock
        self._rng, self._witness = rng, witness
        self._outside = outside
        self._messages = 0
        self.starting = 0
        self.tells_messages = True
        witness.on_blocked = lambda run_id: self.after(rng.choice((10, 100, 500)), lambda: self._decide(run_id))

    def after(self, ms: float, action: Callable[[], None]) -> None:
        """Do something so much later, outside of every process."""
        self._clock.arm(self._clock.now() + round(ms * 1000), action, None)

    def start_later(self, run_id: str, up: Callable[[], Sequence[Process]]) -> None:
        self.starting += 1
        self.after(self._rng.choice((0, 0, 30)), lambda: self._start(run_id, up()))

    def _start(self, run_id: str, up: Sequence[Process]) -> None:
        """Start a run: for any worker, or for one that then takes it at once."""
        spec = workflows.simulated.spec
        raw = spec.arguments.dumps((self._program.root.number, 0), {})
        process = self._rng.choice(up) if up and self._rng.random() < 0.5 else None
        owner = process.host.worker if process is not None else None
        new = new_run(spec, run_id, raw, now=self._clock.now(), owner=owner)
        self.starting -= 1
        (outcome,) = self._store.commit([new])
        self._witness.committed(None, [new], [outcome])
        info = self._store.find(run_id)
        if process is not None and info is not None:
            process.do(lambda: process.loop.call_soon(process.host.take_new, info, new, raw))

    # ── what happens at random ───────────────────────────────────────────────────────────────
    def _any(self) -> list[str]:
        """The id of some run that has not ended; none if all have."""
        runs = self._witness.unfinished()
        return [self._rng.choice(runs)] if runs else []

    def send(self) -> None:
        for run_id in self._any():
            self._send(run_id, self._rng.choice(p.MESSAGES))

    def cancel(self) -> None:
        for run_id in self._any():
            self._control(run_id, "cancel")

    def force(self) -> None:
        for run_id in self._any():
            self._control(run_id, "cancel", force=True)

    def hold(self) -> None:
        """Pause, and a little later resume."""
        for run_id in self._any():
            self._hold(run_id)

    def _hold(self, run_id: str) -> None:
        self._control(run_id, "pause")
        self.after(self._rng.choice((20, 300)), lambda: self._control(run_id, "resume"))

    def _decide(self, run_id: str) -> None:
        """A person looks at what is blocked, and decides somehow."""
        info = self._store.find(run_id)
        if info is not None and info.status is Status.BLOCKED:
            if unsettled := self._unsettled(info.rid):
                self._settle(run_id, self._rng.choice(unsettled))
                return
            choice = self._rng.choice(("retry", "value", "fail"))
            self._control(run_id, "unblock", choice=choice, value="7" if choice == "value" else None)

    def _unsettled(self, rid: int) -> list[LedgerEntry]:
        """The effects of a run that somebody may be asked about."""
        entries = self._store.effects(EffectFilter(rid=rid, status=UNSETTLED))
        return [entry for entry in entries if entry.status is EffectState.UNKNOWN or entry.result is None]

    def _settle(self, run_id: str, entry: LedgerEntry) -> None:
        """A person looks into the books outside, and says what is so."""
        value = str(self._outside.results.get(entry.operation_id))
        if self._outside.done[entry.operation_id]:
            choice = {"choice": "succeeded", "value": value, "reference": "by a person"}
        else:
            choice = {"choice": self._rng.choice(("failed", "retry"))}
        self._control(run_id, "unblock", call=entry.label, by="ann", attempt=entry.attempts, **choice)

    # ── what happens in the end ──────────────────────────────────────────────────────────────
    def serve(self) -> None:
        """From now on every run gets whatever it may wait for, until all have ended."""
        self.tells_messages = False
        for run_id in self._witness.unfinished():
            info = self._store.find(run_id)
            if info is not None and info.reason == "paused":
                self._control(run_id, "resume")
            elif info is not None and info.status is Status.BLOCKED:
                for entry in self._unsettled(info.rid):
                    self._settle(run_id, entry)
                self._control(run_id, "unblock", choice="retry")
            for name in p.MESSAGES:
                self._send(run_id, name)
        self.after(SERVED_EVERY_MS, self.serve)

    # ── letters ──────────────────────────────────────────────────────────────────────────────
    def _post(self, run_id: str, kind: str, key: str, body: bytes) -> bool:
        letter = Letter(os.urandom(16), run_id, kind, key, body, self._clock.now())
        (outcome,) = self._store.commit([letter])
        return isinstance(outcome, Done)

    def _send(self, run_id: str, name: str) -> None:
        self._messages += 1
        if self._post(run_id, "message", name, str(self._messages).encode()):
            self._witness.sent.append((run_id, name, self._messages))
            if self.tells_messages:
                self._witness.note(f"message {name} {self._messages} to {run_id}")

    def _control(self, run_id: str, kind: str, **body: Any) -> None:
        self._witness.note(f"{kind} {run_id} {body or ''}".rstrip())
        self._post(run_id, kind, "", msgspec.json.encode(mail.ControlLetter(**body)))

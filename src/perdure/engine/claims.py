"""Is what the code asks for what the history has in that place?

Whatever is recorded, and whatever a parked run waited for, has to be asked for again: each call claims its own entry.
What is found is told as a `Difference`, in words for a person; what becomes of the run then is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from perdure.clock import MICROSECONDS
from perdure.codec import Memo, pack
from perdure.engine.calls import Ask, Key, Recorded, StepAsk, Waiting
from perdure.specs import Drift

INPUT_COMPARED_ON_REPLAY_BYTES_MAX = 16 * 1024


class Difference(NamedTuple):
    """Where code and history part: what the one has and what the other wants instead."""

    recorded: str
    asked: str


class Claims:
    """What of the record is still to be asked for. `recorded`: calls; `expected`: the waits of a run that was parked.

    `same_manifest`: the code declares what it declared when the run began. Large inputs are then taken for the same,
    unless `compare_all_inputs`."""

    __slots__ = ("_compare_all_inputs", "_last_large", "_memo", "_same_manifest", "expected", "recorded")

    def __init__(
        self,
        recorded: dict[Key, Recorded],
        waiting: Iterable[Waiting],
        memo: Memo,
        *,
        same_manifest: bool,
        compare_all_inputs: bool,
    ) -> None:
        self.recorded = recorded
        self.expected = {(w.task, w.n): w for w in waiting}
        self._memo = memo
        self._same_manifest = same_manifest
        self._compare_all_inputs = compare_all_inputs
        self._last_large: tuple[bytes, bytes | None] = (b"", None)

    @property
    def is_settled(self) -> bool:
        """Whether the code has asked for all of it again."""
        return not (self.recorded or self.expected)

    def unclaimed(self) -> str | None:
        """The first of what the code has not asked for again."""
        for (task, n), recorded in self.recorded.items():
            return f"the history has {recorded.kind} {recorded.name!r} as call {n} of task {task}, never asked for"
        for w in self.expected.values():
            return f"the run was parked on {_told(w)} (call {w.n} of task {w.task})"
        return None

    def of_step(self, recorded: Recorded, ask: StepAsk) -> Difference | None:
        """What a step differs in from its entry, which the caller has taken out already."""
        if recorded.kind != ask.kind or recorded.name != ask.name:
            return _another(recorded, ask)
        raw, spec = ask.input, ask.spec
        is_large = len(raw) > INPUT_COMPARED_ON_REPLAY_BYTES_MAX
        if recorded.digest is None or (is_large and self._same_manifest and not self._compare_all_inputs):
            self._last_large = (raw, recorded.stored)
            return None
        packed = ask.packed = pack(raw, self._memo)
        if packed.blobs and packed.digest == recorded.stored:
            self._memo.committed(packed)
        if (ask.view or packed.digest) == recorded.digest:
            return None
        if not self._same_manifest and spec.on_input_drift is Drift.ACCEPT:
            return None
        return Difference(
            f"the history has {ask.label} with other arguments (digest {recorded.digest.hex()[:12]})",
            f"the code asks for it with {_shown(raw)}",
        )

    def of_call(self, ask: Ask, input_digest: bytes | None) -> Difference | None:
        """Claim the entry of a call that is no step."""
        recorded = self.recorded.pop(ask.key, None)
        if recorded is None:
            return None
        if recorded.kind != ask.kind or recorded.name != ask.name:
            return _another(recorded, ask)
        if input_digest is not None and recorded.digest is not None and recorded.digest != input_digest:
            return Difference(f"the history has {ask.label} with another input", "the code gives it a new one")
        return None

    def of_wait(self, ask: Ask, length: int) -> Difference | None:
        """Claim the entry of the waiting set that the run was parked with."""
        recorded = self.recorded.pop(ask.key, None) if self.recorded else None
        if recorded is not None:
            return _another(recorded, ask)
        parked = self.expected.pop(ask.key, None) if self.expected else None
        if parked is None or (parked.kind == ask.kind and parked.name == ask.name and parked.length == length):
            return None
        return Difference(
            f"the run was parked on {_told(parked)} (call {parked.n} of task {parked.task})",
            f"the code asks for {_told(Waiting(*ask.key, ask.kind, ask.name, length))}",
        )

    def remember_last_large(self) -> None:
        """What follows is likely to be the last large input with a little more: have the memo know what is stored."""
        raw, stored = self._last_large
        packed = pack(raw, self._memo) if stored is not None else None
        if packed is not None and packed.digest == stored:
            self._memo.committed(packed)
        self._last_large = (b"", None)


def _another(recorded: Recorded, ask: Ask) -> Difference:
    task, n = ask.key
    return Difference(
        f"the history has {recorded.kind} {recorded.name!r} as call {n} of task {task}",
        f"the code asks for {ask.kind} {ask.name!r} ({ask.label})",
    )


def _told(w: Waiting) -> str:
    length = f"{w.length / MICROSECONDS:g} s"
    if w.kind == "sleep":
        return f"sleep of {length}"
    return f"{w.name} within {length}" if w.length else w.name


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return text if len(text) <= 200 else text[:200] + "..."

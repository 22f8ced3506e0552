"""Is what the code asks for what the history has in that place?

Whatever is recorded, and whatever a parked run waited for, has to be asked for again: each call claims its own entry.
What is found is told as a `Difference`, in words for a person; what becomes of the run then is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from perdure.clock import MICROSECONDS
from perdure.codec import Memo, digest, pack
from perdure.codec.digests import SMALL_MAX
from perdure.codec.hiding import alike
from perdure.engine.calls import Ask, EffectAsk, Key, Recorded, StepAsk, Waiting
from perdure.specs import Drift, EffectSpec

INPUT_COMPARED_ON_REPLAY_BYTES_MAX = 16 * 1024

SHOWN_CHARACTERS_MAX = 200
SHOWN_BEFORE_DIFFERENCE_CHARACTERS = 40


class Difference(NamedTuple):
    """Where code and history part: what the one has and what the other wants instead; and both calls by what they are
    and their names, as in `step search`."""

    recorded: str
    asked: str
    recorded_call: str = ""
    asked_call: str = ""


class Claims:
    """What of the record is still to be asked for. `recorded`: calls; `expected`: the waits of a run that was parked.

    `same_manifest`: the code declares what it declared when the run began. Large inputs are then taken for the same,
    unless `compare_all_inputs`. `input_of`: the recorded arguments of a call, for messages, while a
    history is replayed."""

    __slots__ = ("_compare_all_inputs", "_last_large", "_memo", "_same_manifest", "expected", "input_of", "recorded")

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
        self.input_of: Callable[[Key], bytes | None] = _not_known

    @property
    def is_settled(self) -> bool:
        """Whether the code has asked for all of it again."""
        return not (self.recorded or self.expected)

    def unclaimed(self, instead: Sequence[Ask]) -> Difference | None:
        """The first of what the code has not asked for again. `instead`: what it asks for."""
        shown = labels_of(instead)
        for (task, n), recorded in self.recorded.items():
            told = f"the history has {recorded.kind} {recorded.name!r} as call {n} of task {task}, never asked for"
            return Difference(told, f"the code waits for {shown}", _called(recorded), _other(recorded, instead))
        for w in self.expected.values():
            told = f"the run was parked on {_told(w)} (call {w.n} of task {w.task})"
            return Difference(told, f"the code waits for {shown}", _called(w), _other(w, instead))
        return None

    def of_step(self, recorded: Recorded, ask: StepAsk) -> Difference | None:
        """What a step differs in from its entry, which the caller has taken out already; it has seen that it is not
        the same to the letter."""
        if recorded.kind != ask.kind or (recorded.name != ask.name and not _was_called(recorded.name, ask)):
            return _another(recorded, ask)
        if isinstance(ask, EffectAsk) and recorded.business_key != ask.business_key:
            return Difference(
                f"the history has {ask.label} with the key {recorded.business_key!r}",
                f"the key function gives {ask.business_key!r} now: it may depend on the arguments alone",
                _called(ask), _called(ask),
            )  # fmt: skip
        raw, spec = ask.input, ask.spec
        is_large = len(raw) > INPUT_COMPARED_ON_REPLAY_BYTES_MAX
        if recorded.digest is None or (is_large and self._same_manifest and not self._compare_all_inputs):
            self._last_large = (raw, recorded.stored)
            return None
        given = self._digest_of(ask, recorded)
        if (ask.view or given) == recorded.digest:
            return None
        if not self._same_manifest and spec.on_input_drift is Drift.ACCEPT:
            return None
        kept = self.input_of(ask.key)
        if kept is not None and alike(kept, raw):  # a secret was known then and is not now, or the other way round
            ask.input, ask.packed = kept, None
            return None
        return self._other_input("arguments", recorded.digest, ask, raw)

    def _digest_of(self, ask: StepAsk, recorded: Recorded) -> bytes:
        """Of its input, which is stored already if it has not changed. Have the memo know what of it is."""
        if len(ask.input) <= SMALL_MAX:  # it is in no blob
            return digest(ask.input)
        packed = ask.packed = pack(ask.input, self._memo)
        if packed.blobs and packed.digest == recorded.stored:
            self._memo.committed(packed)
        return packed.digest

    def of_call(self, ask: Ask, input_digest: bytes | None, raw: bytes = b"") -> Difference | None:
        """Claim the entry of a call that is no step."""
        recorded = self.recorded.pop(ask.key, None)
        if recorded is None:
            return None
        if recorded.kind != ask.kind or recorded.name != ask.name:
            return _another(recorded, ask)
        if input_digest is not None and recorded.digest is not None and recorded.digest != input_digest:
            return None if alike(self.input_of(ask.key) or b"", raw) else self._other_input(
                "input", recorded.digest, ask, raw
            )
        return None

    def _other_input(self, noun: str, digest: bytes, ask: Ask, raw: bytes) -> Difference:
        """Both sides' arguments; the digest of those that are not kept."""
        kept = self.input_of(ask.key)
        recorded, asked = beside(b"" if kept is None else kept, raw)
        if kept is None:
            recorded = f"whose digest is {digest.hex()[:12]}"
        if isinstance(ask, StepAsk) and not ask.spec.record_input:  # what is said here is recorded
            asked = "others; they are not kept"
        return Difference(
            f"the history has {ask.label} with {'an' if noun == 'input' else ''}other {noun}, {recorded}",
            f"the code asks for it with {asked}",
            _called(ask), _called(ask),
        )  # fmt: skip

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
            _called(parked), _called(ask),
        )  # fmt: skip

    def remember_last_large(self) -> None:
        """What follows is likely to be the last large input with a little more: have the memo know what is stored."""
        raw, stored = self._last_large
        packed = pack(raw, self._memo) if stored is not None else None
        if packed is not None and packed.digest == stored:
            self._memo.committed(packed)
        self._last_large = (b"", None)


def _was_called(name: str, ask: StepAsk) -> bool:
    """Whether the effect had this name before it was renamed."""
    return isinstance(ask.spec, EffectSpec) and name in ask.spec.aliases


def _another(recorded: Recorded, ask: Ask) -> Difference:
    task, n = ask.key
    return Difference(
        f"the history has {recorded.kind} {recorded.name!r} as call {n} of task {task}",
        f"the code asks for {ask.kind} {ask.name!r} ({ask.label})",
        _called(recorded), _called(ask),
    )  # fmt: skip


def _called(it: Recorded | Ask | Waiting) -> str:
    """What it is and its name, as an outline of the source has it."""
    if it.kind == "approval":
        return f"approval {it.name.removeprefix('approve:')}"
    return it.name.replace(":", " ") if it.name == "sleep" or it.name.startswith("receive:") else f"{it.kind} {it.name}"


def labels_of(asks: Sequence[Ask]) -> str:
    """What the code asks for, in words."""
    labels = [ask.label for ask in asks]
    return ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "") if labels else "nothing"


def _other(it: Recorded | Waiting, instead: Sequence[Ask]) -> str:
    """What the code asks for in its place, if that is one thing, and another one."""
    others = {_called(ask) for ask in instead}
    return others.pop() if len(others) == 1 and _called(it) not in others else ""


def _told(w: Waiting) -> str:
    length = f"{w.length / MICROSECONDS:g} s"
    if w.kind == "sleep":
        return f"sleep of {length}"
    return f"{w.name} within {length}" if w.length else w.name


def _not_known(key: Key) -> bytes | None:
    return None


def beside(one: bytes, other: bytes) -> tuple[str, str]:
    """Both as texts that fit in a message: of long ones the part where they begin to differ.

    >>> beside(b'{"q":"tea"}', b'{"q":"milk"}')
    ('{"q":"tea"}', '{"q":"milk"}')
    """
    texts = one.decode("utf-8", "replace"), other.decode("utf-8", "replace")
    begin = 0
    if one and max(map(len, texts)) > SHOWN_CHARACTERS_MAX:
        begin = max(0, _common_length(*texts) - SHOWN_BEFORE_DIFFERENCE_CHARACTERS)
    return _shown(texts[0], begin), _shown(texts[1], begin)


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shown(text: str, begin: int) -> str:
    end = begin + SHOWN_CHARACTERS_MAX
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if len(text) > end else ''}"

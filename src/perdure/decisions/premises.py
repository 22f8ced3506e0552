"""Does the result of a step still stand? What it rests on, as it was read then and as it is read now.

A result that was recorded is good for as long as its author said, and as long as the facts that it rests on are as they
were, or as good as that. What a history says of this is kept in `Decisions`; reading facts again is the runtime's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perdure.history import events as e

if TYPE_CHECKING:
    from perdure.specs import Premise, StepSpec

Key = tuple[str, int]
Values = dict[str, bytes]
"""Of premises, by name: canonical JSON."""

NOT_AGAIN = frozenset({"note", "keep"})
"""Dispositions after which a decision stands as it is."""

REAPPROVE = "reapprove"
"""A person is to say whether it stands; and what a run is blocked with that waits for that."""

_decode_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_found = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]]).decode
_encode = msgspec.json.Encoder(order="sorted").encode


class Reader(msgspec.Struct, frozen=True):
    """What reads a fact again that the body of a step has named: a step, and its arguments."""

    step: str
    arguments: msgspec.Raw


Readers = dict[str, Reader]
_decode_readers = msgspec.json.Decoder(dict[str, Reader]).decode
READERS = ""
"""Where these stand among the values: no premise has that name."""


def encode_values(values: Mapping[str, bytes], readers: Mapping[str, Reader] = MappingProxyType({})) -> bytes:
    """Values by name, as they are stored.

    >>> encode_values({"stock": b"3", "policy": b'"v7"'})
    b'{"policy":"v7","stock":3}'
    """
    named: dict[str, Any] = {name: msgspec.Raw(value) for name, value in values.items()}
    return _encode({**named, READERS: dict(readers)} if readers else named)


def decode_values(raw: bytes) -> tuple[Values, Readers]:
    """The same, read again."""
    values = {name: bytes(value) for name, value in _decode_values(raw).items()}
    readers = values.pop(READERS, None)
    return values, {} if readers is None else _decode_readers(readers)


class Asked(NamedTuple):
    """The call whose result rests on something: the step, and its arguments, canonical."""

    spec: StepSpec
    input: bytes


On = tuple[str, ...] | None
"""Names of premises and of steps that an effect relies on; None: on all there are."""


class Rest(msgspec.Struct):
    """What one result rests on, as it counts now. `readers`: of facts that the step's body has named. `times`: how
    often the step was made again for that. `apart`: when premises were looked at that an effect has named."""

    event: e.PremisesRead
    values: Values
    valid_until: int
    checked_at: int
    readers: Readers = {}
    is_kept: bool = False
    times: int = 0
    apart: dict[str, int] = {}

    def is_over(self, now: int) -> bool:
        """Whether its time is over."""
        return 0 < self.valid_until <= now

    def part(self, on: On) -> frozenset[str] | None:
        """The names of the premises that `on` means; None if it means this result, with all that it rests on."""
        if on is None or self.event.name in on:
            return None
        return frozenset(on) & {*self.values, *self.readers}

    def is_meant(self, on: On) -> bool:
        """Whether `on` means this result, or something that it rests on."""
        return self.part(on) != frozenset()

    def looked_at(self, part: frozenset[str] | None) -> int:
        """Since when at least all of this part has stood as it is."""
        if part is None:
            return self.checked_at
        return min(max(self.checked_at, self.apart.get(name, 0)) for name in part)

    def note_looked_at(self, part: frozenset[str] | None, at: int) -> None:
        """All of this part was read."""
        if part is None:
            self.checked_at = max(self.checked_at, at)
        else:
            self.apart |= dict.fromkeys(part, at)


class Decisions(msgspec.Struct):
    """What a run's history says of the results that rest on something. `asked`: the calls, as the code has made them;
    one that it has not made again yet cannot be read. `open`: what a person has to decide, or did not want to."""

    rests: dict[Key, Rest] = {}
    asked: dict[Key, Asked] = {}
    checks: int = 0
    open: tuple[e.Finding, ...] = ()
    refused: set[Key] = set()
    """Of which a person has said that they do not stand: they are made again."""
    found: dict[str, Values] = {}
    rewound: int = 0
    rewinds: dict[Key, int] = {}
    timers: dict[Key, tuple[int, int]] = {}
    """Of the run's timers since it has decisions: length and deadline."""
    awaits_code: bool = False
    """Whether the run was taken over, and hosted code of it has not come yet to what its results rest on."""

    def note(self, event: e.Event, output: bytes | None = None) -> None:
        """Take one event in, with its payload."""
        match event:
            case e.PremisesRead():
                before = self.rests.get(event.key)
                times = before.times + event.renews if before is not None else 0
                values, readers = decode_values(output or b"{}")
                self.rests[event.key] = Rest(event, values, event.valid_until, event.read_at, readers, times=times)
                self.open = tuple(finding for finding in self.open if finding.key != event.key)
                self.refused.discard(event.key)
            case e.Rewound():
                self.rewound += 1
                self.rewinds[event.key] = self.rewinds.get(event.key, 0) + 1
                self.timers |= {(timer.task, timer.n): (timer.length, timer.deadline) for timer in event.timers}
                self.open = ()
            case e.PremisesChecked():
                self._note_check(event, output)
            case e.RunUnblocked(choice="keep", task=None):
                for finding in self.open:
                    self._accept(finding, is_for_good=finding.did == "unreadable")
                self.open = ()
            case e.RunUnblocked(choice="recompute", task=None):
                self.refused |= {finding.key for finding in self.open if finding.did == REAPPROVE}
            case _:
                pass

    def _note_check(self, event: e.PremisesChecked, output: bytes | None) -> None:
        self.checks = event.number
        self.found = {
            call: {name: bytes(value) for name, value in values.items()}
            for call, values in _decode_found(output or b"{}").items()
        }
        for rest in self.rests.values():
            rest.note_looked_at(rest.part(event.relies_on), event.read_at)
        for finding in event.findings:
            if finding.did in NOT_AGAIN:
                self._accept(finding, is_for_good=finding.did == "keep")
        untouched = (finding for finding in self.open if not self._is_about(finding, event.relies_on))
        self.open = (*untouched, *(finding for finding in event.findings if finding.did not in NOT_AGAIN))

    def _is_about(self, finding: e.Finding, on: On) -> bool:
        rest = self.rests.get(finding.key)
        return rest is None or rest.is_meant(on)

    def _accept(self, finding: e.Finding, *, is_for_good: bool) -> None:
        """The result stands although: what counts from now on are the facts as they are now."""
        rest = self.rests.get(finding.key)
        if rest is not None:
            rest.values |= self.found.get(finding.call, {})
            rest.valid_until = 0 if finding.is_expired else rest.valid_until
            rest.is_kept |= is_for_good

    def arm(self, key: Key, length: int, deadline: int) -> int:
        """The deadline of a timer that is armed now: if it is the same as before the run was rewound, that one."""
        before = self.timers.get(key)
        if before is not None and before[0] == length:
            return before[1]
        self.timers[key] = (length, deadline)
        return deadline

    def made_again(self, key: Key) -> int:
        """How often this step was made again, since its result did not stand."""
        rest = self.rests.get(key)
        return self.rewinds.get(key, 0) + (rest.times if rest is not None else 0)

    # ── what is to be read ───────────────────────────────────────────────────────────────────
    def live(self, on: On = None) -> Iterator[tuple[Key, Rest, Asked]]:
        """Those that are checked, in the order in which they were recorded; or of those what `on` means."""
        for key, rest in self.rests.items():
            asked = self.asked.get(key)
            rests = None if asked is None else asked.spec.rests
            is_live = asked is not None and rests is not None and rests.is_verified and not rest.is_kept
            if asked is not None and is_live and rest.is_meant(on):
                yield key, rest, asked

    def names(self) -> set[str]:
        """Of the steps whose results rest on something, and of their premises, as far as they are recorded."""
        return {name for rest in self.rests.values() for name in (rest.event.name, *rest.values)}

    def is_any_over(self, now: int) -> bool:
        """Whether the time of one of them is over."""
        return any(rest.is_over(now) for _, rest, _ in self.live())

    def are_fresh(self, now: int, age_max: int, on: On = None) -> bool:
        """Whether all of them, or what `on` means, were looked at no longer ago, and found to stand."""
        if any(self._is_about(finding, on) for finding in self.open):
            return False
        return all(_is_fresh(rest, rest.part(on), now, age_max) for _, rest, _ in self.live(on))


def _is_fresh(rest: Rest, part: frozenset[str] | None, now: int, age_max: int) -> bool:
    return rest.looked_at(part) >= now - age_max and not (part is None and rest.is_over(now))


def changed(premises: Iterable[Premise], then: Values, now: Values) -> list[str]:
    """Names of those that are not as they were. One that was declared since has nothing to be compared with.

    Raises whatever the author's `same=` raises."""
    by_name = {premise.name: premise for premise in premises}
    others = [name for name in now if name in then and then[name] != now[name]]
    return [name for name in others if name not in by_name or not _are_same(by_name[name], then[name], now[name])]


def _are_same(premise: Premise, then: bytes, now: bytes) -> bool:
    return bool(premise.same and premise.same(premise.result.loads(then), premise.result.loads(now)))


def plain(values: Values) -> dict[str, Any]:
    """Values as plain JSON, for people and for the author's functions."""
    return {name: msgspec.json.decode(value) for name, value in values.items()}


def told(finding: e.Finding, then: Values, now: Values) -> str:
    """A finding in words.

    >>> told(e.Finding("0", 0, "0/decide#1", ("policy",)), {"policy": b"3"}, {"policy": b"4"})
    '0/decide#1 rests on policy 3, which is 4 now'
    """
    parts = [f"{name} {short(then.get(name))}, which is {short(now.get(name))} now" for name in finding.changed]
    rests = f"{finding.call} rests on {' and on '.join(parts)}" if parts else ""
    over = f"the time for which {finding.call} is good is over" if finding.is_expired else ""
    return "; ".join(part for part in (rests, over) if part)


SHOWN_CHARACTERS_MAX = 100


def short(value: bytes | None) -> str:
    """A value for people, cut where it is long."""
    text = "nothing" if value is None else value.decode("utf-8", "replace")
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"

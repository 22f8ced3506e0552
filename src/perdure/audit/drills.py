"""Which drills were passed, of which source: what is kept of a pass beside the runs, to be asked for later."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from perdure.clock import time_text
from perdure.store.protocol import Note, Store

KIND = "drill"


class Covered(StrEnum):
    """What can go wrong, and was tried."""

    CRASH_AT_WRITE = "crash before and after each write"
    CRASH_AT_CALL = "crash before and after each outside call"
    OUTSIDE_SUCCESS = "outside success, crash before our commit"
    CRASH_AGAIN = "crash again while recovering"
    SETTLING = "settled by a person as failed"
    TWICE = "duplicate delivery"
    ZOMBIE = "a hung worker that goes on after the takeover"
    TIME_JUMP = "a time jump while the run waits"
    UNSURE = "a look-up that is unsure"


class DrillPass(msgspec.Struct, frozen=True, kw_only=True):
    """A drill that was passed. `source`: the digest of the workflow's source and of all that it calls; `at`:
    microseconds since the epoch; `effects`: each effect that the run called, and what its other side guarantees;
    `covered`: what was tried, as in `Covered`; `points`: how many things that were."""

    workflow: str
    version: int
    source: str
    perdure: str
    python: str
    at: int
    points: int
    covered: tuple[str, ...]
    effects: dict[str, str]

    def covers(self, what: Covered) -> bool:
        return str(what) in self.covered

    def __str__(self) -> str:
        return f"{self.workflow} version {self.version}, source {self.source[:12]}: passed at {time_text(self.at)}"


def keep_pass(store: Store, passed: DrillPass) -> None:
    """Keep it; an earlier one of the same source gives way."""
    key = f"{passed.workflow}/{passed.version}/{passed.source}"
    store.keep(Note(KIND, key, msgspec.json.encode(passed), passed.at))


def drill_passes(store: Store, workflow: str, version: int | None = None) -> list[DrillPass]:
    """The drills that a workflow has passed, the newest first, whatever its source was then."""
    found = [msgspec.json.decode(note.body, type=DrillPass) for note in store.notes(KIND)]
    return [one for one in found if one.workflow == workflow and version in {None, one.version}]


def passed_drill(store: Store, workflow: str, version: int, source: str) -> DrillPass | None:
    """The drill that this very source has passed; None if there is none, or only one of another source.

    >>> passed_drill(store, "handle", 1, source_of(handle).digest)        # doctest: +SKIP
    """
    found = store.notes(KIND, f"{workflow}/{version}/{source}")
    return msgspec.json.decode(found[0].body, type=DrillPass) if found else None


__all__ = ["Covered", "DrillPass", "drill_passes", "keep_pass", "passed_drill"]

"""What is tried in a drill: one fault at one place each, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perdure.audit.drills import Covered


@dataclass(frozen=True)
class Fault:
    """What goes wrong. Nothing of it: the run is left alone.

    `crashes`: where the first process dies, then the one that goes on, and so on. `hangs_at`: where the first process
    stands still until another one has taken its run over. `twice`: what is delivered twice: `start`, `writes`, or
    `message NAME`. `unsure`: the look-up that cannot say, and how often (0: never says). `jumps_over`: the wait during
    which the clock jumps. `settles_failed`: a person says that what did not happen shall not.
    """

    crashes: tuple[str, ...] = ()
    hangs_at: str = ""
    twice: str = ""
    unsure: tuple[str, int] | None = None
    jumps_over: str = ""
    settles_failed: bool = False


@dataclass(frozen=True)
class Point:
    """One thing that is tried. `call`: the effect that it is about, or "". `may_differ`: why the result may be another
    one than that of the untouched run; "" if it may not."""

    name: str
    fault: Fault
    covers: Covered | None = None
    call: str = ""
    may_differ: str = ""


UNTOUCHED = Point("untouched", Fault())

When = Literal["before", "after"]


def crash(*moments: str, call: str = "", covers: Covered | None = None) -> Point:
    """Processes that die one after the other, at these moments."""
    return Point(", then ".join(moments), Fault(crashes=moments), covers, call)


def settled_as_failed(moment: str, call: str) -> Point:
    """What did not happen, and a person says that it shall not."""
    return Point(
        f"{moment}, settled as failed", Fault(crashes=(moment,), settles_failed=True), Covered.SETTLING, call,
        may_differ="a person said that it shall not happen",
    )  # fmt: skip


def hang(moment: str, call: str) -> Point:
    """A worker that hangs, is taken for dead, and goes on after all."""
    return Point(f"hung {moment}, thawed after the takeover", Fault(hangs_at=moment), Covered.ZOMBIE, call)


def twice(what: str, told: str) -> Point:
    """Delivered twice."""
    return Point(told, Fault(twice=what), Covered.TWICE)


def unsure(moment: str, call: str, times: int) -> Point:
    """A look-up that cannot say: so often, or never (0)."""
    how = f"unsure {times} time{'s' if times > 1 else ''}" if times else "never sure"
    fault = Fault(crashes=(moment,), unsure=(call, times))
    return Point(f"{moment}, its look-up {how}", fault, Covered.UNSURE, call)


def jump(wait: str) -> Point:
    """The clock jumps while the run waits."""
    return Point(
        f"time jump during {wait}", Fault(jumps_over=wait), Covered.TIME_JUMP,
        may_differ="the time that passed is another one",
    )  # fmt: skip

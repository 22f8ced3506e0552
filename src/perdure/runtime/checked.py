"""Checked mode: a turn in which workflow code reaches for the outside world parks the run, also if the code swallows
the GuardError."""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import GuardError
from perdure.runtime.guard import checking
from perdure.runtime.live import LiveRun


def drive_checked(live: LiveRun, turn: Callable[[], None]) -> None:
    """Drive a turn under the guard."""

    def note(error: GuardError) -> None:
        live.execution.fail("diverged", str(error))

    with checking(note):
        turn()

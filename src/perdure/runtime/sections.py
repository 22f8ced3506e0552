"""Hosts foreign code: functions that need threads or sockets, their calls answered by a journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.engine.calls import SectionAsk
from perdure.runtime.live import LiveRun
from perdure.runtime.performer import Performer


class Sections:
    def __init__(self, performer: Performer, report: Callable[..., None], recorded: Callable[..., None]) -> None:
        self._performer = performer

    def start(self, live: LiveRun, ask: SectionAsk) -> None: ...

    def cancel(self, live: LiveRun, key: tuple[str, int]) -> None: ...

    def drop(self, live: LiveRun) -> None: ...

    def is_busy(self, live: LiveRun) -> bool:
        return False

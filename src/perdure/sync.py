"""Blocking waits for `def` workflows and hosted code: `perdure.sync.sleep(days=2)`, `perdure.sync.receive("reply")`.

A wait of more than ten seconds gives its thread back: the function is unwound by a BaseException (`finally` blocks run;
durable calls in them are refused) and runs again from its start when the wait is over, answered from the record.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar, cast

from perdure.api.inside import _journal, _length  # pyright: ignore[reportPrivateUsage]
from perdure.codec import codec_for
from perdure.errors import UsageError
from perdure.specs import seconds as _seconds

T = TypeVar("T")


def _here(what: str) -> Any:
    journal = _journal()
    if journal is None:
        raise UsageError(
            f"perdure.sync.{what}() belongs into a `def` workflow or hosted code; async workflows: perdure.{what}()"
        )
    return journal


def sleep(
    duration: timedelta | float | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> None:
    """Wait; see `perdure.sleep`."""
    journal = _here("sleep")
    length = _length(duration, timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    journal.wait(journal.sleep(length))


def receive(name: str, type: type[T] | None = None, *, within: timedelta | float | None = None) -> T:
    """The next message called `name`; see `perdure.receive`."""
    journal = _here("receive")
    limit = None if within is None else _seconds(within, what="within")
    declared: Any = dict(journal.live.execution.spec.receives or {}).get(name)
    codec = declared if type is None and declared is not None else codec_for(Any if type is None else type)
    return cast(T, journal.wait(journal.receive(name, codec, limit)))

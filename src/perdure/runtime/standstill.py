"""How a run came to a stop, for those who wait for it."""

from __future__ import annotations

import msgspec

from perdure.store.protocol import Status


class Standstill(msgspec.Struct, frozen=True):
    """How a run came to a stop, for those who wait for it. `raw`: the result, or the exception, canonical."""

    status: Status
    reason: str = ""
    hint: str = ""
    raw: bytes | None = None

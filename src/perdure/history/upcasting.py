"""Events that earlier versions wrote and no version writes any more: how each is read as one of today's.

A kind of event never changes its meaning. One may gain a field, with a default that says what held before there was
such a field. For any other change there is a new kind (`step.completed/2`), and the old one moves into this table. What
is stored stays as it is, for its hash stands in the chain. A history that has no such event pays nothing for all this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Fields = dict[str, Any]
"""An event as it stands in JSON: its kind under `event`, bytes in base64."""

UPCASTERS: Mapping[str, Callable[[Fields], Fields]] = {}
"""By the kind that is not written any more: its fields, made those of a later kind, which is named in them. Where that
is old as well, the next one follows."""

STEPS_MAX = 100
"""From kind to kind: more is a circle."""


def upcast(envelope: bytes) -> Fields | None:
    """An old event as one of today's; None if it is of no old kind."""
    try:
        fields = msgspec.json.decode(envelope, type=Fields)
    except msgspec.ValidationError:
        return None
    is_old = False
    for _ in range(STEPS_MAX):
        upcaster = UPCASTERS.get(str(fields.get("event")))
        if upcaster is None:
            break
        fields, is_old = upcaster(fields), True
    return fields if is_old else None


def kind_today(kind: str, envelope: bytes) -> str:
    """What a kind that stands in a row is called today."""
    if kind not in UPCASTERS:
        return kind
    fields = upcast(envelope)
    return kind if fields is None else str(fields["event"])

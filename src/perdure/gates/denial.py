"""What people are shown of a call that a policy has denied: kept until somebody says that they have seen it."""

from __future__ import annotations

import msgspec

from perdure.history import events as e

DENIED = "denied"
"""The kind of notes about what was denied and nobody has seen."""

SEEN = "denied.seen"
"""The kind of notes about what was denied, and who has seen it."""


class Denial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call that was denied: the last one of its name in a run, under a rule. `call` is its label, `name` its name.
    `by`, `comment`, `seen_at`: who has seen it, and when (microseconds)."""

    rid: int
    run_id: str
    workflow: str
    version: int
    call: str
    name: str
    denied: e.Denied
    why: str
    by: str = ""
    comment: str = ""
    seen_at: int = 0

    @property
    def key(self) -> str:
        """What is shown once."""
        return f"{self.run_id}/{self.name}/{self.denied.policy}/{self.denied.rule}"


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Denial).decode

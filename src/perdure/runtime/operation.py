"""What an effect's body, its look-up and its undoing know about the operation that they are about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from perdure.errors import UsageError
from perdure.http.sender import header_text


class Operation:
    """One effect under way: its identity in the ledger, and what the other side said.

    `id` is the idempotency key: 32 hex digits, the same in every attempt, replay and process. `reference` is for the
    body to set: what the other side calls it (`op.reference = answer.id`); it is kept with the result, and also if the
    attempt fails after all. `external_request_id` is what was noted of the request before it was sent.
    """

    __slots__ = (
        "_note", "action", "arguments", "attempt", "business_key", "external_request_id", "id", "reference",
        "request_hash", "revision", "run_id", "started_at",
    )  # fmt: skip

    def __init__(
        self,
        *,
        id: str,
        action: str,
        run_id: str,
        business_key: str,
        revision: int,
        attempt: int,
        request_hash: str,
        arguments: Mapping[str, Any],
        started_at: datetime,
        reference: str | None,
        external_request_id: str | None,
        note: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.id = id
        self.action = action
        self.run_id = run_id
        self.business_key = business_key
        self.revision = revision
        self.attempt = attempt
        self.request_hash = request_hash
        self.arguments = arguments
        self.started_at = started_at
        self.reference = reference
        self.external_request_id = external_request_id
        self._note = note

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that carry the identity: `Idempotency-Key`, and the run for the other side's logs.

        `Idempotency-Key`: IETF draft-ietf-httpapi-idempotency-key-header.
        """
        run_id = header_text(self.run_id)
        return {"Idempotency-Key": self.id, "X-Perdure-Run": run_id, "X-Perdure-Attempt": str(self.attempt)}

    def note_request_id(self, request_id: str) -> Awaitable[None]:
        """Keep an id of the request before it is sent: `await op.note_request_id(batch.id)`. Durable when it returns,
        so that a look-up after a crash finds it as `op.external_request_id`. In a `def` effect it waits by itself.

        UsageError outside the effect's body."""
        if self._note is None:
            raise UsageError("note_request_id() belongs into the body of the effect, before the request is sent")
        self.external_request_id = request_id
        return self._note(request_id)

    def __repr__(self) -> str:
        return f"<operation {self.id} ({self.action} {self.business_key!r}, attempt {self.attempt})>"

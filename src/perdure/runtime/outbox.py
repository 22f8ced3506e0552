"""Messages of the outbox, as those who post them and those who deliver them have them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from perdure.codec import codec_for

OWN_TOPICS = "perdure."
"""What topics of perdure's own begin with."""
HOOK_TOPIC, WEBHOOK_TOPIC = "perdure.inbox", "perdure.webhook"

_PLAIN = codec_for(Any)


class OutboxMessage(msgspec.Struct, frozen=True):
    """A message as its handler gets it. `id` is the same in every delivery: pass it on as the idempotency key.

    `payload` is what was posted, as plain JSON values; `attempt` counts deliveries from 1.
    """

    id: str
    topic: str
    key: str
    payload: Any
    attempt: int
    posted_at: datetime


Handler = Callable[[OutboxMessage], Any]


class Outbox:
    """What `perdure.outbox()` gives, inside a transactional effect."""

    def __init__(self, post: Callable[[str, str, bytes], None]) -> None:
        self._post = post

    def send(self, topic: str, payload: Any, *, key: str = "") -> None:
        """Have a message delivered to the handler of `topic`, once this transaction is committed; never if it is not.

        Messages with the same topic and key are delivered in order, one after the other. EncodeError for a payload that
        cannot be recorded."""
        self._post(topic, key, _PLAIN.dumps(payload))

"""What has come for a run and is not taken yet, and who waits for it.

A message belongs to whoever takes it, not to whom it woke: a receive that was woken and is cancelled in the same moment
leaves it to the next. Pure; what a message says is no matter here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from perdure.clock import time_text
from perdure.engine.calls import Key, ReceiveAsk

SHOWN_MAX = 200


class Message(bytes):
    """What a message says, in JSON, when it was sent (microseconds; 0 if that is not known any more) and by whom ("" if
    nobody said so). `place`: the how-manyeth it is of its mailbox."""

    sent_at = 0
    by = ""
    place = 0


class Mailbox:
    """A queue of messages and a queue of waiting receives for each name, and what was handed to foreign code."""

    __slots__ = ("_count", "_waiting", "handed", "queues")

    def __init__(self, carried: Iterable[tuple[str, bytes]] = ()) -> None:
        self.queues: dict[str, deque[bytes]] = {}
        self.handed: dict[Key, bytes] = {}
        self._waiting: dict[str, deque[ReceiveAsk]] = {}
        self._count = 0
        for name, message in carried:
            self.put(name, message)

    def put(self, name: str, message: bytes, sent_at: int = 0, by: str = "") -> None:
        """A message has come. It wakes nobody by itself."""
        kept = Message(message)
        self._count += 1
        kept.sent_at, kept.by, kept.place = sent_at, by, self._count
        self.queue(name).append(kept)

    def put_back(self, name: str, message: bytes) -> None:
        """Whoever took it does not want it after all: it is the next one's, in its old place."""
        queue, place = self.queue(name), getattr(message, "place", 0)
        queue.insert(sum(getattr(other, "place", 0) < place for other in queue), message)
        self.wake(name)

    def queue(self, name: str) -> deque[bytes]:
        """The messages of this name, the oldest first: for good, whatever comes later comes into the same."""
        return self.queues.setdefault(name, deque())

    def hand_over(self, key: Key, name: str) -> None:
        """Foreign code takes a message for this call of its own, if one is left; else it goes on waiting."""
        queue = self.queues.get(name)
        if queue:
            self.handed[key] = queue.popleft()

    def take_back(self, key: Key, name: str) -> None:
        """What foreign code took for this call it never got."""
        message = self.handed.pop(key, None)
        if message is not None:
            self.put_back(name, message)

    def join(self, ask: ReceiveAsk) -> None:
        """A receive waits from now on, behind those that do already."""
        self._waiting.setdefault(ask.message, deque()).append(ask)

    def leave(self, ask: ReceiveAsk) -> None:
        """A receive waits no longer, whether it takes a message or gives up."""
        self._waiting[ask.message].remove(ask)

    def wake(self, name: str) -> None:
        """Wake as many waiting receives as there are messages, the oldest first."""
        queue, waiting = self.queues.get(name), self._waiting.get(name)
        if not queue or not waiting:
            return
        for ask in list(waiting)[: len(queue)]:
            if not ask.future.done():
                ask.future.set_result(None)

    def carried(self) -> bytes:
        """The messages that are left, for the next chapter."""
        return msgspec.json.encode([[name, m.decode()] for name, queue in self.queues.items() for m in queue])


def unread(name: str, message: bytes) -> str:
    """A message as a person is told of it: `the message 'go', sent 2026-03-01 12:00:00 UTC by ann, which
    says {"ok": 1},`"""
    at, by = getattr(message, "sent_at", 0), getattr(message, "by", "")
    sent = f", sent {time_text(at)}{f' by {by}' if by else ''}" if at else ""
    says = message.decode("utf-8", "replace")
    shown = says if len(says) <= SHOWN_MAX else says[:SHOWN_MAX] + "..."
    return f"the message {name!r}{sent}, which says {shown},"

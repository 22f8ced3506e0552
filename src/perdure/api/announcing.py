"""Tells of what is new in the inbox: a hook, and a webhook.

    inbox ──▶ looked at, now and then and whenever something here stops ──▶ outbox ──▶ relay ──▶ hook, webhook

What is told is derived from what stands in the inbox, not from what happened on the way there: so nothing that waits is
missed, whoever parked it and whenever that process died. A notice is a message of the outbox, under an id that follows
from the entry: any number of workers may post it, it is there once. The relay delivers it at least once, tries again
after failures, and through crashes. What is decided before anybody has looked is told to nobody.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from perdure.api import inbox, requests
from perdure.api.inbox import InboxEntry
from perdure.api.notice import InboxNotice
from perdure.clock import MICROSECONDS, Alarm, Clock
from perdure.decisions import ApprovalEntry
from perdure.decisions.entry import What
from perdure.http.webhook import Webhook
from perdure.runtime.outbox import HOOK_TOPIC, OWN_TOPICS, WEBHOOK_TOPIC, Handler, OutboxMessage
from perdure.store.protocol import Post, Store

log = logging.getLogger("perdure.inbox")

LOOK_SECONDS = 5.0
LOOKS_SHARE_MAX = 0.05
"""How much of the time may be spent looking: a long inbox is looked at less often."""

Hook = Callable[[InboxNotice], Any]
Told = tuple[ApprovalEntry, What, str]


def handlers_of(hook: Hook | None, webhook: Webhook | None, clock: Clock) -> Mapping[str, Handler]:
    """What delivers the notices, by topic."""
    handlers: dict[str, Handler] = {}
    if hook is not None:
        handlers[HOOK_TOPIC] = _to_hook(hook)
    if webhook is not None:
        handlers[WEBHOOK_TOPIC] = lambda message: webhook.send(message.id, _body(message), now=_seconds(clock))
    return handlers


def _to_hook(hook: Hook) -> Handler:
    """An async hook is awaited on the loop, a plain one is called in a thread."""
    if not inspect.iscoroutinefunction(hook):
        return lambda message: hook(notice_of(message))

    async def deliver(message: OutboxMessage) -> None:
        await hook(notice_of(message))

    return deliver


def notice_of(message: OutboxMessage) -> InboxNotice:
    """A message of the outbox as the hook gets it."""
    payload = message.payload
    return InboxNotice(message.id, payload["what"], msgspec.convert(payload["entry"], InboxEntry), message.posted_at)


def _body(message: OutboxMessage) -> bytes:
    payload = message.payload
    told = {"type": f"inbox.{payload['what']}", "timestamp": message.posted_at.isoformat(), "data": payload["entry"]}
    return msgspec.json.encode(told)


def _seconds(clock: Clock) -> int:
    return clock.now() // MICROSECONDS


class Announcer:
    """One worker's eye on the inbox. It looks in a thread, and harms nobody when that fails."""

    def __init__(self, store: Store, clock: Clock, topics: Iterable[str], posted: Callable[[], None]) -> None:
        self._store, self._clock, self._topics, self._posted = store, clock, tuple(topics), posted
        self._loop = asyncio.get_running_loop()
        self._told: list[Told] = []
        self._known = frozenset[str]()
        self._looking: asyncio.Future[None] | None = None
        self._is_wanted = False
        self._alarm: Alarm | None = None
        self._is_closed = False
        self.kick()

    def tell(self, row: ApprovalEntry, what: What, once: str) -> None:
        """Announce an open request again. `once`: told twice under the same word, it is announced once."""
        self._told.append((row, what, once))
        self.kick()

    def kick(self) -> None:
        """Look soon: something of this worker has stopped."""
        if not self._is_wanted and not self._is_closed:
            self._is_wanted = True
            self._loop.call_soon(self._begin)

    @property
    def is_idle(self) -> bool:
        return not self._is_wanted and self._looking is None

    def _begin(self) -> None:
        if self._is_closed or self._looking is not None:
            return  # it looks once more when this look is over
        self._is_wanted = False
        if self._alarm is not None:
            self._alarm.cancel()
        told, self._told = self._told, []
        began = self._loop.time()
        self._looking = self._loop.run_in_executor(None, self._look, told)
        self._looking.add_done_callback(lambda done: self._looked(done, told, self._loop.time() - began))

    def _looked(self, done: asyncio.Future[None], told: list[Told], seconds: float) -> None:
        self._looking = None
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._told = told + self._told
            log.warning("the inbox cannot be told of, trying again: %s", error)
        if self._is_closed:
            return
        self._posted()
        if self._is_wanted:
            self._begin()
        else:
            pause = max(LOOK_SECONDS, seconds / LOOKS_SHARE_MAX)
            self._alarm = self._clock.wake_at(self._clock.now() + round(pause * MICROSECONDS), self.kick)

    def _look(self, told: Iterable[Told]) -> None:
        """In a thread: post what is new. What was posted here before is not posted again, to spare the store."""
        now = self._clock.now()
        entries = inbox.entries(self._store, now)
        self._post([(entry, "new", "") for entry in entries if entry.id not in self._known], now)
        self._known = frozenset(entry.id for entry in entries)
        self._post_again(told, now)

    def _post_again(self, told: Iterable[Told], now: int) -> None:
        again: list[tuple[InboxEntry, What, str]] = []
        for row, what, once in told:
            found = self._store.approval(row.approval_id)
            if found is not None and found.status in requests.PENDING:
                again.append((inbox.asked(self._store, found), what, once))
        self._post(again, now)

    def _post(self, told: Iterable[tuple[InboxEntry, What, str]], now: int) -> None:
        posts: list[Post] = []
        for entry, what, once in told:
            info = self._store.find(entry.run_id)
            if info is None:
                continue
            payload = msgspec.json.encode({"what": what, "entry": entry}, enc_hook=dict)  # of mappings that are no dict
            for topic in self._topics:
                name = ":".join(filter(None, (topic.removeprefix(OWN_TOPICS), entry.id, what, once)))
                posts.append(Post(name, info.rid, topic, name, payload, now))
        if posts:
            self._store.post(posts)

    def stop(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()

    async def close(self) -> None:
        """What was to be announced again is posted; what is new is found by whoever comes next."""
        self.stop()
        if self._looking is not None:
            await asyncio.wait([self._looking])
        if self._told:
            try:
                self._post_again(self._told, self._clock.now())
            except Exception as error:
                log.warning("%d open request(s) are not announced again: %s", len(self._told), error)


__all__ = ["Announcer", "Hook", "handlers_of"]

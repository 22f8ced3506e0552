"""Delivers the outbox: each message to the handler of its topic, in the order of its key, until it is sent or dead.

A message may be delivered more than once (a crash between the handler's return and our note of it), always under the
same id; so handlers pass that id on, or check it. Between workers a message is one's alone; whoever died has it no
longer, whoever was only silent keeps it for as long as its handler may take.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

from perdure.clock import MICROSECONDS, Alarm, Clock, when
from perdure.codec import codec_for
from perdure.codec.exceptions import message_of
from perdure.errors import StoreError
from perdure.http.classify import classify
from perdure.runtime.outbox import WEBHOOK_TOPIC, Handler, OutboxMessage
from perdure.runtime.performer import Performer, is_ours
from perdure.runtime.retrying import Again, next_attempt
from perdure.specs import Retry
from perdure.store.protocol import Post, Store

log = logging.getLogger("perdure")

RETRY = Retry(max_attempts=10, first_delay=1, factor=3, max_delay=600)
RETRIES: Mapping[str, Retry] = {WEBHOOK_TOPIC: Retry(max_attempts=20, first_delay=1, factor=3, max_delay=3_600)}
"""A receiver may be away for half a day."""
HANDLER_SECONDS_MAX = 60.0
NOTING_SECONDS = 30.0
AT_ONCE_MAX = 32
LOOK_SECONDS = 1.0
_PLAIN = codec_for(Any)


class Relay:
    """One worker's share of the outbox."""

    def __init__(
        self, store: Store, clock: Clock, worker: str, handlers: Mapping[str, Handler], performer: Performer
    ) -> None:
        self._store, self._clock, self._worker, self._handlers = store, clock, worker, handlers
        self._performer = performer
        self._loop = asyncio.get_running_loop()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._alarm: Alarm | None = None
        self._is_closed = False
        if handlers:
            self._loop.call_soon(self.look)

    def look(self) -> None:
        """See what is due; and look again after a while, for others post, too."""
        if self._is_closed or not self._handlers:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        now = self._clock.now()
        self._alarm = self._clock.wake_at(now + round(LOOK_SECONDS * MICROSECONDS), self.look)
        room = AT_ONCE_MAX - len(self._deliveries)
        if room > 0 and self._performer.may_begin():
            self._take(now, room)

    def _take(self, now: int, room: int) -> None:
        until = now + round((HANDLER_SECONDS_MAX + NOTING_SECONDS) * MICROSECONDS)
        try:
            posts = self._store.take_posts(self._worker, topics=self._handlers, now=now, until=until, limit=room)
        except StoreError as error:
            log.warning("the outbox cannot be read, trying again: %s", error)
            return
        for post in posts:
            delivery = self._loop.create_task(self._deliver(post))
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._delivered)

    def _delivered(self, delivery: asyncio.Task[None]) -> None:
        self._deliveries.discard(delivery)
        self.look()  # the next of its key may be due

    async def _deliver(self, post: Post) -> None:
        attempt = post.attempts + 1
        posted_at = when(post.created_at)
        try:
            message = OutboxMessage(
                post.post_id, post.topic, post.key, _PLAIN.loads(post.payload), attempt, posted_at
            )
            async with asyncio.timeout(HANDLER_SECONDS_MAX):
                await self._performer.call(self._handlers[post.topic], message)
        except BaseException as error:
            if is_ours(error):
                raise
            post = self._after_failure(post, attempt, error)
        else:
            post = post._replace(status="sent", attempts=attempt, error="")
        await self._note(post)

    def _after_failure(self, post: Post, attempt: int, error: BaseException) -> Post:
        now = self._clock.now()
        cause = TimeoutError() if isinstance(error, asyncio.CancelledError) else error  # of what it awaited
        decision = next_attempt(
            RETRIES.get(post.topic, RETRY), attempt=attempt, first_at=post.created_at, now=now,
            failure=classify(cause, now=now), random=random.random(),
        )  # fmt: skip
        told = f"{type(error).__name__}: {message_of(error)}"
        if isinstance(decision, Again):
            return post._replace(attempts=attempt, next_at=decision.at, error=told)
        log.error("outbox message %s (%s) is dead after %d attempt(s): %s", post.post_id, post.topic, attempt, told)
        return post._replace(status="dead", attempts=attempt, error=told)

    async def _note(self, post: Post) -> None:
        """Write what became of it; until that is done, nobody else delivers it."""
        while not self._is_closed:
            try:
                self._store.settle_post(self._worker, post)
                return
            except StoreError as error:
                log.warning("the outbox cannot be written, trying again: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_idle(self) -> bool:
        return not self._deliveries

    async def close(self) -> None:
        """No further delivery begins. What is under way is cancelled, and delivered again by whoever comes next."""
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for delivery in list(self._deliveries):
            delivery.cancel()
        if self._deliveries:  # of nothing, and on no running loop, gather() makes a loop that nobody closes
            await asyncio.gather(*self._deliveries, return_exceptions=True)

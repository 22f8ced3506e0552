"""The outbox: messages are taken for delivery, and what became of them is written. In transactions of the writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from perdure.store.protocol import Post
from perdure.store.sqlite.commit import QUERIES


def put(connection: sqlite3.Connection, posts: Sequence[Post]) -> int:
    return sum(connection.execute(QUERIES["insert_post"], post[:10]).rowcount for post in posts)


def take(
    connection: sqlite3.Connection, worker: str, *, topics: Collection[str], now: int, until: int, limit: int
) -> list[Post]:
    taken = list[Post]()
    for topic in sorted(topics):
        values = {"topic": topic, "now": now, "limit": limit - len(taken)}
        taken += map(Post._make, connection.execute(QUERIES["due_posts"], values).fetchall())
    for post in taken:
        connection.execute(QUERIES["take_post"], (worker, until, post.number))
    return taken


def settle(connection: sqlite3.Connection, worker: str, post: Post) -> bool:
    values = (post.status, post.attempts, post.next_at, post.error, post.post_id, worker)
    return connection.execute(QUERIES["settle_post"], values).rowcount == 1

"""`perdure store outbox`: what waits, what is dead, and how a dead message is tried again."""

from __future__ import annotations

import json

import pytest
from tests.cli.terminal import Terminal

from perdure.store.protocol import Append, Done, NewRun, Post, Row
from perdure.store.sqlite.store import SqliteStore


@pytest.fixture
def posted(terminal: Terminal) -> Terminal:
    """A store with a message that waits behind a dead one."""
    store = SqliteStore(str(terminal.folder / "perdure.db"))
    rows = (Row(0, 1, "run.started", b"{}", None, None, bytes(32)),)
    (run,) = store.commit([NewRun(b"n" * 16, "r", "w", 1, bytes(32), 1, rows)])
    assert isinstance(run, Done)
    posts = tuple(Post(f"op:{n}", run.rid, "emails", "k", b'{"n":%d}' % n, 1_700_000_000_000_000) for n in range(2))
    store.commit([Append(b"a" * 16, run.rid, 0, 1, posts=posts)])
    store.enter("w", lease_seconds=10, workflows=[])
    later = 2_000_000_000_000_000
    (taken,) = store.take_posts("w", topics=("emails",), now=later, until=later + 1, limit=9)
    assert store.settle_post("w", taken._replace(status="dead", attempts=10, error="Final: no such address"))
    store.close()
    return terminal


def test_messages_are_listed_and_a_dead_one_is_revived(posted: Terminal) -> None:
    shown = posted.here("store", "outbox").stdout
    assert all(text in shown for text in ("op:0", "op:1", "dead", "waiting", "no such address"))
    (dead,) = json.loads(posted.here("store", "outbox", "--status", "dead", "--json").stdout)
    assert (dead["id"], dead["attempts"], dead["payload"]) == ("op:0", 10, {"n": 0})
    assert dead["posted_at"] == "2023-11-14T22:13:20+00:00"
    assert posted.here("store", "outbox", "--topic", "letters").stderr == "no messages\n"
    assert posted.here("store", "outbox", "--revive", "op:0").exit_code == 0
    assert json.loads(posted.here("store", "outbox", "--status", "dead", "--json").stdout) == []
    again = posted.here("store", "outbox", "--revive", "op:0")
    assert (again.exit_code, "no dead message" in again.output) == (5, True), again.output


def test_a_state_that_there_is_not_is_a_usage_error(posted: Terminal) -> None:
    assert posted.here("store", "outbox", "--status", "lost").exit_code == 2

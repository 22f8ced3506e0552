"""The store that fails on purpose fails where it says, before or after, once or for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.errors import StoreError
from perdure.store import Store
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Done, Filter, Post
from perdure.testing.conformance.base import KNOWN, append, new_run
from perdure.testing.crashing import Crash, CrashingStore, When, failing


def checked(store: CrashingStore) -> Store:
    """It is a store, to type checkers too."""
    return store


@pytest.mark.parametrize(("when", "applied"), [("before", 1), ("after", 2)])
def test_it_crashes_before_or_after_its_nth_write(when: When, applied: int) -> None:
    inner = MemoryStore()
    store = checked(CrashingStore(inner, fail_at=2, when=when))
    store.commit([new_run("one")])
    with pytest.raises(Crash):
        store.commit([new_run("two")])
    assert len(inner.runs(Filter())) == applied


def test_after_a_crash_nothing_comes_from_it_any_more() -> None:
    store = CrashingStore(MemoryStore(), fail_at=1)
    with pytest.raises(Crash):
        store.commit([new_run("r")])
    calls: list[Callable[[], object]] = [store.stats, lambda: store.commit([]), lambda: store.find("r")]
    for call in calls:
        with pytest.raises(Crash):
            call()
    assert store.writes == 1
    assert store.has_crashed


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failing_commit_is_sent_again_and_applied_once(when: When) -> None:
    inner = MemoryStore()
    inner.commit([new_run("r")])
    ((_, rid, _, _),) = inner.heads()
    store = CrashingStore(inner, fail_at=1, when=when, how=failing("gone"), times=2)
    write = append(rid, 1, epoch=0)
    for _ in range(2):
        with pytest.raises(StoreError, match="gone"):
            store.commit([write])
    assert store.commit([write]) == [Done(rid, 2)]
    assert inner.load(rid).length == 2


def test_it_calls_back_before_each_write_and_counts() -> None:
    seen = list[int]()
    store = CrashingStore(MemoryStore(), before_write=seen.append)
    store.enter("w", lease_seconds=1, workflows=[])
    assert store.claim("w", now=0, limit=1, known=KNOWN) == []
    store.commit([new_run("r")])
    store.stats()
    assert len(store.claim("w", now=0, limit=1, known=KNOWN)) == 1
    assert seen == [1, 2, 3]
    assert store.writes == 3


def test_messages_are_found_due_behind_a_hundred_that_were_sent() -> None:
    inner = MemoryStore()
    inner.enter("w", lease_seconds=10, workflows=["agent"])
    inner.post([Post(f"p{n}", 0, "t", f"k{n}", b"", 0, status="sent") for n in range(100)])
    store = CrashingStore(inner)
    assert store.take_posts("w", topics=("t",), now=0, until=1, limit=1) == []
    assert store.writes == 0
    inner.post([Post("last", 0, "t", "k", b"", 0)])
    assert [post.post_id for post in store.take_posts("w", topics=("t",), now=0, until=1, limit=1)] == ["last"]
    assert store.writes == 1

"""The ledger: a row changes in the transaction of its event, or not at all; a global operation has one holder."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import EffectState, LedgerEntry
from perdure.store.protocol import Append, Done, EffectFilter, Ended, Exists, Fenced, Held, Missing, Moved, Post
from perdure.testing.conformance.base import ENDED, StoreCase, append, new_run, rows


def entry(rid: int, operation_id: str = "a" * 32, **fields: Any) -> LedgerEntry:
    """A row of run `r`, started once."""
    given: dict[str, Any] = {
        "run_id": "r", "call": "0:0:0", "label": "0/pay#1", "action_name": "pay", "scope": "run",
        "business_key": "order-1", "revision": 0, "request_hash": b"h" * 32, "status": EffectState.STARTED,
        "downstream": "can_look_up", "risk": "low", "created_at": 10, "updated_at": 10, "attempts": 1, "started_at": 10,
    }  # fmt: skip
    return LedgerEntry(operation_id=operation_id, rid=rid, **{**given, **fields})


class EffectPromises(StoreCase):
    def test_a_row_comes_back_as_it_was(self) -> None:
        rid = self.start()
        given = entry(
            rid, status=EffectState.SUCCEEDED, committed_at=2**53, external_ref="re_1",
            external_request_id="q\N{SNOWMAN}", response_hash=bytes(32), result=b'{"a":1}',
            compensated_by="b" * 32, note="it is so", references="re_2",
        )  # fmt: skip
        self.done(append(rid, 1, effects=(given,)))
        assert self.store.effect(given.operation_id) == given
        assert self.again().effect(given.operation_id) == given

    def test_there_is_no_row_of_an_operation_nobody_asked_for(self) -> None:
        assert self.store.effect("f" * 32) is None
        assert self.store.effects(EffectFilter()) == []

    def test_a_row_is_replaced_and_keeps_what_identifies_it(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, effects=(entry(rid),)))
        later = entry(rid, status=EffectState.SUCCEEDED, updated_at=20, created_at=19, external_ref="re_1", attempts=2)
        self.done(append(rid, 2, effects=(later,)))
        assert self.store.effect("a" * 32) == later._replace(created_at=10)
        assert self.store.stats()["effects"] == 1

    def test_a_refused_append_leaves_no_row(self) -> None:
        rid = self.start()
        self.start("other")
        assert isinstance(self.write(append(rid, 5, effects=(entry(rid),))), Moved)
        assert isinstance(self.write(append(rid, 1, epoch=7, effects=(entry(rid),))), Fenced)
        assert isinstance(self.write(append(rid, 1, new_runs=(new_run("other"),), effects=(entry(rid),))), Exists)
        assert self.store.effects(EffectFilter()) == []

    def test_an_ended_run_writes_no_row(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=ENDED))
        assert isinstance(self.write(append(rid, 2, effects=(entry(rid),))), Ended)
        assert self.store.effect("a" * 32) is None

    def test_a_row_alone_needs_no_event(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 0, effects=(entry(rid),)))
        assert self.store.effect("a" * 32) == entry(rid)

    def test_the_same_append_again_writes_once(self) -> None:
        rid = self.start()
        write = append(rid, 1, effects=(entry(rid),))
        first = self.write(write)
        self.done(append(rid, 2, effects=(entry(rid, status=EffectState.UNKNOWN, updated_at=30),)))
        assert self.write(write) in {first, Moved(3)}
        found = self.store.effect("a" * 32)
        assert found is not None
        assert found.status is EffectState.UNKNOWN

    def test_a_global_operation_belongs_to_the_run_that_came_first(self) -> None:
        first, second = self.start("r"), self.start("s")
        mine = entry(first, scope="global")
        other = entry(second, scope="global", run_id="s")
        writes = [append(first, 1, effects=(mine,)), append(second, 1, effects=(other,))]
        assert self.store.commit(writes)[1] == Held(mine)
        assert self.write(append(second, 1, effects=(other,))) == Held(mine)
        assert self.store.load(second, from_seq=0).length == 1
        self.done(append(first, 2, effects=(mine._replace(status=EffectState.SUCCEEDED),)))

    def test_rows_are_listed_newest_first_and_narrowed(self) -> None:
        first, second = self.start("r"), self.start("s")
        states = [EffectState.STARTED, EffectState.UNKNOWN, EffectState.SUCCEEDED, EffectState.FAILED_RETRYABLE]
        made = [
            entry(first, f"{n:032x}", status=state, created_at=n, action_name=f"a{n % 2}", business_key=f"k{n}")
            for n, state in enumerate(states)
        ]
        last = entry(second, "f" * 32, run_id="s", created_at=9)
        self.done(append(first, 1, effects=tuple(made)))
        self.done(append(second, 1, effects=(last,)))
        everything = [last, *reversed(made)]

        def listed(**narrowed: Any) -> list[LedgerEntry]:
            return self.store.effects(EffectFilter(**narrowed))

        assert listed() == everything
        assert listed(limit=2) == everything[:2]
        assert listed(before=3) == everything[2:]
        assert listed(rid=second) == [last]
        assert listed(action_name="a1") == [made[3], made[1]]
        assert listed(business_key="k2") == [made[2]]
        assert listed(status=frozenset({EffectState.UNKNOWN, EffectState.SUCCEEDED})) == [made[2], made[1]]
        assert listed(status=frozenset(), limit=5) == []

    def test_what_is_pruned_takes_the_rows_of_its_run_along_but_not_the_global_ones(self) -> None:
        rid = self.start()
        mine, global_one = entry(rid), entry(rid, "b" * 32, scope="global")
        self.done(append(rid, 1, effects=(mine, global_one), rows=rows(1, 1)))
        self.done(append(rid, 2, change=ENDED))
        self.clock.advance(10)
        assert self.store.prune(ended_before=self.clock.now(), limit=10) == 1
        assert self.store.effects(EffectFilter()) == [global_one]

    # ── a change in the same database, and its record ────────────────────────────────────────
    def test_an_append_is_filled_in_inside_its_transaction(self) -> None:
        rid = self.start()
        filled = append(rid, 1, effects=(entry(rid),))
        assert self.store.transact(intent_of(filled), lambda _: filled) == Done(rid, 2)
        assert self.store.effect("a" * 32) == entry(rid)
        assert self.store.load(rid, from_seq=0).length == 2

    def test_what_was_applied_already_is_not_filled_in_again(self) -> None:
        rid = self.start()
        filled = append(rid, 1)
        assert self.store.transact(intent_of(filled), lambda _: filled) == Done(rid, 2)
        assert self.store.transact(intent_of(filled), never) == Done(rid, 2)

    def test_what_would_be_refused_is_not_filled_in(self) -> None:
        rid = self.start()
        assert self.store.transact(intent_of(append(rid, 5)), never) == Moved(1)
        assert self.store.transact(intent_of(append(rid, 1, epoch=7)), never) == Fenced(1)
        assert self.store.transact(intent_of(append(rid + 99, 1)), never) == Missing()

    def test_what_filling_in_raises_comes_out_and_leaves_nothing(self) -> None:
        rid = self.start()

        def breaks(_: Any) -> Append:
            raise ZeroDivisionError

        before = self.everything()
        with pytest.raises(ZeroDivisionError):
            self.store.transact(intent_of(append(rid, 1)), breaks)
        assert self.everything() == before
        self.done(append(rid, 1))

    # ── the outbox ───────────────────────────────────────────────────────────────────────────
    def post(self, *posts: Post) -> None:
        rid = self.start(f"run {posts[0].post_id}")
        self.done(append(rid, 1, posts=tuple(post._replace(rid=rid) for post in posts)))

    def take(self, worker: str = "w", **changed: Any) -> list[str]:
        given: dict[str, Any] = {"topics": ("t",), "now": 100, "until": 200, "limit": 10, **changed}
        return [post.post_id for post in self.store.take_posts(worker, **given)]

    def settle(self, worker: str, post_id: str, **changed: Any) -> bool:
        (post,) = (post for post in self.store.posts() if post.post_id == post_id)
        return self.store.settle_post(worker, post._replace(**changed))

    def test_a_message_is_posted_with_its_append_and_once(self) -> None:
        self.post(message("a"))
        self.post(message("b"), message("a", payload=b"other"))
        assert [(p.post_id, p.payload) for p in self.store.posts()] == [("a", b"1"), ("b", b"1")]
        rid = self.start("refused")
        assert isinstance(self.write(append(rid, 7, posts=(message("c"),))), Moved)
        assert len(self.again().posts()) == 2

    def test_a_message_that_belongs_to_no_append_is_posted_once(self) -> None:
        rid = self.start()
        first, second = (message(name)._replace(rid=rid) for name in "ab")
        assert self.store.post([first]) == 1
        assert self.again().post([first._replace(payload=b"other"), second]) == 1
        assert [(p.post_id, p.payload) for p in self.store.posts()] == [("a", b"1"), ("b", b"1")]
        assert self.store.post([]) == 0
        assert self.take() == ["a", "b"]
        assert self.settle("w", "a", status="sent", attempts=1)
        assert self.store.post([first]) == 0
        assert self.take() == []

    def test_a_message_is_taken_by_one_at_a_time(self) -> None:
        self.post(message("a"))
        self.enter("v")
        assert self.take("w") == ["a"]
        assert self.take("v") == []
        assert not self.settle("v", "a", status="sent")
        assert self.settle("w", "a", status="sent", attempts=1)
        assert self.take("v", now=10_000) == []
        assert self.store.posts(status="sent")[0].attempts == 1

    def test_what_was_taken_is_anybodys_again_after_its_time(self) -> None:
        self.post(message("a"))
        assert self.take("w", until=200) == ["a"]
        assert self.take("v", now=199) == []
        assert self.take("v", now=200, until=300) == ["a"]
        assert not self.settle("w", "a", status="sent")

    def test_what_a_dead_worker_has_taken_is_free_at_once_on_proof_alone(self) -> None:
        self.post(message("a"))
        self.enter("v")
        assert self.take("v") == ["a"]
        self.kill(self.store, "v")
        self.store.take_over("v", proven=True, retry_after=[0.0])
        assert self.take("w") == ["a"]

    def test_on_suspicion_it_is_kept_for_the_worker_until_its_time(self) -> None:
        self.post(message("a"))
        self.enter("v")
        assert self.take("v", until=200) == ["a"]
        self.store.take_over("v", proven=False, retry_after=[0.0])
        assert self.take("w", now=199) == []
        assert self.take("w", now=200, until=300) == ["a"]

    def test_messages_of_a_key_follow_each_other(self) -> None:
        self.post(message("a1", key="a"), message("b1", key="b"), message("a2", key="a"))
        assert self.take() == ["a1", "b1"]
        assert self.take() == []
        assert self.settle("w", "a1", status="waiting", attempts=1, next_at=150)
        assert self.take(now=149) == []
        assert self.take(now=150) == ["a1"]
        assert self.settle("w", "a1", status="sent", attempts=2)
        assert self.take() == ["a2"]

    def test_a_dead_message_holds_up_its_key_until_it_is_revived(self) -> None:
        self.post(message("a1", key="a"), message("a2", key="a"))
        assert self.take() == ["a1"]
        assert self.settle("w", "a1", status="dead", attempts=10, error="no")
        assert self.take() == []
        assert [post.post_id for post in self.store.posts(status="dead")] == ["a1"]
        assert not self.store.revive_post("a2", now=100)
        assert self.store.revive_post("a1", now=100)
        assert self.take() == ["a1"]

    def test_only_the_topics_asked_for_are_taken(self) -> None:
        self.post(message("a", topic="t"), message("b", topic="u"))
        assert self.take(topics=("u",)) == ["b"]
        assert self.take(topics=()) == []
        assert [post.post_id for post in self.store.posts(topic="t")] == ["a"]

    def test_what_is_not_sent_keeps_its_run_from_being_pruned(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, posts=(message("a")._replace(rid=rid),)))
        self.done(append(rid, 2, change=ENDED))
        self.clock.advance(10)
        assert self.store.prune(ended_before=self.clock.now(), limit=10) == 0
        assert self.take() == ["a"]
        assert self.settle("w", "a", status="sent")
        assert self.store.prune(ended_before=self.clock.now(), limit=10) == 1


def message(post_id: str, **fields: Any) -> Post:
    given: dict[str, Any] = {"rid": 0, "topic": "t", "key": post_id, "payload": b"1", "created_at": 5}
    return Post(post_id, **{**given, **fields})


def intent_of(filled: Append) -> Append:
    return Append(filled.id, filled.rid, filled.epoch, filled.expected_length)


def never(_: Any) -> Append:
    raise AssertionError("it is not filled in")

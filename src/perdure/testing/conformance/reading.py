"""Reading: load and its chapters, listing, news from others."""

from __future__ import annotations

import threading

import pytest

from perdure.errors import HistoryCorruptError
from perdure.store.protocol import Change, Filter, Status
from perdure.testing.conformance.base import ENDED, StoreCase, append, letter, new_run, row


class ReadPromises(StoreCase):
    def test_nothing_is_found_where_nothing_is(self) -> None:
        assert self.store.find("r") is None
        assert self.store.runs(Filter()) == []
        assert self.store.mail() == []
        assert list(self.store.heads()) == []
        for read in (self.store.load, self.store.last_row):
            with pytest.raises(HistoryCorruptError):
                read(4711)

    def test_loading_gives_one_state_of_the_run(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 4))
        stored = self.store.load(rid)
        assert stored.info == self.info()
        assert [one.seq for one in stored.rows] == [0, 1, 2, 3, 4]
        assert (stored.length, stored.head) == (5, row(4).hash)
        assert self.store.last_row(rid) == stored.rows[-1]

    def test_loading_starts_at_the_current_chapter_or_where_told(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 4, change=Change(chapter_seq=3)))
        assert [one.seq for one in self.store.load(rid).rows] == [3, 4]
        for first, expected in ((0, [0, 1, 2, 3, 4]), (4, [4]), (5, []), (9, [])):
            stored = self.store.load(rid, from_seq=first)
            assert [one.seq for one in stored.rows] == expected
            assert (stored.length, stored.head) == (5, row(4).hash)

    def test_loading_a_long_history_misses_nothing(self) -> None:
        rid = self.start()
        for start in range(1, 5001, 500):
            self.done(append(rid, start, 500))
        stored = self.store.load(rid)
        assert [one.seq for one in stored.rows] == list(range(5001))
        assert stored.length == 5001

    def test_a_blob_that_is_not_there_is_corruption(self) -> None:
        rid = self.start()
        with pytest.raises(HistoryCorruptError):
            self.store.blob(rid, b"x" * 32)

    def test_a_blob_belongs_to_one_run(self) -> None:
        rid, other = self.start(), self.start("other")
        self.done(append(rid, 1, blobs=((b"b" * 32, b"blob"),)))
        with pytest.raises(HistoryCorruptError):
            self.store.blob(other, b"b" * 32)

    def test_an_output_is_found_by_its_position(self) -> None:
        rid, other = self.start(), self.start("other")
        self.done(append(rid, 1, rows=(row(1, output=b"one"), row(2, output=None))))
        self.done(append(other, 1, rows=(row(1, output=b"another"),)))
        assert self.store.blob(rid, (1).to_bytes(8, "big")) == b"one"
        assert self.store.blob(other, (1).to_bytes(8, "big")) == b"another"
        for position in (2, 3):
            with pytest.raises(HistoryCorruptError, match=f"no output of event {position}"):
                self.store.blob(rid, position.to_bytes(8, "big"))

    def test_everything_is_there_after_a_restart(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 3, blobs=((b"b" * 32, b"blob"),), change=Change(state=b"s", waiting=b"w")))
        self.done(letter("r"))
        before = self.everything()
        self.reopen()
        if self.store.find("r") is None:
            pytest.skip("this store forgets when it is closed")
        assert self.everything() == before
        assert self.store.blob(rid, b"b" * 32) == b"blob"

    # ── listing ──────────────────────────────────────────────────────────────────────────────
    def listed(self, **which: object) -> list[str]:
        return [info.run_id for info in self.store.runs(Filter(**which))]  # type: ignore[arg-type]

    def test_runs_are_listed_newest_first_and_narrowed_by_every_field(self) -> None:
        self.done(new_run("a", created_at=10, tags={"team": "x", "env": "prod"}))
        self.done(new_run("b", created_at=20, workflow="other", parent_run_id="a"))
        rid = self.start("c", created_at=30, tags={"team": "y"})
        self.done(append(rid, 1, change=ENDED))
        assert self.listed() == ["c", "b", "a"]
        assert self.listed(workflow="agent") == ["c", "a"]
        assert self.listed(status=frozenset({Status.QUEUED})) == ["b", "a"]
        assert self.listed(status=frozenset({Status.QUEUED, Status.COMPLETED})) == ["c", "b", "a"]
        assert self.listed(status=frozenset[Status]()) == []
        assert self.listed(tags={"team": "x"}) == ["a"]
        assert self.listed(tags={"team": "x", "env": "prod"}) == ["a"]
        assert self.listed(tags={"team": "x", "env": "test"}) == []
        assert self.listed(created_from=20) == ["c", "b"]
        assert self.listed(created_until=20) == ["a"]
        assert self.listed(created_from=20, created_until=30) == ["b"]
        assert self.listed(parent_run_id="a") == ["b"]
        assert self.listed(owner="nobody") == []
        assert self.listed(workflow="agent", status=frozenset({Status.COMPLETED}), tags={"team": "y"}) == ["c"]

    def test_listing_pages_through_all(self) -> None:
        for number in range(10):
            self.done(new_run(f"r{number}"))
        seen, before = list[str](), None
        while page := self.store.runs(Filter(before_rid=before, limit=3)):
            seen += [info.run_id for info in page]
            before = page[-1].rid
        assert seen == [f"r{number}" for number in reversed(range(10))]

    def test_ids_and_tags_may_be_any_text(self) -> None:
        odd = "ü'\"%_; -- \\ \n 🎈"
        self.start(odd, tags={odd: odd}, workflow=odd)
        assert self.info(odd).tags == {odd: odd}
        assert self.listed(tags={odd: odd}, workflow=odd) == [odd]
        self.done(letter(odd, key=odd))
        assert [mail.key for mail in self.store.mail()] == [odd]
        self.enter(odd)
        assert odd in {info.worker for info in self.store.workers()}
        self.store.leave(odd)

    # ── news ─────────────────────────────────────────────────────────────────────────────────
    def test_commits_of_others_are_news_once_and_own_ones_are_none(self) -> None:
        other = self.again()
        rid = self.start()
        assert other.changed()
        assert not other.changed()
        assert not self.store.changed()
        self.done(append(rid, 1))
        assert not self.store.changed()
        other.commit([letter("r")])
        other.commit([letter("r")])
        assert self.store.changed()
        assert not self.store.changed()
        assert other.changed()
        assert not other.changed()

    def test_news_is_not_lost_by_committing_oneself(self) -> None:
        other = self.again()
        rid = self.start()
        self.store.changed()
        other.commit([letter("r")])
        self.done(append(rid, 1))
        assert self.store.changed()

    def test_reading_is_no_news(self) -> None:
        other = self.again()
        rid = self.start()
        other.changed()
        self.store.load(rid)
        self.store.runs(Filter())
        self.claim()
        assert not other.changed()

    def test_a_commit_begins_at_once_when_nobody_writes(self) -> None:
        assert self.store.is_free()
        assert self.again().is_free()

    # ── threads ──────────────────────────────────────────────────────────────────────────────
    def test_threads_that_append_behind_a_barrier_lose_no_record(self) -> None:
        barrier = threading.Barrier(10)
        rids = [self.start(f"r{number}") for number in range(10)]
        failures = list[BaseException]()

        def hammer(rid: int) -> None:
            try:
                barrier.wait()
                for length in range(1, 31):
                    assert self.done(append(rid, length)).length == length + 1
                    assert self.store.load(rid).length == length + 1
                    self.store.changed()
            except BaseException as error:
                failures.append(error)

        run_threads([threading.Thread(target=hammer, args=(rid,)) for rid in rids])
        assert failures == []
        assert [self.store.load(rid).length for rid in rids] == [31] * 10

    def test_of_threads_that_append_at_one_position_one_wins(self) -> None:
        rid = self.start()
        handles = [self.store, self.again()]
        outcomes = list[object]()

        def race(number: int) -> None:
            for length in range(1, 21):
                outcomes.extend(handles[number % 2].commit([append(rid, length)]))

        run_threads([threading.Thread(target=race, args=(number,)) for number in range(4)])
        assert self.store.load(rid).length == 21
        assert sum(type(outcome).__name__ == "Done" for outcome in outcomes) == 20


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

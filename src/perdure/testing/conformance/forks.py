"""Runs that begin with a copy of another run's first events."""

from __future__ import annotations

from typing import Any

from perdure.store.protocol import Append, Change, Done, Exists, ForkPoint, Missing, NewRun, Status
from perdure.testing.conformance.base import ENDED, StoreCase, append, new_run, row, rows

FOREVER = 2**62


class ForkPromises(StoreCase):
    def a_fork(self, run_id: str, rid: int, seq: int, **fields: Any) -> NewRun:
        """Of the run with that number, after its event `seq`."""
        given: dict[str, Any] = {"rows": (row(seq + 1),), "lineage": (rid,), "due_at": 0}
        return new_run(run_id, forked_from=ForkPoint(rid, "r", seq), **{**given, **fields})

    def ended(self, run_id: str, length: int = 1) -> None:
        self.done(append(self.info(run_id).rid, length, change=ENDED))

    def test_a_fork_begins_with_the_same_events_and_blobs(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 5, blobs=((b"b" * 32, b"a blob"),)))
        fork = self.write(self.a_fork("fork", rid, 3))
        assert isinstance(fork, Done)
        assert fork.length == 5
        before, after = self.store.load(rid, from_seq=0), self.store.load(fork.rid, from_seq=0)
        assert (before.length, after.length) == (6, 5)
        assert tuple(after.rows[:4]) == tuple(before.rows[:4])
        assert after.rows[4] == row(4)
        assert self.store.blob(fork.rid, b"b" * 32) == b"a blob"
        assert (after.info.lineage, after.info.forked_from, after.info.forked_seq) == ((rid,), "r", 3)
        assert (before.info.lineage, before.info.forked_from, before.info.forked_seq) == ((), None, None)

    def test_each_goes_its_own_way_afterwards(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 2))
        fork = self.write(self.a_fork("fork", rid, 1, owner="w", due_at=None))
        assert isinstance(fork, Done)
        self.done(append(fork.rid, 3, 2, kind="of.fork", blobs=((b"f" * 32, b"of the fork"),)))
        self.done(append(rid, 3, 1, kind="of.r"))
        assert [each.kind for each in self.store.load(rid).rows] == ["run.started", "step.done", "step.done", "of.r"]
        assert [each.kind for each in self.store.load(fork.rid).rows][3:] == ["of.fork", "of.fork"]

    def test_sent_again_it_is_created_once(self) -> None:
        rid = self.start()
        new = self.a_fork("fork", rid, 0)
        assert self.write(new) == self.write(new)
        assert len(self.store.load(self.info("fork").rid).rows) == 2
        taken = self.write(self.a_fork("fork", rid, 0))
        assert isinstance(taken, Exists)
        assert taken.run.forked_seq == 0

    def test_of_what_is_not_there_nothing_is_created(self) -> None:
        rid = self.start()
        assert self.write(self.a_fork("fork", rid, 1)) == Missing()
        assert self.write(self.a_fork("fork", rid + 7, 0)) == Missing()
        assert self.store.find("fork") is None
        assert isinstance(self.write(self.a_fork("fork", rid, 0)), Done)

    def test_two_forks_in_one_commit(self) -> None:
        run = self.done(new_run("r", rows=rows(3)))
        first, second = self.store.commit([self.a_fork("one", run.rid, 1), self.a_fork("two", run.rid, 2)])
        assert isinstance(first, Done)
        assert isinstance(second, Done)
        assert (first.length, second.length) == (3, 4)

    def test_a_later_chapter_is_loaded_from_its_beginning(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 3, change=Change(status=Status.RUNNING, chapter_seq=2)))
        self.write(self.a_fork("fork", rid, 2, chapter_seq=2))
        assert [each.seq for each in self.store.load(self.info("fork").rid).rows] == [2, 3]

    def test_a_fork_that_has_events_is_claimed_where_it_stands(self) -> None:
        rid = self.start()
        self.write(self.a_fork("fork", rid, 0))
        (claim,) = self.store.claim("w", now=10, limit=10, known=frozenset({("agent", 1)}))
        assert claim.info.run_id == "fork"
        assert claim.info.lineage == (rid,)
        self.done(append(claim.info.rid, 2, epoch=claim.info.epoch))

    def test_children_have_the_lineage_that_they_are_given(self) -> None:
        rid = self.start()
        child = new_run("child", lineage=(9, 3), parent_run_id="r")
        self.write(Append(b"i" * 16, rid, 1, 1, new_runs=(child,)))
        info = self.info("child")
        assert (info.lineage, info.forked_from) == ((9, 3), None)

    def test_what_a_fork_descends_from_is_kept_while_it_runs(self) -> None:
        """Its effects are not to be repeated, nor are those of its children."""
        rid = self.start()
        self.start("child", parent_run_id="r")
        self.start("grandchild", parent_run_id="child")
        self.start("other")
        self.write(self.a_fork("fork", rid, 0, owner="w", due_at=None))
        for run_id in ("r", "child", "grandchild", "other"):
            self.ended(run_id)
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        assert self.store.find("other") is None
        self.ended("fork", 2)
        assert self.store.prune(ended_before=FOREVER, limit=10) == 4

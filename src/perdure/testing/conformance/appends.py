"""Appends and new runs: compare-and-set, fencing, the same write again, all or nothing, each for itself."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import PerdureBug
from perdure.store.protocol import Change, Done, Ended, Exists, Fenced, Missing, Moved, Status, Wakes, Watch, Write
from perdure.testing.conformance.base import ENDED, StoreCase, append, letter, new_run, released, row, rows


class AppendPromises(StoreCase):
    def test_a_new_run_is_there_with_its_rows_and_blobs(self) -> None:
        new = new_run("r", rows=rows(3), blobs=((b"b" * 32, b"blob"),), tags={"team": "x"}, parent_run_id="p")
        done = self.done(new)
        assert done.length == 3
        stored = self.store.load(done.rid)
        assert list(stored.rows) == list(new.rows)
        assert (stored.length, stored.head) == (3, new.rows[-1].hash)
        assert self.store.blob(done.rid, b"b" * 32) == b"blob"
        info = self.info()
        assert (info.rid, info.workflow, info.version, info.status) == (done.rid, "agent", 1, Status.QUEUED)
        assert (info.owner, info.epoch, info.due_at, info.chapter_seq) == (None, 0, 0, 0)
        assert (info.input_digest, info.created_at) == (b"d" * 32, 1000)
        assert (dict(info.tags), info.parent_run_id) == ({"team": "x"}, "p")

    def test_a_new_run_with_an_owner_is_claimed_at_once(self) -> None:
        self.start()
        info = self.info()
        assert (info.owner, info.epoch, info.status, info.due_at) == ("w", 1, Status.RUNNING, None)
        assert self.claim() == []

    def test_a_new_run_for_an_owner_that_is_no_more_is_free_and_due(self) -> None:
        self.done(new_run("r", owner="gone"))
        (claim,) = self.claim()
        assert (claim.info.run_id, claim.info.epoch) == ("r", 2)

    def test_a_run_id_that_is_taken_is_refused_and_names_who_has_it(self) -> None:
        rid = self.start("r")
        outcome = self.write(new_run("r", workflow="other"))
        assert isinstance(outcome, Exists)
        assert (outcome.run.rid, outcome.run.workflow) == (rid, "agent")

    def test_the_id_of_a_finished_run_is_taken_too(self) -> None:
        rid = self.start("r")
        self.done(append(rid, 1, change=ENDED))
        assert isinstance(self.write(new_run("r")), Exists)

    def test_the_same_new_run_again_is_created_once(self) -> None:
        new = new_run("r", rows=rows(2))
        assert self.write(new) == self.write(new)
        assert len(list(self.store.heads())) == 1

    def test_rows_come_back_as_they_were(self) -> None:
        rid = self.start()
        given = (
            row(1, envelope=b"", input=b"", output=None),
            row(2, at=2**53, envelope=bytes(range(256)), input=b"x" * 100_000, output=b"\x00"),
        )
        self.done(append(rid, 1, rows=given))
        assert tuple(self.store.load(rid, from_seq=1).rows) == given

    def test_an_append_needs_the_length_it_expects(self) -> None:
        rid = self.start()
        assert self.write(append(rid, 1, 2)) == Done(rid, 3)
        before = self.everything()
        assert self.write(append(rid, 1)) == Moved(3)
        assert self.write(append(rid, 5)) == Moved(3)
        assert self.write(append(rid, 3)) == Done(rid, 4)
        assert self.everything() != before

    def test_an_append_needs_the_epoch_it_was_made_under(self) -> None:
        rid = self.start()
        self.store.take_over("w", proven=False, retry_after=[0.0])
        assert self.write(append(rid, 1, epoch=1)) == Fenced(2)
        assert self.write(append(rid, 1, epoch=2)) == Done(rid, 2)

    def test_a_plain_append_leaves_the_index_row_alone(self) -> None:
        rid = self.start()
        before = self.info()
        self.clock.advance(1)
        self.done(append(rid, 1, blobs=((b"b" * 32, b"blob"),)))
        assert self.info() == before
        self.done(append(rid, 2, change=Change(state=b"s")))
        assert self.info().updated_at == self.clock.now() > before.updated_at

    def test_a_run_can_be_of_another_version_from_now_on(self) -> None:
        """Workers find it as such, and it stays due when it was."""
        rid = self.done(new_run("r", due_at=self.clock.now())).rid
        before = self.info()
        self.done(append(rid, 1, epoch=before.epoch, change=Change(version=before.version + 1)))
        after = self.info()
        assert (after.version, after.due_at, after.status) == (before.version + 1, before.due_at, before.status)
        assert self.store.find("r") == after
        both = frozenset({(before.workflow, before.version), (before.workflow, after.version)})
        (claim,) = self.store.claim("w", now=self.clock.now(), limit=9, known=both)
        assert claim.info.version == after.version

    def test_an_append_to_nothing_is_missing(self) -> None:
        assert self.write(append(4711, 0)) == Missing()

    def test_a_run_that_has_ended_takes_nothing_any_more(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=ENDED))
        assert self.write(append(rid, 2)) == Ended(Status.COMPLETED)
        assert self.info().owner is None

    def test_the_same_append_again_is_applied_once_and_answers_the_same(self) -> None:
        rid = self.start()
        first = append(rid, 1, 2)
        assert self.write(first) == self.write(first) == Done(rid, 3)
        assert self.store.load(rid).length == 3

    def test_the_same_append_again_by_another_handle_is_applied_once(self) -> None:
        rid = self.start()
        first = append(rid, 1)
        self.done(first)
        assert self.again().commit([first]) == [Done(rid, 2)]

    def test_the_same_append_again_after_it_ended_the_run_answers_the_same(self) -> None:
        rid = self.start()
        last = append(rid, 1, change=ENDED)
        assert self.write(last) == self.write(last) == Done(rid, 2)

    def test_the_same_append_again_after_it_released_the_run_answers_the_same(self) -> None:
        rid = self.start()
        parked = append(rid, 1, change=released(due_at=0))
        self.done(parked)
        assert self.claimed() == ["r"]
        assert self.write(parked) == Done(rid, 2)
        assert self.info().owner == "w"

    def test_the_same_append_without_rows_again_is_applied_once(self) -> None:
        rid = self.start()
        parked = append(rid, 1, 0, change=released(due_at=0), new_runs=(new_run("child"),))
        assert self.write(parked) == Done(rid, 1)
        assert self.claimed(only=frozenset({"r"})) == ["r"]
        assert self.write(parked) == Done(rid, 1)
        assert self.info().owner == "w"

    def test_another_append_at_the_same_position_is_not_taken_for_the_first(self) -> None:
        rid = self.start()
        self.done(append(rid, 1))
        assert self.write(append(rid, 1)) == Moved(2)

    def test_writes_of_one_commit_are_decided_each_for_itself(self) -> None:
        one, two = self.start("one"), self.start("two")
        writes: list[Write] = [
            append(one, 1),
            append(two, 7),
            new_run("one"),
            letter("nobody"),
            append(two, 1, epoch=9),
            new_run("three"),
            append(two, 1),
        ]
        outcomes = self.store.commit(writes)
        assert outcomes[0] == Done(one, 2)
        assert outcomes[1] == Moved(1)
        assert isinstance(outcomes[2], Exists)
        assert outcomes[3:5] == [Missing(), Fenced(1)]
        assert isinstance(outcomes[5], Done)
        assert outcomes[6] == Done(two, 2)

    def test_a_commit_of_nothing_answers_nothing(self) -> None:
        assert self.store.commit([]) == []

    def test_later_writes_of_a_commit_see_the_earlier_ones(self) -> None:
        rid = self.start()
        first = append(rid, 1)
        outcomes = self.store.commit([first, append(rid, 2, change=ENDED), first, append(rid, 3), letter("r")])
        assert outcomes == [Done(rid, 2), Done(rid, 3), Done(rid, 2), *[Ended(Status.COMPLETED)] * 2]

    def test_a_refused_write_leaves_no_trace(self) -> None:
        rid, other = self.start(), self.start("other")
        self.done(letter("r"))
        (mail,) = self.store.mail([rid])
        before = self.everything()
        rich: dict[str, Any] = {
            "blobs": ((b"b" * 32, b"blob"),),
            "change": ENDED,
            "taken": (mail.mail_id,),
            "new_runs": (new_run("child"),),
            "watches": (Watch("child", rid, "k"),),
            "letters": (letter("other"),),
        }
        assert self.write(append(rid, 3, **rich)) == Moved(1)
        assert self.write(append(rid, 1, epoch=5, **rich)) == Fenced(1)
        taken: dict[str, Any] = {**rich, "new_runs": (new_run("child"), new_run("other"))}
        assert isinstance(self.write(append(rid, 1, **taken)), Exists)
        assert self.everything() == before
        assert self.store.stats()["blobs"] == 0
        assert self.store.load(other).length == 1

    def test_positions_that_are_not_dense_are_a_bug_of_the_caller(self) -> None:
        rid = self.start()
        before = self.everything()
        gap = append(rid, 1, rows=(row(1), row(3)))
        for wrong in (gap, append(rid, 1, rows=(row(2),)), new_run("x", rows=(row(1),))):
            with pytest.raises(PerdureBug):
                self.store.commit([append(rid, 1), wrong])
        assert self.everything() == before

    def test_an_end_without_its_letter_is_a_bug_of_the_caller(self) -> None:
        rid = self.start()
        for change in (Change(status=Status.FAILED), Change(status=Status.RUNNING, ending=b"x")):
            with pytest.raises(PerdureBug):
                self.store.commit([append(rid, 1, change=change)])

    # ── what belongs to an append ────────────────────────────────────────────────────────────
    def test_blobs_belong_to_their_run_and_are_kept_once(self) -> None:
        rid, other = self.start(), self.start("other")
        blob = (b"b" * 32, b"blob")
        self.done(append(rid, 1, blobs=(blob,)))
        self.done(append(rid, 2, blobs=(blob, blob)))
        self.done(append(other, 1, blobs=(blob,)))
        assert self.store.blob(rid, b"b" * 32) == b"blob"
        assert self.store.stats()["blobs"] == 2

    def test_new_runs_watches_and_letters_come_with_the_append(self) -> None:
        rid = self.start()
        child = new_run("child")
        self.done(append(rid, 1, new_runs=(child,), watches=(Watch("child", rid, "c1"),), letters=(letter("child"),)))
        assert self.info("child").status is Status.QUEUED
        assert self.bodies("child") == [b"body"]

    def test_an_existing_child_refuses_the_whole_append(self) -> None:
        rid, there = self.start(), self.start("there")
        outcome = self.write(append(rid, 1, new_runs=(new_run("child"), new_run("there"))))
        assert isinstance(outcome, Exists)
        assert outcome.run.rid == there
        assert self.store.find("child") is None
        assert self.store.load(rid).length == 1

    def test_a_watch_of_nothing_refuses_the_whole_append(self) -> None:
        rid = self.start()
        assert self.write(append(rid, 1, watches=(Watch("nobody", rid, "c1"),))) == Missing()
        assert self.store.load(rid).length == 1

    def test_letters_of_an_append_to_runs_that_take_none_are_dropped(self) -> None:
        rid, ended = self.start(), self.start("ended")
        self.done(append(ended, 1, change=ENDED))
        assert self.write(append(rid, 1, letters=(letter("ended"), letter("nobody")))) == Done(rid, 2)
        assert self.store.mail() == []

    def test_a_change_leaves_what_it_does_not_name(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=Change(waiting=b"w", state=b"s", chapter_seq=1)))
        self.clock.advance(1)
        self.done(append(rid, 2, change=Change(state=b"s2")))
        info = self.info()
        assert (info.waiting, info.state, info.chapter_seq, info.status) == (b"w", b"s2", 1, Status.RUNNING)
        assert (info.updated_at, info.owner) == (self.clock.now(), "w")

    def test_a_new_status_brings_its_reason_and_hint(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=Change(status=Status.BLOCKED, reason="over_budget", hint="raise it")))
        assert (self.info().reason, self.info().hint) == ("over_budget", "raise it")
        self.done(append(rid, 2, change=Change(state=b"s")))
        assert (self.info().reason, self.info().hint) == ("over_budget", "raise it")
        self.done(append(rid, 3, change=Change(status=Status.RUNNING)))
        assert (self.info().reason, self.info().hint) == (None, None)

    def test_releasing_gives_the_run_up_until_it_is_due(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=released(due_at=self.clock.now() + 5_000_000)))
        info = self.info()
        assert (info.owner, info.status, info.reason, info.epoch) == (None, Status.WAITING, "timer", 1)
        assert self.claim() == []
        self.clock.advance(5)
        (claim,) = self.claim()
        assert (claim.info.rid, claim.info.epoch, claim.info.status) == (rid, 2, Status.WAITING)

    def test_an_ended_run_is_nobodys_and_never_due(self) -> None:
        rid = self.start()
        ending = Change(status=Status.FAILED, ending=b"e", release=True, due_at=0, wakes=Wakes.MAIL)
        self.done(append(rid, 1, change=ending))
        assert (self.info().owner, self.info().due_at) == (None, None)
        assert self.claim() == []
        assert self.store.next_due(known=frozenset({("agent", 1)})) is None

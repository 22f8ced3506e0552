"""Care: pruning, heads, backups, counts, leaving."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreBusyError, StoreError
from perdure.store.protocol import Append, Done, Filter, Status, Watch
from perdure.testing.conformance.base import ENDED, StoreCase, append, letter, new_run, released, row

FOREVER = 2**62
SECONDS_MAX = 30.0
"""For what happens soon, on the slowest machine."""


class CarePromises(StoreCase):
    def finish(self, run_id: str, **fields: object) -> int:
        rid = self.start(run_id, **fields)
        self.done(append(rid, 1, 2, blobs=((b"b" * 32, b"blob"),), change=ENDED))
        return rid

    def test_pruning_deletes_whole_runs_and_keeps_their_heads(self) -> None:
        rid = self.finish("old")
        alive = self.start("alive")
        self.done(letter("alive"))
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        assert self.store.find("old") is None
        assert self.store.runs(Filter()) == [self.info("alive")]
        assert list(self.store.heads()) == [("old", rid, 3, row(2).hash), ("alive", alive, 1, row(0).hash)]
        stats = self.store.stats()
        assert (stats["runs"], stats["runs_pruned"], stats["events"], stats["blobs"]) == (1, 1, 1, 0)
        assert self.bodies("alive") == [b"body"]

    def test_pruning_again_finds_nothing(self) -> None:
        self.finish("old")
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        assert self.store.prune(ended_before=FOREVER, limit=10) == 0

    def test_only_what_ended_before_is_pruned_oldest_first(self) -> None:
        for number in range(5):
            self.finish(f"r{number}")
            self.clock.advance(1)
        until = self.clock.now() - 1_000_000
        assert self.store.prune(ended_before=until, limit=2) == 2
        assert [info.run_id for info in self.store.runs(Filter())] == ["r4", "r3", "r2"]
        assert self.store.prune(ended_before=until, limit=10) == 2
        assert [info.run_id for info in self.store.runs(Filter())] == ["r4"]

    def test_more_runs_than_one_transaction_takes_are_pruned(self) -> None:
        for number in range(250):
            self.finish(f"r{number}")
        assert self.store.prune(ended_before=FOREVER, limit=230) == 230
        assert self.store.stats()["runs"] == 20

    def test_runs_that_have_not_ended_are_never_pruned(self) -> None:
        self.done(new_run("queued"))
        self.start("running")
        self.done(append(self.start("waiting"), 1, change=released()))
        assert self.store.prune(ended_before=FOREVER, limit=10) == 0

    def test_a_finished_child_stays_while_its_parent_runs(self) -> None:
        parent = self.start("parent")
        self.finish("child", parent_run_id="parent")
        self.finish("orphan", parent_run_id="gone")
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        assert self.store.find("child") is not None
        self.done(append(parent, 1, change=ENDED))
        assert self.store.prune(ended_before=FOREVER, limit=10) == 2

    def test_what_descends_from_a_run_stays_while_that_runs(self) -> None:
        top = self.start("top")
        for run_id, parent in (("child", "top"), ("grandchild", "child"), ("last", "grandchild")):
            self.finish(run_id, parent_run_id=parent)
        assert self.store.prune(ended_before=FOREVER, limit=10) == 0
        self.done(append(top, 1, change=ENDED))
        assert self.store.prune(ended_before=FOREVER, limit=10) == 4

    def test_ids_that_were_used_again_may_make_a_circle_of_parents(self) -> None:
        self.finish("one", parent_run_id="other")
        self.finish("other", parent_run_id="one")
        assert self.store.prune(ended_before=FOREVER, limit=10) == 2

    def test_a_run_id_used_again_gets_nothing_of_the_old_run(self) -> None:
        old = self.start("r")
        other = self.start("other")
        self.done(letter("r", body=b"old"))
        self.done(append(other, 1, watches=(Watch("r", other, "k"),)))
        self.done(append(old, 1, blobs=((b"b" * 32, b"blob"),), change=ENDED))
        self.store.prune(ended_before=FOREVER, limit=10)
        new = self.start("r")
        assert new != old
        stored = self.store.load(new)
        assert (stored.length, len(stored.rows)) == (1, 1)
        assert self.bodies("r") == []
        assert self.store.stats()["blobs"] == 0
        assert [head[:2] for head in self.store.heads()] == [("r", old), ("other", other), ("r", new)]

    def test_a_rid_is_never_used_again_even_after_a_restart(self) -> None:
        newest = self.finish("r")
        self.store.prune(ended_before=FOREVER, limit=10)
        self.reopen()
        self.enter("w")
        assert self.start("s") > newest or self.store.stats()["runs_pruned"] == 0

    def test_a_rid_is_not_used_again_when_the_newest_run_is_pruned(self) -> None:
        newest = self.finish("r")
        assert self.store.prune(ended_before=FOREVER, limit=10) == 1
        assert self.start("s") > newest

    def test_heads_come_in_order_and_page_without_a_gap(self) -> None:
        self.store.commit([new_run(f"r{number}") for number in range(2500)])
        heads = list(self.store.heads())
        assert [rid for _, rid, _, _ in heads] == sorted({rid for _, rid, _, _ in heads})
        assert [run_id for run_id, *_ in heads] == [f"r{number}" for number in range(2500)]

    def test_counts(self) -> None:
        self.finish("done")
        rid = self.start("running")
        self.done(letter("running"))
        self.done(letter("running"))
        self.done(append(rid, 1, taken=(self.store.mail()[0].mail_id,)))
        stats = self.store.stats()
        assert (stats["runs"], stats["runs_completed"], stats["runs_running"], stats["runs_failed"]) == (2, 1, 1, 0)
        assert (stats["events"], stats["blobs"], stats["letters"], stats["workers"]) == (5, 1, 1, 1)
        assert int(stats["bytes"]) > 0
        assert "schema_version" in stats
        assert {f"runs_{status}" for status in Status} <= stats.keys()

    def test_a_backup_is_written_while_the_store_is_in_use(self, tmp_path: Path) -> None:
        for number in range(100):
            self.finish(f"r{number}")
        target, steps = tmp_path / "copy", list[tuple[int, int]]()

        def progress(done: int, total: int) -> None:
            steps.append((done, total))
            self.start(f"meanwhile{len(steps)}")

        self.store.backup(str(target), progress)
        assert target.stat().st_size > 0
        assert steps[-1][0] == steps[-1][1]

    def test_a_backup_overwrites_nothing(self, tmp_path: Path) -> None:
        target = tmp_path / "copy"
        target.write_text("precious")
        with pytest.raises(StoreError):
            self.store.backup(str(target))
        assert target.read_text() == "precious"

    def test_whoever_hurries_gives_up_waiting_for_one_that_hangs_in_a_write_and_others_do_not(self) -> None:
        rid, hung, patient = self.start(), self.again(), self.again()
        writes, goes_on = threading.Event(), threading.Event()
        filled = append(rid, 1)

        def hangs(_: Any) -> Append:
            writes.set()
            assert goes_on.wait(4 * SECONDS_MAX)
            return filled

        with ThreadPoolExecutor(3) as threads:
            try:
                writing = threads.submit(hung.transact, filled, hangs)
                assert writes.wait(SECONDS_MAX)
                assert not self.store.is_free()
                waiting = threads.submit(patient.commit, [new_run("patient")])
                already = threads.submit(self.store.commit, [new_run("now")])
                with self.store.hurried():
                    for write in (already, threads.submit(self.store.commit, [new_run("later")])):
                        with pytest.raises(StoreBusyError):
                            write.result(SECONDS_MAX)
                assert not waiting.done()
            finally:
                goes_on.set()
        assert writing.result() == Done(rid, 2)
        assert [type(outcome) for outcome in waiting.result()] == [Done]
        assert [info.run_id for info in self.store.runs(Filter())] == ["patient", "r"]
        assert self.store.is_free()
        self.start("not busy any more")

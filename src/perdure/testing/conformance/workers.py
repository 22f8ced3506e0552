"""Workers: claiming, leases, deaths, takeovers, zombies, crash loops."""

from __future__ import annotations

import pytest

from perdure.errors import StoreError
from perdure.store.protocol import QUIET_KINDS, Change, Claim, Done, Fenced, Filter, Status
from perdure.testing.conformance.base import ENDED, KNOWN, StoreCase, append, letter, new_run, released

RETRY_AFTER = [0.0, 10.0, 60.0]


class WorkerPromises(StoreCase):
    def die(self, worker: str) -> int:
        """The worker's process dies; another takes its runs over."""
        self.kill(self.store, worker)
        return self.store.take_over(worker, proven=True, retry_after=RETRY_AFTER)

    # ── claiming ─────────────────────────────────────────────────────────────────────────────
    def test_a_claim_takes_what_is_due_oldest_first(self) -> None:
        now = self.clock.now()
        due = {"late": now, "early": now - 2, "middle": now - 1, "future": now + 1, "never": None}
        for run_id, due_at in due.items():
            self.done(new_run(run_id, due_at=due_at))
        assert self.claimed(limit=2) == ["early", "middle"]
        assert self.claimed(limit=2) == ["late"]
        assert self.claimed(limit=2) == []

    def test_a_claimed_run_has_an_owner_a_new_epoch_and_runs(self) -> None:
        self.done(new_run("r"))
        (claim,) = self.claim()
        info = claim.info
        assert (info.owner, info.epoch, info.status, info.due_at) == ("w", 1, Status.RUNNING, None)
        assert (claim.lost_owner, claim.lost_how, claim.deaths, claim.lone) == (None, None, 0, 0)
        assert self.info() == claim.info

    def test_only_queued_becomes_running(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=released(due_at=0)))
        (claim,) = self.claim()
        assert claim.info.status is Status.WAITING

    def test_a_claim_takes_only_known_versions_and_named_runs(self) -> None:
        self.done(new_run("old", version=1))
        self.done(new_run("new", version=2))
        self.done(new_run("other", workflow="other"))
        assert self.claimed(known=frozenset[tuple[str, int]]()) == []
        assert self.claimed(known=frozenset({("agent", 2), ("nothing", 1)})) == ["new"]
        known = frozenset({("agent", 1), ("agent", 2), ("other", 1)})
        assert self.claimed(known=known, only=frozenset({"other", "nobody"})) == ["other"]
        assert self.claimed(known=KNOWN, only=frozenset({"new"})) == []
        assert self.claimed(known=known, only=frozenset[str]()) == []
        assert self.claimed(known=known) == ["old"]

    def test_next_due_is_the_earliest_that_could_be_claimed(self) -> None:
        for run_id, version, due_at in (("a", 1, 50), ("b", 1, 40), ("c", 2, 30), ("d", 1, None)):
            self.done(new_run(run_id, version=version, due_at=due_at))
        self.start("owned")
        assert self.store.next_due(known=KNOWN) == 40
        assert self.store.next_due(known=frozenset({("agent", 1), ("agent", 2)})) == 30
        assert self.store.next_due(known=frozenset({("agent", 3)})) is None
        own = frozenset({"c", "nobody"})
        assert self.store.next_due(known=frozenset({("agent", 1), ("agent", 2)}), only=own) == 30
        assert self.store.next_due(known=KNOWN, only=own) is None

    def test_what_no_worker_serves_is_found(self) -> None:
        """Due before then, nobody's, and of no workflow and version that is served."""
        for run_id, workflow, version, due_at in (
            ("a", "agent", 1, 10), ("b", "agent", 2, 10), ("c", "agent", 2, 50), ("d", "other", 1, 10),
            ("e", "other", 1, None), ("f", "other", 2, 49),
        ):  # fmt: skip
            self.done(new_run(run_id, workflow=workflow, version=version, due_at=due_at))
        self.start("owned", workflow="other")

        def unserved(*served: tuple[str, int]) -> list[str]:
            return sorted(info.run_id for info in self.store.unserved(served=frozenset(served), due_before=50))

        assert unserved() == ["a", "b", "d", "f"]
        assert unserved(("agent", 1), ("other", 2)) == ["b", "d"]
        assert unserved(("agent", 1), ("agent", 2), ("other", 1), ("other", 2)) == []

    def test_of_what_is_served_the_run_that_is_due_for_longest_is_found(self) -> None:
        for run_id, version, due_at in (("a", 1, 20), ("b", 1, 10), ("c", 1, 10), ("d", 2, 60), ("e", 3, 30)):
            self.done(new_run(run_id, workflow="agent", version=version, due_at=due_at))
        served = frozenset({("agent", 1), ("agent", 2)})
        found = self.store.unserved(served=served, due_before=50, oldest_served=True)
        assert sorted(info.run_id for info in found) == ["b", "e"]

    def test_two_workers_never_claim_the_same_run(self) -> None:
        self.enter("v")
        for number in range(10):
            self.done(new_run(f"r{number}"))
        other = self.again()
        taken = self.claimed("w", limit=6)
        rest = other.claim("v", now=self.clock.now(), limit=6, known=KNOWN)
        assert len(taken) == 6
        assert sorted(taken + [claim.info.run_id for claim in rest]) == [f"r{number}" for number in range(10)]

    def test_a_worker_that_never_entered_claims_nothing(self) -> None:
        self.done(new_run("r"))
        assert self.claim("stranger") == []

    # ── coming and going ─────────────────────────────────────────────────────────────────────
    def test_workers_are_listed_with_what_they_run(self) -> None:
        self.store.enter("v", lease_seconds=5, workflows=["agent", "other"])
        by_name = {info.worker: info for info in self.store.workers()}
        assert set(by_name) == {"w", "v"}
        assert by_name["v"].workflows == ("agent", "other")
        assert (by_name["v"].started_at, by_name["v"].lease_until) == (self.clock.now(), self.clock.now() + 5_000_000)

    def test_who_is_there_for_longest_is_listed_first(self) -> None:
        for worker in ("b", "a"):
            self.clock.advance(1)
            self.enter(worker)
        assert [info.worker for info in self.store.workers()] == ["w", "b", "a"]

    def test_a_name_that_is_in_use_is_refused(self) -> None:
        for handle in (self.store, self.again()):
            with pytest.raises(StoreError):
                handle.enter("w", lease_seconds=10, workflows=[])
        assert self.store.renew("w", lease_seconds=10)

    def test_renewing_extends_the_lease(self) -> None:
        self.clock.advance(9)
        assert self.store.renew("w", lease_seconds=10)
        self.clock.advance(9)
        assert self.store.lost("v") == []

    def test_renewing_what_was_declared_dead_says_so_until_it_enters_anew(self) -> None:
        self.store.take_over("w", proven=False, retry_after=RETRY_AFTER)
        assert not self.store.renew("w", lease_seconds=10)
        assert self.store.workers() == []
        self.done(new_run("r"))
        assert self.claim() == []
        self.enter("w")
        assert self.store.renew("w", lease_seconds=10)
        assert self.claimed() == ["r"]

    def test_leaving_frees_everything_at_once(self) -> None:
        rid = self.start()
        self.start("s")
        self.store.leave("w")
        assert self.store.workers() == []
        assert self.store.lost("v") == []
        self.enter("v")
        claims = self.claim("v")
        assert sorted(claim.info.run_id for claim in claims) == ["r", "s"]
        assert {(claim.lost_owner, claim.deaths, claim.info.epoch) for claim in claims} == {(None, 0, 2)}
        assert self.write(append(rid, 1, epoch=1)) == Fenced(2)

    def test_a_worker_gives_back_what_it_does_not_hold(self) -> None:
        self.enter("v")
        for run_id in ("held", "lost", "other's"):
            self.done(new_run(run_id))
        held, lost = (claim.info for claim in self.claim(limit=2))
        (others,) = self.claim("v")
        assert self.store.give_back("w", but={held.rid: held.epoch}) == 1
        assert self.info("held") == held
        assert self.info("other's") == others.info
        info = self.info("lost")
        assert (info.owner, info.epoch, info.due_at) == (None, lost.epoch, self.clock.now())
        assert self.claimed("v") == ["lost"]
        assert self.store.give_back("w", but={held.rid: held.epoch}) == 0

    def test_holding_a_run_under_an_old_epoch_is_not_holding_it(self) -> None:
        self.done(new_run("r"))
        (first,) = self.claim()
        self.done(append(first.info.rid, 1, epoch=first.info.epoch, change=released(due_at=0)))
        (again,) = self.claim()
        assert self.store.give_back("w", but={first.info.rid: first.info.epoch}) == 1
        assert self.info("r").owner is None
        assert again.info.epoch == first.info.epoch + 1

    def test_a_worker_that_left_can_enter_again(self) -> None:
        self.store.leave("w")
        self.enter("w")
        assert self.store.renew("w", lease_seconds=10)
        assert self.store.lost("v") == []

    def test_entering_under_a_dead_workers_name_frees_what_that_one_owned(self) -> None:
        self.start()
        self.kill(self.store, "w")
        self.again().enter("w", lease_seconds=10, workflows=[])
        assert self.info().owner is None
        (claim,) = self.claim("w")
        assert claim.lost_owner == "w"

    # ── dying ────────────────────────────────────────────────────────────────────────────────
    def test_a_live_worker_is_not_lost(self) -> None:
        assert self.store.lost("v") == []
        assert self.again().lost("v") == []

    def test_a_death_is_proven_to_everybody_but_the_dead(self) -> None:
        self.kill(self.store, "w")
        assert self.store.lost("v") == [("w", True)]
        assert self.again().lost("v") == [("w", True)]
        assert self.store.lost("w") == []

    def test_closing_the_handle_proves_the_death_of_its_workers(self) -> None:
        other = self.again()
        other.enter("v", lease_seconds=10, workflows=[])
        assert self.store.lost("w") == []
        other.close()
        self._handles.remove(other)
        assert self.store.lost("w") == [("v", True)]

    def test_a_lease_that_ran_out_is_a_suspicion(self) -> None:
        self.clock.advance(10)
        assert self.store.lost("v") == []
        self.clock.advance(0.000001)
        assert self.store.lost("v") == [("w", False)]

    def test_a_death_needs_its_proof(self) -> None:
        self.start()
        assert self.store.take_over("w", proven=True, retry_after=RETRY_AFTER) == 0
        assert self.info().owner == "w"

    def test_taking_over_a_stranger_frees_nothing(self) -> None:
        assert self.store.take_over("stranger", proven=True, retry_after=RETRY_AFTER) == 0
        assert self.store.take_over("stranger", proven=False, retry_after=RETRY_AFTER) == 0

    def test_a_dead_workers_runs_are_taken_over(self) -> None:
        self.enter("v")
        for run_id in ("r", "s"):
            self.start(run_id)
        self.start("mine", owner="v")
        assert self.die("w") == 2
        assert self.die("w") == 0
        assert [info.worker for info in self.store.workers()] == ["v"]
        claims = self.claim("v")
        assert sorted(claim.info.run_id for claim in claims) == ["r", "s"]
        assert {(claim.lost_owner, claim.lost_how, claim.info.epoch) for claim in claims} == {("w", "proof", 3)}
        assert self.epoch("mine") == 1

    def test_who_had_it_before_is_told_once(self) -> None:
        self.enter("v")
        rid = self.start()
        self.die("w")
        (claim,) = self.claim("v")
        self.done(append(rid, 1, epoch=claim.info.epoch, change=released(due_at=0)))
        (again,) = self.claim("v")
        assert (again.lost_owner, again.lost_how) == (None, None)

    def test_a_zombie_can_append_nothing(self) -> None:
        self.enter("v")
        rid = self.start()
        zombie = self.store
        self.store = self.again()
        self.clock.advance(11)
        self.store.renew("v", lease_seconds=10)
        assert self.store.lost("v") == [("w", False)]
        assert self.store.take_over("w", proven=False, retry_after=RETRY_AFTER) == 1
        assert zombie.commit([append(rid, 1, epoch=1)]) == [Fenced(2)]
        (claim,) = self.claim("v")
        assert (claim.lost_owner, claim.lost_how, claim.deaths) == ("w", "suspicion", 0)
        assert zombie.commit([append(rid, 1, epoch=1)]) == [Fenced(3)]
        assert not zombie.renew("w", lease_seconds=10)
        assert self.write(append(rid, 1, epoch=3)) == Done(rid, 2)

    # ── whose fault a death was ──────────────────────────────────────────────────────────────
    def suspect(self, number: int) -> Claim:
        """Worker `w<number>` claims all that is due and dies."""
        worker = f"w{number}"
        self.enter(worker)
        (claim,) = self.claim(worker)
        self.die(worker)
        return claim

    def test_deaths_alone_end_in_a_crash_loop(self) -> None:
        self.done(new_run("r"))
        assert (self.suspect(1).deaths, self.epoch()) == (0, 2)
        assert self.info().due_at == self.clock.now()
        second = self.suspect(2)
        assert (second.deaths, second.lone) == (1, 1)
        assert self.info().due_at == self.clock.now() + 10_000_000
        self.clock.advance(10)
        third = self.suspect(3)
        assert (third.deaths, third.lone) == (2, 2)
        info = self.info()
        assert (info.status, info.reason, info.owner, info.due_at) == (Status.BLOCKED, "crash_loop", None, None)
        assert info.hint
        assert info.epoch == 6

    def test_a_crash_loop_wakes_for_control_only(self) -> None:
        self.done(new_run("r"))
        self.suspect(1)
        self.suspect(2)
        self.clock.advance(10)
        self.suspect(3)
        self.done(letter("r"))
        assert self.claimed() == []
        self.done(letter("r", "unblock"))
        assert self.claimed() == ["r"]

    @pytest.mark.parametrize("kind", sorted(QUIET_KINDS))
    def test_starts_and_takeovers_are_no_progress(self, kind: str) -> None:
        rid = self.start()
        self.done(append(rid, 1, kind=kind))
        self.die("w")
        self.enter("v")
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone) == (1, 1)

    def test_progress_clears_the_suspicion(self) -> None:
        self.done(new_run("r"))
        self.suspect(1)
        self.enter("v")
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone) == (1, 1)
        self.done(append(claim.info.rid, 1, epoch=claim.info.epoch))
        self.die("v")
        self.enter("u")
        (claim,) = self.claim("u")
        assert (claim.deaths, claim.lone) == (0, 0)

    def test_a_release_after_progress_clears_the_suspicion_too(self) -> None:
        self.done(new_run("r"))
        self.suspect(1)
        self.enter("v")
        (claim,) = self.claim("v")
        self.done(append(claim.info.rid, 1, epoch=claim.info.epoch, change=released(due_at=0)))
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone) == (0, 0)

    def test_a_release_without_progress_does_not(self) -> None:
        self.done(new_run("r"))
        self.suspect(1)
        self.enter("v")
        (claim,) = self.claim("v")
        self.done(append(claim.info.rid, 1, 0, epoch=claim.info.epoch, change=released(due_at=0)))
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone) == (1, 1)

    def test_a_waiting_run_is_no_suspect(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, 0, change=Change(status=Status.WAITING)))
        self.die("w")
        self.enter("v")
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone, claim.lost_owner) == (0, 0, "w")

    def test_a_suspicion_counts_no_death(self) -> None:
        self.start()
        self.store.take_over("w", proven=False, retry_after=RETRY_AFTER)
        self.enter("v")
        (claim,) = self.claim("v")
        assert (claim.deaths, claim.lone) == (0, 0)

    def test_innocents_of_the_same_process_are_not_parked(self) -> None:
        """200 runs share a process that dies again and again: all are suspects, none of them ever dies alone."""
        for number in range(200):
            self.done(new_run(f"r{number}"))
        for number, due in enumerate((200, 200)):
            self.enter(f"w{number}")
            assert len(self.claim(f"w{number}")) == due
            assert self.die(f"w{number}") == 200
            self.clock.advance(61)
        assert {info.status for info in self.store.runs(Filter(limit=1000))} == {Status.RUNNING}

    def test_suspects_of_two_deaths_run_one_at_a_time(self) -> None:
        for number in range(3):
            self.done(new_run(f"r{number}"))
        for number in range(2):
            self.enter(f"w{number}")
            assert len(self.claim(f"w{number}")) == 3
            self.die(f"w{number}")
            self.clock.advance(60)
        self.done(new_run("fresh"))
        self.enter("v", "u")
        first = self.claim("v")
        assert sorted(claim.deaths for claim in first) == [0, 2]
        assert self.claim("v") == []
        assert [claim.deaths for claim in self.claim("u")] == [2]
        (suspect,) = [claim for claim in first if claim.deaths == 2]
        self.done(append(suspect.info.rid, 1, epoch=suspect.info.epoch, change=ENDED))
        assert [claim.deaths for claim in self.claim("v")] == [2]

    def test_the_one_that_kills_is_found_among_many(self) -> None:
        """After two common deaths each is tried alone; the killer dies alone until it is parked, the others go on."""
        for number in range(5):
            self.done(new_run(f"r{number}"))
        blocked = False
        for attempt in range(40):
            worker = f"w{attempt}"
            self.enter(worker)
            claims = self.claim(worker)
            if any(claim.info.run_id == "r3" for claim in claims):
                self.die(worker)
                blocked = self.info("r3").status is Status.BLOCKED
            else:
                self.finish_all(claims)
                self.store.leave(worker)
            self.clock.advance(61)
        assert blocked
        assert {self.info(f"r{number}").status for number in (0, 1, 2, 4)} == {Status.COMPLETED}

    def finish_all(self, claims: list[Claim]) -> None:
        for claim in claims:
            self.done(append(claim.info.rid, 1, epoch=claim.info.epoch, change=ENDED))

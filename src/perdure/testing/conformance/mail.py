"""Mail and watching: delivered once, waking whom it should, gone with the run's end."""

from __future__ import annotations

import pytest

from perdure.store.protocol import CONTROL_KINDS, Done, Ended, Exists, Missing, Status, Wakes, Watch, Write
from perdure.testing.conformance.base import ENDED, KNOWN, StoreCase, append, letter, new_run, released


class MailPromises(StoreCase):
    def test_a_letter_lies_in_the_mailbox_until_it_is_taken(self) -> None:
        rid = self.start()
        sent = letter("r", key="answer", body=b"42", sent_at=77)
        assert self.write(sent) == Done(rid)
        (mail,) = self.store.mail([rid])
        assert (mail.rid, mail.kind, mail.key, mail.body, mail.sent_at) == (rid, "message", "answer", b"42", 77)
        self.done(append(rid, 1, taken=(mail.mail_id,)))
        assert self.store.mail([rid]) == []

    def test_a_letter_says_who_sent_it(self) -> None:
        rid = self.start()
        self.done(letter("r", by="ann"))
        self.done(letter("r"))
        assert [mail.by for mail in self.store.mail([rid])] == ["ann", ""]
        assert [mail.by for mail in self.store.mail(owner="w")] == ["ann", ""]

    def test_mail_comes_oldest_first(self) -> None:
        rid = self.start()
        for number in range(20):
            self.done(letter("r", body=b"%d" % number, sent_at=100 - number))
        assert self.bodies() == [b"%d" % number for number in range(20)]
        ids = [mail.mail_id for mail in self.store.mail([rid])]
        assert ids == sorted(set(ids))

    def test_mail_of_some_runs_of_an_owner_and_of_all(self) -> None:
        self.enter("v")
        one, two = self.start("one"), self.start("two")
        self.start("three", owner="v")
        for run_id in ("one", "two", "three"):
            self.done(letter(run_id, body=run_id.encode()))
        assert [mail.body for mail in self.store.mail([one])] == [b"one"]
        assert [mail.body for mail in self.store.mail([two, one, one])] == [b"one", b"two"]
        assert [mail.body for mail in self.store.mail(owner="w")] == [b"one", b"two"]
        assert [mail.body for mail in self.store.mail([one], owner="v")] == []
        assert [mail.body for mail in self.store.mail()] == [b"one", b"two", b"three"]
        assert self.store.mail([]) == []

    def test_only_the_runs_own_append_takes_its_letters(self) -> None:
        self.start("one")
        two = self.start("two")
        self.done(letter("one"))
        (mail,) = self.store.mail()
        self.done(append(two, 1, taken=(mail.mail_id,)))
        assert self.bodies("one") == [b"body"]

    def test_the_same_letter_again_is_delivered_once_even_after_it_was_taken(self) -> None:
        rid = self.start()
        sent = letter("r")
        assert self.write(sent) == self.write(sent) == Done(rid)
        (mail,) = self.store.mail([rid])
        self.done(append(rid, 1, taken=(mail.mail_id,)))
        assert self.write(sent) == Done(rid)
        assert self.store.mail([rid]) == []

    def test_two_letters_with_one_key_are_two_letters(self) -> None:
        self.start()
        self.done(letter("r", key="same"))
        self.done(letter("r", key="same"))
        assert len(self.bodies()) == 2

    def test_letters_to_nobody_and_to_ended_runs_are_refused(self) -> None:
        rid = self.start()
        assert self.write(letter("nobody")) == Missing()
        self.done(letter("r"))
        self.done(append(rid, 1, change=ENDED))
        assert self.write(letter("r")) == Ended(Status.COMPLETED)
        assert self.store.mail() == []

    def test_mail_makes_a_parked_run_due(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=released(due_at=None)))
        assert self.claim() == []
        assert self.store.next_due(known=KNOWN) is None
        self.done(letter("r"))
        assert self.store.next_due(known=KNOWN) == self.clock.now()
        assert self.claimed() == ["r"]

    def test_mail_does_not_delay_a_run_that_is_due(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=released(due_at=5)))
        self.done(letter("r"))
        assert self.info().due_at == 5

    @pytest.mark.parametrize("kind", ["message", "child", *sorted(CONTROL_KINDS)])
    @pytest.mark.parametrize("wakes", list(Wakes))
    @pytest.mark.parametrize("mail_first", [True, False])
    def test_which_mail_wakes_a_run(self, kind: str, wakes: Wakes, mail_first: bool) -> None:
        rid = self.start()
        wanted = wakes is Wakes.MAIL or (wakes is Wakes.CONTROL and kind in CONTROL_KINDS)
        parking = append(rid, 1, change=released(due_at=None, wakes=wakes))
        writes: list[Write] = [letter("r", kind), parking] if mail_first else [parking, letter("r", kind)]
        for write in writes:
            self.done(write)
        assert self.info().due_at == (self.clock.now() if wanted else None)

    def test_a_letter_taken_with_the_release_does_not_wake(self) -> None:
        rid = self.start()
        self.done(letter("r"))
        (mail,) = self.store.mail([rid])
        self.done(append(rid, 1, taken=(mail.mail_id,), change=released(due_at=None)))
        assert self.claim() == []

    def test_a_letter_sent_again_does_not_wake(self) -> None:
        rid = self.start()
        sent = letter("r")
        self.done(sent)
        (mail,) = self.store.mail([rid])
        self.done(append(rid, 1, taken=(mail.mail_id,), change=released(due_at=None)))
        self.done(sent)
        assert self.claim() == []

    def test_a_run_that_releases_itself_with_a_letter_to_itself_is_due(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, change=released(due_at=None), letters=(letter("r"),)))
        assert self.claimed() == ["r"]

    def test_messages_do_not_hasten_a_delayed_start_but_control_does(self) -> None:
        later = self.clock.now() + 60_000_000
        self.done(new_run("r", due_at=later))
        self.done(letter("r"))
        assert self.info().due_at == later
        self.done(letter("r", "cancel"))
        assert self.info().due_at == self.clock.now()

    def test_a_run_without_a_start_time_starts_with_its_first_mail(self) -> None:
        self.done(new_run("r", due_at=None))
        assert self.claim() == []
        self.done(letter("r"))
        assert self.claimed() == ["r"]

    # ── watching ─────────────────────────────────────────────────────────────────────────────
    def test_a_watcher_is_told_of_the_end(self) -> None:
        rid, child = self.start(), self.start("child")
        self.done(append(rid, 1, watches=(Watch("child", rid, "c1"),)))
        assert self.store.mail([rid]) == []
        self.done(append(child, 1, change=ENDED))
        (mail,) = self.store.mail([rid])
        assert (mail.kind, mail.key, mail.body) == ("child", "c1", b"the end")

    def test_a_watch_of_a_run_that_has_ended_is_told_at_once(self) -> None:
        rid, child = self.start(), self.start("child")
        self.done(append(child, 1, change=ENDED))
        self.done(append(rid, 1, watches=(Watch("child", rid, "c1"),)))
        (mail,) = self.store.mail([rid])
        assert (mail.kind, mail.key, mail.body) == ("child", "c1", b"the end")

    def test_a_watch_of_a_child_created_in_the_same_append(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, new_runs=(new_run("child"),), watches=(Watch("child", rid, "c1"),)))
        (claim,) = self.claim()
        self.done(append(claim.info.rid, 1, change=ENDED))
        assert self.bodies() == [b"the end"]

    def test_a_parked_watcher_is_woken_by_the_end(self) -> None:
        rid, child = self.start(), self.start("child")
        self.done(append(rid, 1, watches=(Watch("child", rid, "c1"),), change=released(due_at=None)))
        assert self.claim() == []
        self.done(append(child, 1, change=ENDED))
        assert self.claimed() == ["r"]

    def test_a_release_sees_that_the_watched_run_has_ended(self) -> None:
        rid, child = self.start(), self.start("child")
        self.done(append(child, 1, change=ENDED))
        self.done(append(rid, 1, watches=(Watch("child", rid, "c1"),), change=released(due_at=None)))
        assert self.claimed() == ["r"]

    def test_what_comes_after_an_end_in_the_same_commit_sees_it(self) -> None:
        one, two, child = self.start("one"), self.start("two"), self.start("child")
        outcomes = self.store.commit([
            append(one, 1, watches=(Watch("child", one, "c"),)), append(child, 1, change=ENDED), letter("child"),
            append(two, 1, watches=(Watch("child", two, "c"),)), append(child, 2), new_run("new"), new_run("new"),
        ])  # fmt: skip
        assert outcomes[1:3] == [Done(child, 2), Ended(Status.COMPLETED)]
        assert outcomes[4] == Ended(Status.COMPLETED)
        assert isinstance(outcomes[5], Done)
        assert isinstance(outcomes[6], Exists)
        assert outcomes[6].run.rid == outcomes[5].rid
        assert self.bodies("one") == self.bodies("two") == [b"the end"]

    def test_of_two_that_end_in_the_same_commit_none_is_told(self) -> None:
        one, two = self.start("one"), self.start("two")
        self.done(append(one, 1, watches=(Watch("two", one, "c"),)))
        self.done(append(two, 1, watches=(Watch("one", two, "c"),)))
        outcomes = self.store.commit([append(one, 2, change=ENDED), append(two, 2, change=ENDED)])
        assert outcomes == [Done(one, 3), Done(two, 3)]
        assert self.store.mail() == []
        assert self.claim() == []

    def test_several_watchers_and_keys_are_each_told_once(self) -> None:
        one, two, child = self.start("one"), self.start("two"), self.start("child")
        self.done(append(one, 1, watches=(Watch("child", one, "a"), Watch("child", one, "b"))))
        self.done(append(one, 2, watches=(Watch("child", one, "a"),)))
        self.done(append(two, 1, watches=(Watch("child", two, "a"),)))
        self.done(append(child, 1, change=ENDED))
        assert sorted(mail.key for mail in self.store.mail([one])) == ["a", "b"]
        assert [mail.key for mail in self.store.mail([two])] == ["a"]

    def test_a_watcher_that_has_ended_is_not_told(self) -> None:
        rid, child = self.start(), self.start("child")
        self.done(append(rid, 1, watches=(Watch("child", rid, "c1"),)))
        self.done(append(rid, 2, change=ENDED))
        self.done(append(child, 1, change=ENDED))
        assert self.store.mail() == []

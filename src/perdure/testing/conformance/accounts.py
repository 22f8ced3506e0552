"""What many runs spend together: judged and changed in the transaction of the event, and refused as a whole."""

from __future__ import annotations

from perdure.gates.budget import Awaited, Movement, SharedAccount
from perdure.history.spending import NO_LIMITS, NOTHING, Amount, Limits
from perdure.store.protocol import Change, Ended, Fenced, Moved, Overdrawn, Status
from perdure.store.rules import ROOM
from perdure.testing.conformance.base import ENDED, StoreCase, append

ACCOUNT = "workflow agent per 60s"


def reserves(tokens: int, limit: int | None = 100, since: int = 0, **amount: int) -> Movement:
    """A call that wants so many tokens."""
    limits = None if limit is None else Limits(tokens=limit)
    return Movement(ACCOUNT, since, ("0", 7), held=Amount(tokens, **amount), limits=limits)


def waits(since: int = 0) -> Movement:
    """The run waits until somebody raises it."""
    return Movement(ACCOUNT, since, ("0", 7), waits=Awaited("tokens", 1, 0))


def tells(tokens: int, body: bytes, since: int = 0) -> Movement:
    """Somebody raises it."""
    return Movement(ACCOUNT, since, ("", 0), raised=Limits(tokens=tokens), tells=body)


class AccountPromises(StoreCase):
    def standing(self, since: int = 0) -> SharedAccount:
        found = [each for each in self.again().accounts(ACCOUNT) if each.since == since]
        return found[0] if found else SharedAccount(ACCOUNT, since)

    def test_nobody_has_spent_anything(self) -> None:
        assert self.store.accounts() == self.store.accounts(ACCOUNT) == []

    def test_what_is_reserved_and_settled_comes_back_as_it_was(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, spending=(reserves(60, cost=2**52),)))
        assert self.standing() == SharedAccount(ACCOUNT, 0, held=Amount(60, 2**52))
        settled = Movement(ACCOUNT, 0, ("0", 7), used=Amount(45, 9), held=NOTHING - Amount(60, 2**52))
        self.done(append(rid, 2, spending=(settled,)))
        assert self.standing() == SharedAccount(ACCOUNT, 0, used=Amount(45, 9))
        assert self.store.accounts() == [self.standing()]

    def test_an_append_that_overdraws_leaves_no_trace(self) -> None:
        rid, other = self.start("r"), self.start("other")
        self.done(append(rid, 1, spending=(reserves(60),)))
        outcome = self.write(append(other, 1, spending=(reserves(41),)))
        assert isinstance(outcome, Overdrawn), outcome
        short = outcome.short
        assert (outcome.call, short.budget, short.unit, short.limit) == (("0", 7), ACCOUNT, "tokens", 100)
        assert (short.used, short.held, short.wanted) == (0, 60, 41)
        assert self.standing().held == Amount(60)
        self.done(append(other, 1, spending=(reserves(40),)))
        assert self.standing().held == Amount(100)

    def test_movements_of_one_append_are_judged_one_after_the_other(self) -> None:
        rid = self.start()
        assert isinstance(self.write(append(rid, 1, spending=(reserves(60), reserves(60)))), Overdrawn)
        assert self.standing().held == NOTHING
        back = Movement(ACCOUNT, 0, ("0", 1), used=Amount(10), held=NOTHING - Amount(60))
        self.done(append(rid, 1, spending=(reserves(60), back, reserves(60))))
        assert self.standing() == SharedAccount(ACCOUNT, 0, Amount(10), Amount(60))

    def test_of_two_in_one_commit_the_later_sees_the_earlier(self) -> None:
        rid, other = self.start("r"), self.start("other")
        first, second = self.store.commit(
            [append(rid, 1, spending=(reserves(60),)), append(other, 1, spending=(reserves(60),))]
        )
        self.done_is(first)
        assert isinstance(second, Overdrawn)

    def done_is(self, outcome: object) -> None:
        assert not isinstance(outcome, Overdrawn | Moved | Fenced | Ended), outcome

    def test_sent_again_it_counts_once(self) -> None:
        rid = self.start()
        write = append(rid, 1, spending=(reserves(60),))
        assert self.done(write) == self.done(write)
        assert self.standing().held == Amount(60)

    def test_what_is_refused_otherwise_changes_no_account(self) -> None:
        rid = self.start()
        assert isinstance(self.write(append(rid, 5, spending=(reserves(1),))), Moved)
        assert isinstance(self.write(append(rid, 1, epoch=9, spending=(reserves(1),))), Fenced)
        self.done(append(rid, 1, change=ENDED))
        assert isinstance(self.write(append(rid, 2, spending=(reserves(1),))), Ended)
        assert self.store.accounts() == []

    def test_without_limits_it_always_counts(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, spending=(reserves(900, limit=None),)))
        assert self.standing().held == Amount(900)

    def test_of_what_is_not_said_something_has_to_be_left(self) -> None:
        rid = self.start()
        unsaid = Movement(ACCOUNT, 0, ("0", 7), limits=Limits(tokens=60), unsaid=("tokens",))
        self.done(append(rid, 1, spending=(unsaid,)))
        self.done(append(rid, 2, spending=(reserves(60),)))
        outcome = self.write(append(rid, 3, spending=(unsaid,)))
        assert isinstance(outcome, Overdrawn)
        assert outcome.short.wanted is None

    def test_a_raised_limit_stays_and_is_never_lowered(self) -> None:
        rid = self.start()
        for seq, limit in enumerate((150, 120), 1):
            self.done(append(rid, seq, spending=(Movement(ACCOUNT, 0, ("", 0), raised=Limits(tokens=limit)),)))
        assert self.standing().raised == Limits(tokens=150)
        self.done(append(rid, 3, spending=(reserves(150),)))
        assert isinstance(self.write(append(rid, 4, spending=(reserves(1),))), Overdrawn)

    def test_each_period_has_an_account_of_its_own(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, spending=(reserves(100), reserves(100, since=60))))
        assert [each.since for each in self.store.accounts(ACCOUNT)] == [60, 0]
        assert self.store.accounts(ACCOUNT, 60) == self.store.accounts(None, 60) == [self.standing(60)]
        assert self.store.accounts(ACCOUNT, 61) == self.store.accounts("another", 60) == []
        assert self.standing(60) == SharedAccount(ACCOUNT, 60, NOTHING, Amount(100), NO_LIMITS)

    def test_those_who_wait_are_told_once_of_a_raise(self) -> None:
        first, other = self.start(), self.start("other")
        done, late = self.start("done"), self.start("late")
        for rid in (first, other, done):
            self.done(append(rid, 1, spending=(waits(), waits())))
        self.done(append(other, 2, change=Change(status=Status.BLOCKED, reason="over_budget", release=True)))
        self.done(append(done, 2, change=ENDED))
        self.done(append(late, 1, spending=(waits()._replace(account="another"),)))
        raises = append(first, 2, spending=(tells(150, b'{"n":1}'),))
        self.done(raises)
        self.done(raises)
        assert [self.bodies(run_id) for run_id in ("r", "other", "late")] == [[], [b'{"n":1}'], []]
        assert self.claimed() == ["other"]
        self.done(append(first, 3, spending=(tells(160, b'{"n":2}'),)))
        assert self.bodies("other") == [b'{"n":1}']

    def test_those_for_whom_there_is_room_again_are_told_once(self) -> None:
        """The oldest runs first, each beside those before it; who wants more than there is waits on."""
        spender = self.start("spender")
        for run_id, wanted in (("much", 50), ("some", 20), ("more", 15), ("any", 0), ("late", 5)):
            rid = self.start(run_id)
            awaited = Awaited("tokens", wanted, 100)
            self.done(append(rid, 1, spending=(waits()._replace(waits=awaited),)))
            self.done(append(rid, 2, spending=(waits()._replace(waits=awaited),)))
        self.done(append(spender, 1, spending=(reserves(60), reserves(40))))
        back = Movement(ACCOUNT, 0, ("0", 7), used=Amount(30), held=NOTHING - Amount(60))
        self.done(append(spender, 2, spending=(back,)))
        told = [run_id for run_id in ("much", "some", "more", "any", "late") if self.bodies(run_id)]
        assert told == ["some", "any", "late"]
        assert self.bodies("some") == [ROOM]
        again = back._replace(used=NOTHING, held=NOTHING - Amount(40))
        self.done(append(spender, 3, spending=(again,)))
        assert self.bodies("much") == self.bodies("more") == [ROOM]
        assert self.bodies("some") == [ROOM], "once"

    def test_who_reserves_more_than_it_gives_back_tells_nobody(self) -> None:
        spender, other = self.start(), self.start("other")
        self.done(append(spender, 1, spending=(reserves(100),)))
        self.done(append(other, 1, spending=(waits()._replace(waits=Awaited("tokens", 1, 100)),)))
        back = Movement(ACCOUNT, 0, ("0", 7), used=Amount(50), held=NOTHING - Amount(100))
        self.done(append(spender, 2, spending=(back, reserves(50))))
        assert self.bodies("other") == []
        self.done(append(spender, 3, spending=(back._replace(used=Amount(50), held=NOTHING - Amount(50)),)))
        assert self.bodies("other") == []

    def test_a_refused_raise_tells_nobody(self) -> None:
        rid, other = self.start(), self.start("other")
        self.done(append(other, 1, spending=(waits(),)))
        assert isinstance(self.write(append(rid, 1, spending=(tells(150, b"{}"), reserves(160)))), Overdrawn)
        assert self.bodies("other") == []
        self.done(append(rid, 1, spending=(tells(150, b"{}"),)))
        assert self.bodies("other") == [b"{}"]

    def test_who_waited_in_an_earlier_period_waits_no_more(self) -> None:
        rid, other = self.start(), self.start("other")
        self.done(append(other, 1, spending=(waits(since=60),)))
        self.done(append(other, 2, spending=(waits(since=120),)))
        self.done(append(rid, 1, spending=(tells(150, b"{}", since=60),)))
        assert self.bodies("other") == []

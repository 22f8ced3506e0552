"""Uses: what counts against a rate, across runs; judged in the transaction in which it happens."""

from __future__ import annotations

from perdure.clock import MICROSECONDS
from perdure.store.protocol import Append, Done, Fenced, Outcome, OverRate, Use
from perdure.testing.conformance.base import ENDED, StoreCase, append

PERIOD = 60 * MICROSECONDS


def use(use_id: str, *, bucket: str = "b", uses_max: int = 2, period: int = PERIOD) -> Use:
    return Use(bucket, use_id, uses_max, period)


class RatePromises(StoreCase):
    def use(self, rid: int, length: int, *uses: Use) -> Outcome:
        return self.write(append(rid, length, uses=uses))

    def test_what_is_over_a_rate_is_refused_and_leaves_no_trace(self) -> None:
        first, second = self.start("r"), self.start("s")
        began = self.clock.now()
        assert self.use(first, 1, use("1")) == Done(first, 2)
        self.clock.advance(10)
        assert self.use(second, 1, use("2")) == Done(second, 2)
        assert self.use(first, 2, use("3")) == OverRate(use("3"), began + PERIOD)
        assert self.store.load(first, from_seq=0).length == 2
        self.clock.advance(49.9)
        assert isinstance(self.use(first, 2, use("3")), OverRate)
        self.clock.advance(0.1)
        assert self.use(first, 2, use("3")) == Done(first, 3)
        assert self.use(second, 2, use("4")) == OverRate(use("4"), began + 10 * MICROSECONDS + PERIOD)

    def test_of_two_in_one_commit_the_first_has_what_is_left(self) -> None:
        first, second = self.start("r"), self.start("s")
        one = [append(rid, 1, uses=(use(str(rid), uses_max=1),)) for rid in (first, second)]
        outcomes = self.store.commit(one)
        assert outcomes[0] == Done(first, 2)
        assert isinstance(outcomes[1], OverRate)

    def test_of_two_in_one_append_the_first_has_what_is_left(self) -> None:
        rid, other = self.start("r"), self.start("s")
        self.done(append(other, 1, uses=(use("0", uses_max=3),)))
        over = use("3", uses_max=3)
        free_at = self.clock.now() + PERIOD
        assert self.use(rid, 1, use("1", uses_max=3), use("2", uses_max=3), over) == OverRate(over, free_at)
        assert self.use(rid, 1, use("1", uses_max=3), use("1", uses_max=3), use("2", uses_max=3)) == Done(rid, 2)
        again = (use("1", uses_max=3), use("2", uses_max=3), use("0", uses_max=3))
        assert self.use(rid, 2, *again) == Done(rid, 3), "they are recorded already"
        assert self.use(rid, 3, use("4", bucket="c", uses_max=1), use("4", bucket="d", uses_max=1)) == Done(rid, 4)
        both = (use("5", bucket="e", uses_max=1), use("6", bucket="e", uses_max=1))
        assert isinstance(self.use(rid, 4, *both), OverRate)

    def test_the_same_use_counts_once(self) -> None:
        rid = self.start()
        for length in (1, 2, 3):
            assert self.use(rid, length, use("1", uses_max=1)) == Done(rid, length + 1)
        assert isinstance(self.use(rid, 4, use("2", uses_max=1)), OverRate)

    def test_the_same_append_again_is_no_further_use(self) -> None:
        rid = self.start()
        write = append(rid, 1, uses=(use("1", uses_max=1),))
        assert self.write(write) == self.write(write) == Done(rid, 2)

    def test_buckets_know_nothing_of_each_other(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, uses=(use("1", uses_max=1), use("1", bucket="c", uses_max=1))))
        assert self.use(rid, 2, use("2", bucket="d", uses_max=1)) == Done(rid, 3)
        over = use("3", bucket="c", uses_max=1)
        assert self.use(rid, 3, use("3", bucket="e", uses_max=1), over) == OverRate(over, self.clock.now() + PERIOD)
        assert self.use(rid, 3, use("4", bucket="e", uses_max=1)) == Done(rid, 4)

    def test_a_longer_period_counts_what_was_before(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, uses=(use("1", uses_max=1),)))
        self.clock.advance(61)
        assert isinstance(self.use(rid, 2, use("2", uses_max=1, period=2 * PERIOD)), OverRate)
        assert self.store.prune(ended_before=0, limit=1) == 0  # it counted for a minute
        assert self.use(rid, 2, use("2", uses_max=1, period=2 * PERIOD)) == Done(rid, 3)

    def test_pruning_takes_nothing_that_counts(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, uses=(use("1", uses_max=1),)))
        self.done(append(rid, 2, change=ENDED))
        self.clock.advance(30)
        assert self.store.prune(ended_before=self.clock.now(), limit=10) == 1
        assert isinstance(self.use(self.start("s"), 1, use("2", uses_max=1)), OverRate)

    def test_who_is_fenced_uses_nothing(self) -> None:
        rid = self.start()
        assert isinstance(self.write(append(rid, 1, epoch=7, uses=(use("1", uses_max=1),))), Fenced)
        assert self.use(rid, 1, use("2", uses_max=1)) == Done(rid, 2)

    def test_a_body_in_a_transaction_is_not_called_when_the_rate_is_used_up(self) -> None:
        rid = self.start()
        self.done(append(rid, 1, uses=(use("1", uses_max=1),)))
        filled = append(rid, 2, uses=(use("2", uses_max=1),))
        called: list[int] = []

        def fill(_: object) -> Append:
            called.append(1)
            return filled

        intent = Append(filled.id, rid, filled.epoch, filled.expected_length, uses=filled.uses)
        assert isinstance(self.store.transact(intent, fill), OverRate)
        assert called == []
        self.clock.advance(60)
        assert self.store.transact(intent, fill) == Done(rid, 3)
        assert isinstance(self.use(rid, 3, use("3", uses_max=1)), OverRate)

"""Any sequence of commits, claims, deaths and takeovers, on SQLite and in memory side by side, held against a model.

The model knows three things only: which events were acknowledged, who may append to a run, and under which epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)

from perdure.store import Store
from perdure.store.memory import MemoryStore
from perdure.store.protocol import (
    Append,
    Change,
    Done,
    Fenced,
    Filter,
    Letter,
    NewRun,
    Outcome,
    Status,
    Wakes,
    Watch,
    Write,
)
from perdure.store.sqlite import SqliteStore
from perdure.testing.conformance.base import KNOWN, StillClock, row

RUN_IDS = st.sampled_from(["a", "b", "c"])
WORKERS = st.sampled_from(["v", "w"])
RETRY_AFTER = (0.0, 5.0, 20.0)


def changed(status: Status | None, release: bool, due_at: int | None, wakes: Wakes) -> Change:
    return Change(status, release=release, due_at=due_at, wakes=wakes, state=b"s")


CHANGES = st.one_of(
    st.none(),
    st.builds(
        changed,
        status=st.sampled_from([None, Status.RUNNING, Status.WAITING, Status.BLOCKED]),
        release=st.booleans(),
        due_at=st.sampled_from([None, 0, 10**18]),
        wakes=st.sampled_from(Wakes),
    ),
    st.sampled_from([Change(status, ending=b"end") for status in (Status.COMPLETED, Status.FAILED)]),
)
KINDS = st.sampled_from(["step.done", "step.started"])


class Stores(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = StillClock()
        path = str(Path(self.folder.name, "x.db"))
        self.sqlite, self.memory = SqliteStore(path, clock=self.clock), MemoryStore(self.clock)
        self.stores: list[SqliteStore | MemoryStore] = [self.sqlite, self.memory]
        self.handles: list[Store] = [SqliteStore(path), self.memory.again()]
        self.ids = 0
        self.sent = list[Write]()
        self.applied = set[bytes]()
        self.events = dict[int, list[bytes]]()
        self.standing = dict[int, tuple[str | None, int]]()
        self.both(lambda store: [store.enter(worker, lease_seconds=10, workflows=[]) for worker in ("v", "w")])

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in [*self.stores, *self.handles]:
                store.close()
            self.folder.cleanup()

    def both(self, call: Callable[[Any], Any]) -> Any:
        """Both stores give the same answer."""
        answers = [call(store) for store in self.stores]
        assert answers[0] == answers[1]
        return answers[0]

    def id(self) -> bytes:
        self.ids += 1
        return b"%016d" % self.ids

    # ── writes ───────────────────────────────────────────────────────────────────────────────
    def commit(self, writes: list[Write]) -> None:
        outcomes: list[Outcome] = self.both(lambda store: store.commit(writes))
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.id not in self.applied:
                self.learn(write, outcome)
            if isinstance(outcome, Done):
                self.applied.add(write.id)
            self.sent.append(write)

    def learn(self, write: Write, outcome: Outcome) -> None:
        match write, outcome:
            case NewRun(), Done(rid, _):
                self.create(write, rid)
            case Append(rid=rid), Done():
                owner, epoch = self.standing[rid]
                assert write.epoch == epoch
                assert write.expected_length == len(self.events[rid])
                self.events[rid] += [row.hash for row in write.rows]
                if write.change is not None and (write.change.release or write.change.ending is not None):
                    owner = None
                self.standing[rid] = (owner, epoch)
                for new in write.new_runs:
                    found = self.sqlite.find(new.run_id)
                    assert found is not None
                    self.create(new, found.rid)
            case Append(rid=rid), Fenced(epoch):
                assert epoch == self.standing[rid][1] != write.epoch
            case _:
                pass

    def create(self, new: NewRun, rid: int) -> None:
        assert rid not in self.events
        self.events[rid] = [row.hash for row in new.rows]
        entered = {info.worker for info in self.sqlite.workers()}
        self.standing[rid] = (new.owner if new.owner in entered else None, 0 if new.owner is None else 1)

    def new_run(self, run_id: str, owner: str | None, due_at: int | None) -> NewRun:
        rows = (row(0, "run.started", hash=self.id() * 2),)
        return NewRun(self.id(), run_id, "agent", 1, b"d" * 32, 0, rows, owner=owner, due_at=due_at)

    @rule(run_id=RUN_IDS, owner=st.none() | WORKERS, due_at=st.sampled_from([None, 0, 10**18]))
    def start(self, run_id: str, owner: str | None, due_at: int | None) -> None:
        self.commit([self.new_run(run_id, owner, due_at)])

    @precondition(lambda self: self.events)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.commit(data.draw(st.lists(st.builds(lambda: self.draw_append(data)), min_size=1, max_size=3)))

    def draw_append(self, data: st.DataObject) -> Write:
        rid = data.draw(st.sampled_from(sorted(self.events)))
        epoch = self.standing[rid][1] + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
        length = max(0, len(self.events[rid]) + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
        kind = data.draw(KINDS)
        rows = tuple(row(length + n, kind, hash=self.id() * 2) for n in range(data.draw(st.sampled_from([0, 1, 1, 2]))))
        mail = [letter.mail_id for letter in self.sqlite.mail([rid])]
        return Append(
            self.id(),
            rid,
            epoch,
            length,
            rows,
            change=data.draw(CHANGES),
            taken=tuple(mail) if self.same_mail_ids() else (),
            new_runs=tuple(self.new_run(run_id, None, 0) for run_id in data.draw(st.lists(RUN_IDS, max_size=1))),
            watches=tuple(Watch(run_id, rid, "k") for run_id in data.draw(st.lists(RUN_IDS, max_size=1))),
            letters=tuple(self.letter(run_id, "message") for run_id in data.draw(st.lists(RUN_IDS, max_size=1))),
        )

    def same_mail_ids(self) -> bool:
        """Each store numbers letters as it likes; where the numbers agree, they can be taken in both."""
        return len({tuple(mail.mail_id for mail in store.mail()) for store in self.stores}) == 1

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        self.commit([data.draw(st.sampled_from(self.sent[-3:]))])

    def letter(self, run_id: str, kind: str) -> Letter:
        return Letter(self.id(), run_id, kind, "k", b"body", 0)

    @rule(run_id=RUN_IDS, kind=st.sampled_from(["message", "cancel"]))
    def send(self, run_id: str, kind: str) -> None:
        self.commit([self.letter(run_id, kind)])

    # ── workers ──────────────────────────────────────────────────────────────────────────────
    @rule(worker=WORKERS, limit=st.sampled_from([1, 5]))
    def claim(self, worker: str, limit: int) -> None:
        claims = self.both(lambda store: store.claim(worker, now=self.clock.now(), limit=limit, known=KNOWN))
        for claim in claims:
            rid = claim.info.rid
            owner, epoch = self.standing[rid]
            assert owner is None
            assert (claim.info.owner, claim.info.epoch) == (worker, epoch + 1)
            self.standing[rid] = (worker, epoch + 1)

    @rule(worker=WORKERS)
    def leave_and_enter(self, worker: str) -> None:
        self.both(lambda store: store.leave(worker))
        self.free(worker, raise_epoch=False)
        self.both(lambda store: store.enter(worker, lease_seconds=10, workflows=[]))

    @rule(worker=WORKERS, is_dead=st.booleans())
    def lose(self, worker: str, is_dead: bool) -> None:
        if is_dead:
            self.both(lambda store: store.kill(worker))
        self.both(lambda store: store.take_over(worker, proven=is_dead, retry_after=RETRY_AFTER))
        self.free(worker, raise_epoch=True)
        assert self.both(lambda store: store.renew(worker, lease_seconds=10)) is False
        self.both(lambda store: store.enter(worker, lease_seconds=10, workflows=[]))

    def free(self, worker: str, *, raise_epoch: bool) -> None:
        for rid, (owner, epoch) in self.standing.items():
            if owner == worker:
                self.standing[rid] = (None, epoch + raise_epoch)

    @rule(worker=WORKERS)
    def renew(self, worker: str) -> None:
        assert self.both(lambda store: store.renew(worker, lease_seconds=10)) is True

    @rule(seconds=st.sampled_from([1, 11]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.both(lambda store: sorted(store.lost("me")))

    @rule()
    def another_process_commits(self) -> None:
        """So that what is remembered has to be looked up again."""
        for handle in self.handles:
            handle.commit([self.letter("nobody", "message")])

    @rule()
    def prune(self) -> None:
        """What is sent again after that is new: of a pruned run only its head is known."""
        if self.both(lambda store: store.prune(ended_before=2**62, limit=5)):
            self.sent.clear()
        alive = {info.rid for info in self.sqlite.runs(Filter())}
        self.events = {rid: events for rid, events in self.events.items() if rid in alive}

    # ── what always holds ────────────────────────────────────────────────────────────────────
    @invariant()
    def what_was_acknowledged_is_there_and_nothing_else(self) -> None:
        for rid, hashes in self.events.items():
            info, _, _, *rows = self.both(partial(loaded, rid))
            assert [row.hash for row in rows] == hashes
            assert (info.owner, info.epoch) == self.standing[rid]

    @invariant()
    def both_tell_the_same(self) -> None:
        if not hasattr(self, "stores"):
            return
        self.both(lambda store: store.runs(Filter()))
        self.both(lambda store: sorted(store.heads()))
        self.both(lambda store: [mail[1:] for mail in store.mail()])
        self.both(lambda store: store.next_due(known=KNOWN))
        self.both(lambda store: [info.worker for info in store.workers()])


def loaded(rid: int, store: Store) -> tuple[Any, ...]:
    stored = store.load(rid, from_seq=0)
    return (stored.info, stored.length, stored.head, *stored.rows)


def test_stores() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    limits = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=checks,
        phases=set(Phase) - {Phase.explain},
    )
    run_state_machine_as_test(Stores, settings=limits)

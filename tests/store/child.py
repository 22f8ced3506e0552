"""What the processes of these tests do: `python child.py TASK PATH ...`. Each says on stdout how far it got."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

from perdure.errors import ForkedError
from perdure.store.protocol import Append, Change, Claim, Done, Filter, NewRun, Outcome, Row, Status
from perdure.store.sqlite import SqliteStore, schema
from perdure.store.sqlite.turns import Turns


def say(*words: object) -> None:
    print(*words, flush=True)


def wait_for_line() -> None:
    sys.stdin.readline()


def row(seq: int) -> Row:
    return Row(seq, seq, "step.done", b"e" * 200, None, b"o" * 50, b"%032d" % seq)


def start(store: SqliteStore, run_id: str, owner: str | None = None) -> int:
    (outcome,) = store.commit([NewRun(os.urandom(16), run_id, "agent", 1, b"d" * 32, 0, (row(0),), owner=owner)])
    return done(outcome).rid


def append(store: SqliteStore, rid: int, length: int, epoch: int = 1) -> Outcome:
    (outcome,) = store.commit([Append(os.urandom(16), rid, epoch, length, (row(length),))])
    return outcome


def done(outcome: Outcome) -> Done:
    if not isinstance(outcome, Done):
        raise SystemExit(f"refused: {outcome}")
    return outcome


def open_only(path: str) -> None:
    wait_for_line()
    store = SqliteStore(path)
    say(store.stats()["schema_version"])
    store.close()


def many_runs(path: str, worker: str, runs: str, appends: str) -> None:
    store = SqliteStore(path)
    store.enter(worker, lease_seconds=60, workflows=["agent"])
    for number in range(int(runs)):
        rid = start(store, f"{worker}-{number}", worker)
        for length in range(1, int(appends) + 1):
            done(append(store, rid, length))
    store.leave(worker)
    store.close()
    say("done")


def append_forever(path: str, worker: str) -> None:
    """Says each length after it was committed: what was said must be there, whenever this is killed."""
    store = SqliteStore(path)
    store.enter(worker, lease_seconds=60, workflows=["agent"])
    rid = start(store, f"run-of-{worker}", worker)
    for length in range(1, 1_000_000):
        say(done(append(store, rid, length)).length)


def live(path: str, worker: str) -> None:
    """Enters, owns a run, and lives until it is killed."""
    store = SqliteStore(path)
    store.enter(worker, lease_seconds=600, workflows=["agent"])
    start(store, f"run-of-{worker}", worker)
    say("alive")
    wait_for_line()


def hold_the_turn(path: str) -> None:
    """Keeps every other writer waiting until a line comes."""
    turns = Turns(path)
    turns.acquire(until=time.monotonic() + 10)
    say("holding")
    wait_for_line()
    turns.release()
    say("released")


def hold_the_turn_twice(path: str) -> None:
    """The same, when it is told to, and once more after that."""
    wait_for_line()
    hold_the_turn(path)
    hold_the_turn(path)


def stall_in_migration(path: str, after: str) -> None:
    """Stops for good after so many statements of the first migration."""
    statements_of = schema.statements_of

    def stalling(script: str) -> Iterator[str]:
        for number, statement in enumerate(statements_of(script)):
            if number == int(after):
                say("stalled")
                wait_for_line()
            yield statement

    schema.statements_of = stalling  # type: ignore[assignment]
    SqliteStore(path)


def fork(path: str) -> None:
    """The child of a fork cannot use the old handle, can open a new one, and proves no life for its parent."""
    store = SqliteStore(path)
    store.enter("parent", lease_seconds=600, workflows=["agent"])
    rid = start(store, "parents", "parent")
    store.load(rid)
    if os.fork() == 0:
        in_child(store, path)
        os._exit(0)
    os.wait()
    done(append(store, rid, 1))
    say("parent goes on")
    if os.fork() == 0:
        wait_for_line()
        own = SqliteStore(path)
        say(own.lost("nobody"))
        own.close()
        os._exit(0)
    say("parent dies")
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(store: SqliteStore, path: str) -> None:
    calls: list[Callable[[], object]] = [store.stats, store.changed, lambda: store.commit([]), lambda: store.find("r")]
    for call in calls:
        try:
            call()
        except ForkedError:
            continue
        raise SystemExit("the old handle works in the child")
    store.close()
    own = SqliteStore(path)
    rid = start(own, "childs")
    done(append(own, rid, 1, epoch=0))
    say(own.find("parents") is not None, own.lost("nobody"))
    own.close()


def fork_while_reading(path: str) -> None:
    """A store that is in use by a thread which does not let go cannot be opened in the child."""
    store = SqliteStore(path)
    start(store, "r")

    def in_the_middle(copied: int, total: int) -> None:
        if os.fork() == 0:
            try:
                SqliteStore(path)
            except ForkedError:
                say("refused")
            os._exit(0)
        os.wait()

    store.backup(f"{path}.copy", in_the_middle)
    say(store.find("r") is not None)
    store.close()


def fork_under_load(path: str, forks: str) -> None:
    """Threads write and read without a pause while the process forks; every child opens the store anew."""
    warnings.simplefilter("ignore", DeprecationWarning)  # fork() with threads is what this is about
    store = SqliteStore(path)
    store.enter("parent", lease_seconds=600, workflows=["agent"])
    rid, lengths, stop = start(store, "parents", "parent"), [1], threading.Event()

    def write() -> None:
        while not stop.is_set():
            lengths.append(done(append(store, rid, lengths[-1])).length)

    def read() -> None:
        while not stop.is_set():
            store.load(rid, from_seq=lengths[-1] - 1)
            store.changed()

    threads = [threading.Thread(target=task) for task in (write, read, read)]
    for thread in threads:
        thread.start()
    for number in range(int(forks)):
        if os.fork() == 0:
            own = SqliteStore(path)
            done(append(own, start(own, f"child{number}"), 1, epoch=0))
            own.close()
            os._exit(0)
        _, status = os.wait()
        say(status)
    stop.set()
    for thread in threads:
        thread.join()
    say(store.load(rid).length == lengths[-1], store.stats()["runs"])
    store.close()


def work(path: str, worker: str, length: str) -> None:
    """A small worker: takes lost runs over, claims what is due, brings each run to its length and ends it."""
    store = SqliteStore(path)
    store.enter(worker, lease_seconds=600, workflows=["agent"])
    while True:
        for dead, proven in store.lost(worker):
            store.take_over(dead, proven=proven, retry_after=[0.0] * 1000)
        claims = store.claim(worker, now=2**60, limit=3, known=frozenset({("agent", 1)}))
        for claim in claims:
            advance(store, worker, claim, int(length))
        if not claims and all(info.status.is_final for info in store.runs(Filter(limit=1000))):
            break
        time.sleep(0.001)
    store.leave(worker)
    store.close()
    say("done")


def advance(store: SqliteStore, worker: str, claim: Claim, until: int) -> None:
    rid, epoch = claim.info.rid, claim.info.epoch
    start_at = store.load(rid).length
    for seq in range(start_at, until):
        who = f"{worker} {epoch}".encode()
        change = Change(Status.COMPLETED, ending=b"end") if seq == until - 1 else None
        rows = (Row(seq, seq, "step.done", who, None, b"o" * 50, b"%032d" % seq),)
        done(store.commit([Append(os.urandom(16), rid, epoch, seq, rows, change=change)])[0])


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task
    for task in (
        open_only,
        many_runs,
        append_forever,
        live,
        hold_the_turn,
        hold_the_turn_twice,
        stall_in_migration,
        fork,
        fork_while_reading,
        fork_under_load,
        work,
    )
}

if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])

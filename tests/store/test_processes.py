"""Several processes on one file, and their deaths."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.store.conftest import Spawn, finished, line, rest, tell

import perdure
from perdure import Runtime, workflow
from perdure.errors import StoreBusyError
from perdure.store.protocol import Filter, Status
from perdure.store.sql import load_migrations
from perdure.store.sqlite import SqliteStore, schema
from perdure.store.sqlite.turns import Turns
from perdure.store.sqlite.writer import HURRIED_SECONDS
from perdure.testing.conformance.base import KNOWN, append, new_run

NEWEST = str(len(load_migrations(str(Path(schema.__file__).parent / "migrations"))))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "perdure.db")


def check_file(path: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_four_processes_write_many_runs_without_an_error(path: str, spawn: Spawn) -> None:
    children = [spawn("many_runs", path, f"w{number}", 50, 5) for number in range(4)]
    assert [finished(child) for child in children] == [["done"]] * 4
    store = SqliteStore(path)
    heads = list(store.heads())
    assert len(heads) == 200
    assert {length for _, _, length, _ in heads} == {6}
    store.close()
    check_file(path)


def test_eight_processes_open_an_empty_file_at_once(path: str, spawn: Spawn) -> None:
    children = [spawn("open_only", path) for _ in range(8)]
    for child in children:
        tell(child)
    assert [finished(child) for child in children] == [[NEWEST]] * 8
    check_file(path)


@pytest.mark.parametrize("after", [0, 1, 7, 14])
def test_killed_in_the_middle_of_a_migration_the_next_opener_does_it(path: str, spawn: Spawn, after: int) -> None:
    child = spawn("stall_in_migration", path, after)
    assert line(child) == "stalled"
    waiting = spawn("open_only", path)
    tell(waiting)
    child.kill()
    assert finished(waiting) == [NEWEST]
    check_file(path)


def test_what_was_committed_survives_a_kill_at_any_moment(path: str, spawn: Spawn) -> None:
    choice = random.Random(7)
    children = {f"w{number}": spawn("append_forever", path, f"w{number}") for number in range(4)}
    store = SqliteStore(path)
    said = dict[str, int]()
    for worker, child in children.items():
        for _ in range(choice.randrange(1, 200)):
            said[worker] = int(line(child))
        child.send_signal(signal.SIGKILL)
        for whole_line in rest(child).split("\n")[:-1]:
            said[worker] = int(whole_line)
    for worker, length in said.items():
        info = store.find(f"run-of-{worker}")
        assert info is not None
        assert store.load(info.rid).length >= length
    assert sorted(store.lost("me")) == [(worker, True) for worker in sorted(children)]
    store.close()
    check_file(path)


def test_a_killed_process_is_lost_at_once_and_its_runs_are_taken_over(path: str, spawn: Spawn) -> None:
    child = spawn("live", path, "w")
    assert line(child) == "alive"
    store = SqliteStore(path)
    store.enter("v", lease_seconds=10, workflows=["agent"])
    assert store.lost("v") == []
    assert store.take_over("w", proven=True, retry_after=[0.0]) == 0
    child.kill()
    child.wait()
    assert store.lost("v") == [("w", True)]
    assert store.take_over("w", proven=True, retry_after=[0.0, 10.0]) == 1
    (claim,) = store.claim("v", now=2**60, limit=9, known=KNOWN)
    assert (claim.info.run_id, claim.lost_owner, claim.lost_how) == ("run-of-w", "w", "proof")
    store.close()


def test_a_stopped_process_is_not_proven_dead(path: str, spawn: Spawn) -> None:
    child = spawn("live", path, "w")
    assert line(child) == "alive"
    child.send_signal(signal.SIGSTOP)
    store = SqliteStore(path)
    assert store.lost("v") == []
    child.send_signal(signal.SIGCONT)
    store.close()


def test_commits_of_another_process_are_news(path: str, spawn: Spawn) -> None:
    store = SqliteStore(path)
    assert not store.changed()
    child = spawn("live", path, "w")
    assert line(child) == "alive"
    assert store.changed()
    assert not store.changed()
    store.close()


def test_what_is_remembered_is_forgotten_when_another_process_commits(path: str, spawn: Spawn) -> None:
    """The run is taken over by another handle; this one remembers it as its own until it looks again."""
    store, other = SqliteStore(path), SqliteStore(path)
    store.enter("w", lease_seconds=10, workflows=["agent"])
    (outcome,) = store.commit([new_run("r", owner="w")])
    rid = getattr(outcome, "rid", 0)
    store.commit([append(rid, 1)])
    other.take_over("w", proven=False, retry_after=[0.0])
    (refused,) = store.commit([append(rid, 2)])
    assert type(refused).__name__ == "Fenced"
    store.close()
    other.close()


def test_a_writer_waits_for_its_turn_and_gives_up_in_time(path: str, spawn: Spawn) -> None:
    store = SqliteStore(path, busy_seconds=0.05)
    child = spawn("hold_the_turn", path)
    assert line(child) == "holding"
    assert not store.is_free()
    for _ in range(3):
        with pytest.raises(StoreBusyError, match=r"others have been writing for too long"):
            store.commit([new_run("r")])
    assert store.find("r") is None
    tell(child)
    assert line(child) == "released"
    store.close()


def test_whoever_leaves_does_not_wait_for_one_that_hangs_in_the_middle_of_a_write(path: str, spawn: Spawn) -> None:
    store = SqliteStore(path, busy_seconds=600)
    child = spawn("hold_the_turn", path)
    assert line(child) == "holding"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.commit, [new_run("r")])
        turns = store._writer._turns  # pyright: ignore[reportPrivateUsage]
        while (waiter := turns._waiter) is None or not waiter.is_asked:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
        with store.hurried(), pytest.raises(StoreBusyError, match="is one of them stopped"):
            waiting.result(timeout=60)
    store.close()
    tell(child)
    assert line(child) == "released"
    again = SqliteStore(path)
    assert again.find("r") is None
    assert len(again.commit([new_run("r")])) == 1
    again.close()


@pytest.mark.parametrize("has_waited_before", [False, True])
def test_who_is_told_to_hurry_before_it_waits_gives_up_soon(path: str, has_waited_before: bool) -> None:
    hung, leaving = Turns(path), Turns(path)
    hung.acquire(until=time.monotonic())
    if has_waited_before:
        with pytest.raises(StoreBusyError):
            leaving.acquire(until=time.monotonic())
    until = time.monotonic() + 20
    leaving.hurry(0.01)
    with pytest.raises(StoreBusyError):
        leaving.acquire(until=until)
    assert time.monotonic() < until
    hung.close()
    leaving.close()


@workflow
async def waits() -> None:
    await perdure.receive("never")


def test_a_runtime_leaves_as_soon_on_a_store_that_was_given_and_the_store_waits_again_after_that(
    path: str, spawn: Spawn
) -> None:
    store = SqliteStore(path, busy_seconds=20)
    child = spawn("hold_the_turn_twice", path)

    async def main() -> float:
        async with Runtime(store, workflows=[waits]) as runtime:
            await runtime.start(waits.call())
            tell(child)
            assert line(child) == "holding"
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(main()) < 20  # one write that it waits for in vain would take as long
    tell(child)
    assert [line(child), line(child)] == ["released", "holding"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.commit, [new_run("r")])
        with pytest.raises(TimeoutError):
            waiting.result(timeout=2 * HURRIED_SECONDS)
        tell(child)
        assert len(waiting.result(timeout=60)) == 1
    store.close()


def test_a_turn_that_comes_too_late_is_passed_on(path: str, spawn: Spawn) -> None:
    """The first store gave up waiting; when the turn reaches it after all, the second must get it."""
    impatient, patient = SqliteStore(path, busy_seconds=0.05), SqliteStore(path)
    child = spawn("hold_the_turn", path)
    assert line(child) == "holding"
    with pytest.raises(StoreBusyError):
        impatient.commit([new_run("r")])
    tell(child)
    assert line(child) == "released"
    assert len(patient.commit([new_run("s")])) == 1
    assert len(patient.commit([new_run("t")])) == 1
    impatient.close()
    patient.close()


def test_a_killed_process_gives_its_turn_up(path: str, spawn: Spawn) -> None:
    store = SqliteStore(path)
    child = spawn("hold_the_turn", path)
    assert line(child) == "holding"
    child.kill()
    assert len(store.commit([new_run("r")])) == 1
    assert [info.run_id for info in store.runs(Filter())] == ["r"]
    store.close()


def test_workers_that_are_killed_again_and_again_finish_every_run(path: str, spawn: Spawn) -> None:
    """Every event has one writer, epochs only grow, and whoever was killed had the rest done by others."""
    store, choice = SqliteStore(path), random.Random(11)
    store.commit([new_run(f"r{number}") for number in range(30)])
    workers = [spawn("work", path, f"w{number}", 40) for number in range(3)]
    for number in range(3, 12):
        wait_for_events(store, 120 * (number - 2))
        victim = workers.pop(choice.randrange(len(workers)))
        victim.kill()
        workers.append(spawn("work", path, f"w{number}", 40))
    assert {tuple(finished(worker)) for worker in workers} == {("done",)}
    handed_over = 0
    for info in store.runs(Filter()):
        stored = store.load(info.rid)
        assert (info.status, info.owner, stored.length) == (Status.COMPLETED, None, 40)
        writers = [row.envelope.split() for row in stored.rows[1:]]
        epochs = [int(epoch) for _, epoch in writers]
        assert epochs == sorted(epochs)
        assert len({tuple(writer) for writer in writers}) == len(set(epochs))
        handed_over += len(set(epochs)) > 1
    assert handed_over > 0
    store.close()
    check_file(path)


def wait_for_events(store: SqliteStore, count: int) -> None:
    """Until the workers have written so many, or all are done."""
    while int(store.stats()["events"]) < count and store.stats()["runs_completed"] != 30:
        time.sleep(0.005)


def test_a_fork_leaves_the_parent_alone_and_proves_nothing_for_it(path: str, spawn: Spawn) -> None:
    child = spawn("fork", path)
    assert line(child) == "True []"
    assert line(child) == "parent goes on"
    assert line(child) == "parent dies"
    child.wait()
    tell(child)
    assert line(child) == "[('parent', True)]"
    store = SqliteStore(path)
    assert sorted((run_id, length) for run_id, _, length, _ in store.heads()) == [("childs", 2), ("parents", 2)]
    store.close()
    check_file(path)


def test_a_fork_in_the_middle_of_a_read_makes_a_child_that_cannot_open_it(path: str, spawn: Spawn) -> None:
    said = finished(spawn("fork_while_reading", path))
    assert set(said[:-1]) == {"refused"}
    assert said[-1] == "True"
    check_file(path)


def test_forks_while_threads_write_and_read_make_children_that_can_open_it(path: str, spawn: Spawn) -> None:
    said = finished(spawn("fork_under_load", path, 20))
    assert said == ["0"] * 20 + ["True 21"]
    check_file(path)

"""The power goes at any moment: what was reported as done is there, and what is there is whole.

A real program runs on a real file, and strace writes down what it wrote and when it waited for the disk. From that the
disk is made as it may look after a power cut between any two calls: with all, none or some of the sectors that were
not waited for. Each such disk is opened, verified, and held against what the program had said by then; on some of them
a worker goes on.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.runtime.hosting import run_async
from tests.store import power, power_program
from tests.store.power import Disk, Happened, Said, Synced, Wrote

import perdure
from perdure.audit.verify import verify
from perdure.history import events as e
from perdure.store.protocol import EffectFilter, Status
from perdure.store.sqlite import SqliteStore

DATABASE = "p.db"
NAMES = {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-journal"}
CUTS, RECOVERIES = 120, 6


def can_trace() -> bool:
    try:
        return subprocess.run(["strace", "-o", os.devnull, "true"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_trace(), reason="only strace can tell what reached the disk")


def happened(folder: Path, *more: str) -> list[Happened]:
    folder.mkdir()
    return traced_of(["-m", power_program.__name__, str(folder / DATABASE), *more], folder, NAMES)


def traced_of(command: list[str], folder: Path, names: set[str]) -> list[Happened]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return power.trace([sys.executable, *command], folder, names, env=env)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> list[Happened]:
    return happened(tmp_path_factory.mktemp("power") / "traced")


def cuts_of(traced: Sequence[Happened], choice: random.Random) -> set[int]:
    """Where the power goes: while the file is made, around each write to the database itself and each thing that was
    said, and anywhere."""
    at_all = range(1, len(traced) + 1)
    told = [n for n in at_all if isinstance(traced[n - 1], Said)]
    checkpoints = [n for n in at_all if isinstance(traced[n - 1], Wrote | Synced) and traced[n - 1].name == DATABASE]  # type: ignore[union-attr]
    return {
        *choice.sample(at_all[:90], 20), *choice.sample(told, 40), *choice.sample(checkpoints, 20),
        *choice.sample(at_all, CUTS - 80), len(traced),
    }  # fmt: skip


def disks(traced: Sequence[Happened], cuts: set[int]) -> Iterator[tuple[int, Disk]]:
    disk = Disk()
    for n, each in enumerate(traced, 1):
        disk.take(each)
        if n in cuts:
            yield n, disk


def missing(folder: Path, said: Sequence[str]) -> list[str]:
    """What was said and is not so, in the store in this folder."""
    with closing(SqliteStore(str(folder / DATABASE))) as store:
        assert verify(store).damage == ()
        return [told for told in said if not is_so(store, told)]


def is_so(store: SqliteStore, told: str) -> bool:
    what, _, about = told.partition(" ")
    if what in {"sends", "paid"}:
        rows = [row for row in store.effects(EffectFilter()) if row.business_key == about]
        return any(what == "sends" or row.status == "succeeded" for row in rows)
    name, _, n = about.partition(" ")
    info = store.find(name)
    if info is None:
        return False
    events = [e.decode(row.envelope) for row in store.load(info.rid).rows]
    match what:
        case "started":
            return True
        case "answered":
            return sum(isinstance(event, e.StepCompleted) and event.name == "answer" for event in events) >= int(n)
        case "told":
            arrived = any(isinstance(event, e.MessageArrived) for event in events)
            return arrived or any(letter.kind == "message" for letter in store.mail([info.rid]))
        case "received":
            return any(isinstance(event, e.MessageArrived) for event in events)
        case "ended":
            return info.status is Status.COMPLETED
        case _:
            raise AssertionError(f"nobody knows what this claims: {told}")


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0], ids=["nothing more", "some sectors", "everything"])
def test_what_was_reported_is_there_wherever_the_power_goes(
    traced: list[Happened], tmp_path: Path, chance: float
) -> None:
    choice = random.Random(f"power {chance}")
    looked_at = 0
    for n, disk in disks(traced, cuts_of(traced, choice)):
        if DATABASE not in disk.certain.names and not disk.said:
            continue  # nothing was promised yet, and a file that is not there is made anew
        folder = tmp_path / "disk"
        disk.leave(folder, chance, choice)
        lost = missing(folder, disk.said)
        assert not lost, f"the power went after call {n}: {lost}"
        looked_at += 1
    assert looked_at > CUTS / 2


def test_a_worker_goes_on_from_what_the_disk_has(traced: list[Happened], tmp_path: Path) -> None:
    choice = random.Random("recovery")
    told = [n for n, each in enumerate(traced, 1) if isinstance(each, Said)]
    for _, disk in disks(traced, set(choice.sample(told[3:], RECOVERIES))):
        folder = tmp_path / "disk"
        disk.leave(folder, 0.5, choice)
        run_async(_recover(str(folder / DATABASE), list(disk.said)))


async def _recover(url: str, said: list[str]) -> None:
    async with perdure.Runtime(url, workflows=[power_program.talks]) as runtime:
        for n in range(power_program.RUNS):
            if f"started r{n}" in said and f"told r{n}" not in said:
                await (await runtime.get(f"r{n}")).send("last", f"bye {n}")
        for told in said:
            what, _, name = told.partition(" ")
            if what == "started":
                result = await (await runtime.get(name)).result()
                assert result.startswith("answer" if name == "alone" else "bye")
    with closing(SqliteStore(url)) as store:
        assert verify(store).damage == ()


def test_a_store_that_does_not_wait_for_the_disk_is_found(tmp_path: Path) -> None:
    careless = happened(tmp_path / "careless", "NORMAL")
    choice = random.Random("careless")
    found: list[str] = []
    for _, disk in disks(careless, {n for n, each in enumerate(careless, 1) if isinstance(each, Said)}):
        if len(disk.said) > 40:
            break
        disk.leave(tmp_path / "disk", 0.0, choice)
        if (tmp_path / "disk" / DATABASE).exists():
            found += missing(tmp_path / "disk", disk.said)
    assert found


BACKUP = """
import sys
from tests.store.power import say
from perdure.store.sqlite import SqliteStore
SqliteStore(sys.argv[1]).backup("copy.db")
say("copied")
"""


def test_a_backup_is_whole_or_not_there_and_there_when_it_is_reported(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    url = str(whole / DATABASE)
    run_async(_talk(url))
    traced = traced_of(["-c", BACKUP, url], whole, {"copy.db", "copy.db.unfinished"})
    choice, found = random.Random("backup"), 0
    for _, disk in disks(traced, set(range(len(traced) + 1))):
        for chance in (0.0, 0.5, 1.0):
            disk.leave(tmp_path / "disk", chance, choice)
            copy = tmp_path / "disk" / "copy.db"
            assert copy.exists() or not disk.said
            if copy.exists():
                found += 1
                with closing(SqliteStore(str(copy))) as store:
                    assert verify(store).damage == ()
                    assert is_so(store, "answered r 8")
    assert found


async def _talk(url: str) -> None:
    async with perdure.Runtime(url, workflows=[power_program.talks]) as runtime:
        await (await runtime.start(power_program.talks.call("r", 8), id="r")).result()

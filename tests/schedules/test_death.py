"""Real processes that die or hang, and others that go on with their runs. Nobody calls resume."""

from __future__ import annotations

import ast
import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import run_async
from tests.schedules import program
from tests.schedules.processes import World, stop, wait_for_death, wait_until

from perdure import Client, HistoryEvent, RunSummary


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ask(world: World, question: Any) -> Any:
    """Look into the store, as any other process may."""

    async def asked() -> Any:
        async with Client(world.store, workflows=program.WORKFLOWS) as client:
            return await question(client)

    return run_async(asked())


def summary(world: World, id: str) -> RunSummary:
    async def question(client: Client) -> RunSummary:
        return await (await client.get(id)).summary()

    return ask(world, question)  # type: ignore[no-any-return]


def history(world: World, id: str) -> list[HistoryEvent]:
    async def question(client: Client) -> list[HistoryEvent]:
        return await (await client.get(id)).history()

    return ask(world, question)  # type: ignore[no-any-return]


def result(world: World, id: str) -> Any:
    async def question(client: Client) -> Any:
        return await (await client.get(id)).result(timeout=30)

    return ask(world, question)


# ── a step that kills its process ───────────────────────────────────────────────────────────


def test_a_step_that_kills_its_process_three_times_alone_is_a_crash_loop(world: World) -> None:
    lives = 0
    for life in range(1, 6):
        with world.worker("start_killer" if life == 1 else "finish", life=str(life)) as process:
            wait_for_death(process)
            lives = life
            if process.returncode == 0:
                break
    assert lives == 4
    assert world.what() == ["kills"] * 3
    blocked = summary(world, "killer")
    assert (blocked.status, blocked.reason) == ("blocked", "crash_loop")

    async def question(client: Client) -> str:
        (entry,) = await client.inbox()
        return entry.hint

    assert ask(world, question).endswith("unblock the run. What was under way when the last one died: 0/kills#1")
    assert [happened.kind for happened in history(world, "killer")].count("run.taken_over") == 2


INNOCENTS = 200


def test_two_hundred_innocents_beside_a_killer_are_not_parked(world: World) -> None:
    for life in range(1, 15):
        role = "start_killer_and_innocents" if life == 1 else "finish"
        with world.worker(role, life=str(life), innocents=INNOCENTS) as process:
            wait_for_death(process)
            if process.returncode == 0:
                break
    blocked = summary(world, "killer")
    assert (blocked.status, blocked.reason) == ("blocked", "crash_loop")

    async def question(client: Client) -> list[RunSummary]:
        return await client.list(workflow="innocent", limit=1000)

    innocents: list[RunSummary] = ask(world, question)
    assert Counter(innocent.status for innocent in innocents) == {"completed": INNOCENTS}
    times = Counter(what for what in world.what() if what.startswith("harmless"))
    assert len(times) == INNOCENTS * 3
    assert max(times.values()) <= world.what().count("kills") + 1


# ── attempts, heartbeats ────────────────────────────────────────────────────────────────────


def test_attempts_are_counted_over_a_kill(world: World) -> None:
    """Killed in the third of four attempts, the step goes on with the third and the fourth, and fails with the last."""
    with world.worker("start_failing") as process:
        wait_for_death(process)
        assert process.returncode == -signal.SIGKILL
    assert world.serve("start_failing", life="2").splitlines()[-1] == "attempt 4 failed"
    assert world.what() == ["attempt 1", "attempt 2", "attempt 3", "attempt 3", "attempt 4"]


def test_details_of_a_heartbeat_are_read_by_the_next_life(world: World) -> None:
    with world.worker("start_counting") as process:
        wait_for_death(process)
    begun_at = int(world.serve("start_counting", life="2").splitlines()[-1].strip("[]"))
    assert begun_at in {3, 4}
    assert [done.what for done in world.done() if done.life == "2"] == [f"item {n}" for n in range(begun_at, 6)]


# ── killed, stopped, hung ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_live_worker_takes_over_from_a_killed_one(world: World, how: signal.Signals) -> None:
    with world.worker("hold", life="a") as first, world.worker("serve", life="b"):
        wait_until(lambda: world.what() == ["begun one"], "the step has begun")
        first.send_signal(how)
        killed_at = time.monotonic()
        wait_until(lambda: world.what() == ["begun one"] * 2, "the other worker performs it")
        assert time.monotonic() - killed_at < 10
        Path(f"{world.path}.one").touch()
        assert result(world, "held") == "one in life b"
    kinds = [happened.kind for happened in history(world, "held")]
    assert "run.taken_over" in kinds
    assert "run.failed" not in kinds
    assert [done for done in world.done() if done.life == "a"] == [("a", "begun one")]


def test_a_hung_worker_loses_its_runs_by_the_lease_and_is_fenced_when_it_wakes(world: World) -> None:
    with world.worker("hold", life="a", lease=1) as first, world.worker("serve", life="b", lease=60):
        wait_until(lambda: world.what() == ["begun one"], "the step has begun")
        stop(first, world.store)
        wait_until(lambda: world.what() == ["begun one"] * 2, "the other worker performs it")
        Path(f"{world.path}.one").touch()
        assert result(world, "held") == "one in life b"
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: first.pid in leases(world), "it enters anew")
        happened = history(world, "held")
        assert [h.kind for h in happened].count("step.completed") == 1
        taken_over = next(h.event for h in happened if h.kind == "run.taken_over")
        assert taken_over.how == "suspicion"  # type: ignore[attr-defined]
        assert first.poll() is None
    assert result(world, "held") == "one in life b"


def test_workers_that_were_all_stopped_for_a_while_take_nothing_from_each_other(world: World) -> None:
    """The machine slept: every lease has run out when it wakes, and whoever comes first must not declare the others
    dead, but wait for what they say. Here it would wait for a minute."""
    with (
        world.worker("hold", life="a", lease=0.5, silence=60) as first,
        world.worker("serve", life="b", lease=0.5, silence=60) as second,
    ):
        wait_until(lambda: world.what() == ["begun one"], "the step has begun")
        wait_until(lambda: len(leases(world)) == 2, "both have entered")
        for process in (first, second):
            stop(process, world.store)
        wait_until(lambda: max(leases(world).values()) < now(), "the leases have run out")
        second.send_signal(signal.SIGCONT)
        for _ in range(3):
            seen = leases(world)[second.pid]
            wait_until(lambda: leases(world)[second.pid] > seen, "it goes on, and looks around")  # noqa: B023
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: leases(world)[first.pid] > now(), "the other one speaks up")
        assert world.what() == ["begun one"]
        Path(f"{world.path}.one").touch()
        assert result(world, "held") == "one in life a"
    assert "run.taken_over" not in [happened.kind for happened in history(world, "held")]


def leases(world: World) -> dict[int, int]:
    """By the process of each worker that is in the store: the end of its lease, in microseconds."""

    async def question(client: Client) -> dict[int, int]:
        return {worker.pid: worker.lease_until for worker in client._store.workers()}  # pyright: ignore[reportPrivateUsage]

    return ask(world, question)  # type: ignore[no-any-return]


def now() -> int:
    return time.time_ns() // 1_000


def test_a_second_worker_beside_a_busy_one_with_a_short_lease_performs_nothing_twice(world: World) -> None:
    """The lease is renewed while the step runs, for many times its length."""
    with world.worker("hold", life="a", lease=1), world.worker("serve", life="b", lease=1):
        wait_until(lambda: world.what() == ["begun one"], "the step has begun")
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3, "three leases are over")
        assert world.what() == ["begun one"]
        Path(f"{world.path}.one").touch()
        assert result(world, "held") == "one in life a"
    assert "run.taken_over" not in [happened.kind for happened in history(world, "held")]


def test_two_workers_that_come_at_the_same_moment_share_what_the_dead_one_left(world: World) -> None:
    with world.worker("hold", life="a") as first:
        wait_until(lambda: world.what() == ["begun one"], "the step has begun")
        first.kill()
        first.wait()
    with world.worker("serve", life="b"), world.worker("serve", life="c"):
        wait_until(lambda: len(world.what()) >= 2, "somebody performs it")
        Path(f"{world.path}.one").touch()
        assert result(world, "held")[:-1] == "one in life "
    assert Counter(world.what()) == {"begun one": 2, "ended one": 1}


# ── leaving ─────────────────────────────────────────────────────────────────────────────────


def test_ctrl_c_ends_a_process_within_two_seconds_whatever_its_runs_do(world: World) -> None:
    with world.worker("park_and_block") as process:
        wait_until(lambda: world.what() == ["blocked"], "a plain step blocks its thread")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        took = time.monotonic() - began
    assert "interrupted" in out
    assert "leaving with 3 unfinished run(s): blocker, sleeper, waiter" in err
    assert took < 4, err
    assert {summary(world, which).status for which in ("sleeper", "waiter", "blocker")} <= {"waiting", "running"}


# ── four processes on one file ──────────────────────────────────────────────────────────────


def test_four_processes_share_one_file(world: World) -> None:
    """Four times twenty-five runs of four steps: each step once, and no error comes through."""

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(world.serve, "start_innocents", life=str(n)) for n in range(4)))

    run_async(all_of_them())
    done = Counter(world.what())
    assert len(done) == 4 * 25 * 4
    assert set(done.values()) == {1}


# ── killed again and again ──────────────────────────────────────────────────────────────────

KILLS = 22


def recorded(world: World) -> set[str]:
    """What has been recorded of the work: results and failures of steps, in this run and its children."""

    async def question(client: Client) -> set[str]:
        found: set[str] = set()
        for run_summary in await client.list(limit=100):
            for happened in await (await client.get(run_summary.id)).history():
                if happened.kind in {"step.completed", "step.failed"} and happened.input:
                    found.add(f"{happened.event.name} {happened.input['name']}")  # type: ignore[attr-defined]
        return found

    return ask(world, question)  # type: ignore[no-any-return]


def test_killed_twenty_two_times_at_random_moments_it_ends_as_if_never_killed(tmp_path: Path) -> None:
    undisturbed = World(tmp_path / "undisturbed")
    expected = undisturbed.serve("start_everything").splitlines()[-1]
    world = World(tmp_path / "killed")
    choose = random.Random(47)
    known: dict[str, set[str]] = {}
    for life in range(1, KILLS + 1):
        known[str(life)] = recorded(world)
        with world.worker("start_everything", life=str(life), patient=1) as process:
            before = len(world.done())
            more = choose.randint(1, 4)
            wait_until(lambda: len(world.done()) >= before + more or process.poll() is not None, "it works")  # noqa: B023
            time.sleep(choose.random() * 0.01)
            process.kill()
            process.wait()
    known["last"] = recorded(world)
    out = world.serve("start_everything", life="last", patient=1).splitlines()[-1]
    assert shape(out) == shape(expected)
    for done in world.done():
        kind, name, *_ = done.what.split(" ")
        step = {"try": "shaky", "guess": "guess"}.get(kind, "")
        names = {f"{step} {name}"} if step else {f"{s} {name}" for s in ("work", "plain", "hopeless")}
        assert not names & known[done.life], f"{done} was recorded before that life began"


def shape(result: str) -> list[str]:
    """The result without what was drawn at random in each run."""
    assert result.startswith("["), result
    return [part for part in ast.literal_eval(result) if not part.startswith("0.") or part[2:3].isalpha()]

"""`perdure.run`: which run it takes, what it says, and that a script that was killed goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import perdure
from perdure import RunBlockedError, RunConflictError, Runtime, UsageError, step, workflow
from perdure.api import script
from perdure.api.script import start_or_attach, with_children
from perdure.store import Store, open_store
from perdure.store.protocol import Filter

made: list[int] = []


@step
async def double(number: int) -> int:
    made.append(number)
    if number < 0:
        raise perdure.Final("below zero")
    return 2 * number


@workflow
async def doubled(number: int) -> int:
    return await double(number)


@workflow
async def quadrupled(number: int) -> int:
    return await doubled(await doubled(number))


def helper() -> object:
    return quadrupled


@workflow
async def by_helper() -> None:
    helper()


@workflow
async def hopeless() -> None:
    await asyncio.Event().wait()


@workflow
async def patient(number: int) -> int:
    return number + int(await perdure.receive("more"))


@pytest.fixture
def store() -> Store:
    made.clear()
    return open_store(":memory:")


def ids(store: Store) -> list[str]:
    return [info.run_id for info in store.runs(Filter())]


async def waiting(store: Store, number: int) -> list[str]:
    """Begin a run of `patient` and leave; the ids of all runs."""
    async with Runtime(store, workflows=[patient]) as runtime:
        await start_or_attach(runtime, store, patient.call(number))
        return ids(store)


def send_when_it_waits(store: Store, run_id: str, value: int) -> threading.Thread:
    """Send to a run from elsewhere, as soon as it waits."""

    async def send() -> None:
        async with perdure.Client(store) as client:
            while not [summary for summary in await client.list() if summary.id == run_id]:
                await asyncio.sleep(0.01)
            await (await client.get(run_id)).send("more", value)

    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    return thread


# ── which run ───────────────────────────────────────────────────────────────────────────────


def test_it_gives_the_result(store: Store) -> None:
    assert perdure.run(doubled.call(21), store=store) == 42


def test_it_raises_what_the_workflow_raised(store: Store) -> None:
    with pytest.raises(perdure.Final, match="below zero"):
        perdure.run(doubled.call(-1), store=store)


def test_it_executes_the_workflows_that_the_code_names(store: Store) -> None:
    assert perdure.run(quadrupled.call(5), store=store) == 20


def test_what_finished_is_not_gone_on_with(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert [perdure.run(doubled.call(1), store=store) for _ in range(3)] == [2, 2, 2]
    assert made == [1, 1, 1]
    assert len(ids(store)) == 3
    assert capsys.readouterr().err == ""


def test_with_an_id_it_is_always_that_run(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert [perdure.run(doubled.call(1), "one", store=store) for _ in range(2)] == [2, 2]
    assert made == [1]
    assert capsys.readouterr().err == "perdure: run one finished earlier\n"
    with pytest.raises(RunConflictError):
        perdure.run(doubled.call(2), "one", store=store)


def test_without_an_id_it_goes_on_with_the_unfinished_run_and_says_so(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_id,) = asyncio.run(waiting(store, 1))
    sender = send_when_it_waits(store, run_id, 10)
    assert perdure.run(patient.call(1), store=store) == 11
    sender.join()
    assert ids(store) == [run_id]
    assert f"perdure: run {run_id} goes on\n" in capsys.readouterr().err


def test_another_input_is_another_run(store: Store) -> None:
    asyncio.run(waiting(store, 1))
    assert len(asyncio.run(waiting(store, 2))) == 2


def test_a_child_of_somebody_is_not_attached_to(store: Store) -> None:
    @workflow
    async def parent() -> int:
        return await patient(1)

    async def leave_a_child_waiting() -> None:
        async with Runtime(store, workflows=[parent, patient]) as runtime:
            await runtime.start(parent.call(), id="parent")
            while len(ids(store)) < 2:
                await asyncio.sleep(0.01)

    asyncio.run(leave_a_child_waiting())
    assert len(asyncio.run(waiting(store, 1))) == 3


def test_scripts_that_start_at_the_same_time_share_one_run(store: Store) -> None:
    """Neither sees a run of the other's; both derive the same id."""
    assert script._next_id(store, "a") == script._next_id(store, "a")  # pyright: ignore[reportPrivateUsage]


def test_an_unfinished_run_of_a_version_that_is_not_here_is_not_passed_over(store: Store) -> None:
    asyncio.run(waiting(store, 1))

    @workflow(name="patient", version=2)
    async def patient_2(number: int) -> int:
        return number

    with pytest.raises(RunConflictError, match="is of version 1, which is not executed here"):
        perdure.run(patient_2.call(1), store=store)
    assert len(ids(store)) == 1


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 7, 8, 100])
def test_a_free_id_is_found_in_few_looks(store: Store, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def find(run_id: str) -> object:
        looks.append(run_id)
        return True if int(run_id.rpartition("-")[2]) <= taken else None

    monkeypatch.setattr(store, "find", find)
    assert script._next_id(store, "a") == f"a-{taken + 1}"  # pyright: ignore[reportPrivateUsage]
    assert len(looks) < 20


def test_a_parked_run_is_raised(store: Store) -> None:
    with pytest.raises(RunBlockedError, match="deadlocked"):
        perdure.run(hopeless.call(), store=store)


# ── where it cannot work ────────────────────────────────────────────────────────────────────


def test_under_a_running_loop_it_names_what_to_call_instead(store: Store) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match=r"await runtime\.start\(doubled\.call\(\.\.\.\)\)"):
            perdure.run(doubled.call(1), store=store)

    asyncio.run(scenario())
    assert ids(store) == []


def test_a_step_is_no_workflow(store: Store) -> None:
    with pytest.raises(UsageError, match="double is no workflow"):
        perdure.run(double.call(1), store=store)


def test_what_is_no_call_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="a call that is not made yet"):
        perdure.run(42, store=store)  # type: ignore[arg-type]


# ── which workflows ─────────────────────────────────────────────────────────────────────────


def test_children_are_found_by_name_also_through_helpers() -> None:
    assert with_children([by_helper]) == [by_helper, quadrupled, doubled]


def test_children_are_found_in_closures() -> None:
    @workflow
    async def inner() -> None: ...

    @workflow
    async def outer() -> None:
        await inner()

    assert with_children([outer]) == [outer, inner]


def test_children_are_found_in_modules() -> None:
    module = types.ModuleType("kinder")
    vars(module)["quadrupled"] = quadrupled

    @workflow
    async def parent() -> None:
        await module.quadrupled(1)

    assert with_children([parent]) == [parent, quadrupled, doubled]


# ── killed, and interrupted ─────────────────────────────────────────────────────────────────

AGENT = """
    import sys, pathlib, time
    import perdure
    from perdure import step, workflow

    @step
    def note(number: int) -> int:
        with open("notes", "a") as notes:
            notes.write(f"{number}\\n")
        while number == 3 and not pathlib.Path("go").exists():
            time.sleep(0.01)
        return number

    @workflow
    async def agent(count: int) -> int:
        return sum([await note.call(number) for number in range(count)])

    if __name__ == "__main__":
        print(perdure.run(agent.call(6)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(textwrap.dedent(AGENT))
    return tmp_path


@contextmanager
def begun(folder: Path) -> Generator[subprocess.Popen[str], None, None]:
    """The script, started and in step 3. It does not outlive the block."""
    with subprocess.Popen(
        [sys.executable, "agent.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            end = time.monotonic() + 30
            while "3" not in notes(folder):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, "it does not get to step 3"
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def notes(folder: Path) -> list[str]:
    path = folder / "notes"
    return path.read_text().split() if path.exists() else []


def finish(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "go").touch()
    return subprocess.run(
        [sys.executable, "agent.py"], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )


def test_a_script_that_was_killed_goes_on_where_it_stopped(folder: Path) -> None:
    with begun(folder):
        pass  # it is killed
    done = finish(folder)
    assert done.stdout == "15\n"
    assert "goes on" in done.stderr
    assert notes(folder) == ["0", "1", "2", "3", "3", "4", "5"]


def test_ctrl_c_leaves_the_run_for_the_next_time(folder: Path) -> None:
    with begun(folder) as process:
        process.send_signal(signal.SIGINT)
        (folder / "go").touch()
        _, said = process.communicate(timeout=30)
    assert "stopped; run agent-" in said
    assert "goes on the next time" in said
    assert "KeyboardInterrupt" in said
    assert finish(folder).stdout == "15\n"
    assert notes(folder)[:3] == ["0", "1", "2"]
    assert notes(folder).count("0") == 1

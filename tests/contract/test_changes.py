"""Every kind of change at every place where a run may stand: what `check` says, and what a worker then does."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.changes import EDITS, LATER, LETTERS, OF_THE_CALL, PLACES, Edit, everywhere, source
from tests.contract.code import workflow_of
from tests.runtime.hosting import run_async

from perdure import Client, Status
from perdure.api.checking import Checked, check_runs
from perdure.runtime import beginnings, contracts
from perdure.specs import WorkflowSpec
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

ALL = (*PLACES, *LATER)
CLAIM = "claim"


PATIENT = 10 + 2 * 86_400
"""Longer than the run sleeps, and longer than it waits between attempts."""

IN_ORDER = (11, 10, 9, 8, 6, 5, 4, 7, 3, 2, 1)
"""Of the places to which runs are driven: no time passes any more once one waits for it."""


async def record(store: MemoryStore, clock: FakeClock, agent: Any) -> None:
    """A run at each place; `r0` has not begun, `r11` is furthest."""
    world = agent.spec.function.__globals__["WORLD"]
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent], guard=False, replays=False) as runtime:
        for place in IN_ORDER:
            run = await runtime.start(agent.call(CLAIM), id=f"r{place}")
            await runtime.run_dry()
            for go_on in ACTS[: place - 1]:
                await go_on(runtime, run)
                await runtime.run_dry()
            if place == len(ACTS) + 1:
                world["policy"] = 2
                await runtime.advance(60)
                await run.send("go")
                await runtime.run_dry()
    async with Client(store.again(), clock=clock) as client:
        await client.start(agent.call(CLAIM), id="r0")


async def decide(runtime: RuntimeUnderTest, run: Any) -> None:
    (asked,) = await runtime.requests(run=run, status="pending")
    if asked.kind == "approval":
        await runtime.approve(asked.id, hash=asked.hash, by="ann")
    else:
        await runtime.answer(asked.id, 3, hash=asked.hash, by="ann")


async def tell_child(runtime: RuntimeUnderTest, run: Any) -> None:
    (child,) = [each for each in await runtime.list() if each.parent == run.id and not each.status.is_final]
    await (await runtime.get(child.id)).send("shipped", "by air")


ACTS: Sequence[Callable[[RuntimeUnderTest, Any], Awaitable[Any]]] = (
    lambda runtime, run: run.send("details"),
    decide,
    lambda runtime, run: runtime.advance(PATIENT),
    lambda runtime, run: run.send("closed"),
    decide,
    tell_child,
    lambda runtime, run: runtime.advance(PATIENT),
    lambda runtime, run: run.send("picked up", "at ten"),
    lambda runtime, run: runtime.settle(run, "succeeded", value="printed", by="ann"),
    lambda runtime, run: runtime.raise_budget(run, tokens=100, by="ann"),
)  # fmt: skip
"""What gets a run from each place to the next one, from the first at which it waits."""


def older(edit: Edit, agent: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What was recorded under another Python or framework than there is here."""
    if edit.then == "PYTHON":

        def under_another_python(spec: WorkflowSpec) -> dict[str, Any]:
            return {**contracts.manifest(spec), "python": "3.10"}

        monkeypatch.setattr(beginnings, "manifest", under_another_python)
    elif edit.then == "FRAMEWORK":
        around = msgspec.structs.replace(agent.spec.surroundings, frameworks=(("msgspec", "0.1"),))
        agent.spec = msgspec.structs.replace(agent.spec, surroundings=around)
    return agent


async def resume(
    store: MemoryStore, clock: FakeClock, agent: Any, places: Sequence[int] = range(len(ALL))
) -> dict[str, tuple[Status, str]]:
    """Where each run stands when a worker with the new code has loaded it. It is paused: nothing of it is performed."""
    async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent], replays=False) as runtime:
        for place in places:
            await (await runtime.get(f"r{place}")).pause()
        await runtime.run_dry()
        found = {each.id: each for each in await runtime.list()}
        return {run_id: (each.status, each.reason) for run_id, each in found.items()}


STUCK = {"r9": "unknown_effect", "r10": "over_budget"}
"""Runs that wait for a person anyway."""


def where_it_stood(run_id: str) -> tuple[Status, str]:
    return (Status.BLOCKED, STUCK[run_id]) if run_id in STUCK else (Status.WAITING, "paused")


def check(store: MemoryStore, agent: Any, *run_ids: str) -> dict[str, Checked]:
    """What is said of these runs, or of all."""
    opened = store.again()
    infos = [info for info in opened.runs(Filter()) if not run_ids or info.run_id in run_ids]
    before = [opened.load(info.rid) for info in infos]
    found = {each.run_id: each for each in check_runs(opened, infos, [agent.spec])}
    assert before == [opened.load(info.rid) for info in infos], "it has written something"
    return found


KEPT: dict[str, tuple[bytes, int]] = {}
"""What was recorded under the code before the edits, by what it declared, and when: once for all of them."""


def recorded(edit: Edit, folder: Path, clock: FakeClock) -> MemoryStore:
    """Runs at all places, in a store of their own."""
    if edit.then not in KEPT:
        store = MemoryStore(clock)
        with pytest.MonkeyPatch.context() as then:
            agent = older(edit, workflow_of(folder, source(edit, is_after=False)), then)
            run_async(record(store, clock, agent))
        shared, file = store._shared, io.BytesIO()  # pyright: ignore[reportPrivateUsage]
        Copying(file).dump(shared)
        KEPT[edit.then] = file.getvalue(), clock.now()
    raw, at = KEPT[edit.then]
    clock.advance_to(at)
    return MemoryStore(clock, _shared=Copied(io.BytesIO(raw)).load())


class Copying(pickle.Pickler):
    """All of a store but its lock: much quicker than to record it again, or to copy it deeply."""

    def persistent_id(self, obj: Any) -> str | None:
        return "lock" if isinstance(obj, type(threading.RLock())) else None


class Copied(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return threading.RLock()


@pytest.mark.parametrize("edit", EDITS, ids=[edit.name for edit in EDITS])
def test_what_becomes_of_a_run(edit: Edit, tmp_path: Path) -> None:
    clock = FakeClock()
    store = recorded(edit, tmp_path, clock)
    after = workflow_of(tmp_path, source(edit, is_after=True))
    found = check(store, after, *(f"r{n}" for n in range(len(ALL))))
    shown = {ALL[n]: str(found[f"r{n}"].outlook) for n in range(len(ALL))}
    assert shown == dict(zip(ALL, map(LETTERS.__getitem__, everywhere(edit.verdicts)), strict=True)), found
    for each in found.values():
        assert bool(each.patch) == (each.outlook == "needs patch"), each
        assert bool(each.why) == (each.outlook != "replays"), each
    before = {info.run_id: info.status for info in store.runs(Filter())}
    became = run_async(resume(store, clock, after))
    for run_id, each in found.items():
        status, reason = became[run_id]
        if each.reason == "no_worker_for_version":
            assert status is before[run_id], run_id
        elif each.outlook in {"replays", "not checked"}:
            assert (status, reason) == where_it_stood(run_id), run_id
        else:
            assert (status, reason) == (Status.BLOCKED, each.reason), run_id


STANDS = [
    pytest.param(place, edit, id=f"{place}: {edit.name}") for place, edits in OF_THE_CALL.items() for edit in edits
]


@pytest.mark.parametrize(("place", "edit"), STANDS)
def test_what_becomes_of_a_run_at_the_very_call(place: str, edit: Edit, tmp_path: Path) -> None:
    clock, n = FakeClock(), ALL.index(place)
    store = recorded(edit, tmp_path, clock)
    after = workflow_of(tmp_path, source(edit, is_after=True))
    found = check(store, after, f"r{n}")[f"r{n}"]
    assert found.outlook == LETTERS[edit.verdicts], found
    status, reason = run_async(resume(store, clock, after, (n,)))[f"r{n}"]
    if found.outlook == "replays":
        assert (status, reason) == where_it_stood(f"r{n}")
    elif found.outlook != "not checked":  # then it shows when the code is run again
        assert (status, reason) == (Status.BLOCKED, found.reason)


def test_the_one_by_name(tmp_path: Path) -> None:
    """Planner, lookup, approval, payment, notify gains a risk check while a run waits at the approval: it is told
    before the deploy, with the line; with that line the run goes on as it was, and the next one is checked."""
    edit = next(edit for edit in EDITS if edit.name == "a risk check gained before the payment")
    clock = FakeClock()
    store = recorded(edit, tmp_path, clock)
    text = source(edit, is_after=True)
    found = check(store, workflow_of(tmp_path, text))["r2"]
    assert (found.recorded, found.asked) == ("approval pay", "step check_risk")
    assert found.patch.startswith('if perdure.patched("add step check_risk"): around the call of check_risk, at ')
    assert "step check_risk appeared, after receive details" in found.why

    line = "    await check_risk(claim)\n"
    guarded = text.replace(line, '    if perdure.patched("add step check_risk"):\n    ' + line)
    agent = workflow_of(tmp_path, guarded)
    found = check(store, agent)["r2"]
    assert (found.outlook, found.patch) == ("replays", "")
    assert [pending.then[:17] for pending in found.pending] == ["waits for people:"]

    async def pay() -> list[str]:
        async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent]) as runtime:
            kinds: list[str] = []
            for run_id in ("r2", "r1"):
                run = await runtime.get(run_id)
                await run.send("details")
                await runtime.run_dry()
                await decide(runtime, run)
                await runtime.run_dry()
                happened = [(event.kind, getattr(event.event, "name", "")) for event in await run.history()]
                assert ("effect.succeeded", "pay") in happened
                kinds.append("checked" if ("step.completed", "check_risk") in happened else "as it was")
            return kinds

    assert run_async(pay()) == ["as it was", "checked"]


def test_all_kinds_of_changes_are_there() -> None:
    assert all(len(edit.verdicts) == len(PLACES) for edit in EDITS)
    assert {letter for edit in EDITS for letter in everywhere(edit.verdicts)} == set(LETTERS)
    assert set(LATER) < set(OF_THE_CALL)


CONDITION = """
@step
async def measure(claim: str) -> int:
    return 60

@step
async def check_risk(claim: str) -> str:
    return "low"

@step
async def search(claim: str) -> str:
    return claim

@workflow
async def agent(claim: str) -> int:
    amount = await measure(claim)
    if CONDITION:
        await check_risk(claim)
    for _ in range(BOUND):
        await search(claim)
    await perdure.receive("go")
    return amount
"""


@pytest.mark.parametrize(
    ("condition", "bound", "told", "guarded"),
    [
        ("amount > 9", "2", "of the `if` around check_risk: ", ('amount > (9 if perdure.patched("N") else 100)', "2")),
        ("amount > 100", "1", "of the `loop` around search: ", ("amount > 100", '1 if perdure.patched("N") else 2')),
        ("amount > 100", "3", "of the `loop` around search: ", ("amount > 100", '3 if perdure.patched("N") else 2')),
    ],
)  # fmt: skip
def test_where_a_condition_was_edited_it_is_told_which_and_what_helps(
    condition: str, bound: str, told: str, guarded: tuple[str, str], tmp_path: Path
) -> None:
    """The history does not say that it was, so it is no line that surely helps; but if it was, it does."""

    def code(condition: str, bound: str) -> Any:
        return workflow_of(tmp_path, CONDITION.replace("CONDITION", condition).replace("BOUND", bound))

    clock = FakeClock()
    store = MemoryStore(clock)

    async def wait_for_message() -> None:
        agent = code("amount > 100", "2")
        async with RuntimeUnderTest(store.again(), clock=clock, workflows=[agent]) as runtime:
            await runtime.start(agent.call(CLAIM), id="r")
            await runtime.run_dry()

    run_async(wait_for_message())
    found = check(store, code(condition, bound))["r"]
    assert (found.outlook, found.patch) == ("breaks", "")
    assert told in found.why
    assert "If not, no guard helps" in found.why
    text = found.why.partition('perdure.patched("')[2].partition('"')[0]
    kept = code(*(each.replace('"N"', f'"{text}"') for each in guarded))
    assert check(store, kept)["r"].outlook == "replays"

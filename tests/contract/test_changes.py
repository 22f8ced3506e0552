"""Every kind of change at every place where a run may stand: what `check` says, and what a worker then does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.changes import EDITS, LETTERS, PLACES, Edit, source
from tests.contract.code import workflow_of
from tests.runtime.hosting import run_async

from perdure import Client, Runtime, Status
from perdure.api.checking import Checked, check_store
from perdure.runtime import beginnings, contracts
from perdure.specs import WorkflowSpec
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter
from perdure.testing.clock import FakeClock

CLAIM = "claim"


async def record(store: MemoryStore, clock: FakeClock, agent: Any) -> None:
    """A run at each place; `r0` has not begun, `r4` is furthest."""
    async with Runtime(store.again(), workflows=[agent], clock=clock) as runtime:
        for place in (4, 3, 2, 1):
            run = await runtime.start(agent.call(CLAIM), id=f"r{place}")
            await runtime.drain()
            if place >= 2:
                await run.send("details")
                await runtime.drain()
            if place >= 3:
                (asked,) = await runtime.requests(run=run)
                await runtime.approve(asked.id, hash=asked.hash, by="ann")
                await runtime.drain()
            if place == 4:
                clock.advance(2 * 86_400)
                await runtime.drain()
    async with Client(store.again(), clock=clock) as client:
        await client.start(agent.call(CLAIM), id="r0")


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


async def resume(store: MemoryStore, clock: FakeClock, agent: Any) -> dict[str, tuple[Status, str]]:
    """Where each run stands when a worker with the new code has loaded it."""
    async with Runtime(store.again(), workflows=[agent], clock=clock, guard=True, evict_after=0) as runtime:
        for place in range(len(PLACES)):
            await (await runtime.get(f"r{place}")).send("a message that nobody waits for")
        await runtime.drain()
        found = {each.id: each for each in await runtime.list()}
        return {run_id: (each.status, each.reason) for run_id, each in found.items()}


def check(store: MemoryStore, agent: Any) -> dict[str, Checked]:
    opened = store.again()
    before = [(info, opened.load(info.rid)) for info in opened.runs(Filter())]
    found = {each.run_id: each for each in check_store(opened, [agent.spec])}
    assert before == [(info, opened.load(info.rid)) for info in opened.runs(Filter())], "it has written something"
    return found


@pytest.mark.parametrize("edit", EDITS, ids=[edit.name for edit in EDITS])
def test_what_becomes_of_a_run(edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    with monkeypatch.context() as then:
        run_async(record(store, clock, older(edit, workflow_of(tmp_path, source(edit, is_after=False)), then)))
    after = workflow_of(tmp_path, source(edit, is_after=True))
    found = check(store, after)
    shown = {PLACES[n]: str(found[f"r{n}"].outlook) for n in range(len(PLACES))}
    assert shown == dict(zip(PLACES, map(LETTERS.__getitem__, edit.verdicts), strict=True)), found
    for each in found.values():
        assert bool(each.patch) == (each.outlook == "needs patch"), each
        assert bool(each.why) == (each.outlook != "replays"), each
    became = run_async(resume(store, clock, after))
    for run_id, each in found.items():
        status, reason = became[run_id]
        if each.reason == "no_worker_for_version":
            assert status in {Status.WAITING, Status.QUEUED}
        elif each.outlook == "replays":
            assert status is Status.WAITING, (run_id, reason)
        else:
            assert (status, reason) == (Status.BLOCKED, each.reason), run_id


def test_the_one_by_name(tmp_path: Path) -> None:
    """Planner, lookup, approval, payment, notify gains a risk check while a run waits at the approval: it is told
    before the deploy, with the line; with that line the run goes on as it was, and the next one is checked."""
    edit = next(edit for edit in EDITS if edit.name == "a risk check gained before the payment")
    clock = FakeClock()
    store = MemoryStore(clock)
    run_async(record(store, clock, workflow_of(tmp_path, source(edit, is_after=False))))
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

    async def finish() -> list[str]:
        async with Runtime(store.again(), workflows=[agent], clock=clock) as runtime:
            kinds: list[str] = []
            for run_id in ("r2", "r1"):
                run = await runtime.get(run_id)
                await run.send("details")
                await runtime.drain()
                (asked,) = await runtime.requests(run=run, status="pending")
                await runtime.approve(asked.id, hash=asked.hash, by="ann")
                await run.send("closed")
                await runtime.drain()
                clock.advance(2 * 86_400)
                assert await run.result(timeout=20) == "paid"
                names = [getattr(happened.event, "name", "") for happened in await run.history()]
                kinds.append("checked" if "check_risk" in names else "as it was")
            return kinds

    assert run_async(finish()) == ["as it was", "checked"]


def test_all_kinds_of_changes_are_there() -> None:
    assert all(len(edit.verdicts) == len(PLACES) for edit in EDITS)
    assert {letter for edit in EDITS for letter in edit.verdicts} == set(LETTERS)

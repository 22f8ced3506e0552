"""Workers that are killed while people are asked; processes that decide at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.http.test_webhook import SECRET, Got, receiver, taken
from tests.runtime.hosting import run_async
from tests.schedules.processes import ROOT, SOURCE, World, wait_for_death, wait_until

from perdure import Client
from perdure.api.requests import RequestSummary
from perdure.http import verify_webhook

T = TypeVar("T")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def client(world: World, question: Callable[[Client], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with Client(world.store) as opened:
            return await question(opened)

    return run_async(asked())


def requests(world: World, status: str | None = None) -> list[RequestSummary]:
    return client(world, lambda opened: opened.requests(status=status))


def asked(world: World) -> RequestSummary:
    """What the run asks, once it does."""
    wait_until(lambda: os.path.exists(world.store) and bool(requests(world, "pending")), "somebody is asked")
    (it,) = requests(world, "pending")
    return it


def approve(world: World, it: RequestSummary) -> None:
    client(world, lambda opened: opened.approve(it.id, hash=it.hash, by="ann"))


def decide(world: World, *words: str) -> subprocess.Popen[str]:
    """`perdure inbox ...` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, ROOT)))}
    return subprocess.Popen(
        [sys.executable, "-m", "perdure", "inbox", *words, "--store", world.store, "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_worker_is_killed_while_people_are_asked_and_the_answer_comes_while_nobody_runs(world: World) -> None:
    with world.worker("start_asking", how="found") as worker:
        it = asked(world)
        worker.kill()
        wait_for_death(worker)
    deciding = decide(world, "approve", it.id, "--hash", it.hash[:8], "--by", "ann")
    out, err = deciding.communicate(timeout=60)
    assert deciding.returncode == 0, err
    assert json.loads(out)["choice"] == "approve"
    assert world.what() == []
    world.serve("finish", life="2")
    assert [tuple(done) for done in world.done()] == [("2", "paid o-1 5")]
    (it,) = requests(world)
    assert it.status == "used"


def test_a_worker_that_is_killed_between_a_webhook_and_its_record_sends_it_again(world: World) -> None:
    workers: list[subprocess.Popen[str]] = []

    def answer(n: int) -> tuple[int, dict[str, str]]:
        if n == 1:
            workers[0].kill()  # it was sent, and nobody hears that it was taken
            wait_for_death(workers[0])
        return taken(n)

    def same() -> Got:
        """What came under the first one's id: that the request is open still is told as well, before or after."""
        return [each for each in got if each[0]["webhook-id"] == got[0][0]["webhook-id"]]

    with receiver(answer) as (url, got):
        with world.worker("start_asking", how="found", webhook=url, secret=SECRET) as worker:
            workers.append(worker)
            wait_for_death(worker)
        with world.worker("serve", life="2", webhook=url, secret=SECRET):
            wait_until(lambda: len(same()) >= 2, "it is sent again")
    first, second = same()[:2]
    assert first[1] == second[1]
    assert verify_webhook(*second, secret=SECRET)["data"]["run_id"] == "asks"


@pytest.mark.parametrize("how", ["found", "unknown"])
def test_a_used_approval_never_sends_a_second_time(how: str, world: World) -> None:
    """The worker dies after it has paid and before that is recorded. Its successor asks the other side; where nobody
    can tell, a person. The approval is used up, whatever it was."""
    with world.worker("start_asking", how=how, dies="after paying") as worker:
        it = asked(world)
        approve(world, it)
        wait_for_death(worker)
    assert world.what() == ["paid o-1 5"]
    world.serve("finish", life="2")
    assert world.what() == ["paid o-1 5"]
    (it,) = requests(world)
    assert it.status == "used"
    if how == "found":
        assert client(world, _result) == "paid 5"
    else:
        (entry,) = client(world, lambda opened: opened.inbox())
        assert entry.operation is not None
        assert (entry.reason, entry.operation.approval) == ("unknown_effect", it.id)


async def _result(opened: Client) -> Any:
    return await (await opened.get("asks")).result(timeout=30)


def test_of_two_processes_that_decide_at_once_one_learns_that_it_was_too_late(world: World) -> None:
    with world.worker("start_asking", how="found") as worker:
        it = asked(world)
        worker.kill()
        wait_for_death(worker)
    words = [("approve", "--by", "ann"), ("reject", "--by", "ann"), ("approve", "--by", "ann")]
    deciding = [decide(world, choice, it.id, "--hash", it.hash, *rest) for choice, *rest in words]
    outcomes = [(process.communicate(timeout=60)[1], process.returncode) for process in deciding]
    assert sorted(code for _, code in outcomes) == [0, 6, 6]
    assert all("decided" in err or "already" in err for err, code in outcomes if code)
    won = words[[code for _, code in outcomes].index(0)][0]
    world.serve("finish", life="2")
    (it,) = requests(world)
    assert it.status == ("used" if won == "approve" else "rejected")
    assert [said.choice for said in it.said] == [won]
    assert len(world.what()) == (won == "approve")


def test_the_request_of_a_killed_worker_is_the_same_to_its_successor(world: World) -> None:
    with world.worker("start_asking", how="found") as first:
        it = asked(world)
        with world.worker("serve", life="2") as second:
            first.kill()
            wait_for_death(first)
            wait_until(lambda: "run.taken_over" in client(world, _kinds), "the run is taken over")
            (again,) = requests(world)
            assert again == it
            approve(world, it)
            assert client(world, _result) == "paid 5"
            second.kill()
    assert [tuple(done) for done in world.done()] == [("2", "paid o-1 5")]
    assert client(world, _kinds).count("person.asked") == 1


async def _kinds(opened: Client) -> list[str]:
    return [each.kind for each in await (await opened.get("asks")).history()]



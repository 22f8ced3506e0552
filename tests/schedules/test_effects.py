"""A payments service in a process of its own; workers that are killed between its commit and our record of it.

What was paid is counted in the service's books.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import run_async
from tests.schedules import program
from tests.schedules.processes import World, wait_for_death, wait_until

from perdure import Client
from perdure.cli.demo.processes import Service, service

ROUTES = ["charges", "transfers", "payouts"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def paid(payments: Service) -> list[tuple[str, str, int]]:
    """What the service has in its books."""
    with program.DIRECT.open(f"{payments.url}/payments") as response:
        books: list[dict[str, Any]] = json.load(response)["payments"]
    return [(payment["route"], payment["claim"], payment["cents"]) for payment in books]


def posts(payments: Service) -> int:
    return sum(sending.method == "POST" for sending in payments.records())


def ask(world: World, question: Any) -> Any:
    async def asked() -> Any:
        async with Client(world.store, workflows=program.WORKFLOWS) as client:
            return await question(await client.get("pays"))

    return run_async(asked())


async def status(run: Any) -> Any:
    return await run.status()


async def result(run: Any) -> Any:
    return await run.result(timeout=30)


async def kinds(run: Any) -> list[str]:
    return [happened.kind for happened in await run.history()]


def settled_from_the_books(world: World, payments: Service, **decision: Any) -> None:
    """Nobody but a person can tell: somebody looks into the service's books."""
    assert ask(world, status) == "blocked"

    async def settle(run: Any) -> None:
        (stuck,) = [entry for entry in await run._client.inbox() if entry.run_id == "pays"]
        assert stuck.reason == "unknown_effect"
        await run.settle(by="ann", **decision)

    ask(world, settle)


@pytest.mark.parametrize("route", ROUTES)
def test_killed_between_the_services_commit_and_our_record(world: World, tmp_path: Path, route: str) -> None:
    with service("payments", tmp_path, "--hold", "claim-7") as payments:
        options = {"payments": payments.url, "route": route}
        with world.worker("start_paying", life="1", **options) as first:
            wait_until(lambda: bool(payments.records(only_unanswered=True)) and bool(paid(payments)), "it has paid")
            os.kill(first.pid, signal.SIGKILL)
            wait_for_death(first)
        assert paid(payments) == [(route, "claim-7", 1250)]
        world.serve("finish", life="2", **options)
        if route == "payouts":
            settled_from_the_books(world, payments, outcome="succeeded", value=1, reference="payment 1")
            with world.worker("serve", life="3", **options):
                assert ask(world, result) == 1
        assert ask(world, result) == 1
        assert paid(payments) == [(route, "claim-7", 1250)], "it was paid once"
        assert posts(payments) == (2 if route == "charges" else 1), "only what honours keys is sent again"
        assert world.what().count("looks up") == (route == "transfers")


@pytest.mark.parametrize("route", ROUTES)
def test_killed_between_our_record_and_the_sending(world: World, tmp_path: Path, route: str) -> None:
    with service("payments", tmp_path) as payments:
        options = {"payments": payments.url, "route": route, "dies": "before"}
        with world.worker("start_paying", life="1", **options) as first:
            wait_for_death(first)
        assert paid(payments) == []
        world.serve("finish", life="2", **options)
        if route == "payouts":
            assert paid(payments) == [], "nobody knows, so nothing is sent"
            settled_from_the_books(world, payments, outcome="retry")
            with world.worker("serve", life="3", **options):
                assert ask(world, result) == 1
        assert ask(world, result) == 1
        assert paid(payments) == [(route, "claim-7", 1250)]
        assert posts(payments) == 1
        assert world.what().count("looks up") == (2 if route == "transfers" else 0), "not found is believed twice"
        assert ask(world, kinds).count("effect.started") == 2

"""A fork of a run that has paid, worked on by processes that are killed: while a person is asked whether it is paid a
second time, and between the second payment and our record of it. What was paid is counted in the service's books."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import run_async
from tests.schedules import program
from tests.schedules.processes import World, wait_for_death, wait_until
from tests.schedules.test_effects import paid, posts

from perdure import Client
from perdure.audit.verify import verify
from perdure.cli.demo.processes import service
from perdure.store import open_store


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ask(world: World, question: Callable[[Client], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        async with Client(world.store, workflows=program.WORKFLOWS) as client:
            return await question(client)

    return run_async(asked())


def why(world: World) -> str | None:
    """What the fork waits for a person for."""
    entries = ask(world, lambda client: client.inbox())
    return next((entry.reason for entry in entries if entry.run_id == "forked"), None)


async def fork(client: Client) -> None:
    await (await client.get("pays")).fork(0, id="forked", by="ann")


async def unblock(client: Client, choice: Any) -> None:
    await (await client.get("forked")).unblock(choice, by="bob")


def result(run_id: str) -> Callable[[Client], Awaitable[Any]]:
    async def wait(client: Client) -> Any:
        return await (await client.get(run_id)).result(timeout=30, wait_blocked=True)

    return wait


@pytest.mark.parametrize("route", ["charges", pytest.param("transfers", marks=pytest.mark.soak), "payouts"])
def test_a_fork_pays_once_more_if_a_person_says_so_and_never_twice(world: World, tmp_path: Path, route: str) -> None:
    with service("payments", tmp_path) as payments:
        options = {"payments": payments.url, "route": route}
        world.serve("start_paying", life="1", **options)
        assert paid(payments) == [(route, "claim-7", 1250)]
        ask(world, fork)

        with world.worker("serve", life="2", **options) as second:
            wait_until(lambda: why(world) == "done_by_original", "the fork is in the inbox")
            os.kill(second.pid, signal.SIGKILL)
            wait_for_death(second)
        assert len(paid(payments)) == 1
        ask(world, lambda client: unblock(client, "retry"))

        with world.worker("serve", life="3", dies="after", **options) as third:
            wait_for_death(third)
        assert paid(payments) == [(route, "claim-7", 1250)] * 2, "it was paid once more, as was wanted"

        world.serve("finish", life="4", **options)
        if route == "payouts":
            assert why(world) == "unknown_effect", "whether the second payment was made only a person can tell"
            ask(world, lambda client: client.settle("forked", "succeeded", value=2, reference="payment 2", by="bob"))
            with world.worker("serve", life="5", **options):
                assert ask(world, result("forked")) == 2
        assert ask(world, result("forked")) == 2
        assert paid(payments) == [(route, "claim-7", 1250)] * 2
        assert posts(payments) == (3 if route == "charges" else 2), "only what honours keys is sent again"
        assert ask(world, result("pays")) == 1
        keys = {row.id for row in ask(world, lambda client: client.effects())}
        assert len(keys) == 2, "each payment has an operation of its own"
    with contextlib.closing(open_store(world.store)) as store:
        assert verify(store).is_sound

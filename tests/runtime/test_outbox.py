"""The outbox: posted with the change or not at all; delivered in order, again after a crash, under the same id."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, run_async

import perdure
from perdure import Final, OutboxMessage, Runtime, StepError, UsageError, effect, step, workflow

DELIVERED: list[OutboxMessage] = []


@pytest.fixture(autouse=True)
def nothing_delivered() -> None:
    DELIVERED.clear()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


@effect(transactional=True)
def order(number: int, fails: bool) -> int:
    perdure.transaction().execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY)")
    perdure.transaction().execute("INSERT INTO orders VALUES (?)", (number,))
    perdure.outbox().send("emails", {"order": number, "what": "thanks"}, key=f"order-{number}")
    perdure.outbox().send("emails", {"order": number, "what": "invoice"}, key=f"order-{number}")
    if fails:
        raise Final("out of stock")
    return number


@order.key
def _(number: int, fails: bool) -> int:
    return number


@workflow
async def orders(number: int, fails: bool = False) -> int:
    return await order.call(number, fails)


def deliver(message: OutboxMessage) -> None:
    DELIVERED.append(message)


async def placed(runtime: Runtime, number: int, **options: Any) -> int:
    run = await runtime.start(orders.call(number, **options), id=f"order {number}")
    return await run.result(timeout=20)


def said(number: int) -> list[str]:
    return [message.payload["what"] for message in DELIVERED if message.payload["order"] == number]


def test_messages_follow_the_commit_in_order_and_once(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[orders], outbox={"emails": deliver}) as runtime:
            for number in range(5):
                assert await placed(runtime, number) == number
            await eventually(lambda: len(DELIVERED) == 10)
            await eventually(lambda: host_of(runtime).store.posts(status="waiting") == [])

    run_async(main())
    assert all(said(number) == ["thanks", "invoice"] for number in range(5))
    assert len({message.id for message in DELIVERED}) == 10
    assert {message.attempt for message in DELIVERED} == {1}


def test_what_is_undone_posts_nothing(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[orders], outbox={"emails": deliver}) as runtime:
            with pytest.raises(Final, match="out of stock"):
                await placed(runtime, 1, fails=True)
            assert host_of(runtime).store.posts() == []

    run_async(main())
    assert DELIVERED == []


def test_a_runtime_without_the_handler_leaves_them_for_one_that_has_it(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[orders]) as runtime:
            await placed(runtime, 1)
            assert len(host_of(runtime).store.posts(status="waiting")) == 2
        async with Runtime(path, outbox={"emails": deliver}):
            await eventually(lambda: said(1) == ["thanks", "invoice"])

    run_async(main())


def test_what_was_delivered_when_its_worker_died_is_delivered_again_under_the_same_id(path: str) -> None:
    async def main() -> None:
        hangs = asyncio.Event()

        async def deliver_and_hang(message: OutboxMessage) -> None:
            DELIVERED.append(message)
            hangs.set()
            await asyncio.Event().wait()

        first = Runtime(path, workflows=[orders], outbox={"emails": deliver_and_hang})
        await first.__aenter__()
        await placed(first, 1)
        await hangs.wait()
        store: Any = host_of(first).store
        await host_of(first).abandon()
        store.kill(host_of(first).worker)
        async with Runtime(path, outbox={"emails": deliver}):
            await eventually(lambda: said(1) == ["thanks", "thanks", "invoice"])
        with contextlib.suppress(Exception):
            await first.__aexit__(None, None, None)

    run_async(main())
    assert DELIVERED[0].id == DELIVERED[1].id != DELIVERED[2].id


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_whatever_a_handler_ends_with_is_a_delivery_that_failed(error: BaseException, path: str) -> None:
    async def gives_up(message: OutboxMessage) -> None:
        raise error

    async def main() -> None:
        async with Runtime(path, workflows=[orders], outbox={"emails": gives_up}) as runtime:
            await placed(runtime, 1)
            store = host_of(runtime).store
            await eventually(lambda: any(type(error).__name__ in post.error for post in store.posts()))

    run_async(main())


def test_what_is_refused_for_good_is_dead_and_holds_up_its_key_until_revived(path: str) -> None:
    is_open = False

    def refuses(message: OutboxMessage) -> None:
        if not is_open:
            raise Final("no such address")
        DELIVERED.append(message)

    async def main() -> None:
        nonlocal is_open
        async with Runtime(path, workflows=[orders], outbox={"emails": refuses}) as runtime:
            await placed(runtime, 1)
            store = host_of(runtime).store
            await eventually(lambda: len(store.posts(status="dead")) == 1)
            (dead,) = store.posts(status="dead")
            assert (dead.attempts, dead.error) == (1, "Final: no such address")
            assert len(store.posts(status="waiting")) == 1
            is_open = True
            assert store.revive_post(dead.post_id, now=0)
            await eventually(lambda: said(1) == ["thanks", "invoice"])

    run_async(main())


@step
async def posts_in_a_step() -> None:
    perdure.outbox().send("emails", 1)


@workflow
async def posts() -> None:
    await posts_in_a_step()


def test_the_outbox_belongs_into_a_transactional_effect(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[posts]) as runtime:
            run = await runtime.start(posts.call(), id="r")
            with pytest.raises(UsageError, match="transactional=True"):
                await run.result(timeout=20)

    run_async(main())


@pytest.mark.parametrize("given", [{"emails": 1}, {1: deliver}, "emails"])
def test_handlers_that_are_none_are_refused(path: str, given: Any) -> None:
    with pytest.raises(UsageError, match="topics"):
        Runtime(path, outbox=given)


@effect(transactional=True)
def posts_what_cannot_be_kept() -> None:
    perdure.outbox().send("emails", {"lock": object()})


@posts_what_cannot_be_kept.key
def _() -> str:
    return "x"


@workflow
async def posts_an_object() -> None:
    await posts_what_cannot_be_kept.call()


def test_a_payload_that_cannot_be_recorded_undoes_the_change(path: str) -> None:
    async def main() -> None:
        async with Runtime(path, workflows=[posts_an_object]) as runtime:
            run = await runtime.start(posts_an_object.call(), id="r")
            with pytest.raises((StepError, perdure.EncodeError), match="lock"):
                await run.result(timeout=20)
            assert host_of(runtime).store.posts() == []

    run_async(main())

"""Hooks and webhooks of the inbox: everything that waits is told of, at least once, whatever dies or fails."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.http.test_webhook import SECRET, receiver, taken
from tests.runtime.hosting import eventually, host_of, let_go, on_one_store, run_async

import perdure
from perdure import (
    Idempotent,
    InboxNotice,
    NeedsPerson,
    NoGuarantee,
    Runtime,
    UsageError,
    Webhook,
    effect,
    step,
    workflow,
)
from perdure.http import verify_webhook
from perdure.store.memory import MemoryStore
from perdure.testing.clock import FakeClock
from perdure.testing.crashing import CrashingStore
from perdure.testing.mortal import Death, Mortal, QuietAboutCrashes
from perdure.testing.runtime import RuntimeUnderTest


@effect(downstream=Idempotent(), reversible=False)
async def refund(order: str) -> str:
    return f"refunded {order}"


@effect(downstream=NoGuarantee())
async def post(letter: str) -> None:
    raise TimeoutError("no answer")


refund.key(lambda order: order)
post.key(lambda letter: letter)


@step
async def judge(case: str) -> int:
    raise NeedsPerson(f"is {case} a hard case?")


@workflow
async def agent(order: str) -> str:
    return await perdure.with_approval(refund.call(order), by="ann")


@workflow
async def trial(case: str) -> int:
    return await judge(case)


@workflow
async def mail(letter: str) -> None:
    await post(letter)


@workflow
async def stuck() -> None:
    await asyncio.Event().wait()


@workflow
async def busy(order: str) -> str:
    """It waits for a person and for letters, which bring it back into memory."""
    asking = asyncio.ensure_future(perdure.with_approval(refund.call(order), by="ann"))
    while await perdure.receive("letter", str) != "last":
        pass
    return await asking


ALL = (agent, trial, mail, stuck, busy)


class Ear:
    """A hook that keeps what it hears, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.heard: list[InboxNotice] = []
        self.failures = failures

    def __call__(self, notice: InboxNotice) -> None:
        self.heard.append(notice)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the pager is away")

    def said(self, what: str = "new") -> list[tuple[str, str]]:
        return [(notice.entry.run_id, notice.entry.reason) for notice in self.heard if notice.what == what]


def test_whatever_waits_for_a_person_is_told_of_with_all_that_the_inbox_has() -> None:
    ear = Ear()
    make = on_one_store()

    async def main() -> None:
        async with make(*ALL, on_inbox=ear) as runtime:
            await runtime.start(agent.call("o-1"), id="a")
            await runtime.start(trial.call("case"), id="t")
            await runtime.start(mail.call("hello"), id="m")
            await runtime.start(stuck.call(), id="s")
            await eventually(lambda: len(ear.heard) >= 4)
            entries = {entry.id: entry for entry in await runtime.inbox()}
            assert sorted(ear.said()) == [
                ("a", "approval"), ("m", "unknown_effect"), ("s", "deadlocked"), ("t", "needs_person"),
            ]  # fmt: skip
            for notice in ear.heard:
                assert notice.id == f"inbox:{notice.entry.id}:new"
                assert notice.entry == entries[notice.entry.id]

    run_async(main())


def test_an_async_hook_is_awaited() -> None:
    heard: list[str] = []

    async def hook(notice: InboxNotice) -> None:
        await asyncio.sleep(0)
        heard.append(notice.entry.run_id)

    make = on_one_store()

    async def main() -> None:
        async with make(*ALL, on_inbox=hook) as runtime:
            await runtime.start(trial.call("case"), id="t")
            await eventually(lambda: heard == ["t"])

    run_async(main())


def test_a_hook_that_fails_harms_no_run_and_is_told_again() -> None:
    ear = Ear(failures=1)
    make = on_one_store()

    async def main() -> None:
        async with make(*ALL, on_inbox=ear) as runtime:
            run = await runtime.start(agent.call("o-1"), id="a")
            await eventually(lambda: len(ear.heard) == 1)
            (it,) = await runtime.requests()
            await runtime.approve(it.id, hash=it.hash, by="ann")
            assert await run.result(timeout=20) == "refunded o-1"
            await eventually(lambda: len(ear.heard) == 2)
            assert {notice.id for notice in ear.heard} == {ear.heard[0].id}

    run_async(main())


def test_several_workers_tell_of_it_once_and_what_was_parked_before_is_told_of_by_whoever_can() -> None:
    first, second = Ear(), Ear()
    make = on_one_store()

    async def main() -> None:
        async with make(*ALL) as deaf:
            await deaf.start(trial.call("case"), id="t")
            await eventually(lambda: is_waiting(deaf, 1))
        async with make(*ALL, on_inbox=first), make(*ALL, on_inbox=second) as runtime:
            await eventually(lambda: bool(first.heard or second.heard))
            await runtime.start(stuck.call(), id="s")
            await eventually(lambda: len(first.heard + second.heard) >= 2)
            await runtime.drain(max_seconds=20)
            assert sorted(first.said() + second.said()) == [("s", "deadlocked"), ("t", "needs_person")]
        async with make(*ALL, on_inbox=first) as third:
            await third.drain(max_seconds=20)
        assert len(first.heard + second.heard) == 2, "what was told of is not told of again"

    run_async(main())


async def is_waiting(runtime: Runtime, count: int) -> bool:
    return len(await runtime.inbox()) == count


def test_an_open_request_is_announced_again_when_its_run_comes_back_or_moves() -> None:
    ear = Ear()
    make = on_one_store()

    async def main() -> None:
        async with make(*ALL, on_inbox=ear) as runtime:
            run = await runtime.start(busy.call("o-1"), id="b")
            await eventually(lambda: len(ear.heard) == 1)
            await let_go(runtime, "b")
            await run.send("letter", "hello")
            await eventually(lambda: len(ear.heard) == 2)
        async with make(*ALL, on_inbox=ear) as other:
            run = await other.get("b")
            await run.send("letter", "hello")
            await eventually(lambda: len(ear.heard) >= 3)
            (it,) = await other.requests()
            await other.approve(it.id, hash=it.hash, by="ann")
            await run.send("letter", "last")
            assert await run.result(timeout=20) == "refunded o-1"
        assert (ear.said("new"), set(ear.said("repeat"))) == ([("b", "approval")], {("b", "approval")})
        assert len({notice.id for notice in ear.heard}) == len(ear.heard)
        assert {notice.entry.id for notice in ear.heard} == {ear.heard[0].entry.id}

    run_async(main())


def test_drain_comes_back_when_it_is_told() -> None:
    ear = Ear()
    make = on_one_store()

    async def main() -> None:
        async with make(*ALL, on_inbox=ear) as runtime:
            await runtime.start(agent.call("o-1"), id="a")
            await runtime.drain(max_seconds=20)
        assert ear.said() == [("a", "approval")]

    run_async(main())


@pytest.mark.parametrize(
    "wrong", [{"on_inbox": 7}, {"inbox_webhook": "https://x"}, {"outbox": {"perdure.inbox": print}}]
)
def test_what_is_no_hook_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Runtime(":memory:", **wrong)


# ── webhooks ────────────────────────────────────────────────────────────────────────────────


def test_a_webhook_comes_signed_and_again_until_it_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        with receiver(lambda n: taken(n) if n > 2 else (503, {"retry-after": "0"})) as (url, got):
            webhook = Webhook(url, secret=SECRET)
            async with Runtime(str(tmp_path / "s.db"), workflows=ALL, inbox_webhook=webhook) as runtime:
                await runtime.start(agent.call("o-1"), id="a")
                await eventually(lambda: len(got) >= 3)
                store = host_of(runtime).store
                await eventually(lambda: store.posts(status="waiting") == [])
                (entry,) = await runtime.inbox()
            assert [headers["webhook-id"] for headers, _ in got] == [f"webhook:{entry.id}:new"] * 3
            told, *others = [verify_webhook(headers, body, secret=SECRET) for headers, body in got]
            assert all(other == told for other in others)
            assert told["type"] == "inbox.new"
            assert told["data"]["run_id"] == "a"
            assert told["data"]["request"]["arguments"] == {"order": "o-1"}
            assert set(told["data"]["choices"]) == {"approve", "reject", "delegate"}

    run_async(main())


def test_a_webhook_that_is_not_wanted_is_dead_and_can_be_seen(tmp_path: Path) -> None:
    async def main() -> None:
        with receiver(lambda _: (410, {})) as (url, _):
            webhook = Webhook(url, secret=SECRET)
            async with Runtime(str(tmp_path / "s.db"), workflows=ALL, inbox_webhook=webhook) as runtime:
                await runtime.start(agent.call("o-1"), id="a")
                store = host_of(runtime).store
                await eventually(lambda: len(store.posts(topic="perdure.webhook", status="dead")) == 1)
                assert "410" in store.posts(status="dead")[0].error

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_leaves_nobody_untold(when: Literal["before", "after"]) -> None:
    """Whatever process dies: each thing that waits is heard of, under one id."""

    async def live(store: Any, clock: FakeClock, death: Death, ear: Callable[[InboxNotice], None]) -> Any:
        async def scenario(runtime: RuntimeUnderTest) -> bool:
            await runtime.start(agent.call("o-1"), id="a")
            await runtime.start(trial.call("case"), id="t")
            await runtime.run_dry()
            return True

        runtime = RuntimeUnderTest(store, clock=clock, workflows=[agent, trial], on_inbox=ear)
        return await Mortal[bool](runtime, death).live(scenario)

    async def crash_at(number: int) -> int:
        clock = FakeClock()
        inner, death, ear = MemoryStore(clock), Death(), Ear()
        store = CrashingStore(inner, fail_at=number, when=when, how=death.come)
        with QuietAboutCrashes():
            await live(store, clock, death, ear)
        if death.has_come:
            clock.advance_to(clock.now() + 100_000_000)
            await live(inner.again(), clock, Death(), ear)
        times = Counter(notice.id for notice in ear.heard if notice.what == "new")
        told = {(notice.entry.run_id, notice.entry.reason) for notice in ear.heard}
        assert told == {("a", "approval"), ("t", "needs_person")}, f"write {number}"
        assert len(times) == 2
        assert max(times.values()) <= 2
        return store.writes

    async def main() -> None:
        for number in itertools.count(1):
            if await crash_at(number) < number:
                assert number > 8
                return

    run_async(main())

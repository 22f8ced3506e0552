"""A crash at any write: nothing of a secret, and no minted credential, is in the store then, nor after the recovery."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from tests.runtime.hosting import run_async

import perdure
from perdure import Budget, CanLookUp, Found, Idempotent, NotFound, Operation, Retry, effect, step, workflow
from perdure.codec.scrubbing import PASSING_VALUES_MAX
from perdure.secrets import Environment, Minted, SecretRequest
from perdure.store.guarded import unguarded
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.crashing import CrashingStore
from perdure.testing.runtime import RuntimeUnderTest
from perdure.testing.sweep import sweep_crashes

VALUE = "sk-very-secret-0123456789"
MINTED: list[str] = []
"""All that were ever minted."""
SEEN: set[str] = set()
"""What bodies had."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASH_KEY", VALUE)
    MINTED.clear()
    SEEN.clear()


def mint(request: SecretRequest) -> str:
    """A credential of its own for every attempt."""
    MINTED.append(f"minted-{request.step}-{len(MINTED):06}")
    return MINTED[-1]


PROVIDERS = [Minted(["token"], mint), Environment(prefix="CRASH_")]


def credentials() -> dict[str, str]:
    """What this body may have, in ways in which it would like to leak."""
    key, token = perdure.secret("key"), perdure.secret("token")
    SEEN.update((key, token))
    return {"key": f"Bearer {key}", "token": token, "basic": base64.b64encode(f"user:{token}".encode()).decode()}


@step(secrets={"key", "token"}, retry=Retry(max_attempts=2, first_delay=1, jitter=0))
async def fetch(note: str) -> dict[str, str]:
    perdure.heartbeat(credentials())
    if perdure.attempt().number == 1:
        raise RuntimeError(f"the line broke: {credentials()}")
    return credentials()


@effect(downstream=CanLookUp(), secrets={"key", "token"})
async def charge(order: str) -> dict[str, str]:
    op = perdure.operation()
    op.reference = credentials()["token"]
    if op.attempt == 1:
        raise TimeoutError(str(credentials()))
    return credentials()


@charge.key
def _(order: str) -> str:
    return order


@charge.lookup
async def _(op: Operation) -> Found[dict[str, str]] | NotFound:
    found = credentials()
    return Found(found, reference=found["token"])


@effect(downstream=Idempotent(), secrets={"token"})
async def notify(order: str) -> str:
    return perdure.secret("token")


@notify.key
def _(order: str) -> str:
    return order


@workflow(budget=Budget(tokens=10_000))
async def shop(order: str) -> list[str]:
    fetched = await fetch("first")
    charged = await charge(order)
    perdure.set_state(fetched)
    answer = await perdure.ask(f"is {fetched['key']} in order?", subject=charged, type=str, by="ann")
    told = await perdure.with_approval(notify.call(order), by="ann", note=str(fetched))
    return [*fetched, *charged, answer, str(told)]


def memory(store: Store) -> Any:
    """All that the store has, whatever it is."""
    store = unguarded(store)
    inner = store.inner if isinstance(store, CrashingStore) else store
    assert isinstance(inner, MemoryStore)
    return inner._shared  # pyright: ignore[reportPrivateUsage]


def traces() -> Iterator[str]:
    for value in (VALUE, *MINTED):
        yield value
        yield base64.b64encode(f"user:{value}".encode())[7:-4].decode()


def assert_nothing_is_in(store: Store) -> None:
    there = repr(memory(store))
    assert [trace for trace in traces() if trace in there] == []


async def scenario(runtime: RuntimeUnderTest) -> str:
    assert_nothing_is_in(runtime._store)  # what the crash before has left  # pyright: ignore[reportPrivateUsage]
    run = await runtime.start(shop.call("7"), id="swept")
    while not (await run.status()).is_final:
        await runtime.advance(60)
        for entry in await runtime.inbox():
            it = entry.request
            if it is None or entry.pending:
                continue
            if it.kind == "question":
                await runtime.answer(it.id, f"yes, {VALUE}", hash=it.hash, by="ann")
            else:
                await runtime.approve(it.id, hash=it.hash, by="ann", comment=VALUE)
    result = await run.result()
    assert_nothing_is_in(runtime._store)  # pyright: ignore[reportPrivateUsage]
    assert "‹secret:key›" in repr([each.output for each in await run.history()])
    return result[-2]


# ── many at once ────────────────────────────────────────────────────────────────────────────

AT_ONCE = PASSING_VALUES_MAX + 44
ARRIVED: list[asyncio.Future[None]] = []


@step(secrets={"token"})
async def holds_it_for_long(number: int) -> str:
    token = perdure.secret("token")
    ARRIVED.append(asyncio.get_running_loop().create_future())
    if len(ARRIVED) == AT_ONCE:
        for each in ARRIVED:
            each.set_result(None)
    await ARRIVED[-1]
    return token


@workflow
async def all_at_once() -> list[str]:
    return await asyncio.gather(*(holds_it_for_long(number) for number in range(AT_ONCE)))


def test_a_credential_is_hidden_for_as_long_as_its_attempt_however_many_there_are() -> None:
    async def main() -> None:
        ARRIVED.clear()
        async with RuntimeUnderTest(secrets=PROVIDERS) as runtime:
            run = await runtime.start(all_at_once.call())
            assert set(await run.result()) == {"‹secret:token›"}
            assert len(MINTED) == AT_ONCE
            assert_nothing_is_in(runtime._store)  # pyright: ignore[reportPrivateUsage]

    run_async(main())


# ── crashes ─────────────────────────────────────────────────────────────────────────────────


def test_a_crash_at_any_write_leaves_nothing_of_a_secret() -> None:
    async def main() -> None:
        sweep = await sweep_crashes(scenario, secrets=PROVIDERS)
        assert sweep.writes > 10

    run_async(main())
    assert VALUE in SEEN
    assert set(MINTED) & SEEN

"""How many requests arrive, and when: layers that each retry, one owner, and what the other side asked for."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.http.stub import Request, Say, Stub, stub
from tests.runtime.hosting import run_async

import perdure
from perdure import Idempotent, Retry, Runtime, StepError, effect, single_retry_owner, step, workflow

QUICK = Retry(max_attempts=3, first_delay=0.001, max_delay=0.01)
URL: list[str] = []
MODEL: list[Any] = []


async def get() -> str:
    return (await perdure.use(httpx.AsyncClient).get(URL[0])).text


async def post() -> str:
    return (await perdure.use(httpx.AsyncClient).post(URL[0])).text


async def chat() -> str:
    return str(await MODEL[0].chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}]))


def three_times(call: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    """A layer that tries three times."""

    async def layer() -> str:
        for _ in range(2):
            try:
                return await call()
            except Exception as error:
                print(type(error).__name__)
        return await call()

    return layer


@step(retry=QUICK)
async def four_layers() -> str:
    return await three_times(three_times(three_times(get)))()


@step(retry=QUICK)
async def layers_over_a_model() -> str:
    return await three_times(three_times(chat))()


@step(retry=QUICK)
async def model_alone() -> str:
    return await chat()


@step(retry=QUICK)
async def alone() -> str:
    return await get()


@effect(downstream=Idempotent(), retry=QUICK)
async def alone_as_an_effect(order: str) -> str:
    return await post()


@alone_as_an_effect.key
def _(order: str) -> str:
    return order


@step(retry=Retry(max_attempts=2, first_delay=0.5, factor=100, jitter=0))
async def patient() -> str:
    return await get()


@step(retry=Retry(max_attempts=1000, first_delay=0.05, factor=1, jitter=0, max_elapsed=0.4))
async def for_a_while() -> str:
    return await get()


STEPS = {each.spec.name: each for each in (four_layers, layers_over_a_model, model_alone, alone, patient, for_a_while)}


@workflow
async def asks(name: str) -> str:
    return await (alone_as_an_effect("order 7") if name == "alone_as_an_effect" else STEPS[name]())


@pytest.fixture
def failing() -> Generator[Stub, None, None]:
    """A service that always says: too many requests."""
    with stub(Say(429, b'{"error": {"message": "busy"}}', (("Retry-After-Ms", "1"),))) as server:
        URL[:] = [server.url]
        yield server


def performed(name: str) -> float:
    """Runs the step to its end, and gives when that was (monotonic seconds)."""

    async def main() -> float:
        async with perdure.http.client() as client:
            provide: dict[type, Any] = {httpx.AsyncClient: client}
            async with Runtime(":memory:", workflows=[asks], provide=provide) as runtime:
                run = await runtime.start(asks.call(name))
                try:
                    await run.result()
                except StepError as error:
                    print(error)
                return time.monotonic()

    return run_async(main())


def test_four_layers_of_three_attempts_are_81_requests(failing: Stub) -> None:
    performed("four_layers")
    assert len(failing.requests) == 81


@pytest.mark.parametrize("name", ["alone", "alone_as_an_effect"])
def test_one_owner_makes_it_three(failing: Stub, name: str) -> None:
    performed(name)
    assert len(failing.requests) == 3


@pytest.mark.filterwarnings("default")  # of the library, whose clients nobody closes
def test_the_client_of_a_model_is_a_layer_until_it_is_told(failing: Stub) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    MODEL[:] = [openai.AsyncOpenAI(base_url=failing.url, api_key="key")]
    performed("layers_over_a_model")
    assert len(failing.requests) == 81
    failing.requests.clear()
    MODEL[:] = [single_retry_owner(openai.AsyncOpenAI(base_url=failing.url, api_key="key"))]
    performed("model_alone")
    assert len(failing.requests) == 3
    MODEL.clear()
    gc.collect()


# ── when ────────────────────────────────────────────────────────────────────────────────────


def in_two_seconds(request: Request) -> Say:
    """Dates have whole seconds: this one is between one and two seconds away."""
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    return Say(503, headers=(("Retry-After", format_datetime(at, usegmt=True)),))


@pytest.mark.parametrize(
    "answer", [Say(429, headers=(("Retry-After", "1"),)), in_two_seconds], ids=["in seconds", "as a date"]
)
def test_who_asks_us_to_wait_is_not_asked_before(answer: Any) -> None:
    """The wait of one's own would be a thousandth of it."""
    with stub(answer, Say()) as server:
        URL[:] = [server.url]
        performed("alone")
    first, second = (request.at for request in server.requests)
    assert 0.99 <= second - first < 20


def test_after_the_last_attempt_nobody_waits(failing: Stub) -> None:
    ended = performed("patient")
    first, second = (request.at for request in failing.requests)
    assert second - first >= 0.49
    assert ended - second < 20  # where one would wait, it would be fifty seconds


def test_no_attempt_begins_after_max_elapsed(failing: Stub) -> None:
    ended = performed("for_a_while")
    at = [request.at for request in failing.requests]
    assert len(at) > 1
    assert at[-1] - at[0] < 20  # all thousand would take fifty seconds
    assert min(after - before for before, after in pairwise(at)) >= 0.04
    assert ended - at[-1] < 20

"""The HTTP clients for steps and effects, against a real server: in whose name requests leave, what failures say."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.stub import Request, Say, Stub, nobody, stub
from tests.runtime.hosting import PATIENCE_SECONDS, run_async

import perdure
from perdure import (
    CanLookUp,
    Found,
    Idempotent,
    NoGuarantee,
    Operation,
    Retry,
    RunBlockedError,
    Runtime,
    StepError,
    StepTimeoutError,
    effect,
    step,
    workflow,
)
from perdure.api.effect import Answer
from perdure.http.classify import Kind, Sent, classify
from perdure.testing.clock import FakeClock
from perdure.testing.runtime import RuntimeUnderTest

QUICK = Retry(max_attempts=3, first_delay=0.001, max_delay=0.01)
ONCE = Retry(max_attempts=1)
SOURCE = Path(perdure.__file__).parents[1]

Body = Callable[[httpx.AsyncClient], Any]
BODY: list[Body] = []
SYNC_BODY: list[Callable[[], Any]] = []


def performed(body: Body, *, by: Any = None, run_id: str | None = None) -> Any:
    """What a run gives that performs `body` with a client of ours: in a step of one attempt, or in what is given."""
    BODY[:] = [body]

    async def main() -> Any:
        async with perdure.http.client() as client:
            provide: dict[type, Any] = {httpx.AsyncClient: client}
            workflows = [in_step, in_step_again, in_effect]
            async with Runtime(":memory:", workflows=workflows, provide=provide) as runtime:
                call = {None: in_step, fetch_again: in_step_again}.get(by)
                asked = in_effect.call(by.spec.name) if call is None else call.call()
                return await (await runtime.start(asked, id=run_id)).result()

    return run_async(main())


async def go() -> Any:
    return await BODY[0](perdure.use(httpx.AsyncClient))


@step(retry=ONCE, timeout=20)
async def fetch() -> Any:
    return await go()


@effect(downstream=Idempotent(), retry=QUICK, timeout=20)
async def keyed(order: str) -> Any:
    return await go()


@keyed.key
def _(order: str) -> str:
    return order


@effect(downstream=NoGuarantee(), retry=QUICK, timeout=20)
async def unsafe(order: str) -> Any:
    return await go()


@unsafe.key
def _(order: str) -> str:
    return order


@effect(downstream=CanLookUp(settle_after=0.001), timeout=5)
async def searched(order: str) -> str:
    return str(await go())


@searched.key
def _(order: str) -> str:
    return order


@searched.lookup
async def _(op: Operation) -> Answer[str]:
    await perdure.use(httpx.AsyncClient).post(SEARCH[0], json={"key": op.id})
    return Found("found")


SEARCH: list[str] = []


@step(retry=QUICK, timeout=20)
async def fetch_again() -> Any:
    return await go()


@effect(downstream=Idempotent(), retry=QUICK)
def keyed_in_thread(order: str) -> str:
    return str(SYNC_BODY[0]())


@keyed_in_thread.key
def _(order: str) -> str:
    return order


@step(retry=Retry(max_attempts=2), timeout=0.3)
def short() -> Any:
    return SYNC_BODY[0]()


@step(retry=Retry(max_attempts=2), timeout=60)
def long() -> Any:
    return SYNC_BODY[0]()


@workflow
async def in_step() -> Any:
    return await fetch()


@workflow
async def in_step_again() -> Any:
    return await fetch_again()


@workflow
async def in_effect(name: str) -> Any:
    return await {"keyed": keyed, "unsafe": unsafe, "searched": searched}[name]("order 7")


@workflow
async def in_thread(name: str) -> Any:
    if name in STEPS_IN_THREADS:
        return await STEPS_IN_THREADS[name].call()
    return await keyed_in_thread.call("order 7")


STEPS_IN_THREADS = {"short": short, "long": long}


def performed_in_thread(body: Callable[[], Any], name: str, clock: FakeClock | None = None) -> Any:
    """What a run gives that performs `body` in a thread. `clock`: time is up for an attempt when this clock says so;
    what stands in a socket's time limit is real all the same."""
    SYNC_BODY[:] = [body]

    async def main() -> Any:
        opened = Runtime(":memory:", workflows=[in_thread])
        if clock is not None:
            provide: dict[type, Any] = {asyncio.AbstractEventLoop: asyncio.get_running_loop()}
            opened = RuntimeUnderTest(clock=clock, provide=provide)
        async with opened as runtime:
            return await (await runtime.start(in_thread.call(name))).result()

    return run_async(main())


# ── in whose name ───────────────────────────────────────────────────────────────────────────


def test_a_request_of_a_step_says_whose_it_is() -> None:
    async def body(client: httpx.AsyncClient) -> int:
        return (await client.post(server.url, json={"a": 1})).status_code

    with stub() as server:
        assert performed(body, run_id="größe 7") == 200
    (request,) = server.requests
    assert request.headers["x-perdure-run"] == "gr%C3%B6%C3%9Fe%207"
    assert request.headers["x-perdure-step"] == "0/fetch#1"
    assert request.headers["x-perdure-attempt"] == "1"
    assert "idempotency-key" not in request.headers
    assert "traceparent" not in request.headers


def test_a_request_of_an_effect_carries_its_id_in_every_attempt() -> None:
    ids: set[str] = set()

    async def body(client: httpx.AsyncClient) -> None:
        ids.add(perdure.operation().id)
        await client.get(server.url)
        await client.post(server.url, content=b"charge")

    with stub(Say(), Say(503), Say(), Say(500), Say()) as server:
        performed(body, by=keyed)
    reads, writes = server.requests[::2], server.requests[1::2]
    assert {request.headers["idempotency-key"] for request in writes} == ids
    assert len(ids) == 1
    assert [request.headers["x-perdure-attempt"] for request in writes] == ["1", "2", "3"]
    assert not any("idempotency-key" in request.headers for request in reads)


def test_a_request_that_is_given_twice_has_no_key_of_another_effect() -> None:
    async def body(client: httpx.AsyncClient) -> str:
        await client.send(request)
        return perdure.operation().id

    with stub() as server:
        request = httpx.Request("POST", server.url, content=b"ping")
        operations = [performed(body, by=keyed, run_id=run_id) for run_id in ("one", "two")]
    assert len(set(operations)) == 2
    assert [each.headers["idempotency-key"] for each in server.requests] == operations
    assert [each.body for each in server.requests] == [b"ping", b"ping"]


def test_a_key_that_the_caller_gives_stays() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        await client.post(server.url, headers={"Idempotency-Key": "mine"})

    with stub() as server:
        performed(body, by=keyed)
    assert server.requests[0].headers["idempotency-key"] == "mine"


def test_two_different_requests_never_leave_under_one_id() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        await client.post(f"{server.url}/charge", content=b"7")
        await client.post(f"{server.url}/charge", content=b"8")

    with stub() as server, pytest.raises(RunBlockedError, match="Give this one a key of its own"):
        performed(body, by=unsafe)
    assert [request.body for request in server.requests] == [b"7"]


def test_a_second_request_may_have_a_key_of_its_own() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        await client.post(f"{server.url}/charge")
        await client.post(f"{server.url}/mail", headers={"Idempotency-Key": f"{perdure.operation().id}-2"})

    with stub() as server:
        performed(body, by=unsafe)
    first, second = (request.headers["idempotency-key"] for request in server.requests)
    assert second == f"{first}-2"


def test_plain_functions_in_threads_have_the_same() -> None:
    def body() -> str:
        client.post(server.url, content=b"charge")
        return perdure.operation().id

    with stub(Say(503), Say()) as server, perdure.http.sync_client() as client:
        operation = performed_in_thread(body, "keyed")
    assert [request.headers["idempotency-key"] for request in server.requests] == [operation, operation]


def test_a_lookup_asks_without_the_key_of_what_it_asks_about() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        await client.post(f"{server.url}/charge")

    with stub(Say(cut=0), Say()) as server:
        SEARCH[:] = [f"{server.url}/search"]
        assert performed(body, by=searched) == "found"
    assert [(each.path, "idempotency-key" in each.headers) for each in server.requests[:2]] == [
        ("/charge", True),
        ("/search", False),
    ]


def test_outside_a_run_it_is_a_plain_client() -> None:
    async def main() -> None:
        async with perdure.http.client() as client:
            await client.post(server.url)

    with stub() as server, perdure.http.sync_client() as client:
        run_async(main())
        client.post(server.url)
        client.post(server.url)
    assert not [name for request in server.requests for name in request.headers if name.startswith("x-perdure")]


def test_a_trace_goes_along_if_there_is_one() -> None:
    trace: Any = pytest.importorskip("opentelemetry.trace", reason="opentelemetry-api is not installed")
    span = trace.NonRecordingSpan(trace.SpanContext(0xA, 0xB, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with stub() as server, perdure.http.sync_client() as client:
        client.get(server.url)
        with trace.use_span(span):
            client.get(server.url)
    assert [request.headers.get("traceparent") for request in server.requests] == [None, f"00-{0xA:032x}-{0xB:016x}-01"]


# ── what a failure says ─────────────────────────────────────────────────────────────────────


def failure_of(url: str, *, method: str = "POST", **options: Any) -> tuple[Kind, Sent]:
    """How a failed request is classified; the same by both clients."""

    async def asynchronously() -> BaseException:
        async with perdure.http.client(**options) as client:
            try:
                await client.request(method, url)
            except Exception as error:
                return error
        raise AssertionError("it was no failure")

    with perdure.http.sync_client(**options) as client, pytest.raises(Exception) as raised:  # noqa: PT011
        client.request(method, url)
    failures = [classify(error, now=0) for error in (run_async(asynchronously()), raised.value)]
    assert failures[0] == failures[1]
    return failures[0].kind, failures[0].sent


@pytest.mark.parametrize(
    ("answer", "kind", "sent"),
    [
        (Say(400), Kind.FINAL, Sent.REFUSED),
        (Say(404, b"no"), Kind.FINAL, Sent.REFUSED),
        (Say(429), Kind.RETRYABLE, Sent.REFUSED),
        (Say(503, headers=(("Retry-After", "1"),)), Kind.RETRYABLE, Sent.REFUSED),
        (Say(503), Kind.RETRYABLE, Sent.UNKNOWN),
        (Say(500), Kind.RETRYABLE, Sent.UNKNOWN),
        (Say(302, headers=(("Location", "/elsewhere"),)), Kind.FINAL, Sent.UNKNOWN),
        (Say(cut=0), Kind.RETRYABLE, Sent.UNKNOWN),
        (Say(200, b"half of it", cut=4), Kind.RETRYABLE, Sent.UNKNOWN),
        (Say(402, b"half of it", cut=4), Kind.FINAL, Sent.REFUSED),
        (Say(after_seconds=5), Kind.RETRYABLE, Sent.UNKNOWN),
    ],
    ids=str,
)
def test_an_answer_that_is_no_success_is_an_error(answer: Say, kind: Kind, sent: Sent) -> None:
    with stub(answer) as server:
        assert failure_of(server.url, timeout=httpx.Timeout(10, read=0.3)) == (kind, sent)
        assert len(server.requests) == 2  # one by each client


def test_a_connection_that_was_never_made_proves_that_nothing_was_sent() -> None:
    assert failure_of(nobody()) == (Kind.RETRYABLE, Sent.NOT_SENT)
    assert failure_of("gopher://127.0.0.1/") == (Kind.FINAL, Sent.NOT_SENT)


def test_the_error_has_the_answer_also_of_a_stream() -> None:
    async def main() -> str:
        async with perdure.http.client() as client:
            with pytest.raises(httpx.HTTPStatusError) as raised:
                async with client.stream("GET", server.url):
                    pass
            return raised.value.response.text

    with stub(Say(418, b"a teapot")) as server, perdure.http.sync_client() as client:
        assert run_async(main()) == "a teapot"
        with pytest.raises(httpx.HTTPStatusError) as raised, client.stream("GET", server.url):
            pass
        assert raised.value.response.text == "a teapot"


def test_a_stream_is_read_by_who_asked_for_it() -> None:
    async def main() -> bytes:
        async with perdure.http.client() as client, client.stream("GET", server.url) as response:
            assert not response.is_stream_consumed
            return await response.aread()

    with stub(Say(body=b"long")) as server:
        assert run_async(main()) == b"long"


def test_transports_that_retry_are_told_not_to() -> None:
    transport: Any = httpx.HTTPTransport(retries=5)
    with perdure.http.sync_client(transport=transport):
        assert transport._pool._retries == 0


# ── what no longer proves anything ──────────────────────────────────────────────────────────


def test_a_refusal_after_a_lost_answer_is_a_doubt() -> None:
    """A client above ours retries within the attempt: the first request may have been carried out."""

    async def body(client: httpx.AsyncClient) -> None:
        try:
            await client.post(server.url)
        except httpx.ReadError:
            await client.post(server.url)

    with stub(Say(cut=0), Say(429)) as server, pytest.raises(RunBlockedError, match="unknown_effect") as raised:
        performed(body, by=unsafe)
    assert "ReadError, then it was sent again in the same attempt" in str(raised.value)
    assert len(server.requests) == 2


def test_an_unreachable_server_after_a_cancelled_request_is_a_doubt() -> None:
    where = [""]

    async def body(client: httpx.AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.post(server.url), 0.3)
        await client.post(where[0])

    where[0] = nobody()
    with stub(Say(after_seconds=5)) as server, pytest.raises(RunBlockedError, match="unknown_effect"):
        performed(body, by=unsafe)


def test_see_other_and_then_nobody_is_a_doubt() -> None:
    """303: it was done, and its result is elsewhere."""

    async def body(client: httpx.AsyncClient) -> None:
        await client.post(server.url, follow_redirects=True)

    with (
        stub(Say(303, headers=(("Location", nobody()),))) as server,
        pytest.raises(RunBlockedError, match="answered by a redirect"),
    ):
        performed(body, by=unsafe)
    assert len(server.requests) == 1


def test_moved_and_then_nobody_is_none() -> None:
    """307: not here, ask there. Nothing was done, so it is tried again."""

    async def body(client: httpx.AsyncClient) -> None:
        await client.post(server.url, follow_redirects=True)

    with stub(Say(307, headers=(("Location", nobody()),))) as server, pytest.raises(StepError, match="ConnectError"):
        performed(body, by=unsafe)
    assert len(server.requests) == 3


def test_in_a_step_errors_stay_what_they_are() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadError):
            await client.post(server.url)
        await client.post(server.url)

    with stub(Say(cut=0), Say(400)) as server, pytest.raises(StepError, match="400 Bad Request"):
        performed(body)


# ── time ────────────────────────────────────────────────────────────────────────────────────


def test_a_thread_does_not_outlive_its_attempt() -> None:
    """A request in it takes no longer than the attempt has left, whatever its client was told."""
    took: list[float] = []

    def body() -> None:
        began = time.monotonic()
        try:
            client.get(server.url)
        finally:
            took.append(time.monotonic() - began)

    with stub(Say(after_seconds=20)) as server, perdure.http.sync_client(timeout=None) as client:
        with pytest.raises(StepError, match="ReadTimeout"):
            performed_in_thread(body, "short", FakeClock())
    assert len(took) == 2
    assert max(took) < 5


def test_a_body_whose_time_is_up_sends_nothing_more() -> None:
    """The first attempt has run out of time and its thread goes on, beside the second one and after it."""
    clock, has_been_sent, has_come_late = FakeClock(), threading.Event(), threading.Event()
    late: list[Exception] = []

    def body() -> int:
        number = perdure.attempt().number
        if number == 1:
            perdure.use(asyncio.AbstractEventLoop).call_soon_threadsafe(clock.advance, 61)  # type: ignore[type-abstract]
            assert has_been_sent.wait(PATIENCE_SECONDS)
        try:
            client.get(f"{server.url}/{number}")
        except Exception as error:
            late.append(error)
            has_come_late.set()
        else:
            has_been_sent.set()
        return number

    with stub() as server, perdure.http.sync_client() as client:
        assert performed_in_thread(body, "long", clock) == 2
        assert has_come_late.wait(PATIENCE_SECONDS)
    assert isinstance(late[0], StepTimeoutError)
    assert [request.path for request in server.requests] == ["/2"]


# ── the same request twice ──────────────────────────────────────────────────────────────────


def test_the_same_request_twice_in_an_attempt_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            await client.post(f"{server.url}/secret?token=xyz", json={"a": 1})
        for _ in range(2):
            await client.get(server.url)

    with stub() as server, caplog.at_level(logging.WARNING, "perdure"):
        performed(body, run_id="claim-42")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"step 0/fetch#1 of run claim-42 sends POST {server.url}/secret more than once in attempt 1")
    assert "token" not in said


def test_different_requests_and_further_attempts_are_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"part"

    async def body(client: httpx.AsyncClient) -> None:
        for number in range(3):
            await client.post(server.url, json={"page": number})
            await client.put(server.url, content=chunks())  # cannot be read ahead
        await client.get(f"{server.url}/fails")

    def answer(request: Request) -> Say:
        failures = [each for each in server.requests if each.path == "/fails"]
        return Say(503) if request.path == "/fails" and len(failures) < 3 else Say()

    server: Stub
    with stub(answer) as server, caplog.at_level(logging.WARNING, "perdure"):
        performed(body, by=fetch_again)
    assert len([request for request in server.requests if request.path == "/fails"]) == 3
    assert not caplog.records


# ── without httpx ───────────────────────────────────────────────────────────────────────────


def test_without_httpx_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import perdure\n"
        "try: perdure.http.client()\n"
        "except perdure.UsageError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "perdure.http.client() needs httpx: pip install perdure[http]\n"

"""single_retry_owner: the real clients of other people, each against a server that always refuses. What counts is how
many requests arrive. Most of the libraries are not installed everywhere: `pip install perdure[test-clients]`."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any

import httpx
import pytest
from tests.http.stub import Say, Stub, nobody, stub

import perdure
from perdure import UsageError, single_retry_owner

BUSY = Say(
    429,
    b'{"error": {"message": "busy", "type": "rate_limit_error"}}',
    (("Content-Type", "application/json"), ("Retry-After-Ms", "1")),
)

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries


@pytest.fixture(autouse=True)
def nothing_is_left_to_the_next_test() -> Generator[None]:
    """Clients that nobody closes are collected here, and what they say of their sockets is no error."""
    yield
    if not sys.modules.keys().isdisjoint(LIBRARIES):
        gc.collect()


LIBRARIES = ("openai", "anthropic", "google.genai", "boto3", "litellm", "httpx_retries")

Call = Callable[[], Any]
Made = tuple[Any, Call]
"""A client, and a call of it."""


def module(name: str) -> Any:
    """A library that need not be here."""
    return pytest.importorskip(name, reason=f"{name} is not installed")


def chat(client: Any) -> Call:
    return lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def message(client: Any) -> Call:
    return lambda: client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hello"}])


def openai(url: str) -> Made:
    client = module("openai").OpenAI(base_url=url, api_key="key")
    return client, chat(client)


def openai_async(url: str) -> Made:
    client = module("openai").AsyncOpenAI(base_url=url, api_key="key")
    return client, chat(client)


def openai_on_azure(url: str) -> Made:
    client = module("openai").AzureOpenAI(azure_endpoint=url, api_key="key", api_version="1")
    return client, chat(client)


def anthropic(url: str) -> Made:
    client = module("anthropic").Anthropic(base_url=url, api_key="key")
    return client, message(client)


def anthropic_async(url: str) -> Made:
    client = module("anthropic").AsyncAnthropic(base_url=url, api_key="key")
    return client, message(client)


def _google(url: str) -> Any:
    types = module("google.genai.types")
    retry = types.HttpRetryOptions(attempts=2, initial_delay=0.01, jitter=0.0)
    options = types.HttpOptions(base_url=url, retry_options=retry)
    return module("google.genai").Client(api_key="key", http_options=options)


def google(url: str) -> Made:
    client = _google(url)
    return client, lambda: client.models.generate_content(model="m", contents="hello")


def google_async(url: str) -> Made:
    client = _google(url).aio
    return client, lambda: client.models.generate_content(model="m", contents="hello")


def _boto3(url: str, mode: str) -> dict[str, Any]:
    config = module("botocore.config").Config(retries={"mode": mode, "total_max_attempts": 2})
    return {
        "endpoint_url": url, "region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b",
        "config": config,
    }  # fmt: skip


def boto3_legacy(url: str) -> Made:
    client = module("boto3").client("sqs", **_boto3(url, "legacy"))
    return client, client.list_queues


def boto3_standard(url: str) -> Made:
    client = module("boto3").client("s3", **_boto3(url, "standard"))
    return client, client.list_buckets


def boto3_adaptive(url: str) -> Made:
    client = module("boto3").client("dynamodb", **_boto3(url, "adaptive"))
    return client, client.list_tables


def boto3_resource(url: str) -> Made:
    resource = module("boto3").resource("s3", **_boto3(url, "standard"))
    return resource, lambda: list(resource.buckets.all())


def litellm_chat(url: str) -> Made:
    litellm = _litellm()
    return litellm, lambda: litellm.completion(**_model(url), messages=[{"role": "user", "content": "hello"}])


def litellm_chat_async(url: str) -> Made:
    litellm = _litellm()
    return litellm, lambda: litellm.acompletion(**_model(url), messages=[{"role": "user", "content": "hello"}])


def litellm_embedding(url: str) -> Made:
    litellm = _litellm()
    return litellm, lambda: litellm.embedding(**_model(url), input=["hello"])


def litellm_router(url: str) -> Made:
    litellm = _litellm()
    models = [{"model_name": "m", "litellm_params": _model(url)}]
    router = litellm.Router(models, retry_policy=litellm.RetryPolicy(RateLimitErrorRetries=2))
    return router, lambda: router.completion(model="m", messages=[{"role": "user", "content": "hello"}])


def _litellm() -> Any:
    litellm = module("litellm")
    litellm.suppress_debug_info = True
    return litellm


def _model(url: str) -> dict[str, str]:
    return {"model": "openai/m", "api_base": url, "api_key": "key"}


def _urllib3_retry() -> Any:
    return module("urllib3").Retry(total=2, status_forcelist=[429], allowed_methods=None, redirect=3)


def requests_session(url: str) -> Made:
    requests = module("requests")
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=_urllib3_retry()))
    return session, lambda: session.post(url).raise_for_status()


def urllib3_manager(url: str) -> Made:
    manager = module("urllib3").PoolManager(retries=_urllib3_retry())
    return manager, lambda: manager.request("POST", url)


def urllib3_pool(url: str) -> Made:
    pool = module("urllib3").connection_from_url(url, retries=_urllib3_retry())
    return pool, lambda: pool.request("POST", "/")


def httpx_retries(url: str) -> Made:
    library = module("httpx_retries")
    retry = library.Retry(total=2, backoff_factor=0.001, allowed_methods=["POST"])
    client = httpx.Client(transport=library.RetryTransport(retry=retry))
    return client, lambda: client.post(url).raise_for_status()


CLIENTS = [
    openai, openai_async, openai_on_azure, anthropic, anthropic_async, google, google_async, boto3_legacy,
    boto3_standard, boto3_adaptive, boto3_resource, litellm_chat, litellm_chat_async, litellm_embedding, litellm_router,
    requests_session, urllib3_manager, urllib3_pool, httpx_retries,
]  # fmt: skip


def arrived(server: Stub, call: Call, loop: asyncio.Runner | None = None) -> int:
    """How many requests a call sends, whatever becomes of it."""
    before = len(server.requests)
    try:
        value = call()
        if loop is not None and asyncio.iscoroutine(value):
            loop.run(value)
    except Exception as error:
        print(type(error).__name__, error)
    return len(server.requests) - before


@pytest.mark.parametrize("make", CLIENTS, ids=lambda make: make.__name__)
def test_one_call_is_one_request(make: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with stub(BUSY) as server, asyncio.Runner() as loop:
        client, call = make(server.url)
        if isinstance(client, ModuleType):
            put_back(client, monkeypatch)
        assert arrived(server, call, loop) > 1, "it does not retry by itself: the test shows nothing"
        assert single_retry_owner(client) is client
        assert single_retry_owner(client) is client
        assert arrived(server, call, loop) == 1


def put_back(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is changed in litellm itself is put back after the test."""
    for name in ("num_retries", "DEFAULT_MAX_RETRIES", "completion", "acompletion", "embedding"):
        monkeypatch.setattr(module, name, getattr(module, name))


def test_httpx_connects_once() -> None:
    """Its transports retry connecting alone; nothing arrives, so what they are set to is looked at."""
    transport: Any = httpx.AsyncHTTPTransport(retries=3)
    mounted: Any = httpx.AsyncHTTPTransport(retries=4)
    single_retry_owner(httpx.AsyncClient(transport=transport, mounts={"https://": mounted}))
    assert (transport._pool._retries, mounted._pool._retries) == (0, 0)
    alone: Any = single_retry_owner(httpx.HTTPTransport(retries=3))
    assert alone._pool._retries == 0


def test_redirects_are_followed_as_before() -> None:
    requests, urllib3 = module("requests"), module("urllib3")
    moved = Say(302, headers=(("Location", "/there"),))
    with stub(moved, Say(body=b"here"), moved, Say(body=b"here")) as server:
        manager = single_retry_owner(urllib3.PoolManager())
        assert manager.request("GET", server.url).data == b"here"
        assert single_retry_owner(requests.Session()).get(server.url).content == b"here"


def test_a_lost_connection_is_not_tried_again_either() -> None:
    urllib3 = module("urllib3")
    with stub(Say(cut=0)) as server:
        manager = urllib3.PoolManager()
        assert arrived(server, lambda: manager.request("GET", server.url)) > 1
        single_retry_owner(manager)
        assert arrived(server, lambda: manager.request("GET", server.url)) == 1
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            manager.request("GET", nobody())


def test_google_does_not_send_once_more_over_aiohttp_either() -> None:
    """It does without retry options, some seconds after a lost connection."""
    options = module("google.genai.types").HttpOptions
    with stub(Say(cut=0)) as server, asyncio.Runner() as loop:
        client = module("google.genai").Client(api_key="key", http_options=options(base_url=server.url))
        single_retry_owner(client)
        call = client.aio.models.generate_content
        assert arrived(server, lambda: call(model="m", contents="hello"), loop) == 1


def test_a_client_within_a_client_is_told_too() -> None:
    openai_ = module("openai")
    http = sys.modules[openai_.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]
    transport: Any = http.HTTPTransport(retries=5)
    single_retry_owner(openai_.OpenAI(api_key="key", http_client=http.Client(transport=transport)))
    assert transport._pool._retries == 0


@pytest.mark.parametrize(
    ("unknown", "shown"), [(object(), "builtins.object"), (asyncio, "asyncio"), (7, "builtins.int")]
)
def test_an_unknown_client_is_refused_with_what_is_known(unknown: object, shown: str) -> None:
    with pytest.raises(UsageError, match=rf"single_retry_owner\({shown}\): .* openai.BaseClient, .*requests.Session"):
        perdure.single_retry_owner(unknown)

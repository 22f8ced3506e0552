"""Who retries: the step alone. Here the retries of other people's clients are switched off.

Every library keeps them elsewhere, some only in attributes that are not public; the table says where. None of them is
imported: whoever has such a client has the library. What is switched off is switched off in the client that is given,
and stays so until somebody switches it on again, or asks for retries in a single call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from perdure.errors import UsageError

C = TypeVar("C")


def single_retry_owner(client: C) -> C:
    """Switch off the retries of a client, and give the client back: the step is the only one who retries, so that the
    number of requests is the number of attempts that are counted.

    Known: clients of openai, anthropic and google-genai, of boto3 and botocore, `litellm` itself and its `Router`,
    sessions of requests, pools of urllib3, clients and transports of httpx (and httpx-retries). UsageError for anything
    else.

    >>> model = single_retry_owner(openai.AsyncOpenAI())                          # doctest: +SKIP
    """
    switch_off = _switch_of(client)
    if switch_off is None:
        shown = next(_names(client))
        raise UsageError(
            f"single_retry_owner({shown}): nothing is known about its retries. Known are {', '.join(SWITCHES)}. Switch "
            "them off where the client is made"
        )
    switch_off(client)
    return client


def _switch_of(client: object) -> Callable[[Any], None] | None:
    return next((SWITCHES[name] for name in _names(client) if name in SWITCHES), None)


def _names(client: object) -> Iterator[str]:
    """What it may be called in the table: a module by its name, anything else by package and class."""
    if isinstance(client, ModuleType):
        yield client.__name__
    else:
        yield from (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(client).__mro__)


# ── one function per way of keeping them ────────────────────────────────────────────────────


def _sdk(client: Any) -> None:
    """OpenAI and Anthropic: a number, and an HTTP client below."""
    client.max_retries = 0
    _below(client._client)


def _google(client: Any) -> None:
    """Built from options when the client is made; its aiohttp transport sends once more unless there are options."""
    inner = getattr(client, "_api_client", client)
    tenacity = sys.modules["tenacity"]
    inner._http_options.retry_options = sys.modules["google.genai.types"].HttpRetryOptions(attempts=1)
    inner._retry = tenacity.Retrying(stop=tenacity.stop_after_attempt(1), reraise=True)
    inner._async_retry = tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(1), reraise=True)


def _botocore(client: Any) -> None:
    """A handler that is asked after each answer, in all retry modes under the same id."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.unregister(f"needs-retry.{service}", unique_id=f"retry-config-{service}")


def _boto3(resource: Any) -> None:
    _botocore(resource.meta.client)


def _litellm(module: Any) -> None:
    """A global for its own loop, another for some of the clients that it makes per call; the others have two retries
    unless the call says otherwise."""
    module.num_retries = module.DEFAULT_MAX_RETRIES = 0
    for name in _LITELLM_CALLS:
        call = getattr(module, name, None)
        if call is not None and not isinstance(call, partial):
            setattr(module, name, partial(call, max_retries=0))


_LITELLM_CALLS = (
    "completion", "acompletion", "text_completion", "atext_completion", "embedding", "aembedding", "responses",
    "aresponses",
)  # fmt: skip


def _litellm_router(router: Any) -> None:
    router.num_retries = 0
    router.retry_policy = None
    router.model_group_retry_policy = None


def _requests(session: Any) -> None:
    for adapter in session.adapters.values():
        if hasattr(adapter, "max_retries"):
            adapter.max_retries = _once(adapter.max_retries)


def _urllib3_manager(manager: Any) -> None:
    """For the pools that it will make, and in those that it has."""
    manager.connection_pool_kw["retries"] = _once(manager.connection_pool_kw.get("retries"))
    for key in manager.pools.keys():  # noqa: SIM118  (no mapping that could be iterated)
        _urllib3_pool(manager.pools[key])


def _urllib3_pool(pool: Any) -> None:
    pool.retries = _once(pool.retries)


def _once(retries: Any) -> Any:
    """As many redirects as before, and no retry: neither after an error nor after an answer."""
    kind = sys.modules["urllib3.util.retry"].Retry
    before = kind.from_int(retries)
    redirects = before.total if before.redirect is None else before.redirect
    return before.new(
        total=None, connect=0, read=0, status=0, other=0, redirect=redirects, status_forcelist=(),
        respect_retry_after_header=False,
    )  # fmt: skip


def _httpx_client(client: Any) -> None:
    for transport in (client._transport, *client._mounts.values()):
        _below(transport)


def _httpx_transport(transport: Any) -> None:
    """Its pool tries to connect several times."""
    transport._pool._retries = 0


def _httpx_retries(transport: Any) -> None:
    transport.retry = type(transport.retry)(total=0)
    _below(transport._sync_transport)
    _below(transport._async_transport)


def _below(inner: object) -> None:
    """What lies below a client. If it is of somebody's own making, whether it retries is up to whoever wrote it."""
    switch_off = _switch_of(inner)
    if switch_off is not None:
        switch_off(inner)


SWITCHES: Mapping[str, Callable[[Any], None]] = {
    # by "package.Class", base classes included; a module by its name
    "openai.BaseClient": _sdk,
    "anthropic.BaseClient": _sdk,
    "google.Client": _google,
    "google.AsyncClient": _google,
    "botocore.BaseClient": _botocore,
    "boto3.ServiceResource": _boto3,
    "litellm": _litellm,
    "litellm.Router": _litellm_router,
    "requests.Session": _requests,
    "urllib3.PoolManager": _urllib3_manager,
    "urllib3.HTTPConnectionPool": _urllib3_pool,
    "httpx_retries.RetryTransport": _httpx_retries,
    **{
        f"{package}.{name}": switch
        for package in ("httpx", "httpx2")
        for name, switch in {
            "BaseClient": _httpx_client,
            "HTTPTransport": _httpx_transport,
            "AsyncHTTPTransport": _httpx_transport,
        }.items()
    },
}

"""What perdure knows of HTTP: how to read a failure, and clients that try once and leave retrying to the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from perdure.errors import UsageError

if TYPE_CHECKING:
    import httpx

TOLERANCE_SECONDS = 300.0
"""How old a webhook may be, and how far ahead of our clock."""


def client(**options: Any) -> httpx.AsyncClient:
    """An `httpx.AsyncClient` for steps and effects, with httpx's options: each request is sent once, and an answer that
    is no success is raised as `httpx.HTTPStatusError`.

    In the body of an effect a request that changes something carries the operation's id as `Idempotency-Key`, unless it
    has one already; an effect is one such request, and a second, different one needs a key of its own. In any step a
    request says in whose name it comes (`X-Perdure-Run`, `-Step`, `-Attempt`, `traceparent`) and takes no longer than
    the attempt has left. The same request twice in one attempt is logged: something below the step retries. Outside a
    run it is a plain client. One client serves many runs; close it as you would httpx's.

    UsageError where httpx is not installed.

    >>> payments = client(base_url="https://payments.example.com")                # doctest: +SKIP
    """
    made: httpx.AsyncClient = _clients().Client(**options)
    return made


def sync_client(**options: Any) -> httpx.Client:
    """As `client()`, for `def` steps and effects: an `httpx.Client`."""
    made: httpx.Client = _clients().SyncClient(**options)
    return made


def _clients() -> Any:
    try:
        from perdure.http import clients
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise UsageError("perdure.http.client() needs httpx: pip install perdure[http]") from error
    return clients


def verify_webhook(
    headers: Mapping[str, str], body: bytes, *, secret: str | Iterable[str], tolerance: float = TOLERANCE_SECONDS
) -> dict[str, Any]:
    """What a webhook of perdure says, if it is signed with this secret (or one of these), unaltered, and no older than
    `tolerance` seconds; WebhookError if it is not. `body`: the bytes as they came. The same webhook can come more than
    once, always under the same `webhook-id`."""
    from perdure.http import webhook

    return webhook.verify_webhook(headers, body, secret=secret, tolerance=tolerance)


__all__ = ["client", "sync_client", "verify_webhook"]

"""The HTTP clients for steps and effects: httpx's, which send each request once and in the attempt's name.

    request ──▶ whose is it? headers, time left, sent before? ──▶ httpx, without retries ──▶ success, or an error

What an error means is `perdure.http.classify`'s to say. What only the client can know is said here: that a failure
which by itself proves "nothing was done" proves it no more, because the same attempt has sent something before.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Any

import httpx

from perdure.errors import InDoubt, StepTimeoutError, UsageError
from perdure.http.classify import classify
from perdure.http.evidence import reach
from perdure.http.retries import single_retry_owner
from perdure.http.sender import SENDER, Requests, Sender, ThisRequest, trace_headers

log = logging.getLogger("perdure")

KEY = "Idempotency-Key"
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
"""Of one phase each: httpx has no limit for a request as a whole. The attempt has."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1): they need no key, and may be sent again."""


class Client(httpx.AsyncClient):
    """See `perdure.http.client`."""

    def __init__(self, *, timeout: Any = TIMEOUT, **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        single_retry_owner(self)

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        with _in_its_name(request, self.timeout) as named:
            response = await super().send(named, stream=True, **options)
            try:
                if not response.is_success:
                    await _read_if_possible(response)
                    response.raise_for_status()
                if not stream:
                    await response.aread()
            except BaseException:
                await response.aclose()
                raise
            return response


class SyncClient(httpx.Client):
    """See `perdure.http.sync_client`."""

    def __init__(self, *, timeout: Any = TIMEOUT, **options: Any) -> None:
        super().__init__(timeout=timeout, **options)
        single_retry_owner(self)

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        with _in_its_name(request, self.timeout) as named:
            response = super().send(named, stream=True, **options)
            try:
                if not response.is_success:
                    _read_if_possible_sync(response)
                    response.raise_for_status()
                if not stream:
                    response.read()
            except BaseException:
                response.close()
                raise
            return response


async def _read_if_possible(response: httpx.Response) -> None:
    """The body of an answer that is no success, for the error: the status says it all even if the body is lost."""
    try:
        await response.aread()
    except httpx.TransportError:
        pass


def _read_if_possible_sync(response: httpx.Response) -> None:
    try:
        response.read()
    except httpx.TransportError:
        pass


# ── in whose name ───────────────────────────────────────────────────────────────────────────


@contextmanager
def _in_its_name(given: httpx.Request, timeout: httpx.Timeout) -> Generator[httpx.Request, None, None]:
    """What is done around the sending of a request, in a step or outside. It is a copy that is sent: one request may be
    given in several steps, and must not carry the key of another."""
    request = _copy(given)
    sender = SENDER.get()
    for name, value in trace_headers(sender).items():
        request.headers.setdefault(name, value)
    if sender is None:
        yield request
        return
    _limit(request, sender, timeout)
    _account(request, sender)
    try:
        yield request
    except BaseException as error:
        if request.method not in SAFE_METHODS and sender.operation_id() is not None:
            _judge(request, sender, error)
        raise


def _copy(request: httpx.Request) -> httpx.Request:
    copy = object.__new__(type(request))
    vars(copy).update(vars(request))
    copy.headers, copy.extensions = httpx.Headers(request.headers), dict(request.extensions)
    return copy


def _limit(request: httpx.Request, sender: Sender, timeout: httpx.Timeout) -> None:
    """No phase takes longer than the attempt has left."""
    left = sender.seconds_left()
    if left <= 0:
        raise StepTimeoutError(f"{_shown(request)} was not sent: the time of {sender.label} is up")
    if left == inf:
        return
    asked: dict[str, float | None] = request.extensions.get("timeout") or timeout.as_dict()
    bounded = {phase: left if seconds is None else min(seconds, left) for phase, seconds in asked.items()}
    request.extensions["timeout"] = bounded


def _account(request: httpx.Request, sender: Sender) -> None:
    """Give the request its key, and say so if this attempt has sent it before."""
    requests = _requests_of(sender)
    this = (request.method, str(request.url), _digest(request))
    if request.method not in SAFE_METHODS and (operation := sender.operation_id()) is not None:
        request.headers.setdefault(KEY, operation)
        if request.headers[KEY] == operation:
            _carry(request, requests, this)
    if this[2] is None:
        return
    requests.sent[this] = times = requests.sent.get(this, 0) + 1
    if times > 1 and not requests.has_warned:
        requests.has_warned = True
        log.warning(
            "step %s of run %s sends %s more than once in attempt %d: something in it retries, so more requests leave "
            "than are counted. Switch that off (perdure.single_retry_owner) and leave it to the step",
            sender.label, sender.run_id, _shown(request), sender.number,
        )  # fmt: skip


def _carry(request: httpx.Request, requests: Requests, this: ThisRequest) -> None:
    """One request carries the operation's id. Another one under the same id might be answered as if it were the first,
    and never be carried out."""
    first = requests.keyed = requests.keyed or this
    if first[:2] != this[:2] or (None not in (first[2], this[2]) and first[2] != this[2]):
        raise UsageError(
            f"{_shown(request)} was not sent: the effect has sent another request ({first[0]}) under its id already. "
            f'Give this one a key of its own (headers={{"{KEY}": f"{{perdure.operation().id}}-2"}}), or make it an '
            "effect of its own"
        )


def _judge(request: httpx.Request, sender: Sender, error: BaseException) -> None:
    """A failure of an effect's request proves nothing if something has left before it that may have been carried out.
    Raises InDoubt then."""
    requests = _requests_of(sender)
    if not isinstance(error, Exception):
        requests.lost = requests.lost or f"{_shown(request)} was cancelled"
        return
    if classify(error, now=0).in_doubt:
        requests.lost = requests.lost or f"{_shown(request)} failed with {type(error).__name__}"
        return
    method = reach(error, ("request", "method")) or request.method
    if method != request.method:  # answered by a redirect: "done, see there"
        raise InDoubt(f"{_shown(request)} was answered by a redirect, and that failed: {error}") from error
    if requests.lost:
        raise InDoubt(f"{requests.lost}, then it was sent again in the same attempt, and failed: {error}") from error


def _requests_of(sender: Sender) -> Requests:
    requests = sender.requests = sender.requests or Requests()
    return requests


def _digest(request: httpx.Request) -> bytes | None:
    """Of the body; None for one that is read from a stream while it is sent."""
    try:
        return hashlib.sha256(request.content).digest()
    except httpx.RequestNotRead:
        return None


def _shown(request: httpx.Request) -> str:
    """The request without what may be secret in it."""
    return f"{request.method} {request.url.copy_with(userinfo=b'', query=None, fragment=None)}"

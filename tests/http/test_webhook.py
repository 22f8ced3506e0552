"""Signed webhooks: what a receiver believes, and what is sent over a real connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure.errors import Final, Retryable, UsageError, WebhookError
from perdure.http.webhook import Webhook, verify_webhook

SECRET = "0123456789-0123456789-0123456789"
Got = list[tuple[dict[str, str], bytes]]


@contextmanager
def receiver(answer: Callable[[int], tuple[int, dict[str, str]]]) -> Generator[tuple[str, Got]]:
    """A server on the loopback that keeps what it gets. `answer`: of the n-th request, from 1 on."""
    got: Got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            status, headers = answer(len(got))
            self.send_response(status)
            for name, value in {"content-length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/inbox?of=shop", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def taken(_: int) -> tuple[int, dict[str, str]]:
    return 204, {}


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """Worked out by hand: HMAC-SHA256 over id.timestamp.body under the secret's bytes, in base64 after `v1,`."""
    key = bytes(range(32))
    with receiver(taken) as (url, got):
        webhook = Webhook(url, secret="whsec_" + base64.b64encode(key).decode())
        webhook.send("msg-1", b'{"type":"x"}', now=1_700_000_000)
    ((headers, body),) = got
    digest = hmac.new(key, b'msg-1.1700000000.{"type":"x"}', hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert (headers["webhook-id"], headers["webhook-timestamp"], body) == ("msg-1", "1700000000", b'{"type":"x"}')
    assert headers["content-type"] == "application/json"


def sent(body: bytes = b'{"type":"inbox.new"}', secret: Any = SECRET, now: int = 1_000) -> tuple[dict[str, str], bytes]:
    with receiver(taken) as (url, got):
        Webhook(url, secret=secret).send("msg", body, now=now)
    return got[0]


def test_a_receiver_believes_what_is_signed_and_fresh() -> None:
    headers, body = sent()
    assert verify_webhook(headers, body, secret=SECRET, now=1_299) == {"type": "inbox.new"}
    assert verify_webhook({k.upper(): v for k, v in headers.items()}, body, secret=SECRET, now=1_000)
    for late in (1_301, 699):
        with pytest.raises(WebhookError, match="too long"):
            verify_webhook(headers, body, secret=SECRET, now=late)
    with pytest.raises(WebhookError, match="another secret"):
        verify_webhook(headers, body, secret=SECRET[::-1], now=1_000)


HEADERS, BODY = sent()


@pytest.mark.parametrize("where", ["webhook-id", "webhook-timestamp", "webhook-signature", "body"])
def test_whatever_is_altered_is_not_believed(where: str) -> None:
    before = BODY if where == "body" else HEADERS[where].encode()
    for at, bit in itertools.product(range(len(before)), range(7)):
        after = before[:at] + bytes([before[at] ^ 1 << bit]) + before[at + 1 :]
        headers, body = (HEADERS, after) if where == "body" else ({**HEADERS, where: after.decode()}, BODY)
        with pytest.raises(WebhookError):
            verify_webhook(headers, body, secret=SECRET, now=1_000)


def test_while_a_secret_is_replaced_both_count() -> None:
    old, new = SECRET, SECRET[::-1]
    headers, body = sent(secret=[new, old])
    for known in (old, new, ["x" * 24, old]):
        verify_webhook(headers, body, secret=known, now=1_000)
    headers, body = sent(secret=old)
    verify_webhook(headers, body, secret=[new, old], now=1_000)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_what_is_missing_is_named(missing: str) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != missing}
    with pytest.raises(WebhookError, match=missing):
        verify_webhook(headers, BODY, secret=SECRET, now=1_000)


def test_a_body_that_is_no_object_is_refused_although_it_is_signed() -> None:
    for odd in (b"[1]", b"{", b"\xff"):
        headers, body = sent(odd)
        with pytest.raises(WebhookError, match="no JSON object"):
            verify_webhook(headers, body, secret=SECRET, now=1_000)


@pytest.mark.parametrize(
    ("status", "headers", "error", "after"),
    [
        (500, {}, Retryable, None), (404, {}, Retryable, None), (302, {"location": "/"}, Retryable, None),
        (503, {"retry-after": "7"}, Retryable, 7.0), (410, {}, Final, None),
    ],
)  # fmt: skip
def test_what_an_answer_means(
    status: int, headers: dict[str, str], error: type[Exception], after: float | None
) -> None:
    with receiver(lambda _: (status, headers)) as (url, got), pytest.raises(error, match=str(status)) as raised:
        Webhook(url, secret=SECRET).send("msg", b"{}", now=1)
    assert len(got) == 1, "redirects are not followed"
    assert getattr(raised.value, "after_seconds", None) == after


@pytest.mark.parametrize("url", ["ftp://x/y", "x", "", 7, "http://", "https://me:pw@x/", "https://x/#y"])
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(UsageError, match="URL"):
        Webhook(url, secret=SECRET)


@pytest.mark.parametrize("secret", ["short", "", [], 7, ["x" * 24, "short"], "whsec_" + "?" * 40, "whsec_YWJj"])
def test_what_is_no_secret_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(UsageError) as refused:
        Webhook("https://x/", secret=secret)
    assert "short" not in str(refused.value)
    assert SECRET not in repr(Webhook("https://x/", secret=SECRET))


@pytest.mark.parametrize("timeout", [0, -1, 60, "x"])
def test_what_is_no_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        Webhook("https://x/", secret=SECRET, timeout=timeout)

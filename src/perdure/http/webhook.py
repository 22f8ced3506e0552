"""Signed webhooks: sent, and checked by whoever gets them.

The signature is that of Standard Webhooks (https://www.standardwebhooks.com): HMAC-SHA256 over the id, the time and the
body, joined by full stops. A receiver may use any library that knows them, or `verify_webhook`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import Final, Retryable, UsageError, WebhookError
from perdure.http import TOLERANCE_SECONDS

if TYPE_CHECKING:
    from urllib.parse import SplitResult

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
SECRET_PREFIX = "whsec_"  # noqa: S105  (what the standard lets secrets begin with)
SECRET_BYTES_MIN = 24
TIMEOUT_SECONDS = 15.0
TIMEOUT_SECONDS_MAX = 60.0
GONE = 410

Secrets = str | Iterable[str]


class Webhook:
    """Where news of the inbox are sent to, and with what they are signed.

    `secret`: a text of 24 characters at least, or `whsec_` and at least 24 bytes in base64, as the standard has it;
    several while one is being replaced, each signs. `timeout`: how long an answer is waited for, in seconds.

    >>> Webhook("https://example.com/inbox", secret="whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
    Webhook('https://example.com/inbox')
    """

    def __init__(self, url: str, *, secret: Secrets, timeout: float = TIMEOUT_SECONDS) -> None:
        self.url, self.timeout = url, _timeout(timeout)
        self._parts = _parts(url)
        self._keys = _keys(secret)

    def __repr__(self) -> str:
        return f"Webhook({self.url!r})"

    def send(self, id: str, body: bytes, *, now: int) -> None:
        """Send it once. Returns if it was taken (2xx). Final for 410, by which a receiver says that it wants nothing
        more; Retryable for every other answer, and whatever the network raises."""
        seconds = str(now)
        signatures = " ".join(_signature(key, id, seconds, body) for key in self._keys)
        headers = {"content-type": "application/json", ID: id, TIMESTAMP: seconds, SIGNATURE: signatures}
        status, after = self._post(body, headers)
        if status == GONE:
            raise Final(f"{self.url} answered 410: it wants no more of these")
        if not 200 <= status < 300:
            raise Retryable(f"{self.url} answered {status}", after=after)

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, float | None]:
        """The status of the answer, and the seconds after which to come back. Redirects are not followed."""
        from http.client import HTTPConnection, HTTPSConnection

        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout)
        try:
            path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            after = answer.getheader("retry-after") or ""
            return answer.status, float(after) if after.isascii() and after.isdecimal() else None
        finally:
            connection.close()


def _parts(url: Any) -> SplitResult:
    from urllib.parse import urlsplit  # `import perdure` does without it

    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment:
        raise UsageError(f"Webhook({url!r}): a URL is wanted, http or https, without #")
    if parts.username is not None or parts.password is not None:
        raise UsageError("Webhook(url): the URL has a name or a password in it; the signature says who sends")
    return parts


def _timeout(seconds: Any) -> float:
    if not isinstance(seconds, int | float) or not 0 < seconds < TIMEOUT_SECONDS_MAX:
        raise UsageError(f"Webhook(timeout={seconds!r}): more than 0 seconds, and less than {TIMEOUT_SECONDS_MAX:g}")
    return seconds


def verify_webhook(
    headers: Mapping[str, str], body: bytes, *, secret: Secrets, tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a webhook says, if it is what it seems: signed with this secret (or one of these), unaltered, and no older
    than `tolerance` seconds. WebhookError if it is not.

    `body` are the bytes as they came. The same webhook can come more than once, always under the same `webhook-id`:
    whoever must not do things twice remembers the ids.

    >>> verify_webhook({}, b"{}", secret="one that nobody can guess")
    Traceback (most recent call last):
    perdure.errors.WebhookError: the header webhook-id is missing
    """
    import hmac

    keys = _keys(secret)
    found = {name.lower(): value for name, value in headers.items()}
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not found.get(name):
            raise WebhookError(f"the header {name} is missing")
    expected = [_signature(key, found[ID], found[TIMESTAMP], body).encode() for key in keys]
    given = [each.encode(errors="replace") for each in found[SIGNATURE].split()]
    if not any(hmac.compare_digest(mine, theirs) for mine in expected for theirs in given):
        raise WebhookError("the signature does not fit: it was signed with another secret, or altered")
    _check_age(found[TIMESTAMP], tolerance, time.time() if now is None else now)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise WebhookError(f"the body is no JSON object: {error}") from error


def _check_age(timestamp: str, tolerance: float, now: float) -> None:
    if not timestamp.isascii() or not timestamp.isdecimal():
        raise WebhookError(f"{TIMESTAMP}: {timestamp!r} is no time in seconds")
    if abs(now - int(timestamp)) > tolerance:
        raise WebhookError(f"it was sent {now - int(timestamp):.0f} seconds ago: too long, or in the future")


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    import hmac

    digest = hmac.new(key, b".".join((id.encode(), timestamp.encode(), body)), hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _keys(secret: Any) -> list[bytes]:
    """The keys that sign. UsageError, which shows nothing of them, for what is too short to be a secret."""
    secrets: list[Any] = [secret]
    if isinstance(secret, Iterable) and not isinstance(secret, str):
        secrets = list(secret)  # pyright: ignore[reportUnknownArgumentType]
    keys = [_key(each) for each in secrets if isinstance(each, str)]
    if not keys or len(keys) != len(secrets) or any(len(key) < SECRET_BYTES_MIN for key in keys):
        raise UsageError(
            f"a webhook's secret is a text of at least {SECRET_BYTES_MIN} characters that nobody can guess, or "
            f"{SECRET_PREFIX} and {SECRET_BYTES_MIN} bytes or more in base64; or several of them"
        )
    return keys


def _key(secret: str) -> bytes:
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


__all__ = ["Webhook", "verify_webhook"]

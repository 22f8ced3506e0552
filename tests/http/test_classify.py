"""The classifier, against real exceptions where the library is here and against classes built like theirs elsewhere."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from email.message import Message
from enum import Enum
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.http import classify as rules
from perdure.http import evidence
from perdure.http.classify import Failure, Kind, Sent, classify

NOON = 784_111_777_000_000
"""Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110."""


def foreign(module: str, name: str, *bases: type[BaseException], **attributes: Any) -> BaseException:
    """An exception as another library would define and fill it."""
    error: BaseException = type(name, bases or (Exception,), {"__module__": module})("said the library")
    for key, value in attributes.items():
        setattr(error, key, value)
    return error


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    request = httpx.Request("POST", "https://api.example.com")
    return httpx.HTTPStatusError(f"{status}", request=request, response=httpx.Response(status, headers=said))


def verdict(error: BaseException) -> tuple[Kind, Sent]:
    failure = classify(error, now=NOON)
    assert failure.reason
    return failure.kind, failure.sent


# ── verdicts ────────────────────────────────────────────────────────────────────────────────


class Subclassed(errors.Final):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (errors.Final("no such order"), Kind.FINAL, Sent.REFUSED),
        (Subclassed("no such order"), Kind.FINAL, Sent.REFUSED),
        (errors.Retryable("full"), Kind.RETRYABLE, Sent.REFUSED),
        (errors.NeedsPerson("which of the two?"), Kind.PERSON, Sent.UNKNOWN),
        (caused(RuntimeError("x"), errors.Final("no")), Kind.FINAL, Sent.REFUSED),
        (caused(RuntimeError("x"), caused(OSError("y"), Subclassed("no"))), Kind.FINAL, Sent.REFUSED),
        (caused(answer(503), errors.Final("no")), Kind.FINAL, Sent.REFUSED),
        (caused(answer(404), errors.Retryable("not there yet")), Kind.RETRYABLE, Sent.REFUSED),
    ],
)
def test_a_verdict_outranks_everything(error: BaseException, kind: Kind, sent: Sent) -> None:
    assert verdict(error) == (kind, sent)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(None, None), (30, 30.0), (timedelta(minutes=1), 60.0), (0, 0.0), (-5, None), (float("nan"), None)],
)
def test_retryable_says_after_how_long(after: timedelta | float | None, expected: float | None) -> None:
    assert classify(errors.Retryable("full", after=after), now=NOON).after_seconds == expected


def test_a_verdict_that_was_only_being_handled_is_no_cause() -> None:
    error = RuntimeError("another story")
    error.__context__ = errors.Final("handled")
    assert verdict(error)[0] is Kind.RETRYABLE


def test_every_verdict_has_a_rule() -> None:
    assert set(rules.VERDICTS) == set(errors.Verdict.__subclasses__())


# ── answers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statuses", "kind", "sent"),
    [
        ((429, 425, 529), Kind.RETRYABLE, Sent.REFUSED),
        ((408, 500, 502, 503, 504, 507, 599), Kind.RETRYABLE, Sent.UNKNOWN),
        ((400, 401, 402, 403, 404, 405, 409, 410, 413, 415, 422, 451), Kind.FINAL, Sent.REFUSED),
        ((301, 302, 303, 304), Kind.FINAL, Sent.UNKNOWN),
    ],
)
def test_statuses(statuses: tuple[int, ...], kind: Kind, sent: Sent) -> None:
    for status in statuses:
        assert verdict(answer(status)) == (kind, sent), status


def test_a_time_to_come_back_makes_a_refusal_a_refusal_for_now() -> None:
    for status in (403, 409, 413, 429, 503):
        failure = classify(answer(status, retry_after="7"), now=NOON)
        assert (failure.kind, failure.sent, failure.after_seconds) == (Kind.RETRYABLE, Sent.REFUSED, 7.0)
    for status in (500, 502, 504):
        failure = classify(answer(status, retry_after="7"), now=NOON)
        assert (failure.kind, failure.sent, failure.after_seconds) == (Kind.RETRYABLE, Sent.UNKNOWN, 7.0)


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (answer(409, x_should_retry="true"), Kind.RETRYABLE, Sent.REFUSED),
        (answer(429, x_should_retry="false"), Kind.FINAL, Sent.REFUSED),
        (answer(500, x_should_retry="false"), Kind.FINAL, Sent.UNKNOWN),
        (answer(404, x_should_retry="perhaps"), Kind.FINAL, Sent.REFUSED),
    ],
)
def test_x_should_retry_outranks_the_status(error: BaseException, kind: Kind, sent: Sent) -> None:
    assert verdict(error) == (kind, sent)


BY_LIBRARY: dict[str, Callable[[int], BaseException]] = {
    "httpx": answer,
    "requests": lambda status: foreign(
        "requests.exceptions", "HTTPError", OSError, response=SimpleNamespace(status_code=status, headers={})
    ),
    "urllib": lambda status: urllib.error.HTTPError("http://x", status, "no", Message(), None),
    "aiohttp": lambda status: foreign("aiohttp.client_exceptions", "ClientResponseError", status=status, headers={}),
    "openai": lambda status: foreign(
        "openai", "APIStatusError", status_code=status, code=None, body=None, response=httpx.Response(status)
    ),
    "anthropic": lambda status: foreign("anthropic", "APIStatusError", status_code=status, body={"type": "error"}),
    "google.api_core": lambda status: foreign("google.api_core.exceptions", "GoogleAPICallError", code=status),
    "google.genai": lambda status: foreign("google.genai.errors", "APIError", code=status, status="", details={}),
    "botocore": lambda status: foreign(
        "botocore.exceptions",
        "ClientError",
        response={"Error": {"Code": "Odd"}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}},
    ),
    "litellm": lambda status: foreign("litellm.exceptions", "SomeError", status_code=status, llm_provider="x"),
    "stripe": lambda status: foreign("stripe", "APIError", http_status=status, headers={}),
    "kubernetes": lambda status: foreign("kubernetes.client", "ApiException", status=status, headers=None),
}


@pytest.mark.parametrize("library", BY_LIBRARY)
def test_the_status_is_found_in_the_exceptions_of(library: str) -> None:
    error = BY_LIBRARY[library]
    assert evidence.http_status(error(503)) == 503
    assert verdict(error(503)) == (Kind.RETRYABLE, Sent.UNKNOWN)
    assert verdict(error(404)) == (Kind.FINAL, Sent.REFUSED)
    assert verdict(caused(RuntimeError("wrapped"), error(404))) == (Kind.FINAL, Sent.REFUSED)
    assert classify(error(404), now=NOON).undecided is None


@pytest.mark.parametrize(
    "headers",
    [
        httpx.Headers({"Retry-After": "3"}),
        {"retry-after": "3"},
        {"RETRY-AFTER": "3"},
        {b"Retry-After": b"3"},
    ],
)
def test_headers_are_found_whatever_their_type_and_case(headers: object) -> None:
    assert evidence.asked_to_wait(foreign("lib", "Error", headers=headers), now=NOON) == 3.0
    response = SimpleNamespace(headers=headers)
    assert evidence.asked_to_wait(foreign("lib", "Error", response=response), now=NOON) == 3.0
    in_metadata = {"ResponseMetadata": {"HTTPHeaders": headers}}
    assert evidence.asked_to_wait(foreign("lib", "Error", response=in_metadata), now=NOON) == 3.0


def test_headers_of_urllib() -> None:
    said = Message()
    said["Retry-After"] = "3"
    failure = classify(urllib.error.HTTPError("http://x", 429, "slow down", said, None), now=NOON)
    assert failure == Failure(Kind.RETRYABLE, Sent.REFUSED, "too many requests (HTTP 429)", after_seconds=3.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 08:50:37 -0000", 60.0),
        ("Sun, 06 Nov 1994 09:50:37 +0100", 60.0),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e5", None),
        ("1_0", None),
        ("9" * 400, None),
        ("１２", None),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after(value: str, expected: float | None) -> None:
    assert evidence.retry_after(value, now=NOON) == expected


@given(st.text(max_size=40))
def test_retry_after_never_raises(value: str) -> None:
    seconds = evidence.retry_after(value, now=NOON)
    assert seconds is None or seconds >= 0


def test_retry_after_ms_is_finer() -> None:
    assert classify(answer(429, retry_after="2", retry_after_ms="1500"), now=NOON).after_seconds == 1.5
    assert classify(answer(429, retry_after="2", retry_after_ms="x"), now=NOON).after_seconds == 2.0
    assert classify(answer(429, retry_after="garbage"), now=NOON).after_seconds is None


def test_google_retry_info() -> None:
    info = [
        {"@type": "type.googleapis.com/google.rpc.Help"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"},
    ]
    error = foreign("google.genai.errors", "ClientError", code=429, details={"error": {"details": info}})
    assert classify(error, now=NOON).after_seconds == 34.5


# ── error codes ─────────────────────────────────────────────────────────────────────────────


def of_aws(code: str, status: int) -> BaseException:
    said = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return foreign("botocore.exceptions", "ClientError", response=said)


class GrpcStatus(Enum):
    UNAVAILABLE = (14, "unavailable")
    INVALID_ARGUMENT = (3, "invalid argument")
    DEADLINE_EXCEEDED = (4, "deadline exceeded")
    RESOURCE_EXHAUSTED = (8, "resource exhausted")


def of_openai(status: int, code: str) -> BaseException:
    return foreign("openai", "APIStatusError", status_code=status, code=code)


def of_grpc(status: GrpcStatus) -> BaseException:
    class AioRpcError(Exception):
        def code(self) -> GrpcStatus:
            return status

    return AioRpcError()


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (of_aws("ThrottlingException", 400), Kind.RETRYABLE, Sent.REFUSED),
        (of_aws("SlowDown", 503), Kind.RETRYABLE, Sent.REFUSED),
        (of_aws("ModelNotReadyException", 429), Kind.RETRYABLE, Sent.REFUSED),
        (of_aws("RequestTimeout", 400), Kind.RETRYABLE, Sent.UNKNOWN),
        (of_aws("ValidationException", 400), Kind.FINAL, Sent.REFUSED),
        (of_grpc(GrpcStatus.UNAVAILABLE), Kind.RETRYABLE, Sent.UNKNOWN),
        (of_grpc(GrpcStatus.DEADLINE_EXCEEDED), Kind.RETRYABLE, Sent.UNKNOWN),
        (of_grpc(GrpcStatus.RESOURCE_EXHAUSTED), Kind.RETRYABLE, Sent.REFUSED),
        (of_grpc(GrpcStatus.INVALID_ARGUMENT), Kind.FINAL, Sent.REFUSED),
        (foreign("openai", "RateLimitError", status_code=429, code="insufficient_quota"), Kind.FINAL, Sent.REFUSED),
        (
            foreign("openai", "RateLimitError", status_code=429, code="rate_limit_exceeded"),
            Kind.RETRYABLE,
            Sent.REFUSED,
        ),
        (foreign("openai", "APIError", code="server_error"), Kind.RETRYABLE, Sent.UNKNOWN),
        (
            foreign("anthropic", "APIStatusError", status_code=200, body={"error": {"type": "overloaded_error"}}),
            Kind.RETRYABLE,
            Sent.REFUSED,
        ),
        (foreign("google.genai.errors", "APIError", code=403, status="PERMISSION_DENIED"), Kind.FINAL, Sent.REFUSED),
        (
            foreign(
                "google.api_core.exceptions", "Aborted", code=409, grpc_status_code=SimpleNamespace(name="ABORTED")
            ),
            Kind.RETRYABLE,
            Sent.REFUSED,
        ),
    ],
)
def test_codes_are_sharper_than_the_status(error: BaseException, kind: Kind, sent: Sent) -> None:
    assert verdict(error) == (kind, sent)


def test_a_code_that_is_no_status_is_left_alone() -> None:
    for code in ("e3q8", 1006, True, 7.5, object()):
        assert classify(foreign("lib", "Error", code=code), now=NOON).undecided is not None


# ── a model's refusal ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        foreign("openai", "ContentFilterFinishReasonError"),
        foreign("litellm.exceptions", "ContentPolicyViolationError", status_code=400),
        foreign("some.framework", "UnexpectedFinish", finish_reason="content_filter"),
        foreign("some.framework", "UnexpectedFinish", stop_reason="refusal"),
        foreign("some.framework", "UnexpectedFinish", finish_reason=SimpleNamespace(name="SAFETY")),
        foreign("lib", "E", completion=SimpleNamespace(choices=[SimpleNamespace(finish_reason="content_filter")])),
        foreign("lib", "E", response={"stopReason": "guardrail_intervened"}),
        caused(RuntimeError("agent failed"), foreign("openai", "ContentFilterFinishReasonError")),
        foreign("openai", "BadRequestError", status_code=400, code="content_filter"),
    ],
)
def test_a_refusal_on_account_of_content_is_final(error: BaseException) -> None:
    assert verdict(error) == (Kind.FINAL, Sent.REFUSED)


def test_a_model_that_stopped_for_another_reason_did_not_refuse() -> None:
    for reason in ("length", "stop", "tool_calls", "max_tokens", None, 7):
        assert verdict(foreign("lib", "Unfinished", finish_reason=reason))[0] is Kind.RETRYABLE


# ── the network ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (ConnectionRefusedError(), Kind.RETRYABLE, Sent.NOT_SENT),
        (OSError(errno.ECONNREFUSED, "refused"), Kind.RETRYABLE, Sent.NOT_SENT),
        (OSError(errno.EHOSTUNREACH, "no route"), Kind.RETRYABLE, Sent.NOT_SENT),
        (socket.gaierror(socket.EAI_AGAIN, "no DNS"), Kind.RETRYABLE, Sent.NOT_SENT),
        (urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "x")), Kind.RETRYABLE, Sent.NOT_SENT),
        (httpx.ConnectError("x"), Kind.RETRYABLE, Sent.NOT_SENT),
        (httpx.ConnectTimeout("x"), Kind.RETRYABLE, Sent.NOT_SENT),
        (httpx.PoolTimeout("x"), Kind.RETRYABLE, Sent.NOT_SENT),
        (httpx.UnsupportedProtocol("x"), Kind.FINAL, Sent.NOT_SENT),
        (caused(foreign("openai", "APIConnectionError"), httpx.ConnectError("x")), Kind.RETRYABLE, Sent.NOT_SENT),
        (
            foreign("aiohttp.client_exceptions", "ClientConnectorError", OSError, errno=errno.ECONNREFUSED),
            Kind.RETRYABLE,
            Sent.NOT_SENT,
        ),
        (foreign("httpx2", "ConnectError"), Kind.RETRYABLE, Sent.NOT_SENT),
        (foreign("botocore.exceptions", "EndpointConnectionError"), Kind.RETRYABLE, Sent.NOT_SENT),
        (ssl.SSLCertVerificationError("expired"), Kind.FINAL, Sent.NOT_SENT),
        (TimeoutError(), Kind.RETRYABLE, Sent.UNKNOWN),
        (OSError(errno.ETIMEDOUT, "timed out"), Kind.RETRYABLE, Sent.UNKNOWN),
        (errors.StepTimeoutError("5 s"), Kind.RETRYABLE, Sent.UNKNOWN),
        (ConnectionResetError(), Kind.RETRYABLE, Sent.UNKNOWN),
        (BrokenPipeError(), Kind.RETRYABLE, Sent.UNKNOWN),
        (EOFError(), Kind.RETRYABLE, Sent.UNKNOWN),
        (asyncio.IncompleteReadError(b"", 4), Kind.RETRYABLE, Sent.UNKNOWN),
        (httpx.ReadTimeout("x"), Kind.RETRYABLE, Sent.UNKNOWN),
        (httpx.RemoteProtocolError("x"), Kind.RETRYABLE, Sent.UNKNOWN),
        (caused(foreign("openai", "APIConnectionError"), httpx.ReadError("x")), Kind.RETRYABLE, Sent.UNKNOWN),
        (caused(ValueError("no page"), httpx.ReadTimeout("x")), Kind.RETRYABLE, Sent.UNKNOWN),
        (foreign("aiohttp.client_exceptions", "ClientPayloadError"), Kind.RETRYABLE, Sent.UNKNOWN),
    ],
)
def test_network(error: BaseException, kind: Kind, sent: Sent) -> None:
    assert verdict(error) == (kind, sent)
    assert classify(error, now=NOON).undecided is None


def test_what_requests_wraps_without_saying_from() -> None:
    reason = foreign("urllib3.exceptions", "NewConnectionError")
    pool = foreign("urllib3.exceptions", "MaxRetryError", reason=reason)
    error = foreign("requests.exceptions", "ConnectionError", OSError)
    error.args = (pool,)
    assert verdict(error) == (Kind.RETRYABLE, Sent.NOT_SENT)


def test_a_foreign_class_with_a_known_name_proves_nothing() -> None:
    assert verdict(foreign("their_app", "ConnectError")) == (Kind.RETRYABLE, Sent.UNKNOWN)


async def _refused() -> None:
    async with httpx.AsyncClient() as client:
        await client.get("http://127.0.0.1:1")


def test_a_refused_connection_for_real() -> None:
    with pytest.raises(httpx.ConnectError) as raised:
        asyncio.run(_refused())
    assert verdict(raised.value) == (Kind.RETRYABLE, Sent.NOT_SENT)
    with pytest.raises(urllib.error.URLError) as raised_by_urllib:
        urllib.request.urlopen("http://127.0.0.1:1")
    assert verdict(raised_by_urllib.value) == (Kind.RETRYABLE, Sent.NOT_SENT)


# ── classes ─────────────────────────────────────────────────────────────────────────────────


def from_msgspec() -> BaseException:
    try:
        msgspec.convert("x", int)
    except msgspec.ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TypeError("f() takes 1 argument"), Kind.FINAL),
        (ValueError("amount < 0"), Kind.FINAL),
        (KeyError("id"), Kind.FINAL),
        (IndexError(), Kind.FINAL),
        (AttributeError(), Kind.FINAL),
        (UnboundLocalError(), Kind.FINAL),
        (ModuleNotFoundError(), Kind.FINAL),
        (AssertionError(), Kind.FINAL),
        (NotImplementedError(), Kind.FINAL),
        (RecursionError(), Kind.FINAL),
        (ZeroDivisionError(), Kind.FINAL),
        (FileNotFoundError(errno.ENOENT, "x"), Kind.FINAL),
        (PermissionError(errno.EACCES, "x"), Kind.FINAL),
        (OSError(errno.EROFS, "read-only"), Kind.FINAL),
        (from_msgspec(), Kind.FINAL),
        (errors.EncodeError("$.x", "a lock"), Kind.FINAL),
        (errors.UsageError("an effect in a step"), Kind.FINAL),
        (errors.PerdureBug("x"), Kind.FINAL),
        (SystemExit(404), Kind.FINAL),
        (json.JSONDecodeError("x", "", 0), Kind.RETRYABLE),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), Kind.RETRYABLE),
        (OSError(errno.ENOSPC, "full"), Kind.RETRYABLE),
        (RuntimeError("x"), Kind.RETRYABLE),
        (Exception("x"), Kind.RETRYABLE),
        (MemoryError(), Kind.RETRYABLE),
        (errors.StoreBusyError("x"), Kind.RETRYABLE),
    ],
)
def test_classes_are_a_guess_that_retry_on_may_overrule(error: BaseException, kind: Kind) -> None:
    failure = classify(error, now=NOON)
    assert (failure.kind, failure.sent, failure.undecided) == (kind, Sent.UNKNOWN, error)
    assert failure.in_doubt


# ── groups, cancellation, oddities ──────────────────────────────────────────────────────────


def test_of_a_group_the_heaviest_member_decides() -> None:
    late, final, person = answer(429, retry_after="9"), errors.Final("no"), errors.NeedsPerson("?")
    group = ExceptionGroup("tasks", [TimeoutError(), late])
    assert classify(group, now=NOON).kind is Kind.RETRYABLE
    assert classify(group, now=NOON).after_seconds == 9.0
    assert classify(group, now=NOON).in_doubt
    assert verdict(ExceptionGroup("tasks", [late, final])) == (Kind.FINAL, Sent.REFUSED)
    assert verdict(ExceptionGroup("tasks", [TimeoutError(), final])) == (Kind.FINAL, Sent.UNKNOWN)
    assert verdict(ExceptionGroup("tasks", [final, ExceptionGroup("deep", [person])]))[0] is Kind.PERSON
    mixed = BaseExceptionGroup("tasks", [asyncio.CancelledError(), final])
    assert verdict(mixed) == (Kind.FINAL, Sent.REFUSED)


def test_a_cancellation_is_no_failure() -> None:
    for error in (asyncio.CancelledError(), BaseExceptionGroup("tasks", [asyncio.CancelledError()])):
        with pytest.raises(errors.PerdureBug, match="cancellation"):
            classify(error, now=NOON)


def test_causes_in_a_circle() -> None:
    first, second = RuntimeError("1"), RuntimeError("2")
    first.__cause__, second.__cause__ = second, first
    assert verdict(first) == (Kind.RETRYABLE, Sent.UNKNOWN)


class Hostile(Exception):
    """Every attribute of it fails, and in another way."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"status", "code", "response", "headers", "body", "reason", "finish_reason", "details"}:
            raise RuntimeError(f"no {name} for you")
        return super().__getattribute__(name)


def test_properties_that_raise_are_not_said() -> None:
    assert verdict(Hostile()) == (Kind.RETRYABLE, Sent.UNKNOWN)
    assert verdict(httpx.ReadTimeout("its property `request` raises")) == (Kind.RETRYABLE, Sent.UNKNOWN)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.none()
            | st.integers()
            | st.text(max_size=9)
            | st.dictionaries(st.text(), st.text())
            | st.lists(st.none())
            for name in ("status", "status_code", "code", "response", "headers", "body", "reason", "details", "type")
        },
    )
)
def test_whatever_an_exception_carries_it_is_classified(attributes: dict[str, Any]) -> None:
    assert classify(foreign("lib", "Odd", **attributes), now=NOON).reason

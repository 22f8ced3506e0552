"""What does an exception say about the request behind it: status, error code, headers, finish reason, cause?

Every client library says it differently; it is read by duck typing, so none of them is imported. Nothing here raises:
an attribute that is missing, of another type, or a property that fails counts as not said. What it *means* is decided
in `classify`, alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, cast

from perdure.clock import MICROSECONDS

LINKS_MAX = 20
"""How far a chain of causes is followed."""

STATUS_PATHS: tuple[tuple[str, ...], ...] = (
    ("status_code",),  # openai, anthropic, litellm, google.genai, starlette
    ("response", "status_code"),  # httpx, requests
    ("response", "ResponseMetadata", "HTTPStatusCode"),  # botocore
    ("response", "status"),
    ("status",),  # aiohttp, kubernetes
    ("http_status",),  # stripe
    ("code",),  # urllib, google.api_core, google.genai
)
CODE_PATHS: tuple[tuple[str, ...], ...] = (
    ("response", "Error", "Code"),  # botocore
    ("code",),  # openai
    ("body", "error", "code"),
    ("body", "error", "type"),  # anthropic, also in the middle of a stream, where the status is 200
    ("body", "code"),
    ("type",),
    ("grpc_status_code", "name"),  # google.api_core
    ("status",),  # google.genai: "RESOURCE_EXHAUSTED"
)
HEADER_PATHS: tuple[tuple[str, ...], ...] = (
    ("response", "headers"),  # httpx, requests, openai, anthropic, litellm
    ("response", "ResponseMetadata", "HTTPHeaders"),  # botocore
    ("headers",),  # urllib, aiohttp, stripe
)
FINISH_PATHS: tuple[tuple[str, ...], ...] = (
    ("finish_reason",),
    ("stop_reason",),
    ("completion", "choices", "0", "finish_reason"),  # openai
    ("response", "choices", "0", "finish_reason"),
    ("body", "choices", "0", "finish_reason"),
    ("response", "stop_reason"),  # anthropic
    ("response", "stopReason"),  # bedrock
    ("response", "candidates", "0", "finish_reason"),  # google
)
DETAIL_PATHS: tuple[tuple[str, ...], ...] = (
    ("details", "error", "details"),  # google.genai
    ("details",),
)


def reach(start: object, path: Sequence[str]) -> Any:
    """What lies at the end of a path of attributes, mapping keys and list indexes; None if it breaks off."""
    found: Any = start
    for name in path:
        try:
            if isinstance(found, Mapping):
                found = cast("Mapping[str, Any]", found).get(name)
            elif isinstance(found, (list, tuple)):
                found = cast("Sequence[Any]", found)[int(name)]
            else:
                found = getattr(found, name, None)
        except Exception:  # a property of a foreign class may raise anything
            return None
        if found is None:
            return None
    return found


def links(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from, and so on.

    Where a library did not say `from`, the exception that it carries is taken: `.reason` (urllib, urllib3) or one
    among the arguments (requests). What merely was being handled at the time (`__context__`) is no cause.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < LINKS_MAX:
        yield link
        seen.add(id(link))
        carried = (link.__cause__, reach(link, ("reason",)), *link.args)
        link = next((one for one in carried if isinstance(one, BaseException)), None)


def http_status(error: BaseException) -> int | None:
    """The HTTP status of the answer that the error is about: 100 to 599."""
    for path in STATUS_PATHS:
        status = reach(error, path)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
            return int(status)
    return None


def error_codes(error: BaseException) -> Iterator[str]:
    """The words by which services tell their errors apart, besides the status; for gRPC the name of its status."""
    for path in CODE_PATHS:
        code = reach(error, path)
        if isinstance(code, str):
            yield code
    ask = reach(error, ("code",))
    if callable(ask) and reach(type(error), ("code",)) is not None:  # grpc: a method that gives an enum
        name = reach(_called(ask), ("name",))
        if isinstance(name, str):
            yield name


def _called(ask: Any) -> object:
    try:
        return ask()
    except Exception:  # as in reach()
        return None


def finish_reasons(error: BaseException) -> Iterator[str]:
    """Why the model stopped, if the error carries its answer; in lower case."""
    for path in FINISH_PATHS:
        reason = reach(error, path)
        text = reason if isinstance(reason, str) else reach(reason, ("name",))
        if isinstance(text, str):
            yield str(text).lower()


def headers(error: BaseException) -> dict[str, str]:
    """The headers of the answer, with names in lower case."""
    for path in HEADER_PATHS:
        found = reach(error, path)
        if found is not None and (said := _lowered(found)):
            return said
    return {}


def _lowered(found: Any) -> dict[str, str]:
    try:
        return {_text(name).lower(): _text(value) for name, value in found.items()}
    except Exception:  # as in reach()
        return {}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def asked_to_wait(error: BaseException, *, now: int) -> float | None:
    """The seconds that the other side asked us to wait; None if it did not say, or nothing that can be read.

    Read in this order: `retry-after-ms`, `Retry-After` as seconds or as a date (a past one is 0), Google's RetryInfo.
    """
    said = headers(error)
    in_milliseconds = _number(said.get("retry-after-ms"))
    if in_milliseconds is not None:
        return in_milliseconds / 1_000
    in_seconds = retry_after(said.get("retry-after", ""), now=now)
    return _retry_info(error) if in_seconds is None else in_seconds


def retry_after(value: str, *, now: int) -> float | None:
    """The header's value in seconds from `now` (microseconds since the epoch).

    >>> retry_after("120", now=0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", now=0), retry_after("soon", now=0)
    (120.0, 60.0, None)
    """
    number = _number(value)
    if number is not None or not value:
        return number
    from email.utils import parsedate_to_datetime  # rarely needed, and slow to import

    try:
        date = parsedate_to_datetime(value.strip())
        at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, at - now / MICROSECONDS)


def _number(text: str | None) -> float | None:
    """A number of seconds as a header says it; not all that float() takes ("nan", "1_0", "-1")."""
    return float(text) if text and re.fullmatch(r"\s*[0-9]{1,300}(\.[0-9]*)?\s*", text, re.ASCII) else None


def _retry_info(error: BaseException) -> float | None:
    for path in DETAIL_PATHS:
        details = reach(error, path)
        for detail in cast("Sequence[object]", details) if isinstance(details, list) else ():
            delay = re.fullmatch(r"([0-9.]+)s", str(reach(detail, ("retryDelay",))))
            if delay and str(reach(detail, ("@type",))).endswith("google.rpc.RetryInfo"):
                return _number(delay[1])
    return None

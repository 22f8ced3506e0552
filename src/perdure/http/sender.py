"""In whose name a request leaves: the attempt whose body is running. Whoever runs bodies says it here; the HTTP clients
ask. It imports no client library."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

ThisRequest = tuple[str, str, bytes | None]
"""Method, URL, and the digest of the body if it can be read ahead."""


class Requests(msgspec.Struct):
    """What one attempt has sent so far.

    `sent`: how often each request; `keyed`: the one that carries the operation's id; `lost`: of an effect's request
    without an answer that proves anything, what happened to it.
    """

    sent: dict[ThisRequest, int] = {}
    keyed: ThisRequest | None = None
    lost: str = ""
    has_warned: bool = False


class Sender(Protocol):
    """One attempt at a step. `label` is the call's, `number` counts from 1."""

    number: int
    requests: Requests | None

    @property
    def run_id(self) -> str: ...
    @property
    def label(self) -> str: ...

    def seconds_left(self) -> float:
        """How long the attempt may still take; 0 or less when its time is up."""
        ...

    def operation_id(self) -> str | None:
        """The operation that the attempt is about; None in a plain step."""
        ...


SENDER: ContextVar[Sender | None] = ContextVar("perdure_sender", default=None)
"""Set in the context of a step's body, and nowhere else."""


def header_text(text: str) -> str:
    """A text as a header can carry it: what is not plain ASCII is percent-encoded.

    >>> header_text("claim-42/refund#1"), header_text("größe 7")
    ('claim-42/refund#1', 'gr%C3%B6%C3%9Fe%207')
    """
    from urllib.parse import quote  # only where something is sent

    return quote(text, safe="!#$&'()*+,/:;=?@[]~")


def trace_headers(sender: Sender | None) -> dict[str, str]:
    """Which run, step and attempt a request comes from, and the W3C trace that it belongs to if there is one."""
    named: dict[str, str] = {}
    if sender is not None:
        named = {
            "X-Perdure-Run": header_text(sender.run_id),
            "X-Perdure-Step": header_text(sender.label),
            "X-Perdure-Attempt": str(sender.number),
        }
    parent = _traceparent()
    return {**named, "traceparent": parent} if parent else named


def _traceparent() -> str | None:
    """The current span of OpenTelemetry, where the program uses it. https://www.w3.org/TR/trace-context/#traceparent-header"""
    tracing: Any = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return None
    span = tracing.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"

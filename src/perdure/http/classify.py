"""What does a failure mean: try again, give up, or ask a person? And did the request reach the other side?

The one place where perdure decides it, for steps and for effects alike. The rules are the tables below, read from the
strongest evidence to the weakest; the first that knows the failure decides:

1. **a verdict**: the step's own word (`Final`, `Retryable`, `NeedsPerson`), also as the cause of what was raised;
2. **a refusal by a model** on account of content: asking again gives the same again, or a worse answer;
3. **an answer**: `x-should-retry`, then the service's error code, then the HTTP status;
4. **the network**: no connection, no answer in time, a lost connection;
5. **a guess by class**: Python's errors about names, types and values are bugs in the step or its arguments, so final.
   Whatever no rule knows is retryable: for a step it costs a few attempts, whereas giving up costs the whole run, and
   most exceptions of unknown libraries around a network *are* the network. `Retry.on` outranks this tier alone.

1 to 4 look through the chain of causes (`raise ... from error`); 5 looks at what was raised. Of an exception group all
members count: one that is final makes it final.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from perdure import errors
from perdure.http import evidence


class Kind(StrEnum):
    """What to do about a failure of a step. In the order of weight: the heaviest in a group decides."""

    RETRYABLE = "retryable"
    FINAL = "final"
    PERSON = "person"


class Sent(StrEnum):
    """What is proven about the request. An effect may only be tried again, or be called failed, on a proof."""

    NOT_SENT = "not_sent"
    """It never left."""
    REFUSED = "refused"
    """It was answered, and the answer (or the author's verdict) says that nothing was done."""
    UNKNOWN = "unknown"
    """It may have left and it may have worked: an effect is in doubt."""


class Failure(msgspec.Struct, frozen=True):
    """A classified failure.

    `after_seconds` is what the other side, or the step's verdict, asked us to wait at least. `undecided` is the
    exception itself if nothing but its class was known: `Retry.on` may then decide.
    """

    kind: Kind
    sent: Sent
    reason: str
    after_seconds: float | None = None
    undecided: BaseException | None = None

    @property
    def in_doubt(self) -> bool:
        """For an effect: nothing proves what happened, so neither sending again nor giving up is safe by itself."""
        return self.sent is Sent.UNKNOWN


class Rule(msgspec.Struct, frozen=True):
    """A row of the tables."""

    kind: Kind
    sent: Sent
    means: str


# ── the tables ──────────────────────────────────────────────────────────────────────────────

VERDICTS: Mapping[type[errors.Verdict], Rule] = {
    errors.Final: Rule(Kind.FINAL, Sent.REFUSED, "the step said: final"),
    errors.Retryable: Rule(Kind.RETRYABLE, Sent.REFUSED, "the step said: try again"),
    errors.InDoubt: Rule(Kind.RETRYABLE, Sent.UNKNOWN, "the effect said: in doubt"),
    errors.NeedsPerson: Rule(Kind.PERSON, Sent.UNKNOWN, "the step said: a person must decide"),
}

REFUSAL = Rule(Kind.FINAL, Sent.REFUSED, "the model refused on account of content")
REFUSAL_FINISH_REASONS = frozenset(
    {
        "refusal", "content_filter", "content_filtered", "safety", "guardrail_intervened", "blocklist",
        "prohibited_content", "spii", "recitation", "image_safety",
    }
)  # fmt: skip
"""How models say that they refused, also in an answer with status 200: adapters raise `Final` on these."""
REFUSAL_CLASSES = frozenset(
    {
        "ContentFilterFinishReasonError", "ContentPolicyViolationError", "ContentFilterError", "ModelRefusalError",
        "BlockedPromptException", "StopCandidateException",
    }
)  # fmt: skip

_THROTTLED = Rule(Kind.RETRYABLE, Sent.REFUSED, "too many requests")
_OVERLOADED = Rule(Kind.RETRYABLE, Sent.REFUSED, "overloaded")
_BROKEN = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "failed on the other side")
_SLOW = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "took too long on the other side")
_DENIED = Rule(Kind.FINAL, Sent.REFUSED, "refused by the other side")
_ODD = Rule(Kind.FINAL, Sent.UNKNOWN, "an answer that is no result")

CODES: Mapping[str, Rule] = {
    # AWS answers 400 to what others call 429
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    "EC2ThrottledException": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
    "ProvisionedThroughputExceededException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "BandwidthLimitExceeded": _THROTTLED,
    "LimitExceededException": _THROTTLED,
    "SlowDown": _THROTTLED,
    "PriorRequestNotComplete": _THROTTLED,
    "TransactionInProgressException": _THROTTLED,
    "ModelNotReadyException": _OVERLOADED,
    "RequestTimeout": _SLOW,
    "RequestTimeoutException": _SLOW,
    # models: in the middle of a stream there is no status, or it is 200
    "rate_limit_error": _THROTTLED,
    "rate_limit_exceeded": _THROTTLED,
    "overloaded_error": _OVERLOADED,
    "api_error": _BROKEN,
    "server_error": _BROKEN,
    "timeout_error": _SLOW,
    "insufficient_quota": Rule(Kind.FINAL, Sent.REFUSED, "the account has no credit left"),
    "billing_error": Rule(Kind.FINAL, Sent.REFUSED, "the account has no credit left"),
    "authentication_error": _DENIED,
    "permission_error": _DENIED,
    "invalid_request_error": _DENIED,
    "context_length_exceeded": _DENIED,
    "content_filter": REFUSAL,
    "content_policy_violation": REFUSAL,
    # gRPC
    "RESOURCE_EXHAUSTED": _THROTTLED,
    "ABORTED": Rule(Kind.RETRYABLE, Sent.REFUSED, "aborted by the other side"),
    "UNAVAILABLE": _BROKEN,
    "INTERNAL": _BROKEN,
    "UNKNOWN": _BROKEN,
    "CANCELLED": _BROKEN,
    "DEADLINE_EXCEEDED": _SLOW,
    "DATA_LOSS": _ODD,
    "INVALID_ARGUMENT": _DENIED,
    "NOT_FOUND": _DENIED,
    "ALREADY_EXISTS": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "UNAUTHENTICATED": _DENIED,
    "FAILED_PRECONDITION": _DENIED,
    "OUT_OF_RANGE": _DENIED,
    "UNIMPLEMENTED": _DENIED,
}

STATUSES: Mapping[int, Rule] = {408: _SLOW, 425: _OVERLOADED, 429: _THROTTLED, 504: _SLOW, 529: _OVERLOADED}
STATUS_CLASSES: Mapping[int, Rule] = {3: _ODD, 4: _DENIED, 5: _BROKEN}
"""By the first digit, for a status that is not in STATUSES. 1xx and 2xx say nothing about a failure."""
COME_BACK = Rule(Kind.RETRYABLE, Sent.REFUSED, "refused for now")
"""A 4xx or 503 that names a time to come back is not final, and nothing was done."""

_UNREACHED = Rule(Kind.RETRYABLE, Sent.NOT_SENT, "no connection")
_UNANSWERED = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "no answer in time")
_LOST = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "the connection was lost")
_NO_ADDRESS = Rule(Kind.FINAL, Sent.NOT_SENT, "not a usable address")

_HTTPX: Mapping[str, Rule] = {
    "ConnectError": _UNREACHED,
    "ConnectTimeout": _UNREACHED,
    "PoolTimeout": _UNREACHED,
    "ProxyError": _UNREACHED,
    "UnsupportedProtocol": _NO_ADDRESS,
    "InvalidURL": _NO_ADDRESS,
    "TimeoutException": _UNANSWERED,
    "NetworkError": _LOST,
    "TransportError": _LOST,
}
NETWORK: Mapping[str, Rule] = {
    # by "package.Class", base classes included; a rule that proves "not sent" must name the package
    "builtins.ConnectionRefusedError": _UNREACHED,
    "builtins.ConnectionError": _LOST,
    "builtins.TimeoutError": _UNANSWERED,
    "builtins.EOFError": _LOST,
    "socket.gaierror": _UNREACHED,
    "ssl.SSLCertVerificationError": Rule(Kind.FINAL, Sent.NOT_SENT, "the certificate was not accepted"),
    "http.HTTPException": _LOST,
    **{
        f"{root}.{name}": rule for root in ("httpx", "httpx2", "httpcore", "httpcore2") for name, rule in _HTTPX.items()
    },
    "requests.ConnectTimeout": _UNREACHED,
    "requests.InvalidURL": _NO_ADDRESS,
    "requests.MissingSchema": _NO_ADDRESS,
    "requests.Timeout": _UNANSWERED,
    "requests.ConnectionError": _LOST,
    "requests.ChunkedEncodingError": _LOST,
    "urllib3.NewConnectionError": _UNREACHED,
    "urllib3.ConnectTimeoutError": _UNREACHED,
    "urllib3.ReadTimeoutError": _UNANSWERED,
    "urllib3.ProtocolError": _LOST,
    "aiohttp.ClientConnectorError": _UNREACHED,
    "aiohttp.ConnectionTimeoutError": _UNREACHED,
    "aiohttp.InvalidURL": _NO_ADDRESS,
    "aiohttp.ServerTimeoutError": _UNANSWERED,
    "aiohttp.ClientConnectionError": _LOST,
    "aiohttp.ClientPayloadError": _LOST,
    "botocore.EndpointConnectionError": _UNREACHED,
    "botocore.ConnectTimeoutError": _UNREACHED,
    "botocore.ReadTimeoutError": _UNANSWERED,
    "botocore.HTTPClientError": _LOST,
    "openai.APITimeoutError": _UNANSWERED,
    "openai.APIConnectionError": _LOST,
    "anthropic.APITimeoutError": _UNANSWERED,
    "anthropic.APIConnectionError": _LOST,
}

NETWORK_ERRNOS: Mapping[int, Rule] = {
    errno.ECONNREFUSED: _UNREACHED,
    errno.ENETUNREACH: _UNREACHED,
    errno.EHOSTUNREACH: _UNREACHED,
    errno.EHOSTDOWN: _UNREACHED,
    errno.ENETDOWN: _UNREACHED,
    errno.EADDRNOTAVAIL: _UNREACHED,
    errno.ETIMEDOUT: _UNANSWERED,
    errno.ECONNRESET: _LOST,
    errno.ECONNABORTED: _LOST,
    errno.ENETRESET: _LOST,
    errno.EPIPE: _LOST,
    errno.ESHUTDOWN: _LOST,
    errno.ENOTCONN: _LOST,
}

_BUG = Rule(Kind.FINAL, Sent.UNKNOWN, "a bug in the step, or bad arguments")
_GARBLED = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "an answer that cannot be read")
_SCHEMA = Rule(Kind.FINAL, Sent.UNKNOWN, "a value that does not fit its schema")
_FILE = Rule(Kind.FINAL, Sent.UNKNOWN, "a file that is not there, or not ours")
_STOP = Rule(Kind.FINAL, Sent.UNKNOWN, "the step asked its process to stop: that ends the step, not the worker")
_CTRL_C = Rule(Kind.FINAL, Sent.UNKNOWN, "Ctrl-C, among the errors of a group; alone it ends the process")
_MISUSE = Rule(Kind.FINAL, Sent.UNKNOWN, "a wrong use of perdure")
UNKNOWN = Rule(Kind.RETRYABLE, Sent.UNKNOWN, "not known to any rule")

CLASSES: Mapping[type[BaseException], Rule] = {
    TypeError: _BUG,
    AttributeError: _BUG,
    NameError: _BUG,
    ImportError: _BUG,
    SyntaxError: _BUG,
    AssertionError: _BUG,
    NotImplementedError: _BUG,
    RecursionError: _BUG,
    ArithmeticError: _BUG,
    LookupError: _BUG,
    ValueError: _BUG,
    UnicodeError: _GARBLED,
    FileNotFoundError: _FILE,
    FileExistsError: _FILE,
    IsADirectoryError: _FILE,
    NotADirectoryError: _FILE,
    PermissionError: _FILE,
    errors.UserCodeError: _MISUSE,
    errors.UnknownNameError: _MISUSE,
    errors.RunConflictError: _MISUSE,
    errors.PerdureBug: _MISUSE,
    KeyboardInterrupt: _CTRL_C,
    SystemExit: _STOP,
    GeneratorExit: _STOP,
}
"""By the nearest base class."""
CLASS_NAMES: Mapping[str, Rule] = {
    "ValidationError": _SCHEMA,  # pydantic, msgspec, jsonschema, ...
    "JSONDecodeError": _GARBLED,  # json, simplejson, ...
}

FILE_ERRNOS: Mapping[int, Rule] = dict.fromkeys((errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP), _FILE)


# ── reading them ────────────────────────────────────────────────────────────────────────────


def classify(error: BaseException, *, now: int) -> Failure:
    """What a failure means. `now` (microseconds since the epoch) is what Retry-After dates are measured from.

    >>> classify(ConnectionRefusedError(), now=0)
    Failure(kind=<Kind.RETRYABLE: 'retryable'>, sent=<Sent.NOT_SENT: 'not_sent'>, reason='no connection \
(ConnectionRefusedError)', after_seconds=None, undecided=None)

    Raises PerdureBug on a cancellation: that is somebody's wish, not a failure.
    """
    if isinstance(error, asyncio.CancelledError):
        raise errors.PerdureBug("a cancellation was classified as a failure")
    chain = [link for link in evidence.links(error) if isinstance(link, Exception)]  # exit(404) is no HTTP status
    for tier in (_verdict, _refusal, _answer):
        for link in chain:
            if (failure := tier(link, now)) is not None:
                return failure
    if isinstance(error, BaseExceptionGroup):
        return _heaviest(cast("BaseExceptionGroup[BaseException]", error), now)
    return _network(chain) or _by_class(error)


def _verdict(link: BaseException, now: int) -> Failure | None:
    if isinstance(link, errors.SecretUnavailable):  # the body was not called
        return Failure(Kind(link.kind), Sent.NOT_SENT, str(link))
    if isinstance(link, errors.SecretNotAllowed) and link.policy:
        return Failure(Kind.FINAL, Sent.NOT_SENT, str(link))
    rule = _by_base(VERDICTS, link)
    if rule is None:
        return None
    after = link.after_seconds if isinstance(link, errors.Retryable) else None
    if after is not None and not after >= 0:  # negative, or NaN
        after = None
    return Failure(rule.kind, rule.sent, _said(rule, _words(link)), after)


def _words(error: BaseException) -> str:
    """What it says. A verdict stands, whatever its `__str__` does."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _refusal(link: BaseException, now: int) -> Failure | None:
    named = any(cls.__name__ in REFUSAL_CLASSES for cls in type(link).__mro__)
    if named or not REFUSAL_FINISH_REASONS.isdisjoint(evidence.finish_reasons(link)):
        return Failure(REFUSAL.kind, REFUSAL.sent, _said(REFUSAL, type(link).__name__))
    return None


def _answer(link: BaseException, now: int) -> Failure | None:
    after = evidence.asked_to_wait(link, now=now)
    status = evidence.http_status(link)
    code = next((code for code in evidence.error_codes(link) if code in CODES), None)
    rule = _rule_of_status(status, named_a_time=after is not None) if code is None else CODES[code]
    if rule is None:
        return None
    said = (f"HTTP {status}" if status else "", code or "")
    failure = Failure(rule.kind, rule.sent, _said(rule, ", ".join(filter(None, said))), after)
    return _overruled(failure, evidence.headers(link).get("x-should-retry", ""))


def _rule_of_status(status: int | None, *, named_a_time: bool) -> Rule | None:
    if status is None:
        return None
    rule = STATUSES.get(status) or STATUS_CLASSES.get(status // 100)
    if named_a_time and (rule is _DENIED or status == 503):
        return COME_BACK
    return rule


def _overruled(failure: Failure, should_retry: str) -> Failure:
    kind = {"true": Kind.RETRYABLE, "false": Kind.FINAL}.get(should_retry.strip().lower())
    if kind is None or kind is failure.kind:
        return failure
    return replace(failure, kind=kind, reason=f"{failure.reason}; x-should-retry: {should_retry.strip()}")


def _network(chain: Iterable[BaseException]) -> Failure | None:
    """The outermost link that a rule knows; but one that proves "not sent" is worth more, however deep it lies."""
    found = [(rule, link) for link in chain if (rule := _network_rule(link)) is not None]
    if not found:
        return None
    rule, link = next((one for one in found if one[0].sent is Sent.NOT_SENT), found[0])
    return Failure(rule.kind, rule.sent, _said(rule, type(link).__name__))


def _network_rule(link: BaseException) -> Rule | None:
    if (rule := _by_errno(NETWORK_ERRNOS, link)) is not None:
        return rule
    names = (f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(link).__mro__)
    return next((NETWORK[name] for name in names if name in NETWORK), None)


def _by_class(error: BaseException) -> Failure:
    named = (CLASS_NAMES.get(cls.__name__) for cls in type(error).__mro__)
    rule = next(filter(None, named), None) or _by_errno(FILE_ERRNOS, error) or _by_base(CLASSES, error) or UNKNOWN
    return Failure(rule.kind, rule.sent, _said(rule, type(error).__name__), undecided=error)


def _by_base(table: Mapping[Any, Rule], error: BaseException) -> Rule | None:
    return next((table[cls] for cls in type(error).__mro__ if cls in table), None)


def _by_errno(table: Mapping[int, Rule], error: BaseException) -> Rule | None:
    return table.get(error.errno or 0) if isinstance(error, OSError) else None


def _heaviest(group: BaseExceptionGroup[BaseException], now: int) -> Failure:
    cancelled, others = group.split(asyncio.CancelledError)
    failures = [classify(one, now=now) for one in (others or cast("Any", cancelled)).exceptions]
    weights = list(Kind)
    worst = max(failures, key=lambda failure: weights.index(failure.kind))
    waits = [failure.after_seconds for failure in failures if failure.after_seconds is not None]
    sent = Sent.UNKNOWN if any(failure.in_doubt for failure in failures) else worst.sent
    return replace(worst, sent=sent, after_seconds=max(waits, default=None))


def _said(rule: Rule, detail: str) -> str:
    return f"{rule.means} ({detail})" if detail else rule.means

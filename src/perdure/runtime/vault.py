"""Fetches what a step may have of the secrets, before its body begins; keeps what may be kept, and has it all hidden.

step ──▶ declared? allowed? ──▶ each provider in its order, until one has it ──▶ checked, hidden ──▶ perdure.secret()
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import MICROSECONDS
from perdure.codec.exceptions import place_of
from perdure.codec.scrubbing import Pattern, Source, too_plain
from perdure.errors import SecretNotAllowed, SecretUnavailable, UsageError, UserCodeError
from perdure.gates.policy import Policy, allows_secret
from perdure.http.classify import classify
from perdure.http.evidence import http_status, links
from perdure.runtime.attempt import UNLOCKED, Unlocked
from perdure.runtime.logs import hide_in_ours
from perdure.secrets import AnyProvider, Environment, File, Minted, Provider, SecretRequest
from perdure.specs import mapping, several
from perdure.store.guarded import guarded
from perdure.store.protocol import Store

if TYPE_CHECKING:
    from perdure.engine.calls import StepAsk
    from perdure.runtime.performer import Flight

KEPT_MICROSECONDS = 300 * MICROSECONDS
"""A value without an expiry is asked for again after that."""

MARGIN_MICROSECONDS = 60 * MICROSECONDS
"""A value that expires sooner is asked for again."""


class Kept(msgspec.Struct, frozen=True):
    """A value that a provider gave. `until`: when it is asked for again (microseconds since the epoch)."""

    value: str
    until: int


class Vault:
    """The providers of one Runtime or Client, what it keeps of their answers, and what it hides."""

    def __init__(self, providers: Iterable[AnyProvider], patterns: Iterable[Pattern], now: Callable[[], int]) -> None:
        self._providers = tuple(providers)
        self._source = Source(patterns)
        self._now = now
        self._kept: dict[tuple[Provider, str], Kept] = {}
        self._asking: dict[tuple[Provider, str], asyncio.Lock] = {}

    def open(self) -> None:
        """Hide what the providers can list, and what the patterns match."""
        listing = [provider for provider in self._providers if isinstance(provider, Environment | File)]
        for name, value in [each for provider in listing for each in provider.known()]:
            if too_plain(value) is None:
                self._source.add(name, value)
        self._source.open()
        hide_in_ours()

    def guard(self, store: Store) -> Store:
        """The store, with a door before it through which nothing that is hidden goes."""
        return guarded(store)

    def close(self) -> None:
        """Keep nothing, hide nothing."""
        self._source.close()
        self._kept.clear()
        self._asking.clear()

    # ── fetching ─────────────────────────────────────────────────────────────────────────────
    async def unlock(self, requests: Iterable[SecretRequest]) -> Unlocked:
        """The values that are wanted. SecretUnavailable, which names the first that cannot be had."""
        values: dict[str, str] = {}
        kept: dict[str, Provider] = {}
        for request in requests:
            values[request.name], keeper = await self._fetch(request)
            if keeper is not None:
                kept[request.name] = keeper
        return Unlocked(values, kept)

    async def _fetch(self, request: SecretRequest) -> tuple[str, Provider | None]:
        for provider in self._providers:
            if isinstance(provider, Provider):
                value, was_kept = await self._ask(provider, request)
            else:
                value, was_kept = await self._read(provider, request), False
            if value is not None:
                return value, provider if was_kept and isinstance(provider, Provider) else None
        asked = ", ".join(map(repr, self._providers))
        given = f"none of {asked} has it" if asked else "Runtime(secrets=[...]) names no provider"
        raise _unavailable(request, f"{given}. Add it there, then let the step be tried again", asked, "person")

    async def _ask(self, provider: Provider, request: SecretRequest) -> tuple[str | None, bool]:
        """A value that is kept, or a new one: asked for by one step at a time, however many want it."""
        place = (provider, request.name)
        async with self._asking.setdefault(place, asyncio.Lock()):
            kept = self._kept.get(place)
            if kept is not None and self._now() < kept.until:
                return kept.value, True
            value, expires_at = self._checked(provider, request, await self._called(provider, request))
            if value is None:
                return None, False
            until = self._now() + KEPT_MICROSECONDS if expires_at is None else expires_at - MARGIN_MICROSECONDS
            self._kept[place] = Kept(value, until)
            return value, False

    async def _read(self, provider: Environment | File | Minted, request: SecretRequest) -> str | None:
        if isinstance(provider, Minted) and request.name not in provider.names:
            return None
        return self._checked(provider, request, await self._called(provider, request))[0]

    async def _called(self, provider: AnyProvider, request: SecretRequest) -> Any:
        """What the provider answers. What it raises may hold anything, and is told by its class and place alone."""
        try:
            match provider:
                case Provider():
                    return await _in_thread(provider.ask, request.name)
                case Minted():
                    return await _in_thread(provider.mint, request)
                case _:
                    return provider(request)
        except UserCodeError as error:
            raise _unavailable(request, f"{provider!r}: {error}", repr(provider), "person") from None
        except Exception as error:
            kind = "retryable" if classify(error, now=self._now()).kind == "retryable" else "final"
            place = place_of(error)
            told = f"{provider!r} raised {type(error).__name__}" + (f" at {place}" if place else "")
            raise _unavailable(request, told, repr(provider), kind) from None

    def _checked(self, provider: AnyProvider, request: SecretRequest, answer: Any) -> tuple[str | None, int | None]:
        """The value, hidden from now on, and when it expires. SecretUnavailable for what is no answer."""
        value, expires_at = _pair(answer)
        if value is None:
            return None, None
        asked, whose = repr(provider), f"{provider!r} gave"
        if not isinstance(value, str):
            raise _unavailable(request, f"{whose} a {type(value).__name__}, not a text", asked, "person")
        if not value.strip():
            raise _unavailable(request, f"{whose} an empty text", asked, "person")
        if (why := too_plain(value)) is not None:
            raise _unavailable(request, f"{whose} a value that cannot be hidden: {why}", asked, "person")
        self._hide(provider, request, value)
        return value, None if expires_at is None else self._expiry(provider, request, expires_at)

    def _hide(self, provider: AnyProvider, request: SecretRequest, value: str) -> None:
        """From now on: what is made for one attempt at least for as long as that may take."""
        now = self._now()
        passes_at = now + round(request.life_seconds * MICROSECONDS) if isinstance(provider, Minted) else None
        self._source.add(request.name, value, passes_at=passes_at, now=now)

    def _expiry(self, provider: AnyProvider, request: SecretRequest, expires_at: Any) -> int:
        asked, whose = repr(provider), f"{provider!r} gave"
        if not isinstance(expires_at, datetime) or expires_at.tzinfo is None:
            raise _unavailable(request, f"{whose} an expiry that is no datetime with a time zone", asked, "person")
        at = round(expires_at.timestamp() * MICROSECONDS)
        if at <= self._now():
            told = f"{whose} a value that expired at {expires_at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
            raise _unavailable(request, told, asked, "retryable")
        return at

    # ── not good any more ────────────────────────────────────────────────────────────────────
    def has_newer(self, error: BaseException) -> bool:
        """Whether a step failed since a kept value of its is not good any more: that is kept no longer, and the step
        may be tried again with a new one. Asked in the context of its body."""
        unlocked = UNLOCKED.get()
        if unlocked is None or not unlocked.kept:
            return False
        statuses = {http_status(link) for link in links(error)}
        stale = [(keeper, name) for name, keeper in unlocked.kept.items() if keeper.again_on & statuses]
        for keeper, name in stale:
            kept = self._kept.get((keeper, name))
            if kept is not None and kept.value == unlocked.values[name]:
                del self._kept[keeper, name]
        return bool(stale)


async def unlock(
    vault: Vault | None, flight: Flight, number: int, now: int, policies: Iterable[Policy] = ()
) -> None:
    """Fetch what a step declares, for the body that begins in this context. SecretNotAllowed if a policy is against."""
    ask, info = flight.ask, flight.live.info
    for policy in policies:
        _refuse_against(policy, ask)
    life = (flight.deadline - now) / MICROSECONDS
    requests = [
        SecretRequest(
            name, scope, ask.name, info.workflow, flight.live.run_id, flight.operation_id() or "", number,
            life if life > 0 else ask.spec.timeout_seconds,
        )
        for name, scope in ask.spec.secrets.items()
    ]  # fmt: skip
    UNLOCKED.set(await (vault or Vault((), (), lambda: now)).unlock(requests))


def _refuse_against(policy: Policy, ask: StepAsk) -> None:
    for name in ask.spec.secrets:
        if not allows_secret(policy, ask.name, name):
            told = f"policy {policy.name} version {policy.version} does not let {ask.name} have secret {name!r}"
            raise SecretNotAllowed(f"{told}; its body was not called", name, policy.name)


async def _in_thread(function: Callable[[Any], Any], argument: Any) -> Any:
    """What a function answers that may block; one that is `async def` is awaited here."""
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    answer: Any = await asyncio.to_thread(function, argument)
    return await answer if inspect.isawaitable(answer) else answer


def _pair(answer: Any) -> tuple[Any, Any]:
    """A value and when it expires."""
    whole = answer
    parts: list[Any] = list(answer) if isinstance(answer, tuple) else []  # pyright: ignore[reportUnknownArgumentType]
    return (parts[0], parts[1]) if len(parts) == 2 else (whole, None)


def providers_of(given: Any) -> tuple[AnyProvider, ...]:
    """The `secrets=` of a Runtime. UsageError for what is no provider."""
    providers = several(given)
    if providers is None or not all(isinstance(each, Environment | File | Provider | Minted) for each in providers):
        raise UsageError(
            f"secrets={given!r}: a list of providers is wanted, as in secrets=[perdure.secrets.Environment()]"
        )
    return tuple(providers)


def patterns_of(given: Any) -> tuple[Pattern, ...]:
    """The `scrub=` of a Runtime: regular expressions, or a dict of them with a name for each."""
    named = mapping(given)
    if named is None:
        named_ones = [("pattern", each) for each in several(given) or [given]]
    else:
        named_ones = list(named.items())
    return tuple(_pattern(str(name), regex) for name, regex in named_ones)


def _pattern(name: str, given: Any) -> Pattern:
    try:
        regex: re.Pattern[Any] = re.compile(given)
    except (re.error, TypeError) as no:
        raise UsageError(f"scrub={given!r}: a regular expression is wanted ({no})") from None
    if not isinstance(regex.pattern, str) or regex.search(""):
        raise UsageError(f"scrub={given!r}: it matches nothing at all, or bytes; write one that a secret matches")
    return Pattern(name, regex)


def _unavailable(request: SecretRequest, told: str, providers: str, kind: str) -> SecretUnavailable:
    return SecretUnavailable(f"secret {request.name!r} for {request.step}: {told}", request.name, providers, kind)

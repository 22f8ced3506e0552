"""What the author declared: workflows, steps, retries. Frozen values that validate themselves.

Durations are given as `timedelta` or as seconds and kept as seconds (`..._seconds`).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from perdure.codec import hiding
from perdure.errors import DeclarationError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from perdure.codec import ArgumentsCodec, ValueCodec


M = TypeVar("M", bound=StrEnum)
R = TypeVar("R")

DEFAULT_ATTEMPTS = 3
DEFAULT_TIMEOUT_SECONDS = 300.0
DEFAULT_FIRST_DELAY_SECONDS = 1.0
DEFAULT_FACTOR = 2.0
DEFAULT_MAX_DELAY_SECONDS = 60.0
DEFAULT_JITTER = 0.1

SECONDS_MAX = 100 * 366 * 86_400
"""No timer, delay or lease is longer: 100 years."""


def seconds(duration: timedelta | float, *, what: str) -> float:
    """A duration in seconds. DeclarationError if it is negative, not finite, or no duration at all.

    >>> seconds(timedelta(minutes=2), what="timeout")
    120.0
    """
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, bool) or not isinstance(duration, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeclarationError(f"{what}={duration!r} is no duration: give a timedelta, or seconds as a number")
    else:
        value = float(duration)
    if not math.isfinite(value) or value < 0:
        raise DeclarationError(f"{what}={duration!r}: a duration is a finite number of seconds, not below 0")
    return value


def seconds_given(duration: timedelta | float, *, what: str) -> float:
    """`seconds`, of what a call is given and not a declaration: UsageError."""
    try:
        return seconds(duration, what=what)
    except DeclarationError as error:
        raise UsageError(str(error)) from None


def recordable(text: Any, *, what: str, length_max: int = 500, is_name: bool = True) -> str:
    """A name or an id as it can stand in a history. UsageError if it is empty, too long, or no text that is Unicode; or
    if it holds a secret. A text that names nothing gets a mark there instead.

    >>> recordable("claim-42", what="run id")
    'claim-42'
    """
    if not isinstance(text, str) or not text.strip() or len(text) > length_max:
        raise UsageError(f"{what} {reprlib.repr(text)}: a text of 1 to {length_max} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} {text!r}: it holds a lone surrogate, which no store takes") from None
    if not is_name:
        return hiding.hidden_text(text)
    if hiding.active is not None:
        hiding.refuse_hidden(text, what=what)
    return text


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def several(given: Any) -> list[Any] | None:
    """What an option that takes several things was given; None for a text, a mapping, or one thing alone."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        return None
    return list(given)  # pyright: ignore[reportUnknownArgumentType]


def members(of: type[M], given: Any, *, call: str, noun: str, name: str) -> frozenset[M] | None:
    """The members that `call(status=given)` means: one or several, by value; None for None. UnknownNameError for what
    is none of them, UsageError for what is no such list."""
    if given is None:
        return None
    wanted = [given] if isinstance(given, str) else several(given)
    if wanted is None:
        raise UsageError(f"{call}(status={given!r}): a {noun}, or a list of them")
    unknown = [each for each in wanted if each not in set(of)]
    if unknown:
        raise UnknownNameError(name, str(unknown[0]), map(str, of))
    return frozenset(map(of, wanted))


def mapping(given: Any) -> dict[Any, Any] | None:
    """A copy of what an option that takes names and values was given, {} for nothing; None if it is no mapping."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else None  # pyright: ignore[reportUnknownArgumentType]


class Retry(msgspec.Struct, frozen=True):
    """How often a step is tried, and how long it waits in between.

    `max_attempts` counts the first one. The wait before attempt n + 1 is `first_delay * factor ** (n - 1)`, at most
    `max_delay`, made up to `jitter` (a share of it, 0 to 1) longer or shorter; a time that the other side asked for
    (Retry-After, `Retryable(after=)`) is a lower bound. No attempt begins later than `max_elapsed` after the first one
    began; an attempt under way is not cut short by it. There is no wait after the last attempt.
    `on` decides about exceptions that nothing else decides: return False to make one final.

    >>> Retry(max_attempts=5, first_delay=0.5)
    Retry(max_attempts=5, first_delay=0.5, factor=2.0, max_delay=60.0, jitter=0.1, max_elapsed=None, on=None)

    Raises DeclarationError when the values cannot be meant together.
    """

    max_attempts: int = DEFAULT_ATTEMPTS
    first_delay: timedelta | float = DEFAULT_FIRST_DELAY_SECONDS
    factor: float = DEFAULT_FACTOR
    max_delay: timedelta | float = DEFAULT_MAX_DELAY_SECONDS
    jitter: float = DEFAULT_JITTER
    max_elapsed: timedelta | float | None = None
    on: Callable[[BaseException], bool] | None = None

    def __post_init__(self) -> None:
        first, longest = self.first_delay_seconds, self.max_delay_seconds
        _ = self.max_elapsed_seconds
        if not is_whole(self.max_attempts) or self.max_attempts < 1:
            raise DeclarationError(
                f"Retry(max_attempts={self.max_attempts!r}): a whole number; the first attempt counts, so at least 1"
            )
        if not _is_number(self.factor) or self.factor < 1:
            raise DeclarationError(f"Retry(factor={self.factor!r}): a number, 1 or more: waits cannot shrink")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise DeclarationError(f"Retry(jitter={self.jitter!r}): a share of the wait, between 0 and 1")
        if first > longest:
            raise DeclarationError(
                f"Retry(first_delay={first}, max_delay={longest}): the first wait exceeds the longest: give max_delay="
            )
        if self.on is not None and not callable(self.on):  # pyright: ignore[reportUnnecessaryComparison]
            raise DeclarationError(f"Retry(on={self.on!r}): a function that is given the exception")

    @property
    def first_delay_seconds(self) -> float:
        return seconds(self.first_delay, what="Retry: first_delay")

    @property
    def max_delay_seconds(self) -> float:
        return seconds(self.max_delay, what="Retry: max_delay")

    @property
    def max_elapsed_seconds(self) -> float | None:
        return None if self.max_elapsed is None else seconds(self.max_elapsed, what="Retry: max_elapsed")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# ── what may be spent ───────────────────────────────────────────────────────────────────────

Money = Decimal | int | float | str
"""An amount of a currency, in its units: Decimal("0.25"). A float counts as it is written: 0.1 is a tenth."""

NANOS = 1_000_000_000
COST_MAX = 9_000_000_000


def nanos(cost: Any, *, what: str) -> int:
    """A cost in billionths of the currency unit, rounded to the nearest. DeclarationError if it is no amount.

    >>> nanos("0.25", what="cost")
    250000000
    """
    try:
        amount = Decimal(repr(cost) if isinstance(cost, float) else cost) if not isinstance(cost, bool) else None
    except (InvalidOperation, TypeError, ValueError):
        amount = None
    if amount is None or not amount.is_finite() or not 0 <= amount <= COST_MAX:
        raise DeclarationError(
            f'{what}={cost!r}: an amount of money from 0 to {COST_MAX:,} is wanted, as in Decimal("0.25")'
        )
    return int((amount * NANOS).to_integral_value())


def _checked_count(value: Any, what: str) -> None:
    if value is not None and (not is_whole(value) or not 0 <= value < 2**53):
        raise DeclarationError(f"{what}={value!r}: a whole number from 0 on")


class Budget(msgspec.Struct, frozen=True):
    """How much may be spent: a limit for each of what is given, none for the rest.

    `tokens` and `cost` (a Decimal, in units of your currency): what steps and effects say that they use, see `Usage`
    and `perdure.used`. `effects`, `steps`: how many are begun; a call counts once, however often it is tried. `wall`:
    the time since the run was started, after which no call begins any more.

    As `@workflow(budget=)` or `start(budget=)` it is the budget of one run. In `Runtime(budgets=[...])` many runs share
    it: those of a `workflow`, by its name; with a `tag` those that have it (`"customer=ada"`), or those of each value
    apart (`"customer"`); and anew in each period, if it says `per` (a day begins at midnight UTC).

    >>> Budget(tokens=50_000, effects=3)
    Budget(tokens=50000, cost=None, effects=3, steps=None, wall=None, per=None, workflow=None, tag=None)

    Raises DeclarationError for what is no limit.
    """

    tokens: int | None = None
    cost: Money | None = None
    effects: int | None = None
    steps: int | None = None
    wall: timedelta | float | None = None
    per: timedelta | float | None = None
    workflow: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        for unit in ("tokens", "effects", "steps"):
            _checked_count(getattr(self, unit), f"Budget({unit}")
        if self.cost is not None:
            nanos(self.cost, what="Budget(cost")
        for name in ("wall", "per"):
            if getattr(self, name) is not None and not seconds(getattr(self, name), what=f"Budget: {name}"):
                raise DeclarationError(f"Budget({name}={getattr(self, name)!r}): more than 0 seconds")
        for name in ("workflow", "tag"):
            if getattr(self, name) is not None:
                recordable(getattr(self, name), what=f"Budget({name}=)")
        if all(each is None for each in (self.tokens, self.cost, self.effects, self.steps, self.wall)):
            raise DeclarationError("Budget(): it limits nothing; give tokens=, cost=, effects=, steps= or wall=")

    @property
    def is_shared(self) -> bool:
        """Whether it says which runs share it."""
        return any(each is not None for each in (self.per, self.workflow, self.tag))


def budget_of_run(given: Any, *, what: str) -> Budget | None:
    """The budget of one run, as it is given to a declaration or to `start`. DeclarationError if it is none."""
    if given is None or (isinstance(given, Budget) and not given.is_shared):
        return given
    if isinstance(given, Budget):
        raise DeclarationError(f"{what}: per=, workflow= and tag= belong to Runtime(budgets=[...]): this is one run's")
    raise DeclarationError(f"{what}{given!r}: a Budget is wanted, as in perdure.Budget(tokens=50_000)")


class Usage(msgspec.Struct, frozen=True):
    """What a call is expected to use. Of what is None it does not say: nothing is reserved, and it may not begin once
    the limit is reached. One that uses none says 0.

    >>> Usage(tokens=4_000, cost=Decimal("0.03"))
    Usage(tokens=4000, cost=Decimal('0.03'))
    """

    tokens: int | None = None
    cost: Money | None = None

    def __post_init__(self) -> None:
        _checked_count(self.tokens, "Usage(tokens")
        if self.cost is not None:
            nanos(self.cost, what="Usage(cost")


def usage_from(given: Any, *, what: str) -> Usage | None:
    """The `uses=` of a declaration. DeclarationError if it is none."""
    if given is None or isinstance(given, Usage):
        return given
    raise DeclarationError(f"{what}(uses={given!r}): a Usage is wanted, as in uses=perdure.Usage(tokens=4_000)")


class Drift(StrEnum):
    """What to do when a step's recorded arguments differ from those the code gives now, under another manifest."""

    BLOCK = "block"
    ACCEPT = "accept"


class OnStale(StrEnum):
    """What to do when the result of a step does not stand any more."""

    RECOMPUTE = "recompute"
    REAPPROVE = "reapprove"
    KEEP = "keep"
    NOTE = "note"
    BLOCK = "block"


class Premise(msgspec.Struct, frozen=True, eq=False):
    """A fact outside that a step's result rests on. `read` takes the step's arguments; none, if the premise is given
    with the call. `same`: whether the result stands although the value is another one; None: only equal values are the
    same."""

    name: str
    read: Callable[..., Any]
    is_async: bool
    result: ValueCodec
    same: Callable[[Any, Any], bool] | None = None
    is_given: bool = False


class Rests(msgspec.Struct, frozen=True, eq=False):
    """What a step's result rests on, and for how long it is good. `is_verified`: whether that is checked again."""

    premises: tuple[Premise, ...] = ()
    valid_for_seconds: float | None = None
    is_verified: bool = True
    on_stale: OnStale | Callable[[Mapping[str, Any], Mapping[str, Any]], str] = OnStale.RECOMPUTE


class StepSpec(msgspec.Struct, frozen=True, eq=False):
    """A step as declared."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    arguments: ArgumentsCodec
    result: ValueCodec
    retry: Retry = msgspec.field(default_factory=Retry)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    heartbeat_timeout_seconds: float | None = None
    lazy: bool = False
    record_input: bool = True
    ignore: tuple[str, ...] = ()
    digest_view: Callable[..., Any] | None = None
    raises: tuple[type[BaseException], ...] = ()
    on_input_drift: Drift = Drift.BLOCK
    uses: Usage | None = None
    estimate: Callable[..., Any] | None = None
    secrets: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Those that its body may have, and for each what it is for."""
    rests: Rests | None = None
    reuse: bool = True
    """Whether its result may be had again once the run was rewound. What people's decisions rest on is read anew."""


class CallSpec(StepSpec, frozen=True, eq=False):
    """A call of an adapter's, which no function declares: `request`, plain JSON, stands for its arguments."""

    request: bytes = b"null"


class Idempotent(msgspec.Struct, frozen=True):
    """The other side honours our key: the same request under the same key is carried out at most once."""

    kind: ClassVar[str] = "idempotent"


class CanLookUp(msgspec.Struct, frozen=True):
    """The other side can be asked what became of a request.

    `settle_after` (seconds or timedelta): for how long after a request its effect may still be invisible there. "Not
    found" is believed only when it was said twice, the second time after that."""

    settle_after: timedelta | float = 0.0
    kind: ClassVar[str] = "can_look_up"

    def __post_init__(self) -> None:
        seconds(self.settle_after, what="CanLookUp(settle_after=)")

    @property
    def settle_after_seconds(self) -> float:
        return seconds(self.settle_after, what="CanLookUp(settle_after=)")


class SameDatabase(msgspec.Struct, frozen=True):
    """The effect is a change in the store's own database, in the transaction that records it: both or neither."""

    kind: ClassVar[str] = "same_database"


class NoGuarantee(msgspec.Struct, frozen=True):
    """The other side promises nothing and can tell nothing: when an answer is lost, a person decides."""

    kind: ClassVar[str] = "no_guarantee"


Downstream = Idempotent | CanLookUp | NoGuarantee | SameDatabase
"""What the other side of an effect guarantees. What we do after a crash in the middle of it follows from that."""


class Found(msgspec.Struct, Generic[R], frozen=True):
    """A look-up's answer: it happened. `result` is what the effect would have returned, `reference` what the other side
    calls it."""

    result: R
    reference: str | None = None


class NotFound(msgspec.Struct, frozen=True):
    """A look-up's answer: the other side does not know it."""


class Unsure(msgspec.Struct, frozen=True):
    """A look-up's answer: the other side cannot say (yet). `why` is shown to the person who decides in the end."""

    why: str = ""


class EffectSpec(StepSpec, frozen=True, eq=False, kw_only=True):
    """An effect as declared: a step that changes the outside world. `key`, `lookup` and `undo` are added to it by the
    functions that hang on it."""

    downstream: Downstream
    scope: Literal["run", "global"] = "run"
    reversible: bool = True
    compensates: bool = False
    risk: Literal["low", "high"] = "low"
    on_repeat: Literal["refuse", "reuse"] = "refuse"
    aliases: tuple[str, ...] = ()
    relies_on: tuple[str, ...] | None = None
    """Names of premises and of steps; None: on all that its run's decisions rest on."""
    unproven: tuple[str, ...] = ()
    """Those of them that were given as a text: whether there is such a thing is seen when it is called."""
    key: Callable[..., Any] | None = None
    lookup: Callable[..., Any] | None = None
    undo: EffectSpec | None = None

    @property
    def stakes(self) -> Literal["low", "high"]:
        """The risk that people are shown: what cannot be taken back is high."""
        return self.risk if self.reversible else "high"


class Surroundings(msgspec.Struct, frozen=True):
    """What a workflow leans on besides its code, as its author declares it: it is part of the replay contract.

    `tools`: names and digests of their schemas. `tool_catalog_version`: the author's number, else a digest of those.
    `frameworks`: packages and their versions. `accepts`: in which of these a run under way may go on under another
    one. Empty: not declared."""

    tools: tuple[tuple[str, str], ...] = ()
    tool_catalog_version: str = ""
    prompt_release: str = ""
    model_policy_version: str = ""
    frameworks: tuple[tuple[str, str], ...] = ()
    accepts: frozenset[str] = frozenset()


NOTHING_DECLARED = Surroundings()


class WorkflowSpec(msgspec.Struct, frozen=True, eq=False):
    """A workflow as declared. `policy`: a `gates.Policy`, which this module may not know."""

    name: str
    version: int
    function: Callable[..., Any]
    is_async: bool
    arguments: ArgumentsCodec
    result: ValueCodec
    receives: Mapping[str, ValueCodec] | None = None
    raises: tuple[type[BaseException], ...] = ()
    replays: frozenset[int] = frozenset()
    policy: Any = None
    budget: Budget | None = None
    surroundings: Surroundings = NOTHING_DECLARED

    @property
    def key(self) -> tuple[str, int]:
        return (self.name, self.version)

    @property
    def label(self) -> str:
        return f"{self.name} version {self.version}"


OnCancel = Literal["wait", "abandon"]

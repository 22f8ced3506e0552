"""The decorator `@effect`, and what hangs on an effect: its key, its look-up, its undoing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, NoReturn, ParamSpec, TypeVar, cast, overload

import msgspec

from perdure.api.calls import Call, DurableFunction, execution_here, same_signature
from perdure.api.declaration import check_step, relied_on, secrets_of, takes_same, with_estimate
from perdure.codec import arguments_codec_for
from perdure.codec.resolving import resolved_hints
from perdure.errors import DeclarationError, NotDurableError, UsageError
from perdure.ledger.operations import business_key_of
from perdure.runtime.attempt import ATTEMPT, JOURNAL
from perdure.runtime.operation import Operation
from perdure.runtime.outbox import Outbox
from perdure.specs import (
    DEFAULT_TIMEOUT_SECONDS,
    CanLookUp,
    Downstream,
    EffectSpec,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Retry,
    SameDatabase,
    Unsure,
    Usage,
    seconds,
    usage_from,
)

if TYPE_CHECKING:
    from perdure.engine.execution import Execution
    from perdure.runtime.transactions import Transaction

P = ParamSpec("P")
R = TypeVar("R")
U = TypeVar("U")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TRANSACTION_SECONDS = 2.0
TRANSACTION_SECONDS_MAX = 5.0

Answer = Found[R] | NotFound | Unsure
"""What a look-up returns."""


class _Effect(DurableFunction[P, R], Generic[P, R]):
    """What `def` and `async def` effects have in common."""

    spec: EffectSpec

    def __init__(self, spec: EffectSpec) -> None:
        self.spec = spec
        same_signature(self, spec.function)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value, not made yet."""
        return Call(self, args, kwargs)

    # ── what hangs on it ─────────────────────────────────────────────────────────────────────
    def key(self, function: Callable[P, str | int], /) -> Callable[P, str | int]:
        """Declare the business key: what makes this effect one and the same, from the effect's own arguments.

        It may depend on the arguments alone. Two calls of one run with the same key are one operation.

        >>> @refund.key                                                           # doctest: +SKIP
        ... def _(claim: Claim, amount: int) -> str: return claim.order_id
        """
        takes_same(self.name, self.spec.function, function, "key")
        if inspect.iscoroutinefunction(function):
            raise DeclarationError(f"the key of {self.name} is a plain function: it may depend on the arguments alone")
        self._add(key=function)
        return function

    def lookup(
        self, function: Callable[[Operation], Awaitable[Answer[R]]] | Callable[[Operation], Answer[R]], /
    ) -> Callable[[Operation], Any]:
        """Declare how to find out what became of an operation: `Found(result)`, `NotFound()` or `Unsure(why)`.

        It is asked when an attempt's outcome is in doubt; it must not change anything.
        """
        if self.spec.downstream.kind == "no_guarantee":
            raise DeclarationError(
                f"{self.name} has a lookup, so the other side can be asked: declare "
                "downstream=CanLookUp(settle_after=...)"
            )
        if _count_of_parameters(function) != 1:
            raise DeclarationError(f"the lookup of {self.name} takes one argument, the perdure.Operation")
        self._add(lookup=function)
        return function

    def estimate(self, function: Callable[P, Usage], /) -> Callable[P, Usage]:
        """Declare what a call is expected to use of a budget, besides being an effect: see `uses=` of steps."""
        self.spec = with_estimate(self.spec, function)
        return function

    @overload
    def undo(self, function: Callable[Concatenate[R, P], U], /) -> Callable[Concatenate[R, P], U]: ...
    @overload
    def undo(
        self,
        *,
        downstream: Downstream | None = None,
        lookup: Callable[[Operation], Any] | None = None,
        retry: Retry | None = None,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[Concatenate[R, P], U]], Callable[Concatenate[R, P], U]]: ...
    def undo(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Declare what takes the effect back: first its result, then the arguments that it was called with.

        It is an effect of its own, `<name>.undo`, with the same key and an operation id of its own; `perdure.saga()`
        calls it. `downstream`, `retry`, `timeout`: as the effect's own, unless given. `lookup`: how to find out what
        became of an undoing; the effect's own look-up is about the effect.

        >>> @charge.undo                                                          # doctest: +SKIP
        ... async def _(receipt: str, order_id: str, cents: int) -> None: ...
        """
        declare: Callable[[Callable[..., Any]], Any] = partial(self._undone_by, **options)
        return declare(*functions) if functions else declare

    def _undone_by(self, function: Callable[..., Any], /, **options: Any) -> Callable[..., Any]:
        takes_same(self.name, self.spec.function, function, "undo", skip=1)
        self._add(undo=_spec_of_undo(self.spec, function, **options))
        return function

    def _add(self, **more: Any) -> None:
        (name,) = more
        if getattr(self.spec, name) is not None:
            raise DeclarationError(f"{self.name} has a {name} already: there is one of each")
        self.spec = msgspec.structs.replace(self.spec, **more)

    # ── being called ─────────────────────────────────────────────────────────────────────────
    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return execution.ask_effect(self.spec, args, kwargs, business_key_of(self.spec, args, kwargs))

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        return journal.step(self.spec, args, kwargs)  # type: ignore[no-any-return]

    async def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        self._refuse()

    def _refuse(self) -> NoReturn:
        if ATTEMPT.get() is not None:
            raise UsageError(
                f"effect {self.name} was called inside the body of a step: nothing would account for it there. Call it "
                "from the workflow"
            )
        raise NotDurableError(
            f"effect {self.name} was called outside a run: nothing would account for it. Call it from a workflow, or "
            f"{self.name}.plain(...) if you mean it"
        )


class Effect(_Effect[P, R], Generic[P, R]):
    """An `async def` effect. Awaited in a workflow it is accounted for; elsewhere it raises NotDurableError."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return Call(self, args, kwargs)

    async def plain(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, accounted for by nobody."""
        result: R = await self.spec.function(*args, **kwargs)
        return result


class SyncEffect(_Effect[P, R], Generic[P, R]):
    """A `def` effect: it runs in a thread. In a `def` workflow it is called as usual, in an async one as
    `await send.call(...)`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if execution_here() is None and (ATTEMPT.get() is not None or JOURNAL.get() is None):
            self._refuse()
        return self._call_plain_function(args, kwargs)

    def plain(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, accounted for by nobody."""
        result: R = self.spec.function(*args, **kwargs)
        return result


class _EffectDecorator:
    """What `effect(...)` gives."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Effect[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncEffect[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return _make_effect(function, **self._options)


def effect(
    function: None = None,
    /,
    *,
    downstream: Downstream | None = None,
    transactional: bool = False,
    scope: Literal["run", "global"] = "run",
    reversible: bool = True,
    recovery: Literal["verify", "compensate"] = "verify",
    risk: Literal["low", "high"] = "low",
    on_repeat: Literal["refuse", "reuse"] = "refuse",
    relies_on: Iterable[str | DurableFunction[Any, Any]] | None = None,
    retry: Retry | None = None,
    timeout: timedelta | float | None = None,
    name: str | None = None,
    aliases: Iterable[str] = (),
    raises: Iterable[type[BaseException]] = (),
    uses: Usage | None = None,
    secrets: Iterable[str] | Mapping[str, str] = (),
) -> _EffectDecorator:
    """Declare an effect: a step that changes the outside world. It has an operation id and an entry in the ledger; it
    is recorded as started before it is tried, and what became of it is succeeded, failed, or unknown.

    `downstream`: what the other side guarantees, `Idempotent()`, `CanLookUp(settle_after=)` or `NoGuarantee()`; what we
    do after a crash in the middle follows from it, so there is no default. `transactional=True` instead: a `def` that
    changes the store's own database by `perdure.transaction()`, in the transaction that records it: both or neither; it
    may take `timeout` (default 2 s, at most 5), for it keeps all others from writing.

    `scope="global"`: the key is the same for all runs. `retry`: default one attempt, three if the downstream is
    idempotent; an attempt whose outcome is in doubt is never simply repeated. `name`: what stands in ids and histories;
    after a rename give the old ones as `aliases`. `on_repeat="reuse"`: another call with the same key and request gets
    the recorded answer. `reversible=False`: it is sent only under an approval, or where a policy allows it. `risk`: for
    people who decide. `recovery="compensate"`: a promise that was made; it is undone only after a person confirmed.
    `relies_on`: before it is sent only these of its run's decisions are checked, steps or names of premises; default:
    all of them. `uses`: what an attempt is expected to use of a budget, besides being an effect. `secrets`: names of
    those that its body, its look-up and its undoing may have by `perdure.secret(name)`; or names and what each is for.

    Every effect needs a `.key`. Raises DeclarationError for what cannot be meant.

    >>> @effect(downstream=Idempotent())                                          # doctest: +SKIP
    ... async def charge(order_id: str, cents: int) -> str: ...
    """
    if function is not None:
        bare: Any = function  # type: ignore[unreachable]  # not for type checkers: it is not let pass there
        raise DeclarationError(_says_nothing(getattr(bare, "__name__", repr(bare)), "@effect without arguments"))
    return _EffectDecorator(
        {
            "downstream": SameDatabase() if transactional and downstream is None else downstream,
            "transactional": transactional, "scope": scope, "reversible": reversible, "recovery": recovery,
            "risk": risk, "on_repeat": on_repeat, "retry": retry, "timeout": timeout, "name": name, "aliases": aliases,
            "raises": raises, "uses": uses, "secrets": secrets, "relies_on": relies_on,
        }
    )  # fmt: skip


def _make_effect(function: Callable[..., Any], *, downstream: Any, retry: Retry | None, **options: Any) -> Any:
    spec = _spec(function, options.pop("name") or function.__name__, downstream=downstream, retry=retry, **options)
    return cast(Any, Effect if spec.is_async else SyncEffect)(spec)


def _spec(
    function: Callable[..., Any], name: str, *, downstream: Any, retry: Retry | None, **options: Any
) -> EffectSpec:
    check_step(function)
    is_transactional = isinstance(downstream, SameDatabase)
    if not isinstance(downstream, Idempotent | CanLookUp | NoGuarantee | SameDatabase):
        raise DeclarationError(_says_nothing(name, f"downstream={downstream!r}"))
    if options["transactional"] is not is_transactional:
        raise DeclarationError(f"effect {name}: it is transactional, or has a downstream, not both")
    if is_transactional and inspect.iscoroutinefunction(function):
        raise DeclarationError(f"effect {name}: a transactional effect is a `def`: it awaits nothing in a transaction")
    if is_transactional and options["secrets"]:
        raise DeclarationError(f"effect {name}: a transactional effect reaches only the database, and has no secrets")
    timeout = _timeout(name, options["timeout"], is_transactional)
    for option, allowed in _ALLOWED.items():
        if options[option] not in allowed:
            shown = ", ".join(map(repr, allowed))
            raise DeclarationError(f"effect {name}: {option}={options[option]!r}; one of {shown}")
    if retry is not None and not isinstance(retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DeclarationError(f"effect {name}: retry={retry!r}; a perdure.Retry is wanted")
    arguments = arguments_codec_for(function)
    relies_on, unproven = relied_on(options.get("relies_on"), name)
    return EffectSpec(
        name=name, function=function, is_async=inspect.iscoroutinefunction(function), arguments=arguments,
        result=arguments.result, retry=retry or _attempts(downstream),
        timeout_seconds=timeout, raises=tuple(options["raises"]),
        downstream=downstream, scope=options["scope"], reversible=options["reversible"],
        compensates=options["recovery"] == "compensate", risk=options["risk"], on_repeat=options["on_repeat"],
        aliases=tuple(options["aliases"]), relies_on=relies_on, unproven=unproven,
        uses=usage_from(options.get("uses"), what=f"effect {name}"),
        secrets=secrets_of(options["secrets"], f"effect {name}"),
    )  # fmt: skip


def _says_nothing(name: str, found: str) -> str:
    return (
        f"effect {name}: {found}; say what the other side guarantees: @effect(downstream=Idempotent()), "
        "CanLookUp(settle_after=...) or NoGuarantee()"
    )


def _attempts(downstream: Downstream) -> Retry:
    return Retry() if isinstance(downstream, Idempotent) else Retry(max_attempts=1)


def _timeout(name: str, given: timedelta | float | None, is_transactional: bool) -> float:
    if given is None:
        return DEFAULT_TRANSACTION_SECONDS if is_transactional else DEFAULT_TIMEOUT_SECONDS
    length = seconds(given, what=f"effect {name}: timeout")
    if is_transactional and length > TRANSACTION_SECONDS_MAX:
        raise DeclarationError(
            f"effect {name}: timeout={given!r}; a transaction keeps all others from writing: at most "
            f"{TRANSACTION_SECONDS_MAX:g} s"
        )
    return length


def _spec_of_undo(
    spec: EffectSpec, function: Callable[..., Any], *, downstream: Any = None, lookup: Any = None,
    retry: Retry | None = None, timeout: Any = None,
) -> EffectSpec:  # fmt: skip
    name = f"{spec.name}.undo"
    _inherit_hints(function, spec.function)
    if downstream is not None:
        retry = retry or _attempts(downstream)
    other_side = downstream or spec.downstream
    return msgspec.structs.replace(
        _spec(
            function, name, downstream=other_side, transactional=isinstance(other_side, SameDatabase),
            retry=retry or spec.retry, timeout=spec.timeout_seconds if timeout is None else timeout, scope=spec.scope,
             reversible=False, recovery="verify", risk=spec.risk, on_repeat="refuse", raises=(),
             secrets={} if isinstance(other_side, SameDatabase) else spec.secrets,
            aliases=[f"{alias}.undo" for alias in spec.aliases],
        ), lookup=lookup,
    )  # fmt: skip


def _inherit_hints(undo: Callable[..., Any], effect: Callable[..., Any]) -> None:
    """What the undoing does not annotate is what the effect says: its result has to come through as it is."""
    hints = resolved_hints(effect)
    names = ["return", *inspect.signature(effect).parameters]
    for parameter, wanted in zip(inspect.signature(undo).parameters, names, strict=True):
        if wanted in hints:
            undo.__annotations__.setdefault(parameter, hints[wanted])


_ALLOWED: dict[str, tuple[Any, ...]] = {
    "scope": ("run", "global"),
    "reversible": (True, False),
    "recovery": ("verify", "compensate"),
    "risk": ("low", "high"),
    "on_repeat": ("refuse", "reuse"),
}


def _count_of_parameters(function: Callable[..., Any]) -> int:
    return len(inspect.signature(function).parameters)


def operation() -> Operation:
    """The operation that the running effect is about: `perdure.operation().id` is the idempotency key to send.

    UsageError outside the body of an effect."""
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.transactions import Transaction

    running = ATTEMPT.get()
    if isinstance(running, Transaction):
        return running.operation
    if not isinstance(running, EffectFlight):
        raise UsageError("perdure.operation() belongs inside the body of an effect")
    return running.operation()


def transaction() -> Any:
    """The database's own connection, in the body of a transactional effect: for SQLite a `sqlite3.Connection`.

    What is written with it is committed together with the record of the effect, or not at all. The transaction is not
    the body's to end, and the store's own tables are not its to change.

    UsageError elsewhere, and where the store is no database."""
    connection = _transaction_here("transaction").connection
    if connection is None:
        raise UsageError("this store is no database: transactional effects need SQLite")
    return connection


def outbox() -> Outbox:
    """The outbox, in the body of a transactional effect: `perdure.outbox().send("emails", {...}, key=order)`.

    UsageError elsewhere."""
    return Outbox(_transaction_here("outbox").post)


def _transaction_here(what: str) -> Transaction:
    from perdure.runtime.transactions import Transaction

    running = ATTEMPT.get()
    if not isinstance(running, Transaction):
        raise UsageError(f"perdure.{what}() belongs inside the body of an effect with transactional=True")
    return running

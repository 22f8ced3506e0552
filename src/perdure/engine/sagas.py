"""Sagas: what was done inside a block is taken back when the block fails.

    async with saga:  ──▶ effects asked for in this context join it ──▶ left in order: what was done stands
                                                                   └──▶ left by an exception: undone, last one first

A saga is a part of the workflow's code: what it remembers is built up again by replay, and what it does are durable
calls of the task that leaves the block. So a crash while it undoes needs no case of its own. Which effects belong to it
follows from the context that tasks inherit, in which order they were done from the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from perdure.codec import codec_for
from perdure.codec.exceptions import message_of
from perdure.engine.calls import CONFIRM_UNDO, NO_UNDO, UNDO_FAILED, EffectAsk, Key
from perdure.errors import UsageError
from perdure.history import events as e
from perdure.specs import EffectSpec

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

T = TypeVar("T")

HERE: ContextVar[Saga | None] = ContextVar("perdure_saga", default=None)
_PLAIN = codec_for(Any)


class Undoing(NamedTuple):
    """Of an effect that undoes another: which operation, and the first revision that it may have."""

    operation: str
    revision: int


class Done(NamedTuple):
    """An effect that was done. `order`: the place of its outcome among others; `spec` is None if hosted code called
    it."""

    order: int
    name: str
    business_key: str
    operation: str
    spec: EffectSpec | None
    input: bytes
    output: bytes

    def __str__(self) -> str:
        return f"{self.name} {self.business_key!r}"


class Stage(StrEnum):
    """Where a saga stands."""

    OPEN = "open"
    LEFT = "left"
    """In order: what was done in it belongs to the saga around it, if there is one."""
    UNDONE = "undone"
    """Or being so."""


class Saga:
    """One block. What was `passed` stands: a pivot came after it."""

    __slots__ = ("_execution", "_is_cancelled", "_known", "_told", "done", "parent", "passed", "pending", "stage")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._is_cancelled = False
        self._known: asyncio.Future[None] | None = None
        self._told: dict[str, list[str]] = {"undone": [], "stands": []}
        self.parent: Saga | None = None
        self.stage: Stage | None = None
        self.done: list[Done] = []
        self.passed: list[Done] = []
        self.pending: dict[Key, EffectAsk | None] = {}

    # ── what belongs to it ───────────────────────────────────────────────────────────────────
    def join(self, ask: EffectAsk) -> None:
        """An effect was asked for inside."""
        self.pending[ask.key] = ask
        self._execution.sagas[ask.key] = self

    def heard(self, event: e.EffectSucceeded | e.EffectFailed, output: bytes) -> None:
        """The outcome of an effect that belongs here. An answer that another call got first was not done here."""
        ask = self.pending.pop(event.key, None)
        if isinstance(event, e.EffectSucceeded) and event.how != "reused":
            spec = ask.spec if ask is not None and isinstance(ask.spec, EffectSpec) else None
            raw = b"" if ask is None else ask.input
            order = self._execution.loop.next_ordinal()
            self.done.append(Done(order, event.name, event.business_key, event.operation, spec, raw, output))
        if self._known is not None and not self.pending and not self._known.done():
            self._known.set_result(None)

    def pivot(self) -> None:
        """What was done so far stands, whatever happens now; in the sagas around this one too."""
        saga: Saga | None = self
        while saga is not None:
            saga.passed, saga.done = saga.passed + saga.done, []
            saga = saga.parent

    # ── entered and left ─────────────────────────────────────────────────────────────────────
    async def __aenter__(self) -> None:
        if self.stage is not None:
            raise UsageError("this saga was entered already: write `async with perdure.saga():` again for another one")
        self.parent, self.stage = open_here("saga"), Stage.OPEN
        HERE.set(self)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        HERE.set(self.parent)
        if self._execution.is_closing or isinstance(error, KeyboardInterrupt):
            return  # the run leaves memory: nothing of this counts
        if error is None:
            self._hand_over()
            return
        self.stage = Stage.UNDONE
        await self._all_known()
        await self._undo_all()
        self._tell(error)
        if self._is_cancelled and not isinstance(error, asyncio.CancelledError):
            cancelled = asyncio.CancelledError("cancelled while a saga was undone")
            self._tell(cancelled)
            raise cancelled from error

    def _hand_over(self) -> None:
        """What was done in it, and what is still under way, is the outer saga's now."""
        self.stage = Stage.LEFT
        sagas, heir = self._execution.sagas, self.parent
        for key in [key for key, saga in sagas.items() if saga is self]:
            if heir is None:
                del sagas[key]
            else:
                sagas[key] = heir
        if heir is not None:
            heir.pending.update(self.pending)
            heir.done += self.done
            heir.passed += self.passed

    # ── undoing ──────────────────────────────────────────────────────────────────────────────
    async def _all_known(self) -> None:
        """Wait for the outcome of what is under way, cancelled or not: it may have happened."""
        while self.pending:
            known: asyncio.Future[None] = self._execution.loop.create_future()
            self._known = known
            await self._outlast(known)

    async def _undo_all(self) -> None:
        self._told["stands"] += [f"{done} (done before pivot())" for done in self.passed]
        self.done.sort(reverse=True)
        unable: list[Done] = []
        for done in list(self.done):
            if done.spec is None or done.spec.undo is None:
                unable.append(done)
            else:
                await self._undo(done, done.spec, done.spec.undo)
                self.done.remove(done)
        if unable:
            shown = ", ".join(f"{done} ({'has no .undo' if done.spec else 'called by hosted code'})" for done in unable)
            said = await self._ask(NO_UNDO, "failed_compensation", f"it cannot be undone: {shown}")
            for done in unable:
                self._settle(done, said)

    async def _undo(self, done: Done, spec: EffectSpec, undo: EffectSpec) -> None:
        if spec.compensates:
            hint = f"{done} is about to be undone, and it is a promise that was made: nothing of it happens before"
            said = await self._ask(CONFIRM_UNDO, "needs_person", hint + " somebody has confirmed")
            if said.choice != "value" or said.value != "undo":
                self._settle(done, said)
                return
        revision = 0
        while True:
            try:
                args, kwargs = spec.arguments.loads(done.input)
                result = spec.result.loads(done.output)
                undoing = Undoing(done.operation, revision)
                call = self._execution.ask_effect(undo, (result, *args), kwargs, done.business_key, undoing)
                await self._outlast(call)
            except Exception as error:
                hint = f"{done} could not be undone: {type(error).__name__}: {message_of(error)}"
                said = await self._ask(UNDO_FAILED, "failed_compensation", hint)
                if said.choice != "retry":
                    self._settle(done, said)
                    return
                revision += 1
            else:
                self._told["undone"].append(str(done))
                return

    def _settle(self, done: Done, said: Answer) -> None:
        """A person has decided about it, and no machine does anything more."""
        by = f" by {said.by}" if said.by else ""
        why = f": {said.why}" if said.why else ""
        if said.choice == "value":
            self._told["undone"].append(f"{done} (by hand{by}{why})")
        else:
            self._told["stands"].append(f"{done} (left standing{by}{why})")

    async def _ask(self, question: str, reason: str, hint: str) -> Answer:
        rest = f"not undone yet: {', '.join(map(str, self.done))}"
        told = ". ".join([hint, *self._lines(), rest])
        event, output = await self._outlast(self._execution.ask_person(question, reason, told))
        return Answer(event.choice, event.by, event.why, _PLAIN.loads(output))

    def _lines(self) -> list[str]:
        return [f"{what}: {', '.join(texts)}" for what, texts in self._told.items() if texts]

    def _tell(self, error: BaseException) -> None:
        for line in self._lines():
            error.add_note(f"saga: {line}")

    async def _outlast(self, call: Awaitable[T]) -> T:
        """Wait for something, whoever cancels the task meanwhile: it is cancelled when all is undone."""
        future = asyncio.ensure_future(call)
        while True:
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if self._execution.is_closing or future.cancelled():
                    raise
                self._is_cancelled = True


class Answer(NamedTuple):
    """What a person said."""

    choice: str
    by: str
    why: str
    value: Any


def open_here(what: str) -> Saga | None:
    """The saga that the code which runs now is in. UsageError if that one is being undone: nothing new is done then."""
    saga = HERE.get()
    while saga is not None and saga.stage is Stage.LEFT:
        saga = saga.parent
    if saga is not None and saga.stage is Stage.UNDONE:
        raise UsageError(
            f"{what} was called in a task that was started inside a saga which has failed since, and is undone: await "
            "or cancel such tasks inside the block (asyncio.TaskGroup does)"
        )
    return saga

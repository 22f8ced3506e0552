"""Sagas: what was done inside a block is taken back when the block fails.

    async with saga:  ──▶ effects asked for in this context join it ──▶ left in order: what was done stands
                                                                   └──▶ left by an exception: undone, last one first

A saga is a part of the workflow's code: what it remembers is built up again by replay, and what it does are durable
calls of whoever leaves the block. So a crash while it undoes needs no case of its own. Which effects belong to it
follows from the context that tasks and threads inherit, in which order they were done from the history.

`Saga` is what all have in common; `WorkflowSaga` the one of an `async def` workflow. That of hosted code is in
`perdure.runtime.hosted.undoing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

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
    it, and the saga is not that code's own."""

    order: int
    name: str
    business_key: str
    operation: str
    spec: EffectSpec | None
    input: bytes
    output: bytes

    def __str__(self) -> str:
        return f"{self.name} {self.business_key!r}"


class Answer(msgspec.Struct, frozen=True):
    """What a person said."""

    choice: str
    by: str
    why: str
    value: Any

    @classmethod
    def of(cls, event: e.PersonAnswered, output: bytes) -> Answer:
        """An answer as it stands in the history."""
        return cls(event.choice, event.by, event.why, _PLAIN.loads(output))


class Stage(StrEnum):
    """Where a saga stands."""

    OPEN = "open"
    LEFT = "left"
    """In order: what was done in it belongs to the saga around it, if there is one."""
    UNDONE = "undone"
    """Or being so."""


class Saga:
    """One block. What was `passed` stands: a pivot came after it."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._told: dict[str, list[str]] = {"undone": [], "stands": []}
        self.parent: Saga | None = None
        self.stage: Stage | None = None
        self.done: list[Done] = []
        self.passed: list[Done] = []

    # ── of each kind ─────────────────────────────────────────────────────────────────────────
    def _is_gone(self) -> bool:
        """Whether the run leaves memory: nothing of what its code does now counts."""
        raise NotImplementedError

    async def _all_known(self) -> None:
        """Wait for the outcome of what is under way, cancelled or not: it may have happened."""
        raise NotImplementedError

    async def _send(
        self, undo: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str, undoing: Undoing
    ) -> None:
        """Do what takes an effect back, whoever cancels us meanwhile."""
        raise NotImplementedError

    async def _question(self, question: str, reason: str, hint: str, about: list[Done]) -> Answer:
        """Ask a person, whoever cancels us meanwhile."""
        raise NotImplementedError

    def _put_in_order(self) -> None:
        """Sort what was done by when its outcome was recorded, the last one first."""
        self.done.sort(reverse=True)

    # ── entered and left ─────────────────────────────────────────────────────────────────────
    def _enter(self) -> None:
        if self.stage is not None:
            raise UsageError("this saga was entered already: write `perdure.saga()` again for another one")
        self.parent, self.stage = open_here("saga"), Stage.OPEN
        HERE.set(self)

    async def _leave(self, error: BaseException | None) -> None:
        HERE.set(self.parent)
        if self._is_gone() or isinstance(error, KeyboardInterrupt):
            return
        if error is None:
            self._hand_over()
            return
        self.stage = Stage.UNDONE
        await self._all_known()
        await self._undo_all()
        self._tell(error)
        self._pass_cancellation_on(error)

    def _hand_over(self) -> None:
        """What was done in it, and what is still under way, is the outer saga's now."""
        self.stage, heir = Stage.LEFT, self.parent
        if heir is not None:
            heir.done += self.done
            heir.passed += self.passed

    def _pass_cancellation_on(self, error: BaseException) -> None:
        """Raise the cancellation that came while it undid, in place of the exception."""
        if self._is_cancelled and not isinstance(error, asyncio.CancelledError):
            cancelled = asyncio.CancelledError("cancelled while a saga was undone")
            self._tell(cancelled)
            raise cancelled from error

    async def __aenter__(self) -> None:
        self._enter()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._leave(error)

    def __enter__(self) -> None:
        raise UsageError("with perdure.saga(): in an `async def` workflow write `async with perdure.saga():`")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        raise NotImplementedError

    def pivot(self) -> None:
        """What was done so far stands, whatever happens now; in the sagas around this one too."""
        saga: Saga | None = self
        while saga is not None:
            saga.passed, saga.done = saga.passed + saga.done, []
            saga = saga.parent

    # ── undoing ──────────────────────────────────────────────────────────────────────────────
    async def _undo_all(self) -> None:
        self._told["stands"] += [f"{done} (done before pivot())" for done in self.passed]
        self._put_in_order()
        unable: list[Done] = []
        for done in list(self.done):
            if done.spec is None or done.spec.undo is None:
                unable.append(done)
            else:
                await self._undo(done, done.spec, done.spec.undo)
                self.done.remove(done)
        if unable:
            shown = ", ".join(f"{done} ({'has no .undo' if done.spec else 'called by hosted code'})" for done in unable)
            said = await self._ask(NO_UNDO, "failed_compensation", f"it cannot be undone: {shown}", unable)
            for done in unable:
                self._settle(done, said)

    async def _undo(self, done: Done, spec: EffectSpec, undo: EffectSpec) -> None:
        if spec.compensates:
            hint = f"{done} is about to be undone, and it is a promise that was made: nothing of it happens before"
            said = await self._ask(CONFIRM_UNDO, "needs_person", hint + " somebody has confirmed", [done])
            if said.choice != "value" or said.value != "undo":
                self._settle(done, said)
                return
        await self._take_back(done, spec, undo)

    async def _take_back(self, done: Done, spec: EffectSpec, undo: EffectSpec) -> None:
        revision = 0
        while True:
            try:
                args, kwargs = spec.arguments.loads(done.input)
                result = spec.result.loads(done.output)
                undoing = Undoing(done.operation, revision)
                await self._send(undo, (result, *args), kwargs, done.business_key, undoing)
            except Exception as error:
                hint = f"{done} could not be undone: {type(error).__name__}: {message_of(error)}"
                said = await self._ask(UNDO_FAILED, "failed_compensation", hint, [done])
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

    async def _ask(self, question: str, reason: str, hint: str, about: list[Done]) -> Answer:
        rest = f"not undone yet: {', '.join(map(str, self.done))}"
        return await self._question(question, reason, ". ".join([hint, *self._lines(), rest]), about)

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
                if self._is_gone() or future.cancelled():
                    raise
                self._is_cancelled = True


class WorkflowSaga(Saga):
    """A saga of an `async def` workflow, whose code the engine drives."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        self._execution = execution
        self._known: asyncio.Future[None] | None = None
        self.pending: dict[Key, EffectAsk | None] = {}

    def join(self, ask: EffectAsk) -> None:
        """An effect was asked for inside."""
        self.pending[ask.key] = ask
        self._execution.sagas[ask.key] = self

    def join_section(self, key: Key) -> None:
        """Hosted code inside was cancelled, and may be undoing what it did."""
        self.pending[key] = None

    def heard(self, event: e.EffectSucceeded | e.EffectFailed | e.SectionEnded, output: bytes) -> None:
        """The outcome of something that belongs here. An answer that another call got first was not done here; what a
        saga of hosted code has taken back does not stand any more."""
        ask = self.pending.pop(event.key, None)
        if isinstance(event, e.EffectSucceeded) and event.undoes:
            self.done = [done for done in self.done if done.operation != event.undoes]
        elif isinstance(event, e.EffectSucceeded) and event.how != "reused":
            spec = ask.spec if ask is not None and isinstance(ask.spec, EffectSpec) else None
            raw = b"" if ask is None else ask.input
            order = self._execution.loop.next_ordinal()
            self.done.append(Done(order, event.name, event.business_key, event.operation, spec, raw, output))
        if self._known is not None and not self.pending and not self._known.done():
            self._known.set_result(None)

    def _is_gone(self) -> bool:
        return self._execution.is_closing

    def _hand_over(self) -> None:
        super()._hand_over()
        sagas, heir = self._execution.sagas, self.parent
        for key in [key for key, saga in sagas.items() if saga is self]:
            if isinstance(heir, WorkflowSaga):
                sagas[key] = heir
            else:
                del sagas[key]
        if isinstance(heir, WorkflowSaga):
            heir.pending.update(self.pending)

    async def _all_known(self) -> None:
        while self.pending:
            known: asyncio.Future[None] = self._execution.loop.create_future()
            self._known = known
            await self._outlast(known)

    async def _send(
        self, undo: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str, undoing: Undoing
    ) -> None:
        await self._outlast(self._execution.ask_effect(undo, args, kwargs, business_key, undoing))

    async def _question(self, question: str, reason: str, hint: str, about: list[Done]) -> Answer:
        return Answer.of(*await self._outlast(self._execution.ask_person(question, reason, hint)))


def open_here(what: str) -> Saga | None:
    """The saga that the code which runs now is in. UsageError if that one is being undone: nothing new is done then."""
    saga = HERE.get()
    while saga is not None and saga.stage is Stage.LEFT:
        saga = saga.parent
    if saga is not None:
        refuse_when_undone(saga, what)
    return saga


def refuse_when_undone(saga: Saga, what: str) -> None:
    """UsageError in a saga that has failed."""
    if saga.stage is Stage.UNDONE:
        raise UsageError(
            f"{what} was called in a task or thread that was started inside a saga which has failed since, and is "
            "undone: wait for such tasks inside the block, or cancel them there (asyncio.TaskGroup does)"
        )


def workflow_saga_here(what: str) -> WorkflowSaga | None:
    """The saga that the workflow's own code is in."""
    saga = open_here(what)
    return saga if isinstance(saga, WorkflowSaga) else None


def refuse_next_chapter() -> None:
    """UsageError inside a saga: the next chapter could not undo what this one did."""
    if open_here("continue_as_new()") is not None:
        raise UsageError(
            "continue_as_new() inside a saga: the next chapter could not undo what this one did. Leave the block first"
        )

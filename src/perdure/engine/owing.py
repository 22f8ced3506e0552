"""What a run owes: effects that happened in a stretch that does not count any more, and that its new way has not asked
for again.

    rewound ──▶ in the inbox, at once ──▶ the new way asks for the same: struck off
                                      ├─▶ a person says: undo it now, it was undone, it stands
                                      └─▶ the code has come to its end ──▶ undone, the last one first

As long as the code runs it may ask for the same again, so nothing is undone by itself before it has come to its end.
Then it is undone as a saga undoes, by durable calls; what has no `.undo` is put to a person, and the run does not end
before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.codec import codec_for
from perdure.decisions import Request
from perdure.engine.calls import DEBT, Key, RequestAsk
from perdure.engine.loop import LoopTask
from perdure.engine.rewinding import Owed, Superseded, effect_named
from perdure.engine.sagas import Done, Stage, WorkflowSaga
from perdure.history import events as e

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

UNDO, UNDONE, STANDS = b'"undo"', b'"undone"', b'"stands"'
"""What a person can say of a debt, as canonical JSON."""

PLACES_PER_MICROSECOND = 2**20
OPERATION_DIGITS = 12
_ANSWER = codec_for(str)
_NOTHING = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder(order="sorted").encode


def key_of(owed: Owed) -> Key:
    """Of the call in which people are asked about a debt."""
    return (f"{DEBT}{owed.operation[:OPERATION_DIGITS]}", 0)


def order_of(at: int, place: int) -> int:
    """When something was done, across runs: by its time (microseconds), then by its place in its history."""
    return at * PLACES_PER_MICROSECOND + place


async def settled(execution: Execution, code: Coroutine[Any, Any, Any], debts: Debts) -> Any:
    """What the code comes to, once nothing is owed any more."""
    try:
        result = await code
    except BaseException as error:
        if not (execution.is_closing or isinstance(error, GeneratorExit | KeyboardInterrupt)):
            await debts.settle(error)
        raise
    await debts.settle(None)
    return result


class Debts(WorkflowSaga):
    """A saga that nobody has entered: of what was done before the run was rewound. `stand`: what people have said so
    of."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(execution)
        self.stage = Stage.UNDONE
        self.stand: set[str] = set()
        self._rewindings = 0
        self._children_done: set[str] = set()
        self._has_ended = False
        self._asks: dict[str, RequestAsk] = {}
        self._tasks: dict[str, LoopTask] = {}

    # ── as the history goes on ───────────────────────────────────────────────────────────────
    def hear(self, event: e.Event, output: bytes | None) -> None:
        """Something was delivered that may be about a debt."""
        owed = self._execution.owed
        if isinstance(event, e.EffectSucceeded):
            if owed.pop(event.operation, None) is not None:  # asked for again, so it is wanted
                self._no_longer_ask(event.operation)
        elif isinstance(event, e.Rewound):
            self._rewindings += 1
            self._put([each for each in owed.values() if each.since == self._rewindings])
        elif isinstance(event, e.ChildOwed):
            self._children_done.add(event.run_id)
            self._put(debts_of_child(output or b"[]"))
            if self._known is not None and not self._known.done() and not self._children_left():
                self._known.set_result(None)

    def _put(self, debts: Iterable[Owed]) -> None:
        """Put debts to people, each in a task of its own; but for what was said before the run went back once more."""
        execution = self._execution
        before = execution.known.before or Superseded()
        for owed in debts:
            execution.owed[owed.operation] = owed
            said = before.said.get(key_of(owed))
            if owed.operation in before.struck or said == UNDONE:
                del execution.owed[owed.operation]
                before.struck.add(owed.operation)
            elif said == STANDS:
                self.stand.add(owed.operation)
            else:
                self._tasks[owed.operation] = execution.loop.new_task(
                    self._ask_about(owed), path=key_of(owed)[0], context=contextvars.Context()
                )

    # ── children ─────────────────────────────────────────────────────────────────────────────
    @property
    def has_ended(self) -> bool:
        """Whether the code has come to its end: no child is asked for any more."""
        return self._has_ended

    @property
    def waits(self) -> bool:
        """Whether the end of a child is waited for that nobody wants any more."""
        return self._known is not None and not self._known.done()

    def _children_left(self) -> bool:
        """What counts is what was delivered: so it is the same whenever the run is loaded."""
        left = self._execution.leftovers
        return left is not None and any(each.run_id not in self._children_done for each in left.to_be_dismissed())

    async def _all_known(self) -> None:
        """Wait for the children that nobody wants any more: what they do is owed."""
        self._has_ended = True
        while self._children_left():
            known: asyncio.Future[None] = self._execution.loop.create_future()
            self._known = known
            await self._outlast(known)

    def _no_longer_ask(self, operation: str) -> None:
        ask = self._asks.pop(operation, None)
        if ask is not None:
            ask.future.cancel()

    # ── what people say ──────────────────────────────────────────────────────────────────────
    async def _ask_about(self, owed: Owed) -> None:
        ask = self._asks[owed.operation] = self._execution.ask_request(question_about(owed), _ANSWER)
        with contextlib.suppress(asyncio.CancelledError):
            _, said = await ask.future
            self._asks.pop(owed.operation, None)
            await self._do(owed, said)

    async def _do(self, owed: Owed, said: bytes) -> None:
        execution = self._execution
        if said == STANDS:
            self.stand.add(owed.operation)
            return
        execution.owed.pop(owed.operation, None)  # asked for again, it is another operation
        if execution.known.before is not None:
            execution.known.before.struck.add(owed.operation)
        if said == UNDO:
            await OneDebt(execution, self._done(owed)).settle()

    # ── the end ──────────────────────────────────────────────────────────────────────────────
    async def settle(self, error: BaseException | None) -> None:
        """Undo all that is left, whoever cancels the run meanwhile."""
        for operation in list(self._asks):
            self._no_longer_ask(operation)
        for task in list(self._tasks.values()):  # what somebody wants undone already
            await self._outlast(_end_of(task))
        await self._all_known()
        for operation in list(self._asks):  # of what those have done
            self._no_longer_ask(operation)
        owed = self._execution.owed
        self.done = [self._done(each) for each in owed.values() if each.operation not in self.stand]
        owed.clear()
        if self.done:
            await self._undo_all()
        if error is not None:
            self._tell(error)
            self._pass_cancellation_on(error)
        elif self._is_cancelled:
            raise asyncio.CancelledError("cancelled while what it owed was undone")

    def _done(self, owed: Owed) -> Done:
        spec = None if owed.input is None else effect_named(self._execution.spec.function, owed.name)
        return Done(
            owed.order, owed.name, owed.business_key, owed.operation, spec, owed.input or b"", owed.output
        )  # fmt: skip


class OneDebt(WorkflowSaga):
    """What a person wants undone now: that is the confirmation of a promise, too."""

    def __init__(self, execution: Execution, done: Done) -> None:
        super().__init__(execution)
        self.stage = Stage.UNDONE
        self.done = [done]

    async def settle(self) -> None:
        (done,) = self.done
        if done.spec is None or done.spec.undo is None:
            await self._undo_all()
        else:
            await self._take_back(done, done.spec, done.spec.undo)


async def _end_of(task: LoopTask) -> None:
    await asyncio.wait([task])


class OfChild(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect that a child has done, as it stands in the history of its parent. `input`: its arguments, if they are
    kept."""

    name: str
    business_key: str
    operation: str
    order: int
    output: msgspec.Raw
    input: tuple[msgspec.Raw, ...] = ()


_decode_debts = msgspec.json.Decoder(list[OfChild]).decode


def debts_of_child(raw: bytes) -> list[Owed]:
    """What a child run has done, which its parent owes."""
    return [
        Owed(
            each.order, each.name, each.business_key, each.operation,
            bytes(each.input[0]) if each.input else None, bytes(each.output),
        )
        for each in _decode_debts(raw)
    ]  # fmt: skip


def question_about(owed: Owed) -> Request:
    """What people are asked about a debt. Nothing of it depends on the code as it is now, which may change."""
    subject = {
        "effect": owed.name, "key": owed.business_key, "operation": owed.operation,
        "arguments": _NOTHING if owed.input is None else msgspec.Raw(owed.input), "result": msgspec.Raw(owed.output),
    }  # fmt: skip
    question = (
        f"{owed} was done, and the run has gone back since. Unless its code asks for the same again, it is undone when "
        "that has come to its end; where it has no .undo, you are asked then. What is to become of it?"
    )
    return Request(
        "question", question, arguments=msgspec.Raw(_encode(subject)),
        type='"undo": now; "undone": it was taken back by hand; "stands": it is left as it is',
        choices=tuple(msgspec.Raw(each) for each in (UNDO, UNDONE, STANDS)),
    )  # fmt: skip

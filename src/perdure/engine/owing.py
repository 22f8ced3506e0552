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
from perdure.engine.rewinding import Owed, effect_named
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


def is_debt(key: Key) -> bool:
    """Whether a call is none of the code's, but about what it owes."""
    return key[0].startswith(DEBT)


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
        self._asks: dict[str, RequestAsk] = {}
        self._tasks: dict[str, LoopTask] = {}

    # ── as the history goes on ───────────────────────────────────────────────────────────────
    def hear(self, event: e.Event) -> None:
        """Something was delivered that may be about a debt."""
        owed = self._execution.owed
        if isinstance(event, e.EffectSucceeded):
            if owed.pop(event.operation, None) is not None:  # asked for again, so it is wanted
                self._no_longer_ask(event.operation)
        elif isinstance(event, e.Rewound):
            self._rewindings += 1
            self._put(each for each in owed.values() if each.since == self._rewindings)

    def _put(self, debts: Iterable[Owed]) -> None:
        """Put debts to people, each in a task of its own."""
        for owed in debts:
            path, _ = key_of(owed)
            asking = self._ask_about(owed)
            self._tasks[owed.operation] = self._execution.loop.new_task(
                asking, path=path, context=contextvars.Context()
            )

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

"""What a run still owes when its code has come to its end: effects that happened in a stretch that does not count any
more, and that its new way has not asked for again.

They are undone as a saga undoes, the last one first, by durable calls of the workflow's own task; what has no `.undo`
is put to a person, and the run does not end before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from perdure.engine.rewinding import Owed, effect_named
from perdure.engine.sagas import Done, Stage, WorkflowSaga

if TYPE_CHECKING:
    from perdure.engine.execution import Execution


async def settled(execution: Execution, code: Coroutine[Any, Any, Any]) -> Any:
    """What the code comes to, once nothing is owed any more."""
    try:
        result = await code
    except BaseException as error:
        if not (execution.is_closing or isinstance(error, GeneratorExit | KeyboardInterrupt)):
            await _settle(execution, error)
        raise
    await _settle(execution, None)
    return result


async def _settle(execution: Execution, error: BaseException | None) -> None:
    owed, execution.owed = list(execution.owed.values()), {}
    if owed:
        await Debts(execution, owed).settle(error)


class Debts(WorkflowSaga):
    """A saga that nobody has entered: of what was done before the run was rewound."""

    def __init__(self, execution: Execution, owed: list[Owed]) -> None:
        super().__init__(execution)
        self.stage = Stage.UNDONE
        self.done = [self._done(each) for each in owed]

    def _done(self, owed: Owed) -> Done:
        spec = None if owed.input is None else effect_named(self._execution.spec.function, owed.name)
        return Done(
            owed.order, owed.name, owed.business_key, owed.operation, spec, owed.input or b"", owed.output
        )  # fmt: skip

    async def settle(self, error: BaseException | None) -> None:
        """Undo all of it, whoever cancels the run meanwhile."""
        await self._undo_all()
        if error is not None:
            self._tell(error)
            self._pass_cancellation_on(error)
        elif self._is_cancelled:
            raise asyncio.CancelledError("cancelled while what it owed was undone")

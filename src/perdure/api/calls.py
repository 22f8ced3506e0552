"""A durable call as a value: `search.call(q)`.

It can be awaited, given to create_task or gather, started as a run, approved. Where it is awaited decides what it is:
inside a workflow a recorded call, inside a step's body or outside of any run the plain function.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from perdure.engine.here import HERE
from perdure.errors import UsageError
from perdure.runtime.attempt import ATTEMPT, JOURNAL

if TYPE_CHECKING:
    from perdure.engine.execution import Execution

P = ParamSpec("P")
R = TypeVar("R")

_getframe = sys._getframe


def execution_here() -> Execution | None:
    """The run whose code is executing in this thread right now; None elsewhere."""
    loop = HERE.loop
    if loop is None:
        return None
    execution: Execution = loop.execution
    return execution


class Call(Coroutine[Any, Any, R], Generic[R]):
    """A call of a step or a workflow that has not been made yet. It is made once, when it is first awaited."""

    __slots__ = ("_begun", "args", "kwargs", "of")

    def __init__(self, of: DurableFunction[Any, R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.of = of
        self.args = args
        self.kwargs = kwargs
        self._begun: Any = None

    def take(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, for whoever makes the call now. UsageError if it was made already."""
        if self._begun is not None:
            raise self._made_already()
        self._begun = iter(())
        return self.args, self.kwargs

    def _made_already(self) -> UsageError:
        return UsageError(f"this call of {self.of.name} was made already: write .call(...) again for another one")

    def __await__(self) -> Generator[Any, Any, R]:
        if self._begun is not None:
            raise self._made_already()
        loop = HERE.loop
        begun: Any = None
        if loop is not None:
            execution: Execution = loop.execution
            if execution.replay is not None:
                begun = execution.replay.answered(self.of.spec, self.args, self.kwargs, _getframe(1))
            if begun is None:
                begun = self.of._ask(execution, self.args, self.kwargs).__await__()
        else:
            begun = self.of._begin_elsewhere(self.args, self.kwargs)
        self._begun = begun
        return begun  # type: ignore[no-any-return]

    def send(self, value: Any) -> Any:
        begun: Any = self._begun if self._begun is not None else self.__await__()
        return begun.send(value)

    def throw(self, *error: Any) -> Any:
        if self._begun is None:
            self._begun = iter(())
            raise error[0] if isinstance(error[0], BaseException) else error[0](*error[1:2])
        return self._begun.throw(*error)

    def close(self) -> None:
        if self._begun is not None and hasattr(self._begun, "close"):
            self._begun.close()
        self._begun = iter(())

    def __repr__(self) -> str:
        return f"<call of {self.of.name}>"


def check_call(call: Any, what: str) -> None:
    """UsageError for what is not `x.call(...)`."""
    if not isinstance(call, Call):
        name = getattr(call, "name", "workflow")
        raise UsageError(f"{what}({call!r}): a call is wanted, as in {what}({name}.call(...))")


class DurableFunction(Generic[P, R]):
    """What `@step` and `@workflow` make of a function."""

    spec: Any  # StepSpec or WorkflowSpec: the subclasses say which

    @property
    def name(self) -> str:
        name: str = self.spec.name
        return name

    def _begin_elsewhere(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call outside of a workflow's loop; an iterator that awaits it."""
        if ATTEMPT.get() is None:
            journal = JOURNAL.get()
            if journal is not None:
                return self._ask_journal(journal, args, kwargs).__await__()
        return self._plain(args, kwargs).__await__()

    def _ask(self, execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        raise NotImplementedError

    def _ask_journal(self, journal: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[R]:
        raise NotImplementedError

    async def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        function: Callable[..., Any] = self.spec.function
        if self.spec.is_async:
            result: R = await function(*args, **kwargs)
            return result
        from asyncio import to_thread  # whoever awaits has it; `import perdure` does without

        return await to_thread(function, *args, **kwargs)

    def _refuse_where_nobody_can_await(self) -> None:
        """An `async def` called as usual gives a call to be awaited. A `def` workflow cannot await: it would never be
        made."""
        if ATTEMPT.get() is None and nobody_can_await():
            raise UsageError(
                f"{self.name} is an `async def`: in a `def` workflow, or hosted code without an event loop, write "
                f"perdure.sync.wait({self.name}.call(...))"
            )

    def _call_plain_function(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """A `def` function called as usual: it blocks in a `def` workflow, is plain outside, refused in an async
        one."""
        if execution_here() is not None:
            raise UsageError(
                f"{self.name} is a plain function: in an async workflow write `await {self.name}.call(...)`, "
                "it then runs in a thread"
            )
        if ATTEMPT.get() is None:
            journal = JOURNAL.get()
            if journal is not None:
                return journal.call_blocking(self, args, kwargs)  # type: ignore[no-any-return]
        result: R = self.spec.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"


def nobody_can_await() -> bool:
    """Whether this thread has no event loop just now."""
    if HERE.loop is not None:
        return False
    from asyncio import _get_running_loop

    return _get_running_loop() is None


def same_signature(of: Any, function: Callable[..., Any]) -> None:
    """Let help(), docs and debuggers see the author's function."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(of, attribute, getattr(function, attribute, None))
    of.__wrapped__ = function

"""asyncio made exact: the few functions of asyncio whose order depends on memory addresses or on the Python version.

`as_completed` starts bare coroutines in the order of a set of them, which is the order of their addresses; `wait_for`
runs the awaited body in another task on Python 3.11 and in the same one later; the future of `gather` hashes by its
address. While a Runtime is open all three are replaced by dispatchers that are exact on our loop and call the
originals on any other.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import tasks as asyncio_tasks
from collections.abc import Iterable
from typing import Any

from perdure.engine.loop import DeterministicLoop, running_loop

_original_as_completed = asyncio.as_completed
_original_wait_for = asyncio.wait_for
_GatheringFuture: Any = getattr(asyncio_tasks, "_GatheringFuture")  # noqa: B009  (typeshed has none)
_original_hash: Any = _GatheringFuture.__hash__
_lock = threading.Lock()
_users = 0

INEXACT = {_original_as_completed: "asyncio.as_completed", _original_wait_for: "asyncio.wait_for"}
"""Functions that a workflow's globals must not be bound to directly: the dispatchers cannot reach them there."""


def as_completed(fs: Iterable[Any], *, timeout: float | None = None) -> Any:
    """asyncio.as_completed; on a workflow's loop, tasks are made in the order in which the awaitables are given."""
    loop = running_loop()
    if not isinstance(loop, DeterministicLoop) or asyncio.isfuture(fs) or asyncio.iscoroutine(fs):
        return _original_as_completed(fs, timeout=timeout)
    seen: dict[int, Any] = {}
    for awaitable in fs:
        if id(awaitable) not in seen:
            seen[id(awaitable)] = asyncio.ensure_future(awaitable, loop=loop)
    return _original_as_completed(list(seen.values()), timeout=timeout)


async def wait_for(fut: Any, timeout: float | None) -> Any:
    """asyncio.wait_for; on a workflow's loop, the awaited body runs in the caller's task on every Python."""
    if not isinstance(running_loop(), DeterministicLoop):
        return await _original_wait_for(fut, timeout)
    if timeout is None or timeout > 0:
        async with asyncio.timeout(timeout):
            return await fut
    future = asyncio.ensure_future(fut)
    if future.done():
        return future.result()
    future.cancel()
    await asyncio.wait([future])
    try:
        return future.result()
    except asyncio.CancelledError as error:
        raise TimeoutError from error


def _hash_of_gathering(future: Any) -> int:
    loop = future.get_loop()
    if not isinstance(loop, DeterministicLoop):
        return int(_original_hash(future))
    try:
        return int(future._perdure_ordinal)
    except AttributeError:
        future._perdure_ordinal = loop.next_ordinal()
        return int(future._perdure_ordinal)


def install() -> None:
    """Put the dispatchers in place. Counted: the last `uninstall` takes them away."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _replace(as_completed, wait_for, _hash_of_gathering)


def uninstall() -> None:
    """Undo one `install`."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _replace(_original_as_completed, _original_wait_for, _original_hash)


def _replace(new_as_completed: Any, new_wait_for: Any, new_hash: Any) -> None:
    modules: tuple[Any, ...] = (asyncio, asyncio_tasks)
    for module in modules:
        module.as_completed = new_as_completed
        module.wait_for = new_wait_for
    _GatheringFuture.__hash__ = new_hash

"""Where in the user's source something happens: for messages only, never for decisions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from perdure.codec.exceptions import FOREIGN_FILES

_THREAD_BRIDGES = frozenset({"run_sync_in_worker_thread", "run_sync", "to_thread"})


def user_frame() -> str | None:
    """`app.py:41 in claims_agent` of the innermost running frame that is the user's; None where no workflow code runs:
    below the loop's driver, or without one, there is only the program that has it driven."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    innermost: FrameType | None = None
    while frame is not None and frame.f_code.co_name != "run_dry":
        if innermost is None and _is_user(frame):
            innermost = frame
        frame = frame.f_back
    return None if frame is None or innermost is None else _told(innermost)


def _is_user(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(FOREIGN_FILES)


def _told(frame: FrameType) -> str:
    file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"


def frames_of(task: Any) -> Iterator[FrameType]:
    """The frames of a suspended task, outermost first, along its chain of awaits."""
    awaited = task.get_coro()
    while awaited is not None:
        frame = (
            getattr(awaited, "cr_frame", None)
            or getattr(awaited, "ag_frame", None)
            or getattr(awaited, "gi_frame", None)
        )
        if frame is not None:
            yield frame
        awaited = (
            getattr(awaited, "cr_await", None)
            or getattr(awaited, "ag_await", None)
            or getattr(awaited, "gi_yieldfrom", None)
        )


def raised_at(error: BaseException) -> str:
    """Where an exception was raised: in the innermost frame that is the user's, else in the innermost."""
    frames: list[FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    shown = [frame for frame in frames if _is_user(frame)] or frames
    return _told(shown[-1]) if shown else "nowhere"


def describe(tasks: Iterable[Any], tasks_shown_max: int = 5) -> str:
    """What each task waits for, as `task 0: app.py:41 in agent > app.py:12 in helper`."""
    told: list[str] = []
    for task in tasks:
        own = [_told(f) for f in frames_of(task) if _is_user(f)]
        told.append(f"task {getattr(task, 'path', '?')}: {' > '.join(own) or 'no frame of yours'}")
    shown = "; ".join(told[:tasks_shown_max])
    return shown + (f"; and {len(told) - tasks_shown_max} more" if len(told) > tasks_shown_max else "")


def is_in_foreign_thread(tasks: Iterable[Any]) -> bool:
    """Whether a task waits for a worker thread of some library."""
    return any(f.f_code.co_name in _THREAD_BRIDGES and not _is_user_code(f) for t in tasks for f in frames_of(t))


def _is_user_code(frame: FrameType) -> bool:
    return "anyio" not in frame.f_code.co_filename

"""Waiting for a run and telling what became of it: its result on stdout, all else on stderr, and the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from perdure.api.run import Run
from perdure.audit.waits import Wait, waits
from perdure.cli.exits import ExitCode, complain
from perdure.cli.show import length, moment, print_json, safe
from perdure.clock import when
from perdure.codec import ValueCodec
from perdure.errors import RunBlockedError, RunCancelledError, StepError, StoreError
from perdure.store.protocol import Status, Store

LOOK_SECONDS = 1.0

CODE_OF_STATUS = {
    Status.COMPLETED: ExitCode.OK,
    Status.FAILED: ExitCode.FAILED,
    Status.CANCELLED: ExitCode.CANCELLED,
    Status.BLOCKED: ExitCode.BLOCKED,
}


async def outcome(
    run: Run[Any], store: Store, codec: ValueCodec, *, as_json: bool, timeout: float | None = None
) -> ExitCode:
    """Wait for the run's end, or for its being blocked, and tell it."""
    with _progress(store, run.id):
        told = await _told(run, codec, timeout)
    status = Status(told["status"])
    if as_json:
        print_json(told)
    elif status is Status.COMPLETED:
        _print_result(told["result"])
    else:
        _complain_of(told)
    return CODE_OF_STATUS[status]


async def _told(run: Run[Any], codec: ValueCodec, timeout: float | None) -> dict[str, Any]:
    """What `--json` prints. Errors that are not the run's own are raised."""
    try:
        result = await run.result(timeout=timeout)
    except RunBlockedError as blocked:
        return {"id": run.id, "status": "blocked", "reason": blocked.reason, "hint": blocked.hint}
    except RunCancelledError:
        return {"id": run.id, "status": "cancelled"}
    except Exception as error:
        if await run.status() is not Status.FAILED:
            raise
        kind = error.type_name if isinstance(error, StepError) and error.type_name else type(error).__name__
        message = error.message if isinstance(error, StepError) else str(error)
        return {"id": run.id, "status": "failed", "error": {"type": kind, "message": message}}
    return {"id": run.id, "status": "completed", "result": msgspec.json.decode(codec.dumps(result))}


def _print_result(result: Any) -> None:
    """A text as it is, all else as JSON."""
    if isinstance(result, str):
        print(result)
    elif result is not None:
        print_json(result)


def _complain_of(told: dict[str, Any]) -> None:
    run_id = told["id"]
    if told["status"] == "blocked":
        hint = safe(told["hint"]).rstrip(".")
        complain(f"run {run_id} is blocked ({told['reason']}): {hint}; see perdure inbox list")
    elif told["status"] == "cancelled":
        complain(f"run {run_id} was cancelled")
    else:
        error = told["error"]
        complain(f"run {run_id} failed: {error['type']}: {safe(error['message'])}; see perdure runs show {run_id}")


# ── progress ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _progress(store: Store, run_id: str) -> Generator[None, None, None]:
    """As long as the block takes: a line on the terminal whenever the run waits for something else."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.ensure_future(_tell_waits(store, run_id))
    try:
        yield
    finally:
        task.cancel()


async def _tell_waits(store: Store, run_id: str) -> None:
    told: list[Wait] = []
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(StoreError):
            found = _waits(store, run_id)
            if found and found != told:
                told = found
                complain(f"run {run_id} waits for {_line(found)}")


def waits_line(store: Store, run_id: str) -> str:
    """What the run waits for, in one line; "" if it is executed right now."""
    return _line(_waits(store, run_id))


def _waits(store: Store, run_id: str) -> list[Wait]:
    info = store.find(run_id)
    return [] if info is None else waits(store, info)


def _line(found: Sequence[Wait]) -> str:
    return "; ".join(
        safe(f"{wait.what}{f' in {wait.call}' if wait.call else ''}{_until(wait.until)}") for wait in found
    )


def _until(at: int | None) -> str:
    if at is None:
        return ""
    seconds = (when(at) - datetime.now(UTC)).total_seconds()
    return (
        f", due since {moment(when(at))} UTC" if seconds < 0 else f", until {moment(when(at))} UTC ({length(seconds)})"
    )

"""Exceptions that are nobody's: they park their run, harm no other, and leave nothing stuck."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.runtime.hosting import eventually, host_of, is_in_memory, kinds, let_go, on_one_store, run_async

import perdure
from perdure import Status, step, workflow
from perdure.codec import dump_exception, load_exception

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


@step
async def work(what: str) -> str:
    CALLS.append(what)
    return what


@workflow
async def steps() -> list[str]:
    done = [await work("first")]
    done.append(await perdure.receive("go", str))
    return [*done, await work("last")]


@workflow
async def other() -> str:
    return await perdure.receive("go", str)


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("place", ["deliver", "advance", "append", "letter", "replay"])
def test_what_escapes_a_turn_parks_its_run_and_a_person_gets_it_on(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log line, the run in the inbox, its neighbour unharmed; once the cause is gone it goes on from its record."""

    async def main() -> None:
        make = on_one_store()
        async with make(steps, other) as runtime:
            run, beside = await runtime.start(steps.call(), id="r"), await runtime.start(other.call(), id="beside")
            await eventually(lambda: _is_recorded(run), "the first step's result is recorded")
            turns = host_of(runtime).turns
            if place == "replay":
                await let_go(runtime, "r")
            broken = _break(monkeypatch, turns, place, "r")
            await run.send("go", "on")
            await eventually(lambda: _status(runtime, "r") is Status.BLOCKED)
            (entry,) = await runtime.inbox()
            assert (entry.run_id, entry.reason) == ("r", "stuck_turn")
            assert "ZeroDivisionError: of nobody" in entry.hint
            assert not is_in_memory(runtime, "r")
            await beside.send("go", "on")
            assert await beside.result() == "on"
            assert len(errors_in(caplog)) == 1
            broken.undo()
            await run.unblock("retry")
            assert await run.result(wait_blocked=True, timeout=20) == ["first", "on", "last"]
        assert CALLS == ["first", "last"]

    run_async(main())


async def _is_recorded(run: perdure.Run[Any]) -> bool:
    return "step.completed" in await kinds(run)


def _status(runtime: Any, run_id: str) -> Status:
    info = host_of(runtime).store.find(run_id)
    assert info is not None
    return info.status


def _break(patch: pytest.MonkeyPatch, turns: Any, place: str, run_id: str) -> pytest.MonkeyPatch:
    """Have something raise whenever this run comes to that place."""
    from perdure.engine.execution import Execution
    from perdure.runtime import mail
    from perdure.runtime.live import LiveRun

    owner: Any = {"advance": turns.parking, "append": LiveRun, "letter": mail}.get(place, Execution)
    names = {"advance": "change", "append": "build", "letter": "take", "replay": "begin", "deliver": "deliver"}
    if place == "advance":
        owner, names = turns, {"advance": "advance"}
    genuine = getattr(owner, names[place])

    def raising(*args: Any, **more: Any) -> Any:
        if any(getattr(argument, "run_id", "") == run_id for argument in args):
            raise ZeroDivisionError("of nobody")
        return genuine(*args, **more)

    patch.setattr(owner, names[place], raising)
    return patch


# ── exceptions that cannot be printed ───────────────────────────────────────────────────────


class Mute(perdure.NeedsPerson):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Opaque(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no arguments")

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Unnotable(Exception):
    def __init__(self) -> None:
        self.__notes__ = [Mute("")]  # type: ignore[list-item]


@pytest.mark.parametrize("error", [Mute("x"), Opaque("x"), Unnotable(), ExceptionGroup("several", [Mute("x")])])
def test_an_exception_that_cannot_be_read_is_recorded_all_the_same(error: Exception) -> None:
    back = load_exception(dump_exception(error))
    assert isinstance(back, Exception)
    assert str(back)


@step
async def ask() -> str:
    CALLS.append("ask")
    raise Mute("please")


@step(retry=perdure.Retry(max_attempts=2, first_delay=0))
async def opaque() -> str:
    CALLS.append("opaque")
    raise Opaque


class Touchy:
    """A value whose fields cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not touch")


@step
async def touchy() -> Any:
    return Touchy()


@workflow
async def calls(which: str) -> str:
    try:
        return str(await (ask() if which == "ask" else opaque() if which == "opaque" else touchy()))
    except Exception as error:
        return type(error).__name__


def test_a_question_without_words_is_asked() -> None:
    async def main() -> None:
        async with on_one_store()(calls) as runtime:
            run = await runtime.start(calls.call("ask"))
            with pytest.raises(perdure.RunBlockedError) as blocked:
                await run.result(timeout=20)
            assert blocked.value.reason == "needs_person"
            await run.unblock("value", value="well then")
            assert await run.result(wait_blocked=True, timeout=20) == "well then"

    run_async(main())


@pytest.mark.parametrize(("which", "raised"), [("opaque", "StepError"), ("touchy", "EncodeError")])
def test_a_step_whose_error_or_value_cannot_be_read_fails(which: str, raised: str) -> None:
    async def main() -> None:
        async with on_one_store()(calls) as runtime:
            assert await (await runtime.start(calls.call(which))).result(timeout=20) in {raised, "RuntimeError"}

    run_async(main())


# ── what looks around now and then ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["changed", "lost", "evict", "flush"])
def test_a_look_around_that_fails_is_logged_once_and_the_worker_goes_on(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with on_one_store()(other) as runtime:
            host = host_of(runtime)
            run = await runtime.start(other.call(), id="r")
            looks: list[str] = []

            def raising(*_: Any, **__: Any) -> Any:
                looks.append(what)
                raise ZeroDivisionError("of nobody")

            owner: Any = {"evict": host.turns.parking, "flush": host.turns}.get(what, host.store)
            name = {"evict": "may_leave", "flush": "flush_lazy"}.get(what, what)
            monkeypatch.setattr(owner, name, raising)
            await eventually(lambda: len(looks) > 3)
            await run.send("go", "on")
            assert await run.result(timeout=20) == "on"
            monkeypatch.undo()
            assert len(errors_in(caplog)) == 1

    run_async(main())


def test_a_lease_thread_goes_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with on_one_store()(other, lease=1.0) as runtime:
            lease, ticks = host_of(runtime).lease, list[int]()

            def tick() -> bool:
                ticks.append(1)
                if len(ticks) == 1:
                    raise ZeroDivisionError("of nobody")
                return True

            monkeypatch.setattr(lease, "tick", tick)
            await eventually(lambda: len(ticks) > 1)
        assert len(errors_in(caplog)) == 1

    run_async(main())


def test_an_exception_handler_of_the_users_that_raises_is_told_of() -> None:
    async def main() -> None:
        async with on_one_store()(handles) as runtime:
            assert await (await runtime.start(handles.call())).result(timeout=20) == "on"

    run_async(main())


@workflow
async def handles() -> str:
    loop = asyncio.get_running_loop()

    def handler(loop: Any, context: Any) -> None:
        raise ZeroDivisionError("in the handler")

    def callback() -> None:
        raise Mute("in a callback")

    loop.set_exception_handler(handler)
    loop.call_soon(callback)
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    loop.call_soon(callback)
    await asyncio.sleep(0)
    return await work("on")


"""The guard: what it catches, what it lets pass, and that it leaves nothing behind."""
# ruff: noqa: DTZ002, DTZ003, DTZ005, DTZ011, SIM115
# pyright: reportDeprecated=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
import cProfile
import datetime as dt
import functools
import gc
import importlib
import linecache
import logging
import os
import random
import re
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.engine.driving import Driver

from perdure import workflow
from perdure.errors import GuardError
from perdure.runtime import guard
from perdure.runtime.guard import checking, unchecked


def caught(work: Callable[[], object]) -> str:
    """The message of the GuardError that `work` gets, noted exactly as raised."""
    noted: list[GuardError] = []
    with pytest.raises(GuardError) as raised, checking(noted.append):
        work()
    assert noted == [raised.value]
    return str(raised.value)


def passes(work: Callable[[], object]) -> None:
    noted: list[GuardError] = []
    with checking(noted.append):
        work()
    assert not noted


# ── what it catches ─────────────────────────────────────────────────────────────────────────

CLOCKS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "time.localtime": lambda: time.localtime(),
    "time.gmtime": lambda: time.gmtime(),
    "time.ctime": lambda: time.ctime(),
    "time.asctime": lambda: time.asctime(),
    "time.strftime": lambda: time.strftime("%Y"),
    "datetime.datetime.now": lambda: dt.datetime.now(),
    "datetime.datetime.utcnow": lambda: dt.datetime.utcnow(),
    "datetime.datetime.today": lambda: dt.datetime.today(),
    "datetime.date.today": lambda: dt.date.today(),
}
RANDOMNESS: dict[str, Callable[[], object]] = {
    "random.random": lambda: random.random(),
    "random.randint": lambda: random.randint(1, 6),
    "random.choice": lambda: random.choice([1, 2]),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.uniform": lambda: random.uniform(0, 1),
    "random.getrandbits": lambda: random.getrandbits(8),
    "random.seed": lambda: random.seed(),
    "random.Random": lambda: random.Random(),
    "random.SystemRandom.random": lambda: random.SystemRandom().random(),
    "os.urandom": lambda: os.urandom(8),
}
IDS: dict[str, Callable[[], object]] = {
    "uuid.uuid4": lambda: uuid.uuid4(),
    "uuid.uuid1": lambda: uuid.uuid1(),
}
SECRETS: dict[str, Callable[[], object]] = {
    "secrets.token_hex": lambda: secrets.token_hex(),
    "secrets.token_bytes": lambda: secrets.token_bytes(8),
    "secrets.randbelow": lambda: secrets.randbelow(5),
}
if sys.version_info >= (3, 14):
    IDS["uuid.uuid7"] = lambda: uuid.uuid7()

FILES: dict[str, Callable[[], object]] = {
    "open": lambda: open(os.devnull),
    "pathlib.Path.write_text": lambda: Path(os.devnull).write_text("x"),
    "os.listdir": lambda: os.listdir("/"),
    "os.remove": lambda: os.remove("/nowhere"),
    "os.stat": lambda: os.stat("/"),
    "sqlite3.connect": lambda: sqlite3.connect(":memory:"),
    "tempfile.mkdtemp": lambda: tempfile.mkdtemp(dir="/"),
}
NETWORK: dict[str, Callable[[], object]] = {
    "socket.socket": lambda: socket.socket(),
    "socket.create_connection": lambda: socket.create_connection(("127.0.0.1", 1)),
    "socket.gethostname": lambda: socket.gethostname(),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("localhost", 1),
}
PROCESSES: dict[str, Callable[[], object]] = {
    "subprocess.run": lambda: subprocess.run(["true"], check=False),
    "os.system": lambda: os.system("true"),
    "os.kill": lambda: os.kill(os.getpid(), 0),
}
THREADS: dict[str, Callable[[], object]] = {
    "threading.Thread.start": lambda: threading.Thread(target=print).start(),
    "concurrent.futures.thread.ThreadPoolExecutor.submit": lambda: ThreadPoolExecutor().submit(print),
}
OTHERS: dict[str, Callable[[], object]] = {
    "time.sleep": lambda: time.sleep(0),
    "input": lambda: input(),
}

FIXES: list[tuple[dict[str, Callable[[], object]], str]] = [
    (CLOCKS, "Use perdure.now(), or do it in a step."),
    (RANDOMNESS, "Use perdure.random(), or a random.Random(seed) of your own."),
    (IDS, "Use perdure.uuid4(), or do it in a step."),
    (SECRETS, "Do it in a step, and return what may be recorded."),
    (FILES, "Do it in a step."),
    (NETWORK, "Do it in a step."),
    (PROCESSES, "Do it in a step."),
    (THREADS, "Make it a `def` step: `await work.call(...)` runs it in a thread."),
]


@pytest.mark.parametrize(("name", "fix"), [(name, fix) for table, fix in FIXES for name in table])
def test_a_reach_for_the_outside_world(name: str, fix: str) -> None:
    work = next(table[name] for table, _ in FIXES if name in table)
    message = caught(work)
    line = work.__code__.co_firstlineno
    assert message.startswith(f"{name}() "), message
    assert f", in workflow code ({__file__}:{line}): a replay would not give the same again. " in message
    assert message.endswith(fix)


HANDED_OVER: dict[str, tuple[Any, ...]] = {
    "time.time": (time.time,),
    "time.monotonic": (time.monotonic,),
    "datetime.datetime.now": (dt.datetime.now,),
    "os.urandom": (os.urandom, 8),
    "uuid.uuid4": (uuid.uuid4,),
    "random.random": (random.random,),
    "random.randint": (random.randint, 1, 6),
    "open": (open, os.devnull),
    "os.stat": (os.stat, "/"),
    "os.listdir": (os.listdir, "/"),
    "time.sleep": (time.sleep, 0),
    "a partial": (functools.partial(time.time),),
    "a function": (lambda: time.time(),),
}


@workflow
async def hands_over(name: str, way: str) -> None:
    """After something harmless was called in the same place."""
    calls: list[tuple[Any, ...]] = [(len, "harmless"), (str.upper, "harmless"), HANDED_OVER[name]]
    for function, *args in calls:
        if way == "to_thread":
            await asyncio.to_thread(function, *args)
        else:
            await asyncio.get_running_loop().run_in_executor(None, function, *args)


@pytest.mark.parametrize("way", ["to_thread", "run_in_executor"])
@pytest.mark.parametrize("name", HANDED_OVER)
def test_what_is_handed_to_an_executor_is_the_workflow_s_call(name: str, way: str) -> None:
    """A workflow's loop calls it at once, in the turn."""
    noted: list[GuardError] = []
    with checking(noted.append):
        Driver(hands_over, name, way)
    (error,) = noted
    assert f"in workflow code ({__file__}:" in str(error)


@pytest.mark.parametrize("name", OTHERS)
def test_other_reaches(name: str) -> None:
    assert name in caught(OTHERS[name])


@pytest.mark.parametrize("event", guard.EVENTS)
def test_every_audit_event(event: str) -> None:
    assert event in caught(lambda: sys.audit(event))


def test_names_that_were_imported_bare() -> None:
    now, read = time.time, random.random
    assert caught(lambda: now()).startswith("time.time() ")
    assert caught(lambda: read()).startswith("random.random() ")
    assert caught(lambda: random._inst.random()).startswith("random.random() ")


def test_it_is_noted_even_if_it_is_swallowed() -> None:
    noted: list[GuardError] = []
    with checking(noted.append):
        try:
            open(os.devnull)
        except Exception:
            pass
        try:
            time.time()
        except BaseException:
            pass
    assert [str(error).partition("(")[0] for error in noted] == ["open", "time.time"]


def test_it_is_found_under_helpers_and_coroutines() -> None:
    async def deep() -> float:
        return time.time()

    async def flow() -> float:
        async with asyncio.Lock():
            return await deep()

    def drive() -> None:
        coroutine = flow()
        try:
            coroutine.send(None)
        finally:
            coroutine.close()

    assert f"{__file__}:{deep.__code__.co_firstlineno + 1})" in caught(drive)


def code_in(module: str, filename: str, source: str) -> dict[str, Any]:
    """What `source` defines, as if it stood in that file of that module."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, filename, "exec"), names)
    return names


def test_a_package_s_call_is_told_with_the_user_s_line() -> None:
    library = code_in(
        "sdk.client", "/x/site-packages/sdk/client.py", "import time\ndef call():\n    return time.time()\n"
    )

    def work() -> None:
        library["call"]()

    line = work.__code__.co_firstlineno + 1
    assert f"(/x/site-packages/sdk/client.py:3, called from {__file__}:{line})" in caught(work)


# ── what it lets pass ───────────────────────────────────────────────────────────────────────


class Leaves:
    def __del__(self) -> None:
        time.time()
        open(os.devnull).close()


def drop() -> None:
    it = Leaves()
    del it


def drop_finalized() -> None:
    it = threading.Event()
    weakref.finalize(it, time.time)
    weakref.finalize(it, lambda: open(os.devnull).close())
    del it


@pytest.fixture
def collector_callback() -> Iterator[list[str]]:
    seen: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()
        seen.append(phase)

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_the_collector(collector_callback: list[str]) -> None:
    passes(lambda: gc.collect())
    assert "stop" in collector_callback


def log_something() -> None:
    logging.getLogger("app").warning("at %s", "work")
    logging.LogRecord("app", logging.INFO, __file__, 1, "x", (), None)


def log_to_a_file() -> None:
    handler = logging.FileHandler(os.devnull, delay=True)
    handler.emit(logging.LogRecord("app", logging.INFO, __file__, 1, "x", (), None))
    handler.close()


def show_a_traceback() -> None:
    linecache.clearcache()
    try:
        raise ValueError("x")
    except ValueError:
        assert "show_a_traceback" in traceback.format_exc()


def warn() -> None:
    linecache.clearcache()
    assert "def warn() -> None:" in warnings.formatwarning("x", UserWarning, __file__, warn.__code__.co_firstlineno)


def import_anew() -> None:
    sys.modules.pop("this_module_reads_the_clock", None)
    importlib.import_module("this_module_reads_the_clock")


def asyncio_without_a_loop() -> None:
    async def inner() -> int:
        async with asyncio.Lock():
            return 1

    with pytest.raises(StopIteration):
        inner().send(None)


HARMLESS: dict[str, Callable[[], object]] = {
    "a seeded generator": lambda: random.Random(7).choice([1, 2]),
    "a seeded generator, seeded again": lambda: random.Random(7).seed(3),
    "a time that is given": lambda: time.strftime("%Y", time.gmtime(0)) + time.asctime(time.gmtime(1)) + time.ctime(0),
    "a time that is given by a name": lambda: [gmtime(moment) for gmtime, moment in [(time.gmtime, 0)]],
    "a time that is given in a list": lambda: time.strftime(*("%Y", time.gmtime(*(0,)))),
    "a date that is given": lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC).astimezone(ZoneInfo("Europe/Berlin")),
    "a uuid that is derived": lambda: uuid.uuid5(uuid.NAMESPACE_DNS, "example.com"),
    "print": lambda: print("hello"),
    "logging": log_something,
    "logging to a file": log_to_a_file,
    "a traceback": show_a_traceback,
    "a warning": warn,
    "a finalizer": drop,
    "weakref.finalize": drop_finalized,
    "asyncio": asyncio_without_a_loop,
    "a thread that is made": lambda: threading.Thread(target=print),
    "a lock": lambda: threading.Lock().acquire(timeout=0),
    "an unhashable callable": lambda: Unhashable()(),
}


class Unhashable:
    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    def __call__(self) -> None: ...


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes(HARMLESS[name])


def test_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import time, uuid\nAT, ID = time.time(), uuid.uuid4()\nTEXT = open(__file__).read()\n"
    (tmp_path / "this_module_reads_the_clock.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        passes(import_anew)
        gc.collect()
    sys.modules.pop("this_module_reads_the_clock")


def test_perdure_itself() -> None:
    ours = code_in(
        "perdure.engine.x", "/x/perdure/engine/x.py", "import time, random\ndef f(): time.time(); random.choice([1])\n"
    )
    passes(lambda: ours["f"]())


def test_user_code_that_perdure_calls_is_not_perdure() -> None:
    ours = code_in("perdure.engine.x", "/x/perdure/engine/x.py", "def drive(f): f()\n")
    assert "time.time()" in caught(lambda: ours["drive"](lambda: time.time()))
    namesake = code_in("perdure_app", "/x/perdure_app.py", "import time\ndef f(): time.time()\n")
    assert "time.time()" in caught(lambda: namesake["f"]())


def test_an_import_further_down_the_stack_excuses_nothing() -> None:
    frozen = code_in("importlib._bootstrap", "<frozen importlib._bootstrap>", "def load(f): f()\n")
    frozen["load"](lambda: caught(lambda: time.time()))


# ── where it is active, and what it leaves behind ───────────────────────────────────────────


def test_outside_of_the_block_nothing_is_checked() -> None:
    passes(lambda: None)
    assert time.time() > 0
    open(os.devnull).close()
    assert uuid.uuid4().version == 4


def test_only_this_thread_is_checked() -> None:
    ask, answers = threading.Event(), list[object]()

    def other() -> None:
        ask.wait()
        open(os.devnull).close()
        answers.append(time.time())
        answers.append(random.Random())

    thread = threading.Thread(target=other)
    thread.start()

    def work() -> None:
        ask.set()
        while len(answers) < 2:
            pass

    passes(work)
    thread.join()
    assert len(answers) == 2


def test_two_threads_at_once() -> None:
    barrier, messages = threading.Barrier(2), list[str]()

    def meet() -> None:
        barrier.wait()
        time.time()

    threads = [threading.Thread(target=lambda: messages.append(caught(meet))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(messages) == 2
    passes(lambda: None)


def test_blocks_nest() -> None:
    outer: list[GuardError] = []
    inner: list[GuardError] = []
    with checking(outer.append):
        with pytest.raises(GuardError), checking(inner.append):
            time.time()
        with pytest.raises(GuardError):
            time.time_ns()
        with unchecked():
            time.time()
            open(os.devnull).close()
        with pytest.raises(GuardError):
            open(os.devnull)
    assert [str(error).partition("(")[0] for error in inner] == ["time.time"]
    assert [str(error).partition("(")[0] for error in outer] == ["time.time_ns", "open"]
    time.time()


def test_a_profiler_of_the_user_s_goes_on() -> None:
    seen: list[str] = []

    def profiler(frame: Any, event: str, called: Any) -> None:
        seen.append(event)

    sys.setprofile(profiler)
    try:
        passes(lambda: None)
        assert sys.getprofile() is profiler
        caught(lambda: time.time())
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert seen


def test_cprofile_goes_on() -> None:
    def measured() -> None: ...

    profile = cProfile.Profile()
    profile.enable()
    passes(lambda: None)
    measured()
    profile.disable()
    codes = [entry.code for entry in profile.getstats()]
    assert any(isinstance(code, CodeType) and code.co_name == "measured" for code in codes)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_without_a_free_tool_it_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_watch", guard._Profiling)
    assert caught(lambda: time.time()).startswith("time.time() ")
    assert caught(lambda: random.choice([1, 2])).startswith("random.choice() ")
    assert caught(lambda: random.Random()).startswith("random.Random() ")
    passes(lambda: random.Random(7).random())
    assert sys.getprofile() is None


def test_what_it_costs_can_be_seen() -> None:
    assert 0.1 < guard.slowdown(lambda: [str(n) for n in range(100)], seconds=0.05) < 1000


def test_the_example_of_the_docstring() -> None:
    message = re.sub(r"/\S*test_guard", "app", caught(lambda: time.time()))
    shown = re.sub(r"app\.py:\d+", "app.py:2", message)
    assert guard.checking.__doc__ is not None
    assert f"perdure.errors.GuardError: {shown}" in guard.checking.__doc__.replace("\\\n", "").replace("    ", "")

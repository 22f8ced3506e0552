"""Does workflow code reach for the outside world? Checked mode: whatever would differ on replay raises where it is.

    with checking(note):
        ...  # drive a turn

Two instruments see what goes on, and both only tell who calls what: an audit hook (files, sockets, processes, threads)
and, for clocks and randomness, which raise no audit event, `sys.monitoring` or, before Python 3.12, `sys.setprofile`.
On a hit the stack decides who is responsible: the nearest frame that is not the standard library's. If that is perdure
the call is ours. Nothing is held against code that runs only by the way: imports, logging, warnings, tracebacks,
debuggers, finalizers, the collector's callbacks.

What it cannot see: calls from C into C (`functools.partial(time.time)()`, `list(map(os.urandom, sizes))`; but what is
handed to an executor is looked at), the environment, the local time zone, the order of a set, other packages' own
clocks and generators of random numbers (numpy), writing to what is open already.
An audit hook cannot be taken out again: it costs the process a sixth of a microsecond per audit event.
"""

from __future__ import annotations

import _thread
import contextvars
import datetime as dt
import functools
import gc
import opcode
import os
import random
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any

import msgspec

from perdure.engine.loop import DeterministicLoop, inline
from perdure.errors import GuardError

Note = Callable[[GuardError], None]


class Reach(msgspec.Struct, frozen=True):
    """What a call reaches for, and what to write instead."""

    does: str
    instead: str


# ── the tables ──────────────────────────────────────────────────────────────────────────────

_CLOCK = Reach("reads the clock", "Use perdure.now(), or do it in a step.")
_SLEEP = Reach("stops this thread, and all runs on it", "Use `await perdure.sleep(...)`.")
_RANDOM = Reach("draws a random number", "Use perdure.random(), or a random.Random(seed) of your own.")
_FILE = Reach("uses the file system", "Do it in a step.")
_NETWORK = Reach("uses the network", "Do it in a step.")
_PROCESS = Reach("uses another process", "Do it in a step.")
_THREAD = Reach("starts a thread", "Make it a `def` step: `await work.call(...)` runs it in a thread.")
_PERSON = Reach("waits for somebody at the keyboard", "Use `await perdure.receive(...)`.")

BY_PACKAGE: Mapping[str, Reach] = {
    "uuid": Reach("makes a new id", "Use perdure.uuid4(), or do it in a step."),
    "secrets": Reach("makes a secret", "Do it in a step, and return what may be recorded."),
    "tempfile": _FILE,
    "subprocess": _PROCESS,
    "multiprocessing": _PROCESS,
    "threading": _THREAD,
    "concurrent": _THREAD,
}
"""What is said of these packages, whatever it was that they reached for first."""

EVENTS: Mapping[str, Reach] = {
    **dict.fromkeys(
        (
            "open", "os.chdir", "os.chmod", "os.chown", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename",
            "os.rmdir", "os.scandir", "os.symlink", "os.truncate", "os.utime", "sqlite3.connect",
        ),
        _FILE,
    ),
    **dict.fromkeys(
        (
            "socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr",
            "socket.gethostbyname", "socket.gethostname", "socket.getnameinfo", "socket.sendmsg", "socket.sendto",
            "syslog.syslog",
        ),
        _NETWORK,
    ),
    **dict.fromkeys(
        (
            "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.posix_spawn", "os.spawn", "os.system",
            "subprocess.Popen",
        ),
        _PROCESS,
    ),
    "_thread.start_new_thread": _THREAD,
    "_thread.start_joinable_thread": _THREAD,
    "builtins.input": _PERSON,
}  # fmt: skip
"""Audit events."""

_GENERATOR: random.Random = random._inst  # pyright: ignore[reportPrivateUsage]
"""The one that `random.random()` and the like share."""
_SEED_CODE: CodeType = random.Random.seed.__code__


def _present(owner: object, *names: str) -> Iterator[Any]:
    """Those functions that this Python has on this system."""
    return (found for name in names if callable(found := getattr(owner, name, None)))


CALLS: Mapping[Any, Reach] = {
    **dict.fromkeys(
        _present(
            time, "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
            "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns",
        ),
        _CLOCK,
    ),
    **dict.fromkeys(_present(time, "localtime", "gmtime", "ctime", "asctime", "strftime"), _CLOCK),
    **dict.fromkeys(_present(dt.datetime, "now", "utcnow", "today"), _CLOCK),
    **dict.fromkeys(_present(dt.date, "today"), _CLOCK),
    **dict.fromkeys(_present(time, "sleep"), _SLEEP),
    **dict.fromkeys(_present(os, "urandom", "getrandom"), _RANDOM),
    **dict.fromkeys(_present(uuid, "_generate_time_safe", "_UuidCreate"), _RANDOM),
    **dict.fromkeys(_present(_GENERATOR, "random", "getrandbits"), _RANDOM),
    **dict.fromkeys(_present(os, "stat", "lstat", "access"), _FILE),
    **dict.fromkeys(_present(_thread, "start_new_thread", "start_joinable_thread"), _THREAD),
}  # fmt: skip
"""Functions of C."""

ARGUMENTS_WITHOUT_A_TIME: Mapping[Any, int] = {
    time.localtime: 0, time.gmtime: 0, time.ctime: 0, time.asctime: 0, time.strftime: 1,
}  # fmt: skip
"""Functions that read the clock where they are called with so many arguments; with more they are given a time."""

METHODS = frozenset({random.Random.random, random.Random.getrandbits})
"""The same of `_GENERATOR`, where a call of a method shows the method and the object apart."""

BY_THE_WAY = frozenset(
    {
        "importlib", "zipimport", "zoneinfo", "linecache", "tokenize", "inspect", "traceback", "warnings",
        "_py_warnings", "logging", "weakref", "bdb", "pdb", "debugpy", "pydevd", "_pydevd_bundle", "_pydev_bundle",
        "coverage", "_pytest",
    }
)  # fmt: skip
"""Packages under whose frames everything is allowed."""


# ── who is responsible ──────────────────────────────────────────────────────────────────────


_INLINE = (inline.__code__, DeterministicLoop.run_in_executor.__code__)
"""How a workflow's loop calls what was handed to an executor: on behalf of whoever did that."""

THREAD_WRAPPERS = "perdure.runtime.inherit"
"""What stands around Thread.start and submit, for hosted code: neither the caller nor the called."""


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_standard(frame: FrameType) -> bool:
    return _package(frame) in sys.stdlib_module_names


def _is_by_the_way(frame: FrameType) -> bool:
    if _package(frame) in BY_THE_WAY or frame.f_code.co_name == "__del__":
        return True
    return any(getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks)


def _frames(frame: FrameType | None, base: FrameType) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_globals.get("__name__") != THREAD_WRAPPERS and frame.f_code not in _INLINE:
            yield frame
        if frame is base:
            return
        frame = frame.f_back


def _is_ours(frames: Sequence[FrameType]) -> bool:
    nearest = next((frame for frame in frames if not _is_standard(frame)), None)
    return nearest is None or _package(nearest) == "perdure" or any(map(_is_by_the_way, frames))


def _complaint(call: str, reach: Reach, frames: Sequence[FrameType]) -> str:
    caller = next(n for n, frame in enumerate(frames) if not _is_standard(frame))
    called = _told(frames[caller - 1]) if caller else call
    reach = BY_PACKAGE.get(called.partition(".")[0], reach)
    places = [_place(frames[caller])]
    if "site-packages" in places[0]:
        places += [_place(frame) for frame in frames[caller:] if not _is_library(frame)][:1]
    where = ", called from ".join(places)
    return (
        f"{called}() {reach.does}, in workflow code ({where}): a replay would not give the same again. {reach.instead}"
    )


def _is_library(frame: FrameType) -> bool:
    return _is_standard(frame) or _package(frame) == "perdure" or "site-packages" in frame.f_code.co_filename


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _told(frame: FrameType) -> str:
    """The name by which a function of the standard library is called: `random.choice`, not `random.Random.choice`."""
    module, name = str(frame.f_globals.get("__name__")).partition("._")[0], frame.f_code.co_name
    if getattr(frame.f_globals.get(name), "__code__", None) is frame.f_code:
        return f"{module}.{name}"
    return f"{module}.{frame.f_code.co_qualname.removesuffix('.__init__')}"


def _name_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{function.__name__}"
    module = owner.__name__ if isinstance(owner, types.ModuleType) else type(owner).__module__
    return f"{'os' if module == 'posix' else module}.{function.__name__}"


def _caller() -> FrameType:
    """The frame that called the function that asks."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage]


# ── a check under way ───────────────────────────────────────────────────────────────────────


class _Check(msgspec.Struct, frozen=True):
    note: Note
    base: FrameType


class _Local(threading.local):
    check: _Check | None = None


_local = _Local()


def _hit(call: str, reach: Reach, frame: FrameType) -> None:
    """Something was reached for on this thread, while `frame` ran."""
    check = _local.check
    if check is None:
        return
    frames = list(_frames(frame, check.base))
    if _is_ours(frames):
        return
    error = GuardError(_complaint(call, reach, frames))
    check.note(error)
    raise error


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in EVENTS and _local.check is not None and not _is_time_zone(event, args):
        _hit(event, EVENTS[event], _caller())


def _is_time_zone(event: str, args: tuple[Any, ...]) -> bool:
    """The table of a time zone is read by C, without a frame of its own."""
    return event == "open" and f"{os.sep}zoneinfo{os.sep}" in str(args[:1])


def _seeds_itself(frame: FrameType) -> bool:
    """`Random()` and `random.seed()`, which take their seed from the outside; not `Random(7)`."""
    return frame.f_locals.get("a") is None


def _look_into(frame: FrameType) -> None:
    """A function has begun whose arguments tell what it will reach for."""
    if frame.f_code is _SEED_CODE:
        if _seeds_itself(frame):
            _hit("random.seed", _RANDOM, frame)
        return
    function = _innermost(frame.f_locals["function"])
    is_of_c = isinstance(function, types.BuiltinFunctionType) and function in CALLS
    if is_of_c and function not in ARGUMENTS_WITHOUT_A_TIME:
        _hit(_name_of(function), CALLS[function], frame)


def _innermost(function: Any) -> Any:
    """What is called in the end: `asyncio.to_thread` wraps it twice, and C calls C then, which nobody sees."""
    while isinstance(function, functools.partial):
        inner: Any = function.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        is_run = isinstance(getattr(inner, "__self__", None), contextvars.Context) and function.args  # pyright: ignore[reportUnknownMemberType]
        function = function.args[0] if is_run else inner  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return function


_CALL = opcode.opmap["CALL"]


def _is_given_a_time(called: Any, code: CodeType, offset: int) -> bool:
    """Whether the call that stands there passes more arguments than it would need to read the clock. Neither instrument
    shows them; how many there are stands in the code, except where they are a list (`f(*args)`)."""
    if called not in ARGUMENTS_WITHOUT_A_TIME:
        return False
    operation, arguments = code.co_code[offset : offset + 2]
    return operation != _CALL or arguments > ARGUMENTS_WITHOUT_A_TIME[called]


_INLINE_CODE = inline.__code__
_LOOKED_INTO = (_SEED_CODE, _INLINE_CODE)


# ── seeing calls ────────────────────────────────────────────────────────────────────────────


def _profile(frame: FrameType, event: str, called: Any) -> None:
    if event == "c_call":
        if called in CALLS and not _is_given_a_time(called, frame.f_code, frame.f_lasti):
            _hit(_name_of(called), CALLS[called], frame)
    elif event == "call" and ((code := frame.f_code) is _SEED_CODE or code is _INLINE_CODE):  # `in` compares them whole
        _look_into(frame)


class _Profiling:
    """`sys.setprofile`, on this thread. Whoever profiled before goes on afterwards.

    Python takes a profiler away that raises: after a hit, calls in the rest of this turn are not seen.
    """

    def __enter__(self) -> None:
        self._previous: Any = sys.getprofile()
        sys.setprofile(_profile)

    def __exit__(self, *_: object) -> None:
        if self._previous is None or callable(self._previous):
            sys.setprofile(self._previous)
        else:
            self._previous.enable()  # cProfile's own cannot be given back to setprofile()


_watch: Callable[[], AbstractContextManager[None]] = _Profiling

if sys.version_info >= (3, 12):
    _TOOL_IDS = (4, 3)  # those that no kind of tool has claimed for itself
    _PERDURE = os.path.dirname(os.path.dirname(__file__)) + os.sep
    _events = sys.monitoring.events

    def _on_call(code: CodeType, offset: int, called: Any, first: Any) -> object:
        kind = type(called)
        if kind is types.BuiltinFunctionType and called in CALLS:
            if not _is_given_a_time(called, code, offset):
                _hit(_name_of(called), CALLS[called], _caller())
        elif kind is types.MethodDescriptorType and first is _GENERATOR and called in METHODS:
            _hit(f"random.{called.__name__}", _RANDOM, _caller())
        elif code.co_filename.startswith(_PERDURE):
            return sys.monitoring.DISABLE  # whatever is called here is our own doing: never look at this place again
        return None

    def _on_start(_code: CodeType, _offset: int) -> None:
        _look_into(_caller())

    class _Monitoring:
        """`sys.monitoring`, for the whole process while any thread is checked. It leaves profilers alone."""

        lock = threading.Lock()
        users = 0
        tool: int | None = None

        def __enter__(self) -> None:
            with self.lock:
                _Monitoring.users += 1
                if self.users == 1:
                    sys.monitoring.set_events(self.tool, _events.CALL)

        def __exit__(self, *_: object) -> None:
            with self.lock:
                _Monitoring.users -= 1
                if self.users == 0:
                    sys.monitoring.set_events(self.tool, 0)

        @classmethod
        def install(cls) -> bool:
            for tool in _TOOL_IDS:
                if sys.monitoring.get_tool(tool) is None:
                    sys.monitoring.use_tool_id(tool, "perdure guard")
                    sys.monitoring.register_callback(tool, _events.CALL, _on_call)
                    sys.monitoring.register_callback(tool, _events.PY_START, _on_start)
                    for code in _LOOKED_INTO:
                        sys.monitoring.set_local_events(tool, code, _events.PY_START)
                    cls.tool = tool
                    return True
            return False


# ── the context ─────────────────────────────────────────────────────────────────────────────

_install_lock = threading.Lock()
_is_installed = False


def _install() -> None:
    """Once per process, when it is first needed."""
    global _is_installed, _watch
    with _install_lock:
        if _is_installed:
            return
        _is_installed = True
        sys.addaudithook(_audit)
        if sys.version_info >= (3, 12) and _Monitoring.install():
            _watch = _Monitoring


class checking:  # noqa: N801  # reads as a word: `with checking(note):`
    """Check what this thread does in the block: a reach for the outside world raises GuardError where it is called.

    `note` gets each GuardError before it is raised, so that the turn can be failed even if the code swallows it.
    Blocks nest; each restores what was before.

    >>> with checking(print):
    ...     time.time()
    Traceback (most recent call last):
    perdure.errors.GuardError: time.time() reads the clock, in workflow code (app.py:2): a replay would not give the \
same again. Use perdure.now(), or do it in a step.
    """

    def __init__(self, note: Note) -> None:
        self._note = note

    def __enter__(self) -> None:
        _install()
        self._outer = _local.check
        self._watching = _watch()
        self._watching.__enter__()
        _local.check = _Check(self._note, _caller())

    def __exit__(self, *_: object) -> None:
        _local.check = self._outer
        self._watching.__exit__(None, None, None)
        del self._outer, self._watching


class unchecked:  # noqa: N801
    """Do something for the user, in the middle of a checked block, that is no workflow code: a step's body, say."""

    def __enter__(self) -> None:
        self._outer = _local.check
        _local.check = None

    def __exit__(self, *_: object) -> None:
        _local.check = self._outer
        del self._outer


def slowdown(work: Callable[[], object], *, seconds: float = 0.5) -> float:
    """How many times as long `work` takes when it is checked: the best of several rounds of each."""
    plain: list[float] = []
    checked: list[float] = []
    until = time.perf_counter() + seconds
    while not plain or time.perf_counter() < until:
        plain.append(_timed(work))
        with checking(_ignore):
            checked.append(_timed(work))
    return min(checked) / min(plain)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ignore(_error: GuardError) -> None: ...

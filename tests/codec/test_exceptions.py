"""An exception that went through the record takes the same `except` branch as the one that comes back from it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import pickle
import traceback
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.codec import dump_exception, load_exception
from perdure.errors import DecodeError, StepError


def through(exc: BaseException, *declared: type[BaseException]) -> Any:
    raw = dump_exception(exc, declared)
    json.loads(raw)
    again = load_exception(raw, declared)
    assert dump_exception(load_exception(raw, declared), declared) == dump_exception(again, declared)
    twice = load_exception(dump_exception(again, declared), declared)
    assert (type(twice), str(twice)) == (type(again), str(again))
    return again


class Refused(Exception):
    def __init__(self, *, code: int, response: object) -> None:
        super().__init__(f"refused with {code}")
        self.code, self.response = code, response


class RefusedForGood(Refused):
    pass


class Quota(OSError):
    def __init__(self, resource: str) -> None:
        super().__init__(28, "no quota")
        self.resource = resource


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Many(ExceptionGroup[Exception]):
    pass


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("x", 3),
        ValueError(),
        KeyError("k"),
        IndexError(b"\0", dt.date(2025, 1, 1), (1, 2), {1}, {"a": [1.0]}),
        FileNotFoundError(2, "No such file", "/x"),
        OSError(18, "Cross-device", "/x", None, "/y"),
        ConnectionResetError(104, "reset"),
        TimeoutError(),
        asyncio.TimeoutError("late"),  # noqa: UP041 - the same class, under the name that asyncio code uses
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        UnicodeEncodeError("ascii", "\xff", 0, 1, "bad"),
        ImportError("no", name="x", path="/x"),
        NameError("n", name="n"),
        ZeroDivisionError("division by zero"),
        RecursionError(),
        SyntaxError("bad", ("f.py", 1, 2, "text")),
        errors.Retryable("later", after=5),
        errors.EncodeError("$.x", "what", "hint"),
        errors.StepError("words", "Boom", {"a": 1}),
        errors.StepTimeoutError("late", "T"),
        errors.RunBlockedError("r", "needs_person", "ask"),
        errors.Final("no"),
    ],
)
def test_builtin_exceptions_and_ours_keep_class_arguments_and_attributes(exc: Exception) -> None:
    again = through(exc)
    assert type(again) is type(exc)
    assert str(again) == str(exc)
    assert again.args == exc.args
    assert vars(again) == vars(exc)
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "object", "start", "reason", "lineno"):
        assert getattr(again, name, None) == getattr(exc, name, None)


@pytest.mark.parametrize(
    "exc",
    [
        Refused(code=4, response=object()),
        StopIteration(3),
        StopAsyncIteration(),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(1),
        asyncio.CancelledError(),
        Unprintable(),
        Many("m", [ValueError(1)]),
    ],
)
def test_everything_else_becomes_a_step_error(exc: BaseException) -> None:
    again = through(exc)
    assert type(again) is StepError
    assert again.type_name == type(exc).__qualname__
    pickle.loads(pickle.dumps(again))


def test_an_undeclared_class_keeps_what_can_be_recorded_and_names_the_rest() -> None:
    again = through(Refused(code=4, response=object()))
    assert again.attributes == {"code": 4}
    assert again.message == "refused with 4"
    assert again.__notes__ == ["not recorded with it: response"]


def test_a_declared_class_is_rebuilt_without_its_init() -> None:
    again = through(Refused(code=4, response=None), Refused)
    assert type(again) is Refused
    assert (again.code, again.response, str(again)) == (4, None, "refused with 4")
    quota = through(Quota("gpu"), Quota)
    assert type(quota) is Quota
    assert (quota.errno, quota.resource, str(quota)) == (28, "gpu", "[Errno 28] no quota")
    many = through(Many("m", [ValueError(1), Refused(code=1, response=0)]), Many)
    assert [type(each) for each in many.exceptions] == [ValueError, StepError]


def test_a_subclass_of_a_declared_class_is_caught_as_the_declared_class() -> None:
    again = through(RefusedForGood(code=4, response=None), Refused)
    assert type(again) is Refused
    assert again.code == 4
    assert "RefusedForGood" in again.__notes__[0]
    assert type(through(RefusedForGood(code=4, response=None), Refused, RefusedForGood)) is RefusedForGood


def test_nothing_named_in_a_record_is_looked_up_elsewhere() -> None:
    raw = dump_exception(Refused(code=1, response=0), (Refused,))
    assert type(load_exception(raw)) is StepError
    forged = b'{"as":"builtin:eval","message":"m","module":"os","type":"system"}'
    assert type(load_exception(forged)) is StepError
    with pytest.raises(DecodeError):
        load_exception(b"[]")


def test_causes_contexts_and_notes_travel_along() -> None:
    try:
        try:
            raise KeyError("x")
        except KeyError as missing:
            missing.add_note("in the table")
            raise ValueError("outer") from missing
    except ValueError as outer:
        again = through(outer)
    assert type(again.__cause__) is KeyError
    assert again.__cause__.__notes__ == ["in the table"]
    assert again.__suppress_context__
    try:
        try:
            raise KeyError("x")
        except KeyError:
            raise ValueError("outer")  # noqa: B904
    except ValueError as outer:
        again = through(outer)
    assert type(again.__context__) is KeyError
    assert "During handling" in "".join(traceback.format_exception(again))


class Worded(Exception):
    def __str__(self) -> str:
        return Words("loud")


class Words(str):
    __slots__ = ()


def test_odd_texts_and_attributes_never_stop_the_record() -> None:
    assert through(Worded()).message == "loud"
    exc = ValueError("x")
    exc.__notes__ = 5  # type: ignore[assignment]
    setattr(exc, "\ud800", 1)
    assert vars(through(exc)) == {}


def test_a_long_chain_is_cut_and_a_circle_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert str(through(one).__cause__) == "other"
    newest = ValueError(0)
    for number in range(1, 50):
        exc = ValueError(number)
        exc.__cause__ = newest
        newest = exc
    length = 0
    again: BaseException | None = through(newest)
    while again is not None:
        length, again = length + 1, again.__cause__
    assert length == 9


def test_groups() -> None:
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [KeyError("k")])])
    again = through(group)
    assert type(again) is ExceptionGroup
    assert again.message == "g"
    assert [type(each) for each in again.exceptions] == [ValueError, ExceptionGroup]
    mixed = through(BaseExceptionGroup("b", [KeyboardInterrupt(), ValueError()]))
    assert [type(each) for each in mixed.exceptions] == [StepError, ValueError]
    wide = through(ExceptionGroup("w", [ValueError(n) for n in range(500)]))
    assert len(wide.exceptions) == 100
    assert "400 of its 500" in wide.__notes__[0]


def test_text_that_is_not_unicode_is_recorded_all_the_same() -> None:
    exc = ValueError("caf\udce9")
    exc.add_note("n\udce9")
    again = through(exc)
    assert again.args == exc.args
    assert through(Refused(code=1, response={"\ud800": 1})).attributes == {"code": 1}


def test_an_argument_that_cannot_be_recorded_leaves_a_gap() -> None:
    again = through(ValueError("words", object(), 3))
    assert again.args == ("words", None, 3)
    assert again.__notes__ == ["not recorded with it: args[1]"]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([ValueError, KeyError, RuntimeError, OSError, LookupError]),
    st.lists(st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers()), max_size=5),
)
def test_any_arguments(cls: type[Exception], args: list[Any]) -> None:
    exc = cls(*args)
    again = through(exc)
    assert type(again) is type(exc)
    assert repr(again.args) == repr(exc.args)
    assert str(again) == str(exc)

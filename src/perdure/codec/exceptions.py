"""How does an exception travel through the history, so that `except` takes the same branch on replay?

It is recorded by class name, arguments, attributes, notes and causes, and rebuilt as its class only if that is a
builtin exception, one of perdure's, or declared by the step. Everything else becomes a StepError, in the original run
too.
"""

from __future__ import annotations

import builtins
import datetime as dt
import uuid
from collections.abc import Mapping
from decimal import Decimal
from types import CodeType
from typing import Any

import msgspec

from perdure import errors
from perdure.codec.canonical import canonical_bytes, is_encodable, parse
from perdure.codec.hiding import hidden, hidden_text, mark
from perdure.codec.hints import shape_of
from perdure.codec.shape import Unfit, is_secret, type_of
from perdure.errors import DecodeError, StepError

CHAIN_MAX = 8
"""Causes of causes that are kept."""

GROUP_MAX = 100
"""Members of one exception group that are kept."""

_MOMENTS: Any = dt.datetime | dt.date | dt.time | dt.timedelta
_CARRIED = shape_of(Any | bytes | _MOMENTS | Decimal | uuid.UUID | tuple[Any, ...] | set[Any] | frozenset[Any])
"""What an argument or attribute of an exception may be."""

_HIDDEN_ATTRIBUTES: dict[type[BaseException], tuple[str, ...]] = {
    ImportError: ("name", "path"), NameError: ("name",), AttributeError: ("name",),
}  # fmt: skip
"""What builtin exceptions keep outside `args` and `__dict__`."""

_BUILTIN = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type)
    and issubclass(value, Exception)
    and not issubclass(value, (StopIteration, StopAsyncIteration))
}
"""Builtin classes that are rebuilt. A StopIteration cannot be thrown into a coroutine, and those that are no Exception
end the process, not a step."""

_OURS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.PerdureError)
}

FOREIGN_FILES = (
    __file__.removesuffix("codec/exceptions.py"), (dt.__file__ or "?").removesuffix("datetime.py"), "<frozen",
)  # fmt: skip
"""How the names of files begin that are not the user's: ours and the library's."""

_FAMILIES: dict[str, Mapping[str, type[Exception]]] = {"perdure": _OURS, "builtin": _BUILTIN}


def dump_exception(exc: BaseException, declared: tuple[type[BaseException], ...] = ()) -> bytes:
    """The canonical JSON of an exception. Never fails: what cannot be recorded is left out and named in a note."""
    try:
        wire = _to_wire(exc, declared, frozenset())
        place = place_of(exc)
        return hidden(canonical_bytes({**wire, "at": place} if place else wire))
    except Exception as problem:  # what the exception's own attributes raise when they are read
        cls = type_of(exc)
        lost = [f"the exception itself, which raises {type_of(problem).__qualname__} when it is read"]
        known: dict[str, Any] = {"type": cls.__qualname__, "module": cls.__module__, "message": message_of(exc)}
        return hidden(canonical_bytes({**known, "args": [], "lost": lost}))


class _Told(msgspec.Struct):
    type: str
    message: str = ""
    at: str = ""


def told_exception(raw: bytes) -> str:
    """A recorded exception in words, with the place where it was raised: before the message, which may be long.

    >>> told_exception(dump_exception(ValueError("too old")))
    'ValueError: too old'
    """
    error = msgspec.json.decode(raw, type=_Told)
    return error.type + (f" at {error.at}" if error.at else "") + (f": {error.message}" if error.message else "")


def load_exception(raw: bytes, declared: tuple[type[BaseException], ...] = ()) -> BaseException:
    """The exception of a record; a StepError when its class is neither builtin, nor ours, nor among `declared`."""
    try:
        wire = parse(raw)
        if type_of(wire) is not dict or type_of(wire.get("type")) is not str:
            raise Unfit("no exception was recorded here")
        return _from_wire(wire, declared)
    except Unfit as no:
        raise DecodeError("$" + no.path(), no.what, no.hint) from None


# ── where it was raised ─────────────────────────────────────────────────────────────────────


def place_of(exc: BaseException) -> str:
    """`app.py:41 in plan`: the innermost line of the user's that it passed, else one of an installed package; or ""."""
    users = packages = ""
    step = exc.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if "site-packages" in code.co_filename:
            packages = _told_place(code, step.tb_lineno)
        elif not code.co_filename.startswith(FOREIGN_FILES):
            users = _told_place(code, step.tb_lineno)
        step = step.tb_next
    return users or packages


def _told_place(code: CodeType, line: int) -> str:
    return _text(f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}")


# ── writing ─────────────────────────────────────────────────────────────────────────────────


def _to_wire(exc: BaseException, declared: tuple[type[BaseException], ...], above: frozenset[int]) -> dict[str, Any]:
    cls = type_of(exc)
    family, known = _family(cls, declared)
    lost: list[str] = []
    wire: dict[str, Any] = {"type": cls.__qualname__, "module": cls.__module__, "message": message_of(exc)}
    if known is not None:
        wire["as"] = f"{family}:{known.__qualname__}"
    args = [_carried(item) for item in _arguments(exc)]
    lost += [f"args[{index}]" for index, item in enumerate(args) if item is _ABSENT]
    wire["args"] = [None if item is _ABSENT else item for item in args]
    attributes = {name: _carried(item) for name, item in _attributes(exc).items()}
    lost += [name for name, item in attributes.items() if item is _ABSENT]
    kept = {name: item for name, item in attributes.items() if item is not _ABSENT}
    if kept:
        wire["attributes"] = kept
    if lost:
        wire["lost"] = lost
    notes: Any = getattr(exc, "__notes__", None)
    if type_of(notes) is list and notes:
        wire["notes"] = [_text(note) for note in notes if isinstance(note, str)]
    _add_relatives(wire, exc, declared, above | {id(exc)})
    return wire


def _add_relatives(
    wire: dict[str, Any], exc: BaseException, declared: tuple[type[BaseException], ...], above: frozenset[int]
) -> None:
    if len(above) <= CHAIN_MAX:
        if exc.__cause__ is not None and id(exc.__cause__) not in above:
            wire["cause"] = _to_wire(exc.__cause__, declared, above)
        elif exc.__context__ is not None and not exc.__suppress_context__ and id(exc.__context__) not in above:
            wire["context"] = _to_wire(exc.__context__, declared, above)
    if exc.__suppress_context__ and "cause" not in wire:
        wire["suppressed"] = True
    members = _members(exc)
    if members:
        kept = [each for each in members[:GROUP_MAX] if id(each) not in above] if len(above) <= CHAIN_MAX else []
        wire["exceptions"] = [_to_wire(each, declared, above) for each in kept]
        if len(kept) < len(members):
            wire["lost"] = [*wire.get("lost", ()), f"{len(members) - len(kept)} of its {len(members)} exceptions"]


def _members(exc: Any) -> tuple[BaseException, ...]:
    return getattr(exc, "exceptions", ()) if issubclass(type_of(exc), BaseExceptionGroup) else ()


def _family(cls: type, declared: tuple[type[BaseException], ...]) -> tuple[str, type | None]:
    """Under whose rights it is rebuilt, and as which class: itself, or the nearest of its bases that is declared."""
    if cls is BaseExceptionGroup:  # what it holds is rebuilt as Exceptions
        return "builtin", ExceptionGroup
    for base in cls.__mro__:
        if (
            base in declared
            and issubclass(base, Exception)
            and not issubclass(base, (StopIteration, StopAsyncIteration))
        ):
            return "declared", base
        if base is cls and _OURS.get(cls.__name__) is cls:
            return "perdure", cls
        if base is cls and _BUILTIN.get(cls.__name__) is cls:
            return "builtin", cls
    return "", None


_ABSENT: Any = object()


def _carried(item: Any) -> Any:
    """Its wire, or _ABSENT if it has none, or none without the secret that it holds."""
    if is_secret(type_of(item)):
        return mark(type_of(item).__name__)
    try:
        wire = _CARRIED.to_wire(item, 4)
        raw = canonical_bytes(wire)
        without = hidden(raw)
        if without is not raw:
            wire = parse(without)
            _CARRIED.from_wire(wire, True)
    except (Unfit, RecursionError):
        return _ABSENT
    return wire


def message_of(exc: BaseException) -> str:
    """What it says, as Unicode, whatever its `__str__` does."""
    if isinstance(exc, BaseExceptionGroup):
        return _text(exc.message)
    try:
        return _text(str(exc))
    except Exception:
        return f"({type_of(exc).__qualname__} whose message cannot be printed)"


def _text(text: str) -> str:
    """The text as a plain str that is Unicode."""
    text = "".join([text])  # str() may give a subclass
    return hidden_text(text if is_encodable(text) else text.encode("utf-8", "backslashreplace").decode())


def _arguments(exc: BaseException) -> tuple[Any, ...]:
    """What rebuilds it: `args`, but OSError keeps its file names elsewhere."""
    if isinstance(exc, BaseExceptionGroup):
        return ()
    if isinstance(exc, OSError) and len(exc.args) == 2 and exc.filename is not None:
        tail = (exc.filename,) if exc.filename2 is None else (exc.filename, None, exc.filename2)
        return (*exc.args, *tail)
    return exc.args


def _attributes(exc: BaseException) -> dict[str, Any]:
    attributes = {name: item for name, item in vars(exc).items() if name != "__notes__" and is_encodable(name)}
    for base, names in _HIDDEN_ATTRIBUTES.items():
        if isinstance(exc, base):
            attributes |= {name: getattr(exc, name) for name in names if getattr(exc, name, None) is not None}
    return attributes


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def _from_wire(wire: dict[str, Any], declared: tuple[type[BaseException], ...]) -> BaseException:
    members = [_from_wire(each, declared) for each in wire.get("exceptions", ())]
    attributes = {name: _CARRIED.from_wire(item, True) for name, item in wire.get("attributes", {}).items()}
    args = tuple([_CARRIED.from_wire(item, True) for item in wire.get("args", ())])
    cls = _known_class(wire.get("as", ""), declared)
    exc = None if cls is None else _rebuilt(cls, args, wire, members)
    if exc is None:
        exc = StepError(wire.get("message", ""), type_name=wire["type"], attributes=attributes)
    else:
        _set_attributes(exc, attributes)
    _add_notes(exc, wire)
    if "cause" in wire:
        exc.__cause__ = _from_wire(wire["cause"], declared)
    elif "context" in wire:
        exc.__context__ = _from_wire(wire["context"], declared)
    exc.__suppress_context__ = "cause" in wire or bool(wire.get("suppressed"))
    return exc


def _known_class(label: str, declared: tuple[type[BaseException], ...]) -> type[BaseException] | None:
    family, _, name = label.partition(":")
    if family == "declared":
        return next((each for each in declared if each.__qualname__ == name), None)
    return _FAMILIES.get(family, {}).get(name)


def _rebuilt(cls: Any, args: tuple[Any, ...], wire: dict[str, Any], members: list[BaseException]) -> Any:
    """An instance, made without running a foreign `__init__`; None if the class does not let itself be made."""
    if issubclass(cls, BaseExceptionGroup):
        args = (wire.get("message", ""), members)
    native: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    try:
        exc = native.__new__(cls, *args)
        native.__init__(exc, *args)
    except Exception:  # whatever the class does not like about them
        return _bare(cls, native, args)
    return exc


def _bare(cls: Any, native: Any, args: tuple[Any, ...]) -> Any:
    try:
        exc = native.__new__(cls)
        exc.args = args
    except Exception:  # as above
        return None
    return exc


def _set_attributes(exc: BaseException, attributes: dict[str, Any]) -> None:
    for name, item in attributes.items():
        try:
            object.__setattr__(exc, name, item)
        except (AttributeError, TypeError):
            vars(exc)[name] = item


def _add_notes(exc: BaseException, wire: dict[str, Any]) -> None:
    for note in wire.get("notes", ()):
        exc.add_note(note)
    recorded_as = wire.get("as", "").partition(":")[2]
    if recorded_as and recorded_as != wire["type"]:
        exc.add_note(f"raised as {wire.get('module', '')}.{wire['type']}; the step declares {recorded_as}")
    if wire.get("lost"):
        exc.add_note(f"not recorded with it: {', '.join(wire['lost'])}")

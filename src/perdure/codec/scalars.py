"""How are single things that JSON has no form for written as a string (or a short list) and read back?

Times keep what makes them equal *and* what they would do next: an aware datetime with a zone keeps the zone, in the
notation of RFC 9557 (`2025-01-01T00:00:00+01:00[Europe/Berlin]`); `fold` and foreign kinds of tzinfo are written in
such brackets too.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import re
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from perdure.codec.plain import PLAIN, STR
from perdure.codec.shape import Shape, Unfit, not_this, not_wire, type_of


def text_shape(cls: type, to_text: Callable[[Any], str], from_text: Callable[[str], Any], words: str = "") -> Shape:
    """The shape of a class whose values are exactly one string each."""
    words = words or cls.__name__

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        return to_text(value)

    def from_wire(wire: Any, tagged: bool) -> Any:
        text = STR.from_wire(wire, tagged)
        try:
            return from_text(text)
        except (ValueError, TypeError, InvalidOperation, KeyError, OverflowError) as no:
            raise Unfit(f"{text!r:.80} was recorded where {words} is declared ({no})") from None

    return Shape(words, to_wire, from_wire, frozenset({cls}), frozenset({"string"}))


# ── time ────────────────────────────────────────────────────────────────────────────────────


def _zoned(moment: Any) -> str:
    """isoformat() of a datetime or time, with everything that it leaves out in brackets."""
    zone = moment.tzinfo
    suffix = "" if zone is None or zone is dt.UTC else _zone_suffix(zone)
    if moment.fold:
        suffix += "[fold=1]"
    text: str = moment.isoformat()
    return text + suffix


def _zone_suffix(zone: Any) -> str:
    kind = type_of(zone)
    if kind is dt.timezone:
        return _offset_suffix(*zone.__getinitargs__())
    if _is_zone_info(kind):
        return f"[{_zone_key(zone)}]"
    if kind.__module__ == "pydantic_core._pydantic_core":
        return f"[pydantic={_seconds(zone)}]"
    raise Unfit(f"a tzinfo of type {kind.__module__}.{kind.__qualname__}", "Use datetime.timezone or zoneinfo.ZoneInfo")


def _offset_suffix(offset: dt.timedelta, name: str | None = None) -> str:
    """What isoformat() loses of a fixed offset: its name, and (fromisoformat's fault) fractions of a second."""
    exact = f"[offset={offset // dt.timedelta(microseconds=1)}]" if offset.microseconds else ""
    return exact if name is None else f"{exact}[name={_base64(name.encode())}]"


def _seconds(zone: dt.tzinfo) -> int:
    offset = zone.utcoffset(None)
    if offset is None or offset.microseconds:
        raise Unfit(f"a tzinfo without a fixed offset: {zone!r}")
    return round(offset.total_seconds())


def _is_zone_info(cls: type) -> bool:
    return cls.__module__ == "zoneinfo" and cls.__name__ == "ZoneInfo"


def _zone_key(zone: Any) -> str:
    if zone.key is None or _unpicklable(zone):
        raise Unfit("a ZoneInfo that was read from a file", "Use ZoneInfo(key)")
    return str(zone.key)


def _unpicklable(zone: Any) -> bool:
    try:
        zone.__reduce__()
    except Exception:
        return True
    return False


_SUFFIXED = r"([^\[]*)((?:\[[^\]]*\])*)"
_SUFFIX = r"\[([^\]]*)\]"


def _unzoned(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reverse of `_zoned`, for datetime or time."""

    def from_text(text: str) -> Any:
        if "[" not in text:
            return read(text)
        parts = re.fullmatch(_SUFFIXED, text)
        if parts is None:
            raise ValueError("unbalanced brackets")
        moment = read(parts[1])
        for suffix in re.findall(_SUFFIX, parts[2]):
            moment = _with_suffix(moment, suffix)
        return moment

    return from_text


def _with_suffix(moment: Any, suffix: str) -> Any:
    name, equals, value = suffix.partition("=")
    if suffix == "fold=1":
        return moment.replace(fold=1)
    if not equals:
        return moment.replace(tzinfo=_zone_of(suffix))
    if name == "offset":
        return moment.replace(tzinfo=dt.timezone(dt.timedelta(microseconds=int(value))))
    if name == "name":
        return moment.replace(tzinfo=dt.timezone(moment.utcoffset(), _unbase64(value).decode()))
    if name == "pydantic":
        return moment.replace(tzinfo=_pydantic_zone(int(value)))
    raise ValueError(f"unknown suffix [{suffix}]")


def _zone_of(key: str) -> Any:
    import zoneinfo  # few runs need it

    try:
        return zoneinfo.ZoneInfo(key)
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        raise Unfit(f"the time zone {key!r}, which this machine does not know", "Install the tzdata package") from None


def _pydantic_zone(seconds: int) -> dt.tzinfo:
    core = sys.modules.get("pydantic_core")
    if core is None:
        return dt.timezone(dt.timedelta(seconds=seconds))
    zone: dt.tzinfo = core.TzInfo(seconds)
    return zone


def _duration_text(span: dt.timedelta) -> str:
    """ISO 8601, with days and seconds as timedelta keeps them: only the days can be negative."""
    fraction = f".{span.microseconds:06}" if span.microseconds else ""
    return f"P{span.days}DT{span.seconds}{fraction}S"


_DURATION = r"P(-?\d+)DT(\d+)(?:\.(\d{6}))?S"


def _duration(text: str) -> dt.timedelta:
    parts = re.fullmatch(_DURATION, text)
    if parts is None:
        raise ValueError("not like P1DT30S")
    return dt.timedelta(days=int(parts[1]), seconds=int(parts[2]), microseconds=int(parts[3] or 0))


def _offset_text(zone: dt.timezone) -> str:
    return dt.time(tzinfo=zone).isoformat()[8:] + _zone_suffix(zone)


def _offset(text: str) -> Any:
    return _read_time("00:00:00" + text).tzinfo


_read_datetime = _unzoned(dt.datetime.fromisoformat)
_read_time = _unzoned(dt.time.fromisoformat)


# ── bytes ───────────────────────────────────────────────────────────────────────────────────


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _complex(text: str) -> complex:
    real, imaginary = text.split(" ")
    return complex(float.fromhex(real), float.fromhex(imaginary))


def _same_class(cls: type) -> Shape:
    return text_shape(cls, str, cls)


SCALARS: dict[type, Shape] = {
    dt.datetime: text_shape(dt.datetime, _zoned, _read_datetime),
    dt.date: text_shape(dt.date, dt.date.isoformat, dt.date.fromisoformat),
    dt.time: text_shape(dt.time, _zoned, _read_time),
    dt.timedelta: text_shape(dt.timedelta, _duration_text, _duration),
    dt.timezone: text_shape(dt.timezone, _offset_text, _offset),
    bytes: text_shape(bytes, _base64, _unbase64),
    bytearray: text_shape(bytearray, _base64, lambda text: bytearray(_unbase64(text))),
    Decimal: text_shape(Decimal, str, Decimal),
    complex: text_shape(complex, lambda value: f"{value.real.hex()} {value.imag.hex()}", _complex),
    uuid.UUID: text_shape(uuid.UUID, str, uuid.UUID),
}
"""The classes outside JSON that are recorded as one string. See `late_scalar` for more."""


def late_scalar(cls: type) -> Shape | None:
    """The shape of a standard class that is rarely used, told by name so that its module need not be imported."""
    if _is_zone_info(cls):
        return text_shape(cls, _zone_key, _zone_of)
    if cls.__name__ not in _LATE.get(cls.__module__.partition(".")[0], ()):
        return None
    if cls.__name__ in _CHOOSING:
        return text_shape(type_of(cls()), str, cls, cls.__name__)
    return _same_class(cls)


_CHOOSING = ("Path", "PurePath")
"""Their instances are of the class for this system."""

_LATE: dict[str, tuple[str, ...]] = {
    "fractions": ("Fraction",),
    "ipaddress": ("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"),
    "pathlib": (*_CHOOSING, "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
}
"""Module → classes in it, or in its submodules (`pathlib._local`)."""


# ── others ──────────────────────────────────────────────────────────────────────────────────


def _range_to_wire(value: Any, depth: int) -> Any:
    if type_of(value) is not range:
        raise not_this(value, "range")
    return [PLAIN.to_wire(part, depth) for part in (value.start, value.stop, value.step)]


def _range_from_wire(wire: Any, tagged: bool) -> Any:
    parts = PLAIN.from_wire(wire, tagged)
    if (
        type_of(parts) is not list
        or len(parts) != 3
        or not all(type_of(part) is int for part in parts)
        or parts[2] == 0
    ):
        raise not_wire(wire, "range")
    return range(*parts)


RANGE = Shape("range", _range_to_wire, _range_from_wire, frozenset({range}), frozenset({"array"}))


def enum_shape(cls: type[enum.Enum]) -> Shape:
    """Members go by name: `auto()` values move when members are added, names do not.

    On reading a value is understood too: people type those.
    """
    if issubclass(cls, enum.Flag):
        return _flag_shape(cls)
    words = cls.__name__

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        return value._name_

    def from_wire(wire: Any, tagged: bool) -> Any:
        try:
            return cls.__members__[wire]
        except (KeyError, TypeError):
            return _member_by_value(cls, PLAIN.from_wire(wire, True))

    return Shape(words, to_wire, from_wire, frozenset({cls}), frozenset({"string"}))


def _member_by_value(cls: type[enum.Enum], value: Any) -> enum.Enum:
    for member in cls:
        if type(member.value) is type_of(value) and member.value == value:
            return member
    names = ", ".join(list(cls.__members__)[:8])
    raise Unfit(f"{value!r:.60} was recorded where {cls.__name__} is declared", f"Its members are {names}")


def _flag_shape(cls: type[enum.Flag]) -> Shape:
    """A combination is written as `READ|WRITE`; bits without a name as the number."""
    words = cls.__name__

    def to_wire(value: Any, depth: int) -> Any:
        if type_of(value) is not cls:
            raise not_this(value, words)
        bits = [member for member in cls if member in value]
        if bits and sum(member._value_ for member in bits) == value._value_:
            return "|".join([str(member._name_) for member in bits])
        return PLAIN.to_wire(value._value_, depth)

    def from_wire(wire: Any, tagged: bool) -> Any:
        try:
            if type_of(wire) is str:
                return cls(sum(cls.__members__[name]._value_ for name in wire.split("|")))
            return cls(PLAIN.from_wire(wire, True))
        except (KeyError, ValueError, TypeError):
            raise not_wire(wire, words) from None

    return Shape(words, to_wire, from_wire, frozenset({cls}), frozenset({"string", "number", "object"}))

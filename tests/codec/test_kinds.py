"""Kind by kind: what is recorded how, what is refused with which words, and what happens when code changes."""

# ruff: noqa: DTZ001 - naive datetimes must come back too

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import ipaddress
import pathlib
import subprocess
import sys
import threading
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Self, TypedDict, TypeVar, Union, cast

import attrs
import msgspec
import pydantic
import pytest

from perdure.codec import codec_for, describe
from perdure.errors import DecodeError, EncodeError

T = TypeVar("T")


LIST: Any = list
DICT: Any = dict
UNION: Any = Union


def round_trip(hint: Any, value: Any) -> Any:
    codec = codec_for(hint)
    again = codec.loads(codec.dumps(value))
    assert type(again) is type(value)
    assert again == value
    return again


def refusal(hint: Any, value: Any) -> EncodeError:
    with pytest.raises(EncodeError) as caught:
        codec_for(hint).dumps(value)
    return caught.value


# ── plain JSON ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ({"a": [True, None, "x"], "b": 1}, b'{"a":[true,null,"x"],"b":1}'),
        ({"t": 1.0}, b'{"t":{"$f":"1"}}'),
        (-0.0, b'{"$f":"-0"}'),
        (float("inf"), b'{"$f":"Infinity"}'),
        (2**53, b"9007199254740992"),
        (2**53 + 1, b'{"$i":"9007199254740993"}'),
        (1e-7, b"1e-7"),
        (1.5e300, b"1.5e+300"),
        ("\ud83d", b'{"$s":"2D0="}'),
        ({"$f": "1"}, b'{"$":{"$f":"1"}}'),
        ({"$": {}}, b'{"$":{"$":{}}}'),
        ({"$f": "1", "x": 1}, b'{"$f":"1","x":1}'),
        ({"\U0001f600": 1, "\ue000": 2}, '{"\U0001f600":1,"\ue000":2}'.encode()),
    ],
)
def test_plain_json_is_rfc_8785_with_tags_only_where_json_is_not_exact(value: Any, raw: bytes) -> None:
    assert codec_for(Any).dumps(value) == raw
    again = codec_for(Any).loads(raw)
    assert repr(again) == repr(value)


def test_under_the_hint_float_whole_numbers_need_no_tag() -> None:
    assert codec_for(float).dumps(1.0) == b"1"
    assert repr(codec_for(float).loads(b"1")) == "1.0"
    assert repr(round_trip(list[float], [1.0, 1e20, 123456789012345680000.0])) == "[1.0, 1e+20, 1.2345678901234568e+20]"


def test_an_int_where_float_is_declared_stays_an_int() -> None:
    assert repr(round_trip(list[float], [1, 1.0])) == "[1, 1.0]"
    assert repr(round_trip(list[int | float], [1, 1.0])) == "[1, 1.0]"


def test_an_integer_too_long_to_print_comes_back() -> None:
    round_trip(int, 7**9000)
    round_trip(Any, [-(7**9000)])


NOT_PLAIN: list[tuple[Any, str]] = [
    ({"items": [1, 2, {"lock": threading.Lock()}]}, "$.items[2].lock"),
    ({"a b": (1,)}, "$['a b']"),
    ([[{1: 2}]], "$[0][0][1]"),
    ([defaultdict(int)], "$[0]"),
    ([Counter()], "$[0]"),
    ([OrderedDict()], "$[0]"),
    ([range(3)], "$[0]"),
    ([pathlib.PurePosixPath("a")], "$[0]"),
    ([{1}], "$[0]"),
    ([dt.date(2025, 1, 1)], "$[0]"),
    (iter([1]), "$"),
]


@pytest.mark.parametrize(("value", "path"), NOT_PLAIN)
def test_what_is_not_plain_json_is_refused_with_its_path_and_told_to_annotate(value: Any, path: str) -> None:
    no = refusal(Any, value)
    assert no.path == path
    assert "nnotate" in no.hint


class LoudStr(str):
    __slots__ = ()


class LoudDict(dict[str, Any]):
    pass


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    "value", [LoudStr("x"), LoudDict(), Level.LOW, [LoudStr()], {LoudStr("k"): 1}, {"k": Level.LOW}]
)
def test_subclasses_are_never_cut_down(value: Any) -> None:
    refusal(Any, value)
    refusal(type(value).__mro__[1], value)


def test_the_path_begins_where_the_caller_says() -> None:
    with pytest.raises(EncodeError, match=r"^result\.x: a value of type _?thread\.lock"):
        codec_for(Any).dumps({"x": threading.Lock()}, at="result")


def test_a_value_that_contains_itself_and_a_very_deep_one_are_refused() -> None:
    circle: list[Any] = []
    circle.append({"again": circle})
    assert "contain itself" in refusal(Any, circle).hint
    node = Node("a")
    node.next = node
    assert "levels" in refusal(Node, node).what
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert refusal(Any, deep).path.startswith("$[0][0]")
    while deep != 1:  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()


def test_a_hundred_levels_are_fine() -> None:
    deep: Any = 1
    for _ in range(60):
        deep = {"k": [deep]}
    round_trip(Any, deep)
    node = Node("last")
    for _ in range(40):
        node = Node("n", node)
    round_trip(Node, node)


@dataclass
class Node:
    name: str
    next: Node | None = None


# ── records ─────────────────────────────────────────────────────────────────────────────────


class Outer:
    class Colour(enum.Enum):
        RED = "r"


@dataclass
class Invoice:
    amount: Decimal
    colour: Outer.Colour = Outer.Colour.RED
    total: Decimal = field(init=False)
    constant: int = field(init=False, default=7)
    note: str = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.total = self.amount * 2

    @cached_property
    def doubled(self) -> Decimal:
        return self.total * 2


def test_fields_outside_init_and_enums_inside_classes_come_back() -> None:
    invoice = Invoice(Decimal("1.10"))
    invoice.total = Decimal(5)
    invoice.constant = 8
    assert invoice.doubled == 10
    again = round_trip(Invoice, invoice)
    assert (again.total, again.constant, again.doubled, again.note) == (Decimal(5), 8, 10, None)


def test_a_field_that_was_never_set_stays_unset() -> None:
    invoice = Invoice.__new__(Invoice)
    invoice.amount, invoice.colour, invoice.note = Decimal(1), Outer.Colour.RED, "x"
    again = codec_for(Invoice).loads(codec_for(Invoice).dumps(invoice))
    assert not hasattr(again, "total")
    assert again.constant == 7
    del invoice.amount
    assert refusal(Invoice, invoice).path == "$.amount"
    assert refusal(Part, Part.model_construct()).path == "$.name"


@dataclass
class WithCache:
    x: int

    def __post_init__(self) -> None:
        self.index = {self.x: 1}


def test_what_a_class_keeps_outside_its_fields_is_not_lost_silently() -> None:
    no = refusal(list[WithCache], [WithCache(1)])
    assert no.path == "$[0].index"
    assert "field(init=False)" in no.hint


@dataclass
class Ticking:
    made: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.made.append("post_init")


def test_reading_runs_no_code_of_the_class() -> None:
    assert round_trip(Ticking, Ticking()).made == ["post_init"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    name: str
    when: dt.datetime


@dataclass
class Base:
    x: int


@dataclass
class Derived(Base):
    y: int = 0


def test_a_subclass_is_not_cut_down_to_the_declared_class() -> None:
    round_trip(Frozen, Frozen(name="a", when=dt.datetime(2025, 1, 1, tzinfo=dt.UTC)))
    no = refusal(list[Base], [Base(1), Derived(1)])
    assert no.path == "$[1]"
    assert "Derived where Base is declared" in no.what
    round_trip(list[Base | Derived], [Base(1), Derived(1, 2)])


@dataclass
class Celsius:
    degrees: float
    _shown: str = field(init=False, default="")

    @property
    def shown(self) -> str:
        return self._shown


@dataclass
class Dictish(dict[str, int]):
    x: int = 0


def test_a_dataclass_with_content_beside_its_fields_is_refused() -> None:
    assert "also a dict" in refusal(Dictish, Dictish()).what


class Corner(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict, total=False):
    title: str
    year: int
    released: dt.date


class Wire(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    some_name: str
    sizes: list[int] = []
    calls: int = 0

    def __post_init__(self) -> None:
        self.calls += 1


class FrozenWire(msgspec.Struct, frozen=True, array_like=True):
    x: int
    y: Outer.Colour | None = None


def test_named_tuples_typed_dicts_and_structs() -> None:
    assert codec_for(Corner).dumps(Corner(1)) == b'{"x":1,"y":0}'
    round_trip(Corner, Corner(1, 2))
    round_trip(Movie, {"title": "x", "released": dt.date(2025, 1, 1), "unknown": [1]})
    wire = Wire(some_name="x", sizes=[1])
    assert round_trip(Wire, wire).calls == 1
    round_trip(FrozenWire, FrozenWire(1, Outer.Colour.RED))
    refusal(Corner, (1, 2))
    refusal(tuple, Corner(1))


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class DateBox(Box[dt.date]):
    more: int = 0


class Response(pydantic.BaseModel, Generic[T]):
    data: T


def test_generics_know_what_they_contain() -> None:
    round_trip(Box[dt.date], Box[dt.date](dt.date(2025, 1, 1)))
    round_trip(Box[Box[bytes]], Box(Box(b"x")))
    round_trip(DateBox, DateBox(dt.date(2025, 1, 1)))
    round_trip(Response[dt.date], Response[dt.date](data=dt.date(2025, 1, 1)))
    assert refusal(Box, Box(b"x")).path == "$.content"


# ── pydantic ────────────────────────────────────────────────────────────────────────────────


class Part(pydantic.BaseModel):
    name: str
    weight: Decimal = Decimal("0.5")


class Machine(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", populate_by_name=True)
    parts: list[Part] = []
    built: dt.datetime | None = None
    serial_no: int = pydantic.Field(default=0, alias="serialNo")
    by_name: dict[str, Part] = pydantic.Field(default_factory=dict)
    _hits: int = pydantic.PrivateAttr(default=0)
    _seen: list[str] = pydantic.PrivateAttr(default_factory=list)

    def hit(self, what: str) -> None:
        self._hits = 3
        self._seen.append(what)

    @pydantic.field_validator("serial_no")
    @classmethod
    def _count(cls, value: int) -> int:
        return value + 1


class Late(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(defer_build=True)
    inner: Defined | None = None


class Defined(pydantic.BaseModel):
    x: int


class Names(pydantic.RootModel[list[str]]):
    pass


class Site(pydantic.BaseModel):
    url: pydantic.HttpUrl
    other: pydantic.AnyUrl | None = None


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr | None = None


@pydantic.dataclasses.dataclass
class Checked:
    when: dt.datetime
    sizes: list[int] = pydantic.Field(default_factory=list[int])


def test_models_keep_values_types_and_what_was_set() -> None:
    machine = Machine(parts=[Part(name="a"), Part(name="b", weight=Decimal("1.0"))], serialNo=4, colour="red")  # type: ignore[call-arg]
    machine.hit("x")
    again = round_trip(Machine, machine)
    assert again.serial_no == 5  # the validator did not run again
    assert again.model_fields_set == {"parts", "serial_no", "colour"}
    assert again.parts[0].model_fields_set == {"name"}
    assert again.model_extra == {"colour": "red"}
    assert (again._hits, again._seen) == (3, ["x"])
    assert again.model_dump(exclude_unset=True) == machine.model_dump(exclude_unset=True)
    plain = Machine()
    assert round_trip(Machine, plain)._seen == []


def test_a_model_whose_building_was_deferred_is_built() -> None:
    round_trip(Late, Late.model_construct(inner=Defined(x=1)))


def test_other_models() -> None:
    round_trip(Names, Names(["a"]))
    round_trip(Site, Site(url="https://example.com/x?y=1"))  # type: ignore[arg-type]
    round_trip(list[Machine | Part], [Part(name="x"), Machine()])
    round_trip(Checked, Checked(dt.datetime(2025, 1, 1)))


def test_a_time_parsed_by_pydantic_keeps_its_kind_of_zone() -> None:
    machine = Machine.model_validate_json('{"built": "2025-01-01T00:00:00+02:00"}')
    again = round_trip(Machine, machine)
    assert machine.built is not None
    assert type(again.built.tzinfo) is type(machine.built.tzinfo)


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (Login, Login(user="x", password=pydantic.SecretStr("p")), "$.password"),
        (pydantic.SecretStr, pydantic.SecretStr("p"), "$"),
        (Any, {"k": [pydantic.SecretStr("p")]}, "$.k[0]"),
    ],
)
def test_secrets_are_refused(hint: Any, value: Any, path: str) -> None:
    no = refusal(hint, value)
    assert no.path == path
    assert "never recorded" in no.hint
    round_trip(Login, Login(user="x"))


def test_pydantic_is_never_imported_by_the_codec() -> None:
    code = "import sys, perdure.codec; assert not {'pydantic', 'pydantic_core', 'attrs'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "src"})


# ── single things ───────────────────────────────────────────────────────────────────────────

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (dt.datetime(1, 1, 1), "0001-01-01T00:00:00"),
        (dt.datetime(9999, 12, 31, 23, 59, 59, 999999), "9999-12-31T23:59:59.999999"),
        (dt.datetime(2025, 6, 1, 8, 30, tzinfo=dt.UTC), "2025-06-01T08:30:00+00:00"),
        (dt.datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=1), "2025-10-26T02:30:00+01:00[Europe/Berlin][fold=1]"),
        (dt.datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN), "2025-10-26T02:30:00+02:00[Europe/Berlin]"),
        (dt.datetime(2025, 1, 1, fold=1), "2025-01-01T00:00:00[fold=1]"),
    ],
)
def test_times_come_back_exactly(moment: dt.datetime, text: str) -> None:
    codec = codec_for(dt.datetime)
    assert codec.dumps(moment) == f'"{text}"'.encode()
    again = codec.loads(codec.dumps(moment))
    assert (again.replace(tzinfo=None), again.fold, again.tzinfo) == (
        moment.replace(tzinfo=None),
        moment.fold,
        moment.tzinfo,
    )
    assert again.utcoffset() == moment.utcoffset()


def test_a_named_offset_keeps_its_name_and_foreign_zones_are_refused() -> None:
    moment = dt.datetime(2025, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "]CET["))
    assert round_trip(dt.datetime, moment).tzname() == "]CET["
    round_trip(dt.timezone, dt.timezone(-dt.timedelta(hours=5, minutes=30), "x"))
    round_trip(zoneinfo.ZoneInfo, BERLIN)

    class Foreign(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None, /) -> dt.timedelta | None:
            return None

        dst = utcoffset

        def tzname(self, when: dt.datetime | None, /) -> str | None:
            return None

    no = refusal(list[dt.datetime], [dt.datetime(2025, 1, 1, tzinfo=Foreign())])
    assert (no.path, "zoneinfo" in no.hint) == ("$[0]", True)


class Mixed(str, enum.Enum):  # noqa: UP042 - people have them
    A = "x"


class Perm(enum.IntFlag):
    R = 4
    W = 2


def test_enums_go_by_name_and_are_understood_by_value() -> None:
    assert codec_for(Outer.Colour).dumps(Outer.Colour.RED) == b'"RED"'
    assert codec_for(Outer.Colour).loads(b'"r"') is Outer.Colour.RED
    with pytest.raises(DecodeError, match="Its members are RED"):
        codec_for(Outer.Colour).loads(b'"BLUE"')
    round_trip(Mixed, Mixed.A)
    round_trip(Mixed | str, Mixed.A)
    round_trip(Mixed | str, "A")
    assert codec_for(Perm).dumps(Perm.R | Perm.W) == b'"W|R"' or codec_for(Perm).dumps(Perm.R | Perm.W) == b'"R|W"'
    for number in (0, 1, 6, 9):
        round_trip(Perm, Perm(number))


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (pathlib.Path, pathlib.Path("a/b")),
        (pathlib.PurePath, pathlib.PurePath("a")),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
        (pathlib.PureWindowsPath, pathlib.PureWindowsPath("c:/x")),
        (pathlib.Path | int, pathlib.Path("caf\udce9")),
        (bytes | str, b"x"),
        (bytes | str, "x"),
        (bytearray, bytearray(b"\0")),
        (Decimal, Decimal("1.10")),
        (Decimal, Decimal("-Infinity")),
        (uuid.UUID, uuid.UUID(int=5)),
        (Fraction, Fraction(1, 3)),
        (ipaddress.IPv4Address, ipaddress.IPv4Address("127.0.0.1")),
        (ipaddress.IPv6Network, ipaddress.IPv6Network("::/64")),
        (deque[int], deque([1, 2], maxlen=2)),
        (defaultdict[str, list[int]], defaultdict(list, {"a": [1]})),
        (Counter[str], Counter("abracadabra")),
        (OrderedDict[str, int], OrderedDict([("b", 1), ("a", 2)])),
        (Sequence[int], [1]),
        (Sequence[int], (1,)),
        (Mapping[str, bytes], {"a": b"x"}),
        (AbstractSet[str], frozenset({"a"})),
        (dict[tuple[int, str], bytes], {(1, "a"): b"x"}),
        (dict[Outer.Colour, int], {Outer.Colour.RED: 1}),
        (dict[int, str], {10: "x", 9: "y"}),
        (tuple[()], ()),
        (tuple[int, str], (1, "a")),
        (tuple[dt.date, ...], (dt.date(2025, 1, 1),)),
        (frozenset[bytes], frozenset({b"b", b"a"})),
        (Annotated[int, "words"], 5),
        (dt.date | None, dt.date(2025, 1, 1)),
        (Literal["a", b"x", 3, Outer.Colour.RED], b"x"),
        (NewType("Id", uuid.UUID), uuid.UUID(int=1)),
        (list, [1]),
        (dict, {"a": 1}),
        (tuple, (1, "x")),
        (set, {1}),
        (complex, 1 - 0.5j),
        (range, range(1, 9, 2)),
    ],
)  # fmt: skip
def test_kinds(hint: Any, value: Any) -> None:
    again = round_trip(hint, value)
    assert repr(again) == repr(value) or isinstance(value, (set, frozenset, dict))
    assert round_trip(LIST[hint], [value]) == [value]


def test_equal_sets_and_dicts_give_equal_bytes() -> None:
    one, other = {"a", "b", "c", "d"}, {"d", "c", "b", "a"}
    assert codec_for(set[str]).dumps(one) == codec_for(set[str]).dumps(other) == b'["a","b","c","d"]'
    assert codec_for(dict[int, int]).dumps({2: 0, 10: 1}) == codec_for(dict[int, int]).dumps({10: 1, 2: 0})


class Plain:
    pass


@pytest.mark.parametrize(
    "hint", [threading.Event, Plain, Callable[[], int], Iterator[int], type[int], "Nowhere", Callable, TypeVar]
)
def test_hints_that_are_no_data_compile_and_refuse_their_values(hint: Any) -> None:
    codec = codec_for(DICT[str, hint])
    with pytest.raises(EncodeError) as caught:
        codec.dumps({"it": Plain()})
    assert caught.value.path == "$.it"
    assert codec_for(UNION[hint, None]).dumps(None) == b"null"


@pytest.mark.parametrize(
    ("hint", "value", "what"),
    [
        (str, None, "None where str is declared"),
        (int, "5", "str where int is declared"),
        (list[int], [1, "2"], "str where int is declared"),
        (tuple[int, str], (1,), "1 elements where tuple[int, str] is declared"),
        (Base | None, 5, "int where Base is declared"),
        (set[int], frozenset({1}), "frozenset where set[int] is declared"),
    ],
)
def test_a_value_of_another_type_than_declared_is_refused_in_words(hint: Any, value: Any, what: str) -> None:
    assert what in refusal(hint, value).what


# ── unions ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str


def test_members_that_look_alike_are_told_apart_and_others_are_not_marked() -> None:
    assert codec_for(Cat | None).dumps(Cat("x")) == b'{"name":"x"}'
    assert codec_for(Cat | str | list[int]).dumps(Cat("x")) == b'{"name":"x"}'
    assert codec_for(Cat | Dog).dumps(Dog("x")) == b'{"$u":["Dog",1,{"name":"x"}]}'
    for hint in (Cat | Dog, Dog | Cat, Cat | Dog | None, Cat | dict[str, str] | Dog, UNION[Any, Dog], list[Dog | Cat]):
        round_trip(hint, [Dog("x")] if hint == list[Dog | Cat] else Dog("x"))
    round_trip(Cat | dict[str, str], {"$u": "x"})
    round_trip(UNION[Any, Dog], {"$u": ["Dog", 0, {"name": "x"}]})
    round_trip(list[int] | list[str], ["x"])
    round_trip(list[int] | list[str], [])
    round_trip(dt.datetime | str, "2025-01-01T00:00:00")
    round_trip(dt.datetime | str, dt.datetime(2025, 1, 1))
    round_trip(bool | int | float | None, True)
    assert codec_for(UNION[Any, str, None]).shape is codec_for(Any).shape


def test_a_refusal_inside_a_member_keeps_its_path() -> None:
    no = refusal(dict[str, Cat | Dog], {"it": Cat(5)})  # type: ignore[arg-type]
    assert no.path == "$.it.name"


def test_reordering_members_and_renaming_a_class_do_not_break_reading() -> None:
    raw = codec_for(Cat | Dog).dumps(Dog("x"))
    assert codec_for(Dog | Cat).loads(raw) == Dog("x")
    renamed = dataclasses.make_dataclass("Hound", [("name", str)])
    assert codec_for(Cat | renamed).loads(raw) == renamed("x")
    assert b"test_kinds" not in raw


def test_a_union_that_grew_reads_what_was_written_before() -> None:
    raw = codec_for(Base).dumps(Base(1))
    assert codec_for(Base | Cat).loads(raw) == Base(1)
    with pytest.raises(DecodeError, match=r"could be any of Cat \| Dog"):
        codec_for(Cat | Dog).loads(b'{"name":"x"}')


def test_a_union_that_shrank_reads_the_member_that_is_left() -> None:
    raw = codec_for(Cat | Dog | None).dumps(Dog("x"))
    assert codec_for(Dog | None).loads(raw) == Dog("x")
    assert codec_for(Dog).loads(raw) == Dog("x")
    raw = codec_for(Part | Names | Cat).dumps(Part(name="x"))
    assert codec_for(Part).loads(raw).model_fields_set == {"name"}
    with pytest.raises(DecodeError):
        codec_for(Cat).loads(raw)


# ── code that changed ───────────────────────────────────────────────────────────────────────


def test_a_new_field_takes_its_default_and_a_dropped_one_is_ignored() -> None:
    assert codec_for(Derived).loads(b'{"x":1,"gone":2}') == Derived(1, 0)
    assert codec_for(Corner).loads(b'{"x":1}') == Corner(1, 0)
    assert codec_for(Wire).loads(b'{"some_name":"x"}').sizes == []
    machine = codec_for(Machine).loads(b"{}")
    assert (machine.parts, machine.model_fields_set) == ([], set())
    with pytest.raises(DecodeError, match=r"\$\.x: nothing was recorded for field 'x'.* default"):
        codec_for(Base).loads(b"{}")


@pytest.mark.parametrize(
    ("hint", "raw", "path"),
    [
        (list[int], b'[1,"x"]', r"\$\[1\]"),
        (Derived, b'{"x":"a","y":1}', r"\$\.x"),
        (dict[str, Base], b'{"k":{"x":null}}', r"\$\.k\.x"),
        (dt.datetime, b'"yesterday"', r"\$"),
        (Any, b'{"$q":1}', r"\$"),
        (uuid.UUID, b'"x"', r"\$"),
        (int, b"[", r"\$"),
        (bytes, b'"***"', r"\$"),
        (Cat | Dog, b'{"$u":5}', r"\$"),
        (tuple[int, int], b"[1]", r"\$"),
        (deque, b"[]", r"\$"),
        (defaultdict, b"[]", r"\$"),
        (set[Any], b"[[]]", r"\$"),
    ],
)
def test_text_that_does_not_fit_is_refused_with_its_path(hint: Any, raw: bytes, path: str) -> None:
    with pytest.raises(DecodeError, match=f"^{path}: "):
        codec_for(hint).loads(raw)


def test_descriptions_are_short() -> None:
    assert describe(list[Cat | None]) == "list[Cat | None]"
    assert describe(Cat) == "Cat"
    assert describe(Any) == "anything"


def test_codecs_are_made_once_per_hint() -> None:
    assert codec_for(list[Cat]) is codec_for(list[Cat])
    assert codec_for(int | str).words == "int | str"
    assert codec_for(str | int).words == "str | int"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type aliases are a statement since Python 3.12")
def test_type_aliases_also_recursive_ones() -> None:
    names: dict[str, Any] = {"Cat": Cat, "date": dt.date}
    exec(  # a syntax error on Python 3.11
        "type Json = dict[str, Json] | list[Json] | str | int | None\n"
        "type Dated[T] = dict[date, T]\n"
        "type Pet = Cat | None\n",
        names,
    )
    round_trip(names["Json"], {"a": [1, {"b": None}]})
    round_trip(names["Dated"][Cat], {dt.date(2025, 1, 1): Cat("x")})
    round_trip(LIST[names["Pet"]], [Cat("x"), None])
    round_trip(names["Pet"] | int, Cat("x"))


def test_attrs_classes() -> None:
    assert codec_for(Gauge).loads(codec_for(Gauge).dumps(Gauge(5))) == Gauge(5)
    with pytest.raises(EncodeError, match=r"\$\.value"):
        codec_for(Gauge).dumps(Gauge(cast(int, "five")))


@attrs.define
class Gauge:
    value: int
    unit: str = "C"


@dataclass
class Linked:
    value: int
    next: Self | None = None
    others: list[Linked] = field(default_factory=list["Linked"])


@dataclass
class Left:
    right: Right | None = None


@dataclass
class Right:
    left: dict[str, Left | Right] = field(default_factory=dict[str, "Left | Right"])


def test_classes_that_contain_themselves_and_each_other() -> None:
    round_trip(Linked, Linked(1, Linked(2), [Linked(3)]))
    round_trip(Left, Left(Right({"l": Left(), "r": Right()})))


def test_the_bytes_do_not_depend_on_which_hint_was_compiled_first() -> None:
    code = (
        "from tests.codec.test_kinds import Left, Right, codec_for\n"
        "value = Left(Right({'l': Left(), 'r': Right()}))\n"
        "for hint in HINTS: codec_for(hint)\n"
        "print(codec_for(Left).dumps(value).decode())"
    )
    orders = ["(Left, Right)", "(Right, Left)", "(Left | Right,)", "(dict[str, Left | Right],)"]
    outputs: set[bytes] = set()
    for order in orders:
        command = [sys.executable, "-c", code.replace("HINTS", order)]
        outputs.add(subprocess.run(command, capture_output=True, check=True, env={"PYTHONPATH": "src:."}).stdout)
    assert len(outputs) == 1


def test_text_from_elsewhere_may_be_nested_as_deep_as_it_likes() -> None:
    for hint in (Any, list[Any], Linked, dict[str, Linked]):
        with pytest.raises(DecodeError):
            codec_for(hint).loads(b"[" * 100_000 + b"]" * 100_000)

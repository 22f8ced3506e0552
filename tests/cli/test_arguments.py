"""From words on the command line to values: JSON by the type hints, text where a text is wanted, files, stdin."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

from perdure import workflow
from perdure.cli.arguments import call_of, fitting_value, parsed, plain_value
from perdure.cli.exits import CommandError
from perdure.codec import codec_for


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    item: str
    price: Decimal = Decimal(1)


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list[Line])


VALUES: list[tuple[Any, str, Any]] = [
    (str, "hello", "hello"),
    (str, '"hello"', "hello"),
    (str, "5", "5"),
    (str, "true", "true"),
    (str, "null", "null"),
    (str, "", ""),
    (str, '{"a"', '{"a"'),
    (str, "two words, ünlaut", "two words, ünlaut"),
    (str | None, "null", None),
    (str | None, "nil", "nil"),
    (int, "5", 5),
    (int | str, "5", 5),
    (int | str, "five", "five"),
    (float, "5", 5.0),
    (float, "1e3", 1000.0),
    (bool, "true", True),
    (Colour, "red", Colour.RED),
    (Literal["a", "b"], "a", "a"),
    (date, "2026-01-31", date(2026, 1, 31)),
    (UUID, "12345678123456781234567812345678", None),
    (list[int], " [1, 2 ]\n", [1, 2]),
    (tuple[int, str], '[1, "x"]', (1, "x")),
    (dict[str, list[int]], '{"a": [1]}', {"a": [1]}),
    (Order, '{"id": "o1", "lines": [{"item": "pen"}]}', Order("o1", [Line("pen")])),
    (Any, "hello", "hello"),
    (Any, "5", 5),
    (Any, '{"a": null}', {"a": None}),
]


@pytest.mark.parametrize(("hint", "text", "value"), [each for each in VALUES if each[0] is not UUID])
def test_values(hint: Any, text: str, value: Any) -> None:
    given = parsed(text, codec_for(hint), at="it")
    assert given == value
    assert type(given) is type(value)


@pytest.mark.parametrize("hint", [Decimal, UUID, datetime, timedelta])
def test_whatever_has_a_text_form_takes_it(hint: Any) -> None:
    value = {
        Decimal: Decimal("1.50"),
        UUID: UUID(int=7),
        datetime: datetime.fromisoformat("2026-01-31T12:00:00+00:00"),
        timedelta: timedelta(days=2),
    }[hint]
    text = json.loads(codec_for(hint).dumps(value))
    assert parsed(str(text), codec_for(hint), at="it") == value
    assert parsed(json.dumps(text), codec_for(hint), at="it") == value


REFUSED: list[tuple[Any, str, str]] = [
    (int, "five", "it: five is no JSON"),
    (int, "5.5", "it: 5.5 was given where int is declared"),
    (int, '"5"', "int is declared"),
    (bool, "yes", "it: yes is no JSON"),
    (list[int], "1,2", "it: 1,2 is no JSON"),
    (list[int], '[1, "x"]', "it[1]:"),
    (Order, '{"id": "o1", "lines": [{"item": 1}]}', "it.lines[0].item: 1 was given where str"),
    (Order, "{}", "it"),
    (Colour, "blue", "blue"),
    (Any, "[1, 2", "it: [1, 2 is no JSON (Input data was truncated (byte 5))"),
    (Any, '{"a" 1}', "(byte 5))"),
    (int, "", "it: an empty text is no JSON"),
    (Any, '"hello', 'it: "hello is no JSON'),
]


@pytest.mark.parametrize(("hint", "text", "says"), REFUSED)
def test_what_does_not_fit(hint: Any, text: str, says: str) -> None:
    with pytest.raises(CommandError) as error:
        parsed(text, codec_for(hint), at="it")
    assert says in str(error.value)


def test_from_a_file_and_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"id": "ö1"}\n', encoding="utf-8")
    assert plain_value(f"@{file}", at="it") == {"id": "ö1"}
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1, 2]"))
    assert plain_value("-", at="it") == [1, 2]
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="a text that begins with @ is written as JSON"):
        plain_value(f"@{file}", at="it")
    assert plain_value('"@home"', at="it") == "@home"


def test_what_does_not_fit_is_said_to_come_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.json").write_text('{"id":\n', encoding="utf-8")
    with pytest.raises(CommandError, match=r'^it \(@order\.json\): \{"id":\n is no JSON \(.*\(byte 7\)\)'):
        parsed("@order.json", codec_for(Order), at="it")
    Path("order.json").write_text('{"id": 3}', encoding="utf-8")
    with pytest.raises(CommandError, match=r"^it \(@order\.json\)\.id: 3 was given where str is declared"):
        parsed("@order.json", codec_for(Order), at="it")
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1"))
    with pytest.raises(CommandError, match=r"^it \(stdin\): \[1 is no JSON"):
        fitting_value("-", None, at="it")


# ── calls ───────────────────────────────────────────────────────────────────────────────────


@workflow
async def mixed(first: int, second: str = "x", *more: int, flag: bool = False, order: Order | None = None) -> None: ...


@workflow
async def bare(anything: Any, implied: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def test_arguments_find_their_parameters() -> None:
    call = call_of(mixed, ["1", "2", "3", "4"], ["flag=true", 'order={"id": "a=b"}'])
    assert call.args == (1, "2", 3, 4)
    assert call.kwargs == {"flag": True, "order": Order("a=b")}
    assert call_of(mixed, ["1"], ["second=y"]).kwargs == {"second": "y"}


def test_parameters_without_a_type_take_json_or_text() -> None:
    assert call_of(bare, ["[1]", "null"]).args == ([1], None)
    assert call_of(bare, ["word"]).args == ("word",)
    with pytest.raises(CommandError, match="implied: x is no JSON"):
        _ = call_of(bare, ["word", "x"])


def test_the_signature_is_told_when_they_do_not_fit() -> None:
    with pytest.raises(CommandError, match=r"missing 1 required positional argument: 'first'; it takes mixed\(first: "):
        _ = call_of(mixed, [])
    with pytest.raises(CommandError, match="first: x is no JSON"):
        _ = call_of(mixed, ["x"])

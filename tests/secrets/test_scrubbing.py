"""What is found of a secret, in which texts, and what stands there instead. The encodings are made by the library."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure import EncodeError, UsageError
from perdure.codec import arguments_codec_for, codec_for, dump_exception, hiding, load_exception, scrubbing
from perdure.codec.hiding import alike, hidden, hidden_text, mark
from perdure.codec.scrubbing import Pattern, Source, too_plain
from perdure.runtime.vault import patterns_of
from perdure.specs import recordable

VALUE = 'sk/live+1"2\\3 ä\n=😀x'


@contextmanager
def hides(*patterns: Pattern, **values: str) -> Generator[Source]:
    """A process that knows these secrets."""
    source = Source(patterns)
    for name, value in values.items():
        source.add(name, value)
    source.open()
    try:
        yield source
    finally:
        source.close()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "JSON": json.dumps,
    "JSON, not ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "percent": quote,
    "percent, all": lambda text: quote(text, safe=""),
    "percent, lower case": lambda text: quote(text, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "query": lambda text: urlencode({"key": text}),
    "plus": quote_plus,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64, URL": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "basic": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "repr": repr,
    "repr of bytes": lambda text: repr(text.encode()),
}

values = st.text(min_size=8, max_size=40).filter(lambda value: too_plain(value) is None)
around = st.text(max_size=12)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(value=values, before=around, after=around)
def test_a_value_is_found_in_each_usual_encoding(encoding: str, value: str, before: str, after: str) -> None:
    encoded = ENCODINGS[encoding](value)
    if encoding == "percent, lower case" and encoded not in scrubbing.forms_of(value):
        return  # it has other percent signs, which nobody writes half in capitals
    with hides(key=value):
        text = hidden_text(before + encoded + after)
        assert mark("key") in text
        assert encoded not in text


@given(value=values, before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_base64_of_more_keeps_nothing_of_it_but_an_odd_bit(value: str, before: bytes, after: bytes) -> None:
    whole = base64.b64encode(before + value.encode() + after).decode()
    with hides(key=value):
        text = hidden_text(whole)
    assert mark("key") in text
    kept = text.replace(mark("key"), "")
    own = len(base64.b64encode(before)) + len(base64.b64encode(after))
    assert len(kept) <= own + 4


@given(value=values, text=st.text(max_size=60))
def test_what_is_hidden_once_stays_as_it_is(value: str, text: str) -> None:
    with hides(key=value, other="0123456789"):
        once = hidden_text(f"{text}{value}{text}0123456789")
        assert hidden_text(once) == once
        assert value not in once.replace(mark("key"), "").replace(mark("other"), "")


def test_the_longer_of_two_values_goes_first_and_a_mark_is_never_cut() -> None:
    with hides(short="abcd-1234", long="abcd-1234-5678", odd="secret:long"):
        assert hidden_text("abcd-1234-5678 abcd-1234 secret:long") == "‹secret:long› ‹secret:short› ‹secret:odd›"


def test_nothing_is_hidden_when_nobody_hides_anything() -> None:
    key = b'"sk_live_0123456789abcdef"'
    assert hidden(key) == key
    with hides():
        assert hidden(key) == '"‹secret:stripe-key›"'.encode()
    assert hidden(key) == key
    assert hiding.active is None


def test_two_that_are_open_hide_what_each_of_them_knows() -> None:
    with hides(one="value-of-one"):
        with hides(two="value-of-two"):
            assert hidden_text("value-of-one value-of-two") == "‹secret:one› ‹secret:two›"
        assert hidden_text("value-of-one value-of-two") == "‹secret:one› value-of-two"


def test_of_passing_values_all_whose_time_has_not_come_are_hidden_and_else_the_latest() -> None:
    with hides() as source:
        for number in range(scrubbing.PASSING_VALUES_MAX + 1):
            source.add("minted", f"credential-{number:04}", passes_at=100, now=99)
        assert hidden_text("credential-0000") == "‹secret:minted›"
        source.add("minted", "credential-0001", passes_at=200, now=99)
        source.add("minted", "credential-0257", passes_at=300, now=100)
        assert hidden_text("credential-0000") == "credential-0000"
        assert hidden_text("credential-0002") == "credential-0002"
        source.add("minted", "credential-0258", passes_at=300, now=100)
        assert hidden_text("credential-0001") == hidden_text("credential-0258") == "‹secret:minted›"


def test_of_passing_values_that_passed_the_latest_are_hidden() -> None:
    with hides() as source:
        for number in range(scrubbing.PASSING_VALUES_MAX + 1):
            source.add("minted", f"credential-{number:04}", passes_at=number, now=number)
        assert hidden_text("credential-0000") == "credential-0000"
        assert hidden_text("credential-0001") == hidden_text("credential-0256") == "‹secret:minted›"


# ── JSON ────────────────────────────────────────────────────────────────────────────────────

nested = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(value=nested)
def test_what_holds_no_secret_is_written_as_ever(value: Any) -> None:
    codec = codec_for(Any)
    plain = codec.dumps(value)
    with hides(patterns_of(["no such text at all"])[0], key="a secret that is nowhere"):
        assert codec.dumps(value) == plain


@given(value=nested, secret=values, data=st.data())
def test_a_secret_somewhere_comes_back_as_a_mark_there(value: Any, secret: str, data: st.DataObject) -> None:
    codec, place = codec_for(Any), data.draw(st.sampled_from(["value", "item", "key", "text"]))
    assume(secret not in codec.dumps(value).decode())  # in a number it would be refused
    wrapped = {
        "value": {"a": value, "b": [secret]}, "item": [value, secret], "key": {secret: value, "a": value},
        "text": [value, f"before {secret} after"],
    }[place]  # fmt: skip
    with hides(key=secret):
        raw = codec.dumps(wrapped)
        assert codec.dumps(codec.loads(raw)) == raw
    assert mark("key") in str(codec.loads(raw))
    assert msgspec.json.encode(secret)[1:-1] not in raw.replace(mark("key").encode(), b"")


def test_keys_stay_in_their_order_and_numbers_as_they_stand() -> None:
    codec = codec_for(Any)
    value = {"zz": 1e21, "secret-key": [1.5e-7, 2**53, 1e300], "b": 2**70}
    with hides(key="secret-key"):
        raw = codec.dumps(value)
        assert codec.dumps(codec.loads(raw)) == raw
    assert codec.loads(raw) == {"zz": 1e21, "‹secret:key›": [1.5e-7, 2**53, 1e300], "b": 2**70}


def test_half_a_surrogate_pair_hides_nothing() -> None:
    codec = codec_for(Any)
    with hides(key="value-of-key"):
        assert codec.loads(codec.dumps(["\ud800 value-of-key"])) == ["\ud800 ‹secret:key›"]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 12345678), (float, 12345678.5), (Decimal, Decimal("12345678.01")), (bytes, b"xx12345678"),
        (dict[str, int], {"a": 12345678}), (Any, {"a": [12345678]}), (Any, {"12345678": 1, "‹secret:pin›": 2}),
    ],
)  # fmt: skip
def test_where_no_mark_can_stand_the_value_is_refused_by_name_of_the_place(hint: Any, value: Any) -> None:
    with hides(pin="12345678"), pytest.raises(EncodeError) as no:
        codec_for(hint).dumps(value)
    assert "12345678" not in str(no.value)
    assert "secret" in str(no.value)


def test_arguments_get_marks_as_well() -> None:
    def charge(card: str, *, cents: int) -> None: ...

    codec = arguments_codec_for(charge)
    with hides(card="4000-0000-1234"):
        assert codec.loads(codec.dumps(("4000-0000-1234",), {"cents": 5})) == (("‹secret:card›",), {"cents": 5})
    with hides(pin="12345678"), pytest.raises(EncodeError, match=r"arguments of .*charge"):
        codec.dumps(("a",), {"cents": 12345678})


# ── exceptions ──────────────────────────────────────────────────────────────────────────────


class Odd(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, text.encode(), {"in": [text]}, 12345678)
        self.attribute = {"of": text}
        self.pin = 12345678
        self.add_note(f"note {text}")


def test_an_exception_is_recorded_without_it_wherever_it_stands() -> None:
    secret = "value/of+key"
    inner = ExceptionGroup(f"group {secret}", [KeyError(secret), OSError(2, f"no {secret}", f"/{secret}")])
    error = Odd(secret)
    error.__cause__ = inner
    inner.__context__ = Odd(base64.b64encode(secret.encode()).decode())
    with hides(key=secret, pin="12345678"):
        raw = dump_exception(error, (Odd,))
        again = load_exception(raw, (Odd,))
    text = raw.decode()
    assert secret not in text
    assert "12345678" not in text
    assert base64.b64encode(secret.encode()).decode()[:-2] not in text
    assert again.args[0] == "‹secret:key›"
    assert any("not recorded with it" in note and "pin" in note for note in again.__notes__)


def test_secret_types_in_exceptions_are_masked() -> None:
    pydantic = pytest.importorskip("pydantic")
    again = load_exception(dump_exception(ValueError("bad", pydantic.SecretStr("hunter2"))))
    assert again.args == ("bad", "‹secret:SecretStr›")


# ── patterns ────────────────────────────────────────────────────────────────────────────────

A_JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
A_PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow==\n-----END RSA PRIVATE KEY-----"

LOOKS_LIKE_ONE = {
    "aws-key": "AKIAIOSFODNN7EXAMPLE",
    "github-token": "ghp_" + "a1B2" * 9,
    "gitlab-token": "glpat-" + "x" * 20,
    "stripe-key": "sk_live_" + "4eC39HqLyjWDarjt",
    "model-key": "sk-ant-api03-" + "Ab1_" * 6,
    "slack-token": "xoxb-123456789012-abcdef",
    "google-key": "AIza" + "a" * 35,
    "jwt": A_JWT,
    "private-key": A_PEM,
    "url-password": "postgresql://shop:hunter2@db/shop",
}
LOOKS_LIKE_NONE = [
    "task-management-system-for-everybody-1", "https://example.com:8080/a@b", "see https://a.b: mail me@example.com",
    "eyJust a word.eyJust another", "the PRIVATE KEY----- of a box", "risk-assessment-2026-in-detail-and-more",
]  # fmt: skip


def test_each_well_known_form_is_hidden() -> None:
    assert {pattern.name for pattern in scrubbing.WELL_KNOWN} == set(LOOKS_LIKE_ONE)
    with hides():
        for name, text in LOOKS_LIKE_ONE.items():
            raw = codec_for(Any).dumps({"said": [f"it is {text} indeed"]})
            assert mark(name).encode() in raw, name
        assert hidden_text("postgresql://shop:hunter2@db/shop") == "postgresql://shop:‹secret:url-password›@db/shop"


@pytest.mark.parametrize("text", LOOKS_LIKE_NONE)
def test_what_only_resembles_one_is_left_alone(text: str) -> None:
    with hides():
        assert hidden_text(text) == text


def test_patterns_of_ones_own() -> None:
    with hides(*patterns_of({"iban": r"^DE\d{20}$", "pin": r"pin=(?P<secret>\d+)"})):
        raw = codec_for(Any).dumps(["DE12345678901234567890", "no DE12345678901234567890", "pin=12, pin=34"])
    assert codec_for(Any).loads(raw)[:2] == ["‹secret:iban›", "no DE12345678901234567890"]
    assert codec_for(Any).loads(raw)[2] == "pin=‹secret:pin›, pin=‹secret:pin›"
    with hides(*patterns_of([r"card \d{4}"])):
        assert hidden_text("my card 1234") == "my ‹secret:pattern›"


@pytest.mark.parametrize("scrub", [["("], [5], ["x*"], [b"key"], "", 7, {"a": None}])
def test_patterns_that_cannot_be_meant(scrub: Any) -> None:
    with pytest.raises(UsageError, match="scrub="):
        patterns_of(scrub)


# ── names, and what is the same but for marks ───────────────────────────────────────────────


def test_names_and_ids_that_hold_one_are_refused_and_say_which() -> None:
    with hides(key="value-of-key"), pytest.raises(UsageError, match="‹secret:key›") as no:
        recordable("claim value-of-key", what="run id")
    assert "value-of-key" not in str(no.value)


@pytest.mark.parametrize("value", ["", "short-1", "password", "letters" * 2, "a\ud800" * 8, "‹secret:stripe› x"])
def test_what_cannot_be_hidden(value: str) -> None:
    assert too_plain(value) is not None


@given(value=nested, secret=values)
def test_a_call_with_a_mark_is_alike_to_the_same_call_without(value: Any, secret: str) -> None:
    assume(secret.strip("0123456789.e+-"))  # in a number there is no place for a mark: that is refused
    codec = codec_for(Any)
    call = [value, {"to": f"to {secret}", "and": secret}, value]
    plain = codec.dumps(call)
    with hides(key=secret):
        marked = codec.dumps(call)
    assert alike(plain, marked)
    assert alike(marked, plain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":"‹secret:k›","b":1}', '{"a":"x","c":2,"b":1}'), ('["‹secret:k›"]', '["x","y"]'),
        ('["‹secret:k›y"]', '["x"]'), ('["a‹secret:k›"]', '["b"]'), ('["x"]', '["y"]'), ('["‹secret:k›"]', "[1]"),
    ],
)  # fmt: skip
def test_a_mark_stands_for_text_within_its_string_alone(one: str, other: str) -> None:
    assert not alike(one.encode(), other.encode())
    assert not alike(other.encode(), one.encode())

"""Recorded values without their noise, and the canonical form itself."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import codec_for, without
from perdure.codec.canonical import ecmascript_number
from perdure.errors import DeclarationError

RAW = b'{"a b":1,"messages":[{"id":1,"t":1e+21,"u":{"id":5}},{"id":2},[3]],"n":0}'


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ([], RAW),
        (["$.messages[*].id"], b'{"a b":1,"messages":[{"t":1e+21,"u":{"id":5}},{},[3]],"n":0}'),
        (["$.messages[0].u.id", "$.n"], b'{"a b":1,"messages":[{"id":1,"t":1e+21,"u":{}},{"id":2},[3]]}'),
        (["$.messages[1]"], b'{"a b":1,"messages":[{"id":1,"t":1e+21,"u":{"id":5}},[3]],"n":0}'),
        (["$.messages[*]"], b'{"a b":1,"messages":[],"n":0}'),
        (["$.*"], b"{}"),
        (['$["a b"]', "$.messages"], b'{"n":0}'),
        (["$.nowhere.at.all", "$[0]", "$.n.x"], RAW),
        (["$.messages[*].*"], b'{"a b":1,"messages":[{},{},[3]],"n":0}'),
    ],
)
def test_paths_remove_what_they_name_and_nothing_else(paths: list[str], left: bytes) -> None:
    assert without(RAW, paths) == left


@pytest.mark.parametrize("path", ["messages", "$", "", "$.", "$..id", "$[x]", "$.a[", "$a"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(DeclarationError, match=r"path"):
        without(RAW, [path])


@settings(max_examples=80, deadline=None)
@given(
    st.recursive(
        st.none() | st.text(max_size=3) | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    )
)
def test_a_view_of_canonical_text_is_canonical(value: Any) -> None:
    codec = codec_for(Any)
    left = without(codec.dumps(value), ["$[*].a", "$.b[0]"])
    assert codec.dumps(codec.loads(left)) == left
    assert without(codec.dumps(value), ["$.zzzz.y[*]"]) == codec.dumps(value)


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_printed_as_the_rfc_lists_them(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert ecmascript_number(number) == text
    if number:
        assert codec_for(float).dumps(number) == text.encode()


@settings(max_examples=500, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_is_written_alike_on_the_fast_and_the_slow_way(number: float) -> None:
    raw = codec_for(list[float]).dumps([number])
    if number or struct.pack("d", number) == bytes(8):
        assert raw == f"[{ecmascript_number(number)}]".encode()
    assert float(ecmascript_number(number)) == number


def test_the_rfc_s_sorting_example() -> None:
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    raw = codec_for(dict[str, int]).dumps(value)
    assert list(json.loads(raw)) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    text = codec_for(str).dumps("\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f")
    assert text == b'"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'

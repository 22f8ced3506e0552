"""Arguments by parameter name: the same call gives the same bytes, and a wrong call gives Python's own error."""

from __future__ import annotations

import datetime as dt
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import arguments_codec_for
from perdure.errors import DeclarationError, DecodeError, EncodeError

if TYPE_CHECKING:
    from fractions import Fraction as Missing  # at run time there is no such name


@dataclass
class Claim:
    id: str


async def plan(claim: Claim, amount: int = 5, *, when: dt.date | None = None) -> list[Claim]: ...  # type: ignore[empty-body]


def free(a: int, /, b: Any, c: str = "x", *rest: int, d: bool = False, **others: Any) -> None: ...


def one(x: int = 1) -> None: ...


def none() -> None: ...


def two(a: Any, b: Any, *, c: Any) -> None: ...


def three(a: Any, b: Any, c: Any, *, d: Any, e: Any) -> None: ...


def only(a: Any, b: Any = 1, /) -> None: ...


def test_the_same_call_gives_the_same_bytes() -> None:
    codec = arguments_codec_for(plan)
    raw = codec.dumps((Claim("7"),), {})
    assert raw == b'{"claim":{"id":"7"}}'  # the default of amount is not filled in
    assert codec.dumps((), {"claim": Claim("7")}) == raw
    assert codec.dumps((Claim("7"), 5), {}) == codec.dumps((), {"amount": 5, "claim": Claim("7")}) != raw
    assert codec.loads(raw) == ((Claim("7"),), {})
    assert codec.result.dumps([Claim("1")]) == b'[{"id":"1"}]'


def test_parameters_of_every_kind() -> None:
    codec = arguments_codec_for(free)
    raw = codec.dumps((1, 2, "3", 4, 5), {"d": True, "z": 1})
    assert raw == b'{"a":1,"b":2,"c":"3","d":true,"others":{"z":1},"rest":[4,5]}'
    assert codec.loads(raw) == ((1, 2, "3", 4, 5), {"d": True, "z": 1})
    assert codec.loads(codec.dumps((1, 2), {"$u": 1})) == ((1, 2), {"$u": 1})
    assert codec.loads(codec.dumps((1,), {"b": 2, "a": "other", "c": "x"})) == ((1, 2, "x"), {"a": "other"})


def test_an_argument_after_an_omitted_one_comes_back_by_name() -> None:
    def f(a: int = 1, b: int = 2, c: int = 3) -> None: ...

    codec = arguments_codec_for(f)
    assert codec.loads(codec.dumps((), {"b": 5})) == ((), {"b": 5})
    assert codec.loads(codec.dumps((7,), {"c": 5})) == ((7,), {"c": 5})


def test_the_parameter_and_the_path_are_named() -> None:
    codec = arguments_codec_for(free)
    with pytest.raises(EncodeError) as caught:
        codec.dumps((1, {"locks": [threading.Lock()]}), {})
    assert caught.value.path == "$.b.locks[0]"
    with pytest.raises(EncodeError) as caught:
        codec.dumps((1, 2, "x", 3, "4"), {})  # type: ignore[arg-type, unused-ignore]
    assert caught.value.path == "$.rest[1]"
    with pytest.raises(EncodeError) as caught:
        codec.dumps((1, 2), {"more": {1, 2}})
    assert caught.value.path == "$.others.more"
    with pytest.raises(EncodeError) as caught:
        codec.dumps((1, {"x": {"\ud800": 1}}, "c"), {})
    assert caught.value.path == "$.b.x['\\ud800']"


def test_methods_partials_and_callable_objects() -> None:
    class Service:
        def ask(self, claim: Claim) -> Claim:
            return claim

        def __call__(self, claim: Claim) -> Claim:
            return claim

    raw = b'{"claim":{"id":"1"}}'
    for fn in (Service().ask, Service(), functools.partial(free, 1)):
        codec = arguments_codec_for(fn)
        if isinstance(fn, functools.partial):
            assert codec.dumps((5,), {}) == b'{"b":5}'
        else:
            assert codec.dumps((Claim("1"),), {}) == raw
            assert codec.loads(raw) == ((Claim("1"),), {})


def test_a_none_default_is_taken_whatever_the_annotation_says() -> None:
    def f(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    codec = arguments_codec_for(f)
    assert codec.loads(codec.dumps((None,), {})) == ((None,), {})


def test_hints_that_cannot_be_resolved_name_the_parameter() -> None:
    def f(good: int, bad: Missing) -> None: ...

    def g(good: int) -> Missing:
        raise NotImplementedError

    with pytest.raises(DeclarationError, match=r"'Missing' of parameter 'bad' of .*f\(\) cannot be resolved"):
        arguments_codec_for(f)
    with pytest.raises(DeclarationError, match=r"'Missing' of the return annotation of .*g\(\)"):
        arguments_codec_for(g)


def test_hints_that_are_no_types_name_the_parameter() -> None:
    def f(good: Any, bad: Any) -> None: ...

    def g() -> Any: ...

    f.__annotations__, g.__annotations__ = {"good": int, "bad": 5}, {"return": [int]}
    with pytest.raises(DeclarationError, match=r"parameter 'bad' of .*f\(\) is annotated with 5, which is not a type"):
        arguments_codec_for(f)
    with pytest.raises(DeclarationError, match=r"return annotation of .*g\(\) is \[<class 'int'>\], which is not"):
        arguments_codec_for(g)


def test_a_class_of_the_surrounding_function_is_found_when_the_function_uses_it() -> None:
    @dataclass
    class Local:
        x: int

    def f(it: Local) -> Local:
        return Local(it.x)

    codec = arguments_codec_for(f)
    assert codec.loads(codec.dumps((Local(1),), {})) == ((Local(1),), {})


def test_a_record_of_another_signature_is_refused_by_name() -> None:
    codec = arguments_codec_for(plan)
    with pytest.raises(DecodeError, match=r"\$\.gone: .*plan\(\) has no such parameter any more"):
        codec.loads(b'{"claim":{"id":"1"},"gone":1}')
    with pytest.raises(DecodeError, match=r"\$\.claim: nothing was recorded"):
        codec.loads(b"{}")
    with pytest.raises(DecodeError, match=r"\$\.claim\.id"):
        codec.loads(b'{"claim":{"id":1}}')


FUNCTIONS: list[Callable[..., None]] = [free, one, none, two, three, only]


@settings(max_examples=800, deadline=None)
@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.just(1), max_size=5).map(tuple),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "x", "z"]), st.just(1), max_size=4),
)
def test_wrong_calls_raise_what_python_raises(
    fn: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    codec = arguments_codec_for(fn)
    expected = _refusal(fn, args, kwargs)
    if expected is not None:
        with pytest.raises(TypeError) as caught:
            codec.dumps(args, kwargs)
        assert str(caught.value) == expected
        return
    try:
        raw = codec.dumps(args, kwargs)
    except EncodeError:
        return  # 1 where a str or bool is declared
    again_args, again_kwargs = codec.loads(raw)
    assert codec.dumps(again_args, again_kwargs) == raw
    fn(*again_args, **again_kwargs)


def _refusal(fn: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What Python says to this call, without the guess at what was meant that newer versions add."""
    try:
        fn(*args, **kwargs)
    except TypeError as no:
        return str(no).partition(". Did you mean")[0]
    return None

"""Random secrets, in random encodings, within random values, in random places: the store's bytes hold none of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.hosting import run_async
from tests.secrets.test_scrubbing import ENCODINGS, nested, values

import perdure
from perdure import Idempotent, Retry, RunBlockedError, Runtime, StepError, effect, step, workflow
from perdure.secrets import Minted, Provider

PLANS: list[tuple[str, Callable[[str], Any]]] = []
"""Where the next leak is, and what leaks there, given the secret."""

VALUES: list[str] = []

ONCE = Retry(max_attempts=1)


class Leak(Exception):
    """With attributes, which are recorded."""

    attribute: Any = None


def leak(place: str, value: Any) -> Any:
    """Let a value out at a place in a step."""
    if place == "heartbeat":
        perdure.heartbeat(value)
    elif place == "message of an exception":
        raise Leak(value)
    elif place == "attribute of an exception":
        error = Leak()
        error.attribute = value
        raise error
    elif place == "cause of an exception":
        raise Leak("outside") from ValueError(str(value))
    elif place == "note of an exception":
        error = Leak()
        error.add_note(str(value))
        raise error
    elif place == "reference":
        perdure.operation().reference = str(value)
    return value if place == "result" else None


@step(secrets={"key"}, retry=ONCE)
async def async_step(number: int) -> Any:
    place, made = PLANS[number]
    return leak(place, made(perdure.secret("key")))


@step(secrets={"key"}, retry=ONCE)
def def_step(number: int) -> Any:
    place, made = PLANS[number]
    return leak(place, made(perdure.secret("key")))


@effect(downstream=Idempotent(), secrets={"key"}, retry=ONCE)
async def an_effect(number: int) -> Any:
    place, made = PLANS[number]
    return leak(place, made(perdure.secret("key")))


@an_effect.key
def _(number: int) -> str:
    return str(number)


CALLEES = {"async": async_step.call, "def": def_step.call, "effect": an_effect.call}


@workflow
async def echo(value: Any) -> Any:
    return value


@workflow
async def leaks(callees: list[str]) -> list[Any]:
    got: list[Any] = []
    for number, callee in enumerate(callees):
        place, made = PLANS[number]
        try:
            got.append(await CALLEES[callee](number))
        except StepError as error:
            got.append(repr(error.attributes) + str(error))
        if place == "state":
            perdure.set_state(made(VALUES[0]))
        elif place == "argument of a child":
            got.append(await echo(made(VALUES[0])))
    return got


PLACES = [
    "result", "heartbeat", "message of an exception", "attribute of an exception", "cause of an exception",
    "note of an exception", "reference", "state", "argument of a child",
]  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> tuple[str, str, Callable[[str], Any], str]:
    """Who leaks where, what, and in which encoding."""
    place = draw(st.sampled_from(PLACES))
    callee = "effect" if place == "reference" else draw(st.sampled_from(sorted(CALLEES)))
    encoding = draw(st.sampled_from(sorted(ENCODINGS)))
    before, after, beside = draw(st.text(max_size=9)), draw(st.text(max_size=9)), draw(nested)
    is_large, is_key = draw(st.booleans()), draw(st.booleans())

    def made(secret: str) -> Any:
        text = before + ENCODINGS[encoding](secret) + after + ("x" * 3000 if is_large else "")
        return {"beside": beside, text: 1} if is_key else [beside, {"text": text}]

    return callee, place, made, encoding


unlikely = values.map(lambda value: f"~µ{value}")
"""A store holds words of its own, and a secret that is one of them stands there for other reasons."""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(secret=unlikely, steps=st.lists(plans(), min_size=1, max_size=4), is_minted=st.booleans())
def test_nothing_of_a_secret_is_in_the_bytes_of_the_store(secret: str, steps: list[Any], is_minted: bool) -> None:
    PLANS[:] = [(place, made) for _, place, made, _ in steps]
    VALUES[:] = [secret]
    provider = Minted(["key"], lambda request: secret) if is_minted else Provider(lambda name: secret)
    folder = Path(tempfile.mkdtemp())

    async def main() -> list[Any]:
        async with Runtime(str(folder / "runs.db"), workflows=[leaks, echo], secrets=[provider]) as runtime:
            run = await runtime.start(leaks.call([callee for callee, *_ in steps]), id="r")
            try:
                return await run.result(timeout=30)
            except RunBlockedError as error:  # an effect in doubt, or one whose result has no place for a mark
                return [str(error)]

    try:
        got = run_async(main())
        stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(folder)
    for encoding in {"as it is", *(encoding for *_, encoding in steps)}:
        encoded = ENCODINGS[encoding](secret).removeprefix("key=")
        if encoding.startswith("base64") or encoding == "basic":
            encoded = encoded[8:-4]
        if encoding != "percent, lower case" and len(encoded) >= 8:
            assert encoded.encode() not in stored, encoding
            assert msgspec.json.encode(encoded)[1:-1] not in stored, encoding
            assert encoded not in str(got), encoding

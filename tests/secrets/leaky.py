"""Programs that try to have a secret recorded, by every way that leads into the store or the log.

The secret is in the environment from the start; workflow code takes it from there as no workflow should. As a program
of its own: `python -m tests.secrets.leaky STORE` starts everything, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import perdure
from perdure import CanLookUp, Idempotent, NeedsPerson, NoGuarantee, Retry, Retryable, Unsure, effect, step, workflow

VARIABLE = "LEAKY_KEY"
VALUE = 'sk~very/secret+value="1"\\äö'
PROVIDERS = [perdure.secrets.Environment(prefix="LEAKY_")]

QUICK = Retry(max_attempts=2, first_delay=0.001)

log = perdure.logger()


def key() -> str:
    """The secret, by a way that nobody sees."""
    return os.environ[VARIABLE]


def everywhere() -> dict[str, Any]:
    """It, in the encodings that are found."""
    value, raw = key(), key().encode()
    return {
        "plain": value, "inside": f"Authorization: Bearer {value}, and more", "list": [[value]], value: "as a key",
        "base64": base64.b64encode(raw).decode(), "basic": base64.b64encode(b"user:" + raw + b":x").decode(),
        "quoted": quote(value), "quoted all": quote(value, safe=""), "hex": raw.hex(), "repr": repr([value]),
        "json": perdure_json(value), "json in json": perdure_json(perdure_json({"a": value})),
        "large": ["x" * 2000 + value, value + "y" * 2000] * 30,
    }  # fmt: skip


def perdure_json(value: Any) -> str:
    import json

    return json.dumps(value)


class Leaky(Exception):
    def __init__(self) -> None:
        super().__init__(f"leaked {key()}", everywhere())
        self.attribute = everywhere()
        self.add_note(f"noted {key()}")


def leaky_error() -> Exception:
    """An exception that holds it in each of its parts."""
    error, cause = Leaky(), ExceptionGroup(f"group {key()}", [KeyError(key()), OSError(2, key(), f"/x/{key()}")])
    cause.__context__ = RuntimeError(key())
    error.__cause__ = cause
    return error


# ── steps ───────────────────────────────────────────────────────────────────────────────────


@step(secrets={"key"})
async def returns_it() -> dict[str, Any]:
    perdure.heartbeat(everywhere())
    perdure.heartbeat([perdure.secret("key")])
    return everywhere()


@step(record="lazy")
async def returns_it_later(value: Any) -> Any:
    return value


@step(retry=QUICK)
async def raises_it() -> None:
    raise leaky_error()


@step(raises=[Leaky], retry=Retry(max_attempts=1))
def raises_it_in_a_thread() -> None:
    raise leaky_error()


@step(retry=Retry(max_attempts=1))
async def cannot_be_recorded() -> object:
    return {key(): object(), "at": object()}


@step(retry=Retry(max_attempts=1))
async def bytes_of_it() -> bytes:
    return b"x" + key().encode()


@step
async def needs_person() -> str:
    raise NeedsPerson(f"what about {key()}?")


@workflow
async def steps(given: Any) -> Any:
    perdure.set_state(everywhere())
    log.error("workflow has %s", key(), exc_info=leaky_error(), extra={"more": key()})
    results: list[Any] = [await returns_it(), await returns_it_later(everywhere()), await returns_it_later(given)]
    for failing in (raises_it(), raises_it_in_a_thread.call(), cannot_be_recorded(), bytes_of_it()):
        try:
            await failing
        except Exception as error:
            results.append(repr(error) + repr(error.__cause__) + repr(vars(error)))
    return [results, everywhere()]


@workflow
async def fails() -> None:
    raise leaky_error()


@workflow
async def stuck() -> str:
    return await needs_person()


# ── effects ─────────────────────────────────────────────────────────────────────────────────


@effect(downstream=Idempotent(), secrets={"key"}, retry=QUICK)
async def sends_it(order: str) -> dict[str, Any]:
    operation = perdure.operation()
    await operation.note_request_id(f"request {perdure.secret('key')}")
    operation.reference = f"reference {perdure.secret('key')}"
    if operation.attempt == 1:
        raise Retryable(f"not yet, {key()}")
    return everywhere()


@sends_it.key
def _(order: str) -> str:
    return order


@effect(downstream=NoGuarantee())
async def doubtful(order: str) -> str:
    perdure.operation().reference = key()
    raise TimeoutError(f"no answer for {key()}")


@doubtful.key
def _(order: str) -> str:
    return order


@effect(downstream=CanLookUp(), timeout=5)
async def looked_up(order: str) -> bytes:
    raise TimeoutError(f"no answer for {key()}")


@looked_up.key
def _(order: str) -> str:
    return order


@looked_up.lookup
async def _(op: perdure.Operation) -> Unsure:
    if op.attempt:
        raise ValueError(key())
    return Unsure(key())


@effect(downstream=Idempotent(), retry=Retry(max_attempts=1))
async def result_has_no_place_for_it(order: str) -> bytes:
    return key().encode()


@result_has_no_place_for_it.key
def _(order: str) -> str:
    return order


@effect(transactional=True)
def posts_it(order: str) -> str:
    perdure.outbox().send("mail", everywhere(), key="mail")
    perdure.operation().reference = key()
    return key()


@posts_it.key
def _(order: str) -> str:
    return order


async def refuses_mail(message: perdure.OutboxMessage) -> None:
    raise ValueError(f"cannot deliver {key()}")


@workflow
async def effects() -> Any:
    return [await sends_it("7"), await posts_it.call("8")]


@workflow
async def in_doubt() -> Any:
    return await asyncio.gather(doubtful("1"), result_has_no_place_for_it("2"), looked_up("3"))


# ── people, messages, children, chapters ────────────────────────────────────────────────────


@workflow
async def asks() -> Any:
    text = f"is {key()} yours?"
    answer = await perdure.ask(text, subject=everywhere(), by={"ann"}, note=f"note {key()}")
    try:
        await perdure.with_approval(returns_it_later.call(everywhere()), by={"ann"}, note=f"note {key()}")
    except perdure.Rejected as no:
        return [answer, str(no), no.comment]
    return answer


@workflow
async def receives() -> Any:
    return [await perdure.receive("word"), await perdure.receive("word")]


@workflow
async def waits_with_it() -> Any:
    said = await returns_it_later(key())
    return [said, await perdure.receive("word")]


@workflow
async def keyed_by_it() -> Any:
    return await sends_it(key())


@workflow
async def parent() -> Any:
    return await child(everywhere())


@workflow
async def child(given: Any) -> Any:
    if isinstance(given, dict):
        perdure.continue_as_new([given, everywhere()])
    return [given, everywhere()]


@workflow
def hosted() -> Any:
    perdure.set_state(everywhere())
    perdure.journal().call("model", everywhere(), lambda: everywhere())
    try:
        raises_it_in_a_thread()
    except Leaky as error:
        return [repr(error), everywhere()]
    return None


WORKFLOWS = [
    steps, fails, stuck, effects, in_doubt, asks, receives, waits_with_it, keyed_by_it,
    parent, child, hosted,
]  # fmt: skip
CALLS: dict[str, Callable[[], Any]] = {
    "steps": lambda: steps.call(everywhere()), "fails": fails.call, "stuck": stuck.call, "effects": effects.call,
    "in_doubt": in_doubt.call, "asks": asks.call, "receives": receives.call, "parent": parent.call,
    "hosted": hosted.call,
}  # fmt: skip


async def main(store: str) -> None:
    """Start everything; be killed in the middle of it."""
    logging.basicConfig(level=logging.DEBUG)
    async with perdure.Runtime(store, workflows=WORKFLOWS, secrets=PROVIDERS, outbox={"mail": refuses_mail}) as runtime:
        for name, call in CALLS.items():
            await runtime.start(call(), id=name)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

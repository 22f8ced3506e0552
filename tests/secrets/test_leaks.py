"""Whatever a program does to have a secret recorded: nothing of it is in the files of the store, nor in the log.

The bytes are searched with an account of its encodings that is the tests' own.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.runtime.hosting import eventually, run_async
from tests.schedules.processes import ROOT, environment
from tests.secrets import leaky

import perdure
from perdure import Client, RunBlockedError, Runtime, Status, UsageError
from perdure.audit.verify import verify
from perdure.store import open_store

MARK = "‹secret:key›"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leaky.VARIABLE, leaky.VALUE)


def traces() -> dict[str, bytes]:
    """What may be found of it, by the name of its encoding."""
    value = leaky.VALUE
    raw = value.encode()
    middle = base64.b64encode(b"user:" + raw + b":x")[7:-4]
    return {
        "plain": raw, "json": json.dumps(value, ensure_ascii=False)[1:-1].encode(),
        "json, ascii": json.dumps(value)[1:-1].encode(), "json in json": json.dumps(json.dumps(value))[3:-3].encode(),
        "quoted": quote(value).encode(), "quoted all": quote(value, safe="").encode(), "hex": raw.hex().encode(),
        "base64": base64.b64encode(raw)[:-4], "basic": middle, "its beginning": raw[:12],
    }  # fmt: skip


def found_in(folder: Path) -> list[tuple[str, str]]:
    """Which trace is in which file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [(path.name, how) for path in files for how, trace in traces().items() if trace in path.read_bytes()]


def found_in_text(text: str) -> list[str]:
    return [how for how, trace in traces().items() if trace.decode() in text]


async def told(runtime: Client) -> str:
    """Everything that whoever may read the store is told, compressed blobs included."""
    parts: list[Any] = [await runtime.inbox(), await runtime.effects(), await runtime.requests()]
    for run in await runtime.list():
        handle = await runtime.get(run.id)
        parts += [run, await handle.history(), await handle.state()]
    return "\n".join(str(part) for part in parts)


def test_the_search_finds_each_of_them(tmp_path: Path) -> None:
    """Without providers nobody knows that it is secret, and all of it is recorded."""

    async def main() -> None:
        async with Runtime(str(tmp_path / "runs.db"), workflows=leaky.WORKFLOWS) as runtime:
            run = await runtime.start(leaky.child.call(leaky.everywhere()))
            await run.result()

    run_async(main())
    by_json = {"plain", "json, ascii"}  # which the store's own JSON writes in another way
    assert {how for _, how in found_in(tmp_path)} == set(traces()) - by_json


async def settle(runtime: Runtime, id: str) -> Any:
    """Wait until a run has ended or is parked; what it gave."""
    run = await runtime.get(id)
    try:
        return await run.result(timeout=30)
    except Exception as error:
        return error


async def leak_it_all(runtime: Runtime, client: Client) -> list[Any]:
    """Start everything, and play the people who talk about it as well."""
    runs = {
        name: await runtime.start(call(), id=name)
        for name, call in leaky.CALLS.items()
    }
    for teller in (runtime, client):
        await (await teller.get("receives")).send("word", leaky.everywhere())
    ending = ("steps", "fails", "effects", "receives", "parent", "hosted")
    got: list[Any] = [await settle(runtime, name) for name in ending]
    await talk_about(runtime)
    got += [await settle(runtime, name) for name in ("stuck", "in_doubt")]
    await runs["stuck"].unblock("fail", by=f"by {leaky.key()}", reason=f"since {leaky.key()}")
    await runs["in_doubt"].pause(by=leaky.key())
    await runs["in_doubt"].resume(by=leaky.key())
    doubt = next(entry for entry in await runtime.effects(run="in_doubt") if entry.action == "doubtful")
    await runs["in_doubt"].settle("failed", operation=doubt.id, by=leaky.key(), reason=leaky.key())
    got += [await settle(runtime, name) for name in ("stuck", "asks", "in_doubt")]
    cancelled = await runtime.start(leaky.receives.call(), id="cancelled")
    await cancelled.cancel(reason=f"no more of {leaky.key()}")
    return [*got, await settle(runtime, "cancelled")]


async def talk_about(runtime: Runtime) -> None:
    """Answer the question, reject the call."""
    asked = await request(runtime, "question")
    await runtime.answer(asked.id, leaky.everywhere(), hash=asked.hash, by="ann", comment=leaky.key())
    asked = await request(runtime, "approval")
    await runtime.reject(asked.id, hash=asked.hash, by="ann", comment=f"because {leaky.key()}")


async def request(runtime: Runtime, kind: str) -> Any:
    """What people are asked, as soon as they are."""
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = [each for each in await runtime.requests(status="pending") if each.kind == kind]
        return bool(found)

    await eventually(is_there, f"no {kind} is asked")
    return found[0]


def runtime_at(store: str) -> Runtime:
    """A worker that knows the secret."""
    return Runtime(store, workflows=leaky.WORKFLOWS, secrets=leaky.PROVIDERS, outbox={"mail": leaky.refuses_mail})


def test_nothing_of_it_is_in_the_store_nor_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = str(tmp_path / "runs.db")

    async def main() -> tuple[str, list[tuple[str, str]], list[Any]]:
        async with runtime_at(store) as runtime, Client(store, secrets=leaky.PROVIDERS) as client:
            got = await leak_it_all(runtime, client)
            await eventually(lambda: any(post.error for post in open_posts(store)), "no mail was tried")
            return await told(runtime), found_in(tmp_path), got

    text, while_open, got = run_async(main())
    assert while_open == []
    assert found_in(tmp_path) == []
    assert found_in_text(text) == []
    assert found_in_text(caplog.text) == []
    assert found_in_text(str([vars(record) for record in caplog.records])) == []
    assert found_in_text("\n".join(map(repr, got))) == []
    assert_marks_are_where_it_was(text, got)


def open_posts(store: str) -> Iterable[Any]:
    opened = open_store(store)
    try:
        return opened.posts()
    finally:
        opened.close()


def assert_marks_are_where_it_was(text: str, got: list[Any]) -> None:
    """It was not merely lost: each way was gone."""
    for said in (
        f"reference {MARK}", f"request {MARK}", f"what about {MARK}?", f"is {MARK} yours?", f"note {MARK}",
        f"because {MARK}", f"since {MARK}", f"no more of {MARK}", f"leaked {MARK}", f"noted {MARK}", f"group {MARK}",
        f"not yet, {MARK}",
    ):  # fmt: skip
        assert said in text, said
    assert all(MARK in repr(each) for each in got if not isinstance(each, RunBlockedError | perdure.RunCancelledError))


def test_the_chains_of_what_was_recorded_verify(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    async def main() -> None:
        async with runtime_at(store) as runtime:
            for name in ("steps", "parent"):
                await (await runtime.start(leaky.CALLS[name](), id=name)).result(timeout=30)

    run_async(main())
    opened = open_store(store)
    assert verify(opened).is_sound
    opened.close()


def test_another_process_that_does_not_know_it_replays_what_was_recorded(tmp_path: Path) -> None:
    """The same calls, with marks in the one and the value in the other."""
    store = str(tmp_path / "runs.db")

    async def first() -> None:
        async with runtime_at(store) as runtime:
            await runtime.start(leaky.waits_with_it.call(), id="r")
            await eventually(lambda: is_waiting(runtime), "it does not wait")

    async def second() -> Any:
        async with Runtime(store, workflows=leaky.WORKFLOWS) as runtime:
            await (await runtime.get("r")).send("word", "go")
            return await (await runtime.get("r")).result(timeout=30)

    run_async(first())
    assert run_async(second()) == [MARK, "go"]


def test_a_process_that_learnt_it_meanwhile_replays_what_was_recorded_before(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    async def first() -> None:
        async with Runtime(store, workflows=leaky.WORKFLOWS) as runtime:
            await runtime.start(leaky.waits_with_it.call(), id="r")
            await eventually(lambda: is_waiting(runtime), "it does not wait")

    async def second() -> Any:
        async with runtime_at(store) as runtime:
            await (await runtime.get("r")).send("word", "go")
            return await (await runtime.get("r")).result(timeout=30)

    run_async(first())
    assert run_async(second()) == [MARK, "go"]


async def is_waiting(runtime: Runtime) -> bool:
    return await (await runtime.get("r")).status() is Status.WAITING


def test_what_an_ignorant_client_sends_gets_its_marks_when_it_enters_the_history(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")

    async def send() -> None:
        async with Client(store, workflows=leaky.WORKFLOWS) as client:
            run = await client.start(leaky.receives.call(), id="r")
            for _ in range(2):
                await run.send("word", leaky.everywhere())

    async def receive() -> tuple[Any, str]:
        async with runtime_at(store) as runtime:
            return await (await runtime.get("r")).result(timeout=30), await told(runtime)

    run_async(send())
    got, text = run_async(receive())
    assert found_in_text(str(got)) == found_in_text(text) == []


# ── names and ids ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["id", "message", "tag", "value of a tag"])
def test_names_and_ids_that_hold_it_are_refused(what: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with runtime_at(str(tmp_path / "runs.db")) as runtime:
            if what == "id":
                await runtime.start(leaky.receives.call(), id=f"run {leaky.key()}")
            elif what == "tag":
                await runtime.start(leaky.receives.call(), id="r", tags={leaky.key(): "x"})
            elif what == "value of a tag":
                await runtime.start(leaky.receives.call(), id="r", tags={"x": leaky.key()})
            else:
                await (await runtime.start(leaky.receives.call(), id="r")).send(leaky.key(), "x")

    with pytest.raises(UsageError, match=MARK) as no:
        run_async(main())
    assert found_in_text(str(no.value)) == []
    assert found_in(tmp_path) == []


def test_an_effects_key_that_holds_it_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def main() -> Any:
        async with runtime_at(str(tmp_path / "runs.db")) as runtime:
            return await settle(runtime, (await runtime.start(leaky.keyed_by_it.call(), id="r")).id)

    assert isinstance(run_async(main()), UsageError)
    assert found_in(tmp_path) == []


# ── a process that is killed ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_in_the_middle_leaves_nothing_of_it(seed: int, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.secrets.leaky", str(store)], cwd=ROOT,
            env=environment(**{leaky.VARIABLE: leaky.VALUE}), stdout=file, stderr=file,
        )  # fmt: skip
        until = time.monotonic() + 60
        while (not store.exists() or b"returns_it" not in everything(tmp_path)) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(random.Random(seed).random())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert MARK.encode() in everything(tmp_path)
    assert found_in(tmp_path) == []


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())

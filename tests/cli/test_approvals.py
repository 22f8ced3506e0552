"""What people are asked, on the command line: shown with its hash, and decided by whoever names it."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

import pytest
from tests.cli.terminal import Terminal, one_line

APP = '''
    """A run that asks for an approval, and one that asks a question. `drain` goes as far as it gets."""

    import asyncio, sys
    from datetime import timedelta
    from typing import Literal
    import perdure
    from perdure import Idempotent, Runtime, effect, workflow

    @effect(downstream=Idempotent())
    async def refund(order: str, cents: int) -> str:
        with open("sent", "a") as sent:
            sent.write(f"{order} {cents}\\n")
        return f"refunded {cents}"

    @refund.key
    def _(order: str, cents: int) -> str:
        return order

    @workflow
    async def pays(order: str) -> str:
        call, days = refund.call(order, 4200), timedelta(days=3)
        try:
            return await perdure.with_approval(call, by={"ann", "boss"}, quorum=2, within=days, note="why not")
        except perdure.Rejected as no:
            return f"{no.by}: {no.comment}"

    @workflow
    async def asks() -> str:
        return await perdure.ask("Tea or coffee?", subject={"for": "Ada"}, type=Literal["tea", "coffee"])

    async def drain(*starts):
        async with Runtime(workflows=[pays, asks]) as runtime:
            for id, call in starts:
                await runtime.start(call, id=id)
            await runtime.drain(max_seconds=20)
'''


@pytest.fixture
def desk(terminal: Terminal) -> Terminal:
    """Two runs that ask, and nobody who executes them."""
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP))
    drain(terminal, '("r", pays.call("o-1")), ("q", asks.call())')
    return terminal


def drain(terminal: Terminal, starts: str = "") -> None:
    import subprocess
    import sys

    from tests.cli.terminal import environment

    code = f"import asyncio, sys; sys.path.insert(0, '.'); from app import *; asyncio.run(drain({starts}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=terminal.folder, env=environment(), capture_output=True)
    assert done.returncode == 0, done


def entry(desk: Terminal, run: str) -> dict[str, Any]:
    entries = json.loads(desk.here("inbox", "list", "--json").stdout)
    (found,) = [each for each in entries if each["run"] == run]
    return dict(found)


def steady(text: str) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 00:00:00", text)
    return re.sub(r"\b[0-9a-f]{16}\b", "ID", re.sub(r"\b[0-9a-f]{64}\b", "HASH", text))


def test_the_inbox_shows_all_that_is_asked(desk: Terminal) -> None:
    text = steady(desk.here("inbox", "list").stdout)
    asked = text[text.index("r: approval") : text.index("\n\n", text.index("r: approval"))]
    assert asked == textwrap.dedent("""\
        r: approval in 0/approve:refund#1, since 2026-01-01 00:00:00 UTC
            may refund be called with these arguments? (why not)
            id            ID
            hash          HASH
            call          refund, key 'o-1'
            arguments     {"cents": 4200, "order": "o-1"}
            decided by    ann, boss; 2 persons
            expires       2026-01-01 00:00:00 UTC
            approve       exactly this call is made, once enough have approved
            reject        it is not made; the workflow sees perdure.Rejected, with who
                          and why
            delegate      somebody else decides in your place""")
    assert "answer        Literal['tea', 'coffee'], one of \"tea\", \"coffee\"" in text
    assert "what is asked: perdure inbox approve | reject | answer | delegate ID --hash HASH --by NAME" in text
    assert "perdure inbox unblock" not in text


def test_approved_by_two_persons_it_is_done(desk: Terminal) -> None:
    it = entry(desk, "r")["request"]
    said = desk.here("inbox", "approve", it["id"], "--hash", it["hash"][:8], "--by", "ann")
    assert (said.exit_code, said.stdout) == (0, f"told request {it['id']}: approve, by ann\n")
    assert entry(desk, "r")["pending"] == ["approve by ann"]
    again = desk.here("inbox", "approve", it["id"], "--hash", it["hash"], "--by", "ann", "--as", "boss")
    assert again.exit_code == 6
    assert "ann has decided already; it takes 1 more" in one_line(again)
    assert desk.here("inbox", "approve", it["id"], "--hash", it["hash"], "--by", "bo", "--as", "boss").exit_code == 0
    drain(desk)
    assert (desk.folder / "sent").read_text() == "o-1 4200\n"
    shown = steady(desk.here("runs", "show", "r").stdout)
    assert "asks for approval ID, until" in shown
    assert "answered approve by bo" in shown


def test_rejected_handed_on_and_answered(desk: Terminal) -> None:
    it, question = entry(desk, "r")["request"], entry(desk, "q")["request"]
    assert desk.here(
        "inbox", "delegate", it["id"], "--to", "cy", "--hash", it["hash"], "--by", "ann"
    ).exit_code == 0  # fmt: skip
    no = desk.here("inbox", "reject", it["id"], "--hash", it["hash"], "--by", "cy", "--comment", "too much", "--json")
    assert json.loads(no.stdout) == {"id": it["id"], "choice": "reject", "by": "cy"}
    wrong = desk.here("inbox", "answer", question["id"], '"milk"', "--hash", question["hash"], "--by", "ann")
    assert wrong.exit_code == 2
    assert 'one of "tea", "coffee" is' in one_line(wrong)
    assert desk.here(
        "inbox", "answer", question["id"], '"tea"', "--hash", question["hash"], "--by", "ann"
    ).exit_code == 0  # fmt: skip
    drain(desk)
    runs = {run["id"]: run["status"] for run in json.loads(desk.here("runs", "list", "--json").stdout)}
    assert runs == {"r": "completed", "q": "completed"}
    assert not (desk.folder / "sent").exists()
    assert "cy: too much" in desk.here("runs", "show", "r").stdout
    assert json.loads(desk.here("inbox", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["approve", "ID", "--hash", "WRONG", "--by", "ann"], 6, "look again at what is asked"),
        (["approve", "ID", "--hash", "SHORT", "--by", "ann"], 2, "at least its first 8 digits"),
        (["approve", "ID", "--hash", "HASH", "--by", "eve"], 6, "eve may not decide this; who may: ann, boss"),
        (["answer", "ID", "1", "--hash", "HASH", "--by", "ann"], 6, "it is an approval"),
        (["approve", "0123456789abcdef", "--hash", "HASH", "--by", "ann"], 5, "there is no request '0123456789abcdef'"),
        (["approve", "ID", "--hash", "HASH"], 2, "--by"),
        (["approve", "ID", "--by", "ann"], 2, "--hash"),
        (["approve", "ID", "--hash", "HASH", "--by", "ann", "--run", "q"], 5, "there is no request of run q"),
        (["unblock", "r", "--retry"], 6, "nothing in it waits for a person"),
    ],
)
def test_what_cannot_be_decided_changes_nothing(words: list[str], code: int, told: str, desk: Terminal) -> None:
    before = entry(desk, "r")
    it = before["request"]
    meant = {"ID": it["id"], "HASH": it["hash"], "SHORT": it["hash"][:7], "WRONG": "0" * 64}
    done = desk.here("inbox", *[meant.get(word, word) for word in words])
    assert done.exit_code == code
    assert told in one_line(done)
    assert entry(desk, "r") == before

"""`perdure code drill`, as it is typed: what it prints, its exit codes, the command that it gives to try a point again,
and the pass that it keeps."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, one_line
from typer.testing import Result

from perdure.audit.drills import Covered, drill_passes, passed_drill
from perdure.store import open_store

SHOP = Path(__file__).with_name("shop.py").read_text()
BROKEN = Path(__file__).with_name("broken.py").read_text().replace("tests.drill.shop", "shop")
CHECKS = """
from shop import Bank

def check(after):
    moved = after.use(Bank).moved
    assert sum(moved.values()) == 5, f"moved {sum(moved.values())}"

async def slowly(after):
    check(after)

def never(after):
    return False
"""


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    for name, text in (("shop.py", SHOP), ("broken.py", BROKEN), ("checks.py", CHECKS)):
        (tmp_path / name).write_text(text)
    yield Terminal(tmp_path)
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def words(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_drill_that_is_passed_is_kept_for_that_source(terminal: Terminal) -> None:
    done = terminal.run("code", "drill", "shop.py:posts", "o-1", "--provide", "shop.py:bank", "--check", "checks.py")
    assert re.search(r"^after Execute of post#1 +passed  in doubt: .*; the same result$", done.stdout, re.MULTILINE)
    assert done.stderr == "perdure: posts version 1: 34 points passed; the pass is kept in the store\n"
    store = open_store(str(terminal.folder / "perdure.db"))
    (kept,) = drill_passes(store, "posts")
    assert (kept.version, kept.points, kept.effects) == (1, 34, {"post": "no_guarantee"})
    assert kept.covers(Covered.OUTSIDE_SUCCESS)
    assert not kept.covers(Covered.UNSURE)
    assert passed_drill(store, "posts", 1, kept.source) == kept
    assert passed_drill(store, "posts", 1, "0" * 64) is None
    assert drill_passes(store, "posts", 2) == drill_passes(store, "charges") == []
    store.close()


def test_an_edit_of_what_it_calls_makes_a_pass_stale(terminal: Terminal) -> None:
    command = ["code", "drill", "shop.py:charges", "o-1", "--provide", "shop.py:bank", "--json", "--store", "kept.db"]
    first = json.loads(terminal.run(*command).stdout)
    (terminal.folder / "shop.py").write_text(SHOP.replace('f"took back {result}"', 'f"{result} is back"'))
    second = json.loads(terminal.run(*command).stdout)
    assert first["kept"]
    assert second["kept"]
    assert first["source"] != second["source"]
    (terminal.folder / "shop.py").write_text(SHOP.replace('return "refused"', 'return "no"'))  # of another workflow
    assert json.loads(terminal.run(*command).stdout)["source"] == first["source"]
    store = open_store(str(terminal.folder / "kept.db"))
    assert {kept.source for kept in drill_passes(store, "charges")} == {first["source"], second["source"]}
    store.close()


def test_a_point_that_fails_comes_with_the_command_that_tries_it_alone(terminal: Terminal) -> None:
    options = ["--provide", "shop.py:bank", "--check", "checks.py:slowly"]
    command = ["code", "drill", "broken.py:has_no_key", "o'1", *options]
    done = terminal.run(*command, code=1)
    assert "FAILED after Execute of charge_without_key#1\n  your check: AssertionError: moved 10\n" in done.stdout
    assert not (terminal.folder / "perdure.db").exists()
    again = next(line for line in done.stdout.splitlines() if "after Execute of charge_without_key#1'" in line)
    typed = shlex.split(again.partition("alone: ")[2])
    assert typed[0] == "perdure"
    alone = terminal.run(*typed[1:], code=1)
    assert [line for line in alone.stdout.splitlines() if line.startswith("FAILED")] == [
        "FAILED after Execute of charge_without_key#1"
    ]
    assert alone.stderr == "perdure: has_no_key version 1: 1 of 1 point failed\n"


def test_messages_and_other_input_are_read_as_they_are_declared(terminal: Terminal) -> None:
    given = ["--provide", "shop.py:bank", "--send", "approval=true", "--send", "comment=it is fine"]
    done = terminal.here("code", "drill", "shop.py:asks", "--arg", "order=o", *given, "--json", "--only", "untouched")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["result"], report["passed"]) == (0, '"moved 5: it is fine"', True)
    assert report["points"][0]["again"] == (
        "perdure code drill shop.py:asks --arg order=o --send approval=true --send 'comment=it is fine' "
        "--provide shop.py:bank --only untouched"
    )
    assert not report["kept"]
    answered = ["code", "drill", "shop.py:asks_people", "o", "--answer", "5", "--provide", "shop.py:bank", "--json"]
    done = terminal.here(*answered, "--only", "after the sending of a decision")
    assert (done.exit_code, json.loads(done.stdout)["result"]) == (0, '"moved 5, 1"')


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["shop.py:asks", "o", "--provide", "shop.py:bank"], 2, "the run waits for message 'approval', and nobody"),
        (["shop.py:charges", "o"], 2, "charges: charge#1 needs a client: perdure.use(Bank)"),
        (["shop.py:charges"], 2, "charges"),
        (["shop.py:chapters", "x"], 2, "n: "),
        (["shop.py:nothing", "o"], 5, "there is no workflow 'nothing'"),
        (["broken.py:asks_nobody", "o"], 2, "asks_nobody calls nothing outside"),
        (["broken.py:is_blocked_anyway", "o"], 2, "is_blocked_anyway: left alone, it does not end"),
        (["broken.py:counts", "o"], 2, "counts is not repeatable"),
        (["shop.py:asks", "o", "--send", "approval"], 2, "--send approval: write it as NAME=VALUE"),
        (["shop.py:asks", "o", "--send", "approval=perhaps"], 2, "approval: "),
        (["shop.py:asks", "o", "--send", "remark=1"], 5, "remark"),
        (["shop.py:posts", "o", "--check", "checks.py:nothing"], 2, "checks.py has no function nothing; --check names"),
        (["shop.py:posts", "o", "--provide", "shop.py:nothing"], 2, "shop.py has no function nothing; --provide names"),
        (["shop.py:posts", "o", "--provide", "shop.py:bank", "--only", "after Execute of pots#1"], 5, "post#1"),
    ],
)
def test_what_cannot_be_drilled_is_said_in_one_line(terminal: Terminal, args: list[str], code: int, said: str) -> None:
    result = terminal.here("code", "drill", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in one_line(result)


def test_a_check_may_say_no(terminal: Terminal) -> None:
    result = terminal.here(
        "code", "drill", "shop.py:posts", "o", "--provide", "shop.py:bank", "--check", "checks.py:never"
    )
    assert result.exit_code == 1
    assert "FAILED untouched your check returned False" in words(result)

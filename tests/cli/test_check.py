"""`perdure code check`, `perdure code diff`, `perdure store histories`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, until

from perdure.cli import parts

APP = """\
import perdure
from perdure import effect, step, workflow

@step
async def plan(claim: str) -> str:
    return claim * 2_000

@step
async def look(claim: str) -> str:
    return claim

@effect(downstream=perdure.DOWNSTREAM())
async def pay(claim: str) -> str:
    raise perdure.InDoubt("no answer")

@pay.key
def _(claim: str) -> str:
    return claim

@workflow
async def agent(claim: str) -> str:
    the_plan = await plan(claim)
    return await pay(the_plan[:5])
"""


@pytest.fixture
def paid(terminal: Terminal) -> Terminal:
    """A run that stands at a payment in doubt."""
    (terminal.folder / "payer.py").write_text(APP.replace("DOWNSTREAM", "NoGuarantee"))
    assert terminal.here("run", "payer.py:agent", "claim", "--id", "r").exit_code == 3
    return terminal


def edited(terminal: Terminal, name: str, *edits: tuple[str, str]) -> str:
    text = APP.replace("DOWNSTREAM", "NoGuarantee")
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    (terminal.folder / name).write_text(text)
    return name


RISK = ("    the_plan = await", "    await look(claim)\n    the_plan = await")


def test_what_replays_is_said_with_what_becomes_of_its_calls(paid: Terminal) -> None:
    done = paid.here("code", "check", "payer.py")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "perdure: 1 run checked: 1 replays\n"
    (found,) = json.loads(paid.here("code", "check", "payer.py", "--json").stdout)
    assert (found["outlook"], found["pending"]) == (
        "replays", [{"call": "0/pay#1", "does": "block", "then": "may have happened: until a person has settled it"}],
    )  # fmt: skip


def test_what_needs_a_patch_is_said_with_the_line(paid: Terminal) -> None:
    done = paid.here("code", "check", edited(paid, "other.py", RISK))
    assert done.exit_code == 1
    assert 'add: if perdure.patched("add step look"): around the call of look, at other.py:' in done.stdout
    (found,) = json.loads(paid.here("code", "check", "other.py", "--json").stdout)
    assert (found["recorded"], found["asked"], found["reason"]) == ("step plan", "step look", "diverged")
    assert found["where"].startswith("other.py:")


@pytest.mark.parametrize(
    ("edit", "reason", "why"),
    [
        (("plan(claim)\n", "plan(claim + '!')\n"), "diverged", "with other arguments"),
        (("return claim * 2_000", "return 3"), "", ""),
        (("-> str:\n    return claim * 2_000", "-> int:\n    return 3"), "undecodable", "does not fit its type hint"),
        (("@workflow", "@workflow(version=2)"), "no_worker_for_version", "replays={1}"),
        (("    the_plan = await", "    import time; time.time()\n    the_plan = await"), "diverged", "reads the clock"),
    ],
)
def test_what_breaks_is_said_with_the_reason(paid: Terminal, edit: tuple[str, str], reason: str, why: str) -> None:
    done = paid.here("code", "check", edited(paid, "other.py", edit), "--json")
    (found,) = json.loads(done.stdout)
    assert (found["outlook"], found["reason"]) == ("breaks" if reason else "replays", reason)
    assert why in found["why"]
    assert done.exit_code == (1 if reason else 0)


def test_histories_as_files_say_the_same_as_the_store(paid: Terminal) -> None:
    written = paid.here("store", "histories", "ci", "--json")
    (file,) = json.loads(written.stdout)["files"]
    edited(paid, "other.py", RISK)
    for app in ("payer.py", "other.py"):
        by_store = json.loads(paid.here("code", "check", app, "--json").stdout)
        by_file = json.loads(paid.here("code", "check", app, "--histories", "ci", "--json").stdout)
        assert by_store == by_file
    held = json.loads(Path(file).read_text())
    assert held["blobs"], "the large result stands in a blob, and that is in the file"


ELSEWHERE = """
import os, sys
print("loaded")
if (spec := sys.modules["__main__"].__spec__) is not None and spec.name == "perdure.cli.parts":
    open("loads", "a").write("x")
    OTHERWISE
"""


@pytest.mark.parametrize(
    ("otherwise", "how"), [("pass", ()), ("pass", ("--histories", "ci")), ("os._exit(3)", ())]
)  # fmt: skip
def test_however_many_processes_check_the_report_is_the_same(
    paid: Terminal, otherwise: str, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them does not come back."""
    for number in range(2):
        paid.here("run", "payer.py:agent", f"claim {number}", "--id", f"s{number}")
    app = Path(edited(paid, "other.py", RISK))
    app.write_text(app.read_text() + ELSEWHERE.replace("OTHERWISE", otherwise))
    paid.here("store", "histories", "ci")

    def checked() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(
            paid.here("code", "check", "other.py", *how, "--json").stdout.splitlines()[-1]
        )
        return found

    alone = checked()
    monkeypatch.setattr(parts, "HISTORIES_PER_PROCESS", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert not Path("loads").exists()
    assert checked() == alone
    assert len(alone) == 3
    assert Path("loads").read_text() == "x"


def test_a_file_from_which_something_is_missing_is_told(paid: Terminal) -> None:
    paid.here("store", "histories", "ci")
    (path,) = Path("ci").glob("*.json")
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "blobs": {}}))
    (found,) = json.loads(paid.here("code", "check", "payer.py", "--histories", "ci", "--json").stdout)
    assert (found["outlook"], found["reason"]) == ("breaks", "undecodable")
    assert "the file has no payload" in found["why"]
    for wrong, told in (("{}", "holds no history"), (json.dumps({**held, "format": 9}), "is of format 9")):
        path.write_text(wrong)
        done = paid.here("code", "check", "payer.py", "--histories", "ci")
        assert (done.exit_code, told in done.stderr) == (4, True), done.stderr


def test_a_folder_without_histories_is_bad_input(paid: Terminal) -> None:
    Path("empty").mkdir()
    for folder, told in (("nowhere", "there is no folder"), ("empty", "there is no history in")):
        done = paid.here("code", "check", "payer.py", "--histories", folder)
        assert (done.exit_code, told in done.stderr) == (2, True)


def test_what_is_declared_for_all_can_be_said_to_the_check(paid: Terminal) -> None:
    with paid.begun("worker", "payer.py", "--prompt-release", "May") as worker:
        worker.says("worker serves")
        paid.here("start", "payer.py:agent", "other", "--id", "s")
    assert paid.here("code", "check", "payer.py", "--prompt-release", "June").exit_code == 0
    with paid.begun("worker", "payer.py", "--prompt-release", "") as worker:
        worker.says("a text of 1 to 200")


def test_a_worker_that_is_started_paused_leaves_it_to_people_to_go_on(terminal: Terminal) -> None:
    ids = ["a", "b", "c"]
    for run_id in ids:
        terminal.here("start", "app.py:greet", "--id", run_id)
    with terminal.begun("worker", "app.py", "--paused") as worker:
        worker.says("worker serves")
        until(lambda: paused(terminal) == ids, "all are paused")
        assert terminal.here("runs", "resume", "b").exit_code == 0
        assert terminal.here("runs", "wait", "b").stdout.strip() == "hello you"
        assert paused(terminal) == ["a", "c"]
        done = terminal.here("runs", "resume", "--all", "--json")
        assert json.loads(done.stdout) == {"runs": ["a", "c"], "asked": "resume"}
        assert terminal.here("runs", "wait", "c").stdout.strip() == "hello you"
    assert terminal.here("runs", "resume").exit_code == 2
    assert terminal.here("runs", "resume", "a", "--all").exit_code == 2


def test_a_run_is_moved_where_it_replays(paid: Terminal) -> None:
    later = edited(paid, "later.py", ("@workflow", "@workflow(version=2)"))
    wrong = edited(paid, "wrong.py", RISK, ("@workflow", "@workflow(version=3)"))
    refused = paid.here("runs", "move", "r", "--to", "3", "--app", wrong)
    assert refused.exit_code == 6
    assert "is not moved: it does not replay under version 3: the history has step 'plan'" in refused.stderr
    assert paid.here("runs", "move", "r", "--to", "9", "--app", later).exit_code == 5
    moved = paid.here("runs", "move", "r", "--to", "2", "--app", later, "--by", "ann")
    assert moved.stdout == "run r goes on under version 2; it was of version 1\n"
    shown = paid.here("runs", "show", "r").stdout
    assert "goes on under version 2, moved by ann" in shown
    assert "version 2" in shown.splitlines()[0]
    assert paid.here("store", "verify").exit_code == 0


def paused(terminal: Terminal) -> list[str]:
    listed = json.loads(terminal.here("runs", "list", "--json").stdout)
    return sorted(run["id"] for run in listed if run["reason"] == "paused")


def test_diff_shows_both_sides_and_what_it_means(terminal: Terminal) -> None:
    old = edited(terminal, "old.py")
    new = edited(terminal, "new.py", RISK, ("    return await pay(the_plan[:5])", "    return the_plan"))
    done = terminal.here("code", "diff", f"{old}:agent", f"{new}:agent")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["+", "step", "look(claim:", "str)", "->", "str"]
    assert lines[1].startswith("  step plan(claim: str) -> str")
    assert lines[2].startswith("- effect pay(claim: str) -> str")
    assert "step look appeared, first. Runs that have not come so far make the call." in lines[3]
    assert (
        "effect pay vanished; it stood after step plan. Runs that have not come so far never make the call" in lines[4]
    )
    rows = json.loads(terminal.here("code", "diff", f"{old}:agent", f"{new}:agent", "--json").stdout)
    assert [row["what"] for row in rows] == ["appeared", "", "vanished"]
    assert terminal.here("code", "diff", f"{old}:agent", f"{old}:agent").exit_code == 0


def test_a_workflow_without_durable_calls_has_no_outline(terminal: Terminal) -> None:
    done = terminal.here("code", "diff", "app.py:greet", "app.py:greet")
    assert (done.exit_code, "makes no durable call" in done.stderr) == (2, True)

"""`perdure store waits`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.terminal import Terminal

LINES = [
    {"id": "a", "when": "2026-03-02T10:00:00Z", "event": "done", "step": "plan", "workflow": "claims"},
    {"id": "a", "when": "2026-03-04T10:00:00Z", "event": "go", "workflow": "claims"},
    {"id": "b", "when": "2026-03-02T10:00:00Z", "event": "go", "workflow": "search"},
]
FIELDS = ("--field", "run=id", "--field", "time=when")


def test_runs_of_a_store(terminal: Terminal) -> None:
    assert terminal.here("run", "app.py:trial", '{"id": "C-7"}', "--id", "r").exit_code == 3
    assert terminal.here("run", "app.py:greet", "--id", "g").exit_code == 0
    done = terminal.here("store", "waits")
    assert done.exit_code == 0
    head, *rows = done.stdout.splitlines()
    assert head.split("  ")[0] == "WORKFLOW"
    assert {row.split()[0] for row in rows} == {"greet", "trial"}
    found = {each["workflow"]: each for each in json.loads(terminal.here("store", "waits", "--json").stdout)}
    assert (found["greet"]["runs"], found["greet"]["longest"], found["greet"]["without_validity"]) == (1, None, {})
    assert found["trial"]["state_kept_in"].startswith("the history in sqlite:")
    assert len(json.loads(terminal.here("store", "waits", "--workflow", "greet", "--json").stdout)) == 1


def test_the_log_of_another_system(terminal: Terminal) -> None:
    Path("log").write_text("\n".join(map(json.dumps, LINES)) + "\n{}\n")
    done = terminal.here("store", "waits", "--log", "log", *FIELDS)
    assert (done.exit_code, done.stderr) == (1, "perdure: 1 line without a run or a time left out\n")
    assert "2 d 0 h" in done.stdout
    assert "claims: 1 run waited for over a day with results that nobody said the validity of: plan" in done.stdout
    (claims, search) = json.loads(terminal.here("store", "waits", "--log", "log", *FIELDS, "--json").stdout)
    assert claims["longest"] == {
        "seconds": 172_800.0, "mark": "over a day", "run": "a", "from": "2026-03-02T10:00:00+00:00",
        "to": "2026-03-04T10:00:00+00:00", "is_on": False, "waited_for": ["plan done … go"],
    }  # fmt: skip
    assert (search["longest"], search["state_kept_in"]) == (None, "(not said)")


def test_what_cannot_be_read_is_bad_input(terminal: Terminal) -> None:
    Path("log").write_text(json.dumps(LINES[0]))
    for arguments, told in (
        (("--log", "nowhere"), "there is no such file"),
        (("--log", "log"), "the lines have event, id, step, when, workflow: say which is which"),
        (("--log", "log", "--field", "colour=x"), "ROLE one of run, time, event"),
        (("--log", "log", "--field", "run"), "ROLE one of run, time, event"),
    ):
        done = terminal.here("store", "waits", *arguments)
        assert (done.exit_code, told in done.stderr) == (2, True), done.stderr

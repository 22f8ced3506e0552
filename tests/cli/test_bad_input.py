"""Whatever is typed wrongly gets one line that says what, where, and the way out; and its exit code."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal, one_line

from perdure import errors
from perdure.cli.exits import CODES, MEANINGS, ExitCode, without_debug

WRONG: dict[str, tuple[str, int, str]] = {
    # what is typed, the exit code, what the one line says
    "a command with a typo": ("runz", 2, "No such command 'runz'. Did you mean"),
    "an option that is not there": ("run app.py:greet --stroe x", 2, "No such option: --stroe"),
    "a negative number": ("run app.py:count -3", 2, 'begins with "-" goes after "--"'),
    "no such file": ("run ap.py", 2, "there is no file ap.py; near: app.py"),
    "no such module": ("run nothing.there:x", 2, "there is no module nothing"),
    "a module without its suffix": ("run app.cfg:greet", 2, "there is no module app.cfg"),
    "no such workflow": ("run app.py:gret", 5, "there is no workflow 'gret'; near: greet"),
    "which workflow": ("run app.py", 2, "several workflows; which of app.py:count, app.py:greet"),
    "a step": ("run app.py:note 1", 2, "note is a step: only workflows can be started"),
    "no workflows": ("worker empty.py", 2, "empty.py has no workflows: decorate a function"),
    "code that is broken": ("run broken.py:x", 2, "broken.py cannot be loaded: ZeroDivisionError: division by zero at"),
    "code that Python's own fails for": ("run calls.py:x", 2, "calls.py:2"),
    "code with a typo": ("run typo.py:x", 2, "typo.py cannot be loaded: SyntaxError at"),
    "code that misses a package": ("run misses.py:x", 2, "misses.py cannot be loaded: ModuleNotFoundError: No module"),
    "code that cannot be declared": ("run lambda.py:x", 2, "lambda.py cannot be loaded: a lambda cannot be a workflow"),
    "code that is told where": ("run lambda.py:x", 2, "found by. Write `def name(...)`. (/"),
    "code that exits": ("run exits.py:x", 2, "exits.py ends the process while it is loaded: put what it does under"),
    "too few arguments": (
        "run app.py:count",
        2,
        "missing 1 required positional argument: 'to'; it takes count(to: int)",
    ),
    "too many arguments": ("run app.py:count 1 2", 2, "count takes 1 argument, not 2: count(to: int)"),
    "an argument of another type": ("run app.py:count x", 2, "to: x is no JSON"),
    "an argument deep inside": ("run app.py:trial '{\"id\": 3}'", 2, "claim.id: 3 was given where str is declared"),
    "half an object": ("run app.py:trial '{\"id\": '", 2, 'claim: {"id": is no JSON'),
    "a file that is not there": ("run app.py:trial @claim.json", 2, "claim: @claim.json cannot be read"),
    "stdin twice": ("run app.py:greet - -", 2, "only one argument can come from stdin"),
    "a name without a value": ("run app.py:greet --arg name", 2, "--arg name: write it as NAME=VALUE"),
    "a name that is not there": ("run app.py:greet --arg nam=x", 2, "greet has no parameter nam; it takes greet("),
    "a name twice": ("run app.py:greet x --arg name=x", 2, "multiple values for argument 'name'"),
    "a tag without a value": ("start app.py:greet --tag x", 2, "--tag x: write it as NAME=VALUE"),
    "a delay": ("start app.py:greet --delay soon", 2, "--delay soon: a duration is a number of seconds"),
    "an empty id": ("start app.py:greet --id ' '", 2, "run id ' ': a text of 1 to 500 characters"),
    "an id in use": ("start app.py:greet me --id echo", 6, "run id 'echo' belongs to echo version 1"),
    "no such store": ("runs list --store shop.db", 4, "there is no store at shop.db: name one with --store"),
    "a store of others": ("runs list --store letter.txt", 4, "this file is not a SQLite database; name another"),
    "a database of others": ("runs list --store other.db", 4, "this database belongs to something else"),
    "a store of another kind": ("runs list --store mysql://x", 4, "there is no store for mysql:// URLs"),
    "a store in no folder": ("start app.py:echo --store no/x.db", 4, "no/x.db"),
    "no such run": ("runs show ecko", 5, "there is no run 'ecko'; near: echo"),
    "no such status": ("runs list --status runing", 2, "'runing' is not one of 'queued', 'running'"),
    "less than nothing": ("runs list --limit 0", 2, "Invalid value for '--limit'"),
    "a folder as a store": ("runs list --store sub", 4, "sub: this is a folder; name a file in it, such as"),
    "a folder as a new store": ("start app.py:echo --store sub", 4, "sub: this is a folder; name a file in it"),
    "a folder as a program": ("run .", 2, ". is a folder: name a file, as in app.py:workflow"),
    "a program above": ("run ..", 2, ".. is a folder: name a file"),
    "no name at all": ("run ''", 2, "an empty target is neither a file nor the name of a module: name a file"),
    "a colon alone": ("run :", 2, "an empty target is neither a file nor"),
    "a name that is none": ("run 'my app'", 2, "my app is neither a file nor the name of a module"),
    "a text that is none": ("run app.py:greet \udce4", 2, "'\\udce4' is no UTF-8, so no text: type it in UTF-8"),
    "a tag that is none": ("start app.py:greet --tag a=\udce4", 2, "is no UTF-8, so no text"),
    "a tag without a name": ("start app.py:greet --tag =x", 2, "--tag =x: write it as NAME=VALUE"),
    "a delay without end": ("start app.py:greet --delay 99999999999999d", 2, "--delay 99999999999999d: at most 100"),
    "a time without end": (f"store prune --older-than {'9' * 400}", 2, "at most 100 years"),
    "a lease without end": ("worker app.py --lease 999999w", 2, "--lease 999999w: at most 100 years"),
    "no lease at all": ("worker app.py --lease 0", 2, "Runtime(lease=0.0): from 0.1 s to 100 years"),
    "a backup into no folder": ("store backup no/copy.db", 4, "create it, or name another path"),
    "a backup over a folder": ("store backup sub", 4, "there is a file already; name another"),
    "a number that is none": ("runs list --limit x", 2, "Invalid value for '--limit'"),
    "a message that is no JSON": ("runs send echo text '{'", 2, "VALUE: { is no JSON"),
    "a message of another type": ("runs send asks yes perhaps --app app.py", 2, "VALUE: perhaps is no JSON"),
    "a message of a type near by": ("runs send asks yes 1 --app app.py", 2, "VALUE: 1 was given where"),
    "a message of another name": ("runs send asks yse true --app app.py", 5, "no declared message 'yse'"),
    "an app of others": ("runs send asks yes true --app sub/none.py", 2, "there is no file sub/none.py"),
    "an app without the workflow": ("runs send asks yes true --app app.py:echo", 2, "which --app does not have"),
    "a result of another type": ("inbox unblock judged --value no --app app.py", 2, "--value: no is no JSON"),
    "a run that has ended": ("runs send greeted text x", 6, "run greeted has completed: it takes no message"),
    "nothing to unblock": ("inbox unblock echo --retry", 6, "run echo is queued: nothing in it waits for a person"),
    "to unblock what has ended": ("inbox unblock greeted --retry", 6, "run greeted has completed: nothing in it waits"),
    "no decision": ("inbox unblock echo", 2, "--value VALUE, --fail, --reuse, --keep or --recompute"),
    "two decisions": ("inbox unblock echo --retry --fail", 2, "decide one thing"),
    "a decision that cannot help": ("inbox unblock hangs --value 1", 6, "--value cannot help run hangs, which is"),
    "a call that is not stuck": ("inbox unblock hangs --fail --call '0/x#1'", 6, "0/x#1 of run hangs does not"),
    "how long ago": ("store prune --older-than 'a year'", 2, "--older-than a year: a duration is"),
    "a backup over something": ("store backup letter.txt", 4, "there is a file already; name another for the backup"),
    "nothing to lint": ("code lint nothing.py", 2, "there is no file or folder nothing.py"),
    "a full folder for the demo": ("demo .", 2, ""),
}


@pytest.fixture
def prepared(terminal: Terminal) -> Terminal:
    """A store with a run that ended, one that waits for a worker, and one that is stuck; and files of all kinds."""
    folder = terminal.folder
    (folder / "empty.py").write_text("import perdure\n")
    (folder / "broken.py").write_text("import perdure\n\nx = 1 / 0\n")
    (folder / "calls.py").write_text("import json\nx = json.loads('')\n")
    (folder / "typo.py").write_text("def x(:\n")
    (folder / "misses.py").write_text("import a_package_that_is_not_there\n")
    (folder / "lambda.py").write_text("import perdure\nx = perdure.workflow(lambda: 1)\n")
    (folder / "yields.py").write_text("import perdure\n@perdure.workflow\ndef x(): yield\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    (folder / "sub").mkdir()
    (folder / "letter.txt").write_text("dear store, " * 100)
    with sqlite3.connect(folder / "other.db") as other:
        other.execute("CREATE TABLE mine (it TEXT)")
    other.close()
    assert terminal.here("start", "app.py:echo", "--id", "echo", "--delay", "1h").exit_code == 0  # nobody is missed
    assert terminal.here("run", "app.py:greet", "--id", "greeted").exit_code == 0
    assert terminal.here("run", "app.py:hangs", "--id", "hangs").exit_code == 3
    assert terminal.here("start", "app.py:asks", "--id", "asks").exit_code == 0
    assert terminal.here("run", "app.py:trial", '{"id": "c1"}', "--id", "judged").exit_code == 3
    return terminal


def test_what_is_typed_wrongly(prepared: Terminal) -> None:
    """One store for all: they only look, and nothing of what is wrong may change anything."""
    before = prepared.here("runs", "list", "--json").stdout
    wrong: dict[str, object] = {}
    for what, (typed, code, says) in WRONG.items():
        result = prepared.here(*shlex.split(typed))
        said = " ".join(result.stderr.split())
        if result.exit_code != code or says not in said or "Traceback" in said:
            wrong[what] = (result.exit_code, result.stderr)
        elif what != "a full folder for the demo":
            one_line(result)
    assert not wrong
    assert prepared.here("runs", "list", "--json").stdout == before
    beside = {path.name for path in prepared.folder.iterdir() if "letter" in path.name or "other" in path.name}
    assert beside == {"letter.txt", "other.db"}, "what was refused has no locks beside it"


def test_where_code_cannot_be_declared_is_said_once(prepared: Terminal) -> None:
    said = prepared.here("run", "yields.py:x").stderr
    assert "one workflow per item. (x, " in said
    assert said.count("yields.py:2") == 1


def test_a_list_says_what_it_leaves_out(prepared: Terminal) -> None:
    shown = prepared.here("runs", "list", "--limit", "2")
    assert len(shown.stdout.splitlines()) == 3
    assert one_line(shown) == "only the newest 2 are listed; more with a greater --limit"
    assert prepared.here("runs", "list", "--limit", "5").stderr == ""
    assert len(json.loads(prepared.here("runs", "list", "--since", "1h", "--json").stdout)) == 5
    assert prepared.here("runs", "list", "--since", "0").stderr == "no runs\n"
    none = prepared.here("runs", "list", "--workflow", "great")
    assert (none.exit_code, none.stdout) == (0, "")
    assert none.stderr == "perdure: there is no run of a workflow 'great'; near: greet\nno runs\n"


def test_numbers_that_only_mean_everything(prepared: Terminal) -> None:
    assert len(json.loads(prepared.here("runs", "list", "--limit", str(10**30), "--json").stdout)) == 5
    pruned = prepared.here("store", "prune", "--older-than", "99y".replace("y", "w"), "--limit", str(10**30))
    assert (pruned.exit_code, pruned.stdout) == (0, "pruned 0 runs\n")


PYPROJECTS = {
    '[tool.perdure]\nstor = "x.db"': "[tool.perdure] has stor; it takes store =",
    "[tool.perdure]\nstore = 7": "[tool.perdure] has store = 7; it takes store =",
    '[tool.perdure]\nstore = ""': "[tool.perdure] has store = ''; it takes store =",
    "[tool]\nperdure = 1": "[tool.perdure] has perdure = ...; it takes store =",
    "[tool.perdure\n": "cannot be read, so [tool.perdure] store is unknown",
}


@pytest.mark.parametrize(("text", "says"), PYPROJECTS.items(), ids=PYPROJECTS.values())
def test_what_pyproject_says(text: str, says: str, terminal: Terminal) -> None:
    (terminal.folder / "pyproject.toml").write_text(text)
    result = terminal.here("runs", "list")
    assert (result.exit_code, says in one_line(result)) == (ExitCode.USAGE, True), result.stderr


def test_debug_shows_where(prepared: Terminal) -> None:
    for args in (["--debug", "run", "broken.py:x"], ["run", "broken.py:x", "--debug"]):
        result = prepared.here(*args)
        assert result.exit_code == 2
        assert "Traceback" in result.stderr
        assert "x = 1 / 0" in result.stderr


def test_debug_after_two_dashes_is_an_argument() -> None:
    assert without_debug(["run", "--debug", "x", "--", "--debug"]) == (["run", "x", "--", "--debug"], True)
    assert without_debug(["run", "--", "--debug"]) == (["run", "--", "--debug"], False)


def test_what_nobody_foresaw_is_one_line_too(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise ValueError("something\nelse")

    monkeypatch.setattr("perdure.cli.runs.existing_store", explode)
    result = terminal.here("runs", "list")
    assert result.exit_code == ExitCode.BUG
    assert "ValueError: something else (unexpected; the same with --debug shows where" in one_line(result)


@pytest.mark.parametrize("args", [[], ["runs"], ["inbox"], ["store"], ["code"]])
def test_alone_a_group_shows_its_help(args: list[str], terminal: Terminal) -> None:
    result = terminal.here(*args)
    assert result.exit_code == 2
    assert "Commands" in result.output


def test_the_version(terminal: Terminal) -> None:
    result = terminal.here("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("perdure 0.")


# ── exit codes ──────────────────────────────────────────────────────────────────────────────


def test_every_exit_code_is_in_the_table_that_help_prints(terminal: Terminal) -> None:
    assert set(MEANINGS) == set(ExitCode)
    lines = [line.split() for line in terminal.here("--help").stdout.splitlines()]
    for code, meaning in MEANINGS.items():
        assert [str(code.value), *meaning.split()[:3]] in [line[:4] for line in lines]


def test_every_error_of_ours_has_a_code() -> None:
    named = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PerdureError)}
    families = {errors.PerdureError, errors.RunError, errors.StepError, errors.StepTimeoutError}
    families |= {errors.OperationError, errors.DuplicateOperation, errors.OperationConflict}
    families |= {errors.Rejected, errors.PolicyDenied, errors.CheckTooOld, errors.OverBudget, errors.SecretUnavailable}
    families |= {errors.PremiseUnreadableError}  # no program sees it
    families |= {errors.WebhookError}  # of whoever receives it
    verdicts = {cls for cls in named if issubclass(cls, errors.Verdict)}
    without = {cls for cls in named if not any(issubclass(cls, kind) for kind, _ in CODES)}
    assert without - families - verdicts == set(), "what only a run's own failure can be needs no code"


def test_how_a_run_ended_is_the_exit_code(terminal: Terminal) -> None:
    for workflow, code, says in (
        ("fails", 1, "run fails failed: Final: broken on purpose; see perdure runs show fails"),
        ("parent", 1, "run parent failed: Final: broken on purpose"),
        ("hangs", 3, "run hangs is blocked (deadlocked)"),
    ):
        result = terminal.here("run", f"app.py:{workflow}", "--id", workflow)
        assert (result.exit_code, says in result.stderr) == (code, True), result.stderr
    assert terminal.here("start", "app.py:echo", "--id", "echo").exit_code == 0
    assert terminal.here("runs", "cancel", "echo", "--reason", "no need").exit_code == 0
    result = terminal.here("run", "app.py:echo", "--id", "echo")
    assert result.exit_code == 7
    assert "run echo was cancelled" in result.stderr
    assert terminal.here("runs", "cancel", "echo").exit_code == 0
    assert terminal.here("runs", "cancel", "fails").exit_code == 6


def test_what_failed_is_not_begun_again_and_it_says_how(terminal: Terminal) -> None:
    first = terminal.here("run", "app.py:fails", "--id", "f")
    assert first.stderr.count("\n") == 1, "what became of it is told once"
    for command in ("run", "start"):
        again = terminal.here(command, "app.py:fails", "--id", "f")
        assert again.stderr.startswith(
            "perdure: run f failed earlier, and is not begun again: give another id for a new run\n"
        )
    told = json.loads(terminal.here("start", "app.py:fails", "--id", "f", "--json").stdout)
    assert told == {"id": "f", "how": "finished earlier"}


def test_how_a_run_ended_as_json(terminal: Terminal) -> None:
    def told(*args: str) -> object:
        return json.loads(terminal.here(*args, "--json").stdout)

    assert told("run", "app.py:greet", "--id", "g") == {"id": "g", "status": "completed", "result": "hello you"}
    assert told("run", "app.py:fails", "--id", "f") == {
        "id": "f",
        "status": "failed",
        "error": {"type": "Final", "message": "broken\non purpose"},
    }
    blocked = told("run", "app.py:trial", '{"id": "c1"}', "--id", "t")
    assert blocked == {"id": "t", "status": "blocked", "reason": "needs_person", "hint": "0/judge#1: a hard case"}
    assert told("runs", "wait", "g") == {"id": "g", "status": "completed", "result": "hello you"}


def test_waiting_no_longer_than_wanted(terminal: Terminal) -> None:
    terminal.here("start", "app.py:echo", "--id", "echo")
    result = terminal.here("runs", "wait", "echo", "--timeout", "0.1")
    assert result.exit_code == ExitCode.TIMED_OUT
    assert one_line(terminal.here("runs", "wait", "echo", "--timeout", "0")) == (
        "run echo has not ended within 0 s; it goes on"
    )


def test_a_damaged_history_is_said_to_be_one(terminal: Terminal) -> None:
    terminal.here("run", "app.py:greet", "--id", "g")
    with sqlite3.connect(terminal.folder / "perdure.db") as database:
        database.execute("DELETE FROM events WHERE seq = 0")
    database.close()
    result = terminal.here("runs", "show", "g")
    assert result.exit_code == ExitCode.STORE
    assert "has no event 0, but later ones; restore a backup" in one_line(result)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="perdure")


def test_a_read_only_folder(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.here("start", "app.py:echo", "--store", "/proc/perdure.db")
    assert result.exit_code == ExitCode.STORE
    assert "/proc/perdure.db" in one_line(result)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Path]:
    """The folder `kept` once more, under another name, under which nothing in it can be written."""
    kept, shown = tmp_path / "kept", tmp_path / "shown"
    kept.mkdir()
    shown.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "--bind", kept, shown], check=False).returncode:
        pytest.skip("cannot mount a folder here")
    try:
        subprocess.run([mount, "-o", "remount,ro,bind", shown], check=True)
        yield shown
    finally:
        subprocess.run(["umount", shown], check=True)


LOOKS = [
    "runs list", "runs show r", "inbox list", "store verify", "store stats", "store effects", "store waits",
    "store cost", "store backup copy.db", "code check app.py",
]  # fmt: skip
WRITES = [
    "runs send r word 1", "runs cancel r", "inbox unblock r --retry", "run app.py:greet", "store prune --older-than 0",
]  # fmt: skip


def test_a_store_that_cannot_be_written_is_shown_and_left_as_it_is(terminal: Terminal, shown: Path) -> None:
    kept = ("--store", "kept/perdure.db")
    assert terminal.here("run", "app.py:names", "--id", "r", *kept).exit_code == ExitCode.BLOCKED
    before = {file.name: file.stat().st_mtime_ns for file in Path("kept").iterdir()}
    for command in LOOKS:
        looked = terminal.here(*command.split(), "--store", "shown/perdure.db")
        assert looked.exit_code == terminal.here(*command.replace("copy", "another").split(), *kept).exit_code, command
        assert looked.exit_code != ExitCode.STORE, command
    for command in WRITES:
        refused = terminal.here(*command.split(), "--store", "shown/perdure.db")
        assert refused.exit_code == ExitCode.STORE, command
        assert "perdure.db" in one_line(refused)
    assert terminal.here("store", "verify", *kept).exit_code == ExitCode.OK
    assert {name: Path("kept", name).stat().st_mtime_ns for name in before} == before

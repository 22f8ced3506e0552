"""The command line as it is used: real processes, killed and stopped, and what others make of what they leave."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.cli.terminal import APP, PERDURE, SECONDS_MAX, Terminal, environment, until

# ── run and worker ──────────────────────────────────────────────────────────────────────────


def test_run_prints_the_result_and_nothing_else(terminal: Terminal) -> None:
    done = terminal.run("run", "app.py:greet", "world")
    assert (done.stdout, done.stderr) == ("hello world\n", "")


def test_run_says_what_the_source_shows_before_it_executes_it(terminal: Terminal) -> None:
    """A call that is not awaited never happens; also in a child, and in one line."""
    forgotten = """

    @workflow
    async def forgets() -> int:
        note.call(1)
        return 4

    @workflow
    async def trusts() -> int:
        return await forgets()
    """
    (terminal.folder / "app.py").write_text(textwrap.dedent(APP) + textwrap.dedent(forgotten))
    done = terminal.run("run", "app.py:trusts")
    assert done.stdout == "4\n"
    assert re.fullmatch(r"perdure: .*app\.py:\d+:5: error not-awaited \(forgets\): note\.call\(.*\n", done.stderr)


def test_a_worker_is_killed_and_another_goes_on(terminal: Terminal) -> None:
    """Nobody calls resume; what was recorded is not done again, what was in flight is."""
    with terminal.begun("worker", "app.py") as victim:
        victim.says("worker serves")
        assert terminal.here("start", "app.py:count", "6", "--id", "c").stdout == "c\n"
        until(lambda: "3" in terminal.notes, "step 3")
        with terminal.begun("worker", "app.py") as survivor:
            survivor.says("worker serves")
            terminal.go()
            victim.send(signal.SIGKILL)
            assert terminal.here("runs", "wait", "c", "--timeout", "30").stdout == "15\n"
    assert terminal.notes[:3] == ["0", "1", "2"]
    assert terminal.notes[-2:] == ["4", "5"]
    assert 1 <= terminal.notes.count("3") <= 2
    assert "taken over from" in terminal.here("runs", "show", "c").stdout


def test_a_worker_stops_within_two_seconds_and_names_what_is_unfinished(terminal: Terminal) -> None:
    """Also while a step blocks a thread that nobody can stop. It is no failure of the run."""
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves asks/1, count/3,")
        terminal.here("start", "app.py:count", "6", "--id", "c")
        until(lambda: "3" in terminal.notes, "step 3")
        worker.send(signal.SIGTERM)
        begin = time.monotonic()
        assert worker.ends() in {0, 143}
        assert time.monotonic() - begin < 3.0  # two, and what a busy machine adds
        assert "unfinished run(s): c;" in worker.said
    terminal.go()
    assert terminal.run("run", "app.py:count", "6", "--id", "c").stdout == "15\n"
    assert terminal.notes.count("0") == 1


def test_an_idle_worker_stops_by_ctrl_c_as_asked(terminal: Terminal) -> None:
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        worker.send(signal.SIGINT)
        assert worker.ends() == 0
        assert "worker stopped; no run was in its hands" in worker.said


def test_a_run_that_was_stopped_goes_on_with_the_same_command(terminal: Terminal) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with terminal.begun("run", "app.py:count", "5") as process:
            until(lambda: "3" in terminal.notes, "step 3")
            (terminal.folder / "notes").write_text("")
            process.send(number)
            process.says("unfinished run(s): count-")
            terminal.go()  # what the step still does is ignored
            assert process.ends() == code
            (terminal.folder / "go").unlink()
            assert "Traceback" not in process.said
    terminal.go()
    done = terminal.run("run", "app.py:count", "5")
    assert done.stdout == "10\n"
    assert "goes on" in done.stderr
    assert terminal.notes == ["3", "4"]


def test_a_second_ctrl_c_ends_it_at_once(terminal: Terminal) -> None:
    with terminal.begun("run", "app.py:count", "5") as process:
        until(lambda: "3" in terminal.notes, "step 3")
        process.send(signal.SIGINT)
        process.says("unfinished run(s)")
        process.send(signal.SIGINT)
        assert process.ends() in {130, -signal.SIGINT}  # late in its end the signal itself ends it


STUBBORN = """
    import asyncio, os, pathlib, sys
    from perdure import step, workflow

    @step
    async def stays(is_loud: bool) -> None:
        if is_loud:
            os.set_blocking(1, False)
            while True:
                try:
                    os.write(1, b"x")
                except BlockingIOError:
                    break
            os.set_blocking(1, True)
            sys.stdout.write("and more")
        pathlib.Path("notes").write_text("3")
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    @workflow
    async def stubborn(is_loud: bool) -> None:
        await stays(is_loud)
"""


def test_what_does_not_end_by_itself_is_cut_off_and_said_to_be(terminal: Terminal) -> None:
    (terminal.folder / "stubborn.py").write_text(textwrap.dedent(STUBBORN))
    with terminal.begun("run", "stubborn.py", "false") as process:
        until(lambda: terminal.notes, "the step")
        process.send(signal.SIGTERM)
        assert process.ends() == 143
        assert "what did not end within two seconds was cut off; the same command, or any worker" in process.said


def test_it_stops_while_nobody_reads_what_it_prints(terminal: Terminal) -> None:
    """The pipe is full, and there is more to be written before the process may end in order."""
    (terminal.folder / "stubborn.py").write_text(textwrap.dedent(STUBBORN))
    buffered = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [*PERDURE, "run", "stubborn.py", "true"], cwd=terminal.folder, env=buffered, stdout=subprocess.PIPE
    ) as process:
        try:
            until(lambda: terminal.notes, "the step")
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS_MAX) == 143
        finally:
            process.kill()


def test_somebody_decides_while_a_worker_serves(terminal: Terminal) -> None:
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        terminal.here("start", "app.py:trial", '{"id": "c1"}', "--id", "t")
        assert terminal.here("runs", "wait", "t", "--timeout", "30").exit_code == 3
        (entry,) = json.loads(terminal.here("inbox", "list", "--json").stdout)
        assert (entry["run"], entry["call"], entry["reason"]) == ("t", "0/judge#1", "needs_person")
        (terminal.folder / "verdict.json").write_text("42")
        told = terminal.here("inbox", "unblock", "t", "--value", "@verdict.json", "--by", "ann", "--reason", "clear")
        assert told.stdout == "told run t, 0/judge#1: value; what you give stands for the call's result\n"
        assert terminal.here("runs", "wait", "t", "--timeout", "30").stdout == '{"c1": 42}\n'
    assert "unblocked: value by ann" in terminal.here("runs", "show", "t").stdout


def test_messages_pause_and_resume(terminal: Terminal) -> None:
    with terminal.begun("worker", "app.py") as worker:
        worker.says("worker serves")
        terminal.here("start", "app.py:echo", "--id", "e")
        terminal.here("runs", "pause", "e", "--by", "ann")
        until(lambda: "(paused)" in terminal.here("runs", "list").stdout, "the run is paused")
        assert "waits for somebody who resumes it" in terminal.here("runs", "show", "e").stdout
        terminal.here("runs", "send", "e", "text", "it's me", "--by", "carol")
        terminal.here("runs", "resume", "e", "--by", "bob")
        assert terminal.here("runs", "wait", "e", "--timeout", "30").stdout == "it's me\n"
    shown = terminal.here("runs", "show", "e").stdout
    assert "paused by ann" in shown
    assert "resumed by bob" in shown
    assert "message 'text' arrived from carol" in shown


def test_values_are_read_as_what_they_are_for_where_the_app_is_named(terminal: Terminal) -> None:
    """A text that looks like a number is a text where a text is wanted."""
    terminal.here("start", "app.py:asks", "--id", "a")
    terminal.here("start", "app.py:names", "--id", "n")
    with terminal.begun("worker", "app.py"):
        until(lambda: "name_of#1" in terminal.here("inbox", "list").stdout, "a person is asked for a name")
        assert terminal.here("runs", "send", "a", "yes", "true", "--app", "app.py").exit_code == 0
        assert terminal.here("inbox", "unblock", "n", "--value", "12", "--app", "app.py").exit_code == 0
        assert terminal.here("runs", "wait", "a", "--timeout", "30").stdout == "true\n"
        assert terminal.here("runs", "wait", "n", "--timeout", "30").stdout == "12!\n"


# ── the same program, started otherwise ─────────────────────────────────────────────────────


PROGRAM = """

if __name__ == "__main__":
    import sys

    async def main() -> None:
        async with perdure.Client() as client:
            await client.start(greet.call(sys.argv[1]), id=sys.argv[1])
            await client.start(trial.call(Claim(sys.argv[1])), id=f"trial-{sys.argv[1]}")

    asyncio.run(main())
"""


def test_what_a_program_starts_the_command_line_executes(terminal: Terminal) -> None:
    """`python app.py`, `python -m app` and `perdure worker app.py` mean the same workflows and types."""
    with (terminal.folder / "app.py").open("a") as file:
        file.write(PROGRAM)
    for args in (["app.py", "file"], ["-m", "app", "module"]):
        subprocess.run([sys.executable, *args], cwd=terminal.folder, env=environment(), check=True)
    with terminal.begun("worker", "app") as worker:
        worker.says("worker serves")
        for name in ("file", "module"):
            assert terminal.here("runs", "wait", name, "--timeout", "30").stdout == f"hello {name}\n"
            assert terminal.here("runs", "wait", f"trial-{name}", "--timeout", "30").exit_code == 3


def test_a_module_in_a_package_finds_its_neighbours(terminal: Terminal) -> None:
    package = terminal.folder / "shop" / "agents"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "words.py").write_text("HELLO = 'hi'\n")
    (package / "agent.py").write_text(
        "from perdure import workflow\nfrom shop.agents.words import HELLO\nfrom .words import HELLO as SAME\n"
        "@workflow\nasync def agent() -> str:\n    return HELLO + SAME + __name__\n"
    )
    for target in ("shop/agents/agent.py", "shop.agents.agent:agent"):
        assert terminal.run("run", target).stdout == "hihishop.agents.agent\n"


def test_a_file_that_is_called_like_a_module_of_the_library(terminal: Terminal) -> None:
    (terminal.folder / "queue.py").write_text((terminal.folder / "app.py").read_text())
    assert terminal.run("run", "queue.py:greet").stdout == "hello you\n"


# ── care ────────────────────────────────────────────────────────────────────────────────────


def test_prune_backup_and_verify_with_a_flipped_byte(terminal: Terminal) -> None:
    secret = "a text that nobody else writes " * 50
    for name in ("one", "two", secret):
        assert terminal.here("run", "app.py:greet", name, "--id", name[:5]).exit_code == 0
    terminal.here("start", "app.py:echo", "--id", "unfinished")
    assert terminal.here("store", "verify").stdout == "4 runs, 7 events, 0 pruned: all as it was written\n"
    assert terminal.run("store", "backup", "copy.db").stdout.endswith("to copy.db\n")
    assert terminal.here("store", "prune", "--older-than", "1d").stdout == "pruned 0 runs\n"
    assert terminal.here("store", "prune", "--older-than", "0", "--limit", "1").stdout == "pruned 1 run\n"
    assert terminal.run("store", "prune", "--older-than", "0").stdout == "pruned 2 runs\n"
    stats = json.loads(terminal.here("store", "stats", "--json").stdout)
    assert (stats["runs"], stats["runs_pruned"], stats["events"]) == (1, 3, 1)
    assert terminal.here("store", "verify").stdout == "1 run, 1 event, 3 pruned: all as it was written\n"

    copy = terminal.folder / "copy.db"
    assert json.loads(terminal.here("runs", "list", "--store", "copy.db", "--json").stdout)[-1]["id"] == "one"
    flip(copy, secret.encode())
    damaged = terminal.run("store", "verify", "--store", "copy.db", code=1)
    assert damaged.stdout.startswith("run a tex, event ")
    report = json.loads(terminal.here("store", "verify", "--store", "copy.db", "--json").stdout)
    assert {each["run"] for each in report["damage"]} == {"a tex"}


def flip(database: Path, text: bytes) -> None:
    """Change one bit in the middle of every place where the text stands."""
    content = bytearray(database.read_bytes())
    place, places = content.find(text[: len(text) // 2]), 0
    while place >= 0:
        content[place + 10] ^= 1
        places += 1
        place = content.find(text[: len(text) // 2])
    assert places
    database.write_bytes(content)


# ── pipes and terminals ─────────────────────────────────────────────────────────────────────


def test_in_a_pipe_there_is_plain_text_of_full_width(terminal: Terminal) -> None:
    name = "x" * 150
    terminal.here("run", "app.py:greet", name, "--id", "g" * 100)
    shown = terminal.run("runs", "show", "g" * 100).stdout
    assert "\x1b" not in shown
    assert f'"hello {name}"' in shown
    listed = terminal.run("runs", "list").stdout.splitlines()
    assert listed[0].split() == ["RUN", "WORKFLOW", "STATUS", "STARTED", "CHANGED", "TAGS"]
    assert listed[1].startswith("g" * 100)


def test_who_reads_only_the_beginning_is_no_error(terminal: Terminal) -> None:
    terminal.here("run", "app.py:greet", "--id", "g")
    command = f"{shlex.join(PERDURE)} runs show g | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=terminal.folder, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["run g: greet version 1, completed", "0"]
    assert done.stderr == ""


def test_what_the_terminal_cannot_show_is_shown_in_ascii(terminal: Terminal) -> None:
    done = subprocess.run(
        [*PERDURE, "run", "app.py:greet", "Zoë – 日本"],
        cwd=terminal.folder, env={**environment(), "PYTHONIOENCODING": "latin-1"}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "hello Zoë \\u2013 \\u65e5\\u672c\n".encode("latin-1")), done.stderr


@pytest.mark.parametrize("typed", ["", "--help", "runs", "store verify --help"])
def test_who_reads_only_the_beginning_of_a_page_of_help_is_no_error(typed: str) -> None:
    command = f"{shlex.join(PERDURE)} {typed} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("typed", "code"),
    [("runs list >&-", 0), ("runs show g --json >&-", 0), ("store verify >&- 2>&-", 0), ("runs send g hi - <&-", 6)],
)
def test_streams_that_are_closed_are_no_error(terminal: Terminal, typed: str, code: int) -> None:
    terminal.here("run", "app.py:greet", "--id", "g")
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join(PERDURE)} {typed}"],
        cwd=terminal.folder, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr


def on_a_terminal(terminal: Terminal, *args: str, until_it_says: bytes) -> bytes:
    """What a person sees of the command until it says that; then it is stopped by Ctrl-C."""
    main, other = pty.openpty()
    with subprocess.Popen(
        [*PERDURE, *args],
        cwd=terminal.folder, env={**environment(), "TERM": "xterm"}, stdin=other, stdout=other, stderr=other,
    ) as process:  # fmt: skip
        os.close(other)
        seen = b""
        try:
            while until_it_says not in seen:
                seen += os.read(main, 4096)
            process.send_signal(signal.SIGINT)
        finally:
            process.kill()
            os.close(main)
    return seen


def test_on_a_terminal_a_long_wait_says_for_what(terminal: Terminal) -> None:
    on_a_terminal(terminal, "run", "app.py:echo", until_it_says=b"waits for message 'text' in 0/receive:text")


def test_on_a_terminal_a_wait_is_said_once(terminal: Terminal) -> None:
    (terminal.folder / "naps.py").write_text(
        "import perdure\n@perdure.workflow\nasync def nap() -> str:\n    await perdure.sleep(3.6)\n    return 'awake'\n"
    )
    seen = on_a_terminal(terminal, "run", "naps.py:nap", until_it_says=b"awake")
    assert seen.count(b"waits for a timer") == 1, seen


def test_on_a_terminal_that_is_narrow_nothing_of_an_id_is_cut_off(terminal: Terminal) -> None:
    long = "claim-" + "7" * 60
    terminal.here("start", "app.py:greet", "--id", long, "--tag", "team=north")
    seen = on_a_terminal(terminal, "runs", "list", until_it_says=b"team=north")
    assert long.encode() in seen
    assert b"queued" in seen


def test_on_a_terminal_tables_are_for_people(terminal: Terminal) -> None:
    terminal.here("run", "app.py:greet", "--id", "g")
    assert b"\x1b[1m" in on_a_terminal(terminal, "runs", "show", "g", until_it_says=b"+0 ms")


@pytest.mark.parametrize("typed", ["worker --help", "code drill --help"])
def test_help_is_folded_where_the_terminal_ends_and_not_where_lines_of_the_source_do(typed: str) -> None:
    narrow = {**environment(), "COLUMNS": "80"}
    done = subprocess.run([*PERDURE, *typed.split()], env=narrow, capture_output=True, text=True, check=True)
    told = done.stdout.partition("╭")[0].strip().splitlines()[2:]
    paragraphs = re.split(r"\n\s*\n", "\n".join(line.strip() for line in told))
    assert len(paragraphs) == 2
    assert min(len(line) for paragraph in paragraphs for line in paragraph.splitlines()[:-1]) > 60


# ── without its packages ────────────────────────────────────────────────────────────────────


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)


def test_without_typer_or_rich_it_says_what_to_install() -> None:
    for missing in ("typer", "rich"):
        done = python(f"import sys; sys.modules['{missing}'] = None; from perdure.cli import main; main()")
        assert done.returncode == 1
        assert done.stderr == f'perdure: the command line needs {missing}: pip install "perdure[cli]"\n'


def test_to_import_it_costs_nothing() -> None:
    done = python("import sys, perdure.cli; print({'typer', 'rich'} & set(sys.modules))")
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("typed", "loaded"),
    [("--version", []), ("rnus", []), ("runs list", ["inbox", "runs"]), ("store --help", ["inbox", "store"])],
)
def test_a_command_is_loaded_when_it_is_asked_for(typed: str, loaded: list[str]) -> None:
    done = python(
        f"""
import atexit, sys
from perdure.cli import main
sys.argv = {["perdure", *typed.split()]}
groups = ("code", "inbox", "run", "runs", "store", "worker")
atexit.register(lambda: print(*[group for group in groups if f"perdure.cli.{{group}}" in sys.modules]))
main()
"""
    )
    assert done.stdout.splitlines()[-1].split() == loaded

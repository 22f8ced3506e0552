"""The demo itself, whole: processes, SIGKILL, takeover, and a person at the command line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.demo import demo
from perdure.cli.demo.processes import AGENT, examples


def environment(**changes: str) -> dict[str, str]:
    """That of the tests, without a real model's key; the workers find perdure where the tests found it."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}
    for name in {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"} - set(changes):
        settings.pop(name, None)
    return settings


def table_in(text: str) -> list[list[str]]:
    """The rows of the figures, without the one that differs each time."""
    lines = [line.split() for line in text.splitlines() if line.endswith(" ok")]
    return [line for line in lines if line[0] != "seconds"]


def test_the_demo_keeps_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    status = demo(folder, environment=environment())
    shown = capsys.readouterr().out
    assert status == 0, shown
    kept = [" ".join(line.split()) for line in shown.splitlines() if line.endswith(" ok")]
    assert "steps done and recorded, each once 50 of 50 50 of 50 ok" in kept
    assert "sent again, because in flight at the kill 1 (step 47) 1 (step 47) ok" in kept
    assert "claims in the books of the payments service, each once 8 of 8 8 of 8 ok" in kept
    assert kept[7:10] == [
        "step 12, charge for C-102 sent 2x, one key sent 2x, one key ok",
        "step 24, transfer for C-104 sent 1x, found by look-up sent 1x, found by look-up ok",
        "step 36, payout for C-106 sent 1x, found by a person sent 1x, found by a person ok",
    ]
    assert kept[11:] == [
        "refund that changed while approved, in the books 310 EUR 310 EUR ok",
        "refund of ten times the order, sent 0x 0x ok",
        "the same in the inbox denied 9000 EUR denied 9000 EUR ok",
        "approved, then the policy changed: asked and paid 50%, 80%: 640 EUR 50%, 80%: 640 EUR ok",
        "approved, then its limit was raised: the same 50%: 400 EUR 50%: 400 EUR ok",
        "approved, then settled by hand paid 1x by a person, told paid 1x by a person, told ok",
    ]
    assert shown.count("kill -9") == 6
    readme = (examples().parent / "README.md").read_text()
    assert table_in(shown) == table_in(readme), "README shows what the demo prints"
    assert "$ perdure inbox settle claims-1 --succeeded --value 6" in shown
    assert (folder / "timeline.svg").exists()
    (history,) = [line.removeprefix("history") for line in shown.splitlines() if line.startswith("history")]
    done = subprocess.run(shlex.split(history), env=environment(), capture_output=True, text=True, check=True)
    assert "0/payout#2" in done.stdout
    assert "settled: succeeded by ann it is in their books" in " ".join(done.stdout.split())


def test_an_agent_that_pays_twice_is_told_and_the_demo_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its look-up asks for another reference than the one that the transfer was given."""
    right, source = "?reference={operation.id}", (examples() / AGENT).read_text()
    assert right in source
    careless = tmp_path / AGENT
    wrong = source.replace(right, "?reference={operation.run_id}").replace("settle_after=2", "settle_after=0")
    careless.write_text(wrong)
    status = demo(tmp_path / "demo", environment=environment(), agent=careless)
    shown = capsys.readouterr().out
    assert status == 1, shown
    broken = ("steps done and recorded, each once", "claims in the books of the payments service, each once")
    assert shown.strip().endswith(f"not as promised: {'; '.join([*broken, 'step 24, transfer for C-104'])}")
    assert shown.count("NOT KEPT") == 3


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    assert demo(tmp_path, environment=environment()) == 2
    assert "is not empty" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["letters.txt"]


def test_an_agent_that_cannot_start_is_told_with_what_it_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "perdure.py").write_text("raise RuntimeError('no perdure today')")
    status = demo(tmp_path / "demo", environment=environment(PYTHONPATH=str(broken)))
    shown = capsys.readouterr().out
    assert status == 1
    assert "ended before its time" in shown
    assert "no perdure today" in shown


def test_a_real_model_is_asked_when_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real model is our scripted one in another process; what counts is that all questions went there."""
    from perdure.cli.demo.processes import service

    upstream_folder = tmp_path / "upstream"
    upstream_folder.mkdir()
    with service("model", upstream_folder) as upstream:
        settings = environment(OPENAI_BASE_URL=f"{upstream.url}/v1", OPENAI_API_KEY="k", OPENAI_MODEL="m-2")
        status = demo(tmp_path / "demo", environment=settings)
        asked = upstream.records()
    assert status == 0, capsys.readouterr().out
    assert len(asked) == 18
    assert {'"model": "m-2"' in sending.body for sending in asked} == {True}


@pytest.mark.parametrize(
    ("url", "status", "told"),
    [
        ("http://127.0.0.1:9/v1", 1, "at http://127.0.0.1:9/v1 (502): it did not answer: <urlopen error [Errno"),
        ("127.0.0.1:9/v1", 2, "OPENAI_BASE_URL is '127.0.0.1:9/v1'; it must be like https://api.openai.com/v1"),
        ("http://h:99999/v1", 2, "OPENAI_BASE_URL is 'http://h:99999/v1'; it must be like"),
    ],
)
def test_a_model_that_cannot_be_asked_is_told_in_one_line_with_a_way_on(
    url: str, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = environment(OPENAI_BASE_URL=url, OPENAI_API_KEY="k")
    assert demo(tmp_path / "demo", environment=settings) == status
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("perdure demo: ")]
    assert told in line
    assert "without" in line
    assert "scripted model answers" in line
    assert "Traceback" not in shown


def test_a_model_whose_key_is_missing_is_not_asked_and_the_demo_says_so(tmp_path: Path) -> None:
    """Nobody listens there. That it is stopped by a signal leaves no process behind."""
    settings = environment(OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    command = [sys.executable, "-m", "perdure", "demo", str(tmp_path / "demo")]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert "scripted: OPENAI_BASE_URL is set, OPENAI_API_KEY is not" in shown[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert said == f"perdure: stopped; logs and databases are in {tmp_path / 'demo'}\n"
    for pid in map(int, shown[2].partition("workers")[2].partition(",")[0].split(" and ")):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_example_is_what_the_demo_runs() -> None:
    assert (examples() / "claims_agent.py").exists()
    assert (examples() / "claims.json").exists()


def test_without_typer_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from perdure.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == 'perdure: the command line needs typer: pip install "perdure[cli]"'

"""The demo itself, whole: processes, SIGKILL, takeover."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.demo import demo
from perdure.cli.demo.processes import examples


def environment(**changes: str) -> dict[str, str]:
    """That of the tests, without a real model's key; the workers find perdure where the tests found it."""
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}
    for name in {"OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"} - set(changes):
        settings.pop(name, None)
    return settings


def test_the_demo_keeps_what_it_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    status = demo(folder, environment=environment())
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "50 of 50     50 of 50  ok" in shown
    assert "1 (step 47)  1 (step 47)  ok" in shown
    assert (folder / "timeline.svg").exists()
    assert f"--store {folder / 'perdure.db'}" in shown


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
    assert len(asked) == 26
    assert {'"model": "m-2"' in sending.body for sending in asked} == {True}


def test_the_example_is_what_the_demo_runs() -> None:
    assert (examples() / "claims_agent.py").exists()
    assert (examples() / "claims.json").exists()


def test_without_typer_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from perdure.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip() == 'perdure: the command line needs typer: pip install "perdure[cli]"'

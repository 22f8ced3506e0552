"""A program's own loggers write marks in place of secrets: by the command line, and where its handlers are told."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.hosting import run_async

import perdure

VALUE = "sk~own/secret=1234"

PROGRAM = """\
import logging
import perdure

log = logging.getLogger("shop.deep")

@perdure.step(secrets={"own-key"})
async def pays() -> str:
    key = perdure.secret("own-key")
    log.warning("paying with %s", key)
    try:
        raise ValueError(f"declined: {key}")
    except ValueError:
        log.exception("not paid")
    log.error("%s of", key, key)
    return "done"

@perdure.workflow
async def shop() -> str:
    return await pays()

def providers():
    return [perdure.secrets.Environment()]
"""


def test_what_the_command_line_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *"-m perdure run shop.py:shop --store runs.db --secrets shop.py:providers".split()],
        cwd=tmp_path, env={**os.environ, "OWN_KEY": VALUE}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "paying with " in done.stderr
    assert "declined: " in done.stderr
    assert VALUE not in done.stderr


@pytest.fixture
def own() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    perdure.hide_secrets(handler)
    log = logging.getLogger("tests.own")
    log.addHandler(handler)
    yield log, written
    log.removeHandler(handler)


@perdure.workflow
async def nothing() -> None: ...


def test_what_a_handler_writes_that_was_told(
    own: tuple[logging.Logger, io.StringIO], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log, written = own
    monkeypatch.setenv("OWN_KEY", VALUE)

    async def main() -> None:
        providers = [perdure.secrets.Environment(prefix="OWN_")]
        async with perdure.Runtime(str(tmp_path / "runs.db"), workflows=[nothing], secrets=providers):
            log.warning("with %s", VALUE)
            log.warning("%d of", VALUE)  # which does not fit
            log.getChild("below").warning({"key": VALUE})

    run_async(main())
    lines = written.getvalue().splitlines()
    assert VALUE not in written.getvalue()
    assert len(lines) == 3
    assert lines[0].startswith("with ")
    assert lines[1] == "%d of"

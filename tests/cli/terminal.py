"""A folder with a program in it, and the command line: in this process, or in one of its own where that matters."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer.testing
from typer.testing import CliRunner, Result

from perdure.cli.app import app

SOURCE = Path(__file__).resolve().parents[2] / "src"
SECONDS_MAX = 60.0

typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]
"""All commands are made once, and not for each one that is typed: that takes ten times as long as most of them do."""

PERDURE = [sys.executable, "-P", "-m", "perdure"]
"""What the installed command does: it does not look for modules in the working directory."""

APP = '''
    """Steps note that they run; step 3 of `count` waits for a file called `go`."""

    import asyncio, pathlib, time
    from dataclasses import dataclass
    import perdure
    from perdure import Retry, step, workflow

    @dataclass
    class Claim:
        id: str
        amount: int = 5

    @step
    def note(number: int) -> int:
        with open("notes", "a") as notes:
            notes.write(f"{number}\\n")
        while number == 3 and not pathlib.Path("go").exists():
            time.sleep(0.01)
        return number

    @step(retry=Retry(max_attempts=2, first_delay=0))
    async def judge(amount: int) -> int:
        raise perdure.NeedsPerson("a hard case")

    @step
    async def breaks() -> None:
        raise perdure.Final("broken\\non purpose")

    @workflow(version=3)
    async def count(to: int) -> int:
        return sum([await note.call(number) for number in range(to)])

    @workflow
    async def greet(name: str = "you", times: int = 1) -> str:
        return " ".join(["hello", *[name] * times])

    @workflow
    async def trial(claim: Claim) -> dict[str, int]:
        return {claim.id: await judge(claim.amount)}

    @step
    async def name_of(number: int) -> str:
        raise perdure.NeedsPerson("who is that")

    @workflow
    async def names() -> str:
        return await name_of(1) + "!"

    @workflow
    async def fails() -> None:
        await breaks()

    @workflow
    async def echo() -> str:
        return await perdure.receive("text", str)

    @workflow(receives={"yes": bool})
    async def asks() -> bool:
        return await perdure.receive("yes")

    @workflow
    async def parent() -> None:
        await fails()

    @workflow
    async def hangs() -> None:
        await asyncio.Event().wait()
'''


def until(look: Callable[[], object], what: str) -> None:
    """Wait for something that can be seen, and no longer than a minute."""
    end = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < end, f"this did not happen: {what}"
        time.sleep(0.01)


@dataclass(frozen=True)
class Begun:
    """A command under way, and the file that all of its output goes to."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def says(self, text: str) -> None:
        """Wait until it has said that."""
        until(lambda: text in self.said or self.process.poll() is not None, f"it says {text!r}")
        assert text in self.said, self.said

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(SECONDS_MAX)


@dataclass(frozen=True)
class Terminal:
    """A folder, and what is typed in it."""

    folder: Path

    @property
    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().split() if path.exists() else []

    def go(self) -> None:
        """Let step 3 of `count` end."""
        (self.folder / "go").touch()

    def here(self, *args: str, input: str | None = None) -> Result:
        """`perdure ...` in this process."""
        return CliRunner().invoke(app, list(args), input=input, prog_name="perdure")

    def run(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """`perdure ...` in a process of its own, which has to end with that exit code."""
        done = subprocess.run(
            self._command(args), cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX
        )
        assert done.returncode == code, done
        return done

    @contextmanager
    def begun(self, *args: str) -> Generator[Begun, None, None]:
        """`perdure ...` in a process of its own, which does not outlive the block."""
        log = self.folder / f"{args[0]}-{time.monotonic_ns()}.log"
        with (
            log.open("w") as output,
            subprocess.Popen(
                self._command(args), cwd=self.folder, env=environment(), stdout=output, stderr=output, text=True
            ) as process,
        ):
            try:
                yield Begun(process, log)
            finally:
                process.kill()

    def _command(self, args: tuple[str, ...]) -> list[str]:
        return [*PERDURE, *args]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**kept, "PYTHONPATH": str(SOURCE), "COLUMNS": "120"}


def one_line(result: Result) -> str:
    """What stands on stderr, which is one line, without a traceback."""
    assert re.fullmatch(r"perdure: [^\n]+\n", result.stderr), result.stderr
    return result.stderr.removeprefix("perdure: ").strip()

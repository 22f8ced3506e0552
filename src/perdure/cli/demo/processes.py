"""The processes of the demo: services that end with us, workers that are nothing but `python claims_agent.py`, and the
commands that a person types.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.cli.demo.figures import Payment, Sending

HERE = Path(__file__).resolve().parent
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
REQUEST_SECONDS_MAX = 100.0
AGENT, CLAIMS = "claims_agent.py", "claims.json"


def examples() -> Path:
    """The folder with the agent and its claims: the one of the checkout, else the copy that was installed with us."""
    checkout = HERE.parents[3] / "examples"
    return checkout if (checkout / AGENT).exists() else HERE / "examples"


@dataclass(frozen=True)
class Service:
    """A running service, asked by HTTP."""

    name: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def records(self, *, only_unanswered: bool = False) -> list[Sending]:
        path = "/records?unanswered=1" if only_unanswered else "/records"
        with DIRECT.open(self.url + path, timeout=REQUEST_SECONDS_MAX) as response:
            return [Sending.read(self.name, record) for record in json.load(response)["requests"]]

    def books(self, *, who: str, claim: str | None = None) -> list[Payment]:
        """What the payments service has paid, for one claim or for all, as it tells anybody who asks."""
        request = urllib.request.Request(self.url + "/payments" + (f"?claim={claim}" if claim else ""))
        request.add_header("User-Agent", f"{who}/{os.getpid()}")
        with DIRECT.open(request, timeout=REQUEST_SECONDS_MAX) as response:
            return [Payment.read(row) for row in json.load(response)["payments"]]

    def post(self, path: str, body: Mapping[str, object], *, who: str) -> dict[str, Any]:
        """Its answer to what somebody sends who is not the agent."""
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), method="POST")
        request.add_header("User-Agent", f"{who}/{os.getpid()}")
        with DIRECT.open(request, timeout=REQUEST_SECONDS_MAX) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def answer_to(self, sending: Sending) -> str:
        """What the model says when this request is sent once more."""
        request = urllib.request.Request(self.url + sending.path, data=sending.body.encode(), method=sending.method)
        request.add_header("Authorization", "Bearer curious")
        with DIRECT.open(request, timeout=REQUEST_SECONDS_MAX) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])


def service(name: str, directory: Path, *options: str) -> AbstractContextManager[Service]:
    """Start a service of services.py; it ends when the block does, or when this process dies in whatever way."""
    program = ["-I", str(HERE / "services.py"), name, "--database", str(directory / f"{name}.db")]
    return serving(name, directory / f"{name}.log", *program, *options)


@contextmanager
def serving(
    name: str, log_file: Path, *arguments: str, environment: Mapping[str, str] = os.environ
) -> Generator[Service, None, None]:
    """The same for any Python program that serves as those do."""
    command = [sys.executable, *arguments]
    with (
        log_file.open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=dict(environment)
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Service(name, int(process.stdout.readline()))
        finally:
            process.stdin.close()


@dataclass(frozen=True)
class Worker:
    """A process that runs the agent, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace").strip()

    def is_ready(self) -> bool:
        return "ready" in self.said().split()

    def has_ended(self) -> bool:
        return self.process.poll() is not None


@contextmanager
def worker(number: int, agent: Path, directory: Path, environment: Mapping[str, str]) -> Generator[Worker, None, None]:
    """Start the agent on the store in `directory`; whatever is left of it is killed when the block ends."""
    command: list[Any] = [sys.executable, agent, directory / "perdure.db", examples() / CLAIMS]
    log = directory / f"worker-{number}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment)
        )
    try:
        yield Worker(process, log)
    finally:
        process.kill()
        process.wait()


def command_here() -> str:
    """How `perdure` is called in the shell that called us: the virtual environment may not be on its path."""
    if shutil.which("perdure"):
        return "perdure"
    beside = Path(sys.executable).with_name("perdure")
    return shlex.quote(str(beside)) if beside.exists() else f"{shlex.quote(sys.executable)} -m perdure"


@dataclass(frozen=True)
class Typed:
    """A command line that was typed, and what came of it."""

    words: tuple[str, ...]
    status: int
    shown: str

    def __str__(self) -> str:
        return f"$ {shlex.join(self.words)}\n{self.shown}"


def type_command(words: Sequence[str], environment: Mapping[str, str], *, seconds_max: float) -> Typed:
    """Run `perdure ...` as a person would in a terminal."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=seconds_max, check=False,
    )  # fmt: skip
    return Typed(tuple(words), done.returncode, done.stdout.strip())

"""What `perdure code check` does in several processes: each checks a part of the histories; the report is the same.

A part is told to its process on stdin, and comes back on stdout as what was found. A process that does not bring its
part back is replaced by this one: what it can say of its part, it then says itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, cast

import msgspec

from perdure.cli.options import any_store
from perdure.store.protocol import RunInfo, Store

if TYPE_CHECKING:
    from perdure.api.checking import Checked
    from perdure.specs import WorkflowSpec

PROCESSES_MAX = 4
HISTORIES_PER_PROCESS = 300
"""What takes longer than to start another process and to load an application in it."""


class Code(msgspec.Struct, frozen=True):
    """What histories are held against."""

    targets: tuple[str, ...]
    prompt_release: str | None = None
    model_policy_version: str | None = None

    def specs(self) -> list[WorkflowSpec]:
        """Its workflows. CommandError if it cannot be loaded."""
        from perdure.api.surroundings import surroundings, within
        from perdure.cli.target import workflows_at

        around = surroundings(
            "check", prompt_release=self.prompt_release, model_policy_version=self.model_policy_version
        )
        return [within(workflow.spec, around) for workflow in workflows_at(self.targets)]


class OfStore(msgspec.Struct, frozen=True, tag=True):
    """Runs of a store."""

    code: Code
    url: str
    runs: list[RunInfo]

    @property
    def length(self) -> int:
        return len(self.runs)

    def part(self, number: int, of: int) -> OfStore:
        """Every so-many-eth of them."""
        runs = [info._replace(waiting=None, state=None) for info in self.runs[number::of]]
        return msgspec.structs.replace(self, runs=runs)

    def check(self, store: Store | None = None) -> list[Checked]:
        """What becomes of them. `store`: open already."""
        from perdure.api.checking import check_runs

        if store is not None:
            return list(check_runs(store, self.runs, self.code.specs()))
        with any_store(self.url) as opened:
            return self.check(opened)


class OfFolder(msgspec.Struct, frozen=True, tag=True):
    """Histories in files."""

    code: Code
    files: list[str]

    @property
    def length(self) -> int:
        return len(self.files)

    def part(self, number: int, of: int) -> OfFolder:
        """Every so-many-eth of them."""
        return msgspec.structs.replace(self, files=self.files[number::of])

    def check(self, _store: Store | None = None) -> list[Checked]:
        """What becomes of them."""
        from perdure.api.checking import check_histories
        from perdure.api.histories import read

        files = (read(Path(path)) for path in self.files)
        return list(check_histories(((file.stored(), file) for file in files), self.code.specs()))


Histories: TypeAlias = OfStore | OfFolder


def together(histories: Histories, store: Store | None = None) -> list[Checked]:
    """What becomes of all these histories, by as many processes as pay, in the order in which they are given."""
    of = min(os.cpu_count() or 1, PROCESSES_MAX, 1 + histories.length // HISTORIES_PER_PROCESS)
    if of == 1:
        return histories.check(store)
    parts = [histories.part(number, of) for number in range(of)]
    others = [_begin(part) for part in parts[1:]]
    try:
        found = [parts[0].check(store)]
        for part, process in zip(parts[1:], others, strict=True):
            brought = _brought_back(process, part)
            found.append(part.check(store) if brought is None else brought)
    finally:
        for process in others:
            with process:
                process.kill()
    return [found[number % of][number // of] for number in range(histories.length)]


def _begin(part: Histories) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "perdure.cli.parts"]
    process = subprocess.Popen(  # noqa: S603  # this Python, with a module of ours
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as told:
        told.write(msgspec.json.encode(part))
    process.stdin = None
    return process


def _brought_back(process: subprocess.Popen[bytes], part: Histories) -> list[Checked] | None:
    """What the other process has found; None if that is not all of it."""
    from perdure.api.checking import Checked

    said, _ = process.communicate()
    if process.returncode != 0:
        return None
    found = msgspec.json.decode(said, type=list[Checked])
    return found if len(found) == part.length else None


def main() -> None:
    """In the other process. What the application prints while it is loaded is no part of the answer."""
    answer = os.dup(1)
    os.dup2(2, 1)
    part = msgspec.json.decode(sys.stdin.buffer.read(), type=Histories)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # for as long as the process lives
    with open(answer, "wb") as file:
        file.write(msgspec.json.encode(part.check()))


if __name__ == "__main__":
    main()

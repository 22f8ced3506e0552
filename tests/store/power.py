"""What a disk has when the power goes: told by the calls of the system that a process made, as strace wrote them down.

    traced = trace([python, "program.py"], folder, names={"p.db", "p.db-wal"})
    for cut in range(len(traced)):
        traced.disk_at(cut).leave(files, kept=...)

What was written before an fsync of its file began is on the disk once that fsync has returned. Of what was written
since, any sector of 512 bytes may be there or not, in any order. A file that was made or removed is that for certain
after an fsync of its folder. What the program said (`say`) is in the same account: whoever heard it may rely on it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
CALLS = "openat,pwrite64,write,ftruncate,fsync,fdatasync,unlink,rename"
SAYS = b"say: "


@dataclass(frozen=True)
class Made:
    """A file of this name was opened, and made if it was not there."""

    name: str


@dataclass(frozen=True)
class Removed:
    name: str


@dataclass(frozen=True)
class Renamed:
    """The file has the name `name` now, and is what that name stands for."""

    before: str
    name: str


@dataclass(frozen=True)
class Wrote:
    name: str
    offset: int
    content: bytes


@dataclass(frozen=True)
class Cut:
    """The file was made this long."""

    name: str
    length: int


@dataclass(frozen=True)
class Synced:
    """An fsync of a file, or of the folder (""), returned; it began after the first `began` calls."""

    name: str
    began: int


@dataclass(frozen=True)
class Said:
    text: str


Change = Made | Removed | Renamed | Wrote | Cut
Happened = Change | Synced | Said


def say(text: str) -> None:
    """Tell the outside something that it may rely on from now on."""
    os.write(1, SAYS + text.encode() + b"\n")


def trace(command: Sequence[str], folder: Path, names: set[str], *, env: dict[str, str]) -> list[Happened]:
    """Run a program in a folder, and give all that happened to these files of it, in order."""
    told = folder / "trace"
    subprocess.run(
        [
            "strace", "-f", "-qq", "-y", "-xx", "-s", "10000000", "-e", f"trace={CALLS}", "-e", "signal=none",
            "-o", str(told), *command,
        ],
        cwd=folder, env=env, check=True, timeout=300, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with told.open() as lines:
        happened = list(_happened(lines, str(folder), names))
    told.unlink()
    return happened


# ── what strace writes ───────────────────────────────────────────────────────────────────────
_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)", re.DOTALL)
_FILE = re.compile(r"(?:AT_FDCWD|\d+)(?:<([^>]*)>)?")


def _happened(lines: Iterator[str], folder: str, names: set[str]) -> Iterator[Happened]:
    begun: dict[tuple[str, str], tuple[str, int]] = {}
    count = 0
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        thread, resumed, call, rest = match.groups()
        if resumed is not None:
            before, began = begun.pop((thread, resumed), ("", count))
            call, rest = resumed, before + rest
        elif rest.rstrip().endswith("<unfinished ...>"):
            begun[(thread, call)] = rest.rstrip().removesuffix("<unfinished ...>"), count
            continue
        else:
            began = count
        for each in _of_call(call, rest, began, folder, names):
            count += 1
            yield each


def _of_call(call: str, rest: str, began: int, folder: str, names: set[str]) -> Iterator[Happened]:
    given, _, result = rest.rpartition(" = ")
    if result.startswith("-1"):
        return
    parts = given.rstrip().removesuffix(")").split(", ")
    match = _FILE.match(parts[0])
    path = _text(match[1]) if match is not None and match[1] else ""
    name = "" if path == folder else os.path.basename(path)
    is_ours = name in names and os.path.dirname(path) == folder
    match call:
        case "openat" if "O_CREAT" in given and os.path.basename(_text(parts[1])) in names:
            yield Made(os.path.basename(_text(parts[1])))
        case "unlink" if os.path.basename(_text(parts[0])) in names:
            yield Removed(os.path.basename(_text(parts[0])))
        case "rename" if os.path.basename(_text(parts[1])) in names:
            yield Renamed(os.path.basename(_text(parts[0])), os.path.basename(_text(parts[1])))
        case "pwrite64" if is_ours:
            yield Wrote(name, int(parts[3]), _content(parts[1]))
        case "write" if is_ours:
            raise AssertionError(f"where this was written is not known: {given[:200]}")
        case "write" if parts[0].startswith("1<") and _content(parts[1]).startswith(SAYS):
            for told in _content(parts[1]).splitlines():
                yield Said(told.removeprefix(SAYS).decode())
        case "ftruncate" if is_ours:
            yield Cut(name, int(parts[1]))
        case "fsync" | "fdatasync" if is_ours or path == folder:
            yield Synced(name, began)
        case _:
            pass


def _content(part: str) -> bytes:
    return bytes.fromhex(part.strip().strip('"').replace("\\x", ""))


def _text(part: str) -> str:
    return _content(part).decode() if "\\x" in part else part.strip('"')


# ── the disk ─────────────────────────────────────────────────────────────────────────────────
@dataclass
class Files:
    """What the files contain, each by a number of its own, and which of them the names in the folder stand for. The two
    reach the disk each for itself."""

    contents: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    names: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, change: Change, file: int) -> None:
        match change:
            case Made() | Renamed():
                self.names[change.name] = file
                if isinstance(change, Renamed):
                    self.names.pop(change.before, None)
            case Removed():
                self.names.pop(change.name, None)
            case Wrote() | Cut():
                there = self.contents.setdefault(file, bytearray())
                end = change.length if isinstance(change, Cut) else change.offset + len(change.content)
                there.extend(bytes(max(0, end - len(there))))
                if isinstance(change, Cut):
                    del there[end:]
                else:
                    there[change.offset : end] = change.content


@dataclass
class Disk:
    """What is certainly there, what may be, and what was said so far."""

    certain: Files = field(default_factory=Files)
    pending: list[tuple[int, int, Change]] = field(default_factory=list[tuple[int, int, Change]])
    said: list[str] = field(default_factory=list[str])
    count: int = 0
    files: dict[str, int] = field(default_factory=dict[str, int])
    """What the names stand for just now."""

    def take(self, each: Happened) -> None:
        """One more thing has happened."""
        match each:
            case Said():
                self.said.append(each.text)
            case Synced():
                self._sync(each)
            case Made() if each.name in self.files:
                pass
            case _:
                self.pending.append((self.count, self._file_of(each), each))
        self.count += 1

    def _file_of(self, change: Change) -> int:
        match change:
            case Made():
                self.files[change.name] = self.count
            case Renamed():
                self.files[change.name] = self.files.pop(change.before)
            case Removed():
                return self.files.pop(change.name)
            case _:
                pass
        return self.files[change.name]

    def _sync(self, synced: Synced) -> None:
        left: list[tuple[int, int, Change]] = []
        for n, file, each in self.pending:
            is_of_folder = isinstance(each, Made | Removed | Renamed)
            is_about = is_of_folder if not synced.name else not is_of_folder and file == self.files[synced.name]
            if is_about and n < synced.began:
                self.certain.take(each, file)
            else:
                left.append((n, file, each))
        self.pending = left

    def leave(self, folder: Path, chance: float, choice: random.Random) -> None:
        """Put down what the disk has after the power went. `chance`: that something is there that need not be."""
        files = Files({file: bytearray(each) for file, each in self.certain.contents.items()}, dict(self.certain.names))
        for _, file, each in self.pending:
            for piece in _pieces(each):
                if choice.random() < chance:
                    files.take(piece, file)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, file in files.names.items():
            (folder / name).write_bytes(files.contents.get(file, b""))


def _pieces(each: Change) -> Iterator[Change]:
    if not isinstance(each, Wrote):
        yield each
        return
    at, end = each.offset, each.offset + len(each.content)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield Wrote(each.name, at, each.content[at - each.offset : until - each.offset])
        at = until

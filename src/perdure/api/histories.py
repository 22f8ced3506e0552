"""Histories as files: one run each, so that a check needs no store, and old ones can be kept beside the tests.

A file holds what a replay needs: the run's index row, its rows, and the payloads that do not stand beside them. It is
JSON, bytes in base64. The payloads are in it as they are: who may not read the store may not read the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from perdure.codec import unpack
from perdure.errors import HistoryCorruptError
from perdure.history import events as e
from perdure.store.protocol import FINAL, UNFINISHED, Filter, Row, RunInfo, Status, Store, Stored, every_run

FORMAT = 1


class HistoryFile(msgspec.Struct, frozen=True):
    """One run's current chapter. `blobs`: by address, in hexadecimal."""

    format: int
    run_id: str
    workflow: str
    version: int
    status: Status
    length: int
    head: bytes
    rows: tuple[Row, ...]
    blobs: dict[str, bytes] = {}
    waiting: bytes | None = None

    def stored(self) -> Stored:
        """As a store would give it."""
        info = RunInfo(
            0, self.run_id, self.workflow, self.version, self.status, None, None, None, 0, b"", self.rows[0].at,
            self.rows[-1].at, None, None, {}, self.rows[0].seq, self.waiting, None,
        )  # fmt: skip
        return Stored(info, self.length, self.head, self.rows)

    def blob(self, rid: int, address: bytes) -> bytes:
        """What stands under an address. HistoryCorruptError if the file does not have it."""
        try:
            return self.blobs[address.hex()]
        except KeyError:
            raise HistoryCorruptError(f"run {self.run_id}: the file has no payload {address.hex()[:12]}") from None


def exported(store: Store, info: RunInfo) -> HistoryFile:
    """A run of a store as a file. HistoryCorruptError if it cannot be read."""
    stored = store.load(info.rid)
    blobs: dict[str, bytes] = {}

    def fetch(address: bytes) -> bytes:
        found = blobs[address.hex()] = store.blob(info.rid, address)
        return found

    for row in stored.rows:
        event = e.decode(row.envelope)
        for slot, beside in (("input", row.input), ("output", row.output)):
            address: bytes | None = getattr(event, slot, None)
            if address and beside is None and (slot == "output" or getattr(event, "kept", True)):
                unpack(address, None, fetch)
    now = stored.info
    return HistoryFile(
        FORMAT, now.run_id, now.workflow, now.version, now.status, stored.length, stored.head, tuple(stored.rows),
        blobs, now.waiting,
    )  # fmt: skip


def export(store: Store, folder: Path, *, workflows: Iterable[str] = (), finished_max: int = 0) -> Iterator[Path]:
    """Write every run that has not ended, and the newest of those that have, into a folder; of these workflows, or of
    all. Gives the path of each. A run whose file is there is written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    names = frozenset(workflows)
    ended = store.runs(Filter(status=FINAL, limit=finished_max)) if finished_max else []
    for info in itertools.chain(every_run(store, Filter(status=UNFINISHED)), ended):
        if not names or info.workflow in names:
            path = folder / f"{info.workflow}-{info.rid}.json"
            path.write_bytes(msgspec.json.encode(exported(store, info)))
            yield path


def read(path: Path) -> HistoryFile:
    """The history in a file. HistoryCorruptError that says what is wrong with it."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=HistoryFile)
    except msgspec.MsgspecError as error:
        raise HistoryCorruptError(f"{path} holds no history that `perdure store histories` wrote: {error}") from None
    if file.format > FORMAT or not file.rows:
        raise HistoryCorruptError(f"{path} is of format {file.format}; this perdure reads up to {FORMAT}")
    return file

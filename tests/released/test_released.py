"""What every released version wrote is read, replayed and gone on with by this one."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tests.contract.code import module_of
from tests.released.write import HERE, PROGRAM, STORE, write

from perdure.api.checking import check_histories, check_store
from perdure.api.histories import exported
from perdure.audit.verify import verify
from perdure.history import events as e
from perdure.history import upcasting
from perdure.history.chain import GENESIS, link
from perdure.history.upcasting import Fields
from perdure.store import open_store
from perdure.store.protocol import Row

VERSIONS = sorted(path.parent for path in HERE.glob(f"*/{STORE}"))


def loaded(folder: Path) -> Any:
    """The program whose runs lie in the folder."""
    return module_of(folder, (folder / PROGRAM).read_text(encoding="utf-8"))


def check(folder: Path) -> None:
    program, path = loaded(folder), str(folder / STORE)
    assert sound(path) > len(program.GOES_ON)
    store = open_store(path)
    try:
        found = {each.run_id: each for each in check_store(store, [each.spec for each in program.WORKFLOWS])}
    finally:
        store.close()
    assert set(program.GOES_ON) | set(program.ENDED) <= set(found)
    others = {run_id: each.why for run_id, each in found.items() if each.outlook != "replays"}
    assert {"hosted"} <= set(others) <= {"hosted", "trip", "passes on"}
    assert set(others.values()) == {"its hosted code is replayed only where the run is executed"}
    results = asyncio.run(program.go_on(path, program.STARTED + timedelta(days=1)))
    assert results == {run_id: result for run_id, (_, result) in program.GOES_ON.items()} | program.ENDED
    sound(path)


def sound(path: str) -> int:
    """How many runs are in a store in which all is as it was written."""
    store = open_store(path)
    try:
        report = verify(store, progress=lambda _: None)
    finally:
        store.close()
    assert not report.damage
    return report.runs


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_what_a_released_version_wrote_goes_on(version: Path, tmp_path: Path) -> None:
    folder = tmp_path / version.name
    shutil.copytree(version, folder)
    check(folder)


def test_what_this_version_would_write_goes_on(tmp_path: Path) -> None:
    """Where the program has grown since the last version, so that the next one can be written."""
    if is_kept():
        return
    write(tmp_path / "next")
    check(tmp_path / "next")
    assert kinds(tmp_path / "next" / STORE) == KINDS, "add to tests/released/program.py what is missing"


def is_kept() -> bool:
    """Whether today's program is that of some version."""
    texts = [(version / PROGRAM).read_text(encoding="utf-8") for version in VERSIONS]
    return (HERE / "program.py").read_text(encoding="utf-8") in texts


KINDS = {str(kind.__struct_config__.tag) for kind in get_args(e.AnyEvent)}


def test_every_kind_of_event_is_kept() -> None:
    """Of a new one a run is recorded before the next version is written; until then it is by the test above."""
    if is_kept():
        assert kinds(VERSIONS[-1] / STORE) == KINDS, "add to tests/released/program.py what is missing"


def kinds(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as store:
        return {kind for (kind,) in store.execute("SELECT DISTINCT kind FROM events")}


# ── kinds that no version writes any more ───────────────────────────────────────────────────


def _from_the_first(fields: Fields) -> Fields:
    return {**fields, "event": "step.done", "name": fields["step"]}


def _from_the_second(fields: Fields) -> Fields:
    return {**fields, "event": "step.completed"}


OLD = msgspec.json.encode({"event": "step.over", "task": "0", "n": 0, "step": "search", "use": 1})


def test_an_old_kind_is_read_as_what_it_is_today(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"step\.over"):
        e.decode(OLD)
    monkeypatch.setattr(upcasting, "UPCASTERS", {"step.over": _from_the_first, "step.done": _from_the_second})
    today = e.StepCompleted("0", 0, "search", 1)
    assert e.decode(OLD) == today
    assert e.readable(OLD, "step.over") == today
    assert e.readable(OLD, "step.failed") is None
    for damaged in (b"{}", b"[]", b'{"event":"step.over"', b'{"event":"step.never"}', b'{"event":3}'):
        with pytest.raises(msgspec.MsgspecError):
            e.decode(damaged)


def test_a_history_with_an_old_kind_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every result of a step had been written by a version that called it, and its name, otherwise."""
    folder = tmp_path / VERSIONS[-1].name
    shutil.copytree(VERSIONS[-1], folder)
    workflows = [each.spec for each in loaded(folder).WORKFLOWS]
    store = open_store(str(folder / STORE))
    try:
        info = store.find("finished")
        assert info is not None
        file = exported(store, info)
    finally:
        store.close()
    file = msgspec.structs.replace(file, rows=tuple(as_it_was_called(file.rows)))
    (found,) = check_histories([(file.stored(), file)], workflows)
    assert (found.outlook, found.reason) == ("breaks", "undecodable")
    monkeypatch.setattr(upcasting, "UPCASTERS", {"step.over": _as_it_is_called})
    (found,) = check_histories([(file.stored(), file)], workflows)
    assert found.outlook == "replays", found
    assert all(e.readable(row.envelope, row.kind) for row in file.rows)


def as_it_was_called(rows: Iterable[Row]) -> Iterator[Row]:
    before = GENESIS
    for row in rows:
        kind, envelope = row.kind, row.envelope
        if kind == "step.completed":
            fields = msgspec.json.decode(envelope, type=Fields)
            kind, fields["event"], fields["step"] = "step.over", "step.over", fields.pop("name")
            envelope = msgspec.json.encode(fields)
        before = link(before, row.seq, row.at, envelope)
        yield msgspec.structs.replace(row, kind=kind, envelope=envelope, hash=before)


def _as_it_is_called(fields: Fields) -> Fields:
    return {**fields, "event": "step.completed", "name": fields["step"]}

"""Is what the store holds what was written? Every hash is computed again, from the first event of every run on.

It reads only, and may be used while runs go on: what is appended meanwhile is left for the next time. It finds what was
altered or lost inside the file, and where a run's status, its history, the ledger and the table of approvals disagree.
It cannot find a tail that was cut off together with the index row's idea of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from perdure.codec import digest, unpack
from perdure.engine.agreement import disagreements, told_of_effects
from perdure.engine.asked import disagreements_of_requests, told_of_requests
from perdure.errors import HistoryCorruptError
from perdure.history import events as e
from perdure.history.chain import GENESIS, link
from perdure.store.protocol import ApprovalFilter, EffectFilter, Row, RunInfo, Status, Store, Stored

ROWS_MAX = 2**31 - 1
"""More than any run has."""


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was written. `seq` is the event, if it is one; `run_id` is "" for the file itself."""

    run_id: str
    seq: int | None
    what: str

    def __str__(self) -> str:
        where = f"run {self.run_id}" if self.run_id else "the store"
        return f"{where}{'' if self.seq is None else f', event {self.seq}'}: {self.what}"


@dataclass(frozen=True)
class Report:
    """What was looked at and what was found. Of pruned runs there is only the head of the chain: nothing to compare."""

    runs: int
    events: int
    pruned: int
    damage: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        return not self.damage


def verify(store: Store, *, progress: Callable[[int], None] | None = None) -> Report:
    """Check all runs of the store. `progress` is told how many are done."""
    runs = events = pruned = 0
    damage: list[Damage] = []
    try:
        for run_id, rid, length, head in store.heads():
            info = store.find(run_id)
            if info is None or info.rid != rid:
                pruned += 1
                continue
            try:
                stored = store.load(rid, from_seq=0)
            except HistoryCorruptError as error:
                damage.append(Damage(run_id, None, str(error)))
            else:
                events += len(stored.rows)
                damage += _damage_of(store, stored, length, head)
            runs += 1
            if progress is not None:
                progress(runs)
    except HistoryCorruptError as error:
        damage.append(Damage("", None, str(error)))
    return Report(runs, events, pruned, tuple(damage))


def _damage_of(store: Store, stored: Stored, length: int, head: bytes) -> Iterator[Damage]:
    """What is wrong with one run."""
    tell = partial(Damage, stored.info.run_id)
    rows = stored.rows
    if len(rows) < length or not length or rows[length - 1].hash != head:
        yield tell(None, f"the index says {length} events with another last one; there are {len(rows)}")
    events: list[e.Event | None] = []
    previous = GENESIS
    for seq, row in enumerate(rows):
        if row.seq != seq:
            yield tell(seq, f"missing: the next one there is {row.seq}")
            return
        if row.kind == "run.forked" and not _is_forked_here(row, previous):
            yield tell(seq, "altered: what stands before it is not what it says was copied")
        if link(previous, seq, row.at, row.envelope) != row.hash:
            yield tell(seq, "altered: its hash is not the one that was recorded")
        previous = row.hash
        event = e.readable(row.envelope, row.kind)
        events.append(event)
        for what in ["cannot be read"] if event is None else _wrong_payloads(store, stored.info.rid, row, event):
            yield tell(seq, what)
    for what in _disagreements(stored.info, events):
        yield tell(None, what)
    ledger = store.effects(EffectFilter(rid=stored.info.rid, limit=ROWS_MAX))
    timed = list(zip(events, (row.at for row in rows), strict=True))
    requests = store.approvals(ApprovalFilter(rid=stored.info.rid, limit=ROWS_MAX))
    has_ended = stored.info.status.is_final
    yield from (tell(None, each.what) for each in disagreements(ledger, told_of_effects(timed), has_ended=has_ended))
    own = 0 if stored.info.forked_seq is None else stored.info.forked_seq + 1  # what was copied, the original asked
    told = told_of_requests(timed[own:])
    yield from (tell(None, each.what) for each in disagreements_of_requests(requests, told, has_ended=has_ended))


def _is_forked_here(row: Row, previous: bytes) -> bool:
    """Whether the last event of what was copied is the one that the fork names."""
    event = e.readable(row.envelope, row.kind)
    return not isinstance(event, e.RunForked) or (event.seq, event.head) == (row.seq - 1, previous.hex())


def _point(run_id: str | None, seq: int | None) -> str:
    return "no run" if run_id is None else f"run {run_id} after its event {seq}"


def _wrong_payloads(store: Store, rid: int, row: Row, event: e.Event) -> Iterator[str]:
    """What is wrong with the arguments and results beside an event, which its envelope names by digest."""
    for slot, inline in (("input", row.input), ("output", row.output)):
        address: bytes | None = getattr(event, slot, None)
        if inline is not None:
            if not address or digest(inline) != address:
                yield f"altered: its {slot} is not the one that was recorded"
        elif address and (slot == "output" or getattr(event, "kept", True)):
            try:
                unpack(address, None, partial(store.blob, rid))
            except HistoryCorruptError as error:
                yield f"its {slot}: {error}"


STATUS_OF_ENDING: dict[type[e.Event], Status] = {
    e.RunCompleted: Status.COMPLETED,
    e.RunFailed: Status.FAILED,
    e.RunCancelled: Status.CANCELLED,
}


def version_of(events: Sequence[e.Event | None]) -> Any:
    """As which version a history has its run: that of its beginning, or that under which its last chapter began, or to
    which it was moved since."""
    manifests = [event.manifest for event in events if _gives_a_version(event)]
    return next(
        (each["workflow_version"] for each in reversed(manifests) if "workflow_version" in each),
        getattr(events[0], "version", None),
    )


def _gives_a_version(event: e.Event | None) -> TypeGuard[e.Adopted | e.ChapterStarted]:
    return isinstance(event, e.ChapterStarted) or (isinstance(event, e.Adopted) and event.how == "moved")


def _disagreements(info: RunInfo, events: Sequence[e.Event | None]) -> Iterator[str]:
    """Where a run's index row says something else than its history."""
    first, last = (events[0], events[-1]) if events else (None, None)
    if not isinstance(first, e.RunStarted):
        yield "its history does not begin with a beginning"
    elif (first.workflow, version_of(events), first.identity) != (
        info.workflow, info.version, info.input_digest
    ) or (info.forked_from is None and first.parent != info.parent_run_id):  # fmt: skip
        yield "the index says another workflow, version, parent, input or scope than the history"
    forks = [event for event in events if isinstance(event, e.RunForked)]
    origin = (forks[-1].of, forks[-1].seq) if forks else (None, None)
    if origin != (info.forked_from, info.forked_seq):
        said = _point(info.forked_from, info.forked_seq)
        yield f"the index says that it was forked from {said}, the history from {_point(*origin)}"
    ending = STATUS_OF_ENDING.get(type(last)) if last is not None else None
    if ending != (info.status if info.status.is_final else None):
        yield f"the index says {info.status}, the history {ending or 'that it has not ended'}"

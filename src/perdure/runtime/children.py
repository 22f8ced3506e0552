"""Child runs of a run in memory: started, attached to, told that they are cancelled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from perdure.codec import Memo, dump_exception, pack
from perdure.engine.calls import ChildAsk, Grant, SectionAsk
from perdure.errors import AuthorityUnreadableError, PerdureError, RunConflictError, StoreError
from perdure.history import events as e
from perdure.runtime import mail
from perdure.runtime.beginnings import new_run
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.performer import UNREADABLE_MICROSECONDS
from perdure.specs import WorkflowSpec
from perdure.store.protocol import FIRST_EPOCH, Exists, NewRun, RunInfo, Watch

if TYPE_CHECKING:
    from perdure.engine.leftovers import Ended
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure")


class Children:
    """Starts the children of the runs in memory, and follows what is recorded of them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._looked_for: set[tuple[str, int]] = set()

    def start(self, live: LiveRun, ask: ChildAsk) -> None:
        """Start a child run: its first row and our note of it are one transaction."""
        if ask.is_started or ask.key in live.execution.known.children:
            return
        has_gone_back = live.execution.leftovers is not None
        if has_gone_back and self._turns.dismissing.waits(live, ask):
            return
        if ask.grant is not None and not self._is_approved(live, ask, ask.grant):
            return
        if has_gone_back and self._turns.dismissing.attaches(live, ask):
            return
        sibling = next((new for new in live.new_runs if new.run_id == ask.run_id), None)
        if sibling is not None:
            self._attach_to_sibling(live, ask, sibling)
            return
        now = max(self._turns.clock.now(), live.last_at)
        known = self._turns.catalog.get(ask.spec.key)
        if known is None and ask.spec.key not in self._looked_for:
            self._look_for_worker(live, ask.spec)
        is_ours = known is not None and not self._turns.is_stopping
        spec = known if known is not None and known.function is ask.spec.function else ask.spec
        new = new_run(
            spec, ask.run_id, ask.input, now=now, parent=live.run_id,
            owner=self._turns.worker if is_ours else None, scope=live.execution.beginning.scope,
            lineage=live.info.lineage,
        )  # fmt: skip
        live.new_runs += (new,)
        self._record(live, ask, is_attached=False)
        live.then += (partial(self._admit_soon, new, ask.input),)

    def _is_approved(self, live: LiveRun, ask: ChildAsk, grant: Grant) -> bool:
        """Whether the approval of a child holds still; then it is used up in the commit of its start. If not, its call
        fails."""
        try:
            refused = self._turns.approvals.begin(live, ask, grant)
        except (AuthorityUnreadableError, StoreError) as error:
            self._later(live, ask, error)
            return False
        if refused is not None:
            ask.is_started = True
            if live.execution.leftovers is not None:
                live.execution.leftovers.let_go(ask)
            live.entries.extend(_failed(Entry(_child_started(ask), ask.packed), refused))
            self._turns.mark(live)
        return refused is None

    def _later(self, live: LiveRun, ask: ChildAsk, error: PerdureError) -> None:
        """Whether it may be started cannot be told now. The run stays in memory until it can."""
        log.warning("run %s: %s waits, trying again: %s", live.run_id, ask.label, error)
        live.held += (ask,)
        self._turns.clock.wake_at(self._turns.clock.now() + UNREADABLE_MICROSECONDS, partial(self._again, live, ask))

    def _again(self, live: LiveRun, ask: ChildAsk) -> None:
        if live.is_in_turn:
            live.deferred += (partial(self._again, live, ask),)
            return
        is_hosted = ":" in ask.key[0]
        if live.is_gone or live.is_leaving or not (is_hosted or ask in live.held):
            return
        if live.is_parked and not is_hosted:  # it is started when that is over
            return
        live.held = tuple(held for held in live.held if held is not ask)
        try:
            if is_hosted:
                self._turns.sections.perform_again(live, ask.key)
            else:
                self._turns.perform(live, ask)
        except StoreError as problem:
            self._turns.contain(live, problem)

    def _look_for_worker(self, live: LiveRun, spec: WorkflowSpec) -> None:
        """A child that is not executed here waits for a worker that does; where there is none, not without a word."""
        self._looked_for.add(spec.key)
        with contextlib.suppress(StoreError):
            if not any(f"{spec.name}/{spec.version}" in worker.workflows for worker in self._turns.store.workers()):
                log.warning(
                    "run %s waits for a child, %s, that no worker executes now: add it to workflows=[...] here, or "
                    "start a worker that has it",
                    live.run_id, spec.label,
                )  # fmt: skip

    def _attach_to_sibling(self, live: LiveRun, ask: ChildAsk, sibling: NewRun) -> None:
        """Another call of the same turn has just asked for a child of this id."""
        identity = e.identity_of(ask.packed.digest, live.execution.beginning.scope)
        if (sibling.workflow, sibling.version, sibling.input_digest) == (*ask.spec.key, identity):
            self._record(live, ask, is_attached=True)
            return
        ask.is_started = True
        live.entries.extend(_refused(Entry(_child_started(ask), ask.packed), sibling))
        self._turns.mark(live)

    def _admit_soon(self, new: NewRun, input_raw: bytes) -> None:
        self._turns.loop.call_soon(self._admit, new, input_raw)

    def _admit(self, new: NewRun, input_raw: bytes) -> None:
        """Whose it is, is looked up and acted upon in one go: in between it might be given back, and be another's."""
        try:
            info = self._turns.store.find(new.run_id)
        except StoreError:
            self._turns.on_trouble()
            return
        if info is None or (info.owner, info.epoch) != (self._turns.worker, FIRST_EPOCH):
            return
        if info.rid not in self._turns.live:
            self._turns.admit_new(info, new, input_raw)

    def attach(self, live: LiveRun, ask: ChildAsk, ended: Ended | None) -> None:
        """The run has gone back, and asks again for a child that it has started before: who watches it is told still;
        if it has ended, that is had again."""
        self._turns.on_child(ask.run_id)
        ask.is_started = True
        live.record(_child_started(ask, is_attached=True), input=ask.packed)
        if ended is not None:
            output = pack(ended.output, live.execution.memo)
            of = (*ask.key, ask.name, ask.use)
            event = e.ChildEnded(*of, ask.run_id, ended.status, output.digest)
            live.record(event, raw=ended.output, output=output, delivers=True)
        self._turns.mark(live)

    def _record(self, live: LiveRun, ask: ChildAsk, *, is_attached: bool) -> None:
        self._turns.on_child(ask.run_id)
        ask.is_started = True
        live.watches += (Watch(ask.run_id, live.rid, mail.child_key(ask)),)
        live.execution.children[ask.key] = ask.run_id
        live.record(_child_started(ask, is_attached=is_attached), input=ask.packed)
        self._turns.mark(live)

    def exists(self, live: LiveRun, taken: Exists) -> None:
        """A child's id is in use: attach to it if it is the same work, else that call fails. All else goes again."""
        written = live.landed()
        other = taken.run
        new = next(n for n in written.append.new_runs if n.run_id == other.run_id)
        same = (other.workflow, other.version, other.input_digest) == (new.workflow, new.version, new.input_digest)
        settled = {entry.event.key for entry in written.entries if isinstance(entry.event, e.ChildEnded)}
        entries: list[Entry] = []
        for entry in written.entries:
            event = entry.event
            if isinstance(event, e.ChildStarted) and event.run_id == other.run_id and event.key not in settled:
                entries.extend(_attached(entry) if same else _refused(entry, other))
            else:
                entries.append(entry)
        append = msgspec.structs.replace(
            written.append,
            new_runs=tuple(n for n in written.append.new_runs if n is not new),
            watches=tuple(w for w in written.append.watches if same or w.run_id != other.run_id),
        )
        then = tuple(then for then in written.then if not _is_about(then, new))
        live.take_back(msgspec.structs.replace(written, append=append, entries=entries, then=then))
        self._turns.mark(live)

    def tell(self, live: LiveRun, run_ids: Iterable[str]) -> None:
        """Cancel these child runs, in the same commit."""
        for run_id in run_ids:
            live.letters += (mail.from_parent(run_id, now=self._turns.clock.now()),)
            live.then += (self._turns.on_letters,)

    def left(self, live: LiveRun) -> list[str]:
        """Ids of child runs that are not to outlive this one, where its code cannot cancel them any more."""
        execution = live.execution
        asks = [ask for ask in execution.open.values() if isinstance(ask, ChildAsk) and ask.is_started]
        sections = [ask.key for ask in execution.open.values() if isinstance(ask, SectionAsk)]
        unclaimed = [c for key, c in execution.known.children.items() if key not in execution.children]
        leftovers = [] if execution.leftovers is None else execution.leftovers.to_be_told()
        return [
            *(child.run_id for child in leftovers),
            *(ask.run_id for ask in asks if ask.on_cancel == "wait"),
            *(run_id for key in sections for run_id in self._turns.sections.children_left(live, key)),
            *(child.run_id for child in unclaimed if child.on_cancel == "wait" and not child.is_in_section),
        ]


def _attached(entry: Entry) -> list[Entry]:
    return [msgspec.structs.replace(entry, event=msgspec.structs.replace(entry.event, attached=True))]


def _is_about(follow_up: Callable[[], None], new: NewRun) -> bool:
    """Whether it takes up a child that was not created after all: its id belongs to another run."""
    return isinstance(follow_up, partial) and any(argument is new for argument in follow_up.args)


def _child_started(ask: ChildAsk, *, is_attached: bool = False) -> e.ChildStarted:
    return e.ChildStarted(
        *ask.key, ask.name, ask.use, ask.run_id, ask.spec.version, ask.packed.digest, ask.on_cancel, is_attached,
        ask.again,
    )  # fmt: skip


def _refused(entry: Entry, other: RunInfo | NewRun) -> list[Entry]:
    error = RunConflictError(
        f"run id {other.run_id!r} belongs to {other.workflow} version {other.version} with another input: "
        "give the child another id"
    )
    return _failed(entry, error)


def _failed(entry: Entry, error: PerdureError) -> list[Entry]:
    """The start of a child that was not started after all, and what its call comes to."""
    started = entry.event
    if not isinstance(started, e.ChildStarted):
        return [entry]
    raw = dump_exception(error, ())
    output = pack(raw, Memo())
    ended = e.ChildEnded(*started.key, started.name, started.use, started.run_id, "failed", output.digest)
    return [entry, Entry(ended, None, output, raw, True)]

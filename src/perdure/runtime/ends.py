"""How a run ends, and how its next chapter begins."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.codec import pack, told_exception
from perdure.engine.calls import Cancelled, ChildAsk
from perdure.engine.chapters import Completed, Failed, NextChapter, WasCancelled
from perdure.errors import PerdureBug
from perdure.history import events as e
from perdure.runtime import load, mail
from perdure.runtime.contracts import manifest
from perdure.runtime.live import CHAPTER_TO_BE_PLACED, NO_CALLS, LiveRun
from perdure.runtime.standstill import Standstill
from perdure.store.protocol import Change, Status

if TYPE_CHECKING:
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.runs")

LOGGED_CHARACTERS_MAX = 500


class Ends:
    """Ends runs, by their code or without it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def end(self, live: LiveRun) -> None:
        if live.execution.known.effects and live.execution.takes_end_back():
            self._turns.advance(live)
            return
        ending = live.execution.ending
        live.silence()
        self._turns.effects.give_up_all(live)
        self._turns.performer.drop(live)
        self._tell_cancelled(live)
        for ask in list(live.execution.open.values()):
            if isinstance(ask, ChildAsk):
                self._turns.children.start(live, ask)
        if isinstance(ending, NextChapter):
            self._next_chapter(live, ending)
            return
        self._finish(live, *_final(ending))

    def _tell_cancelled(self, live: LiveRun) -> None:
        """Of all that was still to be done in a run that ends, only what it cancelled is."""
        for command in [*live.held, *itertools.chain(*live.unperformed), *live.execution.commands]:
            if isinstance(command, Cancelled):
                self._turns.cancel(live, command.ask)
        live.held, live.unperformed, live.execution.commands = (), (), []

    def fail(self, live: LiveRun, raw: bytes) -> None:
        """End a run as failed, by a person's decision. Refused while an effect may have happened."""
        if self._is_kept_by_an_effect(live, "failed"):
            return
        self._turns.effects.give_up_all(live)
        self._tell_cancelled(live)
        self._turns.children.tell(live, self._turns.children.left(live))
        self._finish(live, Status.FAILED, e.RunFailed, raw)

    def by_force(self, live: LiveRun) -> None:
        """End a run as cancelled without running any of its code. Refused while an effect may have happened."""
        if self._is_kept_by_an_effect(live, "cancelled by force"):
            return
        self._turns.effects.give_up_all(live)
        self._tell_cancelled(live)
        self._turns.children.tell(live, self._turns.children.left(live))
        self._finish(live, Status.CANCELLED, lambda _: e.RunCancelled(forced=True), mail.CANCELLED)

    def _is_kept_by_an_effect(self, live: LiveRun, how: str) -> bool:
        unsettled = [s.operation for s in live.execution.known.effects.values() if s.state.is_open]
        if unsettled:
            log.warning(
                "run %s is not %s: operation %s may have happened, settle it first", live.run_id, how, unsettled[0]
            )
        return bool(unsettled)

    def _finish(self, live: LiveRun, status: Status, event: Callable[[bytes], e.Event], raw: bytes) -> None:
        self._turns.approvals.withdraw_all(live)
        self._turns.performer.drop(live)
        self._turns.sections.drop(live)
        if live.account is not None:
            self._turns.budgets.settle_open(live)
        if status is Status.FAILED:
            log.warning("run %s failed: %s", live.run_id, " ".join(told_exception(raw).split())[:LOGGED_CHARACTERS_MAX])
        output = pack(raw, live.execution.memo)
        live.record(event(output.digest), output=None if status is Status.CANCELLED else output)
        live.change = Change(
            status=status, reason="", hint="", waiting=b"", release=True, ending=mail.ending(status, raw)
        )
        live.is_leaving = True
        live.then += (partial(self._ended, live, Standstill(status, raw=raw)),)
        self._turns.mark(live)

    def _ended(self, live: LiveRun, how: Standstill) -> None:
        self._turns.forget(live)
        self._turns.on_standstill(live.rid, how)
        self._turns.on_letters()

    def _next_chapter(self, live: LiveRun, ending: NextChapter) -> None:
        if live.under_way is not None or any(entry.delivers for entry in live.entries):
            self._turns.mark(live)  # a message that came meanwhile belongs to what is carried over
            return
        execution = live.execution
        cancel = execution.cancel_carried
        chapter = execution.beginning.chapter + 1
        left_over = execution.mailbox.carried()
        packed, carried = pack(ending.input, execution.memo), pack(left_over, execution.memo)
        seed = load.next_seed(execution.beginning.seed, chapter)
        account = None if live.account is None else self._turns.budgets.close_chapter(live)
        before = execution.beginning
        stated = None if before.scope is None else dict(before.scope)
        event = e.ChapterStarted(
            chapter, seed, manifest(execution.spec), packed.digest, carried.digest, before.goal, stated, account
        )
        self._turns.approvals.carry_early(live)
        live.record(event, input=packed, output=carried)
        if cancel is not None:
            live.record(cancel)
        if live.is_paused:  # a chapter is loaded without those before it
            live.record(e.RunPaused())
        version = execution.spec.version  # that of the code that claims the run: the chapter is under no other manifest
        live.change = self._turns.parking.change(live)._replace(
            chapter_seq=CHAPTER_TO_BE_PLACED, version=None if version == live.info.version else version
        )
        live.then += (lambda: self._begin_chapter(live, event, ending.input, left_over, cancel),)
        live.is_leaving = True
        self._turns.mark(live)

    def _begin_chapter(
        self, live: LiveRun, event: e.ChapterStarted, input_raw: bytes, carried: bytes, cancel: e.CancelRequested | None
    ) -> None:
        live.execution.close()
        live.info = live.info._replace(version=live.execution.spec.version)
        execution = live.execution = load.next_execution(live, event, input_raw, carried, log=log.warning)
        live.is_leaving = False
        live.undelivered, live.supplied = (), NO_CALLS
        live.state_written = execution.state
        execution.on_interruption = self._turns.on_interruption

        def turn() -> None:
            execution.begin()
            if cancel is not None:
                execution.deliver(cancel, live.last_at)

        self._turns.turn(live, turn, (), self._turns.advance, live)
        self._turns.on_letters()


def _final(ending: Any) -> tuple[Status, Callable[[bytes], e.Event], bytes]:
    match ending:
        case Completed(output):
            return Status.COMPLETED, e.RunCompleted, output
        case Failed(output):
            return Status.FAILED, e.RunFailed, output
        case WasCancelled():
            return Status.CANCELLED, lambda _: e.RunCancelled(), mail.CANCELLED
        case _:
            raise PerdureBug(f"no such ending: {ending!r}")

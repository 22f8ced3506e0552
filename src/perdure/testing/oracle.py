"""What has to hold after every simulation, whatever went wrong in it.

Histories are dense, chained, ordered in time, complete, and end as the index says. Replayed from the start, each gives
the same ending, and the same trace as the execution that wrote its end; every other execution, of a worker that died or
let go, saw a beginning of that trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.engine.chapters import Completed, Ending, Failed, NextChapter, WasCancelled
from perdure.engine.execution import Execution
from perdure.history import events as e
from perdure.history.chain import GENESIS, link
from perdure.runtime.load import Past
from perdure.store.protocol import Row, RunInfo, Status, Stored
from perdure.testing import workflows
from perdure.testing.accounts import check_accounts
from perdure.testing.certain import certain
from perdure.testing.interpreter import Seen, Trace
from perdure.testing.model import Model

if TYPE_CHECKING:
    from perdure.testing.simulator import Simulator

ENDINGS: dict[type[e.Event], Status] = {
    e.RunCompleted: Status.COMPLETED,
    e.RunFailed: Status.FAILED,
    e.RunCancelled: Status.CANCELLED,
}


def judge(simulator: Simulator) -> None:
    """Look at every run; what is wrong is told as problems of the simulator."""
    check_accounts(simulator.store, simulator.outside, list(simulator.witness.runs), simulator.witness.problem)
    for wrong in simulator.witness.consents.wrong_in(simulator.store):
        simulator.witness.problem(wrong)
    observed = list(simulator.witness.traces)
    for rid in simulator.witness.runs:
        _Judge(simulator, simulator.store.load(rid, from_seq=0), observed).judge()


class _Judge:
    """One run."""

    def __init__(self, simulator: Simulator, stored: Stored, observed: Sequence[tuple[Trace, Execution]]) -> None:
        self._simulator = simulator
        self._stored = stored
        self._info: RunInfo = stored.info
        self._events = [e.decode(row.envelope) for row in stored.rows]
        self._observed = [(trace, execution) for trace, execution in observed if trace.run_id == stored.info.run_id]

    def judge(self) -> None:
        self._judge_chain()
        self._judge_outcomes()
        self._judge_messages()
        self._judge_result()
        if self._judge_end():
            for chapter, (first, last) in enumerate(self._chapters()):
                self._judge_chapter(chapter, first, last)

    def _problem(self, what: str) -> None:
        self._simulator.witness.problem(f"{self._info.run_id}: {what}")

    # ── the history ──────────────────────────────────────────────────────────────────────────
    def _judge_chain(self) -> None:
        head, at = GENESIS, 0
        for seq, row in enumerate(self._stored.rows):
            head = link(head, seq, row.at, row.envelope)
            if row.seq != seq or row.hash != head:
                self._problem(f"event {row.seq} is not dense and chained at position {seq}")
            if row.at < at:
                self._problem(f"event {seq} is earlier than the one before")
            at = row.at

    def _judge_outcomes(self) -> None:
        """A call has one outcome, a step that was recorded gave what steps give, no event follows the end."""
        seen: set[tuple[int, tuple[str, int]]] = set()
        chapter = 0
        for index, event in enumerate(self._events):
            if isinstance(event, e.ChapterStarted):
                chapter = event.number
            if isinstance(event, e.StepCompleted | e.StepFailed | e.ChildEnded):
                if (chapter, event.key) in seen:
                    self._problem(f"event {index}: a second outcome of {event.label}")
                seen.add((chapter, event.key))
                self._judge_value(index, event)
            if isinstance(event, e.ENDINGS) and index + 1 != len(self._events):
                self._problem(f"event {index} is an end, and others follow")

    def _never_began(self, index: int, event: e.ChildEnded) -> bool:
        """Whether the approval of a child had lapsed when it was to begin: its call failed, and there is no run."""
        match self._events[max(index - 2, 0) : index]:
            case [e.ApprovalSpent(lapsed=True, call=label), e.ChildStarted(key=key) as started]:
                is_it = key == event.key and label == started.label and event.status == "failed"
                return is_it and self._simulator.store.find(event.run_id) is None
            case _:
                return False

    def _judge_value(self, index: int, event: e.Keyed) -> None:
        """What is recorded of a child is how that child ended."""
        if isinstance(event, e.ChildEnded) and not self._never_began(index, event):
            info = self._simulator.store.find(event.run_id)
            child = info and self._simulator.store.last_row(info.rid)
            if info is None or child is None or event.status != info.status:
                self._problem(f"event {index} says that {event.run_id} ended as {event.status}: {info}")
            elif info.status is not Status.CANCELLED and child.output != self._stored.rows[index].output:
                self._problem(f"event {index} has another outcome of {event.run_id} than that run")

    def _judge_messages(self) -> None:
        """No message arrives twice; those of one name arrive in the order in which they were sent."""
        sent = [number for run_id, _, number in self._simulator.witness.sent if run_id == self._info.run_id]
        arrived = [self._number(row) for row, event in self._rows() if isinstance(event, e.MessageArrived)]
        if arrived != sent[: len(arrived)]:
            self._problem(f"messages {sent} were sent and arrived as {arrived}")

    def _judge_result(self) -> None:
        """Of a program that does not race it is known beforehand what it gives, whatever goes wrong."""
        plan, program = self._simulator.plan, self._simulator.program
        if plan.cancels or plan.forces or self._info.parent_run_id is not None or self._info.forked_from is not None:
            return  # a part of the program, or what people chose between
        expected = certain(program, program.root)
        if expected is not None and (result := self._stored.rows[-1].output) != str(expected).encode():
            self._problem(f"it gave {result!r}, and must give {expected}")

    def _rows(self) -> list[tuple[Row, e.Event]]:
        return list(zip(self._stored.rows, self._events, strict=True))

    def _number(self, row: Row) -> int:
        return int(row.output or b"-1")

    def _judge_end(self) -> bool:
        last = self._events[-1]
        if ENDINGS.get(type(last)) is not self._info.status:
            self._problem(f"status {self._info.status}, and the last event is {e.kind(last)}")
            return False
        if self._info.owner is not None or self._info.due_at is not None:
            self._problem("it has ended, and still has an owner or is due")
        return True

    def _chapters(self) -> list[tuple[int, int]]:
        """Where each chapter begins and ends: the positions of its first event and of the one after its last."""
        starts = [0, *(index for index, event in enumerate(self._events) if isinstance(event, e.ChapterStarted))]
        return list(zip(starts, [*starts[1:], len(self._events)], strict=True))

    # ── replay ───────────────────────────────────────────────────────────────────────────────
    def _judge_chapter(self, chapter: int, first: int, last: int) -> None:
        past = Past(self._stored._replace(rows=self._stored.rows[first:last]), self._simulator.store)
        spec = workflows.simulated.spec
        execution = Execution(
            spec, self._info.run_id, past.beginning(), known=past.known(), same_manifest=True, compare_all_inputs=True
        )
        before = len(self._simulator.witness.traces)
        past.replay(execution)
        traces = self._simulator.witness.traces[before:]
        ending = self._events[last] if last < len(self._events) else self._events[-1]
        is_forced = isinstance(ending, e.RunCancelled) and ending.forced
        if execution.failure is not None:
            self._problem(f"replay of chapter {chapter} fails ({execution.failure.reason}): {execution.failure.hint}")
        elif not is_forced and not self._is_same_end(execution.ending, past, ending, last):
            self._problem(f"replay of chapter {chapter} ends with {execution.ending}, the history with {ending}")
        if traces:
            self._judge_traces(chapter, traces[0][0])
            if not self._simulator.witness.problems:
                self._judge_by_model(chapter, past, traces[0][0])
        execution.close()

    def _is_same_end(self, ending: Ending | None, past: Past, event: e.Event, last: int) -> bool:
        match ending, event:
            case Completed(output), e.RunCompleted():
                return output == past.output(len(past.events) - 1)
            case Failed(output), e.RunFailed():
                return output == past.output(len(past.events) - 1)
            case WasCancelled(), e.RunCancelled():
                return True
            case NextChapter(), e.ChapterStarted():
                return ending.input == self._stored.rows[last].input
            case _:
                return False

    def _judge_traces(self, chapter: int, final: Trace) -> None:
        """Each execution of this chapter saw a beginning of what the replay saw. With lazy steps, one that died may
        have seen results that were lost with it."""
        for trace, execution in self._observed:
            if trace.chapter != chapter or (self._simulator.program.has_lazy and trace.seen != final.seen):
                continue
            has_ended = execution.ending is not None
            if has_ended and len(trace.seen) != len(final.seen):
                sights = f"{len(trace.seen)} of {len(final.seen)} sights"
                self._problem(f"an execution of chapter {chapter} ended after {sights}")
            if trace.seen != final.seen[: len(trace.seen)]:
                self._problem(f"chapter {chapter} {_difference(trace.seen, final.seen)}")


    def _judge_by_model(self, chapter: int, past: Past, final: Trace) -> None:
        """The code saw what it would have seen on stock asyncio."""
        model = Model(self._simulator.program, past, self._info.run_id)
        expected = model.play().comparable
        seen = final.comparable
        if model.is_open_ended:
            expected = expected[: model.known_sights]
            seen = seen[: len(expected)]
        if seen != expected:
            self._problem(f"chapter {chapter} {_difference(seen, expected)}".replace("the replay", "the model"))
        elif model.problem is not None and not model.is_open_ended:
            self._problem(f"chapter {chapter}, by the model: {model.problem}")
        for message in model.handed if self._info.forked_from is None else ():  # else the original may have had it
            if (self._info.run_id, message) not in self._simulator.witness.handed:
                self._problem(f"message {message} was taken for hosted code, which never got it")


def _difference(one: Sequence[Any], other: Sequence[Any]) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    index = next((i for i, (left, right) in pairs if left != right), min(len(one), len(other)))
    shown = [" ".join(str(seen) for seen in seen[max(0, index - 3) : index + 3]) for seen in (one, other)]
    return f"was seen differently from sight {index} on: first\n    ... {shown[0]}\n  in the replay\n    ... {shown[1]}"


__all__ = ["Seen", "judge"]

"""One trial of a drill: the team's run in a store of its own, with one fault, to its end; and what is wrong then."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from perdure.api.inbox import InboxEntry
from perdure.api.reading import payload
from perdure.api.requests import RequestSummary, pending
from perdure.audit.timeline import tell
from perdure.audit.verify import verify
from perdure.audit.waits import waits
from perdure.clock import MICROSECONDS
from perdure.engine.calls import CONFIRM_UNDO
from perdure.errors import PerdureError
from perdure.history import events as e
from perdure.http.classify import Sent, classify
from perdure.runtime.beginnings import SEED_OF
from perdure.specs import Found, NotFound, SameDatabase, Unsure
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Filter, Letter, Mail, NewRun, Row, RunInfo, Status, Store, Write, every_run
from perdure.store.sqlite import SqliteStore
from perdure.testing.accounts import check_accounts
from perdure.testing.clock import NEW_YEAR, FakeClock
from perdure.testing.drilling import words
from perdure.testing.drilling.points import Point
from perdure.testing.drilling.process import DrillRuntime, Process, Request
from perdure.testing.drilling.team import Aftermath, Team, UnfitForDrill
from perdure.testing.drilling.words import Reached
from perdure.testing.mortal import Outcome
from perdure.testing.outside import Books, Send

RUN_ID = "drill"
PROCESSES_MAX = 10
TRIAL_SECONDS_MAX = 60.0
STILL_SECONDS_MAX = 0.3
"""How long (real time) nothing happens before a run is taken to wait for ever."""

JUMP = timedelta(days=400)
_REFUSED = "what the hung worker wrote after that was refused"


class Parked(PerdureError):
    """A run is blocked, and nothing in a drill can get it on."""


@dataclass(frozen=True)
class Ended:
    """How a run ended, comparable: its status, and its result or exception as it would be recorded."""

    status: str
    raw: bytes
    told: str

    def __str__(self) -> str:
        return self.told


@dataclass
class Happened:
    """What really came of an operation: what its bodies returned, and whether one that raised may have done
    something."""

    results: list[bytes | None] = field(default_factory=list[bytes | None])
    reference: str | None = None
    may_have: bool = False
    request: Request | None = None


class Trial:
    """See above. What was found out: `ended`, `problems`, `moments`, `values` (what each call's recorded result is),
    `waited` (what the run waited for while time passed), `effects` (what each effect's other side guarantees)."""

    def __init__(
        self, team: Team, point: Point, *, in_file: bool = False, is_distrustful: bool = False,
        begins_at: datetime = NEW_YEAR, seconds_per_call: float = 0,
    ) -> None:  # fmt: skip
        self.team, self.point, self.run_id = team, point, RUN_ID
        self.ended: Ended | None = None
        self.problems: list[str] = []
        self.moments: list[Reached] = []
        self.values: dict[str, bytes | None] = {}
        self.waited: dict[str, bool] = {}
        """Each wait, and whether a message ended it."""
        self.effects: dict[str, str] = {}
        self.unanswered: set[str] = set()
        """Messages that were waited for, and that nobody sent."""
        self.missing_client = ""
        self.touches_database = False
        self.calls = 0
        self.functions: set[str] = set()
        self.happened = not (point.fault.crashes or point.fault.hangs_at or point.fault.jumps_over)
        self.evidence = ""
        self._in_file, self._is_distrustful = in_file, is_distrustful
        self._clock = FakeClock(begins_at)
        self._per_call = round(seconds_per_call * MICROSECONDS)
        self._books = Books()
        self._happened: dict[str, Happened] = {}
        self._sent: list[Letter] = []
        self._questions: list[str] = []
        self._still_since: float | None = None
        self._unsure_left = -1 if point.fault.unsure is None else (point.fault.unsure[1] or 1_000_000)
        self._has_jumped = False
        self._clients: Any = {}
        self._handles: list[Store] = []
        self._hung: Process | None = None
        self._processes: list[Process] = []

    def problem(self, what: str) -> None:
        if what not in self.problems:
            self.problems.append(what)

    # ── the trial ────────────────────────────────────────────────────────────────────────────
    async def run(self) -> Trial:
        """Try it."""
        with contextlib.ExitStack() as stack:
            stack.callback(SEED_OF.reset, SEED_OF.set(_seed_of))
            stack.callback(self._release)
            self._open: Callable[[], Store] = self._opener(stack)
            async with self.team.clients() as self._clients:
                try:
                    async with asyncio.timeout(TRIAL_SECONDS_MAX):
                        ending = await self._live()
                except TimeoutError:
                    self.problem(f"it did not end within {TRIAL_SECONDS_MAX:g} s of real time: {self._standing()}")
                    return self
                await self._judge(ending)
        return self

    def _release(self) -> None:
        """Threads that stand still end with the trial."""
        for process in self._processes:
            process.release()

    def _opener(self, stack: contextlib.ExitStack) -> Callable[[], Store]:
        """Opens handles on one store, as several processes have them."""
        if not self._in_file:
            memory = MemoryStore(self._clock)
            self._store: Store = memory
            return memory.again
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-drill-"))
        path = f"{folder}/drill.db"

        def opened() -> Store:
            store = SqliteStore(path, clock=self._clock)
            stack.callback(store.close)
            return store

        self._store = opened()
        return opened

    def runtime(self, process: Process) -> DrillRuntime:
        runtime = DrillRuntime(
            process.store, clock=process.clock, workflows=[self.team.workflow], provide=self._clients,
            replays=self._is_distrustful, guard=self._is_distrustful or self.point.may_differ != "",
        )  # fmt: skip
        self._processes.append(process)
        runtime.still = lambda: self._on_still(process)
        runtime.left_behind = self._left_behind
        return runtime

    def _left_behind(self, name: str) -> None:
        self.problem(
            f"the workflow's code changes {name}, outside of any step: that comes again whenever another process takes "
            "the run up. What changes something outside of the workflow belongs into a step or an effect"
        )

    async def _live(self) -> Outcome[Any]:
        """One process after the other, until the run has ended."""
        first = Process(self, 0, self._open(), self._clock)
        ending = await (self._hang(first) if self.point.fault.hangs_at else first.live())
        number = 1
        while ending is None:
            if number > PROCESSES_MAX:
                raise AssertionError("processes die that are not to die")
            ending = await Process(self, number, self._open(), self._clock).live()
            number += 1
        return ending

    async def _hang(self, first: Process) -> Outcome[Any] | None:
        """The first process hangs, is taken for dead, and goes on when another has done what there was to do."""
        living, hanging = asyncio.ensure_future(first.live()), asyncio.ensure_future(first.hung.wait())
        await asyncio.wait([living, hanging], return_when=asyncio.FIRST_COMPLETED)
        if not first.hung.has_come:
            hanging.cancel()
            return await living
        self._hung = first
        self._store.take_over(first.runtime.worker, proven=False, retry_after=())
        ending = await Process(self, 1, self._open(), self._clock).live()
        await self._thaw()
        first.store.has_crashed = True
        first.death.come()
        await living
        return ending

    async def _thaw(self) -> None:
        """The zombie goes on: whatever it does, nothing of it counts."""
        hung, self._hung = self._hung, None
        if hung is None:
            return
        before = {run_id: (length, head) for run_id, _, length, head in self._store.heads()}
        await hung.thaw()
        after = {run_id: (length, head) for run_id, _, length, head in self._store.heads()}
        for run_id in before:
            if before[run_id] != after[run_id]:
                self.problem(f"the worker that had hung went on and changed the history of {run_id}")

    # ── the client ───────────────────────────────────────────────────────────────────────────
    async def attend(self, process: Process) -> Any:
        """What a client does: start the run, or find it; send it what it waits for; wait for its end."""
        runtime = process.runtime
        run = await runtime.start(self.team.call(), id=RUN_ID)
        if self.point.fault.twice == "start":
            await runtime.start(self.team.call(), id=RUN_ID)
        for letter in self._sent:  # whoever does not know whether it was sent sends it again, under the same id
            await runtime.deliver(letter)
        waiting = asyncio.ensure_future(run.result(wait_blocked=True))
        hanging = asyncio.ensure_future(process.hung.wait())
        try:
            await asyncio.wait([waiting, hanging], return_when=asyncio.FIRST_COMPLETED)
            if process.hung.has_come:
                waiting.cancel()
                await asyncio.Event().wait()
            return await waiting
        finally:
            waiting.cancel()
            hanging.cancel()

    async def _on_still(self, process: Process) -> bool:
        """Nothing happens any more. Whatever a person, a client or the drill has to do is done now; then time
        passes."""
        runtime = process.runtime
        moved = not process.hung.has_come and await self._act(runtime)
        if moved or self._clock.next_alarm_at() is not None:
            self._still_since = None
            return moved
        now = asyncio.get_running_loop().time()
        self._still_since = self._still_since or now
        if now - self._still_since > STILL_SECONDS_MAX:
            self._give_up(runtime)
        return False

    async def _act(self, runtime: DrillRuntime) -> bool:
        blocked = [entry for entry in await runtime.inbox() if not entry.pending]
        parked = [entry for entry in blocked if (info := self._store.find(entry.run_id)) and _is_parked(info)]
        if parked and self._hung is not None:
            await self._thaw()
            return True
        for entry in parked:
            await self._decide(runtime, entry)
        said = [await self._say(runtime, entry.request) for entry in blocked if entry.request is not None]
        if parked or any(said):
            return True
        waits_for = self._waits()
        awaited = [(run_id, name, until) for run_id, name, until in runtime.awaited_messages()]
        next_one = self._next_message([name for _, name, _ in awaited])
        for wait in waits_for:
            self.waited.setdefault(wait, next_one is not None)
        if self._jumps(waits_for, next_one is not None):
            return True
        if next_one is None:
            self.unanswered |= {name for _, name, until in awaited if until is not None}
            return self._clock.next_alarm_at() is None and await self._send_next(runtime, RUN_ID)
        return await self._send(runtime, next(run_id for run_id, name, _ in awaited if name == next_one[0]), next_one)

    def _waits(self) -> list[str]:
        """What runs wait for that only wait: timers and messages, by their calls."""
        found = list[str]()
        for info in every_run(self._store, Filter(status=frozenset({Status.WAITING}))):
            for wait in waits(self._store, info):
                if wait.call and (wait.until is not None or wait.message):
                    found.append(words.readable(wait.call, info.run_id, RUN_ID))
        return found

    def _give_up(self, runtime: DrillRuntime) -> None:
        for asked in pending(self._store):
            raise UnfitForDrill(
                f"{_run(asked.run_id)} asks {asked.subject!r}, and nobody answers: give the answer, with --answer JSON "
                "on the command line, or answers=[value]"
            )
        for run_id, name, _ in runtime.awaited_messages():
            raise UnfitForDrill(
                f"{_run(run_id)} waits for message {name!r}, and nobody sends it: give it, with --send {name}=JSON on "
                f'the command line, or messages=[("{name}", value)]'
            )
        raise Parked(f"nothing happens any more: {self._standing()}")

    # ── messages ─────────────────────────────────────────────────────────────────────────────
    def _next_message(self, names: Sequence[str]) -> tuple[str, Any] | None:
        """The first that is not sent yet, of those that are waited for."""
        left = list(self.team.messages)
        for letter in self._sent:
            left.remove(next(each for each in left if each[0] == letter.key))
        return next((each for each in left if each[0] in names), None)

    async def _send_next(self, runtime: DrillRuntime, run_id: str) -> bool:
        """Nobody is seen to wait for it (hosted code, perhaps): send it all the same, rather than nothing."""
        message = self._next_message([name for name, _ in self.team.messages])
        info = self._store.find(run_id)
        is_over = info is None or info.status.is_final
        return message is not None and not is_over and await self._send(runtime, run_id, message)

    async def _send(self, runtime: DrillRuntime, run_id: str, message: tuple[str, Any]) -> bool:
        letter = runtime.letter_to(run_id, *message)
        self._sent.append(letter)
        await runtime.deliver(letter)
        return True

    # ── a person ─────────────────────────────────────────────────────────────────────────────
    async def _decide(self, runtime: DrillRuntime, entry: InboxEntry) -> None:
        """A person finds out what became of an effect, and says so. Whoever is to confirm an undoing confirms it."""
        operation = entry.operation
        if operation is None and entry.call is not None and CONFIRM_UNDO in entry.call:
            run = await runtime.get(entry.run_id)
            await run.unblock("value", value="undo", call=entry.call, by="the drill")
            return
        if operation is None or entry.reason != "unknown_effect":
            raise Parked(f"{_run(entry.run_id)} is blocked ({entry.reason}): {entry.hint}")
        truth = await self._truth(operation.id)
        chosen: dict[str, Any] = {"operation": operation.id, "by": "the drill", "reason": "seen outside"}
        if truth.results:
            raw = truth.results[-1]
            value = None if raw is None else msgspec.json.decode(raw)
            await runtime.settle(entry.run_id, "succeeded", value=value, reference=truth.reference, **chosen)
        elif truth.may_have:
            raise Parked(
                f"{_run(entry.run_id)} is blocked: the body of {operation.call.removeprefix('0/')} raised, and not "
                f"even the drill can tell whether it did something ({entry.hint})"
            )
        elif self.point.fault.settles_failed:
            await runtime.settle(entry.run_id, "failed", **chosen)
        else:
            await runtime.settle(entry.run_id, "retry", **chosen)

    async def _say(self, runtime: DrillRuntime, asked: RequestSummary) -> bool:
        """People approve what they are asked for; a question gets the next of the team's answers. False: there is
        none."""
        number = len(asked.said)
        named = asked.approvers[min(number, len(asked.approvers) - 1)] if asked.approvers else ""
        by = named if named and number < len(asked.approvers) else f"person {number + 1}"
        as_whom: dict[str, Any] = {"hash": asked.hash, "by": by, "role": "" if by == named else named}
        if asked.kind == "approval":
            await runtime.approve(asked.id, **as_whom)
            return True
        if asked.id not in self._questions:
            self._questions.append(asked.id)
        place = self._questions.index(asked.id)
        if place >= len(self.team.answers):
            return False
        await runtime.answer(asked.id, self.team.answers[place], **as_whom)
        return True

    async def _truth(self, operation: str) -> Happened:
        """What became of it. Where the body raised, and may have done something, the other side is asked."""
        truth = self._happened.get(operation, Happened())
        if truth.results or not truth.may_have or truth.request is None:
            return truth
        answer = await asyncio.create_task(truth.request.look_up())
        if isinstance(answer, Found):
            truth.results.append(truth.request.result(answer.result))  # pyright: ignore[reportUnknownMemberType]
            truth.reference = answer.reference or truth.reference
        elif isinstance(answer, NotFound):
            truth.may_have = False
        return truth

    # ── time ─────────────────────────────────────────────────────────────────────────────────
    def _jumps(self, waits_for: Sequence[str], is_answered: bool) -> bool:
        """The clock jumps while the run waits: far past its timer; if a message is to come, not past its deadline."""
        if self._has_jumped or self.point.fault.jumps_over not in waits_for:
            return False
        self._has_jumped = self.happened = True
        now, alarm = self._clock.now(), self._clock.next_alarm_at()
        far = now + round(JUMP / timedelta(microseconds=1))
        self._clock.advance_to(min(far, now + (alarm - now) // 2) if is_answered and alarm is not None else far)
        return True

    # ── what the fault asks of the store and the look-ups ────────────────────────────────────
    def is_twice(self, writes: Sequence[Write]) -> bool:
        match self.point.fault.twice:
            case "writes":
                return bool(writes)
            case "start":
                return any(isinstance(write, NewRun) for write in writes)
            case "":
                return False
            case message:
                return any(isinstance(write, Letter) and f"message {write.key}" == message for write in writes)

    def delivered(self, letter: Mail) -> list[Mail]:
        """A letter, as often as it is delivered."""
        is_twice = letter.kind == "message" and self.point.fault.twice == f"message {letter.key}"
        return [letter, letter] if is_twice else [letter]

    def unsure(self, call: str) -> Unsure | None:
        """What is answered in place of a look-up."""
        fault = self.point.fault
        if fault.unsure is None or fault.unsure[0] != call or self._unsure_left <= 0:
            return None
        self._unsure_left -= 1
        return Unsure("so that you see what comes of it")

    # ── the outside world ────────────────────────────────────────────────────────────────────
    def begins(self, request: Request) -> None:
        self.calls += 1
        self.functions.add(request.function_name)
        if request.is_effect:
            self.effects.setdefault(request.spec.name, request.spec.downstream.kind)
            self.touches_database |= isinstance(request.spec.downstream, SameDatabase)
        if self._per_call:
            self._clock.advance_to(self._clock.now() + self._per_call)

    def returned(self, request: Request, value: Any) -> None:
        """It happened."""
        if self._is_sent(request):
            truth = self._happened.setdefault(request.operation, Happened())
            truth.results.append(request.result(value))
            truth.reference = request.reference or truth.reference
            self._books.done[request.operation] = 1
            self._note(request, "done")

    def raised(self, request: Request, error: BaseException) -> None:
        """It did not happen, or nobody knows."""
        if "perdure.use(" in str(error) and not self.missing_client:
            self.missing_client = f"{request.call} needs a client: {error}"
        if self._is_sent(request):
            truth = self._happened.setdefault(request.operation, Happened())
            is_proven = classify(error, now=self._clock.now()).sent is not Sent.UNKNOWN
            truth.may_have |= not is_proven
            truth.request = request
            if not is_proven:
                self._books.done[request.operation] = 1
            self._note(request, "busy" if is_proven else "doubt")

    def _is_sent(self, request: Request) -> bool:
        return request.is_effect and not isinstance(request.spec.downstream, SameDatabase)

    def _note(self, request: Request, fate: str) -> None:
        send = Send(request.operation, request.number, request.request_hash, fate, request.is_straggler)
        self._books.sends.append(send)

    # ── what is wrong ────────────────────────────────────────────────────────────────────────
    async def _judge(self, ending: Outcome[Any]) -> None:
        if isinstance(ending.error, UnfitForDrill):
            raise ending.error
        info = self._store.find(RUN_ID)
        if ending.error is not None and (info is None or not info.status.is_final):
            self.problem(str(ending.error))
            return
        rows = {run_id: self._rows(rid) for run_id, rid, _, _ in self._store.heads()}
        self.ended = self._ended(ending)
        for run_id, histories in rows.items():
            self._read(run_id, histories)
        rids = [info.rid for info in every_run(self._store, Filter()) if info.status.is_final]
        check_accounts(self._store, self._books, rids, self.problem)
        for damage in verify(self._store).damage:
            self.problem(str(damage))
        if not self.happened:
            self.problem(f"the run never came to: {self.point.name}")
        aftermath = Aftermath(self.point.name, ending.result, ending.error, self._clients)
        if not self.point.fault.settles_failed and (said := await self.team.look(aftermath)):
            self.problem(said)
        refused = any(process.refused for process in self._processes)
        self.evidence = "; ".join(filter(None, [self._evidence(rows), _REFUSED if refused else ""]))

    def _rows(self, rid: int) -> list[tuple[Row, e.AnyEvent]]:
        return [(row, e.decode(row.envelope)) for row in self._store.load(rid, from_seq=0).rows]

    def _ended(self, ending: Outcome[Any]) -> Ended:
        info = self._store.find(RUN_ID)
        if info is None or not info.status.is_final:
            raise AssertionError(f"the run has not ended: {info}")
        raw = payload(self._store, info.rid, self._store.last_row(info.rid), "output") or b""
        if ending.error is not None:
            told = f"{type(ending.error).__name__}: {ending.error}"
            return Ended(str(info.status), told.encode(), f"{info.status} ({told})")
        return Ended(str(info.status), raw, raw.decode())

    def _read(self, run_id: str, rows: Sequence[tuple[Row, e.AnyEvent]]) -> None:
        rid, chapter = next(rid for each, rid, _, _ in self._store.heads() if each == run_id), 0
        for row, event in rows:
            if isinstance(event, e.ChapterStarted):
                chapter = event.number
            if isinstance(event, e.StepCompleted | e.StepFailed):
                call = words.readable(event.label, run_id, RUN_ID) + (f" in chapter {chapter + 1}" if chapter else "")
                self.values[call] = payload(self._store, rid, row, "output")

    def _evidence(self, rows: dict[str, list[tuple[Row, e.AnyEvent]]]) -> str:
        """What became, after the fault, of the effect that it was about."""
        told = list[str]()
        for run_id, histories in rows.items():
            is_after = False
            for _, event in histories:
                is_after |= isinstance(event, e.TakenOver)
                if is_after and _is_about(event, self.point.call, run_id):
                    told.append(_short(tell(event).what))
        return "; ".join(told)

    def _standing(self) -> str:
        infos = [info for info in every_run(self._store, Filter()) if not info.status.is_final]
        return ", ".join(f"{_run(info.run_id)} is {info.status} ({info.reason})" for info in infos) or "no run is left"


def _is_about(event: e.AnyEvent, call: str, run_id: str) -> bool:
    label = event.label if isinstance(event, e.Keyed) else getattr(event, "call", None)
    return bool(call) and label is not None and words.readable(label, run_id, RUN_ID) == call


def _seed_of(run_id: str) -> int:
    """The same random numbers in every trial."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:7], "big")


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:99]}…"


def _is_parked(info: RunInfo) -> bool:
    return info.status is Status.BLOCKED


def _run(run_id: str) -> str:
    return "the run" if run_id == RUN_ID else f"child run {run_id}"


__all__ = ["RUN_ID", "Ended", "Trial"]

"""One run being executed: history in, commands out.

`Execution` holds the workflow's loop. It is given outcomes one at a time (`deliver`), in the order of the history, and
lets the code run dry after each. What the code asks for collects in `commands`; what has to be noted in the history
collects in `notes`. Replaying a history and going on live are the same thing: deliver, run dry, look at what is asked.

Nothing here performs, waits, reads a clock or writes. A difference between code and history never passes through the
code as an exception: the code is simply not resumed any more, and `failure` says why.
"""

from __future__ import annotations

import contextvars
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from perdure.clock import MICROSECONDS, when
from perdure.codec import Memo, ValueCodec, digest, load_exception, pack, without
from perdure.decisions import Request, approval_id, identity
from perdure.engine import where
from perdure.engine.calls import (
    DEBT,
    NO_ATTEMPTS,
    Ask,
    Attempts,
    CallFuture,
    Cancelled,
    ChildAsk,
    Command,
    EffectAsk,
    Grant,
    Key,
    Overdue,
    QuestionAsk,
    ReceiveAsk,
    RequestAsk,
    SectionAsk,
    SleepAsk,
    StepAsk,
    UnreadAsk,
    Waiting,
    derived_id,
    linked,
)  # fmt: skip
from perdure.engine.chapters import Beginning, Blocked, ContinueAsNew, Ending, Parting, ending_of, next_chapter
from perdure.engine.claims import Claims, labels_of
from perdure.engine.known import Known
from perdure.engine.loop import DeterministicLoop, LoopTask, StuckTurn, current_task
from perdure.engine.mailbox import Mailbox, unread
from perdure.engine.randomness import Randomness
from perdure.engine.sagas import Undoing, WorkflowSaga, refuse_next_chapter, workflow_saga_here
from perdure.errors import DecodeError, FencedError, GuardError, StepError, UnknownNameError, UsageError
from perdure.history import events as e
from perdure.specs import SECONDS_MAX, EffectSpec, StepSpec, WorkflowSpec, recordable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.engine.leftovers import Leftovers
    from perdure.engine.owing import Debts
    from perdure.engine.replay import Replay
    from perdure.engine.rewinding import Owed

REFUSALS_MAX = 50
NOTHING_OWED: dict[str, Owed] = {}
NO_THREADS = (
    "workflow code must not use threads (anyio.to_thread or the like): move that into a step, or host it in "
    "perdure.section()"
)
NO_KEY: Key = ("", -1)


class Execution:
    """A run's code, its loop, and everything it has asked for and not got yet."""

    __slots__ = (
        "_context", "_known", "_mailbox", "_randomness", "_refusals", "beginning", "cancel_carried",
        "cancelled", "children", "claims", "code_id", "commands", "debts", "ending", "failure", "holding", "is_closing",
        "is_replaying", "is_unwinding", "leftovers", "log", "loop", "memo", "notes", "now_us", "on_interruption",
        "open", "outcomes_left", "owed", "replay", "root", "run_id", "sagas", "spec", "state",
    )  # fmt: skip

    def __init__(
        self,
        spec: WorkflowSpec,
        run_id: str,
        beginning: Beginning,
        *,
        known: Known | None = None,
        waiting: Iterable[Waiting] = (),
        same_manifest: bool = True,
        compare_all_inputs: bool = False,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.run_id = self.code_id = run_id
        self.beginning = beginning
        self._known = known
        self.debts: Debts | None = None
        self.leftovers: Leftovers | None = None
        self.owed = NOTHING_OWED
        self.log = log
        self.loop = DeterministicLoop(self)
        self.on_interruption = _nothing  # called in any thread: the code failed between turns
        self.now_us = beginning.at
        self.loop.now_seconds = beginning.at / MICROSECONDS
        self.memo = Memo()
        self.claims = Claims(
            {} if known is None else known.recorded, waiting, self.memo,
            same_manifest=same_manifest, compare_all_inputs=compare_all_inputs,
        )  # fmt: skip
        self._randomness: Randomness | None = None
        self._mailbox: Mailbox | None = None
        self.open: dict[Key, Ask] = {}
        self.holding: set[Key] = set()
        self.cancelled: set[Key] = set()
        self.children: dict[Key, str] = {}
        self.sagas: dict[Key, WorkflowSaga] = {}
        self.commands: list[Command] = []
        self.notes: tuple[e.Event, ...] = ()
        self.failure: Blocked | None = None
        self.ending: Ending | None = None
        self.cancel_carried: e.CancelRequested | None = None
        self.state: bytes | None = None
        self.is_replaying = False
        self.outcomes_left = 0
        self.replay: Replay | None = None
        self.is_closing = False
        self.is_unwinding = False
        self._context = contextvars.Context()
        self.root: LoopTask | None = None
        self._refusals = 0

    # ── made when first wanted, which in most runs is never: thousands are in memory at once ──
    @property
    def known(self) -> Known:
        """What the history says ahead of time."""
        if self._known is None:
            self._known = Known()
        return self._known

    def attempts_at(self, key: Key) -> Attempts:
        """What the history says about attempts at a step."""
        return NO_ATTEMPTS if self._known is None else self._known.attempts.get(key, NO_ATTEMPTS)

    @property
    def mailbox(self) -> Mailbox:
        """What was sent to the run and is not taken yet."""
        if self._mailbox is None:
            self._mailbox = Mailbox(self.beginning.carried)
        return self._mailbox

    @property
    def randomness(self) -> Randomness:
        """What the run's tasks draw."""
        if self._randomness is None:
            beginning = self.beginning
            self._randomness = Randomness(self.loop, seed=beginning.seed, chapter=beginning.chapter)
        return self._randomness

    # ── being driven ─────────────────────────────────────────────────────────────────────────
    def begin(self) -> None:
        """Start the workflow's code, in an empty context."""
        try:
            args, kwargs = self.spec.arguments.loads(self.beginning.input)
        except DecodeError as error:
            self.fail("undecodable", f"the recorded arguments do not fit {self.spec.label} any more: {error}")
            return
        self.root = self._context.run(self._create_root, self._context, args, kwargs)
        self._settle()

    def _create_root(self, context: contextvars.Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoopTask:
        main = self._main(args, kwargs)
        if self._known is not None and self._known.before is not None:
            from perdure.engine.leftovers import Leftovers
            from perdure.engine.owing import Debts, settled

            self.leftovers = Leftovers(self._known.before.children)
            self.owed, self.debts = dict(self._known.before.owed), Debts(self)
            main = settled(self, main, self.debts)
        return self.loop.new_task(main, context=context)

    async def _main(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.spec.is_async:
            code = self.spec.function(*args, **kwargs)
            if self.replay is not None:
                self.replay.follow(code)
            return await code
        return await self.ask_section(
            self.spec.name, self.spec.function, args, kwargs, self.spec.result, is_async=False
        )

    def deliver_all(self, outcomes: Iterable[tuple[e.Event, int, bytes | None]]) -> None:
        """Hand events to the code, one at a time, in this order."""
        for event, at, output in outcomes:
            self.deliver(event, at, output)

    def deliver(self, event: e.Event, at: int, output: bytes | None = None) -> None:
        """Hand one event to the code and let it run dry. Events that are no outcomes only move nothing."""
        if self.ending is not None:
            self._take_after_end(event, output)
            return
        if not event.is_outcome or self.failure is not None:
            return
        if self.outcomes_left:
            self.outcomes_left -= 1
        loop = self.loop
        loop.idle_callbacks = 0
        if at > self.now_us:
            self.now_us = at
            loop.now_seconds = at / MICROSECONDS
        if type(event) is e.StepCompleted:  # most of what there is
            self._deliver_value(event, output)
        else:
            self._deliver_other(event, output)
        self._settle()

    def _deliver_other(self, event: e.Event, output: bytes | None) -> None:
        if self.debts is not None:
            self.debts.hear(event, output)
        if self.sagas and isinstance(event, e.EffectSucceeded | e.EffectFailed | e.SectionEnded):
            self._tell_saga(event, output)
        match event:
            case e.StepCompleted():
                self._deliver_value(event, output)
            case e.StepFailed():
                self._deliver_failure(event, output)
            case e.ChildEnded() if self._is_of_another_child(event):
                pass
            case e.ChildEnded():
                (self._deliver_value if event.status == "completed" else self._deliver_failure)(event, output)
            case e.SectionEnded():
                self._deliver_section(event, output)
            case e.MessageArrived():
                self.mailbox.put(event.name, output or b"null", event.sent_at, event.by)
                self.mailbox.wake(event.name)
            case e.MessageSettled():
                (self._deliver_failure if event.failed else self._deliver_value)(event, output)
            case e.PersonAnswered():
                if (question := self._take(event)) is not None:
                    if isinstance(question, RequestAsk) and question.handle is not None:
                        question.handle.cancel()
                    question.future.set_result((event, output or b"null"))
            case e.CancelRequested():
                self._cancel_root(event.reason)
            case e.SectionReceived():
                self.mailbox.hand_over(event.key, event.message)
            case e.SectionGaveBack():
                self.mailbox.take_back(event.key, event.message)
            case _:
                pass

    def _tell_saga(self, event: e.EffectSucceeded | e.EffectFailed | e.SectionEnded, output: bytes | None) -> None:
        task, _, n = event.section.partition(":")
        if n or isinstance(event, e.SectionEnded):
            saga = self.sagas.get((task, int(n)) if n else event.key)
        else:
            saga = self.sagas.pop(event.key, None)
        if saga is not None:
            saga.heard(event, output or b"null")

    def _take_after_end(self, event: e.Event, output: bytes | None) -> None:
        """What comes when the chapter has ended is for the next one."""
        if isinstance(event, e.MessageArrived):
            self.mailbox.put(event.name, output or b"null", event.sent_at, event.by)
        elif isinstance(event, e.CancelRequested):
            self.cancel_carried = event

    def _is_of_another_child(self, event: e.ChildEnded) -> bool:
        """A child that an earlier chapter left to itself may end now; nobody here asks for it."""
        ask = self.open.get(event.key)
        if isinstance(ask, ChildAsk):
            return ask.run_id != event.run_id
        if event.task == DEBT:
            return True
        return self.beginning.chapter > 0 and event.key not in self.cancelled and event.key not in self.known.children

    def _deliver_value(self, event: e.Keyed, output: bytes | None) -> None:
        ask = self._take(event)
        if ask is None:
            return
        codec = ask.spec.result if type(ask) is StepAsk else _codec_of(ask)
        try:
            value = codec.loads(output or b"null")
        except DecodeError as error:
            self.fail("undecodable", f"the recorded result of {ask.label} does not fit its type hint any more: {error}")
            return
        ask.future.set_result(value)

    def _deliver_failure(self, event: e.Keyed, output: bytes | None) -> None:
        ask = self._take(event)
        if ask is not None:
            ask.future.set_exception(load_exception(output or b"null", _raises_of(ask)))

    def _deliver_section(self, event: e.SectionEnded, output: bytes | None) -> None:
        """What it has begun outside and not seen the end of keeps the run from ending."""
        self.holding.update(self.known.open_effects_of(event.key))
        if event.continues:
            self._deliver_next_chapter(event, output)
        else:
            (self._deliver_failure if event.failed else self._deliver_value)(event, output)

    def _deliver_next_chapter(self, event: e.SectionEnded, output: bytes | None) -> None:
        """The workflow's code is hosted, and has ended this chapter there."""
        ask = self._take(event)
        if ask is None:
            return
        try:
            args, kwargs = self.spec.arguments.loads(output or b"{}")
        except DecodeError as error:
            self.fail("undecodable", f"the recorded arguments do not fit {self.spec.label} any more: {error}")
            return
        ask.future.set_exception(ContinueAsNew(args, kwargs))

    def _take(self, event: e.Keyed) -> Ask | None:
        """The call that an outcome belongs to; None if nobody is to have it."""
        ask = self.open.pop((event.task, event.n), None)
        if ask is None:
            self._nobody_takes(event)
            return None
        ask.future.ask = None  # they hold each other: no circle is left for the collector
        if self.commands and self.commands[-1] is ask:  # replayed: it is answered before anybody looks
            del self.commands[-1]
        return ask

    def _nobody_takes(self, event: e.Keyed) -> None:
        """The code has not asked for this, or has cancelled it."""
        self.holding.discard(event.key)
        if not event.is_in_section and event.key not in self.cancelled:
            self.diverge(
                f"the history has {event.label}, which the code does not ask for here",
                f"the code waits for {labels_of(list(self.open.values()))}",
                f"{'effect' if isinstance(event, e.EffectSucceeded | e.EffectFailed) else 'call'} {event.name}",
            )

    def _cancel_root(self, reason: str) -> None:
        if self.root is not None and not self.root.done():
            self.root.cancel(reason or None)

    def _settle(self) -> None:
        """Run dry, then fire what is due, once; then see whether the run is over."""
        loop = self.loop
        try:
            loop.run_dry()
            if loop.timers:
                for timer in loop.pop_due():
                    loop.fire(timer)
                    loop.run_dry()
            root = self.root
            if root is not None and root.done() and self.failure is None:
                self._wind_up()
        except StuckTurn:
            self.fail(
                "stuck_turn", "100,000 callbacks ran without one durable call: " + where.describe(loop.live_tasks())
            )

    def _wind_up(self) -> None:
        """The workflow has returned: cancel its other tasks and close its generators, as asyncio.run does; it has ended
        when all have."""
        if not self.is_unwinding:
            self.is_unwinding = True
            for task in self.loop.live_tasks():
                task.cancel()
            self.loop.run_dry()
        while not self.loop.live_tasks() and self.loop.close_generators(self._context):
            self.loop.run_dry()
        if self.failure is None and not self.loop.live_tasks():
            self._let_go()
            if not self.holding:
                self._end()

    def takes_end_back(self) -> bool:
        """Whether hosted code has begun something outside while this code came to its end. That is seen through first,
        as what it had begun before."""
        begun = [key for key, standing in self.known.effects.items() if standing.state.is_open]
        if not begun:
            return False
        self.holding.update(begun)
        self.ending = None
        return True

    def _let_go(self) -> None:
        """Nobody waits for the calls still open: steps are cancelled and fenced, children told, unless abandoned.

        Timers are dropped: what their callbacks would begin comes after the end. An abandoned child that is not started
        yet stays open: the end of this run has to start it first."""
        self.loop.drop_timers()
        for ask in list(self.open.values()):
            if not _is_abandoned(ask):
                ask.future.cancel()
            elif ask.is_started:
                del self.open[ask.key]
                self.cancelled.add(ask.key)

    def _end(self) -> None:
        root = self.root
        if root is None:
            return
        self._check_claims()
        if self.failure is not None:
            return
        self.ending = ending_of(self.spec, root)

    # ── replay ───────────────────────────────────────────────────────────────────────────────
    def finish_replay(self) -> None:
        """All recorded events are delivered: whatever is recorded must have been asked for again."""
        self.is_replaying = False
        self.claims.remember_last_large()
        self.commands = [c for c in self.commands if self._is_still_to_do(c)]
        if self.failure is None and self.ending is None:
            self._check_claims()

    def _is_still_to_do(self, command: Command) -> bool:
        if isinstance(command, Cancelled):
            is_held = isinstance(command.ask, EffectAsk | SectionAsk) and command.ask.key in self.holding
            return is_held or command.ask.key not in self.known.cancelled
        if isinstance(command, Overdue):
            return self.open.get(command.ask.key) is command.ask
        return self.open.get(command.key) is command

    def _check_claims(self) -> None:
        if self.claims.is_settled:
            return
        unclaimed = self.claims.unclaimed(list(self.open.values()))
        if unclaimed is not None:
            self.diverge(*unclaimed)

    def diverge(self, recorded: str, asked: str, recorded_call: str = "", asked_call: str = "") -> None:
        """Code and history part here. The code is not resumed any more."""
        if self.failure is None:
            frames = where.user_frame() or where.describe(self.loop.live_tasks())
            place = f" ({frames})" if frames else ""  # the code has ended: it is nowhere
            self.fail("diverged", f"{recorded}; {asked}{place}.", Parting(recorded_call, asked_call, frames))

    def fail(self, reason: str, hint: str, parting: Parting | None = None) -> None:
        """Stop the code for good; the run is to be parked with this reason."""
        if self.failure is None:
            self.failure = Blocked(reason, hint, parting)
        self.loop.stop_now = True

    # ── what the run waits for ───────────────────────────────────────────────────────────────
    def deadline(self) -> int | None:
        """When the earliest timer is due, in microseconds."""
        when = self.loop.next_deadline()
        if when is None and not self.waits_outside:
            when = self.loop.next_deadline_of_any()
        return None if when is None else _due_at(when)

    @property
    def is_deadlocked(self) -> bool:
        """Dry, nothing pending, and not at its end: nothing can ever wake it."""
        return (
            self.failure is None
            and self.ending is None
            and not self.waits_outside
            and not self.holding
            and self.loop.next_deadline_of_any() is None
            and self.loop.is_dry
        )

    @property
    def waits_outside(self) -> bool:
        """Whether the code has asked for something that is not there yet. What people are asked about debts is not the
        code's."""
        if self.debts is None:
            return bool(self.open)
        return self.debts.waits or not all(ask.is_about_debt for ask in self.open.values())

    def block_deadlocked(self) -> None:
        """Park a run that nothing can wake, showing what each of its tasks waits for."""
        tasks = self.loop.live_tasks()
        if where.is_in_foreign_thread(tasks):
            self.fail("diverged", f"{NO_THREADS}; the code waits for one: {where.describe(tasks)}")
        else:
            self.fail("deadlocked", "nothing is pending that could wake it: " + where.describe(tasks))

    def waiting_set(self) -> tuple[Waiting, ...]:
        """What a parked run waits for, to be claimed again when it is rebuilt."""
        entries: list[Waiting] = []
        for ask in self.open.values():
            if isinstance(ask, SleepAsk):
                entries.append(Waiting(*ask.key, "sleep", ask.name, ask.length, ask.deadline))
            elif isinstance(ask, ReceiveAsk):
                entries.append(Waiting(*ask.key, "receive", ask.name, ask.length))
        return tuple(entries)

    # ── what the code asks for ───────────────────────────────────────────────────────────────
    def ask_step(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str | None = None,
        undoing: Undoing | None = None, grant: Grant | None = None,
    ) -> CallFuture:  # fmt: skip
        """A step is called; an effect, if it has a business key. EncodeError or TypeError when its arguments cannot be
        recorded or do not fit."""
        if self.is_closing:
            return self._refuse()
        raw, name = spec.arguments.dumps(args, kwargs), spec.name
        key, use, future = self._new_call(name)
        view = None if spec.digest_view is None and not spec.ignore else view_of(spec, raw, args, kwargs)
        if business_key is None:
            ask = StepAsk(key, name, use, future, spec, raw, view)
        else:
            ask = EffectAsk(key, name, use, future, spec, raw, view, grant=grant, business_key=business_key)
            if undoing is not None:
                ask.undoes, ask.revision = undoing
        future.ask = ask
        claims = self.claims
        recorded = claims.recorded.pop(key, None) if claims.recorded else None
        if recorded is None:
            ask.packed = pack(raw, self.memo)
        else:
            ask.is_recorded = True
            is_same = recorded.input == raw and recorded.name == name and business_key is None
            if not is_same and (difference := claims.of_step(recorded, ask)) is not None:
                self.diverge(*difference)
                return future
        self.open[key] = ask
        self.commands.append(ask)
        if spec.rests is not None:
            self.known.rely(key, spec, raw)
        return future

    def ask_effect(
        self, spec: EffectSpec, args: tuple[Any, ...], kwargs: dict[str, Any], business_key: str,
        undoing: Undoing | None = None, grant: Grant | None = None,
    ) -> CallFuture:  # fmt: skip
        """An effect is called: it belongs to the saga that its code is in, unless it is the undoing of another one."""
        saga = None if undoing is not None or self.is_closing else workflow_saga_here(f"effect {spec.name}")
        future = self.ask_step(spec, args, kwargs, business_key, undoing, grant)
        if saga is not None and isinstance(future.ask, EffectAsk):
            saga.join(future.ask)
        return future

    def ask_person(self, question: str, reason: str, hint: str) -> CallFuture:
        """The code waits for a person's decision. The future gets the event, and the value that came with it."""
        if self.is_closing:
            return self._refuse()
        key, use, future = self._new_call(question)
        ask = linked(QuestionAsk(key, question, use, future))
        if self._is_expected(ask, 0):
            self.open[key] = ask
            if key not in self.known.asked:
                self.notes += (e.RunBlocked(reason, hint, *key, question, use),)
        return ask.future

    def ask_request(self, request: Request, codec: ValueCodec, about: StepSpec | None = None) -> RequestAsk:
        """The code asks people, and waits until they have decided. The future gets the event that says so, and the
        value that came with it."""
        refused = self._refuse() if self.is_closing else None
        name, raw = request.label, request.encoded()
        packed = pack(raw, self.memo)
        if refused is not None:
            return RequestAsk(NO_KEY, name, 0, refused, request, codec, raw, packed, about)
        key, use, future = self._new_call(name)
        ask = linked(RequestAsk(key, name, use, future, request, codec, raw, packed, about))
        ask.id = self.approval_at(key)
        ask.expires_at = self.now_us + request.within if request.within else 0
        difference = self.claims.of_call(ask, ask.packed.digest, raw)
        if difference is not None:
            self.diverge(*difference)
            return ask
        self.open[key] = ask
        self.commands.append(ask)
        if ask.expires_at:
            ask.handle = self.loop.call_at(ask.expires_at / MICROSECONDS, self._request_is_due, ask)
        return ask

    def approval_at(self, key: Key) -> str:
        """The id of what people are asked by this call: as it was asked, if it was."""
        asked = self.known.asked_as.get(key)
        if asked:
            return asked
        rewound = 0 if self.known.resting is None else self.known.decisions.rewound
        call = identity(self.beginning.chapter, *key)
        return approval_id(self.run_id, f"{call}~{rewound}" if rewound else call)

    def _request_is_due(self, ask: RequestAsk) -> None:
        """Whether a decision came in time is not known here: it may lie in the mailbox."""
        ask.handle = None
        self.commands.append(Overdue(ask))

    def lapse(self, approval: str, call: str) -> None:
        """What was approved, `call`, is not done: it is too late, or what it rests on is something else by now. The
        approval is good for nothing else."""
        if approval not in self.known.spent:
            self.known.spent[approval] = 0
            self.notes += (e.ApprovalSpent(approval, call, lapsed=True),)

    def ask_child(
        self,
        spec: WorkflowSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        run_id: str | None = None,
        on_cancel: str = "wait",
    ) -> ChildAsk:
        """A workflow is called from a workflow: a child run, with a derived id unless one is given."""
        refused = self._refuse() if self.is_closing else None
        self.check_child_id(run_id)
        raw = spec.arguments.dumps(args, kwargs)
        packed = pack(raw, self.memo)
        if refused is not None:
            return ChildAsk(NO_KEY, spec.name, 0, refused, spec, raw, packed, on_cancel)
        key, use, future = self._new_call(spec.name)
        ask = linked(ChildAsk(key, spec.name, use, future, spec, raw, packed, on_cancel))
        ask.is_started = key in self.known.children
        self.place_child(ask, run_id, run_id or self._child_id(spec, key))
        self._ask(ask, ask.packed.digest, raw)
        return ask

    def place_child(self, ask: ChildAsk, named: str | None, base: str) -> None:
        """Which run a call is for: the one that was recorded, or the one that its code names, or `base`. Since the run
        has gone back, one that is left from before, or another one beside it."""
        started = self.known.children.get(ask.key)
        ask.base = base
        if started is not None and (started.again or named is None):
            ask.run_id, ask.again = started.run_id, started.again
            if self.leftovers is not None:
                self.leftovers.note_placed(ask)
        elif self.leftovers is not None and started is None:
            taken = {run_id for key, run_id in self.children.items() if key != ask.key} - {base}
            self.leftovers.place(ask, is_named=named is not None, taken=taken)
        else:
            ask.run_id = base
        self.children[ask.key] = ask.run_id

    def _child_id(self, spec: WorkflowSpec, key: Key) -> str:
        """Of a child that is started now; that of a recorded one may be of the run that this was forked from."""
        return derived_id(self.run_id, self.beginning.chapter, key, spec.name)

    def check_child_id(self, run_id: str | None) -> None:
        """UsageError for an id that a child of this run cannot have."""
        if run_id is not None and recordable(run_id, what="run id") == self.run_id:
            raise UsageError(f"run {run_id!r} cannot be its own child: it would wait for itself for ever")

    def ask_section(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: ValueCodec,
        *,
        is_async: bool,
    ) -> CallFuture:
        """Foreign code is to be hosted outside this loop."""
        if self.is_closing:
            return self._refuse()
        key, use, future = self._new_call(name)
        is_recorded = key in self.claims.recorded
        ask = linked(SectionAsk(key, name, use, future, function, args, kwargs, is_async, result, is_recorded))
        if (saga := workflow_saga_here(f"section {name}")) is not None:
            self.sagas[key] = saga
        self._ask(ask, None, b"")
        return ask.future

    def _ask(self, ask: ChildAsk | SectionAsk, input_digest: bytes | None, raw: bytes) -> None:
        difference = self.claims.of_call(ask, input_digest, raw)
        if difference is not None:
            self.diverge(*difference)
        else:
            self.open[ask.key] = ask
            self.commands.append(ask)

    async def sleep(self, seconds: float) -> None:
        """A durable timer: its deadline is absolute, arming it costs nothing."""
        if self.is_closing:
            await self._refuse()
        if not 0 <= seconds <= SECONDS_MAX:
            raise UsageError(
                f"perdure.sleep({seconds!r}): a length between 0 and 100 years, in seconds or as timedelta"
            )
        key, use, future = self._new_call("sleep")
        length = round(seconds * MICROSECONDS)
        ask = linked(SleepAsk(key, "sleep", use, future, length, self.now_us + length))
        if self._known is not None and self._known.resting is not None:
            ask.deadline = self.known.decisions.arm(key, ask.length, ask.deadline)
        if self._is_expected(ask, ask.length):
            self.open[key] = ask
            ask.handle = self.loop.call_at(ask.deadline / MICROSECONDS, self._timer_is_due, ask)
        await ask.future

    def _timer_is_due(self, ask: SleepAsk) -> None:
        self.open.pop(ask.key, None)
        if not ask.future.done():
            ask.future.set_result(None)

    async def receive(self, name: str, codec: ValueCodec, *, within_seconds: float = 0) -> Any:
        """The next message of this name; waits for one. A receive that is cancelled takes nothing.

        `within_seconds`: after which time the caller will give it up, if it will; kept with a parked run."""
        if self.is_closing:
            await self._refuse()
        self._check_message_name(name)
        key, use, future = self._new_call(f"receive:{name}")
        queue = self.mailbox.queue(name)
        length = round(within_seconds * MICROSECONDS)
        claimed = linked(ReceiveAsk(key, f"receive:{name}", use, future, name, length))
        if not (self.claims.is_settled or self._is_expected(claimed, length)):
            await claimed.future
        while not queue:
            ask = linked(ReceiveAsk(key, f"receive:{name}", use, self._future(), name, length))
            self.open[key] = ask
            self.mailbox.join(ask)
            try:
                await ask.future
            except BaseException:
                self._leave_queue(ask)
                self.mailbox.wake(name)
                raise
            self._leave_queue(ask)
        message, problem = queue.popleft(), "it did not fit"
        if key not in self.known.unread:  # else the record has it that this code could not read it
            try:
                return codec.loads(message)
            except Exception as error:  # a DecodeError, or what a class makes of its fields
                problem = str(error)
        return await self._settled(claimed, length, codec, message, problem)

    async def _settled(self, of: ReceiveAsk, length: int, codec: ValueCodec, message: bytes, problem: str) -> Any:
        """What stands for a message that cannot be read. Given up, the message is the next receive's."""
        name = of.name.partition(":")[2]
        ask = linked(UnreadAsk(of.key, of.name, of.use, self._future(), name, length, codec, message))
        self.open[ask.key] = ask
        if ask.key not in self.known.unread:
            hint = f"{unread(ask.message, message)} does not fit what is received there: {problem}"
            self.notes += (e.RunBlocked("undecodable", hint, *ask.key, ask.name, ask.use),)
        return await ask.future

    def _leave_queue(self, ask: ReceiveAsk) -> None:
        self.open.pop(ask.key, None)
        self.mailbox.leave(ask)

    def _check_message_name(self, name: str) -> None:
        recordable(name, what="message name")
        declared = self.spec.receives
        if declared is not None and name not in declared:
            raise UnknownNameError("declared message", name, declared)

    def _is_expected(self, ask: SleepAsk | ReceiveAsk | QuestionAsk, length: int) -> bool:
        difference = self.claims.of_wait(ask, length)
        if difference is not None:
            self.diverge(*difference)
        return difference is None

    def patched(self, patch: str, *, is_passed: bool | None = None) -> bool:
        """Whether the code behind this guard may run; answered once per run and recorded.

        What is recorded behind this place shows that the run has passed it: calls, waits, and outcomes that are still
        to be delivered (a timer or a message belongs to no recorded call). `is_passed`: of hosted code, which
        has a record of its own."""
        recordable(patch, what="perdure.patched()")
        answer = self.known.patches.get(patch)
        if answer is None:
            if is_passed is None:
                is_passed = bool(self.outcomes_left) or not self.claims.is_settled
            answer = not is_passed
            self.known.patches[patch] = answer
            self.notes += (e.Patched(patch, answer),)
        return answer

    def deprecate_patch(self, patch: str) -> None:
        """The way around this guard is gone from the code: a run that takes it cannot go on."""
        recordable(patch, what="perdure.deprecate_patch()")
        if self.known.patches.get(patch) is False:
            self.diverge(
                f"the run answered perdure.patched({patch!r}) with False, and goes the way around it",
                "the code has deprecate_patch() there: that way is gone",
            )

    def continue_as_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ContinueAsNew:
        """What ends this chapter, to be raised. UsageError in a child task, or while calls are in flight.

        A receive takes nothing with it when it goes, and of an abandoned child the run wants to hear nothing."""
        if current_task(self.loop) is not self.root:
            raise UsageError("continue_as_new() belongs into the workflow's own task, not into one that it started")
        refuse_next_chapter()
        asks = (ask for ask in self.open.values() if not ask.is_about_debt)
        flying = [ask.label for ask in asks if not (isinstance(ask, ReceiveAsk) or _is_abandoned(ask))]
        return next_chapter(self.spec, args, kwargs, flying)

    def set_state(self, state: bytes) -> None:
        """What `Run.state()` shows; written with the next commit."""
        self.state = state

    def now(self) -> dt.datetime:
        """The time of the event being delivered, UTC."""
        return when(self.now_us)

    def _new_call(self, name: str) -> tuple[Key, int, CallFuture]:
        """What a call is known by, how often its task has used this name, and the future that will carry its answer."""
        loop = self.loop
        task = current_task(loop)
        if not isinstance(task, LoopTask):
            raise UsageError(f"{name} was called outside every task of the workflow: make a task for it")
        loop.idle_callbacks = 0
        n = task.calls
        task.calls = n + 1
        uses = task.uses
        use = uses[name] = uses.get(name, 0) + 1
        future = CallFuture(loop=loop)  # as in `_future`, which most calls are spared
        loop.ordinal = future.ordinal = loop.ordinal + 1
        future.execution = self
        return (task.path, n), use, future

    def _future(self) -> CallFuture:
        loop = self.loop
        future = CallFuture(loop=loop)
        loop.ordinal += 1
        future.ordinal = loop.ordinal
        future.execution = self
        return future

    def call_was_cancelled(self, ask: Ask) -> None:
        """The code (or the end of the run) cancelled a call: nobody is to have its outcome any more."""
        if self.open.get(ask.key) is not ask:
            return
        if isinstance(ask, SleepAsk):
            del self.open[ask.key]
            ask.handle.cancel()
        elif isinstance(ask, UnreadAsk):
            del self.open[ask.key]
            if ask.key not in self.known.cancelled:
                self.notes += (e.RunUnblocked("cancelled", "", *ask.key, "", ask.name, ask.use),)
            self.cancelled.add(ask.key)
            self.mailbox.put_back(ask.message, ask.unread)
        elif isinstance(ask, RequestAsk):
            del self.open[ask.key]
            self.cancelled.add(ask.key)
            if ask.handle is not None:
                ask.handle.cancel()
            self.commands.append(Cancelled(ask))
        elif isinstance(ask, ChildAsk) and not ask.is_started:
            del self.open[ask.key]  # nobody has heard of it, so nobody would report its end
            if self.leftovers is not None:
                self.leftovers.let_go(ask)
        elif not isinstance(ask, ReceiveAsk):
            del self.open[ask.key]
            self.cancelled.add(ask.key)
            if isinstance(ask, EffectAsk) or (isinstance(ask, ChildAsk) and ask.on_cancel == "wait"):
                self.holding.add(ask.key)
            elif isinstance(ask, SectionAsk):
                self._hold_section(ask.key)
            self.commands.append(Cancelled(ask))

    def _hold_section(self, key: Key) -> None:
        """Hosted code was cancelled: what it has begun outside keeps the run from ending; or the code itself, until it
        has undone that."""
        if key not in self.known.undoing:
            self.holding.update(self.known.open_effects_of(key))
            return
        self.holding.add(key)
        if (saga := self.sagas.get(key)) is not None:
            saga.join_section(key)

    # ── leaving memory ───────────────────────────────────────────────────────────────────────
    def _refuse(self) -> CallFuture:
        """No durable call is made while a run is dropped from memory: it raises.

        Code that swallows that and asks again (`while True: ... except BaseException`) would spin, without ever giving
        way to the loop: after so many times its call is left unanswered instead."""
        self._refusals += 1
        if self._refusals <= REFUSALS_MAX:
            raise Dropped("this run is being dropped from memory: no durable call is made any more")
        return linked(Ask(NO_KEY, "refused", 0, self._future())).future

    def close(self) -> None:
        """Drop the run from memory: cancel and drain its loop in its own context, with durable calls refused."""
        self.is_closing = True
        self.open.clear()
        if not self.loop.is_closed():
            left = self._unwind()
            if left:
                self.log(
                    f"run {self.run_id}: {len(left)} task(s) would not end when it left memory: {where.describe(left)}"
                )
                _keep(left)
            self.loop.close()
            self.root = None
            self.on_interruption = _nothing

    def _unwind(self) -> Sequence[LoopTask]:
        try:
            return self.loop.unwind()
        except StuckTurn:
            return self.loop.live_tasks()

    def foreign_callback(self, who: str) -> None:
        """Another thread called into the loop."""
        if not self.is_closing:
            self.fail("diverged", f"{NO_THREADS}; {who} called into its loop")
            self.on_interruption(self)

    def complain(self, context: Mapping[str, Any]) -> None:
        """Something went wrong on the loop that nobody awaits."""
        error = context.get("exception")
        if not self.is_replaying and not self.is_closing and not isinstance(error, (GuardError, FencedError)):
            self.log(f"run {self.run_id}: {context.get('message')}: {_repr_of(error)}")


class Dropped(BaseException):
    """Raised by durable calls while a run is being dropped from memory."""


_kept: list[LoopTask] = []


def _nothing(execution: Execution) -> None:
    """Nobody is told: the run is not in memory yet, or any more."""


def _keep(tasks: Sequence[LoopTask]) -> None:
    """Tasks that swallow every cancellation are kept for good: the collector would only run them once more."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    _kept.extend(tasks)


def _is_abandoned(ask: Ask) -> TypeGuard[ChildAsk]:
    return isinstance(ask, ChildAsk) and ask.on_cancel == "abandon"


def _codec_of(ask: Ask) -> ValueCodec:
    if isinstance(ask, (StepAsk, ChildAsk)):
        return ask.spec.result
    if isinstance(ask, SectionAsk):
        return ask.result
    if isinstance(ask, UnreadAsk):
        return ask.codec
    raise StepError(f"{ask.label} has no result")


def _raises_of(ask: Ask) -> tuple[type[BaseException], ...]:
    return ask.spec.raises if isinstance(ask, StepAsk | ChildAsk) else ()


def view_of(spec: StepSpec, raw: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The digest of what of the arguments counts, if the step declares such a view."""
    if spec.digest_view is not None:
        return digest(msgspec.json.encode(spec.digest_view(*args, **kwargs), order="sorted"))
    return digest(without(raw, spec.ignore)) if spec.ignore else None


def _due_at(when: float) -> int:
    """The first microsecond at which a timer of the loop is due. Rounding alone may fall short of it by one."""
    at = -int(-when * MICROSECONDS // 1)
    return at if at / MICROSECONDS >= when else at + 1


def _repr_of(error: object) -> str:
    """Its repr, whatever its class makes of that."""
    try:
        return repr(error)
    except Exception:
        return f"a {type(error).__name__} that cannot be printed"

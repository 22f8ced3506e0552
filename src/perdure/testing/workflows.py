"""The one workflow that runs every program of the simulator, and the steps that programs make."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import perdure
from perdure import (
    CanLookUp,
    Found,
    Idempotent,
    NoGuarantee,
    NotFound,
    Operation,
    Retry,
    Unsure,
    effect,
    step,
    workflow,
)
from perdure.api.calls import execution_here
from perdure.engine.execution import Execution
from perdure.runtime.attempt import JOURNAL
from perdure.testing import programs as p
from perdure.testing.consents import APPROVERS
from perdure.testing.interpreter import ChildHandle, OddError, Trace, evaluate, fold
from perdure.testing.outside import Outside, Send

RETRY = Retry(max_attempts=3, first_delay=0.02, jitter=0)
SHORT_SECONDS = 0.1
BEATS_FROM_SECONDS = 0.06
MESSAGE = "what a model says at length " * 20


class Stage(Protocol):
    """Where a program is performed: who watches it, and how long its steps take."""

    program: p.Program
    outside: Outside

    def about_to_send(self, process: object) -> None:
        """A request of an effect is about to leave; its process may be frozen right here."""
        ...

    def sent(self, operation: Operation, node: p.Effect, request: tuple[int, int, int], process: object) -> Send:
        """A request of an effect arrives outside."""
        ...

    def began(self, trace: Trace, execution: Execution) -> None:
        """A run's code begins, for the first time or again."""
        ...

    def step_began(self, body: Body) -> None:
        """A step's body begins."""
        ...

    def seen(self, sight: Sight, value: int) -> None:
        """Hosted code has an answer."""
        ...

    def taken(self, sight: Sight, message: int) -> None:
        """Hosted code has a message."""
        ...

    def is_decided(self, run_id: str) -> bool:
        """Whether a person has said that a step of this run is to be tried again."""
        ...

    def heard(self, label: str, node: int, details: object) -> None:
        """What an attempt reads of the heartbeats of those before it."""
        ...

    def takes(self, node: p.Step | p.Effect) -> float:
        """How many seconds the body takes this time."""
        ...


class Body:
    """One execution of a step's body."""

    def __init__(self, node: int, digest: int, chapter: int) -> None:
        attempt = perdure.attempt()
        self.node, self.digest, self.chapter = node, digest, chapter
        self.run_id, self.label, self.number = attempt.run_id, attempt.label, attempt.number
        self.process: object = perdure.use(Process)


class Sight:
    """Something that hosted code sees: in which section of which run, in which branch, as the how-manyeth."""

    def __init__(self, branch: int, chapter: int, place: int) -> None:
        journal: Any = JOURNAL.get()
        self.run_id: str = journal.live.run_id
        self.at = (self.run_id, chapter, str(journal.section), branch, place)


class Process:
    """The key under which a simulated process is provided to the bodies of its steps."""


_stages: list[Stage] = []


def enter_stage(stage: Stage) -> None:
    """From now on programs are performed here. One at a time in a process."""
    _stages[:] = [stage]


def on_stage() -> Stage:
    """Where the program that runs now is performed."""
    return _stages[0]


def value_of(program: p.Program, node: int) -> int:
    """What a step gives."""
    return zlib.crc32(f"{program.seed}/{node}".encode())


def _begin(node: int, digest: int, chapter: int) -> tuple[p.Step, float]:
    stage = on_stage()
    stage.step_began(Body(node, digest, chapter))
    it = stage.program.nodes[node]
    assert isinstance(it, p.Step)
    return it, stage.takes(it)


def _end(node: p.Step) -> int:
    if perdure.attempt().number <= node.fails:
        raise ConnectionError("not this time")
    if node.ends == "error":
        raise ValueError(node.number)
    if node.ends == "odd":
        raise OddError(node.number)
    if node.ends == "person" and not on_stage().is_decided(perdure.attempt().run_id):
        raise perdure.NeedsPerson("somebody has to look at this")
    if node.ends == "final":
        raise perdure.Final("for good")
    return value_of(on_stage().program, node.number)


async def _perform(node: int, digest: int, chapter: int) -> int:
    it, seconds = _begin(node, digest, chapter)
    if seconds >= BEATS_FROM_SECONDS:
        on_stage().heard(perdure.attempt().label, node, perdure.last_heartbeat())
        await asyncio.sleep(seconds / 2)
        perdure.heartbeat([node, perdure.attempt().number])
        await asyncio.sleep(seconds / 2)
    elif seconds:
        await asyncio.sleep(seconds)
    return _end(it)


@step(retry=RETRY)
async def plain(node: int, digest: int, chapter: int) -> int:
    return await _perform(node, digest, chapter)


@step(retry=RETRY, record="lazy")
async def lazy(node: int, digest: int, chapter: int) -> int:
    return await _perform(node, digest, chapter)


@step(retry=Retry(max_attempts=2, first_delay=0.02, jitter=0), timeout=SHORT_SECONDS)
async def short(node: int, digest: int, chapter: int) -> int:
    return await _perform(node, digest, chapter)


@step(retry=RETRY)
def threaded(node: int, digest: int, chapter: int) -> int:
    it, _ = _begin(node, digest, chapter)
    return _end(it)


@step(retry=RETRY, name="long")
async def long_step(node: int, digest: int, chapter: int, talk: list[str]) -> list[str]:
    value = await _perform(node, digest, chapter)
    return [*talk, f"{value} {MESSAGE}"]


# ── effects ─────────────────────────────────────────────────────────────────────────────────


def _effect_node(node: int) -> p.Effect:
    it = on_stage().program.nodes[node]
    assert isinstance(it, p.Effect)
    return it


def _send(node: int, digest: int, chapter: int) -> Send:
    operation = perdure.operation()
    send = on_stage().sent(operation, _effect_node(node), (node, digest, chapter), perdure.use(Process))
    operation.reference = f"ref of attempt {operation.attempt}"
    return send


def _answer(send: Send) -> Any:
    match send.fate:
        case "lost" | "dropped":
            raise ConnectionResetError("the connection went away")
        case "refused":
            raise perdure.Final("refused")
        case "busy":
            raise perdure.Retryable("too busy")
        case "doubt":
            raise perdure.InDoubt("an answer that is none")
        case "person":
            raise perdure.NeedsPerson("look into their books")
        case "odd":
            return object()
        case _:
            return on_stage().outside.results[send.operation]


async def _perform_effect(node: int, digest: int, chapter: int) -> int:
    it = _effect_node(node)
    await asyncio.sleep(on_stage().takes(it) / 4)
    on_stage().about_to_send(perdure.use(Process))
    await asyncio.sleep(0)
    send = _send(node, digest, chapter)
    await asyncio.sleep(1.0 if send.fate == "late" else it.ms / 4000)
    return _answer(send)  # type: ignore[no-any-return]


def _perform_threaded(node: int, digest: int, chapter: int) -> int:
    return _answer(_send(node, digest, chapter))  # type: ignore[no-any-return]


def _key(node: int, digest: int, chapter: int) -> int:
    return _effect_node(node).key


async def _look_up(operation: Operation) -> Found[int] | NotFound | Unsure:
    outside = on_stage().outside
    await asyncio.sleep(0.001)
    match outside.look_up(operation.id):
        case "found":
            return Found(outside.results[operation.id])
        case "not_found":
            return NotFound()
        case "unsure":
            return Unsure("ask again later")
        case "raises":
            raise ConnectionError("nobody there")


EFFECT_RETRY = Retry(max_attempts=2, first_delay=0.02, jitter=0)
EFFECT_SECONDS = 0.1
THREADED_EFFECT_SECONDS = 0.03
SETTLE_AFTER_SECONDS = 0.05
DOWNSTREAMS: dict[str, Any] = {
    "idempotent": Idempotent(),
    "can_look_up": CanLookUp(settle_after=SETTLE_AFTER_SECONDS),
    "no_guarantee": NoGuarantee(),
}


def _declared(kind: str, scope: Any, *, is_threaded: bool) -> Any:
    timeout = THREADED_EFFECT_SECONDS if is_threaded else EFFECT_SECONDS
    name = f"{kind}_{scope}{'_threaded' * is_threaded}"
    declare = effect(downstream=DOWNSTREAMS[kind], scope=scope, retry=EFFECT_RETRY, timeout=timeout, name=name)
    declared: Any = declare(_perform_threaded) if is_threaded else declare(_perform_effect)
    declared.key(_key)
    if kind == "can_look_up":
        declared.lookup(_look_up)
    return declared


EFFECTS: dict[tuple[str, str, bool], Any] = {
    (kind, scope, is_threaded): _declared(kind, scope, is_threaded=is_threaded)
    for kind in DOWNSTREAMS
    for scope in ("run", "global")
    for is_threaded in (False, True)
}


def call_of_effect(node: p.Effect, digest: int, chapter: int) -> Awaitable[int]:
    call: Awaitable[int] = EFFECTS[node.kind, node.scope, node.is_threaded].call(node.number, digest, chapter)
    return call


STEPS: dict[str, Any] = {"plain": plain, "lazy": lazy, "short": short, "threaded": threaded}


async def foreign_code(node: int, chapter: int) -> int:
    """What a section hosts: it knows asyncio, and makes calls."""
    first, *others = [kid for _, kid in p.kids_of(on_stage().program.nodes[node])]
    value = await _branch(first, chapter)
    return fold([value, *await asyncio.gather(*(_branch(kid, chapter) for kid in others))])


async def _branch(node: p.Node, chapter: int) -> int:
    """What is asked for in a lane of its own is asked for on the grounds of what this lane has seen."""
    if isinstance(node, p.Wait):
        return await _race(node, chapter)
    if not isinstance(node, p.Sequence):
        return await _call_of(node, 0, chapter)
    with perdure.lane(f"branch {node.number}"):
        values: list[int] = []
        for kid in node.kids:
            values.append(await _call_of(kid, fold(values), chapter))
            on_stage().seen(Sight(node.number, chapter, len(values)), values[-1])
        return fold(values)


async def _race(node: p.Wait, chapter: int) -> int:
    """Who is first is first whenever the code runs again. The others are awaited, or given up."""
    with perdure.lane(f"branch {node.number}"):
        racers = [asyncio.ensure_future(_call_of(kid, 0, chapter)) for kid in node.kids]
        for racer in racers:
            racer.add_done_callback(_is_heard)
        done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        places = [place for place, racer in enumerate(racers) if racer in done]
        on_stage().seen(Sight(node.number, chapter, 0), fold(places))
        for racer in racers if node.losers == "cancel" else ():
            racer.cancel()
        return fold([places, *(await asyncio.gather(*racers, return_exceptions=True))]) % 1000


def _is_heard(racer: asyncio.Task[int]) -> None:
    """That it was unwound with its section is nothing to be told about."""
    if not racer.cancelled():
        racer.exception()


async def _call_of(kid: p.Node, digest: int, chapter: int) -> int:
    match kid:
        case p.Sleep():
            await perdure.sleep(kid.ms / 1000)
            return 0
        case p.Receive():
            message = await _received(kid)
            if message is not None:
                on_stage().taken(Sight(kid.number, chapter, 0), message)
            return -1 if message is None else message
        case p.Approve():
            try:
                return await _approved(kid, digest, chapter)
            except (perdure.Rejected, perdure.ApprovalExpired):
                return -1
        case _:
            value: int = await _made(kid, digest, chapter)
            return value


async def _received(node: p.Receive) -> int | None:
    try:
        return await perdure.receive(node.message, int, within=_seconds(node.within_ms))
    except TimeoutError:
        return None


def _made(kid: p.Node, digest: int, chapter: int) -> Any:
    """A call, not made yet: of a step, an effect or a child."""
    if isinstance(kid, p.Child):
        return simulated.call(kid.kid.number, 0, digest)
    if isinstance(kid, p.Effect):
        return call_of_effect(kid, digest, chapter)
    assert isinstance(kid, p.Step)
    return STEPS.get(kid.which, plain).call(kid.number, digest, chapter)


async def _approved(node: p.Approve, digest: int, chapter: int) -> int:
    value: int = await perdure.with_approval(
        _made(node.kid, digest, chapter), by=APPROVERS, quorum=node.quorum, within=_seconds(node.within_ms),
        recheck=node.recheck,
    )  # fmt: skip
    return value


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


class Durable:
    """What perdure offers to a program."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution

    @property
    def is_closing(self) -> bool:
        return self.execution.is_closing

    def step(self, node: p.Step, digest: int, chapter: int) -> Awaitable[int]:
        call: Awaitable[int] = STEPS[node.which].call(node.number, digest, chapter)
        return call

    def long_step(self, node: p.Step, digest: int, chapter: int, talk: list[str]) -> Awaitable[list[str]]:
        return long_step(node.number, digest, chapter, talk)

    def effect(self, node: p.Effect, digest: int, chapter: int) -> Awaitable[int]:
        return call_of_effect(node, digest, chapter)

    def ask(self, node: p.Ask, digest: int, chapter: int) -> Awaitable[int]:
        within = _seconds(node.within_ms)
        return perdure.ask(f"{node.number} {digest}", type=int, by=APPROVERS, within=within)

    def approve(self, node: p.Approve, digest: int, chapter: int) -> Awaitable[int]:
        return _approved(node, digest, chapter)

    def sleep(self, seconds: float) -> Awaitable[None]:
        return perdure.sleep(seconds)

    def receive(self, message: str, within: float | None) -> Awaitable[int]:
        return perdure.receive(message, int, within=within)

    def child(self, node: p.Node, digest: int) -> Awaitable[int]:
        return simulated.call(node.number, 0, digest)

    async def start_child(self, node: p.Node, digest: int, *, abandons: bool) -> ChildHandle:
        return await perdure.start(simulated.call(node.number, 0, digest), on_cancel="abandon" if abandons else "wait")

    async def foreign(self, node: p.Foreign, digest: int, chapter: int) -> int:
        value: int = await perdure.section(f"{node.number} {digest}").run(foreign_code, node.number, chapter)
        return value

    def as_completed(self, kids: Sequence[Coroutine[Any, Any, int]], timeout: float | None) -> Iterable[Awaitable[int]]:
        return asyncio.as_completed(kids, timeout=timeout)

    def wait_for(self, kid: Coroutine[Any, Any, int], timeout: float) -> Awaitable[int]:
        return asyncio.wait_for(kid, timeout)

    def task_group(self) -> asyncio.TaskGroup:
        return asyncio.TaskGroup()

    def look(self, node: p.Look) -> object:
        match node.at:
            case "now":
                return perdure.now().isoformat()
            case "random":
                return perdure.random()
            case "uuid":
                return str(perdure.uuid4())
            case "patch":
                return perdure.patched(f"patch {node.number % 2}")
            case "run":
                return perdure.current_run().id
            case "state":
                perdure.set_state(node.number)
                return node.number


@workflow
async def simulated(node: int, chapter: int, digest: int = 0) -> int:
    """Evaluate this node of the program on the stage. `digest`: on which grounds a child was asked for."""
    execution = execution_here()
    assert execution is not None
    stage = on_stage()
    program = stage.program
    trace = Trace(program, Durable(execution), execution.run_id, chapter)
    stage.began(trace, execution)
    value = await evaluate(program.nodes[node], trace)
    if node == program.root.number and chapter + 1 < program.chapters:
        try:
            perdure.continue_as_new(node, chapter + 1)
        except perdure.UsageError as error:
            trace.see(program.root, type(error).__name__)
    return value

"""Would the runs in a store go on under the code that is here? Known before a deploy, and nothing is performed.

Each history is compared and replayed as a worker does when it loads the run, under the guard; no step, effect or
look-up begins, and nothing is written. What is said of a run is what becomes of it when this code loads it in checked
mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure.clock import when
from perdure.engine import exact
from perdure.engine.calls import Ask, ChildAsk, EffectAsk, ReceiveAsk, RequestAsk, SectionAsk, SleepAsk, StepAsk
from perdure.engine.chapters import Blocked
from perdure.engine.execution import Execution
from perdure.engine.known import Standing
from perdure.errors import GuardError, HistoryCorruptError, StoreError
from perdure.ledger import EffectState
from perdure.runtime import contracts
from perdure.runtime.contracts import topology as topology
from perdure.runtime.guard import checking
from perdure.runtime.load import Blobs, Past, parked
from perdure.runtime.options import catalog_of
from perdure.specs import EffectSpec, Idempotent, NoGuarantee, SameDatabase, StepSpec, WorkflowSpec
from perdure.store.protocol import FINAL, UNFINISHED, Filter, RunInfo, Store, Stored, every_run

FINISHED_SAMPLE = 100
"""How many runs that have ended are looked at besides, the newest first."""


class Outlook(StrEnum):
    """What becomes of a run under this code."""

    REPLAYS = "replays"
    NEEDS_PATCH = "needs patch"
    BREAKS = "breaks"
    NOT_CHECKED = "not checked"
    """Hosted code is under way in it, which only whoever executes the run replays."""


class Does(StrEnum):
    """What comes of a call, or of a result that rests on something, in a word."""

    REUSE = "reuse"
    RECOMPUTE = "recompute"
    PERFORM = "perform"
    LOOK_UP = "look up"
    COMPENSATE = "compensate"
    WAIT = "wait"
    BLOCK = "block"


class Pending(NamedTuple):
    """A call that a run waits for, or a result that rests on something, and what comes of it when the run is loaded by
    this code."""

    call: str
    does: Does
    then: str


class Checked(msgspec.Struct, frozen=True):
    """What becomes of one run. `reason`: as what it would be parked (see the inbox). `why`: in words. `recorded`,
    `asked`, `where`: the first call in which history and code differ, and where in the source. `patch`: the line that
    guards the change. `pending`: what it waits for, if it replays."""

    run_id: str
    workflow: str
    version: int
    status: str
    outlook: Outlook
    reason: str = ""
    why: str = ""
    recorded: str = ""
    asked: str = ""
    where: str = ""
    patch: str = ""
    pending: tuple[Pending, ...] = ()


Catalog = Mapping[tuple[str, int], WorkflowSpec]


def check_store(
    store: Store, workflows: Iterable[WorkflowSpec], *, finished_max: int = FINISHED_SAMPLE
) -> Iterator[Checked]:
    """All runs of a store that have not ended, and the newest of those that have, against these workflows.

    Runs of workflows of which there is no version at all here are left out: they are another program's."""
    workflows = list(workflows)
    return check_runs(store, runs_to_check(store, workflows, finished_max=finished_max), workflows)


def runs_to_check(store: Store, workflows: Iterable[WorkflowSpec], *, finished_max: int) -> list[RunInfo]:
    """Which runs of a store `check_store` looks at."""
    catalog = _catalog(workflows)
    names = {name for name, _ in catalog}
    infos = [info for info in every_run(store, Filter(status=UNFINISHED)) if info.workflow in names]
    ended = store.runs(Filter(status=FINAL, limit=finished_max)) if finished_max else []
    return infos + [info for info in ended if info.workflow in names and (info.workflow, info.version) in catalog]


def check_runs(store: Store, infos: Iterable[RunInfo], workflows: Iterable[WorkflowSpec]) -> Iterator[Checked]:
    """These runs of a store against these workflows."""
    catalog = _catalog(workflows)
    with _as_in_a_runtime():
        for info in infos:
            yield _check_info(store, info, catalog)


def checked(stored: Stored, blobs: Blobs, spec: WorkflowSpec) -> Checked:
    """One history against this code, whichever version it is of."""
    with _as_in_a_runtime():
        return check_history(stored, blobs, spec)


def check_histories(kept: Iterable[tuple[Stored, Blobs]], workflows: Iterable[WorkflowSpec]) -> Iterator[Checked]:
    """Histories that were exported, against these workflows."""
    catalog = _catalog(workflows)
    with _as_in_a_runtime():
        for stored, blobs in kept:
            spec = catalog.get((stored.info.workflow, stored.info.version))
            if spec is None:
                yield _unserved(stored.info, catalog)
            else:
                yield _alone(stored.info, partial(check_history, stored, blobs, spec))


def _catalog(workflows: Iterable[WorkflowSpec]) -> Catalog:
    return catalog_of({spec.key: spec for spec in workflows})


def _check_info(store: Store, info: RunInfo, catalog: Catalog) -> Checked:
    spec = catalog.get((info.workflow, info.version))
    if spec is None:
        return _unserved(info, catalog)
    return _alone(info, lambda: check_history(store.load(info.rid), store, spec))


def _alone(info: RunInfo, check: Callable[[], Checked]) -> Checked:
    """Whatever is wrong with a history concerns this run alone."""
    try:
        return check()
    except StoreError:
        raise
    except Exception as error:
        return _found(info, Outlook.BREAKS, reason="undecodable", why=f"its history cannot be loaded: {error}")


def _found(info: RunInfo, outlook: Outlook, **more: Any) -> Checked:
    return Checked(info.run_id, info.workflow, info.version, str(info.status), outlook, **more)


def _unserved(info: RunInfo, catalog: Catalog) -> Checked:
    has = sorted(version for name, version in catalog if name == info.workflow)
    why = (
        f"it runs under version {info.version} of {info.workflow}, and here is {', '.join(map(str, has)) or 'none'}: "
        f"keep that version registered, or say replays={{{info.version}}}"
    )
    return _found(info, Outlook.BREAKS, reason="no_worker_for_version", why=why)


# ── one history ─────────────────────────────────────────────────────────────────────────────


class _as_in_a_runtime:  # noqa: N801
    """asyncio as workflows have it."""

    def __enter__(self) -> None:
        exact.install()

    def __exit__(self, *_: object) -> None:
        exact.uninstall()


def check_history(stored: Stored, blobs: Blobs, spec: WorkflowSpec) -> Checked:
    """What becomes of a run with this history under this code. To be called where asyncio is as workflows have it."""
    past = Past(stored, blobs)
    admission = past.under(spec)
    if admission is not None and admission.refusal:
        return _found(stored.info, Outlook.BREAKS, reason="incompatible_version", why=admission.refusal)
    execution = past.execution(spec, same_manifest=admission is None, log=_silent)
    try:
        _replay(past, execution)
        return _judged(past, execution, spec)
    finally:
        execution.close()


@contextmanager
def replayed(past: Past, spec: WorkflowSpec) -> Generator[Execution, None, None]:
    """The code of a run as far as its history goes, performing nothing."""
    with _as_in_a_runtime():
        execution = past.execution(spec, same_manifest=past.is_under(spec), log=_silent)
        try:
            _replay(past, execution)
            yield execution
        finally:
            execution.close()


def _silent(_line: str) -> None:
    """What workflow code says while it is only looked at concerns nobody."""


def _replay(past: Past, execution: Execution) -> None:
    def note(error: GuardError) -> None:
        execution.fail("diverged", str(error))

    try:
        with checking(note):
            past.replay(execution)
    except HistoryCorruptError as error:
        execution.fail("undecodable", str(error))


def _judged(past: Past, execution: Execution, spec: WorkflowSpec) -> Checked:
    info, failure = past.stored.info, execution.failure
    if failure is not None:
        return _parted(past, spec, failure)
    if info.status.is_final:
        return _of_ended(info, execution)
    if any(isinstance(ask, SectionAsk) for ask in execution.open.values()):
        why = "its hosted code is replayed only where the run is executed"
        return _found(info, Outlook.NOT_CHECKED, why=why, pending=_pending(past, execution))
    return _found(info, Outlook.REPLAYS, pending=_pending(past, execution))


def _of_ended(info: RunInfo, execution: Execution) -> Checked:
    """A run that has ended goes nowhere; but one like it, that is on its way there, would."""
    asked = next((ask for ask in execution.open.values()), None)
    if execution.ending is not None or asked is None or str(info.status) == "cancelled" or execution.holding:
        return _found(info, Outlook.REPLAYS)
    why = f"it has ended, where the code asks for {asked.kind} {asked.name!r} ({asked.label})"
    return _found(info, Outlook.NEEDS_PATCH, reason="diverged", why=why, asked=f"{asked.kind} {asked.name}")


def _parted(past: Past, spec: WorkflowSpec, failure: Blocked) -> Checked:
    parting = failure.parting
    if parting is None:
        return _found(past.stored.info, Outlook.BREAKS, reason=failure.reason, why=failure.hint)
    patch = contracts.patch(past.events, spec, failure)
    return _found(
        past.stored.info, Outlook.NEEDS_PATCH if patch else Outlook.BREAKS, reason=failure.reason,
        why=failure.hint + contracts.explanation(past.events, spec, failure), recorded=parting.recorded,
        asked=parting.asked, where=parting.where, patch=patch,
    )  # fmt: skip


# ── what it waits for ───────────────────────────────────────────────────────────────────────

WITHOUT_OUTCOME: Mapping[EffectState, tuple[Does, str]] = {
    EffectState.PENDING: (Does.PERFORM, "is sent"),
    EffectState.FAILED_RETRYABLE: (Does.PERFORM, "has done nothing so far: is sent again"),
    EffectState.UNKNOWN: (Does.BLOCK, "may have happened: until a person has settled it"),
}
"""By its state: an effect that has no outcome, and is not under way."""

SENT_AGAIN = Does.PERFORM, "may have happened: is sent again under its key"
LOOKED_UP = Does.LOOK_UP, "may have happened: is looked up before anything is sent"
ASKED = Does.BLOCK, "may have happened: a person says what became of it"
ONE_TRANSACTION = Does.PERFORM, "is done, unless it was: both are one transaction"


def _pending(past: Past, execution: Execution) -> tuple[Pending, ...]:
    """What becomes of the run as a whole, if it is parked, and of every call that it waits for."""
    info = past.stored.info
    standing = parked(info, past.others)
    found: list[Pending] = []
    if standing.blocked is not None:
        told = f"it is parked ({info.reason}) until somebody unblocks it, perdure inbox unblock"
        found.append(Pending("", Does.BLOCK, told))
    elif standing.is_paused:
        found.append(Pending("", Does.WAIT, "it is paused, until somebody resumes it"))
    for ask in execution.open.values():
        blocked = standing.calls.get(ask.key)
        if blocked is None or blocked.reason == "unknown_effect":
            found.append(Pending(ask.label, *_then(execution, ask)))
        else:
            found.append(Pending(ask.label, Does.BLOCK, f"until a person has decided ({blocked.reason})"))
    return (*found, *_resting(execution))


OF_STALE: Mapping[str, Does] = {"block": Does.BLOCK, "reapprove": Does.BLOCK, "recompute": Does.RECOMPUTE}
"""What is done about a result that does not stand any more, by what its author chose; by all else it is kept."""


def _resting(execution: Execution) -> Iterator[Pending]:
    """The results that are looked at again before the run goes on. What they rest on is not read here."""
    now = time.time_ns() // 1_000
    for _, rest, asked in execution.known.decisions.live() if execution.known.resting is not None else ():
        rests = asked.spec.rests
        names = ", ".join(premise.name for premise in rests.premises) if rests is not None else ""
        chosen = "as its function says" if rests is None or callable(rests.on_stale) else str(rests.on_stale)
        if rest.is_over(now):
            does = OF_STALE.get(chosen, Does.REUSE)
            yield Pending(rest.event.call, does, f"its time was over at {when(rest.valid_until).isoformat()}: {chosen}")
        else:
            unless = f" if {names} is as it was when it is read again, else {chosen}" if names else ""
            yield Pending(rest.event.call, Does.REUSE, f"stands{unless}")


def _then(execution: Execution, ask: Ask) -> tuple[Does, str]:
    match ask:
        case EffectAsk():
            return _of_effect(execution, ask)
        case StepAsk():
            failed = execution.attempts_at(ask.key).failed
            again = f"is tried again, attempt {failed + 1}"
            return Does.PERFORM, again if failed else "runs: nothing is recorded of it"
        case ChildAsk() if ask.is_started:
            return Does.WAIT, f"waits for run {ask.run_id}"
        case ChildAsk():
            return Does.PERFORM, f"starts run {ask.run_id}"
        case SleepAsk():
            return Does.WAIT, f"waits until {when(ask.deadline).isoformat()}"
        case ReceiveAsk():
            return Does.WAIT, f"waits for message {ask.message!r}"
        case RequestAsk() if ask.key in execution.known.requests:
            return Does.WAIT, f"waits for people: {ask.request.kind} {ask.id}"
        case RequestAsk():
            return Does.PERFORM, "asks people"
        case SectionAsk():
            return Does.PERFORM, "runs again, its recorded calls answered"
        case _:
            return Does.WAIT, "waits for a person"


def _of_effect(execution: Execution, ask: EffectAsk) -> tuple[Does, str]:
    standing = execution.known.effects.get(ask.key)
    state = EffectState.PENDING if standing is None else standing.state
    does, told = WITHOUT_OUTCOME.get(state) or _in_doubt(ask.spec, standing)
    if ask.undoes and does is not Does.BLOCK:
        return Does.COMPENSATE, f"takes back operation {ask.undoes}: {told}"
    return does, told


def _in_doubt(spec: StepSpec, standing: Standing | None) -> tuple[Does, str]:
    """What is done about an attempt that nobody knows the outcome of, as `perdure.ledger.doubt` has it."""
    if not isinstance(spec, EffectSpec) or standing is None:
        return ASKED
    if isinstance(spec.downstream, SameDatabase):
        return ONE_TRANSACTION
    if standing.doubt is not None and standing.doubt.wants_person:
        return ASKED
    if isinstance(spec.downstream, Idempotent) and standing.failed < spec.retry.max_attempts:
        return SENT_AGAIN
    return ASKED if spec.lookup is None or isinstance(spec.downstream, NoGuarantee) else LOOKED_UP


def worst(found: Sequence[Checked]) -> Outlook:
    """The worst of what was found; `replays` if there is nothing."""
    order = [Outlook.REPLAYS, Outlook.NOT_CHECKED, Outlook.NEEDS_PATCH, Outlook.BREAKS]
    return max((each.outlook for each in found), key=order.index, default=Outlook.REPLAYS)

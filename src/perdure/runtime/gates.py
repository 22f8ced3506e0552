"""May a call pass? Asks the policies that apply, and of a step the approval under which it is made, right before that.

    asked for ──▶ judged ──▶ what counts against a rate rides in the commit of its start ──▶ made
                    └──────▶ denied: recorded, and noted for people, in one commit

What is allowed is `perdure.gates`'; here it is carried out. Policies are asked at every Prepare: so a changed one
counts from the next one on, also for what is tried again after a crash. What may have left already is not theirs any
more: no policy takes it back.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from perdure.clock import time_text, when
from perdure.codec import codec_for, dump_exception
from perdure.decisions import Vote
from perdure.engine.calls import CHECK_AGE_MAX_MICROSECONDS, Grant, Key
from perdure.errors import AuthorityUnreadableError, PerdureError, PolicyDenied, StoreError
from perdure.gates.denial import DENIED, Denial, encode
from perdure.gates.policy import Asked, Policy, Verdict
from perdure.gates.ruling import Ruling, Source, judge, lacking
from perdure.history import events as e
from perdure.runtime.live import Entry, LiveRun
from perdure.runtime.performer import UNREADABLE_MICROSECONDS
from perdure.specs import CallSpec, EffectSpec, StepSpec
from perdure.store.protocol import Note, OverRate, Use

if TYPE_CHECKING:
    from perdure.decisions import Request
    from perdure.runtime.effects import EffectFlight
    from perdure.runtime.performer import Flight
    from perdure.runtime.turn import Turns

log = logging.getLogger("perdure.inbox")

_PLAIN = codec_for(Any)


class Gates:
    """Asks the policies of the runs in memory."""

    def __init__(self, turns: Turns, policy: Policy | None) -> None:
        self._turns = turns
        self._policy = policy

    def policies(self, live: LiveRun) -> tuple[Policy, ...]:
        """Those that apply to a run: its workflow's, and this runtime's."""
        return tuple(each for each in (live.execution.spec.policy, self._policy) if each is not None)

    # ── effects ──────────────────────────────────────────────────────────────────────────────
    def effect(self, flight: EffectFlight) -> PolicyDenied | None:
        """Why an effect may not be sent now; None if it may. What it counts against is noted in the flight."""
        live, ask, spec = flight.live, flight.ask, flight.spec
        flight.checked_at, flight.uses, flight.passed = self._turns.clock.now(), (), None
        policies = self.policies(live)
        if not policies and spec.reversible:
            return None
        asked = self._asked(live, spec, ask.input, is_reversible=spec.reversible or bool(ask.undoes))
        ruling = judge(policies, asked)
        refused = self._refused(live, ruling, ask.label, spec.name, ask.grant)
        if refused is None:
            flight.uses, flight.passed = ruling.uses, _passed_by(ruling, policies)
        return refused

    def is_old(self, flight: EffectFlight) -> bool:
        """Whether too much time has passed since the check for what is about to be sent."""
        return self._turns.clock.now() - flight.checked_at > CHECK_AGE_MAX_MICROSECONDS

    # ── steps ────────────────────────────────────────────────────────────────────────────────
    def step(self, flight: Flight) -> bool:
        """Whether a step may begin at once. If not, it is seen to: denied; or begun once it is durable that it counts
        against its rates, and that it has used its approval up."""
        live, grant = flight.live, flight.ask.grant
        policies = self.policies(live)
        if not policies and grant is None:
            return True
        if live.is_in_turn:
            live.deferred += (partial(self._later, flight),)
            return False
        if policies and not self._passes(flight, policies):
            return False
        is_approved_now = grant is not None and grant.id not in live.execution.known.spent
        if grant is not None and not self._is_approved(flight, grant):
            return False
        if not (_has_uses(flight) or is_approved_now):
            return True
        self._begin_recorded(flight)
        return False

    def _passes(self, flight: Flight, policies: Sequence[Policy]) -> bool:
        live, ask = flight.live, flight.ask
        ruling = judge(policies, self._asked(live, ask.spec, ask.input))
        refused = self._refused(live, ruling, ask.label, ask.spec.name, ask.grant)
        if refused is not None:
            self.deny_step(flight, refused)
            return False
        flight.uses = ruling.uses
        return True

    def _is_approved(self, flight: Flight, grant: Grant) -> bool:
        """Whether the approval that a step is made under holds still. What the step may use is reserved before, since
        that can take its time."""
        live = flight.live
        if live.account is not None and not self._turns.budgets.is_reserved(flight, self._later):
            return False
        try:
            refused = self._turns.approvals.begin(live, flight.ask, grant)
        except (AuthorityUnreadableError, StoreError) as error:
            log.warning("run %s: %s waits, trying again: %s", live.run_id, flight.ask.label, error)
            at = self._turns.clock.now() + UNREADABLE_MICROSECONDS
            self._turns.performer.wait_until(flight, at, partial(self._later, flight))
            return False
        if refused is not None:
            self._turns.performer.deny(flight, dump_exception(refused, ()), None)
        return refused is None

    def _later(self, flight: Flight) -> None:
        live, flight.alarm = flight.live, None
        if flight.is_over or live.is_gone or live.is_leaving:
            return
        if live.is_parked or self._turns.is_stopping:
            self._turns.effects.hold(flight)
        elif self.step(flight):
            self._turns.performer.begin(flight)

    def _begin_recorded(self, flight: Flight) -> None:
        live, ask = flight.live, flight.ask
        attempt = flight.number + 1
        if flight.is_start_recorded:
            live.entries.append(Entry(e.StepStarted(*ask.key, ask.name, ask.use, attempt=attempt)))
        else:
            start = flight.start_entry()
            live.entries.append(msgspec.structs.replace(start, event=_of_attempt(start.event, attempt)))
        flight.is_start_recorded = ask.is_recorded = True
        if _has_uses(flight):
            self.count(flight)
        live.then += (partial(self._begin, flight),)
        self._turns.mark(live)

    def _begin(self, flight: Flight) -> None:
        """It is recorded that it begins. If that has taken too long for its approval, it does not."""
        grant = flight.ask.grant
        late = None if grant is None or flight.is_over else self._turns.approvals.too_late(flight, grant)
        if late is None:
            self._turns.performer.begin(flight)
        else:
            self._turns.performer.deny(flight, dump_exception(late, ()), None)

    def count(self, flight: Flight) -> None:
        """Let what is about to begin count against its rates, in the commit of its start."""
        flight.live.uses += self.used_by(flight)

    def used_by(self, flight: Flight) -> tuple[Use, ...]:
        """What it counts as, against each of its rates."""
        use_id = use_id_of(flight)
        return tuple(Use(use.bucket, use_id, use.calls_max, use.microseconds) for use in flight.uses)

    def deny_step(self, flight: Flight, refused: PolicyDenied) -> None:
        """Record that it is not performed."""
        live, ask = flight.live, flight.ask
        if ask.grant is not None:
            self._turns.approvals.lapse(live, ask.grant.id, ask.label)
        self.note(live, ask.label, refused)
        raw = dump_exception(refused, ())
        self._turns.performer.deny(flight, raw, denied_of(refused))

    # ── what people are asked ────────────────────────────────────────────────────────────────
    def request(self, live: LiveRun, about: StepSpec | None, request: Request) -> tuple[str, PolicyDenied | None]:
        """Which rules want the approval that is to be asked for, in words; and why nobody need be asked: it would not
        be allowed with it either."""
        policies = self.policies(live)
        is_final = isinstance(about, EffectSpec) and not about.reversible
        if about is None or not (policies or is_final):
            return "", None
        asked = self._asked(live, about, bytes(request.arguments), is_reversible=not is_final)
        ruling = judge(policies, asked)
        told = "; ".join(dict.fromkeys(need.source.told for need in ruling.needs))
        if ruling.verdict is Verdict.REFUSE and ruling.source is not None:
            return told, _denied(about.name, ruling.source, ruling.why)
        short = next((need for need in ruling.needs if need.quorum > request.quorum), None)
        if short is None:
            return told, None
        return told, _denied(about.name, short.source, f"{short.told}: with_approval(..., quorum={short.quorum})")

    # ── what is asked, and what is said ──────────────────────────────────────────────────────
    def _asked(self, live: LiveRun, spec: StepSpec, raw: bytes, *, is_reversible: bool = True) -> Asked:
        is_effect = isinstance(spec, EffectSpec)
        names = (spec.name, *spec.aliases) if isinstance(spec, EffectSpec) else (spec.name,)
        stated = live.execution.beginning
        return Asked(
            names, arguments_of(spec, raw), "effect" if is_effect else "step", is_reversible,
            stated.scope or {}, stated.goal, live.info.workflow, live.run_id,
        )  # fmt: skip

    def _refused(
        self, live: LiveRun, ruling: Ruling, label: str, name: str, grant: Grant | None
    ) -> PolicyDenied | None:
        if ruling.verdict is Verdict.REFUSE and ruling.source is not None:
            return _denied(label, ruling.source, ruling.why, name)
        lacks = lacking(ruling, self._votes(live, grant) if ruling.needs else None)
        if lacks is None:
            return None
        need, why = lacks
        wrapped = f"wrap it: perdure.with_approval({name}.call(...), by=...)"
        way = wrapped if grant is None else "ask for another approval"
        return _denied(label, need.source, why, name, way)

    def _votes(self, live: LiveRun, grant: Grant | None) -> tuple[Vote, ...] | None:
        row = None if grant is None else self._turns.approvals.row(live, grant.id)
        return None if row is None else row.said

    # ── denied ───────────────────────────────────────────────────────────────────────────────
    def note(self, live: LiveRun, label: str, refused: PolicyDenied) -> None:
        """Have people see, in the same commit, what was denied: of a run the last such call under a rule."""
        info = live.info
        it = Denial(
            live.rid, live.run_id, info.workflow, info.version, label, refused.call, denied_of(refused), refused.why
        )
        live.notices += (Note(DENIED, it.key, encode(it), self._turns.clock.now()),)
        log.warning("run %s: %s", live.run_id, refused)

    def over_rate(self, live: LiveRun, outcome: OverRate) -> None:
        """A rate was used up in the moment in which a call was to begin: nothing of this append is written. All of it
        goes again, without that start."""
        use_id = outcome.use.use_id
        mine = [flight for flight in live.flights.values() if _has_uses(flight) and use_id_of(flight) == use_id]
        keys = {flight.ask.key for flight in mine}
        grants = {flight.ask.grant.id for flight in mine if flight.ask.grant is not None}
        live.go_again_without(mine, use_id, lambda event: _is_start_of(event, keys, grants))
        for grant in grants:
            live.execution.known.spent.pop(grant, None)
        for flight in mine:
            self._deny_over_rate(flight, outcome)
        self._turns.mark(live)

    def _deny_over_rate(self, flight: Flight, outcome: OverRate) -> None:
        rate = next(use for use in flight.uses if use.bucket == outcome.use.bucket)
        why = f"its rate of {rate.told} is used up until {time_text(outcome.free_at)}"
        refused = _denied(flight.ask.label, rate.source, why, flight.ask.spec.name)
        refused.free_at = when(outcome.free_at).isoformat()
        if flight.handler is None:
            flight.is_start_recorded = flight.ask.is_recorded = False
            self.deny_step(flight, refused)
        else:
            self._turns.effects.unsent(flight, refused)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def denied_of(refused: PolicyDenied) -> e.Denied:
    """Who denied it, as it stands in the history."""
    return e.Denied(refused.policy, refused.version, refused.rule)


def _passed_by(ruling: Ruling, policies: Sequence[Policy]) -> e.Denied | None:
    """What let a call pass: the rule that allows it, or that wants the approval which it has; or the policy of which no
    rule says anything about it. None where there is no policy."""
    if not policies or ruling.source is not None:
        return ruling.source if policies else None
    return e.Denied(policies[0].name, str(policies[0].version), "")


def _denied(label: str, source: Source, why: str, name: str = "", way: str = "") -> PolicyDenied:
    told = f"{label}: denied by {source.told}: {why}; nothing of it happened" + (f"; {way}" if way else "")
    return PolicyDenied(told, name or label, source.policy, source.version, source.rule, why)


def arguments_of(spec: StepSpec, raw: bytes) -> Mapping[str, Any]:
    """The arguments of a call as policies see them: plain JSON, by parameter, with the defaults of what was left out.

    A default that cannot be recorded is not there for them: what is said about it cannot be judged. A call that no
    function declares has the fields of its request."""
    if isinstance(spec, CallSpec):
        request = _PLAIN.loads(spec.request)
        return cast("dict[str, Any]", request) if isinstance(request, dict) else {"request": request}
    args, kwargs = spec.arguments.loads(raw)
    bound = inspect.signature(spec.function).bind(*args, **kwargs)
    bound.apply_defaults()
    try:
        raw = spec.arguments.dumps(bound.args, bound.kwargs)
    except PerdureError:
        pass
    arguments: Mapping[str, Any] = _PLAIN.loads(raw)
    return arguments


# ── rates ───────────────────────────────────────────────────────────────────────────────────


def use_id_of(flight: Flight) -> str:
    """What a call counts as: however often it is tried, once."""
    operation = flight.operation_id()
    if operation is not None:
        return operation
    live, (task, n) = flight.live, flight.ask.key
    return f"{live.rid}:{live.execution.beginning.chapter}:{task}:{n}"


def _has_uses(flight: Flight) -> bool:
    return bool(getattr(flight, "uses", ()))


def _is_start_of(event: e.Event, keys: set[Key], grants: set[str]) -> bool:
    if isinstance(event, e.ApprovalSpent):
        return event.id in grants
    return isinstance(event, e.StepStarted) and event.key in keys


def _of_attempt(event: e.Event, attempt: int) -> e.Event:
    return msgspec.structs.replace(event, attempt=attempt)
